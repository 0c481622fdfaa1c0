//! Values that are stored because what would be computed over them inline grows too large.
//!
//! An expression that loads from more buffers than a kernel binds cannot be one kernel, and one that nests without end would
//! take the emitter's stack with it. Both are known from the graph alone, so they are cut before anything joins.

use crate::emit::LowerCtx;
use indexmap::IndexSet;
use monopass_ir::graph::NodeKind;
use monopass_ir::{NodeId, ValueId};
use slotmap::SecondaryMap;

/// Ops that an inline expression may nest.
const MAX_DEPTH: u32 = 128;

/// What computing a value inline takes.
#[derive(Clone, Debug, Default)]
struct Cost {
    /// Buffers that are loaded from; all packed params are one.
    buffers: IndexSet<Option<ValueId>>,
    depth: u32,
}

/// The values to store so that no inline expression loads from more than `max_buffers` or nests deeper than allowed.
/// `is_inline` says which ops are computed where their results are read.
pub(super) fn find(ctx: &LowerCtx<'_>, max_buffers: usize, is_inline: &dyn Fn(NodeId) -> bool) -> IndexSet<ValueId> {
    let graph = ctx.graph;
    let mut costs: SecondaryMap<ValueId, Cost> = SecondaryMap::new();
    let mut cuts = IndexSet::new();
    for (id, node) in graph.nodes() {
        let operands: Vec<ValueId> = node.present_operands().collect();
        let is_inline = is_inline(id);
        let cost = if is_inline { fitting(ctx, &mut costs, &mut cuts, &operands, max_buffers) } else { Cost::default() };
        for &result in &node.results {
            let cost = if is_inline { cost.clone() } else { loaded(ctx, result) };
            costs.insert(result, cost);
        }
    }
    cuts
}

/// The cost of an op over its operands, of which as many are stored as it takes.
fn fitting(
    ctx: &LowerCtx<'_>,
    costs: &mut SecondaryMap<ValueId, Cost>,
    cuts: &mut IndexSet<ValueId>,
    operands: &[ValueId],
    max_buffers: usize,
) -> Cost {
    loop {
        let mut all = Cost::default();
        for cost in operands.iter().filter_map(|&operand| costs.get(operand)) {
            all.buffers.extend(&cost.buffers);
            all.depth = all.depth.max(cost.depth + 1);
        }
        let is_deep = all.depth > MAX_DEPTH;
        if !is_deep && all.buffers.len() <= max_buffers {
            return all;
        }
        // A stored operand is one buffer and no depth; the one that saves most is stored first.
        let saves = |operand: &ValueId| {
            costs.get(*operand).map_or(0, |cost| if is_deep { cost.depth as usize } else { cost.buffers.len().saturating_sub(1) })
        };
        let Some(&largest) = operands.iter().max_by_key(|operand| saves(operand)).filter(|operand| saves(operand) > 0) else { return all };
        costs.insert(largest, loaded(ctx, largest));
        cuts.insert(largest);
    }
}

/// The cost of loading a value, which a constant does not have.
fn loaded(ctx: &LowerCtx<'_>, value: ValueId) -> Cost {
    if matches!(ctx.graph.def(value).kind, NodeKind::Const(_)) {
        return Cost::default();
    }
    let buffer = (!ctx.is_packed(value)).then_some(value);
    Cost { buffers: std::iter::once(buffer).collect(), depth: 0 }
}
