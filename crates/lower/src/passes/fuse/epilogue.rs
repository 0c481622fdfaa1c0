//! Elementwise ops join the anchor whose result they take; row sums of a product's left operand join the product.

use super::{Anchor, Fuser, Group, is_half};
use monopass_ir::graph::NodeKind;
use monopass_ir::op::Class;
use monopass_ir::{NodeId, Op, ValueId};

/// Lets every elementwise op join the latest anchor group it can.
pub(super) fn absorb(fuser: &mut Fuser<'_>) {
    let nodes: Vec<NodeId> = fuser.graph.nodes().map(|(id, _)| id).collect();
    let (groups, links, anchors) = (fuser.group_of.clone(), fuser.links.clone(), fuser.anchors.clone());
    loop {
        for &id in &nodes {
            sum_rows(fuser, id);
            try_absorb(fuser, id);
        }
        let split: Vec<NodeId> = fuser.anchors.iter().filter_map(|anchor| split_rows(fuser, anchor)).collect();
        if split.is_empty() {
            break;
        }
        // What was to be computed over rows could not join after all: once more, without those sums.
        fuser.apart.extend(split);
        (fuser.group_of, fuser.links, fuser.anchors) = (groups.clone(), links.clone(), anchors.clone());
    }
    release_trailing_views(fuser);
}

/// The sum over rows of an anchor's result that something outside of its epilogue needs.
fn split_rows(fuser: &Fuser<'_>, anchor: &Anchor) -> Option<NodeId> {
    let is_inside = |&result: &ValueId| anchor.epilogue.contains(&result) || anchor.of_rows.contains(&result);
    let mut users = anchor.of_rows.iter().flat_map(|&value| &fuser.uses[value]);
    let is_split = users.any(|&user| !fuser.graph.node(user).results.iter().all(is_inside));
    anchor.rows.first().filter(|_| is_split).map(|&sum| fuser.node_of(sum))
}

fn try_absorb(fuser: &mut Fuser<'_>, id: NodeId) {
    let node = fuser.graph.node(id);
    let NodeKind::Op(op) = &node.kind else { return };
    let keeps_order = matches!(op, Op::Reshape { .. }) && fuser.options.views;
    let result = node.results[0];
    if !(op.class() == Class::Elementwise || keeps_order) || fuser.n_elems(result) == 0 {
        return;
    }
    let mut candidates: Vec<Group> = node.present_operands().filter_map(|operand| candidate(fuser, operand, result)).collect();
    candidates.sort_unstable();
    candidates.dedup();
    if candidates.is_empty() {
        return;
    }
    let label = fuser.label(result);
    if fuser.forbidden.epilogue.contains(&id) || fuser.cuts.contains(&result) {
        return;
    }
    if is_half(fuser.graph.ty(result).dtype) {
        fuser.not_fused.push(format!("{label}: a 16-bit result is stored two at a time, by a kernel of its own"));
        return;
    }
    for group in candidates.into_iter().rev() {
        // Every operand from the group must be one that it has in registers at the place of the result.
        let of_rows = &fuser.anchors[group].of_rows;
        let mut own = node.present_operands().filter(|operand| fuser.group_of.get(*operand) == Some(&group) && !of_rows.contains(operand));
        if own.any(|operand| candidate(fuser, operand, result) != Some(group)) {
            continue;
        }
        let outside = node.present_operands().filter(|&operand| fuser.group_of.get(operand) != Some(&group));
        let needs: Vec<Group> = outside.flat_map(|operand| fuser.groups_behind(operand)).collect();
        if needs.contains(&group) || fuser.links.would_cycle(group, &needs) {
            fuser.not_fused.push(format!("{label}: another operand needs the result that it would be fused to"));
            continue;
        }
        fuser.links.extend(group, needs);
        fuser.group_of.insert(result, group);
        fuser.anchors[group].epilogue.push(result);
        return;
    }
}

