//! Running the graphs of a case by any executor.

use super::{CaseError, CaseGraphs, CaseStep};
use crate::checkpoint::tensors::in_file;
use indexmap::IndexMap;
use monopass_ir::autodiff::COTANGENT_PREFIX;
use monopass_ir::{DType, Elements, Graph, TensorData, ValueId};
use std::ops::Range;

/// Tensors by name.
pub type Tensors = IndexMap<String, TensorData>;

/// The tensors of a case's file, floats as f32 and whole numbers as i32, u32 or bool; `file` is its name for messages.
///
/// # Errors
/// [`CaseError::Tensors`] if it is not a complete file of such tensors.
pub fn read_tensors(file: &str, bytes: &[u8]) -> Result<Tensors, CaseError> {
    let read = |stored: crate::checkpoint::tensors::Stored| {
        let tensor = stored.to_any(bytes)?;
        Ok((stored.name, tensor))
    };
    in_file(file, bytes)?.into_iter().map(read).collect()
}

impl CaseGraphs {
    /// Runs the case by `execute` and gives its outputs and last states, under the names of the case's file without `out.`.
    ///
    /// `tensors` are those of the case's file; of `params` (from the same file, or a checkpoint's) each graph gets what it
    /// declares. `execute` gets a graph, its inputs, its params and its states, which it replaces by their updates, and gives
    /// the outputs; a state that is missing is zero.
    ///
    /// # Errors
    /// The first error of `execute`.
    pub fn run<E>(
        &self,
        tensors: &Tensors,
        params: &Tensors,
        mut execute: impl FnMut(&Graph, &Tensors, &Tensors, &mut Tensors) -> Result<Tensors, E>,
    ) -> Result<Tensors, E> {
        let mut states = Tensors::new();
        let mut parts: IndexMap<String, Vec<TensorData>> = IndexMap::new();
        for CaseStep { graph_idx, tokens } in &self.steps {
            let Some(graph) = self.graphs.get(*graph_idx) else { continue };
            for (name, tensor) in execute(graph, &self.inputs_of(graph, tensors, tokens.as_ref()), params, &mut states)? {
                parts.entry(name).or_default().push(tensor);
            }
        }
        let mut outputs: Tensors = parts.into_iter().filter_map(|(name, parts)| Some((name, concat_tokens(parts)?))).collect();
        outputs.extend(states.into_iter().map(|(name, state)| (format!("{name}_out"), state)));
        Ok(outputs.into_iter().map(|(name, tensor)| (self.result_in_file(&name), tensor)).collect())
    }

    /// What the case has of the graph's inputs, in the graph's element types.
    fn inputs_of(&self, graph: &Graph, tensors: &Tensors, tokens: Option<&Range<usize>>) -> Tensors {
        let input = |(name, value): (&str, ValueId)| {
            let tensor = match name.strip_prefix(COTANGENT_PREFIX) {
                Some(result) => tensors.get(&format!("{COTANGENT_PREFIX}{}", self.result_in_file(result)))?,
                None => tensors.get(&format!("in.{}", self.source_in_file(name)))?,
            };
            let tensor = tokens.map_or_else(|| tensor.clone(), |tokens| slice_tokens(tensor, tokens));
            Some((name.to_owned(), if graph.ty(value).dtype == DType::U32 { to_u32(tensor) } else { tensor }))
        };
        graph.inputs().filter_map(input).collect()
    }

    /// The parameters in a case's file, without their prefix.
    #[must_use]
    pub fn params_of(tensors: &Tensors) -> Tensors {
        let params = tensors.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("param.")?.to_owned(), tensor.clone())));
        params.collect()
    }
}

/// Token numbers as a model takes them; files have them as i32.
fn to_u32(tensor: TensorData) -> TensorData {
    let Elements::I32(ids) = tensor.elements() else { return tensor };
    // A negative number is no token: it becomes one that no vocabulary has.
    let ids = ids.iter().map(|&id| u32::try_from(id).unwrap_or(u32::MAX)).collect();
    TensorData::new(tensor.shape(), Elements::U32(ids)).unwrap_or(tensor)
}

/// Some tokens (axis 1) of an f32 tensor; others stay as they are.
fn slice_tokens(tensor: &TensorData, tokens: &Range<usize>) -> TensorData {
    let (Some(values), &[batch, len, ref rest @ ..]) = (tensor.as_f32(), tensor.shape()) else { return tensor.clone() };
    let width: usize = rest.iter().product();
    let rows = (0..batch).flat_map(|b| &values[(b * len + tokens.start) * width..(b * len + tokens.end) * width]);
    let shape = [&[batch, tokens.len()], rest].concat();
    TensorData::f32(shape, rows.copied().collect::<Vec<f32>>()).unwrap_or_else(|_| tensor.clone())
}

/// Outputs of several steps one after another along axis 1; the last one if they cannot be joined.
fn concat_tokens(mut parts: Vec<TensorData>) -> Option<TensorData> {
    let last = parts.pop()?;
    if parts.is_empty() {
        return Some(last);
    }
    parts.push(last);
    let (&[batch, _, ref rest @ ..], width) = (parts[0].shape(), parts[0].shape().iter().skip(2).product::<usize>()) else {
        return parts.pop();
    };
    let shape = [&[batch, parts.iter().map(|part| part.shape()[1]).sum()], rest].concat();
    let mut values = Vec::new();
    for b in 0..batch {
        for part in &parts {
            let row = part.shape()[1] * width;
            values.extend_from_slice(&part.as_f32()?[b * row..(b + 1) * row]);
        }
    }
    TensorData::f32(shape, values).ok()
}
