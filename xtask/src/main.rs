//! Repository tasks: `cargo xtask ci` and its relatives.
//!
//! In reading order: [`ci`] (what continuous integration runs), [`full`] (what is too slow for it), [`runner`] (steps, their
//! environment and durations), [`driver`] (finding and installing a Vulkan driver), [`swiftshader`] (a second driver).

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod ci;
mod driver;
mod full;
mod runner;
mod swiftshader;

use runner::{Outcome, Runner};
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask TASK [FLAGS]

tasks
  ci       formatting, lints, documentation, tests, examples, benches once, reference cases
  full     ci, and what is too slow for it: the pass matrix, other drivers, soak runs, wasm32, cargo-deny
  bless    run the tests and accept every changed snapshot; look at the difference before committing
  bench    run the benches

flags of ci and full
  --install-driver   install Mesa's software Vulkan driver with apt-get where there is none (needs root)
  --require-gpu      fail instead of skipping what needs a Vulkan driver";

/// Flags of `ci` and `full`.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    install_driver: bool,
    require_gpu: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Outcome {
    let (task, rest) = args.split_first().ok_or(HELP)?;
    let mut runner = Runner::new()?;
    match task.as_str() {
        "ci" => {
            let flags = flags(rest)?;
            driver::prepare(&mut runner, flags)?;
            ci::run(&mut runner)?;
        }
        "full" => {
            let flags = flags(rest)?;
            driver::prepare(&mut runner, flags)?;
            ci::run(&mut runner)?;
            full::run(&mut runner)?;
        }
        "bless" => {
            no_flags(rest)?;
            driver::prepare(&mut runner, Flags::default())?;
            runner.set("INSTA_UPDATE", "always");
            // Every changed snapshot is wanted, not only those before the first failure.
            runner.set("INSTA_FORCE_PASS", "1");
            runner.cargo("tests", &["test", "--workspace", "--no-fail-fast"])?;
        }
        "bench" => {
            no_flags(rest)?;
            driver::prepare(&mut runner, Flags::default())?;
            runner.cargo("benches", &["bench", "--package", "monopass", "--benches"])?;
        }
        "help" | "--help" | "-h" => println!("{HELP}"),
        other => return Err(format!("there is no task `{other}`\n\n{HELP}").into()),
    }
    runner.summary();
    Ok(())
}

fn flags(args: &[String]) -> Outcome<Flags> {
    let mut flags = Flags::default();
    for arg in args {
        match arg.as_str() {
            "--install-driver" => flags.install_driver = true,
            "--require-gpu" => flags.require_gpu = true,
            other => return Err(format!("there is no flag `{other}`\n\n{HELP}").into()),
        }
    }
    Ok(flags)
}

fn no_flags(args: &[String]) -> Outcome {
    args.first().map_or(Ok(()), |arg| Err(format!("this task has no flags, but got `{arg}`").into()))
}
