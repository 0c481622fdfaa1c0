//! Everything that is computed where it is needed: arithmetic, casts, movement, gathers, short convolutions.

use crate::harness::{Outcome, all_inline, check_within, plan};
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};
use monopass_lower::Target;
use monopass_lower::kernels::elementwise::{Body, lower};

/// A body for every output and update, three a kernel so that bindings are enough; nothing but sources is loaded.
fn check_inline(name: &str, graph: &Graph, tolerance: f64) -> Outcome<()> {
    let named = graph.outputs.iter().chain(&graph.updates);
    let bodies: Vec<Body> = named.map(|named| Body { outputs: vec![named.value] }).collect();
    check_within(name, graph, tolerance, &|ctx, _| bodies.chunks(3).map(|bodies| lower(ctx, bodies, &all_inline(graph), &[])).collect())
}

/// Last axes with and without a multiple of four elements.
const SHAPES: &[&[usize]] = &[&[3, 5], &[3, 2, 8], &[1], &[], &[70], &[2, 64], &[0, 4], &[3, 0]];

#[test]
fn arithmetic_on_floats() {
    for shape in SHAPES {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let g = GraphBuilder::new("t");
            let (x, y) = (g.input("x", dtype, *shape), g.input("y", dtype, *shape));
            let pos = g.input("pos", DType::F32, *shape).cast(dtype);
            let results: Vec<Tensor<'_>> = vec![
                x.neg(),
                x.abs(),
                x.exp(),
                pos.log(),
                pos.sqrt(),
                pos.rsqrt(),
                x.sigmoid(),
                x.silu(),
                x.softplus(),
                x.tanh(),
                x.sin(),
                x.cos(),
                x.floor(),
                x.clamp(-0.5, 1.0),
                x + y,
                x - y,
                x * y,
                x / pos,
                x.max(y),
                x.min(y),
                x.lt(y).select(x, y),
                x.clamp(-1.5, 1.5).clamp(f64::from(f32::MIN), f64::from(f32::MAX)),
            ];
            for (i, result) in results.iter().enumerate() {
                g.output(&format!("y{i}"), *result);
            }
            let graph = g.finish().unwrap();
            let tolerance = if dtype == DType::F32 { 2e-6 } else { 0.0 };
            check_inline(&format!("{dtype}{shape:?}"), &graph, tolerance).unwrap();
        }
    }
}

#[test]
fn wide_arguments_of_the_elementary_functions() {
    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [1000]);
    let wide = x * 500.0;
    for (name, y) in [("sin", wide.sin()), ("cos", wide.cos()), ("sigmoid", wide.sigmoid()), ("tanh", wide.tanh()), ("silu", wide.silu())] {
        g.output(name, y);
    }
    g.output("softplus", wide.softplus());
    let small = x * 0.01;
    g.output("small_tanh", small.tanh() * 100.0);
    g.output("small_sin", small.sin() * 100.0);
    let graph = g.finish().unwrap();
    check_inline("wide", &graph, 1e-6).unwrap();
}

#[test]
fn comparison_logic_and_integers() {
    for shape in SHAPES {
        let g = GraphBuilder::new("t");
        let (i, j) = (g.input("ids_i", DType::I32, *shape), g.input("ids_j", DType::I32, *shape));
        let (u, v) = (g.input("ids_u", DType::U32, *shape), g.input("ids_v", DType::U32, *shape));
        let (p, q) = (g.input("p", DType::Bool, *shape), g.input("q", DType::Bool, *shape));
        let results = [
            i.eq(j),
            i.ne(j),
            i.lt(j),
            i.le(j),
            u.eq(v),
            u.lt(v),
            p.eq(q),
            p.ne(q),
            p.and(q),
            p.or(q),
            p.not(),
            i.neg(),
            i.abs(),
            i + j,
            i - j,
            i * j,
            i.max(j),
            i.min(j),
            u + v,
            u * v,
            u.max(v),
            u - v,
            p.select(i, j),
            p.select(u, v),
            p.select(q, p),
        ];
        for (n, result) in results.into_iter().enumerate() {
            g.output(&format!("y{n}"), result);
        }
        check_inline(&format!("integers {shape:?}"), &g.finish().unwrap(), 0.0).unwrap();
    }
}

