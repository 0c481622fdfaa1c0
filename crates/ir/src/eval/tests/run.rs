//! The loop: names, types, states, precision and observation.

use super::*;
use crate::graph::Graph;

/// `y = x w + s`, `s` becomes `y`.
fn accumulator() -> Fallible<Graph> {
    let builder = GraphBuilder::new("accumulator");
    let x = builder.input("x", DType::F32, [3, 4]);
    let w = builder.param("w", DType::F32, [4, 2]);
    let y = x.matmul(w, false, false).add(builder.state("s", DType::F32, [3, 2]));
    builder.output("y", y);
    builder.update("s", y);
    Ok(builder.finish()?)
}

fn named<const N: usize>(tensors: [(&str, TensorData); N]) -> Tensors {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

#[test]
fn a_missing_state_starts_at_zero_and_is_carried() -> Fallible<()> {
    let graph = accumulator()?;
    let interpreter = Interpreter::new(&graph)?;
    let (inputs, params) = (named([("x", noisy(&[3, 4], 1))]), named([("w", noisy(&[4, 2], 2)), ("unused", noisy(&[1], 3))]));
    let mut states = named([("other", noisy(&[2], 4))]);
    let first = interpreter.run(&inputs, &params, &mut states)?;
    assert_eq!(states["s"], first["y"]);
    let second = interpreter.run(&inputs, &params, &mut states)?;
    close(&second["y"], &apply([&first["y"]], |[y]| y * 2.0)?, 1e-6)?;
    assert_eq!(states.len(), 2);
    Ok(())
}

#[test]
fn wide_states_are_not_rounded() -> Fallible<()> {
    // 0.1 is no f32, and the sum grows past where f32 would count it.
    let builder = GraphBuilder::new("sum");
    let s = builder.state("s", DType::F32, [2]);
    let next = s.add(builder.input("x", DType::F32, [2]) * 0.1);
    builder.output("y", next);
    builder.update("s", next);
    let graph = builder.finish()?;
    let interpreter = Interpreter::new(&graph)?;
    let inputs = named([("x", TensorData::f32([2], vec![1.0, 2.0])?)]);
    let mut states = WideTensors::new();
    let mut last = WideTensors::new();
    for _ in 0..1000 {
        last = interpreter.run_wide(&inputs, &Tensors::new(), &mut states)?;
    }
    assert!((states["s"][0] - 100.0).abs() < 1e-10 && (states["s"][1] - 200.0).abs() < 1e-10, "{states:?}");
    assert_eq!((last.len(), &last["y"]), (1, &states["s"]));
    states.insert("s".to_owned(), vec![1.0]);
    let error = interpreter.run_wide(&inputs, &Tensors::new(), &mut states).unwrap_err().to_string();
    assert!(error.contains("state \"s\": f32[2] expected, got 1 numbers"), "{error}");
    Ok(())
}

#[test]
fn wrong_tensors_are_named_and_states_survive() -> Fallible<()> {
    let graph = accumulator()?;
    let interpreter = Interpreter::new(&graph)?;
    let (x, w) = (noisy(&[3, 4], 1), noisy(&[4, 2], 2));
    let check = |inputs: &Tensors, params: &Tensors, expected: &str| {
        let mut states = Tensors::new();
        let error = interpreter.run(inputs, params, &mut states).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(states.is_empty());
    };
    let (inputs, params) = (named([("x", x.clone())]), named([("w", w.clone())]));
    check(&Tensors::new(), &params, "input \"x\": f32[3, 4] is missing\n  help: given are: none");
    check(&inputs, &named([("v", w.clone())]), "param \"w\": f32[4, 2] is missing\n  help: given are: v");
    check(&named([("x", noisy(&[4, 3], 1))]), &params, "input \"x\": f32[3, 4] expected, got f32[4, 3]");
    check(&named([("x", cast_all(&x, DType::F16)?)]), &params, "input \"x\": f32[3, 4] expected, got f16[3, 4]");
    check(&named([("x", x), ("z", w.clone())]), &params, "graph @accumulator has no input \"z\"\n  help: inputs are: x");
    let mut states = named([("s", w.clone())]);
    let error = interpreter.run(&inputs, &params, &mut states).unwrap_err().to_string();
    assert!(error.contains("state \"s\": f32[3, 2] expected, got f32[4, 2]"), "{error}");
    assert_eq!(states["s"], w);
    Ok(())
}

#[test]
fn f64_rounds_only_at_the_end() -> Fallible<()> {
    let x = f32s(&[1], &[1.0]);
    let tiny = |precision| apply_in(precision, [&x], |_, [x]| vec![((x + 1e-9) - 1.0) * 1e9]);
    assert_eq!(tiny(Precision::F32)?[0].to_f32_vec(), [0.0]);
    close(&tiny(Precision::F64)?[0], &x, 1e-6)
}

#[test]
fn every_value_is_observed_in_order() -> Fallible<()> {
    let builder = GraphBuilder::new("observed");
    let x = builder.input("x", DType::F32, [2]);
    let y = x * 3.0;
    let unused = y.neg();
    builder.output("y", y);
    let types = [x, y, unused].map(Tensor::ty);
    let graph = builder.finish()?;
    let mut seen = Vec::new();
    let inputs = named([("x", f32s(&[2], &[1.0, 2.0]))]);
    for precision in [Precision::F32, Precision::F64] {
        seen.clear();
        let mut observe = |value, tensor: &TensorData| seen.push((graph.ty(value).clone(), tensor.to_f32_vec()));
        let outputs =
            Interpreter::new(&graph)?.precision(precision).run_with(&inputs, &Tensors::new(), &mut Tensors::new(), &mut observe)?;
        assert_eq!(outputs["y"].to_f32_vec(), [3.0, 6.0]);
        assert_eq!(seen.len(), graph.nodes().count());
        assert_eq!(seen.iter().map(|(_, v)| v.clone()).collect::<Vec<_>>(), [vec![1.0, 2.0], vec![3.0], vec![3.0, 6.0], vec![-3.0, -6.0]]);
        assert_eq!(seen[3].0, types[2]);
    }
    Ok(())
}

#[test]
fn one_value_may_have_several_names_and_sources_pass_through() -> Fallible<()> {
    let builder = GraphBuilder::new("names");
    let x = builder.input("x", DType::F32, [2]);
    let w = builder.param("w", DType::F32, [2]);
    let y = x.add(w);
    builder.output("a", y);
    builder.output("b", y);
    builder.output("x", x);
    builder.output("one", builder.constant(1.0, DType::Bool, [2]));
    builder.update("w", y);
    let graph = builder.finish()?;
    let (inputs, params) = (named([("x", f32s(&[2], &[1.0, 2.0]))]), named([("w", f32s(&[2], &[10.0, 20.0]))]));
    let mut states = Tensors::new();
    let interpreter = Interpreter::new(&graph)?;
    let got = interpreter.run(&inputs, &params, &mut states)?;
    assert_eq!(got["a"], f32s(&[2], &[11.0, 22.0]));
    assert_eq!((&got["a"], &got["x"]), (&got["b"], &inputs["x"]));
    assert_eq!(got["one"], bools(&[2], &[true, true]));
    // The updated param stands among the states and is read from there.
    assert_eq!(interpreter.run(&inputs, &params, &mut states)?["a"], f32s(&[2], &[12.0, 24.0]));
    assert_eq!(params["w"], f32s(&[2], &[10.0, 20.0]));
    Ok(())
}
