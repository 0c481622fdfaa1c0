//! From decisions to clusters in an order in which they can run.

use super::in_place::{mark_in_place, replaces_own_element};
use super::{Fuser, Fusion, Group, few_tokens, is_half, is_step_scan};
use crate::emit::LowerCtx;
use crate::kernels::choice::Choice;
use crate::kernels::elementwise::Body;
use crate::kernels::matmul::Product;
use crate::kernels::prefix::RunningSum;
use crate::kernels::rows::Rows;
use crate::kernels::scan::ScanItem;
use crate::kernels::scatter::Scatter;
use crate::passes::recompute::is_adjoint;
use indexmap::IndexSet;
use monopass_ir::graph::NodeKind;
use monopass_ir::op::Class;
use monopass_ir::{Graph, NodeId, Op, ValueId};
use petgraph::graphmap::DiGraphMap;

/// Ops that share kernels.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// What it is built around.
    pub kind: ClusterKind,
    /// State and update where the update overwrites the state in the same kernel.
    pub in_place: Vec<(ValueId, ValueId)>,
    /// Values that it computes for itself although they are stored (by it or by others).
    pub computes: Vec<ValueId>,
    /// Nodes that could be left out if it binds too much, the last to join first.
    pub droppable: Vec<NodeId>,
    /// How many of those, the first ones, are its epilogue; the others are bodies of their own.
    pub n_epilogue: usize,
}

/// What a cluster is built around.
#[derive(Clone, Debug)]
pub enum ClusterKind {
    /// Elementwise bodies.
    Elementwise(Vec<Body>),
    /// Reductions.
    Rows(Rows),
    /// A running sum.
    Cumsum(RunningSum),
    /// A matrix product.
    Product(Product),
    /// A scan.
    Scan(ScanItem),
    /// Sums of rows by index.
    Scatter(Scatter),
    /// A drawn index a row.
    Choice(Choice),
}

impl Cluster {
    /// Values that it leaves in memory.
    #[must_use]
    pub fn stores(&self) -> Vec<ValueId> {
        match &self.kind {
            ClusterKind::Elementwise(bodies) => outputs_of(bodies).collect(),
            ClusterKind::Rows(rows) => rows.outputs.iter().copied().chain(outputs_of(&rows.extra)).collect(),
            ClusterKind::Cumsum(sum) => sum.outputs.iter().copied().chain(outputs_of(&sum.extra)).collect(),
            ClusterKind::Product(product) => product.outputs.clone(),
            ClusterKind::Scatter(scatter) => scatter.outputs.clone(),
            ClusterKind::Choice(choice) => choice.outputs.clone(),
            ClusterKind::Scan(scan) => scan.outputs.iter().copied().chain(scan.stored_state).chain(outputs_of(&scan.extra)).collect(),
        }
    }
}

fn outputs_of(bodies: &[Body]) -> impl Iterator<Item = ValueId> + '_ {
    bodies.iter().flat_map(|body| body.outputs.iter().copied())
}

/// Builds the clusters, merges small ones, and orders them.
pub(super) fn build(mut fuser: Fuser<'_>) -> Fusion {
    let mut clusters: Vec<(Group, Cluster)> = Vec::new();
    for group in 0..fuser.anchors.len() {
        if let Some(cluster) = anchor_cluster(&fuser, group) {
            clusters.push((group, cluster));
        }
    }
    add_bodies(&mut fuser, &mut clusters);
    mark_in_place(&mut fuser, &mut clusters);
    let mut position = vec![usize::MAX; fuser.links.len()];
    for (place, group) in run_order(&fuser, &clusters).into_iter().enumerate() {
        position[group] = place;
    }
    clusters.sort_by_key(|&(group, _)| position[group]);
    let mut not_fused = fuser.not_fused;
    not_fused.dedup();
    Fusion { clusters: clusters.into_iter().map(|(_, cluster)| cluster).collect(), stored: fuser.stored, not_fused }
}

