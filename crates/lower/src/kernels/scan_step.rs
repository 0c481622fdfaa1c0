//! The linear recurrence token by token, for a few tokens: decoding.
//!
//! A workgroup holds a few rows `p` of one head's state in registers, each row divided among lanes along `n`. For each token
//! its `k`, `q` and `v` are put in workgroup memory once, whatever they take to compute, and the state never leaves
//! registers until the last token.

use super::elementwise;
use super::scan::{Geometry, ScanItem, emit_row, single, store_step_y};
use super::scan_decay::{OWN_WEIGHT, WEIGHT, emit_token, gather};
use super::tile::At;
use crate::emit::Index;
use crate::emit::{Finish, KernelBuilder, LowerCtx, Num, Part, Width, num::product};
use crate::step::{Step, StepValue, Temp};
use indexmap::IndexMap;
use monopass_ir::{DType, ValueId};

/// Rows of the state a workgroup.
const ROWS: u64 = 8;
/// Invocations that share a row.
const LANES: u64 = 8;

/// What is computed once a token and workgroup before k and q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// Sums or means over parts of the token's row, of shape `[B, L, parts.., 1]`.
    Row(ValueId),
    /// A short row for each token and head, of shape `[B, L, H, elements..]`.
    Head(ValueId),
}

/// The steps of a scan over at most [`super::scan::STEP_TOKENS`] tokens, with `item.extra` in workgroups of its own: one, and
/// where weights of tokens are more than it can bind, one before it that gathers them in a value of `temps`.
#[must_use]
pub fn lower(ctx: &LowerCtx<'_>, item: &ScanItem, inline: &dyn Fn(ValueId) -> bool, temps: &mut Vec<Temp>) -> Vec<Step> {
    let mut kb = KernelBuilder::new(ctx, inline);
    let Some(geometry) = Geometry::new(&mut kb, item.y) else { return Vec::new() };
    let has_start = geometry.s0.is_some() && item.in_place.is_none();
    // Log decays, v, k and q, and what goes in and out.
    let n_others = 4 + [!item.outputs.is_empty(), item.stored_state.is_some(), has_start].into_iter().filter(|&is_bound| is_bound).count();
    let gathered = gather(kb, item, &geometry, n_others, temps);
    let tokens = gathered.as_ref().map(|(_, tokens)| *tokens);
    gathered.into_iter().map(|(step, _)| step).chain(token_by_token(ctx, item, inline, tokens)).collect()
}

fn token_by_token(ctx: &LowerCtx<'_>, item: &ScanItem, inline: &dyn Fn(ValueId) -> bool, tokens: Option<StepValue>) -> Option<Step> {
    let mut kb = KernelBuilder::new(ctx, inline);
    if let Some((state, stored)) = item.in_place.zip(item.stored_state) {
        kb.update_in_place(StepValue::Graph(state), StepValue::Graph(stored), DType::F32);
    }
    let mut geometry = Geometry::new(&mut kb, item.y)?;
    geometry.tokens = tokens;
    let kb_ref = &mut kb;
    let tiles = Num::Static(geometry.headdim.value().div_ceil(ROWS));
    let total = product([&geometry.batch, &geometry.heads, &tiles]);
    let limit = kb_ref.num(&total);
    let step = StepKernel { item, geometry: &geometry };
    kb_ref.open(format!("if (wg < {limit})"));
    let (heads, across) = (kb_ref.divisor(&geometry.heads), kb_ref.divisor(&tiles));
    let tile = kb_ref.bind(format!("wg % {across}"));
    let matrix = kb_ref.bind(format!("wg / {across}"));
    let batch = kb_ref.bind(format!("{matrix} / {heads}"));
    let head = kb_ref.bind(format!("{matrix} % {heads}"));
    step.emit(kb_ref, &batch, &head, &tile);
    kb_ref.close();
    let extra = elementwise::append_bodies(kb_ref, &item.extra, &limit, false);
    let state = product([&geometry.batch, &geometry.heads, &geometry.headdim, &geometry.d_state]).value();
    let flops = state.saturating_mul((1 + 4 * geometry.ranks as u64) * geometry.len.value());
    let mut computes: Vec<ValueId> = vec![item.y];
    computes.extend(item.outputs.iter().copied().filter(|&out| out != item.y));
    computes.push(item.stored_state.unwrap_or(item.s_last));
    computes.extend(item.extra.iter().flat_map(|body| body.outputs.iter().copied()));
    Some(kb.finish(Finish {
        label: format!("scan_step {{rows = {ROWS}, lanes = {LANES}}}"),
        comment:
            "S = exp(l) S + sum over r of v_r k_r, y_r = S q_r, token by token; a workgroup holds 8 rows of one head's state.".to_owned(),
        workgroup_size: 64,
        n_workgroups: total.value() + extra,
        loop_trips: geometry.len.value().max(1) * geometry.d_state.value().div_ceil(64).max(LANES),
        flops,
        computes,
    }))
}

