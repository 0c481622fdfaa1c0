//! `monopass devices`: adapters, and what would be used of them.

use crate::Outcome;
use crate::output::{bytes, note, print, print_line};
use miette::Result;
use monopass::Target;
use monopass::runtime::{AdapterReport, blocking};
use serde_json::{Value, json};
use std::fmt::Write;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One JSON object an adapter
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let adapters = blocking::adapters();
    if adapters.is_empty() {
        note("no graphics adapter: everything runs on the CPU executor");
    }
    for adapter in &adapters {
        if args.json { print_line(&object(adapter).to_string())? } else { print(&lines(adapter))? }
    }
    Ok(Outcome::Good)
}

/// Optional paths of the compiler, and whether this adapter would take them.
fn paths(target: &Target) -> [(&'static str, bool); 3] {
    [("f16 arithmetic", target.has_f16), ("subgroups", target.subgroup_size.is_some()), ("tiles without workgroup memory", target.is_cpu)]
}

fn lines(adapter: &AdapterReport) -> String {
    let AdapterReport { name, backend, device_type, driver, features, subgroup_sizes, cooperative, target } = adapter;
    let used: Vec<&str> = paths(target).into_iter().filter(|(_, is_used)| *is_used).map(|(path, _)| path).collect();
    let list = |words: &[&str]| if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    let mut text = format!("{name} ({backend}, {device_type})\n");
    let mut row = |key: &str, value: String| {
        let _ = writeln!(text, "  {key:<22}{value}");
    };
    row("driver", if driver.is_empty() { "unknown".to_owned() } else { driver.clone() });
    row("features", list(features));
    row("paths used", list(&used));
    row("subgroup sizes", format!("{} to {}", subgroup_sizes[0], subgroup_sizes[1]));
    row("cooperative matrices", if cooperative.is_empty() { "none".to_owned() } else { cooperative.join(", ") });
    row("storage buffers", target.max_storage_buffers.to_string());
    row("largest binding", bytes(target.max_binding_bytes));
    row("largest buffer", bytes(target.max_buffer_bytes));
    row("workgroup memory", bytes(target.max_workgroup_bytes));
    row("workgroup", format!("{} invocations, at most {:?}", target.max_invocations, target.max_workgroup_size));
    row("workgroups", format!("{} a dimension", target.max_workgroups));
    text
}

fn object(adapter: &AdapterReport) -> Value {
    let AdapterReport { name, backend, device_type, driver, features, subgroup_sizes, cooperative, target } = adapter;
    json!({
        "name": name,
        "backend": backend,
        "device_type": device_type,
        "driver": driver,
        "features": features,
        "paths": paths(target).into_iter().filter(|(_, is_used)| *is_used).map(|(path, _)| path).collect::<Vec<_>>(),
        "subgroup_sizes": subgroup_sizes,
        "cooperative": cooperative,
        "limits": {
            "max_storage_buffers": target.max_storage_buffers,
            "max_binding_bytes": target.max_binding_bytes,
            "max_buffer_bytes": target.max_buffer_bytes,
            "max_workgroup_bytes": target.max_workgroup_bytes,
            "max_invocations": target.max_invocations,
            "max_workgroup_size": target.max_workgroup_size,
            "max_workgroups": target.max_workgroups,
            "storage_align_bytes": target.storage_align_bytes,
            "uniform_align_bytes": target.uniform_align_bytes,
        },
    })
}
