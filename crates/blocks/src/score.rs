//! How well a model expects each token of a text.

use crate::linear::linear;
use crate::train::block_rows_for;
use monopass_ir::{DType, Tensor};

/// The surprise of each token, and its place among all.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'g> {
    /// `[M]` f32: `-log softmax(logits)[target]`, in nats. Rows of the head that are padding take part, as in training.
    pub losses: Tensor<'g>,
    /// `[M]` u32: how many tokens are likelier, of equal ones those with a lower number; rows of padding are none.
    pub ranks: Tensor<'g>,
}

/// Scores of targets by a head, over blocks of rows, so that no value has the logits of all.
///
/// Shapes: `hidden [M, d]`, `weight [V, d]`, `target [M]` i32 in `0..n_tokens`.
#[track_caller]
#[must_use]
pub fn scores<'g>(hidden: Tensor<'g>, weight: Tensor<'g>, target: Tensor<'g>, n_tokens: usize) -> Scores<'g> {
    let g = hidden.builder();
    let (n_rows, vocab) = (hidden.dim(0), weight.dim(0));
    let block_rows = block_rows_for(vocab, n_rows);
    let (mut losses, mut ranks) = (Vec::new(), Vec::new());
    for start in (0..n_rows.max(1)).step_by(block_rows) {
        let end = (start + block_rows).min(n_rows);
        let logits = linear(hidden.slice_axis(0, start, end), weight, None);
        let target = target.slice_axis(0, start, end).reshape([end - start, 1]);
        let columns = g.iota([1, vocab], 1usize, DType::I32);
        // Out of the same logits that it is compared with.
        let own = target.eq(columns).select(logits, g.scalar(0.0)).sum([1], true);
        let peak = logits.reduce_max([1], true);
        let total = (logits - peak).exp().sum([1], true);
        losses.push((total.log() + (peak - own)).reshape([end - start]));
        let last = g.constant(i32::try_from(n_tokens).map_or(f64::from(i32::MAX), f64::from), DType::I32, []);
        let is_before = own.lt(logits).or(own.eq(logits).and(columns.lt(target))).and(columns.lt(last));
        ranks.push(is_before.cast(DType::U32).sum([1], false));
    }
    Scores { losses: g.concat(&losses, 0usize), ranks: g.concat(&ranks, 0usize) }
}