struct StepKernel<'x> {
    item: &'x ScanItem,
    geometry: &'x Geometry,
}

impl StepKernel<'_> {
    /// State elements of an invocation: groups of four, or single ones, a stride of lanes apart.
    fn n_pieces(&self) -> u64 {
        self.geometry.d_state.value().div_ceil(LANES * self.piece())
    }

    fn piece(&self) -> u64 {
        if self.geometry.d_state.is_multiple_of_4() { 4 } else { 1 }
    }

    fn emit(&self, kb: &mut KernelBuilder<'_>, batch: &str, head: &str, tile: &str) {
        let geometry = self.geometry;
        self.declare(kb);
        let row = kb.bind(format!("lid / {LANES}u"));
        let lane = kb.bind(format!("lid % {LANES}u"));
        let p = kb.bind(format!("{tile} * {ROWS}u + {row}"));
        let last = geometry.headdim.value().saturating_sub(1);
        let p_in = kb.bind(format!("min({p}, {last}u)"));
        let group = geometry.group(kb, head);
        let pieces: Vec<String> = (0..self.n_pieces()).map(|i| kb.bind(format!("({lane} + {}u) * {}u", i * LANES, self.piece()))).collect();
        self.load_state(kb, batch, head, &p_in, &pieces);
        let len = kb.num(&geometry.len);
        kb.open(format!("for (var t = 0u; t < {len}; t += 1u)"));
        self.stage_token(kb, batch, head, &group, tile);
        self.update_and_read(kb, &row, &lane, &pieces);
        self.store_rows(kb, batch, head, tile);
        kb.close();
        self.store_state(kb, batch, head, &p, &pieces);
    }

    fn declare(&self, kb: &mut KernelBuilder<'_>) {
        let ranks = self.geometry.ranks as u64;
        let words = ranks * self.geometry.d_state.value().div_ceil(4).max(1);
        kb.global(&format!("var<workgroup> k_s: array<vec4<f32>, {words}>;\nvar<workgroup> q_s: array<vec4<f32>, {words}>;"), words * 32);
        kb.global(&format!("var<workgroup> v_s: array<f32, {}>;\nvar<workgroup> decay_s: f32;", ranks * ROWS), ranks * ROWS * 4 + 4);
        for (_, name) in self.geometry.output_weights() {
            kb.global(&format!("var<workgroup> {name}: f32;"), 4);
        }
        kb.global(&format!("var<workgroup> y_s: array<f32, {}>;", ranks * ROWS * LANES), ranks * ROWS * LANES * 4);
    }

    fn state_index(&self, value: ValueId, kb: &mut KernelBuilder<'_>, at: [&str; 3], n: &str) -> Index {
        let sizes = kb.sizes(value);
        let mut parts: Vec<Part> = at.iter().zip(&sizes).map(|(expr, size)| Part::new(*expr, vec![size.clone()], 1)).collect();
        parts.push(Part::new(n, vec![sizes[3].clone()], self.piece()));
        Index(parts)
    }

    fn load_state(&self, kb: &mut KernelBuilder<'_>, batch: &str, head: &str, p: &str, pieces: &[String]) {
        let (ty, width) = if self.piece() == 4 { ("vec4<f32>", Width::Four) } else { ("f32", Width::One) };
        for (i, n) in pieces.iter().enumerate() {
            kb.line(format!("var s{i} = {ty}(0.0);"));
            if let Some(s0) = self.geometry.s0 {
                kb.open(format!("if ({n} < {}u)", self.geometry.d_state.value()));
                let index = self.state_index(s0, kb, [batch, head, p], n);
                let x = kb.emit(s0, &index, width);
                kb.line(format!("s{i} = {x};"));
                kb.close();
            }
        }
    }

    /// Puts a token's `k`, `q`, `v`, decay and weights into workgroup memory.
    fn stage_token(&self, kb: &mut KernelBuilder<'_>, batch: &str, head: &str, group: &str, tile: &str) {
        let geometry = self.geometry;
        let d_state = geometry.d_state.value();
        self.stage_values(kb, batch, head);
        for rank in 0..geometry.ranks {
            let rank_text = format!("{rank}u");
            let base = rank as u64 * d_state.div_ceil(4).max(1);
            if self.piece() == 4 {
                kb.open(format!("for (var w = lid; w < {}u; w += 64u)", d_state / 4));
                let n = kb.bind("w * 4u");
                for (value, array) in [(geometry.k, "k_s"), (geometry.q, "q_s")] {
                    let x = emit_row(kb, value, [batch, "t", group, &rank_text], &At::new(n.clone(), 4), Width::Four);
                    kb.line(format!("{array}[{base}u + w] = {x};"));
                }
            } else {
                kb.open(format!("for (var w = lid; w < {d_state}u; w += 64u)"));
                for (value, array) in [(geometry.k, "k_s"), (geometry.q, "q_s")] {
                    let x = emit_row(kb, value, [batch, "t", group, &rank_text], &At::new("w", 1), Width::One);
                    kb.line(format!("{array}[{base}u + w / 4u][w & 3u] = {x};"));
                }
            }
            kb.close();
        }
        // The last invocations take v and the decay, so that a narrow state leaves them to others.
        kb.open(format!("if (lid >= {}u)", 64 - ROWS));
        let p = kb.bind(format!("min({tile} * {ROWS}u + lid - {}u, {}u)", 64 - ROWS, geometry.headdim.value().saturating_sub(1)));
        for rank in 0..geometry.ranks {
            let x = emit_row(kb, geometry.v, [batch, "t", head, &format!("{rank}u")], &At::new(p.clone(), 1), Width::One);
            kb.line(format!("v_s[{}u + lid - {}u] = {x};", rank as u64 * ROWS, 64 - ROWS));
        }
        kb.close();
        kb.open("if (lid == 0u)");
        let log_decay = emit_token(kb, geometry, geometry.log_decay, [batch, "t", head]);
        let mut decay = format!("exp({log_decay})");
        if let Some(reset) = geometry.reset {
            let starts = emit_token(kb, geometry, reset, [batch, "t", head]);
            decay = format!("select({decay}, 0.0, {starts} && t > 0u)");
        }
        kb.line(format!("decay_s = {decay};"));
        for (value, name) in geometry.output_weights() {
            let x = emit_token(kb, geometry, value, [batch, "t", head]);
            kb.line(format!("{name} = {x};"));
        }
        kb.close();
        kb.line("workgroupBarrier();");
    }

    /// Computes what k and q are made from, each once.
    fn stage_values(&self, kb: &mut KernelBuilder<'_>, batch: &str, head: &str) {
        let geometry = self.geometry;
        let tokens = [geometry.batch.clone(), geometry.len.clone()];
        let mut heads: IndexMap<u64, Vec<ValueId>> = IndexMap::new();
        for staged in &self.item.staged {
            match *staged {
                Staged::Row(value) => {
                    let len = kb.num(&geometry.len);
                    let row = if geometry.batch.is_one() { "t".to_owned() } else { kb.bind(format!("{batch} * {len} + t")) };
                    let at = Index(vec![single(kb, value, 0, batch), single(kb, value, 1, "t")]);
                    super::row_stats::emit(kb, value, &tokens, &row, Some(&at), 64);
                }
                Staged::Head(value) => {
                    let n_elems = product(&kb.sizes(value)[3..]).value();
                    heads.entry(n_elems).or_default().push(value);
                }
            }
        }
        for (&n_elems, values) in &heads {
            let names: Vec<String> = values.iter().map(|_| kb.fresh("head_s")).collect();
            for name in &names {
                kb.global(&format!("var<workgroup> {name}: array<f32, {n_elems}>;"), n_elems * 4);
            }
            let element = kb.fresh("e");
            kb.open(format!("for (var {element} = lid; {element} < {n_elems}u; {element} += 64u)"));
            for (&value, name) in values.iter().zip(&names) {
                let sizes = kb.sizes(value);
                let mut parts = vec![single(kb, value, 0, batch), single(kb, value, 1, "t"), single(kb, value, 2, head)];
                parts.push(Part::new(&element, sizes[3..].to_vec(), 1));
                let x = kb.emit(value, &Index(parts), Width::One);
                kb.line(format!("{name}[{element}] = {x};"));
            }
            kb.close();
            // What is computed next may read elements that other invocations have written.
            kb.line("workgroupBarrier();");
            for (&value, name) in values.iter().zip(names) {
                let at = Index(vec![single(kb, value, 0, batch), single(kb, value, 1, "t"), single(kb, value, 2, head)]);
                kb.define_array(value, name, 3, Some(&at));
            }
        }
    }

    /// Advances the state by a token and leaves the partial sums of `y` in workgroup memory.
    fn update_and_read(&self, kb: &mut KernelBuilder<'_>, row: &str, lane: &str, pieces: &[String]) {
        let geometry = self.geometry;
        let (quad, words) = (self.piece() == 4, geometry.d_state.value().div_ceil(4).max(1));
        let at = |array: &str, rank: usize, n: &str| {
            let base = rank as u64 * words;
            if quad { format!("{array}[{base}u + {n} / 4u]") } else { format!("{array}[{base}u + {n} / 4u][{n} & 3u]") }
        };
        for rank in 0..geometry.ranks {
            kb.line(format!("var y{rank} = 0.0;"));
        }
        for (i, n) in pieces.iter().enumerate() {
            kb.open(format!("if ({n} < {}u)", geometry.d_state.value()));
            kb.line(format!("s{i} = s{i} * decay_s;"));
            let own: Vec<String> =
                (0..geometry.ranks).map(|rank| format!("v_s[{}u + {row}] * {}", rank as u64 * ROWS, at("k_s", rank, n))).collect();
            let read = self.enter(kb, &format!("s{i}"), &own);
            for rank in 0..geometry.ranks {
                let q = at("q_s", rank, n);
                kb.line(if quad { format!("y{rank} += dot({read}, {q});") } else { format!("y{rank} += {read} * {q};") });
            }
            kb.close();
        }
        for rank in 0..geometry.ranks {
            kb.line(format!("y_s[({}u + {row}) * {LANES}u + {lane}] = y{rank};", rank as u64 * ROWS));
        }
        kb.line("workgroupBarrier();");
    }

    /// Adds the products of each rank to the decayed state `s`, and gives what `y` is read from.
    fn enter(&self, kb: &mut KernelBuilder<'_>, s: &str, products: &[String]) -> String {
        let Geometry { weight, own_weight, .. } = *self.geometry;
        if weight.is_none() && own_weight.is_none() {
            for product in products {
                kb.line(format!("{s} += {product};"));
            }
            return s.to_owned();
        }
        let entering = kb.bind(products.join(" + "));
        let read = own_weight.map(|_| kb.bind(format!("{s} + {OWN_WEIGHT} * {entering}")));
        kb.line(if weight.is_some() { format!("{s} += {WEIGHT} * {entering};") } else { format!("{s} += {entering};") });
        read.unwrap_or_else(|| s.to_owned())
    }

    /// One invocation a row and rank adds the partial sums, and stores what is fused to `y`.
    fn store_rows(&self, kb: &mut KernelBuilder<'_>, batch: &str, head: &str, tile: &str) {
        let geometry = self.geometry;
        if !self.item.outputs.is_empty() {
            kb.open(format!("for (var o = lid; o < {}u; o += 64u)", geometry.ranks as u64 * ROWS));
            let rank = kb.bind(format!("o / {ROWS}u"));
            let p = kb.bind(format!("{tile} * {ROWS}u + o % {ROWS}u"));
            kb.open(format!("if ({p} < {}u)", geometry.headdim.value()));
            let terms: Vec<String> = (0..LANES).map(|lane| format!("y_s[o * {LANES}u + {lane}u]")).collect();
            let y = kb.bind(terms.join(" + "));
            store_step_y(kb, self.item, geometry, [batch, "t", head, &rank], &p, &y);
            kb.close();
            kb.close();
        }
        // The next token overwrites what this one's rows are read from.
        kb.line("workgroupBarrier();");
    }

    fn store_state(&self, kb: &mut KernelBuilder<'_>, batch: &str, head: &str, p: &str, pieces: &[String]) {
        let Some(stored) = self.item.stored_state else { return };
        let quad = self.piece() == 4;
        kb.open(format!("if ({p} < {}u)", self.geometry.headdim.value()));
        let name = kb.write(StepValue::Graph(stored), DType::F32, quad);
        for (i, n) in pieces.iter().enumerate() {
            kb.open(format!("if ({n} < {}u)", self.geometry.d_state.value()));
            let (flat, _) = self.state_index(self.item.s_last, kb, [batch, head, p], n).flat(kb);
            kb.line(format!("{}_{name}({flat}, s{i});", if quad { "st4" } else { "st" }));
            kb.close();
        }
        kb.close();
    }
}
