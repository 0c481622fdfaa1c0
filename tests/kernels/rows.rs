//! Reductions and what is fused around them.

use crate::harness::{Outcome, all_inline, check, check_within, output, plan, reductions};
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};
use monopass_lower::Target;
use monopass_lower::kernels::rows::{Rows, lower};

/// One kernel for all reductions of the graph, which are over `axes` of their operands' shape.
fn check_rows(name: &str, graph: &Graph, axes: &[usize], tolerance: f64) -> Outcome<()> {
    let reductions = reductions(graph);
    let domain = graph.def(reductions[0]).operands[0].ok_or("no operand")?;
    let outputs = graph.outputs.iter().map(|output| output.value).collect();
    let rows = Rows { domain, axes: axes.to_vec(), reductions, outputs, extra: vec![] };
    check_within(name, graph, tolerance, &|ctx, temps| lower(ctx, &rows, &all_inline(graph), temps))
}

/// Each shape with the axes to reduce.
const SHAPES: &[(&[usize], &[usize])] = &[
    (&[3, 5], &[1]),
    (&[3, 8], &[1]),
    (&[3, 32], &[1]),
    (&[3, 33], &[1]),
    (&[2, 3, 36], &[2]),
    (&[3, 64], &[1]),
    (&[5, 7, 128], &[2]),
    (&[3, 768], &[1]),
    (&[3, 1000], &[1]),
    (&[2, 1001], &[1]),
    (&[1, 2560], &[1]),
    (&[1, 1], &[1]),
    (&[1], &[0]),
    (&[7], &[0]),
    (&[777], &[0]),
    (&[3, 1, 96], &[1, 2]),
    (&[3, 50, 4], &[1, 2]),
    (&[3, 5, 7], &[0, 1, 2]),
    (&[4, 64, 3], &[1]),
    (&[3, 40, 19], &[1]),
    (&[300, 17], &[0]),
    (&[3, 6, 5], &[0]),
    (&[3, 6, 5], &[1]),
    (&[9, 5, 12], &[0, 2]),
    (&[3, 70, 5, 40], &[1, 3]),
    (&[2, 3, 4, 5], &[1, 3]),
    (&[2, 50, 1], &[1]),
    (&[0, 5], &[1]),
    (&[0, 500], &[1]),
    (&[70, 64], &[1]),
];

#[test]
fn every_reduction_over_every_kind_of_axes() {
    for (shape, axes) in SHAPES {
        for keepdims in [false, true] {
            for (dtype, name) in [(DType::F32, "f32"), (DType::I32, "i32"), (DType::U32, "u32")] {
                let g = GraphBuilder::new("t");
                let x = g.input("x", dtype, *shape);
                g.output("sum", x.sum(*axes, keepdims));
                g.output("max", x.reduce_max(*axes, keepdims));
                if dtype == DType::F32 {
                    g.output("mean", x.mean(*axes, keepdims));
                    g.output("negative", x.abs().neg().reduce_max(*axes, keepdims));
                }
                if let [axis] = axes {
                    g.output("argmax", x.argmax(*axis));
                }
                let graph = g.finish().unwrap();
                check_rows(&format!("{name}{shape:?} over {axes:?}"), &graph, axes, 2e-5).unwrap();
            }
        }
    }
}

#[test]
fn a_vocabulary_row_is_reduced_in_few_trips() {
    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [3, 50288]);
    g.output("max", x.reduce_max([1], false));
    g.output("sum", x.sum([1], false));
    g.output("argmax", x.argmax(1usize));
    let graph = g.finish().unwrap();
    check_rows("vocabulary", &graph, &[1], 1e-4).unwrap();
    let rows = Rows {
        domain: graph.def(reductions(&graph)[0]).operands[0].unwrap(),
        axes: vec![1],
        reductions: reductions(&graph),
        outputs: vec![output(&graph, "max").unwrap()],
        extra: vec![],
    };
    let target = Target::webgpu_default();
    let plan = plan(&graph, &target, &|ctx, temps| lower(ctx, &rows, &all_inline(&graph), temps));
    // The other two outputs are not written, which the plan verifier sees.
    assert!(plan.is_err());
}

#[test]
fn sums_of_nothing_are_zero() {
    for shape in [[3, 0], [70, 0]] {
        let g = GraphBuilder::new("t");
        let x = g.input("x", DType::F32, shape);
        let i = g.input("i", DType::U32, shape);
        g.output("sum", x.sum([1], true));
        g.output("int_sum", i.sum([1], false));
        check_rows("empty", &g.finish().unwrap(), &[1], 0.0).unwrap();
    }
}

#[test]
fn the_first_of_equal_elements_is_the_largest() {
    for n in [5, 64, 500, 1024, 1030] {
        let g = GraphBuilder::new("t");
        let x = g.input("x", DType::F32, [3, n]);
        g.output("argmax", x.floor().argmax(1usize));
        g.output("all_equal", (x * 0.0).argmax(1usize));
        g.output("max", x.floor().reduce_max([1], true));
        check_rows(&format!("ties of {n}"), &g.finish().unwrap(), &[1], 0.0).unwrap();
    }
}

