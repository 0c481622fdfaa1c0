//! Cross-entropy of a head, with its gradients, over blocks of rows.
//!
//! The logits of a batch are most of what a small model would keep: `M` rows of `V` numbers. Here a block of rows has its
//! logits, their losses and their gradients before the next block begins, so that no value has more than a block's rows.

use crate::linear::linear;
use monopass_ir::{DType, Tensor};

/// A head's mean loss with what its gradients are.
#[derive(Clone, Copy, Debug)]
pub struct HeadLoss<'g> {
    /// `[]`: mean over the rows that count; 0 if none does.
    pub loss: Tensor<'g>,
    /// `[]` f32: rows that count.
    pub count: Tensor<'g>,
    /// `[M, d]`: derivative of the loss by `hidden`.
    pub d_hidden: Tensor<'g>,
    /// `[V, d]`: derivative of the loss by `weight`.
    pub d_weight: Tensor<'g>,
}

/// A head's loss for evaluation, to be added up over batches before it is divided.
#[derive(Clone, Copy, Debug)]
pub struct HeadSum<'g> {
    /// `[]`: sum of the losses of the rows that count.
    pub sum: Tensor<'g>,
    /// `[]` f32: rows that count.
    pub count: Tensor<'g>,
}

/// Mean cross-entropy of `hidden weightᵀ` with its gradients, over blocks of `block_rows` rows.
///
/// Shapes: `hidden [M, d]`, `weight [V, d]`, both f32, `target [M]` i32. Rows whose target is `ignore` do not count: their
/// loss and gradients are 0. A target outside `0..V` that is not `ignore` counts a logit of 0. The last block may be short;
/// `block_rows` of `M` or more make one block. Rows of `weight` that are padding take part, as in the reference.
///
/// # Numerics
/// `log Σ exp` is taken from the largest logit on. Gradients by `weight` are summed over blocks in order.
/// # Errors
/// Other shapes or element types, and blocks of no rows, are errors of the builder.
/// # Source
/// The gradient by the logits is `(softmax - onehot) mask / count`.
#[track_caller]
#[must_use]
pub fn head_loss<'g>(hidden: Tensor<'g>, weight: Tensor<'g>, target: Tensor<'g>, ignore: i32, block_rows: usize) -> HeadLoss<'g> {
    let g = hidden.builder();
    let head = Head::new(hidden, weight, target, ignore, block_rows);
    let divisor = head.count.max(g.scalar(1.0));
    // For all rows at once, so that no block waits for what shares a kernel with the weights of another.
    let weights = head.counts / divisor;
    let (mut sum, mut d_weight, mut d_hidden) = (None, None, Vec::new());
    for block in head.blocks() {
        sum = Some(plus(sum, (block.losses() * block.counts).sum([0, 1], false)));
        let d_logits = block.d_logits(block.rows_of(weights));
        d_hidden.push(d_logits.matmul(weight, false, false));
        d_weight = Some(plus(d_weight, d_logits.matmul(block.hidden, true, false)));
    }
    HeadLoss {
        loss: sum.unwrap_or(head.count) / divisor,
        count: head.count,
        d_hidden: g.concat(&d_hidden, 0usize),
        d_weight: d_weight.unwrap_or(weight),
    }
}

/// Sum of the cross-entropies of `hidden weightᵀ`, as [`head_loss`] computes them, and how many there are.
///
/// # Errors
/// Those of [`head_loss`].
#[track_caller]
#[must_use]
pub fn head_sum<'g>(hidden: Tensor<'g>, weight: Tensor<'g>, target: Tensor<'g>, ignore: i32, block_rows: usize) -> HeadSum<'g> {
    let head = Head::new(hidden, weight, target, ignore, block_rows);
    let losses = head.blocks().map(|block| (block.losses() * block.counts).sum([0, 1], false));
    let sum = losses.reduce(|sum, losses| sum + losses);
    HeadSum { sum: sum.unwrap_or(head.count), count: head.count }
}

fn plus<'g>(sum: Option<Tensor<'g>>, term: Tensor<'g>) -> Tensor<'g> {
    sum.map_or(term, |sum| sum + term)
}

/// The whole batch.
struct Head<'g> {
    hidden: Tensor<'g>,
    weight: Tensor<'g>,
    target: Tensor<'g>,
    /// `[M]`: 1 for each row that counts, else 0.
    counts: Tensor<'g>,
    count: Tensor<'g>,
    block_rows: usize,
}

