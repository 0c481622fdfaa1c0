//! What a run says as it goes: a bar on the terminal, the log and the picture in its directory.

use super::Args;
use crate::output::{note, print_line};
use crate::report::{Failure, OrReport};
use indicatif::{ProgressBar, ProgressStyle};
use miette::Result;
use monopass::Counters;
use monopass::train::curve::{self, Entry};
use monopass::train::store::write_atomically;
use monopass::train::{Evaluation, StepOutcome};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

/// Name of the log in a run's directory.
const LOG_FILE: &str = "curve.jsonl";
/// Names of the picture, in both forms.
const PICTURE_FILES: [&str; 2] = ["curve.svg", "curve.png"];

/// Ends of steps from which the rate is taken.
const RATE_STEPS: usize = 17;

pub(super) struct Log {
    bar: ProgressBar,
    entries: Vec<Entry>,
    path: PathBuf,
    pictures: [PathBuf; 2],
    title: String,
    is_json: bool,
    /// Of the batches of the step under way: loss times rows, rows, tokens.
    loss_sum: f64,
    rows: f64,
    tokens: u64,
    step: u64,
    tokens_per_step: u64,
    /// When the last steps ended, the latest last: two are in flight, so one interval alone says little.
    ends: VecDeque<Instant>,
    counters: Counters,
}

impl Log {
    pub(super) fn open(args: &Args, step: u64) -> Result<Self> {
        let path = args.out.join(LOG_FILE);
        let entries = curve::resume(&path, step).or_report()?;
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(args.steps.into()).with_style(style).with_position(step);
        let tokens_per_step = args.batch.saturating_mul(args.len).saturating_mul(args.accumulate) as u64;
        Ok(Self {
            bar,
            entries,
            path,
            pictures: PICTURE_FILES.map(|name| args.out.join(name)),
            title: format!("{} on {}", args.block, args.data.file_name().unwrap_or_default().to_string_lossy()),
            is_json: args.json,
            loss_sum: 0.0,
            rows: 0.0,
            tokens: step.saturating_mul(tokens_per_step),
            step,
            tokens_per_step,
            ends: VecDeque::from([Instant::now()]),
            counters: Counters::default(),
        })
    }

    /// Steps that are over.
    pub(super) const fn step(&self) -> u64 {
        self.step
    }

    /// What the last batch's run recorded.
    pub(super) const fn counters(&self) -> Counters {
        self.counters
    }

    /// A batch is over; with a learning rate it ended a step.
    pub(super) fn batch(&mut self, outcome: &StepOutcome, lr: Option<f64>) -> Result<()> {
        self.loss_sum += f64::from(outcome.loss) * f64::from(outcome.rows);
        self.rows += f64::from(outcome.rows);
        self.counters = outcome.counters;
        let Some(lr) = lr else { return Ok(()) };
        self.step += 1;
        self.tokens = self.tokens.saturating_add(self.tokens_per_step);
        #[expect(clippy::cast_possible_truncation, reason = "a loss is printed as f32")]
        let loss = if self.rows > 0.0 { (self.loss_sum / self.rows) as f32 } else { 0.0 };
        let grad_norm = outcome.grad_norm.unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "tokens of one step")]
        let tokens_per_s = self.tokens_per_step as f64 * self.steps_per_s();
        (self.loss_sum, self.rows) = (0.0, 0.0);
        self.bar.set_position(self.step);
        self.bar.set_message(format!("loss {loss:.4}  {tokens_per_s:.0} tokens/s  gradient {grad_norm:.2}"));
        self.add(Entry::Step { step: self.step, tokens: self.tokens, loss, lr, grad_norm, tokens_per_s })
    }

    pub(super) fn evaluated(&mut self, step: u64, evaluation: &Evaluation, bytes_per_token: f64) -> Result<()> {
        let bits_per_byte = evaluation.bits_per_byte(evaluation.rows * bytes_per_token);
        let (loss, perplexity) = (evaluation.loss(), evaluation.perplexity());
        if !self.is_json {
            self.bar.suspend(|| {
                note(&format!("step {step}: held-out loss {loss:.4}, perplexity {perplexity:.3}, {bits_per_byte:.4} bits a byte"));
            });
        }
        // The time that judging takes is no step's.
        self.ends = VecDeque::from([Instant::now()]);
        self.add(Entry::Eval { step, loss, perplexity, bits_per_byte })
    }

    /// A step ends now: steps a second over the last few.
    fn steps_per_s(&mut self) -> f64 {
        self.ends.push_back(Instant::now());
        if self.ends.len() > RATE_STEPS {
            self.ends.pop_front();
        }
        let since = self.ends.front().map_or(0.0, |first| first.elapsed().as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "a few steps")]
        let n_steps = (self.ends.len() - 1) as f64;
        n_steps / since.max(1e-9)
    }

    fn add(&mut self, entry: Entry) -> Result<()> {
        curve::append(&self.path, &entry).or_report()?;
        self.entries.push(entry);
        if !self.is_json {
            return Ok(());
        }
        print_line(&serde_json::to_string(&entry).map_err(|error| Failure::new(error.to_string()))?)
    }

    /// Writes the picture.
    pub(super) fn draw(&mut self) -> Result<()> {
        let not_drawn = |problem: String| Failure::new(format!("the loss curve cannot be drawn: {problem}"));
        let [svg, png] = &self.pictures;
        write_atomically(svg, curve::svg(&self.title, &self.entries).map_err(not_drawn)?.as_bytes()).or_report()?;
        write_atomically(png, &curve::png(&self.title, &self.entries).map_err(not_drawn)?).or_report()?;
        self.ends = VecDeque::from([Instant::now()]);
        Ok(())
    }

    pub(super) fn close(&self) {
        self.bar.finish_and_clear();
    }
}
