//! The same calls for programs without an executor, on native targets only.

use crate::device::{AdapterReport, Device, DeviceOptions};
use crate::error::RuntimeError;
use crate::executor::Executable;
use crate::profile::CmdProfile;
use crate::run::{Pending, RunOutput};
use crate::state::Session;
use crate::upload::Weights;
use monopass_ir::TensorData;
use monopass_lower::Plan;
use pollster::block_on;
use std::borrow::Borrow;
use std::sync::Arc;

/// [`crate::adapters`].
#[must_use]
pub fn adapters() -> Vec<AdapterReport> {
    block_on(crate::device::adapters())
}

/// [`Device::request`].
///
/// # Errors
/// As there.
pub fn request(options: &DeviceOptions) -> Result<Device, RuntimeError> {
    block_on(Device::request(options))
}

/// [`Weights::upload`].
///
/// # Errors
/// As there.
pub fn upload<N: Into<String>, T: Borrow<TensorData>>(
    device: &Device,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Result<Weights, RuntimeError> {
    block_on(Weights::upload(device, tensors))
}

/// [`Executable::new`].
///
/// # Errors
/// As there.
pub fn executable(device: &Device, plan: impl Into<Arc<Plan>>, weights: &Weights) -> Result<Executable, RuntimeError> {
    block_on(Executable::new(device, plan, weights))
}

/// [`Executable::run`].
///
/// # Errors
/// As there.
pub fn run(executable: &Executable, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<RunOutput, RuntimeError> {
    block_on(executable.run(session, inputs))
}

/// [`Executable::run_checked`].
///
/// # Errors
/// As there.
pub fn run_checked(executable: &Executable, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<RunOutput, RuntimeError> {
    block_on(executable.run_checked(session, inputs))
}

/// [`Executable::profile`].
///
/// # Errors
/// As there.
pub fn profile(executable: &Executable, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<CmdProfile, RuntimeError> {
    block_on(executable.profile(session, inputs))
}

/// [`Pending::wait`].
///
/// # Errors
/// As there.
pub fn wait(pending: Pending) -> Result<RunOutput, RuntimeError> {
    block_on(pending.wait())
}

/// [`Session::read`].
///
/// # Errors
/// As there.
pub fn read(session: &Session, name: &str) -> Result<TensorData, RuntimeError> {
    block_on(session.read(name))
}
