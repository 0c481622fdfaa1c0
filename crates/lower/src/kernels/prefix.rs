//! Running sums along an axis.
//!
//! A row is everything along the axis at one position of the others. Short rows are summed by one invocation each. A
//! long one is walked by a workgroup in chunks: each invocation sums four neighbors, the workgroup scans those sums in
//! two levels, and the total is carried on to the next chunk. The order of additions is always the same. Sums that start
//! anew at resets are made by one invocation a row whatever its length.

use crate::emit::kernel::register_type;
use crate::emit::num::product;
use crate::emit::{Finish, Index, KernelBuilder, LowerCtx, Num, Part, Width};
use crate::step::{Step, StepValue};
use monopass_ir::{DType, Op, ValueId};

/// Rows of at most this many elements are summed by one invocation each.
const SHORT_ROW: u64 = 32;
/// Invocations a workgroup where each has a row, and for rows of a few hundred elements.
const SMALL_GROUP: u32 = 64;
/// Invocations a workgroup for longer rows.
const LARGE_GROUP: u32 = 256;
/// Neighbors that an invocation sums in a chunk.
const PER_INVOCATION: u32 = 4;

/// One kernel for the result `value` of a `cumsum` node. `inline` says which values are computed and not loaded.
/// The result must be of an element type that [`can_store`](super::rows::can_store).
#[must_use]
pub fn lower_cumsum(ctx: &LowerCtx<'_>, value: ValueId, inline: &dyn Fn(ValueId) -> bool) -> Step {
    let mut kb = KernelBuilder::new(ctx, inline);
    let scan = Scan::new(&mut kb, value);
    let limit = ctx.target.max_invocations.min(ctx.target.max_workgroup_size[0]);
    let (label, workgroup_size, n_workgroups, loop_trips) = match scan.n {
        _ if scan.reset.is_some() => {
            let group = SMALL_GROUP.min(limit);
            scan.emit_short(&mut kb, group);
            ("cumsum {reset}".to_owned(), group, scan.n_rows.value().div_ceil(u64::from(group)), scan.n.value())
        }
        Num::Static(n) if n <= SHORT_ROW => {
            let group = SMALL_GROUP.min(limit);
            scan.emit_short(&mut kb, group);
            ("cumsum {short}".to_owned(), group, scan.n_rows.value().div_ceil(u64::from(group)), n)
        }
        Num::Static(_) | Num::Dynamic { .. } => {
            let is_small = ctx.target.is_cpu || matches!(scan.n, Num::Static(n) if n <= 256);
            let group = if is_small { SMALL_GROUP } else { LARGE_GROUP }.min(limit);
            scan.emit_long(&mut kb, group);
            let trips = scan.n.value().div_ceil(u64::from(group * PER_INVOCATION));
            (format!("cumsum {{group = {group}}}"), group, scan.n_rows.value(), trips)
        }
    };
    kb.finish(Finish {
        label,
        comment: "Running sums along one axis; a row is one invocation's or one workgroup's.".to_owned(),
        workgroup_size,
        n_workgroups,
        loop_trips,
        flops: ctx.graph.ty(value).n_elems(),
        computes: vec![value],
    })
}

/// What is summed and how its axes are divided.
struct Scan {
    value: ValueId,
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

impl Scan {
    fn new(kb: &mut KernelBuilder<'_>, value: ValueId) -> Self {
        let node = kb.ctx.graph.def(value);
        let (axis, reverse, period) =
            if let Some(Op::Cumsum { axis, reverse, period }) = node.op() { (*axis, *reverse, *period) } else { (0, false, 0.0) };
        let reset = node.operands.get(1).copied().flatten();
        let operand = node.operands.first().copied().flatten().unwrap_or(value);
        let sizes = kb.sizes(operand);
        let (outer, rest) = sizes.split_at(axis.min(sizes.len()));
        let (n, inner) = rest.split_first().map_or((Num::ONE, Vec::new()), |(n, inner)| (n.clone(), inner.to_vec()));
        let n_rows = product(outer.iter().chain(&inner));
        Self { value, operand, dtype: kb.ctx.graph.ty(value).dtype, reverse, reset, period, outer: outer.to_vec(), n, inner, n_rows }
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
        let last = if let Num::Static(n) = self.n {
            format!("{}u", n.saturating_sub(u64::from(width)))
        } else {
            format!("{} - {width}u", kb.num(&self.n))
        };
        kb.bind(format!("{last} - {step}"))
    }

