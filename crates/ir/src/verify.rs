//! Invariants of a whole graph, checked on entry and after every pass.
//!
//! **Ids.** Each result of a node is a value of this graph that knows its node and its place in it. Each operand,
//! output and update names a value of this graph.
//!
//! **Order.** Each value is defined once, and before the nodes that read it.
//!
//! **Types.** The results of an op are what [`ops::infer`] says of its operands. A source has no operands and one result.
//! No value has more than [`MAX_RANK`] axes or [`MAX_ELEMS`] elements. Dynamic axes of a source are below its rank, in
//! ascending order. Constants and float attributes are finite numbers, constants also in the range of their element
//! type; whole numbers of attributes fit 63 bits, so that they have a text form.
//!
//! **States.** Inputs, params and states have names, and no two of them the same one; neither have two outputs. An update
//! names a state or param that the graph has, with the type of the new content; each has at most one. The graph has at
//! least one output or update.
//!
//! **Scopes.** A scope is empty or a path of segments that are not empty, without control characters. The graph's name is
//! an identifier.
//!
//! Not checked: that the values of a run are in the domain of the ops (`log` of a negative number, an index outside its
//! table), and that an op does not depend on the size of a dynamic axis.

use crate::error::{OpSite, VerifyError, VerifyErrors};
use crate::graph::{Graph, Named, Node, NodeId, NodeKind, Numbering, ValueId};
use crate::op::{Literal, Op};
use crate::ops;
use crate::text::is_identifier;
use crate::types::{DType, MAX_ELEMS, MAX_RANK, TensorType};
use half::{bf16, f16};
use indexmap::{IndexMap, IndexSet};
use slotmap::SecondaryMap;
use std::sync::Arc;

/// Checks every invariant and returns all that do not hold. Never panics, whatever the graph.
///
/// # Errors
/// One [`VerifyError`] for each broken invariant.
pub fn verify(graph: &Graph) -> Result<(), VerifyErrors> {
    let mut verifier =
        Verifier { graph, numbers: graph.numbering(), defined: SecondaryMap::new(), sources: IndexMap::new(), errors: Vec::new() };
    if !is_identifier(&graph.name) {
        verifier.error(
            OpSite::default(),
            format!("the name {:?} of the graph is not an identifier", graph.name),
            "use letters, digits and underscores",
        );
    }
    for (id, node) in graph.nodes() {
        verifier.node(id, node);
    }
    verifier.outputs();
    verifier.updates();
    if verifier.errors.is_empty() { Ok(()) } else { Err(VerifyErrors(verifier.errors)) }
}

struct Verifier<'g> {
    graph: &'g Graph,
    numbers: Numbering,
    /// Values defined so far.
    defined: SecondaryMap<ValueId, ()>,
    /// Inputs, params and states by name, with whether an update may name them and their type.
    sources: IndexMap<&'g str, (bool, Option<&'g TensorType>)>,
    errors: Vec<VerifyError>,
}

const FINITE: &str = "use the largest finite number instead of infinity";

impl<'g> Verifier<'g> {
    fn error(&mut self, site: OpSite, message: impl Into<String>, help: impl Into<Option<&'static str>>) {
        self.errors.push(VerifyError { message: message.into(), site: Box::new(site), help: help.into().map(str::to_owned) });
    }

    fn at(&mut self, node: &Node, message: impl Into<String>, help: impl Into<Option<&'static str>>) {
        let value = node.results.first().and_then(|&value| self.number(value));
        let site = OpSite { value, scope: Arc::clone(&node.scope), location: node.location };
        self.error(site, format!("{}: {}", node.mnemonic(), message.into()), help);
    }

    fn number(&self, value: ValueId) -> Option<u32> {
        Some(self.numbers.of(value)).filter(|number| *number != u32::MAX)
    }

    fn node(&mut self, id: NodeId, node: &'g Node) {
        let n_errors = self.errors.len();
        self.operands(node);
        // Results are defined after the operands were looked up, so a node that reads itself is found.
        self.results(id, node);
        self.scope(node);
        match &node.kind {
            NodeKind::Input { name, dynamic } => self.source(node, name, dynamic, false),
            NodeKind::State { name, dynamic } => self.source(node, name, dynamic, true),
            NodeKind::Param { name } => self.source(node, name, &[], true),
            NodeKind::Const(number) => {
                self.arity_of_source(node);
                self.constant(node, *number);
            }
            NodeKind::Op(op) => {
                self.attributes(node, op);
                // A typing rule has nothing to say of operands that are wrong already.
                if self.errors.len() == n_errors {
                    self.op_types(node, op);
                }
            }
        }
    }

