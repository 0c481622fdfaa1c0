//! Guards the interpreter on random graphs of all ops: it runs each, in f32 as in f64, and says the same when watched.

use monopass_ir::eval::{Interpreter, Precision, Tensors};
use monopass_ir::{Graph, TensorData, sample};
use proptest::prelude::*;
use std::error::Error;

fn run(graph: &Graph, precision: Precision, seed: u64) -> Result<(Tensors, Tensors), Box<dyn Error>> {
    let (inputs, params, mut states) = sample::inputs(graph, seed);
    let outputs = Interpreter::new(graph)?.precision(precision).run(&inputs, &params, &mut states)?;
    Ok((outputs, states))
}

/// Fails where elements differ by more than right executors may.
fn check_agree(got: &Tensors, want: &Tensors) -> Result<(), Box<dyn Error>> {
    assert!(got.keys().eq(want.keys()));
    for (name, got) in got {
        let want = &want[name];
        let tolerance = sample::tolerance(want.elements().dtype());
        assert_eq!(got.ty(), want.ty());
        for (i, (x, y)) in got.to_f32_vec().into_iter().zip(want.to_f32_vec()).enumerate() {
            let error = (f64::from(x) - f64::from(y)).abs();
            if x.to_bits() != y.to_bits() && (error.is_nan() || error > tolerance) {
                return Err(format!("{name}: element {i} is {x} instead of {y}").into());
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_precisions_agree(seed: u64, size in 1_usize..40) {
        let graph = sample::graph(seed, size);
        let check = || -> Result<(), Box<dyn Error>> {
            let (f32_run, f64_run) = (run(&graph, Precision::F32, seed)?, run(&graph, Precision::F64, seed)?);
            check_agree(&f32_run.0, &f64_run.0)?;
            check_agree(&f32_run.1, &f64_run.1)
        };
        check().map_err(|error| TestCaseError::fail(format!("{error}\n{}", monopass_ir::text::print(&graph))))?;
    }

    #[test]
    fn watching_changes_nothing(seed: u64) {
        let graph = sample::graph(seed, 20);
        let check = || -> Result<(), Box<dyn Error>> {
            let (inputs, params, mut states) = sample::inputs(&graph, seed);
            let mut last = None;
            let mut n_seen = 0;
            let mut observe = |value, tensor: &TensorData| {
                assert_eq!(&tensor.ty(), graph.ty(value));
                last = Some(value);
                n_seen += 1;
            };
            let outputs = Interpreter::new(&graph)?.run_with(&inputs, &params, &mut states, &mut observe)?;
            assert_eq!((outputs, states), run(&graph, Precision::F32, seed)?);
            assert_eq!(n_seen, graph.nodes().map(|(_, node)| node.results.len()).sum::<usize>());
            assert_eq!(last, graph.nodes().last().and_then(|(_, node)| node.results.last().copied()));
            Ok(())
        };
        check().map_err(|error| TestCaseError::fail(error.to_string()))?;
    }
}
