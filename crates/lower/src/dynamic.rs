//! Which axes of each value vary in size between runs.
//!
//! Inputs and states declare their varying axes (batch, length); this propagates them. A varying size is never baked
//! into WGSL but read from the dispatch's uniform binding, so that a graph of another length gives the same text.
//! Nothing depends on the answer for being right: a size that is missed here is baked, and costs a pipeline.

use monopass_ir::graph::NodeKind;
use monopass_ir::{Graph, Op, ValueId};
use slotmap::SecondaryMap;

/// Varying axes of every value of a graph.
#[derive(Debug, Default)]
pub struct DynamicAxes(SecondaryMap<ValueId, Vec<bool>>);

impl DynamicAxes {
    /// Propagates from the sources of `graph`.
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        let mut axes = Self::default();
        for (_, node) in graph.nodes() {
            for (idx, &result) in node.results.iter().enumerate() {
                let rank = graph.ty(result).rank();
                let mut flags = match &node.kind {
                    NodeKind::Input { dynamic, .. } | NodeKind::State { dynamic, .. } => {
                        (0..rank).map(|axis| dynamic.contains(&axis)).collect()
                    }
                    NodeKind::Param { .. } | NodeKind::Const(_) => Vec::new(),
                    NodeKind::Op(op) => axes.result(graph, op, &node.operands, result, idx),
                };
                flags.resize(rank, false);
                axes.0.insert(result, flags);
            }
        }
        axes
    }

    /// Whether an axis of a value varies.
    #[must_use]
    pub fn is_dynamic(&self, value: ValueId, axis: usize) -> bool {
        self.0.get(value).and_then(|flags| flags.get(axis)).copied().unwrap_or(false)
    }

    /// Axes that a slice of `x` to the sizes `to` cuts. One that leaves all sizes as they are cuts the last varying axis of
    /// size 1, if there is one: the last of one token is taken as the last of many is, so that the text is the same.
    #[must_use]
    pub fn cut_axes(&self, graph: &Graph, x: ValueId, starts: &[usize], to: &[usize]) -> Vec<usize> {
        let from = &graph.ty(x).shape;
        let cut: Vec<usize> = (0..from.len()).filter(|&axis| from[axis] != to[axis] || starts[axis] != 0).collect();
        if !cut.is_empty() {
            return cut;
        }
        (0..from.len()).rev().find(|&axis| from[axis] == 1 && self.is_dynamic(x, axis)).into_iter().collect()
    }

    fn operand(&self, operands: &[Option<ValueId>], idx: usize) -> &[bool] {
        operands.get(idx).copied().flatten().and_then(|value| self.0.get(value)).map_or(&[], Vec::as_slice)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "every elementwise op is alike, and a size that is missed only costs a pipeline")]
    fn result(&self, graph: &Graph, op: &Op, operands: &[Option<ValueId>], result: ValueId, result_idx: usize) -> Vec<bool> {
        let rank = graph.ty(result).rank();
        let x = self.operand(operands, 0);
        let at = |flags: &[bool], axis: usize| flags.get(axis).copied().unwrap_or(false);
        match op {
            Op::Reshape { shape } => {
                let from = operands[0].map_or(&[][..], |value| graph.ty(value).shape.as_slice());
                let mut flags = vec![false; rank];
                for segment in reshape_segments(from, shape) {
                    let any = segment.old.clone().any(|axis| at(x, axis));
                    segment.new.clone().for_each(|axis| flags[axis] = any);
                }
                flags
            }
            Op::Permute { axes } => axes.iter().map(|&axis| at(x, axis)).collect(),
            // A single element of a varying axis, such as the last token, does not vary; a window of a padded axis does.
            Op::Slice { starts, ends } => {
                let Some(from) = operands[0] else { return vec![false; rank] };
                let to: Vec<usize> = ends.iter().zip(starts).map(|(end, start)| end - start).collect();
                let cut = self.cut_axes(graph, from, starts, &to);
                let is_window = |axis: usize| matches!(graph.def(from).op(), Some(Op::Pad { lo, hi, .. }) if lo[axis] + hi[axis] > 0);
                (0..rank).map(|axis| at(x, axis) && (to[axis] != 1 || !cut.contains(&axis) || is_window(axis))).collect()
            }
            Op::Pad { .. } | Op::Cumsum { .. } => x.to_vec(),
            Op::Concat { .. } => (0..rank).map(|axis| (0..operands.len()).any(|idx| at(self.operand(operands, idx), axis))).collect(),
            Op::Iota { .. } => vec![false; rank],
            Op::Sum { axes, keepdims } | Op::Mean { axes, keepdims } | Op::ReduceMax { axes, keepdims } => reduced(x, axes, *keepdims),
            Op::Argmax { axis } => reduced(x, &[*axis], false),
            Op::MatMul { transpose_a, transpose_b } => {
                let rhs = self.operand(operands, 1);
                let mut flags = aligned_or(&[lead(x), lead(rhs)], rank - 2);
                flags.push(at(x, x.len().wrapping_sub(if *transpose_a { 1 } else { 2 })));
                flags.push(at(rhs, rhs.len().wrapping_sub(if *transpose_b { 2 } else { 1 })));
                flags
            }
            Op::Gather {} => self.operand(operands, 1).iter().chain(x.iter().skip(1)).copied().collect(),
            Op::ScatterAdd { .. } => {
                let n_id_axes = self.operand(operands, 1).len();
                std::iter::once(false).chain(x.iter().skip(n_id_axes).copied()).collect()
            }
            Op::Sample {} => x.split_last().map_or_else(Vec::new, |(_, rows)| rows.to_vec()),
            Op::Conv1d { .. } if result_idx == 1 => vec![at(x, 0), at(x, 2), false],
            Op::Scan { .. } if result_idx == 1 => {
                let (v, k) = (self.operand(operands, 1), self.operand(operands, 2));
                vec![at(x, 0), at(x, 2), at(v, 4), at(k, 4)]
            }
            Op::ScanGrad { .. } if result_idx == 4 => {
                let (v, k) = (self.operand(operands, 1), self.operand(operands, 2));
                vec![at(x, 0), at(x, 2), at(v, 4), at(k, 4)]
            }
            // Each but the state's is as the operand that it is the derivative by.
            Op::ScanGrad { .. } => self.operand(operands, if result_idx < 4 { result_idx } else { 0 }).to_vec(),
            Op::Conv1d { .. } => x.to_vec(),
            Op::Scan { .. } => self.operand(operands, 1).to_vec(),
            // What is left broadcasts its operands: elementwise ops, and the broadcast itself.
            _ => {
                let all: Vec<&[bool]> = (0..operands.len()).map(|idx| self.operand(operands, idx)).collect();
                aligned_or(&all, rank)
            }
        }
    }
}

