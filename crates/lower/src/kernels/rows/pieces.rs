//! Long rows on a GPU whose rows alone are too few workgroups: sums and maxima over pieces of the columns.
//!
//! The first kernel reduces each piece of each row, the second combines the pieces of a row in a fixed order and computes
//! what is fused behind the reductions. Where there are rows enough one kernel does both. Neighboring rows of a domain whose
//! last axis is kept are read a cache line at a time, four rows an invocation where 4 divides that axis. For clusters that
//! pass over a row once only, and for baked sizes only; the kernels of software devices stay whole.

use super::combine::{Partial, Sheet};
use super::layout::{Layout, MAX_UNROLLED, Row};
use super::{Accumulator, Kind, Reduction, Rows, accumulate, define_result, write_single};
use crate::emit::{Finish, KernelBuilder, LowerCtx, Num};
use crate::kernels::elementwise::append_bodies_of;
use crate::step::{Step, StepValue, Temp};
use monopass_ir::{DType, ValueId};

/// Domains of fewer elements take one kernel, because a second one has to start and to read what the first has written.
const LEAST_ELEMS: u64 = 1 << 16;
/// Rows of at most this many columns stay whole.
const SHORT_ROW: u64 = 256;
/// Workgroups that fill a GPU; where rows give fewer they are cut, into as many pieces as make [`WANTED_WORKGROUPS`].
const ENOUGH_WORKGROUPS: u64 = 96;
/// Workgroups that hide the latency of their loads.
const WANTED_WORKGROUPS: u64 = 256;
/// From this many workgroups on rows stay whole, however long they are.
const MANY_WORKGROUPS: u64 = 512;
/// Most pieces of a row, so that combining them stays short; longer pieces take loops that are not unrolled.
const MOST_PIECES: u64 = 4096;
/// Most invocations a workgroup.
const THREADS: u32 = 256;
/// Least invocations of a workgroup that combines pieces.
const LEAST_THREADS: u32 = 64;
/// Most rows side by side in a workgroup that combines pieces.
const COMBINED_ROWS: u32 = 32;
/// Rows side by side that still read whole sectors of memory.
const LEAST_COMBINED_ROWS: u32 = 8;
/// Pieces an invocation that combines them, where rows can be spread over more workgroups for that.
const COMBINED_TRIPS: u64 = 4;

/// A cluster whose rows are cut into pieces, or are whole but read a line at a time.
pub(super) struct Pieces<'a> {
    ctx: &'a LowerCtx<'a>,
    rows: &'a Rows,
    inline: &'a dyn Fn(ValueId) -> bool,
    reductions: Vec<Reduction>,
    layout: Layout,
    dtype: DType,
    n_rows: u64,
    n_columns: u64,
    n_groups: u64,
    n_pieces: u64,
    /// Columns of a piece; the last piece of a row may have fewer.
    span: u64,
}

impl<'a> Pieces<'a> {
    /// How the cluster is cut; none where whole rows are right.
    pub(super) fn choose(
        ctx: &'a LowerCtx<'a>,
        rows: &'a Rows,
        inline: &'a dyn Fn(ValueId) -> bool,
        phases: &[Vec<Reduction>],
    ) -> Option<Self> {
        let [reductions] = phases else { return None };
        let is_simple = reductions.iter().all(|reduction| reduction.kind != Kind::Argmax);
        let dtype = partial_dtype(ctx, reductions)?;
        if ctx.target.is_cpu || !is_simple {
            return None;
        }
        let mut kb = KernelBuilder::new(ctx, inline);
        let limit = ctx.target.max_invocations.min(ctx.target.max_workgroup_size[0]).max(1);
        let threads = THREADS.min(1 << limit.ilog2());
        // A vector of four rows takes four times the workgroup memory.
        let fits = |each: u64| reductions.len() as u64 * (each + 1) * u64::from(THREADS) * 4 <= ctx.target.max_workgroup_bytes;
        let mut layout = Layout::of_pieces(&mut kb, rows.domain, &rows.axes, threads, fits(4));
        let (Num::Static(n_rows), Num::Static(n_columns), Num::Static(n_groups)) =
            (&layout.n_rows, &layout.n_columns, &layout.n_workgroups)
        else {
            return None;
        };
        let (n_rows, n_columns, n_groups) = (*n_rows, *n_columns, *n_groups);
        if n_columns <= SHORT_ROW || n_rows.saturating_mul(n_columns) < LEAST_ELEMS || !fits(1) {
            return None;
        }
        let unit = u64::from(layout.lanes) * layout.columns_each();
        let trips = trips(n_columns, n_groups, unit);
        let span = trips * unit;
        let n_pieces = n_columns.div_ceil(span);
        if !are_single(&mut kb, rows, &layout) || n_pieces == 1 && !layout.side_by_side {
            return None;
        }
        layout.unrolled = (n_columns.is_multiple_of(span) && trips <= MAX_UNROLLED).then_some(trips);
        Some(Self { ctx, rows, inline, reductions: reductions.clone(), layout, dtype, n_rows, n_columns, n_groups, n_pieces, span })
    }

