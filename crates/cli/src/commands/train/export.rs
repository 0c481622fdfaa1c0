//! The model of a run as a checkpoint that everything else loads.

use super::Args;
use super::setup::Setup;
use crate::report::OrReport;
use indexmap::IndexMap;
use miette::Result;
use monopass::Tensors;
use monopass::blocks::checkpoint::{CheckpointError, SaveOptions, WEIGHTS_FILE, save_with, write_tensors};
use monopass::blocks::train::merge_adapters;
use monopass::train::store::write_atomically;

/// Writes the parameters as they are now, adapters merged. Blocks whose options no layout of checkpoints can state are written as a file of
/// tensors alone.
pub(super) fn model(args: &Args, setup: &Setup, state: &Tensors) -> Result<()> {
    let mut params = setup.params.clone();
    for (name, tensor) in state.iter().filter(|(name, _)| setup.params.contains_key(*name)) {
        params.insert(name.clone(), tensor.clone());
    }
    let params = merge_adapters(&setup.adapters, &params).or_report()?;
    let options = SaveOptions { storage: args.dtype, ..SaveOptions::default() };
    let files = match save_with(&setup.config, &params, &options) {
        Err(CheckpointError::NotExpressible { .. }) => {
            IndexMap::from([(WEIGHTS_FILE.to_owned(), write_tensors(WEIGHTS_FILE, &params, None).or_report()?)])
        }
        files => files.or_report()?,
    };
    for (name, bytes) in files {
        write_atomically(&args.out.join(name), &bytes).or_report()?;
    }
    Ok(())
}
