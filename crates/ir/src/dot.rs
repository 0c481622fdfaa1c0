//! The graph as a picture, for Graphviz: one box an op, one arrow a value read, one frame a scope.

use crate::graph::{Graph, Node, NodeId, NodeKind, Numbering, ValueId};
use indexmap::IndexMap;
use petgraph::graph::DiGraph;
use petgraph::visit::EdgeRef;
use slotmap::SecondaryMap;
use std::fmt;

/// Who reads whom: nodes in graph order, with an edge from a node to each node that reads a value of it, one for each
/// time it does. For what is a graph problem: order, dominance, reachability.
#[must_use]
pub fn dataflow(graph: &Graph) -> DiGraph<NodeId, ValueId> {
    let mut flow = DiGraph::with_capacity(graph.n_nodes(), graph.n_nodes());
    let mut indices = SecondaryMap::new();
    for (id, node) in graph.nodes() {
        let reader = flow.add_node(id);
        indices.insert(id, reader);
        for value in node.present_operands() {
            if let Some(&writer) = graph.get_value(value).and_then(|value| indices.get(value.node)) {
                flow.add_edge(writer, reader, value);
            }
        }
    }
    flow
}

/// The graph in Graphviz's language. Equal graphs give equal bytes.
#[must_use]
pub fn dot(graph: &Graph) -> String {
    Picture(graph).to_string()
}

struct Picture<'g>(&'g Graph);

impl fmt::Display for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(graph) = self;
        let numbers = graph.numbering();
        let flow = dataflow(graph);
        writeln!(f, "digraph {} {{", quoted(&graph.name))?;
        f.write_str("  node [shape=box, fontname=\"monospace\"];\n  edge [fontname=\"monospace\"];\n")?;
        write_frames(f, graph, &numbers, &flow)?;
        for edge in flow.edge_references() {
            let value = *edge.weight();
            let ty = graph.get_value(value).map(|value| value.ty.to_string()).unwrap_or_default();
            let label = quoted(&format!("{} {ty}", value_name(&numbers, value)));
            writeln!(f, "  n{} -> n{} [label={label}];", edge.source().index(), edge.target().index())?;
        }
        let places: SecondaryMap<NodeId, usize> = flow.node_indices().map(|idx| (flow[idx], idx.index())).collect();
        for (prefix, keyword, list) in [("o", "output", &graph.outputs), ("u", "update", &graph.updates)] {
            for (i, named) in list.iter().enumerate() {
                let label = quoted(&format!("{keyword} {}", named.name));
                writeln!(f, "  {prefix}{i} [label={label}, shape=ellipse];")?;
                if let Some(place) = graph.get_value(named.value).and_then(|value| places.get(value.node)) {
                    writeln!(f, "  n{place} -> {prefix}{i} [label={}];", quoted(&value_name(&numbers, named.value)))?;
                }
            }
        }
        f.write_str("}\n")
    }
}

/// Nodes by scope, each scope in a frame within that of its parent path.
fn write_frames(f: &mut fmt::Formatter<'_>, graph: &Graph, numbers: &Numbering, flow: &DiGraph<NodeId, ValueId>) -> fmt::Result {
    let mut scopes: IndexMap<Vec<&str>, Vec<usize>> = IndexMap::new();
    for (i, (_, node)) in graph.nodes().enumerate() {
        let path = node.scope.split('/').filter(|segment| !segment.is_empty()).collect();
        scopes.entry(path).or_default().push(i);
    }
    // Sorted by segments, a path comes before those below it, and those below it come together.
    scopes.sort_keys();
    let mut open: Vec<&str> = Vec::new();
    let mut n_frames = 0;
    for (path, members) in &scopes {
        let n_common = open.iter().zip(path).take_while(|(a, b)| a == b).count();
        f.write_str(&"  }\n".repeat(open.len() - n_common))?;
        open.truncate(n_common);
        for &segment in &path[n_common..] {
            writeln!(f, "  subgraph cluster_{n_frames} {{ label={};", quoted(segment))?;
            n_frames += 1;
            open.push(segment);
        }
        for &i in members {
            let Some(&id) = flow.raw_nodes().get(i).map(|node| &node.weight) else { continue };
            let node = graph.node(id);
            writeln!(f, "  n{i} [label={}{}];", quoted(&label(numbers, node)), style(node))?;
        }
    }
    f.write_str(&"  }\n".repeat(open.len()))
}

fn label(numbers: &Numbering, node: &Node) -> String {
    let results: Vec<String> = node.results.iter().map(|&value| value_name(numbers, value)).collect();
    let mut label = format!("{} = {}", results.join(", "), node.mnemonic());
    match &node.kind {
        NodeKind::Input { name, .. } | NodeKind::Param { name } | NodeKind::State { name, .. } => label.push_str(&format!(" {name}")),
        NodeKind::Const(number) => label.push_str(&format!(" {number:?}")),
        NodeKind::Op(op) => {
            for (name, literal, is_default) in op.attrs() {
                if !is_default {
                    label.push_str(&format!("\n{name} = {literal}"));
                }
            }
        }
    }
    label
}

const fn style(node: &Node) -> &'static str {
    match node.kind {
        NodeKind::Input { .. } => ", shape=ellipse",
        NodeKind::Param { .. } => ", shape=ellipse, style=filled, fillcolor=gray90",
        NodeKind::State { .. } => ", shape=ellipse, style=dashed",
        NodeKind::Const(_) => ", shape=plain",
        NodeKind::Op(_) => "",
    }
}

fn value_name(numbers: &Numbering, value: ValueId) -> String {
    match numbers.of(value) {
        u32::MAX => "%?".to_owned(),
        number => format!("%{number}"),
    }
}

/// A string of Graphviz's language: quotes and backslashes escaped, line breaks as `\n`, other control characters as a dot.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push('.'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    #[test]
    fn scopes_are_nested_frames_and_names_are_escaped() {
        let text = r#"ir 1
graph @g {
  %0 = input "a \"quoted\" name" : f32[3, 5]
  %1 = exp %0 : f32[3, 5] @ m/b
  %2 = sum %1 {axes = [1]} : f32[3] @ m
  %3 = mul %1, %1 : f32[3, 5] @ m/b/c
  %4 = neg %3 : f32[3, 5] @ n
  output "y" = %2
  output "z" = %4
}
"#;
        insta::assert_snapshot!(dot(&text::parse_one(text).unwrap()), @r#"
        digraph "g" {
          node [shape=box, fontname="monospace"];
          edge [fontname="monospace"];
          n0 [label="%0 = input a \"quoted\" name", shape=ellipse];
          subgraph cluster_0 { label="m";
          n2 [label="%2 = sum\naxes = [1]"];
          subgraph cluster_1 { label="b";
          n1 [label="%1 = exp"];
          subgraph cluster_2 { label="c";
          n3 [label="%3 = mul"];
          }
          }
          }
          subgraph cluster_3 { label="n";
          n4 [label="%4 = neg"];
          }
          n0 -> n1 [label="%0 f32[3, 5]"];
          n1 -> n2 [label="%1 f32[3, 5]"];
          n1 -> n3 [label="%1 f32[3, 5]"];
          n1 -> n3 [label="%1 f32[3, 5]"];
          n3 -> n4 [label="%3 f32[3, 5]"];
          o0 [label="output y", shape=ellipse];
          n2 -> o0 [label="%2"];
          o1 [label="output z", shape=ellipse];
          n4 -> o1 [label="%4"];
        }
        "#);
    }
}
