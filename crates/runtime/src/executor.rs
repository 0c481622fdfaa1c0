//! A plan on a device: pipelines, slots, inputs, outputs, sizes, staging and the bind groups that name no state, all made
//! once. [`crate::run`] executes it.

use crate::buffers::{Buffer, locked};
use crate::build::{Builder, Layout, dims_bytes, packs};
use crate::check::{check_plan, plan_error};
use crate::counters::Counters;
use crate::device::{Checks, Device};
use crate::error::{RuntimeError, Site};
use crate::gpu::Gpu;
use crate::pipelines::Pipeline;
use crate::run::Frame;
use crate::state::Session;
use crate::upload::Weights;
use monopass_ir::TensorType;
use monopass_lower::plan::{Plan, Resource, StateStorage};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use tracing::Instrument;

/// A plan that is ready to run; cheap to clone.
#[derive(Clone, Debug)]
pub struct Executable(pub(crate) Arc<Inner>);

/// How an executable is built.
#[derive(Default)]
pub struct BuildOptions<'a> {
    /// Told after each compiled kernel.
    pub progress: Option<&'a (dyn Fn(BuildProgress) + Sync)>,
}

impl std::fmt::Debug for BuildOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildOptions").field("has_progress", &self.progress.is_some()).finish()
    }
}

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildProgress {
    /// Kernels compiled.
    pub n_done: usize,
    /// Kernels to compile; those that the device compiled for another plan do not count.
    pub n_total: usize,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) id: u64,
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) device: Device,
    pub(crate) plan: Arc<Plan>,
    pub(crate) cmds: Vec<ReadyCmd>,
    pub(crate) inputs: Vec<Io>,
    pub(crate) outputs: Vec<Io>,
    pub(crate) states: Vec<StateSpec>,
    /// Staging of runs that are not in flight.
    pub(crate) frames: Mutex<Vec<Frame>>,
    pub(crate) storage: Storage,
    pub(crate) built: Counters,
}

/// A command with everything that is known before a session comes.
#[derive(Debug)]
pub(crate) struct ReadyCmd {
    pub(crate) kernel_idx: usize,
    pub(crate) pipeline: Pipeline,
    pub(crate) workgroups: [u32; 3],
    /// Its bind group, if it binds no state.
    pub(crate) fixed: Option<wgpu::BindGroup>,
    /// States that it binds, as indices in [`Inner::states`].
    pub(crate) states: Vec<usize>,
    /// Where its sizes start in the uniform buffer.
    pub(crate) dims_offset: u64,
}

/// An input or output, and where it lies in the staging buffer.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) buffer: Buffer,
    pub(crate) staged_at: u64,
}

/// A state that the plan wants.
#[derive(Debug)]
pub(crate) struct StateSpec {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) storage: StateStorage,
}

/// Buffers that the commands bind.
#[derive(Debug)]
pub(crate) struct Storage {
    /// Of each external buffer of the plan.
    pub(crate) externals: Vec<External>,
    pub(crate) slots: Vec<Buffer>,
    /// Sizes, for the uniform bindings.
    pub(crate) dims: Option<Buffer>,
}

/// Where an external buffer of the plan is found.
#[derive(Debug)]
pub(crate) enum External {
    /// Here.
    Fixed(Buffer),
    /// Index in [`Inner::states`].
    State(usize),
}

/// Buffer of a state by its index in [`Inner::states`]; the new one of two if the flag is set.
type StateView<'a> = dyn Fn(usize, bool) -> Option<&'a Buffer> + 'a;

/// What a bind group may name.
pub(crate) enum Bound<'a> {
    /// No states.
    Fixed,
    /// States too.
    States(&'a StateView<'a>),
}

impl Executable {
    /// Makes a plan ready to run with these weights.
    ///
    /// # Errors
    /// [`RuntimeError::Plan`] and [`RuntimeError::Limit`] before any GPU work; [`RuntimeError::MissingWeight`];
    /// [`RuntimeError::WrongWeight`]; [`RuntimeError::Validation`], naming the kernel, if the device refuses one;
    /// [`RuntimeError::OutOfMemory`]; [`RuntimeError::DeviceLost`].
    pub async fn new(device: &Device, plan: impl Into<Arc<Plan>>, weights: &Weights) -> Result<Self, RuntimeError> {
        Self::build(device, plan.into(), weights, &BuildOptions::default()).await
    }

