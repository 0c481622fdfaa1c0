//! The interpreter: what every op means, and the executor of machines without a GPU.
//!
//! [`Interpreter`] walks a graph once, in order; each op is computed by its family in [`crate::ops`], in f32 or f64.
//! Inputs and params are borrowed, values are dropped after their last use, and an op overwrites an operand that nobody
//! else holds. With the feature `parallel` ops split their work between threads; results do not depend on how many.

mod array;
mod loops;
mod real;
#[cfg(test)]
mod tests;

pub(crate) use array::{Array, Data, Store, count, map_data};
pub(crate) use loops::{GRAIN, Loops, broadcast_strides, for_chunk_pairs, for_chunks, n_threads, zeroed};
pub(crate) use real::Real;

use crate::data::TensorData;
use crate::error::{EvalError, OpSite};
use crate::graph::{Graph, Named, Node, NodeId, NodeKind, ValueId};
use crate::ops;
use crate::types::DType;
use crate::verify::verify;
use indexmap::IndexMap;
use slotmap::{SecondaryMap, SparseSecondaryMap};
use std::ops::Deref;
use std::sync::Arc;

/// Tensors by name.
pub type Tensors = IndexMap<String, TensorData>;

/// f32 values by name, held in f64.
pub type WideTensors = IndexMap<String, Vec<f64>>;

/// What f32 values are computed in. Either way 16-bit values are rounded when they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32, as devices compute.
    #[default]
    F32,
    /// f64, rounded to f32 only in outputs and states: what devices are judged by.
    F64,
}

/// Runs one graph any number of times.
#[derive(Debug)]
pub struct Interpreter<'g> {
    graph: GraphRef<'g>,
    precision: Precision,
    /// Position of the node that reads a value last; named values are never dropped.
    last_use: SecondaryMap<ValueId, usize>,
    /// Nodes that an output or update depends on.
    needed: SecondaryMap<NodeId, ()>,
}

/// The graph, borrowed or shared.
#[derive(Debug)]
enum GraphRef<'g> {
    Borrowed(&'g Graph),
    Shared(Arc<Graph>),
}

impl Deref for GraphRef<'_> {
    type Target = Graph;

    fn deref(&self) -> &Graph {
        match self {
            Self::Borrowed(graph) => graph,
            Self::Shared(graph) => graph,
        }
    }
}

/// What is called with each value as it is computed.
type Observer<'o> = &'o mut dyn FnMut(ValueId, &TensorData);

impl<'g> Interpreter<'g> {
    /// Prepares to run `graph` in f32.
    ///
    /// # Errors
    /// [`EvalError`] if the graph does not verify.
    pub fn new(graph: &'g Graph) -> Result<Self, EvalError> {
        Self::prepare(GraphRef::Borrowed(graph))
    }

    fn prepare(graph: GraphRef<'g>) -> Result<Self, EvalError> {
        verify(&graph).map_err(|errors| EvalError::new(format!("graph @{} does not verify: {errors}", graph.name)))?;
        let mut last_use = SecondaryMap::new();
        for (position, (_, node)) in graph.nodes().enumerate() {
            for operand in node.present_operands() {
                last_use.insert(operand, position);
            }
        }
        for named in named_values(&graph) {
            last_use.insert(named.value, usize::MAX);
        }
        let needed = needed_nodes(&graph);
        Ok(Self { graph, precision: Precision::F32, last_use, needed })
    }

    /// The same, computing in `precision`.
    #[must_use]
    pub const fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Outputs by name, from inputs, params and states by name.
    ///
    /// A state that is missing starts as zeros and is added. All states are replaced by their updates at the end; after an
    /// error they are as before. A graph that updates a param (training) leaves its new content among the states too,
    /// under the param's name, and reads it from there when it is there. Names of `params` and `states` that the graph does not have are
    /// left alone, those of `inputs` are mistakes.
    ///
    /// # Errors
    /// [`EvalError`] names a missing tensor, one of another type than the graph says, an unknown input, or an index that
    /// a `gather` cannot follow.
    pub fn run(&self, inputs: &Tensors, params: &Tensors, states: &mut Tensors) -> Result<Tensors, EvalError> {
        self.run_observed(inputs, params, states, None)
    }

