//! The adjoint of the linear recurrence with ranks.

use super::scan::{self, Scan, Token, dot};
use super::{OperandTypes, Operands, TypeError, expect_dtype, expect_shape, required};
use crate::error::EvalError;
use crate::eval::{Array, Real, Store, for_chunks, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType};

/// Tokens between two states that are kept on the way forward; those between are computed again on the way back.
const SPAN: usize = 64;

/// Typing rule: operands as of `scan`, adjoints as its results, all f32; each result as the operand it is the derivative by.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let state = scan::check_operands(op, operands, 5)?;
    let [log_decay, v, k, q, dy] = [
        required(op, operands, 0)?,
        required(op, operands, 1)?,
        required(op, operands, 2)?,
        required(op, operands, 3)?,
        required(op, operands, 4)?,
    ];
    expect_shape(op, "dy", dy, &v.shape, "[B, L, H, R, P], as v")?;
    expect_dtype(op, "dy", dy, dy.dtype == DType::F32, "f32")?;
    if let Some(ds_last) = operands[9] {
        expect_shape(op, "ds_last", ds_last, &state.shape, "[B, H, P, N]")?;
        expect_dtype(op, "ds_last", ds_last, ds_last.dtype == DType::F32, "f32")?;
    }
    Ok(vec![log_decay.clone(), v.clone(), k.clone(), q.clone(), state, log_decay.clone(), log_decay.clone()])
}

/// The adjoint by definition, token by token from the last for each head of each batch entry, which run in parallel.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>) -> Result<Vec<Array<'a, R>>, EvalError> {
    let dy = operands.take(op, 4)?.into_reals()?;
    let s0 = operands.take_option(5).map(Array::into_reals).transpose()?;
    let ds_last = operands.take_option(9).map(Array::into_reals).transpose()?;
    let adjoint = Adjoint { scan: Scan::take(op, &mut operands, 6)?, dy, s0, ds_last };
    let Scan { batch, heads, .. } = adjoint.scan;
    let size = adjoint.sizes().iter().sum::<usize>();
    let mut by_head = zeroed(batch * heads * size)?;
    for_chunks(&mut by_head, size, |start, part| adjoint.head(start / size.max(1), part));
    adjoint.results(&by_head)
}

struct Adjoint<'a, R> {
    scan: Scan<'a, R>,
    dy: Store<'a, R>,
    s0: Option<Store<'a, R>>,
    ds_last: Option<Store<'a, R>>,
}

/// Results of one head, each by token but that of the state.
struct OfHead<'r, R> {
    /// `[L]`.
    log_decay: &'r mut [R],
    /// `[L, R, P]`.
    v: &'r mut [R],
    /// `[L, R, N]`.
    k: &'r mut [R],
    /// `[L, R, N]`.
    q: &'r mut [R],
    /// `[P, N]`, the running adjoint of the state.
    state: &'r mut [R],
    /// `[L]`.
    weight: &'r mut [R],
    /// `[L]`.
    own_weight: &'r mut [R],
}

/// Products of the ranks of one token, `[R, R]`, and its weight in its own output.
struct Own<R> {
    weight: R,
    /// `q_r · k_s`.
    qk: Vec<R>,
    /// `dy_r · v_s`.
    dyv: Vec<R>,
}

