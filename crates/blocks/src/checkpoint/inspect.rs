//! What is in a checkpoint, without converting it.

use super::tensors::Source;
use super::{CheckpointError, Files, LoadOptions, check_layers, check_shapes, n_elems, read_config, unused_options};
use crate::config::LmConfig;
use std::fmt;

/// How the files of a checkpoint are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Hugging Face, one file of tensors.
    HfSafetensors,
    /// Hugging Face, tensors in shards.
    HfSafetensorsSharded,
    /// state-spaces, one file of `torch.save`.
    SsmBin,
    /// state-spaces, one file of tensors.
    SsmSafetensors,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HfSafetensors => "hf-safetensors",
            Self::HfSafetensorsSharded => "hf-safetensors-sharded",
            Self::SsmBin => "ssm-bin",
            Self::SsmSafetensors => "ssm-safetensors",
        })
    }
}

/// What is in a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Layout of the files.
    pub layout: Layout,
    /// Sizes and options.
    pub config: LmConfig,
    /// Tensors in the order of the files.
    pub tensors: Vec<TensorReport>,
    /// Elements of the model's parameters.
    pub n_params: u64,
    /// Bytes of all tensor files.
    pub file_bytes: u64,
    /// Bytes of the parameters in f32, as they are loaded.
    pub load_bytes: u64,
    /// Bytes of the states of one sequence.
    pub state_bytes: u64,
    /// Oddities, such as tensors that the model does not have.
    pub warnings: Vec<String>,
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorReport {
    /// Name in the file.
    pub name: String,
    /// The file.
    pub file: String,
    /// Element type in the file's words, such as `BF16`.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<usize>,
}

/// Says what is in a checkpoint.
///
/// # Errors
/// As [`super::load`], except for element types.
pub fn inspect(files: &impl Files) -> Result<Report, CheckpointError> {
    inspect_with(files, &LoadOptions::default())
}

/// As [`inspect`], with what the files do not say.
///
/// # Errors
/// As [`super::load_with`], except for element types.
pub fn inspect_with(files: &impl Files, options: &LoadOptions) -> Result<Report, CheckpointError> {
    let source = Source::open(files)?;
    let stored = source.tensors()?;
    let (config, layout) = read_config(files, &stored, source.layout, options)?;
    check_layers(&config, &stored, layout)?;
    let wanted = config.parameters()?;
    let warnings = check_shapes(&config, &wanted, &stored, layout)?;
    let n_params = n_elems(&wanted);
    let warnings = [warnings, source.unlisted(&stored), unused_options(&config, options)].concat();
    let tensors = stored.into_values().map(|tensor| TensorReport {
        name: tensor.name,
        file: tensor.file,
        dtype: format!("{:?}", tensor.dtype),
        shape: tensor.shape,
    });
    Ok(Report {
        layout,
        tensors: tensors.collect(),
        n_params,
        file_bytes: source.n_bytes(),
        load_bytes: n_params.saturating_mul(4),
        state_bytes: state_bytes(&config)?,
        config,
        warnings,
    })
}

fn state_bytes(config: &LmConfig) -> Result<u64, CheckpointError> {
    let states = config.sizes()?.states();
    let n_elems = |shape: &[usize]| shape.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
    let n_elems: u64 = states.iter().map(|state| n_elems(&state.shape)).fold(0, u64::saturating_add);
    Ok(n_elems.saturating_mul(config.n_layer as u64).saturating_mul(4))
}
