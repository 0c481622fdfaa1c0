//! Checkpoints: those of Hugging Face's `Mamba2ForCausalLM`, `config.json` beside `model.safetensors` or beside shards that
//! `model.safetensors.index.json` lists; and those of state-spaces' `mamba_ssm`, Mamba-2 and Mamba-3, whose `pytorch_model.bin`
//! is read without executing anything in it (or whose tensors stand in `model.safetensors`, as [`save`] writes a Mamba-3).
//!
//! The crate reads no files: the caller hands in a [`Files`]. [`load`] gives configuration and tensors, [`inspect()`] only says
//! what there is, [`save`] gives the bytes of a checkpoint, [`save_with`] those in f16 or bf16, [`load_predecessor`] reads a block of the predecessor.

mod error;
mod hf_config;
mod inspect;
mod pickle;
mod predecessor;
mod save;
mod ssm_config;
pub(crate) mod tensors;
mod torch;
mod write;
mod zip;

pub use error::CheckpointError;
pub use inspect::{Layout, Report, TensorReport, inspect, inspect_with};
pub use predecessor::load_predecessor;
pub use save::{SaveLayout, SaveOptions, save, save_with};
pub use write::{StorageType, UnknownStorageType, write_tensors};

use crate::config::LmConfig;
use crate::json;
use crate::mamba3::AAct;
use crate::names;
use crate::params::{ParamInfo, Role};
use indexmap::IndexMap;
use monopass_ir::TensorData;
use tensors::{Source, Stored};

/// Name of the configuration.
pub const CONFIG_FILE: &str = "config.json";
/// Name of the tensors if they are in one file.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// Name of the list of shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Name of the tensors in a file of `torch.save`.
pub const TORCH_FILE: &str = "pytorch_model.bin";

/// Bytes of a file: read, borrowed, or mapped into memory.
pub type Bytes<'a> = Box<dyn AsRef<[u8]> + 'a>;

/// Why a file that exists could not be read.
pub type ReadError = Box<dyn std::error::Error + Send + Sync>;

/// A directory of files, by whoever may read files.
pub trait Files {
    /// The file called `name`, which has no directory in it; `None` if there is none.
    ///
    /// # Errors
    /// Whatever kept an existing file from being read.
    fn read(&self, name: &str) -> Result<Option<Bytes<'_>>, ReadError>;
}

impl Files for IndexMap<String, Vec<u8>> {
    fn read(&self, name: &str) -> Result<Option<Bytes<'_>>, ReadError> {
        Ok(self.get(name).map(|bytes| -> Bytes<'_> { Box::new(bytes) }))
    }
}

/// A model that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Sizes and options. The group of the inner norm is `d_ssm / ngroups`, as in transformers 5; older versions normalise
    /// over all channels, which differs with several groups: set the block's `norm_group` for those.
    pub config: LmConfig,
    /// The model's parameters under our names, in the order of [`LmConfig::parameters`], as f32.
    pub params: IndexMap<String, TensorData>,
    /// Oddities that do not matter for the model, such as tensors that it does not have.
    pub warnings: Vec<String>,
}

/// What the files of a checkpoint do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The activation of a Mamba-3's decay rate, unless the configuration records it as `a_act` in `ssm_cfg`.
    pub a_act: Option<AAct>,
}

/// Reads a checkpoint.
///
/// # Errors
/// [`CheckpointError`]: files missing or broken, a configuration that is of another model or does not fit together, tensors
/// missing or of another shape or element type; [`CheckpointError::AskAAct`] of a Mamba-3 that does not record it.
pub fn load(files: &impl Files) -> Result<Checkpoint, CheckpointError> {
    load_with(files, &LoadOptions::default())
}

/// As [`load`], with what the files do not say.
///
/// # Errors
/// As for [`load`], and options that contradict the files.
pub fn load_with(files: &impl Files, options: &LoadOptions) -> Result<Checkpoint, CheckpointError> {
    let source = Source::open(files)?;
    let stored = source.tensors()?;
    let (config, layout) = read_config(files, &stored, source.layout, options)?;
    check_layers(&config, &stored, layout)?;
    let wanted = config.parameters()?;
    let warnings = check_shapes(&config, &wanted, &stored, layout)?;
    check_memory(&wanted, &source)?;
    let mut params = IndexMap::with_capacity(wanted.len());
    for param in wanted {
        if let Some(tensor) = stored.get(&param.name) {
            params.insert(param.name, tensor.to_f32()?);
        }
    }
    let warnings = [warnings, source.unlisted(&stored), unused_options(&config, options)].concat();
    Ok(Checkpoint { config, params, warnings })
}

/// Reads `config.json`; whether the head is tied follows from the tensors where it is not stated. The configuration says whose
/// layout it is, where files of tensors could be either's.
fn read_config(
    files: &impl Files,
    stored: &IndexMap<String, Stored<'_>>,
    layout: Layout,
    options: &LoadOptions,
) -> Result<(LmConfig, Layout), CheckpointError> {
    let bytes = tensors::read(files, CONFIG_FILE)?.ok_or(CheckpointError::NoConfig)?;
    let text = String::from_utf8_lossy((*bytes).as_ref());
    let value = json::parse(&text).map_err(|source| CheckpointError::Json { file: CONFIG_FILE.to_owned(), source })?;
    if ssm_config::is_one(&value) {
        let layout = if layout == Layout::HfSafetensors { Layout::SsmSafetensors } else { layout };
        return Ok((ssm_config::parse(&text, &value, options)?, layout));
    }
    let config = hf_config::parse(&text, &value, || names::of_model(Role::Head).is_some_and(|head| stored.contains_key(head)))?;
    Ok((config, layout))
}

