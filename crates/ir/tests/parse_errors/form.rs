//! Errors in the form of lines, graphs and files.

use crate::{error_of, error_of_text};

#[test]
fn a_character_from_nowhere() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 ; f32[3, 5]"), @r"
    unexpected character ';'
      at line 6, column 15
      |   %3 = exp %0 ; f32[3, 5]
      |               ^
    ");
}

#[test]
fn a_line_that_starts_with_an_op() {
    insta::assert_snapshot!(error_of("  exp %0 : f32[3, 5]"), @r"
    expected a value, output, update or }, found exp
      at line 6, column 3
      |   exp %0 : f32[3, 5]
      |   ^
      help: a line looks like %3 = exp %2 : f32[4]
    ");
}

#[test]
fn a_bad_number() {
    insta::assert_snapshot!(error_of("  %3 = const 1.5x : f32[]"), @r"
    bad number
      at line 6, column 14
      |   %3 = const 1.5x : f32[]
      |              ^
      help: numbers look like 3, -0.5 or 1e-6; infinity and NaN have no text form
    ");
}

#[test]
fn infinity_has_no_literal() {
    insta::assert_snapshot!(error_of("  %3 = const inf : f32[]"), @r"
    expected a number, found inf
      at line 6, column 14
      |   %3 = const inf : f32[]
      |              ^
    ");
}

#[test]
fn a_constant_over_its_type() {
    insta::assert_snapshot!(error_of("  %3 = const 1e39 : f32[]\n  output \"y\" = %3"), @r"
    const: 1e39 is not a finite f32
      at line 6, column 3
      |   %3 = const 1e39 : f32[]
      |   ^
      help: use the largest finite number instead of infinity
    ");
}

#[test]
fn a_number_out_of_range() {
    insta::assert_snapshot!(error_of("  %3 = const 1e400 : f32[]"), @r"
    the number is out of range
      at line 6, column 14
      |   %3 = const 1e400 : f32[]
      |              ^
      help: at most 1.7976931348623157e308 in size
    ");
}

#[test]
fn a_nameless_value() {
    insta::assert_snapshot!(error_of("  % = const 1.0 : f32[]"), @r"
    a value needs a name or number after %
      at line 6, column 3
      |   % = const 1.0 : f32[]
      |   ^
    ");
}

#[test]
fn a_graph_in_a_graph() {
    insta::assert_snapshot!(error_of("  graph @h {"), @r"
    expected a value, output, update or }, found graph
      at line 6, column 3
      |   graph @h {
      |   ^
      help: a line looks like %3 = exp %2 : f32[4]
    ");
}

#[test]
fn a_graph_without_results() {
    insta::assert_snapshot!(error_of(""), @r"
    graph @g has neither outputs nor updates
      at line 2, column 8
      | graph @g {
      |        ^
      help: name a result with output
    ");
}

#[test]
fn tabs_and_letters_of_several_bytes_keep_the_caret_in_place() {
    insta::assert_snapshot!(error_of("\t%3 = input \"größe\" : f32[5] ; é"), @r#"
    unexpected character ';'
      at line 6, column 30
      |  %3 = input "größe" : f32[5] ; é
      |                              ^
    "#);
}

#[test]
fn an_empty_text() {
    assert!(error_of_text("").starts_with("expected ir, found the end of the text\n  at line 1, column 1\n"));
}

#[test]
fn another_file_altogether() {
    insta::assert_snapshot!(error_of_text("{\"a\": 1}\n"), @r#"
    expected ir, found {
      at line 1, column 1
      | {"a": 1}
      | ^
      help: the first line of a text is ir 1
    "#);
}

#[test]
fn a_version_of_the_future() {
    insta::assert_snapshot!(error_of_text("ir 2\n"), @r"
    version 2 of the text form is not known
      at line 1, column 4
      | ir 2
      |    ^
      help: this program reads version 1
    ");
}

#[test]
fn a_version_that_is_no_number() {
    insta::assert_snapshot!(error_of_text("ir one\n"), @r"
    expected the version of the text form, found one
      at line 1, column 4
      | ir one
      |    ^
    ");
}

#[test]
fn a_graph_not_closed() {
    insta::assert_snapshot!(error_of_text("ir 1\ngraph @g {\n  %0 = input \"x\" : f32[3, 5]\n  output \"y\" = %0\n"), @r"
    the graph is not closed
      at line 2, column 10
      | graph @g {
      |          ^
      help: end it with }
    ");
}

#[test]
fn a_graph_without_a_name() {
    insta::assert_snapshot!(error_of_text("ir 1\ngraph {\n}\n"), @r"
    expected @, found {
      at line 2, column 7
      | graph {
      |       ^
    ");
}

#[test]
fn a_graph_whose_name_is_a_number() {
    insta::assert_snapshot!(error_of_text("ir 1\ngraph @7 {\n}\n"), @r"
    expected the name of the graph, found 7
      at line 2, column 8
      | graph @7 {
      |        ^
    ");
}

#[test]
fn two_graphs_of_one_name() {
    insta::assert_snapshot!(error_of_text("ir 1\ngraph @g { %0 = input \"x\" : f32[3] output \"y\" = %0 }\n\ngraph @g { %0 = input \"x\" : f32[3] output \"y\" = %0 }\n"), @r#"
    graph @g is given twice
      at line 4, column 8
      | graph @g { %0 = input "x" : f32[3] output "y" = %0 }
      |        ^
      help: the first is on line 2
    "#);
}

#[test]
fn text_after_the_graph() {
    insta::assert_snapshot!(error_of_text("ir 1\ngraph @g { %0 = input \"x\" : f32[3] output \"y\" = %0 }\n}\n"), @r#"
    expected graph, found the end of the line
      at line 2, column 53
      | graph @g { %0 = input "x" : f32[3] output "y" = %0 }
      |                                                     ^
    "#);
}