fn anchor_cluster(fuser: &Fuser<'_>, group: Group) -> Option<Cluster> {
    let graph = fuser.graph;
    let anchor = &fuser.anchors[group];
    let node = graph.node(anchor.node);
    let is_stored = |value: &ValueId| fuser.stored.contains(value);
    let primary = node.results[0];
    let outputs: Vec<ValueId> = std::iter::once(primary).chain(anchor.epilogue.iter().copied()).filter(is_stored).collect();
    let state = anchor.state.or_else(|| node.results.get(1).copied()).filter(is_stored);
    if outputs.is_empty() && state.is_none() {
        return None;
    }
    let operand = node.operands.first().copied().flatten()?;
    let op = node.op()?;
    let rows = |axes: &[usize], outputs| {
        let (axes, reductions) = (axes.to_vec(), vec![primary]);
        ClusterKind::Rows(Rows { domain: operand, axes, reductions, outputs, extra: Vec::new() })
    };
    let kind = match op.class() {
        Class::Contraction => {
            ClusterKind::Product(Product { anchor: primary, sides: anchor.sides.clone(), statistics: anchor.statistics.clone(), outputs })
        }
        Class::Scan => ClusterKind::Scan(ScanItem {
            y: primary,
            s_last: node.results[1],
            stored_state: state,
            in_place: None,
            outputs,
            extra: Vec::new(),
            rows: anchor.rows.clone(),
            staged: if is_step_scan(graph, anchor.node) {
                few_tokens::staged(graph, node, &|value| !is_stored(&value))
            } else {
                Vec::new()
            },
        }),
        Class::Index => ClusterKind::Scatter(Scatter { value: primary, outputs }),
        Class::Prefix => ClusterKind::Cumsum(RunningSum { value: primary, outputs, extra: Vec::new() }),
        Class::Reduction => {
            if let Op::Argmax { axis } = op {
                rows(&[*axis], outputs)
            } else if let Op::Sum { axes, .. } | Op::Mean { axes, .. } | Op::ReduceMax { axes, .. } = op {
                rows(axes, outputs)
            } else {
                return None;
            }
        }
        Class::Choice => ClusterKind::Choice(Choice { value: primary, outputs }),
        Class::Elementwise | Class::Movement | Class::Conv | Class::ScanAdjoint => return None,
    };
    let droppable: Vec<NodeId> = anchor.epilogue.iter().map(|&value| fuser.node_of(value)).collect();
    let n_epilogue = droppable.len();
    Some(Cluster { kind, in_place: Vec::new(), computes: anchor.epilogue.clone(), droppable, n_epilogue })
}

/// A body for each stored value that no anchor computes; bodies join clusters that they do not have to wait for.
fn add_bodies(fuser: &mut Fuser<'_>, clusters: &mut Vec<(Group, Cluster)>) {
    let graph = fuser.graph;
    let loose: Vec<ValueId> = graph
        .nodes()
        .flat_map(|(_, node)| node.results.iter().copied())
        .filter(|value| fuser.stored.contains(value) && !fuser.group_of.contains_key(*value))
        .collect();
    let own: Vec<(Group, ValueId)> = loose.into_iter().map(|value| (fuser.links.add([]), value)).collect();
    for &(group, value) in &own {
        fuser.group_of.insert(value, group);
    }
    relink(fuser, &own);
    let mut read: Vec<IndexSet<ValueId>> = clusters.iter().map(|(_, cluster)| loads(fuser, &cluster.roots())).collect();
    // What leaves the graph goes last, when the cluster that reads most of what it reads is there.
    let (leaving, others): (Vec<_>, Vec<_>) = own.into_iter().partition(|&(_, value)| fuser.named.contains(&value));
    for (group, value) in others.into_iter().chain(leaving) {
        let may_join = fuser.options.fuse && !fuser.forbidden.alone.contains(&value);
        if let Some(host) = may_join.then(|| find_host(fuser, clusters, &read, group, value)).flatten() {
            read[host].extend(loads(fuser, &[value]));
            let reads_host = reads_any(fuser, value, &clusters[host].1.own_roots());
            let (into, cluster) = &mut clusters[host];
            join(graph, cluster, value, reads_host);
            cluster.droppable.push(graph.value(value).node);
            fuser.links.merge(*into, group);
            let into = *into;
            fuser.group_of.insert(value, into);
            continue;
        }
        read.push(loads(fuser, &[value]));
        let kind = ClusterKind::Elementwise(vec![Body { outputs: vec![value] }]);
        clusters.push((group, Cluster { kind, in_place: Vec::new(), computes: vec![value], droppable: Vec::new(), n_epilogue: 0 }));
    }
}

