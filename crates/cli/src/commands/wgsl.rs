//! `monopass wgsl`: the kernels of a graph for a profile.

use super::plan::CompileArgs;
use crate::args::GraphArgs;
use crate::output::print;
use crate::{Outcome, input};
use miette::Result;
use monopass::snapshot;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    compile: CompileArgs,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let plan = args.compile.compile(&input::graph(&args.graph)?)?;
    print(&snapshot::kernels(&plan))?;
    Ok(Outcome::Good)
}
