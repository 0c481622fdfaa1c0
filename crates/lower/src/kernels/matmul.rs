//! Matrix products: tiles for many rows, a product by rows for few, K split among workgroups where rows are few.
//!
//! The kernel computes its operands where it loads them (a prologue), sums values of the left operand over K beside the
//! product (the mean square of a norm), and applies elementwise ops to the result before it stores it (an epilogue).

use super::tile::{At, Depth, LoadFn, Loader, Quad, SideSum, Sides, Tile};
use crate::emit::{Finish, Index, KernelBuilder, LowerCtx, Num, Part, Width, num::product};
use crate::step::{Step, StepValue, Temp};
use monopass_ir::{Graph, Op, ValueId};

/// Rows up to which each row is multiplied by itself, as in decoding.
const FEW_ROWS: u64 = 8;
/// Rows below which tiles are flat and K may be split.
const SHORT_ROWS: u64 = 256;
/// Outputs a workgroup of the product by rows.
const ROW_OUTPUTS: u32 = 4;
/// Invocations of the product by rows.
const ROW_THREADS: u32 = 64;
/// Workgroups that fill a GPU; below it K is split.
const ENOUGH_WORKGROUPS: u64 = 128;
/// K that is left to each part of a split, at least.
const MIN_SPLIT_DEPTH: u64 = 128;

/// A product with what is fused to it.
#[derive(Clone, Debug)]
pub struct Product {
    /// Result of the `matmul` node.
    pub anchor: ValueId,
    /// Sums and means over K of values that have the shape of the left operand, each kept as size 1; read by the epilogue.
    pub sides: Vec<ValueId>,
    /// Sums and means over parts of each row, which the left operand is made from; few rows only, see [`super::row_stats`].
    pub statistics: Vec<ValueId>,
    /// Values to store: the anchor, or elementwise results over the same elements in the same order.
    pub outputs: Vec<ValueId>,
}

/// Where the pieces of the product stand in the graph.
struct Geometry {
    anchor: ValueId,
    lhs: ValueId,
    rhs: ValueId,
    transpose_a: bool,
    transpose_b: bool,
    /// Leading axes that index both operands; empty if the rows of lhs can be counted through.
    batch: Vec<Num>,
    /// Sizes that make up the rows: the leading axes of lhs and M, or M alone.
    rows: Vec<Num>,
    cols: Num,
    depth: Num,
}

impl Geometry {
    fn new(kb: &mut KernelBuilder<'_>, anchor: ValueId) -> Option<Self> {
        let graph = kb.ctx.graph;
        let node = graph.def(anchor);
        let Some(Op::MatMul { transpose_a, transpose_b }) = node.op() else { return None };
        let (lhs, rhs) = (node.operands[0]?, node.operands[1]?);
        let sizes = kb.sizes(anchor);
        let rank = sizes.len();
        let cols = sizes[rank - 1].clone();
        let lhs_rank = graph.ty(lhs).rank();
        let depth = kb.size(lhs, if *transpose_a { lhs_rank - 2 } else { lhs_rank - 1 });
        let flat = graph.ty(rhs).rank() == 2 && !transpose_a && lhs_rank == rank;
        let split = if flat { 0 } else { rank - 2 };
        Some(Self {
            anchor,
            lhs,
            rhs,
            transpose_a: *transpose_a,
            transpose_b: *transpose_b,
            batch: sizes[..split].to_vec(),
            rows: sizes[split..rank - 1].to_vec(),
            cols,
            depth,
        })
    }

    fn n_rows(&self) -> Num {
        product(&self.rows)
    }

    fn n_batch(&self) -> Num {
        product(&self.batch)
    }

    /// Index of the result at a row and column.
    fn result(&self, batch: &str, row: &At, col: &At) -> Index {
        let mut parts = Vec::new();
        if !self.batch.is_empty() {
            parts.push(Part::new(batch, self.batch.clone(), 1));
        }
        parts.push(Part::new(row.expr.clone(), self.rows.clone(), row.align));
        parts.push(Part::new(col.expr.clone(), vec![self.cols.clone()], col.align));
        Index(parts)
    }

