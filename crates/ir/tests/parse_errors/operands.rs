//! Errors of ops and their operands.

use crate::error_of;

#[test]
fn an_unknown_op_suggests_the_nearest() {
    insta::assert_snapshot!(error_of("  %3 = matmull %0, %1 {transpose_b = true} : f32[3, 7]"), @r#"
    unknown op "matmull"
      at line 6, column 8
      |   %3 = matmull %0, %1 {transpose_b = true} : f32[3, 7]
      |        ^
      help: did you mean matmul?
    "#);
}

#[test]
fn an_unknown_op_far_from_all_suggests_nothing() {
    insta::assert_snapshot!(error_of("  %3 = convolve_twice %0 : f32[3, 5]"), @r#"
    unknown op "convolve_twice"
      at line 6, column 8
      |   %3 = convolve_twice %0 : f32[3, 5]
      |        ^
    "#);
}

#[test]
fn a_value_from_nowhere() {
    insta::assert_snapshot!(error_of("  %3 = exp %9 : f32[3, 5]"), @r"
    %9 is not defined before this line
      at line 6, column 12
      |   %3 = exp %9 : f32[3, 5]
      |            ^
      help: values are defined above their uses
    ");
}

#[test]
fn a_value_of_a_later_line() {
    insta::assert_snapshot!(error_of("  %3 = exp %4 : f32[3, 5]\n  %4 = exp %0 : f32[3, 5]"), @r"
    %4 is not defined before this line
      at line 6, column 12
      |   %3 = exp %4 : f32[3, 5]
      |            ^
      help: values are defined above their uses
    ");
}

#[test]
fn a_value_that_reads_itself() {
    insta::assert_snapshot!(error_of("  %3 = exp %3 : f32[3, 5]"), @r"
    %3 is not defined before this line
      at line 6, column 12
      |   %3 = exp %3 : f32[3, 5]
      |            ^
      help: values are defined above their uses
    ");
}

#[test]
fn too_few_operands() {
    insta::assert_snapshot!(error_of("  %3 = matmul %0 : f32[3, 7]"), @r"
    matmul: takes 2 operands, got 1
      at line 6, column 8
      |   %3 = matmul %0 : f32[3, 7]
      |        ^
      help: operands are lhs, rhs; write _ for an absent optional one
    ");
}

#[test]
fn too_many_operands() {
    insta::assert_snapshot!(error_of("  %3 = exp %0, %1 : f32[3, 7]"), @r"
    exp: takes 1 operands, got 2
      at line 6, column 8
      |   %3 = exp %0, %1 : f32[3, 7]
      |        ^
      help: operands are x; write _ for an absent optional one
    ");
}

#[test]
fn an_absent_operand_that_is_not_optional() {
    insta::assert_snapshot!(error_of("  %3 = add %0, _ : f32[3, 5]"), @r"
    add: operand rhs is missing
      at line 6, column 8
      |   %3 = add %0, _ : f32[3, 5]
      |        ^
    ");
}

#[test]
fn optional_operands_are_written_out() {
    insta::assert_snapshot!(error_of("  %3, %4 = conv1d %0, %1 : f32[3, 7], f32[1]"), @r"
    conv1d: takes 5 operands, got 2
      at line 6, column 12
      |   %3, %4 = conv1d %0, %1 : f32[3, 7], f32[1]
      |            ^
      help: operands are x, w, bias, state, reset; write _ for an absent optional one
    ");
}

#[test]
fn a_missing_operand_after_a_comma() {
    insta::assert_snapshot!(error_of("  %3 = add %0,\n  output \"y\" = %0"), @r"
    expected a value such as %0, found the end of the line
      at line 6, column 15
      |   %3 = add %0,
      |               ^
    ");
}

#[test]
fn a_value_defined_twice() {
    insta::assert_snapshot!(error_of("  %2 = exp %0 : f32[3, 5]"), @r"
    %2 is given twice
      at line 6, column 3
      |   %2 = exp %0 : f32[3, 5]
      |   ^
      help: the first is on line 5
    ");
}

#[test]
fn a_value_twice_on_the_left() {
    insta::assert_snapshot!(error_of("  %3, %3 = exp %0 : f32[3, 5]"), @r"
    %3 is given twice
      at line 6, column 7
      |   %3, %3 = exp %0 : f32[3, 5]
      |       ^
      help: the first is on line 6
    ");
}
