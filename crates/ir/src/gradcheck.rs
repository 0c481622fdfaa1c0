//! Gradients judged by finite differences, in f64 on the interpreter.
//!
//! [`check`] draws a number for every element of every result, and compares the derivative of their weighted sum by each element of
//! each f32 source, as [`crate::autodiff`] gives it, with central differences at halved steps, extrapolated.

use crate::autodiff::{COTANGENT_PREFIX, GRADIENT_PREFIX, GradientOptions, gradient_graph};
use crate::data::{Elements, TensorData};
use crate::error::{BuildErrors, EvalError};
use crate::eval::{Interpreter, Tensors, WideTensors};
use crate::graph::{Graph, Named};
use crate::sample::Rng;
use crate::types::{DType, position};

/// How to check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradcheck {
    /// Largest step of the differences, relative to an element of size 1 or more, absolute below.
    pub step: f64,
    /// Largest error of a derivative that passes, relative to the largest derivative by the same source.
    pub tolerance: f64,
    /// Elements checked of each source, spread over it; 0 checks all.
    pub max_elems: usize,
    /// What the weights of the results are drawn from.
    pub seed: u64,
}

impl Default for Gradcheck {
    fn default() -> Self {
        Self { step: 1e-3, tolerance: 1e-6, max_elems: 0, seed: 0 }
    }
}

/// A derivative by one element, both ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// The input, param or state.
    pub source: String,
    /// Its index along each axis.
    pub index: Vec<usize>,
    /// As autodiff gives it.
    pub analytic: f64,
    /// By differences.
    pub numeric: f64,
    /// Difference over the largest derivative by the source, or over this one by differences, or over 1e-6 of the largest by any
    /// source, whichever is largest.
    pub error: f64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The worst element; `None` if there was nothing to check.
    pub worst: Option<Element>,
    /// Elements compared.
    pub n_checked: usize,
    /// Elements left out because differences do not settle or differ on both sides: there is a jump or a kink, such as that of `max`.
    pub n_not_smooth: usize,
    /// Whether something was compared, and the worst error is within the tolerance.
    pub passed: bool,
}

/// A graph that cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum GradcheckError {
    /// It has no gradient.
    #[error("gradcheck: {0}")]
    Build(#[from] BuildErrors),
    /// It does not run.
    #[error("gradcheck: {0}")]
    Eval(#[from] EvalError),
    /// No float result, or no float source.
    #[error("gradcheck: the graph has no float result that could depend on a float source\n  help: give it an f32 output and an f32 input")]
    NothingToCheck,
    /// The results are not finite at the given contents.
    #[error(
        "gradcheck: the results are not finite here\n  help: check at contents in the domain of the ops, such as positive ones for log"
    )]
    NotFinite,
    /// A value is rounded to 16 bits on the way, so that differences say nothing.
    #[error("gradcheck: {value} rounds to 16 bits, which has no derivative by differences\n  help: check the graph in f32")]
    Rounds {
        /// Op and type of the value.
        value: String,
    },
}

