//! Errors as reports: what, where, and how to fix it.

use crate::output::harmless;
use miette::{Diagnostic, LabeledSpan, MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};
use monopass::ir::error::ParseError;
use std::error::Error;
use std::fmt::Display;
use std::path::Path;

/// A message, its help, its cause, and the place in a text.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    message: String,
    help: Option<String>,
    #[source]
    cause: Option<Box<Self>>,
    place: Option<Box<Place>>,
}

/// A part of a line of a file, short enough to be drawn.
#[derive(Debug)]
struct Place {
    file: String,
    /// From 1.
    line: usize,
    /// From 1.
    column: usize,
    text: String,
    label: LabeledSpan,
}

impl SourceCode for Place {
    fn read_span<'a>(&'a self, _: &SourceSpan, _: usize, _: usize) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let all = SourceSpan::new(0.into(), self.text.len());
        let (line, column) = (self.line.saturating_sub(1), self.column.saturating_sub(1));
        Ok(Box::new(MietteSpanContents::new_named(self.file.clone(), self.text.as_bytes(), all, line, column, 1)))
    }
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: harmless(&message.into()), help: None, cause: None, place: None }
    }

    #[must_use]
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The error of a library, whose messages carry their help as a last line.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        let text = harmless(&error.to_string());
        // Several mistakes carry several helps, each of which belongs to the lines before it.
        let (message, help) = match text.split_once("\n  help: ") {
            Some((message, help)) if !help.contains("\n") => (message.to_owned(), Some(help.to_owned())),
            _ => (text, None),
        };
        let mut cause = error.source().map(|source| Box::new(Self::of(source)));
        // The report shows the help of its head only.
        let help = help.or_else(|| cause.as_mut().and_then(|cause| cause.help.take()));
        Self { message, help, cause, place: None }
    }

    /// A mistake in a text, drawn at its place: the error's part of the line alone, as columns of a drawing are counted
    /// in 16 bits.
    pub(crate) fn parse(file: &str, error: &ParseError) -> Self {
        let ParseError { message, line, column, text, caret, help } = error;
        let offset = text.char_indices().nth(caret.chars().count().saturating_sub(1)).map_or(text.len(), |(at, _)| at);
        let label = LabeledSpan::new_primary_with_span(Some("here".to_owned()), SourceSpan::new(offset.into(), 0));
        Self {
            message: harmless(&format!("{message}\n  at line {line}, column {column} of {file}")),
            help: help.clone(),
            cause: None,
            place: Some(Box::new(Place { file: file.to_owned(), line: *line, column: *column, text: text.clone(), label })),
        }
    }
}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| place.as_ref() as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.place.as_ref().map(|place| Box::new(std::iter::once(place.label.clone())) as Box<dyn Iterator<Item = LabeledSpan>>)
    }
}

/// A file that could not be read or written.
pub(crate) fn io_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display())).help("check the path, and that it may be read or written")
}

/// Errors of the libraries as reports.
pub(crate) trait OrReport<T> {
    fn or_report(self) -> miette::Result<T>;
}

impl<T, E: Error + 'static> OrReport<T> for Result<T, E> {
    fn or_report(self) -> miette::Result<T> {
        self.map_err(|error| Failure::of(&error).into())
    }
}
