//! Guards that the texts of the compiler stay as they are: for each case the graph after each pass, plan and kernels; for the
//! Mamba-2 block its plans at several profiles.
//!
//! A snapshot says unchanged and not right: `differential` runs each case against the interpreter. After a wanted change
//! `INSTA_UPDATE=always cargo test --test snapshots` writes them anew; the difference is then to be read.

mod common;

use common::{Outcome, cases, profile};
use monopass::snapshot;
use monopass_blocks::{Io, Mamba2Config, mamba2};
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

#[test]
fn of_the_block() -> Outcome {
    let config = Mamba2Config { headdim: 8, d_state: 12, ngroups: 2, ..Mamba2Config::new(24) };
    for (mode, len) in [("forward", 70), ("step", 1)] {
        let graph = mamba2::graph(&config, 3, len, Io::Stateful)?;
        for target in ["nvidia", "webgpu-default", "lavapipe"] {
            check(&format!("mamba2_{mode}_{target}"), None, &snapshot::plan(&graph, target)?);
        }
        check(&format!("mamba2_{mode}_kernels"), None, &snapshot::wgsl(&graph, "webgpu-default")?);
    }
    Ok(())
}
