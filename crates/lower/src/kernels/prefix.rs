//! Running sums along an axis.
//!
//! A row is everything along the axis at one position of the others. Short rows are summed by one invocation each. Long
//! ones are walked by a workgroup in chunks: each invocation sums four neighbors along the axis, the workgroup scans those
//! sums in two levels, and the total is carried on to the next chunk. Where neighboring elements belong to neighboring
//! rows, a workgroup has several of those side by side. The order of additions is always the same.
//!
//! Where sums start anew at resets, each partial sum goes with a flag that says whether it starts anew within; what comes
//! before such a part is not added to it.

use super::elementwise::{Body, append_bodies_of};
use super::store_like;
use crate::emit::kernel::register_type;
use crate::emit::num::product;
use crate::emit::{Finish, Index, KernelBuilder, LowerCtx, Num, Part, Width};
use crate::step::Step;
use indexmap::IndexSet;
use monopass_ir::{DType, Op, ValueId};

/// Rows of at most this many elements are summed by one invocation each.
const SHORT_ROW: u64 = 32;
/// Invocations a row where each row has one, and for rows of a few hundred elements.
const SMALL_GROUP: u32 = 64;
/// Invocations a row for longer ones.
const LARGE_GROUP: u32 = 256;
/// Most invocations a workgroup with rows side by side.
const WIDE_GROUP: u32 = 1024;
/// Most rows side by side: their elements fill a sector of memory.
const SIDE_BY_SIDE: u64 = 8;
/// Workgroups that the rows inside one outer position are at least divided among, if there are as many.
const LEAST_GROUPS: u64 = 32;
/// Neighbors that an invocation sums in a chunk.
const PER_INVOCATION: u32 = 4;

/// A running sum with what is fused to it.
#[derive(Clone, Debug)]
pub struct RunningSum {
    /// Result of the `cumsum` node.
    pub value: ValueId,
    /// Values to store: the sum, or elementwise results over the same elements in the same order. Each must be of an
    /// element type that [`can_store`](super::rows::can_store).
    pub outputs: Vec<ValueId>,
    /// Independent elementwise work that shares the dispatch.
    pub extra: Vec<Body>,
}

impl RunningSum {
    /// The sum alone.
    #[must_use]
    pub fn alone(value: ValueId) -> Self {
        Self { value, outputs: vec![value], extra: Vec::new() }
    }
}

/// One kernel for the cluster. `inline` says which values are computed and not loaded.
#[must_use]
pub fn lower_cumsum(ctx: &LowerCtx<'_>, item: &RunningSum, inline: &dyn Fn(ValueId) -> bool) -> Step {
    let mut kb = KernelBuilder::new(ctx, inline);
    let scan = Scan::new(&mut kb, item);
    let layout = Layout::choose(ctx, &scan);
    let n_groups = scan.n_rows.div_ceil(u64::from(if layout.lanes == 1 { layout.group() } else { layout.rows }));
    let (label, loop_trips) = if layout.lanes == 1 {
        scan.emit_short(&mut kb, layout.group());
        ("cumsum {short}".to_owned(), scan.n.value())
    } else {
        let chunk = u64::from(layout.lanes * PER_INVOCATION);
        LongRows { scan: &scan, layout }.emit(&mut kb, &n_groups);
        (format!("cumsum {{lanes = {}, rows = {}}}", layout.lanes, layout.rows), scan.n.value().div_ceil(chunk))
    };
    let first = kb.num(&n_groups);
    let n_extra = append_bodies_of(&mut kb, &item.extra, layout.group(), &first, false);
    let extra = item.extra.iter().flat_map(|body| &body.outputs);
    let computes: IndexSet<ValueId> = std::iter::once(&item.value).chain(&item.outputs).chain(extra).copied().collect();
    kb.finish(Finish {
        label,
        comment: "Running sums along one axis; a row is one invocation's or one workgroup's, or a workgroup has a few rows.".to_owned(),
        workgroup_size: layout.group(),
        n_workgroups: n_groups.value() + n_extra,
        loop_trips,
        flops: computes.iter().map(|&value| ctx.graph.ty(value).n_elems()).fold(0, u64::saturating_add),
        computes: computes.into_iter().collect(),
    })
}

/// How rows are divided among invocations.
#[derive(Clone, Copy)]
struct Layout {
    /// Invocations a row.
    lanes: u32,
    /// Rows a workgroup.
    rows: u32,
}

