//! Sums of rows by index.

use crate::common::gpu;
use crate::harness::{Lower, Outcome, all_inline, check_within, output, run_for};
use monopass_ir::{DType, Graph, GraphBuilder};
use monopass_lower::Target;
use monopass_lower::kernels::scatter::{Scatter, lower};

/// A graph with the sums of `updates` into `rows` rows, by ids of both types; the values of ids are below 5.
fn graph(ids: &[usize], row: &[usize], rows: usize, dynamic: &[usize]) -> Outcome<Graph> {
    let g = GraphBuilder::new("t");
    let x = g.input_dynamic("x", DType::F32, [ids, row].concat(), dynamic);
    let signed = g.input_dynamic("ids", DType::I32, ids, dynamic);
    let unsigned = g.input_dynamic("ids_u", DType::U32, ids, dynamic);
    g.output("signed", (x * 0.5).scatter_add(signed, rows) * 2.0);
    g.output("unsigned", x.cast(DType::Bf16).scatter_add(unsigned, rows));
    // Rows that are far apart, the last one among them.
    g.output("spread", x.scatter_add(unsigned * g.constant(f64::from(u32::try_from((rows - 1) / 4)?), DType::U32, []), rows));
    Ok(g.finish()?)
}

fn check(ids: &[usize], row: &[usize], rows: usize, dynamic: &[usize], target: Option<&Target>) -> Outcome {
    let graph = graph(ids, row, rows, dynamic)?;
    let name = format!("scatter_add {ids:?} {row:?} {rows}");
    let outputs = ["signed", "unsigned", "spread"].map(|name| output(&graph, name));
    let value_of = |out| graph.def(out).op().filter(|op| op.mnemonic() == "mul").and(graph.def(out).operands[0]).unwrap_or(out);
    let items: Vec<Scatter> = outputs.iter().flatten().map(|&out| Scatter { value: value_of(out), outputs: vec![out] }).collect();
    let lower: &Lower<'_> = &|ctx, temps| items.iter().flat_map(|item| lower(ctx, item, &all_inline(&graph), temps)).collect();
    match target {
        Some(target) => run_for(&name, &graph, 1e-5, target, lower),
        None => check_within(&name, &graph, 1e-5, lower),
    }
}

#[test]
fn rows_of_any_size() {
    let cases: &[(&[usize], &[usize], usize)] = &[
        (&[], &[5], 5),
        (&[1], &[], 5),
        (&[7], &[1], 6),
        (&[3, 5], &[6], 11),
        (&[3, 5], &[2, 4], 5),
        (&[33], &[68], 70),
        (&[9], &[300], 257),
        (&[3, 0], &[6], 5),
        (&[4], &[0], 5),
        (&[1024], &[3], 5),
    ];
    for (ids, row, rows) in cases {
        check(ids, row, *rows, &[], None).unwrap();
    }
}

#[test]
fn ids_in_pieces_and_in_tiles() {
    // The second result is too large for pieces, the third has rows enough for several a group.
    for (len, row, rows) in [(1025, 6, 7), (1030, 52, 5100), (1100, 256, 1031)] {
        check(&[len], &[row], rows, &[], None).unwrap();
    }
}

#[test]
fn a_varying_length_is_read_at_run_time() {
    for len in [0, 1, 5, 300, 1025] {
        check(&[3, len], &[6], 7, &[0, 1], None).unwrap();
    }
}

#[test]
fn with_the_kernels_of_other_devices() {
    let Some(device) = gpu().unwrap() else { return };
    let other = Target { is_cpu: false, ..device.target().clone() };
    for (len, row, rows) in [(7, 6, 11), (1025, 8, 7), (1100, 260, 4100)] {
        check(&[len], &[row], rows, &[], Some(&other)).unwrap();
    }
}
