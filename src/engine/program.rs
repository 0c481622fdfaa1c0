//! A graph that is ready to run, and its runs.

use super::params::Place;
use super::rows::RowChecks;
use super::{Engine, Params, Session};
use crate::error::Error;
use indexmap::IndexMap;
use monopass_ir::error::EvalError;
use monopass_ir::eval::{Interpreter, Tensors};
use monopass_ir::{Graph, TensorData, TensorType};
use monopass_lower::dump::{DumpSink, NoDump};
use monopass_lower::{CompileOptions, Plan};
use monopass_runtime::{BuildOptions, BuildProgress, Counters, Executable, RunOutput};
use std::sync::Arc;

/// How a program is made.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Passes.
    pub compile: CompileOptions,
    /// Takes the texts of every stage.
    pub dump: Option<&'a mut dyn DumpSink>,
    /// Told after each kernel that the driver compiled.
    pub progress: Option<&'a (dyn Fn(BuildProgress) + Sync)>,
}

impl std::fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions").field("compile", &self.compile).finish_non_exhaustive()
    }
}

/// A graph that is ready to run; cheap to clone.
#[derive(Clone, Debug)]
pub struct Program(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Gpu { executable: Executable, rows: Arc<RowChecks> },
    Cpu { graph: Arc<Graph>, interpreter: Arc<Interpreter<'static>>, params: Arc<Tensors> },
}

/// A run that was submitted; on the interpreter it is over by then.
#[derive(Debug)]
#[must_use = "outputs and errors come out of `wait`"]
pub struct Pending(Flying);

#[derive(Debug)]
enum Flying {
    Gpu(Box<monopass_runtime::Pending>),
    Done(RunOutput),
}

pub(super) async fn load(engine: &Engine, graph: &Graph, params: &Params, options: LoadOptions<'_>) -> Result<Program, Error> {
    let LoadOptions { compile, dump, progress } = options;
    Ok(Program(match (engine.device(), &params.0) {
        (Some(device), Place::Gpu { weights, storage }) => {
            let plan = engine.plan(&*graph.with_storage(storage)?, &compile, dump.unwrap_or(&mut NoDump))?;
            let executable = Executable::build(device, Arc::new(plan), weights, &BuildOptions { progress }).await?;
            Kind::Gpu { executable, rows: Arc::new(RowChecks::of(graph)) }
        }
        (None, Place::Cpu(params)) => {
            check_params(graph, params)?;
            let graph = Arc::new(graph.clone());
            let interpreter = Arc::new(Interpreter::shared(Arc::clone(&graph))?);
            Kind::Cpu { graph, interpreter, params: Arc::clone(params) }
        }
        (Some(_), Place::Cpu(_)) | (None, Place::Gpu { .. }) => return Err(Error::OtherExecutor { what: "set of parameters" }),
    }))
}

/// A parameter that a run would miss is a mistake of loading, as it is on a device.
fn check_params(graph: &Graph, params: &Tensors) -> Result<(), Error> {
    for (name, value) in graph.params() {
        let wanted = graph.ty(value);
        let found = params.get(name).map(TensorData::ty);
        if found.as_ref() != Some(wanted) {
            let found = found.map_or_else(|| "missing".to_owned(), |found| found.to_string());
            let message = format!("param {name:?} is {found}, and the graph wants {wanted}");
            return Err(EvalError { message, help: Some("upload it under exactly this name and in this type".to_owned()) }.into());
        }
    }
    Ok(())
}

impl Program {
    /// The plan, if there is one; the interpreter has none.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        match &self.0 {
            Kind::Gpu { executable, .. } => Some(executable.plan()),
            Kind::Cpu { .. } => None,
        }
    }

    /// The plan on the device, if there is one.
    #[must_use]
    pub const fn executable(&self) -> Option<&Executable> {
        match &self.0 {
            Kind::Gpu { executable, .. } => Some(executable),
            Kind::Cpu { .. } => None,
        }
    }

    /// Names and types of the inputs.
    #[must_use]
    pub fn inputs(&self) -> Vec<(String, TensorType)> {
        match &self.0 {
            Kind::Gpu { executable, .. } => executable.inputs().map(owned).collect(),
            Kind::Cpu { graph, .. } => graph.inputs().map(|(name, value)| owned((name, graph.ty(value)))).collect(),
        }
    }

    /// Names and types of the states.
    #[must_use]
    pub fn states(&self) -> Vec<(String, TensorType)> {
        match &self.0 {
            Kind::Gpu { executable, .. } => executable.states().map(owned).collect(),
            Kind::Cpu { graph, .. } => graph.states().map(|(name, value)| owned((name, graph.ty(value)))).collect(),
        }
    }

    /// Runs and waits. `session` holds the updated states afterwards.
    ///
    /// # Errors
    /// An input that is missing, unknown or of another type, or that asks a `gather` for a row that its table does not have; a
    /// state of another type; a lost device.
    pub async fn run(&self, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<RunOutput, Error> {
        self.submit(session, inputs)?.wait().await
    }

    /// Submits a run, so that the next one can be recorded while a device works: at most two may be in flight. The
    /// interpreter runs at once.
    ///
    /// # Errors
    /// As for [`run`](Self::run), and a third run in flight.
    pub fn submit(&self, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<Pending, Error> {
        match (&self.0, session) {
            (Kind::Gpu { executable, rows }, Session::Gpu(session)) => {
                rows.check(inputs)?;
                Ok(Pending(Flying::Gpu(Box::new(executable.submit(session, inputs)?))))
            }
            (Kind::Cpu { interpreter, params, .. }, Session::Cpu(states)) => {
                let outputs = interpreter.run(&named(inputs)?, params, states)?;
                Ok(Pending(Flying::Done(RunOutput { outputs, counters: Counters::default(), gpu_ns: None })))
            }
            (Kind::Gpu { .. }, Session::Cpu(_)) | (Kind::Cpu { .. }, Session::Gpu(_)) => Err(Error::OtherExecutor { what: "session" }),
        }
    }
}

impl Pending {
    /// Waits for the run and gives its outputs.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub async fn wait(self) -> Result<RunOutput, Error> {
        match self.0 {
            Flying::Gpu(pending) => Ok(pending.wait().await?),
            Flying::Done(output) => Ok(output),
        }
    }
}

fn owned((name, ty): (&str, &TensorType)) -> (String, TensorType) {
    (name.to_owned(), ty.clone())
}

/// The inputs by name, each given once.
fn named(inputs: &[(&str, &TensorData)]) -> Result<Tensors, Error> {
    let mut tensors: Tensors = IndexMap::with_capacity(inputs.len());
    for (name, tensor) in inputs {
        if tensors.insert((*name).to_owned(), (*tensor).clone()).is_some() {
            let message = format!("input {name:?} is given twice");
            return Err(EvalError { message, help: Some("give each input once".to_owned()) }.into());
        }
    }
    Ok(tensors)
}