impl<'g> Head<'g> {
    #[track_caller]
    fn new(hidden: Tensor<'g>, weight: Tensor<'g>, target: Tensor<'g>, ignore: i32, block_rows: usize) -> Self {
        let g = hidden.builder();
        let [x, w, t] = [hidden, weight, target].map(Tensor::ty);
        let is_matrix = x.rank() == 2 && w.rank() == 2 && x.shape[1] == w.shape[1] && x.dtype == DType::F32 && w.dtype == DType::F32;
        if !is_matrix || t.dtype != DType::I32 || t.shape != x.shape[..1] {
            g.fail(
                format!("head_loss: hidden {x}, weight {w} and target {t} do not fit"),
                "give hidden f32[M, d], weight f32[V, d] and target i32[M]",
            );
        }
        if block_rows == 0 {
            g.fail("head_loss: blocks of 0 rows", "block_rows is at least 1");
        }
        let counts = target.ne(g.constant(f64::from(ignore), DType::I32, [])).cast(DType::F32);
        Self { hidden, weight, target, counts, count: counts.sum([0], false), block_rows: block_rows.max(1) }
    }

    /// Blocks of rows in order, at least one; none where the shapes are wrong.
    fn blocks(&self) -> impl Iterator<Item = Block<'g>> + '_ {
        let n_rows = self.target.dim(0);
        (0..n_rows.div_ceil(self.block_rows).max(1)).map(move |i| {
            let (start, end) = (i * self.block_rows, ((i + 1) * self.block_rows).min(n_rows));
            Block::new(self, start, end)
        })
    }
}

/// A block of `R` rows.
struct Block<'g> {
    start: usize,
    end: usize,
    hidden: Tensor<'g>,
    weight: Tensor<'g>,
    /// `[R, 1]`: the target, and whether the row counts.
    target: Tensor<'g>,
    counts: Tensor<'g>,
    /// `[R, 1]`: the largest logit of each row.
    peak: Tensor<'g>,
    /// `[R, V]`: exponentials of what logits are below it.
    powers: Tensor<'g>,
    /// `[R, 1]`: their sums.
    total: Tensor<'g>,
}

impl<'g> Block<'g> {
    fn new(head: &Head<'g>, start: usize, end: usize) -> Self {
        let hidden = head.hidden.slice_axis(0, start, end);
        let logits = linear(hidden, head.weight, None);
        let peak = logits.reduce_max([1], true);
        let powers = (logits - peak).exp();
        let [target, counts] = [head.target, head.counts].map(|x| rows_of(x, start, end));
        Self { start, end, hidden, weight: head.weight, target, counts, peak, powers, total: powers.sum([1], true) }
    }

    /// The block's part of one number a row, as a column.
    fn rows_of(&self, x: Tensor<'g>) -> Tensor<'g> {
        rows_of(x, self.start, self.end)
    }

    /// `[R, 1]`: the loss of each row, counted or not. Where the target has the largest logit no large numbers are subtracted.
    fn losses(&self) -> Tensor<'g> {
        self.total.log() + (self.peak - self.target_logits())
    }

    /// `[R, 1]`: the logit of each target, by a product of its own, so that nothing waits for the logits but their exponentials.
    fn target_logits(&self) -> Tensor<'g> {
        let g = self.hidden.builder();
        let last = self.weight.dim(0).saturating_sub(1);
        let column = |number: usize| g.constant(u32::try_from(number).map_or(0.0, f64::from), DType::I32, []);
        let nearest = self.target.max(column(0)).min(column(last));
        let rows = self.weight.gather(nearest.reshape([self.target.dim(0)]));
        let is_column = self.target.eq(nearest);
        is_column.select((self.hidden * rows).sum([1], true), g.scalar(0.0))
    }

    /// `[R, V]`: gradient of the sum of losses with these weights of rows. Scales of rows are divided before, which leaves a
    /// product and a difference for each element.
    fn d_logits(&self, weights: Tensor<'g>) -> Tensor<'g> {
        let g = self.hidden.builder();
        let columns = g.iota([1, self.weight.dim(0)], 1usize, DType::I32);
        self.powers * (weights / self.total) - self.target.eq(columns).select(weights, g.scalar(0.0))
    }
}

fn rows_of(x: Tensor<'_>, start: usize, end: usize) -> Tensor<'_> {
    x.slice_axis(0, start, end).reshape([end - start, 1])
}