    /// As [`run`](Self::run), and calls `observe` with every value of the graph in order, needed or not.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_with(
        &self,
        inputs: &Tensors,
        params: &Tensors,
        states: &mut Tensors,
        observe: &mut dyn FnMut(ValueId, &TensorData),
    ) -> Result<Tensors, EvalError> {
        self.run_observed(inputs, params, states, Some(observe))
    }

    /// As [`run`](Self::run) in f64, where states and outputs are not rounded either: what a long run of steps is judged by.
    ///
    /// All outputs are f32 in the graph, and so are the states; a state that is missing starts as zeros and is added.
    ///
    /// # Errors
    /// As for [`run`](Self::run); an output or state of another type, or a state with another number of elements.
    pub fn run_wide(&self, inputs: &Tensors, params: &Tensors, states: &mut WideTensors) -> Result<WideTensors, EvalError> {
        let none = Tensors::new();
        let zeros = self.missing_states(&none)?;
        let sources = self.bind(&Given { inputs, params, states: &none, zeros: &zeros })?;
        let mut run = Run::<f64>::new(self, sources);
        for (name, value) in self.graph.states() {
            let Some(state) = states.get(name) else { continue };
            let ty = self.graph.ty(value);
            if state.len() != count(&ty.shape)? || ty.dtype != DType::F32 {
                return Err(EvalError::new(format!("state {name:?}: {ty} expected, got {} numbers", state.len()))
                    .help("give the states that a run of this graph left"));
            }
            run.alive.insert(value, Array::real(&ty.shape, state.clone()));
        }
        let (outputs, updates) = run.run(None)?;
        let wide = |(name, array): (String, Array<'_, f64>)| Ok((name, array.into_reals()?.into_vec()));
        let outputs = outputs.into_iter().map(wide).collect::<Result<_, EvalError>>()?;
        states.extend(updates.into_iter().map(wide).collect::<Result<WideTensors, EvalError>>()?);
        Ok(outputs)
    }

    fn run_observed(
        &self,
        inputs: &Tensors,
        params: &Tensors,
        states: &mut Tensors,
        observe: Option<Observer>,
    ) -> Result<Tensors, EvalError> {
        let zeros = self.missing_states(states)?;
        let given = Given { inputs, params, states, zeros: &zeros };
        let sources = self.bind(&given)?;
        let (outputs, updates) = match self.precision {
            Precision::F32 => into_tensors(Run::<f32>::new(self, sources).run(observe)?)?,
            Precision::F64 => into_tensors(Run::<f64>::new(self, sources).run(observe)?)?,
        };
        states.extend(zeros);
        states.extend(updates);
        Ok(outputs)
    }

    /// Zeros for the states that the caller does not have.
    fn missing_states(&self, states: &Tensors) -> Result<Tensors, EvalError> {
        let missing = self.graph.states().filter(|(name, _)| !states.contains_key(*name));
        missing
            .map(|(name, value)| {
                let zeros = Array::<f32>::filled(self.graph.ty(value), 0.0)?;
                Ok((name.to_owned(), zeros.into_tensor()?))
            })
            .collect()
    }

    /// The caller's tensor of each source, its type checked.
    fn bind<'a>(&self, given: &Given<'a>) -> Result<SecondaryMap<ValueId, &'a TensorData>, EvalError> {
        if let Some(name) = given.inputs.keys().find(|name| self.graph.inputs().all(|(known, _)| known != name.as_str())) {
            return Err(
                EvalError::new(format!("graph @{} has no input {name:?}", self.graph.name)).help(known("inputs are", self.graph.inputs()))
            );
        }
        let mut sources = SecondaryMap::new();
        for (name, value, node) in self.graph.sources() {
            let tensor = self.lookup(given, name, node).ok_or_else(|| self.missing(given, name, value, node))?;
            let ty = self.graph.ty(value);
            if tensor.shape() != ty.shape || tensor.elements().dtype() != ty.dtype {
                return Err(EvalError::new(format!("{} {name:?}: {ty} expected, got {}", node.mnemonic(), tensor.ty()))
                    .help("give it in the type of the graph, or build the graph for this type"));
            }
            sources.insert(value, tensor);
        }
        Ok(sources)
    }

    fn lookup<'a>(&self, given: &Given<'a>, name: &str, node: &Node) -> Option<&'a TensorData> {
        match node.kind {
            NodeKind::Input { .. } => given.inputs.get(name),
            NodeKind::State { .. } => given.states.get(name).or_else(|| given.zeros.get(name)),
            NodeKind::Param { .. } if self.graph.updates.iter().any(|update| update.name == name) => {
                given.states.get(name).or_else(|| given.params.get(name))
            }
            NodeKind::Param { .. } => given.params.get(name),
            NodeKind::Const(_) | NodeKind::Op(_) => None,
        }
    }

    fn missing(&self, given: &Given, name: &str, value: ValueId, node: &Node) -> EvalError {
        let among = if matches!(node.kind, NodeKind::Input { .. }) { given.inputs } else { given.params };
        let names = among.keys().map(|name| (name.as_str(), value));
        EvalError::new(format!("{} {name:?}: {} is missing", node.mnemonic(), self.graph.ty(value))).help(known("given are", names))
    }
}

