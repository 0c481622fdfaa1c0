//! Common subexpressions, dead nodes, and identities that never make a graph worse.
//!
//! - **Needs** a verified graph.
//! - **Ensures** no two nodes compute the same, no node is unused, and none of the rules below applies.
//! - **Order**: first, so that later passes see each computation once.

use super::rewrite::Rewriter;
use indexmap::IndexMap;
use monopass_ir::graph::{Node, NodeKind};
use monopass_ir::{Graph, Op, ValueId, compact};

/// A rewrite: name, and what stands for the node's result where it applies.
type Rule = (&'static str, fn(&mut Rewriter<'_>, &Node) -> Option<ValueId>);

/// Every rule, tried in order.
const RULES: &[Rule] = &[
    ("a reshape to the same shape is its operand", same_shape),
    ("a reshape of a reshape is one reshape", reshape_of_reshape),
    ("a permute that moves nothing is its operand", identity_permute),
    ("a permute of a permute is one permute", permute_of_permute),
    ("a slice of everything is its operand", whole_slice),
    ("a slice of a slice is one slice", slice_of_slice),
    ("a broadcast to the same shape is its operand", same_shape),
    ("a cast to the same type is its operand", identity_cast),
    ("a concat of one part is the part", single_concat),
    ("a pad by nothing is its operand", empty_pad),
    ("x * 1 is x", times_one),
    ("x + 0 is x", plus_zero),
    ("a negation of a negation is its operand", double_negation),
];

/// The canonical graph.
#[must_use]
pub fn canonicalize(graph: &Graph) -> Graph {
    let mut rewriter = Rewriter::new(graph);
    let mut seen: IndexMap<String, Vec<ValueId>> = IndexMap::new();
    for (_, node) in graph.nodes() {
        if let Some(value) = RULES.iter().find_map(|(_, rule)| rule(&mut rewriter, node)) {
            rewriter.set(node.results[0], value);
            continue;
        }
        let key = key(&rewriter, graph, node);
        if let Some(results) = key.as_ref().and_then(|key| seen.get(key)) {
            for (&old, &new) in node.results.iter().zip(results) {
                rewriter.set(old, new);
            }
            continue;
        }
        rewriter.copy(node);
        if let Some(key) = key {
            seen.insert(key, node.results.iter().filter_map(|&result| rewriter.get(result)).collect());
        }
    }
    compact::compact(&rewriter.finish())
}

/// Equal for nodes that compute the same; none for sources that have names.
fn key(rewriter: &Rewriter<'_>, graph: &Graph, node: &Node) -> Option<String> {
    match &node.kind {
        NodeKind::Op(op) => Some(format!("{op:?} {:?}", rewriter.operands(node))),
        NodeKind::Const(number) => Some(format!("{:?} {}", number.to_bits(), graph.ty(node.results[0]))),
        NodeKind::Input { .. } | NodeKind::Param { .. } | NodeKind::State { .. } => None,
    }
}

/// The new operand, and the new node that computes it.
fn operand<'r>(rewriter: &'r Rewriter<'_>, node: &Node) -> Option<(ValueId, &'r Node)> {
    let value = rewriter.get(node.operands.first().copied().flatten()?)?;
    Some((value, rewriter.graph().def(value)))
}

fn same_shape(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let (Op::Reshape { shape } | Op::Broadcast { shape }) = node.op()? else { return None };
    let (x, _) = operand(rewriter, node)?;
    (rewriter.graph().ty(x).shape == *shape).then_some(x)
}

fn reshape_of_reshape(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let op @ Op::Reshape { .. } = node.op()? else { return None };
    let (_, inner) = operand(rewriter, node)?;
    let Op::Reshape { .. } = inner.op()? else { return None };
    let x = inner.operands[0]?;
    rewriter.push(op.clone(), &[x], node)
}

fn identity_permute(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Permute { axes } = node.op()? else { return None };
    axes.iter().copied().eq(0..axes.len()).then_some(operand(rewriter, node)?.0)
}

fn permute_of_permute(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Permute { axes } = node.op()? else { return None };
    let (_, inner) = operand(rewriter, node)?;
    let Op::Permute { axes: first } = inner.op()? else { return None };
    let (x, axes) = (inner.operands[0]?, axes.iter().map(|&axis| first[axis]).collect());
    rewriter.push(Op::Permute { axes }, &[x], node)
}

fn whole_slice(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Slice { starts, ends } = node.op()? else { return None };
    let to: Vec<usize> = ends.iter().zip(starts).map(|(end, start)| end - start).collect();
    let cut = rewriter.cut_axes(node.operands.first().copied().flatten()?, starts, &to);
    cut.is_empty().then_some(operand(rewriter, node)?.0)
}

fn slice_of_slice(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Slice { starts, ends } = node.op()? else { return None };
    let (_, inner) = operand(rewriter, node)?;
    let Op::Slice { starts: first, .. } = inner.op()? else { return None };
    let shift = |at: &[usize]| at.iter().zip(first).map(|(at, first)| at + first).collect();
    let (x, starts, ends) = (inner.operands[0]?, shift(starts), shift(ends));
    rewriter.push(Op::Slice { starts, ends }, &[x], node)
}

fn identity_cast(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Cast { dtype } = node.op()? else { return None };
    let (x, _) = operand(rewriter, node)?;
    (rewriter.graph().ty(x).dtype == *dtype).then_some(x)
}

fn single_concat(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Concat { .. } = node.op()? else { return None };
    (node.operands.len() == 1).then_some(operand(rewriter, node)?.0)
}

fn empty_pad(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Pad { lo, hi, .. } = node.op()? else { return None };
    let (x, _) = operand(rewriter, node)?;
    // What pads one element to a length of one pads it to more at other lengths, which take the same text.
    let has_one = rewriter.graph().ty(x).shape.contains(&1);
    (!has_one && lo.iter().chain(hi).all(|&n| n == 0)).then_some(x)
}

/// `lhs`, if `rhs` is a constant `number` whose shape changes nothing.
fn neutral(rewriter: &Rewriter<'_>, node: &Node, number: f64) -> Option<ValueId> {
    let graph = rewriter.graph();
    let (lhs, rhs) = (rewriter.get(node.operands[0]?)?, rewriter.get(node.operands[1]?)?);
    let is_neutral = matches!(graph.def(rhs).kind, NodeKind::Const(n) if n.to_bits() == number.to_bits());
    let keeps = monopass_ir::types::broadcast_shapes(&graph.ty(lhs).shape, &graph.ty(rhs).shape)? == graph.ty(lhs).shape;
    (is_neutral && keeps).then_some(lhs)
}

fn times_one(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Mul {} = node.op()? else { return None };
    neutral(rewriter, node, 1.0)
}

fn plus_zero(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Add {} = node.op()? else { return None };
    // x + 0 turns -0 into 0, which no later op of the table but 1/x can tell.
    neutral(rewriter, node, 0.0)
}

fn double_negation(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Neg {} = node.op()? else { return None };
    let (_, inner) = operand(rewriter, node)?;
    let Op::Neg {} = inner.op()? else { return None };
    inner.operands[0]
}