impl Layout {
    /// Depends on baked sizes only.
    fn choose(ctx: &LowerCtx<'_>, scan: &Scan<'_>) -> Self {
        let limit = 1 << ctx.target.max_invocations.min(ctx.target.max_workgroup_size[0]).max(1).ilog2();
        let lanes = match scan.n {
            Num::Static(n) if n <= SHORT_ROW => return Self { lanes: 1, rows: SMALL_GROUP.min(limit) },
            Num::Static(n) if n <= 256 => SMALL_GROUP,
            Num::Static(_) | Num::Dynamic { .. } => LARGE_GROUP,
        };
        let rows = match product(&scan.inner) {
            Num::Static(n) => 1 << (n / LEAST_GROUPS).clamp(1, SIDE_BY_SIDE).ilog2(),
            Num::Dynamic { .. } => 1,
        };
        let most = if ctx.target.is_cpu { SMALL_GROUP } else { WIDE_GROUP }.min(limit);
        let group = (lanes * rows).min(most);
        Self { lanes: (group / rows).max(2), rows }
    }

    const fn group(self) -> u32 {
        self.lanes * self.rows
    }
}

/// What is summed and how its axes are divided.
struct Scan<'i> {
    item: &'i RunningSum,
    operand: ValueId,
    dtype: DType,
    reverse: bool,
    /// Where sums start anew.
    reset: Option<ValueId>,
    /// What sums are taken modulo; 0 for nothing.
    period: f64,
    outer: Vec<Num>,
    n: Num,
    inner: Vec<Num>,
    n_rows: Num,
}

/// Positions of a row on the other axes.
struct RowParts {
    outer: Part,
    inner: Part,
}

impl<'i> Scan<'i> {
    fn new(kb: &mut KernelBuilder<'_>, item: &'i RunningSum) -> Self {
        let node = kb.ctx.graph.def(item.value);
        let (axis, reverse, period) =
            if let Some(Op::Cumsum { axis, reverse, period }) = node.op() { (*axis, *reverse, *period) } else { (0, false, 0.0) };
        let reset = node.operands.get(1).copied().flatten();
        let operand = node.operands.first().copied().flatten().unwrap_or(item.value);
        let sizes = kb.sizes(operand);
        let (outer, rest) = sizes.split_at(axis.min(sizes.len()));
        let (n, inner) = rest.split_first().map_or((Num::ONE, Vec::new()), |(n, inner)| (n.clone(), inner.to_vec()));
        let n_rows = product(outer.iter().chain(&inner));
        let dtype = kb.ctx.graph.ty(item.value).dtype;
        Self { item, operand, dtype, reverse, reset, period, outer: outer.to_vec(), n, inner, n_rows }
    }

