//! The bytes of a checkpoint: equal input gives equal bytes.

use super::write::write_tensors;
use super::{CONFIG_FILE, CheckpointError, WEIGHTS_FILE, hf_config, own_config, ssm_config};
use crate::block::BlockSizes;
use crate::config::{LmConfig, Mamba2Config, Mamba2Sizes, Naming, NormKind, Taps};
use crate::mamba3::{Mamba3Config, Mamba3Sizes, RopePairs};
use crate::names;
use crate::params::ParamInfo;
use indexmap::IndexMap;
use monopass_ir::storage::{StorageError, scale_name};
use monopass_ir::{Storage, StoredTensor, TensorData};

/// How a checkpoint is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// Storage type of the weights. Those whose [`Role`](crate::Role) [stays f32](crate::Role::stays_f32), such as norms and
    /// decays, are f32 whatever is chosen. 8-bit types are for matrices, and only our own layout can state them; where rows are no
    /// whole blocks, `q8_0` becomes `int8`.
    pub storage: Storage,
    /// Whose files. Absent: Hugging Face's for a Mamba-2, state-spaces' for a Mamba-3.
    pub layout: Option<SaveLayout>,
}

/// Whose configuration and names a checkpoint is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveLayout {
    /// Hugging Face's `Mamba2ForCausalLM`, which has no Mamba-3.
    HuggingFace,
    /// state-spaces' `mamba_ssm`, which can state a padded vocabulary.
    StateSpaces,
    /// Our own, which can state every option of every block, and 8-bit weights; nobody else reads it.
    Monopass,
}

/// The files of a checkpoint, by name: `config.json` and `model.safetensors`, in f32.
///
/// A Mamba-2 is written as Hugging Face's `Mamba2ForCausalLM`. A Mamba-3, for which that has no class, is written with the
/// configuration and the names of state-spaces' `mamba_ssm`, and with `a_act` in it; [`load`](super::load) reads both.
///
/// `params` holds every parameter of the configuration under our name; others are left out.
///
/// # Errors
/// An option that the layout cannot state, an inconsistent configuration, or a parameter that is missing or does not fit.
pub fn save(config: &LmConfig, params: &IndexMap<String, TensorData>) -> Result<IndexMap<String, Vec<u8>>, CheckpointError> {
    save_with(config, params, &SaveOptions::default())
}

/// As [`save`], in the element type and layout of `options`.
///
/// # Errors
/// As for [`save`], and a weight that is out of the range of the element type.
pub fn save_with(
    config: &LmConfig,
    params: &IndexMap<String, TensorData>,
    options: &SaveOptions,
) -> Result<IndexMap<String, Vec<u8>>, CheckpointError> {
    let (text, name_of): (_, fn(&str) -> String) = match (config.sizes()?, options.layout) {
        (_, Some(SaveLayout::Monopass)) => (own_config::print(config)?, str::to_owned),
        (_, None | Some(SaveLayout::HuggingFace | SaveLayout::StateSpaces)) if is_8_bits(options.storage) => {
            let help = "save it in the layout of monopass, or as f16 or bf16";
            return Err(CheckpointError::NotExpressible { layout: "safetensors of other programs", what: "8-bit weights", help });
        }
        (BlockSizes::Mamba2(block, sizes), None | Some(SaveLayout::HuggingFace)) => {
            check_mamba2(config, block, &sizes)?;
            (hf_config::print(config, block, &sizes, options.storage)?, names::to_hf)
        }
        (BlockSizes::Mamba2(block, sizes), Some(SaveLayout::StateSpaces)) => {
            check_mamba2_ssm(config, block, &sizes)?;
            (ssm_config::print_mamba2(config, block)?, str::to_owned)
        }
        (BlockSizes::Mamba3(block, sizes), None | Some(SaveLayout::StateSpaces)) => {
            check_mamba3(config, block, &sizes)?;
            (ssm_config::print(config, block)?, str::to_owned)
        }
        (BlockSizes::Mamba3(..), Some(SaveLayout::HuggingFace)) => {
            let (what, help) = ("a Mamba-3", "save it in the layout of mamba_ssm");
            return Err(CheckpointError::NotExpressible { layout: "Mamba2ForCausalLM", what, help });
        }
    };
    let mut tensors = IndexMap::new();
    for param in config.parameters()? {
        let (elements, scale) = stored(&param, params.get(&param.name), options.storage)?;
        let name = name_of(&param.name);
        if let Some(scale) = scale {
            tensors.insert(scale_name(&name), scale);
        }
        tensors.insert(name, elements);
    }
    // Readers of Hugging Face ask for this entry.
    let weights = write_tensors(WEIGHTS_FILE, &tensors, Some(("format", "pt")))?;
    let files = [(CONFIG_FILE, text), (WEIGHTS_FILE, weights)];
    Ok(files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect())
}

const fn is_8_bits(storage: Storage) -> bool {
    match storage {
        Storage::Int8 | Storage::Q8_0 => true,
        Storage::F32 | Storage::F16 | Storage::Bf16 => false,
    }
}

