//! States that a kernel overwrites where they lie, and who has to run before.

use super::clusters::{Cluster, ClusterKind};
use super::{Fuser, Group};
use crate::kernels::elementwise::Body;
use crate::passes::schedule::reads;
use indexmap::IndexSet;
use monopass_ir::op::Class;
use monopass_ir::{Graph, Op, ValueId};

/// A state is replaced where it lies by the kernel that makes its update, if every element is read by the invocation that writes it
/// and all other kernels that read the state can run before.
pub(super) fn mark_in_place(fuser: &mut Fuser<'_>, clusters: &mut [(Group, Cluster)]) {
    let graph = fuser.graph;
    let reads: Vec<IndexSet<ValueId>> = clusters.iter().map(|(_, cluster)| reads(graph, cluster, &fuser.stored)).collect();
    for update in &graph.updates {
        let Some((_, state)) = graph.states().find(|(name, _)| *name == update.name) else { continue };
        if graph.ty(state) != graph.ty(update.value) || fuser.named.contains(&state) {
            continue;
        }
        let Some(own) = clusters.iter().position(|(_, cluster)| cluster.stores().contains(&update.value)) else { continue };
        let others: Vec<Group> =
            (0..clusters.len()).filter(|&idx| idx != own && reads[idx].contains(&state)).map(|idx| clusters[idx].0).collect();
        let group = clusters[own].0;
        if fuser.links.would_cycle(group, &others) {
            continue;
        }
        if claim_in_place(fuser, &mut clusters[own].1, state, update.value) {
            fuser.links.extend(group, others);
        }
    }
}

/// Marks the update if the cluster's kernel can overwrite the state.
fn claim_in_place(fuser: &Fuser<'_>, cluster: &mut Cluster, state: ValueId, update: ValueId) -> bool {
    let graph = fuser.graph;
    let computes = cluster.computes.clone();
    let is_computed = |value: ValueId| computes.contains(&value) || !fuser.stored.contains(&value);
    match &mut cluster.kind {
        ClusterKind::Scan(scan) if scan.stored_state == Some(update) => {
            let s0 = graph.operand(graph.def(scan.y), "s0");
            let is_direct = s0 == Some(state) && fuser.uses[state].len() == 1;
            // Each element of the first state is computed by the invocation that writes it, before it does.
            let is_own = |s0| {
                let is_alone = !fuser.stored.contains(&s0) && fuser.uses[s0].len() == 1 && fuser.uses[state].len() == 1;
                is_alone && OwnElement::of(fuser, state, &is_computed).find(s0) == Own::Same
            };
            let is_free = is_direct || s0.is_some_and(is_own);
            if is_free {
                scan.in_place = Some(state);
            }
            is_free
        }
        ClusterKind::Elementwise(bodies) => {
            let own = |out: ValueId| OwnElement::of(fuser, state, &is_computed).find(out);
            let is_own = |body: &Body, out: ValueId| {
                let own = own(out);
                own == Own::None || (own == Own::Same && body.outputs.contains(&update) && graph.ty(out).shape == graph.ty(state).shape)
            };
            // A state that its update does not read is better left to those who do, which then need not run before.
            let is_free = own(update) == Own::Same && bodies.iter().all(|body| body.outputs.iter().all(|&out| is_own(body, out)));
            if is_free {
                cluster.in_place.push((state, update));
            }
            is_free
        }
        ClusterKind::Scan(_)
        | ClusterKind::Rows(_)
        | ClusterKind::Cumsum(_)
        | ClusterKind::Product(_)
        | ClusterKind::Scatter(_)
        | ClusterKind::Choice(_) => false,
    }
}

/// Which elements of a state an element of a value is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    /// None of them.
    None,
    /// None but the one at the same place.
    Same,
    /// Others, too.
    Others,
}

