//! Values of the forward pass that the backward pass computes again, so that they need not be kept until then.
//!
//! The nodes of a forward pass fall into *segments* by the first part of their scope, such as a model's layers. What other segments
//! read of a segment is kept; all else that adjoints read of it is computed from that a second time, where it is needed.
//!
//! - **Needs** a verified graph whose adjoints stand in the scope [`GRADIENT_SCOPE`].
//! - **Ensures** no adjoint reads a value of the segments named, unless another segment does; what is computed again stands among the
//!   adjoints; the graph means what it meant.
//! - **Order**: after `canonicalize`, which would find the same value computed twice.

use indexmap::{IndexMap, IndexSet};
use monopass_ir::autodiff::GRADIENT_SCOPE;
use monopass_ir::graph::{Named, Node};
use monopass_ir::{Graph, TensorType, ValueId};
use slotmap::SecondaryMap;
use std::sync::Arc;

/// The segment of a node's scope; `None` for adjoints, and for nodes outside of any scope.
fn segment(node: &Node) -> Option<&str> {
    let first = node.scope.split('/').next().unwrap_or_default();
    (!first.is_empty() && first != GRADIENT_SCOPE).then_some(first)
}

/// Whether a node is an adjoint, or what adjoints compute again.
pub(in crate::passes) fn is_adjoint(node: &Node) -> bool {
    node.scope.split('/').next() == Some(GRADIENT_SCOPE)
}

/// Segments of which adjoints read what no other segment reads, in the order of the graph: the earlier, the longer it is kept.
#[must_use]
pub fn segments(graph: &Graph) -> Vec<String> {
    let kept = kept(graph);
    let mut found: IndexSet<&str> = IndexSet::new();
    for (_, node) in graph.nodes().filter(|(_, node)| is_adjoint(node)) {
        for operand in node.present_operands() {
            let def = graph.def(operand);
            if def.op().is_some() && !kept.contains_key(operand) {
                found.extend(segment(def));
            }
        }
    }
    let order: IndexSet<&str> = graph.nodes().filter_map(|(_, node)| segment(node)).collect();
    order.into_iter().filter(|name| found.contains(name)).map(str::to_owned).collect()
}

/// Values that a segment hands to others, and those that leave the graph.
fn kept(graph: &Graph) -> SecondaryMap<ValueId, ()> {
    let mut kept: SecondaryMap<ValueId, ()> = graph.outputs.iter().chain(&graph.updates).map(|named| (named.value, ())).collect();
    for (_, node) in graph.nodes().filter(|(_, node)| !is_adjoint(node)) {
        for operand in node.present_operands().filter(|&operand| segment(graph.def(operand)) != segment(node)) {
            kept.insert(operand, ());
        }
    }
    kept
}

/// The graph whose adjoints compute again what they read of the segments named.
#[must_use]
pub fn recompute(graph: &Graph, names: &[String]) -> Graph {
    let mut copier = Copier {
        old: graph,
        new: Graph::new(graph.name.clone()),
        map: SecondaryMap::new(),
        again: IndexMap::new(),
        kept: kept(graph),
        names,
    };
    for (_, node) in graph.nodes() {
        let operands = node.operands.iter().map(|operand| {
            let operand = (*operand)?;
            if is_adjoint(node) { copier.for_adjoint(operand) } else { copier.map.get(operand).copied() }
        });
        let operands = operands.collect();
        let results = copier.push(node, operands, Arc::clone(&node.scope));
        copier.map.extend(node.results.iter().copied().zip(results));
    }
    let rename = |named: &Named| Some(Named { name: named.name.clone(), value: copier.map.get(named.value).copied()? });
    copier.new.outputs = graph.outputs.iter().filter_map(rename).collect();
    copier.new.updates = graph.updates.iter().filter_map(rename).collect();
    copier.new
}

struct Copier<'a> {
    old: &'a Graph,
    new: Graph,
    map: SecondaryMap<ValueId, ValueId>,
    /// What a value of a segment is called where it is computed the second time.
    again: IndexMap<ValueId, ValueId>,
    kept: SecondaryMap<ValueId, ()>,
    names: &'a [String],
}

