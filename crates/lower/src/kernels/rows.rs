//! Kernels around reductions over the same axes of one domain: sums, means, maxima, and what is computed from them.
//!
//! The kept axes of the domain make a *row*, the reduced ones its *columns*. A row is read by one invocation or by
//! several that then combine what they have in workgroup memory (`combine`); `layout` chooses. Reductions that do not need
//! each other share a loop; one that needs another (softmax: the sum of exponentials needs the maximum) follows in a
//! loop of its own. Outputs over the whole domain are computed last, from the same registers where the loop is
//! unrolled. Sums are in f32 whatever the storage type, always in the same order.

mod combine;
mod layout;
mod own;
mod pieces;

use super::elementwise::{Body, append_bodies_of};
use crate::emit::kernel::register_type;
use crate::emit::{Finish, Index, KernelBuilder, LowerCtx, Num, Width};
use crate::step::{Step, StepValue, Temp};
use combine::{Arrays, Partial};
use indexmap::IndexSet;
use layout::{Layout, Row};
use monopass_ir::{DType, Graph, Op, ValueId};
use pieces::Pieces;

/// A cluster around reductions over the same axes of the same domain.
///
/// Every inline value between an output and a reduction must use the reduction's result of its own row, which
/// [`Rows::reads_own_row`] tells: through elementwise ops, reshapes, and broadcasting along the reduced axes.
#[derive(Clone, Debug)]
pub struct Rows {
    /// A value whose shape is the unreduced domain, such as the first reduction's operand.
    pub domain: ValueId,
    /// Reduced axes.
    pub axes: Vec<usize>,
    /// Results of `sum`, `mean`, `reduce_max` and `argmax` nodes in graph order; a later one may need an earlier one.
    /// An `argmax` needs a single reduced axis.
    pub reductions: Vec<ValueId>,
    /// Values to write: of as many elements as there are rows and in their order, or of the whole domain.
    pub outputs: Vec<ValueId>,
    /// Independent elementwise work that shares the dispatch.
    pub extra: Vec<Body>,
}

/// Whether outputs of an element type can be written one at a time. Two f16 or bf16 share a word, so those need a cast
/// kernel after this one.
#[must_use]
pub const fn can_store(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::Bool)
}

/// The kernels of a cluster: one, or one over pieces of long rows and one that combines these, which are a value of `temps`.
/// `inline` says which values are computed and not loaded.
#[must_use]
pub fn lower(ctx: &LowerCtx<'_>, rows: &Rows, inline: &dyn Fn(ValueId) -> bool, temps: &mut Vec<Temp>) -> Vec<Step> {
    let phases = phases(ctx.graph, rows, inline);
    match Pieces::choose(ctx, rows, inline, &phases) {
        Some(pieces) => pieces.lower(temps),
        None => vec![lower_whole(ctx, rows, inline, &phases)],
    }
}

/// One kernel for the cluster.
fn lower_whole(ctx: &LowerCtx<'_>, rows: &Rows, inline: &dyn Fn(ValueId) -> bool, phases: &[Vec<Reduction>]) -> Step {
    let mut kb = KernelBuilder::new(ctx, inline);
    let layout = Layout::choose(&mut kb, rows.domain, &rows.axes);
    let row = layout.open_rows(&mut kb);
    let mut arrays = Arrays::default();
    for (idx, phase) in phases.iter().enumerate() {
        let accumulators = accumulate(&mut kb, &layout, &row, phase);
        let partials: Vec<&Partial> = accumulators.iter().map(|accumulator| &accumulator.partial).collect();
        let totals = arrays.across_lanes(&mut kb, &layout, &row, &partials, idx);
        for (accumulator, total) in accumulators.iter().zip(&totals) {
            define_result(&mut kb, &layout.n_columns, accumulator.reduction, total);
        }
    }
    write_outputs(&mut kb, &layout, &row, rows);
    layout.close_rows(&mut kb);
    let first = kb.num(&layout.n_workgroups);
    let n_extra = append_bodies_of(&mut kb, &rows.extra, layout.lanes * layout.rows, &first, false);
    let n_domain = ctx.graph.ty(rows.domain).n_elems();
    let n_passes = rows.reductions.len() + rows.outputs.len();
    let extra = rows.extra.iter().flat_map(|body| &body.outputs);
    let flops_extra: u64 = extra.clone().map(|&out| ctx.graph.ty(out).n_elems()).sum();
    let computes: IndexSet<ValueId> = rows.reductions.iter().chain(&rows.outputs).chain(extra).copied().collect();
    kb.finish(Finish {
        label: format!("rows {{lanes = {}, rows = {}, phases = {}}}", layout.lanes, layout.rows, phases.len()),
        comment: layout.comment(),
        workgroup_size: layout.lanes * layout.rows,
        n_workgroups: layout.n_workgroups.value() + n_extra,
        loop_trips: layout.loop_trips(),
        flops: n_domain.saturating_mul(n_passes as u64).saturating_add(flops_extra),
        computes: computes.into_iter().collect(),
    })
}

