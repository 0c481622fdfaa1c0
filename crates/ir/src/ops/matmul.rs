//! The batched matrix product.

use super::{OperandTypes, Operands, TypeError, expect_dtype, required};
use crate::autodiff::{Applied, as_dtype, unbroadcast};
use crate::builder::Tensor;
use crate::error::EvalError;
use crate::eval::{Array, Data, Loops, Real, broadcast_strides, count, for_chunks, n_threads, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType, broadcast_shapes};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeBuilder};
use std::ops::Range;
use std::sync::Mutex;

/// Typing rule: float operands of rank 2 or more, equal inner sizes, leading axes broadcast; the result is f32.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let Op::MatMul { transpose_a, transpose_b } = op else {
        return Err(TypeError::new(format!("{}: not a matrix product", op.mnemonic())));
    };
    let (lhs, rhs) = (required(op, operands, 0)?, required(op, operands, 1)?);
    expect_dtype(op, "lhs", lhs, lhs.dtype.is_float(), "a float")?;
    expect_dtype(op, "rhs", rhs, rhs.dtype.is_float(), "a float")?;
    if lhs.rank() < 2 || rhs.rank() < 2 {
        return Err(
            TypeError::new(format!("matmul: lhs {lhs} and rhs {rhs} need two axes or more")).help("reshape a vector to one row or column")
        );
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

/// The product; transposes are strides, leading axes that broadcast are read again.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>, ty: &TensorType) -> Result<Array<'a, R>, EvalError> {
    let Op::MatMul { transpose_a, transpose_b } = *op else {
        return Err(EvalError::new(format!("{}: not a matrix product", op.mnemonic())));
    };
    let (lhs, rhs) = (operands.take(op, 0)?, operands.take(op, 1)?);
    let split = ty.rank() - 2;
    let (lead, &[m, n]) = ty.shape.split_at(split) else {
        return Err(EvalError::new(format!("matmul: {ty} has no two axes")));
    };
    let k = lhs.shape[lhs.shape.len() - if transpose_a { 2 } else { 1 }];
    let mut out = zeroed(count(&ty.shape)?)?;
    if out.is_empty() || k == 0 {
        return Ok(Array::real(&ty.shape, out));
    }
    let mut product = Product { m, n, k, transpose_a, transpose_b };
    let rhs_lead = &rhs.shape[..rhs.shape.len() - 2];
    let mut batches = Batches { lead, lhs_lead: &lhs.shape[..lhs.shape.len() - 2], rhs_lead }.list(m * k, n * k);
    if rhs_lead.iter().all(|&size| size == 1) && !transpose_a {
        // One matrix for all rows: the leading axes are rows, too.
        product.m = m * batches.len();
        batches.truncate(1);
    }
    let lhs = Array { shape: Vec::new(), data: lhs.data }.into_reals()?;
    product.run(&lhs, &rhs.data, &batches, &mut out)?;
    Ok(Array::real(&ty.shape, out))
}

/// Adjoints of both operands, which are products too. One matrix that all leading axes share is one long product.
#[track_caller]
pub(super) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    let (Some(a), Some(b), Some(dy)) = (at.operand(0), at.operand(1), at.adjoint(0)) else { return Vec::new() };
    let Op::MatMul { transpose_a, transpose_b } = *at.op else { return Vec::new() };
    let da = at.wants(0).then(|| {
        let da = if transpose_a { b.matmul(dy, transpose_b, true) } else { dy.matmul(b, false, !transpose_b) };
        as_dtype(unbroadcast(da, &a.shape()), a.dtype())
    });
    let db = at.wants(1).then(|| {
        let shape = b.shape();
        let is_shared = !transpose_a && shape.len() >= 2 && shape[..shape.len() - 2].iter().all(|&size| size == 1);
        let [a, dy] = if is_shared { [a, dy].map(as_matrix) } else { [a, dy] };
        let db = if transpose_b { dy.matmul(a, true, transpose_a) } else { a.matmul(dy, !transpose_a, false) };
        let db = if is_shared { db.reshape(shape.clone()) } else { unbroadcast(db, &shape) };
        as_dtype(db, b.dtype())
    });
    vec![da, db]
}

