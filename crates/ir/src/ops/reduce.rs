//! Reductions (sum, mean, maximum, argmax) and the running sum.

use super::conv::flags;
use super::{OperandTypes, Operands, TypeError, expect_dtype, expect_shape, required};
use crate::autodiff::{Applied, number};
use crate::builder::Tensor;
use crate::error::EvalError;
use crate::eval::{Array, Data, GRAIN, Loops, Real, count, for_chunks, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType, dense_strides};

/// Typing rules: distinct axes below the rank; numbers only; mean, maximum and argmax over at least one element.
#[expect(clippy::wildcard_enum_match_arm, reason = "the dispatch, which names every op, hands over only these")]
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
        Op::Cumsum { axis, period, .. } => {
            expect_dtype(op, "x", x, x.dtype != DType::Bool, "a number")?;
            reduced(op, x, &[*axis], false, false)?;
            if let Some(reset) = operands.get(1).copied().flatten() {
                expect_shape(op, "reset", reset, &x.shape[..=*axis], "x's axes up to the summed one")?;
                expect_dtype(op, "reset", reset, reset.dtype == DType::Bool, "bool")?;
            }
            if !(period.is_finite() && *period >= 0.0) || (*period > 0.0 && !x.dtype.is_float()) {
                return Err(TypeError::new(format!("cumsum: period {period:?} of {x}")).help("give floats a period of 0 (none) or above"));
            }
            Ok(vec![x.clone()])
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

/// Adjoint of the operand: every element that was summed gets that of its sum. Equal largest elements share theirs.
#[expect(clippy::wildcard_enum_match_arm, reason = "the dispatch, which names every op, hands over only these")]
#[track_caller]
pub(super) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    let (Some(x), Some(dy), Some(&y)) = (at.operand(0), at.adjoint(0), at.results.first()) else { return Vec::new() };
    let shape = x.shape();
    let kept = |t: Tensor<'g>, axes: &[usize]| {
        let sizes = shape.iter().enumerate().map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size });
        t.reshape(sizes.collect::<Vec<_>>())
    };
    let dx = match at.op {
        Op::Sum { axes, .. } => kept(dy, axes).broadcast(shape.clone()),
        Op::Mean { axes, .. } => {
            let n_summed: f64 = axes.iter().map(|&axis| f64::from(u32::try_from(shape[axis]).unwrap_or(u32::MAX))).product();
            (kept(dy, axes) * number(dy, 1.0 / n_summed)).broadcast(shape.clone())
        }
        Op::ReduceMax { axes, .. } => {
            let is_largest = x.eq(kept(y, axes));
            let n_largest = is_largest.cast(dy.dtype()).sum(axes.clone(), true);
            is_largest.select(kept(dy, axes) / n_largest, number(dy, 0.0))
        }
        Op::Cumsum { axis, reverse, .. } => dy.cumsum(at.operand(1), *axis, !reverse, 0.0),
        _ => return Vec::new(),
    };
    vec![Some(dx)]
}