#[test]
fn casts_between_all_types() {
    let all = [DType::F32, DType::F16, DType::Bf16, DType::I32, DType::U32, DType::Bool];
    for shape in [&[3usize, 5][..], &[2, 8], &[6], &[1], &[2]] {
        for from in all {
            let g = GraphBuilder::new("t");
            let x = g.input("x", from, shape);
            // Whole and in range of all, so that no conversion is left to the device.
            let x = if from.is_float() { x.abs().floor() } else { x };
            let x = if from == DType::I32 { x.abs() } else { x };
            for to in all {
                g.output(to.name(), x.cast(to));
            }
            check_inline(&format!("casts of {from}{shape:?}"), &g.finish().unwrap(), 0.0).unwrap();
        }
        let g = GraphBuilder::new("t");
        let x = g.input("x", DType::F32, shape);
        g.output("truncated", (x * 10.0).cast(DType::I32));
        g.output("saturated", (x * 8_589_934_592.0).cast(DType::I32));
        g.output("unsigned", (x * 8_589_934_592.0).cast(DType::U32));
        g.output("f16", x.cast(DType::F16));
        g.output("bf16", x.cast(DType::Bf16));
        g.output("tiny_f16", (x * 1e-6).cast(DType::F16).cast(DType::F32) * 1e6);
        check_inline(&format!("casts {shape:?}"), &g.finish().unwrap(), 0.0).unwrap();
    }
}

#[test]
fn broadcasting_in_every_position() {
    let pairs: &[(&[usize], &[usize])] = &[
        (&[3, 5, 8], &[8]),
        (&[3, 5, 8], &[1, 1, 1]),
        (&[3, 5, 8], &[]),
        (&[3, 5, 8], &[5, 1]),
        (&[3, 5, 8], &[3, 1, 8]),
        (&[3, 5, 8], &[3, 1, 1]),
        (&[3, 1, 8], &[5, 1]),
        (&[3, 5, 7], &[1, 5, 7]),
        (&[1, 5, 1, 4], &[3, 1, 2, 1]),
        (&[4, 1], &[4]),
        (&[1, 4], &[4, 1]),
    ];
    for (a, b) in pairs {
        let g = GraphBuilder::new("t");
        let (x, y) = (g.input("x", DType::F32, *a), g.input("y", DType::F32, *b));
        g.output("sum", x + y);
        g.output("difference", y - x);
        g.output("chosen", x.lt(y).select(y, x));
        let shape = (x + y).shape();
        g.output("broadcast", y.broadcast(shape));
        check_inline(&format!("broadcast {a:?} {b:?}"), &g.finish().unwrap(), 1e-6).unwrap();
    }
}

#[test]
fn chains_of_movement() {
    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [3, 4, 6]);
    let bias = g.input("bias", DType::F32, [4, 1]);
    g.output("transposed", x.permute([2, 0, 1]));
    g.output("heads", x.reshape([3, 4, 2, 3]).permute([0, 2, 1, 3]).reshape([6, 12]));
    g.output("sliced", x.slice([1, 1, 2], [3, 4, 6]));
    g.output("inner", x.slice_axis(2, 1, 5).permute([1, 0, 2]) + bias.reshape([4, 1, 1]));
    g.output("padded", x.pad([0, 1, 2], [1, 0, 3], 2.5));
    g.output("shifted", (x.pad([0, 1, 0], [0, 0, 0], 0.0).slice_axis(1, 0, 4) * 2.0).reshape([72]));
    g.output("merged", x.permute([1, 0, 2]).reshape([12, 6]).permute([1, 0]).reshape([8, 9]));
    check_inline("movement", &g.finish().unwrap(), 0.0).unwrap();

    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [2, 3, 8]);
    g.output("quads", x.reshape([6, 8]).slice_axis(1, 4, 8).reshape([2, 3, 1, 4]).permute([1, 2, 0, 3]) * 2.0);
    g.output("split", x.slice_axis(2, 0, 4).silu() * x.slice_axis(2, 4, 8));
    g.output("unaligned", x.slice_axis(2, 1, 5) + x.slice_axis(2, 3, 7));
    g.output("regrouped", (x * 2.0).reshape([4, 12]) + 1.0);
    g.output("narrow", x.reshape([2, 3, 4, 2]).permute([0, 1, 3, 2]).reshape([2, 3, 8]));
    g.output("scalar", x.slice([1, 2, 3], [2, 3, 4]).reshape([]));
    g.output("one", x.slice([1, 2, 3], [2, 3, 4]).reshape([1, 1]).broadcast([3, 4]));
    check_inline("quads", &g.finish().unwrap(), 1e-6).unwrap();
}