/// Links every group to those that it reads, now that it is known what is stored.
fn relink(fuser: &mut Fuser<'_>, bodies: &[(Group, ValueId)]) {
    let graph = fuser.graph;
    fuser.links.reset(fuser.links.len());
    let mut roots: Vec<(Group, ValueId)> = bodies.to_vec();
    for (group, anchor) in fuser.anchors.iter().enumerate() {
        if fuser.group_of.get(graph.node(anchor.node).results[0]) == Some(&group) {
            roots.push((group, graph.node(anchor.node).results[0]));
            roots.extend(anchor.epilogue.iter().chain(&anchor.sides).chain(&anchor.statistics).map(|&value| (group, value)));
        }
    }
    for (group, root) in roots {
        let needs: Vec<Group> = graph.def(root).present_operands().flat_map(|operand| fuser.groups_behind(operand)).collect();
        fuser.links.extend(group, needs);
    }
}

/// The cluster that reads most of what a body reads, of those that can take it; none that reads nothing of it, but for
/// what leaves the graph, such as states: small, and cheapest beside anything else.
fn find_host(fuser: &Fuser<'_>, clusters: &[(Group, Cluster)], read: &[IndexSet<ValueId>], own: Group, value: ValueId) -> Option<usize> {
    let wanted = loads(fuser, &[value]);
    let replaces = replaces_own_element(fuser, value);
    let fits = |idx: usize| -> bool {
        let (group, cluster) = &clusters[idx];
        // In the kernels of the forward pass a backward body would have to be kept, and in later ones a forward body.
        let is_other_phase = |other: &ValueId| is_adjoint(fuser.graph.def(*other)) != is_adjoint(fuser.graph.def(value));
        if cluster.roots().first().is_some_and(is_other_phase) {
            return false;
        }
        // Only a kernel of elementwise bodies overwrites a state where it lies.
        if replaces && !matches!(cluster.kind, ClusterKind::Elementwise(_)) {
            return false;
        }
        let waits = fuser.links.needs(own).any(|need| need == *group);
        let is_awaited = fuser.links.needs(*group).any(|need| need == own);
        let is_free = matches!(cluster.kind, ClusterKind::Elementwise(_)) || !fuser.forbidden.merge.contains(&value);
        is_free
            && takes_body(fuser, cluster, value)
            && !is_awaited
            && (!waits || same_order(fuser, cluster, value) && !fuser.cuts.contains(&value))
            && has_room(fuser, cluster, &read[idx], &wanted)
            && !fuser.links.are_apart(own, *group)
    };
    let rank = |idx: usize| match clusters[idx].1.kind {
        ClusterKind::Rows(ref rows) if reads_any(fuser, value, &rows.reductions) => 3,
        // The scores read less than the whole scan does.
        ClusterKind::Scan(ref scan) if !is_step_scan(fuser.graph, fuser.node_of(scan.y)) => 0,
        ClusterKind::Rows(_) | ClusterKind::Scan(_) | ClusterKind::Cumsum(_) => 2,
        ClusterKind::Elementwise(_) | ClusterKind::Product(_) | ClusterKind::Scatter(_) | ClusterKind::Choice(_) => 1,
    };
    let shared = |idx: usize| {
        let common = read[idx].iter().filter(|load| wanted.contains(*load)).count();
        common + clusters[idx].1.stores().iter().filter(|stored| wanted.contains(*stored)).count()
    };
    let candidates = (0..clusters.len()).map(|idx| (shared(idx) > 0, rank(idx), shared(idx), std::cmp::Reverse(idx)));
    let candidates = candidates.filter(|&(shares, ..)| shares || fuser.named.contains(&value));
    let mut candidates: Vec<_> = candidates.collect();
    candidates.sort_unstable();
    candidates.into_iter().rev().map(|(.., std::cmp::Reverse(idx))| idx).find(|&idx| fits(idx))
}

