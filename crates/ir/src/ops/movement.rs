//! Movement ops: reshape, permute, slice, broadcast, pad, concat, iota.

use super::{OperandTypes, TypeError, expect_rank, required};
use crate::op::Op;
use crate::types::{DType, TensorType, broadcast_shapes, n_elems};

/// Typing rules of the movement ops.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    if let Op::Iota { shape, axis, dtype } = op {
        if *axis >= shape.len() || !matches!(dtype, DType::F32 | DType::I32 | DType::U32) {
            return Err(TypeError::new(format!("iota: axis {axis} of {dtype}{shape:?}")).help("axis below the rank; dtype f32, i32 or u32"));
        }
        return Ok(vec![TensorType::new(*dtype, shape.clone())]);
    }
    let x = required(op, operands, 0)?;
    let shape = match op {
        Op::Reshape { shape } => reshape(x, shape)?,
        Op::Permute { axes } => permute(x, axes)?,
        Op::Slice { starts, ends } => slice(x, starts, ends)?,
        Op::Broadcast { shape } => broadcast(x, shape)?,
        Op::Pad { lo, hi, .. } => pad(op, x, lo, hi)?,
        Op::Concat { axis } => concat(op, operands, *axis)?,
        _ => return Err(TypeError::new(format!("{}: not a movement op", op.mnemonic()))),
    };
    Ok(vec![TensorType::new(x.dtype, shape)])
}

fn reshape(x: &TensorType, shape: &[usize]) -> Result<Vec<usize>, TypeError> {
    if n_elems(shape) != x.n_elems() {
        return Err(TypeError::new(format!("reshape: {x} has {} elements, shape {shape:?} has {}", x.n_elems(), n_elems(shape))));
    }
    Ok(shape.to_vec())
}

fn permute(x: &TensorType, axes: &[usize]) -> Result<Vec<usize>, TypeError> {
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..x.rank()) {
        return Err(TypeError::new(format!("permute: axes {axes:?} of {x}")).help("name each axis of the operand once"));
    }
    Ok(axes.iter().map(|&axis| x.shape[axis]).collect())
}

fn slice(x: &TensorType, starts: &[usize], ends: &[usize]) -> Result<Vec<usize>, TypeError> {
    let ranges = starts.iter().zip(ends).zip(&x.shape);
    if starts.len() != x.rank() || ends.len() != x.rank() || ranges.clone().any(|((start, end), size)| start > end || end > size) {
        return Err(TypeError::new(format!("slice: {starts:?}..{ends:?} is not within {x}")).help("one start and one end for each axis, start <= end <= size"));
    }
    Ok(starts.iter().zip(ends).map(|(start, end)| end - start).collect())
}

fn broadcast(x: &TensorType, shape: &[usize]) -> Result<Vec<usize>, TypeError> {
    if broadcast_shapes(&x.shape, shape).as_deref() != Some(shape) {
        return Err(TypeError::new(format!("broadcast: {x} does not broadcast to {shape:?}")).help("sizes are aligned at the last axis; each is equal or 1"));
    }
    Ok(shape.to_vec())
}

fn pad(op: &Op, x: &TensorType, lo: &[usize], hi: &[usize]) -> Result<Vec<usize>, TypeError> {
    if lo.len() != x.rank() || hi.len() != x.rank() {
        return Err(TypeError::new(format!("{}: lo {lo:?} and hi {hi:?} of {x}", op.mnemonic())).help("one number for each axis"));
    }
    Ok(x.shape.iter().zip(lo.iter().zip(hi)).map(|(size, (lo, hi))| size.saturating_add(*lo).saturating_add(*hi)).collect())
}

fn concat(op: &Op, operands: &OperandTypes, axis: usize) -> Result<Vec<usize>, TypeError> {
    let first = required(op, operands, 0)?;
    if axis >= first.rank() {
        return Err(TypeError::new(format!("concat: axis {axis} of {first}")).help("use an axis below the rank"));
    }
    let mut shape = first.shape.clone();
    for idx in 1..operands.len() {
        let part = required(op, operands, idx)?;
        expect_rank(op, "part", part, first.rank(), "as the first part")?;
        let fits = part.dtype == first.dtype && (0..first.rank()).all(|a| a == axis || part.shape[a] == first.shape[a]);
        if !fits {
            return Err(TypeError::new(format!("concat: {part} does not continue {first} along axis {axis}")).help("all other sizes and the element type must be equal"));
        }
        shape[axis] = shape[axis].saturating_add(part.shape[axis]);
    }
    Ok(shape)
}
