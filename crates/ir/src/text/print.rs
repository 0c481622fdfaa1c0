//! Prints a graph. Never fails: what a damaged graph lacks prints as `?`, which no text may contain.

use super::{VERSION, lex};
use crate::graph::{Graph, Named, Node, NodeKind, Numbering, ValueId};
use crate::op::Op;
use crate::types::{DType, TensorType};
use std::fmt::{self, Write};

/// The whole file of one graph.
#[must_use]
pub fn print(graph: &Graph) -> String {
    format!("ir {VERSION}\n{graph}")
}

/// The whole file of several graphs, an empty line between two.
#[must_use]
pub fn print_all(graphs: &[Graph]) -> String {
    let graphs: Vec<String> = graphs.iter().map(ToString::to_string).collect();
    format!("ir {VERSION}\n{}", graphs.join("\n"))
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.numbering();
        writeln!(f, "graph @{} {{", self.name)?;
        for (_, node) in self.nodes() {
            write_node(f, self, &numbers, node)?;
        }
        write_named(f, &numbers, "output", &self.outputs)?;
        write_named(f, &numbers, "update", &self.updates)?;
        f.write_str("}\n")
    }
}

fn write_node(f: &mut fmt::Formatter<'_>, graph: &Graph, numbers: &Numbering, node: &Node) -> fmt::Result {
    f.write_str("  ")?;
    separated(f, &node.results, |f, &value| write_value(f, numbers, value))?;
    f.write_str(" = ")?;
    match &node.kind {
        NodeKind::Input { name, dynamic } | NodeKind::State { name, dynamic } => {
            write!(f, "{} ", node.mnemonic())?;
            write_string(f, name)?;
            if !dynamic.is_empty() {
                write!(f, " {{dynamic = {dynamic:?}}}")?;
            }
        }
        NodeKind::Param { name } => {
            f.write_str("param ")?;
            write_string(f, name)?;
        }
        NodeKind::Const(number) => write_const(f, *number, node.results.first().and_then(|&value| graph.get_value(value)).map(|v| &v.ty))?,
        NodeKind::Op(op) => write_op(f, numbers, op, node)?,
    }
    f.write_str(" : ")?;
    separated(f, &node.results, |f, &value| match graph.get_value(value) {
        Some(value) => write!(f, "{}", value.ty),
        None => f.write_char('?'),
    })?;
    if !node.scope.is_empty() {
        f.write_str(" @ ")?;
        write_scope(f, &node.scope)?;
    }
    f.write_char('\n')
}

fn write_op(f: &mut fmt::Formatter<'_>, numbers: &Numbering, op: &Op, node: &Node) -> fmt::Result {
    f.write_str(op.mnemonic())?;
    if !node.operands.is_empty() {
        f.write_char(' ')?;
    }
    separated(f, &node.operands, |f, operand| match operand {
        Some(value) => write_value(f, numbers, *value),
        None => f.write_char('_'),
    })?;
    let attrs: Vec<_> = op.attrs().into_iter().filter(|(_, _, is_default)| !is_default).collect();
    if attrs.is_empty() {
        return Ok(());
    }
    f.write_str(" {")?;
    separated(f, &attrs, |f, (name, literal, _)| write!(f, "{name} = {literal}"))?;
    f.write_char('}')
}

/// Whole numbers of integer types print without a point; all others as the shortest text that reads back the same.
fn write_const(f: &mut fmt::Formatter<'_>, number: f64, ty: Option<&TensorType>) -> fmt::Result {
    const EXACT_LIMIT: f64 = 9.0e15;
    let is_whole = number.trunc() == number && number.abs() < EXACT_LIMIT && !(number == 0.0 && number.is_sign_negative());
    let is_int_type = ty.is_some_and(|ty| matches!(ty.dtype, DType::I32 | DType::U32 | DType::Bool));
    if is_whole && is_int_type { write!(f, "const {number}") } else { write!(f, "const {number:?}") }
}

fn write_named(f: &mut fmt::Formatter<'_>, numbers: &Numbering, keyword: &str, list: &[Named]) -> fmt::Result {
    for Named { name, value } in list {
        write!(f, "  {keyword} ")?;
        write_string(f, name)?;
        f.write_str(" = ")?;
        write_value(f, numbers, *value)?;
        f.write_char('\n')?;
    }
    Ok(())
}

fn write_value(f: &mut fmt::Formatter<'_>, numbers: &Numbering, value: ValueId) -> fmt::Result {
    match numbers.of(value) {
        u32::MAX => f.write_str("%?"),
        number => write!(f, "%{number}"),
    }
}

fn write_scope(f: &mut fmt::Formatter<'_>, scope: &str) -> fmt::Result {
    if scope.chars().all(lex::is_scope_char) && !scope.contains("//") { f.write_str(scope) } else { write_string(f, scope) }
}

/// A name in quotes; quotes, backslashes and control characters escaped.
fn write_string(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in name.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

fn separated<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    mut write_item: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        write_item(f, item)?;
    }
    Ok(())
}
