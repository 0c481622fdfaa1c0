//! Guards what holds of every graph, on random ones from the op table: each pass keeps its meaning, it compiles for every
//! profile to a sound plan of valid kernels, always the same, and the GPU computes what the interpreter does.
//!
//! The same graphs in every run; `PROPTEST_CASES` asks for more of them.

mod common;

use common::{Outcome, Sources, compile, difference, gpu, profile, targets};
use monopass_ir::{Graph, sample, text};
use monopass_lower::{CompileOptions, Compiler, Pass, Plan, Target, dump::NoDump, optimize};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Runs `check` on `n` random graphs of up to `size` ops, each with a number to choose by. A failure is shown for the
/// smallest size at which the graph of that seed fails.
fn for_graphs(n: u32, size: usize, check: impl Fn(&Graph, u64) -> Outcome) -> Outcome {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(n);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let run = runner.run(&(any::<u64>().no_shrink(), 1..size), |(seed, size)| {
        let graph = sample::graph(seed, size);
        check(&graph, seed).map_err(|error| TestCaseError::fail(format!("{error}\n{}", text::print(&graph))))
    });
    run.map_err(|error| error.to_string().into())
}

/// The passes that are off by the bits of `choice`.
fn off_by(choice: u64) -> Vec<Pass> {
    Pass::ALL.into_iter().enumerate().filter(|(bit, _)| choice >> bit & 1 == 1).map(|(_, pass)| pass).collect()
}

/// The built-in profiles that differ.
fn profiles() -> Outcome<Vec<Target>> {
    Ok(vec![profile("webgpu-default")?, profile("lavapipe")?, profile("nvidia")?])
}

#[test]
fn every_pass_keeps_the_meaning() -> Outcome {
    for_graphs(96, 24, |graph, seed| {
        let sources = Sources::of(graph, seed);
        let wanted = sources.interpret(graph)?;
        for until in Pass::ALL {
            let optimized = optimize(graph, &CompileOptions::default(), Some(until))?;
            let given = sources.interpret(&optimized)?;
            if let Some(problem) = difference(&given, &wanted) {
                return Err(format!("after {}: {problem}\n{}", until.name(), text::print(&optimized)).into());
            }
        }
        Ok(())
    })
}

#[test]
fn every_graph_compiles_to_a_sound_plan_for_every_profile() -> Outcome {
    let targets = profiles()?;
    for_graphs(48, 24, |graph, seed| {
        for target in &targets {
            for off in [Vec::new(), off_by(seed)] {
                let options = CompileOptions::without(&off);
                let plan = compile(graph, target, &options).map_err(|error| format!("{} without {off:?}: {error}", target.name))?;
                check_slots(&plan)?;
                let again = Compiler::new(target.clone()).compile(graph, &options, &mut NoDump)?;
                if plan.to_string() != again.to_string() || plan != again {
                    return Err(format!("{} without {off:?}: the plan is another one the second time", target.name).into());
                }
            }
        }
        Ok(())
    })
}

/// Two values in one slot never live at the same time, by a rule of this test's own.
fn check_slots(plan: &Plan) -> Outcome {
    for slot in &plan.slots {
        for (i, a) in slot.residents.iter().enumerate() {
            for b in &slot.residents[i + 1..] {
                let takes_over = plan.cmds[b.first_cmd].args.iter().any(|arg| arg.reads == [a.value] && arg.writes == Some(b.value));
                if a.first_cmd <= b.last_cmd && b.first_cmd <= a.last_cmd && !(takes_over && a.last_cmd == b.first_cmd) {
                    return Err(format!("{} and {} share a slot while both live\n{plan}", a.value, b.value).into());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_gpu_computes_what_the_interpreter_does() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let targets = targets(device);
    for_graphs(24, 20, |graph, seed| {
        let sources = Sources::of(graph, seed);
        let wanted = sources.interpret(graph)?;
        let choices = [Vec::new(), off_by(seed)];
        for (off, (name, target)) in choices.into_iter().zip(targets.iter().cycle().skip(usize::try_from(seed % 3)?)) {
            let plan = compile(graph, target, &CompileOptions::without(&off))?;
            let given = sources.execute(device, plan).map_err(|error| format!("{name} without {off:?}: {error}"))?;
            if let Some(problem) = difference(&given, &wanted) {
                return Err(format!("{name} without {off:?}: {problem}").into());
            }
        }
        Ok(())
    })
}