    fn operands(&mut self, node: &Node) {
        for (idx, operand) in node.operands.iter().enumerate() {
            let Some(value) = *operand else { continue };
            if !self.graph.has_value(value) {
                self.at(node, format!("operand {idx} is not a value of this graph"), None);
            } else if !self.defined.contains_key(value) {
                let name = self.number(value).map_or_else(|| "a value that no node defines".to_owned(), |number| format!("%{number}"));
                self.at(node, format!("operand {idx} is {name}, which is not defined before"), "put the node that defines it first");
            }
        }
    }

    fn results(&mut self, id: NodeId, node: &Node) {
        for (idx, &result) in node.results.iter().enumerate() {
            let Some(value) = self.graph.get_value(result) else {
                self.at(node, format!("result {idx} is not a value of this graph"), None);
                continue;
            };
            if value.node != id || value.result_idx != idx {
                self.at(node, format!("result {idx} belongs to another node or place"), None);
            }
            if self.defined.insert(result, ()).is_some() {
                self.at(node, format!("result {idx} is defined a second time"), None);
            }
            let ty = &value.ty;
            if ty.rank() > MAX_RANK {
                self.at(node, format!("result {idx} has {} axes, the most is {MAX_RANK}", ty.rank()), "reshape it to fewer axes");
            } else if ty.n_elems() > MAX_ELEMS {
                self.at(
                    node,
                    format!("result {idx} {ty} has more than {MAX_ELEMS} elements"),
                    "split the batch or the length into several runs",
                );
            }
        }
    }

    fn scope(&mut self, node: &Node) {
        let is_path = node.scope.is_empty() || node.scope.split('/').all(|segment| !segment.is_empty());
        if !is_path || node.scope.chars().any(char::is_control) {
            self.at(node, format!("scope {:?} is not a path", node.scope), "join segments that are not empty with /");
        }
    }

    fn source(&mut self, node: &'g Node, name: &'g str, dynamic: &[usize], is_mutable: bool) {
        self.arity_of_source(node);
        let ty = node.results.first().and_then(|&value| self.graph.get_value(value)).map(|value| &value.ty);
        if name.is_empty() {
            self.at(node, "the name is empty", "name it");
        }
        if self.sources.insert(name, (is_mutable, ty)).is_some() {
            self.at(node, format!("the name {name:?} is taken"), "inputs, params and states need different names");
        }
        if let Some(axis) = dynamic.iter().find(|axis| ty.is_some_and(|ty| **axis >= ty.rank())) {
            self.at(node, format!("dynamic axis {axis} of {name:?} is not below the rank"), None);
        }
        if !dynamic.is_sorted_by(|a, b| a < b) {
            self.at(node, format!("dynamic axes {dynamic:?} of {name:?} are not in ascending order"), "name each axis once");
        }
    }

    fn arity_of_source(&mut self, node: &Node) {
        if !node.operands.is_empty() || node.results.len() != 1 {
            self.at(node, format!("has {} operands and {} results, not 0 and 1", node.operands.len(), node.results.len()), None);
        }
    }

    fn constant(&mut self, node: &Node, number: f64) {
        let dtype = node.results.first().and_then(|&value| self.graph.get_value(value)).map_or(DType::F32, |value| value.ty.dtype);
        let is_whole_in = |lo: f64, hi: f64| number.fract() == 0.0 && (lo..=hi).contains(&number);
        #[expect(clippy::cast_possible_truncation, reason = "whether it overflows is the question")]
        let (is_known, help) = match dtype {
            DType::F32 => ((number as f32).is_finite(), FINITE),
            DType::F16 => (f16::from_f64(number).is_finite(), FINITE),
            DType::Bf16 => (bf16::from_f64(number).is_finite(), FINITE),
            DType::I32 => (is_whole_in(i32::MIN.into(), i32::MAX.into()), "an i32 is a whole number from -2147483648 to 2147483647"),
            DType::U32 => (is_whole_in(0.0, u32::MAX.into()), "a u32 is a whole number from 0 to 4294967295"),
            DType::Bool => (is_whole_in(0.0, 1.0), "a bool is 0 or 1"),
            DType::I8 => (false, "i8 is for params; cast an i32"),
        };
        if !is_known {
            let is_not = if dtype.is_float() { "not a finite" } else { "no value of" };
            self.at(node, format!("{number:?} is {is_not} {dtype}"), help);
        }
    }