impl Interpreter<'static> {
    /// As [`new`](Self::new), of a graph that it owns or shares with others.
    ///
    /// # Errors
    /// [`EvalError`] if the graph does not verify.
    pub fn shared(graph: impl Into<Arc<Graph>>) -> Result<Self, EvalError> {
        Self::prepare(GraphRef::Shared(graph.into()))
    }
}

/// What the caller gave, and zeros for states that it did not.
struct Given<'a> {
    inputs: &'a Tensors,
    params: &'a Tensors,
    states: &'a Tensors,
    zeros: &'a Tensors,
}

/// Outputs and updates by name.
type Ran<'a, R> = (Vec<(String, Array<'a, R>)>, Vec<(String, Array<'a, R>)>);

/// Rounds what a run gave.
fn into_tensors<R: Real>((outputs, updates): Ran<'_, R>) -> Result<(Tensors, Tensors), EvalError> {
    let rounded = |(name, array): (String, Array<'_, R>)| Ok((name, array.into_tensor()?));
    let outputs = outputs.into_iter().map(rounded).collect::<Result<_, EvalError>>()?;
    Ok((outputs, updates.into_iter().map(rounded).collect::<Result<_, EvalError>>()?))
}

/// One run: the values alive.
struct Run<'a, 'g, R> {
    interpreter: &'a Interpreter<'g>,
    sources: SecondaryMap<ValueId, &'a TensorData>,
    alive: SparseSecondaryMap<ValueId, Array<'a, R>>,
}

impl<'a, 'g, R: Real> Run<'a, 'g, R> {
    fn new(interpreter: &'a Interpreter<'g>, sources: SecondaryMap<ValueId, &'a TensorData>) -> Self {
        Self { interpreter, sources, alive: SparseSecondaryMap::new() }
    }

    fn run(mut self, mut observe: Option<Observer>) -> Result<Ran<'a, R>, EvalError> {
        let graph: &'a Graph = &self.interpreter.graph;
        for (position, (id, node)) in graph.nodes().enumerate() {
            if observe.is_none() && !self.interpreter.needed.contains_key(id) {
                continue;
            }
            match &node.kind {
                NodeKind::Op(op) => {
                    let operands = self.operands(node, position)?;
                    let results = ops::eval(op, operands, &node.results.iter().map(|&value| graph.ty(value)).collect::<Vec<_>>());
                    self.keep(node, results.map_err(|error| error.at(graph, node))?, &mut observe)?;
                }
                NodeKind::Const(_) | NodeKind::Input { .. } | NodeKind::Param { .. } | NodeKind::State { .. } => {
                    self.observe_source(node.results[0], &mut observe)?;
                }
            }
        }
        let outputs = self.take_named(&graph.outputs, &graph.updates)?;
        let updates = self.take_named(&graph.updates, &[])?;
        Ok((outputs, updates))
    }

    /// Operands of a node; those that nobody reads afterwards leave the table, so that the op may overwrite them.
    fn operands(&mut self, node: &Node, position: usize) -> Result<Vec<Option<Array<'a, R>>>, EvalError> {
        let operands = node.operands.iter().map(|operand| operand.map(|value| self.fetch(value)).transpose());
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        for operand in node.present_operands() {
            if self.interpreter.last_use.get(operand) == Some(&position) {
                self.alive.remove(operand);
            }
        }
        Ok(operands)
    }

    /// A value; sources enter the table when they are first read.
    fn fetch(&mut self, value: ValueId) -> Result<Array<'a, R>, EvalError> {
        if let Some(array) = self.alive.get(value) {
            return Ok(array.clone());
        }
        let array = self.load(value)?;
        self.alive.insert(value, array.clone());
        Ok(array)
    }

    fn load(&self, value: ValueId) -> Result<Array<'a, R>, EvalError> {
        let graph: &'a Graph = &self.interpreter.graph;
        if let Some(tensor) = self.sources.get(value) {
            return Ok(Array::borrow(tensor));
        }
        match graph.def(value).kind {
            NodeKind::Const(number) => Array::filled(graph.ty(value), number),
            NodeKind::Op(_) | NodeKind::Input { .. } | NodeKind::Param { .. } | NodeKind::State { .. } => {
                Err(EvalError::new("a value was dropped before its last use, a mistake in the interpreter").at(graph, graph.def(value)))
            }
        }
    }

    fn keep(&mut self, node: &Node, results: Vec<Array<'a, R>>, observe: &mut Option<Observer>) -> Result<(), EvalError> {
        let graph: &'a Graph = &self.interpreter.graph;
        for (&value, array) in node.results.iter().zip(results) {
            let ty = graph.ty(value);
            if array.shape != ty.shape || array.dtype() != ty.dtype {
                let got = format!("{}{:?}", array.dtype(), array.shape);
                return Err(EvalError::new(format!("{}: {ty} expected, computed {got}", node.mnemonic()))
                    .help("verify the graph; its types do not follow from its operands")
                    .at(graph, node));
            }
            if let Some(observe) = observe {
                observe(value, &array.clone().into_tensor()?);
            }
            if self.interpreter.last_use.contains_key(value) {
                self.alive.insert(value, array);
            }
        }
        Ok(())
    }

    fn observe_source(&self, value: ValueId, observe: &mut Option<Observer>) -> Result<(), EvalError> {
        let Some(observe) = observe else { return Ok(()) };
        match self.sources.get(value) {
            Some(tensor) => observe(value, tensor),
            None => observe(value, &self.load(value)?.into_tensor()?),
        }
        Ok(())
    }

    /// Named values; one that no later name (here or in `later`) needs is moved out rather than copied.
    fn take_named(&mut self, names: &[Named], later: &[Named]) -> Result<Vec<(String, Array<'a, R>)>, EvalError> {
        let mut arrays = Vec::with_capacity(names.len());
        for (i, Named { name, value }) in names.iter().enumerate() {
            let array = self.fetch(*value)?;
            if names[i + 1..].iter().chain(later).all(|other| other.value != *value) {
                self.alive.remove(*value);
            }
            arrays.push((name.clone(), array));
        }
        Ok(arrays)
    }
}

