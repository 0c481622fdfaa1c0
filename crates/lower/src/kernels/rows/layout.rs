//! How rows and columns are divided among invocations.

use crate::emit::num::product;
use crate::emit::{Index, KernelBuilder, Num, Part, Width};
use monopass_ir::ValueId;
use std::ops::Range;

/// Invocations a workgroup where one or a few of them take a whole row.
const SMALL_GROUP: u32 = 64;
/// Most invocations a row.
const MAX_LANES: u32 = 256;
/// The same on a software device, where a barrier costs more than the parallelism within a workgroup brings.
const MAX_LANES_CPU: u32 = 32;
/// Rows of at most this many elements are read by one invocation each.
const SHORT_ROW: u64 = 32;
/// Rows side by side in a workgroup where neighboring elements belong to neighboring rows.
const SIDE_BY_SIDE: u32 = 16;
/// Elements of neighboring rows that a workgroup reads at once where rows are long: 128 bytes, a line of a GPU's cache.
const LINE: u32 = 32;
/// A loop of at most this many trips is unrolled, so that outputs find in registers what reductions have read.
pub(super) const MAX_UNROLLED: u64 = 8;

/// The division of a domain into rows and columns, and of those among invocations.
#[derive(Debug)]
pub(super) struct Layout {
    /// Invocations a row.
    pub(super) lanes: u32,
    /// Rows a workgroup.
    pub(super) rows: u32,
    /// Elements an invocation reads at a time.
    pub(super) width: Width,
    /// Neighboring rows that these belong to: 1, or 4 where an invocation takes as many rows at once.
    pub(super) rows_each: u32,
    /// Trips over the columns where they are unrolled.
    pub(super) unrolled: Option<u64>,
    /// Workgroups.
    pub(super) n_workgroups: Num,
    /// Columns.
    pub(super) n_columns: Num,
    /// Rows.
    pub(super) n_rows: Num,
    /// Neighboring invocations have neighboring rows, and not neighboring columns of one.
    pub(super) side_by_side: bool,
    /// Runs of axes that are all kept or all reduced.
    runs: Vec<Run>,
    axes: Vec<usize>,
    kept_sizes: Vec<Num>,
    reduced_sizes: Vec<Num>,
}

#[derive(Clone, Debug)]
struct Run {
    is_reduced: bool,
    /// Range within the kept or the reduced axes.
    axes: Range<usize>,
}

/// The row of an invocation, as identifiers.
#[derive(Debug)]
pub(super) struct Row {
    /// Position of the row among all.
    pub(super) position: String,
    /// Place of the invocation among those of the row.
    pub(super) lane: String,
    /// Place of the row among those of the workgroup.
    pub(super) place: String,
    /// Whether the row is not one repeated to fill the workgroup; a bool.
    pub(super) is_real: String,
    /// Position within each kept run.
    pub(super) parts: Vec<Part>,
    /// First column and the end of the workgroup's piece of the row, if it has not all of it.
    pub(super) piece: Option<[String; 2]>,
}

impl Layout {
    /// The division of the shape of `domain`. Depends on baked sizes only.
    pub(super) fn choose(kb: &mut KernelBuilder<'_>, domain: ValueId, axes: &[usize]) -> Self {
        let (layout, inner) = Self::undivided(kb, domain, axes);
        let is_quad = !layout.side_by_side && layout.last_is_quad(kb, domain) && layout.n_columns.is_multiple_of_4();
        let width = if is_quad && !matches!(layout.n_columns, Num::Static(0)) { Width::Four } else { Width::One };
        let (lanes, rows) = choose_lanes(kb, &layout.n_columns, width, layout.side_by_side.then_some(&inner));
        let per_trip = u64::from(lanes) * n_elems(width);
        let unrolled = match layout.n_columns {
            Num::Static(n) if n % per_trip == 0 && n / per_trip <= MAX_UNROLLED => Some(n / per_trip),
            Num::Static(_) | Num::Dynamic { .. } => None,
        };
        let n_workgroups = layout.n_rows.div_ceil(u64::from(rows));
        Self { lanes, rows, width, unrolled, n_workgroups, ..layout }
    }

