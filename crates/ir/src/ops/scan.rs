//! The linear recurrence with ranks.

use super::{OperandTypes, TypeError, expect_dtype, expect_rank, expect_shape, required};
use crate::op::Op;
use crate::types::{DType, TensorType};

/// Typing rule: the shapes of the op's row, all f32; the group count divides the heads.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let log_decay = required(op, operands, 0)?;
    let (v, k, q) = (required(op, operands, 1)?, required(op, operands, 2)?, required(op, operands, 3)?);
    for (name, ty) in [("log_decay", log_decay), ("v", v), ("k", k), ("q", q)] {
        expect_dtype(op, name, ty, ty.dtype == DType::F32, "f32")?;
    }
    expect_rank(op, "log_decay", log_decay, 3, "[B, L, H]")?;
    expect_rank(op, "v", v, 5, "[B, L, H, R, P]")?;
    expect_rank(op, "k", k, 5, "[B, L, G, R, N]")?;
    let &[batch, len, heads] = log_decay.shape.as_slice() else { return Err(TypeError::new("scan: log_decay has no three axes")) };
    let (ranks, headdim) = (v.shape[3], v.shape[4]);
    let (groups, d_state) = (k.shape[2], k.shape[4]);
    expect_shape(op, "v", v, &[batch, len, heads, ranks, headdim], "[B, L, H, R, P]")?;
    expect_shape(op, "k", k, &[batch, len, groups, ranks, d_state], "[B, L, G, R, N]")?;
    expect_shape(op, "q", q, &k.shape, "[B, L, G, R, N], as k")?;
    if groups == 0 || heads % groups != 0 {
        return Err(TypeError::new(format!("scan: {groups} groups of k do not divide {heads} heads of log_decay")).help("choose ngroups so that nheads is a multiple of it"));
    }
    let state = [batch, heads, headdim, d_state];
    if let Some(s0) = operands[4] {
        expect_shape(op, "s0", s0, &state, "[B, H, P, N]")?;
        expect_dtype(op, "s0", s0, s0.dtype == DType::F32, "f32")?;
    }
    if let Some(reset) = operands[5] {
        expect_shape(op, "reset", reset, &[batch, len], "[B, L]")?;
        expect_dtype(op, "reset", reset, reset.dtype == DType::Bool, "bool")?;
    }
    Ok(vec![v.clone(), TensorType::new(DType::F32, state)])
}
