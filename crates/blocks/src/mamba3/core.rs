//! Mamba-3's recurrence on the scan: turning k and q, the trapezoidal rule with a learned gate, ranks.
//!
//! The rule weighs the outer product of a token twice: by γ with its own step, and by β with the next one. Looking ahead,
//! a token enters the state with both weights at once, and its own output with γ alone; the decay in β is left out, since
//! the next step applies it anyway. So k and q take part as they are, and the products of a token's q with its k, which the
//! scan has, are all that its own output needs.

use super::config::{AAct, RopePairs};
use crate::angle::{of_next_token, running_angle};
use crate::complex::times_i;
use crate::state::States;
use monopass_ir::Tensor;
use std::f64::consts::PI;

/// π to so few digits that f32 has it exactly.
const PI_HEAD: f64 = 3.140_625;

/// Parameters and sizes of the recurrence.
#[derive(Clone, Copy, Debug)]
pub struct Core<'g> {
    /// Added to `dt` before softplus, `[H]`.
    pub dt_bias: Tensor<'g>,
    /// Added to B, `[H, R, N]`.
    pub b_bias: Tensor<'g>,
    /// Added to C, `[H, R, N]`.
    pub c_bias: Tensor<'g>,
    /// D, the weight of v beside the scan, `[H]`.
    pub d_skip: Tensor<'g>,
    /// Weight of `x` in each rank, `[H, R, P]`; absent: one rank with weight 1.
    pub mimo_x: Option<Tensor<'g>>,
    /// What makes the decay rate positive.
    pub a_act: AAct,
    /// The least decay rate.
    pub a_floor: f64,
    /// Which entries of k and q turn together.
    pub pairs: RopePairs,
    /// H.
    pub nheads: usize,
    /// P.
    pub headdim: usize,
    /// G.
    pub ngroups: usize,
    /// R.
    pub ranks: usize,
    /// N.
    pub d_state: usize,
    /// S, pairs that turn; the rest stays.
    pub n_angles: usize,
    /// Chunk length; 0 leaves it to the planner.
    pub chunk_size: usize,
}

/// What the recurrence reads.
#[derive(Clone, Copy, Debug)]
pub struct CoreInputs<'g> {
    /// `[B, L, H, P]` or `[B, L, H * P]`.
    pub x: Tensor<'g>,
    /// `[B, L, R, G, N]`, normalised.
    pub b: Tensor<'g>,
    /// As `b`.
    pub c: Tensor<'g>,
    /// `[B, L, H]`, before bias and softplus.
    pub dt: Tensor<'g>,
    /// `[B, L, H]`, before the activation of the decay rate.
    pub dd_a: Tensor<'g>,
    /// `[B, L, H]`, the gate of the trapezoidal rule before its sigmoid.
    pub trap: Tensor<'g>,
    /// `[B, L, S]`, angular rates before tanh; 1 is half a turn a unit of time.
    pub angles: Tensor<'g>,
    /// States before the first token; absent: zeros.
    pub states: Option<CoreStates<'g>>,
    /// Where a sequence starts, `[B, L]` bool.
    pub reset: Option<Tensor<'g>>,
    /// `[B, L, 1]`, 0 at padding: there the time step is 0.
    pub mask: Option<Tensor<'g>>,
}

/// What the recurrence carries from one token to the next.
#[derive(Clone, Copy, Debug)]
pub struct CoreStates<'g> {
    /// Angles in radians, within half a turn of 0, `[B, H, S]`.
    pub angle: Tensor<'g>,
    /// State of the scan, `[B, H, P, N]`.
    pub ssm: Tensor<'g>,
    /// k of the last token, with bias and turned, `[B, R, H, N]`.
    pub k: Tensor<'g>,
    /// x of the last token, `[B, H, P]`.
    pub v: Tensor<'g>,
}

impl<'g> CoreStates<'g> {
    /// The four states among those of a block.
    #[must_use]
    pub fn of(states: &States<'g>) -> Option<Self> {
        let get = |name| states.get(name);
        Some(Self { angle: get("angle_state")?, ssm: get("ssm_state")?, k: get("k_state")?, v: get("v_state")? })
    }
}

impl<'g> From<CoreStates<'g>> for States<'g> {
    fn from(states: CoreStates<'g>) -> Self {
        let CoreStates { angle, ssm, k, v } = states;
        Self::new([("angle_state", Some(angle)), ("ssm_state", Some(ssm)), ("k_state", Some(k)), ("v_state", Some(v))])
    }
}

