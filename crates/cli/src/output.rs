//! Results on stdout, messages on stderr, progress where somebody looks.

use indicatif::{ProgressBar, ProgressStyle};
use miette::{Diagnostic, Report, Result};
use monopass::runtime::BuildProgress;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

/// Results could not be written.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("standard output cannot be written")]
struct StdoutError(#[source] io::Error);

/// Writes to stdout; a reader that went away is an error that [`is_broken_pipe`] knows.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| StdoutError(error).into())
}

/// [`print()`] with an end of line.
pub(crate) fn print_line(line: &str) -> Result<()> {
    print(&format!("{line}\n"))
}

/// A line for the person at the terminal. If stderr is gone, so is the person.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", harmless(line));
}

/// An error as miette draws it, with its colours.
pub(crate) fn note_report(report: &Report) {
    let _ = writeln!(io::stderr().lock(), "{report:?}");
}

/// With control characters spelled out, as names from files could take over a terminal by them.
pub(crate) fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// `1 case`, `2 cases`.
pub(crate) fn counted(n: impl Into<u64>, noun: &str) -> String {
    let n = n.into();
    if n == 1 {
        format!("1 {noun}")
    } else if noun.ends_with("ss") || noun.ends_with("ch") {
        format!("{n} {noun}es")
    } else {
        format!("{n} {noun}s")
    }
}

pub(crate) fn is_broken_pipe(report: &Report) -> bool {
    report.chain().filter_map(|error| error.downcast_ref::<io::Error>()).any(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// A spinner with a message, on a terminal only.
pub(crate) fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A bar that counts, on a terminal only.
pub(crate) fn bar(message: &str, n_total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(n_total).with_style(style).with_message(message.to_owned())
}

/// A bar of bytes, on a terminal only.
pub(crate) fn bytes_bar(message: &str, n_total: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(n_total).with_style(style).with_message(message.to_owned())
}

/// Shows how many kernels the driver compiled.
pub(crate) fn kernels_bar() -> (ProgressBar, impl Fn(BuildProgress) + Sync) {
    let progress = bar("compiling kernels", 0);
    let told = progress.clone();
    (progress, move |state: BuildProgress| {
        told.set_length(state.n_total as u64);
        told.set_position(state.n_done as u64);
    })
}

/// `12 bytes`, `3.4 KiB`, `5.6 GiB`.
pub(crate) fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} bytes");
    }
    indicatif::BinaryBytes(n).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_no_plural() {
        assert_eq!([counted(1u64, "run"), counted(0u64, "run"), counted(2u64, "compute pass")], ["1 run", "0 runs", "2 compute passes"]);
    }

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(harmless("é\n\u{1b}[2J"), "é\n\\u{1b}[2J");
    }
}