    /// The division for workgroups of at most `threads` invocations that each take a piece of long rows: all of them along
    /// one row, or neighboring rows side by side, four an invocation where `quads` holds and their number allows it.
    pub(super) fn of_pieces(kb: &mut KernelBuilder<'_>, domain: ValueId, axes: &[usize], threads: u32, quads: bool) -> Self {
        let (layout, inner) = Self::undivided(kb, domain, axes);
        let is_quad = layout.last_is_quad(kb, domain) && (quads || !layout.side_by_side);
        let width = if is_quad { Width::Four } else { Width::One };
        let rows_each = if is_quad && layout.side_by_side { 4 } else { 1 };
        let most = (LINE / rows_each).min(threads);
        let across = match inner {
            Num::Static(n) if layout.side_by_side => {
                u32::try_from(n / u64::from(rows_each)).unwrap_or(most).clamp(1, most).next_power_of_two()
            }
            Num::Static(_) | Num::Dynamic { .. } => 1,
        };
        let rows = across * rows_each;
        let n_workgroups = layout.n_rows.div_ceil(u64::from(rows));
        Self { lanes: threads / across, rows, width, rows_each, n_workgroups, ..layout }
    }

    /// The domain with one invocation a row, and how many neighboring elements belong to rows of their own.
    fn undivided(kb: &mut KernelBuilder<'_>, domain: ValueId, axes: &[usize]) -> (Self, Num) {
        let sizes = kb.sizes(domain);
        let pick = |is_reduced: bool| -> Vec<Num> {
            sizes.iter().enumerate().filter(|(axis, _)| axes.contains(axis) == is_reduced).map(|(_, size)| size.clone()).collect()
        };
        let (kept_sizes, reduced_sizes) = (pick(false), pick(true));
        let last_is_reduced = sizes.len().checked_sub(1).is_some_and(|last| axes.contains(&last));
        let runs = runs(sizes.len(), axes);
        let inner = product(kept_sizes.iter().rev().take(if last_is_reduced { 0 } else { run_len(&runs) }));
        let n_rows = product(&kept_sizes);
        let layout = Self {
            lanes: 1,
            rows: 1,
            width: Width::One,
            rows_each: 1,
            unrolled: None,
            n_workgroups: n_rows.clone(),
            n_columns: product(&reduced_sizes),
            n_rows,
            side_by_side: !last_is_reduced,
            runs,
            axes: axes.to_vec(),
            kept_sizes,
            reduced_sizes,
        };
        (layout, inner)
    }

    /// Whether 4 divides the last axis, along which elements are read.
    fn last_is_quad(&self, kb: &mut KernelBuilder<'_>, domain: ValueId) -> bool {
        let rank = self.kept_sizes.len() + self.reduced_sizes.len();
        rank > 0 && kb.size(domain, rank - 1).is_multiple_of_4()
    }

    /// Columns that an invocation reads at a time.
    pub(super) fn columns_each(&self) -> u64 {
        if self.rows_each == 1 { n_elems(self.width) } else { 1 }
    }

    /// What one invocation does, for the top of the module.
    pub(super) fn comment(&self) -> String {
        match (self.lanes, self.rows) {
            (1, _) => "One invocation reduces one row.".to_owned(),
            (lanes, 1) => format!("A workgroup of {lanes} invocations reduces one row."),
            (lanes, rows) => format!("{lanes} invocations reduce one row; a workgroup has {rows} rows."),
        }
    }

    /// Most trips of a loop over the columns.
    pub(super) fn loop_trips(&self) -> u64 {
        if self.unrolled.is_some() { 0 } else { self.n_columns.value().div_ceil(u64::from(self.lanes) * self.columns_each()) }
    }

    /// Whether some invocations have no row of their own but take part in barriers.
    pub(super) const fn guards_stores(&self) -> bool {
        self.lanes > 1 && self.rows > 1
    }

    /// Opens the block in which rows are computed; workgroups over the end stay out of it.
    pub(super) fn open_rows(&self, kb: &mut KernelBuilder<'_>) -> Row {
        let n_groups = kb.num(&self.n_workgroups);
        let n_rows = kb.num(&self.n_rows);
        let lanes = self.lanes;
        let (place, lane) = match (lanes, self.rows, self.side_by_side) {
            (1, ..) => ("lid".to_owned(), "0u".to_owned()),
            (_, 1, _) => ("0u".to_owned(), "lid".to_owned()),
            (_, rows, true) => (kb.bind(format!("lid % {rows}u")), kb.bind(format!("lid / {rows}u"))),
            (..) => (kb.bind(format!("lid / {lanes}u")), kb.bind(format!("lid % {lanes}u"))),
        };
        let mut is_real = "true".to_owned();
        let position = if self.rows == 1 {
            kb.open(format!("if (wg < {n_groups})"));
            "wg".to_owned()
        } else if lanes == 1 {
            let row = kb.bind(format!("wg * {}u + {place}", self.rows));
            kb.open(format!("if ({row} < {n_rows})"));
            row
        } else {
            kb.open(format!("if (wg < {n_groups})"));
            let row = kb.bind(format!("wg * {}u + {place}", self.rows));
            is_real = format!("{row} < {n_rows}");
            let last = if let Num::Static(n) = self.n_rows { format!("{}u", n.saturating_sub(1)) } else { format!("{n_rows} - 1u") };
            // Rows over the end repeat the last one, so that all invocations meet at the barriers.
            kb.bind(format!("min({row}, {last})"))
        };
        let parts = self.row_parts(kb, &position);
        Row { position, lane, place, is_real, parts, piece: None }
    }

