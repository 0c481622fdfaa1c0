//! Common subexpressions, dead nodes, and identities that never make a graph worse.
//!
//! - **Needs** a verified graph.
//! - **Ensures** no two nodes compute the same, no node is unused, and none of the rules below applies to a node of the graph
//!   that was given.
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
    ("a slice of a product that nothing else reads is a product of slices", slice_of_product),
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

fn slice_of_product(rewriter: &mut Rewriter<'_>, node: &Node) -> Option<ValueId> {
    let Op::Slice { starts, ends } = node.op()? else { return None };
    let product = node.operands.first().copied().flatten()?;
    let inner = rewriter.read_once(product)?;
    let op @ Op::MatMul { transpose_a, transpose_b } = inner.op()? else { return None };
    let to: Vec<usize> = ends.iter().zip(starts).map(|(end, start)| end - start).collect();
    let cut = rewriter.cut_axes(product, starts, &to);
    let shape = rewriter.old_shape(product);
    let mut operands = Vec::with_capacity(2);
    for (place, is_inner) in [(0, *transpose_a), (1, !*transpose_b)] {
        let x = rewriter.get(inner.operands.get(place).copied().flatten()?)?;
        let own = rewriter.graph().ty(x).shape.clone();
        let mut cuts = Vec::new();
        for &axis in &cut {
            let own_axis = axis_of_operand(axis, shape, &own, place, is_inner);
            cuts.extend(own_axis.map(|own| (own, starts[axis], ends[axis])));
        }
        operands.push(sliced(rewriter, x, &cuts, inner)?);
    }
    rewriter.push(op.clone(), &operands, inner)
}

/// The axis of an operand of shape `own` that an axis of a product of `shape` is made from, if that is not repeated. The rows
/// come from the operand at place 0 and the columns from that at place 1, where `is_inner` says that they are its last axis.
fn axis_of_operand(axis: usize, shape: &[usize], own: &[usize], place: usize, is_inner: bool) -> Option<usize> {
    let (lead, own_lead) = (shape.len().checked_sub(2)?, own.len().checked_sub(2)?);
    if axis >= lead {
        return (axis == lead + place).then_some(own_lead + usize::from(is_inner));
    }
    (axis + own_lead).checked_sub(lead).filter(|&at| own[at] == shape[axis])
}

/// A new value with axes cut to ranges; one slice if it is a slice already, and itself if nothing is cut.
fn sliced(rewriter: &mut Rewriter<'_>, x: ValueId, cuts: &[(usize, usize, usize)], near: &Node) -> Option<ValueId> {
    if cuts.is_empty() {
        return Some(x);
    }
    let mut ends = rewriter.graph().ty(x).shape.clone();
    let mut starts = vec![0; ends.len()];
    for &(axis, start, end) in cuts {
        (starts[axis], ends[axis]) = (start, end);
    }
    let def = rewriter.graph().def(x);
    let Some(Op::Slice { starts: first, .. }) = def.op() else { return rewriter.push(Op::Slice { starts, ends }, &[x], near) };
    let source = def.operands.first().copied().flatten()?;
    for (axis, first) in first.clone().into_iter().enumerate() {
        starts[axis] += first;
        ends[axis] += first;
    }
    rewriter.push(Op::Slice { starts, ends }, &[source], near)
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

#[cfg(test)]
mod tests {
    use super::*;
    use monopass_ir::{DType, GraphBuilder, Tensor};

    /// Shapes of the products of a canonical graph, and how many slices it has.
    fn products(build: impl for<'g> Fn(&'g GraphBuilder, Tensor<'g>, Tensor<'g>)) -> (Vec<Vec<usize>>, usize) {
        let g = GraphBuilder::new("t");
        let (x, w) = (g.input("x", DType::F32, [3, 5, 4]), g.param("w", DType::F32, [7, 4]));
        build(&g, x, w);
        let graph = canonicalize(&g.finish().unwrap());
        let is_product = |node: &Node| matches!(node.op(), Some(Op::MatMul { .. }));
        let shapes = graph.nodes().filter(|(_, node)| is_product(node)).map(|(_, node)| graph.ty(node.results[0]).shape.clone());
        (shapes.collect(), graph.nodes().filter(|(_, node)| matches!(node.op(), Some(Op::Slice { .. }))).count())
    }

    #[test]
    fn a_slice_of_a_product_is_a_product_of_slices() {
        let one = products(|g, x, w| g.output("y", x.matmul(w, false, true).slice([1, 2, 3], [3, 4, 7])));
        assert_eq!(one, (vec![vec![2, 2, 4]], 2));
        let columns = products(|g, x, w| g.output("y", x.matmul(w, false, true).slice_axis(2, 1, 3)));
        assert_eq!(columns, (vec![vec![3, 5, 2]], 1));
        // Rows and columns that are the operands' other axes, and a leading axis that the right operand repeats.
        let turned = products(|g, x, _| {
            let u = g.param("u", DType::F32, [5, 6]);
            g.output("y", x.matmul(u, true, false).slice([0, 1, 2], [1, 4, 6]));
        });
        assert_eq!(turned, (vec![vec![1, 3, 4]], 2));
        let of_slice = products(|g, x, w| g.output("y", x.slice_axis(1, 1, 5).matmul(w, false, true).slice_axis(1, 1, 3)));
        assert_eq!(of_slice, (vec![vec![3, 2, 7]], 1));
    }

    #[test]
    fn a_product_that_is_read_twice_or_named_stays_whole() {
        let twice = products(|g, x, w| {
            let y = x.matmul(w, false, true);
            g.output("first", y.slice_axis(2, 0, 3));
            g.output("rest", y.slice_axis(2, 3, 7));
        });
        assert_eq!(twice, (vec![vec![3, 5, 7]], 2));
        let named = products(|g, x, w| {
            let y = x.matmul(w, false, true);
            g.output("all", y);
            g.output("first", y.slice_axis(2, 0, 3));
        });
        assert_eq!(named, (vec![vec![3, 5, 7]], 1));
    }
}
