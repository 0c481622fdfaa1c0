//! Guards the verifier: each invariant of `verify.rs` is broken once and found, all at once, and no damage makes it panic.

use monopass_ir::graph::{Graph, Named, NodeKind, ValueId};
use monopass_ir::types::{DType, TensorType};
use monopass_ir::verify::verify;
use monopass_ir::{Op, compact, dot, sample, text};
use proptest::prelude::*;
use std::sync::Arc;

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn input(graph: &mut Graph, name: &str, ty: TensorType) -> ValueId {
    graph.push_source(NodeKind::Input { name: name.to_owned(), dynamic: Vec::new() }, ty, Arc::from(""), None)
}

fn output(graph: &mut Graph, name: &str, value: ValueId) {
    graph.outputs.push(Named { name: name.to_owned(), value });
}

fn update(graph: &mut Graph, name: &str, value: ValueId) {
    graph.updates.push(Named { name: name.to_owned(), value });
}

/// A graph with an input `x` and an output of it, then damaged; the messages of the verifier, one a line.
fn errors_after(damage: impl FnOnce(&mut Graph, ValueId)) -> String {
    let mut graph = Graph::new("g");
    let x = input(&mut graph, "x", f32s(&[3, 5]));
    output(&mut graph, "y", x);
    damage(&mut graph, x);
    // Whatever the damage, these do not panic.
    let _ = (text::print(&graph), dot::dot(&graph), compact::compact(&graph));
    verify(&graph).map_or_else(|errors| errors.to_string(), |()| "no error".to_owned())
}

/// A key that the small graphs of these tests do not have.
fn foreign_value() -> ValueId {
    let mut other = Graph::new("other");
    let mut last = input(&mut other, "x", f32s(&[]));
    for i in 0..100 {
        last = input(&mut other, &format!("x{i}"), f32s(&[]));
    }
    last
}

