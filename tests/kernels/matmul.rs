//! Matrix products.

use crate::harness::{Outcome, all_inline, check_within, output};
use monopass_ir::op::Class;
use monopass_ir::{DType, Graph, GraphBuilder, ValueId};
use monopass_lower::kernels::matmul::{Product, lower};

/// One product, the output `y` fused to it.
fn check_product(name: &str, graph: &Graph) -> Outcome<()> {
    let y = output(graph, "y")?;
    let is_product = |value: ValueId| graph.def(value).op().is_some_and(|op| op.class() == Class::Contraction);
    let anchor = graph.nodes().flat_map(|(_, node)| node.results.clone()).find(|&value| is_product(value)).ok_or("no product")?;
    check_within(name, graph, 2e-5, &|ctx, temps| {
        let item = Product { anchor, sides: Vec::new(), statistics: Vec::new(), outputs: vec![y] };
        lower(ctx, &item, &|value| !is_product(value) && all_inline(graph)(value), temps)
    })
}

#[test]
fn every_transposition_of_every_size() {
    for (m, n, k) in [(1, 1, 1), (2, 4, 4), (3, 5, 7), (8, 12, 16), (1, 40, 64), (9, 33, 20), (70, 65, 8), (5, 7, 0), (64, 64, 130)] {
        for transposed in 0..4 {
            let leads: &[(&[usize], &[usize])] = &[(&[], &[]), (&[3], &[]), (&[3], &[3]), (&[2, 1], &[3])];
            for (lead_a, lead_b) in leads.iter().take(if m == 3 || m == 9 { 4 } else { 1 }) {
                let (transpose_a, transpose_b) = (transposed & 1 != 0, transposed & 2 != 0);
                let shape = |lead: &[usize], rows: usize, cols: usize, is_swapped: bool| {
                    let last = if is_swapped { [cols, rows] } else { [rows, cols] };
                    [lead, &last[..]].concat()
                };
                let g = GraphBuilder::new("t");
                let a = g.input("a", DType::F32, shape(lead_a, m, k, transpose_a));
                let b = g.input("b", DType::F32, shape(lead_b, k, n, transpose_b));
                g.output("y", a.matmul(b * 0.5, transpose_a, transpose_b).silu());
                let name = format!("matmul {lead_a:?} {lead_b:?} {m} {n} {k} {transpose_a} {transpose_b}");
                check_product(&name, &g.finish().unwrap()).unwrap();
            }
        }
    }
}

#[test]
fn storage_types_are_multiplied_in_f32() {
    for dtype in [DType::F16, DType::Bf16] {
        for (m, k) in [(2, 4), (3, 10), (70, 33)] {
            let g = GraphBuilder::new("t");
            let a = g.input("a", DType::F32, [m, k]);
            let w = g.param("w", dtype, [6, k]);
            let bias = g.param("bias", DType::F32, [6]);
            g.output("y", a.cast(dtype).matmul(w, false, true) + bias);
            check_product(&format!("matmul {dtype} {m} {k}"), &g.finish().unwrap()).unwrap();
        }
    }
}