/// `x` with all axes but the last as one.
#[track_caller]
fn as_matrix(x: Tensor<'_>) -> Tensor<'_> {
    let shape = x.shape();
    let Some((&last, lead)) = shape.split_last() else { return x };
    if lead.len() == 1 { x } else { x.reshape([lead.iter().product(), last]) }
}

/// Leading axes of the operands and what they broadcast to.
struct Batches<'a> {
    lead: &'a [usize],
    lhs_lead: &'a [usize],
    rhs_lead: &'a [usize],
}

impl Batches<'_> {
    /// Where the matrices of each product begin.
    fn list(&self, lhs_size: usize, rhs_size: usize) -> Vec<[usize; 2]> {
        let strides = [broadcast_strides(self.lhs_lead, self.lead), broadcast_strides(self.rhs_lead, self.lead)];
        let loops = Loops::new(self.lead, [&strides[0], &strides[1]]);
        let [lhs_step, rhs_step] = loops.steps();
        let mut list = Vec::new();
        loops.for_runs(0..self.lead.iter().product(), |part, [lhs, rhs]| {
            list.extend((0..part.len()).map(|i| [(lhs + i * lhs_step) * lhs_size, (rhs + i * rhs_step) * rhs_size]));
        });
        list
    }
}

/// One product of matrices `[m, k]` and `[k, n]`, either stored transposed.
#[derive(Clone, Copy, Debug)]
struct Product {
    m: usize,
    n: usize,
    k: usize,
    transpose_a: bool,
    transpose_b: bool,
}

/// Products of at most so many rows are dot products with the rows of a transposed right matrix: packing it would cost
/// more than the arithmetic.
const FEW_ROWS: usize = 4;
/// Products below so many rows are shared out by columns, because each task reads its part of the right matrix once.
const SHORT: usize = 64;
/// Elements of a 16-bit matrix that are widened at a time.
const PANEL: usize = 1 << 20;
/// Multiplications a task is worth at least.
const TASK: usize = 1 << 16;

impl Product {
    fn run<R: Real>(&self, lhs: &[R], rhs: &Data<R>, batches: &[[usize; 2]], out: &mut [R]) -> Result<(), EvalError> {
        let work = self.m.saturating_mul(self.n).saturating_mul(self.k);
        let is_many = batches.len() > 1 && (batches.len() >= n_threads() || work <= TASK);
        if is_many {
            return self.run_many(lhs, rhs, batches, out, TASK.div_ceil(work));
        }
        for (&[a, b], out) in batches.iter().zip(out.chunks_mut(self.m * self.n)) {
            let is_narrow = !matches!(rhs, Data::F32(_));
            if self.transpose_b && (is_narrow || self.m < SHORT) {
                self.by_columns(&lhs[a..], rhs, b, out)?;
            } else {
                let mut wide = Vec::new();
                self.by_rows(&lhs[a..], rhs.reals(b..b + self.n * self.k, &mut wide)?, out)?;
            }
        }
        Ok(())
    }

    /// Whole products, several a task.
    fn run_many<R: Real>(&self, lhs: &[R], rhs: &Data<R>, batches: &[[usize; 2]], out: &mut [R], per_task: usize) -> Result<(), EvalError> {
        let mut wide = Vec::new();
        let end = batches.iter().map(|batch| batch[1]).max().unwrap_or(0) + self.n * self.k;
        let rhs = rhs.reals(0..end, &mut wide)?;
        let size = self.m * self.n;
        let failure = Failure::default();
        for_chunks(out, size * per_task, |start, chunk| {
            for (&[a, b], out) in batches[start / size..].iter().zip(chunk.chunks_mut(size)) {
                failure.note(self.multiply(0..self.m, &lhs[a..], &rhs[b..], out));
            }
        });
        failure.into_result()
    }

    /// One product, shared out by rows.
    fn by_rows<R: Real>(&self, lhs: &[R], rhs: &[R], out: &mut [R]) -> Result<(), EvalError> {
        let least = TASK.div_ceil(self.n * self.k);
        let rows = self.m.div_ceil(n_threads()).max(least).next_multiple_of(8);
        let failure = Failure::default();
        for_chunks(out, rows * self.n, |start, chunk| {
            let first = start / self.n;
            failure.note(self.multiply(first..first + chunk.len() / self.n, lhs, rhs, chunk));
        });
        failure.into_result()
    }

