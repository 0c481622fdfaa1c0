//! Guards the loss of a head over blocks of rows against finite differences of the plain loss, and what the optimizer's step
//! is scaled by.

mod support;

use monopass_blocks::linear::linear;
use monopass_blocks::loss::cross_entropy;
use monopass_blocks::train::{AdamW, StepScalars, clip_scale, global_norm, head_loss, head_sum};
use monopass_ir::eval::{Interpreter, Precision, Tensors, WideTensors};
use monopass_ir::{DType, Graph, GraphBuilder, Tensor, TensorData};
use support::{Result, noise};

const IGNORE: i32 = -100;
const D: usize = 5;
const V: usize = 7;

/// Targets of `m` rows, every third of which does not count; the last of many is no column.
fn targets(m: usize) -> Vec<i32> {
    let target = |i: usize| if i % 3 == 1 { IGNORE } else { i32::try_from(i * 5 % V).unwrap_or(0) };
    let mut targets: Vec<i32> = (0..m).map(target).collect();
    if m > 6 {
        targets[m - 1] = 7;
    }
    targets
}

/// A graph of `hidden [m, D]`, `weight [V, D]` and `target [m]`; the first two are states, which can be given in f64.
fn graph(m: usize, outputs: impl for<'g> Fn([Tensor<'g>; 3]) -> Vec<(&'static str, Tensor<'g>)>) -> Result<Graph> {
    let g = GraphBuilder::new("loss");
    let sources = [g.state("hidden", DType::F32, [m, D]), g.state("weight", DType::F32, [V, D]), g.input("target", DType::I32, [m])];
    for (name, value) in outputs(sources) {
        g.output(name, value);
    }
    Ok(g.finish()?)
}

/// Outputs of a graph in f64.
fn run(graph: &Graph, sources: &WideTensors, target: &[i32]) -> Result<WideTensors> {
    let inputs = Tensors::from([("target".to_owned(), TensorData::i32([target.len()], target)?)]);
    Ok(Interpreter::new(graph)?.precision(Precision::F64).run_wide(&inputs, &Tensors::new(), &mut sources.clone())?)
}

fn sources(m: usize) -> Result<WideTensors> {
    let wide = |shape: [usize; 2], seed, scale: f64| -> Result<Vec<f64>> {
        Ok(noise(&shape, seed)?.to_f32_vec().into_iter().map(|x| scale * f64::from(x)).collect())
    };
    Ok([("hidden".to_owned(), wide([m, D], 1, 1.0)?), ("weight".to_owned(), wide([V, D], 2, 3.0)?)].into())
}

fn in_blocks(m: usize, block_rows: usize) -> Result<Graph> {
    graph(m, |[hidden, weight, target]| {
        let head = head_loss(hidden, weight, target, IGNORE, block_rows);
        let sum = head_sum(hidden, weight, target, IGNORE, block_rows);
        let gradients = [("hidden", head.d_hidden), ("weight", head.d_weight)];
        [("loss", head.loss), ("count", head.count), ("sum", sum.sum), ("sum_count", sum.count)].into_iter().chain(gradients).collect()
    })
}

fn plain(m: usize) -> Result<Graph> {
    graph(m, |[hidden, weight, target]| vec![("loss", cross_entropy(linear(hidden, weight, None), target, IGNORE))])
}

fn assert_close(what: &str, given: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(given.len(), wanted.len(), "{what}");
    for (i, (a, b)) in given.iter().zip(wanted).enumerate() {
        assert!((a - b).abs() <= tolerance, "{what}: element {i} is {a}, should be {b}");
    }
}

#[test]
fn gradients_are_differences_of_the_plain_loss() -> Result {
    const STEP: f64 = 1e-5;
    for m in [1, 8] {
        let (sources, targets, plain) = (sources(m)?, targets(m), plain(m)?);
        let given = run(&in_blocks(m, 3)?, &sources, &targets)?;
        let loss = |sources: &WideTensors| -> Result<f64> { Ok(run(&plain, sources, &targets)?["loss"][0]) };
        assert_close("loss", &given["loss"], &[loss(&sources)?], 1e-12);
        for name in ["hidden", "weight"] {
            let mut differences = Vec::new();
            for i in 0..sources[name].len() {
                let [mut above, mut below] = [sources.clone(), sources.clone()];
                above[name][i] += STEP;
                below[name][i] -= STEP;
                differences.push((loss(&above)? - loss(&below)?) / (2.0 * STEP));
            }
            assert_close(name, &given[name], &differences, 1e-9);
        }
    }
    Ok(())
}