/// How a reduction combines two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sum,
    Mean,
    Max,
    Argmax,
}

/// A reduction of the cluster.
#[derive(Clone, Copy, Debug)]
struct Reduction {
    result: ValueId,
    operand: ValueId,
    kind: Kind,
}

/// A reduction with the variables that hold one invocation's share of it.
struct Accumulator {
    reduction: Reduction,
    partial: Partial,
}

impl Accumulator {
    fn new(kb: &mut KernelBuilder<'_>, reduction: Reduction) -> Self {
        let ty = register_type(kb.ctx.graph.ty(reduction.operand).dtype);
        Self { reduction, partial: Partial { kind: reduction.kind, ty, value: kb.fresh("acc"), index: kb.fresh("at") } }
    }
}

fn reduction(graph: &Graph, result: ValueId) -> Option<Reduction> {
    let node = graph.def(result);
    let operand = node.operands.first().copied().flatten()?;
    let op = node.op()?;
    let is_one = |kind: Kind| match kind {
        Kind::Sum => matches!(op, Op::Sum { .. }),
        Kind::Mean => matches!(op, Op::Mean { .. }),
        Kind::Max => matches!(op, Op::ReduceMax { .. }),
        Kind::Argmax => matches!(op, Op::Argmax { .. }),
    };
    // A cluster around anything else finds that value loaded, as any other.
    let kind = [Kind::Sum, Kind::Mean, Kind::Max, Kind::Argmax].into_iter().find(|&kind| is_one(kind))?;
    Some(Reduction { result, operand, kind })
}

/// The reductions in groups of which each needs only results of earlier groups.
fn phases(graph: &Graph, rows: &Rows, inline: &dyn Fn(ValueId) -> bool) -> Vec<Vec<Reduction>> {
    let mut phases: Vec<Vec<Reduction>> = Vec::new();
    for reduction in rows.reductions.iter().filter_map(|&result| reduction(graph, result)) {
        let needed = needed_reductions(graph, rows, inline, reduction.operand);
        let first = phases.iter().rposition(|phase| phase.iter().any(|earlier| needed.contains(&earlier.result)));
        let phase = first.map_or(0, |phase| phase + 1);
        if phase == phases.len() {
            phases.push(Vec::new());
        }
        phases[phase].push(reduction);
    }
    phases
}

/// Reductions of the cluster whose results a value needs.
fn needed_reductions(graph: &Graph, rows: &Rows, inline: &dyn Fn(ValueId) -> bool, value: ValueId) -> IndexSet<ValueId> {
    let mut seen = IndexSet::from([value]);
    let mut next = 0;
    while let Some(&value) = seen.get_index(next) {
        next += 1;
        if !rows.reductions.contains(&value) && inline(value) {
            seen.extend(graph.def(value).present_operands());
        }
    }
    seen.retain(|value| rows.reductions.contains(value));
    seen
}