impl<R: Real> Adjoint<'_, R> {
    /// Elements of each result that one head has, in order.
    fn sizes(&self) -> [usize; 7] {
        let Scan { len, ranks, headdim, d_state, .. } = self.scan;
        let (of_v, of_k) = (len * ranks * headdim, len * ranks * d_state);
        [len, of_v, of_k, of_k, headdim * d_state, len, len]
    }

    /// All results of the head counted through the batch, one after the other in `part`.
    fn head(&self, head: usize, part: &mut [R]) {
        let [len, of_v, of_k, _, of_state, ..] = self.sizes();
        let (log_decay, rest) = part.split_at_mut(len);
        let (v, rest) = rest.split_at_mut(of_v);
        let (k, rest) = rest.split_at_mut(of_k);
        let (q, rest) = rest.split_at_mut(of_k);
        let (state, rest) = rest.split_at_mut(of_state);
        let (weight, own_weight) = rest.split_at_mut(len);
        let mut results = OfHead { log_decay, v, k, q, state, weight, own_weight };
        if of_state == 0 {
            return;
        }
        let (batch, head_idx) = (head / self.scan.heads, head % self.scan.heads);
        if let Some(ds_last) = &self.ds_last {
            results.state.copy_from_slice(&ds_last[head * of_state..][..of_state]);
        }
        let kept = self.kept_states(head);
        let mut states = Vec::new();
        for (span, first) in kept.chunks_exact(of_state).enumerate().rev() {
            let tokens = span * SPAN..((span + 1) * SPAN).min(len);
            self.states_between(head, tokens.clone(), first, &mut states);
            for (t, state) in tokens.zip(states.chunks_exact(of_state)).rev() {
                self.token(batch, head_idx, t, state, &mut results);
            }
        }
    }

    /// The state before every [`SPAN`]th token of a head.
    fn kept_states(&self, head: usize) -> Vec<R> {
        let of_state = self.scan.headdim * self.scan.d_state;
        let mut state = match &self.s0 {
            Some(s0) => s0[head * of_state..][..of_state].to_vec(),
            None => vec![R::ZERO; of_state],
        };
        let mut kept = Vec::new();
        for t in 0..self.scan.len {
            if t % SPAN == 0 {
                kept.extend_from_slice(&state);
            }
            self.enter(head, t, &mut state);
        }
        kept
    }

    /// The states before each of some tokens of a head, of which the first is `state`.
    fn states_between(&self, head: usize, tokens: std::ops::Range<usize>, state: &[R], states: &mut Vec<R>) {
        let mut state = state.to_vec();
        states.clear();
        for t in tokens {
            states.extend_from_slice(&state);
            self.enter(head, t, &mut state);
        }
    }

    /// Takes a state past token `t`.
    fn enter(&self, head: usize, t: usize, state: &mut [R]) {
        let (batch, head) = (head / self.scan.heads, head % self.scan.heads);
        if self.scan.drops_state(batch, t) {
            state.fill(R::ZERO);
        }
        let token = batch * self.scan.len + t;
        let at = self.scan.token(token, head, self.scan.decay(token, head));
        state.chunks_exact_mut(self.scan.d_state).enumerate().for_each(|(p, row)| self.scan.enter(&at, row, p));
    }

    /// One token of a head on the way back; `state` is the one before it.
    fn token(&self, batch: usize, head: usize, t: usize, state: &[R], results: &mut OfHead<'_, R>) {
        let Scan { len, heads, ranks, headdim, d_state, .. } = self.scan;
        let token = batch * len + t;
        let at = self.scan.token(token, head, self.scan.decay(token, head));
        let dy = &self.dy[(token * heads + head) * ranks * headdim..][..ranks * headdim];
        let is_new = self.scan.drops_state(batch, t);
        let own_weight = self.scan.own_weight(token, head);
        let own = Own::new(&at, dy, own_weight.or(at.weight).unwrap_or(R::ONE), (headdim, d_state));
        let (v, k, q) = (t * ranks * headdim, t * ranks * d_state, t * ranks * d_state);
        let (d_v, d_k, d_q) =
            (&mut results.v[v..][..ranks * headdim], &mut results.k[k..][..ranks * d_state], &mut results.q[q..][..ranks * d_state]);
        let mut of_weight = R::ZERO;
        for (p, (adjoint, state)) in results.state.chunks_exact_mut(d_state).zip(state.chunks_exact(d_state)).enumerate() {
            of_weight += entered(&at, adjoint, d_v, d_k, p, headdim);
            results.log_decay[t] += read(&at, adjoint, (!is_new).then_some(state), dy, d_q, p, headdim);
        }
        own.add(&at, dy, [d_v, d_k, d_q], (headdim, d_state));
        let of_own = own.qk.iter().zip(&own.dyv).fold(R::ZERO, |sum, (&qk, &dyv)| sum + qk * dyv);
        results.weight[t] = if own_weight.is_some() { of_weight } else { of_weight + of_own };
        results.own_weight[t] = if own_weight.is_some() { of_own } else { R::ZERO };
    }

    /// Results by token, those of `k` and `q` summed over the heads of each group.
    fn results<'r>(&self, by_head: &[R]) -> Result<Vec<Array<'r, R>>, EvalError> {
        let Scan { batch, len, heads, groups, ranks, headdim, d_state, .. } = self.scan;
        let sizes = self.sizes();
        let (of_k, of_v) = ([batch, len, groups, ranks, d_state], [batch, len, heads, ranks, headdim]);
        let state = [batch, heads, headdim, d_state];
        let shapes: [&[usize]; 7] = [&of_v[..3], &of_v, &of_k, &of_k, &state, &of_v[..3], &of_v[..3]];
        let mut results = Vec::with_capacity(sizes.len());
        for (i, shape) in shapes.into_iter().enumerate() {
            let mut result = zeroed(shape.iter().product())?;
            // Heads of a result side by side: of the state all of it, of the others a token's part.
            let (steps, n_wide) = if i == 4 { (1, heads) } else { (len, if matches!(i, 2 | 3) { groups } else { heads }) };
            let from: usize = sizes[..i].iter().sum();
            let size = sizes[i] / steps.max(1);
            for (head, part) in by_head.chunks(sizes.iter().sum::<usize>().max(1)).enumerate() {
                let (b, h) = (head / heads, head % heads * n_wide / heads);
                for step in 0..steps {
                    let to = &mut result[((b * steps + step) * n_wide + h) * size..][..size];
                    to.iter_mut().zip(&part[from + step * size..][..size]).for_each(|(sum, &x)| *sum += x);
                }
            }
            results.push(Array::real(shape, result));
        }
        Ok(results)
    }
}

