//! The linear recurrence with ranks.

use super::conv::flags;
use super::{OperandTypes, Operands, TypeError, expect_dtype, expect_rank, expect_shape, required};
use crate::autodiff::Applied;
use crate::builder::Tensor;
use crate::error::EvalError;
use crate::eval::{Array, Real, Store, for_chunk_pairs, zeroed};
use crate::op::Op;
use crate::types::{DType, TensorType};

/// Typing rule: the shapes of the op's row, all f32; the group count divides the heads.
pub(super) fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    let state = check_operands(op, operands, 4)?;
    Ok(vec![required(op, operands, 1)?.clone(), state])
}

/// Checks the operands of a scan, of which the optional ones begin at `first_optional`, and gives the type of its state.
pub(super) fn check_operands(op: &Op, operands: &OperandTypes, first_optional: usize) -> Result<TensorType, TypeError> {
    let log_decay = required(op, operands, 0)?;
    let (v, k, q) = (required(op, operands, 1)?, required(op, operands, 2)?, required(op, operands, 3)?);
    for (name, ty) in [("log_decay", log_decay), ("v", v), ("k", k), ("q", q)] {
        expect_dtype(op, name, ty, ty.dtype == DType::F32, "f32")?;
    }
    expect_rank(op, "log_decay", log_decay, 3, "[B, L, H]")?;
    expect_rank(op, "v", v, 5, "[B, L, H, R, P]")?;
    expect_rank(op, "k", k, 5, "[B, L, G, R, N]")?;
    let &[batch, len, heads] = log_decay.shape.as_slice() else {
        return Err(TypeError::new(format!("{}: log_decay has no three axes", op.mnemonic())));
    };
    let (ranks, headdim) = (v.shape[3], v.shape[4]);
    let (groups, d_state) = (k.shape[2], k.shape[4]);
    expect_shape(op, "v", v, &[batch, len, heads, ranks, headdim], "[B, L, H, R, P]")?;
    expect_shape(op, "k", k, &[batch, len, groups, ranks, d_state], "[B, L, G, R, N]")?;
    expect_shape(op, "q", q, &k.shape, "[B, L, G, R, N], as k")?;
    if groups == 0 || heads % groups != 0 {
        let what = format!("{}: {groups} groups of k do not divide {heads} heads of log_decay", op.mnemonic());
        return Err(TypeError::new(what).help("choose ngroups so that nheads is a multiple of it"));
    }
    let state = [batch, heads, headdim, d_state];
    if let Some(s0) = operands[first_optional] {
        expect_shape(op, "s0", s0, &state, "[B, H, P, N]")?;
        expect_dtype(op, "s0", s0, s0.dtype == DType::F32, "f32")?;
    }
    if let Some(reset) = operands[first_optional + 1] {
        expect_shape(op, "reset", reset, &[batch, len], "[B, L]")?;
        expect_dtype(op, "reset", reset, reset.dtype == DType::Bool, "bool")?;
    }
    for (name, weight) in [("weight", operands[first_optional + 2]), ("own_weight", operands[first_optional + 3])] {
        let Some(weight) = weight else { continue };
        expect_shape(op, name, weight, &log_decay.shape, "[B, L, H], as log_decay")?;
        expect_dtype(op, name, weight, weight.dtype == DType::F32, "f32")?;
    }
    Ok(TensorType::new(DType::F32, state))
}

/// The recurrence by definition, token by token for each head of each batch entry, which run in parallel.
pub(super) fn eval<'a, R: Real>(op: &Op, mut operands: Operands<'a, R>) -> Result<Vec<Array<'a, R>>, EvalError> {
    let s0 = operands.take_option(4).map(Array::into_reals).transpose()?;
    let scan = Scan::take(op, &mut operands, 5)?;
    let Scan { batch, len, heads, ranks, headdim, d_state, .. } = scan;
    let mut state = match s0 {
        Some(s0) => s0.into_vec(),
        None => zeroed(batch * heads * headdim * d_state)?,
    };
    let mut by_head = zeroed(batch * heads * len * ranks * headdim)?;
    let (y_size, s_size) = (len * ranks * headdim, headdim * d_state);
    for_chunk_pairs((&mut by_head, y_size), (&mut state, s_size), |head, y, s| scan.head(head / heads, head % heads, y, s));
    let y = scan.by_token(&by_head)?;
    Ok(vec![Array::real(&[batch, len, heads, ranks, headdim], y), Array::real(&[batch, heads, headdim, d_state], state)])
}

/// Adjoints of all operands but `reset`, by the op that recomputes the states.
#[track_caller]
pub(super) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    let [Some(log_decay), Some(v), Some(k), Some(q)] = [0, 1, 2, 3].map(|idx| at.operand(idx)) else { return Vec::new() };
    let Op::Scan { chunk_size } = *at.op else { return Vec::new() };
    let dy = at.adjoint(0).unwrap_or_else(|| v.builder().constant(0.0, DType::F32, v.shape()));
    let [s0, reset, weight, own_weight] = [4, 5, 6, 7].map(|idx| at.operand(idx));
    let (log_decay, v, k, q, s0, weight, own_weight) =
        log_decay.scan_grad(v, k, q, dy, s0, reset, weight, own_weight, at.adjoint(1), chunk_size);
    [log_decay, v, k, q, s0].map(Some).into_iter().chain([None, Some(weight), Some(own_weight)]).collect()
}

