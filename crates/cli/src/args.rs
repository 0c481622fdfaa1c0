//! Groups of options that several subcommands take.

use crate::dump::DirDump;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{Args, ValueEnum};
use miette::Result;
use monopass::blocks::AAct;
use monopass::blocks::checkpoint::LoadOptions;
use monopass::{CompileOptions, ExecutorChoice, Pass, Target};
use std::path::PathBuf;

/// Where to run.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExecutorArgs {
    /// Where to run: auto takes the graphics card if there is one and says so if there is none
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) executor: Executor,
    /// Only adapters whose name or backend contains this; an error if there is none, unless the executor is cpu
    #[arg(long, value_name = "NAME")]
    pub(crate) adapter: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Executor {
    Auto,
    Gpu,
    Cpu,
}

impl From<Executor> for ExecutorChoice {
    fn from(executor: Executor) -> Self {
        match executor {
            Executor::Auto => Self::Auto,
            Executor::Gpu => Self::Gpu,
            Executor::Cpu => Self::Cpu,
        }
    }
}

/// What the files of a checkpoint do not say.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// Activation of the decay rate that a Mamba-3 was trained with, unless its configuration records it
    #[arg(long, value_name = "NAME", value_parser = |name: &str| AAct::named(name).ok_or("softplus or heavy_tail"))]
    a_act: Option<AAct>,
}

impl CheckpointArgs {
    pub(crate) const fn options(self) -> LoadOptions {
        LoadOptions { a_act: self.a_act, storage: None }
    }
}

/// Which passes run.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PassArgs {
    /// Turn a pass off; may be given several times
    #[arg(long, value_name = "PASS", value_parser = passes())]
    off: Vec<String>,
    /// Most bytes of slots of a graph with gradients: what does not fit is computed again by the backward pass
    #[arg(long, value_name = "BYTES")]
    memory_budget: Option<u64>,
}

impl PassArgs {
    pub(crate) fn options(&self) -> CompileOptions {
        CompileOptions { off: self.off.iter().filter_map(|name| Pass::from_name(name)).collect(), memory_budget: self.memory_budget }
    }
}

/// Names of passes, as clap checks them.
pub(crate) fn passes() -> PossibleValuesParser {
    PossibleValuesParser::new(Pass::ALL.map(Pass::name))
}

/// A size that is not zero, as clap checks it.
pub(crate) fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// What to compile for.
#[derive(Clone, Debug, Args)]
pub(crate) struct TargetArgs {
    /// Profile to compile for
    #[arg(long, value_name = "PROFILE", default_value = "webgpu-default", value_parser = PossibleValuesParser::new(Target::PROFILES))]
    target: String,
}

impl TargetArgs {
    pub(crate) fn target(&self) -> Target {
        Target::profile(&self.target).unwrap_or_else(Target::webgpu_default)
    }
}

/// Where texts of every stage go.
#[derive(Clone, Debug, Args)]
pub(crate) struct DumpArgs {
    /// Write the text of every stage into this directory
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
}

impl DumpArgs {
    /// The sink, which writes nothing without the option.
    pub(crate) fn sink(&self) -> Result<DirDump> {
        DirDump::open(self.dump.as_deref())
    }
}

/// A graph.
#[derive(Clone, Debug, Args)]
pub(crate) struct GraphArgs {
    /// File with the graph in text form, - for standard input
    #[arg(value_name = "FILE.ir")]
    pub(crate) file: PathBuf,
}

/// What a graph runs on.
#[derive(Clone, Debug, Args)]
pub(crate) struct DataArgs {
    /// Safetensors file with tensors in.NAME, param.NAME and state.NAME; made from the seed where it has none
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// Seed of the numbers that are made
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Refuse a graph that needs more bytes of the host than this: sources, and the values that live at once
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    pub(crate) max_bytes: u64,
}
