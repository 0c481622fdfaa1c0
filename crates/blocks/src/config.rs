//! Sizes and options of the block and of the language model, the sizes that follow from them, and what has to fit.

use crate::block::{BlockConfig, BlockSizes};
use crate::error::{ConfigError, ConfigErrors};
use crate::names;
use crate::params::Role;
use crate::state::StateInfo;

/// Kernels unroll the taps of the convolution.
const MAX_TAPS: usize = 64;

/// Options of a Mamba-2 block; [`sizes`](Self::sizes) checks them.
///
/// The same block with other options is the predecessor's ([`Mamba2Config::seed`]), and the one with complex states and
/// ranks ([`Mamba2Config::cmamba`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2Config {
    /// Width of the residual stream.
    pub d_model: usize,
    /// N, states a head and channel; complex ones count once.
    pub d_state: usize,
    /// Whether states are complex, see [`Cssd`](crate::cssd::Cssd).
    pub complex: bool,
    /// R, ranks of the update of a complex state.
    pub mimo_rank: usize,
    /// K, taps of the convolution.
    pub d_conv: usize,
    /// `d_inner / d_model`; their product has to be whole.
    pub expand: f64,
    /// P, channels a head.
    pub headdim: usize,
    /// Channels that pass through the scan; the rest of `d_inner` is a gated unit beside it. Absent: all of `d_inner`.
    pub d_ssm: Option<usize>,
    /// G, groups of heads that share B and C.
    pub ngroups: usize,
    /// Whether D has an entry for each channel rather than for each head.
    pub d_has_hdim: bool,
    /// Whether there is a gate z.
    pub gate: bool,
    /// Whether silu follows the convolution.
    pub conv_act: bool,
    /// The norm before `out_proj`.
    pub norm: NormKind,
    /// Channels that are normalised together. Absent: `d_ssm / ngroups`, or all of `d_ssm` under the predecessor's naming.
    pub norm_group: Option<usize>,
    /// Whether the projections have biases.
    pub bias: bool,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Limits of the time step after softplus; an upper limit of `f32::MAX` is none.
    pub dt_limit: [f32; 2],
    /// Added to the mean square in the block's pre-norm.
    pub eps: f64,
    /// Added to the mean square in the norm before `out_proj`.
    pub norm_eps: f64,
    /// Whether the scan starts from a parameter rather than from zero where no state is given.
    pub learnable_init_states: bool,
    /// Order of the convolution's taps in its weight.
    pub taps: Taps,
    /// What the parameters are called.
    pub naming: Naming,
    /// Chunk length of the scan; 0 leaves it to the planner. Results do not depend on it.
    pub chunk_size: usize,
}

/// The norm before `out_proj`; without a gate the last two are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `y * silu(z)` without a norm.
    None,
    /// `rms_norm(y * silu(z))`.
    AfterGate,
    /// `rms_norm(y) * silu(z)`.
    BeforeGate,
}

/// Which end of the convolution's weight multiplies the current token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taps {
    /// The last column, as in every public checkpoint.
    NewestLast,
    /// The first column, as in the predecessor.
    NewestFirst,
}

/// What a block's parameters are called, see [`names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `mixer.in_proj.weight` and so on, as in public checkpoints.
    Mixer,
    /// The predecessor's nine names, with a convolution weight of two axes.
    Predecessor,
}

/// Sizes that follow from a [`Mamba2Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2Sizes {
    /// Channels inside the block.
    pub d_inner: usize,
    /// Channels that pass through the scan.
    pub d_ssm: usize,
    /// Channels of the gated unit beside the scan, `d_inner - d_ssm`.
    pub d_mlp: usize,
    /// H, heads.
    pub nheads: usize,
    /// Rows of B, and of C: `ngroups * d_state`, with complex states twice that for each rank.
    pub d_bc: usize,
    /// Channels of the convolution, `d_ssm + 2 * d_bc`.
    pub conv_dim: usize,
    /// Rows of z: `d_ssm` with a gate, else 0.
    pub d_gate: usize,
    /// Rows of `in_proj`: twice `d_mlp`, then z, x, B, C and dt.
    pub in_proj_rows: usize,
    /// Channels that are normalised together.
    pub norm_group: usize,
}

