//! Reductions (sum, mean, maximum, argmax) and the running sum.

use super::{OperandTypes, TypeError, expect_dtype, required};
use crate::op::Op;
use crate::types::{DType, TensorType};

/// Typing rules: distinct axes below the rank; numbers only; mean, maximum and argmax over at least one element.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let x = required(op, operands, 0)?;
    match op {
        Op::Sum { axes, keepdims } => {
            expect_dtype(op, "x", x, x.dtype != DType::Bool, "a number")?;
            reduced(op, x, axes, *keepdims, false).map(|shape| vec![TensorType::new(x.dtype, shape)])
        }
        Op::Mean { axes, keepdims } => {
            expect_dtype(op, "x", x, x.dtype.is_float(), "a float")?;
            reduced(op, x, axes, *keepdims, true).map(|shape| vec![TensorType::new(x.dtype, shape)])
        }
        Op::ReduceMax { axes, keepdims } => {
            expect_dtype(op, "x", x, x.dtype != DType::Bool, "a number")?;
            reduced(op, x, axes, *keepdims, true).map(|shape| vec![TensorType::new(x.dtype, shape)])
        }
        Op::Argmax { axis } => {
            expect_dtype(op, "x", x, x.dtype != DType::Bool, "a number")?;
            reduced(op, x, &[*axis], false, true).map(|shape| vec![TensorType::new(DType::U32, shape)])
        }
        Op::Cumsum { axis, .. } => {
            expect_dtype(op, "x", x, x.dtype != DType::Bool, "a number")?;
            reduced(op, x, &[*axis], false, false).map(|_| vec![x.clone()])
        }
        _ => Err(TypeError::new(format!("{}: not a reduction", op.mnemonic()))),
    }
}

fn reduced(op: &Op, x: &TensorType, axes: &[usize], keepdims: bool, needs_elems: bool) -> Result<Vec<usize>, TypeError> {
    let name = op.mnemonic();
    let distinct = axes.iter().enumerate().all(|(i, axis)| *axis < x.rank() && !axes[..i].contains(axis));
    if axes.is_empty() || !distinct {
        return Err(TypeError::new(format!("{name}: axes {axes:?} of {x}")).help("name at least one axis below the rank, each once"));
    }
    if needs_elems && axes.iter().any(|&axis| x.shape[axis] == 0) && x.shape.iter().enumerate().all(|(a, &s)| axes.contains(&a) || s > 0) {
        return Err(TypeError::new(format!("{name}: {x} has no elements along {axes:?}")));
    }
    let shape = x.shape.iter().enumerate();
    Ok(if keepdims {
        shape.map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size }).collect()
    } else {
        shape.filter(|(axis, _)| !axes.contains(axis)).map(|(_, &size)| size).collect()
    })
}
