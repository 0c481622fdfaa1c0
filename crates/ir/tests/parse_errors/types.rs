//! Errors of types.

use crate::error_of;

#[test]
fn a_type_other_than_the_inferred() {
    insta::assert_snapshot!(error_of("  %3 = matmul %0, %1 {transpose_b = true} : f32[3, 8] @ mixer/in_proj"), @r"
    the type written is f32[3, 8], the op gives f32[3, 7]
      at line 6, column 45
      |   %3 = matmul %0, %1 {transpose_b = true} : f32[3, 8] @ mixer/in_proj
      |                                             ^
    ");
}

#[test]
fn operands_that_do_not_fit() {
    insta::assert_snapshot!(error_of("  %3 = matmul %0, %1 : f32[3, 7]"), @r"
    matmul: inner dimensions differ: lhs f32[3, 5] has 5, rhs f32[7, 5] has 7
      at line 6, column 8
      |   %3 = matmul %0, %1 : f32[3, 7]
      |        ^
      help: rhs looks stored as [n, k]; set transpose_b = true
    ");
}

#[test]
fn a_missing_type() {
    insta::assert_snapshot!(error_of("  %3 = exp %0\n  output \"y\" = %0"), @r"
    expected :, found the end of the line
      at line 6, column 14
      |   %3 = exp %0
      |              ^
    ");
}

#[test]
fn too_few_types() {
    insta::assert_snapshot!(error_of("  %3, %4 = exp %0 : f32[3, 5]"), @r"
    the line gives 1 value, 2 are named
      at line 6, column 7
      |   %3, %4 = exp %0 : f32[3, 5]
      |       ^
    ");
}

#[test]
fn too_many_types() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 : f32[3, 5], f32[3, 5]"), @r"
    the line gives 1 value, 2 types are written
      at line 6, column 28
      |   %3 = exp %0 : f32[3, 5], f32[3, 5]
      |                            ^
    ");
}

#[test]
fn an_unknown_element_type() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 : float[3, 5]"), @r#"
    unknown element type "float"
      at line 6, column 17
      |   %3 = exp %0 : float[3, 5]
      |                 ^
      help: known: f32, f16, bf16, i32, u32, bool, i8
    "#);
}

#[test]
fn a_symbolic_size() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 : f32[B, 5]"), @r"
    size B is not a number
      at line 6, column 21
      |   %3 = exp %0 : f32[B, 5]
      |                     ^
      help: names in place of sizes are kept free for symbolic dimensions, which this version does not have
    ");
}

#[test]
fn a_negative_size() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 : f32[-3, 5]"), @r"
    expected a size, found -3
      at line 6, column 21
      |   %3 = exp %0 : f32[-3, 5]
      |                     ^
      help: a whole number from 0 to 18446744073709551615
    ");
}

#[test]
fn a_size_over_the_machine() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 : f32[99999999999999999999, 5]"), @r"
    expected a size, found 99999999999999999999
      at line 6, column 21
      |   %3 = exp %0 : f32[99999999999999999999, 5]
      |                     ^
      help: a whole number from 0 to 18446744073709551615
    ");
}

#[test]
fn too_many_elements() {
    insta::assert_snapshot!(error_of(r#"  %3 = input "v" : f32[65536, 65536]"#), @r#"
    f32[65536, 65536] has more than 4294967295 elements
      at line 6, column 20
      |   %3 = input "v" : f32[65536, 65536]
      |                    ^
      help: split the batch or the length into several runs
    "#);
}

#[test]
fn too_many_axes() {
    insta::assert_snapshot!(error_of(r#"  %3 = input "v" : f32[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"#), @r#"
    more than 16 numbers in brackets
      at line 6, column 72
      |   %3 = input "v" : f32[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
      |                                                                        ^
      help: a value has at most 16 axes
    "#);
}

#[test]
fn a_type_not_closed() {
    insta::assert_snapshot!(error_of("  %3 = exp %0 : f32[3, 5"), @r"
    expected ], found the end of the line
      at line 6, column 25
      |   %3 = exp %0 : f32[3, 5
      |                         ^
    ");
}
