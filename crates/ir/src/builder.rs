//! Builds a graph by chaining: collects mistakes with the caller's line and returns them together.

use crate::error::{BuildError, BuildErrors, OpSite};
use crate::graph::{Graph, Location, Named, NodeId, NodeKind, ValueId};
use crate::op::Op;
use crate::ops::TypeError;
use crate::types::{DType, TensorType};
use std::cell::RefCell;
use std::panic::Location as Caller;
use std::sync::Arc;

/// Builds one [`Graph`].
///
/// Every op is a method of [`Tensor`] (or of the builder, where no single operand comes first), with the operands
/// and attributes of its row in [`crate::op::OPS`]. A mistake is remembered with the caller's file and line, the result is a
/// poisoned tensor on which all further calls do nothing, and [`finish`](Self::finish) returns all mistakes together.
#[derive(Debug)]
pub struct GraphBuilder(RefCell<Inner>);

#[derive(Debug)]
struct Inner {
    graph: Graph,
    scopes: Vec<String>,
    errors: Vec<BuildError>,
}

/// A value under construction; `Copy`, and alive as long as its builder.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    builder: &'g GraphBuilder,
    value: Option<ValueId>,
}

/// Leaves its scope when dropped; made by [`GraphBuilder::scope`].
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct ScopeGuard<'g>(&'g GraphBuilder);

impl Drop for ScopeGuard<'_> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().scopes.pop();
    }
}

/// Goes back to the former path when dropped; made by [`GraphBuilder::scope_in_place_of`].
pub(crate) struct PathGuard<'g>(&'g GraphBuilder, Vec<String>);

impl Drop for PathGuard<'_> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().scopes = std::mem::take(&mut self.1);
    }
}

