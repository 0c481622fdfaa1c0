//! Sums and means over parts of a row, computed by a workgroup of a product of few rows before the product itself.
//!
//! The row is that of the product's left operand, of shape `[lead.., K]`; the domain is `[lead.., parts.., columns]` and the
//! result one number a part. The invocations are divided among the parts, and each part's among its columns; where there are
//! more parts than invocations, each invocation sums several parts.

use crate::emit::{Index, KernelBuilder, Num, Part, Width, num::product};
use monopass_ir::{Op, ValueId};

/// Most parts of a row.
const MAX_PARTS: usize = 512;

/// Whether a result of shape `[lead.., parts.., 1]` belongs to rows of shape `lead`, and has few enough parts.
#[must_use]
pub fn fits(result: &[usize], lead: &[usize]) -> bool {
    let parts = result.strip_prefix(lead).map_or(0, |rest| rest.iter().product());
    (1..=MAX_PARTS).contains(&parts) && result.len() > lead.len()
}

/// Appends the statistic `value` of the row at position `row` over the axes `lead`, for a workgroup of `threads`; it is known
/// to all that is computed after it. `at` is that position as others ask for it, absent where they ask for no other.
pub(super) fn emit(kb: &mut KernelBuilder<'_>, value: ValueId, lead: &[Num], row: &str, at: Option<&Index>, threads: u32) {
    let node = kb.ctx.graph.def(value);
    let (Some(operand), is_mean) = (node.operands.first().copied().flatten(), matches!(node.op(), Some(Op::Mean { .. }))) else { return };
    let mut sizes = kb.sizes(operand).split_off(lead.len());
    let Some(columns) = sizes.pop() else { return };
    let n_parts = u32::try_from(product(&sizes).value()).unwrap_or(u32::MAX).max(1);
    if n_parts > threads {
        emit_whole_parts(kb, value, lead, row, at, [n_parts, threads]);
        return;
    }
    let lanes = 1 << (threads / n_parts).max(1).ilog2();
    let (shares, totals) = (kb.fresh("share_s"), kb.fresh("stat_s"));
    let text = format!("var<workgroup> {shares}: array<f32, {threads}>;\nvar<workgroup> {totals}: array<f32, {n_parts}>;");
    kb.global(&text, u64::from(threads + n_parts) * 4);

    let (width, each) = if columns.is_multiple_of_4() { (Width::Four, 4) } else { (Width::One, 1) };
    let share = kb.fresh("share");
    kb.line(format!("var {share} = 0.0;"));
    kb.open(format!("if (lid < {}u)", lanes * n_parts));
    let (part, lane) = (kb.bind(format!("lid / {lanes}u")), kb.bind(format!("lid % {lanes}u")));
    let (column, n) = (kb.fresh("c"), kb.num(&columns));
    kb.open(format!("for (var {column} = {lane} * {each}u; {column} < {n}; {column} += {}u)", lanes * each));
    let parts = Part::new(part, sizes, 1);
    let index = Index(vec![Part::new(row, lead.to_vec(), 1), parts, Part::new(column, vec![columns], u64::from(each))]);
    let x = kb.emit(operand, &index, width);
    kb.line(format!("{share} += {};", if width == Width::Four { format!("dot({x}, vec4<f32>(1.0))") } else { x }));
    kb.close();
    kb.close();
    kb.line(format!("{shares}[lid] = {share};"));
    kb.line("workgroupBarrier();");
    kb.open(format!("if (lid < {n_parts}u)"));
    let terms: Vec<String> = (0..lanes).map(|lane| format!("{shares}[lid * {lanes}u + {lane}u]")).collect();
    let scale = if is_mean { format!(" / f32({n})") } else { String::new() };
    kb.line(format!("{totals}[lid] = ({}){scale};", terms.join(" + ")));
    kb.close();
    kb.line("workgroupBarrier();");
    kb.define_array(value, totals, lead.len(), at);
}

/// The statistic with several parts an invocation.
fn emit_whole_parts(kb: &mut KernelBuilder<'_>, value: ValueId, lead: &[Num], row: &str, at: Option<&Index>, [n_parts, threads]: [u32; 2]) {
    let (totals, part) = (kb.fresh("stat_s"), kb.fresh("part"));
    kb.global(&format!("var<workgroup> {totals}: array<f32, {n_parts}>;"), u64::from(n_parts) * 4);
    let sizes = kb.sizes(value).split_off(lead.len());
    kb.open(format!("for (var {part} = lid; {part} < {n_parts}u; {part} += {threads}u)"));
    let index = Index(vec![Part::new(row, lead.to_vec(), 1), Part::new(&part, sizes, 1)]);
    let x = kb.emit(value, &index, Width::One);
    kb.line(format!("{totals}[{part}] = {x};"));
    kb.close();
    kb.line("workgroupBarrier();");
    kb.define_array(value, totals, lead.len(), at);
}
