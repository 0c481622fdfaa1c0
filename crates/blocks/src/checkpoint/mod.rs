//! Checkpoints: those of Hugging Face's `Mamba2ForCausalLM`, `config.json` beside `model.safetensors` or beside shards that
//! `model.safetensors.index.json` lists; those of state-spaces' `mamba_ssm`, Mamba-2 and Mamba-3, whose `pytorch_model.bin`
//! is read without executing anything in it (or whose tensors stand in `model.safetensors`, as [`save`] writes a Mamba-3); a Mamba-2
//! in one GGUF file; and our own layout, which can state every option of every block, and 8-bit weights.
//!
//! The crate reads no files: the caller hands in a [`Files`]. [`open`] checks all but the elements and gives tensors one at a time,
//! [`load`] gives configuration and all tensors as f32, [`inspect()`] only says what there is, [`save`] gives the bytes of a
//! checkpoint, [`save_with`] those in another storage type or layout, [`load_predecessor`] reads a block of the predecessor.

mod convert;
mod error;
mod gguf;
mod gguf_config;
mod hf_config;
mod inspect;
mod open;
mod own_config;
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
pub use monopass_ir::Storage;
pub use open::{Opened, ParamEntry, open};
pub use own_config::settings_of;
pub use predecessor::load_predecessor;
pub use save::{SaveLayout, SaveOptions, save, save_with};
pub use write::{read_metadata, write_tensors};

use crate::config::LmConfig;
use crate::mamba3::AAct;
use indexmap::IndexMap;
use monopass_ir::TensorData;

/// Name of the configuration.
pub const CONFIG_FILE: &str = "config.json";
/// Name of the tensors if they are in one file.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// Name of the list of shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Name of the tensors in a file of `torch.save`.
pub const TORCH_FILE: &str = "pytorch_model.bin";
/// Name under which a GGUF file is asked for first.
pub const GGUF_FILE: &str = "model.gguf";

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

    /// Names of the files, in any order. Where they cannot be listed there are none, and a GGUF file is only found as
    /// [`GGUF_FILE`].
    ///
    /// # Errors
    /// Whatever kept the directory from being read.
    fn names(&self) -> Result<Vec<String>, ReadError> {
        Ok(Vec::new())
    }
}

impl Files for IndexMap<String, Vec<u8>> {
    fn read(&self, name: &str) -> Result<Option<Bytes<'_>>, ReadError> {
        Ok(self.get(name).map(|bytes| -> Bytes<'_> { Box::new(bytes) }))
    }

    fn names(&self) -> Result<Vec<String>, ReadError> {
        Ok(self.keys().cloned().collect())
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

/// What the files of a checkpoint do not say, and how its weights are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The activation of a Mamba-3's decay rate, unless the configuration records it as `a_act` in `ssm_cfg`.
    pub a_act: Option<AAct>,
    /// How matrices (projections, embedding and head) are stored. Absent: as in the file. Everything else is f32. With
    /// [`Storage::Q8_0`], matrices whose rows are no whole blocks of 32 become [`Storage::Int8`], with a warning.
    pub storage: Option<Storage>,
}

/// Reads a checkpoint.
///
/// # Errors
/// As for [`open`].
pub fn load(files: &impl Files) -> Result<Checkpoint, CheckpointError> {
    load_with(files, &LoadOptions::default())
}

/// As [`load`], with what the files do not say. Weights are f32 in any case, with the values that a narrower
/// [`LoadOptions::storage`] leaves them.
///
/// # Errors
/// As for [`open`], and for [`Opened::tensor`].
pub fn load_with(files: &impl Files, options: &LoadOptions) -> Result<Checkpoint, CheckpointError> {
    open(files, options)?.load()
}
