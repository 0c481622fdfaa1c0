//! `monopass block`: a block at any stage.

use super::plan::CompileArgs;
use crate::Outcome;
use crate::args::at_least_one;
use crate::output::{print, print_line};
use crate::report::{Failure, OrReport};
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use miette::Result;
use monopass::blocks::{BlockConfig, BlockGraph, Io, block};
use monopass::ir::autodiff::{GradientOptions, gradient_graph};
use monopass::ir::dot::dot;
use monopass::lower::plan_html::plan_html;
use monopass::lower::plan_json::plan_json;
use monopass::{Graph, snapshot};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    block: BlockArgs,
    /// Sequences
    #[arg(long, default_value = "1", value_parser = at_least_one())]
    batch: usize,
    /// Tokens; a step has one
    #[arg(long)]
    len: Option<usize>,
    #[command(flatten)]
    compile: CompileArgs,
    /// What to print
    #[arg(long, value_enum, default_value = "plan")]
    emit: Emit,
}

/// Which block.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BlockArgs {
    /// Name of the block
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(BlockConfig::NAMES))]
    pub(crate) name: String,
    /// Settings that differ from the published block's of width 768
    #[arg(long, value_name = "K=V,...", default_value = "")]
    pub(crate) config: String,
    /// A whole sequence, one token, or a whole sequence with the gradients of all parameters and of the input
    #[arg(long, value_enum, default_value = "forward")]
    pub(crate) mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Forward,
    Step,
    Train,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// The graph as text
    Ir,
    /// The plan
    Plan,
    /// The kernels
    Wgsl,
    /// The graph in Graphviz's language
    Dot,
    /// The plan as one JSON object
    Json,
    /// The plan as one page
    Html,
}

/// Width of the smallest published model.
const DEFAULT_D_MODEL: usize = 768;
/// Tokens of a sequence unless told otherwise.
const DEFAULT_LEN: usize = 256;

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Step => "step",
            Self::Train => "train",
        }
    }

    /// Tokens of a run of this mode.
    pub(crate) fn len(self, asked: Option<usize>) -> Result<usize> {
        match (self, asked) {
            (Self::Forward | Self::Train, asked) => Ok(asked.unwrap_or(DEFAULT_LEN)),
            (Self::Step, None | Some(1)) => Ok(1),
            (Self::Step, Some(len)) => {
                Err(Failure::new(format!("--len is {len}, and a step is one token")).help("leave --len out, or use --mode forward").into())
            }
        }
    }
}

impl BlockArgs {
    pub(crate) fn config(&self) -> Result<BlockConfig> {
        let config = BlockConfig::named(&self.name, DEFAULT_D_MODEL);
        let mut config = config.ok_or_else(|| Failure::new(format!("no block is called {:?}", self.name)))?;
        config.set(&self.config).or_report()?;
        config.sizes().or_report()?;
        Ok(config)
    }

    /// The block with states that live between runs, or with its gradients.
    pub(crate) fn graph(&self, config: &BlockConfig, batch: usize, len: usize) -> Result<Graph> {
        match self.mode {
            Mode::Forward | Mode::Step => block::graph(config, batch, len, Io::Stateful).or_report(),
            Mode::Train => {
                let options = BlockGraph { gradients: true, ..Io::Stateless.into() };
                let graph = block::graph_with(config, batch, len, options).or_report()?;
                gradient_graph(&graph, &GradientOptions::default()).or_report()
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let graph = args.block.graph(&args.block.config()?, args.batch, args.block.mode.len(args.len)?)?;
    match args.emit {
        Emit::Ir => print(&snapshot::ir(&graph))?,
        Emit::Dot => print(&dot(&graph))?,
        Emit::Plan => print(&args.compile.compile(&graph)?.to_string())?,
        Emit::Wgsl => print(&snapshot::kernels(&args.compile.compile(&graph)?))?,
        Emit::Json => print_line(&plan_json(&args.compile.compile(&graph)?).to_string())?,
        Emit::Html => print(&plan_html(&args.compile.compile(&graph)?, &[("Graph", &snapshot::ir(&graph))]))?,
    }
    Ok(Outcome::Good)
}