    /// One kernel, or two that hand each other a value of `temps`.
    pub(super) fn lower(&self, temps: &mut Vec<Temp>) -> Vec<Step> {
        if self.n_pieces == 1 {
            return vec![self.reduce(None)];
        }
        let temp = StepValue::Temp(temps.len());
        let n_partials = (self.reductions.len() as u64).saturating_mul(self.n_pieces).saturating_mul(self.n_rows);
        temps.push(Temp { of: self.rows.reductions[0], name: "pieces", size_bytes: n_partials.saturating_mul(4) });
        vec![self.reduce(Some(temp)), self.combine(temp)]
    }

    /// The kernel that reduces pieces to values of `temp`, or whole rows to what the cluster stores.
    fn reduce(&self, temp: Option<StepValue>) -> Step {
        let mut kb = KernelBuilder::new(self.ctx, self.inline);
        let sheet = Sheet { lanes: self.layout.lanes, rows: self.layout.rows, rows_each: self.layout.rows_each };
        let n_workgroups = self.n_groups * self.n_pieces;
        kb.open(format!("if (wg < {n_workgroups}u)"));
        let (row, first, piece) = self.place(&mut kb);
        let accumulators = accumulate(&mut kb, &self.layout, &row, &self.reductions);
        let own = sheet.open_totals(&mut kb, &accumulators, &first, self.n_rows);
        for (idx, (accumulator, total)) in (0..).zip(accumulators.iter().zip(&own.totals)) {
            match temp {
                Some(temp) => {
                    let name = kb.write(temp, self.dtype, false);
                    kb.line(format!("st_{name}({}, {total});", self.place_of_partial(idx, &piece, &own.row)));
                }
                None => define_result(&mut kb, &self.layout.n_columns, accumulator.reduction, total),
            }
        }
        if temp.is_none() {
            self.rows.outputs.iter().for_each(|&out| write_single(&mut kb, out, &own.row));
        }
        kb.close();
        kb.close();
        self.finish_reduce(kb, &sheet, temp.is_some())
    }

    fn finish_reduce(&self, mut kb: KernelBuilder<'_>, sheet: &Sheet, is_partial: bool) -> Step {
        let n_workgroups = self.n_groups * self.n_pieces;
        let n_extra = append_bodies_of(&mut kb, &self.rows.extra, sheet.threads(), &format!("{n_workgroups}u"), false);
        let extra = || self.rows.extra.iter().flat_map(|body| body.outputs.iter().copied());
        let flops_extra: u64 = extra().map(|out| self.ctx.graph.ty(out).n_elems()).sum();
        let n_domain = self.n_rows.saturating_mul(self.n_columns);
        let outputs = if is_partial { &[] } else { self.rows.outputs.as_slice() };
        let mut computes: Vec<ValueId> = self.rows.reductions.clone();
        computes.extend(outputs.iter().copied().filter(|out| !self.rows.reductions.contains(out)));
        computes.extend(extra());
        let (lanes, rows, n_pieces) = (sheet.lanes, sheet.rows, self.n_pieces);
        let trips = self.span / (u64::from(lanes) * self.layout.columns_each());
        kb.finish(Finish {
            label: format!("rows {{lanes = {lanes}, rows = {rows}, pieces = {n_pieces}}}"),
            comment: format!(
                "A workgroup reduces {} columns of {rows} neighboring rows, {lanes} invocations a row{}.",
                self.span,
                if sheet.rows_each == 1 { "" } else { ", which take four rows at once" }
            ),
            workgroup_size: sheet.threads(),
            n_workgroups: n_workgroups + n_extra,
            loop_trips: if self.layout.unrolled.is_some() { 0 } else { trips },
            flops: n_domain.saturating_mul(self.reductions.len() as u64).saturating_add(flops_extra),
            computes,
        })
    }

