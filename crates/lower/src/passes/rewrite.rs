//! Rebuilding a graph node by node, for passes that replace some of them.

use crate::dynamic::DynamicAxes;
use monopass_ir::graph::{Named, Node, NodeKind};
use monopass_ir::{Graph, NodeId, Op, TensorType, ValueId, compact};
use slotmap::SecondaryMap;
use std::sync::Arc;

/// The graph being written, and what became of the values of the old one.
#[derive(Debug)]
pub(super) struct Rewriter<'a> {
    old: &'a Graph,
    new: Graph,
    map: SecondaryMap<ValueId, ValueId>,
    dynamic: DynamicAxes,
    uses: SecondaryMap<ValueId, Vec<NodeId>>,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(old: &'a Graph) -> Self {
        Self { old, new: Graph::new(old.name.clone()), map: SecondaryMap::new(), dynamic: DynamicAxes::of(old), uses: old.uses() }
    }

    /// Axes that a slice cuts, see [`DynamicAxes::cut_axes`]; `x` is an old value.
    pub(super) fn cut_axes(&self, x: ValueId, starts: &[usize], to: &[usize]) -> Vec<usize> {
        self.dynamic.cut_axes(self.old, x, starts, to)
    }

    /// The node that makes an old value which one node alone reads, and nothing outside of the graph.
    pub(super) fn read_once(&self, old: ValueId) -> Option<&'a Node> {
        let is_named = self.old.outputs.iter().chain(&self.old.updates).any(|named| named.value == old);
        (self.uses.get(old)?.len() == 1 && !is_named).then(|| self.old.def(old))
    }

    /// Shape of an old value.
    pub(super) fn old_shape(&self, old: ValueId) -> &'a [usize] {
        &self.old.ty(old).shape
    }

    /// The new value that stands for an old one.
    pub(super) fn get(&self, old: ValueId) -> Option<ValueId> {
        self.map.get(old).copied()
    }

    /// Lets `new` stand for `old`.
    pub(super) fn set(&mut self, old: ValueId, new: ValueId) {
        self.map.insert(old, new);
    }

    /// The graph so far.
    pub(super) fn graph(&self) -> &Graph {
        &self.new
    }

    /// New operands of an old node.
    pub(super) fn operands(&self, node: &Node) -> Vec<Option<ValueId>> {
        node.operands.iter().map(|operand| operand.and_then(|value| self.get(value))).collect()
    }

    /// Copies a node as it is.
    pub(super) fn copy(&mut self, node: &Node) {
        let operands = self.operands(node);
        let types: Vec<TensorType> = node.results.iter().map(|&result| self.old.ty(result).clone()).collect();
        let results = self.new.push_unchecked(node.kind.clone(), operands, types, Arc::clone(&node.scope));
        for (&old, new) in node.results.iter().zip(results) {
            self.set(old, new);
        }
    }

    /// Appends an op in the scope of `near`; `None` if its operands do not fit, which leaves the caller to copy instead.
    pub(super) fn push(&mut self, op: Op, operands: &[ValueId], near: &Node) -> Option<ValueId> {
        self.push_with(op, operands.iter().map(|&value| Some(value)).collect(), near)
    }

    /// As [`push`](Self::push), of an op with optional operands.
    pub(super) fn push_with(&mut self, op: Op, operands: Vec<Option<ValueId>>, near: &Node) -> Option<ValueId> {
        self.new.push_op(op, operands, Arc::clone(&near.scope), near.location).ok()?.first().copied()
    }

    /// Appends a graph in place of a node: its inputs, called by number, are the operands, and its outputs, called likewise, stand
    /// for the results. What no output needs is left out.
    pub(super) fn inline(&mut self, part: &Graph, operands: &[Option<ValueId>], near: &Node) {
        let part = compact::compact(part);
        let numbered = |name: &str| name.parse::<usize>().ok();
        let mut map: SecondaryMap<ValueId, ValueId> = SecondaryMap::new();
        for (_, node) in part.nodes() {
            if let NodeKind::Input { name, .. } = &node.kind {
                if let Some(operand) = numbered(name).and_then(|idx| operands.get(idx).copied().flatten()) {
                    map.insert(node.results[0], operand);
                }
                continue;
            }
            let operands = node.operands.iter().map(|operand| operand.and_then(|value| map.get(value).copied())).collect();
            let types = node.results.iter().map(|&result| part.ty(result).clone()).collect();
            let results = self.new.push_unchecked(node.kind.clone(), operands, types, Arc::clone(&near.scope));
            node.results.iter().zip(results).for_each(|(&old, new)| {
                map.insert(old, new);
            });
        }
        for output in &part.outputs {
            let old = numbered(&output.name).and_then(|idx| near.results.get(idx).copied());
            if let (Some(old), Some(&new)) = (old, map.get(output.value)) {
                self.set(old, new);
            }
        }
    }

    /// The finished graph, with the old one's outputs and updates.
    pub(super) fn finish(mut self) -> Graph {
        let rename = |named: &Named| Some(Named { name: named.name.clone(), value: self.map.get(named.value).copied()? });
        self.new.outputs = self.old.outputs.iter().filter_map(rename).collect();
        self.new.updates = self.old.updates.iter().filter_map(rename).collect();
        self.new
    }
}