#[test]
fn blocks_of_any_size_give_the_same() -> Result {
    for (m, count) in [(0, 0.0), (1, 1.0), (3, 2.0), (8, 6.0)] {
        let (sources, targets) = (sources(m)?, targets(m));
        let whole = run(&in_blocks(m, m.max(1))?, &sources, &targets)?;
        assert_close("sum", &whole["sum"], &[whole["loss"][0] * whole["count"][0]], 1e-12);
        assert_eq!([whole["count"][0], whole["sum_count"][0]], [count; 2]);
        for block_rows in [1, 3, m + 1] {
            let given = run(&in_blocks(m, block_rows)?, &sources, &targets)?;
            for (name, wanted) in &whole {
                assert_close(&format!("{name} of {m} rows in blocks of {block_rows}"), &given[name], wanted, 1e-12);
            }
        }
    }
    Ok(())
}

#[test]
fn rows_that_do_not_count_give_nothing() -> Result {
    let sources = sources(4)?;
    let given = run(&in_blocks(4, 3)?, &sources, &[IGNORE; 4])?;
    for (name, values) in &given {
        assert!(values.iter().all(|&x| x == 0.0), "{name}: {values:?}");
    }
    let some = run(&in_blocks(4, 3)?, &sources, &[2, IGNORE, 0, IGNORE])?;
    assert!(some["hidden"][D..2 * D].iter().all(|&x| x == 0.0) && some["hidden"][..D].iter().any(|&x| x != 0.0));
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let message = |hidden: [usize; 2], target: usize, block_rows: usize| {
        let g = GraphBuilder::new("loss");
        let (x, w) = (g.input("x", DType::F32, hidden), g.param("w", DType::F32, [V, D]));
        g.output("loss", head_loss(x, w, g.input("t", DType::I32, [target]), IGNORE, block_rows).loss);
        g.finish().map(|_| ()).unwrap_err().to_string()
    };
    assert!(message([3, D + 1], 3, 2).contains("head_loss: hidden f32[3, 6], weight f32[7, 5] and target i32[3] do not fit"));
    assert!(message([3, D], 4, 2).contains("target i32[4] do not fit"));
    assert!(message([3, D], 3, 0).contains("blocks of 0 rows"));
}

#[test]
fn gradients_are_clipped_by_their_common_norm() -> Result {
    let g = GraphBuilder::new("norm");
    let grads = [g.input("a", DType::F32, [2, 1, 3]), g.input("b", DType::F32, [2]), g.input("c", DType::F32, [])];
    let norm = global_norm(grads[0], &grads[1..]);
    g.output("norm", norm);
    g.output("scale", clip_scale(norm, 2.0));
    g.output("no_scale", clip_scale(norm, 5.0));
    let graph = g.finish()?;
    let filled = |shape: &[usize], x: f32| TensorData::f32(shape, vec![x; shape.iter().product()]);
    let inputs = Tensors::from([
        ("a".to_owned(), filled(&[2, 1, 3], 1.0)?),
        ("b".to_owned(), filled(&[2], -1.0)?),
        ("c".to_owned(), filled(&[], 1.0)?),
    ]);
    let given = Interpreter::new(&graph)?.precision(Precision::F64).run_wide(&inputs, &Tensors::new(), &mut WideTensors::new())?;
    assert_close("norm", &given["norm"], &[3.0], 1e-15);
    assert_close("scale", &given["scale"], &[2.0 / (3.0 + 1e-6)], 1e-7);
    assert_close("no_scale", &given["no_scale"], &[1.0], 0.0);
    Ok(())
}

/// What the reference vectors do not have: an exempt parameter, and gradients that are scaled.
#[test]
fn an_exempt_parameter_does_not_decay_and_gradients_are_scaled() -> Result {
    let adamw = AdamW::default();
    let stepped = |exempt: bool, scale: f64| -> Result<WideTensors> {
        let g = GraphBuilder::new("step");
        let [p, grad, m, v] = ["p", "grad", "m", "v"].map(|name| g.state(name, DType::F32, [3]));
        let [lr, clip_scale, one, two] = [0.1, scale, 0.19, 0.0975].map(|number| g.scalar(number));
        let after = adamw.step(p, grad, [m, v], &StepScalars { lr, bias_corrections: [one, two], clip_scale }, exempt);
        for (name, value) in [("p", after.param), ("m", after.m), ("v", after.v)] {
            g.output(name, value);
        }
        let mut states = ["p", "grad", "m", "v"].map(|name| (name.to_owned(), vec![1.0, if name == "v" { 4.0 } else { -2.0 }, 0.5])).into();
        Ok(Interpreter::new(&g.finish()?)?.precision(Precision::F64).run_wide(&Tensors::new(), &Tensors::new(), &mut states)?)
    };
    let (decayed, exempt, scaled) = (stepped(false, 1.0)?, stepped(true, 1.0)?, stepped(true, 0.5)?);
    let difference: Vec<f64> = exempt["p"].iter().zip(&decayed["p"]).map(|(a, b)| a - b).collect();
    assert_close("decay", &difference, &[0.01, -0.02, 0.005], 1e-12);
    assert_close("m", &scaled["m"], &[0.95, -1.9, 0.475], 1e-12);
    assert_close("v", &scaled["v"][..1], &[0.95 + 0.05 * 0.25], 1e-12);
    Ok(())
}
