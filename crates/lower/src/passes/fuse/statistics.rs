//! Row statistics that only the left operand of a product of few rows needs are computed by that product.
//!
//! Such as the mean squares of a norm by groups of channels: with few rows every workgroup of the product reads its whole
//! row anyway, so it can sum the parts of the row first, and the dispatch that would do so is saved.

use super::{Fuser, Group, is_heavy};
use crate::kernels::{matmul, row_stats};
use monopass_ir::graph::Node;
use monopass_ir::op::Class;
use monopass_ir::{DType, Op, ValueId};

/// Hands reductions over to the products that need them.
pub(super) fn add(fuser: &mut Fuser<'_>) {
    for reduction in 0..fuser.anchors.len() {
        let Some(products) = products_that_need(fuser, reduction) else { continue };
        let result = fuser.graph.node(fuser.anchors[reduction].node).results[0];
        for value in std::mem::take(&mut fuser.anchors[reduction].epilogue) {
            fuser.group_of.remove(value);
        }
        let needs: Vec<Group> = fuser.links.needs(reduction).collect();
        for group in products {
            fuser.anchors[group].statistics.push(result);
            fuser.links.extend(group, needs.clone());
        }
        fuser.group_of.remove(result);
    }
}

/// The products whose left operands are all that a reduction is for, if all of them can take it.
fn products_that_need(fuser: &Fuser<'_>, reduction: Group) -> Option<Vec<Group>> {
    let graph = fuser.graph;
    let node = graph.node(fuser.anchors[reduction].node);
    let result = node.results[0];
    let (Op::Sum { axes, keepdims: true } | Op::Mean { axes, keepdims: true }) = node.op()? else { return None };
    let is_last = axes.as_slice() == [graph.ty(result).rank().checked_sub(1)?];
    let is_plain = is_last && graph.ty(result).dtype == DType::F32 && fuser.anchors[reduction].sides.is_empty();
    let (path, products) = if is_plain && fuser.options.views { readers(fuser, reduction)? } else { return None };
    let lhs_of = |group: Group| graph.node(fuser.anchors[group].node).operands[0];
    let lead = graph.ty(lhs_of(*products.first()?)?).shape.split_last()?.1;
    let has_room = |&group: &Group| {
        let same_rows = lhs_of(group).is_some_and(|lhs| graph.ty(lhs).shape.split_last().is_some_and(|(_, other)| other == lead));
        same_rows && fuser.anchors[group].statistics.is_empty()
    };
    let stays = |&value: &ValueId| value == result || keeps_rows(fuser, graph.def(value), value, &path, lead);
    let needs: Vec<Group> = fuser.links.needs(reduction).collect();
    let fits = row_stats::fits(&graph.ty(result).shape, lead)
        && products.iter().all(has_room)
        && path.iter().all(stays)
        && products.iter().all(|&group| !fuser.links.would_cycle(group, &needs));
    fits.then_some(products)
}

/// The values made from a reduction's result, and the products of few rows that they end in as left operands; none if they
/// end anywhere else.
fn readers(fuser: &Fuser<'_>, reduction: Group) -> Option<(Vec<ValueId>, Vec<Group>)> {
    let graph = fuser.graph;
    let (mut path, mut products) = (graph.node(fuser.anchors[reduction].node).results.clone(), Vec::new());
    let mut next = 0;
    while let Some(&value) = path.get(next) {
        next += 1;
        if fuser.named.contains(&value)
            || fuser.uses[value].is_empty()
            || fuser.forbidden.inline.contains(&value)
            || fuser.cuts.contains(&value)
        {
            return None;
        }
        for &user in &fuser.uses[value] {
            let node = graph.node(user);
            let &made = node.results.first()?;
            let group = fuser.group_of.get(made).copied();
            let is_lhs = node.operands[0] == Some(value) && node.operands.get(1) != Some(&Some(value));
            if group.is_none_or(|group| group == reduction) {
                path.extend((!path.contains(&made)).then_some(made));
            } else if is_lhs && matmul::is_by_rows(graph, made) {
                products.extend(group);
            } else {
                return None;
            }
        }
    }
    products.sort_unstable();
    products.dedup();
    Some((path, products))
}

/// Whether each row of a value is made from the same row of those of its operands that are on the path, at little cost.
fn keeps_rows(fuser: &Fuser<'_>, node: &Node, value: ValueId, path: &[ValueId], lead: &[usize]) -> bool {
    let graph = fuser.graph;
    let has_lead = |value: ValueId| graph.ty(value).shape.starts_with(lead);
    let same_rank = |operand: ValueId| graph.ty(operand).rank() == graph.ty(value).rank();
    let mut operands = node.present_operands().filter(|operand| path.contains(operand));
    let Some(op) = node.op() else { return false };
    let is_cheap = !is_heavy(op) || fuser.n_elems(value) == fuser.n_elems(path[0]);
    has_lead(value)
        && is_cheap
        && match op.class() {
            Class::Elementwise => operands.all(|operand| has_lead(operand) && same_rank(operand)),
            Class::Movement => {
                let joins_within = matches!(op, Op::Concat { axis } if *axis >= lead.len());
                joins_within || matches!(op, Op::Reshape { .. } | Op::Slice { .. }) && operands.all(has_lead)
            }
            Class::Reduction
            | Class::Prefix
            | Class::Contraction
            | Class::Conv
            | Class::Scan
            | Class::ScanAdjoint
            | Class::Choice
            | Class::Index => false,
        }
}
