//! Graphs whose sizes make each kernel meet its edges: tiles that the sizes do not fill, K split among workgroups, few rows,
//! scans of any length, with several ranks and groups, and sequences that start inside a chunk.

use crate::check;
use crate::common::{Outcome, gpu, settle, targets};
use monopass_ir::error::BuildErrors;
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};

/// Checks every graph for every target, all passes on.
fn check_all(graphs: impl IntoIterator<Item = Result<(String, Graph), BuildErrors>>) -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let mut problems = Vec::new();
    for (seed, item) in (20..).zip(graphs) {
        let (name, graph) = item?;
        for (target_name, target) in targets(device) {
            let problem = check(device, &graph, &target, &[], seed)?;
            problems.extend(problem.map(|problem| format!("{name} for {target_name}: {problem}")));
        }
    }
    settle(&problems)
}

/// `silu(x w + b) * x2`, where M, N and K are `sizes`.
fn product(sizes: [usize; 3], transpose_a: bool, transpose_b: bool) -> Result<(String, Graph), BuildErrors> {
    let [m, n, k] = sizes;
    let g = GraphBuilder::new("product");
    let x = g.input_dynamic("x", DType::F32, if transpose_a { [k, m] } else { [m, k] }, &[usize::from(transpose_a)]);
    let w = g.param("w", DType::F32, if transpose_b { [n, k] } else { [k, n] });
    let gate = g.input_dynamic("gate", DType::F32, [m, n], &[0]);
    let y = x.matmul(w, transpose_a, transpose_b) * (1.0 / k as f64).sqrt();
    g.output("y", (y + g.param("b", DType::F32, [n])).silu() * gate);
    Ok((format!("product {sizes:?} {transpose_a} {transpose_b}"), g.finish()?))
}

#[test]
fn products_of_any_size() -> Outcome {
    let plain = [[1, 1, 1], [3, 5, 7], [8, 7, 130], [9, 33, 17], [20, 64, 512], [21, 31, 515], [70, 65, 50], [130, 68, 260], [257, 5, 64]];
    let turned = [[5, 7, 9], [33, 66, 34], [68, 12, 300]];
    let plain = plain.into_iter().flat_map(|sizes| [product(sizes, false, true), product(sizes, false, false)]);
    check_all(plain.chain(turned.into_iter().flat_map(|sizes| [product(sizes, true, false), product(sizes, true, true)])))
}

/// A product of batches, each with its own right side, or all with one.
fn batches(rows: usize, is_shared: bool) -> Result<(String, Graph), BuildErrors> {
    let g = GraphBuilder::new("batches");
    let x = g.input_dynamic("x", DType::F32, [3, 1, rows, 6], &[0]);
    let y = g.input_dynamic("y", DType::F32, [if is_shared { 1 } else { 3 }, 2, 10, 6], &[0]);
    let z = x.matmul(y, false, true);
    g.output("z", z.reshape([6, rows * 10]).tanh());
    g.output("sum", z.sum([0, 3], false));
    Ok((format!("batches of {rows}, shared {is_shared}"), g.finish()?))
}

#[test]
fn products_of_batches() -> Outcome {
    check_all([(1, true), (5, true), (5, false), (40, false)].map(|(rows, is_shared)| batches(rows, is_shared)))
}

/// A norm, its product, and parts of the result that go different ways.
fn normed(rows: usize, width: usize) -> Result<(String, Graph), BuildErrors> {
    let g = GraphBuilder::new("normed");
    let x = g.input_dynamic("x", DType::F32, [3, rows, width], &[0, 1]);
    let mean_square = (x * x).mean([2], true);
    let normed = x * (mean_square + 1e-5).rsqrt() * g.param("w", DType::F32, [width]);
    let y = normed.matmul(g.param("in_proj", DType::F32, [width + 9, width]), false, true);
    g.output("gate", y.slice_axis(2, 0, width).silu());
    g.output("rest", y.slice_axis(2, width, width + 9).softplus());
    g.output("residual", x + y.slice_axis(2, 9, width + 9));
    Ok((format!("normed {rows} {width}"), g.finish()?))
}

#[test]
fn norms_folded_into_products() -> Outcome {
    check_all([(1, 7), (2, 24), (7, 130), (30, 260), (90, 36)].map(|(rows, width)| normed(rows, width)))
}

