//! The linear recurrence by chunks: scores, chunk states, carries, outputs, each a dispatch of tiled products.
//!
//! With Λ the running sum of log decays inside a chunk, positions `i'` counting tokens and ranks together:
//!
//! - scores: `c[i', j'] = q_i' · k_j'`, shared by the heads of a group;
//! - chunk state: `T[p, n] = Σ_j' w_j exp(Λ_end - Λ_j) v_j'[p] k_j'[n]`;
//! - carry: `S_{c+1} = exp(Λ_end) S_c + T_c`, one invocation an element or four;
//! - output: `y_i' = Σ_{j < i} w_j exp(Λ_i - Λ_j) c[i', j'] v_j' + o_i Σ_{j = i} c[i', j'] v_j' + exp(Λ_i) S_c q_i'`.
//!
//! The weights w and o stand in the kernels of scans that have them.
//! Exponents are differences with `i >= j` and never positive for real decays. Where a sequence starts inside a chunk, pairs
//! across the start are dropped by comparing segment numbers. A few tokens take [`super::scan_step`] instead.

use super::elementwise::{Body, append_bodies_of};
use super::scan_decay::{ChunkAt, Weight, end_weight, gather, pair_weight, running_decay, start_weight};
use super::scan_rows::RowShares;
use super::tile::{At, Depth, Loader, Quad, Tile};
use crate::emit::{Finish, Index, KernelBuilder, LowerCtx, Num, Part, Width, num::product};
use crate::step::{Step, StepValue, Temp};
use monopass_ir::{DType, Op, ValueId};

/// Tokens up to which the scan goes token by token.
pub const STEP_TOKENS: usize = 8;
/// Buffers that the outputs of a chunk bind beside weights and resets: log decays, v, q, scores, carries and the outputs.
const OUTPUT_BUFFERS: usize = 6;
/// Positions (tokens times ranks) of a chunk.
const CHUNK_POSITIONS: usize = 64;
/// Rows or columns of a tile.
const MAX_TILE: u32 = 64;

/// A scan with what is fused to it.
#[derive(Clone, Debug)]
pub struct ScanItem {
    /// First result of the `scan` node.
    pub y: ValueId,
    /// Second result.
    pub s_last: ValueId,
    /// The value that takes the second result, if anything needs it: itself, or a reshape of it.
    pub stored_state: Option<ValueId>,
    /// The state that it overwrites where it lies, if it may.
    pub in_place: Option<ValueId>,
    /// Values to store: `y`, or elementwise results over the same elements in the same order.
    pub outputs: Vec<ValueId>,
    /// Independent elementwise work that shares the first dispatch; only where `outputs` are, without which there are no scores.
    pub extra: Vec<Body>,
    /// Sums and means over the rows of `y`, which its epilogue needs (not in the step class).
    pub rows: Vec<ValueId>,
    /// What is computed once a token and workgroup (step class only).
    pub staged: Vec<super::scan_step::Staged>,
}

/// Operands and sizes of a scan.
pub(super) struct Geometry {
    pub(super) log_decay: ValueId,
    pub(super) v: ValueId,
    pub(super) k: ValueId,
    pub(super) q: ValueId,
    pub(super) s0: Option<ValueId>,
    pub(super) reset: Option<ValueId>,
    pub(super) weight: Option<ValueId>,
    pub(super) own_weight: Option<ValueId>,
    /// Where log decays, weights and resets are gathered, if they are.
    pub(super) tokens: Option<StepValue>,
    pub(super) batch: Num,
    pub(super) len: Num,
    pub(super) heads: Num,
    pub(super) groups: Num,
    pub(super) ranks: usize,
    pub(super) headdim: Num,
    pub(super) d_state: Num,
    /// Tokens of a chunk.
    pub(super) chunk: usize,
    n_chunks: Num,
}

impl Geometry {
    pub(super) fn new(kb: &mut KernelBuilder<'_>, y: ValueId) -> Option<Self> {
        let graph = kb.ctx.graph;
        let node = graph.def(y);
        let Some(Op::Scan { chunk_size }) = node.op() else { return None };
        let operand = |idx: usize| node.operands.get(idx).copied().flatten();
        let (log_decay, v, k, q) = (operand(0)?, operand(1)?, operand(2)?, operand(3)?);
        let ranks = graph.ty(v).shape[3];
        let fitting = (CHUNK_POSITIONS / ranks.max(1)).max(1);
        let chunk = if *chunk_size == 0 { fitting } else { fitting.min(*chunk_size) };
        let len = kb.size(log_decay, 1);
        Some(Self {
            log_decay,
            v,
            k,
            q,
            s0: operand(4),
            reset: operand(5),
            weight: operand(6),
            own_weight: operand(7),
            tokens: None,
            batch: kb.size(log_decay, 0),
            n_chunks: len.div_ceil(chunk as u64),
            len,
            heads: kb.size(log_decay, 2),
            groups: kb.size(k, 2),
            ranks,
            headdim: kb.size(v, 4),
            d_state: kb.size(k, 4),
            chunk,
        })
    }

