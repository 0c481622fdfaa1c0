//! What a scan over a few tokens needs is computed by the scan's own kernel.
//!
//! When one token is decoded every kernel is short, so each one less counts: sums over short rows and running sums over the few
//! tokens are done element by element where they are read, and what is heavy is computed once a workgroup.

use super::{is_heavy, is_inline_op, is_step_scan};
use crate::kernels::row_stats;
use crate::kernels::scan::STEP_TOKENS;
use crate::kernels::scan_step::Staged;
use indexmap::IndexSet;
use monopass_ir::graph::Node;
use monopass_ir::op::Class;
use monopass_ir::{DType, Graph, NodeId, Op, ValueId};

/// Elements of a row that is summed where its sum is read.
const MAX_ROW: usize = 512;
/// Elements that a workgroup stages of one value.
const MAX_STAGED: usize = 256;

/// What scans over a few tokens are made from.
#[derive(Debug, Default)]
pub(super) struct FewTokens {
    /// Values from which an operand of such a scan is computed inline.
    pub(super) feeds: IndexSet<ValueId>,
    /// Sums among them, which are not anchors.
    pub(super) serial: IndexSet<NodeId>,
}

/// The values and sums behind all scans over a few tokens; sums for which `is_apart` holds stay anchors.
pub(super) fn find(graph: &Graph, is_apart: &dyn Fn(ValueId) -> bool) -> FewTokens {
    let mut found = FewTokens::default();
    let stored = behind_products(graph);
    let scans = graph.nodes().filter(|&(id, _)| is_step_scan(graph, id));
    let mut open: Vec<ValueId> = scans.flat_map(|(_, node)| node.present_operands()).collect();
    while let Some(value) = open.pop() {
        let id = graph.value(value).node;
        let node = graph.node(id);
        let Some(op) = node.op() else { continue };
        let is_serial = is_short_sum(graph, node, op) && !is_apart(value);
        if (is_serial || is_inline_op(op)) && !stored.contains(&value) && found.feeds.insert(value) {
            if is_serial {
                found.serial.insert(id);
            }
            open.extend(node.present_operands());
        }
    }
    found
}

/// What is made from a product's result element by element, which the product's own kernel does.
fn behind_products(graph: &Graph) -> IndexSet<ValueId> {
    let mut found = IndexSet::new();
    for (_, node) in graph.nodes() {
        let Some(op) = node.op() else { continue };
        let keeps_order = op.class() == Class::Elementwise || matches!(op, Op::Reshape { .. });
        let is_one = |&result: &ValueId| {
            let is_own = |x: ValueId| found.contains(&x) && graph.ty(x).n_elems() == graph.ty(result).n_elems();
            op.class() == Class::Contraction || keeps_order && node.present_operands().any(is_own)
        };
        let ones: Vec<ValueId> = node.results.iter().copied().filter(is_one).collect();
        found.extend(ones);
    }
    found
}

/// Whether a sum goes over so little that each reader of its result can do it.
fn is_short_sum(graph: &Graph, node: &Node, op: &Op) -> bool {
    let Some(x) = node.operands.first().copied().flatten().map(|x| graph.ty(x)) else { return false };
    if let Op::Cumsum { axis, .. } = op {
        return x.shape.get(*axis).is_some_and(|&len| len <= STEP_TOKENS);
    }
    let (Op::Sum { axes, .. } | Op::Mean { axes, .. }) = op else { return false };
    let is_last = axes.as_slice() == [x.rank().saturating_sub(1)];
    is_last && x.dtype == DType::F32 && x.shape.last().is_some_and(|&len| (1..=MAX_ROW).contains(&len))
}

/// What the kernel of a scan computes once a token and workgroup before k and q: statistics of the token's rows, and heavy
/// values of its head, in an order in which they can be computed. `is_inline` says what is not stored.
pub(super) fn staged(graph: &Graph, scan: &Node, is_inline: &dyn Fn(ValueId) -> bool) -> Vec<Staged> {
    let operand = |idx: usize| scan.operands.get(idx).copied().flatten();
    let (Some(log_decay), Some(k), Some(q)) = (operand(0), operand(2), operand(3)) else { return Vec::new() };
    let heads = &graph.ty(log_decay).shape;
    let tokens = heads.get(..2).unwrap_or_default();
    let (mut rows, mut values) = (Vec::new(), Vec::new());
    let mut seen = IndexSet::new();
    let mut open = vec![q, k];
    while let Some(value) = open.pop() {
        if !is_inline(value) || !seen.insert(value) {
            continue;
        }
        let (node, ty) = (graph.def(value), graph.ty(value));
        let Some(op) = node.op() else { continue };
        if matches!(op, Op::Sum { keepdims: true, .. } | Op::Mean { keepdims: true, .. }) && row_stats::fits(&ty.shape, tokens) {
            rows.push(Staged::Row(value));
        } else if op.class() == Class::Elementwise && ty.dtype == DType::F32 && is_worth_staging(graph, value, heads, is_inline) {
            values.push(Staged::Head(value));
        } else if keeps_tokens(op) {
            open.extend(node.present_operands().filter(|&operand| graph.ty(operand).shape.starts_with(tokens)));
        }
    }
    rows.extend(values);
    rows
}

/// Whether a result that has the axes of tokens is made from the same tokens of those operands that have them.
fn keeps_tokens(op: &Op) -> bool {
    match op.class() {
        Class::Elementwise => true,
        Class::Reduction => !matches!(op, Op::Argmax { .. }),
        Class::Movement => {
            let moves = matches!(op, Op::Pad { .. })
                || matches!(op, Op::Permute { axes } if !axes.starts_with(&[0, 1]))
                || matches!(op, Op::Concat { axis } if *axis < 2);
            !moves
        }
        Class::Prefix | Class::Contraction | Class::Conv | Class::Scan | Class::ScanAdjoint | Class::Choice | Class::Index => false,
    }
}

/// Whether a value is a short row for each token and head that is heavy itself, or one number with something heavy behind it.
fn is_worth_staging(graph: &Graph, value: ValueId, heads: &[usize], is_inline: &dyn Fn(ValueId) -> bool) -> bool {
    let Some(rest) = graph.ty(value).shape.strip_prefix(heads) else { return false };
    let n_elems: usize = rest.iter().product();
    let is_heavy_itself = graph.def(value).op().is_some_and(is_heavy);
    n_elems == 1 && has_heavy(graph, value, is_inline) || (1..=MAX_STAGED).contains(&n_elems) && is_heavy_itself
}

/// Whether computing a value inline meets a heavy op.
fn has_heavy(graph: &Graph, value: ValueId, is_inline: &dyn Fn(ValueId) -> bool) -> bool {
    let mut seen = IndexSet::new();
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        let Some(op) = graph.def(value).op().filter(|_| is_inline(value)) else { continue };
        if is_heavy(op) {
            return true;
        }
        open.extend(graph.def(value).present_operands().filter(|&operand| seen.insert(operand)));
    }
    false
}