/// Weights of the outer products, `[B, L, H]` each.
struct Weights<'g> {
    log_decay: Tensor<'g>,
    /// Of a token with its own step, λΔ.
    own: Tensor<'g>,
    /// Of the token before with this step, (1-λ)Δ, before its decay.
    before: Tensor<'g>,
    /// Of a token with its own step and the next one: `own`, and `before` of the next token.
    both: Tensor<'g>,
}

impl<'g> Core<'g> {
    /// `θ_t = θ_{t-1} + π tanh(angles) Δ`, `q = Rot(θ)(C + c_bias)`, `k = Rot(θ)(B + b_bias)`, `v_r = mimo_x_r x`,
    /// `S_t = α S_{t-1} + β Σ_r v_{t-1,r} ⊗ k_{t-1,r} + γ Σ_r v_{t,r} ⊗ k_{t,r}`, `y_r = S_t q_r + D v_r`, where
    /// `α = e^{ΔA}`, `β = (1-λ) Δ α`, `γ = λ Δ` and `λ = sigmoid(trap)`.
    ///
    /// Returns `y [B, L, H, R, P]` and the states after the last token.
    ///
    /// # Source
    /// Lahoti et al. 2026, arXiv 2603.15569; the activation of the decay rate, and pairs by SISO or MIMO, as in `mamba_ssm`.
    #[track_caller]
    #[must_use]
    pub fn apply(&self, inputs: &CoreInputs<'g>) -> (Tensor<'g>, CoreStates<'g>) {
        let &CoreInputs { x, angles, states, reset, mask, .. } = inputs;
        let (batch, len) = (x.dim(0), x.dim(1));
        let heads = x.reshape([batch, len, self.nheads, 1, self.headdim]);
        let v = self.mimo_x.map_or(heads, |weight| heads * weight);
        if len == 0 {
            return (v, states.unwrap_or_else(|| self.zeros(x)));
        }
        let delta = (inputs.dt + self.dt_bias).softplus();
        let delta = mask.map_or(delta, |mask| delta * mask);
        let rates = angles.tanh().reshape([batch, len, 1, self.n_angles]);
        // π in one rounded number would turn every step by too much in the same direction.
        let half_turns = delta * PI_HEAD + delta * (PI - PI_HEAD);
        let added = rates * half_turns.reshape([batch, len, self.nheads, 1]);
        let theta = running_angle(added, states.map(|states| states.angle), reset);
        let turned = Rotation::new(self, theta);
        let k = turned.apply(self.by_head(inputs.b, self.b_bias));
        let q = turned.apply(self.by_head(inputs.c, self.c_bias));

        let Weights { log_decay, own, before, both } = self.weights(inputs, delta);
        let s0 = states.map(|states| self.with_last_token(&states, before.slice_axis(1, 0, 1)));
        let (y, ssm) = log_decay.scan(v, k, q, s0, reset, Some(both), Some(own), self.chunk_size);
        let y = y + v * self.d_skip.reshape([self.nheads, 1, 1]);
        let last = |t: Tensor<'g>, shape: &[usize]| t.slice_axis(1, len - 1, len).reshape(shape);
        let states = CoreStates {
            angle: last(theta, &[batch, self.nheads, self.n_angles]),
            ssm,
            k: last(k, &[batch, self.nheads, self.ranks, self.d_state]).permute([0, 2, 1, 3]),
            v: last(heads, &[batch, self.nheads, self.headdim]),
        };
        (y, states)
    }