    /// Positions of a chunk: tokens times ranks.
    fn positions(&self) -> u32 {
        u32::try_from(self.chunk * self.ranks).unwrap_or(u32::MAX)
    }

    fn state_elems(&self) -> Num {
        product([&self.batch, &self.heads, &self.headdim, &self.d_state])
    }

    /// Group of a head.
    pub(super) fn group(&self, kb: &mut KernelBuilder<'_>, head: &str) -> String {
        let per_group = self.heads.value() / self.groups.value().max(1);
        if per_group == 1 { head.to_owned() } else { kb.bind(format!("{head} / {per_group}u")) }
    }
}

pub(super) fn single(kb: &mut KernelBuilder<'_>, value: ValueId, axis: usize, expr: &str) -> Part {
    let size = kb.size(value, axis);
    if size.is_one() { Part::zero(vec![size]) } else { Part::new(expr, vec![size], 1) }
}

/// `v`, `k` or `q` at batch item, token, head or group, rank and element.
pub(super) fn emit_row(kb: &mut KernelBuilder<'_>, value: ValueId, at: [&str; 4], element: &At, width: Width) -> String {
    let mut parts: Vec<Part> = (0..).zip(at).map(|(axis, expr): (usize, &str)| single(kb, value, axis, expr)).collect();
    let size = kb.size(value, 4);
    parts.push(Part::new(element.expr.clone(), vec![size], element.align));
    kb.emit(value, &Index(parts), width)
}

/// The steps of a scan over more than [`STEP_TOKENS`] tokens. `temps` takes scores, chunk states, decays and carries.
#[must_use]
pub fn lower(ctx: &LowerCtx<'_>, item: &ScanItem, inline: &dyn Fn(ValueId) -> bool, temps: &mut Vec<Temp>) -> Vec<Step> {
    let mut kb = KernelBuilder::new(ctx, inline);
    let Some(geometry) = Geometry::new(&mut kb, item.y) else { return Vec::new() };
    let tokens = gather(KernelBuilder::new(ctx, inline), item, &geometry, OUTPUT_BUFFERS, temps);
    let mut temp = |of: ValueId, name: &'static str, n: &Num| {
        temps.push(Temp { of, name, size_bytes: n.value().saturating_mul(4) });
        StepValue::Temp(temps.len() - 1)
    };
    let positions = Num::Static(u64::from(geometry.positions()));
    let chunks = product([&geometry.batch, &geometry.n_chunks]);
    let buffers = Buffers {
        scores: temp(item.y, "scores", &product([&chunks, &geometry.groups, &positions, &positions])),
        chunk_state: temp(item.y, "chunk_state", &product([&geometry.n_chunks, &geometry.state_elems()])),
        decay: temp(item.y, "chunk_decay", &product([&chunks, &geometry.heads])),
        carry: temp(item.y, "carry", &product([&geometry.n_chunks, &geometry.state_elems()])),
        tokens: tokens.as_ref().map(|(_, tokens)| *tokens),
    };
    let mut steps: Vec<Step> = tokens.into_iter().map(|(step, _)| step).collect();
    if !item.outputs.is_empty() {
        steps.push(scores(kb, item, &geometry, &buffers));
    }
    let fresh = |ctx| KernelBuilder::new(ctx, inline);
    steps.push(chunk_states(fresh(ctx), item, &buffers));
    steps.push(carries(fresh(ctx), item, &buffers));
    if !item.outputs.is_empty() {
        steps.push(outputs(fresh(ctx), item, &buffers));
    }
    steps
}

struct Buffers {
    scores: StepValue,
    chunk_state: StepValue,
    decay: StepValue,
    carry: StepValue,
    tokens: Option<StepValue>,
}

impl Buffers {
    /// Operands and sizes of the scan, for one of its kernels.
    fn geometry(&self, kb: &mut KernelBuilder<'_>, item: &ScanItem) -> Option<Geometry> {
        Geometry::new(kb, item.y).map(|geometry| Geometry { tokens: self.tokens, ..geometry })
    }
}

/// A tile for at most `rows` by `cols`.
fn tile_for(ctx: &LowerCtx<'_>, rows: u64, cols: u64, most: u32) -> Tile {
    let fit = |n: u64| {
        if n > 32 {
            64
        } else if n > 16 {
            32
        } else {
            16
        }
    };
    let (rows, cols) = (fit(rows).min(most), fit(cols).min(most));
    let staged = !ctx.target.is_cpu;
    Tile { rows, cols, block_rows: 4, block_cols: 4, depth: 16, staged }
}

