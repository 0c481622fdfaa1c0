//! What is too slow for continuous integration, or needs more than package registries. Green before a milestone is done.

use crate::ci;
use crate::driver::works;
use crate::runner::{Outcome, Runner};
use crate::swiftshader;
use std::process::Command;

/// Passes of the compiler, by the names of their switches.
const PASSES: [&str; 5] = ["canonicalize", "layout", "fuse", "schedule", "memory"];
const WASM: &str = "wasm32-unknown-unknown";

/// Runs every step; those whose tool is not installed say so.
pub(crate) fn run(runner: &mut Runner) -> Outcome {
    if runner.has_gpu {
        for pass in PASSES {
            ci::cases(runner, "gpu", &["--off", pass])?;
        }
        runner.with(&[("LP_NUM_THREADS", "4")], |runner| ci::cases(runner, "gpu", &[]))?;
        runner.with(&[("MONOPASS_SOAK", "1")], |runner| runner.cargo("soak", &["test", "--package", "monopass", "--test", "soak"]))?;
        second_driver(runner)?;
    }
    wasm(runner)?;
    licences(runner)
}

/// The cases within a browser's limits.
fn second_driver(runner: &mut Runner) -> Outcome {
    match swiftshader::fetch(runner)? {
        Some(icd) => runner.with(&[("VK_DRIVER_FILES", &icd)], |runner| ci::cases(runner, "gpu", &[])),
        None => {
            println!("\nskipped: SwiftShader comes from Debian's chromium-common, and there is no apt-get here");
            Ok(())
        }
    }
}

fn wasm(runner: &mut Runner) -> Outcome {
    let libraries = Command::new("rustc").args(["--print", "target-libdir", "--target", WASM]).output();
    let is_installed = libraries.is_ok_and(|output| std::path::Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir());
    if !is_installed {
        println!("\nskipped: no target {WASM}; `rustup target add {WASM}` adds it");
        return Ok(());
    }
    runner.cargo("wasm32", &["check", "--package", "monopass", "--lib", "--target", WASM])
}

fn licences(runner: &mut Runner) -> Outcome {
    if !works(Command::new("cargo").args(["deny", "--version"])) {
        println!("\nskipped: no cargo-deny; `cargo install --locked cargo-deny` installs it");
        return Ok(());
    }
    runner.cargo("cargo-deny", &["deny", "--all-features", "check"])
}
