//! Looking inside a run: which value first was no number, and where.
//!
//! To read values back with a run, see [`Graph::with_taps`](crate::ir::Graph::with_taps).

use crate::engine::{Engine, Params, Session};
use crate::error::Error;
use monopass_ir::graph::{Node, NodeKind};
use monopass_ir::op::Class;
use monopass_ir::tap::Tap;
use monopass_ir::types::position;
use monopass_ir::{Elements, Graph, TensorData, ValueId, compact};
use monopass_lower::CompileOptions;
use std::fmt;

/// The first value in the order of a graph that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Culprit {
    /// The op that made it out of finite operands; or `input`, `param` or `state`, with its name.
    pub op: String,
    /// Its number in the graph, `%12`.
    pub value: String,
    /// Where it belongs, such as `layers.0/mixer/in_proj`; empty at the top.
    pub scope: String,
    /// Elements that are no number.
    pub n_nan: usize,
    /// Elements that are infinite.
    pub n_inf: usize,
    /// Index along each axis of the first of them.
    pub first: Vec<usize>,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, value, scope, n_nan, n_inf, first } = self;
        let place = if scope.is_empty() { String::new() } else { format!(" in {scope}") };
        write!(f, "{op} at {value}{place} has {n_nan} NaN and {n_inf} infinite elements, the first at {first:?}")
    }
}

/// Bytes of values that one run gives back, unless one value has more.
const GROUP_BYTES: u64 = 64 << 20;
/// Values that one run gives back.
const GROUP_VALUES: usize = 256;

/// The first op in the order of a graph with a result that is not finite although its operands are, or the input, state or param
/// that is not finite itself; `None` if all is finite.
///
/// The graph is run from the states of `session`, which stay as they are, as often as it takes to bring all values back in
/// groups of 64 MiB; each run computes only what its group needs.
///
/// # Errors
/// What a run of the graph can meet.
pub async fn trace_non_finite(
    engine: &Engine,
    graph: &Graph,
    params: &Params,
    session: &Session,
    inputs: &[(&str, &TensorData)],
) -> Result<Option<Culprit>, Error> {
    let trace = Trace { engine, graph, params, session, inputs };
    for (name, value, node) in graph.sources() {
        let content = match &node.kind {
            NodeKind::Input { .. } => inputs.iter().find(|(given, _)| *given == name).map(|(_, tensor)| (*tensor).clone()),
            NodeKind::State { .. } if session.ty(name).is_some() => Some(session.read(name).await?),
            NodeKind::State { .. } | NodeKind::Param { .. } | NodeKind::Const(_) | NodeKind::Op(_) => None,
        };
        if let Some(found) = content.as_ref().and_then(bad_elements) {
            return Ok(Some(trace.culprit(&format!("{} {name:?}", node.mnemonic()), value, &found)));
        }
    }
    for group in trace.groups() {
        if let Some((value, found)) = trace.first_in(&group).await? {
            return trace.blame(value, &found).await.map(Some);
        }
    }
    Ok(None)
}

struct Trace<'a> {
    engine: &'a Engine,
    graph: &'a Graph,
    params: &'a Params,
    session: &'a Session,
    inputs: &'a [(&'a str, &'a TensorData)],
}

/// What is wrong with a tensor.
struct Bad {
    n_nan: usize,
    n_inf: usize,
    first: Vec<usize>,
}

/// The elements of a float tensor that are not finite; `None` if all are.
fn bad_elements(tensor: &TensorData) -> Option<Bad> {
    let floats = match tensor.elements() {
        Elements::F32(_) | Elements::F16(_) | Elements::Bf16(_) => tensor.to_f32_vec(),
        Elements::I32(_) | Elements::U32(_) | Elements::Bool(_) | Elements::I8(_) => return None,
    };
    let first = floats.iter().position(|x| !x.is_finite())?;
    let count = |is_bad: fn(&&f32) -> bool| floats.iter().filter(is_bad).count();
    Some(Bad { n_nan: count(|x| x.is_nan()), n_inf: count(|x| x.is_infinite()), first: position(first, tensor.shape()) })
}

