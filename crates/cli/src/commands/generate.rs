//! `monopass generate`: a prompt continued by a model, byte by byte.

use crate::args::{CheckpointArgs, ExecutorArgs, PassArgs};
use crate::files::MappedFiles;
use crate::output::{bytes, counted, kernels_bar, note, print, print_line, spinner};
use crate::report::{Failure, OrReport};
use crate::{Outcome, engine};
use miette::Result;
use monopass::blocks::checkpoint::{self, Checkpoint};
use monopass::blocks::{Head, Io, LmGraph, model};
use monopass::engine::Engine;
use monopass::generate::{Generated, Generator, GeneratorOptions};
use monopass::lower::dump::NoDump;
use monopass::{CompileOptions, LmConfig, Plan};
use serde_json::json;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the checkpoint, or its .safetensors or .bin file
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Text to continue
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: OsString,
    /// Tokens to add
    #[arg(long, value_name = "N")]
    tokens: usize,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// One JSON object in place of the text
    #[arg(long)]
    json: bool,
}

/// Vocabulary of a model of bytes.
const N_BYTES: usize = 256;
const TOKENIZER_FILE: &str = "tokenizer.json";

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let prompt: Vec<u32> = args.prompt.as_encoded_bytes().iter().map(|&byte| byte.into()).collect();
    if prompt.is_empty() {
        return Err(Failure::new("the prompt is empty").help("give at least one byte with --prompt").into());
    }
    let checkpoint = open(args)?;
    let engine = engine::open(&args.executor)?;
    let config = checkpoint.config.clone();
    let mut generator = ready(args, &engine, checkpoint, prompt.len())?;
    note(&format!("on {}", engine.describe()));
    note(&compiled(&engine, &generator, &args.passes.options())?);
    let start = Instant::now();
    let (generated, stopped) = stream(&mut generator, &prompt, args)?;
    stopped?;
    let seconds = start.elapsed().as_secs_f64();
    finish(args, &config, &generated, prompt.len(), seconds)
}

fn open(args: &Args) -> Result<Checkpoint> {
    let spinner = spinner("loading");
    let files = MappedFiles::open(&args.model)?;
    let has_tokenizer = files.has(TOKENIZER_FILE);
    let opened = checkpoint::open(&files, &args.checkpoint.options()).or_report()?;
    let vocab_size = opened.config().n_tokens();
    if has_tokenizer || vocab_size != N_BYTES {
        let found = if has_tokenizer { format!("a {TOKENIZER_FILE}") } else { format!("a vocabulary of {vocab_size}") };
        return Err(Failure::new(format!(
            "{}: the model has {found}, and only models of bytes can be given text so far",
            args.model.display()
        ))
        .help("use a checkpoint with a vocabulary of 256 and no tokenizer")
        .into());
    }
    // A weight that is no number makes every logit none, of which the largest has no meaning.
    opened.check_finite().or_report()?;
    let checkpoint = opened.load().or_report()?;
    spinner.finish_and_clear();
    checkpoint.warnings.iter().for_each(|warning| note(&format!("warning: {warning}")));
    Ok(checkpoint)
}

fn ready(args: &Args, engine: &Engine, checkpoint: Checkpoint, prompt_len: usize) -> Result<Generator> {
    let Checkpoint { config, params, .. } = checkpoint;
    let (bar, progress) = kernels_bar();
    let options = GeneratorOptions { compile: args.passes.options(), progress: Some(&progress), ..GeneratorOptions::default() };
    let generator = pollster::block_on(async {
        let mut generator = Generator::with_options(engine, config, params, &options).await?;
        generator.prepare(prompt_len).await?;
        Ok::<_, monopass::Error>(generator)
    });
    bar.finish_and_clear();
    generator.or_report()
}

