//! Ops that are no kernels become ops that are: the adjoint of a scan as products, sums and elementwise ops over chunks.
//!
//! - **Needs** a verified graph.
//! - **Ensures** there is no `scan_grad`.
//! - **Order**: before `canonicalize`, which shares and tidies what is built here, and whatever passes are on.
//!
//! The chunks of a length are reshapes to its divisors: a graph with a `scan_grad` in it is for its own length, and another
//! length may give other kernels even where that axis varies.

mod scan_grad;
#[cfg(test)]
mod tests;

use super::rewrite::Rewriter;
use crate::error::LowerError;
use monopass_ir::graph::Node;
use monopass_ir::{Graph, GraphBuilder, Op, Tensor, ValueId};
use slotmap::SecondaryMap;

/// The graph without ops that have no kernel; `None` if it has none.
///
/// # Errors
/// [`LowerError::Expand`] if what an op stands for is beyond what a graph holds.
pub fn expand(graph: &Graph) -> Result<Option<Graph>, LowerError> {
    let is_expanded = |node: &Node| matches!(node.op(), Some(Op::ScanGrad { .. }));
    if !graph.nodes().any(|(_, node)| is_expanded(node)) {
        return Ok(None);
    }
    let is_read = read_values(graph);
    let mut rewriter = Rewriter::new(graph);
    for (_, node) in graph.nodes() {
        if let Some(Op::ScanGrad { chunk_size }) = node.op() {
            if !node.results.iter().any(|&result| is_read.contains_key(result)) {
                continue;
            }
            let part = adjoint(graph, node, *chunk_size, &is_read)?;
            let operands = rewriter.operands(node);
            rewriter.inline(&part, &operands, node);
        } else {
            rewriter.copy(node);
        }
    }
    Ok(Some(rewriter.finish()))
}

/// Values that an op reads or that leave the graph.
fn read_values(graph: &Graph) -> SecondaryMap<ValueId, ()> {
    let operands = graph.nodes().flat_map(|(_, node)| node.operands.iter().copied().flatten());
    let named = graph.outputs.iter().chain(&graph.updates).map(|named| named.value);
    operands.chain(named).map(|value| (value, ())).collect()
}

/// A `scan_grad` as a graph: an input for each operand, called by its number, and an output for each result that is read.
fn adjoint(graph: &Graph, node: &Node, chunk_size: usize, is_read: &SecondaryMap<ValueId, ()>) -> Result<Graph, LowerError> {
    let builder = GraphBuilder::new("scan_grad");
    let input = |idx: usize| -> Option<Tensor<'_>> {
        let ty = graph.ty(node.operands.get(idx).copied().flatten()?);
        Some(builder.input(&idx.to_string(), ty.dtype, ty.shape.clone()))
    };
    let operands = std::array::from_fn(input);
    if let Some(results) = scan_grad::in_chunks(&builder, operands, chunk_size) {
        for (idx, (result, &value)) in results.into_iter().zip(&node.results).enumerate() {
            if is_read.contains_key(value) {
                builder.output(&idx.to_string(), result);
            }
        }
    }
    builder.finish().map_err(|errors| LowerError::Expand { op: "scan_grad", errors })
}
