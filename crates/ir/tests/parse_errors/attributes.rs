//! Errors of attributes.

use crate::error_of;

#[test]
fn an_unknown_attribute_lists_the_known() {
    insta::assert_snapshot!(error_of("  %3 = matmul %0, %1 {transpose_c = true} : f32[3, 7]"), @r"
    matmul has no attribute transpose_c
      at line 6, column 23
      |   %3 = matmul %0, %1 {transpose_c = true} : f32[3, 7]
      |                       ^
      help: known: transpose_a, transpose_b
    ");
}

#[test]
fn an_attribute_of_an_op_without_any() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 {fast = true} : f32[3, 5]"), @r"
    exp has no attribute fast
      at line 6, column 16
      |   %3 = exp %0 {fast = true} : f32[3, 5]
      |                ^
      help: it has no attributes
    ");
}

#[test]
fn an_attribute_of_the_wrong_kind() {
    insta::assert_snapshot!(error_of("  %3 = matmul %0, %1 {transpose_b = 1} : f32[3, 7]"), @r"
    transpose_b of matmul expects true or false, found 1
      at line 6, column 37
      |   %3 = matmul %0, %1 {transpose_b = 1} : f32[3, 7]
      |                                     ^
    ");
}

#[test]
fn a_negative_axis() {
    insta::assert_snapshot!(error_of("  %3 = sum %0 {axes = [-1]} : f32[3]"), @r"
    axes of sum expects whole numbers in brackets, none of them negative, found [-1]
      at line 6, column 23
      |   %3 = sum %0 {axes = [-1]} : f32[3]
      |                       ^
    ");
}

#[test]
fn a_fraction_in_a_list() {
    insta::assert_snapshot!(error_of("  %3 = sum %0 {axes = [0, 1.5]} : f32[3]"), @r"
    1.5 is not a whole number of 64 bits
      at line 6, column 27
      |   %3 = sum %0 {axes = [0, 1.5]} : f32[3]
      |                           ^
    ");
}

#[test]
fn a_number_over_64_bits() {
    insta::assert_snapshot!(error_of("  %3 = argmax %0 {axis = 99999999999999999999} : u32[3]"), @r"
    axis of argmax expects a whole number that is not negative, found 1e20
      at line 6, column 26
      |   %3 = argmax %0 {axis = 99999999999999999999} : u32[3]
      |                          ^
    ");
}

#[test]
fn an_unknown_element_type_attribute() {
    insta::assert_snapshot!(error_of("  %3 = cast %0 {dtype = f64} : f32[3, 5]"), @r"
    dtype of cast expects one of f32, f16, bf16, i32, u32, bool, found f64
      at line 6, column 25
      |   %3 = cast %0 {dtype = f64} : f32[3, 5]
      |                         ^
    ");
}

#[test]
fn a_missing_attribute() {
    insta::assert_snapshot!(error_of("  %3 = concat %0, %0 : f32[6, 5]"), @r"
    concat needs the attribute axis
      at line 6, column 8
      |   %3 = concat %0, %0 : f32[6, 5]
      |        ^
      help: write {axis = …} after the operands
    ");
}

#[test]
fn an_attribute_given_twice() {
    insta::assert_snapshot!(error_of("  %3 = sum %0 {axes = [0],\n    axes = [1]} : f32[3]"), @r"
    the attribute axes is given twice
      at line 7, column 5
      |     axes = [1]} : f32[3]
      |     ^
      help: the first is on line 6
    ");
}

#[test]
fn attributes_not_closed() {
    insta::assert_snapshot!(error_of("  %3 = sum %0 {axes = [0] : f32[5]"), @r"
    expected }, found :
      at line 6, column 27
      |   %3 = sum %0 {axes = [0] : f32[5]
      |                           ^
    ");
}

#[test]
fn a_long_list() {
    insta::assert_snapshot!(error_of("  %3 = reshape %0 {shape = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 15, 1]} : f32[15]"), @r"
    more than 16 numbers in brackets
      at line 6, column 78
      |   %3 = reshape %0 {shape = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 15, 1]} : f32[15]
      |                                                                              ^
      help: a value has at most 16 axes
    ");
}

#[test]
fn a_missing_literal() {
    insta::assert_snapshot!(error_of("  %3 = sum %0 {axes = } : f32[5]"), @r"
    expected a literal: a number, true, false, a word or whole numbers in brackets, found }
      at line 6, column 23
      |   %3 = sum %0 {axes = } : f32[5]
      |                       ^
    ");
}

#[test]
fn an_attribute_of_a_param() {
    insta::assert_snapshot!(error_of(r#"  %3 = param "v" {dynamic = [0]} : f32[5]"#), @r#"
    param has no attribute dynamic
      at line 6, column 19
      |   %3 = param "v" {dynamic = [0]} : f32[5]
      |                   ^
      help: it has no attributes
    "#);
}

#[test]
fn an_unknown_attribute_of_an_input() {
    insta::assert_snapshot!(error_of(r#"  %3 = input "v" {varying = [0]} : f32[5]"#), @r#"
    input has no attribute varying
      at line 6, column 19
      |   %3 = input "v" {varying = [0]} : f32[5]
      |                   ^
      help: known: dynamic
    "#);
}

#[test]
fn a_dynamic_axis_over_the_rank() {
    insta::assert_snapshot!(error_of(r#"  %3 = input "v" {dynamic = [1]} : f32[5]"#), @r#"
    dynamic axis 1 of f32[5]
      at line 6, column 8
      |   %3 = input "v" {dynamic = [1]} : f32[5]
      |        ^
      help: use axes below the rank
    "#);
}