/// What a decode step is. The interpreter has no plan, so it is that of WebGPU's defaults.
fn compiled(engine: &Engine, generator: &Generator, options: &CompileOptions) -> Result<String> {
    if let Some(plan) = generator.program(1).and_then(|program| program.plan()) {
        return Ok(format!("decode step: {}", described(plan)));
    }
    let graph = model::graph(generator.config(), 1, 1, LmGraph::new(Io::Stateful, Head::Next)).or_report()?;
    let plan = engine.plan(&graph, options, &mut NoDump).or_report()?;
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

/// Generates, with text on stdout as it comes. The second result is whether stdout took it.
fn stream(generator: &mut Generator, prompt: &[u32], args: &Args) -> Result<(Generated, Result<()>)> {
    let mut text = Utf8Stream::default();
    let mut stopped = Ok(());
    let is_terminal = std::io::stdout().is_terminal();
    let generated = pollster::block_on(generator.generate(prompt, args.tokens, async |token| {
        let ready = text.push(u8::try_from(token).unwrap_or(b'?'));
        if !args.json {
            stopped = print(&if is_terminal { without_controls(&ready) } else { ready });
        }
        if stopped.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }));
    let generated = generated.or_report()?;
    if stopped.is_ok() && !args.json {
        stopped = print_line(&text.finish());
    }
    Ok((generated, stopped))
}

/// Without the characters by which a model could take over a terminal.
fn without_controls(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn finish(args: &Args, config: &LmConfig, generated: &Generated, prompt_len: usize, seconds: f64) -> Result<Outcome> {
    let n_tokens = generated.tokens.len();
    #[expect(clippy::cast_precision_loss, reason = "a figure for readers")]
    let rate = n_tokens as f64 / seconds.max(f64::MIN_POSITIVE);
    let step = &generated.step;
    if step.submits > 0 {
        note(&format!(
            "each token: {}, {}, {}, {}, {} created",
            counted(step.submits, "submit"),
            counted(step.encoders, "encoder"),
            counted(step.passes, "compute pass"),
            counted(step.dispatches, "dispatch"),
            counted(step.buffers_created, "buffer")
        ));
    }
    note(&format!(
        "{} of prompt in {}, {}, {rate:.1} tokens/s",
        counted(prompt_len as u64, "token"),
        counted(generated.n_prefill_runs as u64, "run"),
        counted(n_tokens as u64, "token")
    ));
    if args.json {
        let raw: Vec<u8> = generated.tokens.iter().map(|&token| u8::try_from(token).unwrap_or(b'?')).collect();
        let object = json!({
            "text": String::from_utf8_lossy(&raw),
            "tokens": generated.tokens,
            "prompt_tokens": prompt_len,
            "n_layer": config.n_layer,
            "seconds": seconds,
            "tokens_per_second": rate,
            "dispatches": step.dispatches,
            "submits": step.submits,
        });
        print_line(&object.to_string())?;
    }
    Ok(Outcome::Good)
}

/// Bytes as text: a character comes out when it is whole, and U+FFFD for what cannot become one.
#[derive(Debug, Default)]
struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    fn push(&mut self, byte: u8) -> String {
        self.pending.push(byte);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, rest) = self.pending.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(n_bad) = error.error_len() else {
                        self.pending = rest.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending = rest[n_bad..].to_vec();
                }
            }
        }
    }

    fn finish(&self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(bytes: &[u8]) -> (Vec<String>, String) {
        let mut stream = Utf8Stream::default();
        let parts = bytes.iter().map(|&byte| stream.push(byte)).collect();
        (parts, stream.finish())
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(without_controls("é\n\t\u{1b}[2J"), "é\n\t\u{fffd}[2J");
    }

    #[test]
    fn characters_come_out_whole() {
        let (parts, rest) = streamed("aé€".as_bytes());
        assert_eq!((parts, rest.as_str()), (["a", "", "é", "", "", "€"].map(str::to_owned).into(), ""));
    }

    #[test]
    fn what_is_no_text_is_replaced_as_a_whole_file_would_be() {
        for bytes in [&b"\xffa"[..], b"\xc3\xc3\xa9", b"\xe2\x82", b"\x80\xf0\x9f\x92b", b"\xed\xa0\x80"] {
            let (parts, rest) = streamed(bytes);
            assert_eq!(parts.concat() + &rest, String::from_utf8_lossy(bytes));
        }
    }
}