/// Cuts the workgroup number into places, the last of `sizes` fastest; workgroups past the end return.
fn workgroup_places(kb: &mut KernelBuilder<'_>, sizes: &[Num]) -> (Vec<String>, u64) {
    let total = product(sizes);
    let limit = kb.num(&total);
    kb.line(format!("if (wg >= {limit}) {{ return; }}"));
    let mut rest = "wg".to_owned();
    let mut places = Vec::new();
    for size in sizes.iter().rev() {
        if size.is_one() {
            places.push("0u".to_owned());
            continue;
        }
        let by = kb.divisor(size);
        places.push(kb.bind(format!("{rest} % {by}")));
        rest = kb.bind(format!("{rest} / {by}"));
    }
    places.reverse();
    (places, total.value())
}

/// Token and rank of position `at` of the chunk that starts at token `first`, held inside the sequence.
fn token_of(kb: &mut KernelBuilder<'_>, geometry: &Geometry, first: &str, at: &str) -> (String, String) {
    let len = kb.num(&geometry.len);
    let ranks = geometry.ranks;
    let (token, rank) = if ranks == 1 {
        (at.to_owned(), "0u".to_owned())
    } else {
        (kb.bind(format!("{at} / {ranks}u")), kb.bind(format!("{at} % {ranks}u")))
    };
    let token = kb.bind(format!("min({first} + {token}, {len} - 1u)"));
    (token, rank)
}

// -- scores --------------------------------------------------------------------------------------------------------

fn scores(mut kb: KernelBuilder<'_>, item: &ScanItem, geometry: &Geometry, buffers: &Buffers) -> Step {
    let positions = u64::from(geometry.positions());
    let tile = tile_for(kb.ctx, positions, positions, 32);
    let tiles = Num::Static(positions.div_ceil(u64::from(tile.rows)));
    let kb_ref = &mut kb;
    let sizes = [geometry.batch.clone(), geometry.n_chunks.clone(), geometry.groups.clone(), tiles.clone(), tiles];
    let n_extra = extra_workgroups(kb_ref, item, &sizes, tile.threads());
    let (at, n_workgroups) = workgroup_places(kb_ref, &sizes);
    let (batch, chunk, group) = (&at[0], &at[1], &at[2]);
    let first = kb_ref.bind(format!("{chunk} * {}u", geometry.chunk));
    let row = kb_ref.bind(format!("{} * {}u", at[3], tile.rows));
    let col = kb_ref.bind(format!("{} * {}u", at[4], tile.cols));
    let load = |value: ValueId| {
        let (batch, group, first) = (batch.clone(), group.clone(), first.clone());
        move |kb: &mut KernelBuilder<'_>, own: &At, n: &At, width: Width| {
            let (token, rank) = token_of(kb, geometry, &first, &own.expr);
            emit_row(kb, value, [&batch, &token, &group, &rank], n, width)
        }
    };
    let (load_q, load_k) = (load(geometry.q), load(geometry.k));
    let quad = if geometry.d_state.is_multiple_of_4() { Quad::Depth } else { Quad::None };
    let limit = Num::Static(positions);
    tile.declare(kb_ref, super::tile::Sides::default());
    let depth = Depth::all(kb_ref, &geometry.d_state, &tile);
    let a = Loader { load: &load_q, quad, origin: At::new(row.clone(), 4), limit: limit.clone() };
    let b = Loader { load: &load_k, quad, origin: At::new(col.clone(), 4), limit };
    tile.accumulate(kb_ref, &depth, &a, &b, &[]);
    let name = kb_ref.write(buffers.scores, DType::F32, positions % 4 == 0);
    let (groups, n_chunks) = (kb_ref.num(&geometry.groups), kb_ref.num(&geometry.n_chunks));
    let base = kb_ref.bind(format!("(({batch} * {n_chunks} + {chunk}) * {groups} + {group}) * {}u", positions * positions));
    tile.for_each_block(kb_ref, &At::new(row, 4), &At::new(col, 4), |kb, _, row, col, acc| {
        store_matrix(kb, &name, &base, row, col, positions, positions, acc);
    });
    let flops = sizes[..3].iter().fold(2 * positions * positions * geometry.d_state.value(), |n, size| n.saturating_mul(size.value()));
    let flops_extra: u64 = item.extra.iter().flat_map(|body| &body.outputs).map(|&out| kb.ctx.graph.ty(out).n_elems()).sum();
    kb.finish(Finish {
        label: format!("scan_scores {{chunk = {}, tile = [{}, {}]}}", geometry.chunk, tile.rows, tile.cols),
        comment: "c[i, j] = q_i . k_j over the positions of a chunk; a workgroup computes one tile for one group.".to_owned(),
        workgroup_size: tile.threads(),
        n_workgroups: n_workgroups + n_extra,
        loop_trips: geometry.d_state.value().div_ceil(4),
        flops: flops.saturating_add(flops_extra),
        computes: std::iter::once(item.y).chain(item.extra.iter().flat_map(|body| body.outputs.iter().copied())).collect(),
    })
}

