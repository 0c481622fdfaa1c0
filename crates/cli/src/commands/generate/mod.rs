//! `monopass generate`: prompts continued by a model.

mod sampling;
mod writing;

use crate::args::{ExecutorArgs, PassArgs, at_least_one};
use crate::files;
use crate::interrupt::Interrupt;
use crate::model::{self, ModelArgs};
use crate::output::{bytes, counted, kernels_bar, note, print_line};
use crate::report::{Failure, OrReport, io_failure};
use crate::vocabulary::Vocabulary;
use crate::{Outcome, engine};
use miette::Result;
use monopass::fs::{check_writable, write_atomically};
use monopass::generate::{DEFAULT_CHUNK_LEN, Generated, Generator, Sampling, Sequence};
use monopass::lower::dump::NoDump;
use monopass::{CompileOptions, Plan};
use sampling::SamplingArgs;
use serde_json::json;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use writing::{Ends, Writing};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to continue; several are continued as a batch, each as it would be alone
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<OsString>,
    /// File whose whole text is a further prompt; may be given several times
    #[arg(long, value_name = "FILE")]
    prompt_file: Vec<PathBuf>,
    /// Tokens to add to each prompt, at most
    #[arg(long, value_name = "N")]
    tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// End a text before this one; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// End a text at this token; may be given several times
    #[arg(long, value_name = "TOKEN")]
    stop_id: Vec<u32>,
    /// Go on after the tokens by which the model ends a text
    #[arg(long)]
    ignore_eos: bool,
    /// Tokens of prompts that go through the model in one run, at most
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHUNK_LEN, value_parser = at_least_one())]
    chunk_len: usize,
    /// Prompts that run as one batch, at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one())]
    batch: usize,
    /// Go on from a text that --save-state saved; prompts may be left out then
    #[arg(long, value_name = "FILE")]
    load_state: Option<PathBuf>,
    /// Save the text and the model's states at the end, to go on from later
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,
    /// Look for the first value that is not finite on the way of the prompts, and generate nothing
    #[arg(long, conflicts_with = "save_state")]
    trace_nan: bool,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// One JSON object a prompt in place of the text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let prompts = prompts(args)?;
    args.sampling.check()?;
    args.save_state.as_deref().map_or(Ok(()), check_target)?;
    let saved = args.load_state.as_ref().map(|path| files::bytes(path).map_err(|error| io_failure(path, &error))).transpose()?;
    let files = args.model.files()?;
    let opened = args.model.open(&files)?;
    let vocabulary = args.model.vocabulary(&files, &opened)?;
    let prompts: Vec<Vec<u32>> = prompts.iter().map(|(name, text)| Ok(vocabulary.encode(name, text)?.tokens)).collect::<Result<_>>()?;
    if let Some((place, _)) = prompts.iter().enumerate().find(|(_, tokens)| tokens.is_empty() && saved.is_none()) {
        return Err(Failure::new(format!("the prompt {} has no tokens", place + 1)).help("give a longer text").into());
    }
    let ends = Ends::new(&vocabulary, &files, args, opened.config().n_tokens())?;
    let engine = engine::open(&args.executor)?;
    let mut generator = model::load(&engine, &opened, args.passes.options(), args.chunk_len)?;
    note(&format!("on {}", engine.describe()));
    let mut texts = sequences(args, &generator, saved.as_deref(), &prompts)?;
    if args.trace_nan {
        return trace(&mut generator, &texts);
    }
    prepare(&mut generator, &texts)?;
    note(&compiled(&generator, &texts[0].sampling, &args.passes.options())?);
    let interrupt = Interrupt::listen()?;
    let stop = interrupt.clone();
    generator.interrupt_with(move || stop.is_set());
    let written = write(args, &mut generator, &mut texts, &Job { args, vocabulary: &vocabulary, ends: &ends, interrupt: &interrupt });
    // Also where stdout took no more of it.
    let saved = match (&args.save_state, texts.as_slice()) {
        (Some(path), [text]) => save(&generator, text, path),
        _ => Ok(()),
    };
    written?;
    saved?;
    Ok(Outcome::Good)
}

/// Continues the texts, batch by batch, and writes what comes.
fn write(args: &Args, generator: &mut Generator, texts: &mut [Sequence], job: &Job<'_>) -> Result<()> {
    let is_single = texts.len() == 1;
    let n_texts = texts.len();
    for first in (0..n_texts).step_by(args.batch) {
        let batch = &mut texts[first..n_texts.min(first + args.batch)];
        let n_prompt: Vec<usize> = batch.iter().map(|text| text.tokens().len()).collect();
        let done = job.run(generator, batch, is_single)?;
        job.report(generator, batch, first, &n_prompt, &done, is_single)?;
        if job.interrupt.is_set() {
            let n_left = n_texts - first - batch.len();
            if n_left > 0 {
                note(&format!("interrupted: {} not begun", counted(n_left as u64, "prompt")));
            }
            break;
        }
    }
    Ok(())
}

