//! Running sums.

use crate::harness::{Outcome, all_inline, check_within, output};
use monopass_ir::{DType, GraphBuilder};
use monopass_lower::kernels::prefix::lower_cumsum;

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
        sums.iter().flatten().map(|&value| lower_cumsum(ctx, value, &all_inline(&graph))).collect()
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
