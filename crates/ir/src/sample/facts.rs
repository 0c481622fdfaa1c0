//! What is known of a value before any run: its range, and how far two right executors may differ on it.

#![expect(clippy::wildcard_enum_match_arm, reason = "an op without a rule here is never sampled, and a test says so")]

use crate::op::Op;
use crate::types::{DType, TensorType};

/// Rounding of one f32 operation, some units in the last place with room for library functions.
const EPS_F32: f64 = 1e-6;

/// Bounds of all elements of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Facts {
    pub(super) lo: f64,
    pub(super) hi: f64,
    /// Most by which two right executors differ; 0 if they agree to the bit.
    pub(super) err: f64,
}

/// An operand's facts with its type.
pub(super) type Known<'a> = (Facts, &'a TensorType);

impl Facts {
    pub(super) const fn exact(lo: f64, hi: f64) -> Self {
        Self { lo, hi, err: 0.0 }
    }

    pub(super) fn is_exact(self) -> bool {
        self.err == 0.0
    }

    pub(super) const fn max_abs(self) -> f64 {
        self.lo.abs().max(self.hi.abs())
    }

    /// Smallest distance from zero.
    pub(super) const fn min_abs(self) -> f64 {
        self.lo.max(-self.hi).max(0.0)
    }

    const fn union(self, other: Self) -> Self {
        Self { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi), err: self.err.max(other.err) }
    }

    /// `f` of a value: `f` is monotone on the range and no steeper than `slope`.
    fn monotone(self, slope: f64, f: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (f(self.lo), f(self.hi));
        Self { lo: a.min(b), hi: a.max(b), err: self.err * slope }
    }

    /// A value between `lo` and `hi` whose error grows by at most `slope`.
    const fn bounded(self, lo: f64, hi: f64, slope: f64) -> Self {
        Self { lo, hi, err: self.err * slope }
    }

    /// A sum of up to `n` such values.
    fn summed(self, n: usize) -> Self {
        let n = n_as_f64(n);
        Self { lo: (self.lo * n).min(0.0), hi: (self.hi * n).max(0.0), err: n * self.err + EPS_F32 * n * self.max_abs() }
    }

    fn times(self, other: Self) -> Self {
        let corners = [self.lo * other.lo, self.lo * other.hi, self.hi * other.lo, self.hi * other.hi];
        let err = self.err * other.max_abs() + other.err * self.max_abs() + self.err * other.err;
        Self { lo: corners.into_iter().fold(f64::MAX, f64::min), hi: corners.into_iter().fold(f64::MIN, f64::max), err }
    }

    fn plus(self, other: Self) -> Self {
        Self { lo: self.lo + other.lo, hi: self.hi + other.hi, err: self.err + other.err }
    }
}