impl GraphBuilder {
    /// A builder of a graph called `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(RefCell::new(Inner { graph: Graph::new(name), scopes: Vec::new(), errors: Vec::new() }))
    }

    /// A builder that goes on with `graph`; its values are had by [`tensor`](Self::tensor).
    #[must_use]
    pub fn continuing(graph: Graph) -> Self {
        Self(RefCell::new(Inner { graph, scopes: Vec::new(), errors: Vec::new() }))
    }

    /// A value of the graph under construction; poisoned, with a remembered mistake, if it is none.
    #[track_caller]
    #[must_use]
    pub fn tensor(&self, value: ValueId) -> Tensor<'_> {
        if self.0.borrow().graph.has_value(value) {
            return Tensor { builder: self, value: Some(value) };
        }
        self.fail("a value of another graph was used", "take values from the graph that the builder goes on with");
        Tensor { builder: self, value: None }
    }

    /// The param called `name`, if it has been declared.
    #[must_use]
    pub fn find_param(&self, name: &str) -> Option<Tensor<'_>> {
        let value = self.with_graph(|graph| graph.params().find(|(own, _)| *own == name).map(|(_, value)| value))?;
        Some(Tensor { builder: self, value: Some(value) })
    }

    /// Reads the graph under construction.
    pub(crate) fn with_graph<T>(&self, read: impl FnOnce(&Graph) -> T) -> T {
        read(&self.0.borrow().graph)
    }

    /// The nodes built so far, in order.
    pub(crate) fn node_ids(&self) -> Vec<NodeId> {
        self.with_graph(|graph| graph.nodes().map(|(id, _)| id).collect())
    }

    /// Makes `path` the whole block path until the guard is dropped.
    pub(crate) fn scope_in_place_of(&self, path: &str) -> PathGuard<'_> {
        let former = std::mem::replace(&mut self.0.borrow_mut().scopes, vec![path.to_owned()]);
        PathGuard(self, former)
    }

    /// Enters a block path segment until the guard is dropped: nodes built meanwhile carry it.
    pub fn scope(&self, segment: &str) -> ScopeGuard<'_> {
        self.0.borrow_mut().scopes.push(segment.to_owned());
        ScopeGuard(self)
    }

    /// A value given with every run.
    #[track_caller]
    #[must_use]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor<'_> {
        self.input_dynamic(name, dtype, shape, &[])
    }

    /// A value given with every run whose axes `dynamic` vary in size between runs (batch, length): kernels read those
    /// sizes from a buffer, so a graph of another such size shares their pipelines.
    #[track_caller]
    #[must_use]
    pub fn input_dynamic(&self, name: &str, dtype: DType, shape: impl Into<Vec<usize>>, dynamic: &[usize]) -> Tensor<'_> {
        self.source(NodeKind::Input { name: name.to_owned(), dynamic: dynamic.to_vec() }, dtype, shape.into())
    }

    /// A weight.
    #[track_caller]
    #[must_use]
    pub fn param(&self, name: &str, dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor<'_> {
        self.source(NodeKind::Param { name: name.to_owned() }, dtype, shape.into())
    }

    /// A value that lives between runs; see [`update`](Self::update).
    #[track_caller]
    #[must_use]
    pub fn state(&self, name: &str, dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor<'_> {
        self.state_dynamic(name, dtype, shape, &[])
    }

    /// A value that lives between runs, with axes that vary as for [`input_dynamic`](Self::input_dynamic).
    #[track_caller]
    #[must_use]
    pub fn state_dynamic(&self, name: &str, dtype: DType, shape: impl Into<Vec<usize>>, dynamic: &[usize]) -> Tensor<'_> {
        self.source(NodeKind::State { name: name.to_owned(), dynamic: dynamic.to_vec() }, dtype, shape.into())
    }

    /// A tensor with every element `number`.
    #[track_caller]
    #[must_use]
    pub fn constant(&self, number: f64, dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor<'_> {
        self.source(NodeKind::Const(number), dtype, shape.into())
    }

    /// An f32 scalar.
    #[track_caller]
    #[must_use]
    pub fn scalar(&self, number: f64) -> Tensor<'_> {
        self.constant(number, DType::F32, [])
    }

    /// Names `value` as a result of the graph.
    #[track_caller]
    pub fn output(&self, name: &str, value: Tensor<'_>) {
        self.name_value(name, value, |graph| &mut graph.outputs);
    }

    /// Makes `value` the next content of the state (or, in a training graph, the param) called `name`.
    #[track_caller]
    pub fn update(&self, name: &str, value: Tensor<'_>) {
        self.name_value(name, value, |graph| &mut graph.updates);
    }

    #[track_caller]
    fn name_value(&self, name: &str, value: Tensor<'_>, list: impl FnOnce(&mut Graph) -> &mut Vec<Named>) {
        let Some(value) = self.own(value) else { return };
        list(&mut self.0.borrow_mut().graph).push(Named { name: name.to_owned(), value });
    }

    /// Remembers a mistake of the code that builds the graph, such as sizes of a config that do not fit.
    #[track_caller]
    pub fn fail(&self, message: impl Into<String>, help: impl Into<String>) {
        let site = OpSite { scope: self.scope_path(), location: Some(caller()), value: None };
        let what = TypeError::new(message).help(help);
        self.0.borrow_mut().errors.push(BuildError::Rule(Box::new((what, site))));
    }

    /// The graph, verified.
    ///
    /// # Errors
    /// All mistakes made with this builder, or those that [`crate::verify::verify`] finds in the whole.
    pub fn finish(self) -> Result<Graph, BuildErrors> {
        let inner = self.0.into_inner();
        if !inner.errors.is_empty() {
            return Err(BuildErrors(inner.errors));
        }
        crate::verify::verify(&inner.graph).map_err(|errors| BuildErrors(errors.0.into_iter().map(BuildError::Verify).collect()))?;
        Ok(inner.graph)
    }

    /// Applies `op` and gives its results; none, and a remembered mistake, if the operands do not fit.
    #[track_caller]
    pub(crate) fn apply(&self, op: Op, operands: &[Option<Tensor<'_>>]) -> Vec<ValueId> {
        let mut values = Vec::with_capacity(operands.len());
        for operand in operands {
            match operand {
                None => values.push(None),
                Some(tensor) => match self.own(*tensor) {
                    Some(value) => values.push(Some(value)),
                    None => return Vec::new(),
                },
            }
        }
        let scope = self.scope_path();
        let location = caller();
        let inner = &mut *self.0.borrow_mut();
        match inner.graph.push_op(op, values, Arc::clone(&scope), Some(location)) {
            Ok(results) => results,
            Err(what) => {
                inner.errors.push(BuildError::Rule(Box::new((what, OpSite { scope, location: Some(location), value: None }))));
                Vec::new()
            }
        }
    }

    /// The tensor's value if it is alive and ours.
    #[track_caller]
    fn own(&self, tensor: Tensor<'_>) -> Option<ValueId> {
        if !std::ptr::eq(tensor.builder, self) {
            self.fail("a tensor of another builder was used", "build the whole graph with one GraphBuilder");
            return None;
        }
        tensor.value
    }

    #[track_caller]
    fn source(&self, kind: NodeKind, dtype: DType, shape: Vec<usize>) -> Tensor<'_> {
        let scope = self.scope_path();
        let location = caller();
        let value = self.0.borrow_mut().graph.push_source(kind, TensorType::new(dtype, shape), scope, Some(location));
        Tensor { builder: self, value: Some(value) }
    }

    fn scope_path(&self) -> Arc<str> {
        Arc::from(self.0.borrow().scopes.join("/"))
    }
}

