//! Sizes and options of the Mamba-3 block, and what has to fit.

use crate::config::{Naming, check_countable, check_eps, check_multiple, is_countable, out_of_range, whole_product};
use crate::error::{ConfigError, ConfigErrors};
use crate::json;
use crate::params::{ParamInfo, Role, list};
use crate::settings::{COUNT, Derived, FLAG, NUMBER, Row, Settings, put, set, with_json};
use crate::state::StateInfo;
use monopass_ir::Tensor;
use serde_json::Value;
use std::fmt;
use std::ops::Range;

/// Ranks of the published block with `is_mimo`; its files state it without, too.
const DEFAULT_RANK: usize = 4;

/// Options of a Mamba-3 block; [`sizes`](Self::sizes) checks them.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba3Config {
    /// Width of the residual stream.
    pub d_model: usize,
    /// N, states a head and channel.
    pub d_state: usize,
    /// `d_inner / d_model`; their product has to be whole.
    pub expand: f64,
    /// P, channels a head.
    pub headdim: usize,
    /// G, groups of heads that share B and C before the biases.
    pub ngroups: usize,
    /// The part of k and q that turns: 0.5 or 1.
    pub rope_fraction: f64,
    /// The least decay rate.
    pub a_floor: f64,
    /// What makes the decay rate positive. No checkpoint says, and it changed: see [`AAct`].
    pub a_act: AAct,
    /// Whether there are ranks, with weights of x, z and the output for each.
    pub is_mimo: bool,
    /// R with `is_mimo`; without, there is one rank, and this is 1 or stays at its default of 4.
    pub mimo_rank: usize,
    /// Which entries of k and q turn together. Absent: neighbors without `is_mimo`, halves with it, as in the reference.
    pub rope_pairs: Option<RopePairs>,
    /// Whether every head and rank is normalised before the gate.
    pub is_outproj_norm: bool,
    /// Added to the mean square in the block's pre-norm.
    pub eps: f64,
    /// Added to the mean square in the norms of B, C and the output.
    pub norm_eps: f64,
    /// Chunk length of the scan; 0 leaves it to the planner. Results do not depend on it.
    pub chunk_size: usize,
}

/// What makes the decay rate positive.
///
/// The reference implementation used softplus from its first release (March 2026, `mamba_ssm` 2.3.2) and the heavy tail since
/// June 2026. Weights only work with the one that they were trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AAct {
    /// `log(1 + e^x)`.
    Softplus,
    /// `1 + x` for `x >= 0`, `1 / (1 - x)` below, which meet in value and slope.
    HeavyTail,
}

/// Which entries of k and q turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// 2i and 2i + 1.
    Interleaved,
    /// i and i + N/2.
    Halves,
}

/// Sizes that follow from a [`Mamba3Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba3Sizes {
    /// Channels inside the block.
    pub d_inner: usize,
    /// H, heads.
    pub nheads: usize,
    /// R, ranks.
    pub ranks: usize,
    /// Rows of B, and of C: `ranks * ngroups * d_state`.
    pub d_bc: usize,
    /// S, pairs of entries that turn.
    pub n_angles: usize,
    /// Which entries turn together.
    pub pairs: RopePairs,
    /// Rows of `in_proj`: z, x, B, C, dt, the decay rate, the gate of the trapezoidal rule, the angles.
    pub in_proj_rows: usize,
}

impl AAct {
    /// The function.
    #[track_caller]
    #[must_use]
    pub fn apply(self, x: Tensor<'_>) -> Tensor<'_> {
        match self {
            Self::Softplus => x.softplus(),
            Self::HeavyTail => heavy_tail(x),
        }
    }

    /// The function called `softplus` or `heavy_tail`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "softplus" => Some(Self::Softplus),
            "heavy_tail" => Some(Self::HeavyTail),
            _ => None,
        }
    }
}

impl fmt::Display for AAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Softplus => "softplus",
            Self::HeavyTail => "heavy_tail",
        })
    }
}