/// Buffers that bodies are joined up to, however many a kernel may bind: the runtime knows the turns of 64 states a command.
const MAX_BOUND: usize = 64;

/// Whether a cluster of one kernel with one more body still binds no more than that may; others may leave bodies out again.
fn has_room(fuser: &Fuser<'_>, cluster: &Cluster, read: &IndexSet<ValueId>, wanted: &IndexSet<ValueId>) -> bool {
    let (ClusterKind::Elementwise(_) | ClusterKind::Cumsum(_) | ClusterKind::Rows(_)) = cluster.kind else { return true };
    let stores = cluster.stores();
    let loads: IndexSet<Option<ValueId>> =
        read.union(wanted).filter(|load| !stores.contains(load)).map(|&load| (!fuser.is_packed.contains(&load)).then_some(load)).collect();
    loads.len() + stores.len() < fuser.max_buffers.min(MAX_BOUND)
}

/// Stored values and inputs, states and params that computing `roots` loads; constants aside.
fn loads(fuser: &Fuser<'_>, roots: &[ValueId]) -> IndexSet<ValueId> {
    let mut found = IndexSet::new();
    let mut seen: IndexSet<ValueId> = roots.iter().copied().collect();
    let mut open: Vec<ValueId> = roots.to_vec();
    while let Some(value) = open.pop() {
        for operand in fuser.graph.def(value).present_operands().filter(|&operand| seen.insert(operand)).collect::<Vec<_>>() {
            let node = fuser.graph.def(operand);
            if node.op().is_none() || fuser.stored.contains(&operand) {
                if !matches!(node.kind, NodeKind::Const(_)) {
                    found.insert(operand);
                }
            } else {
                open.push(operand);
            }
        }
    }
    found
}

/// Whether a cluster of its kind can compute `value` beside what it does, or from that in the same order.
fn takes_body(fuser: &Fuser<'_>, cluster: &Cluster, value: ValueId) -> bool {
    let graph = fuser.graph;
    let fits_beside = || !is_half(graph.ty(value).dtype) && !reads_any(fuser, value, &cluster.own_roots());
    match &cluster.kind {
        ClusterKind::Elementwise(_) => true,
        // The first kernel of a scan by chunks computes scores, which only outputs need.
        ClusterKind::Scan(scan) => (is_step_scan(graph, graph.value(scan.y).node) || !scan.outputs.is_empty()) && fits_beside(),
        ClusterKind::Cumsum(_) => fits_beside(),
        ClusterKind::Rows(rows) if !reads_any(fuser, value, &rows.reductions) => fits_beside(),
        // The second pass over a row writes values of the unreduced shape that are made from the row's result.
        ClusterKind::Rows(rows) => {
            let is_elementwise = graph.def(value).op().is_some_and(|op| op.class() == Class::Elementwise);
            is_elementwise
                && !is_half(graph.ty(value).dtype)
                && graph.ty(value).shape == graph.ty(rows.domain).shape
                && !reads_any(fuser, value, &outputs_of(&rows.extra).collect::<Vec<_>>())
                && rows.reads_own_row(graph, value, &|inner| {
                    inner == value || cluster.computes.contains(&inner) || !fuser.stored.contains(&inner)
                })
        }
        ClusterKind::Product(_) | ClusterKind::Scatter(_) | ClusterKind::Choice(_) => false,
    }
}

