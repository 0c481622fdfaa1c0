//! The adjoint of the linear recurrence with ranks.

use super::conv::flags;
use super::{OperandTypes, Operands, TypeError, expect_dtype, expect_shape, required, scan};
use crate::error::EvalError;
use crate::eval::{Array, Real, Store, for_chunks, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType};

/// Typing rule: the operands of `scan`, and adjoints in the shapes of its results; results in the shapes of its operands.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let of_scan = [0, 1, 2, 3, 5, 6, 7, 8].map(|idx| operands.get(idx).copied().flatten());
    let results = scan::infer(op, &of_scan)?;
    let [y, state] = results.as_slice() else { return Err(TypeError::new("scan_grad: scan has no two results")) };
    let dy = required(op, operands, 4)?;
    for (name, adjoint, of, form) in [("dy", Some(dy), y, "[B, L, H, R, P]"), ("ds_last", operands[9], state, "[B, H, P, N]")] {
        let Some(adjoint) = adjoint else { continue };
        expect_shape(op, name, adjoint, &of.shape, form)?;
        expect_dtype(op, name, adjoint, adjoint.dtype == DType::F32, "f32")?;
    }
    let (log_decay, k) = (required(op, operands, 0)?, required(op, operands, 2)?);
    Ok(vec![log_decay.clone(), y.clone(), k.clone(), k.clone(), state.clone(), log_decay.clone(), log_decay.clone()])
}

/// Tokens of which all states are kept at a time; between such pieces one state is.
const PIECE: usize = 32;

/// The adjoint by definition, token by token from the last one, for each head of each batch entry, which run in parallel. States are
/// computed again from those kept, and never by dividing by a decay.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>) -> Result<Vec<Array<'a, R>>, EvalError> {
    let [log_decay, v, k, q, dy] = [0, 1, 2, 3, 4].map(|idx| operands.take(op, idx));
    let (log_decay, v, k, q, dy) = (log_decay?, v?, k?, q?, dy?);
    let mut reals = |idx: usize| operands.take_option(idx).map(Array::into_reals).transpose();
    let (s0, weight, own_weight, ds_last) = (reals(5)?, reals(7)?, reals(8)?, reals(9)?);
    let reset = operands.take_option(6).map(|reset| flags(op, reset)).transpose()?;
    let (&[batch, len, heads, ranks, headdim], &[_, _, groups, _, d_state]) = (v.shape.as_slice(), k.shape.as_slice()) else {
        return Err(EvalError::new(format!("scan_grad: shapes {:?} and {:?}", v.shape, k.shape)));
    };
    let adjoint = Adjoint {
        sizes: Sizes { len, heads, groups, ranks, headdim, d_state },
        log_decay: log_decay.into_reals()?,
        v: v.into_reals()?,
        k: k.into_reals()?,
        q: q.into_reals()?,
        dy: dy.into_reals()?,
        s0,
        reset,
        weight,
        own_weight,
        ds_last,
    };
    let places = Places::of(&adjoint.sizes);
    let mut by_head = zeroed(batch * heads * places.size)?;
    for_chunks(&mut by_head, places.size, |start, chunk| adjoint.head(start / places.size.max(1), &places, chunk));
    let result = |part: Part, shape: &[usize]| adjoint.sizes.gathered(&by_head, &places, part, batch, shape);
    let per_head = [batch, len, heads];
    let group = [batch, len, groups, ranks, d_state];
    Ok(vec![
        result(places.log_decay, &per_head)?,
        result(places.v, &[batch, len, heads, ranks, headdim])?,
        result(places.k, &group)?,
        result(places.q, &group)?,
        result(places.state, &[batch, heads, headdim, d_state])?,
        result(places.weight, &per_head)?,
        result(places.own_weight, &per_head)?,
    ])
}

#[derive(Clone, Copy)]
struct Sizes {
    len: usize,
    heads: usize,
    groups: usize,
    ranks: usize,
    headdim: usize,
    d_state: usize,
}

/// Where a result of one head lies among all of them: its start, and its elements a token (all of them, for a state).
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    width: usize,
    per_token: bool,
    per_group: bool,
}

/// The results of one head, one after another.
struct Places {
    log_decay: Part,
    weight: Part,
    own_weight: Part,
    v: Part,
    k: Part,
    q: Part,
    state: Part,
    size: usize,
}

