//! Fusion: which ops share a kernel.
//!
//! - **Needs** a verified graph in which no output or update is a source, and the norm fold of [`super::fold_norm`].
//! - **Ensures** every value that a cluster stores is stored by exactly one cluster, clusters are in an order in which what
//!   they read has been stored, and no cluster binds more than the target allows.
//! - **Order**: last of the graph passes, since it fixes what is stored.
//!
//! Heavy ops (matrix products, reductions, prefixes, scans) are *anchors*, one cluster each. Elementwise ops over the result
//! of an anchor join its *epilogue*; sums over K of the left operand of a product join it as *sides*, and row
//! statistics that a product of few rows reads are computed by it; everything else
//! that can be computed at an index is *inline*, computed wherever it is needed, unless that would repeat heavy work,
//! in which case it is stored by an elementwise cluster.

mod clusters;
mod cuts;
mod decide;
mod epilogue;
mod few_tokens;
mod in_place;
mod links;
mod statistics;

pub use clusters::{Cluster, ClusterKind, describe, shrink};

use crate::dynamic::DynamicAxes;
use crate::emit::LowerCtx;
use few_tokens::FewTokens;
use indexmap::IndexSet;
use links::Links;
use monopass_ir::graph::Node;
use monopass_ir::op::{Accuracy, Class};
use monopass_ir::{DType, Graph, NodeId, Op, ValueId};
use slotmap::SecondaryMap;

/// Which fusions are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// Off: one kernel an op.
    pub fuse: bool,
    /// Off: every view (reshape, permute, slice, broadcast) is a copy kernel.
    pub views: bool,
}

/// The clusters of a graph, in order.
#[derive(Debug, Default)]
pub struct Fusion {
    /// Clusters in an order in which they can run.
    pub clusters: Vec<Cluster>,
    /// Values that have storage of their own.
    pub stored: IndexSet<ValueId>,
    /// What was not fused, and why, in graph order.
    pub not_fused: Vec<String>,
}

/// What an earlier attempt found not to fit, so that the next one leaves it out.
#[derive(Debug, Default)]
pub struct Forbidden {
    /// Nodes that may not join an epilogue.
    pub epilogue: IndexSet<NodeId>,
    /// Values that must be stored.
    pub inline: IndexSet<ValueId>,
    /// Values whose body may not join the cluster of an anchor.
    pub merge: IndexSet<ValueId>,
    /// Values whose body may not join any cluster.
    pub alone: IndexSet<ValueId>,
    /// Reasons to print.
    pub reasons: Vec<String>,
}

/// Groups the ops of a graph.
#[must_use]
pub fn fuse(ctx: &LowerCtx<'_>, options: FuseOptions, forbidden: &Forbidden) -> Fusion {
    let mut fuser = Fuser::new(ctx, options, forbidden);
    fuser.claim_anchors();
    if options.fuse {
        epilogue::absorb(&mut fuser);
        epilogue::add_sides(&mut fuser);
        statistics::add(&mut fuser);
        epilogue::release_cheap_ends(&mut fuser);
    }
    decide::store(&mut fuser);
    clusters::build(fuser)
}

/// The size that axes which vary are taken to have.
const TYPICAL: u64 = 64;

/// What an anchor's cluster is called while it grows.
type Group = usize;

#[derive(Clone, Debug)]
struct Anchor {
    node: NodeId,
    /// Values computed in the epilogue, in graph order; the anchor's own results are not among them.
    epilogue: Vec<ValueId>,
    sides: Vec<ValueId>,
    /// Reductions of a row that are computed before a product of few rows.
    statistics: Vec<ValueId>,
    /// Sums over the rows of a scan's result, which its kernel does; and the values of one number a row made from them.
    rows: Vec<ValueId>,
    of_rows: Vec<ValueId>,
    /// What the last state of a scan is stored as, if it is named under another shape alone.
    state: Option<ValueId>,
}

#[derive(Debug)]
struct Fuser<'a> {
    graph: &'a Graph,
    dynamic: &'a DynamicAxes,
    options: FuseOptions,
    forbidden: &'a Forbidden,
    /// Values that are stored so that no kernel binds more, and no expression nests deeper, than it may.
    cuts: IndexSet<ValueId>,
    /// Storage buffers that a kernel may bind.
    max_buffers: usize,
    /// Sums over rows of a scan's result that its kernel cannot do.
    apart: IndexSet<NodeId>,
    /// What scans over a few tokens are made from.
    few_tokens: FewTokens,
    /// Params that a kernel binds together.
    is_packed: IndexSet<ValueId>,
    uses: SecondaryMap<ValueId, Vec<NodeId>>,
    named: IndexSet<ValueId>,
    anchors: Vec<Anchor>,
    /// The group that computes a value; anchors' results, epilogues and sides.
    group_of: SecondaryMap<ValueId, Group>,
    links: Links,
    stored: IndexSet<ValueId>,
    not_fused: Vec<String>,
}