fn lead(flags: &[bool]) -> &[bool] {
    &flags[..flags.len().saturating_sub(2)]
}

/// Or of flags aligned at the last axis.
fn aligned_or(operands: &[&[bool]], rank: usize) -> Vec<bool> {
    (0..rank).map(|axis| operands.iter().any(|flags| (axis + flags.len()).checked_sub(rank).is_some_and(|axis| flags[axis]))).collect()
}

fn reduced(flags: &[bool], axes: &[usize], keepdims: bool) -> Vec<bool> {
    let flags = flags.iter().enumerate();
    if keepdims {
        flags.map(|(axis, &flag)| flag && !axes.contains(&axis)).collect()
    } else {
        flags.filter(|(axis, _)| !axes.contains(axis)).map(|(_, &flag)| flag).collect()
    }
}

/// A run of old axes and the run of new axes that holds the same elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReshapeSegment {
    /// Axes of the operand.
    pub old: std::ops::Range<usize>,
    /// Axes of the result.
    pub new: std::ops::Range<usize>,
}

/// Cuts a reshape into the shortest runs of axes with equal element counts. Equal neighbours pair one to one, so
/// `[B, L, HP] -> [B, L, H, P]` gives B, L and HP apart whatever their sizes, 0 included. An axis of size 1 that meets
/// another size pairs with none; where there are no elements, axes after an empty one may pair with anything.
#[must_use]
pub fn reshape_segments(old: &[usize], new: &[usize]) -> Vec<ReshapeSegment> {
    let mut segments = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < old.len() && j < new.len() {
        let (start_i, start_j) = (i, j);
        let (mut n_old, mut n_new) = (old[i], new[j]);
        if (n_old == 1) != (n_new == 1) {
            i += usize::from(n_old == 1);
            j += usize::from(n_new == 1);
            segments.push(ReshapeSegment { old: start_i..i, new: start_j..j });
            continue;
        }
        i += 1;
        j += 1;
        while n_old != n_new {
            if n_old < n_new {
                let Some(&size) = old.get(i) else { break };
                n_old = n_old.saturating_mul(size);
                i += 1;
            } else {
                let Some(&size) = new.get(j) else { break };
                n_new = n_new.saturating_mul(size);
                j += 1;
            }
        }
        segments.push(ReshapeSegment { old: start_i..i, new: start_j..j });
    }
    if i < old.len() || j < new.len() {
        segments.push(ReshapeSegment { old: i..old.len(), new: j..new.len() });
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use monopass_ir::{DType, GraphBuilder};

    fn pairs(old: &[usize], new: &[usize]) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
        reshape_segments(old, new).into_iter().map(|s| (s.old, s.new)).collect()
    }

    #[test]
    fn equal_axes_pair_one_to_one() {
        assert_eq!(pairs(&[1, 1, 6], &[1, 1, 2, 3]), [(0..1, 0..1), (1..2, 1..2), (2..3, 2..4)]);
        assert_eq!(pairs(&[2, 3, 4], &[6, 4]), [(0..2, 0..1), (2..3, 1..2)]);
        assert_eq!(pairs(&[6], &[6, 1]), [(0..1, 0..1), (1..1, 1..2)]);
        assert_eq!(pairs(&[], &[1]), [(0..0, 0..1)]);
        assert_eq!(pairs(&[1, 1, 6], &[1, 6]), [(0..1, 0..1), (1..2, 1..1), (2..3, 1..2)]);
        assert_eq!(pairs(&[2, 3], &[2, 1, 3]), [(0..1, 0..1), (1..1, 1..2), (1..2, 2..3)]);
        assert_eq!(pairs(&[3, 0, 6], &[3, 0, 2, 3]), [(0..1, 0..1), (1..2, 1..2), (2..3, 2..4)]);
        assert_eq!(pairs(&[2, 0, 3], &[0, 7]), [(0..1, 0..2), (1..3, 2..2)]);
    }

    #[test]
    fn length_stays_dynamic_through_a_projection_and_a_split_of_heads() {
        let g = GraphBuilder::new("t");
        let x = g.input_dynamic("x", DType::F32, [3, 5, 4], &[0, 1]);
        let w = g.param("w", DType::F32, [6, 4]);
        let y = x.matmul(w, false, true).reshape([3, 5, 2, 3]).permute([0, 2, 1, 3]);
        g.output("y", y);
        let graph = g.finish().unwrap();
        let axes = DynamicAxes::of(&graph);
        let y = graph.outputs[0].value;
        assert_eq!((0..4).map(|a| axes.is_dynamic(y, a)).collect::<Vec<_>>(), [true, false, true, false]);
    }
}