#[test]
fn a_row_and_a_column_of_one_value_are_told_apart() {
    for n in [3, 4] {
        let g = GraphBuilder::new("t");
        let x = g.input("x", DType::F32, [n, n]);
        let y = x * 2.0;
        g.output("difference", y.slice_axis(1, 0, 1) - y.slice_axis(0, 0, 1).permute([1, 0]));
        g.output("flat", y.slice_axis(1, 0, 1).reshape([n]) - y.slice_axis(0, 0, 1).reshape([n]));
        check_inline("row and column", &g.finish().unwrap(), 1e-6).unwrap();
    }
}

#[test]
fn concatenation_of_anything() {
    for (a, b, c) in [(4, 8, 4), (1, 3, 2), (0, 4, 4), (5, 0, 0), (0, 0, 0)] {
        for axis in [0usize, 1, 2] {
            let shape = |size: usize| {
                let mut shape = vec![3, 2, 4];
                shape[axis] = size;
                shape
            };
            let g = GraphBuilder::new("t");
            let (x, y, z) = (g.input("x", DType::F32, shape(a)), g.input("y", DType::F32, shape(b)), g.input("z", DType::F32, shape(c)));
            let joined = g.concat(&[x, y.silu(), z], axis);
            g.output("joined", joined);
            g.output("doubled", joined * 2.0);
            g.output("tail", joined.slice_axis(axis, a, a + b + c));
            check_inline(&format!("concat {a} {b} {c} along {axis}"), &g.finish().unwrap(), 1e-6).unwrap();
        }
    }
}

#[test]
fn iotas_and_constants() {
    for shape in [[3, 4], [2, 5]] {
        let g = GraphBuilder::new("t");
        for axis in [0usize, 1] {
            g.output(&format!("i{axis}"), g.iota(shape, axis, DType::I32));
            g.output(&format!("f{axis}"), g.iota(shape, axis, DType::F32) * 2.0);
        }
        g.output("mask", g.iota(shape, 0usize, DType::U32).le(g.iota(shape, 1usize, DType::U32)));
        g.output("constant", g.constant(1.5, DType::F32, shape));
        g.output("folded", (g.constant(1e30, DType::F32, shape) * g.constant(1e10, DType::F32, shape)).lt(g.scalar(1.0)));
        g.output("wrapped", g.constant(4e9, DType::U32, shape) + g.constant(4e9, DType::U32, shape));
        g.output("overflow", g.constant(2e9, DType::I32, shape) + g.constant(2e9, DType::I32, shape));
        g.output("lowest", g.constant(-2_147_483_648.0, DType::I32, shape).abs());
        g.output("half", g.constant(0.1, DType::F16, shape));
        g.output("truth", g.constant(1.0, DType::Bool, shape).and(g.constant(0.0, DType::Bool, shape)));
        let graph = g.finish().unwrap();
        check_inline(&format!("constants {shape:?}"), &graph, 1e-6).unwrap();
    }
}

#[test]
fn embeddings_by_index() {
    for (d, dtype) in [(8, DType::F32), (5, DType::F32), (8, DType::Bf16), (6, DType::F16)] {
        for ids in [DType::I32, DType::U32] {
            let g = GraphBuilder::new("t");
            let table = g.param("table", dtype, [5, d]);
            let ids = g.input_dynamic("ids", ids, [3, 7], &[0, 1]);
            g.output("rows", table.gather(ids).cast(DType::F32) * 2.0);
            g.output("first", table.slice_axis(1, 0, 1).reshape([5]).gather(ids).cast(DType::F32));
            g.output("last_token", table.gather(ids.slice_axis(1, 6, 7)).cast(DType::F32).reshape([3, d]));
            check_inline(&format!("gather {dtype} {d}"), &g.finish().unwrap(), 1e-6).unwrap();
        }
    }
}

/// A convolution with every combination of optional operands.
fn conv_graph(len: usize, channels: usize, taps: usize, options: usize, newest_first: bool) -> Outcome<Graph> {
    let g = GraphBuilder::new("t");
    let x = g.input_dynamic("x", DType::F32, [3, len, channels], &[0, 1]);
    let w = g.param("w", DType::F32, [channels, taps]);
    let bias = (options & 1 != 0).then(|| g.param("bias", DType::F32, [channels]));
    let state = (options & 2 != 0).then(|| g.state("window", DType::F32, [3, channels, taps - 1]));
    let reset = (options & 4 != 0).then(|| g.input_dynamic("reset", DType::Bool, [3, len], &[0, 1]));
    let (y, state_out) = (x * 2.0).conv1d(w, bias, state, reset, newest_first);
    g.output("y", y.silu());
    if options & 2 != 0 {
        g.update("window", state_out * 1.0);
    } else {
        g.output("window", state_out);
    }
    Ok(g.finish()?)
}

