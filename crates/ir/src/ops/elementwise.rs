//! Elementwise ops: arithmetic, comparison, select, clamp, transcendental functions, casts.

use super::{OperandTypes, Operands, TypeError, required};
use crate::autodiff::{Applied, as_dtype, number, unbroadcast};
use crate::builder::Tensor;
use crate::error::EvalError;
use crate::eval::{Array, Data, GRAIN, Loops, Real, Store, broadcast_strides, count, for_chunks, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType, broadcast_shapes};
use std::cmp::Ordering;

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
        Op::Exp {}
        | Op::Log {}
        | Op::Sqrt {}
        | Op::Rsqrt {}
        | Op::Sigmoid {}
        | Op::Silu {}
        | Op::Softplus {}
        | Op::Tanh {}
        | Op::Sin {}
        | Op::Cos {}
        | Op::Floor {} => need(first, first.is_float(), "floats"),
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
                return Err(
                    TypeError::new(format!("select: cond {} is not bool", required(op, operands, 0)?)).help("compare it with ne or lt")
                );
            }
            same(1)
        }
        Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::Slice { .. }
        | Op::Broadcast { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Iota { .. }
        | Op::Sum { .. }
        | Op::Mean { .. }
        | Op::ReduceMax { .. }
        | Op::Argmax { .. }
        | Op::Cumsum { .. }
        | Op::MatMul { .. }
        | Op::Gather {}
        | Op::ScatterAdd { .. }
        | Op::Sample {}
        | Op::Conv1d { .. }
        | Op::Scan { .. }
        | Op::ScanGrad { .. } => Err(TypeError::new(format!("{}: not an elementwise op", op.mnemonic()))),
    }
}

/// Value of an elementwise op: each result element from the operand elements at its (broadcast) index.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>, ty: &TensorType) -> Result<Array<'a, R>, EvalError> {
    let x = operands.take(op, 0)?;
    match op {
        Op::Neg {} | Op::Abs {} => signed(op, x),
        Op::Exp {} => real(x, R::exp),
        Op::Log {} => real(x, R::ln),
        Op::Sqrt {} => real(x, R::sqrt),
        Op::Rsqrt {} => real(x, |x| R::ONE / x.sqrt()),
        Op::Sigmoid {} => real(x, sigmoid),
        Op::Silu {} => real(x, |x| x * sigmoid(x)),
        Op::Softplus {} => real(x, softplus),
        Op::Tanh {} => real(x, R::tanh),
        Op::Sin {} => real(x, R::sin),
        Op::Cos {} => real(x, R::cos),
        Op::Floor {} => real(x, R::floor),
        Op::Clamp { lo, hi } => {
            let (lo, hi) = (R::from_f64(*lo), R::from_f64(*hi));
            real(x, move |x| min(max(x, lo), hi))
        }
        Op::Not {} => Ok(bools(ty, map1(&bool_of(op, x)?, |x| !x)?)),
        Op::Cast { dtype } => cast(x, *dtype),
        Op::Add {} => arithmetic(x, operands.take(op, 1)?, ty, |x, y| x + y, i32::wrapping_add, u32::wrapping_add),
        Op::Sub {} => arithmetic(x, operands.take(op, 1)?, ty, |x, y| x - y, i32::wrapping_sub, u32::wrapping_sub),
        Op::Mul {} => arithmetic(x, operands.take(op, 1)?, ty, |x, y| x * y, i32::wrapping_mul, u32::wrapping_mul),
        Op::Max {} => arithmetic(x, operands.take(op, 1)?, ty, max, max, max),
        Op::Min {} => arithmetic(x, operands.take(op, 1)?, ty, min, min, min),
        Op::Div {} => real2(x, operands.take(op, 1)?, ty, |x, y| x / y),
        Op::Eq {} => comparison(x, operands.take(op, 1)?, ty, |order| order == Some(Ordering::Equal)),
        Op::Ne {} => comparison(x, operands.take(op, 1)?, ty, |order| order != Some(Ordering::Equal)),
        Op::Lt {} => comparison(x, operands.take(op, 1)?, ty, |order| order == Some(Ordering::Less)),
        Op::Le {} => comparison(x, operands.take(op, 1)?, ty, |order| order.is_some_and(Ordering::is_le)),
        Op::And {} => logic(op, x, operands.take(op, 1)?, ty, |x, y| x & y),
        Op::Or {} => logic(op, x, operands.take(op, 1)?, ty, |x, y| x | y),
        Op::Select {} => select(op, x, operands.take(op, 1)?, operands.take(op, 2)?, ty),
        Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::Slice { .. }
        | Op::Broadcast { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Iota { .. }
        | Op::Sum { .. }
        | Op::Mean { .. }
        | Op::ReduceMax { .. }
        | Op::Argmax { .. }
        | Op::Cumsum { .. }
        | Op::MatMul { .. }
        | Op::Gather {}
        | Op::ScatterAdd { .. }
        | Op::Sample {}
        | Op::Conv1d { .. }
        | Op::Scan { .. }
        | Op::ScanGrad { .. } => Err(not_defined(op, &x)),
    }
}

