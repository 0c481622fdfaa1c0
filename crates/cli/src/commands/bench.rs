//! `monopass bench`: measurements as JSON lines with keys that stay.

mod model;

use super::block::BlockArgs;
use super::drift;
use crate::args::{ExecutorArgs, PassArgs, at_least_one};
use crate::memory::{self, Place};
use crate::output::{kernels_bar, print_line, spinner};
use crate::report::OrReport;
use crate::{Outcome, engine};
use clap::Subcommand;
use miette::Result;
use monopass::blocks::{BlockConfig, init};
use monopass::engine::{Engine, LoadOptions, Params, Program, Session, blocking};
use monopass::lower::dump::NoDump;
use monopass::lower::plan::Totals;
use monopass::{CompileOptions, Counters, Graph, TensorData, Tensors};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One block: a JSON line for each batch and length
    ///
    /// `ms_median` is the median of runs that were each waited for. `cpu_ms` is the processor time of the whole process a
    /// run, on a software device that of the kernels too. `gpu_ms` is the median time of the compute pass, null where it is
    /// not measured. Counters are those of a replay. `tflops` and `gbps` divide what the plan says by `gpu_ms`, else by
    /// `ms_median`.
    Block(BenchArgs),
    /// A model of published sizes with random weights: a JSON line for each storage type, batch and length
    ///
    /// `ms_per_run` is the median wall time from the end of a run to the end of the next, two in flight. `floor_ms` is how long the bytes of weights and
    /// states take at the bandwidth of a copy, measured before, and `times_floor` the ratio to it. `record_us` is how long the
    /// host takes to record and submit a run.
    Model(model::Args),
    /// A long run of decode steps against the same in f64: a JSON line at each power of ten
    ///
    /// The reference is the interpreter in f64, whose states and outputs are not rounded between steps; both have the same
    /// parameters and inputs, as f32, and complex states get slow decay rates. `drift` has the largest difference so far:
    /// of outputs over all tokens, of states over a thousand of them, of angles modulo a turn. `peak` has the largest
    /// magnitudes of the reference.
    Drift(drift::Args),
}

#[derive(Debug, clap::Args)]
struct BenchArgs {
    #[command(flatten)]
    block: BlockArgs,
    /// Sequences; several with commas
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = at_least_one())]
    batch: Vec<usize>,
    /// Tokens; several with commas; a step has one
    #[arg(long, value_delimiter = ',')]
    len: Vec<usize>,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// Runs that are measured; as many as fit into two seconds, and at least five, unless given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Runs before that
    #[arg(long, default_value_t = 2)]
    warmup: u32,
    /// Refuse a size that needs more bytes of the host than this
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    max_bytes: u64,
}

/// Time that measured runs take, unless their number is given.
const BUDGET: Duration = Duration::from_secs(2);
const LEAST_RUNS: u32 = 5;
const MOST_RUNS: u32 = 1000;
/// Most tokens of the step class, and rows below which a sequence is short.
const STEP_LEN: usize = 8;
const SHORT_ROWS: usize = 256;

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match &args.what {
        What::Block(args) => block(args),
        What::Model(args) => model::run(args),
        What::Drift(args) => drift::run(args),
    }
}

fn block(args: &BenchArgs) -> Result<Outcome> {
    let config = args.block.config()?;
    let engine = engine::open_profiling(&args.executor)?;
    let lens = if args.len.is_empty() { vec![None] } else { args.len.iter().copied().map(Some).collect() };
    let place = if engine.is_gpu() { Place::Device } else { Place::Host };
    for &batch in &args.batch {
        for &len in &lens {
            memory::check(&args.block.graph(&config, batch, args.block.mode.len(len)?)?, args.max_bytes, place)?;
        }
    }
    let params = init::block(&config, 0).or_report()?;
    let params = blocking::upload(&engine, params).or_report()?;
    for &batch in &args.batch {
        for &len in &lens {
            let len = args.block.mode.len(len)?;
            print_line(&line(args, &engine, &params, &config, [batch, len])?.to_string())?;
        }
    }
    Ok(Outcome::Good)
}