/// Appends the bodies beside the scan, in workgroups after those of `sizes`, which then return; gives their number.
fn extra_workgroups(kb: &mut KernelBuilder<'_>, item: &ScanItem, sizes: &[Num], threads: u32) -> u64 {
    if item.extra.is_empty() {
        return 0;
    }
    let limit = kb.num(&product(sizes));
    kb.open(format!("if (wg >= {limit})"));
    let n_workgroups = append_bodies_of(kb, &item.extra, threads, &limit, false);
    kb.line("return;");
    kb.close();
    n_workgroups
}

/// Stores a block of four columns of a `[rows, cols]` matrix that starts at `base`.
#[allow(clippy::too_many_arguments, reason = "the place of one block in a matrix")]
fn store_matrix(kb: &mut KernelBuilder<'_>, name: &str, base: &str, row: &At, col: &At, rows: u64, cols: u64, acc: &str) {
    kb.open(format!("if ({} < {rows}u && {} < {cols}u)", row.expr, col.expr));
    let at = kb.bind(format!("{base} + {} * {cols}u + {}", row.expr, col.expr));
    if cols.is_multiple_of(4) {
        kb.line(format!("st4_{name}({at}, {acc});"));
    } else {
        for lane in 0..4 {
            kb.line(format!("if ({} + {lane}u < {cols}u) {{ st_{name}({at} + {lane}u, {acc}[{lane}]); }}", col.expr));
        }
    }
    kb.close();
}

// -- chunk states --------------------------------------------------------------------------------------------------

fn chunk_states(mut kb: KernelBuilder<'_>, item: &ScanItem, buffers: &Buffers) -> Step {
    let Some(geometry) = buffers.geometry(&mut kb, item) else { return empty_step(kb) };
    let (headdim, d_state) = (geometry.headdim.value(), geometry.d_state.value());
    let tile = tile_for(kb.ctx, headdim, d_state, 64);
    let kb_ref = &mut kb;
    let (tiles_p, tiles_n) = (Num::Static(headdim.div_ceil(u64::from(tile.rows))), Num::Static(d_state.div_ceil(u64::from(tile.cols))));
    let sizes = [geometry.batch.clone(), geometry.n_chunks.clone(), geometry.heads.clone(), tiles_p, tiles_n];
    let (at, n_workgroups) = workgroup_places(kb_ref, &sizes);
    let (batch, chunk, head) = (&at[0], &at[1], &at[2]);
    let first = kb_ref.bind(format!("{chunk} * {}u", geometry.chunk));
    let weights: Vec<Weight> = geometry.state_weight().into_iter().collect();
    running_decay(kb_ref, &geometry, ChunkAt { batch, first: &first, head }, &weights, tile.threads());
    let (n_chunks, heads) = (kb_ref.num(&geometry.n_chunks), kb_ref.num(&geometry.heads));
    let matrix = kb_ref.bind(format!("({batch} * {n_chunks} + {chunk}) * {heads} + {head}"));
    store_chunk_decay(kb_ref, &geometry, buffers, &matrix, &at);
    let group = geometry.group(kb_ref, head);
    let load_v = |kb: &mut KernelBuilder<'_>, p: &At, j: &At, width: Width| {
        let (token, rank) = token_of(kb, &geometry, &first, &j.expr);
        let x = emit_row(kb, geometry.v, [batch, &token, head, &rank], p, width);
        let weight = end_weight(kb, &geometry, &first, &j.expr);
        kb.bind(format!("{x} * {weight}"))
    };
    let load_k = |kb: &mut KernelBuilder<'_>, n: &At, j: &At, width: Width| {
        let (token, rank) = token_of(kb, &geometry, &first, &j.expr);
        emit_row(kb, geometry.k, [batch, &token, &group, &rank], n, width)
    };
    let row = kb_ref.bind(format!("{} * {}u", at[3], tile.rows));
    let col = kb_ref.bind(format!("{} * {}u", at[4], tile.cols));
    let own = |size: &Num| if size.is_multiple_of_4() { Quad::Own } else { Quad::None };
    tile.declare(kb_ref, super::tile::Sides::default());
    let depth = Depth::all(kb_ref, &Num::Static(u64::from(geometry.positions())), &tile);
    let a = Loader { load: &load_v, quad: own(&geometry.headdim), origin: At::new(row.clone(), 4), limit: geometry.headdim.clone() };
    let b = Loader { load: &load_k, quad: own(&geometry.d_state), origin: At::new(col.clone(), 4), limit: geometry.d_state.clone() };
    tile.accumulate(kb_ref, &depth, &a, &b, &[]);
    let name = kb_ref.write(buffers.chunk_state, DType::F32, d_state % 4 == 0);
    let base = kb_ref.bind(format!("{matrix} * {}u", headdim * d_state));
    tile.for_each_block(kb_ref, &At::new(row, 4), &At::new(col, 4), |kb, _, row, col, acc| {
        store_matrix(kb, &name, &base, row, col, headdim, d_state, acc);
    });
    let per_matrix = 2 * u64::from(geometry.positions()) * headdim * d_state;
    kb.finish(Finish {
        label: format!("scan_chunk_state {{chunk = {}, tile = [{}, {}]}}", geometry.chunk, tile.rows, tile.cols),
        comment: "T[p, n] = sum over j of exp(L_end - L_j) v_j[p] k_j[n]; a workgroup computes one tile for one chunk and head.".to_owned(),
        workgroup_size: tile.threads(),
        n_workgroups,
        loop_trips: geometry.chunk as u64,
        flops: sizes[..3].iter().fold(per_matrix, |n, size| n.saturating_mul(size.value())),
        computes: vec![item.y],
    })
}