    /// [`Self::new`] with options.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub async fn build(device: &Device, plan: Arc<Plan>, weights: &Weights, options: &BuildOptions<'_>) -> Result<Self, RuntimeError> {
        let span = tracing::debug_span!("build executable", plan = %plan.name, kernels = plan.kernels.len(), cmds = plan.cmds.len());
        Self::build_inner(device, plan, weights, options).instrument(span).await
    }

    async fn build_inner(device: &Device, plan: Arc<Plan>, weights: &Weights, options: &BuildOptions<'_>) -> Result<Self, RuntimeError> {
        let gpu = &device.0.gpu;
        gpu.healthy()?;
        if !weights.device().is_of(gpu) {
            return Err(RuntimeError::OtherDevice { what: "set of weights" });
        }
        check_plan(&plan, device.target())?;
        let mut built = Counters::default();
        let progress = |n_done, n_total| {
            if let Some(tell) = options.progress {
                tell(BuildProgress { n_done, n_total });
            }
        };
        let all_checks = device.0.checks == Checks::All;
        let pipelines = device.0.pipelines.get(gpu, &mut built, &plan.kernels, all_checks, &progress).await?;
        let layout = Layout::new(&plan, device.target())?;
        let packs = packs(&plan, weights, &mut built).await?;
        let (made, caught) = gpu.scoped(Site::during(format!("create the buffers of `{}`", plan.name)), || {
            Builder { device, plan: &plan, weights, packs: &packs, tally: &mut built }.assemble(&layout, &pipelines)
        });
        caught.check().await?;
        let mut inner = made?;
        inner.bind_fixed(&mut built).await?;
        inner.built = built;
        Ok(Self(Arc::new(inner)))
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// What building it recorded and created; pipelines that the device had compiled before are not in it.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.built
    }

    /// Names and types of the inputs.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.0.inputs.iter().map(|io| (io.name.as_str(), &io.ty))
    }

    /// Names and types of the outputs.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.0.outputs.iter().map(|io| (io.name.as_str(), &io.ty))
    }

    /// Names and types of the states.
    pub fn states(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.0.states.iter().map(|state| (state.name.as_str(), &state.ty))
    }

    /// Bytes of slots, inputs, outputs, sizes and staging; weights, packs and states apart.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let inner = &self.0;
        let io = inner.inputs.iter().chain(&inner.outputs).map(|io| &io.buffer);
        let buffers = io.chain(&inner.storage.slots).chain(&inner.storage.dims).map(Buffer::size_bytes).sum::<u64>();
        buffers + locked(&inner.frames).iter().map(Frame::bytes).sum::<u64>()
    }

    /// Binds a session before the first run, which then creates nothing; gives what was created.
    ///
    /// # Errors
    /// [`RuntimeError::WrongState`] if the session has a state of another type; [`RuntimeError::OtherDevice`];
    /// [`RuntimeError::OutOfMemory`].
    pub fn bind(&self, session: &mut Session) -> Result<Counters, RuntimeError> {
        let mut tally = Counters::default();
        self.0.check_session(session)?;
        session.bind(&mut tally, &self.0)?;
        Ok(tally)
    }
}

impl Inner {
    pub(crate) fn check_session(&self, session: &Session) -> Result<(), RuntimeError> {
        if session.device.is_of(&self.gpu) { Ok(()) } else { Err(RuntimeError::OtherDevice { what: "session" }) }
    }

    /// `cmd 3 in mixer/in_proj`.
    pub(crate) fn cmd_name(&self, cmd_idx: usize) -> String {
        let scope = self.plan.cmds.get(cmd_idx).map_or("", |cmd| cmd.scope.as_str());
        if scope.is_empty() { format!("cmd {cmd_idx}") } else { format!("cmd {cmd_idx} in {scope}") }
    }

    /// `k2 matmul {…}`.
    pub(crate) fn kernel_name(&self, kernel_idx: usize) -> String {
        let label = self.plan.kernels.get(kernel_idx).map_or("", |kernel| kernel.label.as_str());
        format!("k{kernel_idx} {label}")
    }