impl Mamba2Config {
    /// The published block with its defaults: `d_state` 128, `d_conv` 4, `expand` 2, `headdim` 64, one group.
    #[must_use]
    pub const fn new(d_model: usize) -> Self {
        Self {
            d_model,
            d_state: 128,
            complex: false,
            mimo_rank: 1,
            d_conv: 4,
            expand: 2.0,
            headdim: 64,
            d_ssm: None,
            ngroups: 1,
            d_has_hdim: false,
            gate: true,
            conv_act: true,
            norm: NormKind::AfterGate,
            norm_group: None,
            bias: false,
            conv_bias: true,
            dt_limit: [0.0, f32::MAX],
            eps: 1e-5,
            norm_eps: 1e-5,
            learnable_init_states: false,
            taps: Taps::NewestLast,
            naming: Naming::Mixer,
            chunk_size: 0,
        }
    }

    /// The predecessor's block: no gate, no activation after the convolution, current tap first, eps 1e-6,
    /// one norm over all channels, nine parameter names, `d_state` 16.
    #[must_use]
    pub const fn seed(d_model: usize) -> Self {
        let mut config = Self::new(d_model);
        config.d_state = 16;
        config.gate = false;
        config.conv_act = false;
        config.eps = 1e-6;
        config.norm_eps = 1e-6;
        config.taps = Taps::NewestFirst;
        config.naming = Naming::Predecessor;
        config
    }

    /// The predecessor's block with complex states: as [`seed`](Self::seed), where A = -exp(a0) + i a1 comes from two
    /// numbers a head and the discretisation is exact.
    #[must_use]
    pub const fn cmamba(d_model: usize) -> Self {
        let mut config = Self::seed(d_model);
        config.complex = true;
        config
    }

    /// What the block carries from one token to the next.
    #[must_use]
    pub fn states(&self, sizes: &Mamba2Sizes) -> Vec<StateInfo> {
        let mut ssm = vec![sizes.nheads, self.headdim, self.d_state];
        ssm.extend(self.complex.then_some(2));
        let conv = vec![sizes.conv_dim, self.d_conv.saturating_sub(1)];
        let conv = (self.d_conv > 1).then_some(StateInfo { name: "conv_state", shape: conv });
        conv.into_iter().chain([StateInfo { name: "ssm_state", shape: ssm }]).collect()
    }

