//! `monopass inspect`: what is in a checkpoint.

use crate::Outcome;
use crate::args::CheckpointArgs;
use crate::files::MappedFiles;
use crate::output::{bytes, harmless, note, print, print_line};
use crate::report::OrReport;
use miette::Result;
use monopass::LmConfig;
use monopass::blocks::BlockConfig;
use monopass::blocks::checkpoint::{Report, inspect_with};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the checkpoint, or its .safetensors or .bin file
    path: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let report = inspect_with(&MappedFiles::open(&args.path)?, &args.checkpoint.options()).or_report()?;
    report.warnings.iter().for_each(|warning| note(&format!("warning: {warning}")));
    if args.json {
        print_line(&object(&report).to_string())?;
    } else {
        print(&harmless(&lines(&report)))?;
    }
    Ok(Outcome::Good)
}

fn lines(report: &Report) -> String {
    let Report { layout, config, tensors, n_params, file_bytes, load_bytes, state_bytes, .. } = report;
    let block = &config.block;
    let mut text = format!("{layout}: {} layers, d_model {}, vocabulary {}", config.n_layer, block.d_model(), config.n_tokens());
    if config.vocab_padding > 0 {
        let _ = write!(text, " padded to {}", config.vocab_size);
    }
    let _ = writeln!(text, ", head {}", if config.tie_embeddings { "tied" } else { "of its own" });
    let _ = match block {
        BlockConfig::Mamba2(block) => writeln!(
            text,
            "block: d_state {}, d_conv {}, expand {}, headdim {}, ngroups {}",
            block.d_state, block.d_conv, block.expand, block.headdim, block.ngroups
        ),
        BlockConfig::Mamba3(block) => writeln!(
            text,
            "block: mamba3, d_state {}, expand {}, headdim {}, ngroups {}, rope_fraction {}, a_act {}, {}",
            block.d_state,
            block.expand,
            block.headdim,
            block.ngroups,
            block.rope_fraction,
            block.a_act,
            if block.is_mimo { format!("mimo_rank {}", block.mimo_rank) } else { "siso".to_owned() }
        ),
    };
    let _ = writeln!(text, "{n_params} parameters, {} in files, {} loaded as f32", bytes(*file_bytes), bytes(*load_bytes));
    let _ = writeln!(text, "{} of states a sequence", bytes(*state_bytes));
    for tensor in tensors {
        let _ = writeln!(text, "  {:<44} {:<5} {:?}  {}", tensor.name, tensor.dtype, tensor.shape, tensor.file);
    }
    text
}

fn object(report: &Report) -> Value {
    let Report { layout, config, tensors, n_params, file_bytes, load_bytes, state_bytes, warnings } = report;
    let tensors = tensors.iter().map(|one| json!({ "name": one.name, "file": one.file, "dtype": one.dtype, "shape": one.shape }));
    json!({
        "layout": layout.to_string(),
        "config": model(config),
        "n_params": n_params,
        "file_bytes": file_bytes,
        "load_bytes": load_bytes,
        "state_bytes": state_bytes,
        "tensors": tensors.collect::<Vec<_>>(),
        "warnings": warnings,
    })
}

/// The model's options; those of the block stand beside the others.
fn model(config: &LmConfig) -> Value {
    let mut object = json!({
        "block": config.block.kind(),
        "n_layer": config.n_layer,
        "vocab_size": config.vocab_size,
        "vocab_padding": config.vocab_padding,
        "norm_eps": config.norm_eps,
        "tie_embeddings": config.tie_embeddings,
        "d_model": config.block.d_model(),
    });
    let block = match &config.block {
        BlockConfig::Mamba2(block) => json!({
            "d_state": block.d_state,
            "d_conv": block.d_conv,
            "expand": block.expand,
            "headdim": block.headdim,
            "ngroups": block.ngroups,
            "dt_limit": block.dt_limit,
        }),
        BlockConfig::Mamba3(block) => json!({
            "d_state": block.d_state,
            "expand": block.expand,
            "headdim": block.headdim,
            "ngroups": block.ngroups,
            "rope_fraction": block.rope_fraction,
            "a_act": block.a_act.to_string(),
            "is_mimo": block.is_mimo,
            "mimo_rank": block.mimo_rank,
            "is_outproj_norm": block.is_outproj_norm,
        }),
    };
    if let (Value::Object(object), Value::Object(block)) = (&mut object, block) {
        object.extend(block);
    }
    object
}