/// Adjoints of the operands, by the result where that saves a function. Ties of `max` go to the first operand and those of `min` to
/// the second, so that `max(x, y) + min(x, y)` has the derivatives of `x + y` everywhere.
#[track_caller]
pub(super) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    let (Some(x), Some(dy), Some(&y)) = (at.operand(0), at.adjoint(0), at.results.first()) else { return Vec::new() };
    let zero = number(dy, 0.0);
    let dx = match at.op {
        Op::Neg {} => -dy,
        Op::Abs {} => x.lt(zero).select(-dy, dy),
        Op::Exp {} => dy * y,
        Op::Log {} => dy / x,
        Op::Sqrt {} => dy * number(y, 0.5) / y,
        Op::Rsqrt {} => dy * number(y, -0.5) * (y * y * y),
        // 1 - sigmoid(x) is sigmoid(-x), which keeps its digits where the first is near 1.
        Op::Sigmoid {} => dy * (y * (-x).sigmoid()),
        Op::Silu {} => dy * (x.sigmoid() + y * (-x).sigmoid()),
        Op::Softplus {} => dy * x.sigmoid(),
        // 1 - tanh², likewise.
        Op::Tanh {} => {
            let twice = x + x;
            dy * number(x, 4.0) * (twice.sigmoid() * (-twice).sigmoid())
        }
        Op::Sin {} => dy * x.cos(),
        Op::Cos {} => -(dy * x.sin()),
        Op::Clamp { lo, hi } => number(x, *lo).le(x).and(x.le(number(x, *hi))).select(dy, zero),
        Op::Cast { .. } => as_dtype(dy, x.dtype()),
        Op::Add {} | Op::Sub {} | Op::Mul {} | Op::Div {} | Op::Max {} | Op::Min {} => return vjp_of_two(at, x, dy, y),
        Op::Select {} => return vjp_of_select(at, x, dy),
        Op::Floor {} | Op::Not {} | Op::Eq {} | Op::Ne {} | Op::Lt {} | Op::Le {} | Op::And {} | Op::Or {} => return Vec::new(),
        Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::Slice { .. }
        | Op::Broadcast { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Iota { .. }
        | Op::Sum { .. }
        | Op::Mean { .. }
        | Op::ReduceMax { .. }
        | Op::Argmax { .. }
        | Op::Cumsum { .. }
        | Op::MatMul { .. }
        | Op::Gather {}
        | Op::ScatterAdd { .. }
        | Op::Sample {}
        | Op::Conv1d { .. }
        | Op::Scan { .. }
        | Op::ScanGrad { .. } => return Vec::new(),
    };
    vec![Some(dx)]
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the dispatch, which names every op, hands over only these")]
#[track_caller]
fn vjp_of_two<'g>(at: &Applied<'_, 'g>, x: Tensor<'g>, dy: Tensor<'g>, out: Tensor<'g>) -> Vec<Option<Tensor<'g>>> {
    let Some(y) = at.operand(1) else { return Vec::new() };
    let zero = number(dy, 0.0);
    let of = |idx: usize, make: &dyn Fn() -> Tensor<'g>| {
        let operand = if idx == 0 { x } else { y };
        at.wants(idx).then(|| unbroadcast(make(), &operand.shape()))
    };
    match at.op {
        Op::Add {} => vec![of(0, &|| dy), of(1, &|| dy)],
        Op::Sub {} => vec![of(0, &|| dy), of(1, &|| -dy)],
        Op::Mul {} => vec![of(0, &|| dy * y), of(1, &|| dy * x)],
        Op::Div {} => vec![of(0, &|| dy / y), of(1, &|| -(dy * out / y))],
        Op::Max {} => vec![of(0, &|| y.le(x).select(dy, zero)), of(1, &|| y.le(x).select(zero, dy))],
        Op::Min {} => vec![of(0, &|| x.lt(y).select(dy, zero)), of(1, &|| x.lt(y).select(zero, dy))],
        _ => Vec::new(),
    }
}

