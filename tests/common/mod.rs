//! What the tests of the whole compiler share: the device, the compile path, the cases, and the rule of comparison.

#![allow(dead_code, reason = "each test program uses some of it")]

use monopass_ir::eval::{Interpreter, Precision, Tensors};
use monopass_ir::{Graph, TensorData, sample, text};
use monopass_lower::dump::NoDump;
use monopass_lower::{CompileOptions, Compiler, Plan, Target};
use monopass_runtime::{Counters, Device, DeviceOptions, Executable, RuntimeError, Session, Weights, blocking};
use std::error::Error;
use std::f64::consts::TAU;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Result of a test or helper.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The machine's adapter, opened once for all tests of a program. Without one the test skips, loudly; with
/// `MONOPASS_REQUIRE_GPU=1` that is a failure.
pub(crate) fn gpu() -> Outcome<Option<&'static Device>> {
    static DEVICE: OnceLock<Result<Device, RuntimeError>> = OnceLock::new();
    match DEVICE.get_or_init(|| blocking::request(&DeviceOptions::default())) {
        Ok(device) => Ok(Some(device)),
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a test that does not run says so")]
            let () = eprintln!("SKIPPED, the test needs a graphics adapter: {error}");
            if std::env::var("MONOPASS_REQUIRE_GPU").is_ok_and(|value| value == "1") {
                return Err("MONOPASS_REQUIRE_GPU is set, so a test may not skip".into());
            }
            Ok(None)
        }
    }
}

/// A folder below `tests`.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// The built-in profile called `name`.
pub(crate) fn profile(name: &str) -> Outcome<Target> {
    Target::profile(name).ok_or_else(|| format!("no profile {name}").into())
}

/// What kernels can be chosen for and still run on the device: its own target, the same as a graphics card would have it
/// (staged tiles, K split), and the least that every device has (8 bindings, so less is fused).
pub(crate) fn targets(device: &Device) -> Vec<(&'static str, Target)> {
    let own = device.target().clone();
    let card = Target { is_cpu: false, name: "card".to_owned(), ..own.clone() };
    vec![("device", own), ("card", card), ("least", Target::webgpu_default())]
}

