//! Which parameters a block and a model have, and which rows of them train.

use crate::config::{LmConfig, Mamba2Config, Mamba2Sizes, Naming, NormKind};
use crate::error::ConfigErrors;
use crate::names;
use monopass_ir::{Storage, pattern};
use std::ops::Range;

/// What a parameter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Scale of the norm before the block, `[d_model]`.
    PreNorm,
    /// Input projection, `[in_proj_rows, d_model]`: rows of the gated unit, z, x, B, C and dt.
    InProj,
    /// Its bias, `[in_proj_rows]`.
    InProjBias,
    /// Taps of the convolution, `[conv_dim, 1, d_conv]`, or `[conv_dim, d_conv]` under the predecessor's naming.
    Conv,
    /// Its bias, `[conv_dim]`.
    ConvBias,
    /// Logarithm of the decay rate, `[nheads]`: A is `-exp` of it. With complex states `[nheads, 2]`, the second column the
    /// angular rate.
    ALog,
    /// Added to dt before softplus, `[nheads]`.
    DtBias,
    /// Weight of x beside the scan, `[nheads]` or `[d_ssm]`.
    DSkip,
    /// Scale of the norm before `out_proj`, `[d_ssm]`.
    Norm,
    /// Output projection, `[d_model, d_inner]`.
    OutProj,
    /// Its bias, `[d_model]`.
    OutProjBias,
    /// State that the scan starts from, `[nheads, headdim, d_state]`.
    InitStates,
    /// Weight of x in each rank, `[nheads, mimo_rank, headdim]`.
    MimoX,
    /// Weight of z in each rank, likewise.
    MimoZ,
    /// Weight of each rank in the output, likewise.
    MimoO,
    /// Scale of the norm of B, `[d_state]`.
    BNorm,
    /// Scale of the norm of C, `[d_state]`.
    CNorm,
    /// Added to B after its norm, `[nheads, mimo_rank, d_state]`.
    BBias,
    /// Added to C after its norm, likewise.
    CBias,
    /// Rows of tokens, `[vocab_size, d_model]`.
    Embedding,
    /// Scale of the final norm, `[d_model]`.
    FinalNorm,
    /// The head of an untied model, `[vocab_size, d_model]`.
    Head,
}

impl Role {
    /// Every role, in the order in which parameters are listed.
    pub const ALL: [Self; 22] = [
        Self::Embedding,
        Self::PreNorm,
        Self::InProj,
        Self::InProjBias,
        Self::Conv,
        Self::ConvBias,
        Self::ALog,
        Self::DtBias,
        Self::DSkip,
        Self::Norm,
        Self::OutProj,
        Self::OutProjBias,
        Self::InitStates,
        Self::BNorm,
        Self::CNorm,
        Self::BBias,
        Self::CBias,
        Self::MimoX,
        Self::MimoZ,
        Self::MimoO,
        Self::FinalNorm,
        Self::Head,
    ];

    /// Whether weight decay leaves it alone: decays, skips, initial states, norms and biases.
    #[must_use]
    pub const fn is_decay_exempt(self) -> bool {
        match self {
            Self::InProj | Self::Conv | Self::OutProj | Self::MimoX | Self::MimoZ | Self::MimoO | Self::Embedding | Self::Head => false,
            Self::PreNorm
            | Self::InProjBias
            | Self::ConvBias
            | Self::ALog
            | Self::DtBias
            | Self::DSkip
            | Self::Norm
            | Self::OutProjBias
            | Self::InitStates
            | Self::BNorm
            | Self::CNorm
            | Self::BBias
            | Self::CBias
            | Self::FinalNorm => true,
        }
    }

    /// Whether files have it in f32 whatever the storage type of the weights.
    #[must_use]
    pub const fn stays_f32(self) -> bool {
        self.is_decay_exempt()
    }