/// Value of a reduction or running sum.
#[expect(clippy::wildcard_enum_match_arm, reason = "the dispatch, which names every op, hands over only these")]
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>, ty: &TensorType) -> Result<Array<'a, R>, EvalError> {
    let x = operands.take(op, 0)?;
    let reset = operands.take_option(1).map(|reset| flags(op, reset)).transpose()?;
    let (shape, dtype) = (x.shape.clone(), x.dtype());
    let data = match op {
        Op::Argmax { axis } => match x.data {
            Data::I32(v) => Data::U32(first_largest(&v, &shape, *axis)?.into()),
            Data::U32(v) => Data::U32(first_largest(&v, &shape, *axis)?.into()),
            Data::F32(_) | Data::F16(_) | Data::Bf16(_) | Data::Bool(_) | Data::I8(_) => {
                Data::U32(first_largest(&x.into_reals()?, &shape, *axis)?.into())
            }
        },
        Op::Cumsum { axis, reverse, period } => {
            let line = Line { shape: &shape, axis: *axis, reverse: *reverse, reset: reset.as_deref() };
            match x.data {
                Data::I32(v) => Data::I32(line.running_sum(&v, i32::wrapping_add)?.into()),
                Data::U32(v) => Data::U32(line.running_sum(&v, u32::wrapping_add)?.into()),
                Data::F32(_) | Data::F16(_) | Data::Bf16(_) | Data::Bool(_) | Data::I8(_) => {
                    let x = x.into_reals()?;
                    let sums = if *period > 0.0 {
                        let period = Period::new(*period);
                        line.running_sum(&x, |a, b| period.take_off(a + b))?
                    } else {
                        line.running_sum(&x, |a, b| a + b)?
                    };
                    return Array::store(&ty.shape, dtype, sums.into());
                }
            }
        }
        Op::Sum { axes, .. } | Op::Mean { axes, .. } | Op::ReduceMax { axes, .. } => {
            let fold = Fold::new(&shape, axes)?;
            let is_max = matches!(op, Op::ReduceMax { .. });
            match x.data {
                Data::I32(v) if is_max => Data::I32(fold.run(&v, Ord::max)?.into()),
                Data::U32(v) if is_max => Data::U32(fold.run(&v, Ord::max)?.into()),
                Data::I32(v) => Data::I32(fold.run(&v, i32::wrapping_add)?.into()),
                Data::U32(v) => Data::U32(fold.run(&v, u32::wrapping_add)?.into()),
                Data::F32(_) | Data::F16(_) | Data::Bf16(_) | Data::Bool(_) | Data::I8(_) => {
                    return Array::store(&ty.shape, dtype, reals(op, &fold, &x.into_reals()?)?.into());
                }
            }
        }
        _ => return Err(EvalError::new(format!("{}: not a reduction", op.mnemonic()))),
    };
    Ok(Array { shape: ty.shape.clone(), data })
}

fn reals<R: Real>(op: &Op, fold: &Fold, x: &[R]) -> Result<Vec<R>, EvalError> {
    if matches!(op, Op::ReduceMax { .. }) {
        return fold.run(x, |a, b| if a < b { b } else { a });
    }
    let mut sums = fold.run(x, |a, b| a + b)?;
    if matches!(op, Op::Mean { .. }) {
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^32 elements, exact in f64")]
        let n = R::from_f64(fold.n_reduced as f64);
        sums.iter_mut().for_each(|sum| *sum = *sum / n);
    }
    Ok(sums)
}

/// Elements that are combined one after another; longer ranges are halved, so that the error of a sum of n terms grows
/// with log n and the order does not depend on threads.
const LEAF: usize = 64;

/// A reduction over some axes: which elements go into which result.
struct Fold {
    kept: Loops<1>,
    reduced: Loops<1>,
    n_kept: usize,
    n_reduced: usize,
    /// Neighboring results that are combined row by row; 0 if the last axis is reduced, so that runs are.
    width: usize,
}

impl Fold {
    fn new(shape: &[usize], axes: &[usize]) -> Result<Self, EvalError> {
        let strides = dense_strides(shape);
        let pick = |is_reduced: bool| -> (Vec<usize>, Vec<usize>) {
            let picked = (0..shape.len()).filter(|axis| axes.contains(axis) == is_reduced);
            picked.map(|axis| (shape[axis], strides[axis])).unzip()
        };
        let (kept_shape, kept_strides) = pick(false);
        let (reduced_shape, reduced_strides) = pick(true);
        let last = (0..shape.len()).rev().find(|&axis| shape[axis] != 1);
        let keeps_last = last.is_some_and(|last| !axes.contains(&last));
        let kept = Loops::new(&kept_shape, [&kept_strides]);
        Ok(Self {
            width: if keeps_last { kept.run_len() } else { 0 },
            kept,
            reduced: Loops::new(&reduced_shape, [&reduced_strides]),
            n_kept: count(&kept_shape)?,
            n_reduced: count(&reduced_shape)?,
        })
    }

