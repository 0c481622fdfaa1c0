//! Elementwise ops: arithmetic, comparison, select, clamp, transcendental functions, casts.

use super::{OperandTypes, TypeError, required};
use crate::op::Op;
use crate::types::{DType, TensorType, broadcast_shapes};

/// Typing rule: operands of one dtype that the op has, shapes broadcast; comparisons give bool, `cast` its dtype.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let mut shape = Vec::new();
    for (idx, _) in operands.iter().enumerate() {
        let ty = required(op, operands, idx)?;
        shape = broadcast_shapes(&shape, &ty.shape).ok_or_else(|| {
            let all = operands.iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
            TypeError::new(format!("{}: shapes do not broadcast: {all}", op.mnemonic()))
                .help("sizes are aligned at the last axis and must be equal or 1; reshape an operand")
        })?;
    }
    let dtype = dtype_of(op, operands)?;
    Ok(vec![TensorType { dtype, shape }])
}

fn dtype_of(op: &Op, operands: &OperandTypes) -> Result<DType, TypeError> {
    let first = required(op, operands, 0)?.dtype;
    let same = |from: usize| -> Result<DType, TypeError> {
        let lhs = required(op, operands, from)?;
        let rhs = required(op, operands, from + 1)?;
        if lhs.dtype == rhs.dtype {
            return Ok(lhs.dtype);
        }
        Err(TypeError::new(format!("{}: element types differ: {lhs} and {rhs}", op.mnemonic())).help("cast one of them"))
    };
    let need = |dtype: DType, ok: bool, wanted: &str| -> Result<DType, TypeError> {
        if ok { Ok(dtype) } else { Err(TypeError::new(format!("{}: not defined on {dtype}, only on {wanted}", op.mnemonic()))) }
    };
    match op {
        Op::Cast { dtype } => Ok(*dtype),
        Op::Not {} => need(first, first == DType::Bool, "bool"),
        Op::Neg {} | Op::Abs {} => need(first, first.is_float() || first == DType::I32, "floats and i32"),
        Op::Exp {} | Op::Log {} | Op::Sqrt {} | Op::Rsqrt {} | Op::Sigmoid {} | Op::Silu {} | Op::Softplus {} | Op::Tanh {} | Op::Sin {}
        | Op::Cos {} | Op::Floor {} => need(first, first.is_float(), "floats"),
        Op::Clamp { lo, hi } => {
            if lo > hi {
                return Err(TypeError::new(format!("clamp: lo {lo:?} is above hi {hi:?}")));
            }
            need(first, first.is_float(), "floats")
        }
        Op::Add {} | Op::Sub {} | Op::Mul {} | Op::Max {} | Op::Min {} => need(same(0)?, first != DType::Bool, "numbers"),
        Op::Div {} => need(same(0)?, first.is_float(), "floats"),
        Op::Eq {} | Op::Ne {} => same(0).map(|_| DType::Bool),
        Op::Lt {} | Op::Le {} => need(same(0)?, first != DType::Bool, "numbers").map(|_| DType::Bool),
        Op::And {} | Op::Or {} => need(same(0)?, first == DType::Bool, "bool"),
        Op::Select {} => {
            if first != DType::Bool {
                return Err(TypeError::new(format!("select: cond {} is not bool", required(op, operands, 0)?)).help("compare it with ne or lt"));
            }
            same(1)
        }
        Op::Reshape { .. } | Op::Permute { .. } | Op::Slice { .. } | Op::Broadcast { .. } | Op::Pad { .. } | Op::Concat { .. } | Op::Iota { .. }
        | Op::Sum { .. } | Op::Mean { .. } | Op::ReduceMax { .. } | Op::Argmax { .. } | Op::Cumsum { .. } | Op::MatMul { .. } | Op::Gather {}
        | Op::Conv1d { .. } | Op::Scan { .. } => Err(TypeError::new(format!("{}: not an elementwise op", op.mnemonic()))),
    }
}
