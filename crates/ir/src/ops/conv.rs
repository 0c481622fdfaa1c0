//! The causal depthwise convolution.

use super::{OperandTypes, Operands, TypeError, expect_dtype, expect_rank, expect_shape, required};
use crate::autodiff::{Applied, number};
use crate::builder::Tensor;
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

/// Adjoints of `x`, `w`, `bias` and `state`.
///
/// With `e` the state and then the inputs, `y[t] = bias + Σ_j w[j] m_j[t] e[t + j]` and `state_out = m e[L..]`, where the masks `m` leave
/// out what is of another sequence. So `e`'s adjoint at `t + j` gets `w[j] m_j[t] dy[t]` from every `j`, and that of `w[j]` is
/// `Σ m_j dy e[j..]`.
#[track_caller]
pub(super) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    let (Some(x), Some(w)) = (at.operand(0), at.operand(1)) else { return Vec::new() };
    let (&[batch, len, channels], &[_, taps]) = (x.shape().as_slice(), w.shape().as_slice()) else { return Vec::new() };
    let newest_first = matches!(at.op, Op::Conv1d { newest_first: true });
    let window = Window { batch, len, channels, past: taps - 1, sequence: at.operand(4).filter(|_| len > 0).map(sequence_numbers) };
    let dy = at.adjoint(0);
    let tap = |j: usize| if newest_first { taps - 1 - j } else { j };
    let weight = |j: usize| w.slice_axis(1, tap(j), tap(j) + 1).reshape([channels]);
    let de = if at.wants(0) || at.wants(3) { window.adjoint_of_inputs(dy, at.adjoint(1), weight) } else { None };
    let dw = dy.filter(|_| at.wants(1)).map(|dy| {
        let e = window.inputs(x, at.operand(3));
        let parts: Vec<Tensor<'g>> = (0..taps)
            .map(|tap_idx| {
                let j = tap(tap_idx);
                let product = dy * e.slice_axis(1, j, j + len);
                window.seen(product, j).reshape([batch, len, 1, channels])
            })
            .collect();
        x.builder().concat(&parts, 2usize).sum([0, 1], false).permute([1, 0])
    });
    let dbias = dy.filter(|_| at.wants(2)).map(|dy| dy.sum([0, 1], false));
    let dx = de.map(|de| de.slice_axis(1, taps - 1, taps - 1 + len));
    let dstate = de.map(|de| de.slice_axis(1, 0, taps - 1).permute([0, 2, 1]));
    vec![dx, dw, dbias, dstate, None]
}

/// The sequence that each token of `[B, L]` belongs to, counted from the one that the state belongs to; a reset at the
/// first token has no effect.
#[track_caller]
pub(super) fn sequence_numbers(reset: Tensor<'_>) -> Tensor<'_> {
    let first = reset.builder().iota([1, reset.dim(1)], 1usize, DType::I32);
    let is_later = first.ne(reset.builder().constant(0.0, DType::I32, []));
    reset.and(is_later).cast(DType::I32).cumsum(None, 1usize, false, 0.0)
}

/// Sizes of a convolution, and which inputs its tokens see.
struct Window<'g> {
    batch: usize,
    len: usize,
    channels: usize,
    past: usize,
    /// `[B, L]` i32.
    sequence: Option<Tensor<'g>>,
}

impl<'g> Window<'g> {
    /// State and inputs, `[B, K-1+L, C]`.
    #[track_caller]
    fn inputs(&self, x: Tensor<'g>, state: Option<Tensor<'g>>) -> Tensor<'g> {
        let g = x.builder();
        let before =
            state.map_or_else(|| g.constant(0.0, x.dtype(), [self.batch, self.past, self.channels]), |state| state.permute([0, 2, 1]));
        if self.past == 0 { x } else { g.concat(&[before, x], 1usize) }
    }

    /// The sequence of each of [`inputs`](Self::inputs), `[B, K-1+L]`.
    #[track_caller]
    fn sequences(&self, sequence: Tensor<'g>) -> Tensor<'g> {
        sequence.pad([0, self.past], [0, 0], 0.0)
    }

    /// `x [B, L, C]` where token `t` sees input `t + j`, and 0 elsewhere.
    #[track_caller]
    fn seen(&self, x: Tensor<'g>, j: usize) -> Tensor<'g> {
        let Some(sequence) = self.sequence.filter(|_| j < self.past) else { return x };
        let is_same = sequence.eq(self.sequences(sequence).slice_axis(1, j, j + self.len));
        is_same.reshape([self.batch, self.len, 1]).select(x, number(x, 0.0))
    }

    /// The adjoint of state and inputs, `[B, K-1+L, C]`, from those of the outputs and of the state after them.
    #[track_caller]
    fn adjoint_of_inputs(
        &self,
        dy: Option<Tensor<'g>>,
        dstate: Option<Tensor<'g>>,
        tap: impl Fn(usize) -> Tensor<'g>,
    ) -> Option<Tensor<'g>> {
        let from_outputs = dy.into_iter().flat_map(|dy| {
            let tap = &tap;
            (0..=self.past).map(move |j| self.seen(dy * tap(j), j).pad([0, j, 0], [0, self.past - j, 0], 0.0))
        });
        let from_state = dstate.filter(|_| self.past > 0).map(|dstate| {
            let last = dstate.permute([0, 2, 1]);
            let last = self.sequence.map_or(last, |sequence| {
                let newest = sequence.slice_axis(1, self.len - 1, self.len);
                let is_same = self.sequences(sequence).slice_axis(1, self.len, self.len + self.past).eq(newest);
                is_same.reshape([self.batch, self.past, 1]).select(last, number(last, 0.0))
            });
            last.pad([0, self.len, 0], [0, 0, 0], 0.0)
        });
        from_outputs.chain(from_state).reduce(|sum, part| sum + part)
    }
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