/// Name and graph of each file of `tests/cases`, in order.
pub(crate) fn cases() -> Outcome<Vec<(String, Graph)>> {
    let mut paths = std::fs::read_dir(folder("cases"))?.map(|entry| Ok(entry?.path())).collect::<Outcome<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "ir"));
    paths.sort();
    let case = |path: &PathBuf| {
        let graph = text::parse_one(&std::fs::read_to_string(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((graph.name.clone(), graph))
    };
    paths.iter().map(case).collect()
}

/// The plan of a graph.
pub(crate) fn compile(graph: &Graph, target: &Target, options: &CompileOptions) -> Outcome<Plan> {
    Ok(Compiler::new(target.clone()).compile(graph, options, &mut NoDump)?)
}

/// Contents of every source of a graph.
pub(crate) struct Sources {
    pub(crate) inputs: Tensors,
    pub(crate) params: Tensors,
    pub(crate) states: Tensors,
}

impl Sources {
    /// Those of [`sample::inputs`].
    pub(crate) fn of(graph: &Graph, seed: u64) -> Self {
        let (inputs, params, states) = sample::inputs(graph, seed);
        Self { inputs, params, states }
    }

    /// Outputs and new states by the interpreter, computed in f64.
    pub(crate) fn interpret(&self, graph: &Graph) -> Outcome<Tensors> {
        let mut states = self.states.clone();
        let outputs = Interpreter::new(graph)?.precision(Precision::F64).run(&self.inputs, &self.params, &mut states)?;
        Ok(named(outputs, states))
    }

    /// Outputs and new states by a plan on the device.
    pub(crate) fn execute(&self, device: &Device, plan: Plan) -> Outcome<Tensors> {
        let weights = blocking::upload(device, self.params.iter().map(|(name, data)| (name.clone(), data)))?;
        let program = Program::new(device, plan, &weights)?;
        let mut session = Session::new(device);
        let (outputs, states, _) = program.run(&mut session, &self.inputs, &self.states)?;
        Ok(named(outputs, states))
    }
}

/// Outputs and states in one list; a state may have the name of an output.
fn named(outputs: Tensors, states: Tensors) -> Tensors {
    outputs.into_iter().chain(states.into_iter().map(|(name, state)| (format!("state {name}"), state))).collect()
}

/// A plan that is ready to run.
pub(crate) struct Program {
    pub(crate) executable: Executable,
    state_names: Vec<String>,
}

impl Program {
    pub(crate) fn new(device: &Device, plan: Plan, weights: &Weights) -> Outcome<Self> {
        let is_state = |buffer: &&monopass_lower::plan::Buffer| buffer.kind.word() == "state";
        let state_names = plan.buffers.iter().filter(is_state).filter_map(|buffer| buffer.name().map(str::to_owned)).collect();
        Ok(Self { executable: blocking::executable(device, plan, weights)?, state_names })
    }

    /// One run that starts from `states`; gives outputs, states and counters.
    pub(crate) fn run(&self, session: &mut Session, inputs: &Tensors, states: &Tensors) -> Outcome<(Tensors, Tensors, Counters)> {
        self.executable.bind(session)?;
        for name in &self.state_names {
            if let Some(state) = states.get(name) {
                session.write(name, state)?;
            }
        }
        let given: Vec<(&str, &TensorData)> = inputs.iter().map(|(name, data)| (name.as_str(), data)).collect();
        let run = blocking::run(&self.executable, session, &given)?;
        let read = |name: &String| Ok((name.clone(), blocking::read(session, name)?));
        let states = self.state_names.iter().map(read).collect::<Outcome<Tensors>>()?;
        Ok((run.outputs, states, run.counters))
    }
}

/// What is wrong with `given` where `wanted` is right: the first tensor that is missing, of another type, or too far off.
///
/// The tolerance is that of [`sample::tolerance`], relative to magnitudes over 1. States that are angles differ modulo a turn.
pub(crate) fn difference(given: &Tensors, wanted: &Tensors) -> Option<String> {
    difference_within(given, wanted, 1.0)
}

/// As [`difference`], with `scale` times the tolerance.
pub(crate) fn difference_within(given: &Tensors, wanted: &Tensors, scale: f64) -> Option<String> {
    wanted.iter().find_map(|(name, wanted)| {
        let Some(given) = given.get(name) else { return Some(format!("{name} is missing")) };
        different(name, given, wanted, scale).map(|what| format!("{name}: {what}"))
    })
}

fn different(name: &str, given: &TensorData, wanted: &TensorData, scale: f64) -> Option<String> {
    let ty = wanted.ty();
    if given.ty() != ty {
        return Some(format!("is {} and should be {ty}", given.ty()));
    }
    let tolerance = scale * sample::tolerance(ty.dtype);
    let (given, wanted) = (given.to_f32_vec(), wanted.to_f32_vec());
    let is_off = |(given, wanted): (&f32, &f32)| {
        let (given, wanted) = (f64::from(*given), f64::from(*wanted));
        // Not a number is as far off as can be.
        let distance = (given - wanted).abs();
        let distance = if name.ends_with("angle_state") { distance.min((TAU - distance).abs()) } else { distance };
        given != wanted && (distance.is_nan() || distance > tolerance * wanted.abs().max(1.0))
    };
    let off: Vec<usize> = given.iter().zip(&wanted).enumerate().filter(|(_, pair)| is_off(*pair)).map(|(i, _)| i).collect();
    let &first = off.first()?;
    Some(format!(
        "{ty}: {} of {} elements are off, the first at {first}: {} and not {}",
        off.len(),
        given.len(),
        given[first],
        wanted[first]
    ))
}

/// Fails with all of `problems`, if there are any.
pub(crate) fn settle(problems: &[String]) -> Outcome {
    if problems.is_empty() { Ok(()) } else { Err(format!("{} problems\n{}", problems.len(), problems.join("\n")).into()) }
}