    fn store(&self, kb: &mut KernelBuilder<'_>, index: &Index, width: Width, x: &str) {
        let (flat, aligned) = index.flat(kb);
        let at = kb.bind(flat);
        let is_quad = width == Width::Four;
        let name = kb.write(StepValue::Graph(self.value), self.dtype, is_quad && aligned && self.dtype == DType::F32);
        kb.line(format!("{}_{name}({at}, {x});", if is_quad { "st4" } else { "st" }));
    }

    /// One invocation a row.
    fn emit_short(&self, kb: &mut KernelBuilder<'_>, group: u32) {
        let n_rows = kb.num(&self.n_rows);
        let row = kb.bind(format!("wg * {group}u + lid"));
        kb.open(format!("if ({row} < {n_rows})"));
        let parts = self.row_parts(kb, &row);
        let n = kb.num(&self.n);
        kb.line(format!("var sum: {};", register_type(self.dtype)));
        kb.open(format!("for (var step = 0u; step < {n}; step++)"));
        let place = self.place(kb, "step", 1);
        let index = self.index(&parts, &place, 1);
        let starts = self.reset.map(|reset| {
            let index = Index(vec![parts.outer.clone(), Part::new(&place, vec![self.n.clone()], 1)]);
            kb.emit(reset, &index, Width::One)
        });
        let anew = starts.map(|starts| format!("if ({starts}) {{ sum = {}(); }}", register_type(self.dtype)));
        if let Some(anew) = anew.as_ref().filter(|_| !self.reverse) {
            kb.line(anew);
        }
        let x = kb.emit(self.operand, &index, Width::One);
        kb.line(format!("sum += {x};"));
        self.wrap(kb, "sum");
        self.store(kb, &index, Width::One, "sum");
        if let Some(anew) = anew.as_ref().filter(|_| self.reverse) {
            kb.line(anew);
        }
        kb.close();
        kb.close();
    }

    /// Takes a variable modulo the period, if there is one.
    fn wrap(&self, kb: &mut KernelBuilder<'_>, name: &str) {
        if self.period > 0.0 {
            let by = self.turns(name);
            kb.line(format!("{name} -= {by};"));
        }
    }

