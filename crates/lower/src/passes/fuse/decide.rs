//! Which values are stored: everything that others must find in memory, and heavy work that would be repeated.

use super::{Fuser, is_half, is_heavy, is_inline_op, is_step_scan, is_view};
use monopass_ir::op::Class;
use monopass_ir::{NodeId, ValueId};
use slotmap::SecondaryMap;

/// Columns of a product's tile: how often its left operand is loaded is the number of tiles.
const TILE: u64 = 64;
/// Outputs of a workgroup of the product by rows.
const ROW_OUTPUTS: u64 = 4;

/// Fills the set of stored values.
pub(super) fn store(fuser: &mut Fuser<'_>) {
    let held = held(fuser);
    let mut evals: SecondaryMap<ValueId, u64> = SecondaryMap::new();
    let nodes: Vec<NodeId> = fuser.graph.nodes().map(|(id, _)| id).collect();
    for &id in nodes.iter().rev() {
        for &value in &fuser.graph.node(id).results {
            let count = times_needed(fuser, &evals, value);
            let is_stored = !held.contains_key(value) && must_store(fuser, value, count);
            // A value that is stored, or lives in its group's registers, is computed once an element, whoever reads it.
            let once = is_stored || fuser.group_of.contains_key(value);
            evals.insert(value, if once { fuser.n_elems(value) } else { count });
            if is_stored {
                fuser.stored.insert(value);
            }
        }
    }
    fuser.stored.reverse();
}

fn must_store(fuser: &mut Fuser<'_>, value: ValueId, count: u64) -> bool {
    let node = fuser.graph.def(value);
    let Some(op) = node.op() else { return false };
    if fuser.named.contains(&value) {
        return true;
    }
    let users: Vec<NodeId> = fuser.uses[value].clone();
    if users.is_empty() {
        return false;
    }
    if let Some(&group) = fuser.group_of.get(value) {
        return users.iter().any(|&user| !belongs(fuser, user, group));
    }
    if !is_inline_op(op) {
        return true;
    }
    if fuser.cuts.contains(&value) {
        let label = fuser.label(value);
        fuser.not_fused.push(format!("{label}: what reads it would bind or nest too much"));
        return true;
    }
    if is_view(op) {
        return !fuser.options.views;
    }
    if !fuser.options.fuse || fuser.forbidden.inline.contains(&value) {
        return true;
    }
    let limit = fuser.n_elems(value).saturating_mul(3) / 2;
    let repeats = is_heavy(op) && count > limit;
    if repeats {
        let label = fuser.label(value);
        fuser
            .not_fused
            .push(format!("{label}: computed where it is read it would be computed {count} times for {} elements", fuser.n_elems(value)));
    }
    repeats || is_half(fuser.graph.ty(value).dtype) && is_heavy(op)
}

/// Whether a node's results are all computed inside a group.
fn belongs(fuser: &Fuser<'_>, user: NodeId, group: usize) -> bool {
    fuser
        .graph
        .node(user)
        .results
        .iter()
        .all(|&result| fuser.group_of.get(result) == Some(&group) && !fuser.graph.node(fuser.anchors[group].node).results.contains(&result))
}

/// Values that live within products: side sums, row statistics, and what is computed from them where it is read.
fn held(fuser: &Fuser<'_>) -> SecondaryMap<ValueId, ()> {
    let mut held = SecondaryMap::new();
    for anchor in &fuser.anchors {
        held.extend(anchor.sides.iter().chain(&anchor.statistics).map(|&value| (value, ())));
    }
    for (_, node) in fuser.graph.nodes() {
        if node.op().is_some_and(is_inline_op) && node.present_operands().any(|operand| held.contains_key(operand)) {
            held.extend(node.results.iter().filter(|&&result| !fuser.group_of.contains_key(result)).map(|&result| (result, ())));
        }
    }
    held
}

/// How many evaluations of a value its readers ask for, if it is not stored.
fn times_needed(fuser: &Fuser<'_>, evals: &SecondaryMap<ValueId, u64>, value: ValueId) -> u64 {
    let users: indexmap::IndexSet<NodeId> = fuser.uses[value].iter().copied().collect();
    users.into_iter().map(|user| asked_by(fuser, evals, value, user)).fold(0, u64::saturating_add)
}

fn asked_by(fuser: &Fuser<'_>, evals: &SecondaryMap<ValueId, u64>, value: ValueId, user: NodeId) -> u64 {
    let graph = fuser.graph;
    let node = graph.node(user);
    let n = fuser.n_elems(value);
    let Some(op) = node.op() else { return 0 };
    let place = node.operands.iter().position(|&operand| operand == Some(value)).unwrap_or(0);
    match op.class() {
        Class::Contraction => n.saturating_mul(times_by_product(&graph.ty(node.results[0]).shape, place)),
        // A few tokens are staged once a workgroup, and log decays and weights are few.
        Class::Scan if is_step_scan(graph, user) || matches!(place, 0 | 6 | 7) => 0,
        Class::Scan => n.saturating_mul(3),
        Class::Conv if place == 0 => n.saturating_mul(node.operands[1].map_or(1, |w| graph.ty(w).shape[1]) as u64),
        Class::Conv | Class::Reduction | Class::Prefix => n,
        Class::Elementwise | Class::Movement | Class::Index => {
            node.results.iter().map(|&result| evals.get(result).copied().unwrap_or(0)).fold(0, u64::saturating_add)
        }
    }
}

/// How often a product loads each element of an operand: once for each tile across.
fn times_by_product(shape: &[usize], place: usize) -> u64 {
    let (rows, cols) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    if place == 0 {
        let per_tile = if n_rows(shape) <= 8 { ROW_OUTPUTS } else { TILE };
        (cols as u64).div_ceil(per_tile)
    } else {
        (rows as u64).div_ceil(TILE)
    }
}

fn n_rows(shape: &[usize]) -> u64 {
    monopass_ir::types::n_elems(&shape[..shape.len() - 1])
}
