//! `monopass opt`: a graph after the graph passes, in text form, so that it can be edited and fed back.

use crate::args::{GraphArgs, PassArgs, passes};
use crate::output::print;
use crate::report::OrReport;
use crate::{Outcome, input};
use miette::Result;
use monopass::{Pass, lower, snapshot};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    /// Stop after this pass; layout, schedule and memory do not change the graph
    #[arg(long, value_name = "PASS", value_parser = passes())]
    until: Option<String>,
    #[command(flatten)]
    passes: PassArgs,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let graph = input::graph(&args.graph)?;
    let until = args.until.as_deref().and_then(Pass::from_name);
    let graph = lower::optimize(&graph, &args.passes.options(), until).or_report()?;
    print(&snapshot::ir(&graph))?;
    Ok(Outcome::Good)
}
