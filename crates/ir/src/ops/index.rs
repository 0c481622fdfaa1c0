//! Reading rows by index, and adding to them.

use super::{OperandTypes, Operands, TypeError, expect_dtype, required};
use crate::autodiff::{Applied, as_dtype};
use crate::builder::Tensor;
use crate::error::EvalError;
use crate::eval::{Array, Data, GRAIN, Real, count, for_chunks, map_data, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType, position};

/// Typing rules: integer indices. `gather` wants a table of rank 1 or more, whose first axis is replaced by the shape of `ids`;
/// `scatter_add` wants float updates that begin with the shape of `ids`, which is replaced by the rows.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let (x, ids) = (required(op, operands, 0)?, required(op, operands, 1)?);
    expect_dtype(op, "ids", ids, ids.dtype.is_int(), "i32 or u32")?;
    let Op::ScatterAdd { rows } = op else { return gathered(x, ids) };
    expect_dtype(op, "updates", x, x.dtype.is_float(), "f32, f16 or bf16")?;
    let Some(row) = x.shape.strip_prefix(ids.shape.as_slice()) else {
        return Err(TypeError::new(format!("scatter_add: updates {x} do not begin with the axes of ids {ids}"))
            .help("give one row of updates for each id"));
    };
    if *rows == 0 && ids.n_elems() > 0 {
        return Err(TypeError::new(format!("scatter_add: no rows for ids {ids}")).help("rows is the size of the table that ids index"));
    }
    Ok(vec![TensorType::new(DType::F32, [&[*rows], row].concat())])
}

fn gathered(table: &TensorType, ids: &TensorType) -> Result<Vec<TensorType>, TypeError> {
    if table.rank() == 0 || (table.shape[0] == 0 && ids.n_elems() > 0) {
        return Err(TypeError::new(format!("gather: table {table} has no rows")));
    }
    let shape: Vec<usize> = ids.shape.iter().chain(&table.shape[1..]).copied().collect();
    Ok(vec![TensorType::new(table.dtype, shape)])
}

/// Rows of the table in the order of `ids`, or sums of updates by row; an index outside the rows is an error that names the
/// index and its position.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>, ty: &TensorType) -> Result<Array<'a, R>, EvalError> {
    let (x, ids) = (operands.take(op, 0)?, operands.take(op, 1)?);
    let n_rows = if let Op::ScatterAdd { rows } = op { *rows } else { x.shape.first().copied().unwrap_or(0) };
    let rows = match &ids.data {
        Data::I32(v) => checked(op, v, &ids.shape, n_rows)?,
        Data::U32(v) => checked(op, v, &ids.shape, n_rows)?,
        Data::F32(_) | Data::F16(_) | Data::Bf16(_) | Data::Bool(_) | Data::I8(_) => {
            return Err(EvalError::new(format!("{}: ids of {} are not integers", op.mnemonic(), ids.dtype())));
        }
    };
    if let Op::ScatterAdd { .. } = op {
        let sums = add_rows(&x.into_reals()?, &rows, count(&ty.shape)?, count(&ty.shape[1..])?)?;
        return Ok(Array::real(&ty.shape, sums));
    }
    let width = count(&x.shape[1..])?;
    let data = map_data!(x.data, v => copy_rows(&v, &rows, width)?);
    Ok(Array { shape: ty.shape.clone(), data })
}

/// Adjoint of the table: each of its rows gets the sum of what was read from it; or of the updates: each gets that of its row.
#[track_caller]
pub(super) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    let (Some(x), Some(ids), Some(dy)) = (at.operand(0), at.operand(1), at.adjoint(0)) else { return Vec::new() };
    let dx = if let Op::ScatterAdd { .. } = at.op { dy.gather(ids) } else { dy.scatter_add(ids, x.dim(0)) };
    vec![Some(as_dtype(dx, x.dtype()))]
}

fn checked<T: Copy + std::fmt::Display + TryInto<usize>>(
    op: &Op,
    ids: &[T],
    shape: &[usize],
    n_rows: usize,
) -> Result<Vec<usize>, EvalError> {
    let name = op.mnemonic();
    ids.iter()
        .enumerate()
        .map(|(i, &id)| match id.try_into() {
            Ok(row) if row < n_rows => Ok(row),
            _ => Err(EvalError::new(format!("{name}: index {id} at {:?} of ids is outside 0..{n_rows}", position(i, shape)))
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

/// Sums of rows of `updates`, each added in its turn to the row that `rows` names for it.
fn add_rows<R: Real>(updates: &[R], rows: &[usize], n_elems: usize, width: usize) -> Result<Vec<R>, EvalError> {
    let mut out = zeroed(n_elems)?;
    if width == 0 {
        return Ok(out);
    }
    for (update, row) in updates.chunks(width).zip(rows) {
        for (sum, &x) in out[row * width..][..width].iter_mut().zip(update) {
            *sum += x;
        }
    }
    Ok(out)
}