/// Facts of each result of `op`; `None` where an operand may be outside the op's domain, or where a small difference
/// of an operand may become a large one of the result (comparisons, rounding to integers, argmax).
pub(super) fn of_results(op: &Op, operands: &[Option<Known<'_>>], results: &[TensorType]) -> Option<Vec<Facts>> {
    let known = |idx: usize| operands.get(idx).copied().flatten();
    let facts = match op {
        Op::Conv1d { .. } => return conv1d(operands, results),
        Op::Scan { .. } => return scan(operands, results),
        Op::ScanGrad { .. } => return scan_grad(operands, results),
        Op::Iota { shape, axis, .. } => Facts::exact(0.0, n_as_f64(shape.get(*axis)?.saturating_sub(1))),
        Op::Concat { .. } => operands.iter().flatten().map(|(facts, _)| *facts).reduce(Facts::union)?,
        Op::Select {} => known(1)?.0.union(known(2)?.0),
        Op::MatMul { transpose_a, .. } => {
            let (lhs, rhs) = (known(0)?, known(1)?);
            let axis = lhs.1.rank().checked_sub(if *transpose_a { 2 } else { 1 })?;
            lhs.0.times(rhs.0).summed(*lhs.1.shape.get(axis)?)
        }
        Op::Gather {} => {
            let (table, ids) = (known(0)?, known(1)?.0);
            let n_rows = n_as_f64(*table.1.shape.first()?);
            (ids.lo >= 0.0 && ids.hi < n_rows).then_some(table.0)?
        }
        Op::ScatterAdd { rows } => {
            let (updates, ids) = (known(0)?, known(1)?);
            let n = ids.1.shape.iter().product();
            (ids.0.lo >= 0.0 && ids.0.hi < n_as_f64(*rows)).then(|| updates.0.summed(n))?
        }
        Op::Sample {} => {
            // Weights of exact logits differ by rounding alone, which draws another token once in a million runs.
            let (logits, settings, uniform) = (known(0)?, known(1)?.0, known(2)?.0);
            let in_domain = settings.lo >= 0.0 && uniform.lo >= 0.0 && uniform.hi < 1.0;
            let n_tokens = n_as_f64(*logits.1.shape.last()?);
            (logits.0.is_exact() && settings.is_exact() && uniform.is_exact() && in_domain).then(|| Facts::exact(0.0, n_tokens))?
        }
        Op::Cumsum { axis, .. } => {
            let (x, ty) = known(0)?;
            x.summed(*ty.shape.get(*axis)?)
        }
        _ if operands.len() == 2 => binary(op, known(0)?.0, known(1)?.0)?,
        _ => unary(op, known(0)?)?,
    };
    Some(vec![rounded(op, facts, results.first()?)])
}

/// Adds the rounding of the result's own element type, which exact ops on exact operands do not have.
fn rounded(op: &Op, facts: Facts, ty: &TensorType) -> Facts {
    let eps = match ty.dtype {
        DType::F32 => EPS_F32,
        DType::F16 => 1e-3,
        DType::Bf16 => 8e-3,
        DType::I32 | DType::U32 | DType::Bool | DType::I8 => return Facts { err: 0.0, ..facts },
    };
    if op.accuracy() == crate::op::Accuracy::Exact && facts.is_exact() {
        return facts;
    }
    Facts { err: facts.err + eps * facts.max_abs(), ..facts }
}

fn unary(op: &Op, (x, ty): Known<'_>) -> Option<Facts> {
    const MIN_POSITIVE: f64 = 0.1;
    let is_positive = x.lo >= MIN_POSITIVE;
    Some(match op {
        Op::Neg {} => x.monotone(1.0, |v| -v),
        Op::Abs {} => x.bounded(x.min_abs(), x.max_abs(), 1.0),
        Op::Exp {} => x.monotone(x.hi.exp(), f64::exp),
        Op::Log {} if is_positive => x.monotone(x.lo.recip(), f64::ln),
        Op::Sqrt {} if is_positive => x.monotone(0.5 / x.lo.sqrt(), f64::sqrt),
        Op::Rsqrt {} if is_positive => x.monotone(0.5 * x.lo.powf(-1.5), |v| v.sqrt().recip()),
        Op::Sigmoid {} => x.bounded(0.0, 1.0, 0.25),
        Op::Silu {} => x.bounded(-0.3, x.hi.max(0.0), 1.1),
        Op::Softplus {} => x.bounded(0.0, x.hi.max(0.0) + 0.7, 1.0),
        Op::Tanh {} | Op::Sin {} | Op::Cos {} => x.bounded(-1.0, 1.0, 1.0),
        Op::Floor {} if x.is_exact() => x.monotone(1.0, f64::floor),
        Op::Not {} => Facts::exact(0.0, 1.0),
        Op::Clamp { lo, hi } => x.monotone(1.0, |v| v.max(*lo).min(*hi)),
        Op::Cast { dtype } => cast(*dtype, x, ty.dtype)?,
        Op::Reshape { .. } | Op::Permute { .. } | Op::Slice { .. } | Op::Broadcast { .. } | Op::ReduceMax { .. } => x,
        Op::Pad { value, .. } => x.union(Facts::exact(*value, *value)),
        Op::Sum { axes, .. } => x.summed(axes.iter().filter_map(|&axis| ty.shape.get(axis)).product()),
        Op::Mean { axes, .. } => {
            let n = axes.iter().filter_map(|&axis| ty.shape.get(axis)).product();
            Facts { err: x.err + EPS_F32 * n_as_f64(n) * x.max_abs(), ..x }
        }
        Op::Argmax { axis } if x.is_exact() => Facts::exact(0.0, n_as_f64(ty.shape.get(*axis)?.saturating_sub(1))),
        _ => return None,
    })
}

fn cast(to: DType, x: Facts, from: DType) -> Option<Facts> {
    let facts = match to {
        DType::F32 => return Some(x),
        DType::F16 | DType::Bf16 => x,
        DType::I32 => x.monotone(1.0, f64::trunc),
        // Floats saturate at zero; what negative integers become is not defined.
        DType::U32 if from.is_float() || x.lo >= 0.0 => x.monotone(1.0, |v| v.trunc().max(0.0)),
        DType::U32 => return None,
        DType::Bool => Facts::exact(0.0, 1.0),
        DType::I8 => Facts::exact(-128.0, 127.0),
    };
    x.is_exact().then_some(facts)
}

fn binary(op: &Op, lhs: Facts, rhs: Facts) -> Option<Facts> {
    const MIN_DIVISOR: f64 = 0.1;
    Some(match op {
        Op::Add {} => lhs.plus(rhs),
        Op::Sub {} => lhs.plus(rhs.monotone(1.0, |v| -v)),
        Op::Mul {} => lhs.times(rhs),
        Op::Div {} if rhs.min_abs() >= MIN_DIVISOR => lhs.times(rhs.monotone(rhs.min_abs().powi(-2), f64::recip)),
        Op::Max {} => Facts { lo: lhs.lo.max(rhs.lo), ..lhs.union(rhs) },
        Op::Min {} => Facts { hi: lhs.hi.min(rhs.hi), ..lhs.union(rhs) },
        Op::Eq {} | Op::Ne {} | Op::Lt {} | Op::Le {} | Op::And {} | Op::Or {} if lhs.is_exact() && rhs.is_exact() => {
            Facts::exact(0.0, 1.0)
        }
        _ => return None,
    })
}

fn conv1d(operands: &[Option<Known<'_>>], results: &[TensorType]) -> Option<Vec<Facts>> {
    let [Some((x, _)), Some((w, w_ty)), bias, state, _] = operands else { return None };
    let zero = Facts::exact(0.0, 0.0);
    let window = x.union(state.map_or(zero, |(facts, _)| facts)).union(zero);
    let y = window.times(*w).summed(*w_ty.shape.get(1)?).plus(bias.map_or(zero, |(facts, _)| facts));
    let y = Facts { err: y.err + EPS_F32 * y.max_abs(), ..y };
    (results.len() == 2).then(|| vec![y, window])
}

/// A crude bound: no decay at all, every product of the same sign.
fn scan(operands: &[Option<Known<'_>>], results: &[TensorType]) -> Option<Vec<Facts>> {
    let [Some((decay, _)), Some((v, v_ty)), Some((k, k_ty)), Some((q, _)), s0, _, weight, own_weight] = operands else { return None };
    let (&[_, len, _, ranks, _], &d_state) = (v_ty.shape.as_slice(), k_ty.shape.get(4)?) else { return None };
    if decay.hi > 0.0 || results.len() != 2 {
        return None;
    }
    let zero = Facts::exact(0.0, 0.0);
    let product = v.times(*k);
    let entering = weight.map_or(product, |(weight, _)| product.times(weight));
    let state = entering.summed(len * ranks).plus(s0.map_or(zero, |(facts, _)| facts)).union(zero);
    let decay_err = n_as_f64(len) * (decay.err + EPS_F32);
    let state = Facts { err: state.err + (decay_err + EPS_F32) * state.max_abs(), ..state };
    // With a weight of its own a token is read beside the state that it has not entered.
    let read = own_weight.map_or(state, |(own, _)| state.plus(product.times(own).summed(ranks)));
    Some(vec![read.times(*q).summed(d_state), state])
}

/// As [`scan`]: the state and its adjoint without decay, and each result as products of them with what it is made from.
fn scan_grad(operands: &[Option<Known<'_>>], results: &[TensorType]) -> Option<Vec<Facts>> {
    let [Some((decay, _)), Some((v, v_ty)), Some((k, k_ty)), Some((q, _)), Some((dy, _)), s0, _, weight, own_weight, ds_last] = operands
    else {
        return None;
    };
    let (&[_, len, heads, ranks, headdim], &[_, _, groups, _, d_state]) = (v_ty.shape.as_slice(), k_ty.shape.as_slice()) else {
        return None;
    };
    if decay.hi > 0.0 || results.len() != 7 {
        return None;
    }
    let (zero, one) = (Facts::exact(0.0, 0.0), Facts::exact(1.0, 1.0));
    let known = |operand: &Option<Known<'_>>, absent: Facts| operand.map_or(absent, |(facts, _)| facts);
    let in_state = known(weight, one);
    let own = known(own_weight, in_state);
    let steps = n_as_f64(len) * (decay.err + EPS_F32) + EPS_F32;
    let decayed = |facts: Facts| Facts { err: facts.err + steps * facts.max_abs(), ..facts.union(zero) };
    let state = decayed(v.times(*k).times(in_state).summed(len * ranks).plus(known(s0, zero)));
    let adjoint = decayed(dy.times(*q).summed(len * ranks).plus(known(ds_last, zero)));
    let (qk, dyv) = (q.times(*k).summed(d_state), dy.times(*v).summed(headdim));
    let in_group = heads / groups.max(1);
    let of_v = adjoint.times(*k).times(in_state).summed(d_state).plus(qk.times(*dy).times(own).summed(ranks));
    let of_k = adjoint.times(*v).times(in_state).summed(headdim).plus(dyv.times(*q).times(own).summed(ranks)).summed(in_group);
    let of_q = state.times(*dy).summed(headdim).plus(dyv.times(*k).times(own).summed(ranks)).summed(in_group);
    let of_own = qk.times(dyv).summed(ranks * ranks);
    let of_weight = adjoint.times(*v).times(*k).summed(headdim * d_state * ranks).plus(of_own).union(of_own);
    Some(vec![adjoint.times(state).summed(headdim * d_state), of_v, of_k, of_q, adjoint, of_weight, of_own.union(zero)])
}

#[expect(clippy::cast_precision_loss, reason = "sizes of samples are small")]
const fn n_as_f64(n: usize) -> f64 {
    n as f64
}
