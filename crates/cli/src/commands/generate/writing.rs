//! Tokens as text on stdout, up to where the text ends.

use super::Args;
use crate::files::MappedFiles;
use crate::output::print;
use crate::report::Failure;
use crate::vocabulary::{TextStream, Vocabulary};
use miette::Result;
use monopass::text::StopTexts;
use std::io::IsTerminal;

/// What ends a text.
#[derive(Debug)]
pub(crate) struct Ends {
    texts: Vec<String>,
    tokens: Vec<u32>,
}

impl Ends {
    pub(crate) fn new(vocabulary: &Vocabulary, files: &MappedFiles, args: &Args, n_tokens: usize) -> Result<Self> {
        if args.stop.iter().any(String::is_empty) {
            return Err(Failure::new("--stop is empty").help("give a text of at least one character").into());
        }
        if let Some(id) = args.stop_id.iter().find(|&&id| usize::try_from(id).is_ok_and(|id| id >= n_tokens)) {
            let what = format!("--stop-id {id} is not below the vocabulary of {n_tokens}");
            return Err(Failure::new(what).help("give a token of the model").into());
        }
        let mut tokens = args.stop_id.clone();
        if !args.ignore_eos {
            tokens.extend(vocabulary.end_tokens(files)?);
        }
        Ok(Self { texts: args.stop.clone(), tokens })
    }
}

/// A text as it is written.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    ends: &'a Ends,
    stream: TextStream<'a>,
    stops: StopTexts,
    text: String,
    is_streamed: bool,
    is_terminal: bool,
    why: &'static str,
}

impl<'a> Writing<'a> {
    /// Streamed texts go to stdout as they come.
    pub(crate) fn new(stream: TextStream<'a>, ends: &'a Ends, is_streamed: bool) -> Self {
        Self {
            ends,
            stream,
            stops: StopTexts::new(&ends.texts),
            text: String::new(),
            is_streamed,
            is_terminal: std::io::stdout().is_terminal(),
            why: "length",
        }
    }

    /// Takes a token; false if the text is over.
    pub(crate) fn take(&mut self, token: u32) -> Result<bool> {
        if self.ends.tokens.contains(&token) {
            self.why = "end";
            return Ok(false);
        }
        let text = self.stream.push(token)?;
        self.give(&text)?;
        if self.stops.is_over() {
            self.why = "stop";
        }
        Ok(!self.stops.is_over())
    }

    /// What was held back, and the end of the line. Gives the text, and why it ended.
    pub(crate) fn finish(mut self, is_interrupted: bool) -> Result<(String, &'static str)> {
        let rest = self.stream.finish()?;
        self.give(&rest)?;
        let held = self.stops.finish();
        self.write(&held)?;
        if self.is_streamed {
            print("\n")?;
        }
        let why = if is_interrupted && self.why == "length" { "interrupted" } else { self.why };
        Ok((self.text, why))
    }

    fn give(&mut self, text: &str) -> Result<()> {
        let certain = self.stops.push(text);
        self.write(&certain)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.text.push_str(text);
        if !self.is_streamed || text.is_empty() {
            return Ok(());
        }
        print(&if self.is_terminal { without_controls(text) } else { text.to_owned() })
    }
}

/// A text as stdout may have it.
pub(crate) fn for_terminal(text: &str) -> String {
    if std::io::stdout().is_terminal() { without_controls(text) } else { text.to_owned() }
}

/// Without the characters by which a model could take over a terminal.
fn without_controls(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(without_controls("é\n\t\u{1b}[2J"), "é\n\t\u{fffd}[2J");
    }

    #[test]
    fn a_text_ends_at_a_token_or_before_a_text() {
        let vocabulary = Vocabulary::Bytes;
        let ends =
            |texts: &[&str], tokens: &[u32]| Ends { texts: texts.iter().map(|&text| text.to_owned()).collect(), tokens: tokens.to_vec() };
        let written = |ends: &Ends, text: &str| {
            let mut writing = Writing::new(vocabulary.stream_after(&[]), ends, false);
            let n_taken = text.bytes().take_while(|&byte| writing.take(byte.into()).unwrap()).count();
            (n_taken, writing.finish(false).unwrap())
        };
        assert_eq!(written(&ends(&[], &[]), "abc"), (3, ("abc".to_owned(), "length")));
        assert_eq!(written(&ends(&["cd"], &[]), "abcde"), (3, ("ab".to_owned(), "stop")));
        assert_eq!(written(&ends(&["cd"], &[]), "abc"), (3, ("abc".to_owned(), "length")));
        assert_eq!(written(&ends(&["x"], &[98]), "abc"), (1, ("a".to_owned(), "end")));
    }
}
