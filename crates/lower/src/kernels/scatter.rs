//! Sums of rows by index, without atomics: each workgroup owns some rows and columns of the result, looks through all ids,
//! and adds the updates of its own rows in ascending order of their positions.
//!
//! Ids go through workgroup memory in tiles. A few invocations turn a tile into one bit an id, set where the id is one of the
//! workgroup's rows, so that all others pass 32 foreign ids in one step. Where the result is small there are few workgroups
//! for it, and many ids a row: then each tile is a piece that workgroups of its own sum, and a second kernel adds the pieces.

use super::store_like;
use crate::emit::{Finish, Index, KernelBuilder, LowerCtx, Num, Part, Width, num::product};
use crate::step::{Step, StepValue, Temp};
use monopass_ir::{DType, Op, ValueId};

/// Ids of a tile; those of a piece.
const TILE: u64 = 1024;
/// Ids that one word of bits stands for.
const WORD: u64 = 32;
/// Invocations a workgroup, and on a software device.
const THREADS: u32 = 256;
const CPU_THREADS: u32 = 64;
/// Row groups of a workgroup, at least.
const LEAST_GROUPS: u32 = 4;
/// Rows that each group sums where there are more than enough workgroups, so that fewer look through all ids.
const ROWS_OF_MANY: u32 = 4;
/// Workgroups that are more than enough.
const MANY_WORKGROUPS: u64 = 1024;
/// Elements of a result up to which ids are summed in pieces; each piece takes that much memory.
const SMALL_RESULT: u64 = 1 << 18;
/// Invocations of the kernel that adds pieces.
const SUM_THREADS: u64 = 64;

/// Sums of rows by index with what is fused to them.
#[derive(Clone, Debug)]
pub struct Scatter {
    /// Result of the `scatter_add` node.
    pub value: ValueId,
    /// Values to store: the sums, or elementwise results over the same elements in the same order.
    pub outputs: Vec<ValueId>,
}

/// The kernels of a cluster: one, or one over pieces of the ids and one that adds them, whose sums are a value of `temps`.
/// `inline` says which values are computed and not loaded.
#[must_use]
pub fn lower(ctx: &LowerCtx<'_>, item: &Scatter, inline: &dyn Fn(ValueId) -> bool, temps: &mut Vec<Temp>) -> Vec<Step> {
    let mut kb = KernelBuilder::new(ctx, inline);
    let Some(geometry) = Geometry::new(&mut kb, item.value) else { return Vec::new() };
    if !geometry.has_pieces() {
        return vec![geometry.sum_rows(kb, item, None)];
    }
    let pieces = StepValue::Temp(temps.len());
    let size_bytes = geometry.n_out().value().saturating_mul(4 * geometry.n_pieces().value());
    temps.push(Temp { of: item.value, name: "pieces", size_bytes });
    let first = geometry.sum_rows(kb, item, Some(pieces));
    vec![first, add_pieces(KernelBuilder::new(ctx, inline), item, pieces)]
}

/// What is summed, and how the result is divided among workgroups.
struct Geometry {
    value: ValueId,
    updates: ValueId,
    ids: ValueId,
    id_sizes: Vec<Num>,
    rows: Num,
    /// Sizes of a row.
    row: Vec<Num>,
    width: Width,
    threads: u32,
    /// Invocations along a row, each for one column or four.
    lanes: u32,
    /// Rows that each group of `lanes` invocations sums.
    rows_each: u32,
}

/// Names of a workgroup's place in the kernel.
struct Place {
    /// The first of the workgroup's rows, and the first of the group's among them.
    row: String,
    own: String,
    col: String,
    piece: String,
}