/// A sum over the rows of what a scan's epilogue computes, which only the rest of the epilogue needs, is done there where the
/// kernel has whole rows.
fn sum_rows(fuser: &mut Fuser<'_>, id: NodeId) {
    let graph = fuser.graph;
    let node = graph.node(id);
    let Some(Op::Sum { axes, keepdims: true } | Op::Mean { axes, keepdims: true }) = node.op() else { return };
    let Some(operand) = node.operands[0].filter(|_| !fuser.apart.contains(&id)) else { return };
    let shape = &graph.ty(operand).shape;
    let Some(&group) = fuser.group_of.get(operand).filter(|_| axes.as_slice() == [shape.len() - 1]) else { return };
    let y = graph.node(fuser.anchors[group].node).results[0];
    let is_scan = matches!(graph.def(y).op(), Some(Op::Scan { .. })) && crate::kernels::scan::holds_rows(graph, y);
    let has_rows = candidate(fuser, operand, operand) == Some(group) && shape.last() == graph.ty(y).shape.last();
    if !is_scan || !has_rows || !fuser.anchors[group].rows.is_empty() || graph.ty(operand).dtype != monopass_ir::DType::F32 {
        return;
    }
    let Some(of_rows) = made_of_rows(fuser, node.results[0], shape) else { return };
    for &value in &of_rows {
        fuser.group_of.insert(value, group);
    }
    fuser.anchors[group].rows.push(node.results[0]);
    fuser.anchors[group].of_rows = of_rows;
}

/// The values of one number a row that are made from `sum` and params alone, if all that reads them is elementwise over rows
/// of `shape`.
fn made_of_rows(fuser: &Fuser<'_>, sum: ValueId, shape: &[usize]) -> Option<Vec<ValueId>> {
    let graph = fuser.graph;
    let mut made = vec![sum];
    let mut next = 0;
    while let Some(&value) = made.get(next) {
        next += 1;
        if fuser.named.contains(&value) || fuser.uses[value].is_empty() || fuser.cuts.contains(&value) {
            return None;
        }
        for &user in &fuser.uses[value] {
            let node = graph.node(user);
            let result = node.results[0];
            if node.op().is_none_or(|op| op.class() != Class::Elementwise) || fuser.forbidden.epilogue.contains(&user) {
                return None;
            }
            if graph.ty(result).shape == graph.ty(sum).shape {
                let from_params = |&operand: &ValueId| made.contains(&operand) || graph.def(operand).op().is_none();
                if !node.present_operands().collect::<Vec<_>>().iter().all(from_params) || graph.ty(result).dtype != graph.ty(sum).dtype {
                    return None;
                }
                if !made.contains(&result) {
                    made.push(result);
                }
            } else if graph.ty(result).shape != shape {
                return None;
            }
        }
    }
    Some(made)
}

/// The group whose epilogue could compute `result` from `operand`.
fn candidate(fuser: &Fuser<'_>, operand: ValueId, result: ValueId) -> Option<Group> {
    let &group = fuser.group_of.get(operand)?;
    let anchor = fuser.graph.node(fuser.anchors[group].node);
    let (primary, secondary) = (anchor.results[0], anchor.results.get(1));
    // The second result of a scan is written by another kernel than the first.
    let is_state = secondary == Some(&operand) || fuser.anchors[group].state == Some(operand);
    let fits = fuser.n_elems(operand) == fuser.n_elems(primary) && fuser.n_elems(result) == fuser.n_elems(primary) && !is_state;
    let op = anchor.op()?;
    let is_bare =
        matches!(op, Op::Argmax { .. }) || matches!(op.class(), Class::Reduction | Class::Prefix) && is_half(fuser.graph.ty(primary).dtype);
    // With a leading axis of its own, which may vary, the result would be at another index than the operand.
    let is_view = fuser.graph.def(result).op().is_some_and(|op| op.class() == Class::Movement);
    let keeps_rank = is_view || fuser.graph.ty(operand).rank() == fuser.graph.ty(result).rank();
    // An axis of one element that varies in the result alone is a broadcast at other lengths.
    let varies = |value: ValueId, axis: usize| fuser.dynamic.is_dynamic(value, axis);
    let shape = &fuser.graph.ty(result).shape;
    let is_repeated = !is_view && (0..shape.len()).any(|axis| shape[axis] == 1 && varies(result, axis) && !varies(operand, axis));
    (fits && keeps_rank && !is_bare && !is_repeated).then_some(group)
}

/// A reshape at the end of an epilogue is a view for its readers, not a second copy of the result.
fn release_trailing_views(fuser: &mut Fuser<'_>) {
    for group in 0..fuser.anchors.len() {
        let mut kept = fuser.anchors[group].epilogue.clone();
        while let Some(idx) = kept.iter().rposition(|&value| {
            let is_reshape = matches!(fuser.graph.def(value).op(), Some(Op::Reshape { .. }));
            let feeds_group =
                fuser.uses[value].iter().any(|&user| fuser.graph.node(user).results.iter().any(|result| kept.contains(result)));
            is_reshape && !feeds_group && !fuser.named.contains(&value)
        }) {
            let value = kept.remove(idx);
            fuser.group_of.remove(value);
        }
        fuser.anchors[group].epilogue = kept;
    }
}

