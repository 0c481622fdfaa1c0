//! Errors of names, scopes and strings.

use crate::error_of;

#[test]
fn a_name_given_twice() {
    insta::assert_snapshot!(error_of(r#"  %3 = param "x" : f32[5]"#), @r#"
    the name "x" is given twice
      at line 6, column 14
      |   %3 = param "x" : f32[5]
      |              ^
      help: the first is on line 3
    "#);
}

#[test]
fn an_output_given_twice() {
    insta::assert_snapshot!(error_of("  output \"y\" = %0\n  output \"y\" = %1"), @r#"
    output "y" is given twice
      at line 7, column 10
      |   output "y" = %1
      |          ^
      help: the first is on line 6
    "#);
}

#[test]
fn a_state_updated_twice() {
    insta::assert_snapshot!(error_of("  update \"s\" = %2\n  update \"s\" = %2"), @r#"
    the update of "s" is given twice
      at line 7, column 10
      |   update "s" = %2
      |          ^
      help: the first is on line 6
    "#);
}

#[test]
fn an_update_of_nothing() {
    insta::assert_snapshot!(error_of(r#"  update "t" = %2"#), @r#"
    there is no state or param "t" to update
      at line 6, column 10
      |   update "t" = %2
      |          ^
      help: define it above, as state or param
    "#);
}

#[test]
fn an_update_of_an_input() {
    insta::assert_snapshot!(error_of(r#"  update "x" = %0"#), @r#"
    "x" is an input, which has no update
      at line 6, column 10
      |   update "x" = %0
      |          ^
      help: make it a state
    "#);
}

#[test]
fn an_update_of_another_type() {
    insta::assert_snapshot!(error_of(r#"  update "s" = %0"#), @r#"
    update of "s": the new content is f32[3, 5], the old is f32[3, 7]
      at line 6, column 16
      |   update "s" = %0
      |                ^
    "#);
}

#[test]
fn an_unnamed_source() {
    insta::assert_snapshot!(error_of("  %3 = input : f32[5]"), @r"
    expected the name of the input in quotes, found :
      at line 6, column 14
      |   %3 = input : f32[5]
      |              ^
    ");
}

#[test]
fn an_empty_name() {
    insta::assert_snapshot!(error_of("  %3 = input \"\" : f32[5]\n  output \"y\" = %0"), @r#"
    input: the name is empty
      at line 6, column 3
      |   %3 = input "" : f32[5]
      |   ^
      help: name it
    "#);
}

#[test]
fn a_name_without_quotes() {
    insta::assert_snapshot!(error_of("  output y = %0"), @r"
    expected the name of the output in quotes, found y
      at line 6, column 10
      |   output y = %0
      |          ^
    ");
}

#[test]
fn a_string_not_closed() {
    insta::assert_snapshot!(error_of(r#"  output "y = %0"#), @r#"
    the string is not closed
      at line 6, column 10
      |   output "y = %0
      |          ^
      help: end it with " on the same line; write a quote as \" and a line break as \n
    "#);
}

#[test]
fn an_unknown_escape() {
    insta::assert_snapshot!(error_of(r#"  output "a\q" = %0"#), @r#"
    unknown escape in a string
      at line 6, column 12
      |   output "a\q" = %0
      |            ^
      help: known are \" \\ \n \r \t and \u{hex}
    "#);
}

#[test]
fn an_escape_that_is_no_character() {
    insta::assert_snapshot!(error_of(r#"  output "a\u{d800}" = %0"#), @r#"
    unknown escape in a string
      at line 6, column 12
      |   output "a\u{d800}" = %0
      |            ^
      help: known are \" \\ \n \r \t and \u{hex}
    "#);
}

#[test]
fn a_missing_scope() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 : f32[3, 5] @\n  output \"y\" = %3"), @r"
    expected a scope path, found the end of the line
      at line 6, column 28
      |   %3 = exp %0 : f32[3, 5] @
      |                            ^
    ");
}

#[test]
fn a_scope_with_an_empty_segment() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 : f32[3, 5] @ a/\n  output \"y\" = %3"), @r#"
    exp: scope "a/" is not a path
      at line 6, column 3
      |   %3 = exp %0 : f32[3, 5] @ a/
      |   ^
      help: join segments that are not empty with /
    "#);
}