    #[track_caller]
    fn weights(&self, inputs: &CoreInputs<'g>, delta: Tensor<'g>) -> Weights<'g> {
        let rate = self.a_act.apply(inputs.dd_a).max(delta.number(self.a_floor));
        // 1 - sigmoid(x) is sigmoid(-x), which keeps the digits of a gate near 1.
        let before = delta * (-inputs.trap).sigmoid();
        // Where a sequence starts, nothing of the one before it is left to weigh.
        let within = inputs.reset.map_or(before, |reset| reset.reshape([reset.dim(0), reset.dim(1), 1]).select(before.number(0.0), before));
        let own = delta * inputs.trap.sigmoid();
        Weights { log_decay: delta * -rate, own, before, both: own + of_next_token(within) }
    }

    /// B or C of every head with its bias: `[B, L, R, G, N]` and `[H, R, N]` → `[B, L, H, R, N]`.
    #[track_caller]
    fn by_head(&self, t: Tensor<'g>, bias: Tensor<'g>) -> Tensor<'g> {
        let Self { nheads, ngroups, ranks, d_state, .. } = *self;
        let (batch, len, per_group) = (t.dim(0), t.dim(1), nheads / ngroups.max(1));
        let grouped = if ranks == 1 || ngroups == 1 { t } else { t.permute([0, 1, 3, 2, 4]) };
        let grouped = grouped.reshape([batch, len, ngroups, 1, ranks, d_state]);
        (grouped + bias.reshape([ngroups, per_group, ranks, d_state])).reshape([batch, len, nheads, ranks, d_state])
    }

    /// The state before the first token with what its step adds of the token before: `[B, H, P, N]`.
    #[track_caller]
    fn with_last_token(&self, states: &CoreStates<'g>, weight: Tensor<'g>) -> Tensor<'g> {
        let batch = states.v.dim(0);
        let v = states.v * weight.reshape([batch, self.nheads, 1]);
        (0..self.ranks).fold(states.ssm, |ssm, rank| {
            let in_rank = self.mimo_x.map_or(v, |x| v * x.slice_axis(1, rank, rank + 1).reshape([self.nheads, self.headdim]));
            let k = states.k.slice_axis(1, rank, rank + 1).reshape([batch, self.nheads, 1, self.d_state]);
            ssm + in_rank.reshape([batch, self.nheads, self.headdim, 1]) * k
        })
    }

    /// Zero states, for a sequence of no tokens like `x`.
    #[track_caller]
    fn zeros(&self, x: Tensor<'g>) -> CoreStates<'g> {
        let (g, batch) = (x.builder(), x.dim(0));
        let zeros = |shape: &[usize]| g.constant(0.0, x.dtype(), [&[batch], shape].concat());
        CoreStates {
            angle: zeros(&[self.nheads, self.n_angles]),
            ssm: zeros(&[self.nheads, self.headdim, self.d_state]),
            k: zeros(&[self.ranks, self.nheads, self.d_state]),
            v: zeros(&[self.nheads, self.headdim]),
        }
    }
}

/// Turns pairs of entries of k and q by the angle of their token and head.
struct Rotation<'g> {
    pairs: RopePairs,
    d_state: usize,
    n_angles: usize,
    /// Of every pair that turns, `[B, L, H, 1, S, 1]`, or with the last two swapped.
    cos: Tensor<'g>,
    sin: Tensor<'g>,
}

impl<'g> Rotation<'g> {
    #[track_caller]
    fn new(core: &Core<'g>, theta: Tensor<'g>) -> Self {
        let (batch, len) = (theta.dim(0), theta.dim(1));
        let shape = match core.pairs {
            RopePairs::Interleaved => [batch, len, core.nheads, 1, core.n_angles, 1],
            RopePairs::Halves => [batch, len, core.nheads, 1, 1, core.n_angles],
        };
        let (cos, sin) = (theta.cos().reshape(shape), theta.sin().reshape(shape));
        Self { pairs: core.pairs, d_state: core.d_state, n_angles: core.n_angles, cos, sin }
    }

    /// Shapes: `x [B, L, H, R, N]` → the same. Pairs beyond the angles stay, and so does an odd last entry.
    #[track_caller]
    fn apply(&self, x: Tensor<'g>) -> Tensor<'g> {
        let (g, n_pairs) = (x.builder(), self.d_state / 2);
        // Axis of the pairs, and the one of the two entries of each.
        let (paired, of_pairs, of_two) = match self.pairs {
            RopePairs::Interleaved => ([n_pairs, 2], 4, 5),
            RopePairs::Halves => ([2, n_pairs], 5, 4),
        };
        let shape = x.shape();
        let lead = shape.get(..4).unwrap_or_default();
        let part = |t: Tensor<'g>, axis, start, end| if t.dim(axis) == end - start { t } else { t.slice_axis(axis, start, end) };
        let pairs = part(x, 4, 0, 2 * n_pairs).reshape([lead, &paired].concat());
        let turning = part(pairs, of_pairs, 0, self.n_angles);
        let turned = turning * self.cos + times_i(turning, of_two) * self.sin;
        let all = if self.n_angles < n_pairs {
            g.concat(&[turned, pairs.slice_axis(of_pairs, self.n_angles, n_pairs)], of_pairs)
        } else {
            turned
        };
        let all = all.reshape([lead, &[2 * n_pairs]].concat());
        if 2 * n_pairs < self.d_state { g.concat(&[all, x.slice_axis(4, 2 * n_pairs, self.d_state)], 4usize) } else { all }
    }
}
