//! `monopass dot`: a graph in Graphviz's language.

use crate::args::GraphArgs;
use crate::output::print;
use crate::{Outcome, input};
use miette::Result;
use monopass::ir::dot::dot;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    graph: GraphArgs,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    print(&dot(&input::graph(&args.graph)?))?;
    Ok(Outcome::Good)
}