/// Row `p` of the state's adjoint goes to what a token puts into the state; gives the row's part of the weight's derivative.
fn entered<R: Real>(at: &Token<'_, R>, adjoint: &[R], d_v: &mut [R], d_k: &mut [R], p: usize, headdim: usize) -> R {
    let weight = at.weight.unwrap_or(R::ONE);
    let mut of_weight = R::ZERO;
    let ranks = at.k.chunks_exact(adjoint.len()).zip(d_k.chunks_exact_mut(adjoint.len()));
    for ((k, d_k), (v, d_v)) in ranks.zip(at.v.chunks_exact(headdim).zip(d_v.chunks_exact_mut(headdim))) {
        let product = dot(adjoint, k);
        of_weight += v[p] * product;
        d_v[p] = weight * product;
        let v = weight * v[p];
        d_k.iter_mut().zip(adjoint).for_each(|(d_k, &adjoint)| *d_k += v * adjoint);
    }
    of_weight
}

/// Row `p` of the state before a token (none at a new sequence) is read by it: the row's adjoint becomes that of before the
/// token; gives the row's part of the derivative by the logarithm of the decay.
fn read<R: Real>(at: &Token<'_, R>, adjoint: &mut [R], state: Option<&[R]>, dy: &[R], d_q: &mut [R], p: usize, headdim: usize) -> R {
    let Some(state) = state else {
        adjoint.fill(R::ZERO);
        return R::ZERO;
    };
    let ranks = at.q.chunks_exact(state.len()).zip(d_q.chunks_exact_mut(state.len()));
    for ((q, d_q), dy) in ranks.zip(dy.chunks_exact(headdim)) {
        let decayed = at.decay * dy[p];
        d_q.iter_mut().zip(state).for_each(|(d_q, &state)| *d_q += decayed * state);
        adjoint.iter_mut().zip(q).for_each(|(adjoint, &q)| *adjoint += dy[p] * q);
    }
    adjoint.iter_mut().for_each(|adjoint| *adjoint = at.decay * *adjoint);
    dot(adjoint, state)
}

impl<R: Real> Own<R> {
    fn new(at: &Token<'_, R>, dy: &[R], weight: R, (headdim, d_state): (usize, usize)) -> Self {
        let products = |lhs: &[R], rhs: &[R], size: usize| {
            lhs.chunks_exact(size).flat_map(|lhs| rhs.chunks_exact(size).map(move |rhs| dot(lhs, rhs))).collect()
        };
        Self { weight, qk: products(at.q, at.k, d_state), dyv: products(dy, at.v, headdim) }
    }

    /// Adds what a token's own output gives to the derivatives by its `v`, `k` and `q`.
    fn add(&self, at: &Token<'_, R>, dy: &[R], [d_v, d_k, d_q]: [&mut [R]; 3], (headdim, d_state): (usize, usize)) {
        let ranks = at.q.len() / d_state;
        let scaled_add = |to: &mut [R], by: R, from: &[R]| to.iter_mut().zip(from).for_each(|(to, &x)| *to += by * x);
        for r in 0..ranks {
            for s in 0..ranks {
                let (qk, dyv) = (self.weight * self.qk[r * ranks + s], self.weight * self.dyv[r * ranks + s]);
                scaled_add(&mut d_v[s * headdim..][..headdim], qk, &dy[r * headdim..][..headdim]);
                scaled_add(&mut d_k[s * d_state..][..d_state], dyv, &at.q[r * d_state..][..d_state]);
                scaled_add(&mut d_q[r * d_state..][..d_state], dyv, &at.k[s * d_state..][..d_state]);
            }
        }
    }
}