impl Own {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, own) | (own, Self::None) => own,
            (Self::Same, Self::Same) => Self::Same,
            (Self::Others, _) | (_, Self::Others) => Self::Others,
        }
    }
}

/// Most values visited to find out which elements of a state are read.
const MAX_VISITS: usize = 1024;

/// Finds which elements of a state a value is made from.
struct OwnElement<'a> {
    fuser: &'a Fuser<'a>,
    state: ValueId,
    is_computed: &'a dyn Fn(ValueId) -> bool,
    visits: usize,
}

impl<'a> OwnElement<'a> {
    fn of(fuser: &'a Fuser<'a>, state: ValueId, is_computed: &'a dyn Fn(ValueId) -> bool) -> Self {
        Self { fuser, state, is_computed, visits: 0 }
    }

    fn find(&mut self, value: ValueId) -> Own {
        self.at(value, &vec![0; self.fuser.graph.ty(value).rank()])
    }

    /// Of the element of `value` at index `i + offset`, where `i` is the place that counts: through elementwise ops, slices and
    /// concatenations places are followed; all else reads anything.
    fn at(&mut self, value: ValueId, offset: &[i64]) -> Own {
        let graph = self.fuser.graph;
        self.visits += 1;
        if value == self.state {
            return if offset.iter().all(|&along| along == 0) { Own::Same } else { Own::Others };
        }
        let node = graph.def(value);
        let Some(op) = node.op() else { return Own::None };
        if self.visits > MAX_VISITS {
            return Own::Others;
        }
        let mut own = Own::None;
        let mut start = 0;
        for operand in node.present_operands() {
            let inner = followed(graph, op, offset, (operand, value), start);
            if let Op::Concat { axis } = op {
                start += graph.ty(operand).shape[*axis];
            }
            if operand != self.state && graph.def(operand).op().is_some() && !(self.is_computed)(operand) {
                continue;
            }
            own = own.and(match inner {
                Some(inner) => self.at(operand, &inner),
                None if reaches(self.fuser, operand, self.state, self.is_computed) => Own::Others,
                None => Own::None,
            });
        }
        own
    }
}

/// Where the operand is read for a place of the result, if that can be said; `start` is where the operand begins in a concatenation.
fn followed(graph: &Graph, op: &Op, offset: &[i64], (operand, result): (ValueId, ValueId), start: usize) -> Option<Vec<i64>> {
    let place = |position: usize| i64::try_from(position).unwrap_or(i64::MAX);
    let mut inner = offset.to_vec();
    if let Op::Slice { starts, .. } = op {
        inner.iter_mut().zip(starts).for_each(|(along, &start)| *along += place(start));
    } else if let Op::Concat { axis } = op {
        inner[*axis] -= place(start);
    } else if op.class() != Class::Elementwise || graph.ty(operand).shape != graph.ty(result).shape {
        return None;
    }
    Some(inner)
}

/// Whether computing `value` loads `state`.
fn reaches(fuser: &Fuser<'_>, value: ValueId, state: ValueId, is_computed: &dyn Fn(ValueId) -> bool) -> bool {
    let (mut open, mut seen) = (vec![value], IndexSet::new());
    while let Some(value) = open.pop() {
        if value == state {
            return true;
        }
        if seen.insert(value) {
            let operands = fuser.graph.def(value).present_operands();
            open.extend(operands.filter(|&operand| operand == state || is_computed(operand)));
        }
    }
    false
}

/// Whether a value is the new content of a state, each element made from the old one at its place.
pub(super) fn replaces_own_element(fuser: &Fuser<'_>, value: ValueId) -> bool {
    let graph = fuser.graph;
    let is_computed = |operand: ValueId| !fuser.stored.contains(&operand);
    graph.updates.iter().filter(|update| update.value == value).any(|update| {
        let state = graph.states().find(|(name, _)| *name == update.name);
        state.is_some_and(|(_, state)| OwnElement::of(fuser, state, &is_computed).find(value) == Own::Same)
    })
}
