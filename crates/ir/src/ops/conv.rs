//! The causal depthwise convolution.

use super::{OperandTypes, Operands, TypeError, expect_dtype, expect_rank, expect_shape, required};
use crate::error::EvalError;
use crate::eval::{Array, Data, GRAIN, Real, Store, for_chunks, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType};

/// Typing rule: the shapes of the op's row; floats in f32; `K >= 1`.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let (x, w) = (required(op, operands, 0)?, required(op, operands, 1)?);
    expect_rank(op, "x", x, 3, "[B, L, C]")?;
    expect_rank(op, "w", w, 2, "[C, K]")?;
    expect_dtype(op, "x", x, x.dtype == DType::F32, "f32")?;
    expect_dtype(op, "w", w, w.dtype == DType::F32, "f32")?;
    let &[batch, len, channels] = x.shape.as_slice() else { return Err(TypeError::new("conv1d: x has no three axes")) };
    let taps = w.shape[1];
    if taps == 0 || w.shape[0] != channels {
        return Err(TypeError::new(format!("conv1d: w {w} should be [C, K] with C = {channels} channels of x {x} and K >= 1")));
    }
    let state = [batch, channels, taps - 1];
    if let Some(bias) = operands[2] {
        expect_shape(op, "bias", bias, &[channels], "[C]")?;
        expect_dtype(op, "bias", bias, bias.dtype == DType::F32, "f32")?;
    }
    if let Some(given) = operands[3] {
        expect_shape(op, "state", given, &state, "[B, C, K-1]")?;
        expect_dtype(op, "state", given, given.dtype == DType::F32, "f32")?;
    }
    if let Some(reset) = operands[4] {
        expect_shape(op, "reset", reset, &[batch, len], "[B, L]")?;
        expect_dtype(op, "reset", reset, reset.dtype == DType::Bool, "bool")?;
    }
    Ok(vec![x.clone(), TensorType::new(DType::F32, state)])
}

/// The convolution by definition, a row of channels at a time, and the window after the last token.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>) -> Result<Vec<Array<'a, R>>, EvalError> {
    let (x, w) = (operands.take(op, 0)?, operands.take(op, 1)?);
    let bias = operands.take_option(2).map(Array::into_reals).transpose()?;
    let state = operands.take_option(3).map(Array::into_reals).transpose()?;
    let reset = operands.take_option(4).map(|reset| flags(op, reset)).transpose()?;
    let (&[batch, len, channels], &[_, taps]) = (x.shape.as_slice(), w.shape.as_slice()) else {
        return Err(EvalError::new(format!("conv1d: shapes {:?} and {:?}", x.shape, w.shape)));
    };
    let newest_first = matches!(op, Op::Conv1d { newest_first: true });
    let conv = Conv {
        len,
        channels,
        past: taps - 1,
        starts: reset.map(|reset| sequence_starts(&reset, len)),
        taps: taps_by_age(&w.into_reals()?, channels, taps, newest_first)?,
        state: state.map(|state| transposed(&state, batch, channels, taps - 1)).transpose()?,
        bias,
        x: x.into_reals()?,
    };
    let mut y = zeroed(batch * len * channels)?;
    conv.outputs(&mut y);
    let mut state_out = zeroed(batch * channels * conv.past)?;
    conv.window(&mut state_out);
    Ok(vec![Array::real(&[batch, len, channels], y), Array::real(&[batch, channels, taps - 1], state_out)])
}

/// Where the newest sequence at or before each token of `[B, L]` began; 0 also stands for what came before the first
/// token, because a reset there has no effect.
pub(super) fn sequence_starts(reset: &[bool], len: usize) -> Vec<usize> {
    let mut start = 0;
    let token = |(i, &reset): (usize, &bool)| {
        let t = i % len;
        if t == 0 || reset {
            start = t;
        }
        start
    };
    reset.iter().enumerate().map(token).collect()
}

