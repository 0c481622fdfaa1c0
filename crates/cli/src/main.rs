//! The command line of Monopass: every stage of the compiler on files, blocks and checkpoints.
//!
//! Results go to stdout, messages to stderr. The exit code is 0 if all went well, 1 if something is wrong with what was
//! given or a check failed, 2 for a command line that is none, and 141 if the reader of stdout went away.
//!
//! One file a subcommand, under `commands`; what they share: `args` (groups of options), `engine` (the executor),
//! `input` (graphs and data), `memory` (what they need), `files` (checkpoints), `dump` (texts of every stage), `output` and `report`.

mod args;
mod commands;
mod dump;
mod engine;
mod files;
mod input;
mod interrupt;
mod memory;
mod model;
mod output;
mod report;
mod vocabulary;

use clap::Parser;
use commands::Command;
use std::process::ExitCode;

/// A compute-graph compiler and runtime for state-space models: one submit a pass.
#[derive(Debug, Parser)]
#[command(name = "monopass", version, about, arg_required_else_help = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What a command that ran to its end has to say about what it was asked to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    Bad,
}

/// Exit code of a process whose reader went away, as shells report it.
const BROKEN_PIPE: u8 = 141;

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Err(report) if output::is_broken_pipe(&report) => ExitCode::from(BROKEN_PIPE),
        Err(report) => {
            output::note_report(&report);
            ExitCode::FAILURE
        }
    }
}