    fn ty(&self) -> &'static str {
        register_type(self.dtype)
    }

    fn row_parts(&self, kb: &mut KernelBuilder<'_>, row: &str) -> RowParts {
        let sizes: Vec<Num> = self.outer.iter().chain(&self.inner).cloned().collect();
        let whole = if self.n_rows.is_one() { Part::zero(sizes) } else { Part::new(row, sizes, 1) };
        let (outer, inner) = kb.split_part(&whole, self.outer.len());
        RowParts { outer, inner }
    }

    /// Index of the element at a place on the axis, an identifier.
    fn index(&self, row: &RowParts, place: &str, align: u64) -> Index {
        Index(vec![row.outer.clone(), Part::new(place, vec![self.n.clone()], align), row.inner.clone()])
    }

    /// Place on the axis of the element that comes `step`th, the last of `width` neighbors if sums run from the end.
    fn place(&self, kb: &mut KernelBuilder<'_>, step: &str, width: u32) -> String {
        if !self.reverse {
            return step.to_owned();
        }
        let last = match self.n {
            Num::Static(n) => format!("{}u", n.saturating_sub(u64::from(width))),
            Num::Dynamic { .. } if width == 0 => kb.num(&self.n),
            Num::Dynamic { .. } => format!("{} - {width}u", kb.num(&self.n)),
        };
        kb.bind(format!("{last} - {step}"))
    }

    /// Sets the variable `flag` where the sum starts anew at the `step`th element; left alone at the first one from the end,
    /// behind which no place is.
    fn load_flag(&self, kb: &mut KernelBuilder<'_>, reset: ValueId, row: &RowParts, step: &str, flag: &str) {
        if self.reverse {
            kb.open(format!("if ({step} > 0u)"));
        }
        // From the end, the border before an element is the one that its neighbor behind it tells of.
        let place = self.place(kb, step, u32::from(!self.reverse));
        let index = Index(vec![row.outer.clone(), Part::new(place, vec![self.n.clone()], 1)]);
        let starts = kb.emit(reset, &index, Width::One);
        kb.line(format!("{flag} = {starts};"));
        if self.reverse {
            kb.close();
        }
    }

    /// Stores what is made from the sum `x` at an index.
    fn store(&self, kb: &mut KernelBuilder<'_>, index: &Index, width: Width, x: &str) {
        kb.define(self.item.value, index.key(), width, x.to_owned());
        if width == Width::Four {
            for lane in 0..4 {
                kb.define(self.item.value, index.lane(lane).key(), Width::One, format!("{x}[{lane}]"));
            }
        }
        for &out in &self.item.outputs {
            store_like(kb, out, index, width);
        }
    }

    /// One invocation a row.
    fn emit_short(&self, kb: &mut KernelBuilder<'_>, group: u32) {
        let ty = self.ty();
        let n_rows = kb.num(&self.n_rows);
        let row = kb.bind(format!("wg * {group}u + lid"));
        kb.open(format!("if ({row} < {n_rows})"));
        let parts = self.row_parts(kb, &row);
        let n = kb.num(&self.n);
        kb.line(format!("var sum: {ty};"));
        kb.open(format!("for (var step = 0u; step < {n}; step++)"));
        if let Some(reset) = self.reset {
            kb.line("var anew = false;");
            self.load_flag(kb, reset, &parts, "step", "anew");
            kb.line(format!("if (anew) {{ sum = {ty}(); }}"));
        }
        let place = self.place(kb, "step", 1);
        let index = self.index(&parts, &place, 1);
        let x = kb.emit(self.operand, &index, Width::One);
        kb.line(format!("sum += {x};"));
        self.wrap(kb, "sum");
        let sum = kb.fresh("sum");
        kb.line(format!("let {sum} = sum;"));
        self.store(kb, &index, Width::One, &sum);
        kb.close();
        kb.close();
    }

    /// Takes a variable modulo the period, if there is one.
    fn wrap(&self, kb: &mut KernelBuilder<'_>, name: &str) {
        if self.period > 0.0 {
            let wrapped = self.wrapped(kb, name);
            kb.line(format!("{name} = {wrapped};"));
        }
    }

    /// A sum, an identifier, modulo the period if there is one.
    fn wrapped(&self, kb: &mut KernelBuilder<'_>, sum: &str) -> String {
        if self.period == 0.0 { sum.to_owned() } else { kb.modulo(sum, self.period) }
    }
}

/// Rows that the invocations of a workgroup share, in chunks.
struct LongRows<'s> {
    scan: &'s Scan<'s>,
    layout: Layout,
}

