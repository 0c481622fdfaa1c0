//! Guards the random graphs: the interpreter in f32 and in f64 agree on them within the tolerance that they promise.

use monopass_ir::eval::{Interpreter, Precision, Tensors};
use monopass_ir::{Graph, TensorData, sample};
use proptest::prelude::*;

/// The largest difference of two tensors.
fn difference(lhs: &TensorData, rhs: &TensorData) -> f64 {
    let pairs = lhs.to_f32_vec().into_iter().zip(rhs.to_f32_vec());
    // A NaN must not pass for agreement, and `max` would drop it.
    pairs
        .map(|(a, b)| if a == b { 0.0 } else { f64::from(a - b).abs() })
        .fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { most.max(d) })
}

fn run(graph: &Graph, precision: Precision, seed: u64) -> Result<(Tensors, Tensors), TestCaseError> {
    let (inputs, params, mut states) = sample::inputs(graph, seed);
    let interpreter = Interpreter::new(graph).map_err(|error| TestCaseError::fail(error.to_string()))?.precision(precision);
    let outputs = interpreter.run(&inputs, &params, &mut states).map_err(|error| TestCaseError::fail(error.to_string()))?;
    Ok((outputs, states))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn executors_agree_within_the_tolerance(seed: u64, size in 1_usize..64) {
        let graph = sample::graph(seed, size);
        let (outputs, states) = run(&graph, Precision::F32, seed)?;
        let (exact_outputs, exact_states) = run(&graph, Precision::F64, seed)?;
        for (name, output) in outputs.iter().chain(&states) {
            let exact = exact_outputs.get(name).or_else(|| exact_states.get(name)).ok_or_else(|| TestCaseError::fail(name.clone()))?;
            prop_assert_eq!(output.ty(), exact.ty());
            prop_assert!(exact.to_f32_vec().iter().all(|x| x.is_finite()), "{} is not finite\n{}", name, graph);
            let (found, allowed) = (difference(output, exact), sample::tolerance(exact.ty().dtype));
            prop_assert!(found <= allowed, "{} differs by {}, {} is allowed\n{}", name, found, allowed, graph);
        }
    }
}
