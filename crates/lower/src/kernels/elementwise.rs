//! Kernels that compute each output element where it is: elementwise ops, movement, gathers, short convolutions.
//!
//! One kernel can hold several bodies, each with its own domain and its own range of workgroups, so that small
//! independent work (a convolution's outgoing window beside its output) costs no dispatch of its own.

use crate::emit::{Finish, Index, KernelBuilder, LowerCtx, Num, Width, num::product};
use crate::step::{Step, StepValue};
use monopass_ir::{DType, ValueId};

/// Invocations a workgroup.
const WORKGROUP: u32 = 64;

/// Outputs over one domain; all have equally many elements in the same row-major order.
#[derive(Clone, Debug)]
pub struct Body {
    /// Values to write; the first one's shape is the domain.
    pub outputs: Vec<ValueId>,
}

/// One kernel with a range of workgroups for each body. `inline` says which values are computed and not loaded;
/// `in_place` names a state and its update, where each element is read by the invocation that writes it.
#[must_use]
pub fn lower(ctx: &LowerCtx<'_>, bodies: &[Body], inline: &dyn Fn(ValueId) -> bool, in_place: &[(ValueId, ValueId)]) -> Step {
    let mut kb = KernelBuilder::new(ctx, inline);
    for &(old, new) in in_place {
        kb.update_in_place(StepValue::Graph(old), StepValue::Graph(new), ctx.graph.ty(new).dtype);
    }
    let n_workgroups = append_bodies(&mut kb, bodies, "0u", true);
    let computes = bodies.iter().flat_map(|body| body.outputs.iter().copied()).collect();
    let flops = bodies.iter().flat_map(|body| &body.outputs).map(|&out| ctx.graph.ty(out).n_elems()).sum();
    kb.finish(Finish {
        label: format!("elementwise {{bodies = {}}}", bodies.len()),
        comment: "One invocation computes one element, or four neighbours, of each output of its body.".to_owned(),
        workgroup_size: WORKGROUP,
        n_workgroups,
        loop_trips: 0,
        flops,
        computes,
    })
}

/// Appends a range of workgroups of 64 invocations for each body, from workgroup `first`; gives their number. With `whole`
/// nothing else stands in the kernel, so the first range needs no lower end.
pub(super) fn append_bodies(kb: &mut KernelBuilder<'_>, bodies: &[Body], first: &str, whole: bool) -> u64 {
    append_bodies_of(kb, bodies, WORKGROUP, first, whole)
}

/// As [`append_bodies`], with workgroups of `threads` invocations, which the kernel has.
pub(super) fn append_bodies_of(kb: &mut KernelBuilder<'_>, bodies: &[Body], threads: u32, first: &str, whole: bool) -> u64 {
    let mut n_workgroups = 0;
    let mut first = first.to_owned();
    for (i, body) in bodies.iter().enumerate() {
        let plan = BodyPlan::new(kb, body, threads);
        let count = kb.num(&plan.n_workgroups);
        n_workgroups += plan.n_workgroups.value();
        let end = kb.fresh("end");
        kb.line(format!("let {end} = {first} + {count};"));
        kb.open(if whole && i == 0 { format!("if (wg < {end})") } else { format!("if (wg >= {first} && wg < {end})") });
        emit_body(kb, body, &plan, &first);
        kb.close();
        first = end;
    }
    n_workgroups
}

/// How a body's domain is divided among invocations.
struct BodyPlan {
    threads: u32,
    n_elems: Num,
    per_invocation: u64,
    n_workgroups: Num,
}

impl BodyPlan {
    fn new(kb: &mut KernelBuilder<'_>, body: &Body, threads: u32) -> Self {
        let graph = kb.ctx.graph;
        let sizes = kb.sizes(body.outputs[0]);
        let n_elems = product(&sizes);
        let inner_is_quad = body.outputs.iter().all(|&out| {
            let rank = graph.ty(out).rank();
            rank > 0 && kb.size(out, rank - 1).is_multiple_of_4()
        });
        let packs_halves = body.outputs.iter().any(|&out| is_half(graph.ty(out).dtype));
        let per_invocation = if inner_is_quad || packs_halves { 4 } else { 1 };
        let n_workgroups = n_elems.div_ceil(u64::from(threads) * per_invocation);
        Self { threads, n_elems, per_invocation, n_workgroups }
    }
}

const fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

fn emit_body(kb: &mut KernelBuilder<'_>, body: &Body, plan: &BodyPlan, first: &str) {
    let group = if first == "0u" { "wg".to_owned() } else { format!("(wg - {first})") };
    let scale = if plan.per_invocation == 1 { String::new() } else { format!(" * {}u", plan.per_invocation) };
    let i = kb.bind(format!("({group} * {}u + lid){scale}", plan.threads));
    let n = kb.num(&plan.n_elems);
    kb.open(format!("if ({i} < {n})"));
    // An output that overwrites a state may not hide it from the next one, so then all are computed before the first is stored.
    let waits = kb.overwrites();
    let mut stores = Vec::new();
    for &out in &body.outputs {
        let dtype = kb.ctx.graph.ty(out).dtype;
        let index = kb.flat_index(out, &i, plan.per_invocation);
        if plan.per_invocation == 1 {
            let x = kb.emit(out, &index, Width::One);
            let x = kb.bind(x);
            let name = kb.write(StepValue::Graph(out), dtype, false);
            stores.push(format!("st_{name}({i}, {x});"));
        } else if index.is_quad() {
            let x = kb.emit(out, &index, Width::Four);
            let x = kb.bind(x);
            let name = kb.write(StepValue::Graph(out), dtype, dtype == DType::F32);
            stores.push(format!("st4_{name}({i}, {x});"));
        } else {
            stores.extend(ragged(kb, out, &i, plan));
        }
        if !waits {
            stores.drain(..).for_each(|store| kb.line(store));
        }
    }
    stores.into_iter().for_each(|store| kb.line(store));
    kb.close();
}

/// Four neighbours of a domain whose last axis 4 does not divide: lanes over the end repeat the last element, and
/// fall into the padding of the buffer. Gives the statements that store them.
fn ragged(kb: &mut KernelBuilder<'_>, out: ValueId, i: &str, plan: &BodyPlan) -> Vec<String> {
    let dtype = kb.ctx.graph.ty(out).dtype;
    let (n, last) = (kb.num(&plan.n_elems), kb.last(&plan.n_elems));
    let lanes: Vec<String> = (0..4)
        .map(|lane| {
            let at = kb.bind(format!("min({i} + {lane}u, {last})"));
            let index: Index = kb.flat_index(out, &at, 1);
            let x = kb.emit(out, &index, Width::One);
            kb.bind(x)
        })
        .collect();
    let name = kb.write(StepValue::Graph(out), dtype, false);
    let ty = crate::emit::kernel::register_type(dtype);
    if is_half(dtype) {
        return vec![format!("st4_{name}({i}, vec4<{ty}>({}));", lanes.join(", "))];
    }
    let store = |(lane, x): (usize, &String)| format!("if ({i} + {lane}u < {n}) {{ st_{name}({i} + {lane}u, {x}); }}");
    lanes.iter().enumerate().map(store).collect()
}