    /// One product with a right matrix of `n` stored rows, shared out by these rows and widened part by part.
    fn by_columns<R: Real>(&self, lhs: &[R], rhs: &Data<R>, rhs_start: usize, out: &mut [R]) -> Result<(), EvalError> {
        let least = TASK.div_ceil(self.m * self.k);
        let columns = self.n.div_ceil(n_threads()).max(least).min(PANEL.div_ceil(self.k)).next_multiple_of(16);
        // Each task fills a dense [m, columns] part; of one row these are the result.
        let mut parts = if self.m == 1 { Vec::new() } else { zeroed(out.len())? };
        let target = if self.m == 1 { &mut *out } else { parts.as_mut_slice() };
        let failure = Failure::default();
        for_chunks(target, columns * self.m, |start, chunk| {
            let first = start / self.m;
            let part = Self { n: chunk.len() / self.m, ..*self };
            let rows = rhs_start + first * self.k..rhs_start + (first + part.n) * self.k;
            failure.note(part.columns(lhs, rhs, rows, chunk));
        });
        for (i, part) in parts.chunks(columns * self.m).enumerate() {
            for (row, from) in part.chunks(part.len() / self.m).enumerate() {
                out[row * self.n + i * columns..][..from.len()].copy_from_slice(from);
            }
        }
        failure.into_result()
    }

    /// The product with the stored rows `rows` of the right matrix.
    fn columns<R: Real>(&self, lhs: &[R], rhs: &Data<R>, rows: Range<usize>, out: &mut [R]) -> Result<(), EvalError> {
        let mut wide = Vec::new();
        if self.m > FEW_ROWS || self.transpose_a {
            return self.multiply(0..self.m, lhs, rhs.reals(rows, &mut wide)?, out);
        }
        for column in 0..self.n {
            let row = rhs.reals(rows.start + column * self.k..rows.start + (column + 1) * self.k, &mut wide)?;
            for (i, lhs) in lhs.chunks(self.k).take(self.m).enumerate() {
                out[i * self.n + column] = dot(lhs, row);
            }
        }
        Ok(())
    }

    /// Some rows of the product, on this thread.
    fn multiply<R: Real>(&self, rows: Range<usize>, lhs: &[R], rhs: &[R], out: &mut [R]) -> Result<(), EvalError> {
        let Self { m, n, k, .. } = *self;
        let wrong = |error: ndarray::ShapeError| EvalError::new(format!("matmul: {self:?} does not fit its operands: {error}"));
        let (first, strides) = if self.transpose_a { (rows.start, (1, m)) } else { (rows.start * k, (k, 1)) };
        let lhs = ArrayView2::from_shape((rows.len(), k).strides(strides), &lhs[first..]).map_err(wrong)?;
        let strides = if self.transpose_b { (1, k) } else { (n, 1) };
        let rhs = ArrayView2::from_shape((k, n).strides(strides), rhs).map_err(wrong)?;
        let mut out = ArrayViewMut2::from_shape((rows.len(), n), out).map_err(wrong)?;
        general_mat_mul(R::ONE, &lhs, &rhs, R::ZERO, &mut out);
        Ok(())
    }
}

/// Scalar product in 16 interleaved partial sums.
fn dot<R: Real>(lhs: &[R], rhs: &[R]) -> R {
    const LANES: usize = 16;
    let mut sums = [R::ZERO; LANES];
    let (lhs_lanes, rhs_lanes) = (lhs.chunks_exact(LANES), rhs.chunks_exact(LANES));
    let tail: R = lhs_lanes.remainder().iter().zip(rhs_lanes.remainder()).fold(R::ZERO, |sum, (&x, &y)| sum + x * y);
    for (x, y) in lhs_lanes.zip(rhs_lanes) {
        for i in 0..LANES {
            sums[i] += x[i] * y[i];
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            let upper = sums[i + width];
            sums[i] += upper;
        }
        width /= 2;
    }
    sums[0] + tail
}

/// The first error of several tasks.
#[derive(Default)]
struct Failure(Mutex<Option<EvalError>>);

impl Failure {
    fn note(&self, result: Result<(), EvalError>) {
        if let (Err(error), Ok(mut first)) = (result, self.0.lock()) {
            first.get_or_insert(error);
        }
    }

    fn into_result(self) -> Result<(), EvalError> {
        match self.0.into_inner() {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error),
            Err(_) => Err(EvalError::new("matmul: a task stopped")),
        }
    }
}
