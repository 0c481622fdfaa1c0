//! RMS norm, plain, by groups of channels, and with a gate.

use crate::config::NormKind;
use monopass_ir::Tensor;

/// `x / sqrt(mean(x²) + eps) * w`, the mean over each `group` of neighbouring channels of the last axis.
///
/// Shapes: `x [.., D]`, `w [D]`, `group` dividing D → `[.., D]`.
///
/// Written as `x * rsqrt(mean(x * x) + eps) * w`, which the fuser knows.
///
/// # Source
/// Zhang and Sennrich 2019, arXiv 1910.07467; groups as in `mamba_ssm`'s `RMSNormGated`.
#[track_caller]
#[must_use]
pub fn rms_norm<'g>(x: Tensor<'g>, w: Tensor<'g>, eps: f64, group: usize) -> Tensor<'g> {
    let shape = x.shape();
    let Some((&width, lead)) = shape.split_last() else { return x * w };
    if group == width || group == 0 || !width.is_multiple_of(group) {
        if group != width {
            x.builder().fail(
                format!("rms_norm: groups of {group} do not divide {width} channels"),
                "choose norm_group so that it divides the width",
            );
        }
        return normalize(x, w, eps);
    }
    let by_group = [width / group, group];
    let normed = normalize(x.reshape([lead, &by_group].concat()), w.reshape(by_group), eps);
    normed.reshape(shape)
}

/// The norm over the whole last axis.
#[track_caller]
fn normalize<'g>(x: Tensor<'g>, w: Tensor<'g>, eps: f64) -> Tensor<'g> {
    let last = x.shape().len().saturating_sub(1);
    let mean_square = (x * x).mean([last], true);
    x * (mean_square + eps).rsqrt() * w
}

/// The norm before `out_proj`: `y` gated by `silu(z)` where there is a gate, normalised as `kind` says.
///
/// Shapes: `y`, `z [.., D]`, `w [D]` (absent without a norm) → `[.., D]`.
#[track_caller]
#[must_use]
pub fn gated_rms_norm<'g>(
    y: Tensor<'g>,
    z: Option<Tensor<'g>>,
    w: Option<Tensor<'g>>,
    kind: NormKind,
    eps: f64,
    group: usize,
) -> Tensor<'g> {
    let gated = |y: Tensor<'g>| z.map_or(y, |z| y * z.silu());
    match (kind, w) {
        (NormKind::None, _) | (_, None) => gated(y),
        (NormKind::AfterGate, Some(w)) => rms_norm(gated(y), w, eps, group),
        (NormKind::BeforeGate, Some(w)) => gated(rms_norm(y, w, eps, group)),
    }
}
