//! The batched matrix product.

use super::{OperandTypes, TypeError, expect_dtype, required};
use crate::op::Op;
use crate::types::{DType, TensorType, broadcast_shapes};

/// Typing rule: float operands of rank 2 or more, equal inner sizes, leading axes broadcast; the result is f32.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let Op::MatMul { transpose_a, transpose_b } = op else {
        return Err(TypeError::new(format!("{}: not a matrix product", op.mnemonic())));
    };
    let (lhs, rhs) = (required(op, operands, 0)?, required(op, operands, 1)?);
    expect_dtype(op, "lhs", lhs, lhs.dtype.is_float(), "a float")?;
    expect_dtype(op, "rhs", rhs, rhs.dtype.is_float(), "a float")?;
    if lhs.rank() < 2 || rhs.rank() < 2 {
        return Err(TypeError::new(format!("matmul: lhs {lhs} and rhs {rhs} need two axes or more")).help("reshape a vector to one row or column"));
    }
    let (lead_lhs, [a0, a1]) = last_two(lhs);
    let (lead_rhs, [b0, b1]) = last_two(rhs);
    let (m, k_lhs) = if *transpose_a { (a1, a0) } else { (a0, a1) };
    let (n, k_rhs) = if *transpose_b { (b0, b1) } else { (b1, b0) };
    if k_lhs != k_rhs {
        let error = TypeError::new(format!("matmul: inner dimensions differ: lhs {lhs} has {k_lhs}, rhs {rhs} has {k_rhs}"));
        return Err(if k_lhs == n && !transpose_b {
            error.help("rhs looks stored as [n, k]; set transpose_b = true")
        } else {
            error.help("the last axis of lhs and the second to last of rhs must be equal (transposed: the other one)")
        });
    }
    let mut shape = broadcast_shapes(lead_lhs, lead_rhs)
        .ok_or_else(|| TypeError::new(format!("matmul: leading axes do not broadcast: lhs {lhs}, rhs {rhs}")))?;
    shape.extend([m, n]);
    Ok(vec![TensorType::new(DType::F32, shape)])
}

fn last_two(ty: &TensorType) -> (&[usize], [usize; 2]) {
    let split = ty.rank() - 2;
    (&ty.shape[..split], [ty.shape[split], ty.shape[split + 1]])
}