/// Compares the gradients of `graph` at the given contents with finite differences.
///
/// Results are the float outputs and the next contents of states.
///
/// # Errors
/// [`GradcheckError`]: an op on the way has no derivative, a content is missing or of another type, or there is nothing to check.
pub fn check(graph: &Graph, inputs: &Tensors, params: &Tensors, states: &Tensors, with: &Gradcheck) -> Result<Report, GradcheckError> {
    let graph = float_results(graph);
    let sources: Vec<(String, Vec<usize>)> = graph
        .sources()
        .filter(|(_, value, _)| graph.ty(*value).dtype == DType::F32)
        .map(|(name, value, _)| (name.to_owned(), graph.ty(value).shape.clone()))
        .collect();
    if graph.outputs.is_empty() || sources.is_empty() {
        return Err(GradcheckError::NothingToCheck);
    }
    if let Some(value) = rounded(&graph) {
        return Err(GradcheckError::Rounds { value });
    }
    let wide_states: WideTensors = graph
        .states()
        .map(|(name, value)| {
            let n: usize = graph.ty(value).shape.iter().product();
            (
                name.to_owned(),
                states.get(name).map_or_else(|| vec![0.0; n], |state| state.to_f32_vec().into_iter().map(f64::from).collect()),
            )
        })
        .collect();
    let weights = weights(&graph, with.seed);
    let analytic = analytic(&graph, (inputs, params, &wide_states), &weights, &sources)?;
    let peak = analytic.iter().flatten().fold(0.0, |peak: f64, value| peak.max(value.abs()));
    let mut point = Point {
        run: Interpreter::new(&graph)?,
        weights: &weights,
        inputs: inputs.clone(),
        params: params.clone(),
        states: wide_states,
        middle: 0.0,
    };
    point.middle = point.value()?;
    if !point.middle.is_finite() {
        return Err(GradcheckError::NotFinite);
    }
    let mut report = Report::default();
    for ((name, shape), analytic) in sources.iter().zip(&analytic) {
        let scale = analytic.iter().fold(peak * 1e-6, |scale, value| scale.max(value.abs()));
        for at in spread(analytic.len(), with.max_elems) {
            let Some(numeric) = point.derivative(name, at, with, scale)? else {
                report.n_not_smooth += 1;
                continue;
            };
            report.n_checked += 1;
            let difference = (analytic[at] - numeric).abs();
            let error = if difference == 0.0 { 0.0 } else { difference / scale.max(numeric.abs()) };
            // Not a number is the worst there is.
            let error = if error.is_nan() { f64::INFINITY } else { error };
            if report.worst.as_ref().is_none_or(|worst| error > worst.error) {
                report.worst = Some(Element { source: name.clone(), index: position(at, shape), analytic: analytic[at], numeric, error });
            }
        }
    }
    // Where nothing could be compared, nothing was found to be right.
    report.passed = report.worst.as_ref().is_some_and(|worst| worst.error <= with.tolerance);
    Ok(report)
}

/// The graph with its float results as outputs and no others.
fn float_results(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let updates = std::mem::take(&mut graph.updates);
    graph.outputs.extend(updates.into_iter().map(|named| Named { name: format!("{}_next", named.name), value: named.value }));
    let mut outputs = std::mem::take(&mut graph.outputs);
    outputs.retain(|named| graph.ty(named.value).dtype == DType::F32);
    graph.outputs = outputs;
    graph
}

/// An op's result of 16 bits, if there is one.
fn rounded(graph: &Graph) -> Option<String> {
    let of_op = graph.nodes().filter(|(_, node)| node.op().is_some());
    let mut results = of_op.flat_map(|(_, node)| node.results.iter().map(move |&value| (node.mnemonic(), graph.ty(value))));
    results.find(|(_, ty)| ty.dtype.is_float() && ty.dtype.size_bytes() < 4).map(|(op, ty)| format!("{op} {ty}"))
}

/// A number in `[-1, 1]` for each element of each output, as f32.
fn weights(graph: &Graph, seed: u64) -> Tensors {
    let mut rng = Rng::new(seed ^ 0x5bd1_e995);
    let output = |named: &Named| {
        let ty = graph.ty(named.value);
        let n: usize = ty.shape.iter().product();
        let values = (0..n).map(|_| 2.0 * rng.unit() - 1.0).collect();
        let weights = TensorData::new(ty.shape.clone(), Elements::F32(values)).unwrap_or_else(|_| TensorData::zeros(ty));
        (named.name.clone(), weights)
    };
    graph.outputs.iter().map(output).collect()
}

fn analytic(
    graph: &Graph,
    (inputs, params, states): (&Tensors, &Tensors, &WideTensors),
    weights: &Tensors,
    sources: &[(String, Vec<usize>)],
) -> Result<Vec<Vec<f64>>, GradcheckError> {
    let wrt = sources.iter().map(|(name, _)| name.clone()).collect();
    let mut gradients = gradient_graph(graph, &GradientOptions { of: None, wrt: Some(wrt) })?;
    gradients.outputs.retain(|named| named.name.starts_with(GRADIENT_PREFIX));
    let mut inputs = inputs.clone();
    inputs.extend(weights.iter().map(|(name, weights)| (format!("{COTANGENT_PREFIX}{name}"), weights.clone())));
    let mut outputs = Interpreter::new(&gradients)?.run_wide(&inputs, params, &mut states.clone())?;
    Ok(sources.iter().map(|(name, _)| outputs.swap_remove(&format!("{GRADIENT_PREFIX}{name}")).unwrap_or_default()).collect())
}

/// Most halvings of a step.
const MAX_HALVINGS: u32 = 8;

/// A derivative by differences.
#[derive(Clone, Copy)]
struct Difference {
    central: f64,
    /// By how much the slopes on both sides differ.
    kink: f64,
}