    /// The results; of no elements the default, which is 0.
    fn run<T: Copy + Default + Send + Sync>(&self, x: &[T], combine: impl Fn(T, T) -> T + Send + Sync) -> Result<Vec<T>, EvalError> {
        let mut out = zeroed(self.n_kept)?;
        if self.n_reduced == 0 || self.n_kept == 0 {
            return Ok(out);
        }
        let grain = GRAIN.div_ceil(self.n_reduced);
        if self.width > 0 {
            let grain = grain.max(LEAF);
            let starts = self.starts();
            for_chunks(&mut out, grain, |start, chunk| {
                self.kept.for_runs(start..start + chunk.len(), |part, [first]| {
                    fold_rows(&x[first..], &starts, &mut chunk[part], &combine);
                });
            });
        } else {
            for_chunks(&mut out, grain, |start, chunk| {
                let mut partial = Vec::new();
                let [step] = self.kept.steps();
                self.kept.for_runs(start..start + chunk.len(), |part, [first]| {
                    for (i, to) in chunk[part].iter_mut().enumerate() {
                        *to = self.fold_runs(&x[first + i * step..], &mut partial, &combine);
                    }
                });
            });
        }
        Ok(out)
    }

    /// Place of each reduced element, counted from its result's first.
    fn starts(&self) -> Vec<usize> {
        let [step] = self.reduced.steps();
        let mut starts = Vec::with_capacity(self.n_reduced);
        self.reduced.for_runs(0..self.n_reduced, |part, [first]| starts.extend((0..part.len()).map(|i| first + i * step)));
        starts
    }

    /// One result whose elements lie in contiguous runs.
    fn fold_runs<T: Copy + Default>(&self, x: &[T], partial: &mut Vec<T>, combine: &impl Fn(T, T) -> T) -> T {
        partial.clear();
        self.reduced.for_runs(0..self.n_reduced, |part, [first]| partial.push(fold(&x[first..first + part.len()], combine)));
        fold(partial, combine)
    }
}

/// Combines elements pairwise; of none the default.
fn fold<T: Copy + Default>(x: &[T], combine: &impl Fn(T, T) -> T) -> T {
    if x.len() > LEAF {
        let half = x.len().div_ceil(2).next_multiple_of(LEAF);
        let (lhs, rhs) = x.split_at(half);
        return combine(fold(lhs, combine), fold(rhs, combine));
    }
    let mut lanes = x.chunks_exact(8);
    let Some(first) = lanes.next() else { return x.iter().copied().reduce(combine).unwrap_or_default() };
    let mut acc: [T; 8] = std::array::from_fn(|i| first[i]);
    for next in lanes.by_ref() {
        acc.iter_mut().zip(next).for_each(|(acc, &x)| *acc = combine(*acc, x));
    }
    lanes.remainder().iter().zip(&mut acc).for_each(|(&x, acc)| *acc = combine(*acc, x));
    let [a, b, c, d, e, f, g, h] = acc;
    combine(combine(combine(a, b), combine(c, d)), combine(combine(e, f), combine(g, h)))
}

/// Combines the rows that begin at `starts` pairwise into `out`.
fn fold_rows<T: Copy + Default>(x: &[T], starts: &[usize], out: &mut [T], combine: &impl Fn(T, T) -> T) {
    if starts.len() > LEAF {
        let (lhs, rhs) = starts.split_at(starts.len().div_ceil(2));
        fold_rows(x, lhs, out, combine);
        let mut other = vec![T::default(); out.len()];
        fold_rows(x, rhs, &mut other, combine);
        out.iter_mut().zip(other).for_each(|(to, x)| *to = combine(*to, x));
        return;
    }
    let Some((first, rest)) = starts.split_first() else { return };
    out.copy_from_slice(&x[*first..][..out.len()]);
    for start in rest {
        out.iter_mut().zip(&x[*start..]).for_each(|(to, &x)| *to = combine(*to, x));
    }
}