#[test]
fn ids() {
    insta::assert_snapshot!(errors_after(|graph, _| output(graph, "z", foreign_value())), @r#"output "z" is not a value of this graph"#);
    insta::assert_snapshot!(errors_after(|graph, _| {
        graph.push_unchecked(NodeKind::Op(Op::Exp {}), vec![Some(foreign_value())], vec![f32s(&[3])], Arc::from("a/b"));
    }), @r"
    exp: operand 0 is not a value of this graph
      at %1 in a/b
    ");
}

#[test]
fn order() {
    // Keys of two graphs that are built alike are alike, so a later value can be named before it exists.
    let mut twin = Graph::new("g");
    let x = input(&mut twin, "x", f32s(&[3, 5]));
    let first = twin.push_op(Op::Exp {}, vec![Some(x)], Arc::from(""), None).unwrap();
    let second = twin.push_op(Op::Exp {}, vec![Some(first[0])], Arc::from(""), None).unwrap();
    insta::assert_snapshot!(errors_after(|graph, _| {
        graph.push_unchecked(NodeKind::Op(Op::Exp {}), vec![Some(second[0])], vec![f32s(&[3, 5])], Arc::from(""));
        graph.push_unchecked(NodeKind::Op(Op::Exp {}), vec![Some(second[0])], vec![f32s(&[3, 5])], Arc::from(""));
    }), @r"
    exp: operand 0 is %2, which is not defined before
      at %1
      help: put the node that defines it first
    exp: operand 0 is %2, which is not defined before
      at %2
      help: put the node that defines it first
    ");
}

#[test]
fn types() {
    let exp = |operands: Vec<Option<ValueId>>, types: Vec<TensorType>| {
        move |graph: &mut Graph, _: ValueId| {
            graph.push_unchecked(NodeKind::Op(Op::Exp {}), operands, types, Arc::from(""));
        }
    };
    let x = input(&mut Graph::new("g"), "x", f32s(&[3, 5]));
    insta::assert_snapshot!(errors_after(exp(vec![Some(x)], vec![f32s(&[5, 3])])), @r"
    exp: results are f32[5, 3], the op gives f32[3, 5]
      at %1
    ");
    insta::assert_snapshot!(errors_after(exp(vec![Some(x)], vec![])), @"exp: results are none, the op gives f32[3, 5]");
    insta::assert_snapshot!(errors_after(exp(vec![None], vec![f32s(&[])])), @r"
    exp: operand x is missing
      at %1
    ");
    insta::assert_snapshot!(errors_after(|graph, x| {
        graph.push_unchecked(NodeKind::Param { name: "w".to_owned() }, vec![Some(x)], vec![], Arc::from(""));
    }), @"param: has 1 operands and 0 results, not 0 and 1");
    insta::assert_snapshot!(errors_after(|graph, _| {
        input(graph, "many", f32s(&[usize::MAX, 2]));
        input(graph, "deep", f32s(&[1; 17]));
    }), @r"
    input: result 0 f32[18446744073709551615, 2] has more than 4294967295 elements
      at %1
      help: split the batch or the length into several runs
    input: result 0 has 17 axes, the most is 16
      at %2
      help: reshape it to fewer axes
    ");
}

#[test]
fn numbers() {
    let source =
        |graph: &mut Graph, kind: NodeKind, dtype: DType| graph.push_source(kind, TensorType::new(dtype, [2]), Arc::from(""), None);
    insta::assert_snapshot!(errors_after(|graph, x| {
        source(graph, NodeKind::Const(f64::NAN), DType::I32);
        source(graph, NodeKind::Const(70_000.0), DType::F16);
        source(graph, NodeKind::Const(1e39), DType::Bf16);
        source(graph, NodeKind::Input { name: "u".to_owned(), dynamic: vec![1, 0] }, DType::F32);
        let op = Op::Clamp { lo: 0.0, hi: f64::INFINITY };
        graph.push_unchecked(NodeKind::Op(op), vec![Some(x)], vec![f32s(&[3, 5])], Arc::from(""));
    }), @r#"
    const: NaN is no value of i32
      at %1
      help: an i32 is a whole number from -2147483648 to 2147483647
    const: 70000.0 is not a finite f16
      at %2
      help: use the largest finite number instead of infinity
    const: 1e39 is not a finite bf16
      at %3
      help: use the largest finite number instead of infinity
    input: dynamic axis 1 of "u" is not below the rank
      at %4
    input: dynamic axes [1, 0] of "u" are not in ascending order
      at %4
      help: name each axis once
    clamp: attribute hi = inf is out of range
      at %5
      help: use a finite number below 2^63
    "#);
}

#[test]
fn states_and_names() {
    insta::assert_snapshot!(errors_after(|graph, x| {
        graph.name = "not an identifier".to_owned();
        graph.push_source(NodeKind::Param { name: "x".to_owned() }, f32s(&[2]), Arc::from(""), None);
        let s = graph.push_source(NodeKind::State { name: "s".to_owned(), dynamic: Vec::new() }, f32s(&[2]), Arc::from(""), None);
        input(graph, "", f32s(&[2]));
        output(graph, "y", x);
        output(graph, "", x);
        update(graph, "s", x);
        update(graph, "s", s);
        update(graph, "t", s);
    }), @r#"
    the name "not an identifier" of the graph is not an identifier
      help: use letters, digits and underscores
    param: the name "x" is taken
      at %1
      help: inputs, params and states need different names
    input: the name is empty
      at %3
      help: name it
    two outputs have the name "y"
      help: name them differently
    the name of an output is empty
      help: name it
    update of "s": the new content is f32[3, 5], the old is f32[2]
      at %0
    "s" has two updates
      help: a state or param has at most one
    update of "t": there is no state or param of this name
    "#);
    insta::assert_snapshot!(errors_after(|graph, x| update(graph, "x", x)), @r#"
    update of "x": it is an input
      help: make it a state
    "#);
    insta::assert_snapshot!(errors_after(|graph, _| graph.outputs.clear()), @r"
    graph @g has neither outputs nor updates
      help: name a result with output
    ");
}

#[test]
fn scopes() {
    for scope in ["/", "a//b", "a/", "/a", "a\nb"] {
        let found = errors_after(|graph, x| {
            graph.push_unchecked(NodeKind::Op(Op::Exp {}), vec![Some(x)], vec![f32s(&[3, 5])], Arc::from(scope));
        });
        assert!(found.starts_with(&format!("exp: scope {scope:?} is not a path")), "{found}");
    }
    assert_eq!(
        errors_after(|graph, x| {
            graph.push_unchecked(NodeKind::Op(Op::Exp {}), vec![Some(x)], vec![f32s(&[3, 5])], Arc::from("layers.0/mixer"));
        }),
        "no error"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mixed_up_graphs_never_panic(seed: u64, other: u64, rotation in 0_usize..40) {
        // The nodes of one graph with the operands of another: keys alias, miss, point forwards.
        let (from, to) = (sample::graph(seed, 16), sample::graph(other, 16));
        let operands: Vec<Vec<Option<ValueId>>> = from.nodes().map(|(_, node)| node.operands.clone()).collect();
        let mut mixed = Graph::new("mixed");
        for (i, (_, node)) in to.nodes().enumerate() {
            let types = node.results.iter().map(|&value| to.ty(value).clone()).take(i % 3).collect();
            let stolen = operands[(i + rotation) % operands.len()].clone();
            mixed.push_unchecked(node.kind.clone(), stolen, types, node.scope.clone());
        }
        mixed.outputs.clone_from(&from.outputs);
        mixed.updates.clone_from(&to.updates);
        prop_assert!(verify(&mixed).is_err());
        let _ = (text::print(&mixed), dot::dot(&mixed), compact::compact(&mixed), sample::inputs(&mixed, seed));
    }

    #[test]
    fn compacting_is_idempotent_and_keeps_what_is_needed(seed: u64, keep in 0_usize..4) {
        let mut graph = sample::graph(seed, 20);
        graph.outputs.truncate(keep.max(1));
        let compacted = compact::compact(&graph);
        verify(&compacted).map_err(|errors| TestCaseError::fail(errors.to_string()))?;
        prop_assert_eq!(text::print(&compact::compact(&compacted)), text::print(&compacted));
        prop_assert!(compacted.n_nodes() <= graph.n_nodes());
        prop_assert_eq!(compacted.outputs.len(), graph.outputs.len());
        prop_assert_eq!(compacted.inputs().count(), graph.inputs().count());
        let uses = compacted.uses();
        for (_, node) in compacted.nodes().filter(|(_, node)| node.op().is_some()) {
            let is_named = |value: &ValueId| compacted.outputs.iter().chain(&compacted.updates).any(|named| named.value == *value);
            prop_assert!(node.results.iter().any(|value| is_named(value) || !uses[*value].is_empty()));
        }
    }
}
