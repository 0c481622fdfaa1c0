//! Graphs from files and standard input, and what they run on.

use crate::args::{DataArgs, GraphArgs};
use crate::files;
use crate::memory::{self, Place};
use crate::report::{Failure, OrReport, io_failure};
use half::{bf16, f16};
use miette::Result;
use monopass::blocks::cases::read_tensors;
use monopass::ir::{Elements, sample, text};
use monopass::{DType, Graph, TensorData, TensorType, Tensors};
use std::io::Read;
use std::path::Path;

/// Most bytes of a text; the graphs of the largest models have a few million.
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// The one graph of a file.
pub(crate) fn graph(args: &GraphArgs) -> Result<Graph> {
    let (name, text) = read(&args.file)?;
    text::parse_one(&text).map_err(|error| Failure::parse(&name, &error).into())
}

/// All graphs of a file.
pub(crate) fn graphs(args: &GraphArgs) -> Result<Vec<Graph>> {
    let (name, text) = read(&args.file)?;
    text::parse(&text).map_err(|error| Failure::parse(&name, &error).into())
}

fn read(path: &Path) -> Result<(String, String)> {
    let is_stdin = path.as_os_str() == "-";
    let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    let done =
        if is_stdin { fill(std::io::stdin().lock(), &mut bytes) } else { files::regular(path).and_then(|file| fill(file, &mut bytes)) };
    done.map_err(|error| io_failure(path, &error).help("give a file with a graph in text form, or - to read standard input"))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(Failure::new(format!("{name}: more than {MAX_TEXT_BYTES} bytes")).help("give a graph in text form").into());
    }
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::new(format!("{name}: not text in UTF-8")).help("give a graph in text form"))?;
    Ok((name, text))
}

/// Reads up to a byte more than a graph may have, as a device or a pipe may have no end.
fn fill(from: impl Read, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    from.take(MAX_TEXT_BYTES + 1).read_to_end(bytes).map(|_| ())
}

/// What a graph runs on.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) inputs: Tensors,
    pub(crate) params: Tensors,
    pub(crate) states: Tensors,
}

/// What the options say, for every source of the graph.
pub(crate) fn data(graph: &Graph, args: &DataArgs, place: Place) -> Result<Data> {
    memory::check(graph, args.max_bytes, place)?;
    let (inputs, params, states) = sample::inputs(graph, args.seed);
    let mut data = Data { inputs, params, states };
    let Some(path) = &args.data else { return Ok(data) };
    let bytes = files::bytes(path).map_err(|error| io_failure(path, &error))?;
    for (name, tensor) in read_tensors(&path.display().to_string(), &bytes).or_report()? {
        data.put(graph, &name, tensor).map_err(|problem| Failure::new(format!("{}: tensor {name}: {problem}", path.display())))?;
    }
    Ok(data)
}

impl Data {
    pub(crate) fn inputs(&self) -> Vec<(&str, &TensorData)> {
        self.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
    }

    fn put(&mut self, graph: &Graph, name: &str, tensor: TensorData) -> Result<(), String> {
        let (prefix, short) = name.split_once('.').ok_or("no prefix in., param. or state.")?;
        let list = match prefix {
            "in" => &mut self.inputs,
            "param" => &mut self.params,
            "state" => &mut self.states,
            // Files of cases hold what is expected, too.
            "out" | "cot" | "grad" => return Ok(()),
            _ => return Err("no prefix in., param. or state.".to_owned()),
        };
        let place = list.get_mut(short).ok_or_else(|| format!("graph @{} has no source of this name", graph.name))?;
        *place = converted(tensor, &place.ty())?;
        Ok(())
    }
}

/// A tensor of a file, floats of which are f32, in the type of the graph.
fn converted(tensor: TensorData, ty: &TensorType) -> Result<TensorData, String> {
    let found = tensor.ty();
    let mismatch = || format!("{found} in the file, {ty} in the graph");
    if tensor.shape() != ty.shape {
        return Err(mismatch());
    }
    let elements = match (tensor.into_elements(), ty.dtype) {
        (Elements::F32(v), DType::F16) => Elements::F16(v.into_iter().map(f16::from_f32).collect()),
        (Elements::F32(v), DType::Bf16) => Elements::Bf16(v.into_iter().map(bf16::from_f32).collect()),
        (Elements::I32(v), DType::Bool) => Elements::Bool(v.into_iter().map(|x| x != 0).collect()),
        (Elements::U32(v), DType::Bool) => Elements::Bool(v.into_iter().map(|x| x != 0).collect()),
        (Elements::U32(v), DType::I32) => {
            let words = v.into_iter().map(|x| i32::try_from(x).map_err(|_| format!("{x} is too large, {ty} in the graph")));
            Elements::I32(words.collect::<Result<_, _>>()?)
        }
        (Elements::I32(v), DType::I8) => {
            let words = v.into_iter().map(|x| i8::try_from(x).map_err(|_| format!("{x} is no i8, {ty} in the graph")));
            Elements::I8(words.collect::<Result<_, _>>()?)
        }
        (Elements::I32(v), DType::U32) => {
            let words = v.into_iter().map(|x| u32::try_from(x).map_err(|_| format!("{x} is negative, {ty} in the graph")));
            Elements::U32(words.collect::<Result<_, _>>()?)
        }
        (elements, _) => elements,
    };
    if elements.dtype() != ty.dtype {
        return Err(mismatch());
    }
    TensorData::new(ty.shape.clone(), elements).map_err(|error| error.to_string())
}