impl Trace<'_> {
    /// Float results of ops in graph order, in groups.
    fn groups(&self) -> Vec<Vec<ValueId>> {
        let (mut groups, mut bytes): (Vec<Vec<ValueId>>, u64) = (Vec::new(), 0);
        let results = self.graph.nodes().filter(|(_, node)| node.op().is_some()).flat_map(|(_, node)| &node.results);
        for &value in results.filter(|&&value| self.graph.ty(value).dtype.is_float()) {
            let n_bytes = self.graph.ty(value).size_bytes();
            let is_full = |group: &Vec<ValueId>| group.len() >= GROUP_VALUES || bytes.saturating_add(n_bytes) > GROUP_BYTES;
            match groups.last_mut().filter(|group| !is_full(group)) {
                Some(group) => {
                    group.push(value);
                    bytes += n_bytes;
                }
                None => {
                    groups.push(vec![value]);
                    bytes = n_bytes;
                }
            }
        }
        groups
    }

    /// The first value of a group that is not finite.
    async fn first_in(&self, group: &[ValueId]) -> Result<Option<(ValueId, Bad)>, Error> {
        let taps: Vec<Tap> = group.iter().enumerate().map(|(i, &value)| Tap { output: format!("tap:{i}"), value }).collect();
        let mut graph = self.graph.clone();
        (graph.outputs, graph.updates) = (Vec::new(), Vec::new());
        let graph = compact::compact(&graph.tapping(&taps));
        let program = self.engine.load(&graph, self.params, &CompileOptions::default()).await?;
        let run = program.run(&mut self.session.fork()?, self.inputs).await?;
        let found = taps.iter().find_map(|tap| Some((tap.value, bad_elements(run.outputs.get(&tap.output)?)?)));
        Ok(found)
    }

    /// The op that made a value, unless a param that it reads, as it is or moved, is not finite.
    async fn blame(&self, value: ValueId, found: &Bad) -> Result<Culprit, Error> {
        let node = self.graph.def(value);
        for param in self.params_of(node) {
            let NodeKind::Param { name } = &self.graph.def(param).kind else { continue };
            let tensor = self.params.read(name).await?;
            if let Some(found) = bad_elements(&tensor) {
                return Ok(self.culprit(&format!("param {name:?}"), param, &found));
            }
        }
        Ok(self.culprit(node.mnemonic(), value, found))
    }

    /// Params among the operands of a node, through ops that only move elements.
    fn params_of(&self, node: &Node) -> Vec<ValueId> {
        let (mut params, mut open): (Vec<ValueId>, Vec<ValueId>) = (Vec::new(), node.present_operands().collect());
        while let Some(value) = open.pop() {
            let node = self.graph.def(value);
            match &node.kind {
                NodeKind::Param { .. } => params.push(value),
                NodeKind::Op(op) if op.class() == Class::Movement => open.extend(node.present_operands()),
                NodeKind::Op(_) | NodeKind::Input { .. } | NodeKind::State { .. } | NodeKind::Const(_) => {}
            }
        }
        params
    }

    fn culprit(&self, op: &str, value: ValueId, found: &Bad) -> Culprit {
        Culprit {
            op: op.to_owned(),
            value: format!("%{}", self.graph.numbering().of(value)),
            scope: self.graph.def(value).scope.to_string(),
            n_nan: found.n_nan,
            n_inf: found.n_inf,
            first: found.first.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensors;
    use monopass_ir::{DType, GraphBuilder};
    use pollster::block_on;

    fn trace(graph: &Graph, params: Tensors, x: &[f32]) -> Option<Culprit> {
        let engine = Engine::cpu();
        let x = TensorData::f32([x.len()], x).unwrap();
        block_on(async {
            let params = engine.upload(params).await?;
            trace_non_finite(&engine, graph, &params, &engine.session(), &[("x", &x)]).await
        })
        .unwrap()
    }

    /// `exp(x w)`, its logarithm less one, in two scopes.
    fn graph() -> Graph {
        let g = GraphBuilder::new("trace");
        let (x, w) = (g.input("x", DType::F32, [3]), g.param("w", DType::F32, [1, 3]));
        let y = {
            let _scope = g.scope("grow");
            (x * w.reshape([3])).exp()
        };
        {
            let _scope = g.scope("shrink");
            g.output("y", (y - 2.0).log());
        }
        g.finish().unwrap()
    }

    fn weights(w: [f32; 3]) -> Tensors {
        Tensors::from([("w".to_owned(), TensorData::f32([1, 3], w).unwrap())])
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_named() {
        let found = |x: &[f32], w| trace(&graph(), weights(w), x).map(|culprit| culprit.to_string());
        assert_eq!(found(&[1.0, 2.0, 3.0], [1.0; 3]), None);
        let text = found(&[1.0, 200.0, 3.0], [1.0; 3]).unwrap();
        assert_eq!(text, "exp at %4 in grow has 0 NaN and 1 infinite elements, the first at [1]");
        let text = found(&[1.0, 0.5, 0.0], [1.0; 3]).unwrap();
        assert!(text.starts_with("log at %") && text.contains("in shrink has 2 NaN"), "{text}");
        let text = found(&[1.0, f32::NAN, 1.0], [1.0; 3]).unwrap();
        assert_eq!(text, "input \"x\" at %0 has 1 NaN and 0 infinite elements, the first at [1]");
        let text = found(&[1.0; 3], [1.0, 2.0, f32::INFINITY]).unwrap();
        assert_eq!(text, "param \"w\" at %1 has 0 NaN and 1 infinite elements, the first at [0, 2]");
    }

    #[test]
    fn groups_have_a_bounded_size() {
        let g = GraphBuilder::new("large");
        let x = g.input("x", DType::F32, [5 << 20]);
        let y = (0..7).fold(x, |y, _| y.sin());
        g.output("y", y);
        let graph = g.finish().unwrap();
        let engine = Engine::cpu();
        let params = block_on(engine.upload(Tensors::new())).unwrap();
        let trace = Trace { engine: &engine, graph: &graph, params: &params, session: &engine.session(), inputs: &[] };
        assert_eq!(trace.groups().iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 1]);
    }
}