/// `1 + x` for `x >= 0`, `1 / (1 - x)` below.
#[track_caller]
#[must_use]
pub(crate) fn heavy_tail(x: Tensor<'_>) -> Tensor<'_> {
    let [zero, one] = [0.0, 1.0].map(|number| x.number(number));
    x.max(zero) + one / (one - x.min(zero))
}

impl Mamba3Config {
    /// The published block with its defaults: `d_state` 128, `expand` 2, `headdim` 64, one group, half of the entries turn,
    /// no ranks (4 with `is_mimo`), the heavy tail.
    #[must_use]
    pub const fn new(d_model: usize) -> Self {
        Self {
            d_model,
            d_state: 128,
            expand: 2.0,
            headdim: 64,
            ngroups: 1,
            rope_fraction: 0.5,
            a_floor: 1e-4,
            a_act: AAct::HeavyTail,
            is_mimo: false,
            mimo_rank: DEFAULT_RANK,
            rope_pairs: None,
            is_outproj_norm: false,
            eps: 1e-5,
            norm_eps: 1e-5,
            chunk_size: 0,
        }
    }

    /// Changes the settings that `text` names, such as `d_model=256,is_mimo=true,a_act=softplus`.
    ///
    /// # Errors
    /// A name that no setting has, or a value of another type. Whether the sizes fit together is asked of
    /// [`sizes`](Self::sizes).
    pub fn set(&mut self, text: &str) -> Result<(), ConfigErrors> {
        set(self, text)
    }

    /// This configuration with the settings of a JSON object, which has to state `a_act`, and may state derived sizes too.
    ///
    /// # Errors
    /// Unknown keys, values of another type, derived sizes that do not follow, and every inconsistency.
    pub fn with_json(self, object: &Value) -> Result<Self, ConfigErrors> {
        with_json(self, object)
    }

    /// The sizes that follow, if all options fit together.
    ///
    /// # Errors
    /// Every inconsistency, each with how to fix it.
    pub fn sizes(&self) -> Result<Mamba3Sizes, ConfigErrors> {
        let mut errors = self.number_errors();
        match self.derive(&mut errors) {
            Some(sizes) if errors.is_empty() => Ok(sizes),
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Names of the settings that are sizes, with their values.
    const fn counts(&self) -> [(&'static str, usize); 5] {
        [
            ("d_model", self.d_model),
            ("d_state", self.d_state),
            ("headdim", self.headdim),
            ("ngroups", self.ngroups),
            ("mimo_rank", self.mimo_rank),
        ]
    }

    fn number_errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        for (key, value) in self.counts() {
            if value == 0 {
                errors.push(ConfigError::Zero { key });
            }
            check_countable(key, value, &mut errors);
        }
        if !(self.expand.is_finite() && self.expand > 0.0) {
            errors.push(out_of_range("expand", self.expand, "expand is a positive number, usually 2"));
        }
        if self.rope_fraction != 0.5 && self.rope_fraction != 1.0 {
            errors.push(out_of_range(
                "rope_fraction",
                self.rope_fraction,
                "half or all of the entries turn: set rope_fraction to 0.5 or 1",
            ));
        }
        if !self.is_mimo && self.mimo_rank != 1 && self.mimo_rank != DEFAULT_RANK && self.mimo_rank != 0 {
            let help = "ranks need is_mimo: set is_mimo = true, or mimo_rank = 1";
            errors.push(ConfigError::OutOfRange { key: "mimo_rank", value: self.mimo_rank.to_string(), help });
        }
        if !(0.0..=f64::from(f32::MAX)).contains(&self.a_floor) {
            errors.push(out_of_range("a_floor", self.a_floor, "a_floor is a finite number that is not negative, usually 1e-4"));
        }
        for (key, value) in [("eps", self.eps), ("norm_eps", self.norm_eps)] {
            check_eps(key, value, &mut errors);
        }
        errors
    }

    fn derive(&self, errors: &mut Vec<ConfigError>) -> Option<Mamba3Sizes> {
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
        check_multiple(("expand * d_model", d_inner), ("headdim", self.headdim), "choose headdim so that it divides d_inner", errors);
        let nheads = d_inner / self.headdim;
        check_multiple(("nheads", nheads), ("ngroups", self.ngroups), "choose ngroups so that nheads is a multiple of it", errors);
        let ranks = if self.is_mimo { self.mimo_rank } else { 1 };
        let d_bc = ranks.saturating_mul(self.ngroups).saturating_mul(self.d_state);
        let n_angles = self.n_angles();
        if n_angles == 0 {
            let help = "choose d_state so that at least one pair turns: 4, or 2 with rope_fraction = 1";
            errors.push(ConfigError::OutOfRange { key: "d_state", value: self.d_state.to_string(), help });
        }
        let parts = [d_inner, d_inner, d_bc, d_bc, nheads, nheads, nheads, n_angles];
        let in_proj_rows = parts.into_iter().fold(0usize, usize::saturating_add);
        let by_kind = if self.is_mimo { RopePairs::Halves } else { RopePairs::Interleaved };
        let pairs = self.rope_pairs.unwrap_or(by_kind);
        let sizes = Mamba3Sizes { d_inner, nheads, ranks, d_bc, n_angles, pairs, in_proj_rows };
        self.check_elements(&sizes, errors);
        Some(sizes)
    }

    /// Every parameter and state of one sequence has fewer elements than kernels count, or the largest setting is named.
    fn check_elements(&self, sizes: &Mamba3Sizes, errors: &mut Vec<ConfigError>) {
        let &Mamba3Sizes { d_inner, nheads, ranks, .. } = sizes;
        let tensors = [
            ("in_proj", sizes.in_proj_rows, self.d_model),
            ("the states", d_inner, self.d_state),
            ("weights of ranks", d_inner, ranks),
            ("the biases", nheads, ranks.saturating_mul(self.d_state)),
        ];
        let Some((what, ..)) = tensors.into_iter().find(|&(_, rows, columns)| !is_countable(rows.saturating_mul(columns))) else { return };
        // Without ranks their number is the published one, and has no part in it.
        let counts = self.counts().into_iter().filter(|(key, _)| self.is_mimo || *key != "mimo_rank");
        #[expect(clippy::cast_precision_loss, reason = "sizes are checked to be below 2^32 before")]
        let settings = counts.map(|(key, value)| (key, value as f64));
        let largest = settings.fold(("expand", self.expand), |most, next| if next.1 > most.1 { next } else { most });
        errors.push(ConfigError::ManyElements { key: largest.0, value: largest.1.to_string(), what });
    }

    /// Half of the whole number of entries that turn.
    fn n_angles(&self) -> usize {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a size below 2^32 times a number between 0 and 1"
        )]
        let n_turning = (self.d_state as f64 * self.rope_fraction) as usize;
        n_turning / 2
    }

    /// What the block carries from one token to the next.
    #[must_use]
    pub fn states(&self, sizes: &Mamba3Sizes) -> Vec<StateInfo> {
        let nheads = sizes.nheads;
        vec![
            StateInfo { name: "angle_state", shape: vec![nheads, sizes.n_angles] },
            StateInfo { name: "ssm_state", shape: vec![nheads, self.headdim, self.d_state] },
            StateInfo { name: "k_state", shape: vec![sizes.ranks, nheads, self.d_state] },
            StateInfo { name: "v_state", shape: vec![nheads, self.headdim] },
        ]
    }

    /// Shape of the parameter with this role; `None` if the block has none.
    #[must_use]
    pub fn shape_of(&self, sizes: &Mamba3Sizes, role: Role) -> Option<Vec<usize>> {
        Some(match role {
            Role::PreNorm => vec![self.d_model],
            Role::InProj => vec![sizes.in_proj_rows, self.d_model],
            Role::DtBias | Role::DSkip => vec![sizes.nheads],
            Role::BNorm | Role::CNorm => vec![self.d_state],
            Role::BBias | Role::CBias => vec![sizes.nheads, sizes.ranks, self.d_state],
            Role::MimoX | Role::MimoZ | Role::MimoO if self.is_mimo => vec![sizes.nheads, sizes.ranks, self.headdim],
            Role::Norm if self.is_outproj_norm => vec![sizes.d_inner],
            Role::OutProj => vec![self.d_model, sizes.d_inner],
            Role::InProjBias
            | Role::Conv
            | Role::ConvBias
            | Role::ALog
            | Role::Norm
            | Role::OutProjBias
            | Role::InitStates
            | Role::MimoX
            | Role::MimoZ
            | Role::MimoO
            | Role::Embedding
            | Role::FinalNorm
            | Role::Head => return None,
        })
    }

    /// The block's parameters, their names after `prefix`.
    ///
    /// # Errors
    /// Every inconsistency of the configuration.
    pub fn parameters(&self, prefix: &str) -> Result<Vec<ParamInfo>, ConfigErrors> {
        let sizes = self.sizes()?;
        Ok(list(prefix, Naming::Mixer, |role| self.shape_of(&sizes, role)))
    }
}

impl Mamba3Sizes {
    /// Rows of `in_proj` that make B and C: they stand after z and x.
    #[must_use]
    pub const fn bc_rows(&self) -> Range<usize> {
        2 * self.d_inner..2 * self.d_inner + 2 * self.d_bc
    }

    /// Rows of each part of `in_proj`: z, x, B with C, dt, the decay rate, the gate of the trapezoidal rule, the angles.
    #[must_use]
    pub const fn in_proj_parts(&self) -> [usize; 7] {
        [self.d_inner, self.d_inner, 2 * self.d_bc, self.nheads, self.nheads, self.nheads, self.n_angles]
    }
}

impl Settings for Mamba3Config {
    type Sizes = Mamba3Sizes;
    const ROWS: &'static [Row<Self>] = &[
        (&["d_model"], COUNT, |c, v| put(&mut c.d_model, json::count(v))),
        (&["d_state"], COUNT, |c, v| put(&mut c.d_state, json::count(v))),
        (&["expand"], NUMBER, |c, v| put(&mut c.expand, json::number(v))),
        (&["headdim"], COUNT, |c, v| put(&mut c.headdim, json::count(v))),
        (&["ngroups"], COUNT, |c, v| put(&mut c.ngroups, json::count(v))),
        (&["rope_fraction"], NUMBER, |c, v| put(&mut c.rope_fraction, json::number(v))),
        (&["a_floor", "A_floor"], NUMBER, |c, v| put(&mut c.a_floor, json::number(v))),
        (&["a_act"], "softplus or heavy_tail", |c, v| put(&mut c.a_act, v.as_str().and_then(AAct::named))),
        (&["is_mimo"], FLAG, |c, v| put(&mut c.is_mimo, v.as_bool())),
        (&["mimo_rank"], COUNT, |c, v| put(&mut c.mimo_rank, json::count(v))),
        (&["rope_pairs"], "interleaved, halves or none", |c, v| put(&mut c.rope_pairs, pairs(v))),
        (&["rope_pairwise"], FLAG, |c, v| {
            put(&mut c.rope_pairs, v.as_bool().map(|pairwise| Some(if pairwise { RopePairs::Interleaved } else { RopePairs::Halves })))
        }),
        (&["is_outproj_norm", "outproj_norm"], FLAG, |c, v| put(&mut c.is_outproj_norm, v.as_bool())),
        (&["eps"], NUMBER, |c, v| put(&mut c.eps, json::number(v))),
        (&["norm_eps"], NUMBER, |c, v| put(&mut c.norm_eps, json::number(v))),
        (&["chunk_size", "chunk"], COUNT, |c, v| put(&mut c.chunk_size, if v.is_null() { Some(0) } else { json::count(v) })),
    ];
    const DERIVED: &'static [Derived<Mamba3Sizes>] = &[("d_inner", |s| s.d_inner), ("nheads", |s| s.nheads), ("n_angles", |s| s.n_angles)];
    const NEEDED: &'static [&'static str] = &["a_act"];

    fn check(&self) -> Result<Mamba3Sizes, ConfigErrors> {
        self.sizes()
    }
}