    /// Index of an operand at its own position and k.
    fn operand(&self, kb: &mut KernelBuilder<'_>, value: ValueId, batch: &str, own: Part, k: Part, swapped: bool) -> Index {
        let rank = kb.ctx.graph.ty(value).rank();
        let lead: Vec<Num> = (0..rank - 2).map(|axis| kb.size(value, axis)).collect();
        let mut parts =
            if self.batch.is_empty() { Vec::new() } else { Index(vec![Part::new(batch, self.batch.clone(), 1)]).broadcast(kb, &lead).0 };
        parts.extend(if swapped { [k, own] } else { [own, k] });
        Index(parts)
    }

    fn lhs_at(&self, kb: &mut KernelBuilder<'_>, value: ValueId, batch: &str, row: &At, k: &At) -> Index {
        let own = Part::new(row.expr.clone(), self.rows.clone(), row.align);
        let k = Part::new(k.expr.clone(), vec![self.depth.clone()], k.align);
        self.operand(kb, value, batch, own, k, self.transpose_a)
    }

    fn rhs_at(&self, kb: &mut KernelBuilder<'_>, batch: &str, col: &At, k: &At) -> Index {
        let own = Part::new(col.expr.clone(), vec![self.cols.clone()], col.align);
        let k = Part::new(k.expr.clone(), vec![self.depth.clone()], k.align);
        self.operand(kb, self.rhs, batch, own, k, !self.transpose_b)
    }

    fn flops(&self) -> u64 {
        [self.n_batch(), self.n_rows(), self.cols.clone(), self.depth.clone()].iter().fold(2, |n: u64, size| n.saturating_mul(size.value()))
    }
}

/// The steps of a product. `temps` takes the partial sums of a split.
#[must_use]
pub fn lower(ctx: &LowerCtx<'_>, item: &Product, inline: &dyn Fn(ValueId) -> bool, temps: &mut Vec<Temp>) -> Vec<Step> {
    let mut kb = KernelBuilder::new(ctx, inline);
    let Some(geometry) = Geometry::new(&mut kb, item.anchor) else { return Vec::new() };
    let rows = geometry.n_rows().value();
    if is_by_rows(ctx.graph, item.anchor) {
        return vec![by_rows(kb, item, &geometry)];
    }
    let is_short = rows < SHORT_ROWS;
    let tile = choose_tile(ctx, is_short);
    let splits = if is_short && !ctx.target.is_cpu && item.sides.is_empty() { n_splits(&geometry, &tile) } else { 1 };
    if splits == 1 {
        return vec![tiled(kb, item, &geometry, &tile)];
    }
    split(ctx, item, inline, &tile, splits, temps)
}

/// Whether each row of a product is multiplied by itself, by workgroups that read the whole row.
#[must_use]
pub fn is_by_rows(graph: &Graph, anchor: ValueId) -> bool {
    let node = graph.def(anchor);
    let (Some(Op::MatMul { transpose_a: false, transpose_b: true }), [Some(lhs), Some(rhs)]) = (node.op(), node.operands.as_slice()) else {
        return false;
    };
    let shape = &graph.ty(anchor).shape;
    let is_flat = graph.ty(*rhs).rank() == 2 && graph.ty(*lhs).rank() == shape.len();
    is_flat && monopass_ir::types::n_elems(&shape[..shape.len() - 1]) <= FEW_ROWS
}

fn choose_tile(ctx: &LowerCtx<'_>, is_short: bool) -> Tile {
    if ctx.target.is_cpu {
        return Tile { rows: if is_short { 32 } else { 64 }, cols: 64, block_rows: 4, block_cols: 8, depth: 16, staged: false };
    }
    if is_short {
        Tile { rows: 32, cols: 64, block_rows: 4, block_cols: 4, depth: 16, staged: true }
    } else {
        Tile { rows: 64, cols: 64, block_rows: 4, block_cols: 4, depth: 16, staged: true }
    }
}

