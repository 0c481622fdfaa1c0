//! `bench model`: a whole model of published sizes with random weights, beside the floor that the memory's bandwidth sets.

use super::{len_class, median, rate};
use crate::args::{ExecutorArgs, PassArgs, at_least_one};
use crate::output::{kernels_bar, print_line, spinner};
use crate::report::{Failure, OrReport};
use crate::{Outcome, engine};
use clap::ValueEnum;
use miette::Result;
use monopass::blocks::{Head, Io, LmGraph, init, model, names, shapes};
use monopass::engine::{Engine, LoadOptions, Params, Pending, Program, blocking};
use monopass::ir::Elements;
use monopass::ir::storage::{Storage, StoredTensor};
use monopass::{CompileOptions, Counters, DType, GraphBuilder, LmConfig, TensorData, Tensors};
use pollster::block_on;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Sizes of the model, such as mamba2-130m or mamba3-1.3b
    #[arg(value_name = "SHAPES", value_parser = config)]
    shapes: Shapes,
    /// decode: a token a run, the next one submitted while this one runs; prefill: --len tokens a run
    #[arg(long, value_enum, default_value = "decode")]
    mode: Mode,
    /// Sequences; several with commas
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = at_least_one())]
    batch: Vec<usize>,
    /// Tokens of a prefill; several with commas
    #[arg(long, value_delimiter = ',', default_value = "512", value_parser = at_least_one())]
    len: Vec<usize>,
    /// How linear maps and the embedding are stored; several with commas
    #[arg(long, value_delimiter = ',', default_value = "f32")]
    dtype: Vec<Storage>,
    /// Runs that are measured
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Runs before that
    #[arg(long, default_value_t = 4)]
    warmup: u32,
    /// Layers, if not as many as published
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    layers: Option<usize>,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Decode,
    Prefill,
}

#[derive(Clone, Debug)]
struct Shapes {
    name: String,
    config: LmConfig,
}

fn config(name: &str) -> Result<Shapes, String> {
    let known = || format!("no model of these sizes is known; there are {}", shapes::names().join(", "));
    Ok(Shapes { name: name.to_owned(), config: shapes::published(name).ok_or_else(known)? })
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let mut config = args.shapes.config.clone();
    config.n_layer = args.layers.unwrap_or(config.n_layer);
    let engine = engine::open_profiling(&args.executor)?;
    let copy_gbps = copy_bandwidth(&engine)?;
    for &storage in &args.dtype {
        let params = upload(&engine, &config, storage)?;
        for &batch in &args.batch {
            let lens = if args.mode == Mode::Decode { &[1][..] } else { &args.len };
            for &len in lens {
                let at = Point { storage, batch, len };
                print_line(&line(args, &engine, &config, &params, &at, copy_gbps)?.to_string())?;
            }
        }
    }
    Ok(Outcome::Good)
}

struct Point {
    storage: Storage,
    batch: usize,
    len: usize,
}

/// Random weights of one layer for all layers: what is measured does not depend on them, and large models are made quickly.
fn upload(engine: &Engine, config: &LmConfig, storage: Storage) -> Result<Params> {
    let spinner = spinner("making random weights");
    let one = init::lm(&LmConfig { n_layer: 1, ..config.clone() }, 0).or_report()?;
    let first = names::layer_prefix(0);
    let mut narrow: indexmap::IndexMap<String, StoredTensor> = indexmap::IndexMap::new();
    let infos = LmConfig { n_layer: 1, ..config.clone() }.parameters().or_report()?;
    for info in infos {
        let Some(tensor) = one.get(&info.name) else { continue };
        let stored = StoredTensor::quantize(tensor.clone(), info.role.storage(tensor.shape(), storage));
        narrow.insert(info.name, stored.or_report()?);
    }
    drop(one);
    let params = block_on(async {
        let mut uploader = engine.uploader();
        for info in config.parameters()? {
            let layer = (0..config.n_layer).find_map(|layer| info.name.strip_prefix(&names::layer_prefix(layer)));
            let source = layer.map_or_else(|| info.name.clone(), |rest| format!("{first}{rest}"));
            if let Some(tensor) = narrow.get(&source) {
                uploader.put(&info.name, tensor.clone()).await?;
            }
        }
        uploader.finish().await
    });
    spinner.finish_and_clear();
    params.or_report()
}