/// Whether computing `value` inline meets one of `others`.
fn reads_any(fuser: &Fuser<'_>, value: ValueId, others: &[ValueId]) -> bool {
    let mut open: Vec<ValueId> = fuser.graph.def(value).present_operands().collect();
    let mut seen = Vec::new();
    while let Some(operand) = open.pop() {
        if others.contains(&operand) {
            return true;
        }
        if seen.contains(&operand) || fuser.stored.contains(&operand) {
            continue;
        }
        seen.push(operand);
        open.extend(fuser.graph.def(operand).present_operands());
    }
    false
}

/// Whether a value that needs a cluster's results can still join it, because it computes them again at its own index.
fn same_order(fuser: &Fuser<'_>, cluster: &Cluster, value: ValueId) -> bool {
    match &cluster.kind {
        ClusterKind::Rows(rows) if reads_any(fuser, value, &rows.reductions) => true,
        ClusterKind::Elementwise(_) | ClusterKind::Rows(_) | ClusterKind::Cumsum(_) | ClusterKind::Scan(_) => {
            let n = fuser.n_elems(value);
            // Only plain elementwise chains are recomputed; a window or a gather would repeat its work.
            let is_elementwise = fuser.graph.def(value).op().is_some_and(|op| op.class() == Class::Elementwise);
            is_elementwise
                && !reads_any(fuser, value, &cluster.own_roots())
                && outputs_of(cluster.bodies()).all(|out| !reads_any(fuser, value, &[out]) || fuser.n_elems(out) == n)
        }
        ClusterKind::Product(_) | ClusterKind::Scatter(_) | ClusterKind::Choice(_) => false,
    }
}

/// Lets a cluster compute `value`, which may be made from its own results and not stand beside them.
fn join(graph: &Graph, cluster: &mut Cluster, value: ValueId, reads_host: bool) {
    cluster.computes.push(value);
    match &mut cluster.kind {
        ClusterKind::Elementwise(bodies) => join_bodies(graph, bodies, value),
        ClusterKind::Scan(scan) => join_bodies(graph, &mut scan.extra, value),
        ClusterKind::Cumsum(sum) => join_bodies(graph, &mut sum.extra, value),
        ClusterKind::Rows(rows) if reads_host => rows.outputs.push(value),
        ClusterKind::Rows(rows) => join_bodies(graph, &mut rows.extra, value),
        ClusterKind::Product(_) | ClusterKind::Scatter(_) | ClusterKind::Choice(_) => {}
    }
}

/// Values of one shape share a body, so that what they have in common is computed once.
fn join_bodies(graph: &Graph, bodies: &mut Vec<Body>, value: ValueId) {
    let shape = &graph.ty(value).shape;
    match bodies.iter_mut().find(|body| graph.ty(body.outputs[0]).shape == *shape) {
        Some(body) => body.outputs.push(value),
        None => bodies.push(Body { outputs: vec![value] }),
    }
}

/// Groups in an order in which what they need comes before; ties in the order of creation.
fn run_order(fuser: &Fuser<'_>, clusters: &[(Group, Cluster)]) -> Vec<Group> {
    let mut needs = DiGraphMap::<Group, ()>::new();
    for group in 0..fuser.links.len() {
        needs.add_node(group);
    }
    for group in 0..fuser.links.len() {
        for need in fuser.links.needs(group) {
            needs.add_edge(need, group, ());
        }
    }
    // The position of a group's first node in the graph breaks ties, so that the order is the builder's where it can be.
    let graph = fuser.graph;
    let place_of = |group: Group| -> usize {
        let node = clusters
            .iter()
            .find(|(own, _)| *own == group)
            .and_then(|(_, cluster)| cluster.stores().first().map(|&value| graph.value(value).node));
        node.and_then(|node| graph.nodes().position(|(id, _)| id == node)).unwrap_or(usize::MAX)
    };
    let places: Vec<usize> = (0..fuser.links.len()).map(place_of).collect();
    let mut waiting: Vec<usize> =
        (0..fuser.links.len()).map(|group| needs.neighbors_directed(group, petgraph::Direction::Incoming).count()).collect();
    let mut ready: std::collections::BTreeSet<(usize, Group)> =
        (0..fuser.links.len()).filter(|&group| waiting[group] == 0).map(|group| (places[group], group)).collect();
    let mut order = Vec::new();
    while let Some((_, group)) = ready.pop_first() {
        order.push(group);
        for next in needs.neighbors(group) {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.insert((places[next], next));
            }
        }
    }
    order
}

