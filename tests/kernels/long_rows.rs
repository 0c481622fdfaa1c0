//! Reductions of long rows on a target that is no software device: in pieces, and a cache line of neighboring rows at a time.

use crate::common::gpu;
use crate::harness::{Outcome, all_inline, output, plan, reductions, run_for};
use monopass_ir::{DType, Graph, GraphBuilder, Tensor, ValueId};
use monopass_lower::Target;
use monopass_lower::kernels::elementwise::Body;
use monopass_lower::kernels::rows::{Rows, lower};
use monopass_lower::plan::Plan;

/// The cluster of all reductions of the graph, over `axes` of their operands' shape; `outputs` are written.
fn cluster(graph: &Graph, axes: &[usize], outputs: Vec<ValueId>) -> Outcome<Rows> {
    let reductions = reductions(graph);
    let domain = graph.def(*reductions.first().ok_or("no reduction")?).operands[0].ok_or("no operand")?;
    Ok(Rows { domain, axes: axes.to_vec(), reductions, outputs, extra: vec![] })
}

fn outputs(graph: &Graph) -> Vec<ValueId> {
    graph.outputs.iter().map(|output| output.value).collect()
}

fn plan_for(graph: &Graph, rows: &Rows, target: &Target) -> Outcome<Plan> {
    plan(graph, target, &|ctx, temps| lower(ctx, rows, &all_inline(graph), temps))
}

/// Runs the kernels that a GPU gets on whatever device there is, after proving them for profiles; gives the dispatches.
fn check_long(name: &str, graph: &Graph, rows: &Rows) -> Outcome<usize> {
    for profile in ["webgpu-default", "nvidia"] {
        let target = Target::profile(profile).ok_or("no such profile")?;
        plan_for(graph, rows, &target).map_err(|error| format!("{name} for {profile}: {error}"))?;
    }
    if let Some(device) = gpu()? {
        let target = Target { is_cpu: false, ..device.target().clone() };
        run_for(name, graph, 1e-4, &target, &|ctx, temps| lower(ctx, rows, &all_inline(graph), temps))?;
    }
    Ok(plan_for(graph, rows, &Target::webgpu_default())?.cmds.len())
}

fn reduced_thrice(dtype: DType, shape: &[usize], axes: &[usize], keepdims: bool) -> Outcome<Graph> {
    let g = GraphBuilder::new("t");
    let x = g.input("x", dtype, shape);
    let y = if dtype == DType::F32 { x } else { x.cast(DType::F32) };
    g.output("sum", y.sum(axes, keepdims));
    g.output("mean", (y * 0.5).mean(axes, keepdims));
    g.output("max", y.neg().reduce_max(axes, keepdims));
    Ok(g.finish()?)
}

#[test]
fn sums_over_tokens_at_odd_sizes() {
    for len in [1, 5, 257, 4099] {
        for channels in [1, 3, 24, 33, 130] {
            let graph = reduced_thrice(DType::F32, &[3, len, channels], &[0, 1], false).unwrap();
            let rows = cluster(&graph, &[0, 1], outputs(&graph)).unwrap();
            let n_cmds = check_long(&format!("{len} tokens of {channels}"), &graph, &rows).unwrap();
            let is_long = 3 * len > 256 && 3 * len * channels >= 1 << 16;
            assert_eq!(n_cmds, if is_long { 2 } else { 1 }, "{len} tokens of {channels}");
        }
    }
}

/// Each shape with the axes to reduce.
const SHAPES: &[(&[usize], &[usize])] = &[
    (&[70001], &[0]),
    (&[70001, 1], &[0]),
    (&[1 << 16, 1], &[0]),
    (&[3, 30000], &[1]),
    (&[3, 30001], &[1]),
    (&[3, 1 << 15], &[1]),
    (&[3, 300, 100], &[0, 1, 2]),
    (&[3, 257, 100], &[1]),
    (&[3, 257, 101], &[1]),
    (&[5, 700, 3, 8], &[1, 3]),
    (&[5, 700, 3, 7], &[1, 3]),
    (&[700, 3, 5, 8], &[0, 2]),
    (&[2, 300, 2, 60], &[1]),
    (&[257, 3352], &[0]),
    (&[300, 17000], &[0]),
    (&[2, 4500, 12], &[0, 1]),
];

#[test]
fn every_kind_of_axes() {
    for (shape, axes) in SHAPES {
        for keepdims in [false, true] {
            let graph = reduced_thrice(DType::F32, shape, axes, keepdims).unwrap();
            let rows = cluster(&graph, axes, outputs(&graph)).unwrap();
            check_long(&format!("{shape:?} over {axes:?}"), &graph, &rows).unwrap();
        }
    }
}

#[test]
fn elements_of_other_types() {
    for dtype in [DType::F16, DType::Bf16] {
        for channels in [24, 33] {
            let graph = reduced_thrice(dtype, &[3, 1031, channels], &[0, 1], false).unwrap();
            let rows = cluster(&graph, &[0, 1], outputs(&graph)).unwrap();
            assert_eq!(check_long(&format!("{dtype} {channels}"), &graph, &rows).unwrap(), 2);
        }
    }
    for dtype in [DType::I32, DType::U32] {
        let g = GraphBuilder::new("t");
        let x = g.input("x", dtype, [3, 1031, 24]);
        g.output("sum", x.sum([0, 1], true));
        g.output("max", x.reduce_max([0, 1], false));
        let graph = g.finish().unwrap();
        let rows = cluster(&graph, &[0, 1], outputs(&graph)).unwrap();
        assert_eq!(check_long(&format!("{dtype}"), &graph, &rows).unwrap(), 2);
    }
}