#[track_caller]
fn vjp_of_select<'g>(at: &Applied<'_, 'g>, cond: Tensor<'g>, dy: Tensor<'g>) -> Vec<Option<Tensor<'g>>> {
    let zero = number(dy, 0.0);
    let of = |idx: usize, make: &dyn Fn() -> Tensor<'g>| {
        at.operand(idx).filter(|_| at.wants(idx)).map(|operand| unbroadcast(make(), &operand.shape()))
    };
    vec![None, of(1, &|| cond.select(dy, zero)), of(2, &|| cond.select(zero, dy))]
}

/// `1 / (1 + e^-x)` from `e^-|x|`, which never overflows and keeps the small side.
fn sigmoid<R: Real>(x: R) -> R {
    let e = (-x.abs()).exp();
    if x >= R::ZERO { R::ONE / (R::ONE + e) } else { e / (R::ONE + e) }
}

/// `log(1 + e^x)` as `max(x, 0) + log1p(e^-|x|)`: right on both tails.
fn softplus<R: Real>(x: R) -> R {
    max(x, R::ZERO) + (-x.abs()).exp().ln_1p()
}

/// The larger; the first if they do not compare, so that a NaN stays visible.
fn max<T: PartialOrd>(lhs: T, rhs: T) -> T {
    if lhs < rhs { rhs } else { lhs }
}

/// The smaller; the first if they do not compare.
fn min<T: PartialOrd>(lhs: T, rhs: T) -> T {
    if rhs < lhs { rhs } else { lhs }
}

fn real<'a, R: Real>(x: Array<'a, R>, f: impl Fn(R) -> R + Send + Sync) -> Result<Array<'a, R>, EvalError> {
    let (shape, dtype) = (x.shape.clone(), x.dtype());
    Array::store(&shape, dtype, map_same(x.into_reals()?, f)?)
}

fn signed<'a, R: Real>(op: &Op, x: Array<'a, R>) -> Result<Array<'a, R>, EvalError> {
    let is_neg = matches!(op, Op::Neg {});
    let Array { shape, data: Data::I32(ints) } = x else {
        return if is_neg { real(x, |x| -x) } else { real(x, R::abs) };
    };
    let ints = if is_neg { map_same(ints, i32::wrapping_neg)? } else { map_same(ints, i32::wrapping_abs)? };
    Ok(Array { shape, data: Data::I32(ints) })
}

/// The rules of the op's row; integers of one size keep their bits.
fn cast<'a, R: Real>(x: Array<'a, R>, dtype: DType) -> Result<Array<'a, R>, EvalError> {
    if x.dtype() == dtype {
        return Ok(x);
    }
    let shape = x.shape.clone();
    let data = match (x.data, dtype) {
        (Data::I32(v), DType::U32) => Data::U32(map1(&v, i32::cast_unsigned)?.into()),
        (Data::U32(v), DType::I32) => Data::I32(map1(&v, u32::cast_signed)?.into()),
        (Data::I32(v), DType::Bool) => Data::Bool(map1(&v, |x| x != 0)?.into()),
        (Data::U32(v), DType::Bool) => Data::Bool(map1(&v, |x| x != 0)?.into()),
        (Data::Bool(v), DType::I32) => Data::I32(map1(&v, i32::from)?.into()),
        (Data::Bool(v), DType::U32) => Data::U32(map1(&v, u32::from)?.into()),
        (data, _) => return cast_real(Array { shape, data }, dtype),
    };
    Ok(Array { shape, data })
}