/// The decay of a whole chunk, which the carries need: stored once for each chunk and head.
fn store_chunk_decay(kb: &mut KernelBuilder<'_>, geometry: &Geometry, buffers: &Buffers, matrix: &str, at: &[String]) {
    let last = geometry.chunk - 1;
    let name = kb.write(buffers.decay, DType::F32, false);
    kb.open(format!("if (lid == 0u && {} == 0u && {} == 0u)", at[3], at[4]));
    let decay =
        if geometry.reset.is_some() { format!("select(0.0, exp(lam[{last}u]), seg[{last}u] == 0u)") } else { format!("exp(lam[{last}u])") };
    kb.line(format!("st_{name}({matrix}, {decay});"));
    kb.close();
}

fn empty_step(kb: KernelBuilder<'_>) -> Step {
    kb.finish(Finish {
        label: "empty".to_owned(),
        comment: "Nothing to do.".to_owned(),
        workgroup_size: 1,
        n_workgroups: 0,
        loop_trips: 0,
        flops: 0,
        computes: Vec::new(),
    })
}

// -- carries -------------------------------------------------------------------------------------------------------

fn carries(mut kb: KernelBuilder<'_>, item: &ScanItem, buffers: &Buffers) -> Step {
    if let Some((state, stored)) = item.in_place.zip(item.stored_state) {
        kb.update_in_place(StepValue::Graph(state), StepValue::Graph(stored), DType::F32);
    }
    let Some(geometry) = Geometry::new(&mut kb, item.y) else { return empty_step(kb) };
    let kb_ref = &mut kb;
    let per_head = geometry.headdim.mul(&geometry.d_state);
    let quad = geometry.d_state.is_multiple_of_4();
    let (each, load, store, ty) = if quad { (4, "ld4", "st4", "vec4<f32>") } else { (1, "ld", "st", "f32") };
    let total = geometry.state_elems();
    let limit = kb_ref.num(&total);
    let i = kb_ref.bind(format!("(wg * 64u + lid) * {each}u"));
    kb_ref.open(format!("if ({i} < {limit})"));
    let start = match geometry.s0 {
        Some(s0) => {
            let index = kb_ref.flat_index(s0, &i, each);
            kb_ref.emit(s0, &index, if quad { Width::Four } else { Width::One })
        }
        None => format!("{ty}(0.0)"),
    };
    kb_ref.line(format!("var s = {start};"));
    let (heads, n_chunks) = (kb_ref.divisor(&geometry.heads), kb_ref.num(&geometry.n_chunks));
    let matrix = kb_ref.bind(format!("{i} / {}u", per_head.value().max(1)));
    let element = kb_ref.bind(format!("{i} % {}u", per_head.value().max(1)));
    let batch = kb_ref.bind(format!("{matrix} / {heads}"));
    let head = kb_ref.bind(format!("{matrix} % {heads}"));
    let decay = kb_ref.read(buffers.decay, DType::F32, false);
    let states = kb_ref.read(buffers.chunk_state, DType::F32, quad);
    kb_ref.open(format!("for (var c = 0u; c < {n_chunks}; c += 1u)"));
    let row = kb_ref.bind(format!("({batch} * {n_chunks} + c) * {heads} + {head}"));
    let at = kb_ref.bind(format!("{row} * {}u + {element}", per_head.value()));
    if !item.outputs.is_empty() {
        let carry = kb_ref.write(buffers.carry, DType::F32, quad);
        kb_ref.line(format!("{store}_{carry}({at}, s);"));
    }
    kb_ref.line(format!("s = fma({ty}(ld_{decay}({row})), s, {load}_{states}({at}));"));
    kb_ref.close();
    if let Some(stored) = item.stored_state {
        let last = kb_ref.write(StepValue::Graph(stored), DType::F32, quad);
        kb_ref.line(format!("{store}_{last}({i}, s);"));
    }
    kb_ref.close();
    kb.finish(Finish {
        label: "scan_carry".to_owned(),
        comment: "S_(c+1) = decay_c S_c + T_c; one invocation carries one state element, or four neighbours, over the chunks.".to_owned(),
        workgroup_size: 64,
        n_workgroups: total.value().div_ceil(64 * each),
        loop_trips: geometry.n_chunks.value(),
        flops: total.value().saturating_mul(2 * geometry.n_chunks.value()),
        computes: vec![item.stored_state.unwrap_or(item.s_last)],
    })
}

