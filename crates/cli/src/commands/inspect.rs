//! `monopass inspect`: what is in a checkpoint.

use crate::Outcome;
use crate::files::MappedFiles;
use crate::output::{bytes, harmless, note, print, print_line};
use crate::report::OrReport;
use miette::Result;
use monopass::blocks::checkpoint::{Report, inspect};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the checkpoint, or its .safetensors file
    path: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let report = inspect(&MappedFiles::open(&args.path)?).or_report()?;
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
    let mut text = format!("{layout}: {} layers, d_model {}, vocabulary {}", config.n_layer, block.d_model, config.vocab_size);
    let _ = writeln!(text, ", head {}", if config.tie_embeddings { "tied" } else { "of its own" });
    let _ = writeln!(
        text,
        "block: d_state {}, d_conv {}, expand {}, headdim {}, ngroups {}",
        block.d_state, block.d_conv, block.expand, block.headdim, block.ngroups
    );
    let _ = writeln!(text, "{n_params} parameters, {} in files, {} loaded as f32", bytes(*file_bytes), bytes(*load_bytes));
    let _ = writeln!(text, "{} of states a sequence", bytes(*state_bytes));
    for tensor in tensors {
        let _ = writeln!(text, "  {:<44} {:<5} {:?}  {}", tensor.name, tensor.dtype, tensor.shape, tensor.file);
    }
    text
}

fn object(report: &Report) -> Value {
    let Report { layout, config, tensors, n_params, file_bytes, load_bytes, state_bytes, warnings } = report;
    let block = &config.block;
    let tensors = tensors.iter().map(|one| json!({ "name": one.name, "file": one.file, "dtype": one.dtype, "shape": one.shape }));
    json!({
        "layout": layout.to_string(),
        "config": {
            "n_layer": config.n_layer,
            "vocab_size": config.vocab_size,
            "norm_eps": config.norm_eps,
            "tie_embeddings": config.tie_embeddings,
            "d_model": block.d_model,
            "d_state": block.d_state,
            "d_conv": block.d_conv,
            "expand": block.expand,
            "headdim": block.headdim,
            "ngroups": block.ngroups,
            "dt_limit": block.dt_limit,
        },
        "n_params": n_params,
        "file_bytes": file_bytes,
        "load_bytes": load_bytes,
        "state_bytes": state_bytes,
        "tensors": tensors.collect::<Vec<_>>(),
        "warnings": warnings,
    })
}
