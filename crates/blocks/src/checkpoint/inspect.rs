//! What is in a checkpoint, without converting it.

use super::open::n_elems;
use super::{CONFIG_FILE, CheckpointError, Files, LoadOptions, open};
use crate::config::LmConfig;
use crate::params::ParamInfo;
use monopass_ir::Storage;
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
    /// One GGUF file, which has the configuration in it.
    Gguf,
    /// Our own, which can state every option.
    Monopass,
}

impl Layout {
    /// What the configuration stands in, for messages.
    pub(super) const fn config_name(self) -> &'static str {
        match self {
            Self::HfSafetensors | Self::HfSafetensorsSharded | Self::SsmBin | Self::SsmSafetensors | Self::Monopass => CONFIG_FILE,
            Self::Gguf => "its metadata",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HfSafetensors => "hf-safetensors",
            Self::HfSafetensorsSharded => "hf-safetensors-sharded",
            Self::SsmBin => "ssm-bin",
            Self::SsmSafetensors => "ssm-safetensors",
            Self::Gguf => "gguf",
            Self::Monopass => "monopass",
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
    /// Bytes of the parameters in f32, as [`load`](super::load) gives them.
    pub load_bytes: u64,
    /// Bytes of the parameters on a device by the storage type of the matrices, from wide to narrow.
    pub device_bytes: Vec<(Storage, u64)>,
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
    /// Bytes in the file, scales included.
    pub n_bytes: u64,
}

/// Says what is in a checkpoint. No element is read.
///
/// # Errors
/// As for [`open`].
pub fn inspect(files: &impl Files) -> Result<Report, CheckpointError> {
    inspect_with(files, &LoadOptions::default())
}

/// As [`inspect`], with what the files do not say.
///
/// # Errors
/// As for [`open`].
pub fn inspect_with(files: &impl Files, options: &LoadOptions) -> Result<Report, CheckpointError> {
    let opened = open(files, options)?;
    let params = opened.config().parameters()?;
    let n_params = n_elems(&params);
    let tensors = opened.stored.values().map(|tensor| TensorReport {
        name: tensor.name.clone(),
        file: tensor.file.clone(),
        dtype: tensor.dtype(),
        shape: tensor.shape.clone(),
        n_bytes: tensor.n_bytes(),
    });
    Ok(Report {
        layout: opened.layout(),
        tensors: tensors.collect(),
        n_params,
        file_bytes: opened.file_bytes(),
        load_bytes: n_params.saturating_mul(4),
        device_bytes: Storage::ALL.into_iter().map(|storage| (storage, device_bytes(&params, storage))).collect(),
        state_bytes: state_bytes(opened.config())?,
        config: opened.config().clone(),
        warnings: opened.warnings().to_vec(),
    })
}

/// Bytes of all parameters if matrices are stored so.
fn device_bytes(params: &[ParamInfo], storage: Storage) -> u64 {
    let bytes = |param: &ParamInfo| param.role.storage(&param.shape, storage).size_bytes(&param.shape);
    params.iter().map(bytes).fold(0, u64::saturating_add)
}

fn state_bytes(config: &LmConfig) -> Result<u64, CheckpointError> {
    let states = config.sizes()?.states();
    let n_elems = |shape: &[usize]| shape.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
    let n_elems: u64 = states.iter().map(|state| n_elems(&state.shape)).fold(0, u64::saturating_add);
    Ok(n_elems.saturating_mul(config.n_layer as u64).saturating_mul(4))
}
