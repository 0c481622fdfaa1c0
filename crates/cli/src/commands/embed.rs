//! `monopass embed`: texts as vectors of a model.

use crate::args::{ExecutorArgs, PassArgs, at_least_one};
use crate::files;
use crate::model::{self, ModelArgs};
use crate::output::{bar, note, print_line};
use crate::report::{Failure, OrReport, io_failure};
use crate::{Outcome, engine};
use miette::Result;
use monopass::generate::DEFAULT_CHUNK_LEN;
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// A text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Vec<OsString>,
    /// File with a text on each line; empty lines are none
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Texts that run as one batch, at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one())]
    batch: usize,
    /// Tokens that go through the model in one run, at most
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHUNK_LEN, value_parser = at_least_one())]
    chunk_len: usize,
    /// The cosines between all texts in place of the vectors
    #[arg(long)]
    similarity: bool,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// One JSON object a text: text, tokens, and the vector or the cosines
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let texts = texts(args)?;
    let files = args.model.files()?;
    let opened = args.model.open(&files)?;
    let vocabulary = args.model.vocabulary(&files, &opened)?;
    let tokens = texts.iter().map(|(name, text)| match vocabulary.encode(name, text) {
        Ok(encoded) if encoded.tokens.is_empty() => {
            Err(Failure::new(format!("{name}: the text has no tokens")).help("give a longer text").into())
        }
        other => other.map(|encoded| encoded.tokens),
    });
    let tokens: Vec<Vec<u32>> = tokens.collect::<Result<_>>()?;
    let engine = engine::open(&args.executor)?;
    let mut generator = model::load(&engine, &opened, args.passes.options(), args.chunk_len)?;
    note(&format!("on {}", engine.describe()));
    let bar = bar("texts", tokens.len() as u64);
    let mut vectors: Vec<Vec<f32>> = Vec::new();
    for batch in tokens.chunks(args.batch) {
        let batch: Vec<&[u32]> = batch.iter().map(Vec::as_slice).collect();
        vectors.extend(pollster::block_on(generator.embed(&batch)).or_report()?);
        bar.set_position(vectors.len() as u64);
    }
    bar.finish_and_clear();
    for (((_, text), tokens), vector) in texts.iter().zip(&tokens).zip(&vectors) {
        let cosines: Vec<f32> = if args.similarity { vectors.iter().map(|other| dot(vector, other)).collect() } else { Vec::new() };
        let (key, numbers) = if args.similarity { ("cosines", &cosines) } else { ("embedding", vector) };
        let line = if args.json {
            json!({ "text": String::from_utf8_lossy(text), "tokens": tokens.len(), key: numbers }).to_string()
        } else if args.similarity {
            numbers.iter().map(|x| format!("{x:7.4}")).collect::<Vec<_>>().join(" ")
        } else {
            numbers.iter().map(f32::to_string).collect::<Vec<_>>().join(" ")
        };
        print_line(&line)?;
    }
    Ok(Outcome::Good)
}

/// Name and bytes of each text.
fn texts(args: &Args) -> Result<Vec<(String, Vec<u8>)>> {
    let mut texts: Vec<(String, Vec<u8>)> =
        args.text.iter().enumerate().map(|(idx, text)| (format!("--text {}", idx + 1), text.as_encoded_bytes().to_vec())).collect();
    if let Some(path) = &args.file {
        let bytes = files::bytes(path).map_err(|error| io_failure(path, &error))?;
        let lines = bytes.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).enumerate();
        let named =
            lines.filter(|(_, line)| !line.is_empty()).map(|(idx, line)| (format!("{}:{}", path.display(), idx + 1), line.to_vec()));
        texts.extend(named);
    }
    if texts.is_empty() {
        return Err(Failure::new("there is no text").help("give one with --text, or a file with a text on each line with --file").into());
    }
    Ok(texts)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