    /// The sizes that follow, if all options fit together.
    ///
    /// # Errors
    /// Every inconsistency, each with how to fix it.
    pub fn sizes(&self) -> Result<Mamba2Sizes, ConfigErrors> {
        let mut errors = self.number_errors();
        let sizes = self.derive(&mut errors);
        self.naming_errors(&mut errors);
        match sizes {
            Some(sizes) if errors.is_empty() => Ok(sizes),
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Names of the settings that are sizes, with their values.
    const fn counts(&self) -> [(&'static str, usize); 6] {
        [
            ("d_model", self.d_model),
            ("d_state", self.d_state),
            ("d_conv", self.d_conv),
            ("headdim", self.headdim),
            ("ngroups", self.ngroups),
            ("mimo_rank", self.mimo_rank),
        ]
    }

    fn number_errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let optional = [("d_ssm", self.d_ssm), ("norm_group", self.norm_group)].into_iter().filter_map(|(key, size)| Some((key, size?)));
        for (key, value) in self.counts().into_iter().chain(optional) {
            if value == 0 {
                errors.push(ConfigError::Zero { key });
            }
            check_countable(key, value, &mut errors);
        }
        if !(self.expand.is_finite() && self.expand > 0.0) {
            errors.push(out_of_range("expand", self.expand, "expand is a positive number, usually 2"));
        }
        if self.d_conv > MAX_TAPS {
            errors.push(ConfigError::OutOfRange {
                key: "d_conv",
                value: self.d_conv.to_string(),
                help: "d_conv is at most 64, since kernels unroll the taps; published models have 2 to 4",
            });
        }
        for (key, value) in [("eps", self.eps), ("norm_eps", self.norm_eps)] {
            check_eps(key, value, &mut errors);
        }
        if self.mimo_rank > 1 && !self.complex {
            errors.push(ConfigError::OutOfRange {
                key: "mimo_rank",
                value: self.mimo_rank.to_string(),
                help: "ranks need complex states: set complex = true, or mimo_rank = 1",
            });
        }
        let [lo, hi] = self.dt_limit;
        if !(lo.is_finite() && lo >= 0.0 && hi.is_finite() && lo <= hi) {
            errors.push(ConfigError::OutOfRange {
                key: "dt_limit",
                value: format!("[{lo:?}, {hi:?}]"),
                help: "two finite numbers that are not negative, the lower first; the largest f32 as upper limit is none",
            });
        }
        errors
    }

    fn derive(&self, errors: &mut Vec<ConfigError>) -> Option<Mamba2Sizes> {
        if !errors.is_empty() {
            return None;
        }
        let Some(d_inner) = whole_product(self.expand, self.d_model) else {
            errors.push(out_of_range(
                "expand",
                self.expand,
                "choose expand so that expand * d_model is a whole number of at least 1 and below 4294967296",
            ));
            return None;
        };
        let d_ssm = self.d_ssm.unwrap_or(d_inner);
        if d_ssm > d_inner {
            errors.push(ConfigError::OutOfRange { key: "d_ssm", value: d_ssm.to_string(), help: "d_ssm is at most expand * d_model" });
            return None;
        }
        let what = if self.d_ssm.is_some() { "d_ssm" } else { "expand * d_model" };
        check_multiple((what, d_ssm), ("headdim", self.headdim), "choose headdim so that it divides the channels of the scan", errors);
        let nheads = d_ssm / self.headdim;
        check_multiple(("nheads", nheads), ("ngroups", self.ngroups), "choose ngroups so that nheads is a multiple of it", errors);
        let norm_group = self.norm_group.unwrap_or(match self.naming {
            Naming::Mixer => d_ssm / self.ngroups,
            Naming::Predecessor => d_ssm,
        });
        if self.norm != NormKind::None && errors.is_empty() {
            check_multiple(("d_ssm", d_ssm), ("norm_group", norm_group), "choose norm_group so that it divides d_ssm", errors);
        }
        let sizes = self.assemble(d_inner, d_ssm, nheads, norm_group);
        self.check_elements(&sizes, errors);
        Some(sizes)
    }

    /// Every parameter and state of one sequence has fewer elements than kernels count, or the largest setting is named.
    fn check_elements(&self, sizes: &Mamba2Sizes, errors: &mut Vec<ConfigError>) {
        let tensors = [
            ("in_proj", sizes.in_proj_rows, self.d_model),
            ("the convolution", sizes.conv_dim, self.d_conv),
            ("the states", sizes.d_ssm, self.d_state.saturating_mul(if self.complex { 2 } else { 1 })),
            ("weights of ranks", sizes.d_ssm, self.mimo_rank),
        ];
        let Some((what, ..)) = tensors.into_iter().find(|&(_, rows, columns)| !is_countable(rows.saturating_mul(columns))) else { return };
        #[expect(clippy::cast_precision_loss, reason = "sizes are checked to be below 2^32 before")]
        let settings = self.counts().map(|(key, value)| (key, value as f64));
        let largest = settings.into_iter().fold(("expand", self.expand), |most, next| if next.1 > most.1 { next } else { most });
        errors.push(ConfigError::ManyElements { key: largest.0, value: largest.1.to_string(), what });
    }

    fn assemble(&self, d_inner: usize, d_ssm: usize, nheads: usize, norm_group: usize) -> Mamba2Sizes {
        let numbers = if self.complex { self.mimo_rank.saturating_mul(2) } else { 1 };
        let d_bc = self.ngroups.saturating_mul(self.d_state).saturating_mul(numbers);
        let conv_dim = d_ssm.saturating_add(d_bc.saturating_mul(2));
        let d_mlp = d_inner - d_ssm;
        let d_gate = if self.gate { d_ssm } else { 0 };
        let in_proj_rows = [d_mlp, d_mlp, d_gate, conv_dim, nheads].into_iter().fold(0usize, usize::saturating_add);
        Mamba2Sizes { d_inner, d_ssm, d_mlp, nheads, d_bc, conv_dim, d_gate, in_proj_rows, norm_group }
    }

    fn naming_errors(&self, errors: &mut Vec<ConfigError>) {
        let optional = [
            (self.bias, Role::InProjBias, "the biases of the projections"),
            (self.learnable_init_states, Role::InitStates, "learnable initial states"),
        ];
        for (is_on, role, what) in optional {
            if is_on && names::of_block(self.naming, role).is_none() {
                errors.push(ConfigError::Unnamed { what });
            }
        }
    }
}

/// A stack of blocks between an embedding and a head.
#[derive(Clone, Debug, PartialEq)]
pub struct LmConfig {
    /// Every layer's block.
    pub block: BlockConfig,
    /// Layers.
    pub n_layer: usize,
    /// Rows of the embedding, padding included.
    pub vocab_size: usize,
    /// Rows at the end of the embedding and the head that no token has. They are never the next token, and their logits have
    /// no meaning.
    pub vocab_padding: usize,
    /// Added to the mean square in the final norm.
    pub norm_eps: f64,
    /// Whether the head is the embedding.
    pub tie_embeddings: bool,
}

impl LmConfig {
    /// A tied model with the block's eps in the final norm.
    #[must_use]
    pub fn new(block: impl Into<BlockConfig>, n_layer: usize, vocab_size: usize) -> Self {
        let block = block.into();
        let norm_eps = block.eps();
        Self { block, n_layer, vocab_size, vocab_padding: 0, norm_eps, tie_embeddings: true }
    }

    /// Tokens that there are: the rows of the vocabulary without its padding.
    #[must_use]
    pub const fn n_tokens(&self) -> usize {
        self.vocab_size.saturating_sub(self.vocab_padding)
    }

    /// The block's sizes, if all options fit together.
    ///
    /// # Errors
    /// Every inconsistency, each with how to fix it.
    pub fn sizes(&self) -> Result<BlockSizes<'_>, ConfigErrors> {
        let mut errors = Vec::new();
        for (key, value) in [("n_layer", self.n_layer), ("vocab_size", self.vocab_size)] {
            if value == 0 {
                errors.push(ConfigError::Zero { key });
            }
            check_countable(key, value, &mut errors);
        }
        if self.vocab_size > 0 && self.n_tokens() == 0 {
            let help = "rows of padding are fewer than vocab_size, so that at least one token is left";
            errors.push(ConfigError::OutOfRange { key: "vocab_padding", value: self.vocab_padding.to_string(), help });
        }
        if errors.is_empty() && !is_countable(self.vocab_size.saturating_mul(self.block.d_model())) {
            let (key, value) =
                if self.vocab_size < self.block.d_model() { ("d_model", self.block.d_model()) } else { ("vocab_size", self.vocab_size) };
            errors.push(ConfigError::ManyElements { key, value: value.to_string(), what: "the embedding" });
        }
        check_eps("norm_eps", self.norm_eps, &mut errors);
        match self.block.sizes() {
            Ok(sizes) if errors.is_empty() => Ok(sizes),
            Ok(_) => Err(ConfigErrors(errors)),
            Err(block) => Err(ConfigErrors(errors.into_iter().chain(block.0).collect())),
        }
    }
}

pub(crate) fn out_of_range(key: &'static str, value: f64, help: &'static str) -> ConfigError {
    ConfigError::OutOfRange { key, value: format!("{value:?}"), help }
}

pub(crate) fn is_countable(value: usize) -> bool {
    u32::try_from(value).is_ok()
}

pub(crate) fn check_eps(key: &'static str, value: f64, errors: &mut Vec<ConfigError>) {
    if !(value.is_finite() && value >= 0.0) {
        errors.push(out_of_range(key, value, "eps is a finite number that is not negative, usually 1e-5"));
    }
}

pub(crate) fn check_countable(key: &'static str, value: usize, errors: &mut Vec<ConfigError>) {
    if !is_countable(value) {
        errors.push(ConfigError::TooLarge { key, value });
    }
}

pub(crate) fn check_multiple(
    (what, size): (&'static str, usize),
    (by, divisor): (&'static str, usize),
    help: &'static str,
    errors: &mut Vec<ConfigError>,
) {
    if size == 0 || !size.is_multiple_of(divisor) {
        errors.push(ConfigError::NotDivisible { what, size, by, divisor, help });
    }
}

/// `factor * size` if it is a whole number of at least 1 that an f64 holds exactly.
pub(crate) fn whole_product(factor: f64, size: usize) -> Option<usize> {
    #[expect(clippy::cast_precision_loss, reason = "sizes are checked to be below 2^32 before")]
    let product = factor * size as f64;
    let is_whole = product >= 1.0 && product <= f64::from(u32::MAX) && product.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number between 1 and 2^32")]
    let size = product as usize;
    is_whole.then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(config: &Mamba2Config) -> String {
        config.sizes().map_or_else(|errors| errors.to_string(), |sizes| format!("{sizes:?}"))
    }

    fn small() -> Mamba2Config {
        Mamba2Config { headdim: 4, d_state: 5, ngroups: 3, ..Mamba2Config::new(12) }
    }

    #[test]
    fn sizes_follow_the_published_block() {
        let sizes = Mamba2Config::new(768).sizes().unwrap();
        assert_eq!((sizes.d_inner, sizes.nheads, sizes.conv_dim, sizes.in_proj_rows), (1536, 24, 1792, 3352));
        let sizes = small().sizes().unwrap();
        assert_eq!((sizes.nheads, sizes.norm_group, sizes.conv_dim), (6, 8, 54));
        let split = Mamba2Config { d_ssm: Some(12), ngroups: 1, ..small() }.sizes().unwrap();
        assert_eq!((split.d_mlp, split.nheads, split.in_proj_rows), (12, 3, 24 + 12 + 22 + 3));
    }

    #[test]
    fn complex_states_count_twice_for_each_rank() {
        let config = Mamba2Config { headdim: 4, d_state: 3, ngroups: 2, mimo_rank: 3, ..Mamba2Config::cmamba(8) };
        let sizes = config.sizes().unwrap();
        assert_eq!((sizes.d_bc, sizes.conv_dim, sizes.in_proj_rows), (36, 88, 92));
        assert_eq!(config.states(&sizes)[1].shape, [4, 4, 3, 2]);
        assert!(messages(&Mamba2Config { mimo_rank: 2, ..small() }).contains("ranks need complex states"));
    }

    #[test]
    fn the_predecessor_normalises_over_all_channels() {
        let seed = Mamba2Config { headdim: 4, ngroups: 3, ..Mamba2Config::seed(12) };
        assert_eq!(seed.sizes().unwrap().norm_group, 24);
        assert_eq!(seed.sizes().unwrap().in_proj_rows, 24 + 2 * 48 + 6);
    }

    #[test]
    fn absurd_sizes_are_named_once() {
        assert_eq!(
            messages(&Mamba2Config { d_state: 1_000_000_000, ..small() }),
            "config: d_state = 1000000000 is too large: in_proj would have 4294967296 elements or more\n  help: choose a smaller d_state"
        );
        assert!(messages(&Mamba2Config::new(1 << 20)).contains("d_model = 1048576 is too large"));
        assert!(messages(&Mamba2Config { expand: 1e8, ..small() }).starts_with("config: expand = 100000000 is too large"));
        assert!(
            messages(&Mamba2Config { d_model: 1, d_state: 1 << 20, headdim: 2, expand: 4098.0, ngroups: 1, ..small() })
                .contains("the states would")
        );
        assert!(messages(&Mamba2Config { expand: 1e300, ..small() }).starts_with("config: expand is 1e300\n"));
        assert!(messages(&Mamba2Config { d_conv: 65, ..small() }).starts_with("config: d_conv is 65\n  help: d_conv is at most 64"));
        assert!(Mamba2Config { d_conv: 64, ..small() }.sizes().is_ok());
        let errors = LmConfig::new(small(), 1, 1 << 31).sizes().unwrap_err().to_string();
        assert!(errors.starts_with("config: vocab_size = 2147483648 is too large: the embedding would"), "{errors}");
        let errors = LmConfig { vocab_padding: 9, ..LmConfig::new(small(), 1, 9) }.sizes().unwrap_err().to_string();
        assert!(errors.starts_with("config: vocab_padding is 9\n  help: rows of padding are fewer"), "{errors}");
    }

    #[test]
    fn limits_of_the_time_step_are_finite_and_not_negative() {
        for (lo, hi) in [(f32::INFINITY, f32::MAX), (-1.0, 1.0), (f32::NAN, 1.0), (0.0, f32::INFINITY), (0.5, f32::NAN)] {
            assert!(messages(&Mamba2Config { dt_limit: [lo, hi], ..small() }).contains("dt_limit is ["), "{lo} {hi}");
        }
        assert!(messages(&Mamba2Config { dt_limit: [f32::INFINITY, f32::MAX], ..small() }).contains("[inf, 3.4028235e38]"));
        assert!(Mamba2Config { dt_limit: [0.5, 0.5], ..small() }.sizes().is_ok());
    }

    #[test]
    fn each_inconsistency_says_what_and_how() {
        assert_eq!(
            messages(&Mamba2Config { ngroups: 4, ..small() }),
            "config: nheads = 6 is not a multiple of ngroups = 4\n  help: choose ngroups so that nheads is a multiple of it"
        );
        assert_eq!(
            messages(&Mamba2Config { headdim: 5, ngroups: 1, ..small() }),
            "config: expand * d_model = 24 is not a multiple of headdim = 5\n  help: choose headdim so that it divides the channels of the scan"
        );
        assert!(messages(&Mamba2Config { norm_group: Some(7), ..small() }).contains("d_ssm = 24 is not a multiple of norm_group = 7"));
        assert!(messages(&Mamba2Config { expand: 0.3, ..small() }).contains("expand is 0.3"));
        assert!(messages(&Mamba2Config { eps: f64::NAN, ..small() }).contains("eps is NaN"));
        assert!(messages(&Mamba2Config { norm_eps: -1.0, ..small() }).contains("norm_eps is -1"));
        assert!(messages(&Mamba2Config { dt_limit: [0.5, 0.1], ..small() }).contains("dt_limit is [0.5, 0.1]"));
        assert!(messages(&Mamba2Config { d_ssm: Some(28), ..small() }).contains("d_ssm is 28"));
        assert!(messages(&Mamba2Config { d_state: usize::MAX, ..small() }).contains("too large"));
    }

    #[test]
    fn all_mistakes_are_reported_together() {
        let errors = Mamba2Config { d_model: 0, d_conv: 0, eps: -1.0, ..small() }.sizes().unwrap_err();
        assert_eq!(errors.0.len(), 3);
        let seed = Mamba2Config { bias: true, learnable_init_states: true, headdim: 4, ..Mamba2Config::seed(12) };
        assert_eq!(seed.sizes().unwrap_err().0.len(), 2);
        assert_eq!(LmConfig::new(Mamba2Config { d_model: 0, ..small() }, 0, 0).sizes().unwrap_err().0.len(), 3);
    }
}
