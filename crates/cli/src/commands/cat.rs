//! `monopass cat`: graphs in canonical text form.

use crate::args::GraphArgs;
use crate::output::print;
use crate::{Outcome, input};
use miette::Result;
use monopass::ir::text;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    graph: GraphArgs,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    print(&text::print_all(&input::graphs(&args.graph)?))?;
    Ok(Outcome::Good)
}
