//! Reverse mode, graph to graph: the adjoints of values are ordinary values of the same graph.
//!
//! [`GraphBuilder::gradients`] walks the nodes that were built so far backwards and asks each op's family in [`crate::ops`] for
//! its vjp. What a value's uses add to its adjoint is summed, last use first; parts that slices of it add, side by side,
//! become one concatenation. [`gradient_graph`] does the same to a finished graph, with an input for the adjoint of each result.
//!
//! Adjoints follow the real inner product: where a loss depends on `y = f(x)`, the adjoint of `x` is its derivative by `x`. Ops that are
//! constant but for jumps (comparisons, `floor`, `argmax`, casts to integers) pass nothing on.

use crate::builder::{GraphBuilder, Tensor};
use crate::error::BuildErrors;
use crate::graph::{Graph, NodeId, NodeKind, ValueId};
use crate::op::Op;
use crate::ops;
use crate::types::DType;
use slotmap::SecondaryMap;

/// Prefix of the inputs of [`gradient_graph`] that hold the adjoints of results.
pub const COTANGENT_PREFIX: &str = "cot.";
/// Prefix of the outputs of [`gradient_graph`] that hold the adjoints of sources.
pub const GRADIENT_PREFIX: &str = "grad.";
/// First segment of the scopes of nodes that compute adjoints.
pub const GRADIENT_SCOPE: &str = "grad";

/// Why no adjoint passes through an op: its derivative is zero wherever there is one.
const PIECEWISE_CONSTANT: &str = "it is constant but for jumps";
/// Why no adjoint passes through the adjoint of a scan.
const SECOND_ORDER: &str = "second derivatives of a scan are not offered";

/// Why an op passes no adjoint to its operands; `None` if it does.
#[must_use]
pub const fn why_no_gradient(op: &Op) -> Option<&'static str> {
    match op {
        Op::Floor {}
        | Op::Not {}
        | Op::Eq {}
        | Op::Ne {}
        | Op::Lt {}
        | Op::Le {}
        | Op::And {}
        | Op::Or {}
        | Op::Argmax { .. }
        | Op::Sample {}
        | Op::Iota { .. } => Some(PIECEWISE_CONSTANT),
        Op::ScanGrad { .. } => Some(SECOND_ORDER),
        Op::Neg {}
        | Op::Abs {}
        | Op::Exp {}
        | Op::Log {}
        | Op::Sqrt {}
        | Op::Rsqrt {}
        | Op::Sigmoid {}
        | Op::Silu {}
        | Op::Softplus {}
        | Op::Tanh {}
        | Op::Sin {}
        | Op::Cos {}
        | Op::Clamp { .. }
        | Op::Cast { .. }
        | Op::Add {}
        | Op::Sub {}
        | Op::Mul {}
        | Op::Div {}
        | Op::Max {}
        | Op::Min {}
        | Op::Select {}
        | Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::Slice { .. }
        | Op::Broadcast { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Sum { .. }
        | Op::Mean { .. }
        | Op::ReduceMax { .. }
        | Op::Cumsum { .. }
        | Op::MatMul { .. }
        | Op::Gather {}
        | Op::ScatterAdd { .. }
        | Op::Conv1d { .. }
        | Op::Scan { .. } => None,
    }
}

/// An application of an op, and the adjoints of those of its results that have one.
pub(crate) struct Applied<'a, 'g> {
    pub(crate) op: &'a Op,
    pub(crate) operands: &'a [Option<Tensor<'g>>],
    pub(crate) results: &'a [Tensor<'g>],
    pub(crate) adjoints: &'a [Option<Tensor<'g>>],
    /// Which operands the adjoint of is asked for.
    pub(crate) wanted: &'a [bool],
}

