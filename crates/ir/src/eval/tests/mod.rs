//! Tests of the interpreter: the loop here, the ops by family, each against hand-written values or naive loops.

mod blocks;
mod choice;
mod elementwise;
mod matmul;
mod movement;
mod reduce;
mod run;
mod scan_grad;

use super::{Interpreter, Precision, Tensors, WideTensors};
use crate::builder::{GraphBuilder, Tensor};
use crate::data::{Elements, TensorData};
use crate::types::DType;
use std::error::Error;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Numbers that look random in [-1, 1), the same in every run.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x.cast_signed() as f32 / 2_147_483_648.0
    };
    next();
    (0..n).map(|_| next()).collect()
}

fn noisy(shape: &[usize], seed: u32) -> TensorData {
    TensorData::f32(shape, noise(shape.iter().product(), seed)).unwrap()
}

#[expect(clippy::cast_possible_truncation, reason = "expected values are worked out in f64")]
fn narrow(x: f64) -> f32 {
    x as f32
}

fn bools(shape: &[usize], elements: &[bool]) -> TensorData {
    TensorData::new(shape, Elements::Bool(elements.to_vec())).unwrap()
}

fn f32s(shape: &[usize], elements: &[f32]) -> TensorData {
    TensorData::f32(shape, elements).unwrap()
}

/// Results of what `build` makes of inputs with these tensors, in order.
fn apply_in<const N: usize>(
    precision: Precision,
    operands: [&TensorData; N],
    build: impl for<'g> Fn(&'g GraphBuilder, [Tensor<'g>; N]) -> Vec<Tensor<'g>>,
) -> Fallible<Vec<TensorData>> {
    let builder = GraphBuilder::new("test");
    let inputs = std::array::from_fn(|i| builder.input(&format!("x{i}"), operands[i].elements().dtype(), operands[i].shape()));
    for (i, result) in build(&builder, inputs).into_iter().enumerate() {
        builder.output(&format!("y{i}"), result);
    }
    let graph = builder.finish()?;
    let given: Tensors = operands.iter().enumerate().map(|(i, &x)| (format!("x{i}"), x.clone())).collect();
    let outputs = Interpreter::new(&graph)?.precision(precision).run(&given, &Tensors::new(), &mut Tensors::new())?;
    Ok(outputs.into_values().collect())
}

/// The one result in f32.
fn apply<const N: usize>(operands: [&TensorData; N], build: impl for<'g> Fn([Tensor<'g>; N]) -> Tensor<'g>) -> Fallible<TensorData> {
    let mut results = apply_in(Precision::F32, operands, |_, x| vec![build(x)])?;
    results.pop().ok_or_else(|| "no result".into())
}

/// Fails unless both have one shape and all elements are within `tolerance` of the largest magnitude.
fn close(got: &TensorData, want: &TensorData, tolerance: f32) -> Fallible<()> {
    let (a, b) = (got.to_f32_vec(), want.to_f32_vec());
    let peak = b.iter().fold(1.0_f32, |peak, x| peak.max(x.abs()));
    let worst = a.iter().zip(&b).map(|(x, y)| if (x - y).abs() <= tolerance * peak { 0.0 } else { (x - y).abs() }).fold(0.0, f32::max);
    if got.shape() != want.shape() || worst > 0.0 || a.iter().any(|x| x.is_nan()) {
        return Err(format!("{:?} {a:?}\nexpected {:?} {b:?}\nworst error {worst}", got.shape(), want.shape()).into());
    }
    Ok(())
}

fn cast_all(x: &TensorData, dtype: DType) -> Fallible<TensorData> {
    apply([x], |[x]| x.cast(dtype))
}