impl LongRows<'_> {
    fn emit(&self, kb: &mut KernelBuilder<'_>, n_groups: &Num) {
        let scan = self.scan;
        let Layout { lanes, rows } = self.layout;
        let ty = scan.ty();
        let (n_groups, n) = (kb.num(n_groups), kb.num(&scan.n));
        self.declare(kb);
        kb.open(format!("if (wg < {n_groups})"));
        let (row, lane) = if rows == 1 {
            ("wg".to_owned(), "lid".to_owned())
        } else {
            (kb.bind(format!("wg * {rows}u + lid % {rows}u")), kb.bind(format!("lid / {rows}u")))
        };
        let parts = scan.row_parts(kb, &row);
        let end = if scan.n_rows.factor().is_multiple_of(u64::from(rows)) {
            n.clone()
        } else {
            // Invocations of rows over the end have no elements, but meet the others at the barriers.
            let n_rows = kb.num(&scan.n_rows);
            kb.bind(format!("select(0u, {n}, {row} < {n_rows})"))
        };
        kb.line(format!("var carry: {ty};"));
        kb.open(format!("for (var chunk = 0u; chunk < {n}; chunk += {}u)", lanes * PER_INVOCATION));
        kb.line(format!("let step = chunk + {lane} * {PER_INVOCATION}u;"));
        let is_quad = scan.inner.is_empty() && scan.n.is_multiple_of_4();
        self.load_neighbors(kb, &parts, &end, is_quad);
        self.sum_neighbors(kb);
        self.scan_workgroup(kb, &lane);
        self.store_neighbors(kb, &parts, &end, is_quad);
        kb.line(if scan.reset.is_some() {
            format!("carry = select(carry, {ty}(), total_cut) + total;")
        } else {
            "carry += total;".to_owned()
        });
        scan.wrap(kb, "carry");
        kb.line("workgroupBarrier();");
        kb.close();
        kb.close();
    }

    /// Invocations of a row that scan parts of it in the first of two levels; as many parts are left for the second.
    fn fan(&self) -> u32 {
        1 << self.layout.lanes.ilog2().div_ceil(2)
    }

    fn declare(&self, kb: &mut KernelBuilder<'_>) {
        let ty = self.scan.ty();
        let (n, n_totals) = (self.layout.group(), self.fan() * self.layout.rows);
        kb.global(&format!("var<workgroup> sums: array<{ty}, {n}>;"), u64::from(n) * 4);
        kb.global(&format!("var<workgroup> totals: array<{ty}, {n_totals}>;"), u64::from(n_totals) * 4);
        if self.scan.reset.is_some() {
            kb.global(&format!("var<workgroup> cuts: array<u32, {n}>;"), u64::from(n) * 4);
            kb.global(&format!("var<workgroup> total_cuts: array<u32, {n_totals}>;"), u64::from(n_totals) * 4);
        }
    }

    /// The next four elements in the order of summation, as `x0` to `x3`, zero over the end; with resets whether the sum
    /// starts anew at each, as `f0` to `f3`.
    fn load_neighbors(&self, kb: &mut KernelBuilder<'_>, parts: &RowParts, end: &str, is_quad: bool) {
        let scan = self.scan;
        let ty = scan.ty();
        if is_quad {
            kb.line(format!("var four: vec4<{ty}>;"));
            kb.open(format!("if (step < {end})"));
            let place = scan.place(kb, "step", PER_INVOCATION);
            let x = kb.emit(scan.operand, &scan.index(parts, &place, 4), Width::Four);
            kb.line(format!("four = {x};"));
            kb.close();
            let fields = if scan.reverse { ["w", "z", "y", "x"] } else { ["x", "y", "z", "w"] };
            for (i, field) in fields.into_iter().enumerate() {
                kb.line(format!("let x{i} = four.{field};"));
            }
        }
        for i in 0..PER_INVOCATION {
            if is_quad && scan.reset.is_none() {
                break;
            }
            if !is_quad {
                kb.line(format!("var x{i}: {ty};"));
            }
            if scan.reset.is_some() {
                kb.line(format!("var f{i} = false;"));
            }
            kb.open(format!("if (step + {i}u < {end})"));
            let step = kb.bind(format!("step + {i}u"));
            if !is_quad {
                let place = scan.place(kb, &step, 1);
                let x = kb.emit(scan.operand, &scan.index(parts, &place, 1), Width::One);
                kb.line(format!("x{i} = {x};"));
            }
            if let Some(reset) = scan.reset {
                scan.load_flag(kb, reset, parts, &step, &format!("f{i}"));
            }
            kb.close();
        }
    }

    /// The running sums of an invocation's own elements, `s0` to `s3`, and whether they start anew by then, `c0` to `c3`.
    fn sum_neighbors(&self, kb: &mut KernelBuilder<'_>) {
        let ty = self.scan.ty();
        let anew = self.scan.reset.is_some();
        for i in 0..PER_INVOCATION {
            let Some(before) = i.checked_sub(1) else {
                kb.line("let s0 = x0;");
                if anew {
                    kb.line("let c0 = f0;");
                }
                continue;
            };
            if anew {
                kb.line(format!("let s{i} = select(s{before}, {ty}(), f{i}) + x{i};"));
                kb.line(format!("let c{i} = c{before} || f{i};"));
            } else {
                kb.line(format!("let s{i} = s{before} + x{i};"));
            }
        }
    }

    fn store_neighbors(&self, kb: &mut KernelBuilder<'_>, parts: &RowParts, end: &str, is_quad: bool) {
        let scan = self.scan;
        let ty = scan.ty();
        let sum = |i: u32| {
            if scan.reset.is_some() { format!("select(before, {ty}(), c{i}) + s{i}") } else { format!("before + s{i}") }
        };
        if is_quad {
            kb.open(format!("if (step < {end})"));
            let place = scan.place(kb, "step", PER_INVOCATION);
            let mut ordered: Vec<String> = (0..PER_INVOCATION).map(sum).collect();
            if scan.reverse {
                ordered.reverse();
            }
            let x = kb.bind(format!("vec4<{ty}>({})", ordered.join(", ")));
            let x = scan.wrapped(kb, &x);
            let x = kb.bind(x);
            scan.store(kb, &scan.index(parts, &place, 4), Width::Four, &x);
            kb.close();
            return;
        }
        for i in 0..PER_INVOCATION {
            kb.open(format!("if (step + {i}u < {end})"));
            let step = kb.bind(format!("step + {i}u"));
            let place = scan.place(kb, &step, 1);
            let x = kb.bind(sum(i));
            let x = scan.wrapped(kb, &x);
            let x = kb.bind(x);
            scan.store(kb, &scan.index(parts, &place, 1), Width::One, &x);
            kb.close();
        }
    }

    /// From `s3` and `c3`, the sum of each invocation: `before`, the sum up to its elements with what was carried, and
    /// `total`, that of the chunk, with `total_cut`, whether it starts anew within. Reads of the arrays end before the barrier
    /// that closes the chunk.
    fn scan_workgroup(&self, kb: &mut KernelBuilder<'_>, lane: &str) {
        let ty = self.scan.ty();
        let Layout { lanes, rows } = self.layout;
        let fan = self.fan();
        let per_part = lanes / fan;
        let anew = self.scan.reset.is_some();
        kb.line("var own = s3;");
        self.scan.wrap(kb, "own");
        kb.line("sums[lid] = own;");
        if anew {
            kb.line("cuts[lid] = select(0u, 1u, c3);");
        }
        kb.line("workgroupBarrier();");
        self.scan_parts(kb, lane, per_part);
        kb.line("workgroupBarrier();");
        let (part, place) =
            (kb.bind(format!("{lane} / {per_part}u")), if rows == 1 { None } else { Some(kb.bind(format!("lid % {rows}u"))) });
        kb.line(format!("var within: {ty};"));
        kb.line(format!("var total: {ty};"));
        if anew {
            kb.line("var within_cut = false;");
            kb.line("var total_cut = false;");
        }
        for i in 0..fan {
            let at = place.as_ref().map_or_else(|| format!("{i}u"), |place| format!("{}u + {place}", i * rows));
            if anew {
                kb.line(format!("if ({part} == {i}u) {{ within = total; within_cut = total_cut; }}"));
                kb.line(format!("let cut{i} = total_cuts[{at}] != 0u;"));
                kb.line(format!("total = select(total, {ty}(), cut{i}) + totals[{at}];"));
                kb.line(format!("total_cut = total_cut || cut{i};"));
            } else {
                kb.line(format!("if ({part} == {i}u) {{ within = total; }}"));
                kb.line(format!("total += totals[{at}];"));
            }
        }
        if anew {
            kb.line("let own_cut = cuts[lid] != 0u;");
            kb.line(format!("within = select(within, {ty}(), own_cut) + sums[lid];"));
            kb.line(format!("let before = select(carry, {ty}(), within_cut || own_cut) + within;"));
        } else {
            kb.line("let before = carry + (within + sums[lid]);");
        }
    }

    /// The first level: puts what comes before each of `per_part` invocations within their part in place of their own sums,
    /// and the sums of the parts into `totals`.
    fn scan_parts(&self, kb: &mut KernelBuilder<'_>, lane: &str, per_part: u32) {
        let ty = self.scan.ty();
        let rows = self.layout.rows;
        let anew = self.scan.reset.is_some();
        kb.open(format!("if (lid < {}u)", self.fan() * rows));
        let first = if rows == 1 { format!("lid * {per_part}u") } else { format!("{lane} * {}u + lid % {rows}u", per_part * rows) };
        let first = kb.bind(first);
        kb.line(format!("var run: {ty};"));
        if anew {
            kb.line("var cut = 0u;");
        }
        for i in 0..per_part {
            let at = kb.bind(format!("{first} + {}u", i * rows));
            kb.line(format!("let y{i} = sums[{at}];"));
            kb.line(format!("sums[{at}] = run;"));
            if anew {
                kb.line(format!("let g{i} = cuts[{at}];"));
                kb.line(format!("cuts[{at}] = cut;"));
                kb.line(format!("run = select(run, {ty}(), g{i} != 0u) + y{i};"));
                kb.line(format!("cut |= g{i};"));
            } else {
                kb.line(format!("run += y{i};"));
            }
        }
        self.scan.wrap(kb, "run");
        kb.line("totals[lid] = run;");
        if anew {
            kb.line("total_cuts[lid] = cut;");
        }
        kb.close();
    }
}