/// A gradient of a norm's weight and of a bias, from values that are computed where they are summed.
fn gradients<'g>(g: &'g GraphBuilder, shape: [usize; 3]) -> [Tensor<'g>; 2] {
    let [_, len, channels] = shape;
    let x = g.input("x", DType::F32, shape);
    let dy = g.input("dy", DType::F32, shape);
    let scale = g.input("scale", DType::F32, [shape[0], len, 1]);
    let earlier = x.slice_axis(1, 0, len - 1).pad([0, 1, 0], [0, 0, 0], 0.0);
    let [left, right] = [dy.slice_axis(2, 0, channels / 2), x.slice_axis(2, 0, channels - channels / 2)];
    [x * dy * scale + earlier, g.concat(&[left, right], 2usize).silu()]
}

#[test]
fn what_is_fused_before_and_behind() {
    for shape in [[3, 700, 40], [3, 701, 33], [3, 300, 130]] {
        let g = GraphBuilder::new("t");
        let [weight, bias] = gradients(&g, shape);
        let old = g.input("old", DType::F32, [shape[2]]);
        let sum = weight.sum([0, 1], false);
        g.output("weight", old * 0.9 + sum * 0.1);
        g.output("weight_gradient", sum);
        g.output("bias", bias.mean([0, 1], false).abs().rsqrt());
        let graph = g.finish().unwrap();
        let rows = cluster(&graph, &[0, 1], outputs(&graph)).unwrap();
        assert_eq!(check_long(&format!("gradients {shape:?}"), &graph, &rows).unwrap(), 2);
    }
}

#[test]
fn independent_work_shares_the_first_dispatch() {
    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [3, 700, 40]);
    let z = g.input("z", DType::F32, [3, 37]);
    g.output("sum", x.sum([0, 1], false));
    g.output("beside", x.exp());
    g.output("other", z.silu());
    let graph = g.finish().unwrap();
    let value = |name| output(&graph, name).unwrap();
    let extra = ["beside", "other"].map(|name| Body { outputs: vec![value(name)] }).to_vec();
    let rows = Rows { extra, ..cluster(&graph, &[0, 1], vec![value("sum")]).unwrap() };
    assert_eq!(check_long("bodies", &graph, &rows).unwrap(), 2);
}

#[test]
fn some_reductions_stay_whole() {
    let n_cmds = |make: &dyn Fn(&GraphBuilder), target: &Target| {
        let g = GraphBuilder::new("t");
        make(&g);
        let graph = g.finish().unwrap();
        let rows = cluster(&graph, &[0], outputs(&graph)).unwrap();
        plan_for(&graph, &rows, target).unwrap().cmds.len()
    };
    let gpu = Target::webgpu_default();
    let plain = |g: &GraphBuilder| g.output("y", g.input("x", DType::F32, [4096, 24]).sum([0], false));
    assert_eq!(n_cmds(&plain, &gpu), 2);
    assert_eq!(n_cmds(&plain, &Target::profile("lavapipe").unwrap()), 1, "a software device");
    let varies = |g: &GraphBuilder| g.output("y", g.input_dynamic("x", DType::F32, [4096, 24], &[0]).sum([0], false));
    assert_eq!(n_cmds(&varies, &gpu), 1, "the length varies");
    let again = |g: &GraphBuilder| {
        let x = g.input("x", DType::F32, [4096, 24]);
        g.output("y", x - x.mean([0], true));
    };
    assert_eq!(n_cmds(&again, &gpu), 1, "rows are read again");
    let place = |g: &GraphBuilder| g.output("y", g.input("x", DType::F32, [4096, 24]).argmax(0usize));
    assert_eq!(n_cmds(&place, &gpu), 1, "the place of a maximum");
    let wide = |g: &GraphBuilder| g.output("y", g.input("x", DType::F32, [300, 17000]).sum([0], false));
    assert_eq!(n_cmds(&wide, &gpu), 1, "rows are enough");
}

/// Nothing loops long, and no reduction of many elements leaves most of a GPU idle.
#[test]
fn long_reductions_fill_a_gpu() {
    let target = Target::profile("nvidia").unwrap();
    for (shape, axes) in
        [(vec![8, 512, 24], vec![0, 1]), (vec![8, 512, 1792], vec![0, 1]), (vec![4096, 3352], vec![0, 1]), (vec![3, 70001], vec![1])]
    {
        let g = GraphBuilder::new("t");
        g.output("y", g.input("x", DType::F32, shape.as_slice()).sum(axes.as_slice(), false));
        let graph = g.finish().unwrap();
        let plan = plan_for(&graph, &cluster(&graph, &axes, outputs(&graph)).unwrap(), &target).unwrap();
        let n_workgroups: u64 = plan.cmds[0].workgroups.iter().map(|&n| u64::from(n)).product();
        assert!(n_workgroups >= 128, "{shape:?}: {n_workgroups} workgroups");
        assert!(plan.cmds.iter().all(|cmd| cmd.loop_trips <= 16), "{plan}");
    }
}
