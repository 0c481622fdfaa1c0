//! `monopass run --check`: the interpreter against the graph after each pass, then against the device with one pass more
//! on each time, then value by value.

use super::run::execute;
use crate::Outcome;
use crate::input::Data;
use crate::output::{note, print_line};
use crate::report::OrReport;
use miette::{Context, Result};
use monopass::engine::Engine;
use monopass::ir::eval::{Interpreter, Precision};
use monopass::ir::graph::{Named, NodeKind};
use monopass::ir::{ValueId, sample, text};
use monopass::{CompileOptions, Graph, Pass, TensorData, Tensors, lower};
use serde_json::json;

/// Outputs and updated states of a run.
struct Results {
    outputs: Tensors,
    states: Tensors,
}

/// A tensor that is not what it should be.
struct Difference {
    name: String,
    error: f64,
    allowed: f64,
}

/// Compares and prints a line for each stage; the first that differs ends it.
pub(super) fn run(engine: &Engine, graph: &Graph, data: &Data, options: &CompileOptions, is_json: bool) -> Result<Outcome> {
    let check = Check { engine, graph, data, is_json, wanted: interpret(graph, data)? };
    let is_good = check.graph_passes(options)? && check.device_passes(options)? && check.values(options)?;
    Ok(if is_good { Outcome::Good } else { Outcome::Bad })
}

/// The last stage.
const VALUES: &str = "every value on the device";

struct Check<'a> {
    engine: &'a Engine,
    graph: &'a Graph,
    data: &'a Data,
    is_json: bool,
    wanted: Results,
}

