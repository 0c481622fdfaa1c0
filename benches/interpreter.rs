//! Time of a matrix product on the interpreter, the executor of machines without a GPU.

use criterion::Criterion;
use monopass::ir::eval::Interpreter;
use monopass::{DType, GraphBuilder, TensorData, Tensors};
use std::error::Error;

/// Rows, columns, and terms of a sum.
const SIZES: [usize; 3] = [256, 512, 768];

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let [m, n, k] = SIZES;
    let g = GraphBuilder::new("matmul");
    let (x, w) = (g.input("x", DType::F32, [m, k]), g.param("w", DType::F32, [n, k]));
    g.output("y", x.matmul(w, false, true));
    let graph = g.finish()?;
    let inputs = Tensors::from([("x".to_owned(), TensorData::f32([m, k], vec![0.5; m * k])?)]);
    let params = Tensors::from([("w".to_owned(), TensorData::f32([n, k], vec![0.25; n * k])?)]);
    let interpreter = Interpreter::new(&graph)?;
    interpreter.run(&inputs, &params, &mut Tensors::new())?;
    criterion.bench_function("interpret a product of 256 x 512 x 768", |bencher| {
        bencher.iter(|| interpreter.run(&inputs, &params, &mut Tensors::new()));
    });
    criterion.final_summary();
    Ok(())
}
