//! The short causal convolution of the block, and where packed sequences begin.

use crate::config::Taps;
use monopass_ir::Tensor;

/// Weight, bias and conventions of a causal depthwise convolution.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'g> {
    /// Taps, `[C, 1, K]` as in checkpoints or `[C, K]`.
    pub weight: Tensor<'g>,
    /// Bias, `[C]`.
    pub bias: Option<Tensor<'g>>,
    /// Which end of the weight multiplies the current token.
    pub taps: Taps,
    /// Whether silu follows.
    pub act: bool,
}

/// The convolution of `x` along its length, and the window after the last token.
///
/// Shapes: `x [B, L, C]`, `state [B, C, K-1]` (newest last; absent: zeros), `reset [B, L]` bool → `y [B, L, C]`, `state [B, C, K-1]`.
/// With one tap there is no window: the state comes back empty.
#[track_caller]
#[must_use]
pub fn conv<'g>(x: Tensor<'g>, with: &Conv<'g>, state: Option<Tensor<'g>>, reset: Option<Tensor<'g>>) -> (Tensor<'g>, Tensor<'g>) {
    let shape = with.weight.shape();
    let taps = match shape.as_slice() {
        &[channels, 1, taps] => with.weight.reshape([channels, taps]),
        _ => with.weight,
    };
    let (y, state) = x.conv1d(taps, with.bias, state, reset, with.taps == Taps::NewestFirst);
    (if with.act { y.silu() } else { y }, state)
}

/// Where a new sequence starts: where `seq_idx` differs from the token before. The first token says nothing, and the ops
/// that take resets ignore it: the state that is handed in belongs to the first sequence.
///
/// Shapes: `seq_idx [B, L]` i32 → `[B, L]` bool; `None` if there is no token.
#[track_caller]
#[must_use]
pub fn resets(seq_idx: Tensor<'_>) -> Option<Tensor<'_>> {
    let len = seq_idx.dim(1);
    let before = seq_idx.pad([0, 1], [0, 0], 0.0).slice_axis(1, 0, len);
    (len > 0).then(|| seq_idx.ne(before))
}
