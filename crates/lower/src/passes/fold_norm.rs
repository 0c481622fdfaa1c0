//! A scale by rows moves from before a matrix product to behind it.
//!
//! `(x * r * w) Wᵀ` with `r` one number a row equals `((x * w) Wᵀ) * r`: the product then need not wait for `r`, and
//! the mean square that `r` is made of can be gathered while the product runs.
//!
//! - **Needs** a verified graph.
//! - **Ensures** no left operand of a product that is read by products alone is scaled by rows.
//! - **Order**: before `fuse`, which sees the product and the reduction apart.

use super::rewrite::Rewriter;
use monopass_ir::graph::Node;
use monopass_ir::{DType, Graph, NodeId, Op, ValueId};
use slotmap::SecondaryMap;

/// Factors of a left operand beyond which it is left as it is.
const MAX_FACTORS: usize = 16;

/// The graph with row scales behind its products.
#[must_use]
pub fn fold_norm(graph: &Graph) -> Graph {
    let uses = graph.uses();
    let only_products = |value: ValueId| {
        uses[value].iter().all(|&user: &NodeId| {
            let node = graph.node(user);
            matches!(node.op(), Some(Op::MatMul { transpose_a: false, .. }))
                && node.operands[0] == Some(value)
                && node.operands[1] != Some(value)
        })
    };
    let scaled = scaled(graph);
    let mut rewriter = Rewriter::new(graph);
    for (_, node) in graph.nodes() {
        let is_alone = node.operands.first().copied().flatten().is_some_and(only_products);
        if !is_alone || folded(&mut rewriter, graph, node, &scaled).is_none() {
            rewriter.copy(node);
        }
    }
    rewriter.finish()
}

fn folded(rewriter: &mut Rewriter<'_>, graph: &Graph, node: &Node, scaled: &SecondaryMap<ValueId, ()>) -> Option<()> {
    let op @ Op::MatMul { transpose_a: false, .. } = node.op()? else { return None };
    let lhs = node.operands[0]?;
    let out = node.results[0];
    if graph.outputs.iter().chain(&graph.updates).any(|named| named.value == lhs) {
        return None;
    }
    let shape = graph.ty(lhs).shape.clone();
    if graph.ty(out).rank() != shape.len() || graph.ty(out).shape[..shape.len() - 1] != shape[..shape.len() - 1] || shape.last() == Some(&1)
    {
        return None;
    }
    let mut factors = Vec::new();
    collect_factors(scaled, graph, lhs, &shape, &mut factors);
    if factors.len() > MAX_FACTORS {
        return None;
    }
    let (rows, others): (Vec<ValueId>, Vec<ValueId>) = factors.into_iter().partition(|&value| is_row(graph, value, &shape));
    if rows.is_empty() || others.is_empty() {
        return None;
    }
    let mut left = rewriter.get(others[0])?;
    for &factor in &others[1..] {
        let factor = rewriter.get(factor)?;
        left = rewriter.push(Op::Mul {}, &[left, factor], node)?;
    }
    if rewriter.graph().ty(left).shape != shape {
        return None;
    }
    let right = rewriter.get(node.operands[1]?)?;
    let mut result = rewriter.push(op.clone(), &[left, right], node)?;
    for &row in &rows {
        let row = rewriter.get(row)?;
        result = rewriter.push(Op::Mul {}, &[result, row], node)?;
    }
    rewriter.set(out, result);
    Some(())
}

/// Whether a value is one number a row of `shape`.
fn is_row(graph: &Graph, value: ValueId, shape: &[usize]) -> bool {
    let own = &graph.ty(value).shape;
    own.len() == shape.len() && own.last() == Some(&1)
}

/// The factors of a product of f32 values of one shape or less, taken apart only where a row scale is inside.
fn collect_factors(scaled: &SecondaryMap<ValueId, ()>, graph: &Graph, value: ValueId, shape: &[usize], factors: &mut Vec<ValueId>) {
    if scaled.contains_key(value) && graph.ty(value).shape == shape && factors.len() <= MAX_FACTORS {
        for operand in graph.def(value).present_operands() {
            collect_factors(scaled, graph, operand, shape, factors);
        }
    } else {
        factors.push(value);
    }
}

/// Products of f32 values that have a row scale among their factors.
fn scaled(graph: &Graph) -> SecondaryMap<ValueId, ()> {
    let mut scaled = SecondaryMap::new();
    for (_, node) in graph.nodes() {
        let (Some(Op::Mul {}), &[value]) = (node.op(), node.results.as_slice()) else { continue };
        let shape = &graph.ty(value).shape;
        let has_row = |operand: ValueId| is_row(graph, operand, shape) || scaled.contains_key(operand) && graph.ty(operand).shape == *shape;
        if graph.ty(value).dtype == DType::F32 && shape.last() != Some(&1) && node.present_operands().any(has_row) {
            scaled.insert(value, ());
        }
    }
    scaled
}
