//! What continuous integration runs, from the fastest answer to the slowest.
//!
//! Dependencies are compiled twice: once as metadata, which clippy and rustdoc share, and once as code, which tests, doc
//! tests, examples, benches and the binary share, because they are built with the same features and the same profile.

use crate::driver::works;
use crate::runner::{Outcome, Runner};
use std::path::Path;
use std::process::Command;

/// Reference vectors.
pub(crate) const GOLDEN: &str = "tests/golden";

/// Runs every step.
pub(crate) fn run(runner: &mut Runner) -> Outcome {
    components(runner)?;
    runner.cargo("formatting", &["fmt", "--all", "--check"])?;
    runner.cargo("clippy", &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
    runner.with(&[("RUSTDOCFLAGS", "--deny warnings")], |runner| runner.cargo("documentation", &["doc", "--workspace", "--no-deps"]))?;
    // A snapshot that differs is a failure, and leaves no file behind.
    runner.set("INSTA_UPDATE", "no");
    runner.cargo("tests", &["test", "--workspace"])?;
    runner.cargo("benches, once", &["test", "--workspace", "--bench", "*"])?;
    runner.cargo("programs", &["build", "--workspace", "--bins", "--examples"])?;
    for example in examples(runner.root())? {
        runner.built(&format!("example {example}"), &format!("examples/{example}"), &[])?;
    }
    cases(runner, "cpu", &[])?;
    if runner.has_gpu {
        cases(runner, "gpu", &[])?;
    }
    Ok(())
}

/// A minimal toolchain lacks rustfmt and clippy.
fn components(runner: &mut Runner) -> Outcome {
    let lacks = |tool: &str| !works(Command::new("cargo").args([tool, "--version"]));
    if !lacks("fmt") && !lacks("clippy") {
        return Ok(());
    }
    if !works(Command::new("rustup").arg("--version")) {
        return Err("rustfmt or clippy is missing, and there is no rustup to add it\n  help: install both by the system's own means".into());
    }
    runner.step("toolchain", Command::new("rustup").args(["component", "add", "rustfmt", "clippy"]))
}

/// The reference vectors on an executor.
pub(crate) fn cases(runner: &mut Runner, executor: &str, more: &[&str]) -> Outcome {
    let args = ["cases", GOLDEN, "--grads", "--executor", executor];
    let name = [&["cases", "on", executor], more].concat().join(" ");
    runner.built(&name, "monopass", &[&args, more].concat())
}

/// Programs in `examples/`, in order of name.
fn examples(root: &Path) -> Outcome<Vec<String>> {
    let dir = root.join("examples");
    let entries = std::fs::read_dir(&dir).map_err(|error| format!("cannot list {}: {error}", dir.display()))?;
    let paths = entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ext| ext == "rs"));
    let mut names: Vec<String> = paths.filter_map(|path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}
