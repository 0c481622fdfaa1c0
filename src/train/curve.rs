//! What training says as it goes, as JSON lines, and a picture of it.

use super::store::{StoreError, write_atomically};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// A line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// A step.
    Step {
        /// Steps taken, this one included.
        step: u64,
        /// Tokens seen, those of this step included.
        tokens: u64,
        /// Mean cross-entropy, in nats a token.
        loss: f32,
        /// Learning rate.
        lr: f64,
        /// Norm of all gradients before clipping.
        grad_norm: f32,
        /// Tokens a second since the line before.
        tokens_per_s: f64,
    },
    /// Held-out text.
    Eval {
        /// Steps taken.
        step: u64,
        /// Mean cross-entropy, in nats a token.
        loss: f64,
        /// `e` to the loss.
        perplexity: f64,
        /// Bits a byte of text.
        bits_per_byte: f64,
    },
}

impl Entry {
    /// Steps taken when it was written.
    #[must_use]
    pub const fn step(&self) -> u64 {
        match self {
            Self::Step { step, .. } | Self::Eval { step, .. } => *step,
        }
    }
}

/// The entries of a log, of steps up to `step`; the file is cut to them, so that a run that goes on writes no step twice. A file that is not
/// there has none. A last line that a crash cut off is dropped.
///
/// # Errors
/// [`StoreError::Io`].
pub fn resume(path: &Path, step: u64) -> Result<Vec<Entry>, StoreError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(StoreError::Io { path: path.to_owned(), source }),
    };
    let entries: Vec<Entry> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(|entry: &Entry| entry.step() <= step).collect();
    let lines: String = entries.iter().filter_map(|entry| Some(serde_json::to_string(entry).ok()? + "\n")).collect();
    write_atomically(path, lines.as_bytes())?;
    Ok(entries)
}

/// Appends a line, in one write.
///
/// # Errors
/// [`StoreError::Io`].
pub fn append(path: &Path, entry: &Entry) -> Result<(), StoreError> {
    let write = || -> std::io::Result<()> {
        let line = serde_json::to_string(entry)? + "\n";
        fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
    };
    write().map_err(|source| StoreError::Io { path: path.to_owned(), source })
}

/// Steps over which the smooth line averages.
const SMOOTH: f64 = 20.0;

/// The loss over the steps as an SVG picture: every step, a running mean, and held-out text.
///
/// # Errors
/// The words of the library that draws it.
pub fn svg(title: &str, entries: &[Entry]) -> Result<String, String> {
    let steps: Vec<(f64, f64)> = entries.iter().filter_map(|entry| if let Entry::Step { step, loss, .. } = entry { Some((as_f64(*step), f64::from(*loss))) } else { None }).collect();
    let evals: Vec<(f64, f64)> = entries.iter().filter_map(|entry| if let Entry::Eval { step, loss, .. } = entry { Some((as_f64(*step), *loss)) } else { None }).collect();
    let mut text = String::new();
    draw(&mut text, title, &steps, &evals).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(text: &mut String, title: &str, steps: &[(f64, f64)], evals: &[(f64, f64)]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, (960, 540)).into_drawing_area();
    area.fill(&WHITE)?;
    let all = || steps.iter().chain(evals).filter(|(_, loss)| loss.is_finite());
    let last = all().map(|&(step, _)| step).fold(1.0, f64::max);
    let (lo, hi) = all().fold((f64::MAX, f64::MIN), |(lo, hi), &(_, loss)| (lo.min(loss), hi.max(loss)));
    let (lo, hi) = if lo <= hi { (lo, hi.max(lo + 1e-3)) } else { (0.0, 1.0) };
    let margin = 0.05 * (hi - lo);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..last, (lo - margin)..(hi + margin))?;
    chart.configure_mesh().x_desc("step").y_desc("cross-entropy, nats a token").draw()?;
    let grey = RGBColor(190, 200, 215);
    chart.draw_series(LineSeries::new(steps.iter().copied(), &grey))?.label("each step").legend(legend(grey));
    let mut mean = None;
    let smooth = steps.iter().map(|&(step, loss)| {
        let next = mean.map_or(loss, |mean: f64| mean + (loss - mean) / SMOOTH);
        mean = Some(next);
        (step, next)
    });
    let blue = RGBColor(30, 90, 180);
    chart.draw_series(LineSeries::new(smooth.collect::<Vec<_>>(), &blue))?.label("running mean").legend(legend(blue));
    let red = RGBColor(200, 50, 30);
    chart.draw_series(LineSeries::new(evals.iter().copied(), &red).point_size(3))?.label("held-out text").legend(legend(red));
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}

fn legend(color: RGBColor) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> {
    move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color)
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
const fn as_f64(step: u64) -> f64 {
    step as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f32) -> Entry {
        Entry::Step { step, tokens: 8 * step, loss, lr: 1e-3, grad_norm: 0.5, tokens_per_s: 100.0 }
    }

    #[test]
    fn a_log_goes_on_after_the_step_that_was_saved() {
        let path = std::env::temp_dir().join(format!("monopass-curve-{}.jsonl", std::process::id()));
        let _ = fs::remove_file(&path);
        assert_eq!(resume(&path, 5).unwrap(), []);
        let eval = Entry::Eval { step: 2, loss: 2.5, perplexity: 12.0, bits_per_byte: 3.6 };
        for entry in [step(1, 3.0), step(2, 2.0), eval, step(3, 1.5)] {
            append(&path, &entry).unwrap();
        }
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"kind\":\"st").unwrap();
        assert_eq!(resume(&path, 2).unwrap(), [step(1, 3.0), step(2, 2.0), eval]);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_picture_names_its_axes() {
        let entries = [step(1, 3.0), step(2, 2.0), Entry::Eval { step: 2, loss: 2.5, perplexity: 12.0, bits_per_byte: 3.6 }];
        let text = svg("a title", &entries).unwrap();
        assert!(text.starts_with("<svg") && ["a title", "nats a token", "held-out text"].iter().all(|word| text.contains(word)));
        assert!(svg("nothing", &[]).is_ok());
        assert!(svg("broken", &[step(1, f32::NAN)]).is_ok());
    }
}