/// How many parts K is split into: a function of the weight's shape only, so that length does not change the text.
fn n_splits(geometry: &Geometry, tile: &Tile) -> u64 {
    let (Num::Static(cols), Num::Static(depth)) = (&geometry.cols, &geometry.depth) else { return 1 };
    let tiles = cols.div_ceil(u64::from(tile.cols)).max(1);
    (ENOUGH_WORKGROUPS / tiles).min(depth / MIN_SPLIT_DEPTH).clamp(1, 16)
}

// -- tiles ---------------------------------------------------------------------------------------------------------

/// A workgroup's tile: batch item, first row and column, as identifiers.
struct Place {
    batch: String,
    row: At,
    col: At,
    part: String,
    n_workgroups: u64,
}

fn place(kb: &mut KernelBuilder<'_>, geometry: &Geometry, tile: &Tile, n_parts: u64) -> Place {
    let n_rows = geometry.n_rows();
    let (tiles_i, tiles_j) = (n_rows.div_ceil(u64::from(tile.rows)), geometry.cols.div_ceil(u64::from(tile.cols)));
    let n_batch = geometry.n_batch();
    let n = product([&n_batch, &tiles_i, &tiles_j]).value().saturating_mul(n_parts);
    let total = product([&n_batch, &tiles_i, &tiles_j, &Num::Static(n_parts)]);
    let limit = kb.num(&total);
    kb.line(format!("if (wg >= {limit}) {{ return; }}"));
    let across = kb.divisor(&tiles_j);
    let tile_j = kb.bind(format!("wg % {across}"));
    let mut rest = kb.bind(format!("wg / {across}"));
    let down = kb.divisor(&tiles_i);
    let (tile_i, after) = if n_parts > 1 || !geometry.batch.is_empty() {
        (kb.bind(format!("{rest} % {down}")), kb.bind(format!("{rest} / {down}")))
    } else {
        (rest.clone(), "0u".to_owned())
    };
    rest = after;
    let (part, batch) = if n_parts > 1 {
        (kb.bind(format!("{rest} % {n_parts}u")), kb.bind(format!("{rest} / {n_parts}u")))
    } else {
        ("0u".to_owned(), rest)
    };
    let row = kb.bind(format!("{tile_i} * {}u", tile.rows));
    let col = kb.bind(format!("{tile_j} * {}u", tile.cols));
    Place { batch, row: At::new(row, 4), col: At::new(col, 4), part, n_workgroups: n }
}

/// Appends the loop over K; gives the sums beside it.
fn multiply(
    kb: &mut KernelBuilder<'_>,
    item: &Product,
    geometry: &Geometry,
    tile: &Tile,
    place: &Place,
    depth: &Depth,
) -> Vec<Vec<String>> {
    let a_quad = match geometry.transpose_a {
        false if geometry.depth.is_multiple_of_4() => Quad::Depth,
        true if geometry.rows.last().is_some_and(Num::is_multiple_of_4) && item.sides.is_empty() => Quad::Own,
        _ => Quad::None,
    };
    let b_quad = match geometry.transpose_b {
        true if geometry.depth.is_multiple_of_4() => Quad::Depth,
        false if geometry.cols.is_multiple_of_4() => Quad::Own,
        _ => Quad::None,
    };
    let batch = place.batch.as_str();
    let load_a = |kb: &mut KernelBuilder<'_>, row: &At, k: &At, width: Width| {
        let index = geometry.lhs_at(kb, geometry.lhs, batch, row, k);
        kb.emit(geometry.lhs, &index, width)
    };
    let load_b = |kb: &mut KernelBuilder<'_>, col: &At, k: &At, width: Width| {
        let index = geometry.rhs_at(kb, batch, col, k);
        kb.emit(geometry.rhs, &index, width)
    };
    let summands: Vec<Box<LoadFn<'_>>> = item.sides.iter().map(|&side| side_load(geometry, side, batch)).collect();
    let sides: Vec<SideSum<'_>> = summands.iter().map(|load| SideSum { load: load.as_ref() }).collect();
    let layout = Sides { count: u32::try_from(sides.len()).unwrap_or(0), by_quads: a_quad == Quad::Depth && depth.whole_quads };
    tile.declare(kb, layout);
    let a = Loader { load: &load_a, quad: a_quad, origin: place.row.clone(), limit: geometry.n_rows() };
    let b = Loader { load: &load_b, quad: b_quad, origin: place.col.clone(), limit: geometry.cols.clone() };
    tile.accumulate(kb, depth, &a, &b, &sides);
    tile.finish_sides(kb, layout)
}

