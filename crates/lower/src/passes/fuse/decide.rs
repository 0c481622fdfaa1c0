//! Which values are stored: everything that others must find in memory, and heavy work that would be repeated.

use super::{Fuser, is_half, is_heavy, is_inline_op, is_step_scan, is_view};
use crate::kernels::choice;
use indexmap::{IndexMap, IndexSet};
use monopass_ir::graph::NodeKind;
use monopass_ir::op::Class;
use monopass_ir::{NodeId, Op, ValueId};
use slotmap::SecondaryMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Columns of a product's tile: how often its left operand is loaded is the number of tiles.
const TILE: u64 = 64;
/// Outputs of a workgroup of the product by rows.
const ROW_OUTPUTS: u64 = 4;
/// Elementwise ops from which on a chain is long.
const LONG_CHAIN: usize = 8;
/// How often the elements of a long chain are computed again before it is stored.
const REPEATS_OF_LONG: u64 = 16;
/// Elements up to which a value made from params is small.
const MAX_SMALL: u64 = 1 << 12;

/// How often the readers of a value ask for an element of it, if it is not stored.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// By products, reductions and scans.
    by_anchors: u64,
    /// By elementwise kernels and epilogues: for each way that leads to one, since what lies on the same way is computed once.
    by_way: IndexMap<u64, u64>,
}

/// Ways that are told apart; beyond this many they are added up.
const MAX_WAYS: usize = 64;

impl Asked {
    fn anchor(count: u64) -> Self {
        Self { by_anchors: count, by_way: IndexMap::new() }
    }

    /// By the kernel that computes `end`; bodies of one shape share a kernel.
    fn way(fuser: &Fuser<'_>, end: ValueId) -> Self {
        let kernel = (fuser.group_of.get(end), &fuser.graph.ty(end).shape);
        Self { by_anchors: 0, by_way: IndexMap::from([(digest(&kernel), fuser.typical(end))]) }
    }

    fn add(&mut self, other: &Self) {
        self.by_anchors = self.by_anchors.saturating_add(other.by_anchors);
        for (&way, &count) in &other.by_way {
            let own = self.by_way.entry(way).or_insert(0);
            *own = count.max(*own);
        }
        if self.by_way.len() > MAX_WAYS {
            let total = self.bodies();
            self.by_way = IndexMap::from([(0, total)]);
        }
    }

    /// The same through an op that asks for other elements than its own.
    fn through(&self, node: NodeId) -> Self {
        Self { by_anchors: self.by_anchors, by_way: self.by_way.iter().map(|(way, &count)| (digest(&(way, node)), count)).collect() }
    }

    fn bodies(&self) -> u64 {
        self.by_way.values().copied().fold(0, u64::saturating_add)
    }
}

/// A number for a way, the same in every run.
fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Fills the set of stored values.
pub(super) fn store(fuser: &mut Fuser<'_>) {
    let held = held(fuser);
    let small = from_params(fuser);
    let mut asked: SecondaryMap<ValueId, Asked> = SecondaryMap::new();
    let nodes: Vec<NodeId> = fuser.graph.nodes().map(|(id, _)| id).collect();
    for &id in nodes.iter().rev() {
        for &value in &fuser.graph.node(id).results {
            let count = all_asked(fuser, &asked, value);
            let is_stored = !held.contains_key(value) && must_store(fuser, value, &count, small.contains_key(value));
            // A value that is stored, or lives in its group's registers, is computed once an element, whoever reads it.
            let once = is_stored || fuser.group_of.contains_key(value);
            asked.insert(value, if once { Asked::way(fuser, value) } else { count });
            if is_stored {
                fuser.stored.insert(value);
            }
        }
    }
    fuser.stored.reverse();
}

/// Small values made from params alone, elementwise: cheaper to compute again than by a dispatch of their own.
fn from_params(fuser: &Fuser<'_>) -> SecondaryMap<ValueId, ()> {
    let mut found = SecondaryMap::new();
    for (_, node) in fuser.graph.nodes() {
        let is_one = match &node.kind {
            NodeKind::Param { .. } | NodeKind::Const(_) => true,
            NodeKind::Op(op) => {
                let is_pointwise = op.class() == Class::Elementwise || is_view(op);
                is_pointwise && node.present_operands().all(|operand| found.contains_key(operand))
            }
            NodeKind::Input { .. } | NodeKind::State { .. } => false,
        };
        found.extend(node.results.iter().filter(|&&value| is_one && fuser.n_elems(value) <= MAX_SMALL).map(|&value| (value, ())));
    }
    found
}