fn first_largest<T: Copy + PartialOrd + Send + Sync>(x: &[T], shape: &[usize], axis: usize) -> Result<Vec<u32>, EvalError> {
    let (size, inner) = (shape[axis], count(&shape[axis + 1..])?);
    let mut out = zeroed::<u32>(count(&shape[..axis])? * inner)?;
    for_chunks(&mut out, GRAIN.div_ceil(size.max(1)), |start, chunk| {
        for (i, to) in chunk.iter_mut().enumerate() {
            let (row, column) = ((start + i) / inner, (start + i) % inner);
            let line = &x[row * size * inner + column..];
            let mut best = 0;
            for at in 1..size {
                if line[at * inner] > line[best * inner] {
                    best = at;
                }
            }
            *to = u32::try_from(best).unwrap_or(u32::MAX);
        }
    });
    Ok(out)
}

/// A period cut in two, `head + tail`, of which the first has so few digits that small multiples of it are exact.
///
/// `x - n * head - n * tail` is then off by little more than the rounding of `x`, where `x - n * period` would add the error
/// of the rounded period once a turn: over many turns of 2π that error grows and grows.
#[must_use]
pub fn period_parts(period: f64) -> (f64, f64) {
    // Of the 52 bits behind the point 11 stay, which with the leading one make 12: times n below 4096 they fit into f32.
    const DROPPED: u32 = 41;
    let half = 1_u64 << (DROPPED - 1);
    let head = f64::from_bits((period.to_bits() + half) & !((1 << DROPPED) - 1));
    (head, period - head)
}

/// A period in the arithmetic of a run.
struct Period<R> {
    whole: R,
    head: R,
    tail: R,
}

impl<R: Real> Period<R> {
    fn new(period: f64) -> Self {
        let (head, tail) = period_parts(period);
        Self { whole: R::from_f64(period), head: R::from_f64(head), tail: R::from_f64(tail) }
    }

    /// `x` less the whole number of periods that brings it nearest to 0.
    fn take_off(&self, x: R) -> R {
        let n = (x / self.whole + R::from_f64(0.5)).floor();
        x - n * self.head - n * self.tail
    }
}

/// What is summed along an axis.
struct Line<'a> {
    shape: &'a [usize],
    axis: usize,
    reverse: bool,
    /// Of the axes up to the summed one.
    reset: Option<&'a [bool]>,
}

impl Line<'_> {
    fn running_sum<T: Copy + Default + Send + Sync>(&self, x: &[T], add: impl Fn(T, T) -> T + Send + Sync) -> Result<Vec<T>, EvalError> {
        let (size, inner) = (self.shape[self.axis], count(&self.shape[self.axis + 1..])?);
        let mut out = zeroed(x.len())?;
        let line = size * inner;
        for_chunks(&mut out, GRAIN.div_ceil(line.max(1)) * line, |start, chunk| {
            for (i, (to, x)) in chunk.chunks_mut(line).zip(x[start..].chunks(line)).enumerate() {
                // Sums within a block start anew and the blocks before it are added: the error grows with LEAF + size / LEAF.
                let mut before = vec![T::default(); inner];
                let mut within = vec![T::default(); inner];
                for step in 0..size {
                    let at = if self.reverse { size - 1 - step } else { step };
                    if step > 0 && self.is_border(start / line + i, at) {
                        before.fill(T::default());
                        within.fill(T::default());
                    }
                    if step > 0 && step % LEAF == 0 {
                        before.iter_mut().zip(&mut within).for_each(|(before, within)| *before = add(*before, std::mem::take(within)));
                    }
                    let row = at * inner..(at + 1) * inner;
                    for (((to, &x), within), &before) in to[row.clone()].iter_mut().zip(&x[row]).zip(&mut within).zip(&before) {
                        *within = add(*within, x);
                        *to = add(before, *within);
                    }
                }
            }
        });
        Ok(out)
    }

    /// Whether sums start anew at place `at`, which is not the first one summed, of the line.
    fn is_border(&self, line: usize, at: usize) -> bool {
        let size = self.shape[self.axis];
        self.reset.is_some_and(|reset| reset[line * size + if self.reverse { at + 1 } else { at }])
    }
}