impl Geometry {
    fn new(kb: &mut KernelBuilder<'_>, value: ValueId) -> Option<Self> {
        let node = kb.ctx.graph.def(value);
        let (Some(Op::ScatterAdd { .. }), &[Some(updates), Some(ids)]) = (node.op(), node.operands.as_slice()) else { return None };
        let sizes = kb.sizes(value);
        let (rows, row) = sizes.split_first()?;
        let is_quad = row.last().is_some_and(Num::is_multiple_of_4);
        let (width, each) = if is_quad { (Width::Four, 4) } else { (Width::One, 1) };
        let limit = 1 << kb.ctx.target.max_invocations.min(kb.ctx.target.max_workgroup_size[0]).max(1).ilog2();
        let threads = if kb.ctx.target.is_cpu { CPU_THREADS } else { THREADS }.min(limit);
        let most_lanes = (threads / LEAST_GROUPS).max(1);
        let lanes = match product(row) {
            Num::Static(n) => u32::try_from(n.div_ceil(each)).unwrap_or(most_lanes).max(1).next_power_of_two().min(most_lanes),
            Num::Dynamic { .. } => most_lanes,
        };
        let id_sizes = kb.sizes(ids);
        let geometry = Self { value, updates, ids, id_sizes, rows: rows.clone(), row: row.to_vec(), width, threads, lanes, rows_each: 1 };
        let is_many = matches!(geometry.n_blocks(), Num::Static(n) if n >= MANY_WORKGROUPS);
        Some(Self { rows_each: if is_many { ROWS_OF_MANY } else { 1 }, ..geometry })
    }

    fn n_ids(&self) -> Num {
        product(&self.id_sizes)
    }

    fn n_out(&self) -> Num {
        self.rows.mul(&product(&self.row))
    }

    fn n_pieces(&self) -> Num {
        self.n_ids().div_ceil(TILE)
    }

    /// Depends on baked sizes only, so that another length has the same text; but no ids make no pieces.
    fn has_pieces(&self) -> bool {
        let is_one_piece = matches!(self.n_ids(), Num::Static(n) if n <= TILE) || self.n_ids().value() == 0;
        !is_one_piece && matches!(self.n_out(), Num::Static(n) if n <= SMALL_RESULT)
    }

    const fn columns_each(&self) -> u64 {
        match self.width {
            Width::One => 1,
            Width::Four => 4,
        }
    }

    const fn block_rows(&self) -> u32 {
        self.threads / self.lanes * self.rows_each
    }

    fn column_blocks(&self) -> Num {
        product(&self.row).div_ceil(u64::from(self.lanes) * self.columns_each())
    }

    /// Blocks of rows and columns that the result is divided into.
    fn n_blocks(&self) -> Num {
        self.rows.div_ceil(u64::from(self.block_rows())).mul(&self.column_blocks())
    }

    /// The kernel that sums rows of the result, or of `pieces`.
    fn sum_rows(&self, mut kb: KernelBuilder<'_>, item: &Scatter, pieces: Option<StepValue>) -> Step {
        let n_workgroups = if pieces.is_some() { self.n_blocks().mul(&self.n_pieces()) } else { self.n_blocks() };
        let limit = kb.num(&n_workgroups);
        kb.line(format!("if (wg >= {limit}) {{ return; }}"));
        let place = self.place(&mut kb);
        kb.global(&format!("var<workgroup> places: array<u32, {TILE}>;"), TILE * 4);
        kb.global(&format!("var<workgroup> bits: array<u32, {}>;", TILE / WORD), TILE / WORD * 4);
        let ty = if self.width == Width::Four { "vec4<f32>" } else { "f32" };
        for row in 0..self.rows_each {
            kb.line(format!("var sum{row}: {ty};"));
        }
        let n_ids = kb.num(&self.n_ids());
        if pieces.is_some() {
            kb.line(format!("let base = {} * {TILE}u;", place.piece));
            self.add_tile(&mut kb, &place, &n_ids);
        } else {
            kb.open(format!("for (var base = 0u; base < {n_ids}; base += {TILE}u)"));
            self.add_tile(&mut kb, &place, &n_ids);
            kb.line("workgroupBarrier();");
            kb.close();
        }
        self.store(&mut kb, item, &place, pieces);
        let n_tiles = if pieces.is_some() { 1 } else { self.n_pieces().value() };
        let n_ids = if pieces.is_some() { TILE.min(self.n_ids().value()) } else { self.n_ids().value() };
        let rounds = TILE.div_ceil(u64::from(self.threads)) + WORD + TILE / WORD;
        kb.finish(Finish {
            label: format!(
                "scatter_add {{rows = {}, lanes = {}{}}}",
                self.block_rows(),
                self.lanes,
                if pieces.is_some() { ", pieces" } else { "" }
            ),
            comment: "out[r] = sum of the updates whose id is r, in order; a workgroup looks through all ids for its own rows.".to_owned(),
            workgroup_size: self.threads,
            n_workgroups: n_workgroups.value(),
            // At worst all ids are one workgroup's.
            loop_trips: n_ids.saturating_add(n_tiles.saturating_mul(rounds)),
            flops: n_updates(&self.id_sizes, &self.row),
            computes: if pieces.is_some() { vec![self.value] } else { computes(item) },
        })
    }