/// Truth values of an operand.
pub(super) fn flags<'a, R: Real>(op: &Op, reset: Array<'a, R>) -> Result<Store<'a, bool>, EvalError> {
    if let Data::Bool(flags) = reset.data { Ok(flags) } else { Err(EvalError::new(format!("{}: reset is not bool", op.mnemonic()))) }
}

struct Conv<'a, R> {
    len: usize,
    channels: usize,
    /// Inputs that a token sees besides itself.
    past: usize,
    /// `[B, L]`, see [`sequence_starts`].
    starts: Option<Vec<usize>>,
    /// `[K, C]`: row `a` weighs the input `a` tokens ago.
    taps: Vec<R>,
    /// `[B, K-1, C]`, newest last.
    state: Option<Vec<R>>,
    bias: Option<Store<'a, R>>,
    x: Store<'a, R>,
}

impl<R: Real> Conv<'_, R> {
    fn outputs(&self, y: &mut [R]) {
        if self.channels == 0 {
            return;
        }
        let grain = GRAIN.div_ceil(self.channels * (self.past + 1)) * self.channels;
        for_chunks(y, grain, |start, chunk| {
            for (i, y) in chunk.chunks_mut(self.channels).enumerate() {
                let row = start / self.channels + i;
                self.token(row / self.len, row % self.len, y);
            }
        });
    }

    fn token(&self, batch: usize, t: usize, y: &mut [R]) {
        if let Some(bias) = &self.bias {
            y.copy_from_slice(bias);
        }
        for (age, taps) in self.taps.chunks(self.channels).enumerate().rev() {
            let Some(x) = self.input(batch, t, t + self.past - age) else { continue };
            for ((y, &w), &x) in y.iter_mut().zip(taps).zip(x) {
                *y += w * x;
            }
        }
    }

    /// The row of inputs at place `at` of state and sequence together, as token `t` sees it; none is zero.
    fn input(&self, batch: usize, t: usize, at: usize) -> Option<&[R]> {
        let start = self.starts.as_ref().map_or(0, |starts| starts[batch * self.len + t]);
        if start > 0 && at < start + self.past {
            return None;
        }
        self.row(batch, at)
    }

    fn row(&self, batch: usize, at: usize) -> Option<&[R]> {
        match at.checked_sub(self.past) {
            Some(t) => self.x.get((batch * self.len + t) * self.channels..)?.get(..self.channels),
            None => self.state.as_ref()?.get((batch * self.past + at) * self.channels..)?.get(..self.channels),
        }
    }

    /// The last `K-1` inputs of the last sequence, `[B, C, K-1]`.
    fn window(&self, state_out: &mut [R]) {
        for (batch, window) in state_out.chunks_mut((self.channels * self.past).max(1)).enumerate() {
            for i in 0..self.past {
                let row = match self.len.checked_sub(1) {
                    Some(last) => self.input(batch, last, self.len + i),
                    None => self.row(batch, i),
                };
                let Some(row) = row else { continue };
                window.iter_mut().skip(i).step_by(self.past).zip(row).for_each(|(to, &x)| *to = x);
            }
        }
    }
}

/// `[C, K]` to `[K, C]`, newest first.
fn taps_by_age<R: Real>(w: &[R], channels: usize, taps: usize, newest_first: bool) -> Result<Vec<R>, EvalError> {
    let mut by_age = transposed(w, 1, channels, taps)?;
    if !newest_first && channels > 0 {
        let rows: Vec<&[R]> = by_age.chunks(channels).rev().collect();
        by_age = rows.concat();
    }
    Ok(by_age)
}

/// `[B, M, N]` to `[B, N, M]`.
fn transposed<R: Real>(x: &[R], batch: usize, m: usize, n: usize) -> Result<Vec<R>, EvalError> {
    let mut out = zeroed(batch * m * n)?;
    for (i, to) in out.iter_mut().enumerate() {
        let (matrix, column, row) = (i / (m * n), i / m % n, i % m);
        *to = x[(matrix * m + row) * n + column];
    }
    Ok(out)
}
