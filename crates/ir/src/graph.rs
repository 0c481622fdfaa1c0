//! The graph: nodes in topological order, typed values, outputs and updates.

use crate::op::{Op, OperandKind};
use crate::ops;
use crate::types::TensorType;
use slotmap::{SecondaryMap, SlotMap, new_key_type};
use std::sync::Arc;

new_key_type! {
    /// A node: a source or one application of an op.
    pub struct NodeId;
    /// One result of a node. Printed by its dense number, see [`Graph::numbering`].
    pub struct ValueId;
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// Given with every run. `dynamic` lists the axes whose size varies between runs (batch, length): kernels read
    /// those sizes from a small buffer, so another size of the same class needs no new pipeline.
    Input {
        /// Name, unique among inputs.
        name: String,
        /// Axes whose size varies.
        dynamic: Vec<usize>,
    },
    /// A weight: uploaded once, read-only in a forward pass.
    Param {
        /// Name, unique among params.
        name: String,
    },
    /// Lives between calls; replaced by an update of the same name.
    State {
        /// Name, unique among states.
        name: String,
        /// Axes whose size varies, as for an input.
        dynamic: Vec<usize>,
    },
    /// Every element is this number, converted to the element type (bool: anything but 0 is true).
    Const(f64),
    /// An application of an op.
    Op(Op),
}

/// A file position of the program that built a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Source file.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
}

/// A source or one application of an op.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Operands in the order of the op table; absent optional operands are `None`.
    pub operands: Vec<Option<ValueId>>,
    /// Results in the order of the op table.
    pub results: Vec<ValueId>,
    /// Block path, such as `layers.0/mixer/in_proj`; empty at the top.
    pub scope: Arc<str>,
    /// Where the program built it, if it was built by a program.
    pub location: Option<Location>,
}

impl Node {
    /// The op, if the node is an application.
    #[must_use]
    pub const fn op(&self) -> Option<&Op> {
        if let NodeKind::Op(op) = &self.kind { Some(op) } else { None }
    }

    /// Operands that are present.
    pub fn present_operands(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.operands.iter().flatten().copied()
    }

    /// What a reader calls it: the mnemonic, or the kind of source.
    #[must_use]
    pub const fn mnemonic(&self) -> &'static str {
        match &self.kind {
            NodeKind::Input { .. } => "input",
            NodeKind::Param { .. } => "param",
            NodeKind::State { .. } => "state",
            NodeKind::Const(_) => "const",
            NodeKind::Op(op) => op.mnemonic(),
        }
    }
}

/// Type and origin of a value.
#[derive(Clone, Debug)]
pub struct Value {
    /// Type.
    pub ty: TensorType,
    /// The node whose result it is.
    pub node: NodeId,
    /// Which result.
    pub result_idx: usize,
}

/// A value under a name that the caller sees: an output, or the new content of a state or param.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Name of the output, state or param.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// A tensor-op graph. Nodes are stored in an order in which operands come before their uses.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Name, an identifier.
    pub name: String,
    nodes: SlotMap<NodeId, Node>,
    values: SlotMap<ValueId, Value>,
    order: Vec<NodeId>,
    /// Results of a run, in order.
    pub outputs: Vec<Named>,
    /// New contents of states (and, in training graphs, of params), in order.
    pub updates: Vec<Named>,
}

/// Dense numbers of values, in graph order: `%3` is the value numbered 3.
#[derive(Clone, Debug)]
pub struct Numbering(SecondaryMap<ValueId, u32>);

impl Numbering {
    /// Number of a value; `u32::MAX` for a value of another graph.
    #[must_use]
    pub fn of(&self, value: ValueId) -> u32 {
        self.0.get(value).copied().unwrap_or(u32::MAX)
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Nodes in order.
    #[must_use]
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + '_ {
        self.order.iter().map(|&id| (id, &self.nodes[id]))
    }