/// How a parameter lies in a file: of the types that others read, 16 bits are for taps, too.
fn storage_in_file(param: &ParamInfo, asked: Storage) -> Storage {
    if param.role.stays_f32() {
        Storage::F32
    } else if is_8_bits(asked) {
        param.role.storage(&param.shape, asked)
    } else {
        asked
    }
}

/// A parameter in the storage type of the file, and its scales if it has some.
fn stored(param: &ParamInfo, found: Option<&TensorData>, asked: Storage) -> Result<(TensorData, Option<TensorData>), CheckpointError> {
    let fits = found.filter(|tensor| tensor.shape() == param.shape && tensor.as_f32().is_some());
    let tensor = fits.ok_or_else(|| CheckpointError::NotSavable {
        name: param.name.clone(),
        found: found.map_or_else(|| "missing".to_owned(), |tensor| tensor.ty().to_string()),
        wanted: param.shape.clone(),
    })?;
    let storage = storage_in_file(param, asked);
    let stored = StoredTensor::quantize(tensor.clone(), storage).map_err(|problem| overflow(param, tensor, problem))?;
    Ok((stored.elements().clone(), stored.scale().cloned()))
}

fn overflow(param: &ParamInfo, tensor: &TensorData, problem: StorageError) -> CheckpointError {
    let name = param.name.clone();
    match problem {
        StorageError::Range { index, storage, .. } => {
            let value = tensor.as_f32().and_then(|values| values.get(index)).copied().unwrap_or(f32::NAN);
            CheckpointError::Overflow { name, value, storage }
        }
        StorageError::Unknown { .. }
        | StorageError::Shape { .. }
        | StorageError::Parts { .. }
        | StorageError::Rows { .. }
        | StorageError::Updated { .. } => CheckpointError::Storage { name, file: WEIGHTS_FILE.to_owned(), problem: Box::new(problem) },
    }
}

/// Only the published block's options have fields in the file.
fn check_mamba2(config: &LmConfig, block: &Mamba2Config, sizes: &Mamba2Sizes) -> Result<(), CheckpointError> {
    let rules = [
        (config.vocab_padding == 0, "rows of padding", "set vocab_padding = 0, with which they can become tokens"),
        (!block.complex, "complex states", "save it in the layout of monopass"),
        (block.gate, "a block without gate", "set gate = true"),
        (block.conv_act, "a convolution without activation", "set conv_act = true"),
        (block.norm == NormKind::AfterGate, "another norm than after the gate", "set norm = after_gate"),
        (sizes.norm_group == sizes.d_ssm / block.ngroups, "the group of the norm", "leave norm_group at its default"),
        (sizes.d_mlp == 0, "d_ssm", "leave d_ssm at its default"),
        (!block.d_has_hdim, "D for each channel", "set d_has_hdim = false"),
        (!block.learnable_init_states, "learned initial states", "set learnable_init_states = false"),
        (block.taps == Taps::NewestLast, "taps in another order", "set taps = newest_last and reverse the weight"),
        (block.naming == Naming::Mixer, "the predecessor's names", "set naming = mixer and rename the parameters"),
        (block.eps == block.norm_eps && block.eps == config.norm_eps, "different eps of norms", "set them equal"),
    ];
    check("Mamba2ForCausalLM", &rules)
}

/// The package has fields for the shape of the block and for D of each channel, but none for eps or for limits of the time step,
/// which its models leave open.
fn check_mamba2_ssm(config: &LmConfig, block: &Mamba2Config, sizes: &Mamba2Sizes) -> Result<(), CheckpointError> {
    let eps = ssm_config::NORM_EPS;
    let rules = [
        ([block.eps, block.norm_eps, config.norm_eps] == [eps; 3], "another eps than 1e-5", "set all of them to 1e-5"),
        (!block.complex, "complex states", "save it in the layout of monopass"),
        (block.gate, "a block without gate", "set gate = true"),
        (block.conv_act, "a convolution without activation", "set conv_act = true"),
        (sizes.norm_group == sizes.d_ssm / block.ngroups, "the group of the norm", "leave norm_group at its default"),
        (block.taps == Taps::NewestLast, "taps in another order", "set taps = newest_last and reverse the weight"),
        (block.naming == Naming::Mixer, "the predecessor's names", "set naming = mixer and rename the parameters"),
    ];
    check("mamba_ssm", &rules)
}

/// The package has one eps for all norms, in no field, and pairs of entries by the kind of block.
fn check_mamba3(config: &LmConfig, block: &Mamba3Config, sizes: &Mamba3Sizes) -> Result<(), CheckpointError> {
    let eps = ssm_config::NORM_EPS;
    let pairs = if block.is_mimo { RopePairs::Halves } else { RopePairs::Interleaved };
    let rules = [
        ([block.eps, block.norm_eps, config.norm_eps] == [eps; 3], "another eps than 1e-5", "set all of them to 1e-5"),
        (sizes.pairs == pairs, "other pairs of entries that turn", "leave rope_pairs at its default"),
    ];
    check("mamba_ssm", &rules)
}

fn check(layout: &'static str, rules: &[(bool, &'static str, &'static str)]) -> Result<(), CheckpointError> {
    match rules.iter().find(|(holds, ..)| !holds) {
        Some(&(_, what, help)) => Err(CheckpointError::NotExpressible { layout, what, help }),
        None => Ok(()),
    }
}