fn must_store(fuser: &mut Fuser<'_>, value: ValueId, asked: &Asked, is_small: bool) -> bool {
    let id = fuser.node_of(value);
    let node = fuser.graph.node(id);
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
    if !fuser.is_inline(id) {
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
    if !fuser.few_tokens.feeds.contains(&value) && is_branchy_operand(fuser, value) {
        let label = fuser.label(value);
        fuser.not_fused.push(format!("{label}: a product would choose among its parts for every element that it loads"));
        return true;
    }
    // A dispatch would cost more than what a few tokens, or a few params, take to compute again.
    let is_cheap = is_small || fuser.few_tokens.feeds.contains(&value);
    let count = if is_cheap { asked.by_anchors } else { asked.by_anchors.saturating_add(asked.bodies()) };
    let n_elems = fuser.typical(value);
    let is_long = || count > n_elems.saturating_mul(REPEATS_OF_LONG) && is_long_chain(fuser, value);
    // A row that is chosen from is read so often that even a cheap value is worth its store.
    let is_chosen_from = || users.iter().any(|&user| fuser.graph.node(user).op().is_some_and(|op| op.class() == Class::Choice));
    let repeats = if is_heavy(op) || is_chosen_from() { count > n_elems.saturating_mul(3) / 2 } else { is_long() };
    if repeats {
        let label = fuser.label(value);
        fuser.not_fused.push(format!("{label}: computed where it is read it would be computed {count} times for {n_elems} elements"));
    }
    repeats || is_half(fuser.graph.ty(value).dtype) && is_heavy(op)
}

/// Parts of a concatenation from which on a product does not choose among them itself.
const MANY_PARTS: usize = 3;

/// Whether a value is the outermost of nested concatenations of many parts that are computed, and a product reads it.
fn is_branchy_operand(fuser: &Fuser<'_>, value: ValueId) -> bool {
    let graph = fuser.graph;
    let is_concat = |node: NodeId| matches!(graph.node(node).op(), Some(Op::Concat { .. }));
    if !is_concat(fuser.node_of(value)) || fuser.uses[value].iter().any(|&user| is_concat(user)) {
        return false;
    }
    let (mut readers, mut feeds_product) = (fuser.uses[value].clone(), false);
    while let Some(reader) = readers.pop() {
        let Some(op) = graph.node(reader).op() else { continue };
        feeds_product |= op.class() == Class::Contraction;
        if is_view(op) {
            readers.extend(graph.node(reader).results.iter().flat_map(|&result| &fuser.uses[result]));
        }
    }
    let (mut n_parts, mut n_computed, mut open) = (0, 0, vec![value]);
    while let Some(value) = open.pop() {
        for operand in graph.def(value).present_operands() {
            if is_concat(fuser.node_of(operand)) && !fuser.group_of.contains_key(operand) {
                open.push(operand);
            } else {
                n_parts += 1;
                n_computed += usize::from(graph.def(operand).op().is_some_and(|op| op.class() == Class::Elementwise));
            }
        }
    }
    feeds_product && n_parts >= MANY_PARTS && n_computed > 0
}

/// Whether a value takes so many ops that loading it is less, and does not wait for a running sum, which would put another
/// dispatch between that and its readers.
fn is_long_chain(fuser: &Fuser<'_>, value: ValueId) -> bool {
    let graph = fuser.graph;
    let (mut n_ops, mut seen, mut open) = (0, IndexSet::from([value]), vec![value]);
    while let Some(value) = open.pop() {
        let Some(op) = graph.def(value).op() else { continue };
        if let Some(&group) = fuser.group_of.get(value) {
            if graph.node(fuser.anchors[group].node).op().is_some_and(|anchor| anchor.class() == Class::Prefix) {
                return false;
            }
            continue;
        }
        n_ops += usize::from(op.class() == Class::Elementwise);
        open.extend(graph.def(value).present_operands().filter(|&operand| seen.insert(operand)));
    }
    n_ops >= LONG_CHAIN && graph.def(value).op().is_some_and(|op| op.class() == Class::Elementwise)
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
fn all_asked(fuser: &Fuser<'_>, asked: &SecondaryMap<ValueId, Asked>, value: ValueId) -> Asked {
    let users: IndexSet<NodeId> = fuser.uses[value].iter().copied().collect();
    let mut all = Asked::default();
    for user in users {
        all.add(&asked_by(fuser, asked, value, user));
    }
    all
}

fn asked_by(fuser: &Fuser<'_>, asked: &SecondaryMap<ValueId, Asked>, value: ValueId, user: NodeId) -> Asked {
    let graph = fuser.graph;
    let node = graph.node(user);
    let n = fuser.typical(value);
    let Some(op) = node.op() else { return Asked::default() };
    let place = node.operands.iter().position(|&operand| operand == Some(value)).unwrap_or(0);
    let by_results = || {
        let mut all = Asked::default();
        node.results.iter().filter_map(|&result| asked.get(result)).for_each(|asked| all.add(asked));
        all
    };
    match op.class() {
        _ if fuser.few_tokens.serial.contains(&user) => by_results().through(user),
        Class::Contraction => Asked::anchor(n.saturating_mul(times_by_product(&graph.ty(node.results[0]).shape, place))),
        // A few tokens are staged once a workgroup, and what there is one of a token and head is little.
        Class::Scan if is_step_scan(graph, user) || matches!(place, 0 | 5 | 6 | 7) => Asked::default(),
        Class::Scan => Asked::anchor(n.saturating_mul(3)),
        Class::Conv if place == 0 => Asked::anchor(n.saturating_mul(node.operands[1].map_or(1, |w| graph.ty(w).shape[1]) as u64)),
        Class::Conv | Class::Reduction | Class::Prefix | Class::ScanAdjoint => Asked::anchor(n),
        Class::Elementwise => by_results(),
        Class::Choice => Asked::anchor(n.saturating_mul(choice::PASSES)),
        // Each workgroup looks through all ids.
        Class::Index if matches!(op, Op::ScatterAdd { .. }) => Asked::anchor(if place == 1 { n.saturating_mul(TILE) } else { n }),
        Class::Movement | Class::Index if matches!(op, Op::Reshape { .. }) => by_results(),
        Class::Movement | Class::Index => by_results().through(user),
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