/// The summand of a side sum, which has the shape of the left operand.
fn side_load<'x>(geometry: &'x Geometry, side: ValueId, batch: &'x str) -> Box<LoadFn<'x>> {
    Box::new(move |kb: &mut KernelBuilder<'_>, row: &At, k: &At, width: Width| {
        let Some(summand) = kb.ctx.graph.def(side).operands.first().copied().flatten() else { return "0.0".to_owned() };
        let index = geometry.lhs_at(kb, summand, batch, row, k);
        kb.emit(summand, &index, width)
    })
}

fn tiled(mut kb: KernelBuilder<'_>, item: &Product, geometry: &Geometry, tile: &Tile) -> Step {
    let place = place(&mut kb, geometry, tile, 1);
    let depth = Depth::all(&mut kb, &geometry.depth, tile);
    let sides = multiply(&mut kb, item, geometry, tile, &place, &depth);
    let n_rows = kb.num(&geometry.n_rows());
    let n_cols = kb.num(&geometry.cols);
    let (row, col) = (place.row.clone(), place.col.clone());
    tile.for_each_block(&mut kb, &row, &col, |kb, i, row, col, acc| {
        kb.open(format!("if ({} < {n_rows} && {} < {n_cols})", row.expr, col.expr));
        let own: Vec<String> = sides.iter().map(|rows| rows[i as usize].clone()).collect();
        define_sides(kb, item, geometry, &place.batch, row, &own);
        store_block(kb, item, geometry, &place.batch, row, col, acc, &n_cols);
        kb.close();
    });
    let step = if tile.staged { u64::from(tile.depth) } else { 4 };
    let stage = if tile.staged { "staged" } else { "direct" };
    kb.finish(Finish {
        label: format!("matmul {{tile = [{}, {}], {stage}}}", tile.rows, tile.cols),
        comment: format!(
            "out[i, j] = sum over k of a[i, k] b[j, k]; a workgroup computes {} x {} outputs, an invocation {} x {}.",
            tile.rows, tile.cols, tile.block_rows, tile.block_cols
        ),
        workgroup_size: tile.threads(),
        n_workgroups: place.n_workgroups,
        loop_trips: geometry.depth.value().div_ceil(step),
        flops: geometry.flops(),
        computes: computes(item),
    })
}

fn computes(item: &Product) -> Vec<ValueId> {
    let mut all = [item.statistics.as_slice(), &item.sides].concat();
    all.push(item.anchor);
    all.extend(item.outputs.iter().filter(|&&out| out != item.anchor));
    all
}

/// Makes the side sums of a row known to the epilogue. A mean is the sum times 1/K.
fn define_sides(kb: &mut KernelBuilder<'_>, item: &Product, geometry: &Geometry, batch: &str, row: &At, sums: &[String]) {
    for (&side, sum) in item.sides.iter().zip(sums) {
        let ident = match kb.ctx.graph.def(side).op() {
            Some(Op::Mean { .. }) => {
                let n = kb.num(&geometry.depth);
                kb.bind(format!("{sum} / f32({n})"))
            }
            _ => sum.clone(),
        };
        let k = Part::zero(vec![Num::ONE]);
        let own = Part::new(row.expr.clone(), geometry.rows.clone(), row.align);
        let index = geometry.operand(kb, side, batch, own, k, geometry.transpose_a);
        kb.define(side, index.key(), Width::One, ident);
    }
}

