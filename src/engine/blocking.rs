//! The same calls for programs without an executor of futures, on native targets only.

use super::{Engine, EngineOptions, ExecutorChoice, LoadOptions, Params, Pending, Program, Session};
use crate::error::Error;
use monopass_ir::eval::Tensors;
use monopass_ir::{Graph, TensorData};
use monopass_lower::CompileOptions;
use monopass_runtime::RunOutput;
use pollster::block_on;
use std::sync::Arc;

/// [`Engine::open`].
///
/// # Errors
/// As there.
pub fn open(choice: ExecutorChoice, options: &EngineOptions) -> Result<Engine, Error> {
    block_on(Engine::open(choice, options))
}

/// [`Engine::upload`].
///
/// # Errors
/// As there.
pub fn upload(engine: &Engine, params: impl Into<Arc<Tensors>>) -> Result<Params, Error> {
    block_on(engine.upload(params))
}

/// [`Engine::load`].
///
/// # Errors
/// As there.
pub fn load(engine: &Engine, graph: &Graph, params: &Params, options: &CompileOptions) -> Result<Program, Error> {
    block_on(engine.load(graph, params, options))
}

/// [`Engine::load_with`].
///
/// # Errors
/// As there.
pub fn load_with(engine: &Engine, graph: &Graph, params: &Params, options: LoadOptions<'_>) -> Result<Program, Error> {
    block_on(engine.load_with(graph, params, options))
}

/// [`Program::run`].
///
/// # Errors
/// As there.
pub fn run(program: &Program, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<RunOutput, Error> {
    block_on(program.run(session, inputs))
}

/// [`Pending::wait`].
///
/// # Errors
/// As there.
pub fn wait(pending: Pending) -> Result<RunOutput, Error> {
    block_on(pending.wait())
}

/// [`Session::read`].
///
/// # Errors
/// As there.
pub fn read(session: &Session, name: &str) -> Result<TensorData, Error> {
    block_on(session.read(name))
}
