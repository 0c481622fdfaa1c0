//! The causal depthwise convolution.

use super::{OperandTypes, TypeError, expect_dtype, expect_rank, expect_shape, required};
use crate::op::Op;
use crate::types::{DType, TensorType};

/// Typing rule: the shapes of the op's row; floats in f32; `K >= 1`.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let (x, w) = (required(op, operands, 0)?, required(op, operands, 1)?);
    expect_rank(op, "x", x, 3, "[B, L, C]")?;
    expect_rank(op, "w", w, 2, "[C, K]")?;
    expect_dtype(op, "x", x, x.dtype == DType::F32, "f32")?;
    expect_dtype(op, "w", w, w.dtype == DType::F32, "f32")?;
    let &[batch, len, channels] = x.shape.as_slice() else { return Err(TypeError::new("conv1d: x has no three axes")) };
    let taps = w.shape[1];
    if taps == 0 || w.shape[0] != channels {
        return Err(TypeError::new(format!("conv1d: w {w} should be [C, K] with C = {channels} channels of x {x} and K >= 1")));
    }
    let state = [batch, channels, taps - 1];
    if let Some(bias) = operands[2] {
        expect_shape(op, "bias", bias, &[channels], "[C]")?;
        expect_dtype(op, "bias", bias, bias.dtype == DType::F32, "f32")?;
    }
    if let Some(given) = operands[3] {
        expect_shape(op, "state", given, &state, "[B, C, K-1]")?;
        expect_dtype(op, "state", given, given.dtype == DType::F32, "f32")?;
    }
    if let Some(reset) = operands[4] {
        expect_shape(op, "reset", reset, &[batch, len], "[B, L]")?;
        expect_dtype(op, "reset", reset, reset.dtype == DType::Bool, "bool")?;
    }
    Ok(vec![x.clone(), TensorType::new(DType::F32, state)])
}
