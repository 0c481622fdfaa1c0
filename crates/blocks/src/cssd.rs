//! Mamba-2's recurrence with complex states and ranks, on the same real scan.
//!
//! With A = -exp(a0) + i a1 a head's state turns at the rate a1 while it decays. Seen from a frame that turns with it, it only
//! decays, and a complex state is a real one of twice the size: k and q are turned into the frame, and the dot product
//! with q is the real part of the complex one with its conjugate. The frame is that of the last token, so that the state
//! comes out as it is, and one that was handed in is turned once.

use crate::angle::{angle_to_end, of_next_token};
use crate::complex::{Complex, held, times_i};
use crate::ssd::time_step;
use monopass_ir::Tensor;

/// Parameters of the recurrence.
#[derive(Clone, Copy, Debug)]
pub struct Cssd<'g> {
    /// `[H, 2]`: logarithm of the decay rate, and the angular rate in radians a unit of time.
    pub a_log: Tensor<'g>,
    /// Added to `dt` before softplus, `[H]`.
    pub dt_bias: Tensor<'g>,
    /// D, the weight of `x` beside the scan: `[H]`, or an entry for each channel as `[H, P]` or `[H * P]`.
    pub d_skip: Tensor<'g>,
    /// Weight of `x` in each rank, `[H, R, P]`; absent: one rank with weight 1.
    pub mimo_x: Option<Tensor<'g>>,
    /// Weight of each rank in `y`, `[H, R, P]`; absent: one rank with weight 1.
    pub mimo_o: Option<Tensor<'g>>,
    /// H.
    pub nheads: usize,
    /// P.
    pub headdim: usize,
    /// G.
    pub ngroups: usize,
    /// R.
    pub ranks: usize,
    /// Complex states a head and channel.
    pub d_state: usize,
    /// Limits of the time step after softplus; an upper limit of `f32::MAX` is none.
    pub dt_limit: [f32; 2],
    /// Chunk length; 0 leaves it to the planner.
    pub chunk_size: usize,
}

/// What the recurrence reads.
#[derive(Clone, Copy, Debug)]
pub struct CssdInputs<'g> {
    /// `[B, L, H, P]` or `[B, L, H * P]`.
    pub x: Tensor<'g>,
    /// `[B, L, H]`, before bias and softplus.
    pub dt: Tensor<'g>,
    /// `[B, L, R, G, N, 2]`, or with the last axes as one; real parts before imaginary ones.
    pub b: Tensor<'g>,
    /// As `b`.
    pub c: Tensor<'g>,
    /// State before the first token, `[B, H, P, N, 2]`; absent: zeros.
    pub s0: Option<Tensor<'g>>,
    /// Where a sequence starts, `[B, L]` bool.
    pub reset: Option<Tensor<'g>>,
    /// `[B, L, 1]`, 0 at padding: there the time step is 0, which leaves a state that was handed in as it is.
    pub mask: Option<Tensor<'g>>,
    /// Whether gradients will be taken. Then what a token reads of itself is computed apart, from k and q that are not turned: it does
    /// not depend on the angle, which the sum of two derivatives by it, each as large as all else, would not show.
    pub gradients: bool,
}

impl<'g> Cssd<'g> {
    /// `Δ = clamp(softplus(dt + dt_bias))`, `Ā = e^{ΔA}`, `F = (Ā - 1) / A`, `v_r = mimo_x_r x`,
    /// `S_t = Ā S_{t-1} + Σ_r v_r ⊗ F B_r`, `y_r = Re(S_t conj(C_r)) + D v_r`, `y = Σ_r mimo_o_r y_r`.
    ///
    /// Exact for an input that is held over each step. Returns `y` in the shape of `x`, and the state after the last token,
    /// `[B, H, P, N, 2]`.
    #[track_caller]
    #[must_use]
    pub fn apply(&self, inputs: &CssdInputs<'g>) -> (Tensor<'g>, Tensor<'g>) {
        let &CssdInputs { x, s0, reset, .. } = inputs;
        let (batch, len) = (x.dim(0), x.dim(1));
        let delta = time_step(inputs.dt, self.dt_bias, self.dt_limit, inputs.mask.filter(|_| s0.is_some()));
        let [rate, speed] = [0, 1].map(|part| self.a_log.slice_axis(1, part, part + 1).reshape([self.nheads]));
        let a = Complex { re: -rate.exp(), im: speed };
        let z = a.scaled(delta);
        let held = held(delta, a, z);

        // A sequence of no tokens has no last one to turn with. A token's own turn is not in the sum: what it leaves in the last state
        // does not depend on it, and the difference of two sums would forget small derivatives beside large ones.
        let to_end = (len > 0).then(|| angle_to_end(of_next_token(z.im)));
        let turned = to_end.map(Complex::cis);
        // Cosine and sine are taken before the first token is cut out, so that they are made where the sum is.
        let total = to_end.map(|to_end| Complex::cis(to_end + z.im).slice_axis(1, 0, 1));
        let k = self.by_head(inputs.b, Some(turned.map_or(held, |turned| held.times(turned))));
        let q = self.by_head(inputs.c, turned);
        let heads = x.reshape([batch, len, self.nheads, 1, self.headdim]);
        let v = self.mimo_x.map_or(heads, |weight| heads * weight);
        let s0 = s0.map(|s0| self.real_state(s0, total));
        let own = inputs.gradients.then(|| own_share(self.by_head(inputs.b, Some(held)), self.by_head(inputs.c, None), v));
        let own_weight = own.map(|_| x.builder().constant(0.0, x.dtype(), [batch, len, self.nheads]));
        let (y, s_last) = z.re.scan(v, k, q, s0, reset, None, own_weight, self.chunk_size);
        let y = own.map_or(y, |own| y + own) + v * self.skip();
        let y = self.mimo_o.map_or(y, |weight| sum_of_ranks(y * weight));
        (y.reshape(x.shape()), s_last.reshape([batch, self.nheads, self.headdim, self.d_state, 2]))
    }