    /// The rows and the piece of an invocation; the first row of its workgroup, and its piece, as identifiers.
    fn place(&self, kb: &mut KernelBuilder<'_>) -> (Row, String, String) {
        let (n_groups, rows, each) = (self.n_groups, self.layout.rows, self.layout.rows_each);
        let across = rows / each;
        let piece = match (self.n_pieces, n_groups) {
            (1, _) => "0u".to_owned(),
            (_, 1) => "wg".to_owned(),
            _ => kb.bind(format!("wg / {n_groups}u")),
        };
        let group = if n_groups == 1 { "0u".to_owned() } else { kb.bind(format!("wg % {n_groups}u")) };
        let (place, lane) = if across == 1 {
            ("0u".to_owned(), "lid".to_owned())
        } else {
            (kb.bind(format!("lid % {across}u")), kb.bind(format!("lid / {across}u")))
        };
        let first = if n_groups == 1 { group } else { kb.bind(format!("{group} * {rows}u")) };
        // Rows over the end repeat the last ones, so that all invocations meet at the barriers.
        let last = self.n_rows - u64::from(each);
        let own = if each == 1 { place.clone() } else { format!("{place} * {each}u") };
        let own = if first == "0u" { own } else { format!("{first} + {own}") };
        let position = if last == 0 { "0u".to_owned() } else { kb.bind(format!("min({own}, {last}u)")) };
        let parts = self.layout.row_parts(kb, &position);
        let span = (self.n_pieces > 1).then(|| {
            let begin = kb.bind(format!("{piece} * {}u", self.span));
            let end = format!("min({begin} + {}u, {}u)", self.span, self.n_columns);
            [begin, end]
        });
        let row = Row { position, lane, place, is_real: "true".to_owned(), parts, piece: span };
        (row, first, piece)
    }

    /// Place of a reduction's result over a piece of a row in the value that the kernels share.
    fn place_of_partial(&self, idx: u64, piece: &str, row: &str) -> String {
        let first = idx * self.n_pieces;
        let line = if first == 0 { piece.to_owned() } else { format!("({first}u + {piece})") };
        format!("{line} * {}u + {row}", self.n_rows)
    }

    /// The kernel that combines the pieces of each row and computes the outputs.
    fn combine(&self, temp: StepValue) -> Step {
        let mut kb = KernelBuilder::new(self.ctx, self.inline);
        let sheet = self.combining_sheet();
        let n_groups = self.n_rows.div_ceil(u64::from(sheet.rows));
        kb.open(format!("if (wg < {n_groups}u)"));
        let rows = sheet.rows;
        let first = kb.bind(format!("wg * {rows}u"));
        let (place, lane) = (kb.bind(format!("lid % {rows}u")), kb.bind(format!("lid / {rows}u")));
        let row = kb.bind(format!("min({first} + {place}, {}u)", self.n_rows - 1));
        let accumulators = self.accumulate_pieces(&mut kb, temp, &lane, &row, sheet.lanes);
        let own = sheet.open_totals(&mut kb, &accumulators, &first, self.n_rows);
        for (accumulator, total) in accumulators.iter().zip(&own.totals) {
            define_result(&mut kb, &self.layout.n_columns, accumulator.reduction, total);
        }
        self.rows.outputs.iter().for_each(|&out| write_single(&mut kb, out, &own.row));
        kb.close();
        kb.close();
        let n_partials = (self.reductions.len() as u64).saturating_mul(self.n_pieces);
        kb.finish(Finish {
            label: format!("rows_combine {{lanes = {}, rows = {rows}, pieces = {}}}", sheet.lanes, self.n_pieces),
            comment: format!("A workgroup combines the pieces of {rows} neighboring rows, {} invocations a row.", sheet.lanes),
            workgroup_size: sheet.threads(),
            n_workgroups: n_groups,
            loop_trips: self.combining_trips(sheet.lanes),
            flops: self.n_rows.saturating_mul(n_partials.saturating_add(self.rows.outputs.len() as u64)),
            computes: self.rows.outputs.clone(),
        })
    }

    fn combining_sheet(&self) -> Sheet {
        let most = self.layout.lanes * (self.layout.rows / self.layout.rows_each);
        let fitting = |n: u64, most: u32| u32::try_from(n).unwrap_or(most).clamp(1, most).next_power_of_two().min(most);
        // Where pieces are many, a workgroup has more invocations for each of fewer rows.
        let lanes = fitting(self.n_pieces.div_ceil(COMBINED_TRIPS), (most / LEAST_COMBINED_ROWS).max(1));
        let rows = fitting(self.n_rows, COMBINED_ROWS.min(most / lanes));
        let lanes = fitting(self.n_pieces, most / rows).max((LEAST_THREADS.min(most) / rows).max(1));
        Sheet { lanes, rows, rows_each: 1 }
    }

