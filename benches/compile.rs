//! Time from the graph of a 48-layer model to its plan and validated WGSL, and of the next length of the same class.

use criterion::Criterion;
use monopass::blocks::{Head, Io, LmGraph, model};
use monopass::lower::Compiler;
use monopass::lower::dump::NoDump;
use monopass::{CompileOptions, Graph, LmConfig, Mamba2Config, Target};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    for (name, len, next) in [("step", 1, 2), ("prefill", 512, 519)] {
        let (graph, longer) = (graph(len)?, graph(next)?);
        let target = Target::profile("nvidia").ok_or("there is no such profile")?;
        let options = CompileOptions::default();
        let once = |compiler: &mut Compiler, graph: &Graph| compiler.compile(graph, &options, &mut NoDump).map(|plan| plan.cmds.len());
        // A mistake is reported here rather than measured.
        let mut warm = Compiler::new(target.clone());
        once(&mut warm, &graph)?;
        once(&mut warm, &longer)?;
        criterion.bench_function(&format!("compile 48 layers, {name}"), |bencher| {
            bencher.iter(|| once(&mut Compiler::new(target.clone()), &graph));
        });
        criterion.bench_function(&format!("compile 48 layers, {name}, another length"), |bencher| {
            bencher.iter(|| once(&mut warm, &longer));
        });
    }
    criterion.final_summary();
    Ok(())
}

/// Shapes of the published model with 370 million parameters.
fn graph(len: usize) -> Result<Graph, Box<dyn Error>> {
    let config = LmConfig::new(Mamba2Config::new(1024), 48, 50_288);
    Ok(model::graph(&config, 1, len, LmGraph::new(Io::Stateful, Head::Next))?)
}