impl<'g> Applied<'_, 'g> {
    /// The operand at `idx`, if it is there.
    pub(crate) fn operand(&self, idx: usize) -> Option<Tensor<'g>> {
        self.operands.get(idx).copied().flatten()
    }

    /// Whether the adjoint of the operand at `idx` is asked for.
    pub(crate) fn wants(&self, idx: usize) -> bool {
        self.wanted.get(idx).copied().unwrap_or(false)
    }

    /// The adjoint of the result at `idx`.
    pub(crate) fn adjoint(&self, idx: usize) -> Option<Tensor<'g>> {
        self.adjoints.get(idx).copied().flatten()
    }
}

/// A number in the element type of `like`, which broadcasts to its shape.
#[track_caller]
pub(crate) fn number<'g>(like: Tensor<'g>, number: f64) -> Tensor<'g> {
    like.builder().constant(number, like.dtype(), [])
}

/// The adjoint of an operand that was broadcast to the shape of `adjoint`.
#[track_caller]
pub(crate) fn unbroadcast<'g>(adjoint: Tensor<'g>, shape: &[usize]) -> Tensor<'g> {
    let from = adjoint.shape();
    if from == shape {
        return adjoint;
    }
    let lead = from.len().saturating_sub(shape.len());
    let axes: Vec<usize> = (0..from.len()).filter(|&axis| axis < lead || (shape[axis - lead] == 1 && from[axis] != 1)).collect();
    let summed = if axes.is_empty() { adjoint } else { adjoint.sum(axes, false) };
    summed.reshape(shape)
}

impl GraphBuilder {
    /// Adjoints of `wrt`, given those of some values: `of` pairs a value with its adjoint, of the same shape.
    ///
    /// The result has an entry for each of `wrt`, `None` where no value of `of` depends on it. Adjoints are of the type of what they belong
    /// to. New nodes stand in the scope of the node that they differentiate, below [`GRADIENT_SCOPE`].
    ///
    /// A mistake (an adjoint of another shape, an op without derivative on the way) is remembered as those of ops are.
    #[track_caller]
    #[must_use]
    pub fn gradients<'g>(&'g self, of: &[(Tensor<'g>, Tensor<'g>)], wrt: &[Tensor<'g>]) -> Vec<Option<Tensor<'g>>> {
        let mut sums = Adjoints::new(self);
        for &(value, adjoint) in of {
            if value.ty() != adjoint.ty() {
                self.fail(
                    format!("gradients: the adjoint of {} is {}", value.ty(), adjoint.ty()),
                    "give one of the same shape and element type",
                );
                return vec![None; wrt.len()];
            }
            sums.add(value, adjoint);
        }
        let nodes = self.node_ids();
        let active = self.active(&nodes, wrt);
        for &node in nodes.iter().rev() {
            self.differentiate(node, &active, &mut sums);
        }
        wrt.iter().map(|&source| sums.total(source)).collect()
    }

    /// Float values that depend on one of `wrt`, these included.
    fn active(&self, nodes: &[NodeId], wrt: &[Tensor<'_>]) -> SecondaryMap<ValueId, ()> {
        let mut active: SecondaryMap<ValueId, ()> = wrt.iter().filter_map(|tensor| Some((tensor.id()?, ()))).collect();
        self.with_graph(|graph| {
            for &id in nodes {
                let node = graph.node(id);
                if node.present_operands().any(|operand| active.contains_key(operand)) {
                    let floats = node.results.iter().filter(|&&result| graph.ty(result).dtype.is_float());
                    active.extend(floats.map(|&result| (result, ())));
                }
            }
        });
        active
    }

    #[track_caller]
    fn differentiate<'g>(&'g self, id: NodeId, active: &SecondaryMap<ValueId, ()>, sums: &mut Adjoints<'g>) {
        let node = self.with_graph(|graph| graph.node(id).clone());
        let NodeKind::Op(op) = &node.kind else { return };
        let wanted: Vec<bool> = node.operands.iter().map(|operand| operand.is_some_and(|value| active.contains_key(value))).collect();
        let results: Vec<Tensor<'g>> = node.results.iter().map(|&value| self.tensor(value)).collect();
        if !wanted.contains(&true) || !results.iter().any(|&result| sums.has(result)) {
            return;
        }
        let _scope = self.scope_in_place_of(&if node.scope.is_empty() {
            GRADIENT_SCOPE.to_owned()
        } else {
            format!("{GRADIENT_SCOPE}/{}", node.scope)
        });
        match why_no_gradient(op) {
            Some(PIECEWISE_CONSTANT) => return,
            Some(reason) => {
                self.fail(format!("gradients: {} has no derivative: {reason}", op.mnemonic()), "keep it off the way to the parameters");
                return;
            }
            None => {}
        }
        let adjoints: Vec<Option<Tensor<'g>>> = results.iter().map(|&result| sums.total(result)).collect();
        let operands: Vec<Option<Tensor<'g>>> = node.operands.iter().map(|operand| operand.map(|value| self.tensor(value))).collect();
        let applied = Applied { op, operands: &operands, results: &results, adjoints: &adjoints, wanted: &wanted };
        let given = ops::vjp(&applied);
        for ((operand, given), wanted) in operands.iter().zip(given).zip(&wanted) {
            if let (Some(operand), Some(given), true) = (operand, given, wanted) {
                sums.add(*operand, given);
            }
        }
    }
}

/// What was added to the adjoint of each value so far.
struct Adjoints<'g> {
    builder: &'g GraphBuilder,
    parts: SecondaryMap<ValueId, Vec<Tensor<'g>>>,
}