    fn place(&self, kb: &mut KernelBuilder<'_>) -> Place {
        let (across, down) = (self.column_blocks(), self.rows.div_ceil(u64::from(self.block_rows())));
        let (across, down) = (kb.divisor(&across), kb.divisor(&down));
        let rest = kb.bind(format!("wg / {across}"));
        let lane = kb.bind(format!("wg % {across} * {}u + lid % {}u", self.lanes, self.lanes));
        Place {
            row: kb.bind(format!("{rest} % {down} * {}u", self.block_rows())),
            own: kb.bind(format!("lid / {}u * {}u", self.lanes, self.rows_each)),
            col: if self.columns_each() == 1 { lane } else { kb.bind(format!("{lane} * {}u", self.columns_each())) },
            piece: kb.bind(format!("{rest} / {down}")),
        }
    }

    /// Adds the updates of the tile of ids that starts at `base`. Reads of workgroup memory end before the next barrier.
    fn add_tile(&self, kb: &mut KernelBuilder<'_>, place: &Place, n_ids: &str) {
        let none = self.block_rows();
        kb.open(format!("for (var slot = lid; slot < {TILE}u; slot += {}u)", self.threads));
        kb.line(format!("var place = {none}u;"));
        kb.open(format!("if (base + slot < {n_ids})"));
        let at = kb.bind("base + slot");
        let row = self.row_of(kb, &at);
        // Rows before the workgroup's wrap to large numbers.
        kb.line(format!("place = min({row} - {}, {none}u);", place.row));
        kb.close();
        kb.line("places[slot] = place;");
        kb.close();
        kb.line("workgroupBarrier();");
        kb.open(format!("if (lid < {}u)", TILE / WORD));
        kb.line("var word = 0u;");
        kb.open(format!("for (var i = 0u; i < {WORD}u; i++)"));
        // Neighbors start at different banks of the workgroup's memory.
        kb.line(format!("let bit = (i + lid) % {WORD}u;"));
        kb.line(format!("if (places[lid * {WORD}u + bit] < {none}u) {{ word |= 1u << bit; }}"));
        kb.close();
        kb.line("bits[lid] = word;");
        kb.close();
        kb.line("workgroupBarrier();");
        let n_columns = kb.num(&product(&self.row));
        kb.open(format!("if ({} < {n_columns})", place.col));
        kb.open(format!("for (var first = 0u; first < {TILE}u; first += {WORD}u)"));
        kb.line(format!("var word = bits[first / {WORD}u];"));
        kb.open("while (word != 0u)");
        kb.line("let slot = first + firstTrailingBit(word);");
        kb.line("word &= word - 1u;");
        kb.line(format!("let row = places[slot] - {};", place.own));
        self.add_update(kb, place);
        for _ in 0..3 {
            kb.close();
        }
    }

    /// The row that the id at a position adds to, the nearest one if it is none.
    fn row_of(&self, kb: &mut KernelBuilder<'_>, at: &str) -> String {
        let id = kb.emit(self.ids, &Index(vec![Part::new(at, self.id_sizes.clone(), 1)]), Width::One);
        let last = kb.last(&self.rows);
        kb.bind(match kb.ctx.graph.ty(self.ids).dtype {
            DType::I32 => format!("min(u32(max({id}, 0)), {last})"),
            DType::F32 | DType::F16 | DType::Bf16 | DType::U32 | DType::Bool | DType::I8 => format!("min({id}, {last})"),
        })
    }

    /// Adds the update at `base + slot` to the sum of `row`, if that is one of the invocation's own.
    fn add_update(&self, kb: &mut KernelBuilder<'_>, place: &Place) {
        kb.open(format!("if (row < {}u)", self.rows_each));
        let at = kb.bind("base + slot");
        let position = Part::new(at, self.id_sizes.clone(), 1);
        let x = kb.emit(self.updates, &Index(vec![position, self.column(place)]), self.width);
        if self.rows_each == 1 {
            kb.line(format!("sum0 += {x};"));
        } else {
            for row in 0..self.rows_each {
                kb.line(format!("if (row == {row}u) {{ sum{row} += {x}; }}"));
            }
        }
        kb.close();
    }