/// A norm by groups of channels beside other channels, and its product.
fn grouped(rows: usize, groups: usize, width: usize) -> Result<(String, Graph), BuildErrors> {
    let g = GraphBuilder::new("grouped");
    let x = g.input_dynamic("x", DType::F32, [3, rows, groups * width], &[0, 1]);
    let other = g.input_dynamic("other", DType::F32, [3, rows, 5], &[0, 1]);
    let parts = x.reshape([3, rows, groups, width]);
    let normed = parts * ((parts * parts).mean([3], true) + 1e-5).rsqrt() * g.param("w", DType::F32, [groups, width]);
    let joined = g.concat(&[other.silu(), normed.reshape([3, rows, groups * width])], 2usize);
    let y = joined.matmul(g.param("out_proj", DType::F32, [9, groups * width + 5]), false, true);
    g.output("y", y + g.param("b", DType::F32, [9]));
    Ok((format!("grouped {rows} {groups} {width}"), g.finish()?))
}

#[test]
fn norms_by_groups_before_products() -> Outcome {
    check_all(
        [(1, 1, 7), (2, 3, 8), (1, 30, 5), (2, 33, 4), (5, 4, 12), (20, 2, 70)].map(|(rows, groups, width)| grouped(rows, groups, width)),
    )
}

/// Sizes and options of a scan.
#[derive(Clone, Copy, Debug)]
struct Scan {
    len: usize,
    heads: usize,
    groups: usize,
    ranks: usize,
    headdim: usize,
    d_state: usize,
    chunk_size: usize,
    has_state: bool,
    has_reset: bool,
    has_weight: bool,
    has_own_weight: bool,
}

impl Scan {
    fn graph(self) -> Result<(String, Graph), BuildErrors> {
        let Self { len, heads, groups, ranks, headdim, d_state, chunk_size, .. } = self;
        let g = GraphBuilder::new("scan");
        let input = |name, shape: &[usize]| g.input_dynamic(name, DType::F32, shape, &[0, 1]);
        let rate = input("rate", &[3, len, heads]);
        let log_decay = -(rate * rate);
        let v = input("v", &[3, len, heads, ranks, headdim]);
        let [k, q] = ["k", "q"].map(|name| input(name, &[3, len, groups, ranks, d_state]) * 0.5);
        let s0 = self.has_state.then(|| g.state_dynamic("s", DType::F32, [3, heads, headdim, d_state], &[0]));
        let reset = self.has_reset.then(|| g.input_dynamic("reset", DType::Bool, [3, len], &[0, 1]));
        let weight = self.has_weight.then(|| input("weight", &[3, len, heads]).softplus());
        let own_weight = self.has_own_weight.then(|| input("own_weight", &[3, len, heads]) * 2.0);
        let (y, s_last) = log_decay.scan(v, k, q, s0, reset, weight, own_weight, chunk_size);
        let skip: Tensor<'_> = g.param("d", DType::F32, [heads, 1, 1]);
        g.output("y", (y + v * skip).reshape([3, len, heads * ranks * headdim]).tanh());
        if self.has_state {
            g.update("s", s_last);
        } else {
            g.output("s_last", s_last);
        }
        Ok((format!("{self:?}"), g.finish()?))
    }
}

impl Scan {
    /// Its adjoint, the batch and length of which vary, between elementwise ops.
    fn adjoint(self) -> Result<(String, Graph), BuildErrors> {
        let Self { len, heads, groups, ranks, headdim, d_state, chunk_size, .. } = self;
        let g = GraphBuilder::new("scan_grad");
        let input = |name, shape: &[usize]| g.input_dynamic(name, DType::F32, shape, &[0, 1]);
        let rate = input("rate", &[3, len, heads]);
        let [v, dy] = ["v", "dy"].map(|name| input(name, &[3, len, heads, ranks, headdim]));
        let [k, q] = ["k", "q"].map(|name| input(name, &[3, len, groups, ranks, d_state]) * 0.5);
        let [s0, ds_last] = ["s0", "ds_last"].map(|name| g.input_dynamic(name, DType::F32, [3, heads, headdim, d_state], &[0]));
        let (s0, ds_last) = (self.has_state.then_some(s0), self.has_state.then_some(ds_last));
        let reset = self.has_reset.then(|| g.input_dynamic("reset", DType::Bool, [3, len], &[0, 1]));
        let weight = self.has_weight.then(|| input("weight", &[3, len, heads]).softplus());
        let own_weight = self.has_own_weight.then(|| input("own_weight", &[3, len, heads]) * 2.0);
        let d = (-(rate * rate)).scan_grad(v, k, q, dy, s0, reset, weight, own_weight, ds_last, chunk_size);
        g.output("d_rate", d.0 * rate * -2.0);
        for (name, result) in
            [("d_v", d.1), ("d_k", d.2 * 0.5), ("d_q", d.3 * 0.5), ("d_s0", d.4), ("d_weight", d.5), ("d_own_weight", d.6)]
        {
            g.output(name, result);
        }
        Ok((format!("adjoint of {self:?}"), g.finish()?))
    }
}