// -- outputs -------------------------------------------------------------------------------------------------------

fn outputs(mut kb: KernelBuilder<'_>, item: &ScanItem, buffers: &Buffers) -> Step {
    let Some(geometry) = buffers.geometry(&mut kb, item) else { return empty_step(kb) };
    let positions = u64::from(geometry.positions());
    let (headdim, d_state) = (geometry.headdim.value(), geometry.d_state.value());
    let tile = tile_for(kb.ctx, positions, headdim, MAX_TILE);
    let kb_ref = &mut kb;
    let (tiles_i, tiles_p) = (Num::Static(positions.div_ceil(u64::from(tile.rows))), Num::Static(headdim.div_ceil(u64::from(tile.cols))));
    let sizes = [geometry.batch.clone(), geometry.n_chunks.clone(), geometry.heads.clone(), tiles_i, tiles_p];
    let (at, n_workgroups) = workgroup_places(kb_ref, &sizes);
    let (batch, chunk, head) = (&at[0], &at[1], &at[2]);
    let first = kb_ref.bind(format!("{chunk} * {}u", geometry.chunk));
    let weights: Vec<Weight> = geometry.output_weights().collect();
    running_decay(kb_ref, &geometry, ChunkAt { batch, first: &first, head }, &weights, tile.threads());
    let group = geometry.group(kb_ref, head);
    let row = kb_ref.bind(format!("{} * {}u", at[3], tile.rows));
    let col = kb_ref.bind(format!("{} * {}u", at[4], tile.cols));
    let (row, col) = (At::new(row, 4), At::new(col, 4));
    tile.declare(kb_ref, super::tile::Sides::default());
    let scan = OutputLoads { geometry: &geometry, buffers, batch, chunk, head, group: &group, first: &first };
    scan.accumulate(kb_ref, &tile, &row, &col);
    let len = kb_ref.num(&geometry.len);
    let inside = |kb: &mut KernelBuilder<'_>, row: &At, col: &At| {
        let ranks = geometry.ranks;
        let (token, rank) = if ranks == 1 {
            (row.expr.clone(), "0u".to_owned())
        } else {
            (kb.bind(format!("{} / {ranks}u", row.expr)), kb.bind(format!("{} % {ranks}u", row.expr)))
        };
        let token = kb.bind(format!("{first} + {token}"));
        kb.open(format!("if ({} < {positions}u && {token} < {len} && {} < {headdim}u)", row.expr, col.expr));
        (token, rank)
    };
    let shares: Vec<RowShares> = item.rows.iter().map(|_| RowShares::new(kb_ref, &tile, &row, headdim)).collect();
    for (&value, shares) in item.rows.iter().zip(&shares) {
        tile.for_each_block(kb_ref, &row, &col, |kb, _, row, col, acc| {
            let (token, rank) = inside(kb, row, col);
            let index = define_y(kb, item, &geometry, [batch, &token, head, &rank], col, acc);
            shares.add(kb, value, &index, [row, col]);
            kb.close();
        });
        kb_ref.line("workgroupBarrier();");
    }
    tile.for_each_block(kb_ref, &row, &col, |kb, _, row, col, acc| {
        let (token, rank) = inside(kb, row, col);
        for (&value, shares) in item.rows.iter().zip(&shares) {
            shares.total(kb, value, row);
        }
        store_y(kb, item, &geometry, [batch, &token, head, &rank], col, acc);
        kb.close();
    });
    let per_matrix = 2 * positions * headdim * (positions + d_state);
    kb.finish(Finish {
        label: format!("scan_output {{chunk = {}, tile = [{}, {}]}}", geometry.chunk, tile.rows, tile.cols),
        comment:
            "y_i = sum over j <= i of exp(L_i - L_j) c[i, j] v_j + exp(L_i) S q_i; a workgroup computes one tile for one chunk and head."
                .to_owned(),
        workgroup_size: tile.threads(),
        n_workgroups,
        loop_trips: (geometry.chunk as u64).max(d_state.div_ceil(4)),
        flops: sizes[..3].iter().fold(per_matrix, |n, size| n.saturating_mul(size.value())),
        computes: std::iter::once(item.y).chain(item.outputs.iter().copied().filter(|&out| out != item.y)).collect(),
    })
}