/// Casts that pass through a float.
fn cast_real<'a, R: Real>(x: Array<'a, R>, dtype: DType) -> Result<Array<'a, R>, EvalError> {
    let shape = x.shape.clone();
    let reals: Store<'a, R> = match x.data {
        Data::I32(v) => map1(&v, |x| R::from_f64(f64::from(x)))?.into(),
        Data::U32(v) => map1(&v, |x| R::from_f64(f64::from(x)))?.into(),
        Data::Bool(v) => map1(&v, |x| if x { R::ONE } else { R::ZERO })?.into(),
        Data::I8(v) => map1(&v, |x| R::from_f64(f64::from(x)))?.into(),
        Data::F32(_) | Data::F16(_) | Data::Bf16(_) => x.into_reals()?,
    };
    let data = match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => return Array::store(&shape, dtype, reals),
        DType::I32 => Data::I32(map1(&reals, R::to_i32)?.into()),
        DType::U32 => Data::U32(map1(&reals, R::to_u32)?.into()),
        DType::Bool => Data::Bool(map1(&reals, |x| x != R::ZERO)?.into()),
        DType::I8 => return Err(EvalError::new("cast: nothing is converted to i8")),
    };
    Ok(Array { shape, data })
}

fn arithmetic<'a, R: Real>(
    lhs: Array<'a, R>,
    rhs: Array<'a, R>,
    ty: &TensorType,
    real: impl Fn(R, R) -> R + Send + Sync,
    int: impl Fn(i32, i32) -> i32 + Send + Sync,
    uint: impl Fn(u32, u32) -> u32 + Send + Sync,
) -> Result<Array<'a, R>, EvalError> {
    let data = match (lhs.data, rhs.data) {
        (Data::I32(a), Data::I32(b)) => Data::I32(map2((&a, &lhs.shape), (&b, &rhs.shape), ty, int)?.into()),
        (Data::U32(a), Data::U32(b)) => Data::U32(map2((&a, &lhs.shape), (&b, &rhs.shape), ty, uint)?.into()),
        (a, b) => return real2(Array { shape: lhs.shape, data: a }, Array { shape: rhs.shape, data: b }, ty, real),
    };
    Ok(Array { shape: ty.shape.clone(), data })
}

fn real2<'a, R: Real>(
    lhs: Array<'a, R>,
    rhs: Array<'a, R>,
    ty: &TensorType,
    f: impl Fn(R, R) -> R + Send + Sync,
) -> Result<Array<'a, R>, EvalError> {
    let (lhs_shape, rhs_shape) = (lhs.shape.clone(), rhs.shape.clone());
    let out = map2_same((lhs.into_reals()?, &lhs_shape), (&rhs.into_reals()?, &rhs_shape), ty, f)?;
    Array::store(&ty.shape, ty.dtype, out.into())
}

/// `holds` says which orders of the operands give true; floats that do not compare have none.
fn comparison<'a, R: Real>(
    lhs: Array<'a, R>,
    rhs: Array<'a, R>,
    ty: &TensorType,
    holds: impl Fn(Option<Ordering>) -> bool + Send + Sync,
) -> Result<Array<'a, R>, EvalError> {
    let out = match (lhs.data, rhs.data) {
        (Data::I32(a), Data::I32(b)) => map2((&a, &lhs.shape), (&b, &rhs.shape), ty, |x, y| holds(x.partial_cmp(&y))),
        (Data::U32(a), Data::U32(b)) => map2((&a, &lhs.shape), (&b, &rhs.shape), ty, |x, y| holds(x.partial_cmp(&y))),
        (Data::Bool(a), Data::Bool(b)) => map2((&a, &lhs.shape), (&b, &rhs.shape), ty, |x, y| holds(x.partial_cmp(&y))),
        (a, b) => {
            let a = Array { shape: Vec::new(), data: a }.into_reals()?;
            let b = Array { shape: Vec::new(), data: b }.into_reals()?;
            map2((&a, &lhs.shape), (&b, &rhs.shape), ty, |x, y| holds(x.partial_cmp(&y)))
        }
    }?;
    Ok(bools(ty, out))
}