impl Cluster {
    /// Bodies that stand beside what it is built around, or that are all it is.
    fn bodies(&self) -> &[Body] {
        match &self.kind {
            ClusterKind::Elementwise(bodies) => bodies,
            ClusterKind::Rows(rows) => &rows.extra,
            ClusterKind::Cumsum(sum) => &sum.extra,
            ClusterKind::Scan(scan) => &scan.extra,
            ClusterKind::Product(_) | ClusterKind::Scatter(_) | ClusterKind::Choice(_) => &[],
        }
    }

    /// Results of what it is built around and of its epilogue, stored or not; none of bodies.
    fn own_roots(&self) -> Vec<ValueId> {
        let mut roots = self.roots();
        roots.retain(|&root| !outputs_of(self.bodies()).any(|out| out == root));
        roots
    }

    /// Values whose computation the cluster is: its results, stored or not.
    #[must_use]
    pub fn roots(&self) -> Vec<ValueId> {
        let mut roots = self.stores();
        match &self.kind {
            ClusterKind::Product(product) => {
                roots.push(product.anchor);
                roots.extend(product.sides.iter().chain(&product.statistics));
            }
            ClusterKind::Scan(scan) => roots.extend([scan.y, scan.s_last].iter().chain(&scan.rows)),
            ClusterKind::Rows(rows) => roots.extend(&rows.reductions),
            ClusterKind::Cumsum(sum) => roots.push(sum.value),
            ClusterKind::Scatter(scatter) => roots.push(scatter.value),
            ClusterKind::Choice(choice) => roots.push(choice.value),
            ClusterKind::Elementwise(_) => {}
        }
        roots
    }
}

/// Loads behind a value from which on it is worth storing for its own sake.
const SMALL_LOADS: usize = 4;
/// How many times smaller than others a value is that is stored before them.
const SMALL_SHARE: u64 = 16;