fn softmax(x: Tensor<'_>, axis: usize) -> Tensor<'_> {
    let e = (x - x.reduce_max([axis], true)).exp();
    e / e.sum([axis], true)
}

#[test]
fn a_softmax_is_one_kernel() {
    for shape in [[3, 5, 7], [3, 2, 64], [2, 3, 1000], [1, 1, 1], [3, 50, 9], [3, 50, 17], [0, 3, 40]] {
        for axis in [1, 2] {
            let g = GraphBuilder::new("t");
            let x = g.input("x", DType::F32, shape);
            g.output("y", softmax(x * 3.0, axis));
            check_rows(&format!("softmax {shape:?} {axis}"), &g.finish().unwrap(), &[axis], 2e-5).unwrap();
        }
    }
}

#[test]
fn a_cross_entropy_has_a_row_of_its_own() {
    for n in [10, 500] {
        let g = GraphBuilder::new("t");
        let x = g.input("x", DType::F32, [3, 4, n]);
        let ids = g.input("ids", DType::I32, [3, 4]);
        let max = x.reduce_max([2], true);
        let log_sum = (x - max).exp().sum([2], true).log() + max;
        let columns = g.iota([n], 0usize, DType::I32);
        let picked = columns.eq(ids.reshape([3, 4, 1])).select(x, g.scalar(0.0)).sum([2], false);
        g.output("loss", log_sum.reshape([3, 4]) - picked);
        g.output("logits_gradient", (x - log_sum).exp());
        check_rows("cross-entropy", &g.finish().unwrap(), &[2], 2e-5).unwrap();
    }
}

#[test]
fn norms_with_weights_gates_and_residuals() {
    for (rows, n) in [(1, 256), (3, 768), (5, 100), (2, 1000), (1, 2048), (9, 20), (3, 7)] {
        let g = GraphBuilder::new("t");
        let x = g.input_dynamic("x", DType::F32, [2, rows, n], &[0, 1]);
        let z = g.input_dynamic("z", DType::F32, [2, rows, n], &[0, 1]);
        let (w, b) = (g.param("w", DType::F32, [n]), g.param("b", DType::F32, [n]));
        let gated = x * z.silu();
        let rms = (gated * gated).mean([2], true);
        g.output("rms_norm", gated * (rms + 1e-5).rsqrt() * w);
        let mean = x.mean([2], true);
        let centered = x - mean;
        let variance = (centered * centered).mean([2], true);
        g.output("layer_norm", centered * (variance + 1e-5).rsqrt() * w + b);
        g.output("variance", variance.reshape([2, rows]));
        check_rows(&format!("norm {rows} {n}"), &g.finish().unwrap(), &[2], 2e-5).unwrap();
    }
}

#[test]
fn a_norm_over_groups_reads_and_writes_reshaped_rows() {
    for (groups, size) in [(3, 12), (2, 64), (4, 24), (3, 11)] {
        let g = GraphBuilder::new("t");
        let x = g.input("x", DType::F32, [3, 2, groups * size]);
        let w = g.param("w", DType::F32, [groups * size]);
        let y = x.reshape([3, 2, groups, size]);
        let scale = ((y * y).mean([3], true) + 1e-5).rsqrt();
        g.output("y", (y * scale).reshape([3, 2, groups * size]) * w);
        check_rows(&format!("groups {groups} {size}"), &g.finish().unwrap(), &[3], 2e-5).unwrap();
    }
}

#[test]
fn gradients_of_a_bias_are_summed_over_batch_and_length() {
    for (batch, len, n) in [(3, 5, 40), (3, 100, 8), (1, 1, 12), (2, 70, 3)] {
        let g = GraphBuilder::new("t");
        let x = g.input_dynamic("x", DType::F32, [batch, len, n], &[0, 1]);
        let y = g.input_dynamic("y", DType::F32, [batch, len, n], &[0, 1]);
        g.output("bias", x.sum([0, 1], false));
        g.output("weight", (x * y).sum([0, 1], false));
        check_rows(&format!("bias {batch} {len} {n}"), &g.finish().unwrap(), &[0, 1], 2e-5).unwrap();
    }
}

#[test]
fn half_precision_is_summed_in_f32() {
    for dtype in [DType::F16, DType::Bf16] {
        for n in [6, 100, 130] {
            let g = GraphBuilder::new("t");
            let x = g.input("x", dtype, [3, n]);
            g.output("wide", x.cast(DType::F32).sum([1], false));
            g.output("rounded", x.sum([1], false).cast(DType::F32));
            g.output("max", x.reduce_max([1], true).cast(DType::F32));
            g.output("normed", (x / x.mean([1], true).abs()).cast(DType::F32));
            check_rows(&format!("{dtype} {n}"), &g.finish().unwrap(), &[1], 8e-3).unwrap();
        }
    }
}

#[test]
fn another_length_gives_the_same_text() {
    let texts = |batch: usize, len: usize| {
        let g = GraphBuilder::new("t");
        let x = g.input_dynamic("x", DType::F32, [batch, len, 40], &[0, 1]);
        g.output("by_channel", x.sum([0, 1], true));
        let graph = g.finish().unwrap();
        let rows = Rows {
            domain: graph.inputs().next().unwrap().1,
            axes: vec![0, 1],
            reductions: reductions(&graph),
            outputs: reductions(&graph),
            extra: vec![],
        };
        let plan = plan(&graph, &Target::webgpu_default(), &|ctx, temps| lower(ctx, &rows, &all_inline(&graph), temps)).unwrap();
        plan.kernels[0].wgsl.clone()
    };
    assert_eq!(texts(1, 1), texts(3, 5));
    assert_eq!(texts(1, 7), texts(2, 1));
}

#[test]
fn outputs_whose_other_operands_vary_cover_the_domain() {
    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [1, 6]);
    let scale = g.input_dynamic("scale", DType::F32, [1, 1], &[0, 1]);
    g.output("y", x.sum([1], true) * x * scale);
    check_rows("other operands vary", &g.finish().unwrap(), &[1], 2e-5).unwrap();
}