impl Places {
    fn of(sizes: &Sizes) -> Self {
        let Sizes { len, ranks, headdim, d_state, .. } = *sizes;
        let mut size = 0;
        let mut part = |width: usize, per_token: bool, per_group: bool| {
            let start = size;
            size += if per_token { width * len } else { width };
            Part { start, width, per_token, per_group }
        };
        let [log_decay, weight, own_weight] = [1, 1, 1].map(|width| part(width, true, false));
        let v = part(ranks * headdim, true, false);
        let [k, q] = [ranks * d_state; 2].map(|width| part(width, true, true));
        let state = part(headdim * d_state, false, false);
        Self { log_decay, weight, own_weight, v, k, q, state, size }
    }
}

impl Sizes {
    /// A result from those of all heads: `[B, H, L, ..]` to `[B, L, H, ..]`, or summed over the heads of each group.
    fn gathered<'a, R: Real>(&self, by_head: &[R], places: &Places, part: Part, batch: usize, shape: &[usize]) -> Result<Array<'a, R>, EvalError> {
        let Self { len, heads, groups, .. } = *self;
        let mut out = zeroed(shape.iter().product())?;
        let n_tokens = if part.per_token { len } else { 1 };
        let n_rows = if part.per_group { groups } else { heads };
        for (i, from) in by_head.chunks(places.size.max(1)).enumerate().take(batch * heads) {
            let (b, head) = (i / heads, i % heads);
            let row = if part.per_group { head / (heads / groups) } else { head };
            for t in 0..n_tokens {
                let to = &mut out[((b * n_tokens + t) * n_rows + row) * part.width..][..part.width];
                let from = &from[part.start + t * part.width..][..part.width];
                to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
            }
        }
        Ok(Array::real(shape, out))
    }
}

struct Adjoint<'a, R> {
    sizes: Sizes,
    log_decay: Store<'a, R>,
    v: Store<'a, R>,
    k: Store<'a, R>,
    q: Store<'a, R>,
    dy: Store<'a, R>,
    s0: Option<Store<'a, R>>,
    reset: Option<Store<'a, bool>>,
    weight: Option<Store<'a, R>>,
    own_weight: Option<Store<'a, R>>,
    ds_last: Option<Store<'a, R>>,
}

/// A token as one head sees it.
#[derive(Clone, Copy)]
struct Token<'a, R> {
    /// Zero where the state is dropped before the token.
    decay: R,
    weight: R,
    own_weight: R,
    v: &'a [R],
    k: &'a [R],
    q: &'a [R],
    dy: &'a [R],
}

