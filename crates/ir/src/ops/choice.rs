//! Choosing one token of each row of logits.

use super::{OperandTypes, Operands, TypeError, expect_dtype, expect_shape, required};
use crate::error::EvalError;
use crate::eval::{Array, Data, Real, count, for_chunks, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType};

/// Settings of a row: temperature, top k, top p, min p.
pub const N_SETTINGS: usize = 4;

/// Typing rules: rows of f32 logits over at least one token, four settings and one number for each row.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let (logits, settings, uniform) = (required(op, operands, 0)?, required(op, operands, 1)?, required(op, operands, 2)?);
    let Some((&n_tokens, rows)) = logits.shape.split_last().filter(|(n_tokens, _)| **n_tokens > 0) else {
        return Err(TypeError::new(format!("sample: logits {logits} have no tokens")).help("the last axis of logits is the vocabulary"));
    };
    // Positions and counts of tokens are exact in f32 up to here.
    if n_tokens > 1 << 24 {
        return Err(TypeError::new(format!("sample: logits {logits} over more than 16777216 tokens")));
    }
    for (name, ty) in [("logits", logits), ("settings", settings), ("uniform", uniform)] {
        expect_dtype(op, name, ty, ty.dtype == DType::F32, "f32")?;
    }
    expect_shape(op, "settings", settings, &[rows, &[N_SETTINGS]].concat(), "temperature, top_k, top_p and min_p of each row of logits")?;
    expect_shape(op, "uniform", uniform, rows, "one number for each row of logits")?;
    Ok(vec![TensorType::new(DType::U32, rows)])
}

/// The chosen token of each row.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>, ty: &TensorType) -> Result<Array<'a, R>, EvalError> {
    let (logits, settings, uniform) = (operands.take(op, 0)?, operands.take(op, 1)?, operands.take(op, 2)?);
    let n_tokens = logits.shape.last().copied().unwrap_or(0);
    let (logits, settings, uniform) = (logits.into_reals()?, settings.into_reals()?, uniform.into_reals()?);
    let mut chosen = zeroed::<u32>(count(&ty.shape)?)?;
    for_chunks(&mut chosen, 1, |row, out| {
        let logits = &logits[row * n_tokens..][..n_tokens];
        let index = choose(logits, &settings[row * N_SETTINGS..][..N_SETTINGS], uniform[row]);
        out[0] = u32::try_from(index).unwrap_or(u32::MAX);
    });
    Ok(Array { shape: ty.shape.clone(), data: Data::U32(chosen.into()) })
}

/// The token that a row's settings and number choose; their number where the largest logit is not finite.
fn choose<R: Real>(logits: &[R], settings: &[R], uniform: R) -> usize {
    let (zero, one) = (R::ZERO, R::ONE);
    let (best, largest) = largest(logits);
    if !largest.is_finite() {
        return logits.len();
    }
    // Not drawn either where the temperature is no number.
    let &[temperature, top_k, top_p, min_p] = settings else { return best };
    let is_drawn = temperature > zero;
    if !is_drawn {
        return best;
    }
    let weights: Vec<R> = logits.iter().map(|&x| ((x - largest) / temperature).exp()).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(std::cmp::Ordering::Equal));
    // Everything up to `n` in the order, and what equals the last of it.
    let with_ties = |order: &mut Vec<usize>, n: usize| {
        if let Some(&last) = n.checked_sub(1).and_then(|last| order.get(last)) {
            order.retain(|&i| logits[i] >= logits[last]);
        }
    };
    let k = top_k.to_u32() as usize;
    if k > 0 && k < logits.len() {
        with_ties(&mut order, k);
    }
    if top_p > zero && top_p < one {
        let total = order.iter().fold(zero, |sum, &i| sum + weights[i]);
        let mut sum = zero;
        let reached = order.iter().position(|&i| {
            sum += weights[i];
            sum >= top_p * total
        });
        if let Some(last) = reached {
            with_ties(&mut order, last + 1);
        }
    }
    order.retain(|&i| weights[i] > zero && (weights[i] >= min_p || logits[i] == largest));
    order.sort_unstable();
    let total = order.iter().fold(zero, |sum, &i| sum + weights[i]);
    let mut sum = zero;
    let chosen = order.iter().copied().find(|&i| {
        sum += weights[i];
        sum > uniform * total
    });
    chosen.or_else(|| order.last().copied()).unwrap_or(best)
}

/// Place and value of the largest logit, the first of equal ones; what is no number counts as larger than all.
fn largest<R: Real>(logits: &[R]) -> (usize, R) {
    let mut best = 0;
    for (i, &x) in logits.iter().enumerate() {
        if !logits[best].is_nan() && (x.is_nan() || x > logits[best]) {
            best = i;
        }
    }
    (best, logits[best])
}
