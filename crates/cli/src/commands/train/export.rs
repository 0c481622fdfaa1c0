//! The model of a run as a checkpoint that everything else loads.

use super::Args;
use super::setup::Setup;
use crate::report::OrReport;
use miette::Result;
use monopass::LmConfig;
use monopass::Tensors;
use monopass::blocks::checkpoint::{CheckpointError, SaveLayout, SaveOptions, Storage, save_with};
use monopass::blocks::train::merge_adapters;
use monopass::train::store::write_atomically;

/// Writes the parameters as they are now, adapters merged.
pub(super) fn model(args: &Args, setup: &Setup, state: &Tensors) -> Result<()> {
    let mut params = setup.params.clone();
    for (name, tensor) in state.iter().filter(|(name, _)| setup.params.contains_key(*name)) {
        params.insert(name.clone(), tensor.clone());
    }
    let params = merge_adapters(&setup.adapters, &params).or_report()?;
    let options = SaveOptions { storage: args.dtype, layout: layout(&setup.config, args.dtype).map(|(layout, _)| layout) };
    let files = save_with(&setup.config, &params, &options).or_report()?;
    for (name, bytes) in files {
        write_atomically(&args.out.join(name), &bytes).or_report()?;
    }
    Ok(())
}

/// The layout of a model that those of other programs cannot state, and why they cannot; `None` if one of them can.
pub(super) fn layout(config: &LmConfig, storage: Storage) -> Option<(SaveLayout, String)> {
    // Options are looked at before parameters, so that none are needed.
    match save_with(config, &Tensors::new(), &SaveOptions { storage, layout: None }) {
        Err(error @ CheckpointError::NotExpressible { .. }) => {
            Some((SaveLayout::Monopass, error.to_string().lines().next().unwrap_or_default().to_owned()))
        }
        _ => None,
    }
}
