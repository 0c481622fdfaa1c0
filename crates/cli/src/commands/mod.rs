//! The subcommands, one a file.

mod bench;
mod block;
mod cases;
mod cat;
mod check;
mod devices;
mod dot;
mod drift;
mod embed;
mod eval;
mod generate;
mod inspect;
mod interp;
mod opt;
mod plan;
mod run;
mod train;
mod verify;
mod wgsl;

use crate::Outcome;
use clap::Subcommand;
use miette::Result;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a directory of reference cases
    Cases(cases::Args),
    /// Build a block and show any stage of it
    Block(block::Args),
    /// Print a graph in canonical text form
    Cat(cat::Args),
    /// Check that a graph is valid
    Verify(verify::Args),
    /// Print a graph after the graph passes
    Opt(opt::Args),
    /// Print the plan of a graph
    Plan(plan::Args),
    /// Print the kernels of a graph
    Wgsl(wgsl::Args),
    /// Print a graph in Graphviz's language
    Dot(dot::Args),
    /// Run a graph on the interpreter
    Interp(interp::Args),
    /// Compile and run a graph
    Run(run::Args),
    /// Measure
    Bench(bench::Args),
    /// Say what is in a checkpoint
    Inspect(inspect::Args),
    /// List graphics adapters
    Devices(devices::Args),
    /// Continue prompts with a model
    Generate(Box<generate::Args>),
    /// Turn texts into vectors of a model
    Embed(embed::Args),
    /// Measure how well a model expects a text
    Eval(eval::Args),
    /// Train a language model on a text
    Train(Box<train::Args>),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Cases(args) => cases::run(&args),
            Self::Block(args) => block::run(&args),
            Self::Cat(args) => cat::run(&args),
            Self::Verify(args) => verify::run(&args),
            Self::Opt(args) => opt::run(&args),
            Self::Plan(args) => plan::run(&args),
            Self::Wgsl(args) => wgsl::run(&args),
            Self::Dot(args) => dot::run(&args),
            Self::Interp(args) => interp::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Inspect(args) => inspect::run(&args),
            Self::Devices(args) => devices::run(&args),
            Self::Generate(args) => generate::run(&args),
            Self::Embed(args) => embed::run(&args),
            Self::Eval(args) => eval::run(&args),
            Self::Train(args) => train::run(&args),
        }
    }
}