    fn attributes(&mut self, node: &Node, op: &Op) {
        for (name, literal, _) in op.attrs() {
            let has_text = match &literal {
                Literal::Float(number) => number.is_finite(),
                // Larger numbers are printed as the largest.
                Literal::Int(int) => *int < i64::MAX,
                Literal::List(list) => list.iter().all(|int| *int < i64::MAX),
                Literal::Bool(_) | Literal::Word(_) => true,
            };
            if !has_text {
                self.at(node, format!("attribute {name} = {literal} is out of range"), "use a finite number below 2^63");
            }
        }
    }

    fn op_types(&mut self, node: &Node, op: &Op) {
        let ty = |id: ValueId| self.graph.get_value(id).map(|value| &value.ty);
        let operands: Vec<Option<&TensorType>> = node.operands.iter().map(|operand| operand.and_then(ty)).collect();
        let results: Vec<&TensorType> = node.results.iter().filter_map(|&id| ty(id)).collect();
        match ops::infer(op, &operands) {
            Ok(inferred) if inferred.iter().eq(results.iter().copied()) => {}
            Ok(inferred) => {
                let message = format!("results are {}, the op gives {}", list(results.into_iter()), list(inferred.iter()));
                self.at(node, message, None);
            }
            Err(error) => {
                let site = OpSite {
                    value: node.results.first().and_then(|&v| self.number(v)),
                    scope: Arc::clone(&node.scope),
                    location: node.location,
                };
                let help = error.help_text().map(str::to_owned);
                self.errors.push(VerifyError { message: error.to_string(), site: Box::new(site), help });
            }
        }
    }

    fn outputs(&mut self) {
        let graph = self.graph;
        if graph.outputs.is_empty() && graph.updates.is_empty() {
            self.error(OpSite::default(), format!("graph @{} has neither outputs nor updates", graph.name), "name a result with output");
        }
        let mut names = IndexSet::new();
        for Named { name, value } in &graph.outputs {
            if name.is_empty() {
                self.error(OpSite::default(), "the name of an output is empty", "name it");
            }
            if !names.insert(name) {
                self.error(OpSite::default(), format!("two outputs have the name {name:?}"), "name them differently");
            }
            self.named_value("output", name, *value);
        }
    }

    fn updates(&mut self) {
        let graph = self.graph;
        let mut names = IndexSet::new();
        for Named { name, value } in &graph.updates {
            if !names.insert(name) {
                self.error(OpSite::default(), format!("{name:?} has two updates"), "a state or param has at most one");
            }
            let ty = self.named_value("update", name, *value);
            match self.sources.get(name.as_str()).copied() {
                Some((true, old)) => {
                    if let (Some(new), Some(old)) = (ty, old)
                        && new != old
                    {
                        let site = OpSite { value: self.number(*value), ..OpSite::default() };
                        self.error(site, format!("update of {name:?}: the new content is {new}, the old is {old}"), None);
                    }
                }
                Some((false, _)) => self.error(OpSite::default(), format!("update of {name:?}: it is an input"), "make it a state"),
                None => self.error(OpSite::default(), format!("update of {name:?}: there is no state or param of this name"), None),
            }
        }
    }

    /// Type of the value of an output or update; an error unless a node defines it.
    fn named_value(&mut self, what: &str, name: &str, id: ValueId) -> Option<&'g TensorType> {
        let value = self.graph.get_value(id).filter(|_| self.defined.contains_key(id));
        if value.is_none() {
            self.error(OpSite::default(), format!("{what} {name:?} is not a value of this graph"), None);
        }
        value.map(|value| &value.ty)
    }
}

fn list<'a>(types: impl Iterator<Item = &'a TensorType>) -> String {
    let types: Vec<String> = types.map(ToString::to_string).collect();
    if types.is_empty() { "none".to_owned() } else { types.join(", ") }
}