    pub(crate) fn stateful_cmds(&self) -> impl Iterator<Item = usize> + '_ {
        self.cmds.iter().enumerate().filter(|(_, cmd)| !cmd.states.is_empty()).map(|(idx, _)| idx)
    }

    /// The bind group of a command.
    pub(crate) fn group<'a>(&'a self, tally: &mut Counters, cmd_idx: usize, bound: &Bound<'a>) -> Result<wgpu::BindGroup, RuntimeError> {
        let (cmd, ready) = (&self.plan.cmds[cmd_idx], &self.cmds[cmd_idx]);
        let mut bindings = Vec::with_capacity(cmd.args.len() + 1);
        for arg in &cmd.args {
            bindings.push(self.argument(arg.resource, bound)?);
        }
        if let Some(dims) = self.storage.dims.as_ref().filter(|_| !cmd.dims.is_empty()) {
            let size = NonZeroU64::new(dims_bytes(cmd));
            bindings.push(wgpu::BufferBinding { buffer: dims.raw(), offset: ready.dims_offset, size });
        }
        let entry = |(binding, buffer)| wgpu::BindGroupEntry { binding, resource: wgpu::BindingResource::Buffer(buffer) };
        let entries: Vec<_> = (0..).zip(bindings).map(entry).collect();
        let label = self.cmd_name(cmd_idx);
        let descriptor = wgpu::BindGroupDescriptor { label: Some(&label), layout: &ready.pipeline.group_layout, entries: &entries };
        Ok(self.gpu.bind_group(tally, &descriptor))
    }

    fn argument<'a>(&'a self, resource: Resource, bound: &Bound<'a>) -> Result<wgpu::BufferBinding<'a>, RuntimeError> {
        let state = |idx, is_new| match bound {
            Bound::Fixed => None,
            Bound::States(view) => view(idx, is_new),
        };
        let external = |id: monopass_lower::plan::BufferId, is_new| match self.storage.externals.get(id.0 as usize) {
            Some(External::Fixed(buffer)) => Some(buffer),
            Some(External::State(idx)) => state(*idx, is_new),
            None => None,
        };
        let (buffer, size_bytes) = match resource {
            Resource::Slot(id) => (self.storage.slots.get(id.0 as usize), self.plan.slots.get(id.0 as usize).map(|slot| slot.size_bytes)),
            Resource::Buffer(id) => (external(id, false), self.plan.buffers.get(id.0 as usize).map(|buffer| buffer.size_bytes)),
            Resource::NewState(id) => (external(id, true), self.plan.buffers.get(id.0 as usize).map(|buffer| buffer.size_bytes)),
        };
        let (Some(buffer), Some(size_bytes)) = (buffer, size_bytes) else {
            return Err(plan_error(&self.plan, format!("{resource} has no buffer")));
        };
        if size_bytes > buffer.size_bytes() {
            return Err(plan_error(&self.plan, format!("{resource} has {} bytes and the plan wants {size_bytes}", buffer.size_bytes())));
        }
        // The filling-up to 16 bytes belongs to the binding, unless it is what crosses the limit.
        let max = self.device.target().max_binding_bytes;
        let size = if buffer.size_bytes() <= max { buffer.size_bytes() } else { size_bytes };
        Ok(wgpu::BufferBinding { buffer: buffer.raw(), offset: 0, size: NonZeroU64::new(size) })
    }

    async fn bind_fixed(&mut self, tally: &mut Counters) -> Result<(), RuntimeError> {
        for cmd_idx in 0..self.cmds.len() {
            if self.cmds[cmd_idx].states.is_empty() {
                let kernel = Some(self.kernel_name(self.cmds[cmd_idx].kernel_idx));
                let site = Site { during: "bind buffers".to_owned(), kernel, cmd: Some(self.cmd_name(cmd_idx)) };
                let (group, caught) = self.gpu.scoped(site, || self.group(tally, cmd_idx, &Bound::Fixed));
                caught.check().await?;
                self.cmds[cmd_idx].fixed = Some(group?);
            }
        }
        Ok(())
    }
}