#[test]
fn a_loop_that_a_driver_would_end_gets_more_invocations() {
    let graph = |n: usize| {
        let g = GraphBuilder::new("t");
        g.output("sum", g.input("x", DType::F32, [1, n]).sum([1], false));
        g.finish().unwrap()
    };
    let target = Target { max_loop_trips: Some(100), ..Target::profile("lavapipe").unwrap() };
    let trips = |n: usize| {
        let graph = graph(n);
        let rows = Rows {
            domain: graph.inputs().next().unwrap().1,
            axes: vec![1],
            reductions: reductions(&graph),
            outputs: reductions(&graph),
            extra: vec![],
        };
        plan(&graph, &target, &|ctx, temps| lower(ctx, &rows, &all_inline(&graph), temps)).map(|plan| plan.cmds[0].loop_trips)
    };
    assert_eq!(trips(100 * 32 + 1).unwrap(), 51);
    assert_eq!(trips(1024 * 100).unwrap(), 100);
    assert!(trips(1024 * 100 + 1001 + 1024 * 1000).is_err());
}

#[test]
fn scalars_reduce_to_themselves() {
    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [1, 1]);
    g.output("y", x.sum([0, 1], false));
    let graph = g.finish().unwrap();
    check("scalar", &graph, &|ctx, temps| {
        let rows = Rows {
            domain: graph.inputs().next().unwrap().1,
            axes: vec![0, 1],
            reductions: reductions(&graph),
            outputs: reductions(&graph),
            extra: vec![],
        };
        lower(ctx, &rows, &all_inline(&graph), temps)
    })
    .unwrap();
}

#[test]
fn results_of_other_rows_are_refused() {
    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [4, 4]);
    let sum = x.sum([1], true);
    let scale = sum.reshape([4]).rsqrt().reshape([4, 1]);
    g.output("own", x * scale);
    g.output("own_flat", (x * sum.broadcast([4, 4])).reshape([16]));
    g.output("by_row", sum.reshape([2, 2]) * 2.0);
    g.output("transposed", x * sum.permute([1, 0]));
    g.output("misaligned", x * sum.reshape([4]));
    g.output("shifted", x - sum.pad([1, 0], [0, 0], 0.0).slice_axis(0, 0, 4));
    g.output("chosen", sum.slice_axis(0, 1, 2).reshape([1, 1]) + x);
    g.output("smaller", sum.slice_axis(0, 1, 2));
    g.output("unrelated", x.permute([1, 0]));
    let graph = g.finish().unwrap();
    let rows =
        Rows { domain: graph.inputs().next().unwrap().1, axes: vec![1], reductions: reductions(&graph), outputs: vec![], extra: vec![] };
    let verdicts: Vec<(&str, bool)> =
        graph.outputs.iter().map(|named| (named.name.as_str(), rows.reads_own_row(&graph, named.value, &all_inline(&graph)))).collect();
    let own: Vec<&str> = verdicts.iter().filter(|(_, own)| *own).map(|(name, _)| *name).collect();
    assert_eq!(own, ["own", "own_flat", "by_row", "unrelated"]);
}

#[test]
fn independent_work_shares_the_dispatch() {
    use monopass_lower::kernels::elementwise::Body;
    for shape in [[5, 7], [3, 256], [130, 40], [1, 1]] {
        let g = GraphBuilder::new("t");
        let x = g.input_dynamic("x", DType::F32, shape, &[0]);
        let z = g.input("z", DType::F32, [3, 37]);
        g.output("sum", x.sum([1], false));
        g.output("beside", x.exp());
        g.output("other", z.silu());
        let graph = g.finish().unwrap();
        let value = |name| output(&graph, name).unwrap();
        check("rows and bodies", &graph, &|ctx, temps| {
            let extra = ["beside", "other"].map(|name| Body { outputs: vec![value(name)] }).to_vec();
            let domain = graph.inputs().next().unwrap().1;
            let rows = Rows { domain, axes: vec![1], reductions: reductions(&graph), outputs: vec![value("sum")], extra };
            lower(ctx, &rows, &all_inline(&graph), temps)
        })
        .unwrap();
    }
}
