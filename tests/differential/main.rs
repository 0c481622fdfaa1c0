//! Guards that graphs compute on the GPU what they compute on the interpreter: every case of `tests/cases` with all passes
//! and with each pass off, with the kernels of other targets, and shapes chosen for the kernels that they reach.

#[path = "../common/mod.rs"]
mod common;
mod shapes;

use common::{Outcome, Sources, cases, compile, difference, gpu, settle, targets};
use monopass_ir::Graph;
use monopass_lower::{CompileOptions, Pass, Target};
use monopass_runtime::Device;

/// What is wrong with `graph` compiled for `target` with `off` passes off, if anything.
fn check(device: &Device, graph: &Graph, target: &Target, off: &[Pass], seed: u64) -> Outcome<Option<String>> {
    let sources = Sources::of(graph, seed);
    let wanted = sources.interpret(graph)?;
    let given = compile(graph, target, &CompileOptions::without(off)).and_then(|plan| sources.execute(device, plan));
    Ok(match given {
        Ok(given) => difference(&given, &wanted),
        Err(error) => Some(error.to_string()),
    })
}

#[test]
fn every_case_with_all_passes_and_with_each_off() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let mut problems = Vec::new();
    for (name, graph) in cases()? {
        let settings = std::iter::once(Vec::new()).chain(Pass::ALL.into_iter().map(|pass| vec![pass]));
        for (seed, off) in (1..).zip(settings) {
            let problem = check(device, &graph, device.target(), &off, seed)?;
            problems.extend(problem.map(|problem| format!("{name} without {off:?}: {problem}")));
        }
    }
    settle(&problems)
}

#[test]
fn every_case_with_the_kernels_of_other_targets() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let mut problems = Vec::new();
    for (name, graph) in cases()? {
        for (target_name, target) in &targets(device)[1..] {
            let problem = check(device, &graph, target, &[], 11)?;
            problems.extend(problem.map(|problem| format!("{name} for {target_name}: {problem}")));
        }
    }
    settle(&problems)
}
