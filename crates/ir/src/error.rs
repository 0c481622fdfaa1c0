//! Mistakes in a graph: while it is built, in the whole, and in its text.

use crate::graph::{Graph, Location, ValueId};
use crate::ops::TypeError;
use std::fmt;
use std::sync::Arc;

/// Where in a graph something is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpSite {
    /// Printed number of the value, if it has one.
    pub value: Option<u32>,
    /// Block path; empty at the top.
    pub scope: Arc<str>,
    /// Line of the building program.
    pub location: Option<Location>,
}

impl OpSite {
    /// The place of a value of a graph.
    #[must_use]
    pub fn of(graph: &Graph, value: ValueId) -> Self {
        let node = graph.def(value);
        Self { value: Some(graph.numbering().of(value)), scope: Arc::clone(&node.scope), location: node.location }
    }
}

impl fmt::Display for OpSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = "\n  at ";
        if let Some(value) = self.value {
            write!(f, "{sep}%{value}")?;
            sep = " ";
        }
        if !self.scope.is_empty() {
            write!(f, "{sep}in {}", self.scope)?;
            sep = " ";
        }
        if let Some(Location { file, line }) = self.location {
            write!(f, "{sep}({file}:{line})")?;
        }
        Ok(())
    }
}

/// A mistake of the program that builds a graph. The caller's fault.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BuildError {
    /// Operands or attributes break an op's typing rule.
    #[error("{}{}{}", .0.0, .0.1, .0.0.help_line())]
    Rule(Box<(TypeError, OpSite)>),
    /// The whole graph breaks a rule.
    #[error(transparent)]
    Verify(#[from] VerifyError),
}

/// All mistakes of one builder, in the order they were made.
#[derive(Clone, Debug, thiserror::Error)]
pub struct BuildErrors(pub Vec<BuildError>);

impl fmt::Display for BuildErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, &self.0)
    }
}

/// An invariant of a whole graph that does not hold. The fault of who made the graph: caller, text or a pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{site}{}", help_line(help.as_deref()))]
pub struct VerifyError {
    /// What is wrong.
    pub message: String,
    /// Where.
    pub site: Box<OpSite>,
    /// How to fix it.
    pub help: Option<String>,
}

/// All broken invariants of a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct VerifyErrors(pub Vec<VerifyError>);

impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, &self.0)
    }
}

/// A mistake in a `.ir` text. The fault of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}\n  at line {line}, column {column}\n  | {text}\n  | {caret}{}", help_line(help.as_deref()))]
pub struct ParseError {
    /// What is wrong.
    pub message: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line itself; of a long one the surroundings of the place.
    pub text: String,
    /// Spaces and a caret under the place.
    pub caret: String,
    /// How to fix it.
    pub help: Option<String>,
}

/// A mistake in what the interpreter was given. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", help_line(help.as_deref()))]
pub struct EvalError {
    /// What is wrong.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
}

/// `\n  help: …`, or nothing.
#[must_use]
pub(crate) fn help_line(help: Option<&str>) -> String {
    help.map_or_else(String::new, |help| format!("\n  help: {help}"))
}

fn list(f: &mut fmt::Formatter<'_>, errors: &[impl fmt::Display]) -> fmt::Result {
    for (i, error) in errors.iter().enumerate() {
        if i > 0 {
            f.write_str("\n")?;
        }
        write!(f, "{error}")?;
    }
    Ok(())
}