/// A scan without options.
const PLAIN: Scan = Scan {
    len: 70,
    heads: 4,
    groups: 2,
    ranks: 1,
    headdim: 4,
    d_state: 8,
    chunk_size: 0,
    has_state: false,
    has_reset: false,
    has_weight: false,
    has_own_weight: false,
};

#[test]
fn scans_token_by_token() -> Outcome {
    let step = Scan { len: 1, has_state: true, ..PLAIN };
    let scans = [
        step,
        Scan { len: 8, has_reset: true, ..step },
        Scan { len: 5, headdim: 3, d_state: 5, ranks: 3, ..step },
        Scan { len: 3, headdim: 20, d_state: 130, groups: 4, ..step },
        Scan { len: 2, headdim: 9, d_state: 72, groups: 1, ranks: 2, has_state: false, has_reset: true, ..step },
        Scan { len: 4, headdim: 1, d_state: 1, heads: 1, groups: 1, ..step },
    ];
    check_all(scans.map(Scan::graph))
}

#[test]
fn scans_by_chunks() -> Outcome {
    let scans = [
        PLAIN,
        Scan { len: 9, has_state: true, ..PLAIN },
        Scan { len: 64, headdim: 20, d_state: 36, ..PLAIN },
        Scan { len: 65, headdim: 66, d_state: 70, groups: 1, has_state: true, ..PLAIN },
        Scan { len: 130, headdim: 5, d_state: 7, has_reset: true, has_state: true, ..PLAIN },
        Scan { len: 67, ranks: 2, headdim: 8, d_state: 4, has_reset: true, ..PLAIN },
        Scan { len: 50, ranks: 3, headdim: 3, d_state: 9, has_state: true, ..PLAIN },
        Scan { len: 31, chunk_size: 5, headdim: 6, has_reset: true, has_state: true, ..PLAIN },
        Scan { len: 20, chunk_size: 1, heads: 1, groups: 1, headdim: 1, d_state: 1, ..PLAIN },
    ];
    check_all(scans.map(Scan::graph))
}

/// Lengths on both sides of the step kernel's limit and of chunks, each with one to three ranks; the sizes of a state and
/// which weights there are take turns.
#[test]
fn scans_with_weights_of_tokens() -> Outcome {
    let lengths = [1, 2, 8, 9, 63, 64, 65, 130];
    let scans = lengths.into_iter().enumerate().flat_map(|(i, len)| {
        (1..=3).map(move |ranks| {
            let (headdim, d_state) = [(4, 8), (3, 5), (8, 7), (5, 12)][(i + ranks) % 4];
            let (has_weight, has_own_weight) = [(true, true), (true, false), (true, true), (false, true)][(2 * i + ranks) % 4];
            let (has_state, has_reset) = (ranks != 2 || len == 1, (i + ranks) % 3 != 0);
            Scan { len, ranks, headdim, d_state, has_state, has_reset, has_weight, has_own_weight, ..PLAIN }
        })
    });
    check_all(scans.chain([Scan { len: 31, chunk_size: 5, ranks: 2, has_weight: true, has_own_weight: true, ..PLAIN }]).map(Scan::graph))
}

#[test]
fn adjoints_of_scans() -> Outcome {
    let scans = [
        Scan { len: 1, has_state: true, ..PLAIN },
        Scan { len: 33, groups: 1, heads: 3, headdim: 5, has_weight: true, has_state: true, ..PLAIN },
        Scan { len: 131, groups: 1, headdim: 9, d_state: 17, ..PLAIN },
        Scan { len: 90, groups: 1, heads: 1, headdim: 66, d_state: 70, has_reset: true, has_state: true, ..PLAIN },
        Scan { len: 40, ranks: 3, has_reset: true, has_weight: true, has_own_weight: true, ..PLAIN },
    ];
    check_all(scans.map(Scan::adjoint))
}

/// A convolution of packed sequences with its window, an activation, and a state that is kept.
fn conv(len: usize, n_taps: usize, channels: usize) -> Result<(String, Graph), BuildErrors> {
    let g = GraphBuilder::new("conv");
    let x = g.input_dynamic("x", DType::F32, [3, len, channels], &[0, 1]);
    let reset = g.input_dynamic("reset", DType::Bool, [3, len], &[0, 1]);
    let window = g.state_dynamic("window", DType::F32, [3, channels, n_taps - 1], &[0]);
    let (w, b) = (g.param("w", DType::F32, [channels, n_taps]), g.param("b", DType::F32, [channels]));
    let (y, last) = x.conv1d(w, Some(b), Some(window), Some(reset), false);
    g.output("y", y.silu());
    g.update("window", last);
    Ok((format!("conv {len} {n_taps} {channels}"), g.finish()?))
}

