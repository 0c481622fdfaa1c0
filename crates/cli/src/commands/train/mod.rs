//! `monopass train`: a language model trained on a text, one submit a batch.

mod export;
mod progress;
mod setup;

use crate::Outcome;
use crate::args::{CheckpointArgs, ExecutorArgs, PassArgs, at_least_one};
use crate::engine;
use crate::files;
use crate::interrupt::Interrupt;
use crate::output::{bytes, counted, note, print_line};
use crate::report::{Failure, OrReport, io_failure};
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use miette::Result;
use monopass::blocks::BlockConfig;
use monopass::blocks::checkpoint::Storage;
use monopass::tokenizer::{Encoded, Tokenizer};
use monopass::train::data::{Batches, Corpus, Order, Position, held_out_batches};
use monopass::train::ngram::ByteModel;
use monopass::train::store::Store;
use monopass::train::{Batch, Evaluation, PendingStep, StepOutcome, Trainer};
use pollster::block_on;
use progress::Log;
use serde_json::json;
use setup::Setup;
use std::collections::VecDeque;
use std::path::PathBuf;

/// Vocabulary of a model of bytes.
const N_BYTES: usize = 256;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text to train on
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Read the text in tokens of this tokenizer.json, and not in bytes
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Directory of the run: the model, its saves, the loss curve
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Go on from the last save in the directory
    #[arg(long)]
    resume: bool,
    /// Every layer's block
    #[arg(long, value_name = "NAME", default_value = "mamba2", value_parser = PossibleValuesParser::new(BlockConfig::NAMES))]
    block: String,
    /// Settings that differ from the published block's of width 128
    #[arg(long, value_name = "K=V,...", default_value = "")]
    config: String,
    /// Layers
    #[arg(long, value_name = "N", default_value = "4", value_parser = at_least_one())]
    layers: usize,
    /// Rows of the embedding: what is more than there are tokens is padding, which is never generated
    #[arg(long, value_name = "N")]
    vocab_rows: Option<usize>,
    /// A head of its own, and not the embedding
    #[arg(long)]
    untied: bool,
    /// Start from this checkpoint, whose configuration then is the model's
    #[arg(long, value_name = "DIR", conflicts_with_all = ["block", "config", "layers", "vocab_rows", "untied", "init"])]
    model: Option<PathBuf>,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Initial values
    #[arg(long, value_enum, default_value = "official")]
    init: Init,
    /// What initial values and the order of windows are drawn from
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    /// Steps
    #[arg(long, value_name = "N", default_value = "1000")]
    steps: u32,
    /// Sequences a batch
    #[arg(long, value_name = "N", default_value = "8", value_parser = at_least_one())]
    batch: usize,
    /// Tokens of each
    #[arg(long, value_name = "N", default_value = "256", value_parser = at_least_one())]
    len: usize,
    /// Batches whose gradients make one step
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one())]
    accumulate: usize,
    /// Carried: states go on from batch to batch. Shuffled: each window starts from none
    #[arg(long, value_enum, default_value = "carried")]
    windows: Windows,
    /// Largest learning rate
    #[arg(long, value_name = "RATE", default_value = "0.003", allow_negative_numbers = true)]
    lr: f64,
    /// Steps over which the rate rises to it
    #[arg(long, value_name = "N", default_value = "50")]
    warmup: u32,
    /// How it falls after that, until the last step
    #[arg(long, value_enum, default_value = "cosine")]
    schedule: ScheduleName,
    /// Share of the largest rate that is left at the last step
    #[arg(long, value_name = "SHARE", default_value = "0.1", allow_negative_numbers = true)]
    min_lr: f64,
    /// Share of a weight, times the rate, that a step takes off; none of norms, biases, decays and skips
    #[arg(long, value_name = "SHARE", default_value = "0.1", allow_negative_numbers = true)]
    weight_decay: f64,
    /// Decay of the mean of gradients
    #[arg(long, default_value = "0.9")]
    beta1: f64,
    /// Decay of the mean of their squares
    #[arg(long, default_value = "0.95")]
    beta2: f64,
    /// Largest norm of all gradients together; 0 for no limit
    #[arg(long, value_name = "NORM", default_value = "1", allow_negative_numbers = true)]
    clip: f64,
    /// all, wsla (the rows of B and C in every input projection), or patterns of parameter names with * and ?, separated by commas
    /// [default: all, or the adapters alone with --lora]
    #[arg(long, value_name = "WHAT")]
    trainable: Option<String>,
    /// Train low-rank adapters of the weights that match these patterns, and nothing else unless --trainable says so
    #[arg(long, value_name = "GLOB,...")]
    lora: Option<String>,
    /// Rank of the adapters
    #[arg(long, value_name = "N", default_value = "8", value_parser = at_least_one(), requires = "lora")]
    lora_rank: usize,
    /// The adapters count alpha / rank
    #[arg(long, value_name = "ALPHA", default_value = "16")]
    lora_alpha: f64,
    /// Share of the text, its end, that is held out to judge the model by
    #[arg(long, value_name = "SHARE", default_value = "0.1", allow_negative_numbers = true)]
    held_out: f64,
    /// Steps between judgements on held-out text; 0 judges at the end alone
    #[arg(long, value_name = "N", default_value = "200")]
    eval_every: u32,
    /// Most held-out windows of a judgement before the end; 0 for all
    #[arg(long, value_name = "N", default_value = "16")]
    eval_windows: usize,
    /// Steps between saves; 0 saves at the end alone
    #[arg(long, value_name = "N", default_value = "500")]
    save_every: u32,
    /// Saves that stay
    #[arg(long, value_name = "N", default_value = "2", value_parser = at_least_one())]
    keep: usize,
    /// Storage type of the weights; the 8-bit ones are written in the layout of monopass
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: Storage,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// One JSON object a step on stdout, and one at the end
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Init {
    Official,
    Predecessor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Windows {
    Carried,
    Shuffled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScheduleName {
    Constant,
    Linear,
    Cosine,
}

impl From<Windows> for Order {
    fn from(windows: Windows) -> Self {
        match windows {
            Windows::Carried => Self::Carried,
            Windows::Shuffled => Self::Shuffled,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let text = files::bytes(&args.data).map_err(|error| io_failure(&args.data, &error))?;
    let (corpus, vocab_size) = corpus(args, &text)?;
    let setup = Setup::new(args, &corpus, vocab_size)?;
    // What the text is too short for is found before anything is compiled or written.
    let mut batches = Batches::new(&corpus, args.windows.into(), [args.batch, args.len], args.seed, Position::default()).or_report()?;
    let held_out = if args.held_out > 0.0 { held_out_batches(&corpus, [args.batch, args.len]).or_report()? } else { Vec::new() };
    let engine = engine::open(&args.executor)?;
    let store = Store::new(&args.out, args.keep);
    let mut trainer = setup.trainer(&engine)?;
    let start = if args.resume {
        let (saved, state) = store.load(&setup.run).or_report()?;
        trainer.restore(saved.step, &state).or_report()?;
        batches = Batches::new(&corpus, args.windows.into(), [args.batch, args.len], args.seed, saved.position).or_report()?;
        saved.step
    } else {
        store.begin().or_report()?;
        0
    };
    note(&format!("on {}", engine.describe()));
    note(&setup.described(&trainer, &engine)?);
    let log = Log::open(args, start)?;
    let mut run =
        Run { args, setup: &setup, trainer, batches, held_out: &held_out, store, log, flying: VecDeque::new(), stop: Interrupt::listen()? };
    let done = run.steps()?;
    run.finish(&corpus, &text, done)
}

/// The text as tokens, and how many different ones there are.
fn corpus(args: &Args, text: &[u8]) -> Result<(Corpus, usize)> {
    let Some(path) = &args.tokenizer else { return Ok((Corpus::of_bytes(text, args.held_out).or_report()?, N_BYTES)) };
    let words = std::str::from_utf8(text).map_err(|error| {
        let what = format!("{}: not text in UTF-8 from byte {} on", args.data.display(), error.valid_up_to());
        Failure::new(what).help("leave --tokenizer out to train on bytes, or convert the text")
    })?;
    let json = files::bytes(path).map_err(|error| io_failure(path, &error))?;
    let tokenizer = Tokenizer::from_json(&path.display().to_string(), &json).or_report()?;
    let Encoded { tokens, n_bytes } = tokenizer.encode(words).or_report()?;
    let corpus = Corpus::of_tokens(tokens, &n_bytes, tokenizer.vocab_size(), args.held_out).or_report()?;
    Ok((corpus, tokenizer.vocab_size()))
}

/// A run under way.
struct Run<'a> {
    args: &'a Args,
    setup: &'a Setup,
    trainer: Trainer,
    batches: Batches<'a>,
    held_out: &'a [Batch],
    store: Store,
    log: Log,
    /// Submitted and not waited for, each with its learning rate if it ends a step.
    flying: VecDeque<(PendingStep, Option<f64>)>,
    stop: Interrupt,
}

impl Run<'_> {
    /// All steps that are left; false if the run was interrupted.
    fn steps(&mut self) -> Result<bool> {
        let is_due = |every: u32, step: u64| every > 0 && step.is_multiple_of(u64::from(every));
        while self.trainer.n_steps() < u64::from(self.args.steps) {
            self.step()?;
            let step = self.trainer.n_steps();
            let stops = self.stop.is_set();
            if is_due(self.args.eval_every, step) && step < u64::from(self.args.steps) && !self.held_out.is_empty() {
                self.settle()?;
                let n = if self.args.eval_windows == 0 { self.held_out.len() } else { self.args.eval_windows.min(self.held_out.len()) };
                let evaluation = block_on(self.trainer.evaluate(&self.held_out[..n])).or_report()?;
                self.log.evaluated(step, &evaluation, self.setup.bytes_per_token)?;
            }
            if is_due(self.args.save_every, step) || stops {
                self.save()?;
            }
            if stops {
                return Ok(false);
            }
        }
        self.settle()?;
        Ok(true)
    }

    /// Submits the batches of a step, and waits for what was submitted before.
    fn step(&mut self) -> Result<()> {
        let lr = self.setup.schedule.lr(u32::try_from(self.trainer.n_steps() + 1).unwrap_or(u32::MAX));
        for part in 1..=self.args.accumulate {
            let (batch, starts) = self.batches.next_batch();
            if starts {
                self.trainer.reset_carried().or_report()?;
            }
            if self.flying.len() == 2 {
                self.wait()?;
            }
            let pending = self.trainer.submit(&batch, lr).or_report()?;
            self.flying.push_back((pending, (part == self.args.accumulate).then_some(lr)));
        }
        Ok(())
    }

    /// Waits for the oldest batch.
    fn wait(&mut self) -> Result<()> {
        let Some((pending, lr)) = self.flying.pop_front() else { return Ok(()) };
        let outcome: StepOutcome = block_on(pending.wait()).or_report()?;
        if !outcome.loss.is_finite() || outcome.grad_norm.is_some_and(|norm| !norm.is_finite()) {
            let what =
                format!("after step {} the loss is {} and the norm of gradients {:?}", self.log.step(), outcome.loss, outcome.grad_norm);
            return Err(Failure::new(what)
                .help("take a smaller --lr, a longer --warmup or a smaller --clip; the last save is whole")
                .into());
        }
        self.log.batch(&outcome, lr)
    }

    fn settle(&mut self) -> Result<()> {
        while !self.flying.is_empty() {
            self.wait()?;
        }
        Ok(())
    }

    /// Saves the run and the model as it is.
    fn save(&mut self) -> Result<()> {
        self.settle()?;
        let state = block_on(self.trainer.state()).or_report()?;
        if let Some(name) = state.iter().find(|(_, tensor)| tensor.as_f32().is_some_and(|values| values.iter().any(|x| !x.is_finite()))) {
            let what = format!("after step {} {} is not finite; the step was not saved", self.trainer.n_steps(), name.0);
            return Err(Failure::new(what).help("take a smaller --lr or a longer --warmup; the last save is whole").into());
        }
        self.store.save(self.trainer.n_steps(), self.batches.position(), &self.setup.run, &state).or_report()?;
        export::model(self.args, self.setup, &state)?;
        self.log.draw()
    }

    fn finish(mut self, corpus: &Corpus, text: &[u8], done: bool) -> Result<Outcome> {
        let step = self.trainer.n_steps();
        if !done {
            self.log.close();
            note(&format!("interrupted; saved at step {step}, go on with --resume"));
            return Ok(Outcome::Bad);
        }
        let evaluation = if self.held_out.is_empty() { None } else { Some(block_on(self.trainer.evaluate(self.held_out)).or_report()?) };
        self.save()?;
        if let Some(evaluation) = &evaluation {
            self.log.evaluated(step, evaluation, self.setup.bytes_per_token)?;
            self.log.draw()?;
        }
        self.log.close();
        self.report(corpus, text, evaluation.as_ref())?;
        Ok(Outcome::Good)
    }

    fn report(&self, corpus: &Corpus, text: &[u8], evaluation: Option<&Evaluation>) -> Result<()> {
        let n_train = corpus.training_bytes();
        // The yardstick sees the same bytes: it is counted on the training part.
        let baseline = evaluation.map(|_| ByteModel::of(&text[..n_train]).bits_per_byte(&text[n_train..]));
        let bits = evaluation.map(|evaluation| evaluation.bits_per_byte(self.setup.bytes_per_token * evaluation.rows));
        let counters = self.log.counters();
        if self.args.json {
            let perplexity = evaluation.map(Evaluation::perplexity);
            return print_line(
                &json!({ "kind": "end", "step": self.trainer.n_steps(), "bits_per_byte": bits, "perplexity": perplexity,
                    "order3_bits_per_byte": baseline, "submits": counters.submits, "dispatches": counters.dispatches,
                    "objects_created": counters.objects_created(), "out": self.args.out })
                .to_string(),
            );
        }
        if let (Some(evaluation), Some(bits), Some(baseline)) = (evaluation, bits, baseline) {
            print_line(&format!(
                "held-out text: {bits:.4} bits a byte, perplexity {:.3}; an order-3 byte model of the same text: {baseline:.4}",
                evaluation.perplexity()
            ))?;
        }
        note(&format!(
            "last batch: {} in {}; {} created",
            counted(counters.dispatches, "dispatch"),
            counted(counters.submits, "submit"),
            counted(counters.objects_created(), "object")
        ));
        print_line(&format!("model of {} and loss curve in {}", bytes(self.setup.n_bytes), self.args.out.display()))
    }
}