    /// The whole periods in a sum, which its value modulo the period lacks.
    fn turns(&self, sum: &str) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "the kernel's arithmetic is f32")]
        let period = self.period as f32;
        format!("{period:?} * floor({sum} / {period:?} + 0.5)")
    }

    /// A workgroup a row, in chunks.
    fn emit_long(&self, kb: &mut KernelBuilder<'_>, group: u32) {
        let ty = register_type(self.dtype);
        let n_rows = kb.num(&self.n_rows);
        let n = kb.num(&self.n);
        let fan = if group > 64 { 16 } else { 8 };
        kb.global(&format!("var<workgroup> sums: array<{ty}, {group}>;"), u64::from(group) * 4);
        kb.global(&format!("var<workgroup> totals: array<{ty}, {fan}>;"), u64::from(fan) * 4);
        kb.open(format!("if (wg < {n_rows})"));
        let parts = self.row_parts(kb, "wg");
        kb.line(format!("var carry: {ty};"));
        kb.open(format!("for (var chunk = 0u; chunk < {n}; chunk += {}u)", group * PER_INVOCATION));
        kb.line(format!("let step = chunk + lid * {PER_INVOCATION}u;"));
        let is_quad = self.inner.is_empty() && self.n.is_multiple_of_4();
        self.load_neighbors(kb, &parts, &n, is_quad);
        kb.line("let s1 = x0 + x1;");
        kb.line("let s2 = s1 + x2;");
        kb.line("let s3 = s2 + x3;");
        self.scan_workgroup(kb, ty, group, fan);
        kb.line("let before = carry + within;");
        self.store_neighbors(kb, &parts, &n, is_quad);
        kb.line("carry += total;");
        self.wrap(kb, "carry");
        kb.line("workgroupBarrier();");
        kb.close();
        kb.close();
    }

    /// The next four elements in the order of summation, as `x0` to `x3`; zero over the end.
    fn load_neighbors(&self, kb: &mut KernelBuilder<'_>, parts: &RowParts, n: &str, is_quad: bool) {
        let ty = register_type(self.dtype);
        if is_quad {
            kb.line(format!("var four: vec4<{ty}>;"));
            kb.open(format!("if (step < {n})"));
            let place = self.place(kb, "step", PER_INVOCATION);
            let x = kb.emit(self.operand, &self.index(parts, &place, 4), Width::Four);
            kb.line(format!("four = {x};"));
            kb.close();
            for (i, lane) in self.lanes().into_iter().enumerate() {
                kb.line(format!("let x{i} = four.{lane};"));
            }
            return;
        }
        for i in 0..PER_INVOCATION {
            kb.line(format!("var x{i}: {ty};"));
            kb.open(format!("if (step + {i}u < {n})"));
            let step = kb.bind(format!("step + {i}u"));
            let place = self.place(kb, &step, 1);
            let x = kb.emit(self.operand, &self.index(parts, &place, 1), Width::One);
            kb.line(format!("x{i} = {x};"));
            kb.close();
        }
    }

    fn store_neighbors(&self, kb: &mut KernelBuilder<'_>, parts: &RowParts, n: &str, is_quad: bool) {
        let ty = register_type(self.dtype);
        let sums = ["x0", "s1", "s2", "s3"];
        if is_quad {
            kb.open(format!("if (step < {n})"));
            let place = self.place(kb, "step", PER_INVOCATION);
            let mut ordered = sums.to_vec();
            if self.reverse {
                ordered.reverse();
            }
            let mut x = kb.bind(format!("vec4<{ty}>({}) + before", ordered.join(", ")));
            if self.period > 0.0 {
                x = format!("{x} - {}", self.turns(&x));
            }
            self.store(kb, &self.index(parts, &place, 4), Width::Four, &x);
            kb.close();
            return;
        }
        for (i, sum) in sums.into_iter().enumerate() {
            kb.open(format!("if (step + {i}u < {n})"));
            let step = kb.bind(format!("step + {i}u"));
            let place = self.place(kb, &step, 1);
            let mut x = format!("before + {sum}");
            if self.period > 0.0 {
                let sum = kb.bind(x);
                x = format!("{sum} - {}", self.turns(&sum));
            }
            self.store(kb, &self.index(parts, &place, 1), Width::One, &x);
            kb.close();
        }
    }

    /// Fields of four loaded neighbors in the order of summation.
    const fn lanes(&self) -> [&'static str; 4] {
        if self.reverse { ["w", "z", "y", "x"] } else { ["x", "y", "z", "w"] }
    }

    /// From `s3`, the sum of each invocation: `within`, the sum of the invocations before it, and `total`, that of all.
    /// Reads of the arrays end before the barrier that closes the chunk.
    fn scan_workgroup(&self, kb: &mut KernelBuilder<'_>, ty: &str, group: u32, fan: u32) {
        let per_lane = group / fan;
        kb.line("sums[lid] = s3;");
        kb.line("workgroupBarrier();");
        kb.open(format!("if (lid < {fan}u)"));
        kb.line(format!("var run: {ty};"));
        for i in 0..per_lane {
            kb.line(format!("let y{i} = sums[lid * {per_lane}u + {i}u];"));
            kb.line(format!("sums[lid * {per_lane}u + {i}u] = run;"));
            kb.line(format!("run += y{i};"));
        }
        self.wrap(kb, "run");
        kb.line("totals[lid] = run;");
        kb.close();
        kb.line("workgroupBarrier();");
        kb.line("var within = sums[lid];");
        kb.line(format!("var total: {ty};"));
        for i in 0..fan {
            if i + 1 < fan {
                kb.line(format!("if (lid >= {}u) {{ within += totals[{i}u]; }}", (i + 1) * per_lane));
            }
            kb.line(format!("total += totals[{i}u];"));
        }
    }
}
