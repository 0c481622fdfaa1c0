//! Movement ops: reshape, permute, slice, broadcast, pad, concat, iota.

use super::{OperandTypes, Operands, TypeError, expect_rank, required};
use crate::autodiff::{Applied, unbroadcast};
use crate::builder::Tensor;
use crate::error::EvalError;
use crate::eval::{Array, Data, GRAIN, Loops, Real, Store, broadcast_strides, count, for_chunks, map_data, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType, broadcast_shapes, dense_strides, n_elems};

/// Typing rules of the movement ops.
#[expect(clippy::wildcard_enum_match_arm, reason = "the dispatch, which names every op, hands over only these")]
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
        return Err(TypeError::new(format!("slice: {starts:?}..{ends:?} is not within {x}"))
            .help("one start and one end for each axis, start <= end <= size"));
    }
    Ok(starts.iter().zip(ends).map(|(start, end)| end - start).collect())
}

fn broadcast(x: &TensorType, shape: &[usize]) -> Result<Vec<usize>, TypeError> {
    if broadcast_shapes(&x.shape, shape).as_deref() != Some(shape) {
        return Err(TypeError::new(format!("broadcast: {x} does not broadcast to {shape:?}"))
            .help("sizes are aligned at the last axis; each is equal or 1"));
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
            return Err(TypeError::new(format!("concat: {part} does not continue {first} along axis {axis}"))
                .help("all other sizes and the element type must be equal"));
        }
        shape[axis] = shape[axis].saturating_add(part.shape[axis]);
    }
    Ok(shape)
}

/// Value of a movement op.
#[expect(clippy::wildcard_enum_match_arm, reason = "the dispatch, which names every op, hands over only these")]
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>, ty: &TensorType) -> Result<Array<'a, R>, EvalError> {
    let shape = ty.shape.clone();
    if let Op::Iota { axis, .. } = op {
        return iota(ty, *axis);
    }
    if let Op::Concat { axis } = op {
        return join(op, operands.take_all(), *axis, shape);
    }
    let x = operands.take(op, 0)?;
    if x.shape == shape && !matches!(op, Op::Permute { .. }) {
        return Ok(x);
    }
    let strides = dense_strides(&x.shape);
    let data = match op {
        Op::Reshape { .. } => x.data,
        Op::Permute { axes } => {
            let strides: Vec<usize> = axes.iter().map(|&axis| strides[axis]).collect();
            map_data!(x.data, v => read(&v, 0, &strides, &shape)?)
        }
        Op::Slice { starts, .. } => {
            let first = starts.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
            map_data!(x.data, v => read(&v, first, &strides, &shape)?)
        }
        Op::Broadcast { .. } => {
            let strides = broadcast_strides(&x.shape, &shape);
            map_data!(x.data, v => read(&v, 0, &strides, &shape)?)
        }
        Op::Pad { lo, value, .. } => return padded(&x, lo, *value, ty),
        _ => return Err(EvalError::new(format!("{}: not a movement op", op.mnemonic()))),
    };
    Ok(Array { shape, data })
}

/// Adjoints of the operands: the same movement backwards.
#[expect(clippy::wildcard_enum_match_arm, reason = "the dispatch, which names every op, hands over only these")]
#[track_caller]
pub(super) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    let (Some(x), Some(dy)) = (at.operand(0), at.adjoint(0)) else { return Vec::new() };
    let shape = x.shape();
    let dx = match at.op {
        Op::Reshape { .. } => dy.reshape(shape),
        Op::Permute { axes } => {
            let mut back = vec![0; axes.len()];
            axes.iter().enumerate().for_each(|(to, &from)| back[from] = to);
            dy.permute(back)
        }
        Op::Slice { starts, ends } => {
            let after: Vec<usize> = shape.iter().zip(ends).map(|(size, end)| size - end).collect();
            dy.pad(starts.clone(), after, 0.0)
        }
        Op::Broadcast { .. } => unbroadcast(dy, &shape),
        Op::Pad { lo, .. } => dy.slice(lo.clone(), lo.iter().zip(&shape).map(|(lo, size)| lo + size).collect::<Vec<_>>()),
        Op::Concat { axis } => return vjp_of_concat(at, dy, *axis),
        _ => return Vec::new(),
    };
    vec![Some(dx)]
}

#[track_caller]
fn vjp_of_concat<'g>(at: &Applied<'_, 'g>, dy: Tensor<'g>, axis: usize) -> Vec<Option<Tensor<'g>>> {
    let mut start = 0;
    let part = |(idx, operand): (usize, &Option<Tensor<'g>>)| {
        let size = operand.map_or(0, |operand| operand.dim(axis));
        start += size;
        at.wants(idx).then(|| dy.slice_axis(axis, start - size, start))
    };
    at.operands.iter().enumerate().map(part).collect()
}

