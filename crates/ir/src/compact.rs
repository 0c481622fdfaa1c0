//! Drops what nothing needs, and renumbers.
//!
//! What stays: nodes that an output or update reads, directly or not; the params that an update names; and every input
//! and state, because they are the signature that callers bind to. Other params, constants and ops go.

use crate::graph::{Graph, Named, Node, NodeId, NodeKind, ValueId};
use indexmap::IndexSet;
use slotmap::SecondaryMap;

/// The graph without what nothing needs, in the same order. Compacting twice is compacting once.
#[must_use]
pub fn compact(graph: &Graph) -> Graph {
    compact_with_map(graph).0
}

/// As [`compact`], with the new value of each old value that stays.
#[must_use]
pub fn compact_with_map(graph: &Graph) -> (Graph, SecondaryMap<ValueId, ValueId>) {
    let needed = needed_nodes(graph);
    let mut values: SecondaryMap<ValueId, ValueId> = SecondaryMap::new();
    let mut compacted = Graph::new(graph.name.clone());
    for (id, node) in graph.nodes() {
        if !needed.contains_key(id) {
            continue;
        }
        let operands = node.operands.iter().map(|operand| operand.map(|value| new_value(&values, value))).collect();
        let types = node.results.iter().filter_map(|&value| graph.get_value(value)).map(|value| value.ty.clone()).collect();
        let results = compacted.push(node.kind.clone(), operands, types, node.scope.clone(), node.location);
        values.extend(node.results.iter().copied().zip(results));
    }
    let rename =
        |list: &[Named]| list.iter().map(|named| Named { name: named.name.clone(), value: new_value(&values, named.value) }).collect();
    compacted.outputs = rename(&graph.outputs);
    compacted.updates = rename(&graph.updates);
    (compacted, values)
}

/// Only a damaged graph has values without a new one; they stay what they are, for the verifier to find.
fn new_value(values: &SecondaryMap<ValueId, ValueId>, old: ValueId) -> ValueId {
    values.get(old).copied().unwrap_or(old)
}

fn needed_nodes(graph: &Graph) -> SecondaryMap<NodeId, ()> {
    let updated: IndexSet<&str> = graph.updates.iter().map(|update| update.name.as_str()).collect();
    let mut read: SecondaryMap<ValueId, ()> = graph.outputs.iter().chain(&graph.updates).map(|named| (named.value, ())).collect();
    let mut needed = SecondaryMap::new();
    // Operands point backwards, so one walk from the end sees every reader before what it reads.
    for (id, node) in graph.nodes().rev() {
        if is_signature(node, &updated) || node.results.iter().any(|&value| read.contains_key(value)) {
            needed.insert(id, ());
            read.extend(node.present_operands().map(|value| (value, ())));
        }
    }
    needed
}

fn is_signature(node: &Node, updated: &IndexSet<&str>) -> bool {
    match &node.kind {
        NodeKind::Input { .. } | NodeKind::State { .. } => true,
        NodeKind::Param { name } => updated.contains(name.as_str()),
        NodeKind::Const(_) | NodeKind::Op(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    const TEXT: &str = r#"ir 1
graph @g {
  %0 = input "x" : f32[3, 5]
  %1 = param "unused" : f32[7]
  %2 = param "updated" : f32[3, 5]
  %3 = state "s" : f32[1]
  %4 = const 2.0 : f32[]
  %5 = const 3.0 : f32[]
  %6 = mul %0, %4 : f32[3, 5] @ a/b
  %7 = exp %6 : f32[3, 5]
  output "y" = %6
  update "updated" = %0
}
"#;

    #[test]
    fn what_nothing_needs_goes_and_the_signature_stays() {
        let compacted = compact(&text::parse_one(TEXT).unwrap());
        insta::assert_snapshot!(text::print(&compacted), @r#"
        ir 1
        graph @g {
          %0 = input "x" : f32[3, 5]
          %1 = param "updated" : f32[3, 5]
          %2 = state "s" : f32[1]
          %3 = const 2.0 : f32[]
          %4 = mul %0, %3 : f32[3, 5] @ a/b
          output "y" = %4
          update "updated" = %0
        }
        "#);
        assert_eq!(text::print(&compact(&compacted)), text::print(&compacted));
    }

    #[test]
    fn the_map_leads_to_the_same_node() {
        let graph = text::parse_one(TEXT).unwrap();
        let (compacted, values) = compact_with_map(&graph);
        assert_eq!(values.len(), 5);
        for (old, &new) in &values {
            assert_eq!(graph.def(old).kind, compacted.def(new).kind);
            assert_eq!(graph.ty(old), compacted.ty(new));
        }
    }
}