fn logic<'a, R: Real>(
    op: &Op,
    lhs: Array<'a, R>,
    rhs: Array<'a, R>,
    ty: &TensorType,
    f: impl Fn(bool, bool) -> bool + Send + Sync,
) -> Result<Array<'a, R>, EvalError> {
    let (lhs_shape, rhs_shape) = (lhs.shape.clone(), rhs.shape.clone());
    Ok(bools(ty, map2((&bool_of(op, lhs)?, &lhs_shape), (&bool_of(op, rhs)?, &rhs_shape), ty, f)?))
}

fn select<'a, R: Real>(
    op: &Op,
    cond: Array<'a, R>,
    yes: Array<'a, R>,
    no: Array<'a, R>,
    ty: &TensorType,
) -> Result<Array<'a, R>, EvalError> {
    let shapes = [cond.shape.as_slice(), yes.shape.as_slice(), no.shape.as_slice()];
    let strides = shapes.map(|shape| broadcast_strides(shape, &ty.shape));
    let loops = Loops::new(&ty.shape, [&strides[0], &strides[1], &strides[2]]);
    let Data::Bool(cond) = cond.data else { return Err(not_defined(op, &yes)) };
    let n = count(&ty.shape)?;
    let data = match (yes.data, no.data) {
        (Data::F32(a), Data::F32(b)) => Data::F32(choose(&loops, n, &cond, &a, &b)?.into()),
        (Data::F16(a), Data::F16(b)) => Data::F16(choose(&loops, n, &cond, &a, &b)?.into()),
        (Data::Bf16(a), Data::Bf16(b)) => Data::Bf16(choose(&loops, n, &cond, &a, &b)?.into()),
        (Data::I32(a), Data::I32(b)) => Data::I32(choose(&loops, n, &cond, &a, &b)?.into()),
        (Data::U32(a), Data::U32(b)) => Data::U32(choose(&loops, n, &cond, &a, &b)?.into()),
        (Data::Bool(a), Data::Bool(b)) => Data::Bool(choose(&loops, n, &cond, &a, &b)?.into()),
        (data, _) => return Err(not_defined(op, &Array { shape: yes.shape, data })),
    };
    Ok(Array { shape: ty.shape.clone(), data })
}

fn choose<T: Copy + Default + Send + Sync>(loops: &Loops<3>, n: usize, cond: &[bool], yes: &[T], no: &[T]) -> Result<Vec<T>, EvalError> {
    let mut out = zeroed(n)?;
    let [c_step, y_step, n_step] = loops.steps();
    for_chunks(&mut out, GRAIN, |start, chunk| {
        loops.for_runs(start..start + chunk.len(), |part, [c, y, n]| {
            for (i, to) in chunk[part].iter_mut().enumerate() {
                *to = if cond[c + i * c_step] { yes[y + i * y_step] } else { no[n + i * n_step] };
            }
        });
    });
    Ok(out)
}

fn map1<T: Copy + Send + Sync, U: Copy + Default + Send>(x: &[T], f: impl Fn(T) -> U + Send + Sync) -> Result<Vec<U>, EvalError> {
    let mut out = zeroed(x.len())?;
    for_chunks(&mut out, GRAIN, |start, chunk| {
        for (to, &x) in chunk.iter_mut().zip(&x[start..]) {
            *to = f(x);
        }
    });
    Ok(out)
}