    fn column(&self, place: &Place) -> Part {
        Part::new(place.col.clone(), self.row.clone(), self.columns_each())
    }

    /// Stores the sums of an invocation's rows, or what is made from them.
    fn store(&self, kb: &mut KernelBuilder<'_>, item: &Scatter, place: &Place, pieces: Option<StepValue>) {
        let (rows, columns, total) = (kb.num(&self.rows), kb.num(&product(&self.row)), kb.num(&self.n_out()));
        for own in 0..self.rows_each {
            let row = kb.bind(format!("{} + {} + {own}u", place.row, place.own));
            kb.open(format!("if ({row} < {rows} && {} < {columns})", place.col));
            let index = Index(vec![Part::new(row, vec![self.rows.clone()], 1), self.column(place)]);
            let sum = format!("sum{own}");
            if let Some(pieces) = pieces {
                let (flat, _) = index.flat(kb);
                let at = kb.bind(format!("{} * {total} + {flat}", place.piece));
                let name = kb.write(pieces, DType::F32, self.width == Width::Four);
                let store = if self.width == Width::Four { "st4" } else { "st" };
                kb.line(format!("{store}_{name}({at}, {sum});"));
            } else {
                store_outputs(kb, item, &index, self.width, &sum);
            }
            kb.close();
        }
    }
}

/// The kernel that adds the sums of pieces in order: one invocation for an element, or for four neighbors.
fn add_pieces(mut kb: KernelBuilder<'_>, item: &Scatter, pieces: StepValue) -> Step {
    let sizes = kb.sizes(item.value);
    let n_out = product(&sizes);
    let n_pieces = Geometry::new(&mut kb, item.value).map_or(Num::ONE, |geometry| geometry.n_pieces());
    let is_quad = sizes.last().is_some_and(Num::is_multiple_of_4);
    let (width, each, ty, load) = if is_quad { (Width::Four, 4, "vec4<f32>", "ld4") } else { (Width::One, 1, "f32", "ld") };
    let (total, count) = (kb.num(&n_out), kb.num(&n_pieces));
    let i = kb.bind(if is_quad { format!("(wg * {SUM_THREADS}u + lid) * 4u") } else { format!("wg * {SUM_THREADS}u + lid") });
    kb.open(format!("if ({i} < {total})"));
    let name = kb.read(pieces, DType::F32, is_quad);
    kb.line(format!("var sum: {ty};"));
    kb.line(format!("for (var piece = 0u; piece < {count}; piece++) {{ sum += {load}_{name}(piece * {total} + {i}); }}"));
    let index = kb.flat_index(item.value, &i, each);
    store_outputs(&mut kb, item, &index, width, "sum");
    kb.close();
    kb.finish(Finish {
        label: "scatter_add_sum".to_owned(),
        comment: "out[i] = sum over pieces of the ids of pieces[s, i], in order.".to_owned(),
        workgroup_size: u32::try_from(SUM_THREADS).unwrap_or(1),
        n_workgroups: n_out.value().div_ceil(SUM_THREADS * each),
        loop_trips: n_pieces.value(),
        flops: n_out.value().saturating_mul(n_pieces.value()),
        computes: computes(item),
    })
}

/// Stores what is made from the sum `sum`, a variable, at an index.
fn store_outputs(kb: &mut KernelBuilder<'_>, item: &Scatter, index: &Index, width: Width, sum: &str) {
    kb.define(item.value, index.key(), width, sum.to_owned());
    if width == Width::Four {
        for lane in 0..4 {
            kb.define(item.value, index.lane(lane).key(), Width::One, format!("{sum}[{lane}]"));
        }
    }
    for &out in &item.outputs {
        store_like(kb, out, index, width);
    }
}

fn computes(item: &Scatter) -> Vec<ValueId> {
    std::iter::once(item.value).chain(item.outputs.iter().copied().filter(|&out| out != item.value)).collect()
}

/// Elements of all updates.
fn n_updates(ids: &[Num], row: &[Num]) -> u64 {
    product(ids.iter().chain(row)).value()
}