#[test]
fn convolutions_with_windows_and_resets() {
    for (channels, taps) in [(8, 4), (5, 4), (8, 3), (4, 1), (3, 2)] {
        for len in [0, 1, 2, 3, 4, 9] {
            for options in 0..8 {
                let newest_first = (len + options) % 2 == 0;
                let graph = conv_graph(len, channels, taps, options, newest_first).unwrap();
                check_inline(&format!("conv {len} {channels} {taps} {options:03b}"), &graph, 1e-5).unwrap();
            }
        }
    }
}

#[test]
fn a_state_is_updated_in_place() {
    for n in [5, 8] {
        let g = GraphBuilder::new("t");
        let x = g.input("x", DType::F32, [3, n]);
        let s = g.state("s", DType::F32, [3, n]);
        let new = s * 0.5 + x;
        g.update("s", new);
        g.output("y", new.silu());
        let graph = g.finish().unwrap();
        let (old, new) = (graph.states().next().unwrap().1, graph.updates[0].value);
        let bodies = [Body { outputs: vec![new, graph.outputs[0].value] }];
        check_within("state", &graph, 1e-6, &|ctx, _| vec![lower(ctx, &bodies, &all_inline(&graph), &[(old, new)])]).unwrap();
    }
}

#[test]
fn small_params_share_a_binding() {
    let g = GraphBuilder::new("t");
    let x = g.input("x", DType::F32, [3, 8]);
    let params: Vec<Tensor<'_>> = (0..9).map(|i| g.param(&format!("w{i}"), DType::F32, if i % 2 == 0 { [8] } else { [1] })).collect();
    let sum = params.iter().fold(x, |sum, w| sum * 0.5 + *w);
    g.output("y", sum);
    let graph = g.finish().unwrap();
    check_inline("pack", &graph, 1e-6).unwrap();
}

#[test]
fn another_length_gives_the_same_text() {
    let text = |batch: usize, len: usize| {
        let g = GraphBuilder::new("t");
        let x = g.input_dynamic("x", DType::F32, [batch, len, 12], &[0, 1]);
        let dt = g.input_dynamic("dt", DType::F32, [batch, len, 3], &[0, 1]);
        let reset = g.input_dynamic("reset", DType::Bool, [batch, len], &[0, 1]);
        let (w, scale) = (g.param("w", DType::F32, [12, 4]), g.param("scale", DType::F32, [1, 1, 12]));
        let (y, state) = x.conv1d(w, None, None, Some(reset), false);
        g.output("y", (y * scale).reshape([batch, len, 3, 4]) * dt.reshape([batch, len, 3, 1]));
        g.output("heads", dt.permute([0, 2, 1]));
        g.output("last", x.slice_axis(1, len - 1, len).reshape([batch, 12]));
        g.output("state", state);
        let graph = g.finish().unwrap();
        let bodies: Vec<Body> = graph.outputs.iter().map(|named| Body { outputs: vec![named.value] }).collect();
        let target = Target::profile("nvidia").unwrap();
        let plan = plan(&graph, &target, &|ctx, _| vec![lower(ctx, &bodies, &all_inline(&graph), &[])]).unwrap();
        plan.kernels[0].wgsl.clone()
    };
    assert_eq!(text(3, 5), text(2, 9));
    assert_eq!(text(1, 5), text(1, 9));
}

#[test]
fn every_op_that_is_computed_in_place_has_a_test_here() {
    // The ops that kernels of their own compute; a new op lands in neither list and fails here.
    let own = ["sum", "mean", "reduce_max", "argmax", "cumsum", "matmul", "scan", "scan_grad", "scatter_add", "sample"];
    let text = include_str!("elementwise.rs");
    for info in monopass_ir::op::OPS {
        let is_called = text.contains(&format!(".{}(", info.mnemonic));
        let has_operator = ["add", "sub", "mul", "div"].contains(&info.mnemonic);
        assert!(is_called || has_operator || own.contains(&info.mnemonic), "{} has no test", info.mnemonic);
    }
}