    /// B or C of every head as real numbers, times a complex factor `[B, L, H]`: `[B, L, H, R, 2N]`.
    #[track_caller]
    fn by_head(&self, t: Tensor<'g>, factor: Option<Complex<'g>>) -> Tensor<'g> {
        let Self { nheads, ngroups, ranks, d_state, .. } = *self;
        let (batch, len, width) = (t.dim(0), t.dim(1), d_state.saturating_mul(2));
        let per_group = nheads / ngroups.max(1);
        let pairs = if ranks == 1 || ngroups == 1 {
            t.reshape([batch, len, ngroups, ranks, d_state, 2])
        } else {
            t.reshape([batch, len, ranks, ngroups, d_state, 2]).permute([0, 1, 3, 2, 4, 5])
        };
        let grouped = |t: Tensor<'g>| t.reshape([batch, len, ngroups, 1, ranks, width]);
        let t = match factor {
            Some(factor) => factor.reshape(&[batch, len, ngroups, per_group, 1, 1]).times_pairs(grouped(pairs), grouped(times_i(pairs, 5))),
            None => grouped(pairs).broadcast([batch, len, ngroups, per_group, ranks, width]),
        };
        t.reshape([batch, len, nheads, ranks, width])
    }

    /// A state `[B, H, P, N, 2]` in the frame of the last token, `[B, H, P, 2N]`; `total [B, 1, H]` turns it into that.
    #[track_caller]
    fn real_state(&self, s0: Tensor<'g>, total: Option<Complex<'g>>) -> Tensor<'g> {
        let batch = s0.dim(0);
        let turned = total.map_or(s0, |total| total.reshape(&[batch, self.nheads, 1, 1, 1]).times_pairs(s0, times_i(s0, 4)));
        turned.reshape([batch, self.nheads, self.headdim, self.d_state.saturating_mul(2)])
    }

    #[track_caller]
    fn skip(&self) -> Tensor<'g> {
        let n_entries: usize = self.d_skip.shape().iter().product();
        self.d_skip.reshape([self.nheads, 1, n_entries / self.nheads.max(1)])
    }
}

/// What each token reads of itself, `Σ_s (q_r · k_s) v_s`.
///
/// Shapes: `k`, `q [B, L, H, R, N]`, `v [B, L, H, R, P]` → as `v`.
#[track_caller]
fn own_share<'g>(k: Tensor<'g>, q: Tensor<'g>, v: Tensor<'g>) -> Tensor<'g> {
    let ranks = v.dim(3);
    let products = |s: usize| (q * k.slice_axis(3, s, s + 1)).sum([4], true) * v.slice_axis(3, s, s + 1);
    (1..ranks).fold(products(0), |sum, s| sum + products(s))
}

/// The sum over the fourth of five axes, of which there are few entries: written out, so that it fuses like an elementwise op.
///
/// Shapes: `[B, L, H, R, P]` → `[B, L, H, 1, P]`.
#[track_caller]
pub(crate) fn sum_of_ranks(y: Tensor<'_>) -> Tensor<'_> {
    let of_rank = |rank| y.slice_axis(3, rank, rank + 1);
    (1..y.dim(3)).fold(of_rank(0), |sum, rank| sum + of_rank(rank))
}