fn save(generator: &Generator, text: &Sequence, path: &Path) -> Result<()> {
    let saved = pollster::block_on(generator.save(text)).or_report()?;
    write_atomically(path, &saved).map_err(|error| io_failure(path, &error))?;
    note(&format!("saved {} after {} to {}", bytes(saved.len() as u64), counted(text.tokens().len() as u64, "token"), path.display()));
    Ok(())
}

/// A place that cannot be written, or a file that is something else, is found before there is anything to lose.
fn check_target(path: &Path) -> Result<()> {
    check_writable(path).map_err(|error| io_failure(path, &error))?;
    let is_other = |bytes: Vec<u8>| !bytes.is_empty() && !Generator::is_saved(&bytes);
    if files::bytes(path).is_ok_and(is_other) {
        let what = format!("{}: there is a file that is no saved text", path.display());
        return Err(Failure::new(what).help("give another file to --save-state").into());
    }
    Ok(())
}

/// Name and text of each prompt.
fn prompts(args: &Args) -> Result<Vec<(String, Vec<u8>)>> {
    let mut prompts: Vec<(String, Vec<u8>)> = Vec::new();
    for (idx, text) in args.prompt.iter().enumerate() {
        prompts.push((format!("--prompt {}", idx + 1), text.as_encoded_bytes().to_vec()));
    }
    for path in &args.prompt_file {
        let text = files::bytes(path).map_err(|error| io_failure(path, &error))?;
        prompts.push((path.display().to_string(), text));
    }
    let is_state = args.load_state.is_some() || args.save_state.is_some();
    if is_state && prompts.len() > 1 {
        return Err(Failure::new("a state is that of one text, and several prompts are given").help("give one --prompt").into());
    }
    if args.load_state.is_some() && prompts.is_empty() {
        prompts.push(("--prompt".to_owned(), Vec::new()));
    }
    if prompts.is_empty() {
        return Err(Failure::new("there is no prompt")
            .help("give a text with --prompt or --prompt-file, or a state with --load-state")
            .into());
    }
    if args.load_state.is_none() && prompts.iter().any(|(_, text)| text.is_empty()) {
        return Err(Failure::new("the prompt is empty").help("give at least one byte with --prompt").into());
    }
    Ok(prompts)
}

/// The texts to continue: the saved one with the prompt added, or one of each prompt.
fn sequences(args: &Args, generator: &Generator, saved: Option<&[u8]>, prompts: &[Vec<u32>]) -> Result<Vec<Sequence>> {
    if let (Some(bytes), Some(path)) = (saved, &args.load_state) {
        let mut text = generator.restore(&path.display().to_string(), bytes).or_report()?;
        text.sampling = args.sampling.over(text.sampling, 0);
        prompts.iter().for_each(|tokens| text.push(tokens));
        return Ok(vec![text]);
    }
    let sequence = |(idx, tokens): (usize, &Vec<u32>)| {
        let mut text = generator.sequence(args.sampling.over(Sampling::default(), idx as u64)).or_report()?;
        text.push(tokens);
        Ok(text)
    };
    prompts.iter().enumerate().map(sequence).collect()
}

fn trace(generator: &mut Generator, texts: &[Sequence]) -> Result<Outcome> {
    for text in texts {
        if let Some(culprit) = pollster::block_on(generator.trace_non_finite(text.tokens())).or_report()? {
            return Err(Failure::new(culprit.to_string())
                .help("this is the first value that is not finite, in the order of the graph")
                .into());
        }
    }
    print_line("all values are finite")?;
    Ok(Outcome::Good)
}

/// Compiles before the clock starts; batches are compiled as they come.
fn prepare(generator: &mut Generator, texts: &[Sequence]) -> Result<()> {
    let (bar, progress) = kernels_bar();
    let n_new = texts[0].tokens().len() - texts[0].n_consumed().min(texts[0].tokens().len());
    let n_new = if texts.len() == 1 { n_new } else { 0 };
    let prepared = pollster::block_on(generator.prepare(n_new, &texts[0].sampling, Some(&progress)));
    bar.finish_and_clear();
    prepared.or_report()
}

/// What a decode step is. The interpreter has no plan, so it is that of WebGPU's defaults.
fn compiled(generator: &Generator, sampling: &Sampling, options: &CompileOptions) -> Result<String> {
    if let Some(plan) = generator.step(sampling).and_then(|program| program.plan()) {
        return Ok(format!("decode step: {}", described(plan)));
    }
    let graph = generator.step_graph(sampling).or_report()?;
    let plan = generator.engine().plan(&graph, options, &mut NoDump).or_report()?;
    Ok(format!("decode step, interpreted; compiled for {} it is: {}", plan.target, described(&plan)))
}

fn described(plan: &Plan) -> String {
    let totals = plan.totals();
    let (params, states, slots) = (bytes(totals.params_bytes), bytes(totals.states_bytes), bytes(totals.slots_bytes));
    format!(
        "{} of {} in one submit; {} of {slots}; weights {params}, states {states}",
        counted(plan.cmds.len() as u64, "dispatch"),
        counted(plan.kernels.len() as u64, "kernel"),
        counted(plan.slots.len() as u64, "slot")
    )
}

