//! `monopass plan`: the plan of a graph for a profile.

use crate::args::{DumpArgs, GraphArgs, PassArgs, TargetArgs};
use crate::output::{print, print_line};
use crate::report::OrReport;
use crate::{Outcome, input};
use miette::Result;
use monopass::lower::Compiler;
use monopass::lower::plan_json::plan_json;
use monopass::{Graph, Plan};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    compile: CompileArgs,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// How a graph is compiled without a device.
#[derive(Debug, clap::Args)]
pub(crate) struct CompileArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    passes: PassArgs,
    #[command(flatten)]
    dump: DumpArgs,
}

impl CompileArgs {
    pub(crate) fn compile(&self, graph: &Graph) -> Result<Plan> {
        let mut sink = self.dump.sink()?;
        let plan = Compiler::new(self.target.target()).compile(graph, &self.passes.options(), &mut sink);
        sink.finish()?;
        plan.or_report()
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let plan = args.compile.compile(&input::graph(&args.graph)?)?;
    if args.json {
        print_line(&plan_json(&plan).to_string())?;
    } else {
        print(&plan.to_string())?;
    }
    Ok(Outcome::Good)
}