    /// How it is stored on a device if weights are to be stored as `asked`: matrices that products or look-ups read are, and all
    /// else is f32. A matrix whose rows are no whole blocks of [`Storage::Q8_0`] is [`Storage::Int8`], which has no such condition.
    #[must_use]
    pub fn storage(self, shape: &[usize], asked: Storage) -> Storage {
        let is_matrix = matches!(self, Self::InProj | Self::OutProj | Self::Embedding | Self::Head) && shape.len() == 2;
        match asked {
            _ if !is_matrix => Storage::F32,
            Storage::Q8_0 if !asked.fits(shape) => Storage::Int8,
            Storage::F32 | Storage::F16 | Storage::Bf16 | Storage::Int8 | Storage::Q8_0 => asked,
        }
    }
}

/// A parameter of a block or model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamInfo {
    /// Name in graphs and checkpoints.
    pub name: String,
    /// Sizes.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// Whether weight decay leaves it alone.
    pub decay_exempt: bool,
}

/// Which parameters train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trainable {
    /// All of them.
    All,
    /// Only the rows of B and C in every `in_proj`.
    Wsla,
    /// Those whose name matches one of the patterns, in which `*` stands for any text and `?` for any character.
    Names(Vec<String>),
}

/// Rows of a parameter, along its first axis, that train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainRows {
    /// The parameter.
    pub name: String,
    /// Rows, never empty.
    pub rows: Range<usize>,
}

/// A pattern that no parameter matches. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrainableError {
    /// Nothing is called so.
    #[error("trainable: no parameter matches {pattern:?}\n  help: names look like {example:?}; * stands for any text")]
    NoMatch {
        /// As given.
        pattern: String,
        /// A name that exists.
        example: String,
    },
    /// The configuration does not fit together.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
}

