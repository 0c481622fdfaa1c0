//! Sums over the rows of an output tile, which holds them whole: the norm of each head before the gate.

use super::tile::{At, Tile};
use crate::emit::{Index, KernelBuilder, Width};
use monopass_ir::{Op, ValueId};

/// The workgroup array of what each four columns add to the sum of their row.
pub(super) struct RowShares {
    array: String,
    first_row: String,
    /// Groups of four columns of the tile, and of a row.
    stride: u64,
    n_quads: u64,
}

impl RowShares {
    /// Declares the array for a tile whose columns are all those of a row of `width` elements, a multiple of four.
    pub(super) fn new(kb: &mut KernelBuilder<'_>, tile: &Tile, row: &At, width: u64) -> Self {
        let (array, stride) = (kb.fresh("row_s"), u64::from(tile.cols) / 4);
        let n = u64::from(tile.rows) * stride;
        kb.global(&format!("var<workgroup> {array}: array<f32, {n}>;"), n * 4);
        Self { array, first_row: row.expr.clone(), stride, n_quads: width / 4 }
    }

    /// Keeps what four elements of `y` at `index` add to the sum or mean `value`.
    pub(super) fn add(&self, kb: &mut KernelBuilder<'_>, value: ValueId, index: &Index, [row, col]: [&At; 2]) {
        let Some(summand) = kb.ctx.graph.def(value).operands.first().copied().flatten() else { return };
        let sizes = kb.sizes(summand);
        let at = index.reshape(kb, &sizes);
        let x = kb.emit(summand, &at, Width::Four);
        let place = kb.bind(format!("{} + {} / 4u", self.first(row), col.expr));
        kb.line(format!("{}[{place}] = dot({x}, vec4<f32>(1.0));", self.array));
    }

    /// Makes the sum or mean `value` of a row known to the innermost block.
    pub(super) fn total(&self, kb: &mut KernelBuilder<'_>, value: ValueId, row: &At) {
        let first = kb.bind(self.first(row));
        let terms: Vec<String> = (0..self.n_quads).map(|quad| format!("{}[{first} + {quad}u]", self.array)).collect();
        let sum = kb.bind(terms.join(" + "));
        let is_mean = matches!(kb.ctx.graph.def(value).op(), Some(Op::Mean { .. }));
        let total = if is_mean { kb.bind(format!("{sum} / {}.0", self.n_quads * 4)) } else { sum };
        kb.define_row(value, total);
    }

    /// Where the shares of a row start.
    fn first(&self, row: &At) -> String {
        let own = if self.first_row == "0u" { row.expr.clone() } else { format!("({} - {})", row.expr, self.first_row) };
        format!("{own} * {}u", self.stride)
    }
}