    /// Number of nodes.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        self.order.len()
    }

    /// A node of this graph.
    ///
    /// # Panics
    /// If `id` belongs to another graph.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// A value of this graph.
    ///
    /// # Panics
    /// If `id` belongs to another graph.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id]
    }

    /// A value, if `id` is one of this graph.
    #[must_use]
    pub fn get_value(&self, id: ValueId) -> Option<&Value> {
        self.values.get(id)
    }

    /// Whether `id` is a value of this graph.
    #[must_use]
    pub fn has_value(&self, id: ValueId) -> bool {
        self.values.contains_key(id)
    }

    /// Type of a value.
    ///
    /// # Panics
    /// If `id` belongs to another graph.
    #[must_use]
    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.values[id].ty
    }

    /// The node whose result `value` is.
    ///
    /// # Panics
    /// If `value` belongs to another graph.
    #[must_use]
    pub fn def(&self, value: ValueId) -> &Node {
        &self.nodes[self.values[value].node]
    }

    /// The same graph for its sizes alone: no axis varies between runs.
    #[must_use]
    pub fn of_fixed_sizes(mut self) -> Self {
        for node in self.nodes.values_mut() {
            if let NodeKind::Input { dynamic, .. } | NodeKind::State { dynamic, .. } = &mut node.kind {
                dynamic.clear();
            }
        }
        self
    }

    /// The same graph with the params that `is_state` names as states, so that runs can replace them.
    #[must_use]
    pub fn with_params_as_states(mut self, is_state: impl Fn(&str) -> bool) -> Self {
        for node in self.nodes.values_mut() {
            if let NodeKind::Param { name } = &node.kind
                && is_state(name)
            {
                node.kind = NodeKind::State { name: name.clone(), dynamic: Vec::new() };
            }
        }
        self
    }

    /// Appends a source.
    pub fn push_source(&mut self, kind: NodeKind, ty: TensorType, scope: Arc<str>, location: Option<Location>) -> ValueId {
        self.push(kind, Vec::new(), vec![ty], scope, location)[0]
    }

    /// Appends an application of `op`, its result types inferred.
    ///
    /// # Errors
    /// The typing rule that the operands break, in words; see [`ops::infer`].
    pub fn push_op(
        &mut self,
        op: Op,
        operands: Vec<Option<ValueId>>,
        scope: Arc<str>,
        location: Option<Location>,
    ) -> Result<Vec<ValueId>, ops::TypeError> {
        if operands.iter().flatten().any(|&id| !self.has_value(id)) {
            return Err(ops::TypeError::new(format!("{}: an operand is not a value of this graph", op.mnemonic())));
        }
        let types: Vec<Option<&TensorType>> = operands.iter().map(|operand| operand.map(|id| self.ty(id))).collect();
        let results = ops::infer(&op, &types)?;
        Ok(self.push(NodeKind::Op(op), operands, results, scope, location))
    }

    /// Appends a node whose types are given and not checked; [`crate::verify`] does. For readers of text.
    pub fn push_unchecked(
        &mut self,
        kind: NodeKind,
        operands: Vec<Option<ValueId>>,
        types: Vec<TensorType>,
        scope: Arc<str>,
    ) -> Vec<ValueId> {
        self.push(kind, operands, types, scope, None)
    }

    pub(crate) fn push(
        &mut self,
        kind: NodeKind,
        operands: Vec<Option<ValueId>>,
        types: Vec<TensorType>,
        scope: Arc<str>,
        location: Option<Location>,
    ) -> Vec<ValueId> {
        let node = self.nodes.insert(Node { kind, operands, results: Vec::new(), scope, location });
        let results: Vec<ValueId> =
            types.into_iter().enumerate().map(|(result_idx, ty)| self.values.insert(Value { ty, node, result_idx })).collect();
        self.nodes[node].results.clone_from(&results);
        self.order.push(node);
        results
    }

    /// Dense numbers of the values, in graph order.
    #[must_use]
    pub fn numbering(&self) -> Numbering {
        let mut numbers = SecondaryMap::new();
        let mut next = 0;
        for (_, node) in self.nodes() {
            for &value in &node.results {
                numbers.insert(value, next);
                next += 1;
            }
        }
        Numbering(numbers)
    }

    /// For each value the nodes that read it, in graph order; a node that reads it twice is listed twice.
    #[must_use]
    pub fn uses(&self) -> SecondaryMap<ValueId, Vec<NodeId>> {
        let mut uses: SecondaryMap<ValueId, Vec<NodeId>> = self.values.keys().map(|value| (value, Vec::new())).collect();
        for (id, node) in self.nodes() {
            for operand in node.present_operands() {
                if let Some(users) = uses.get_mut(operand) {
                    users.push(id);
                }
            }
        }
        uses
    }

    /// Sources of one kind with their names, in order.
    pub fn sources(&self) -> impl Iterator<Item = (&str, ValueId, &Node)> + '_ {
        self.nodes().filter_map(|(_, node)| match &node.kind {
            NodeKind::Input { name, .. } | NodeKind::Param { name } | NodeKind::State { name, .. } => {
                node.results.first().map(|&value| (name.as_str(), value, node))
            }
            NodeKind::Const(_) | NodeKind::Op(_) => None,
        })
    }

    /// Name and value of each input, in order.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, ValueId)> + '_ {
        self.sources().filter(|(_, _, node)| matches!(node.kind, NodeKind::Input { .. })).map(|(name, value, _)| (name, value))
    }

    /// Name and value of each param, in order.
    pub fn params(&self) -> impl Iterator<Item = (&str, ValueId)> + '_ {
        self.sources().filter(|(_, _, node)| matches!(node.kind, NodeKind::Param { .. })).map(|(name, value, _)| (name, value))
    }

    /// Name and value of each state, in order.
    pub fn states(&self) -> impl Iterator<Item = (&str, ValueId)> + '_ {
        self.sources().filter(|(_, _, node)| matches!(node.kind, NodeKind::State { .. })).map(|(name, value, _)| (name, value))
    }

    /// The named operand of an op node, if present and not a list.
    #[must_use]
    pub fn operand(&self, node: &Node, name: &str) -> Option<ValueId> {
        let specs = node.op()?.info().operands;
        let idx = specs.iter().position(|spec| spec.name == name)?;
        if specs[idx].kind == OperandKind::List {
            return None;
        }
        node.operands.get(idx).copied().flatten()
    }
}
