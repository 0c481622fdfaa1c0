//! What every later stage relies on, whatever passes are on.
//!
//! - **Needs** a verified graph.
//! - **Ensures** each output and update is a result of an op and named once; reductions and prefixes have 32-bit results; no op
//!   has more operands than a kernel can bind beside its result.
//! - **Order**: after `canonicalize`, which would fold the copies away; before everything else.

use super::rewrite::Rewriter;
use monopass_ir::graph::{Named, Node};
use monopass_ir::op::Class;
use monopass_ir::{DType, Graph, Op, ValueId};

/// The prepared graph, for kernels that bind at most `max_buffers`.
#[must_use]
pub fn prepare(graph: &Graph, max_buffers: u32) -> Graph {
    let most = usize::try_from(max_buffers).unwrap_or(usize::MAX).saturating_sub(1).max(2);
    let mut rewriter = Rewriter::new(graph);
    for (_, node) in graph.nodes() {
        if widened(&mut rewriter, graph, node).or_else(|| nested(&mut rewriter, node, most)).is_none() {
            rewriter.copy(node);
        }
    }
    name_once(rewriter.finish())
}

/// A reduction of 16-bit values as one of f32 between two casts.
fn widened(rewriter: &mut Rewriter<'_>, graph: &Graph, node: &Node) -> Option<()> {
    let op = node.op()?;
    let dtype = graph.ty(*node.results.first()?).dtype;
    if !matches!(op.class(), Class::Reduction | Class::Prefix) || !matches!(dtype, DType::F16 | DType::Bf16) {
        return None;
    }
    let x = rewriter.get(node.operands.first().copied().flatten()?)?;
    let wide = rewriter.push(Op::Cast { dtype: DType::F32 }, &[x], node)?;
    // Operands after the first, such as where sums start anew, stay.
    let rest = rewriter.operands(node).into_iter().skip(1);
    let reduced = rewriter.push_with(op.clone(), [Some(wide)].into_iter().chain(rest).collect(), node)?;
    let narrow = rewriter.push(Op::Cast { dtype }, &[reduced], node)?;
    rewriter.set(node.results[0], narrow);
    Some(())
}

/// A concat of many parts as one of concats of at most `most`.
fn nested(rewriter: &mut Rewriter<'_>, node: &Node, most: usize) -> Option<()> {
    let op @ Op::Concat { .. } = node.op()? else { return None };
    let mut parts: Vec<ValueId> = rewriter.operands(node).into_iter().flatten().collect();
    if parts.len() <= most {
        return None;
    }
    while parts.len() > 1 {
        parts = parts.chunks(most).map(|run| rewriter.push(op.clone(), run, node)).collect::<Option<_>>()?;
    }
    rewriter.set(node.results[0], parts[0]);
    Some(())
}

/// A copy for each name beyond the first of a value, and for names of sources.
fn name_once(mut graph: Graph) -> Graph {
    let mut named: Vec<ValueId> = Vec::new();
    let mut copy = |graph: &mut Graph, item: &mut Named| {
        let node = graph.def(item.value);
        if node.op().is_some() && !named.contains(&item.value) {
            named.push(item.value);
            return;
        }
        let (scope, location) = (std::sync::Arc::clone(&node.scope), node.location);
        let shape = graph.ty(item.value).shape.clone();
        if let Ok(results) = graph.push_op(Op::Reshape { shape }, vec![Some(item.value)], scope, location) {
            item.value = results[0];
            named.push(item.value);
        }
    };
    let (mut outputs, mut updates) = (std::mem::take(&mut graph.outputs), std::mem::take(&mut graph.updates));
    outputs.iter_mut().for_each(|item| copy(&mut graph, item));
    updates.iter_mut().for_each(|item| copy(&mut graph, item));
    graph.outputs = outputs;
    graph.updates = updates;
    graph
}