/// What the two products of an output tile load.
struct OutputLoads<'x> {
    geometry: &'x Geometry,
    buffers: &'x Buffers,
    batch: &'x str,
    chunk: &'x str,
    head: &'x str,
    group: &'x str,
    first: &'x str,
}

impl OutputLoads<'_> {
    fn accumulate(&self, kb: &mut KernelBuilder<'_>, tile: &Tile, row: &At, col: &At) {
        let geometry = self.geometry;
        let positions = u64::from(geometry.positions());
        let limit = Num::Static(positions);
        let (n_chunks, groups, heads) = (kb.num(&geometry.n_chunks), kb.num(&geometry.groups), kb.num(&geometry.heads));
        let matrix = kb.bind(format!("({} * {n_chunks} + {}) * {groups} + {}", self.batch, self.chunk, self.group));
        let scores_at = kb.bind(format!("{matrix} * {}u", positions * positions));
        let load_scores = |kb: &mut KernelBuilder<'_>, i: &At, j: &At, width: Width| self.score(kb, &scores_at, i, j, width);
        let load_v = |kb: &mut KernelBuilder<'_>, p: &At, j: &At, width: Width| {
            let (token, rank) = token_of(kb, geometry, self.first, &j.expr);
            emit_row(kb, geometry.v, [self.batch, &token, self.head, &rank], p, width)
        };
        let own = |size: &Num| if size.is_multiple_of_4() { Quad::Own } else { Quad::None };
        let along = |size: u64| if size.is_multiple_of(4) { Quad::Depth } else { Quad::None };
        let a = Loader { load: &load_scores, quad: along(positions), origin: row.clone(), limit: limit.clone() };
        let b = Loader { load: &load_v, quad: own(&geometry.headdim), origin: col.clone(), limit: geometry.headdim.clone() };
        let depth = Depth::all(kb, &limit, tile);
        tile.accumulate(kb, &depth, &a, &b, &[]);

        let per_head = geometry.headdim.mul(&geometry.d_state).value();
        let matrix = kb.bind(format!("({} * {n_chunks} + {}) * {heads} + {}", self.batch, self.chunk, self.head));
        let carry_at = kb.bind(format!("{matrix} * {per_head}u"));
        let load_q = |kb: &mut KernelBuilder<'_>, i: &At, n: &At, width: Width| {
            let (token, rank) = token_of(kb, geometry, self.first, &i.expr);
            let q = emit_row(kb, geometry.q, [self.batch, &token, self.group, &rank], n, width);
            let weight = start_weight(kb, geometry, &i.expr);
            kb.bind(format!("{q} * {weight}"))
        };
        let load_carry = |kb: &mut KernelBuilder<'_>, p: &At, n: &At, width: Width| {
            let name = kb.read(self.buffers.carry, DType::F32, width == Width::Four);
            let load = if width == Width::Four { "ld4" } else { "ld" };
            kb.bind(format!("{load}_{name}({carry_at} + {} * {}u + {})", p.expr, geometry.d_state.value(), n.expr))
        };
        let quad = along(geometry.d_state.value());
        let a = Loader { load: &load_q, quad, origin: row.clone(), limit };
        let b = Loader { load: &load_carry, quad, origin: col.clone(), limit: geometry.headdim.clone() };
        let depth = Depth::all(kb, &geometry.d_state, tile);
        tile.accumulate(kb, &depth, &a, &b, &[]);
    }

    /// The score of a pair times its decay and weight, 0 for pairs that do not see each other.
    fn score(&self, kb: &mut KernelBuilder<'_>, base: &str, i: &At, j: &At, width: Width) -> String {
        let geometry = self.geometry;
        let positions = geometry.positions();
        let name = kb.read(self.buffers.scores, DType::F32, width == Width::Four);
        let at = kb.bind(format!("{base} + {} * {positions}u + {}", i.expr, j.expr));
        let token_i = geometry.token(kb, &i.expr);
        let weight = |kb: &mut KernelBuilder<'_>, j: &str| {
            let token_j = geometry.token(kb, j);
            pair_weight(kb, geometry, &token_i, &token_j)
        };
        if width == Width::One {
            let weight = weight(kb, &j.expr);
            return kb.bind(format!("ld_{name}({at}) * {weight}"));
        }
        let weights: Vec<String> = (0..4)
            .map(|lane| {
                let j = kb.bind(format!("{} + {lane}u", j.expr));
                weight(kb, &j)
            })
            .collect();
        kb.bind(format!("ld4_{name}({at}) * vec4<f32>({})", weights.join(", ")))
    }
}