impl<'g> Adjoints<'g> {
    fn new(builder: &'g GraphBuilder) -> Self {
        Self { builder, parts: SecondaryMap::new() }
    }

    fn has(&self, value: Tensor<'g>) -> bool {
        value.id().is_some_and(|id| self.parts.contains_key(id))
    }

    fn add(&mut self, value: Tensor<'g>, adjoint: Tensor<'g>) {
        let Some(id) = value.id() else { return };
        match self.parts.get_mut(id) {
            Some(parts) => parts.push(adjoint),
            None => {
                self.parts.insert(id, vec![adjoint]);
            }
        }
    }

    /// The sum, which takes the place of its parts.
    #[track_caller]
    fn total(&mut self, value: Tensor<'g>) -> Option<Tensor<'g>> {
        let parts = self.parts.get_mut(value.id()?)?;
        let (strips, whole): (Vec<_>, Vec<_>) =
            parts.iter().map(|&part| (Strip::of(self.builder, part), part)).partition(|(strip, _)| strip.is_some());
        let mut terms: Vec<Tensor<'g>> = whole.into_iter().map(|(_, part)| part).collect();
        let padded: Vec<Tensor<'g>> = strips.iter().map(|&(_, part)| part).collect();
        match joined(value, strips.into_iter().filter_map(|(strip, _)| strip).collect()) {
            Some(joined) => terms.push(joined),
            None => terms.extend(padded),
        }
        let total = terms.into_iter().reduce(|sum, term| sum + term)?;
        *parts = vec![total];
        Some(total)
    }
}

/// A part of an adjoint that is zero outside a range of one axis.
#[derive(Clone, Copy)]
struct Strip<'g> {
    axis: usize,
    start: usize,
    inner: Tensor<'g>,
}

impl<'g> Strip<'g> {
    /// `part` as a strip, if it is one padded with zeros along one axis.
    fn of(builder: &'g GraphBuilder, part: Tensor<'g>) -> Option<Self> {
        builder.with_graph(|graph| {
            let node = graph.def(part.id()?);
            let Some(Op::Pad { lo, hi, value: 0.0 }) = node.op() else { return None };
            let mut padded = (0..lo.len()).filter(|&axis| lo[axis] + hi[axis] > 0);
            let axis = padded.next()?;
            let inner = builder.tensor(node.operands.first().copied().flatten()?);
            padded.next().is_none().then_some(Self { axis, start: lo[axis], inner })
        })
    }

    fn end(&self) -> usize {
        self.start + self.inner.dim(self.axis)
    }
}