/// The operands of a scan but its state.
pub(super) struct Scan<'a, R> {
    pub(super) batch: usize,
    pub(super) len: usize,
    pub(super) heads: usize,
    pub(super) groups: usize,
    pub(super) ranks: usize,
    pub(super) headdim: usize,
    pub(super) d_state: usize,
    log_decay: Store<'a, R>,
    v: Store<'a, R>,
    k: Store<'a, R>,
    q: Store<'a, R>,
    reset: Option<Store<'a, bool>>,
    weight: Option<Store<'a, R>>,
    own_weight: Option<Store<'a, R>>,
}

/// What a token does to each row of a head's state.
#[derive(Clone, Copy)]
pub(super) struct Token<'a, R> {
    pub(super) decay: R,
    /// Of what enters the state; absent: one.
    pub(super) weight: Option<R>,
    /// `[R, P]`.
    pub(super) v: &'a [R],
    /// `[R, N]`.
    pub(super) k: &'a [R],
    /// `[R, N]`.
    pub(super) q: &'a [R],
}

impl<'a, R: Real> Scan<'a, R> {
    /// Takes the first four operands, and the optional ones from `reset` at `reset_idx` on.
    pub(super) fn take(op: &Op, operands: &mut Operands<'a, R>, reset_idx: usize) -> Result<Self, EvalError> {
        let [log_decay, v, k, q] = [operands.take(op, 0)?, operands.take(op, 1)?, operands.take(op, 2)?, operands.take(op, 3)?];
        let (&[batch, len, heads, ranks, headdim], &[_, _, groups, _, d_state]) = (v.shape.as_slice(), k.shape.as_slice()) else {
            return Err(EvalError::new(format!("{}: shapes {:?} and {:?}", op.mnemonic(), v.shape, k.shape)));
        };
        Ok(Self {
            batch,
            len,
            heads,
            groups,
            ranks,
            headdim,
            d_state,
            log_decay: log_decay.into_reals()?,
            v: v.into_reals()?,
            k: k.into_reals()?,
            q: q.into_reals()?,
            reset: operands.take_option(reset_idx).map(|reset| flags(op, reset)).transpose()?,
            weight: operands.take_option(reset_idx + 1).map(Array::into_reals).transpose()?,
            own_weight: operands.take_option(reset_idx + 2).map(Array::into_reals).transpose()?,
        })
    }
}

