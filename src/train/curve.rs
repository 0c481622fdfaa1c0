//! What training says as it goes, as JSON lines, and a picture of it.

use super::pixels::Pixels;
use super::store::{StoreError, write_atomically};
use plotters::coord::Shift;
use plotters::prelude::*;
use serde::{Deserialize, Deserializer, Serialize};
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
        #[serde(deserialize_with = "number_or_null")]
        loss: f32,
        /// Learning rate.
        lr: f64,
        /// Norm of all gradients before clipping.
        #[serde(deserialize_with = "number_or_null")]
        grad_norm: f32,
        /// Tokens a second over the last few steps.
        tokens_per_s: f64,
    },
    /// Held-out text.
    Eval {
        /// Steps taken.
        step: u64,
        /// Mean cross-entropy, in nats a token.
        #[serde(deserialize_with = "number_or_null")]
        loss: f64,
        /// `e` to the loss.
        #[serde(deserialize_with = "number_or_null")]
        perplexity: f64,
        /// Bits a byte of text.
        #[serde(deserialize_with = "number_or_null")]
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

/// JSON has no NaN: what training that diverged gives is written as null.
fn number_or_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + From<f32>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_else(|| f32::NAN.into()))
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
    let entries: Vec<Entry> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(|entry: &Entry| entry.step() <= step).collect();
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
/// Width and height of a picture, in pixels.
const SIZE: [u16; 2] = [960, 540];
/// Parts of a line that a picture of this width tells apart.
const MAX_PARTS: usize = 800;

/// The loss over the steps as an SVG picture: every step, a running mean, and held-out text.
///
/// # Errors
/// The words of the library that draws it.
pub fn svg(title: &str, entries: &[Entry]) -> Result<String, String> {
    let mut text = String::new();
    let [width, height] = SIZE.map(u32::from);
    draw(&SVGBackend::with_string(&mut text, (width, height)).into_drawing_area(), title, entries).map_err(|error| error.to_string())?;
    Ok(text)
}

/// The same picture as a PNG file, with letters of its own, so that no font is needed.
///
/// # Errors
/// The words of the library that draws it.
pub fn png(title: &str, entries: &[Entry]) -> Result<Vec<u8>, String> {
    let mut pixels = Pixels::new(SIZE);
    draw(&(&mut pixels).into_drawing_area(), title, entries).map_err(|error| error.to_string())?;
    pixels.encode().map_err(|error| error.to_string())
}

fn draw<B: DrawingBackend>(area: &DrawingArea<B, Shift>, title: &str, entries: &[Entry]) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let steps = points(entries, |entry| if let Entry::Step { loss, .. } = entry { Some(f64::from(*loss)) } else { None });
    let evals = points(entries, |entry| if let Entry::Eval { loss, .. } = entry { Some(*loss) } else { None });
    area.fill(&WHITE)?;
    let all = || steps.iter().chain(&evals);
    let last = all().map(|&(step, _)| step).fold(1.0, f64::max);
    let (lo, hi) = all().fold((f64::MAX, f64::MIN), |(lo, hi), &(_, loss)| (lo.min(loss), hi.max(loss)));
    let (lo, hi) = if lo <= hi { (lo, hi.max(lo + 1e-3)) } else { (0.0, 1.0) };
    let margin = 0.05 * (hi - lo);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..last, (lo - margin)..(hi + margin))?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("step").y_desc("cross-entropy, nats a token").x_label_formatter(&|step| format!("{step:.0}"));
    mesh.max_light_lines(2).label_style(("sans-serif", 16)).axis_desc_style(("sans-serif", 18)).draw()?;
    let grey = RGBColor(190, 200, 215);
    chart.draw_series(LineSeries::new(thinned(&steps), &grey))?.label("each step").legend(legend(grey));
    let blue = RGBColor(30, 90, 180);
    chart.draw_series(LineSeries::new(thinned(&smooth(&steps)), &blue))?.label("running mean").legend(legend(blue));
    let red = RGBColor(200, 50, 30);
    chart.draw_series(LineSeries::new(evals, &red).point_size(3))?.label("held-out text").legend(legend(red));
    chart
        .configure_series_labels()
        .background_style(WHITE)
        .border_style(BLACK)
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", 18))
        .draw()?;
    area.present()
}

