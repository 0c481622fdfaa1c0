//! `monopass eval`: how well a model expects a text.

use crate::args::{ExecutorArgs, PassArgs, at_least_one};
use crate::files;
use crate::model::{self, ModelArgs};
use crate::output::{bar, note, print, print_line};
use crate::report::{Failure, OrReport, io_failure};
use crate::{Outcome, engine};
use miette::Result;
use monopass::generate::DEFAULT_CHUNK_LEN;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Tokens that go through the model in one run, at most; the figures do not depend on it
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHUNK_LEN, value_parser = at_least_one())]
    chunk_len: usize,
    /// Pieces that the text is cut into to run side by side; each begins without what is before it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one())]
    batch: usize,
    /// Also count tokens that are among so many of the likeliest
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = at_least_one())]
    top_k: usize,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let text = files::bytes(&args.data).map_err(|error| io_failure(&args.data, &error))?;
    let model_files = args.model.files()?;
    let opened = args.model.open(&model_files)?;
    let vocabulary = args.model.vocabulary(&model_files, &opened)?;
    let name = args.data.display().to_string();
    let encoded = vocabulary.encode(&name, &text)?;
    if encoded.tokens.len() < 2 {
        let what = format!("{name}: the text has {} tokens, and the first one is not judged", encoded.tokens.len());
        return Err(Failure::new(what).help("give a longer text").into());
    }
    let engine = engine::open(&args.executor)?;
    let mut generator = model::load(&engine, &opened, args.passes.options(), args.chunk_len)?;
    note(&format!("on {}", engine.describe()));
    let bar = bar("tokens", encoded.tokens.len() as u64 - 1);
    let start = Instant::now();
    let judged = pollster::block_on(generator.evaluate(&encoded.tokens, &encoded.n_bytes, args.batch, args.top_k, |n| bar.set_position(n)));
    bar.finish_and_clear();
    let (judged, seconds) = (judged.or_report()?, start.elapsed().as_secs_f64());
    if args.json {
        let object = json!({
            "tokens": judged.n_tokens,
            "bytes": judged.n_bytes,
            "loss": judged.loss(),
            "perplexity": judged.perplexity(),
            "bits_per_token": judged.bits_per_token(),
            "bits_per_byte": judged.bits_per_byte(),
            "accuracy": judged.accuracy(),
            "top_k": args.top_k,
            "top_k_accuracy": judged.top_k_accuracy(),
            "batch": args.batch,
            "seconds": seconds,
        });
        print_line(&object.to_string())?;
        return Ok(Outcome::Good);
    }
    print(&format!(
        "{} tokens, {} bytes\nperplexity {:.4}\nbits per byte {}, per token {:.4}\naccuracy {:.2}%, among {} {:.2}%\n",
        judged.n_tokens,
        judged.n_bytes,
        judged.perplexity(),
        judged.bits_per_byte().map_or_else(|| "unknown".to_owned(), |bits| format!("{bits:.4}")),
        judged.bits_per_token(),
        100.0 * judged.accuracy(),
        args.top_k,
        100.0 * judged.top_k_accuracy()
    ))?;
    note(&format!("in {seconds:.2} s"));
    Ok(Outcome::Good)
}