/// Makes four elements of `y` at batch item, token, head and rank known, which are accumulated; gives their index.
fn define_y(kb: &mut KernelBuilder<'_>, item: &ScanItem, geometry: &Geometry, at: [&str; 4], element: &At, acc: &str) -> Index {
    let mut parts: Vec<Part> = (0..).zip(at).map(|(axis, expr): (usize, &str)| single(kb, item.y, axis, expr)).collect();
    parts.push(Part::new(element.expr.clone(), vec![geometry.headdim.clone()], element.align));
    let index = Index(parts);
    kb.define(item.y, index.key(), Width::Four, acc.to_owned());
    for lane in 0..4 {
        kb.define(item.y, index.lane(lane).key(), Width::One, format!("{acc}[{lane}]"));
    }
    index
}

/// Stores the outputs for four elements of `y` at batch item, token, head and rank.
pub(super) fn store_y(kb: &mut KernelBuilder<'_>, item: &ScanItem, geometry: &Geometry, at: [&str; 4], element: &At, acc: &str) {
    if geometry.headdim.is_multiple_of_4() {
        let index = define_y(kb, item, geometry, at, element, acc);
        for &out in &item.outputs {
            super::store_like(kb, out, &index, Width::Four);
        }
        return;
    }
    let parts: Vec<Part> = (0..).zip(at).map(|(axis, expr): (usize, &str)| single(kb, item.y, axis, expr)).collect();
    for lane in 0..4 {
        let p = kb.bind(format!("{} + {lane}u", element.expr));
        kb.open(format!("if ({p} < {}u)", geometry.headdim.value()));
        let mut parts = parts.clone();
        parts.push(Part::new(p, vec![geometry.headdim.clone()], 1));
        let index = Index(parts);
        kb.define(item.y, index.key(), Width::One, format!("{acc}[{lane}]"));
        for &out in &item.outputs {
            super::store_like(kb, out, &index, Width::One);
        }
        kb.close();
    }
}

/// Stores the outputs for one element of `y`.
pub(super) fn store_step_y(kb: &mut KernelBuilder<'_>, item: &ScanItem, geometry: &Geometry, at: [&str; 4], element: &str, y: &str) {
    let mut parts: Vec<Part> = (0..).zip(at).map(|(axis, expr): (usize, &str)| single(kb, item.y, axis, expr)).collect();
    parts.push(Part::new(element, vec![geometry.headdim.clone()], 1));
    let index = Index(parts);
    kb.define(item.y, index.key(), Width::One, y.to_owned());
    for &out in &item.outputs {
        super::store_like(kb, out, &index, Width::One);
    }
}

/// Whether a workgroup of the chunked kernels has whole rows of `y`, and so can sum over them before it stores them.
#[must_use]
pub fn holds_rows(graph: &monopass_ir::Graph, y: ValueId) -> bool {
    let fits = graph.ty(y).shape.last().is_some_and(|&headdim| headdim.is_multiple_of(4) && (4..=MAX_TILE as usize).contains(&headdim));
    fits && !is_step(graph, y)
}

/// Whether a scan takes the step kernel.
#[must_use]
pub fn is_step(graph: &monopass_ir::Graph, y: ValueId) -> bool {
    graph.ty(y).shape.get(1).is_some_and(|&len| len <= STEP_TOKENS)
}

/// The sizes that the kernels cannot take, as errors.
///
/// # Errors
/// [`crate::LowerError::Limit`] for more ranks than a chunk has positions.
pub fn check_limits(ctx: &LowerCtx<'_>, item: &ScanItem) -> Result<(), crate::LowerError> {
    let ranks = ctx.graph.ty(item.y).shape[3];
    if ranks > CHUNK_POSITIONS {
        return Err(crate::LowerError::Limit {
            what: format!("scan: {ranks} ranks are over the {CHUNK_POSITIONS} positions of a chunk"),
            site: Box::new(monopass_ir::error::OpSite::of(ctx.graph, item.y)),
            help: format!("use at most {CHUNK_POSITIONS} ranks"),
        });
    }
    Ok(())
}