    /// Trips over the pieces that are not unrolled.
    fn combining_trips(&self, lanes: u32) -> u64 {
        let trips = self.n_pieces.div_ceil(u64::from(lanes));
        if trips <= MAX_UNROLLED { 0 } else { trips }
    }

    /// Each invocation's share of the pieces of its row.
    fn accumulate_pieces(&self, kb: &mut KernelBuilder<'_>, temp: StepValue, lane: &str, row: &str, lanes: u32) -> Vec<Accumulator> {
        let name = kb.read(temp, self.dtype, false);
        let accumulators: Vec<Accumulator> = self.reductions.iter().map(|&reduction| Accumulator::new(kb, reduction)).collect();
        self.start_pieces(kb, &accumulators, &name, lane, row);
        let add = |kb: &mut KernelBuilder<'_>, piece: &str| {
            for (idx, Accumulator { partial, .. }) in (0..).zip(&accumulators) {
                let x = format!("ld_{name}({})", self.place_of_partial(idx, piece, row));
                kb.line(partial.adding(&x));
            }
        };
        let n = self.n_pieces;
        if self.combining_trips(lanes) > 0 {
            let piece = kb.fresh("p");
            kb.open(format!("for (var {piece} = {lane}; {piece} < {n}u; {piece} += {lanes}u)"));
            add(kb, &piece);
            kb.close();
            return accumulators;
        }
        for trip in 0..n.div_ceil(u64::from(lanes)) {
            let first = trip * u64::from(lanes);
            let piece = kb.bind(if first == 0 { lane.to_owned() } else { format!("{lane} + {first}u") });
            let is_ragged = first + u64::from(lanes) > n;
            if is_ragged {
                kb.open(format!("if ({piece} < {n}u)"));
            }
            add(kb, &piece);
            if is_ragged {
                kb.close();
            }
        }
        accumulators
    }

    /// Starts an invocation's shares of the pieces of its row.
    fn start_pieces(&self, kb: &mut KernelBuilder<'_>, accumulators: &[Accumulator], name: &str, lane: &str, row: &str) {
        for (idx, Accumulator { partial, .. }) in (0..).zip(accumulators) {
            let Partial { kind, ty, value, .. } = partial;
            if *kind == Kind::Max {
                // As over columns: counting an element twice changes no maximum.
                let first = kb.bind(format!("min({lane}, {}u)", self.n_pieces - 1));
                kb.line(format!("var {value} = ld_{name}({});", self.place_of_partial(idx, &first, row)));
            } else {
                kb.line(format!("var {value}: {ty};"));
            }
        }
    }
}

/// Whether the outputs have one element a row, in every run.
fn are_single(kb: &mut KernelBuilder<'_>, rows: &Rows, layout: &Layout) -> bool {
    rows.outputs.iter().all(|&out| {
        let is_baked = kb.sizes(out).iter().all(|size| matches!(size, Num::Static(_)));
        is_baked && !layout.is_full(kb, rows.domain, out)
    })
}

/// Trips of a workgroup over columns, `unit` of them at a time. Pieces that divide the row need no test at their end, so a
/// number somewhat smaller than wanted may do better.
fn trips(n_columns: u64, n_groups: u64, unit: u64) -> u64 {
    let whole = n_columns.div_ceil(unit);
    if n_groups >= MANY_WORKGROUPS {
        return whole;
    }
    let wanted_pieces = if n_groups < ENOUGH_WORKGROUPS { WANTED_WORKGROUPS.div_ceil(n_groups.max(1)) } else { 1 };
    let wanted = (whole / wanted_pieces).clamp(1, MAX_UNROLLED);
    let exact = (wanted.div_ceil(2)..=wanted).rev().find(|trips| n_columns.is_multiple_of(trips * unit));
    exact.unwrap_or(wanted).max(whole.div_ceil(MOST_PIECES))
}

/// The element type in which partial results of all the reductions are stored, if there is one.
fn partial_dtype(ctx: &LowerCtx<'_>, reductions: &[Reduction]) -> Option<DType> {
    let stored = |reduction: &Reduction| match ctx.graph.ty(reduction.operand).dtype {
        DType::F32 | DType::F16 | DType::Bf16 => Some(DType::F32),
        DType::I32 => Some(DType::I32),
        DType::U32 => Some(DType::U32),
        DType::Bool | DType::I8 => None,
    };
    let first = stored(reductions.first()?)?;
    reductions.iter().all(|reduction| stored(reduction) == Some(first)).then_some(first)
}