/// Each invocation's share of the reductions of one phase.
fn accumulate(kb: &mut KernelBuilder<'_>, layout: &Layout, row: &Row, phase: &[Reduction]) -> Vec<Accumulator> {
    let accumulators: Vec<Accumulator> = phase.iter().map(|&reduction| Accumulator::new(kb, reduction)).collect();
    match layout.unrolled {
        Some(trips) => {
            if trips == 0 {
                accumulators.iter().for_each(|accumulator| start_empty(kb, layout, accumulator));
            }
            for trip in 0..trips {
                let (column, index) = layout.column_of_trip(kb, row, trip);
                for accumulator in &accumulators {
                    let x = kb.emit(accumulator.reduction.operand, &index, layout.width);
                    if trip == 0 {
                        start(kb, layout, accumulator, &column, &x);
                    } else {
                        add(kb, layout, accumulator, &column, &x);
                    }
                }
            }
        }
        None => accumulate_in_loop(kb, layout, row, &accumulators),
    }
    accumulators
        .into_iter()
        .map(|accumulator| {
            // Four rows of an invocation stay apart.
            let width = if layout.rows_each == 1 { layout.width } else { Width::One };
            let partial = accumulator.partial.fold_quad(kb, width);
            Accumulator { partial, ..accumulator }
        })
        .collect()
}

fn accumulate_in_loop(kb: &mut KernelBuilder<'_>, layout: &Layout, row: &Row, accumulators: &[Accumulator]) {
    let needs_first = |kind: Kind| matches!(kind, Kind::Max | Kind::Argmax);
    // A maximum starts from an element of its row, so it needs no infinity; counting that one twice changes nothing.
    let first = accumulators.iter().any(|accumulator| needs_first(accumulator.partial.kind)).then(|| layout.first_column(kb, row));
    for accumulator in accumulators {
        match &first {
            Some((column, index)) if needs_first(accumulator.partial.kind) => {
                let x = kb.emit(accumulator.reduction.operand, index, layout.width);
                start(kb, layout, accumulator, column, &x);
            }
            _ => start_empty(kb, layout, accumulator),
        }
    }
    let (column, index) = layout.open_columns(kb, row);
    for accumulator in accumulators {
        let x = kb.emit(accumulator.reduction.operand, &index, layout.width);
        add(kb, layout, accumulator, &column, &x);
    }
    kb.close();
}

/// Starts an accumulator from no element.
fn start_empty(kb: &mut KernelBuilder<'_>, layout: &Layout, accumulator: &Accumulator) {
    let Partial { kind, ty, value, index } = &accumulator.partial;
    if *kind == Kind::Argmax {
        kb.line(format!("var {value}: {ty};"));
        kb.line(format!("var {index} = 0u;"));
    } else if layout.width == Width::Four {
        kb.line(format!("var {value}: vec4<{ty}>;"));
    } else {
        kb.line(format!("var {value}: {ty};"));
    }
}

/// Starts an accumulator from an element, or from four.
fn start(kb: &mut KernelBuilder<'_>, layout: &Layout, accumulator: &Accumulator, column: &str, x: &str) {
    let Partial { kind, value, index, .. } = &accumulator.partial;
    if *kind == Kind::Argmax {
        let first = if layout.width == Width::Four { format!("{x}.x") } else { x.to_owned() };
        kb.line(format!("var {value} = {first};"));
        kb.line(format!("var {index} = {column};"));
        add_argmax(kb, layout, accumulator, column, x, 1);
    } else {
        kb.line(format!("var {value} = {x};"));
    }
}

/// Adds an element, or four.
fn add(kb: &mut KernelBuilder<'_>, layout: &Layout, accumulator: &Accumulator, column: &str, x: &str) {
    if accumulator.partial.kind == Kind::Argmax {
        add_argmax(kb, layout, accumulator, column, x, 0);
    } else {
        kb.line(accumulator.partial.adding(x));
    }
}