/// A dense copy of the elements from `first` on at `strides`.
fn read<T: Copy + Default + Send + Sync>(from: &Store<T>, first: usize, strides: &[usize], shape: &[usize]) -> Result<Vec<T>, EvalError> {
    let mut out = zeroed(count(shape)?)?;
    let loops = Loops::new(shape, [strides]);
    for_chunks(&mut out, GRAIN, |start, chunk| {
        loops.for_runs(start..start + chunk.len(), |part, [place]| {
            let (to, from) = (&mut chunk[part], &from[first + place..]);
            match loops.steps() {
                [1] => to.copy_from_slice(&from[..to.len()]),
                [0] => to.fill(from[0]),
                [step] => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = *from),
            }
        });
    });
    Ok(out)
}

fn padded<'a, R: Real>(x: &Array<'a, R>, lo: &[usize], value: f64, ty: &TensorType) -> Result<Array<'a, R>, EvalError> {
    let strides = dense_strides(&ty.shape);
    let first: usize = lo.iter().zip(&strides).map(|(lo, stride)| lo * stride).sum();
    let loops = Loops::new(&x.shape, [&strides]);
    let filled = Array::filled(ty, value)?.data;
    let data = match (&x.data, filled) {
        (Data::F32(v), Data::F32(to)) => Data::F32(write(v, to.into_vec(), first, &loops).into()),
        (Data::F16(v), Data::F16(to)) => Data::F16(write(v, to.into_vec(), first, &loops).into()),
        (Data::Bf16(v), Data::Bf16(to)) => Data::Bf16(write(v, to.into_vec(), first, &loops).into()),
        (Data::I32(v), Data::I32(to)) => Data::I32(write(v, to.into_vec(), first, &loops).into()),
        (Data::U32(v), Data::U32(to)) => Data::U32(write(v, to.into_vec(), first, &loops).into()),
        (Data::Bool(v), Data::Bool(to)) => Data::Bool(write(v, to.into_vec(), first, &loops).into()),
        _ => return Err(EvalError::new(format!("pad: {} padded to {ty}", x.dtype()))),
    };
    Ok(Array { shape: ty.shape.clone(), data })
}

/// Puts dense elements at the places of `loops`, counted from `first`.
fn write<T: Copy>(from: &[T], mut to: Vec<T>, first: usize, loops: &Loops<1>) -> Vec<T> {
    let [step] = loops.steps();
    loops.for_runs(0..from.len(), |part, [place]| {
        let to = to[first + place..].iter_mut().step_by(step.max(1));
        to.zip(&from[part]).for_each(|(to, from)| *to = *from);
    });
    to
}

fn join<'a, R: Real>(op: &Op, mut parts: Vec<Array<'a, R>>, axis: usize, shape: Vec<usize>) -> Result<Array<'a, R>, EvalError> {
    let inner = count(&shape[axis + 1..])?;
    let rows = count(&shape[..axis])?;
    let widths: Vec<usize> = parts.iter().map(|part| part.shape[axis] * inner).collect();
    let mixed = || EvalError::new(format!("{}: parts of several element types", op.mnemonic()));
    macro_rules! join_as {
        ($variant:ident) => {{
            let parts = parts.iter().map(|part| if let Data::$variant(v) = &part.data { Some(&**v) } else { None });
            let parts: Vec<_> = parts.collect::<Option<_>>().ok_or_else(mixed)?;
            Data::$variant(interleave(&parts, &widths, rows).into())
        }};
    }
    let data = match parts.first().ok_or_else(mixed)?.dtype() {
        _ if parts.len() == 1 => return Ok(parts.swap_remove(0)),
        DType::F32 => join_as!(F32),
        DType::F16 => join_as!(F16),
        DType::Bf16 => join_as!(Bf16),
        DType::I32 => join_as!(I32),
        DType::U32 => join_as!(U32),
        DType::Bool => join_as!(Bool),
        DType::I8 => join_as!(I8),
    };
    Ok(Array { shape, data })
}

fn interleave<T: Copy>(parts: &[&[T]], widths: &[usize], rows: usize) -> Vec<T> {
    let mut out = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for row in 0..rows {
        for (part, width) in parts.iter().zip(widths) {
            out.extend_from_slice(&part[row * width..(row + 1) * width]);
        }
    }
    out
}

fn iota<'a, R: Real>(ty: &TensorType, axis: usize) -> Result<Array<'a, R>, EvalError> {
    let size = ty.shape[axis];
    let inner = count(&ty.shape[axis + 1..])?;
    let mut out = zeroed::<u32>(count(&ty.shape)?)?;
    for (i, to) in out.iter_mut().enumerate() {
        *to = u32::try_from(i / inner % size).unwrap_or(u32::MAX);
    }
    let data = match ty.dtype {
        DType::U32 => Data::U32(out.into()),
        DType::I32 => Data::I32(out.into_iter().map(u32::cast_signed).collect::<Vec<_>>().into()),
        DType::F32 => Data::F32(out.into_iter().map(|i| R::from_f64(f64::from(i))).collect::<Vec<_>>().into()),
        DType::F16 | DType::Bf16 | DType::Bool | DType::I8 => return Err(EvalError::new(format!("iota: not defined on {}", ty.dtype))),
    };
    Ok(Array { shape: ty.shape.clone(), data })
}
