//! Guards the text form: random graphs print and parse back to the same graph, and no text whatever makes the parser panic.

use monopass_ir::graph::{Graph, Node, NodeKind};
use monopass_ir::types::{DType, TensorType};
use monopass_ir::{GraphBuilder, sample, text};
use proptest::prelude::*;

/// Kind, operands by number, result types and scope of a node.
type Outline = (NodeKind, Vec<Option<u32>>, Vec<TensorType>, String);

/// What the nodes are, with values by number instead of by key.
fn outline(graph: &Graph) -> Vec<Outline> {
    let numbers = graph.numbering();
    let of_node = |node: &Node| {
        let operands = node.operands.iter().map(|operand| operand.map(|value| numbers.of(value))).collect();
        let types = node.results.iter().map(|&value| graph.ty(value).clone()).collect();
        (node.kind.clone(), operands, types, node.scope.to_string())
    };
    graph.nodes().map(|(_, node)| of_node(node)).collect()
}

fn check_round_trip(graph: &Graph) -> Result<(), TestCaseError> {
    let printed = text::print(graph);
    let parsed = text::parse_one(&printed).map_err(|error| TestCaseError::fail(format!("{error}\n{printed}")))?;
    prop_assert_eq!(outline(&parsed), outline(graph));
    let named = |graph: &Graph, list: &[monopass_ir::graph::Named]| -> Vec<(String, u32)> {
        let numbers = graph.numbering();
        list.iter().map(|named| (named.name.clone(), numbers.of(named.value))).collect()
    };
    prop_assert_eq!(named(&parsed, &parsed.outputs), named(graph, &graph.outputs));
    prop_assert_eq!(named(&parsed, &parsed.updates), named(graph, &graph.updates));
    prop_assert_eq!(text::print(&parsed), printed);
    Ok(())
}

/// Pieces that mutations put in: all that the grammar has, and some that it has not.
const PIECES: [&str; 40] = [
    "ir",
    "1",
    "graph",
    "@",
    "{",
    "}",
    "[",
    "]",
    "=",
    ":",
    ",",
    "%",
    "%0",
    "%99999999999999999999",
    "\"",
    "\\",
    "\\u{",
    "input",
    "param",
    "state",
    "const",
    "output",
    "update",
    "matmul",
    "scan",
    "_",
    "-",
    "-0",
    "1e999",
    "99999999999999999999999",
    "0.1e-400",
    "f32",
    "bool[]",
    "f32[4294967295, 4294967295]",
    "true",
    "//",
    "\n",
    "\t\r",
    "é\u{0}",
    "@ a//b",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_read_back(seed: u64, size in 1_usize..48) {
        check_round_trip(&sample::graph(seed, size))?;
    }

    #[test]
    fn names_scopes_and_numbers_read_back(name in "\\PC*|[\\x00-\\x7f]+", scope in "[\\PC&&[^/]]+(/[\\PC&&[^/]]+)*", number: f32, axis in 0_usize..3) {
        prop_assume!(!name.is_empty() && number.is_finite());
        let builder = GraphBuilder::new("g");
        let guard = builder.scope(&scope);
        let x = builder.input_dynamic(&name, DType::F32, [3, 5, 1], &[axis]);
        let c = builder.constant(f64::from(number), DType::F32, []);
        let y = x.clamp(f64::from(number.min(0.0)), f64::from(number.max(0.0))) + c + x.number(0.1);
        builder.output(&name, y);
        drop(guard);
        check_round_trip(&builder.finish().map_err(|errors| TestCaseError::fail(errors.to_string()))?)?;
    }

    #[test]
    fn mutated_texts_never_panic(seed: u64, edits in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..4, 0..PIECES.len()), 1..6)) {
        let mut text: Vec<char> = text::print(&sample::graph(seed, 10)).chars().collect();
        for (place, n_removed, piece) in edits {
            let at = place.index(text.len() + 1);
            let end = (at + n_removed).min(text.len());
            text.splice(at..end, PIECES[piece].chars());
        }
        let text: String = text.into_iter().collect();
        match text::parse(&text) {
            Ok(graphs) => prop_assert!(graphs.iter().all(|graph| monopass_ir::verify::verify(graph).is_ok())),
            Err(error) => {
                prop_assert!(error.line >= 1 && error.line <= text.lines().count() + 1);
                prop_assert!(error.caret.ends_with('^') && !error.message.is_empty());
            }
        }
    }

    #[test]
    fn any_text_is_an_error_or_graphs(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = format!("ir 1\ngraph @g {{\n{}", String::from_utf8_lossy(&bytes));
        let _ = text::parse(&text);
        let _ = text::parse(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn several_graphs_read_back() {
    let graphs: Vec<Graph> = (0..3).map(|seed| sample::graph(seed, 5)).collect();
    let printed = text::print_all(&graphs);
    let parsed = text::parse(&printed).unwrap();
    assert_eq!(text::print_all(&parsed), printed);
    assert_eq!(parsed.len(), 3);
}

#[test]
fn any_layout_and_any_value_names_are_read() {
    let text = "\u{feff}ir 1 // a comment\r\ngraph @g { %x = input \"u\"\n{dynamic=[0]}:f32[3,5] // one\n%y=exp %x:f32[3,5]@a/b//c\noutput\"o\"=%y }";
    let graph = text::parse_one(text).unwrap();
    insta::assert_snapshot!(graph, @r#"
    graph @g {
      %0 = input "u" {dynamic = [0]} : f32[3, 5]
      %1 = exp %0 : f32[3, 5] @ a/b
      output "o" = %1
    }
    "#);
}

#[test]
fn constants_keep_their_bits() {
    for number in [0.1, -0.0, 5e-324, f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE), 1.0 / 3.0, 1e23, 123_456_789.0] {
        let builder = GraphBuilder::new("g");
        builder.output("y", builder.constant(number, DType::F32, [2]));
        // Integers are printed without a point.
        if number.fract() == 0.0 && number.abs() < 1e9 {
            builder.output("i", builder.constant(number, DType::I32, []));
        }
        let graph = text::parse_one(&text::print(&builder.finish().unwrap())).unwrap();
        for (_, node) in graph.nodes() {
            assert!(matches!(node.kind, NodeKind::Const(read) if read.to_bits() == number.to_bits()), "{number:?}");
        }
    }
}

#[test]
fn long_texts_take_time_in_proportion() {
    // Deep brackets, long lists, long lines, many graphs: none of it recurses or multiplies.
    for body in [
        "[".repeat(200_000),
        "%0 = input \"x\" : f32[".to_owned() + &"1, ".repeat(200_000),
        "\"".to_owned() + &"\\\"".repeat(200_000),
        "a".repeat(400_000),
    ] {
        let error = text::parse(&format!("ir 1\ngraph @g {{\n{body}")).unwrap_err();
        assert!(error.to_string().len() < 1000);
    }
}