    /// Closes the block of the rows.
    #[expect(clippy::unused_self, reason = "the counterpart of `open_rows`")]
    pub(super) fn close_rows(&self, kb: &mut KernelBuilder<'_>) {
        kb.close();
    }

    /// Position within each kept run of the row at `position`, which is an identifier.
    pub(super) fn row_parts(&self, kb: &mut KernelBuilder<'_>, position: &str) -> Vec<Part> {
        let whole = if self.n_rows.is_one() {
            Part::zero(self.kept_sizes.clone())
        } else {
            Part::new(position, self.kept_sizes.clone(), u64::from(self.rows_each))
        };
        split(kb, whole, &self.runs, false)
    }

    /// Index of the domain at a column, which is an identifier.
    fn index(&self, kb: &mut KernelBuilder<'_>, row: &Row, column: &str) -> Index {
        let whole = Part::new(column, self.reduced_sizes.clone(), self.columns_each());
        let mut columns = split(kb, whole, &self.runs, true).into_iter();
        let mut rows = row.parts.iter().cloned();
        Index(self.runs.iter().filter_map(|run| if run.is_reduced { columns.next() } else { rows.next() }).collect())
    }

    /// Columns of an unrolled trip.
    pub(super) fn column_of_trip(&self, kb: &mut KernelBuilder<'_>, row: &Row, trip: u64) -> (String, Index) {
        let first = trip * u64::from(self.lanes) * self.columns_each();
        let own = self.own_column(row);
        // Bound even where it is a number, since position 0 of a run would mean that the run is never left.
        let column = match (own.as_str(), trip) {
            ("0u", _) => kb.bind(format!("u32({first}u)")),
            (_, 0) => kb.bind(own),
            _ => kb.bind(format!("{own} + {first}u")),
        };
        let index = self.index(kb, row, &column);
        (column, index)
    }

    /// The first columns of an invocation, or the last of the row for one that has none.
    pub(super) fn first_column(&self, kb: &mut KernelBuilder<'_>, row: &Row) -> (String, Index) {
        let each = self.columns_each();
        let last = match (&row.piece, &self.n_columns) {
            (Some([_, end]), _) => format!("{end} - {each}u"),
            (None, Num::Static(n)) => format!("{}u", n.saturating_sub(each)),
            (None, Num::Dynamic { .. }) => format!("{} - {each}u", kb.num(&self.n_columns)),
        };
        let own = self.own_column(row);
        let column = kb.bind(format!("min({own}, {last})"));
        let index = self.index(kb, row, &column);
        (column, index)
    }

    /// Opens a loop over the columns of an invocation.
    pub(super) fn open_columns(&self, kb: &mut KernelBuilder<'_>, row: &Row) -> (String, Index) {
        let column = kb.fresh("c");
        let n = row.piece.as_ref().map_or_else(|| kb.num(&self.n_columns), |[_, end]| end.clone());
        let step = u64::from(self.lanes) * self.columns_each();
        kb.open(format!("for (var {column} = {}; {column} < {n}; {column} += {step}u)", self.own_column(row)));
        let index = self.index(kb, row, &column);
        (column, index)
    }

    fn own_column(&self, row: &Row) -> String {
        let own = if self.columns_each() == 1 || row.lane == "0u" { row.lane.clone() } else { format!("{} * 4u", row.lane) };
        match &row.piece {
            Some([begin, _]) if begin != "0u" => format!("{begin} + {own}"),
            Some(_) | None => own,
        }
    }

    /// Whether an output covers the whole domain and is not one element a row.
    pub(super) fn is_full(&self, kb: &KernelBuilder<'_>, domain: ValueId, out: ValueId) -> bool {
        let graph = kb.ctx.graph;
        if graph.ty(out).shape != graph.ty(domain).shape {
            return graph.ty(out).n_elems() != self.n_rows.value();
        }
        // Where there is one column in this run, both are right; which it is in other runs is seen from the reduced axes.
        let varies = |value: ValueId, axis: usize| kb.ctx.dynamic.is_dynamic(value, axis);
        let is_reduced = |axis: usize| varies(domain, axis) && !varies(out, axis);
        self.n_columns.value() != 1 || !self.axes.iter().any(|&axis| is_reduced(axis))
    }

    /// Place of the invocation's own share in workgroup memory.
    pub(super) fn slot_of_self(&self) -> String {
        "lid".to_owned()
    }

