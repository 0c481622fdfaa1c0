//! Kernel families: from clusters of ops to WGSL. One family a file.

pub mod choice;
pub mod elementwise;
pub mod matmul;
pub mod prefix;
pub mod row_stats;
pub mod rows;
pub mod scan;
mod scan_decay;
mod scan_rows;
pub mod scan_step;
pub mod scatter;
pub mod tile;

use crate::emit::{Index, KernelBuilder, Width};
use crate::step::StepValue;
use monopass_ir::ValueId;

/// Computes and stores `out` at the place of `index`, which is over a value of as many elements in the same order.
pub(crate) fn store_like(kb: &mut KernelBuilder<'_>, out: ValueId, index: &Index, width: Width) {
    let dtype = kb.ctx.graph.ty(out).dtype;
    let sizes = kb.sizes(out);
    let at = index.reshape(kb, &sizes);
    if width == Width::Four && !at.is_quad() {
        for lane in 0..4 {
            store_like(kb, out, &index.lane(lane), Width::One);
        }
        return;
    }
    let x = kb.emit(out, &at, width);
    let (flat, aligned) = at.flat(kb);
    let flat = kb.bind(flat);
    let quad = width == Width::Four && aligned && dtype == monopass_ir::DType::F32;
    let name = kb.write(StepValue::Graph(out), dtype, quad);
    match width {
        Width::One => kb.line(format!("st_{name}({flat}, {x});")),
        Width::Four => kb.line(format!("st4_{name}({flat}, {x});")),
    }
}

/// Sums of each of `names` over all invocations of a workgroup, known to every invocation. Fixed order.
pub(crate) fn reduce_workgroup(kb: &mut KernelBuilder<'_>, names: &[String], threads: u32, serial: bool) -> Vec<String> {
    let n = names.len();
    kb.global(&format!("var<workgroup> red: array<f32, {}>;", n * threads as usize), n as u64 * u64::from(threads) * 4);
    for (i, name) in names.iter().enumerate() {
        kb.line(format!("red[{}u + lid] = {name};", i * threads as usize));
    }
    kb.line("workgroupBarrier();");
    if serial {
        // One barrier and a short loop an output cost a software device less than a tree of barriers.
        kb.open(format!("if (lid < {n}u)"));
        kb.line("var total = 0.0;");
        kb.open(format!("for (var r = 0u; r < {threads}u; r += 1u)"));
        kb.line(format!("total += red[lid * {threads}u + r];"));
        kb.close();
        kb.line(format!("red[lid * {threads}u] = total;"));
        kb.close();
        kb.line("workgroupBarrier();");
    } else {
        let mut half = threads / 2;
        while half > 0 {
            kb.open(format!("if (lid < {half}u)"));
            for i in 0..n {
                let base = i * threads as usize;
                kb.line(format!("red[{base}u + lid] += red[{}u + lid];", base + half as usize));
            }
            kb.close();
            kb.line("workgroupBarrier();");
            half /= 2;
        }
    }
    (0..n).map(|i| kb.bind(format!("red[{}u]", i * threads as usize))).collect()
}