fn line(args: &BenchArgs, engine: &Engine, params: &Params, config: &BlockConfig, [batch, len]: [usize; 2]) -> Result<Value> {
    let graph = args.block.graph(config, batch, len)?;
    let options = args.passes.options();
    let totals = totals(engine, &graph, &options);
    let mut bench = Bench::new(engine, &graph, params, &options)?;
    let measured = bench.measure(args)?;
    let counters = measured.counters;
    let seconds = measured.gpu_ms.unwrap_or(measured.ms_median) / 1e3;
    Ok(json!({
        "block": args.block.name,
        "mode": args.block.mode.name(),
        "executor": engine::executor(engine),
        "adapter": engine::adapter(engine),
        "batch": batch,
        "len": len,
        "len_class": len_class(batch, len),
        "dtype": "f32",
        "config": args.block.config,
        "ms_median": measured.ms_median,
        "cpu_ms": measured.cpu_ms,
        "gpu_ms": measured.gpu_ms,
        "submits": counters.submits,
        "encoders": counters.encoders,
        "passes": counters.passes,
        "dispatches": counters.dispatches,
        "buffers_created": counters.buffers_created,
        "bytes_allocated": counters.bytes_allocated,
        "peak_bytes": engine.device().map(|device| device.memory().peak_bytes),
        "flops": totals.map(|totals| totals.flops),
        "bytes_moved": totals.map(|totals| totals.bytes_moved),
        "tflops": totals.map(|totals| rate(totals.flops, seconds, 1e12)),
        "gbps": totals.map(|totals| rate(totals.bytes_moved, seconds, 1e9)),
    }))
}

/// What the plan says; the interpreter's work is that of the plan for WebGPU's defaults, if there is one.
fn totals(engine: &Engine, graph: &Graph, options: &CompileOptions) -> Option<Totals> {
    engine.plan(graph, options, &mut NoDump).ok().map(|plan| plan.totals())
}

#[expect(clippy::cast_precision_loss, reason = "a figure for readers")]
fn rate(amount: u64, seconds: f64, unit: f64) -> f64 {
    amount as f64 / seconds / unit
}

fn len_class(batch: usize, len: usize) -> &'static str {
    if len <= STEP_LEN {
        "step"
    } else if batch.saturating_mul(len) < SHORT_ROWS {
        "short"
    } else {
        "long"
    }
}

struct Bench {
    program: Program,
    session: Session,
    inputs: Tensors,
}

struct Measured {
    ms_median: f64,
    cpu_ms: Option<f64>,
    gpu_ms: Option<f64>,
    counters: Counters,
}

impl Bench {
    fn new(engine: &Engine, graph: &Graph, params: &Params, options: &CompileOptions) -> Result<Self> {
        let (bar, progress) = kernels_bar();
        let load = LoadOptions { compile: options.clone(), dump: None, progress: Some(&progress) };
        let program = blocking::load_with(engine, graph, params, load).or_report()?;
        bar.finish_and_clear();
        let inputs = graph.inputs().filter_map(|(name, value)| {
            let shape = &graph.ty(value).shape;
            Some((name.to_owned(), TensorData::f32(shape.clone(), wave(shape.iter().product())).ok()?))
        });
        Ok(Self { program, session: engine.session(), inputs: inputs.collect() })
    }

    fn once(&mut self) -> Result<(Duration, Option<u64>, Counters)> {
        let inputs: Vec<(&str, &TensorData)> = self.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let start = Instant::now();
        let run = blocking::run(&self.program, &mut self.session, &inputs).or_report()?;
        Ok((start.elapsed(), run.gpu_ns, run.counters))
    }

    fn measure(&mut self, args: &BenchArgs) -> Result<Measured> {
        let spinner = spinner("measuring");
        for _ in 0..args.warmup {
            self.once()?;
        }
        let (one, _, first) = self.once()?;
        let fitting = BUDGET.as_nanos() / one.as_nanos().max(1);
        let n_runs = args.runs.unwrap_or_else(|| u32::try_from(fitting).unwrap_or(MOST_RUNS).clamp(LEAST_RUNS, MOST_RUNS));
        let (mut wall, mut gpu, mut counters) = (Vec::new(), Vec::new(), first);
        let before = processor_time();
        for _ in 0..n_runs {
            let (elapsed, gpu_ns, counted) = self.once()?;
            wall.push(elapsed.as_secs_f64() * 1e3);
            gpu.extend(gpu_ns.map(|ns| Duration::from_nanos(ns).as_secs_f64() * 1e3));
            counters = counted;
        }
        let used = before.zip(processor_time()).map(|(before, after)| after.saturating_sub(before).as_secs_f64() * 1e3);
        spinner.finish_and_clear();
        let cpu_ms = used.map(|used| used / f64::from(n_runs));
        Ok(Measured { ms_median: median(wall).unwrap_or_default(), cpu_ms, gpu_ms: median(gpu), counters })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Processor time of all threads of the process so far, where the system says it.
#[cfg(unix)]
fn processor_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

#[cfg(not(unix))]
const fn processor_time() -> Option<Duration> {
    None
}

/// Numbers of ordinary size, the same in every run.
fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| f32::from(u16::try_from(i % 1009).unwrap_or(0)) / 504.5 - 1.0).collect()
}