/// The sum of strips along one axis that do not overlap but in whole, as one concatenation of the size of `value`.
#[track_caller]
fn joined<'g>(value: Tensor<'g>, mut strips: Vec<Strip<'g>>) -> Option<Tensor<'g>> {
    let axis = strips.first()?.axis;
    if strips.len() == 1 || strips.iter().any(|strip| strip.axis != axis) {
        return None;
    }
    strips.sort_by_key(|strip| (strip.start, strip.end()));
    let mut merged: Vec<Strip<'g>> = Vec::new();
    for strip in strips {
        match merged.last_mut() {
            Some(last) if last.start == strip.start && last.end() == strip.end() => last.inner = last.inner + strip.inner,
            Some(last) if strip.start < last.end() => return None,
            Some(_) | None => merged.push(strip),
        }
    }
    let g = value.builder();
    let zeros = |from: usize, to: usize| {
        let mut shape = value.shape();
        shape[axis] = to - from;
        (from < to).then(|| g.constant(0.0, value.dtype(), shape))
    };
    let (mut parts, mut at) = (Vec::new(), 0);
    for strip in &merged {
        parts.extend(zeros(at, strip.start));
        parts.push(strip.inner);
        at = strip.end();
    }
    parts.extend(zeros(at, value.dim(axis)));
    Some(if let [only] = parts.as_slice() { *only } else { g.concat(&parts, axis) })
}

/// Which sources and results [`gradient_graph`] differentiates by and of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GradientOptions {
    /// Outputs and updates whose adjoint is an input; absent: all that are floats. The adjoint of the others is zero.
    pub of: Option<Vec<String>>,
    /// Inputs, params and states whose adjoint is an output; absent: all that are floats.
    pub wrt: Option<Vec<String>>,
}

impl GradientOptions {
    fn takes(list: Option<&Vec<String>>, name: &str) -> bool {
        list.is_none_or(|names| names.iter().any(|known| known == name))
    }
}

/// `graph` with an input `cot.NAME` for the adjoint of each result (updates of states as `cot.NAME_next`), and an output `grad.NAME`
/// for that of each source, zero where nothing depends on it.
///
/// The outputs and updates of `graph` stay. No axis varies between runs: the graph is for its sizes alone.
///
/// # Errors
/// An op on the way has no derivative, or two sources have the same name.
pub fn gradient_graph(graph: &Graph, options: &GradientOptions) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::continuing(graph.clone().of_fixed_sizes());
    let results = graph.outputs.iter().map(|named| (named.name.clone(), named.value));
    let next = graph.updates.iter().map(|named| (format!("{}_next", named.name), named.value));
    let of: Vec<(Tensor<'_>, Tensor<'_>)> = results
        .chain(next)
        .filter(|(name, value)| GradientOptions::takes(options.of.as_ref(), name) && is_float(graph, *value))
        .map(|(name, value)| {
            let value = g.tensor(value);
            let ty = value.ty();
            (value, g.input(&format!("{COTANGENT_PREFIX}{name}"), ty.dtype, ty.shape))
        })
        .collect();
    let sources: Vec<(&str, Tensor<'_>)> = graph
        .sources()
        .filter(|(name, value, _)| GradientOptions::takes(options.wrt.as_ref(), name) && is_float(graph, *value))
        .map(|(name, value, _)| (name, g.tensor(value)))
        .collect();
    let wrt: Vec<Tensor<'_>> = sources.iter().map(|&(_, tensor)| tensor).collect();
    let gradients = g.gradients(&of, &wrt);
    for ((name, source), gradient) in sources.into_iter().zip(gradients) {
        let gradient = gradient.unwrap_or_else(|| g.constant(0.0, source.dtype(), source.shape()));
        g.output(&format!("{GRADIENT_PREFIX}{name}"), gradient);
    }
    g.finish()
}

fn is_float(graph: &Graph, value: ValueId) -> bool {
    graph.ty(value).dtype.is_float()
}

/// `x` as `dtype`, itself if it is of that type.
#[track_caller]
pub(crate) fn as_dtype(x: Tensor<'_>, dtype: DType) -> Tensor<'_> {
    if x.dtype() == dtype { x } else { x.cast(dtype) }
}
