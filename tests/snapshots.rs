//! Guards that the texts of the compiler stay as they are: for each case the graph after each pass, plan and kernels; for blocks
//! of every kind their graph, their plans at several profiles, and their kernels.
//!
//! A snapshot says unchanged and not right: `differential` runs each case against the interpreter. After a wanted change
//! `INSTA_UPDATE=always cargo test --test snapshots` writes them anew; the difference is then to be read.

mod common;

use common::{Outcome, cases, profile};
use monopass::snapshot;
use monopass_blocks::{BlockConfig, Io, Mamba2Config, Mamba3Config, block};
use monopass_ir::Graph;
use monopass_lower::dump::Dumps;
use monopass_lower::{CompileOptions, Compiler};

/// Asserts `text` under `name` in `tests/snapshots`; `input` is the file that it is made from, if it is.
fn check(name: &str, input: Option<&str>, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    if let Some(input) = input {
        settings.set_input_file(input);
    }
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// Every text of the compiler on the way from a graph to its plan and kernels, in order.
fn stages(graph: &Graph) -> Outcome<String> {
    let mut dumps = Dumps::default();
    Compiler::new(profile("webgpu-default")?).compile(graph, &CompileOptions::default(), &mut dumps)?;
    Ok(dumps.0.iter().map(|(name, text)| format!("==== {name}\n{}\n", text.trim_end())).collect())
}

#[test]
fn of_cases() -> Outcome {
    for (name, graph) in cases()? {
        check(&format!("case_{name}"), Some(&format!("tests/cases/{name}.ir")), &stages(&graph)?);
    }
    Ok(())
}

/// Small blocks with odd sizes, and what their snapshots are called.
fn blocks() -> Vec<(&'static str, BlockConfig)> {
    let mamba2 = Mamba2Config { headdim: 8, d_state: 12, ngroups: 2, ..Mamba2Config::new(24) };
    let cmamba = Mamba2Config { headdim: 4, d_state: 3, ngroups: 2, ..Mamba2Config::cmamba(12) };
    let mamba3 = Mamba3Config { headdim: 4, d_state: 6, ngroups: 2, ..Mamba3Config::new(12) };
    vec![
        ("mamba2", mamba2.into()),
        ("cmamba_mimo", Mamba2Config { mimo_rank: 2, ..cmamba.clone() }.into()),
        ("cmamba", cmamba.into()),
        ("mamba3_mimo", Mamba3Config { is_mimo: true, mimo_rank: 3, is_outproj_norm: true, ..mamba3.clone() }.into()),
        ("mamba3", mamba3.into()),
    ]
}

#[test]
fn of_blocks() -> Outcome {
    for (name, config) in blocks() {
        for (mode, len) in [("forward", 70), ("step", 1)] {
            let graph = block::graph(&config, 3, len, Io::Stateful)?;
            check(&format!("{name}_{mode}_ir"), None, &snapshot::ir(&graph));
            for target in ["nvidia", "webgpu-default", "lavapipe"] {
                check(&format!("{name}_{mode}_{target}"), None, &snapshot::plan(&graph, target)?);
            }
            check(&format!("{name}_{mode}_kernels"), None, &snapshot::wgsl(&graph, "webgpu-default")?);
        }
    }
    Ok(())
}