impl<R: Real> Scan<'_, R> {
    /// All tokens of one head: `y [L, R, P]`, and the state `[P, N]` from before the first to after the last. Rows of the
    /// state do not depend on each other, so a few at a time go through all tokens and stay in the nearest cache.
    fn head(&self, batch: usize, head: usize, y: &mut [R], state: &mut [R]) {
        let tokens = batch * self.len..(batch + 1) * self.len;
        let decays: Vec<R> = tokens.map(|token| self.decay(token, head)).collect();
        let mut products = Vec::new();
        for (i, rows) in state.chunks_mut(ROWS * self.d_state).enumerate() {
            for (t, &decay) in decays.iter().enumerate() {
                let token = batch * self.len + t;
                if self.drops_state(batch, t) {
                    rows.fill(R::ZERO);
                }
                let y = &mut y[t * self.ranks * self.headdim..];
                let at = self.token(token, head, decay);
                match self.own_weight(token, head) {
                    Some(own_weight) => {
                        self.own_products(&at, own_weight, &mut products);
                        self.read_and_advance(&at, &products, rows, y, i * ROWS);
                    }
                    None => self.advance_and_read(&at, rows, y, i * ROWS),
                }
            }
        }
    }

    /// Whether a new sequence starts at token `t` of a batch entry.
    pub(super) fn drops_state(&self, batch: usize, t: usize) -> bool {
        t > 0 && self.reset.as_ref().is_some_and(|reset| reset[batch * self.len + t])
    }

    /// Decay of a head at a token, counted through the batch.
    pub(super) fn decay(&self, token: usize, head: usize) -> R {
        self.log_decay[token * self.heads + head].exp()
    }

    /// Weight of a token in its own output, where it has one of its own.
    pub(super) fn own_weight(&self, token: usize, head: usize) -> Option<R> {
        self.own_weight.as_ref().map(|own_weight| own_weight[token * self.heads + head])
    }

    pub(super) fn token(&self, token: usize, head: usize, decay: R) -> Token<'_, R> {
        let Self { ranks, headdim, d_state, .. } = *self;
        let at = token * self.heads + head;
        let group = token * self.groups + head / (self.heads / self.groups);
        Token {
            decay,
            weight: self.weight.as_ref().map(|weight| weight[at]),
            v: &self.v[at * ranks * headdim..][..ranks * headdim],
            k: &self.k[group * ranks * d_state..][..ranks * d_state],
            q: &self.q[group * ranks * d_state..][..ranks * d_state],
        }
    }

    /// One token of some rows of a head's state, of which the first is `p`: all ranks enter the state before any is read.
    fn advance_and_read(&self, at: &Token<'_, R>, rows: &mut [R], y: &mut [R], p: usize) {
        let Self { ranks, headdim, d_state, .. } = *self;
        for (row, p) in rows.chunks_exact_mut(d_state).zip(p..) {
            if ranks == 1 {
                y[p] = advance(row, at.decay, weighted(at.v[p], at.weight), at.k, at.q);
                continue;
            }
            self.enter(at, row, p);
            for (q, y) in at.q.chunks_exact(d_state).zip(y.chunks_exact_mut(headdim)) {
                y[p] = dot(row, q);
            }
        }
    }

    /// As [`Self::advance_and_read`], but the state is read before the token enters it, and its own share is added.
    fn read_and_advance(&self, at: &Token<'_, R>, products: &[R], rows: &mut [R], y: &mut [R], p: usize) {
        let Self { ranks, headdim, d_state, .. } = *self;
        for (row, p) in rows.chunks_exact_mut(d_state).zip(p..) {
            for ((q, y), products) in at.q.chunks_exact(d_state).zip(y.chunks_exact_mut(headdim)).zip(products.chunks_exact(ranks.max(1))) {
                y[p] = at.decay * dot(row, q);
                at.v.chunks_exact(headdim).zip(products).for_each(|(v, &product)| y[p] += product * v[p]);
            }
            self.enter(at, row, p);
        }
    }

    /// Decays row `p` of the state and adds what the ranks of a token put into it.
    pub(super) fn enter(&self, at: &Token<'_, R>, row: &mut [R], p: usize) {
        row.iter_mut().for_each(|s| *s = at.decay * *s);
        for (k, v) in at.k.chunks_exact(self.d_state).zip(at.v.chunks_exact(self.headdim)) {
            let v = weighted(v[p], at.weight);
            row.iter_mut().zip(k).for_each(|(s, &k)| *s += v * k);
        }
    }

    /// `own_weight (q_r · k_s)` of a token, `[R, R]`.
    fn own_products(&self, at: &Token<'_, R>, own_weight: R, products: &mut Vec<R>) {
        products.clear();
        for q in at.q.chunks_exact(self.d_state) {
            products.extend(at.k.chunks_exact(self.d_state).map(|k| own_weight * dot(q, k)));
        }
    }

    /// `[B, H, L, R, P]` to `[B, L, H, R, P]`.
    fn by_token(&self, by_head: &[R]) -> Result<Vec<R>, EvalError> {
        let size = self.ranks * self.headdim;
        if self.heads == 1 || self.len == 1 {
            return Ok(by_head.to_vec());
        }
        let mut y = zeroed(by_head.len())?;
        for (i, to) in y.chunks_mut(size.max(1)).enumerate() {
            let (token, head) = (i / self.heads, i % self.heads);
            let (b, t) = (token / self.len, token % self.len);
            debug_assert!(b < self.batch);
            to.copy_from_slice(&by_head[((b * self.heads + head) * self.len + t) * size..][..size]);
        }
        Ok(y)
    }
}

/// Rows of a state that go through all tokens together.
const ROWS: usize = 8;
/// Partial sums of a scalar product.
const LANES: usize = 8;

fn weighted<R: Real>(v: R, weight: Option<R>) -> R {
    weight.map_or(v, |weight| weight * v)
}

/// `row = decay * row + v * k`, and its product with `q`, in one pass.
fn advance<R: Real>(row: &mut [R], decay: R, v: R, k: &[R], q: &[R]) -> R {
    let mut sums = [R::ZERO; LANES];
    let whole = row.len() - row.len() % LANES;
    let (row, row_tail) = row.split_at_mut(whole);
    for ((s, k), q) in row.chunks_exact_mut(LANES).zip(k.chunks_exact(LANES)).zip(q.chunks_exact(LANES)) {
        for i in 0..LANES {
            s[i] = decay * s[i] + v * k[i];
            sums[i] += s[i] * q[i];
        }
    }
    for (((s, &k), &q), sum) in row_tail.iter_mut().zip(&k[whole..]).zip(&q[whole..]).zip(&mut sums) {
        *s = decay * *s + v * k;
        *sum += *s * q;
    }
    total(sums)
}

pub(super) fn dot<R: Real>(lhs: &[R], rhs: &[R]) -> R {
    let mut sums = [R::ZERO; LANES];
    let whole = lhs.len() - lhs.len() % LANES;
    for (x, y) in lhs.chunks_exact(LANES).zip(rhs.chunks_exact(LANES)) {
        for i in 0..LANES {
            sums[i] += x[i] * y[i];
        }
    }
    lhs[whole..].iter().zip(&rhs[whole..]).zip(&mut sums).for_each(|((&x, &y), sum)| *sum += x * y);
    total(sums)
}

fn total<R: Real>([a, b, c, d, e, f, g, h]: [R; LANES]) -> R {
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}