fn line(args: &Args, engine: &Engine, config: &LmConfig, params: &Params, at: &Point, copy_gbps: Option<f64>) -> Result<Value> {
    let graph = model::graph(config, at.batch, at.len, LmGraph::new(Io::Stateful, Head::Next)).or_report()?;
    let program = load(engine, &graph, params, &args.passes.options())?;
    let mut session = engine.session();
    let ids = (0..at.batch * at.len).map(|i| u32::try_from(i * 31 % config.vocab_size).unwrap_or(0)).collect();
    let ids = TensorData::new([at.batch, at.len], Elements::U32(ids)).or_report()?;
    let measured = measure(args, &program, &mut session, &[("ids", &ids)], engine.is_gpu())?;
    let seconds = measured.wall_ms / 1e3;
    let n_tokens = (at.batch * at.len) as u64;
    let state_bytes: u64 = program.states().iter().map(|(_, ty)| ty.size_bytes()).sum();
    // All weights but the rows of an untied embedding are read, and states are read and written.
    let table_bytes = if config.tie_embeddings { 0 } else { at.storage.size_bytes(&[config.vocab_size, config.block.d_model()]) };
    let least_bytes = params.bytes().saturating_sub(table_bytes).saturating_add(2 * state_bytes);
    let floor_ms = copy_gbps.map(|gbps| milliseconds(least_bytes, gbps));
    let is_decode = args.mode == Mode::Decode;
    Ok(json!({
        "model": args.shapes.name,
        "n_layer": config.n_layer,
        "mode": if is_decode { "decode" } else { "prefill" },
        "executor": engine::executor(engine),
        "adapter": engine::adapter(engine),
        "batch": at.batch,
        "len": at.len,
        "len_class": len_class(at.batch, at.len),
        "dtype": at.storage.name(),
        "ms_per_run": measured.wall_ms,
        "gpu_ms": measured.gpu_ms,
        "record_us": measured.record_us,
        "tokens_per_second": rate(n_tokens, seconds, 1.0),
        "weights_bytes": params.bytes(),
        "states_bytes": state_bytes,
        "peak_bytes": engine.device().map(|device| device.memory().peak_bytes),
        "copy_gbps": copy_gbps,
        "floor_ms": floor_ms.filter(|_| is_decode),
        "times_floor": floor_ms.filter(|_| is_decode).map(|floor| measured.wall_ms / floor),
        "submits": measured.counters.submits,
        "dispatches": measured.counters.dispatches,
        "buffers_created": measured.counters.buffers_created,
    }))
}

fn load(engine: &Engine, graph: &monopass::Graph, params: &Params, options: &CompileOptions) -> Result<Program> {
    let (bar, progress) = kernels_bar();
    let load = LoadOptions { compile: options.clone(), dump: None, progress: Some(&progress) };
    let program = blocking::load_with(engine, graph, params, load).or_report();
    bar.finish_and_clear();
    program
}

struct Measured {
    wall_ms: f64,
    gpu_ms: Option<f64>,
    record_us: f64,
    counters: Counters,
}

/// Runs one after the other, on a device the next one submitted before the last one is waited for. The time of a run is the median
/// time from one end to the next, since drivers stop for something else now and then.
fn measure(
    args: &Args,
    program: &Program,
    session: &mut monopass::engine::Session,
    inputs: &[(&str, &TensorData)],
    is_gpu: bool,
) -> Result<Measured> {
    let spinner = spinner("measuring");
    for _ in 0..args.warmup {
        blocking::run(program, session, inputs).or_report()?;
    }
    let ahead = if is_gpu { 2 } else { 1 };
    let (mut flying, mut counters): (VecDeque<Pending>, _) = (VecDeque::new(), Counters::default());
    let (mut gpu, mut record, mut wall) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = Instant::now();
    for i in 0..args.runs + ahead {
        if i < args.runs {
            let before = Instant::now();
            flying.push_back(program.submit(session, inputs).or_report()?);
            record.push(before.elapsed().as_secs_f64() * 1e6);
        }
        if i + 1 >= ahead
            && let Some(pending) = flying.pop_front()
        {
            let run = blocking::wait(pending).or_report()?;
            gpu.extend(run.gpu_ns.map(|ns| Duration::from_nanos(ns).as_secs_f64() * 1e3));
            counters = run.counters;
            wall.push(std::mem::replace(&mut last, Instant::now()).elapsed().as_secs_f64() * 1e3);
        }
    }
    spinner.finish_and_clear();
    Ok(Measured { wall_ms: median(wall).unwrap_or_default(), gpu_ms: median(gpu), record_us: median(record).unwrap_or_default(), counters })
}

/// GB/s of a state that is negated in place, read and written bytes together; `None` where GPU time is not measured.
fn copy_bandwidth(engine: &Engine) -> Result<Option<f64>> {
    const MOST_BYTES: u64 = 512 << 20;
    const RUNS: usize = 9;
    let Some(device) = engine.device() else { return Ok(None) };
    let n_bytes = device.target().max_binding_bytes.min(if device.target().is_cpu { MOST_BYTES / 8 } else { MOST_BYTES });
    let n = usize::try_from(n_bytes / 4 / 1024 * 1024).map_err(|_| Failure::new("the largest binding has no size on this machine"))?;
    let g = GraphBuilder::new("copy");
    let s = g.state("s", DType::F32, [n]);
    g.update("s", s.neg());
    let params = block_on(engine.upload(Tensors::new())).or_report()?;
    let program = blocking::load(engine, &g.finish().or_report()?, &params, &CompileOptions::default()).or_report()?;
    let mut session = engine.session();
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let run = blocking::run(&program, &mut session, &[]).or_report()?;
        times.extend(run.gpu_ns.map(|ns| Duration::from_nanos(ns).as_secs_f64()));
    }
    Ok(median(times).map(|seconds| rate(2 * 4 * n as u64, seconds, 1e9)))
}

#[expect(clippy::cast_precision_loss, reason = "a figure for readers")]
fn milliseconds(bytes: u64, gbps: f64) -> f64 {
    bytes as f64 / gbps / 1e6
}