/// Where the graph is evaluated.
struct Point<'a> {
    run: Interpreter<'a>,
    weights: &'a Tensors,
    inputs: Tensors,
    params: Tensors,
    states: WideTensors,
    /// The weighted sum of all results here.
    middle: f64,
}

impl Point<'_> {
    /// The derivative by an element, or `None` if it is not smooth there: central differences at halved steps, extrapolated until they
    /// no longer change.
    fn derivative(&mut self, name: &str, at: usize, with: &Gradcheck, scale: f64) -> Result<Option<f64>, EvalError> {
        let first = self.difference(name, at, with.step)?;
        let allowed = with.tolerance * scale.max(first.central.abs());
        let (mut before, mut extrapolated) = (first, None);
        for level in 1..=MAX_HALVINGS {
            let now = self.difference(name, at, with.step / f64::from(1 << level))?;
            let better = (4.0 * now.central - before.central) / 3.0;
            let is_settled = extrapolated.is_some_and(|former: f64| (better - former).abs() <= 0.1 * allowed);
            // At a kink the slopes on both sides keep their distance, however small the step.
            let is_kink = now.kink > allowed && now.kink > 0.6 * first.kink;
            if is_settled && level > 1 {
                return Ok((!is_kink).then_some(better));
            }
            (before, extrapolated) = (now, Some(better));
        }
        Ok(None)
    }

    /// Differences over steps that the element can take.
    fn difference(&mut self, name: &str, at: usize, step: f64) -> Result<Difference, EvalError> {
        let original = self.element(name, at);
        let step = step * original.abs().max(1.0);
        let [mut values, mut places] = [[0.0; 2]; 2];
        for (side, sign) in [1.0, -1.0].into_iter().enumerate() {
            places[side] = self.set_element(name, at, original + sign * step);
            values[side] = self.value()?;
        }
        self.set_element(name, at, original);
        let slope = |side: usize| (values[side] - self.middle) / (places[side] - original);
        Ok(Difference { central: (values[0] - values[1]) / (places[0] - places[1]), kink: (slope(0) - slope(1)).abs() })
    }

    /// The weighted sum of all results.
    fn value(&self) -> Result<f64, EvalError> {
        let outputs = self.run.run_wide(&self.inputs, &self.params, &mut self.states.clone())?;
        let sum = |(name, weights): (&String, &TensorData)| -> f64 {
            let output = outputs.get(name).map_or(&[][..], Vec::as_slice);
            weights.as_f32().unwrap_or_default().iter().zip(output).map(|(&weight, value)| f64::from(weight) * value).sum()
        };
        Ok(self.weights.iter().map(sum).sum())
    }

    fn element(&self, name: &str, at: usize) -> f64 {
        if let Some(state) = self.states.get(name) {
            return state.get(at).copied().unwrap_or_default();
        }
        let tensor = self.inputs.get(name).or_else(|| self.params.get(name));
        tensor.and_then(|tensor| tensor.as_f32()?.get(at).copied()).map_or(0.0, f64::from)
    }

    /// Sets an element and gives what it became: inputs and params are f32.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted, and the result is given back")]
    fn set_element(&mut self, name: &str, at: usize, value: f64) -> f64 {
        if let Some(state) = self.states.get_mut(name) {
            state.iter_mut().skip(at).take(1).for_each(|element| *element = value);
            return value;
        }
        let tensor = self.inputs.get_mut(name).or_else(|| self.params.get_mut(name));
        let element = tensor.and_then(|tensor| tensor.as_f32_mut()?.get_mut(at));
        element.map_or(value, |element| {
            *element = value as f32;
            f64::from(*element)
        })
    }
}

/// `max` places of `0..n` at equal distances, or all.
fn spread(n: usize, max: usize) -> impl Iterator<Item = usize> {
    let step = if max == 0 { 1 } else { n.div_ceil(max).max(1) };
    (0..n).step_by(step)
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "gradcheck: {} elements", self.n_checked)?;
        if self.n_not_smooth > 0 {
            write!(f, ", {} more not smooth", self.n_not_smooth)?;
        }
        let Some(Element { source, index, analytic, numeric, error }) = &self.worst else { return Ok(()) };
        write!(f, "; worst {source}{index:?}: analytic {analytic:e}, numeric {numeric:e}, error {error:.1e} of the largest")
    }
}