/// Stores the outputs for one block of four columns.
#[allow(clippy::too_many_arguments, reason = "the place and the accumulator of one block")]
fn store_block(kb: &mut KernelBuilder<'_>, item: &Product, geometry: &Geometry, batch: &str, row: &At, col: &At, acc: &str, n_cols: &str) {
    if geometry.cols.is_multiple_of_4() {
        let index = geometry.result(batch, row, col);
        kb.define(geometry.anchor, index.key(), Width::Four, acc.to_owned());
        for lane in 0..4 {
            kb.define(geometry.anchor, index.lane(lane).key(), Width::One, format!("{acc}[{lane}]"));
        }
        store_outputs(kb, item, &index, Width::Four);
        return;
    }
    for lane in 0..4 {
        let at = kb.bind(if lane == 0 { col.expr.clone() } else { format!("{} + {lane}u", col.expr) });
        kb.open(format!("if ({at} < {n_cols})"));
        let index = geometry.result(batch, row, &At::new(at, 1));
        kb.define(geometry.anchor, index.key(), Width::One, format!("{acc}[{lane}]"));
        store_outputs(kb, item, &index, Width::One);
        kb.close();
    }
}

fn store_outputs(kb: &mut KernelBuilder<'_>, item: &Product, index: &Index, width: Width) {
    for &out in &item.outputs {
        super::store_like(kb, out, index, width);
    }
}

// -- few rows ------------------------------------------------------------------------------------------------------

/// Each workgroup computes a few outputs of one row, its invocations dividing K.
fn by_rows(mut kb: KernelBuilder<'_>, item: &Product, geometry: &Geometry) -> Step {
    let kb_ref = &mut kb;
    let n_rows = geometry.n_rows();
    let tiles = geometry.cols.div_ceil(u64::from(ROW_OUTPUTS));
    let total = n_rows.mul(&tiles);
    let limit = kb_ref.num(&total);
    kb_ref.line(format!("if (wg >= {limit}) {{ return; }}"));
    let across = kb_ref.divisor(&tiles);
    let row_expr = kb_ref.bind(format!("wg / {across}"));
    let row = At::new(row_expr, 1);
    let col_expr = kb_ref.bind(format!("(wg % {across}) * {ROW_OUTPUTS}u"));
    let col = At::new(col_expr, 4);
    for &value in &item.statistics {
        super::row_stats::emit(kb_ref, value, &geometry.rows, &row.expr, None, ROW_THREADS);
    }
    let n_sides = item.sides.len();
    for j in 0..ROW_OUTPUTS {
        kb_ref.line(format!("var acc{j} = 0.0;"));
    }
    for side in 0..n_sides {
        kb_ref.line(format!("var side{side} = 0.0;"));
    }
    row_products(kb_ref, item, geometry, &row, &col);
    let sums: Vec<String> = (0..ROW_OUTPUTS).map(|j| format!("acc{j}")).chain((0..n_sides).map(|side| format!("side{side}"))).collect();
    let totals = super::reduce_workgroup(kb_ref, &sums, ROW_THREADS, kb_ref.ctx.target.is_cpu);
    let n_cols = kb_ref.num(&geometry.cols);
    // One invocation an output; all hold the totals.
    kb_ref.open(format!("if (lid < {ROW_OUTPUTS}u && {} + lid < {n_cols})", col.expr));
    define_sides(kb_ref, item, geometry, "0u", &row, &totals[ROW_OUTPUTS as usize..]);
    let chosen = kb_ref.fresh("acc");
    let picks: Vec<String> = totals[..ROW_OUTPUTS as usize].to_vec();
    kb_ref.line(format!("let {chosen} = vec4<f32>({})[lid];", picks.join(", ")));
    let at = kb_ref.bind(format!("{} + lid", col.expr));
    let index = geometry.result("0u", &row, &At::new(at, 1));
    kb_ref.define(geometry.anchor, index.key(), Width::One, chosen);
    store_outputs(kb_ref, item, &index, Width::One);
    kb_ref.close();
    let step = u64::from(ROW_THREADS) * if geometry.depth.is_multiple_of_4() { 4 } else { 1 };
    kb.finish(Finish {
        label: format!("matmul {{by_rows, outputs = {ROW_OUTPUTS}}}"),
        comment: format!(
            "out[i, j] = sum over k of a[i, k] b[j, k]; a workgroup computes {ROW_OUTPUTS} outputs of one row, its invocations divide k."
        ),
        workgroup_size: ROW_THREADS,
        n_workgroups: total.value(),
        loop_trips: geometry.depth.value().div_ceil(step),
        flops: geometry.flops(),
        computes: computes(item),
    })
}