/// What was said of a model that is not of the kind that it is about.
fn unused_options(config: &LmConfig, options: &LoadOptions) -> Vec<String> {
    let unused = options.a_act.filter(|_| config.block.as_mamba3().is_none());
    unused.map(|act| format!("a_act = {act} was given, which is for a Mamba-3, and this is none")).into_iter().collect()
}

/// Elements of all parameters.
fn n_elems(params: &[ParamInfo]) -> u64 {
    let size = |param: &ParamInfo| param.shape.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
    params.iter().map(size).fold(0, u64::saturating_add)
}

/// Tensors of `torch.save` may share memory, by which a small file could hold a model of any size.
fn check_memory(wanted: &[ParamInfo], source: &Source<'_>) -> Result<(), CheckpointError> {
    // Halves become twice as large; the rest is room for files of a few small tensors.
    const GROWTH: u64 = 4;
    let (n_bytes, file_bytes) = (n_elems(wanted).saturating_mul(4), source.n_bytes());
    if source.layout == Layout::SsmBin && n_bytes > file_bytes.saturating_mul(GROWTH) {
        let problem = format!("its tensors share memory, and would take {n_bytes} bytes where the file has {file_bytes}");
        return Err(CheckpointError::Torch { file: TORCH_FILE.to_owned(), problem });
    }
    Ok(())
}

/// A number of layers that the tensors cannot make up is refused before anything is listed for each of them.
fn check_layers(config: &LmConfig, stored: &IndexMap<String, Stored<'_>>, layout: Layout) -> Result<(), CheckpointError> {
    if config.n_layer <= stored.len() {
        return Ok(());
    }
    let norm = |layer| format!("{}{}", names::layer_prefix(layer), "norm.weight");
    // Each layer has a tensor of its own, so that the search ends after at most one step more than there are tensors.
    match (0..config.n_layer).map(norm).find(|name| !stored.contains_key(name)) {
        Some(name) => {
            let (name, shape) = (name_in(layout, &name), vec![config.block.d_model()]);
            Err(CheckpointError::MissingTensor { name, shape, files: tensors::searched(stored) })
        }
        None => Ok(()),
    }
}

/// What files of a layout call a parameter of ours.
fn name_in(layout: Layout, name: &str) -> String {
    match layout {
        Layout::SsmBin | Layout::SsmSafetensors => name.to_owned(),
        Layout::HfSafetensors | Layout::HfSafetensorsSharded => names::to_hf(name),
    }
}

/// Every parameter is there in its shape; gives a warning for each tensor that is none of them.
fn check_shapes(
    config: &LmConfig,
    wanted: &[ParamInfo],
    stored: &IndexMap<String, Stored<'_>>,
    layout: Layout,
) -> Result<Vec<String>, CheckpointError> {
    for param in wanted {
        let Some(tensor) = stored.get(&param.name) else {
            let files = tensors::searched(stored);
            return Err(CheckpointError::MissingTensor { name: name_in(layout, &param.name), shape: param.shape.clone(), files });
        };
        if tensor.shape != param.shape {
            return Err(CheckpointError::WrongShape {
                name: tensor.name.clone(),
                file: tensor.file.clone(),
                found: tensor.shape.clone(),
                wanted: param.shape.clone(),
            });
        }
    }
    let is_known = |name: &str| wanted.iter().any(|param| param.name == name) || is_tied_head(config, stored, name);
    let extra = stored.iter().filter(|(name, _)| !is_known(name));
    Ok(extra.map(|(_, tensor)| format!("{}: tensor {} {:?} is not part of the model", tensor.file, tensor.name, tensor.shape)).collect())
}

/// Whether this is the head of a tied model, stored with the embedding's elements.
fn is_tied_head(config: &LmConfig, stored: &IndexMap<String, Stored<'_>>, name: &str) -> bool {
    let get = |role| names::of_model(role).and_then(|name| stored.get(name));
    let (Some(head), Some(embedding)) = (get(Role::Head), get(Role::Embedding)) else { return false };
    config.tie_embeddings && names::of_model(Role::Head) == Some(name) && std::ptr::eq(head.data, embedding.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_no_way_to_a_large_model() {
        let files: IndexMap<String, Vec<u8>> = [(TORCH_FILE.to_owned(), vec![0; 100])].into();
        let source = Source::open(&files).unwrap_or_else(|error| panic!("{error}"));
        let wanted = |n| vec![ParamInfo { name: "w".into(), shape: vec![10, n], role: Role::Norm, decay_exempt: true }; 2];
        assert!(check_memory(&wanted(5), &source).is_ok());
        let error = check_memory(&wanted(6), &source).unwrap_err().to_string();
        assert!(
            error.starts_with("pytorch_model.bin: its tensors share memory, and would take 480 bytes where the file has 100"),
            "{error}"
        );
        assert!(check_memory(&wanted(usize::MAX), &source).is_err());
    }
}
