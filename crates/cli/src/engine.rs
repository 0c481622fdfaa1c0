//! The executor that the options ask for.

use crate::args::{Executor, ExecutorArgs};
use crate::output::note;
use crate::report::OrReport;
use miette::Result;
use monopass::ExecutorChoice;
use monopass::engine::{Engine, EngineOptions, blocking};
use monopass::runtime::DeviceOptions;

/// Opens it, and says on stderr if it is another than was hoped for.
pub(crate) fn open(args: &ExecutorArgs) -> Result<Engine> {
    open_with(args, false)
}

/// As [`open`], on a device that measures time where it can.
pub(crate) fn open_profiling(args: &ExecutorArgs) -> Result<Engine> {
    open_with(args, true)
}

fn open_with(args: &ExecutorArgs, profile: bool) -> Result<Engine> {
    let options = EngineOptions { device: DeviceOptions { adapter: args.adapter.clone(), profile, ..DeviceOptions::default() } };
    // Who names an adapter does not want another executor in its place.
    let is_named = args.adapter.is_some() && args.executor == Executor::Auto;
    let choice = if is_named { ExecutorChoice::Gpu } else { args.executor.into() };
    let engine = blocking::open(choice, &options).or_report()?;
    if let Some(notice) = engine.notice() {
        note(notice);
    }
    Ok(engine)
}

/// Name of the adapter for tables, or of the interpreter.
pub(crate) fn adapter(engine: &Engine) -> String {
    engine.device().map_or_else(|| "interpreter".to_owned(), |device| device.info().name.clone())
}

/// `gpu` or `cpu`.
pub(crate) const fn executor(engine: &Engine) -> &'static str {
    if engine.is_gpu() { "gpu" } else { "cpu" }
}
