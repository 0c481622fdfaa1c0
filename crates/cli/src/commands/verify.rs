//! `monopass verify`: whether graphs are valid. A text that parses is verified by that.

use crate::args::GraphArgs;
use crate::output::{counted, print_line};
use crate::{Outcome, input};
use miette::Result;
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    /// One JSON object a graph
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    for graph in input::graphs(&args.graph)? {
        let (name, n_nodes) = (&graph.name, graph.n_nodes());
        if args.json {
            print_line(&json!({ "graph": name, "nodes": n_nodes, "valid": true }).to_string())?;
        } else {
            print_line(&format!("@{name}: valid, {}", counted(n_nodes as u64, "node")))?;
        }
    }
    Ok(Outcome::Good)
}