/// As [`map1`], in place where nobody else holds the operand.
fn map_same<'a, T: Copy + Default + Send + Sync>(x: Store<'a, T>, f: impl Fn(T) -> T + Send + Sync) -> Result<Store<'a, T>, EvalError> {
    match x.try_into_vec() {
        Ok(mut own) => {
            for_chunks(&mut own, GRAIN, |_, chunk| chunk.iter_mut().for_each(|x| *x = f(*x)));
            Ok(own.into())
        }
        Err(shared) => map1(&shared, f).map(Into::into),
    }
}

fn map2<T, U, F>(lhs: (&[T], &[usize]), rhs: (&[T], &[usize]), ty: &TensorType, f: F) -> Result<Vec<U>, EvalError>
where
    T: Copy + Send + Sync,
    U: Copy + Default + Send,
    F: Fn(T, T) -> U + Send + Sync,
{
    let strides = [broadcast_strides(lhs.1, &ty.shape), broadcast_strides(rhs.1, &ty.shape)];
    let loops = Loops::new(&ty.shape, [&strides[0], &strides[1]]);
    let (lhs, rhs) = (lhs.0, rhs.0);
    let mut out = zeroed(count(&ty.shape)?)?;
    for_chunks(&mut out, GRAIN, |start, chunk| {
        loops.for_runs(start..start + chunk.len(), |part, [a, b]| {
            let out = chunk[part].iter_mut();
            match loops.steps() {
                [1, 1] => out.zip(&lhs[a..]).zip(&rhs[b..]).for_each(|((to, &x), &y)| *to = f(x, y)),
                [1, 0] => out.zip(&lhs[a..]).for_each(|(to, &x)| *to = f(x, rhs[b])),
                [0, 1] => out.zip(&rhs[b..]).for_each(|(to, &y)| *to = f(lhs[a], y)),
                [step_a, step_b] => out.enumerate().for_each(|(i, to)| *to = f(lhs[a + i * step_a], rhs[b + i * step_b])),
            }
        });
    });
    Ok(out)
}

/// As [`map2`], into the left operand where nobody else holds it and it has the result's shape.
fn map2_same<T, F>(lhs: (Store<T>, &[usize]), rhs: (&[T], &[usize]), ty: &TensorType, f: F) -> Result<Vec<T>, EvalError>
where
    T: Copy + Default + Send + Sync,
    F: Fn(T, T) -> T + Send + Sync,
{
    if lhs.1 != ty.shape {
        return map2((&lhs.0, lhs.1), rhs, ty, f);
    }
    let mut out = match lhs.0.try_into_vec() {
        Ok(own) => own,
        Err(shared) => return map2((&shared, lhs.1), rhs, ty, f),
    };
    let loops = Loops::new(&ty.shape, [&broadcast_strides(rhs.1, &ty.shape)]);
    let rhs = rhs.0;
    for_chunks(&mut out, GRAIN, |start, chunk| {
        loops.for_runs(start..start + chunk.len(), |part, [b]| {
            let out = chunk[part].iter_mut();
            match loops.steps() {
                [1] => out.zip(&rhs[b..]).for_each(|(to, &y)| *to = f(*to, y)),
                [0] => out.for_each(|to| *to = f(*to, rhs[b])),
                [step] => out.enumerate().for_each(|(i, to)| *to = f(*to, rhs[b + i * step])),
            }
        });
    });
    Ok(out)
}

fn bools<'a, R: Real>(ty: &TensorType, elements: Vec<bool>) -> Array<'a, R> {
    Array { shape: ty.shape.clone(), data: Data::Bool(elements.into()) }
}

fn bool_of<'a, R: Real>(op: &Op, x: Array<'a, R>) -> Result<Store<'a, bool>, EvalError> {
    if let Data::Bool(bools) = x.data { Ok(bools) } else { Err(not_defined(op, &x)) }
}

fn not_defined<R: Real>(op: &Op, x: &Array<R>) -> EvalError {
    EvalError::new(format!("{}: not defined on {}", op.mnemonic(), x.dtype()))
}