impl EvalError {
    /// A mistake, in words.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None }
    }

    /// Adds how to fix it.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds the place, which the op itself does not know.
    fn at(mut self, graph: &Graph, node: &Node) -> Self {
        if let Some(&value) = node.results.first() {
            self.message.push_str(&OpSite::of(graph, value).to_string());
        }
        self
    }
}

fn named_values(graph: &Graph) -> impl Iterator<Item = &Named> {
    graph.outputs.iter().chain(&graph.updates)
}

fn needed_nodes(graph: &Graph) -> SecondaryMap<NodeId, ()> {
    let mut needed: SecondaryMap<NodeId, ()> = named_values(graph).map(|named| (graph.value(named.value).node, ())).collect();
    for (id, node) in graph.nodes().rev() {
        if needed.contains_key(id) {
            for operand in node.present_operands() {
                needed.insert(graph.value(operand).node, ());
            }
        }
    }
    needed
}

/// A list of names for a help line; a long one is cut.
fn known<'n>(what: &str, names: impl Iterator<Item = (&'n str, ValueId)>) -> String {
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    match names.len() {
        0 => format!("{what}: none"),
        1..=12 => format!("{what}: {}", names.join(", ")),
        n => format!("{what}: {} and {} more", names[..10].join(", "), n - 10),
    }
}
