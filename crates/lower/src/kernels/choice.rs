//! Tokens drawn from rows of logits: one workgroup a row, and no sort.
//!
//! What `top_k` and `top_p` keep is everything down to a threshold. Logits become whole numbers of the same order, and a search fixes
//! two bits of the threshold in each pass over the row: the pass sums, for each of three candidates, what lies at or
//! above it (ones for `top_k`, weights for `top_p`), and the largest candidate that still reaches the goal is the next start. Rules that a
//! row does not use cost it nothing but a test. At last each invocation sums the weights of a piece of the row of its
//! own, and the one whose piece holds the drawn place walks through it.
//!
//! All sums are in a fixed order.

use super::store_like;
use crate::emit::{Finish, Index, KernelBuilder, LowerCtx, Num, Part, Width, num::product};
use crate::step::Step;
use monopass_ir::{Op, ValueId};

/// Passes over a row at most: its largest, sixteen for each of two thresholds, two sums and a walk.
pub const PASSES: u64 = 36;
/// Candidates of a pass.
const CANDIDATES: u32 = 3;
/// Bits that a pass fixes, and passes that fix all.
const BITS: u32 = 2;
const ROUNDS: u32 = 32 / BITS;
/// Runs of partial sums that one invocation each adds up.
const GROUPS: u32 = 16;
/// Invocations a workgroup, and on a software device.
const THREADS: u32 = 1024;
const CPU_THREADS: u32 = 64;

/// A drawn token a row with what is fused to it.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Result of the `sample` node.
    pub value: ValueId,
    /// Values to store: the tokens, or elementwise results over the same elements in the same order.
    pub outputs: Vec<ValueId>,
}

/// The kernel of a cluster. `inline` says which values are computed and not loaded.
#[must_use]
pub fn lower(ctx: &LowerCtx<'_>, item: &Choice, inline: &dyn Fn(ValueId) -> bool) -> Vec<Step> {
    let node = ctx.graph.def(item.value);
    let (Some(Op::Sample {}), &[Some(logits), Some(settings), Some(uniform)]) = (node.op(), node.operands.as_slice()) else {
        return Vec::new();
    };
    let mut kb = KernelBuilder::new(ctx, inline);
    let mut sizes = kb.sizes(logits);
    let Some(n_tokens) = sizes.pop() else { return Vec::new() };
    let limit = 1 << ctx.target.max_invocations.min(ctx.target.max_workgroup_size[0]).max(GROUPS).ilog2();
    let threads = if ctx.target.is_cpu { CPU_THREADS } else { THREADS }.min(limit);
    let row = Row { logits, settings, uniform, rows: sizes, n_tokens, threads };
    vec![row.lower(kb, item)]
}

struct Row {
    logits: ValueId,
    settings: ValueId,
    uniform: ValueId,
    rows: Vec<Num>,
    n_tokens: Num,
    threads: u32,
}

impl Row {
    fn lower(&self, mut kb: KernelBuilder<'_>, item: &Choice) -> Step {
        let (n_rows, threads) = (product(&self.rows), self.threads);
        kb.helper("order_key");
        let size = CANDIDATES * threads;
        let shared = format!("var<workgroup> lanes: array<u32, {size}>;\nvar<workgroup> rules: u32;");
        kb.global(&shared, u64::from(size + 1) * 4);
        let limit = kb.num(&n_rows);
        kb.line(format!("if (wg >= {limit}) {{ return; }}"));
        let n = kb.num(&self.n_tokens);
        kb.line(format!("let n = {n};"));
        self.largest(&mut kb);
        let settings = ["temperature", "top_k", "top_p", "min_p"];
        for (place, name) in settings.into_iter().enumerate() {
            let at = Index(vec![self.row(), Part::new(format!("{place}u"), vec![Num::Static(settings.len() as u64)], 1)]);
            let x = kb.emit(self.settings, &at, Width::One);
            kb.line(format!("let {name} = {x};"));
        }
        // A row is drawn from if its largest logit is finite and its temperature is above zero.
        kb.line("let is_finite = best > 0x007fffffu && best < 0xff800000u;");
        kb.open("if (lid == 0u)");
        kb.line("let is_drawn = temperature > 0.0 && is_finite;");
        kb.line("let has_k = is_drawn && top_k >= 1.0 && top_k < f32(n);");
        kb.line("let has_p = is_drawn && top_p > 0.0 && top_p < 1.0;");
        kb.line("rules = select(0u, 1u, is_drawn) | select(0u, 2u, has_k) | select(0u, 4u, has_p);");
        kb.close();
        kb.line("let rule = workgroupUniformLoad(&rules);");
        let largest = self.logit(&mut kb, "place");
        kb.line(format!("let largest = {largest};"));
        kb.line("var keep = 0u;");
        kb.line("var chosen = select(n, place, is_finite);");
        kb.line("var owner = 0u;");
        kb.line("var before = 0.0;");
        kb.line("var goal = 0.0;");
        kb.open("if ((rule & 2u) != 0u)");
        kb.line("goal = floor(top_k);");
        self.threshold(&mut kb, "1.0");
        kb.close();
        kb.open("if ((rule & 4u) != 0u)");
        kb.line("var share = 0.0;");
        kb.open(format!("for (var i = lid; i < n; i += {threads}u)"));
        self.weigh(&mut kb);
        kb.line("if (key >= keep) { share += weight; }");
        kb.close();
        let total = self.sums(&mut kb, &["share".to_owned()]);
        kb.line(format!("goal = top_p * {};", total[0]));
        kb.line("workgroupBarrier();");
        self.threshold(&mut kb, "weight");
        kb.close();
        kb.open("if ((rule & 1u) != 0u)");
        self.find_piece(&mut kb);
        kb.close();
        self.store(&mut kb, item);
        let pieces = self.n_tokens.value().div_ceil(u64::from(threads));
        let each_round = u64::from(threads / GROUPS + 2 * GROUPS);
        kb.finish(Finish {
            label: "sample".to_owned(),
            comment: "out[r] = the token that the row's settings and its number choose; a workgroup a row.".to_owned(),
            workgroup_size: threads,
            n_workgroups: n_rows.value(),
            loop_trips: PASSES.saturating_mul(pieces.saturating_add(each_round)),
            flops: n_rows.mul(&self.n_tokens).value().saturating_mul(4 * PASSES),
            computes: std::iter::once(item.value).chain(item.outputs.iter().copied().filter(|&out| out != item.value)).collect(),
        })
    }