impl Copier<'_> {
    fn push(&mut self, node: &Node, operands: Vec<Option<ValueId>>, scope: Arc<str>) -> Vec<ValueId> {
        let types: Vec<TensorType> = node.results.iter().map(|&result| self.old.ty(result).clone()).collect();
        self.new.push_unchecked(node.kind.clone(), operands, types, scope)
    }

    fn is_again(&self, value: ValueId) -> bool {
        let node = self.old.def(value);
        let is_named = segment(node).is_some_and(|own| self.names.iter().any(|name| name == own));
        node.op().is_some() && is_named && !self.kept.contains_key(value)
    }

    /// What an adjoint reads in the place of an old value.
    fn for_adjoint(&mut self, value: ValueId) -> Option<ValueId> {
        // Without recursion: a segment may be a chain of any length.
        let mut open = vec![value];
        while let Some(&value) = open.last() {
            if !self.is_again(value) || self.again.contains_key(&value) {
                open.pop();
                continue;
            }
            let node = self.old.def(value);
            let waiting: Vec<ValueId> =
                node.present_operands().filter(|&operand| self.is_again(operand) && !self.again.contains_key(&operand)).collect();
            if !waiting.is_empty() {
                open.extend(waiting);
                continue;
            }
            let operands = node.operands.iter().map(|operand| {
                let operand = (*operand)?;
                self.again.get(&operand).copied().or_else(|| self.map.get(operand).copied())
            });
            let scope = Arc::from(format!("{GRADIENT_SCOPE}/{}", node.scope));
            let results = self.push(node, operands.collect(), scope);
            self.again.extend(node.results.iter().copied().zip(results));
            open.pop();
        }
        self.again.get(&value).copied().or_else(|| self.map.get(value).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monopass_ir::DType;
    use monopass_ir::GraphBuilder;
    use monopass_ir::compact::compact;
    use monopass_ir::eval::Interpreter;
    use monopass_ir::sample;

    /// Two layers, each `x + tanh(x w)`, and the adjoint of the first input and of the weights.
    fn layers() -> Graph {
        let g = GraphBuilder::new("layers");
        let x = g.input("x", DType::F32, [3, 5]);
        let mut hidden = x;
        let mut wrt = vec![x];
        for layer in 0..2 {
            let _scope = g.scope(&format!("layers.{layer}"));
            let w = g.param(&format!("w{layer}"), DType::F32, [5, 5]);
            hidden = hidden + hidden.matmul(w, false, false).exp().tanh();
            wrt.push(w);
        }
        let gradients = g.gradients(&[(hidden, g.constant(1.0, DType::F32, [3, 5]))], &wrt);
        g.output("y", hidden);
        for (i, gradient) in gradients.into_iter().flatten().enumerate() {
            g.output(&format!("d{i}"), gradient);
        }
        g.finish().unwrap()
    }

    #[test]
    fn what_adjoints_read_is_computed_again() {
        let graph = layers();
        assert_eq!(segments(&graph), ["layers.0", "layers.1"]);
        let n_exp = |graph: &Graph| compact(graph).nodes().filter(|(_, node)| node.mnemonic() == "exp").count();
        assert_eq!(n_exp(&graph), 2);
        let again = recompute(&graph, &["layers.0".to_owned()]);
        assert_eq!(n_exp(&again), 3);
        assert_eq!(segments(&again), ["layers.1"]);
        let all = recompute(&graph, &segments(&graph));
        assert_eq!(n_exp(&all), 4);
        let (inputs, params, states) = sample::inputs(&graph, 5);
        let run = |graph: &Graph| Interpreter::new(graph).unwrap().run(&inputs, &params, &mut states.clone()).unwrap();
        assert_eq!(run(&graph), run(&again));
        assert_eq!(run(&graph), run(&all));
    }

    #[test]
    fn a_graph_without_adjoints_stays() {
        let g = GraphBuilder::new("plain");
        let x = g.input("x", DType::F32, [4]);
        let y = {
            let _scope = g.scope("layer");
            x.exp().tanh()
        };
        g.output("y", y);
        let graph = g.finish().unwrap();
        assert!(segments(&graph).is_empty());
        assert_eq!(monopass_ir::text::print(&recompute(&graph, &[])), monopass_ir::text::print(&graph));
    }
}