fn row_products(kb: &mut KernelBuilder<'_>, item: &Product, geometry: &Geometry, row: &At, col: &At) {
    let quad = geometry.depth.is_multiple_of_4();
    let (width, each) = if quad { (Width::Four, 4) } else { (Width::One, 1) };
    let n = kb.num(&geometry.depth);
    let cols: Vec<At> = (0..ROW_OUTPUTS)
        .map(|j| {
            let last = kb.num(&geometry.cols);
            let expr = kb.bind(format!("min({} + {j}u, {last} - 1u)", col.expr));
            At::new(expr, 1)
        })
        .collect();
    let k = kb.fresh("k");
    kb.open(format!("for (var {k} = lid * {each}u; {k} < {n}; {k} += {}u)", ROW_THREADS * each));
    let at = At::new(k, u64::from(each));
    let index = geometry.lhs_at(kb, geometry.lhs, "0u", row, &at);
    let a = kb.emit(geometry.lhs, &index, width);
    let multiply = |a: &str, b: &str| if quad { format!("dot({a}, {b})") } else { format!("{a} * {b}") };
    for (j, col) in cols.iter().enumerate() {
        let index = geometry.rhs_at(kb, "0u", col, &at);
        let b = kb.emit(geometry.rhs, &index, width);
        kb.line(format!("acc{j} += {};", multiply(&a, &b)));
    }
    for (side, &value) in item.sides.iter().enumerate() {
        let x = side_load(geometry, value, "0u")(kb, row, &at, width);
        kb.line(format!("side{side} += {};", if quad { format!("dot({x}, vec4<f32>(1.0))") } else { x }));
    }
    kb.close();
}

// -- K split -------------------------------------------------------------------------------------------------------

/// Two steps: partial products of each part of K, then their sum and the epilogue.
fn split(
    ctx: &LowerCtx<'_>,
    item: &Product,
    inline: &dyn Fn(ValueId) -> bool,
    tile: &Tile,
    n_parts: u64,
    temps: &mut Vec<Temp>,
) -> Vec<Step> {
    let mut kb = KernelBuilder::new(ctx, inline);
    let Some(geometry) = Geometry::new(&mut kb, item.anchor) else { return Vec::new() };
    let n_out = product([&geometry.n_batch(), &geometry.n_rows(), &geometry.cols]);
    let temp = StepValue::Temp(temps.len());
    temps.push(Temp { of: item.anchor, name: "partial", size_bytes: n_out.value().saturating_mul(4 * n_parts) });
    let first = split_partial(kb, item, &geometry, tile, n_parts, temp, &n_out);
    let second = split_sum(ctx, item, inline, n_parts, temp, &n_out);
    vec![first, second]
}

