//! The bytes of a checkpoint: equal input gives equal bytes.

use super::{CONFIG_FILE, CheckpointError, WEIGHTS_FILE, hf_config, ssm_config};
use crate::block::BlockSizes;
use crate::config::{LmConfig, Mamba2Config, Mamba2Sizes, Naming, NormKind, Taps};
use crate::mamba3::{Mamba3Config, Mamba3Sizes, RopePairs};
use crate::names;
use indexmap::IndexMap;
use monopass_ir::TensorData;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

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
    let (text, name_of): (_, fn(&str) -> String) = match config.sizes()? {
        BlockSizes::Mamba2(block, sizes) => {
            check_mamba2(config, block, &sizes)?;
            (hf_config::print(config, block, &sizes)?, names::to_hf)
        }
        BlockSizes::Mamba3(block, sizes) => {
            check_mamba3(config, block, &sizes)?;
            (ssm_config::print(config, block)?, str::to_owned)
        }
    };
    let mut data: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for param in config.parameters()? {
        let found = params.get(&param.name);
        let Some(values) = found.filter(|tensor| tensor.shape() == param.shape).and_then(TensorData::as_f32) else {
            let found = found.map_or_else(|| "missing".to_owned(), |tensor| tensor.ty().to_string());
            return Err(CheckpointError::NotSavable { name: param.name, found, wanted: param.shape });
        };
        data.push((name_of(&param.name), param.shape, values.iter().flat_map(|value| value.to_le_bytes()).collect()));
    }
    let corrupt = |source| CheckpointError::Safetensors { file: WEIGHTS_FILE.to_owned(), n_bytes: 0, source };
    let views = data.iter().map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)));
    let views: Vec<_> = views.collect::<Result<_, _>>().map_err(corrupt)?;
    // One entry, so that the map's order cannot show; readers of Hugging Face ask for it.
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let weights = safetensors::serialize(views, Some(metadata)).map_err(corrupt)?;
    let files = [(CONFIG_FILE, text), (WEIGHTS_FILE, weights)];
    Ok(files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect())
}

/// Only the published block's options have fields in the file.
fn check_mamba2(config: &LmConfig, block: &Mamba2Config, sizes: &Mamba2Sizes) -> Result<(), CheckpointError> {
    let rules = [
        (config.vocab_padding == 0, "rows of padding", "set vocab_padding = 0, with which they can become tokens"),
        (!block.complex, "complex states", "save the parameters as a file of tensors"),
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