impl Mamba2Config {
    /// Shape of the parameter with this role; `None` if the block has none.
    #[must_use]
    pub fn shape_of(&self, sizes: &Mamba2Sizes, role: Role) -> Option<Vec<usize>> {
        Some(match role {
            Role::PreNorm => vec![self.d_model],
            Role::InProj => vec![sizes.in_proj_rows, self.d_model],
            Role::InProjBias if self.bias => vec![sizes.in_proj_rows],
            Role::Conv => match self.naming {
                Naming::Mixer => vec![sizes.conv_dim, 1, self.d_conv],
                Naming::Predecessor => vec![sizes.conv_dim, self.d_conv],
            },
            Role::ConvBias if self.conv_bias => vec![sizes.conv_dim],
            Role::ALog if self.complex => vec![sizes.nheads, 2],
            Role::ALog | Role::DtBias => vec![sizes.nheads],
            Role::DSkip => vec![if self.d_has_hdim { sizes.d_ssm } else { sizes.nheads }],
            Role::Norm if self.norm != NormKind::None => vec![sizes.d_ssm],
            Role::OutProj => vec![self.d_model, sizes.d_inner],
            Role::OutProjBias if self.bias => vec![self.d_model],
            Role::InitStates if self.learnable_init_states => self.states(sizes).pop()?.shape,
            Role::MimoX | Role::MimoO if self.mimo_rank > 1 => vec![sizes.nheads, self.mimo_rank, self.headdim],
            Role::InProjBias
            | Role::ConvBias
            | Role::Norm
            | Role::OutProjBias
            | Role::InitStates
            | Role::MimoX
            | Role::MimoZ
            | Role::MimoO
            | Role::BNorm
            | Role::CNorm
            | Role::BBias
            | Role::CBias
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
        Ok(list(prefix, self.naming, |role| self.shape_of(&sizes, role)))
    }

    /// Rows of `in_proj` that make B and C: they stand after the gated unit's two parts, z and x.
    #[must_use]
    pub const fn bc_rows(&self, sizes: &Mamba2Sizes) -> Range<usize> {
        let start = 2 * sizes.d_mlp + sizes.d_gate + sizes.d_ssm;
        start..start + 2 * sizes.d_bc
    }

    /// Which rows of which of the block's parameters train.
    ///
    /// # Errors
    /// A pattern that matches nothing, or an inconsistent configuration.
    pub fn trainable(&self, mode: &Trainable) -> Result<Vec<TrainRows>, TrainableError> {
        select(&self.parameters("")?, mode, self.bc_rows(&self.sizes()?))
    }
}

impl LmConfig {
    /// The model's parameters: embedding, layers, final norm, and the head unless it is tied.
    ///
    /// # Errors
    /// Every inconsistency of the configuration.
    pub fn parameters(&self) -> Result<Vec<ParamInfo>, ConfigErrors> {
        self.sizes()?;
        let table = vec![self.vocab_size, self.block.d_model()];
        let param = |role, shape| names::of_model(role).map(|name| info(name.to_owned(), shape, role));
        let mut params: Vec<ParamInfo> = param(Role::Embedding, table.clone()).into_iter().collect();
        for layer in 0..self.n_layer {
            params.extend(self.block.parameters(&names::layer_prefix(layer))?);
        }
        params.extend(param(Role::FinalNorm, vec![self.block.d_model()]));
        if !self.tie_embeddings {
            params.extend(param(Role::Head, table));
        }
        Ok(params)
    }

    /// Which rows of which of the model's parameters train.
    ///
    /// # Errors
    /// A pattern that matches nothing, or an inconsistent configuration.
    pub fn trainable(&self, mode: &Trainable) -> Result<Vec<TrainRows>, TrainableError> {
        select(&self.parameters()?, mode, self.sizes()?.bc_rows())
    }
}

/// The parameters of a block for whose role there is a shape.
pub(crate) fn list(prefix: &str, naming: Naming, shape_of: impl Fn(Role) -> Option<Vec<usize>>) -> Vec<ParamInfo> {
    let param = |role| Some(info(format!("{prefix}{}", names::of_block(naming, role)?), shape_of(role)?, role));
    Role::ALL.into_iter().filter_map(param).collect()
}

fn info(name: String, shape: Vec<usize>, role: Role) -> ParamInfo {
    ParamInfo { name, shape, role, decay_exempt: role.is_decay_exempt() }
}

pub(crate) fn select(params: &[ParamInfo], mode: &Trainable, bc_rows: Range<usize>) -> Result<Vec<TrainRows>, TrainableError> {
    let whole = |param: &ParamInfo| TrainRows { name: param.name.clone(), rows: 0..param.shape.first().copied().unwrap_or(1) };
    match mode {
        Trainable::All => Ok(params.iter().map(whole).collect()),
        Trainable::Wsla => {
            let projections = params.iter().filter(|param| param.role == Role::InProj);
            Ok(projections.map(|param| TrainRows { name: param.name.clone(), rows: bc_rows.clone() }).collect())
        }
        Trainable::Names(patterns) => {
            if let Some(pattern) = patterns.iter().find(|pattern| !params.iter().any(|param| pattern::matches(pattern, &param.name))) {
                let example = params.first().map_or_else(String::new, |param| param.name.clone());
                return Err(TrainableError::NoMatch { pattern: pattern.clone(), example });
            }
            let is_named = |param: &&ParamInfo| patterns.iter().any(|pattern| pattern::matches(pattern, &param.name));
            Ok(params.iter().filter(is_named).map(whole).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(gate: bool, d_ssm: Option<usize>) -> Mamba2Config {
        Mamba2Config { gate, d_ssm, headdim: 4, d_state: 5, ngroups: 2, ..Mamba2Config::new(8) }
    }

    #[test]
    fn wsla_trains_the_rows_of_b_and_c() {
        let rows = |gate, d_ssm| small(gate, d_ssm).trainable(&Trainable::Wsla).unwrap()[0].rows.clone();
        assert_eq!(rows(true, None), 32..52);
        assert_eq!(rows(false, None), 16..36);
        assert_eq!(rows(true, Some(8)), 2 * 8 + 8 + 8..2 * 8 + 16 + 20);
        let lm = LmConfig::new(Mamba2Config::seed(256), 3, 17).trainable(&Trainable::Wsla).unwrap();
        assert_eq!(lm.len(), 3);
        assert_eq!(lm[2], TrainRows { name: "backbone.layers.2.wInProj".into(), rows: 512..512 + 32 });
    }

    #[test]
    fn names_select_by_pattern() {
        let config = LmConfig::new(small(true, None), 2, 9);
        let names = |patterns: &[&str]| {
            let mode = Trainable::Names(patterns.iter().map(ToString::to_string).collect());
            config.trainable(&mode).map(|rows| rows.into_iter().map(|row| row.name).collect::<Vec<_>>()).map_err(|e| e.to_string())
        };
        assert_eq!(names(&["*.A_log"]).unwrap(), ["backbone.layers.0.mixer.A_log", "backbone.layers.1.mixer.A_log"]);
        assert_eq!(names(&["backbone.layers.?.norm.weight", "backbone.norm_f*"]).unwrap().len(), 3);
        assert!(names(&["*.A_log", "mixer.A_log"]).unwrap_err().contains("no parameter matches \"mixer.A_log\""));
        assert_eq!(config.trainable(&Trainable::All).unwrap().len(), config.parameters().unwrap().len());
    }

    #[test]
    fn counts_are_those_of_the_published_models() {
        let n_elems = |config: &LmConfig| config.parameters().unwrap().iter().map(|p| p.shape.iter().product::<usize>()).sum::<usize>();
        assert_eq!(n_elems(&LmConfig::new(Mamba2Config::new(768), 24, 50288)), 128_989_632);
        assert_eq!(n_elems(&LmConfig::new(Mamba2Config::new(2560), 64, 50288)), 2_702_599_680);
    }

    #[test]
    fn options_add_and_remove_parameters() {
        let mut config = Mamba2Config {
            bias: true,
            conv_bias: false,
            norm: NormKind::None,
            d_has_hdim: true,
            learnable_init_states: true,
            ..small(true, None)
        };
        let names = |config: &Mamba2Config| config.parameters("").unwrap().into_iter().map(|p| p.name).collect::<Vec<_>>();
        assert!(names(&config).contains(&"mixer.init_states".to_owned()) && !names(&config).contains(&"mixer.norm.weight".to_owned()));
        assert_eq!(config.parameters("").unwrap().iter().find(|p| p.role == Role::DSkip).unwrap().shape, [16]);
        config = Mamba2Config { headdim: 4, ..Mamba2Config::seed(8) };
        assert_eq!(names(&config).len(), 9);
        let exempt: Vec<_> = config.parameters("").unwrap().into_iter().filter(|p| p.decay_exempt).map(|p| p.name).collect();
        assert_eq!(exempt, ["preNormWeight", "bConv", "A_log", "dt_bias", "D_vec", "normWeight"]);
    }

    #[test]
    fn only_matrices_are_narrow() {
        let of = |role: Role, shape: &[usize], asked| role.storage(shape, asked);
        assert_eq!(of(Role::InProj, &[5, 64], Storage::Q8_0), Storage::Q8_0);
        assert_eq!(of(Role::InProj, &[5, 48], Storage::Q8_0), Storage::Int8);
        assert_eq!(of(Role::Head, &[5, 48], Storage::Bf16), Storage::Bf16);
        // The predecessor's taps are a matrix that no product reads.
        assert_eq!(of(Role::Conv, &[64, 32], Storage::F16), Storage::F32);
        assert_eq!(of(Role::ALog, &[4, 2], Storage::Int8), Storage::F32);
        assert!(Role::ALL.into_iter().all(|role| !role.stays_f32() || of(role, &[5, 64], Storage::F16) == Storage::F32));
    }
}