/// Where several cheap ops at the end of an epilogue start from one value, that value is stored and they are left to
/// whoever reads them.
pub(super) fn release_cheap_ends(fuser: &mut Fuser<'_>) {
    for group in 0..fuser.anchors.len() {
        let anchor = fuser.graph.node(fuser.anchors[group].node).results[0];
        let sources: Vec<ValueId> = std::iter::once(anchor).chain(fuser.anchors[group].epilogue.iter().copied()).collect();
        for source in sources {
            let own: Vec<ValueId> = fuser.anchors[group]
                .epilogue
                .iter()
                .copied()
                .filter(|&value| fuser.graph.def(value).present_operands().any(|operand| operand == source))
                .collect();
            if own.len() >= 2 && own.iter().all(|&value| is_cheap_end(fuser, group, source, value)) {
                fuser.anchors[group].epilogue.retain(|value| !own.contains(value));
                for value in own {
                    fuser.group_of.remove(value);
                }
            }
        }
    }
}

fn is_cheap_end(fuser: &Fuser<'_>, group: Group, source: ValueId, value: ValueId) -> bool {
    let node = fuser.graph.def(value);
    let is_cheap = node.op().is_some_and(|op| !super::is_heavy(op));
    let is_end = fuser.uses[value]
        .iter()
        .all(|&user| fuser.graph.node(user).results.iter().all(|&result| fuser.group_of.get(result) != Some(&group)));
    let others_are_sources = node.present_operands().all(|operand| operand == source || fuser.graph.def(operand).op().is_none());
    is_cheap && is_end && others_are_sources && !fuser.named.contains(&value)
}

/// A sum or mean over K of a value shaped like a product's left operand, read only by that product's epilogue, is gathered
/// while the product runs.
pub(super) fn add_sides(fuser: &mut Fuser<'_>) {
    for reduction in 0..fuser.anchors.len() {
        if let Some(products) = products_that_need(fuser, reduction) {
            let result = fuser.graph.node(fuser.anchors[reduction].node).results[0];
            // The reduction and what is computed from it by rows become inline in each product.
            for value in std::mem::take(&mut fuser.anchors[reduction].epilogue) {
                fuser.group_of.remove(value);
            }
            let needs: Vec<Group> = fuser.links.needs(reduction).collect();
            for group in products {
                fuser.anchors[group].sides.push(result);
                fuser.links.extend(group, needs.clone());
            }
            fuser.group_of.remove(result);
            fuser.anchors[reduction].sides.push(result);
        }
    }
}

/// The products in whose epilogues alone a row reduction ends, if there are any and all allow it.
fn products_that_need(fuser: &Fuser<'_>, reduction: Group) -> Option<Vec<Group>> {
    let node = fuser.graph.node(fuser.anchors[reduction].node);
    let (Op::Sum { axes, keepdims: true } | Op::Mean { axes, keepdims: true }) = node.op()? else { return None };
    let summand = node.operands.first().copied().flatten()?;
    let shape = &fuser.graph.ty(summand).shape;
    if axes.as_slice() != [shape.len().checked_sub(1)?] || fuser.graph.ty(summand).dtype != monopass_ir::DType::F32 {
        return None;
    }
    let mut products = Vec::new();
    let mut open = vec![node.results[0]];
    let mut seen = Vec::new();
    while let Some(value) = open.pop() {
        if seen.contains(&value) {
            continue;
        }
        seen.push(value);
        if fuser.named.contains(&value) || fuser.uses[value].is_empty() {
            return None;
        }
        for &user in &fuser.uses[value] {
            let result = *fuser.graph.node(user).results.first()?;
            match fuser.group_of.get(result) {
                Some(&group) if group == reduction => open.push(result),
                Some(&group) if takes_side(fuser, group, shape) && fuser.anchors[group].epilogue.contains(&result) => products.push(group),
                _ => return None,
            }
        }
    }
    products.sort_unstable();
    products.dedup();
    let needs: Vec<Group> = fuser.links.needs(reduction).collect();
    let fits = products.iter().all(|&group| !fuser.links.would_cycle(group, &needs));
    (!products.is_empty() && fits).then_some(products)
}

fn takes_side(fuser: &Fuser<'_>, group: Group, shape: &[usize]) -> bool {
    let node = fuser.graph.node(fuser.anchors[group].node);
    let Some(Op::MatMul { transpose_a: false, .. }) = node.op() else { return false };
    let fits = node.operands.first().copied().flatten().is_some_and(|lhs| fuser.graph.ty(lhs).shape == shape);
    fits && fuser.anchors[group].sides.len() < 2
}
