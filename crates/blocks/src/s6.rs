//! Mamba-1's selective scan, a decay for each channel and state, from the same scan: every pair is a head of its own.

use monopass_ir::Tensor;

/// Parameters of the recurrence.
#[derive(Clone, Copy, Debug)]
pub struct S6<'g> {
    /// Logarithm of the decay rate, `[D, N]`; A is `-exp` of it.
    pub a_log: Tensor<'g>,
    /// Added to `dt` before softplus, `[D]`.
    pub dt_bias: Tensor<'g>,
    /// Weight of `u` beside the scan, `[D]`.
    pub d_skip: Tensor<'g>,
}

/// What the recurrence reads.
#[derive(Clone, Copy, Debug)]
pub struct S6Inputs<'g> {
    /// `[B, L, D]`.
    pub u: Tensor<'g>,
    /// `[B, L, D]`, before bias and softplus.
    pub dt: Tensor<'g>,
    /// `[B, L, N]`.
    pub b: Tensor<'g>,
    /// As `b`.
    pub c: Tensor<'g>,
    /// State before the first token, `[B, D, N]`; absent: zeros.
    pub s0: Option<Tensor<'g>>,
    /// Where a sequence starts, `[B, L]` bool.
    pub reset: Option<Tensor<'g>>,
}

impl<'g> S6<'g> {
    /// `Δ = softplus(dt + dt_bias)`, `s_t[d,n] = e^{Δ_d A[d,n]} s_{t-1}[d,n] + Δ_d B_n u_d`, `y_d = Σ_n C_n s[d,n] + D_d u_d`.
    ///
    /// Returns `y [B, L, D]`, and the state after the last token, `[B, D, N]`.
    ///
    /// # Source
    /// Gu and Dao 2023, arXiv 2312.00752, algorithm 2.
    #[track_caller]
    #[must_use]
    pub fn apply(&self, inputs: &S6Inputs<'g>) -> (Tensor<'g>, Tensor<'g>) {
        let &S6Inputs { u, dt, b, c, s0, reset } = inputs;
        let (batch, len, channels, d_state) = (u.dim(0), u.dim(1), u.dim(2), b.dim(2));
        let n_pairs = channels.saturating_mul(d_state);
        let delta = (dt + self.dt_bias).softplus();
        // Heads are ordered by state, so that each state is a group of heads with its entry of B and C.
        let rate = self.a_log.exp().permute([1, 0]).reshape([1, 1, d_state, channels]);
        let by_state = |t: Tensor<'g>| t.reshape([batch, len, 1, channels]);
        let log_decay = (by_state(-delta) * rate).reshape([batch, len, n_pairs]);
        let v = by_state(delta * u).broadcast([batch, len, d_state, channels]).reshape([batch, len, n_pairs, 1, 1]);
        let grouped = |t: Tensor<'g>| t.reshape([batch, len, d_state, 1, 1]);
        let s0 = s0.map(|s0| s0.permute([0, 2, 1]).reshape([batch, n_pairs, 1, 1]));
        let (y, s_last) = log_decay.scan(v, grouped(b), grouped(c), s0, reset, None, None, 0usize);
        let y = y.reshape([batch, len, d_state, channels]).sum([2], false);
        (y + u * self.d_skip, s_last.reshape([batch, d_state, channels]).permute([0, 2, 1]))
    }
}
