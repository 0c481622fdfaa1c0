//! One executor over graphics card and interpreter, so that a program need not care which of them it has.
//!
//! An [`Engine`] compiles graphs to [`Program`]s, which run with [`Params`] and change a [`Session`]. All of it is
//! asynchronous, because browsers demand that; `blocking` wraps it on native targets.

#[cfg(not(target_arch = "wasm32"))]
pub mod blocking;
mod params;
mod program;
mod rows;
mod session;

pub use params::{Params, Uploader};
pub use program::{LoadOptions, Pending, Program};
pub use session::Session;

use crate::error::Error;
use monopass_ir::Graph;
use monopass_ir::eval::Tensors;
use monopass_lower::dump::DumpSink;
use monopass_lower::{CompileOptions, Compiler, Plan, Target};
use monopass_runtime::{Device, DeviceOptions};
use std::sync::{Arc, Mutex, PoisonError};

/// Which executor to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorChoice {
    /// The graphics card if one can be opened, else the interpreter; [`Engine::notice`] says why.
    #[default]
    Auto,
    /// The graphics card, or an error.
    Gpu,
    /// The interpreter.
    Cpu,
}

/// How an engine is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// Which adapter, and how to run on it.
    pub device: DeviceOptions,
}

/// Compiles and runs graphs on one device, or interprets them; cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    executor: Executor,
    notice: Option<String>,
}

#[derive(Clone, Debug)]
enum Executor {
    Gpu { device: Device, compiler: Arc<Mutex<Compiler>> },
    Cpu { target: Arc<Target> },
}

impl Engine {
    /// Opens an executor.
    ///
    /// # Errors
    /// [`ExecutorChoice::Gpu`] without a usable adapter; the other choices always give an engine.
    pub async fn open(choice: ExecutorChoice, options: &EngineOptions) -> Result<Self, Error> {
        if choice == ExecutorChoice::Cpu {
            return Ok(Self::cpu());
        }
        match Device::request(&options.device).await {
            Ok(device) => Ok(Self::on(device)),
            Err(error) if choice == ExecutorChoice::Auto => {
                let reason = error.to_string();
                let notice = format!("using the CPU executor: {}", reason.lines().next().unwrap_or_default());
                Ok(Self { notice: Some(notice), ..Self::cpu() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The interpreter.
    #[must_use]
    pub fn cpu() -> Self {
        Self { executor: Executor::Cpu { target: Arc::new(Target::webgpu_default()) }, notice: None }
    }

    /// The engine of a device that is open.
    #[must_use]
    pub fn on(device: Device) -> Self {
        let compiler = Arc::new(Mutex::new(Compiler::new(device.target().clone())));
        Self { executor: Executor::Gpu { device, compiler }, notice: None }
    }

    /// Why the engine is another than was hoped for, in one line, if it is.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// `gpu: NAME (vulkan, discrete gpu)`, or `cpu: …`, in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        match self.device() {
            Some(device) => {
                let info = device.info();
                format!("gpu: {} ({}, {})", info.name, info.backend, info.device_type)
            }
            None => "cpu: interpreter".to_owned(),
        }
    }

    /// Whether graphs are compiled and run on a device, which may be a software one.
    #[must_use]
    pub const fn is_gpu(&self) -> bool {
        matches!(self.executor, Executor::Gpu { .. })
    }

    /// The device, if it has one.
    #[must_use]
    pub const fn device(&self) -> Option<&Device> {
        match &self.executor {
            Executor::Gpu { device, .. } => Some(device),
            Executor::Cpu { .. } => None,
        }
    }

    /// What [`plan`](Self::plan) compiles for: the device, or WebGPU's defaults.
    #[must_use]
    pub fn target(&self) -> &Target {
        match &self.executor {
            Executor::Gpu { device, .. } => device.target(),
            Executor::Cpu { target } => target,
        }
    }

    /// Brings parameters to where programs read them, each stored as it is given. On a device they are copied; host tensors may
    /// be dropped afterwards.
    ///
    /// # Errors
    /// A row larger than a binding of the device; no memory left there; a lost device.
    pub async fn upload(&self, params: impl Into<Arc<Tensors>>) -> Result<Params, Error> {
        let params = params.into();
        let Some(_) = self.device() else { return Ok(Params::in_host_memory(params)) };
        let mut uploader = self.uploader();
        for (name, tensor) in params.iter() {
            uploader.put_tensor(name, tensor).await?;
        }
        uploader.finish().await
    }

    /// An upload of parameters one by one, so that not all of them need be in host memory at once.
    #[must_use]
    pub fn uploader(&self) -> Uploader<'_> {
        Uploader::new(self.device())
    }

    /// States for a sequence or a batch of them; they are zero until a run or [`Session::write`] changes them.
    #[must_use]
    pub fn session(&self) -> Session {
        match &self.executor {
            Executor::Gpu { device, .. } => Session::on(device),
            Executor::Cpu { .. } => Session::cpu(),
        }
    }

    /// The plan of a graph for [`target`](Self::target); texts of every stage go to `sink`. Kernels found valid are remembered.
    ///
    /// # Errors
    /// An invalid graph, or one over a limit of the target.
    pub fn plan(&self, graph: &Graph, options: &CompileOptions, sink: &mut dyn DumpSink) -> Result<Plan, Error> {
        Ok(match &self.executor {
            // A compiler whose user panicked is as good as before: its cache only grows by whole entries.
            Executor::Gpu { compiler, .. } => compiler.lock().unwrap_or_else(PoisonError::into_inner).compile(graph, options, sink)?,
            Executor::Cpu { target } => Compiler::new(Target::clone(target)).compile(graph, options, sink)?,
        })
    }

    /// A graph made ready to run: compiled and built on a device, or prepared for the interpreter, which ignores the options.
    ///
    /// # Errors
    /// An invalid graph, one over a limit of the device, a parameter that is missing or of another type, no memory left.
    pub async fn load(&self, graph: &Graph, params: &Params, options: &CompileOptions) -> Result<Program, Error> {
        self.load_with(graph, params, LoadOptions { compile: options.clone(), ..LoadOptions::default() }).await
    }

    /// As [`load`](Self::load), with progress and texts.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub async fn load_with(&self, graph: &Graph, params: &Params, options: LoadOptions<'_>) -> Result<Program, Error> {
        program::load(self, graph, params, options).await
    }
}
