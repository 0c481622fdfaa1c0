//! Tokens drawn from rows of logits.

use crate::common::gpu;
use crate::harness::{Outcome, Source};
use monopass_ir::eval::{Interpreter, Precision, Tensors};
use monopass_ir::ops::choice::N_SETTINGS;
use monopass_ir::{DType, Graph, GraphBuilder, TensorData};
use monopass_lower::{Target, compile};
use monopass_runtime::{Session, blocking};

fn graph(rows: usize, n_tokens: usize) -> Outcome<Graph> {
    let g = GraphBuilder::new("draw");
    let logits = g.input_dynamic("logits", DType::F32, [rows, n_tokens], &[0]);
    let settings = g.input_dynamic("settings", DType::F32, [rows, N_SETTINGS], &[0]);
    let uniform = g.input_dynamic("uniform", DType::F32, [rows], &[0]);
    g.output("token", logits.sample(settings, uniform));
    Ok(g.finish()?)
}

/// A number in `[0, 1)`.
fn unit(rng: &mut Source) -> f32 {
    f32::from(u16::try_from(rng.next() & 0xffff).unwrap_or(0)) / 65536.0
}

/// Rows of logits and settings: each rule alone, several together, ties, ends of the ranges, greedy rows between the others.
fn rows(n_rows: usize, n_tokens: usize, rng: &mut Source) -> Outcome<Tensors> {
    let k = f32::from(u16::try_from(n_tokens.min(40))?);
    let choices = [
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 3.0, 0.5, 0.1],
        [0.7, 1.0, 0.0, 0.0],
        [1.3, k, 0.0, 0.0],
        [0.9, 0.0, 0.9, 0.0],
        [1.0, 0.0, 0.0, 0.05],
        [1.5, k, 0.8, 0.02],
        [0.2, 2.0, 1e-6, 1.0],
        [2.0, 1e9, 1.0, 0.0],
        [-1.0, 0.0, 0.0, 0.0],
    ];
    let (mut logits, mut settings, mut uniform) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..n_rows {
        // A coarse grid has ties; signs of zero, too.
        let coarse = row % 3 == 1;
        logits.extend((0..n_tokens).map(|_| {
            let x = 8.0 * (unit(rng) + unit(rng) - 1.0);
            if coarse { (x * 2.0).round() / 2.0 } else { x }
        }));
        settings.extend(choices[rng.next() as usize % choices.len()]);
        uniform.push(match row % 11 {
            0 => 0.0,
            1 => 1.0 - f32::EPSILON / 2.0,
            _ => unit(rng),
        });
    }
    let tensors = [
        ("logits", TensorData::f32([n_rows, n_tokens], logits)?),
        ("settings", TensorData::f32([n_rows, N_SETTINGS], settings)?),
        ("uniform", TensorData::f32([n_rows], uniform)?),
    ];
    Ok(tensors.map(|(name, data)| (name.to_owned(), data)).into_iter().collect())
}

fn expected(graph: &Graph, inputs: &Tensors) -> Outcome<Vec<u32>> {
    let outputs = Interpreter::new(graph)?.precision(Precision::F64).run(inputs, &Tensors::new(), &mut Tensors::new())?;
    Ok(outputs["token"].as_u32().ok_or("tokens are u32")?.to_vec())
}

/// Tokens within rounding of the drawn place and of the sum that `top_p` asks for.
fn nearby(graph: &Graph, inputs: &Tensors) -> Outcome<Vec<Vec<u32>>> {
    let mut all = vec![expected(graph, inputs)?];
    for (by_uniform, by_top_p) in
        [(1e-5, 0.0), (-1e-5, 0.0), (0.0, 1e-5), (0.0, -1e-5), (1e-5, 1e-5), (-1e-5, -1e-5), (1e-5, -1e-5), (-1e-5, 1e-5)]
    {
        let mut moved = inputs.clone();
        for (name, place, by) in [("uniform", None, by_uniform), ("settings", Some(2), by_top_p)] {
            let tensor = &inputs[name];
            let values = tensor.to_f32_vec().into_iter().enumerate();
            let values =
                values.map(|(i, x)| if place.is_none_or(|place| i % N_SETTINGS == place && x > 0.0 && x < 1.0) { x + by } else { x });
            moved.insert(name.to_owned(), TensorData::f32(tensor.shape(), values.collect::<Vec<_>>())?);
        }
        all.push(expected(graph, &moved)?);
    }
    Ok(all)
}

fn on_gpu(graph: &Graph, inputs: &Tensors) -> Outcome<Option<Vec<u32>>> {
    let Some(device) = gpu()? else { return Ok(None) };
    let plan = compile(graph, device.target())?;
    let weights = blocking::upload(device, std::iter::empty::<(String, &TensorData)>())?;
    let executable = blocking::executable(device, plan, &weights)?;
    let mut session = Session::new(device);
    let given: Vec<(&str, &TensorData)> = inputs.iter().map(|(name, data)| (name.as_str(), data)).collect();
    let outputs = blocking::run(&executable, &mut session, &given)?.outputs;
    Ok(Some(outputs["token"].as_u32().ok_or("tokens are u32")?.to_vec()))
}

#[test]
fn rows_of_any_size_under_all_rules() {
    let mut rng = Source(7);
    for (n_rows, n_tokens) in [(1, 1), (5, 2), (33, 31), (40, 257), (60, 1000), (7, 4099), (9, 50280)] {
        let graph = graph(n_rows, n_tokens).unwrap();
        for profile in ["webgpu-default", "nvidia"] {
            compile(&graph, &Target::profile(profile).unwrap()).unwrap();
        }
        let inputs = rows(n_rows, n_tokens, &mut rng).unwrap();
        let Some(got) = on_gpu(&graph, &inputs).unwrap() else { return };
        let near = nearby(&graph, &inputs).unwrap();
        for (row, token) in got.iter().enumerate() {
            assert!(
                near.iter().any(|tokens| tokens[row] == *token),
                "{n_rows}x{n_tokens}: row {row} is {token}, should be {}",
                near[0][row]
            );
        }
        let n_same = got.iter().zip(&near[0]).filter(|(got, want)| got == want).count();
        assert!(n_rows - n_same <= 1 + n_rows / 10, "{n_same} of {n_rows} rows of {n_tokens} tokens");
    }
}

#[test]
fn what_is_not_finite_has_no_token() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let logits =
        [[1.0, nan, 2.0, nan], [-inf, -inf, -inf, -inf], [1.0, inf, 2.0, inf], [-inf, 1.0, -inf, 1.0], [-0.0, 0.0, -0.0, 0.0]].concat();
    let graph = graph(5, 4).unwrap();
    for temperature in [0.0, 1.0, nan] {
        let settings = [temperature, 3.0, 0.9, 0.1].repeat(5);
        let inputs: Tensors = [
            ("logits", TensorData::f32([5, 4], logits.clone()).unwrap()),
            ("settings", TensorData::f32([5, N_SETTINGS], settings).unwrap()),
            ("uniform", TensorData::f32([5], vec![0.75; 5]).unwrap()),
        ]
        .map(|(name, data)| (name.to_owned(), data))
        .into_iter()
        .collect();
        let want = if temperature == 1.0 { [4, 4, 4, 3, 3] } else { [4, 4, 4, 1, 0] };
        assert_eq!(expected(&graph, &inputs).unwrap(), want, "temperature {temperature}");
        if let Some(got) = on_gpu(&graph, &inputs).unwrap() {
            assert_eq!(got, want, "temperature {temperature}");
        }
    }
}