fn split_partial(
    mut kb: KernelBuilder<'_>,
    item: &Product,
    geometry: &Geometry,
    tile: &Tile,
    n_parts: u64,
    temp: StepValue,
    n_out: &Num,
) -> Step {
    let place = place(&mut kb, geometry, tile, n_parts);
    let span = geometry.depth.value().div_ceil(n_parts).next_multiple_of(u64::from(tile.depth));
    let n = kb.num(&geometry.depth);
    let begin = kb.bind(format!("{} * {span}u", place.part));
    let end = kb.bind(format!("min({begin} + {span}u, {n})"));
    let depth = Depth {
        begin,
        end,
        whole: geometry.depth.factor().is_multiple_of(u64::from(tile.depth)),
        whole_quads: geometry.depth.is_multiple_of_4(),
    };
    multiply(&mut kb, item, geometry, tile, &place, &depth);
    let (n_rows, n_cols, total) = (kb.num(&geometry.n_rows()), kb.num(&geometry.cols), kb.num(n_out));
    let quad = geometry.cols.is_multiple_of_4();
    let name = kb.write(temp, monopass_ir::DType::F32, quad);
    let (row, col) = (place.row.clone(), place.col.clone());
    tile.for_each_block(&mut kb, &row, &col, |kb, _, row, col, acc| {
        kb.open(format!("if ({} < {n_rows} && {} < {n_cols})", row.expr, col.expr));
        let index = geometry.result(&place.batch, row, col);
        let (flat, _) = index.flat(kb);
        let at = kb.bind(format!("{} * {total} + {flat}", place.part));
        if quad {
            kb.line(format!("st4_{name}({at}, {acc});"));
        } else {
            for lane in 0..4 {
                kb.line(format!("if ({} + {lane}u < {n_cols}) {{ st_{name}({at} + {lane}u, {acc}[{lane}]); }}", col.expr));
            }
        }
        kb.close();
    });
    kb.finish(Finish {
        label: format!("matmul {{tile = [{}, {}], parts of k = {n_parts}}}", tile.rows, tile.cols),
        comment: format!(
            "partial[s, i, j] = sum over k in part s of a[i, k] b[j, k]; a workgroup computes {} x {} partial outputs.",
            tile.rows, tile.cols
        ),
        workgroup_size: tile.threads(),
        n_workgroups: place.n_workgroups,
        loop_trips: span.div_ceil(u64::from(tile.depth)),
        flops: geometry.flops(),
        computes: vec![item.anchor],
    })
}

fn split_sum(ctx: &LowerCtx<'_>, item: &Product, inline: &dyn Fn(ValueId) -> bool, n_parts: u64, temp: StepValue, n_out: &Num) -> Step {
    let mut kb = KernelBuilder::new(ctx, inline);
    let quad = kb.ctx.graph.ty(item.anchor).shape.last().is_some_and(|size| size % 4 == 0) && n_out.is_multiple_of_4();
    let each: u64 = if quad { 4 } else { 1 };
    let total = kb.num(n_out);
    let i = kb.bind(if quad { "(wg * 64u + lid) * 4u" } else { "wg * 64u + lid" });
    kb.open(format!("if ({i} < {total})"));
    let name = kb.read(temp, monopass_ir::DType::F32, quad);
    let load = if quad { "ld4" } else { "ld" };
    let terms: Vec<String> = (0..n_parts).map(|part| format!("{load}_{name}({part}u * {total} + {i})")).collect();
    let sum = kb.bind(terms.join(" + "));
    let index = kb.flat_index(item.anchor, &i, each);
    let width = if quad { Width::Four } else { Width::One };
    kb.define(item.anchor, index.key(), width, sum.clone());
    if quad {
        for lane in 0..4 {
            kb.define(item.anchor, index.lane(lane).key(), Width::One, format!("{sum}[{lane}]"));
        }
    }
    store_outputs(&mut kb, item, &index, width);
    kb.close();
    kb.finish(Finish {
        label: format!("matmul_sum {{parts of k = {n_parts}}}"),
        comment: "out[i] = sum over s of partial[s, i]; one invocation computes one output, or four neighbours.".to_owned(),
        workgroup_size: 64,
        n_workgroups: n_out.value().div_ceil(64 * each),
        loop_trips: 0,
        flops: n_out.value().saturating_mul(n_parts),
        computes: item.outputs.clone(),
    })
}