#[test]
fn convolutions_of_packed_sequences() -> Outcome {
    check_all([(1, 4, 8), (2, 4, 5), (3, 6, 4), (9, 4, 12), (40, 3, 7), (1, 2, 3)].map(|(len, taps, channels)| conv(len, taps, channels)))
}

/// More results than a kernel can bind: of one reduction, one product, one scan, and side by side.
fn crowd(what: &str) -> Result<(String, Graph), BuildErrors> {
    let g = GraphBuilder::new("crowd");
    let x = g.input_dynamic("x", DType::F32, [3, 12, 6], &[0, 1]);
    let hub = match what {
        "reduction" => x.sum([2], true),
        "product" => x.matmul(g.param("w", DType::F32, [5, 6]), false, true),
        "scan" => {
            let v = x.reshape([3, 12, 6, 1, 1]);
            let k = x.slice_axis(2, 0, 4).reshape([3, 12, 1, 1, 4]);
            (-(x * x)).scan(v, k, k, None, None, None, None, 0usize).0
        }
        _ => x,
    };
    for i in 0..11 {
        let other = g.input_dynamic(&format!("x{i}"), DType::F32, hub.shape(), &[0, 1]);
        g.output(&format!("y{i}"), (hub * f64::from(i + 1)).tanh() + other);
    }
    Ok((format!("crowd around a {what}"), g.finish()?))
}

#[test]
fn more_results_than_bindings() -> Outcome {
    check_all(["reduction", "product", "scan", "body"].map(crowd))
}

/// One value made from more inputs than a kernel can bind, by a chain of sums or by one concat.
fn many_inputs(n: usize, is_concat: bool) -> Result<(String, Graph), BuildErrors> {
    let g = GraphBuilder::new("many");
    let inputs: Vec<Tensor<'_>> = (0..n).map(|i| g.input_dynamic(&format!("x{i}"), DType::F32, [3, 5, 4], &[0, 1])).collect();
    let joined = if is_concat {
        g.concat(&inputs, 2usize)
    } else {
        // In halves, so that the sum is no longer than what the tolerance of one value allows.
        let mut parts = inputs;
        while parts.len() > 1 {
            parts = parts.chunks(2).map(|pair| pair.iter().skip(1).fold(pair[0], |sum, &x| sum + x)).collect();
        }
        parts[0]
    };
    g.output("y", joined.tanh());
    Ok((format!("{n} inputs, concat {is_concat}"), g.finish()?))
}

#[test]
fn more_operands_than_bindings() -> Outcome {
    check_all([(8, true), (9, true), (70, true), (8, false), (40, false), (300, false)].map(|(n, is_concat)| many_inputs(n, is_concat)))
}

/// A chain of `n` ops over `start`, each of which keeps its result near 0.
fn chain(n: usize, start: &str) -> Result<(String, Graph), BuildErrors> {
    let g = GraphBuilder::new("chain");
    let x = g.input_dynamic("x", DType::F32, [3, 5, 4], &[0, 1]);
    let start_value = match start {
        "product" => x.matmul(g.param("w", DType::F32, [6, 4]), false, true),
        "row" => x.mean([2], true),
        _ => x,
    };
    let mut y = start_value;
    for _ in 0..n {
        y = (-y).clamp(-1.0, 1.0);
    }
    g.output("y", if start == "row" { x * y } else { y });
    Ok((format!("chain of {n} over {start}"), g.finish()?))
}

#[test]
fn chains_longer_than_a_stack_is_deep() -> Outcome {
    check_all(["input", "product", "row"].map(|start| chain(3000, start)))
}

/// A scan whose state grows: decays are not negative, over several chunks.
fn growing_scan() -> Result<(String, Graph), BuildErrors> {
    let g = GraphBuilder::new("growing");
    let rate = g.input_dynamic("rate", DType::F32, [3, 130, 2], &[0, 1]);
    let v = g.input_dynamic("v", DType::F32, [3, 130, 2, 1, 8], &[0, 1]);
    let k = g.input_dynamic("k", DType::F32, [3, 130, 1, 1, 4], &[0, 1]);
    let reset = g.input_dynamic("reset", DType::Bool, [3, 130], &[0, 1]);
    let (y, last) = (rate * rate * 0.01).scan(v, k, k, None, Some(reset), None, None, 0usize);
    g.output("y", y);
    g.output("last", last);
    Ok(("growing scan".to_owned(), g.finish()?))
}

#[test]
fn a_scan_whose_state_grows() -> Outcome {
    check_all([growing_scan()])
}
