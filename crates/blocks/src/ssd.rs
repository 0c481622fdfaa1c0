//! State-space duality: Mamba-2's recurrence on top of the scan.

use monopass_ir::Tensor;

/// Parameters of the recurrence.
#[derive(Clone, Copy, Debug)]
pub struct Ssd<'g> {
    /// Logarithm of the decay rate, `[H]`; A is `-exp` of it.
    pub a_log: Tensor<'g>,
    /// Added to `dt` before softplus, `[H]`.
    pub dt_bias: Tensor<'g>,
    /// D, the weight of `x` beside the scan: `[H]`, or an entry for each channel as `[H, P]` or `[H * P]`.
    pub d_skip: Tensor<'g>,
    /// H.
    pub nheads: usize,
    /// P.
    pub headdim: usize,
    /// G.
    pub ngroups: usize,
    /// N.
    pub d_state: usize,
    /// Limits of the time step after softplus; an upper limit of `f32::MAX` is none.
    pub dt_limit: [f32; 2],
    /// Chunk length; 0 leaves it to the planner.
    pub chunk_size: usize,
}

/// What the recurrence reads.
#[derive(Clone, Copy, Debug)]
pub struct SsdInputs<'g> {
    /// `[B, L, H, P]` or `[B, L, H * P]`.
    pub x: Tensor<'g>,
    /// `[B, L, H]`, before bias and softplus.
    pub dt: Tensor<'g>,
    /// `[B, L, G, N]` or `[B, L, G * N]`.
    pub b: Tensor<'g>,
    /// As `b`.
    pub c: Tensor<'g>,
    /// State before the first token, `[B, H, P, N]`; absent: zeros.
    pub s0: Option<Tensor<'g>>,
    /// Where a sequence starts, `[B, L]` bool.
    pub reset: Option<Tensor<'g>>,
    /// `[B, L, 1]`, 0 at padding: there the time step is 0, which leaves a state that was handed in as it is.
    pub mask: Option<Tensor<'g>>,
}

impl<'g> Ssd<'g> {
    /// `Δ = clamp(softplus(dt + dt_bias))`, `S_t = e^{ΔA} S_{t-1} + Δ x_t ⊗ B_t`, `y_t = S_t C_t + D x_t`.
    ///
    /// Returns `y` in the shape of `x`, and the state after the last token, `[B, H, P, N]`.
    ///
    /// # Source
    /// Dao and Gu 2024, arXiv 2405.21060, section 6, listing 1.
    #[track_caller]
    #[must_use]
    pub fn apply(&self, inputs: &SsdInputs<'g>) -> (Tensor<'g>, Tensor<'g>) {
        let &SsdInputs { x, b, c, s0, reset, .. } = inputs;
        let (batch, len) = (x.dim(0), x.dim(1));
        let delta = time_step(inputs.dt, self.dt_bias, self.dt_limit, inputs.mask.filter(|_| s0.is_some()));
        let log_decay = delta * -self.a_log.exp();
        // The axis of ranks is there from the start, so that x is reshaped once for both of its uses.
        let heads = x.reshape([batch, len, self.nheads, 1, self.headdim]);
        let v = heads * delta.reshape([batch, len, self.nheads, 1, 1]);
        let grouped = |t: Tensor<'g>| t.reshape([batch, len, self.ngroups, 1, self.d_state]);
        let (y, s_last) = log_decay.scan(v, grouped(b), grouped(c), s0, reset, None, None, self.chunk_size);
        ((y + heads * self.skip()).reshape(x.shape()), s_last)
    }

    #[track_caller]
    fn skip(&self) -> Tensor<'g> {
        let n_entries: usize = self.d_skip.shape().iter().product();
        self.d_skip.reshape([self.nheads, 1, n_entries / self.nheads.max(1)])
    }
}

/// `clamp(softplus(dt + dt_bias))`, times `mask` where there is one.
#[track_caller]
pub(crate) fn time_step<'g>(dt: Tensor<'g>, dt_bias: Tensor<'g>, [lo, hi]: [f32; 2], mask: Option<Tensor<'g>>) -> Tensor<'g> {
    let delta = (dt + dt_bias).softplus();
    // softplus is never negative, so the published limits (0, ∞) need no clamp.
    let delta = if lo > 0.0 || hi < f32::MAX { delta.clamp(lo, hi) } else { delta };
    mask.map_or(delta, |mask| delta * mask)
}