impl Check<'_> {
    /// The graph after each pass, interpreted.
    fn graph_passes(&self, options: &CompileOptions) -> Result<bool> {
        let mut last = text::print(self.graph);
        for pass in Pass::ALL {
            let after =
                lower::optimize(self.graph, options, Some(pass)).or_report().wrap_err_with(|| format!("graph after {}", pass.name()))?;
            let text = text::print(&after);
            if text == last {
                continue;
            }
            last = text;
            let stage = format!("graph after {}", pass.name());
            let found = interpret(&after, self.data).wrap_err_with(|| stage.clone())?;
            let difference = compare(&self.wanted, &found);
            self.report(&stage, difference.as_ref().map(|one| (one, self.place_of(one))))?;
            if difference.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The device, with all passes off, then with one more on each time.
    fn device_passes(&self, options: &CompileOptions) -> Result<bool> {
        if !self.engine.is_gpu() {
            note("no device: the graph passes alone were checked");
            return Ok(true);
        }
        let mut trial = CompileOptions::without(&Pass::ALL);
        let mut what = "device with no pass".to_owned();
        for next in std::iter::once(None).chain(Pass::ALL.into_iter().filter(|pass| !options.off.contains(pass)).map(Some)) {
            if let Some(pass) = next {
                trial.off.shift_remove(&pass);
                what = format!("device with {} on", pass.name());
            }
            let difference = compare(&self.wanted, &self.on_device(self.graph, &trial).wrap_err_with(|| what.clone())?);
            let Some(difference) = difference else {
                self.report(&what, None)?;
                continue;
            };
            // Values tell more than outputs do, where making all of them outputs does not hide the fault.
            let first = self.first_value(&trial).wrap_err_with(|| what.clone())?;
            let place = first.as_ref().map_or_else(|| self.place_of(&difference), |one| self.place_of(one));
            self.report(&what, Some((first.as_ref().unwrap_or(&difference), place)))?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Every value on the device.
    fn values(&self, options: &CompileOptions) -> Result<bool> {
        if !self.engine.is_gpu() {
            return Ok(true);
        }
        let first = self.first_value(options).wrap_err(VALUES)?;
        self.report(VALUES, first.as_ref().map(|one| (one, self.place_of(one))))?;
        Ok(first.is_none())
    }

    /// The first value that differs when all of them are outputs.
    fn first_value(&self, options: &CompileOptions) -> Result<Option<Difference>> {
        self.first_of(&computed(self.graph), options)
    }

    /// Half of the values at a time where the device has no room for so many outputs.
    fn first_of(&self, values: &[ValueId], options: &CompileOptions) -> Result<Option<Difference>> {
        // Sources that are outputs themselves are compared before.
        if values.is_empty() {
            return Ok(None);
        }
        let observed = observed(self.graph, values);
        let wanted = interpret(&observed, self.data)?;
        match self.on_device(&observed, options) {
            Ok(found) => Ok(compare(&wanted, &found)),
            Err(error) if values.len() == 1 => Err(error),
            Err(_) => {
                let (before, after) = values.split_at(values.len() / 2);
                Ok(self.first_of(before, options)?.or(self.first_of(after, options)?))
            }
        }
    }

    fn on_device(&self, graph: &Graph, options: &CompileOptions) -> Result<Results> {
        let done = execute(self.engine, graph, self.data, options)?;
        Ok(Results { outputs: done.outputs, states: done.states })
    }

    /// The op and scope of an output, update or value of the graph.
    fn place_of(&self, difference: &Difference) -> String {
        let numbers = self.graph.numbering();
        let mut named = self.graph.outputs.iter().chain(&self.graph.updates);
        let known = named.find(|named| named.name == difference.name).map(|named| named.value);
        let numbered = || {
            let mut values = self.graph.nodes().flat_map(|(_, node)| node.results.iter().copied());
            values.find(|&value| value_name(numbers.of(value)) == difference.name)
        };
        let Some(value) = known.or_else(numbered) else { return String::new() };
        let node = self.graph.def(value);
        let scope = if node.scope.is_empty() { String::new() } else { format!(" @ {}", node.scope) };
        format!("{} = {}{scope}", value_name(numbers.of(value)), node.mnemonic())
    }

    fn report(&self, stage: &str, difference: Option<(&Difference, String)>) -> Result<()> {
        let line = match (difference, self.is_json) {
            (None, true) => json!({ "stage": stage, "ok": true }).to_string(),
            (None, false) => format!("{stage}: ok"),
            (Some((Difference { name, error, allowed }, place)), true) => {
                json!({ "stage": stage, "ok": false, "value": name, "place": place, "error": error, "allowed": allowed }).to_string()
            }
            (Some((Difference { name, error, allowed }, place)), false) => {
                format!("{stage}: {name} differs by {error:.3e}, over {allowed:.3e}\n  at {place}")
            }
        };
        print_line(&line)
    }
}

fn value_name(number: u32) -> String {
    format!("%{number}")
}

/// Every value that an op computes, in order.
fn computed(graph: &Graph) -> Vec<ValueId> {
    let nodes = graph.nodes().filter(|(_, node)| matches!(node.kind, NodeKind::Op(_)));
    nodes.flat_map(|(_, node)| node.results.iter().copied()).collect()
}

/// The graph with these values as its outputs.
fn observed(graph: &Graph, values: &[ValueId]) -> Graph {
    let numbers = graph.numbering();
    let named = values.iter().map(|&value| Named { name: value_name(numbers.of(value)), value });
    let mut observed = graph.clone();
    observed.outputs = named.collect();
    observed
}

fn interpret(graph: &Graph, data: &Data) -> Result<Results> {
    let mut states = data.states.clone();
    let interpreter = Interpreter::new(graph).or_report()?.precision(Precision::F64);
    let outputs = interpreter.run(&data.inputs, &data.params, &mut states).or_report()?;
    states.retain(|name, _| graph.updates.iter().any(|update| update.name == *name));
    Ok(Results { outputs, states })
}

/// The first tensor of `found` that is not as in `wanted`.
fn compare(wanted: &Results, found: &Results) -> Option<Difference> {
    let pairs = |wanted: &Tensors, found: &Tensors| wanted.iter().find_map(|(name, tensor)| differs(name, tensor, found.get(name)));
    pairs(&wanted.outputs, &found.outputs).or_else(|| pairs(&wanted.states, &found.states))
}

/// Judged by the largest element, as executors add in other orders.
fn differs(name: &str, wanted: &TensorData, found: Option<&TensorData>) -> Option<Difference> {
    let name = name.to_owned();
    let Some(found) = found.filter(|found| found.ty() == wanted.ty()) else {
        return Some(Difference { name, error: f64::INFINITY, allowed: 0.0 });
    };
    let (wanted_values, found_values) = (wanted.to_f32_vec(), found.to_f32_vec());
    let finite = wanted_values.iter().map(|&value| f64::from(value).abs()).filter(|value| value.is_finite());
    let allowed = sample::tolerance(wanted.elements().dtype()) * finite.fold(0.0, f64::max);
    let distance = |(&a, &b): (&f32, &f32)| {
        // Infinities of one sign, and two NaN, are the same.
        if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (f64::from(a) - f64::from(b)).abs() }
    };
    let distances = wanted_values.iter().zip(&found_values).map(distance);
    let error = distances.fold(0.0, |most: f64, one| if one.is_nan() { f64::INFINITY } else { most.max(one) });
    (error > allowed).then_some(Difference { name, error, allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "ir 1\ngraph @g {\n  %0 = input \"x\" : f32[2]\n  %1 = state \"s\" : f32[2]\n  %2 = exp %0 : f32[2] @ top/act\n  \
                         %3 = add %2, %1 : f32[2]\n  output \"y\" = %3\n  update \"s\" = %3\n}\n";

    fn data() -> Data {
        let x = || TensorData::f32([2], [0.5, -1.0]).unwrap();
        Data { inputs: [("x".into(), x())].into(), params: Tensors::new(), states: [("s".into(), x())].into() }
    }

    #[test]
    fn the_first_value_that_differs_is_named_with_its_op_and_scope() {
        let graph = text::parse_one(GRAPH).unwrap();
        let graph = observed(&graph, &computed(&graph));
        let wanted = interpret(&graph, &data()).unwrap();
        assert_eq!(wanted.outputs.keys().collect::<Vec<_>>(), ["%2", "%3"]);
        let mut found = interpret(&graph, &data()).unwrap();
        assert!(compare(&wanted, &found).is_none());
        found.outputs.insert("%2".into(), TensorData::f32([2], [1.6, 0.4]).unwrap());
        found.states.insert("s".into(), TensorData::f32([2], [f32::NAN, 0.0]).unwrap());
        let difference = compare(&wanted, &found).unwrap();
        assert!(difference.name == "%2" && (difference.error - 0.0487).abs() < 1e-3, "{}", difference.error);
        let engine = Engine::cpu();
        let check = Check { engine: &engine, graph: &graph, data: &data(), is_json: false, wanted };
        assert_eq!(check.place_of(&difference), "%2 = exp @ top/act");
        found.outputs.insert("%2".into(), check.wanted.outputs["%2"].clone());
        let difference = compare(&check.wanted, &found).unwrap();
        assert_eq!((difference.name.as_str(), difference.error, check.place_of(&difference).as_str()), ("s", f64::INFINITY, "%3 = add"));
    }

    #[test]
    fn infinities_and_nan_agree_with_their_like() {
        let tensor = |values: [f32; 3]| TensorData::f32([3], values).unwrap();
        let wanted = tensor([f32::INFINITY, f32::NAN, 1.0]);
        assert!(differs("x", &wanted, Some(&wanted)).is_none());
        assert!(differs("x", &wanted, Some(&tensor([f32::NEG_INFINITY, f32::NAN, 1.0]))).is_some());
        assert!(differs("x", &wanted, None).is_some());
    }
}