/// Finds something to leave out of a cluster that binds too much; false if nothing can be.
pub fn shrink(ctx: &LowerCtx<'_>, cluster: &Cluster, fusion: &Fusion, bound: usize, forbidden: &mut super::Forbidden) -> bool {
    let (graph, target) = (ctx.graph, ctx.target);
    let numbering = graph.numbering();
    let limit = target.max_storage_buffers;
    let mut note = |value: ValueId| {
        let label = format!("%{} {}", numbering.of(value), graph.def(value).mnemonic());
        forbidden.reasons.push(format!("{label}: its kernel would bind {bound} buffers where {} has {limit}", target.name));
    };
    // Where much is over, much is left out at once; a few attempts have to do.
    let n_over = (bound.saturating_sub(limit as usize) / 2).max(1);
    for (place, &node) in cluster.droppable.iter().enumerate().rev().take(n_over) {
        let Some(value) = graph.node(node).results.iter().copied().find(|value| cluster.computes.contains(value)) else { continue };
        note(value);
        if place < cluster.n_epilogue {
            forbidden.epilogue.insert(node);
        } else if matches!(cluster.kind, ClusterKind::Elementwise(_)) {
            forbidden.alone.insert(value);
        } else {
            forbidden.merge.insert(value);
        }
    }
    if !cluster.droppable.is_empty() {
        return true;
    }
    // An inline value with many loads behind it is stored instead: a small one if there is, else the one with most.
    let roots = cluster.roots();
    let mut candidates: Vec<(usize, ValueId)> = Vec::new();
    for value in inline_values(graph, cluster, fusion) {
        let is_op = graph.def(value).op().is_some_and(|op| super::is_inline_op(op) && !super::is_view(op));
        if is_op && !roots.contains(&value) && !forbidden.inline.contains(&value) {
            candidates.push((leaves(graph, fusion, value).len(), value));
        }
    }
    let n_elems = |value: ValueId| super::typical(graph, ctx.dynamic, value);
    let largest = candidates.iter().map(|&(_, value)| n_elems(value)).max().unwrap_or(0);
    let is_small = |n: usize, value: ValueId| n >= SMALL_LOADS && n_elems(value).saturating_mul(SMALL_SHARE) <= largest;
    let rank = |&(n, value): &(usize, ValueId)| (is_small(n, value), n, std::cmp::Reverse(numbering.of(value)));
    let Some(&(n, value)) = candidates.iter().max_by_key(|candidate| rank(candidate)) else { return false };
    if n < 2 {
        return false;
    }
    note(value);
    forbidden.inline.insert(value);
    true
}

/// Values computed inline in a cluster, in the order of a walk from its roots.
fn inline_values(graph: &Graph, cluster: &Cluster, fusion: &Fusion) -> Vec<ValueId> {
    let mut open = cluster.roots();
    let roots = open.clone();
    let mut seen = Vec::new();
    while let Some(value) = open.pop() {
        let is_own = roots.contains(&value) || cluster.computes.contains(&value) || !fusion.stored.contains(&value);
        if seen.contains(&value) || !is_own || graph.def(value).op().is_none() {
            continue;
        }
        seen.push(value);
        open.extend(graph.def(value).present_operands());
    }
    seen
}

/// Stored values and sources that computing a value inline loads.
fn leaves(graph: &Graph, fusion: &Fusion, value: ValueId) -> Vec<ValueId> {
    let mut open: Vec<ValueId> = graph.def(value).present_operands().collect();
    let mut found = Vec::new();
    let mut seen = Vec::new();
    while let Some(value) = open.pop() {
        if seen.contains(&value) {
            continue;
        }
        seen.push(value);
        let node = graph.def(value);
        if fusion.stored.contains(&value) || node.op().is_none() {
            if !matches!(node.kind, NodeKind::Const(_)) {
                found.push(value);
            }
        } else {
            open.extend(node.present_operands());
        }
    }
    found
}

/// The clusters as text, for dumps.
#[must_use]
pub fn describe(graph: &Graph, fusion: &Fusion) -> String {
    use std::fmt::Write as _;
    let numbering = graph.numbering();
    let mut text = String::new();
    for (i, cluster) in fusion.clusters.iter().enumerate() {
        let kind = match &cluster.kind {
            ClusterKind::Elementwise(_) => "elementwise",
            ClusterKind::Rows(_) => "rows",
            ClusterKind::Cumsum(_) => "cumsum",
            ClusterKind::Product(_) => "product",
            ClusterKind::Scan(_) => "scan",
            ClusterKind::Scatter(_) => "scatter",
            ClusterKind::Choice(_) => "sample",
        };
        let list = |values: &[ValueId]| values.iter().map(|&value| format!("%{}", numbering.of(value))).collect::<Vec<_>>().join(" ");
        let inline = inline_values(graph, cluster, fusion).into_iter().filter(|value| !cluster.roots().contains(value)).collect::<Vec<_>>();
        let _ = writeln!(text, "cluster {i} {kind} stores {} inline {}", list(&cluster.stores()), list(&inline));
    }
    for reason in &fusion.not_fused {
        let _ = writeln!(text, "// not fused: {reason}");
    }
    text
}