impl<R: Real> Adjoint<'_, R> {
    fn token(&self, batch: usize, head: usize, t: usize) -> Token<'_, R> {
        let Sizes { len, heads, groups, ranks, headdim, d_state } = self.sizes;
        let token = batch * len + t;
        let at = token * heads + head;
        let group = token * groups + head / (heads / groups);
        let is_reset = t > 0 && self.reset.as_ref().is_some_and(|reset| reset[token]);
        let weight = self.weight.as_ref().map_or(R::ONE, |weight| weight[at]);
        let (per_head, per_group) = (ranks * headdim, ranks * d_state);
        Token {
            decay: if is_reset { R::ZERO } else { self.log_decay[at].exp() },
            weight,
            own_weight: self.own_weight.as_ref().map_or(weight, |own| own[at]),
            v: &self.v[at * per_head..][..per_head],
            k: &self.k[group * per_group..][..per_group],
            q: &self.q[group * per_group..][..per_group],
            dy: &self.dy[at * per_head..][..per_head],
        }
    }

    /// All results of one head of one batch entry.
    fn head(&self, idx: usize, places: &Places, out: &mut [R]) {
        let Sizes { len, heads, headdim, d_state, .. } = self.sizes;
        let (batch, head) = (idx / heads, idx % heads);
        let size = headdim * d_state;
        let of_head = |states: &Option<Store<'_, R>>| states.as_ref().map_or_else(|| vec![R::ZERO; size], |all| all[idx * size..][..size].to_vec());
        let mut state = of_head(&self.s0);
        let mut kept: Vec<Vec<R>> = Vec::with_capacity(len.div_ceil(PIECE));
        for t in 0..len {
            if t % PIECE == 0 {
                kept.push(state.clone());
            }
            self.advance(&self.token(batch, head, t), &mut state);
        }
        let mut adjoint = of_head(&self.ds_last);
        for (piece, first) in kept.into_iter().enumerate().rev() {
            let tokens = piece * PIECE..len.min((piece + 1) * PIECE);
            // States before each token of the piece.
            let mut states = vec![first];
            for t in tokens.start..tokens.end.saturating_sub(1) {
                let mut next = states.last().cloned().unwrap_or_default();
                self.advance(&self.token(batch, head, t), &mut next);
                states.push(next);
            }
            for (t, before) in tokens.zip(&states).rev() {
                self.back(&self.token(batch, head, t), before, &mut adjoint, places, t, out);
            }
        }
        out[places.state.start..][..size].copy_from_slice(&adjoint);
    }

    fn advance(&self, at: &Token<'_, R>, state: &mut [R]) {
        let Sizes { headdim, d_state, .. } = self.sizes;
        state.iter_mut().for_each(|s| *s = at.decay * *s);
        for (v, k) in at.v.chunks_exact(headdim.max(1)).zip(at.k.chunks_exact(d_state.max(1))) {
            for (row, &v) in state.chunks_exact_mut(d_state.max(1)).zip(v) {
                let v = at.weight * v;
                row.iter_mut().zip(k).for_each(|(s, &k)| *s += v * k);
            }
        }
    }

    /// One token backwards: `before` is the state before it, `adjoint` that of the state after it and then of the one before.
    fn back(&self, at: &Token<'_, R>, before: &[R], adjoint: &mut [R], places: &Places, t: usize, out: &mut [R]) {
        let Sizes { ranks, headdim, d_state, .. } = self.sizes;
        let (p, n) = (headdim.max(1), d_state.max(1));
        let mut d_weight = R::ZERO;
        for r in 0..ranks {
            let (v, k, dy) = (&at.v[r * headdim..][..headdim], &at.k[r * d_state..][..d_state], &at.dy[r * headdim..][..headdim]);
            let dv = &mut out[places.v.start + (t * ranks + r) * headdim..][..headdim];
            for ((row, dv), &v) in adjoint.chunks_exact(n).zip(dv.iter_mut()).zip(v) {
                let product = dot(row, k);
                *dv += at.weight * product;
                d_weight += v * product;
            }
            let dk = &mut out[places.k.start + (t * ranks + r) * d_state..][..d_state];
            for (row, &v) in adjoint.chunks_exact(n).zip(v) {
                let v = at.weight * v;
                dk.iter_mut().zip(row).for_each(|(dk, &s)| *dk += v * s);
            }
            let dq = &mut out[places.q.start + (t * ranks + r) * d_state..][..d_state];
            for (row, &dy) in before.chunks_exact(n).zip(dy) {
                let dy = at.decay * dy;
                dq.iter_mut().zip(row).for_each(|(dq, &s)| *dq += dy * s);
            }
        }
        let d_own = self.back_own(at, places, t, out);
        // The state that the token finds, decayed, is read by every rank and goes into the next one.
        for (dy, q) in at.dy.chunks_exact(p).zip(at.q.chunks_exact(n)) {
            for (row, &dy) in adjoint.chunks_exact_mut(n).zip(dy) {
                row.iter_mut().zip(q).for_each(|(s, &q)| *s += dy * q);
            }
        }
        out[places.log_decay.start + t] = at.decay * dot(adjoint, before);
        let has_own = self.own_weight.is_some();
        out[places.weight.start + t] = if has_own { d_weight } else { d_weight + d_own };
        out[places.own_weight.start + t] = if has_own { d_own } else { R::ZERO };
        adjoint.iter_mut().for_each(|s| *s = at.decay * *s);
    }

    /// The share of a token in its own output, `o Σ_s (q_r · k_s) v_s`; gives the derivative by `o`.
    fn back_own(&self, at: &Token<'_, R>, places: &Places, t: usize, out: &mut [R]) -> R {
        let Sizes { ranks, headdim, d_state, .. } = self.sizes;
        let mut d_own = R::ZERO;
        for r in 0..ranks {
            let (q, dy) = (&at.q[r * d_state..][..d_state], &at.dy[r * headdim..][..headdim]);
            for s in 0..ranks {
                let (k, v) = (&at.k[s * d_state..][..d_state], &at.v[s * headdim..][..headdim]);
                let (read, given) = (dot(q, k), dot(dy, v));
                d_own += read * given;
                let (read, given) = (at.own_weight * read, at.own_weight * given);
                let mut add = |part: Part, rank: usize, width: usize, by: R, from: &[R]| {
                    let to = &mut out[part.start + (t * ranks + rank) * width..][..width];
                    to.iter_mut().zip(from).for_each(|(to, &from)| *to += by * from);
                };
                add(places.v, s, headdim, read, dy);
                add(places.k, s, d_state, given, q);
                add(places.q, r, d_state, given, k);
            }
        }
        d_own
    }
}

fn dot<R: Real>(lhs: &[R], rhs: &[R]) -> R {
    lhs.iter().zip(rhs).fold(R::ZERO, |sum, (&x, &y)| sum + x * y)
}