/// Prompts that run together.
struct Job<'a> {
    args: &'a Args,
    vocabulary: &'a Vocabulary,
    ends: &'a Ends,
    interrupt: &'a Interrupt,
}

/// What came of them.
struct Done {
    generated: Vec<Generated>,
    /// Text and why it ended.
    texts: Vec<(String, &'static str)>,
    /// Until the first token, and until the last.
    first: Duration,
    total: Duration,
}

impl Job<'_> {
    /// Generates; a single text goes to stdout as it comes.
    fn run(&self, generator: &mut Generator, texts: &mut [Sequence], is_single: bool) -> Result<Done> {
        let is_streamed = is_single && !self.args.json;
        let mut writings: Vec<Writing<'_>> =
            texts.iter().map(|text| Writing::new(self.vocabulary.stream_after(text.tokens()), self.ends, is_streamed)).collect();
        let start = Instant::now();
        let (mut first, mut total) = (Duration::ZERO, Duration::ZERO);
        let mut problem = None;
        let generated = pollster::block_on(generator.generate_all(texts, self.args.tokens, async |row, token| {
            total = start.elapsed();
            if first.is_zero() {
                first = total;
            }
            let goes_on = writings[row].take(token).unwrap_or_else(|error| {
                problem = Some(error);
                false
            });
            if goes_on && problem.is_none() && !self.interrupt.is_set() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }));
        let generated = match generated {
            Err(monopass::Error::Interrupted) => vec![Generated::default(); writings.len()],
            other => other.or_report()?,
        };
        if let Some(error) = problem {
            return Err(error);
        }
        let is_interrupted = self.interrupt.is_set();
        let texts = writings.into_iter().map(|writing| writing.finish(is_interrupted)).collect::<Result<_>>()?;
        Ok(Done { generated, texts, first, total })
    }

    /// The texts of several prompts, or JSON, on stdout; figures on stderr.
    fn report(
        &self,
        generator: &Generator,
        texts: &[Sequence],
        first_idx: usize,
        n_prompt: &[usize],
        done: &Done,
        is_single: bool,
    ) -> Result<()> {
        let Done { generated, texts: written, first, total } = done;
        let Some(last) = generated.first() else { return Ok(()) };
        let step = &last.step;
        if step.submits > 0 && first_idx == 0 {
            note(&format!(
                "each token: {}, {}, {}, {}, {} created",
                counted(step.submits, "submit"),
                counted(step.encoders, "encoder"),
                counted(step.passes, "compute pass"),
                counted(step.dispatches, "dispatch"),
                counted(step.buffers_created, "buffer")
            ));
        }
        let n_new: usize = generated.iter().map(|own| own.tokens.len()).sum();
        let rate = rate(n_new, texts.len(), *first, *total);
        note(&format!(
            "{} of prompt in {}, {}; first after {:.1} ms, {rate:.1} tokens/s",
            counted(n_prompt.iter().sum::<usize>() as u64, "token"),
            counted(last.n_prefill_runs as u64, "run"),
            counted(n_new as u64, "token"),
            first.as_secs_f64() * 1e3
        ));
        let states: u64 = texts.iter().map(Sequence::bytes).sum();
        let slots = generator.slots_bytes();
        let peak = generator.engine().device().map(|device| device.memory().peak_bytes);
        let weights = generator.params().bytes();
        let peak_text = peak.map(|peak| format!("; {} on the device at most", bytes(peak))).unwrap_or_default();
        note(&format!("memory: weights {}, states {}, slots {}{peak_text}", bytes(weights), bytes(states), bytes(slots)));
        for (idx, ((own, (text, why)), (sequence, n_prompt))) in generated.iter().zip(written).zip(texts.iter().zip(n_prompt)).enumerate() {
            if self.args.json {
                let object = json!({
                    "text": text,
                    "tokens": own.tokens,
                    "finish_reason": why,
                    "prompt_tokens": n_prompt,
                    "seed": sequence.sampling.seed,
                    "n_layer": generator.config().n_layer,
                    "batch": texts.len(),
                    "seconds": total.as_secs_f64(),
                    "seconds_to_first_token": first.as_secs_f64(),
                    "tokens_per_second": rate,
                    "dispatches": step.dispatches,
                    "submits": step.submits,
                    "weights_bytes": weights,
                    "states_bytes": states,
                    "slots_bytes": slots,
                    "device_peak_bytes": peak,
                });
                print_line(&object.to_string())?;
            } else if !is_single {
                print_line(&format!("[{}] {}", first_idx + idx + 1, writing::for_terminal(text)))?;
            }
        }
        Ok(())
    }
}

/// Tokens a second after the first ones; of a single step, that of all.
fn rate(n_new: usize, n_texts: usize, first: Duration, total: Duration) -> f64 {
    let (n, time) = if n_new > n_texts { (n_new - n_texts, total.saturating_sub(first)) } else { (n_new, total) };
    #[expect(clippy::cast_precision_loss, reason = "a figure for readers")]
    let n = n as f64;
    n / time.as_secs_f64().max(1e-9)
}