    fn row(&self) -> Part {
        Part::new("wg", self.rows.clone(), 1)
    }

    fn logit(&self, kb: &mut KernelBuilder<'_>, at: &str) -> String {
        kb.emit(self.logits, &Index(vec![self.row(), Part::new(at, vec![self.n_tokens.clone()], 1)]), Width::One)
    }

    /// Binds `key` and `weight` of the token `i`. Weights of rows that are not drawn from are not read.
    fn weigh(&self, kb: &mut KernelBuilder<'_>) {
        let x = self.logit(kb, "i");
        kb.line(format!("let key = order_key({x});"));
        kb.line(format!("let weight = exp(({x} - largest) / temperature);"));
    }

    /// Binds `best`, the key of the largest logit, and `place`, the lowest index of those that have it.
    fn largest(&self, kb: &mut KernelBuilder<'_>) {
        let threads = self.threads;
        // Below any key.
        kb.line("var best = 0u;");
        kb.line("var place = 0u;");
        kb.open(format!("for (var i = lid; i < n; i += {threads}u)"));
        let x = self.logit(kb, "i");
        kb.line(format!("let key = order_key({x});"));
        kb.line("if (key > best) { best = key; place = i; }");
        kb.close();
        kb.line("lanes[lid] = best;");
        kb.line(format!("lanes[{threads}u + lid] = place;"));
        kb.line("workgroupBarrier();");
        // Two levels, each read by all that need it.
        for (who, from, to, step) in
            [("lid < 16u", format!("lid * {}u", threads / GROUPS), threads / GROUPS, 1), ("", "0u".to_owned(), GROUPS, threads / GROUPS)]
        {
            let is_last = who.is_empty();
            if !is_last {
                kb.open(format!("if ({who})"));
            }
            kb.line("best = 0u;");
            kb.open(format!("for (var s = 0u; s < {to}u; s++)"));
            kb.line(format!("let slot = {from} + s * {step}u;"));
            kb.line(format!("let other = lanes[{threads}u + slot];"));
            kb.line("if (lanes[slot] > best || (lanes[slot] == best && other < place)) { best = lanes[slot]; place = other; }");
            kb.close();
            if !is_last {
                kb.line(format!("lanes[{from}] = best;"));
                kb.line(format!("lanes[{threads}u + {from}] = place;"));
                kb.close();
            }
            kb.line("workgroupBarrier();");
        }
    }

    /// Raises `keep` to the largest key at which the sum of `measure` over the kept tokens with keys not below it reaches `goal`.
    fn threshold(&self, kb: &mut KernelBuilder<'_>, measure: &str) {
        kb.line("var base = 0u;");
        kb.open(format!("for (var round = 1u; round <= {ROUNDS}u; round++)"));
        kb.line(format!("let step = 1u << (32u - {BITS}u * round);"));
        let sums: Vec<String> = (1..=CANDIDATES).map(|candidate| format!("sum{candidate}")).collect();
        for sum in &sums {
            kb.line(format!("var {sum} = 0.0;"));
        }
        kb.open(format!("for (var i = lid; i < n; i += {}u)", self.threads));
        self.weigh(kb);
        kb.open("if (key >= keep)");
        for (sum, candidate) in sums.iter().zip(1..=CANDIDATES) {
            kb.line(format!("{sum} += select(0.0, {measure}, key >= base + {candidate}u * step);"));
        }
        kb.close();
        kb.close();
        let totals = self.sums(kb, &sums);
        kb.line("var digit = 0u;");
        for (total, candidate) in totals.iter().zip(1..=CANDIDATES) {
            kb.line(format!("if ({total} >= goal) {{ digit = {candidate}u; }}"));
        }
        kb.line("base += digit * step;");
        kb.line("workgroupBarrier();");
        kb.close();
        kb.line("keep = max(keep, base);");
    }