    /// Place of a share of a row that has `n` of them.
    pub(super) fn slot(&self, row: &Row, share: &str, n: u32) -> String {
        match (self.rows, self.side_by_side) {
            (1, _) => share.to_owned(),
            (rows, true) => format!("{share} * {rows}u + {}", row.place),
            (_, false) => format!("{} * {n}u + {share}", row.place),
        }
    }

    /// Places of `count` shares of a row that has `n` of them, from `first` at a distance of `step`.
    pub(super) fn slots(&self, row: &Row, first: &str, step: u32, count: u32, n: u32) -> Vec<String> {
        (0..count)
            .map(|i| match (first, i * step) {
                (_, 0) => self.slot(row, first, n),
                ("0u", at) => self.slot(row, &format!("{at}u"), n),
                (_, at) => self.slot(row, &format!("({first} + {at}u)"), n),
            })
            .collect()
    }

    /// Invocations of a row that combine shares in the first of two levels.
    pub(super) const fn combining_lanes(&self) -> u32 {
        let fan = if self.lanes > 64 { 16 } else { 8 };
        if self.lanes.is_multiple_of(fan) { fan } else { 1 }
    }
}

/// Invocations a row and rows a workgroup. `inner` is the number of neighboring rows where the last axis is kept.
fn choose_lanes(kb: &KernelBuilder<'_>, n_columns: &Num, width: Width, inner: Option<&Num>) -> (u32, u32) {
    let target = kb.ctx.target;
    let limit = target.max_invocations.min(target.max_workgroup_size[0]).max(1);
    let units = match n_columns {
        Num::Static(n) if *n <= SHORT_ROW => return (1, SMALL_GROUP.min(limit)),
        Num::Static(n) => Some(n / n_elems(width)),
        Num::Dynamic { .. } => None,
    };
    let most = if target.is_cpu { MAX_LANES_CPU } else { MAX_LANES }.min(limit);
    if let Some(inner) = inner {
        let rows = match inner {
            Num::Static(n) => u32::try_from(*n).unwrap_or(SIDE_BY_SIDE).clamp(1, SIDE_BY_SIDE).next_power_of_two(),
            Num::Dynamic { .. } => SIDE_BY_SIDE,
        };
        return (widen(kb, MAX_LANES.min(limit) / rows, rows, units, limit), rows);
    }
    let Some(units) = units else { return (MAX_LANES.min(limit), 1) };
    // A number of invocations that divides the row needs no test at its end; several rows share a small workgroup.
    let divides = |lanes: &u32| units % u64::from(*lanes) == 0 && units / u64::from(*lanes) <= MAX_UNROLLED;
    let exact = (1..=most / 16).rev().map(|n| n * 16).chain([8]).find(|lanes| *lanes <= most && divides(lanes));
    let lanes = exact.unwrap_or_else(|| {
        let fitting = u32::try_from(units).unwrap_or(most).clamp(8, most);
        widen(kb, 1 << fitting.ilog2(), 1, Some(units), limit)
    });
    (lanes, SMALL_GROUP.div_ceil(lanes).min(limit / lanes).max(1))
}

/// More invocations a row where a driver ends loops that are too long.
fn widen(kb: &KernelBuilder<'_>, mut lanes: u32, rows: u32, units: Option<u64>, limit: u32) -> u32 {
    if let (Some(most), Some(units)) = (kb.ctx.target.max_loop_trips, units) {
        while units.div_ceil(u64::from(lanes)) > most && lanes * rows * 2 <= limit {
            lanes *= 2;
        }
    }
    lanes
}

/// Elements that one invocation reads at a time.
const fn n_elems(width: Width) -> u64 {
    match width {
        Width::One => 1,
        Width::Four => 4,
    }
}

/// Runs of neighboring axes with the same fate.
fn runs(rank: usize, axes: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut counts = [0, 0];
    for axis in 0..rank {
        let is_reduced = axes.contains(&axis);
        let count = &mut counts[usize::from(is_reduced)];
        match runs.last_mut() {
            Some(run) if run.is_reduced == is_reduced => run.axes.end += 1,
            _ => runs.push(Run { is_reduced, axes: *count..*count + 1 }),
        }
        *count += 1;
    }
    runs
}

fn run_len(runs: &[Run]) -> usize {
    runs.last().map_or(0, |run| run.axes.len())
}

/// Cuts a part over all kept, or all reduced, axes into its runs.
fn split(kb: &mut KernelBuilder<'_>, whole: Part, runs: &[Run], is_reduced: bool) -> Vec<Part> {
    let cuts: Vec<usize> = runs.iter().filter(|run| run.is_reduced == is_reduced).map(|run| run.axes.start).collect();
    Index(vec![whole]).cut(kb, &cuts).0
}