fn pairs(value: &Value) -> Option<Option<RopePairs>> {
    match value.as_str() {
        Some("interleaved") => Some(Some(RopePairs::Interleaved)),
        Some("halves") => Some(Some(RopePairs::Halves)),
        _ => value.is_null().then_some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Mamba3Config {
        Mamba3Config { headdim: 4, d_state: 7, ngroups: 2, ..Mamba3Config::new(8) }
    }

    #[test]
    fn sizes_follow_the_published_block() {
        let sizes = Mamba3Config::new(768).sizes().unwrap();
        assert_eq!((sizes.d_inner, sizes.nheads, sizes.n_angles, sizes.in_proj_rows), (1536, 24, 32, 3432));
        let mimo = Mamba3Config { is_mimo: true, mimo_rank: 3, rope_fraction: 1.0, ..small() }.sizes().unwrap();
        assert_eq!((mimo.ranks, mimo.d_bc, mimo.n_angles, mimo.pairs), (3, 42, 3, RopePairs::Halves));
        assert_eq!(mimo.bc_rows(), 32..116);
        let siso = small().sizes().unwrap();
        assert_eq!((siso.ranks, siso.n_angles, siso.pairs), (1, 1, RopePairs::Interleaved));
    }

    #[test]
    fn counts_are_those_of_the_formula() {
        // d(2D + 2NGR + 3H + S) + 2H + 2HRN + 2N + dD + d, with ranks 3RD more, with the norm D more.
        let config = Mamba3Config { is_mimo: true, is_outproj_norm: true, ..Mamba3Config::new(768) };
        let n_elems: usize = config.parameters("").unwrap().iter().map(|p| p.shape.iter().product::<usize>()).sum();
        let (d, inner, n, r, h, s) = (768, 1536, 128, 4, 24, 32);
        let rows = 2 * inner + 2 * n * r + 3 * h + s;
        assert_eq!(n_elems, d * rows + 2 * h + 2 * h * r * n + 2 * n + d * inner + d + 3 * r * inner + inner);
    }

    #[test]
    fn mistakes_say_what_and_how() {
        let message = |config: Mamba3Config| config.sizes().unwrap_err().to_string();
        assert!(message(Mamba3Config { ngroups: 3, ..small() }).contains("nheads = 4 is not a multiple of ngroups = 3"));
        assert_eq!(
            message(Mamba3Config { d_state: 3, ..small() }),
            "config: d_state is 3\n  help: choose d_state so that at least one pair turns: 4, or 2 with rope_fraction = 1"
        );
        assert!(Mamba3Config { d_state: 2, rope_fraction: 1.0, ..small() }.sizes().is_ok());
        for rope_fraction in [0.0, 0.25, 1.5, -0.5, f64::NAN] {
            let found = message(Mamba3Config { rope_fraction, ..small() });
            assert!(found.contains(&format!("rope_fraction is {rope_fraction:?}")) && found.contains("0.5 or 1"), "{found}");
        }
        assert!(message(Mamba3Config { headdim: 3, ..small() }).contains("expand * d_model = 16 is not a multiple of headdim = 3"));
        assert!(message(Mamba3Config { expand: 1.3, ..small() }).contains("expand is 1.3"));
        assert!(message(Mamba3Config { expand: f64::INFINITY, ..small() }).contains("expand is inf"));
        assert!(message(Mamba3Config { a_floor: f64::NAN, ..small() }).contains("a_floor is NaN"));
        assert!(message(Mamba3Config { norm_eps: -1.0, ..small() }).contains("norm_eps is -1"));
        // All mistakes at once.
        let zeros = Mamba3Config { d_model: 0, d_state: 0, headdim: 0, ngroups: 0, mimo_rank: 0, ..small() };
        assert_eq!(zeros.sizes().unwrap_err().0.len(), 5);
    }

    #[test]
    fn ranks_need_to_be_asked_for() {
        let found = Mamba3Config { mimo_rank: 3, ..small() }.sizes().unwrap_err().to_string();
        assert_eq!(found, "config: mimo_rank is 3\n  help: ranks need is_mimo: set is_mimo = true, or mimo_rank = 1");
        for mimo_rank in [1, 4] {
            assert_eq!(Mamba3Config { mimo_rank, ..small() }.sizes().unwrap().ranks, 1);
        }
    }

    #[test]
    fn absurd_sizes_are_named_once() {
        let message = |config: Mamba3Config| config.sizes().unwrap_err().to_string();
        assert!(message(Mamba3Config { d_state: usize::MAX, ..small() }).contains("too large"));
        assert_eq!(
            message(Mamba3Config { d_state: 1_000_000_000, ..small() }),
            "config: d_state = 1000000000 is too large: in_proj would have 4294967296 elements or more\n  help: choose a smaller d_state"
        );
        let ranks = Mamba3Config { is_mimo: true, mimo_rank: 1 << 24, d_model: 256, headdim: 1, ngroups: 1, ..small() };
        assert!(message(ranks).contains("mimo_rank = 16777216 is too large"));
        let states = Mamba3Config { d_model: 1, d_state: 1 << 20, headdim: 2, expand: 4098.0, ngroups: 1, ..small() };
        assert!(message(states).contains("the states would"));
    }

    #[test]
    fn the_activation_of_the_decay_rate_is_never_guessed_from_a_file() {
        let case = serde_json::json!({"d_model": 8, "d_state": 7, "headdim": 4});
        let errors = Mamba3Config::new(0).with_json(&case).unwrap_err().to_string();
        assert!(errors.contains("a_act is missing") && errors.contains("softplus"), "{errors}");
        let mut config = small();
        config.set("a_act=softplus,rope_pairs=halves,is_mimo=true").unwrap();
        assert_eq!((config.a_act, config.rope_pairs), (AAct::Softplus, Some(RopePairs::Halves)));
        assert!(config.set("a_act=relu").unwrap_err().to_string().contains("softplus or heavy_tail"));
    }
}
