//! `monopass inspect`: what is in a checkpoint, without reading its elements.

use crate::Outcome;
use crate::args::CheckpointArgs;
use crate::files::MappedFiles;
use crate::output::{bytes, harmless, note, print, print_line};
use crate::report::OrReport;
use miette::Result;
use monopass::LmConfig;
use monopass::blocks::checkpoint::{Layout, Report, Storage, inspect_with, settings_of};
use monopass::blocks::{BlockConfig, Mamba2Config, Mamba3Config};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Settings that every model says; others are said where they differ from the published block.
const MAIN: [&str; 8] = ["d_state", "d_conv", "expand", "headdim", "ngroups", "rope_fraction", "a_act", "is_mimo"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the checkpoint, or its .safetensors, .bin or .gguf file
    path: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let files = MappedFiles::open(&args.path)?;
    let report = inspect_with(&files, &args.checkpoint.options()).or_report()?;
    report.warnings.iter().for_each(|warning| note(&format!("warning: {warning}")));
    if report.layout == Layout::Gguf && !files.has("tokenizer.json") {
        note("the tokenizer inside a GGUF file is not read: for text, put the model's tokenizer.json beside it");
    }
    if args.json {
        print_line(&object(&report).to_string())?;
    } else {
        print(&harmless(&lines(&report)))?;
    }
    Ok(Outcome::Good)
}

fn lines(report: &Report) -> String {
    let Report { layout, config, tensors, n_params, file_bytes, state_bytes, .. } = report;
    let mut text = format!("{layout}: {} layers, d_model {}, vocabulary {}", config.n_layer, config.block.d_model(), config.n_tokens());
    if config.vocab_padding > 0 {
        let _ = write!(text, " padded to {}", config.vocab_size);
    }
    let _ = writeln!(text, ", head {}", if config.tie_embeddings { "tied" } else { "of its own" });
    let _ = writeln!(text, "block: {}", described(&config.block));
    let _ = writeln!(text, "{n_params} parameters, {} in files", bytes(*file_bytes));
    let of = |storage| report.device_bytes.iter().find(|(own, _)| *own == storage).map_or(0, |(_, n)| *n);
    let _ = writeln!(
        text,
        "on a device: {} as f32, {} as f16 or bf16, {} as q8_0, {} as int8, and {} of states a sequence",
        bytes(of(Storage::F32)),
        bytes(of(Storage::F16)),
        bytes(of(Storage::Q8_0)),
        bytes(of(Storage::Int8)),
        bytes(*state_bytes)
    );
    for tensor in tensors {
        let _ = writeln!(text, "  {:<44} {:<5} {:?}  {}", tensor.name, tensor.dtype, tensor.shape, tensor.file);
    }
    text
}

/// The block's kind and main settings, and those that are not the published block's.
fn described(block: &BlockConfig) -> String {
    let published: BlockConfig = match block {
        BlockConfig::Mamba2(block) => Mamba2Config::new(block.d_model).into(),
        BlockConfig::Mamba3(block) => Mamba3Config::new(block.d_model).into(),
    };
    let published = settings_of(&published);
    let settings = settings_of(block);
    let is_said = |key: &str, value: &Value| MAIN.contains(&key) || *value != published[key];
    let mut text = block.kind().to_owned();
    for (key, value) in settings.as_object().into_iter().flatten().filter(|(key, value)| is_said(key, value)) {
        // Words stand without the quotes of JSON, and whole numbers without a point.
        let _ = match (value.as_str(), value.as_f64()) {
            (Some(word), _) => write!(text, ", {key} {word}"),
            (None, Some(number)) => write!(text, ", {key} {number}"),
            (None, None) => write!(text, ", {key} {value}"),
        };
    }
    text
}

fn object(report: &Report) -> Value {
    let Report { layout, config, tensors, n_params, file_bytes, load_bytes, device_bytes, state_bytes, warnings } = report;
    let tensors = tensors
        .iter()
        .map(|one| json!({ "name": one.name, "file": one.file, "dtype": one.dtype, "shape": one.shape, "bytes": one.n_bytes }));
    let device_bytes: Map<String, Value> = device_bytes.iter().map(|(storage, n)| (storage.to_string(), json!(n))).collect();
    json!({
        "layout": layout.to_string(),
        "config": model(config),
        "n_params": n_params,
        "file_bytes": file_bytes,
        "load_bytes": load_bytes,
        "device_bytes": device_bytes,
        "state_bytes": state_bytes,
        "tensors": tensors.collect::<Vec<_>>(),
        "warnings": warnings,
    })
}

/// The model's options; those of the block stand beside the others. `norm_eps` is that of the final norm, and the block's own is
/// `block_norm_eps`.
fn model(config: &LmConfig) -> Value {
    let mut object = json!({
        "block": config.block.kind(),
        "n_layer": config.n_layer,
        "vocab_size": config.vocab_size,
        "vocab_padding": config.vocab_padding,
        "norm_eps": config.norm_eps,
        "tie_embeddings": config.tie_embeddings,
    });
    if let (Value::Object(object), Value::Object(block)) = (&mut object, settings_of(&config.block)) {
        let renamed = |key: String| if key == "norm_eps" { "block_norm_eps".to_owned() } else { key };
        object.extend(block.into_iter().map(|(key, value)| (renamed(key), value)));
    }
    object
}
