//! Running angles that keep their digits: they are summed in turns, modulo one turn, which wraps without any error.

use monopass_ir::Tensor;

/// Radians of a turn.
pub const TURN: f64 = std::f64::consts::TAU;

/// The angle after each token, in radians within half a turn of 0.
///
/// Shapes: `turns [B, L, ..]`, the turn that each token adds; `start [B, ..]`, the angle before the first token in radians;
/// `reset [B, L]` bool, where it starts anew at 0 → as `turns`. `start` belongs to the first sequence.
#[track_caller]
#[must_use]
pub fn running_angle<'g>(turns: Tensor<'g>, start: Option<Tensor<'g>>, reset: Option<Tensor<'g>>) -> Tensor<'g> {
    let shape = turns.shape();
    if turns.dim(1) == 1 {
        // Radians throughout: to turns and back would round twice a step.
        return nearest_turn(start.map_or(turns * TURN, |start| turns * TURN + start.reshape(shape)));
    }
    let turns = start.map_or(turns, |start| turns + at_first_token(start * TURN.recip(), &shape));
    turns.cumsum(reset, 1usize, false, 1.0) * TURN
}

/// The angle that the tokens after each one add, in radians within half a turn of 0, and that of all tokens.
///
/// Shapes: `turns [B, L, ..]` with `L` at least 2 → as `turns`, and `[B, 1, ..]`.
#[track_caller]
#[must_use]
pub fn angle_to_end(turns: Tensor<'_>) -> (Tensor<'_>, Tensor<'_>) {
    let len = turns.dim(1);
    let from_token = turns.cumsum(None, 1usize, true, 1.0) * TURN;
    let mut hi = vec![0; turns.shape().len()];
    if let Some(hi) = hi.get_mut(1) {
        *hi = 1;
    }
    let after = from_token.slice_axis(1, 1, len).pad(vec![0; hi.len()], hi, 0.0);
    (after, from_token.slice_axis(1, 0, 1))
}

/// Radians less the whole turns that bring them nearest to 0. A turn is taken off in two parts, the first one so short that
/// its multiples are exact, so that many steps do not add up the error of its rounding.
#[track_caller]
fn nearest_turn(x: Tensor<'_>) -> Tensor<'_> {
    const HEAD: f64 = 6.281_25;
    let n_turns = (x * TURN.recip() + 0.5).floor();
    x - n_turns * HEAD - n_turns * (TURN - HEAD)
}

/// `[B, ..]` as `[B, L, ..]` of the given shape, zero but at the first token.
#[track_caller]
fn at_first_token<'g>(x: Tensor<'g>, shape: &[usize]) -> Tensor<'g> {
    let mut first = shape.to_vec();
    let mut hi = vec![0; shape.len()];
    if let (Some(first), Some(hi)) = (first.get_mut(1), hi.get_mut(1)) {
        (*hi, *first) = (first.saturating_sub(1), 1);
    }
    x.reshape(first).pad(vec![0; hi.len()], hi, 0.0)
}
