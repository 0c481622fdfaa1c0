//! Reading rows by index.

use super::{OperandTypes, TypeError, expect_dtype, required};
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