    /// Sums of each of `names` over all invocations, known to every one. A barrier has to stand before the next use of `lanes`.
    fn sums(&self, kb: &mut KernelBuilder<'_>, names: &[String]) -> Vec<String> {
        let threads = self.threads;
        let run = threads / GROUPS;
        for (i, name) in names.iter().enumerate() {
            kb.line(format!("lanes[{}u + lid] = bitcast<u32>({name});", i * threads as usize));
        }
        kb.line("workgroupBarrier();");
        let levels = [(names.len() * GROUPS as usize, run, run, 1), (names.len(), threads, GROUPS, run)];
        for (n_runs, apart, n_terms, step) in levels {
            kb.open(format!("for (var r = lid; r < {n_runs}u; r += {threads}u)"));
            kb.line("var total = 0.0;");
            kb.open(format!("for (var s = 0u; s < {n_terms}u; s++)"));
            kb.line(format!("total += bitcast<f32>(lanes[r * {apart}u + s * {step}u]);"));
            kb.close();
            kb.line(format!("lanes[r * {apart}u] = bitcast<u32>(total);"));
            kb.close();
            kb.line("workgroupBarrier();");
        }
        (0..names.len()).map(|i| format!("bitcast<f32>(lanes[{}u])", i * threads as usize)).collect()
    }

    /// Finds the `owner` of the piece of the row in which the sum of kept weights exceeds its `goal`, and the sum `before` it.
    fn find_piece(&self, kb: &mut KernelBuilder<'_>) {
        let threads = self.threads;
        let run = threads / GROUPS;
        kb.line("var share = 0.0;");
        self.for_piece(kb);
        kb.line("if (is_kept) { share += weight; }");
        kb.close();
        kb.line("lanes[lid] = bitcast<u32>(share);");
        kb.line("workgroupBarrier();");
        kb.open(format!("if (lid < {GROUPS}u)"));
        kb.line("var total = 0.0;");
        kb.line(format!("for (var s = 0u; s < {run}u; s++) {{ total += bitcast<f32>(lanes[lid * {run}u + s]); }}"));
        kb.line(format!("lanes[{threads}u + lid] = bitcast<u32>(total);"));
        kb.close();
        kb.line("workgroupBarrier();");
        kb.line("var total = 0.0;");
        kb.line(format!("for (var s = 0u; s < {GROUPS}u; s++) {{ total += bitcast<f32>(lanes[{threads}u + s]); }}"));
        let uniform = kb.emit(self.uniform, &Index(vec![self.row()]), Width::One);
        kb.line(format!("goal = {uniform} * total;"));
        // The last part with weight, if rounding leaves none that exceeds the goal.
        kb.line("var group = 0u;");
        for (part, first, n_parts, slot) in [("group", "0u".to_owned(), GROUPS, threads), ("owner", format!("group * {run}u"), run, 0)] {
            kb.line(format!("var at_{part} = before;"));
            kb.open(format!("for (var s = {first}; s < {first} + {n_parts}u; s++)"));
            kb.line(format!("let part = bitcast<f32>(lanes[{slot}u + s]);"));
            kb.line(format!("if (part > 0.0) {{ {part} = s; before = at_{part}; at_{part} += part; }}"));
            kb.line(format!("if (at_{part} > goal) {{ break; }}"));
            kb.close();
        }
    }

    /// Opens a loop over the invocation's own piece of the row, with `weight` and whether the token `is_kept`.
    fn for_piece(&self, kb: &mut KernelBuilder<'_>) {
        let threads = self.threads;
        kb.line(format!("let first = min(lid * ((n + {}u) / {threads}u), n);", threads - 1));
        kb.line(format!("let end = min(first + (n + {}u) / {threads}u, n);", threads - 1));
        kb.open("for (var i = first; i < end; i++)");
        self.weigh(kb);
        kb.line("let is_kept = key >= keep && weight > 0.0 && (weight >= min_p || key == best);");
    }

    /// The owner's walk, and the store of its token.
    fn store(&self, kb: &mut KernelBuilder<'_>, item: &Choice) {
        kb.open("if (lid == owner)");
        kb.open("if ((rule & 1u) != 0u)");
        kb.line("var sum = before;");
        self.for_piece(kb);
        kb.line("if (is_kept) { chosen = i; sum += weight; }");
        kb.line("if (sum > goal) { break; }");
        kb.close();
        kb.close();
        let index = Index(vec![self.row()]);
        kb.define(item.value, index.key(), Width::One, "chosen".to_owned());
        for &out in &item.outputs {
            store_like(kb, out, &index, Width::One);
        }
        kb.close();
    }
}