#[track_caller]
fn caller() -> Location {
    let caller = Caller::caller();
    Location { file: caller.file(), line: caller.line() }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value {
            Some(_) => write!(f, "Tensor({})", self.ty()),
            None => f.write_str("Tensor(poisoned)"),
        }
    }
}

impl<'g> Tensor<'g> {
    pub(crate) const fn from_parts(builder: &'g GraphBuilder, value: Option<ValueId>) -> Self {
        Self { builder, value }
    }

    /// Its value in the graph; `None` if it is poisoned.
    #[must_use]
    pub const fn id(self) -> Option<ValueId> {
        self.value
    }

    /// The builder it belongs to.
    #[must_use]
    pub const fn builder(self) -> &'g GraphBuilder {
        self.builder
    }

    /// Its type; of a poisoned tensor an f32 scalar.
    #[must_use]
    pub fn ty(self) -> TensorType {
        self.value.map_or_else(|| TensorType::new(DType::F32, []), |value| self.builder.0.borrow().graph.ty(value).clone())
    }

    /// Its sizes; of a poisoned tensor none.
    #[must_use]
    pub fn shape(self) -> Vec<usize> {
        self.ty().shape
    }

    /// Size of an axis; 1 if there is no such axis.
    #[must_use]
    pub fn dim(self, axis: usize) -> usize {
        self.shape().get(axis).copied().unwrap_or(1)
    }

    /// Element type.
    #[must_use]
    pub fn dtype(self) -> DType {
        self.ty().dtype
    }

    /// Elements `start..end` of one axis.
    #[track_caller]
    #[must_use]
    pub fn slice_axis(self, axis: usize, start: usize, end: usize) -> Self {
        let mut ends = self.shape();
        let mut starts = vec![0; ends.len()];
        if self.value.is_some() && axis < ends.len() {
            starts[axis] = start;
            ends[axis] = end;
        } else if self.value.is_some() {
            self.builder.fail(format!("slice_axis: axis {axis} of {}", self.ty()), "use an axis below the rank");
            return Self { builder: self.builder, value: None };
        }
        self.slice(starts, ends)
    }

    /// The parts of `sizes` along `axis`, in order.
    #[track_caller]
    #[must_use]
    pub fn split(self, axis: usize, sizes: &[usize]) -> Vec<Self> {
        let mut start = 0;
        sizes
            .iter()
            .map(|size| {
                start += size;
                self.slice_axis(axis, start - size, start)
            })
            .collect()
    }

    /// An f32 scalar of the same builder, for arithmetic with numbers.
    #[track_caller]
    #[must_use]
    pub fn number(self, number: f64) -> Self {
        self.builder.scalar(number)
    }
}

macro_rules! operator {
    ($trait:ident $op:ident $method:ident) => {
        impl std::ops::$trait for Tensor<'_> {
            type Output = Self;
            #[track_caller]
            fn $op(self, rhs: Self) -> Self {
                Tensor::$method(self, rhs)
            }
        }
        impl std::ops::$trait<f64> for Tensor<'_> {
            type Output = Self;
            #[track_caller]
            fn $op(self, rhs: f64) -> Self {
                Tensor::$method(self, self.number(rhs))
            }
        }
    };
}
operator!(Add add add);
operator!(Sub sub sub);
operator!(Mul mul mul);
operator!(Div div div);

impl std::ops::Neg for Tensor<'_> {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        Tensor::neg(self)
    }
}
