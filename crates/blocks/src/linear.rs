//! The linear map, as checkpoints store it.

use monopass_ir::Tensor;

/// `x wᵀ + bias` over the last axis.
///
/// Shapes: `x [.., I]`, `w [O, I]`, `bias [O]` → `[.., O]`.
#[track_caller]
#[must_use]
pub fn linear<'g>(x: Tensor<'g>, w: Tensor<'g>, bias: Option<Tensor<'g>>) -> Tensor<'g> {
    let product = x.matmul(w, false, true);
    bias.map_or(product, |bias| product + bias)
}
