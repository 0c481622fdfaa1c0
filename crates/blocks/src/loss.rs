//! Cross-entropy of next-token predictions.

use monopass_ir::{DType, Tensor};

/// Mean of `-log softmax(logits)[target]` over the rows whose target is not `ignore`; 0 if all are.
///
/// Shapes: `logits [M, V]`, `target [M]` i32 → `[1]`. A target outside `0..V` that is not `ignore` counts a logit of 0.
#[track_caller]
#[must_use]
pub fn cross_entropy<'g>(logits: Tensor<'g>, target: Tensor<'g>, ignore: i32) -> Tensor<'g> {
    let g = logits.builder();
    let (rows, vocab) = (logits.dim(0), logits.dim(1));
    let peak = logits.reduce_max([1], true);
    let total = (logits - peak).exp().sum([1], true).log() + peak;
    let column = target.reshape([rows, 1]);
    let is_target = column.eq(g.iota([1, vocab], 1usize, DType::I32));
    let picked = is_target.select(logits, g.scalar(0.0)).sum([1], true);
    let counts = column.ne(g.constant(f64::from(ignore), DType::I32, [])).cast(DType::F32);
    let n_counted = counts.sum([0], false).max(g.scalar(1.0));
    ((total - picked) * counts).sum([0], false) / n_counted
}
