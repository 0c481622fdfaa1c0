//! `monopass interp`: a graph on the interpreter, which defines what every op means.

use crate::args::{DataArgs, GraphArgs};
use crate::memory::Place;
use crate::output::print_line;
use crate::report::OrReport;
use crate::{Outcome, input};
use miette::Result;
use monopass::ir::Elements;
use monopass::ir::eval::{Interpreter, Precision};
use monopass::{TensorData, Tensors};
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Compute in f64
    #[arg(long)]
    f64: bool,
    /// One JSON object a tensor, with all its elements; NaN and infinities are null
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let graph = input::graph(&args.graph)?;
    let mut data = input::data(&graph, &args.data, if args.f64 { Place::HostF64 } else { Place::Host })?;
    let precision = if args.f64 { Precision::F64 } else { Precision::F32 };
    let interpreter = Interpreter::new(&graph).or_report()?.precision(precision);
    let outputs = interpreter.run(&data.inputs, &data.params, &mut data.states).or_report()?;
    print_tensors("output", &outputs, args.json)?;
    let updates = graph.updates.iter().filter_map(|named| Some((named.name.clone(), data.states.get(&named.name)?.clone()))).collect();
    print_tensors("state", &updates, args.json)?;
    Ok(Outcome::Good)
}

/// Tensors with all elements as JSON, or the first few for a reader.
pub(crate) fn print_tensors(kind: &str, tensors: &Tensors, is_json: bool) -> Result<()> {
    tensors.iter().try_for_each(|(name, tensor)| {
        if is_json {
            let ty = tensor.ty();
            let object = json!({ "kind": kind, "name": name, "dtype": ty.dtype.name(), "shape": ty.shape, "values": values(tensor) });
            return print_line(&object.to_string());
        }
        let shown = first(tensor.elements(), SHOWN);
        let rest = if tensor.elements().len() > SHOWN { ", …" } else { "" };
        print_line(&format!("{kind} {name:?} {}: {}{rest}", tensor.ty(), shown.join(", ")))
    })
}

/// Elements that are shown of a tensor.
const SHOWN: usize = 8;

/// The first elements in words, integers exactly.
fn first(elements: &Elements, n: usize) -> Vec<String> {
    fn words<T: ToString>(elements: &[T], n: usize) -> Vec<String> {
        elements.iter().take(n).map(ToString::to_string).collect()
    }
    match elements {
        Elements::F32(v) => words(v, n),
        Elements::F16(v) => words(v, n),
        Elements::Bf16(v) => words(v, n),
        Elements::I32(v) => words(v, n),
        Elements::U32(v) => words(v, n),
        Elements::Bool(v) => words(v, n),
        Elements::I8(v) => words(v, n),
    }
}

/// All elements; JSON has no number for infinities and NaN, which become null.
fn values(tensor: &TensorData) -> Value {
    match tensor.elements() {
        Elements::I32(values) => json!(values),
        Elements::U32(values) => json!(values),
        Elements::Bool(values) => json!(values),
        Elements::I8(values) => json!(values),
        Elements::F32(_) | Elements::F16(_) | Elements::Bf16(_) => json!(tensor.to_f32_vec()),
    }
}
