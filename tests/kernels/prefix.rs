//! Running sums.

use crate::common::gpu;
use crate::harness::{Outcome, all_inline, check_within, output, run_for};
use monopass_ir::{DType, GraphBuilder};
use monopass_lower::kernels::elementwise::Body;
use monopass_lower::kernels::prefix::{RunningSum, lower_cumsum};

fn check_cumsum(shape: &[usize], axis: usize, reverse: bool, dynamic: &[usize]) -> Outcome<()> {
    let leading: Vec<usize> = dynamic.iter().copied().filter(|&a| a <= axis).collect();
    let g = GraphBuilder::new("t");
    let x = g.input_dynamic("x", DType::F32, shape, dynamic);
    let i = g.input_dynamic("i", DType::I32, shape, dynamic);
    let u = g.input_dynamic("u", DType::U32, shape, dynamic);
    let reset = g.input_dynamic("reset", DType::Bool, &shape[..=axis], &leading);
    g.output("f32", (x * 0.5).cumsum(None, axis, reverse, 0.0));
    g.output("i32", i.cumsum(None, axis, reverse, 0.0));
    g.output("u32", u.cumsum(None, axis, reverse, 0.0));
    g.output("anew", (x * 0.5).cumsum(Some(reset), axis, reverse, 0.0));
    // A wide period, whose half the sums of these inputs seldom come near.
    g.output("modulo", x.cumsum(None, axis, reverse, 1000.0));
    let graph = g.finish()?;
    let sums = ["f32", "i32", "u32", "anew", "modulo"].map(|name| output(&graph, name));
    check_within(&format!("cumsum {shape:?} {axis} {reverse}"), &graph, 1e-5, &|ctx, _| {
        sums.iter().flatten().map(|&value| lower_cumsum(ctx, &RunningSum::alone(value), &all_inline(&graph))).collect()
    })
}

#[test]
fn every_axis_both_ways() {
    let cases: &[(&[usize], usize)] = &[
        (&[1], 0),
        (&[7], 0),
        (&[33], 0),
        (&[3, 5], 1),
        (&[3, 32], 1),
        (&[3, 256], 1),
        (&[3, 257], 1),
        (&[2, 1000], 1),
        (&[2, 2500], 1),
        (&[1, 4096], 1),
        (&[5, 4], 0),
        (&[50, 4], 0),
        (&[3, 70, 5], 1),
        (&[3, 9, 5], 1),
        (&[3, 2, 44], 2),
        (&[0, 4], 0),
        (&[3, 0], 1),
    ];
    for (shape, axis) in cases {
        for reverse in [false, true] {
            check_cumsum(shape, *axis, reverse, &[]).unwrap();
        }
    }
}

#[test]
fn a_varying_length_is_read_at_run_time() {
    for len in [0, 1, 5, 300, 1025] {
        for reverse in [false, true] {
            check_cumsum(&[3, len, 4], 1, reverse, &[0, 1]).unwrap();
            check_cumsum(&[3, len], 1, reverse, &[0, 1]).unwrap();
        }
    }
}

/// Sums that start anew, plain and modulo a period, in the given inner size.
fn check_resets(len: usize, inner: usize, reverse: bool, dynamic: &[usize]) -> Outcome<()> {
    let g = GraphBuilder::new("t");
    let x = g.input_dynamic("x", DType::F32, [3, len, inner], dynamic);
    let i = g.input_dynamic("i", DType::I32, [3, len, inner], dynamic);
    let often = g.input_dynamic("often", DType::Bool, [3, len], dynamic);
    // One place in a few hundred, so that sums go over several chunks.
    let dense = g.input_dynamic("dense", DType::F32, [3, len], dynamic);
    let seldom = (dense + 1.98).lt(dense * 0.0);
    g.output("often", x.cumsum(Some(often), 1usize, reverse, 0.0));
    g.output("seldom", x.cumsum(Some(seldom), 1usize, reverse, 0.0));
    g.output("integers", i.cumsum(Some(seldom), 1usize, reverse, 0.0));
    // Whole numbers of quarters modulo 8.5 stay exact, so that no sum is on the wrong side of half the period.
    let quarters = (x * 16.0).floor() * 0.25;
    g.output("modulo", quarters.cumsum(Some(seldom), 1usize, reverse, 8.5));
    g.output("angle", x.cumsum(Some(often), 1usize, reverse, 100.0 * std::f64::consts::TAU));
    let graph = g.finish()?;
    let sums = ["often", "seldom", "integers", "modulo", "angle"].map(|name| output(&graph, name));
    check_within(&format!("resets of {len} by {inner}, reverse {reverse}"), &graph, 1e-5, &|ctx, _| {
        sums.iter().flatten().map(|&value| lower_cumsum(ctx, &RunningSum::alone(value), &all_inline(&graph))).collect()
    })
}

