//! `monopass run`: a graph compiled and run; with `--check` compared with the interpreter, pass by pass.

use super::check;
use super::interp::print_tensors;
use crate::args::{DataArgs, DumpArgs, ExecutorArgs, GraphArgs, PassArgs};
use crate::memory::Place;
use crate::output::{counted, kernels_bar, note, print_line};
use crate::report::OrReport;
use crate::{Outcome, engine, input};
use input::Data;
use miette::Result;
use monopass::engine::{Engine, LoadOptions, Session, blocking};
use monopass::hooks::trace_non_finite;
use monopass::ir::gradcheck::{self, Gradcheck};
use monopass::lower::dump::{DumpSink, NoDump};
use monopass::{CompileOptions, Counters, Graph, Tensors};
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
    #[command(flatten)]
    dump: DumpArgs,
    /// Compare with the interpreter pass by pass and value by value, and name the first value that differs
    #[arg(long)]
    check: bool,
    /// Compare gradients by each f32 input, param and state with finite differences in f64, and name the worst element
    #[arg(long, conflicts_with = "check")]
    gradcheck: bool,
    /// With --gradcheck: elements checked of each source, spread over it; 0 checks all
    #[arg(long, value_name = "N", default_value_t = 64)]
    gradcheck_elems: usize,
    /// Give back a value inside the graph too: its number (%12), a name, or a scope for its last value; * and ? match
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["check", "gradcheck"])]
    tap: Vec<String>,
    /// Name the first op with a result that is not finite although its operands are
    #[arg(long, conflicts_with_all = ["check", "gradcheck", "tap"])]
    trace_nan: bool,
    /// One JSON object a tensor, where NaN and infinities are null, or a line of a check
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let graph = input::graph(&args.graph)?;
    if args.gradcheck {
        return check_gradients(args, &graph);
    }
    let graph = if args.tap.is_empty() { graph } else { graph.with_taps(&args.tap).or_report()?.0 };
    let engine = engine::open(&args.executor)?;
    let options = args.passes.options();
    let mut sink = args.dump.sink()?;
    // Limits of the device are found before the host's memory is filled for it.
    if engine.is_gpu() || sink.wants_text() {
        let planned = engine.plan(&graph, &options, &mut sink).or_report();
        sink.finish()?;
        planned?;
    }
    let place = match (args.check, engine.is_gpu()) {
        (true, _) => Place::HostF64,
        (false, true) => Place::Device,
        (false, false) => Place::Host,
    };
    let data = input::data(&graph, &args.data, place)?;
    if args.check {
        return check::run(&engine, &graph, &data, &options, args.json);
    }
    note(&engine.describe());
    if args.trace_nan {
        return trace(&engine, &graph, &data, args.json);
    }
    let result = execute(&engine, &graph, &data, &options)?;
    let (taps, outputs): (Tensors, Tensors) = result.outputs.into_iter().partition(|(name, _)| name.starts_with("tap:"));
    print_tensors("output", &outputs, args.json)?;
    print_taps(&taps, args.json)?;
    print_tensors("state", &result.states, args.json)?;
    note(&described(&result.counters));
    Ok(Outcome::Good)
}

/// Tapped values, with their range for a reader.
fn print_taps(taps: &Tensors, is_json: bool) -> Result<()> {
    for (name, tensor) in taps {
        print_tensors("tap", &Tensors::from([(name.trim_start_matches("tap:").to_owned(), tensor.clone())]), is_json)?;
        let values = tensor.to_f32_vec();
        if !is_json && !values.is_empty() {
            let (lo, hi) = values.iter().fold((f32::MAX, f32::MIN), |(lo, hi), &x| (lo.min(x), hi.max(x)));
            #[expect(clippy::cast_precision_loss, reason = "a figure for readers")]
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
            print_line(&format!("  from {lo} to {hi}, mean {mean}"))?;
        }
    }
    Ok(())
}

/// Says which value is the first that is not finite.
fn trace(engine: &Engine, graph: &Graph, data: &Data, is_json: bool) -> Result<Outcome> {
    let params = blocking::upload(engine, data.params.clone()).or_report()?;
    let session = started(engine, data)?;
    let found = pollster::block_on(trace_non_finite(engine, graph, &params, &session, &data.inputs())).or_report()?;
    print_line(&match (&found, is_json) {
        (None, false) => "all values are finite".to_owned(),
        (Some(culprit), false) => culprit.to_string(),
        (None, true) => json!({ "finite": true }).to_string(),
        (Some(culprit), true) => json!({
            "finite": false, "op": culprit.op, "value": culprit.value, "scope": culprit.scope,
            "nan": culprit.n_nan, "inf": culprit.n_inf, "first": culprit.first,
        })
        .to_string(),
    })?;
    Ok(if found.is_none() { Outcome::Good } else { Outcome::Bad })
}

/// Judges the gradients of a graph, on the interpreter whatever the executor.
fn check_gradients(args: &Args, graph: &Graph) -> Result<Outcome> {
    let data = input::data(graph, &args.data, Place::HostF64)?;
    let with = Gradcheck { max_elems: args.gradcheck_elems, ..Gradcheck::default() };
    let report = gradcheck::check(graph, &data.inputs, &data.params, &data.states, &with).or_report()?;
    if args.json {
        let worst = report.worst.as_ref().map(|worst| {
            json!({ "source": worst.source, "index": worst.index, "analytic": worst.analytic, "numeric": worst.numeric, "error": worst.error })
        });
        let (n_checked, n_not_smooth) = (report.n_checked, report.n_not_smooth);
        print_line(&json!({ "passed": report.passed, "checked": n_checked, "not_smooth": n_not_smooth, "worst": worst }).to_string())?;
    } else {
        print_line(&report.to_string())?;
        print_line(if report.passed { "gradients agree" } else { "gradients differ" })?;
    }
    Ok(if report.passed { Outcome::Good } else { Outcome::Bad })
}

/// What a run gave.
pub(super) struct Executed {
    pub(super) outputs: Tensors,
    /// States that the graph updates.
    pub(super) states: Tensors,
    counters: Counters,
}

/// One run of a graph.
pub(super) fn execute(engine: &Engine, graph: &Graph, data: &Data, options: &CompileOptions) -> Result<Executed> {
    let (bar, progress) = kernels_bar();
    let params = blocking::upload(engine, data.params.clone()).or_report()?;
    let no_dump: &mut dyn DumpSink = &mut NoDump;
    let load = LoadOptions { compile: options.clone(), dump: Some(no_dump), progress: Some(&progress) };
    let program = blocking::load_with(engine, graph, &params, load).or_report()?;
    bar.finish_and_clear();
    let mut session = started(engine, data)?;
    let run = blocking::run(&program, &mut session, &data.inputs()).or_report()?;
    let mut states = Tensors::new();
    for update in &graph.updates {
        states.insert(update.name.clone(), blocking::read(&session, &update.name).or_report()?);
    }
    Ok(Executed { outputs: run.outputs, states, counters: run.counters })
}

fn started(engine: &Engine, data: &Data) -> Result<Session> {
    let mut session = engine.session();
    data.states.iter().try_for_each(|(name, state)| session.write(name, state)).or_report()?;
    Ok(session)
}

/// What a run recorded, in a line.
fn described(counters: &Counters) -> String {
    let Counters { dispatches, submits, encoders, passes, .. } = *counters;
    format!(
        "{} in {}, {}, {}",
        counted(dispatches, "dispatch"),
        counted(submits, "submit"),
        counted(encoders, "encoder"),
        counted(passes, "compute pass")
    )
}
