//! Running angles that keep their digits: they are summed modulo a turn.

use monopass_ir::Tensor;

/// Radians of a turn.
pub const TURN: f64 = std::f64::consts::TAU;

/// The angle after each token, in radians within half a turn of 0.
///
/// Shapes: `added [B, L, ..]` with `L` at least 1, the angle in radians that each token adds; `start [B, ..]`, the angle before
/// the first token in radians; `reset [B, L]` bool, where it starts anew at 0 → as `added`. `start` belongs to the first sequence.
#[track_caller]
#[must_use]
pub fn running_angle<'g>(added: Tensor<'g>, start: Option<Tensor<'g>>, reset: Option<Tensor<'g>>) -> Tensor<'g> {
    let added = start.map_or(added, |start| added + at_first_token(start, &added.shape()));
    added.cumsum(reset, 1usize, false, TURN)
}

/// The angle that each token and those after it add, in radians within half a turn of 0: of the first token, what all add.
///
/// Shapes: `added [B, L, ..]` with `L` at least 1, the angle in radians that each token adds → as `added`.
#[track_caller]
#[must_use]
pub fn angle_to_end(added: Tensor<'_>) -> Tensor<'_> {
    added.cumsum(None, 1usize, true, TURN)
}

/// What each token's successor has, and 0 at the last token: a graph of one form for any number of tokens.
///
/// Shapes: `x [B, L, ..]` → as `x`.
#[track_caller]
#[must_use]
pub fn of_next_token(x: Tensor<'_>) -> Tensor<'_> {
    let len = x.dim(1);
    x.pad(vec![0; x.shape().len()], along_tokens(&x.shape(), 1), 0.0).slice_axis(1, 1, len.saturating_add(1))
}

/// `[B, ..]` as `[B, L, ..]` of the given shape, zero but at the first token.
#[track_caller]
fn at_first_token<'g>(x: Tensor<'g>, shape: &[usize]) -> Tensor<'g> {
    let (mut first, mut n_later) = (shape.to_vec(), 0);
    if let Some(len) = first.get_mut(1) {
        (n_later, *len) = (len.saturating_sub(1), 1);
    }
    x.reshape(first).pad(vec![0; shape.len()], along_tokens(shape, n_later), 0.0)
}

/// `n` at the axis of the tokens and 0 at the other axes of a shape.
fn along_tokens(shape: &[usize], n: usize) -> Vec<usize> {
    (0..shape.len()).map(|axis| if axis == 1 { n } else { 0 }).collect()
}