/// Steps and the numbers that `loss` finds for them; a loss that is no number has no place in a picture.
fn points(entries: &[Entry], loss: impl Fn(&Entry) -> Option<f64>) -> Vec<(f64, f64)> {
    let place = |entry: &Entry| Some((as_f64(entry.step()), loss(entry).filter(|loss| loss.is_finite())?));
    entries.iter().filter_map(place).collect()
}

/// Running means; the first ones are over all steps so far, so that the first loss does not linger.
fn smooth(steps: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (mut mean, mut n) = (0.0, 0.0f64);
    let next = |&(step, loss): &(f64, f64)| {
        n = (n + 1.0).min(SMOOTH);
        mean += (loss - mean) / n;
        (step, mean)
    };
    steps.iter().map(next).collect()
}

/// The line with the lowest and the highest point of each of as many parts as can be told apart, so that a picture of a long run
/// is no larger than that of a short one.
fn thinned(line: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let n = line.len().div_ceil(MAX_PARTS);
    if n <= 2 {
        return line.to_vec();
    }
    let ends = |part: &[(f64, f64)]| {
        let by_loss = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut ends: Vec<(f64, f64)> = part.iter().min_by(by_loss).into_iter().chain(part.iter().max_by(by_loss)).copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends
    };
    line.chunks(n).flat_map(ends).collect()
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
        assert!(svg("broken", &[step(1, f32::NAN)]).is_ok_and(|text| !text.contains("NaN")));
    }

    #[test]
    fn both_pictures_show_the_same() {
        let entries: Vec<Entry> = (1..40u8).map(|n| step(n.into(), 5.0 / f32::from(n))).collect();
        let bytes = png("loss", &entries).unwrap();
        assert_eq!(bytes, png("loss", &entries).unwrap());
        let mut reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut rgb).unwrap();
        assert_eq!((info.width, info.height), (960, 540));
        // The line of means goes from its height at the left to its height at the right.
        let is_blue = |pixel: &[u8; 3]| pixel[2] > 150 && pixel[0] < 90;
        let blue: Vec<usize> = rgb.as_chunks::<3>().0.iter().enumerate().filter(|(_, pixel)| is_blue(pixel)).map(|(at, _)| at).collect();
        let columns = |at: &usize| at % 960;
        assert!(blue.iter().map(columns).min().unwrap() < 120 && blue.iter().map(columns).max().unwrap() > 900);
        assert!(png("nothing", &[]).is_ok() && png("broken", &[step(1, f32::NAN)]).is_ok());
    }

    #[test]
    fn the_running_mean_begins_as_a_mean() {
        let line = smooth(&[(1.0, 4.0), (2.0, 2.0), (3.0, 3.0)]);
        assert_eq!(line, [(1.0, 4.0), (2.0, 3.0), (3.0, 3.0)]);
        let long = smooth(&(0..400).map(|step| (f64::from(step), 7.0)).collect::<Vec<_>>());
        assert!(long.iter().all(|&(_, mean)| mean == 7.0));
    }

    #[test]
    fn a_long_run_keeps_its_peaks() {
        let mut line: Vec<(f64, f64)> = (0..100_000).map(|step| (f64::from(step), 1.0)).collect();
        line[77_777].1 = 9.0;
        line[50].1 = 0.5;
        let few = thinned(&line);
        assert!(few.len() <= 2 * MAX_PARTS && few.contains(&(77_777.0, 9.0)) && few.contains(&(50.0, 0.5)));
        assert!(few.is_sorted_by(|a, b| a.0 <= b.0));
        assert_eq!((thinned(&line[..3]), thinned(&[])), (line[..3].to_vec(), Vec::new()));
    }

    #[test]
    fn what_diverged_is_read_back() {
        let path = std::env::temp_dir().join(format!("monopass-curve-nan-{}.jsonl", std::process::id()));
        append(&path, &step(1, f32::NAN)).unwrap();
        let eval = Entry::Eval { step: 1, loss: f64::INFINITY, perplexity: f64::INFINITY, bits_per_byte: f64::NAN };
        append(&path, &eval).unwrap();
        let read = resume(&path, 1).unwrap();
        assert!(matches!(read[..], [Entry::Step { loss, .. }, Entry::Eval { perplexity, .. }] if loss.is_nan() && perplexity.is_nan()));
        fs::remove_file(&path).unwrap();
    }
}
