//! A graph with the builder, run by the interpreter: no device, no files.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::ir::eval::Interpreter;
use monopass::{DType, GraphBuilder, TensorData, Tensors};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let g = GraphBuilder::new("proj_act");
    let x = g.input("x", DType::F32, [2, 3]);
    let w = g.param("w", DType::F32, [4, 3]);
    g.output("y", x.matmul(w, false, true).silu());
    let graph = g.finish()?;

    let inputs = Tensors::from([("x".to_owned(), TensorData::f32([2, 3], [1.0, 2.0, 3.0, -1.0, -2.0, -3.0])?)]);
    let params = Tensors::from([("w".to_owned(), TensorData::f32([4, 3], [0.25; 12])?)]);
    let outputs = Interpreter::new(&graph)?.run(&inputs, &params, &mut Tensors::new())?;
    println!("{} = {:?}", outputs["y"].ty(), outputs["y"].as_f32());

    // Mistakes come back together, each with the line of code that made it.
    let g = GraphBuilder::new("mistaken");
    let a = g.input("a", DType::F32, [2, 3]);
    let b = g.input("b", DType::F32, [2, 3]);
    g.output("y", a.matmul(b, false, false));
    if let Err(errors) = g.finish() {
        println!("\n{errors}");
    }
    Ok(())
}