impl<'a> Fuser<'a> {
    fn new(ctx: &LowerCtx<'a>, options: FuseOptions, forbidden: &'a Forbidden) -> Self {
        let graph = ctx.graph;
        let max_buffers = ctx.target.max_storage_buffers as usize;
        let named: IndexSet<ValueId> = graph.outputs.iter().chain(&graph.updates).map(|named| named.value).collect();
        let is_apart = |value: ValueId| named.contains(&value) || forbidden.inline.contains(&value);
        let few_tokens = if options.fuse && options.views { few_tokens::find(graph, &is_apart) } else { FewTokens::default() };
        let is_inline = |id: NodeId| few_tokens.serial.contains(&id) || graph.node(id).op().is_some_and(is_inline_op);
        // One binding is left for the result.
        let cuts = if options.fuse { cuts::find(ctx, max_buffers.saturating_sub(1), &is_inline) } else { IndexSet::new() };
        Self {
            graph,
            dynamic: ctx.dynamic,
            options,
            forbidden,
            cuts,
            max_buffers,
            apart: IndexSet::new(),
            few_tokens,
            is_packed: graph.params().map(|(_, value)| value).filter(|&value| ctx.is_packed(value)).collect(),
            uses: graph.uses(),
            named,
            anchors: Vec::new(),
            group_of: SecondaryMap::new(),
            links: Links::default(),
            stored: IndexSet::new(),
            not_fused: forbidden.reasons.clone(),
        }
    }

    /// One group for each anchor, linked to the groups it needs.
    fn claim_anchors(&mut self) {
        for (id, node) in self.graph.nodes() {
            if node.op().is_none() || self.is_inline(id) {
                continue;
            }
            let needs: Vec<Group> = node.present_operands().flat_map(|operand| self.groups_behind(operand)).collect();
            let group = self.links.add(needs);
            self.anchors.push(Anchor {
                node: id,
                epilogue: Vec::new(),
                sides: Vec::new(),
                statistics: Vec::new(),
                rows: Vec::new(),
                of_rows: Vec::new(),
                state: self.renamed_state(node),
            });
            let stored_as = self.anchors.last().and_then(|anchor| anchor.state);
            for result in node.results.iter().copied().chain(stored_as) {
                self.group_of.insert(result, group);
            }
        }
    }

    /// The named reshape that alone reads the last state of a scan, which then is stored as that.
    fn renamed_state(&self, node: &Node) -> Option<ValueId> {
        let state = *node.results.get(1).filter(|_| matches!(node.op(), Some(Op::Scan { .. })) && self.options.views)?;
        let &[user] = self.uses[state].as_slice() else { return None };
        let reshaped = *self.graph.node(user).results.first()?;
        let is_reshape = matches!(self.graph.node(user).op(), Some(Op::Reshape { .. }));
        (is_reshape && self.named.contains(&reshaped) && !self.named.contains(&state)).then_some(reshaped)
    }

    /// Whether an op is computed where its result is read.
    fn is_inline(&self, node: NodeId) -> bool {
        self.few_tokens.serial.contains(&node) || self.graph.node(node).op().is_some_and(is_inline_op)
    }

    /// Groups that must have run before a value can be computed or loaded: those met first on each way back.
    fn groups_behind(&self, value: ValueId) -> Vec<Group> {
        let mut found = IndexSet::new();
        let mut seen: IndexSet<ValueId> = IndexSet::new();
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            if !seen.insert(value) {
                continue;
            }
            if let Some(&group) = self.group_of.get(value) {
                found.insert(group);
            } else {
                open.extend(self.graph.def(value).present_operands());
            }
        }
        found.into_iter().collect()
    }

    fn node_of(&self, value: ValueId) -> NodeId {
        self.graph.value(value).node
    }

    fn n_elems(&self, value: ValueId) -> u64 {
        self.graph.ty(value).n_elems()
    }

    /// Elements of a value at the typical size.
    fn typical(&self, value: ValueId) -> u64 {
        typical(self.graph, self.dynamic, value)
    }

    fn label(&self, value: ValueId) -> String {
        format!("%{} {}", self.graph.numbering().of(value), self.graph.def(value).mnemonic())
    }
}

/// Elements of a value if all axes that vary had one typical size, so that what is decided by them is the same for all lengths
/// and batches.
fn typical(graph: &Graph, dynamic: &DynamicAxes, value: ValueId) -> u64 {
    let sizes = graph.ty(value).shape.iter().enumerate();
    sizes.map(|(axis, &size)| if dynamic.is_dynamic(value, axis) { TYPICAL } else { size as u64 }).fold(1, u64::saturating_mul)
}

/// Whether an op can be computed at an index by the emitter.
#[must_use]
pub fn is_inline_op(op: &Op) -> bool {
    match op.class() {
        Class::Elementwise | Class::Movement | Class::Conv => true,
        Class::Index => !matches!(op, Op::ScatterAdd { .. }),
        Class::Reduction | Class::Prefix | Class::Contraction | Class::Scan | Class::ScanAdjoint | Class::Choice => false,
    }
}

/// Whether an op only gives its operand another index.
#[must_use]
pub fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Permute { .. } | Op::Slice { .. } | Op::Broadcast { .. })
}

/// Whether computing an op again and again costs more than loading its result.
fn is_heavy(op: &Op) -> bool {
    match op.class() {
        Class::Elementwise => op.accuracy() != Accuracy::Exact && !matches!(op, Op::Add {} | Op::Sub {} | Op::Mul {}),
        Class::Index | Class::Conv => true,
        Class::Movement | Class::Reduction | Class::Prefix | Class::Contraction | Class::Scan | Class::ScanAdjoint | Class::Choice => false,
    }
}

const fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

/// Whether a node is a scan that takes the step kernel.
fn is_step_scan(graph: &Graph, node: NodeId) -> bool {
    let node = graph.node(node);
    matches!(node.op(), Some(Op::Scan { .. })) && node.results.first().is_some_and(|&y| crate::kernels::scan::is_step(graph, y))
}