#[test]
fn sums_start_anew_across_lanes_and_chunks() {
    for (at, len) in [1, 2, 33, 255, 256, 257, 1025, 2050].into_iter().enumerate() {
        for (of, inner) in [1, 3, 5, 24].into_iter().enumerate() {
            let (reverse, varies) = ((at + of) % 2 == 0, (at + of / 2) % 2 == 0);
            check_resets(len, inner, reverse, if varies { &[0, 1] } else { &[] }).unwrap();
        }
    }
    for reverse in [false, true] {
        check_resets(257, 1, reverse, &[]).unwrap();
        check_resets(1028, 1, reverse, &[]).unwrap();
        check_resets(0, 3, reverse, &[0, 1]).unwrap();
    }
}

#[test]
fn wide_workgroups_of_other_devices_sum_the_same() {
    let Some(device) = gpu().unwrap() else { return };
    let target = monopass_lower::Target { is_cpu: false, ..device.target().clone() };
    for (len, inner, reverse) in [(2050, 1, false), (1300, 259, true), (600, 64, false), (515, 24, true)] {
        let g = GraphBuilder::new("t");
        let x = g.input_dynamic("x", DType::F32, [3, len, inner], &[0, 1]);
        let dense = g.input_dynamic("dense", DType::F32, [3, len], &[0, 1]);
        g.output("plain", x.cumsum(None, 1usize, reverse, 0.0));
        g.output("anew", x.cumsum(Some((dense + 1.98).lt(dense * 0.0)), 1usize, reverse, 1000.0));
        let graph = g.finish().unwrap();
        let sums = ["plain", "anew"].map(|name| output(&graph, name).unwrap());
        run_for(&format!("wide {len} by {inner}"), &graph, 1e-5, &target, &|ctx, _| {
            sums.iter().map(|&value| lower_cumsum(ctx, &RunningSum::alone(value), &all_inline(&graph))).collect()
        })
        .unwrap();
    }
}

#[test]
fn rows_side_by_side_end_where_a_row_is_missing() {
    for reverse in [false, true] {
        // Eight, four and two rows a workgroup, the last with rows over the end.
        for inner in [257, 131, 67] {
            check_resets(43, inner, reverse, &[]).unwrap();
            check_resets(70, inner, reverse, &[0, 1]).unwrap();
        }
    }
}

#[test]
fn what_is_made_from_a_sum_is_stored_with_it() {
    for (shape, axis) in [([3, 9, 5], 1_usize), ([3, 70, 5], 1), ([3, 2, 44], 2), ([1, 37, 64], 1), ([3, 300, 1], 1)] {
        for reverse in [false, true] {
            let g = GraphBuilder::new("t");
            let x = g.input_dynamic("x", DType::F32, shape, &[0, 1]);
            let z = g.input_dynamic("z", DType::F32, shape, &[0, 1]);
            let scale = g.param("scale", DType::F32, [shape[2]]);
            let sum = x.cumsum(None, axis, reverse, 0.0);
            g.output("shown", (sum * 0.125).sin() * scale);
            g.output("gated", (sum + z).silu());
            g.output("beside", (z * x).exp());
            g.output("rows", z.slice_axis(0, 0, 1) * scale);
            let graph = g.finish().unwrap();
            let outputs = ["shown", "gated"].map(|name| output(&graph, name).unwrap());
            let extra = ["beside", "rows"].map(|name| Body { outputs: vec![output(&graph, name).unwrap()] }).to_vec();
            let is_sum = |value| matches!(graph.def(value).op(), Some(monopass_ir::Op::Cumsum { .. }));
            let value = graph.nodes().flat_map(|(_, node)| node.results.clone()).find(|&value| is_sum(value)).unwrap();
            let item = RunningSum { value, outputs: outputs.to_vec(), extra };
            check_within(&format!("epilogue of {shape:?}, reverse {reverse}"), &graph, 2e-5, &|ctx, _| {
                vec![lower_cumsum(ctx, &item, &all_inline(&graph))]
            })
            .unwrap();
        }
    }
}