/// Columns only grow, so an equal element never replaces an earlier one.
fn add_argmax(kb: &mut KernelBuilder<'_>, layout: &Layout, accumulator: &Accumulator, column: &str, x: &str, first_lane: usize) {
    let Partial { value, index, .. } = &accumulator.partial;
    if layout.width == Width::One {
        if first_lane == 0 {
            kb.line(format!("if ({x} > {value}) {{ {value} = {x}; {index} = {column}; }}"));
        }
        return;
    }
    for (lane, field) in ["x", "y", "z", "w"].into_iter().enumerate().skip(first_lane) {
        kb.line(format!("if ({x}.{field} > {value}) {{ {value} = {x}.{field}; {index} = {column} + {lane}u; }}"));
    }
}

/// Makes the result of a reduction known to whatever is computed for its row.
fn define_result(kb: &mut KernelBuilder<'_>, n_columns: &Num, reduction: Reduction, total: &str) {
    let dtype = kb.ctx.graph.ty(reduction.result).dtype;
    let value = if reduction.kind == Kind::Mean {
        let n = kb.num(n_columns);
        kb.bind(format!("{total} / f32({n})"))
    } else {
        total.to_owned()
    };
    let is_half = matches!(dtype, DType::F16 | DType::Bf16);
    let value = if is_half && reduction.kind != Kind::Max { kb.cast(&value, DType::F32, dtype, Width::One) } else { value };
    let ident = kb.bind(value);
    kb.define_row(reduction.result, ident);
}

fn write_outputs(kb: &mut KernelBuilder<'_>, layout: &Layout, row: &Row, rows: &Rows) {
    let (full, single): (Vec<ValueId>, Vec<ValueId>) = rows.outputs.iter().partition(|&&out| layout.is_full(kb, rows.domain, out));
    if layout.guards_stores() {
        kb.open(format!("if ({})", row.is_real));
    }
    if !single.is_empty() {
        if layout.lanes > 1 {
            kb.open(format!("if ({} == 0u)", row.lane));
        }
        single.into_iter().for_each(|out| write_single(kb, out, &row.position));
        if layout.lanes > 1 {
            kb.close();
        }
    }
    if !full.is_empty() {
        if let Some(trips) = layout.unrolled {
            for trip in 0..trips {
                let (_, index) = layout.column_of_trip(kb, row, trip);
                full.iter().for_each(|&out| write_element(kb, layout, rows.domain, out, &index));
            }
        } else {
            let (_, index) = layout.open_columns(kb, row);
            full.iter().for_each(|&out| write_element(kb, layout, rows.domain, out, &index));
            kb.close();
        }
    }
    if layout.guards_stores() {
        kb.close();
    }
}

/// Writes an output that has one element a row.
fn write_single(kb: &mut KernelBuilder<'_>, out: ValueId, position: &str) {
    let index = kb.flat_index(out, position, 1);
    let x = kb.emit(out, &index, Width::One);
    let name = kb.write(StepValue::Graph(out), kb.ctx.graph.ty(out).dtype, false);
    kb.line(format!("st_{name}({position}, {x});"));
}

/// Writes an output of the whole domain at an index of the domain.
fn write_element(kb: &mut KernelBuilder<'_>, layout: &Layout, domain: ValueId, out: ValueId, index: &Index) {
    let graph = kb.ctx.graph;
    let dtype = graph.ty(out).dtype;
    let x = if graph.ty(out).shape == graph.ty(domain).shape {
        kb.emit(out, index, layout.width)
    } else {
        let sizes = kb.sizes(out);
        let own = index.reshape(kb, &sizes);
        kb.emit(out, &own, layout.width)
    };
    let (flat, aligned) = index.flat(kb);
    let at = kb.bind(flat);
    let is_quad = layout.width == Width::Four;
    let name = kb.write(StepValue::Graph(out), dtype, is_quad && aligned && dtype == DType::F32);
    let store = if is_quad { "st4" } else { "st" };
    kb.line(format!("{store}_{name}({at}, {x});"));
}
