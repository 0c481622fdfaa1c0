//! Making the buffers of an executable: inputs, outputs, slots, packs, sizes and staging.

use crate::buffers::{Buffer, copied_bytes, round_up};
use crate::check::{limit, plan_error};
use crate::counters::Counters;
use crate::device::Device;
use crate::error::RuntimeError;
use crate::executor::{External, Inner, Io, ReadyCmd, StateSpec, Storage};
use crate::pipelines::Pipeline;
use crate::run::Frame;
use crate::upload::{STORAGE, Weights, physical_bytes};
use indexmap::IndexMap;
use monopass_ir::TensorType;
use monopass_lower::Target;
use monopass_lower::plan::{Buffer as PlanBuffer, BufferKind, Cmd, Plan, Resource};
use std::sync::{Arc, Mutex};

/// What an executable is made from.
pub(crate) struct Builder<'a> {
    pub(crate) device: &'a Device,
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) weights: &'a Weights,
    /// Packs by the index of their buffer in the plan.
    pub(crate) packs: &'a IndexMap<usize, Buffer>,
    pub(crate) tally: &'a mut Counters,
}

/// Sizes that follow from the plan alone.
pub(crate) struct Layout {
    /// Content of the uniform buffer: each distinct list of sizes once, aligned.
    dims: Vec<u8>,
    /// Of each command, where its sizes start there.
    dims_offsets: Vec<u64>,
    upload_bytes: u64,
    download_bytes: u64,
}

impl Builder<'_> {
    /// An executable that lacks its bind groups.
    pub(crate) fn assemble(mut self, layout: &Layout, pipelines: &[Pipeline]) -> Result<Inner, RuntimeError> {
        let (plan, gpu) = (self.plan, &self.device.0.gpu);
        let (mut ios, mut externals) = (Ios::default(), Vec::with_capacity(plan.buffers.len()));
        for (idx, buffer) in plan.buffers.iter().enumerate() {
            externals.push(self.external(&mut ios, idx, buffer)?);
        }
        let slots = (0..plan.slots.len()).map(|idx| self.slot(idx)).collect();
        let dims = self.dims(layout);
        let mut cmds = Vec::with_capacity(plan.cmds.len());
        for (cmd, &dims_offset) in plan.cmds.iter().zip(&layout.dims_offsets) {
            cmds.push(self.ready(cmd, dims_offset, &externals, pipelines)?);
        }
        let has_stamps = self.device.0.has_stamps;
        let mut frame = || Frame::new(gpu, self.tally, layout.upload_bytes, layout.download_bytes, has_stamps);
        Ok(Inner {
            id: gpu.next_id(),
            gpu: Arc::clone(gpu),
            device: self.device.clone(),
            plan: Arc::clone(plan),
            cmds,
            inputs: ios.inputs,
            outputs: ios.outputs,
            states: ios.states,
            frames: Mutex::new(vec![frame(), frame()]),
            storage: Storage { externals, slots, dims },
            built: Counters::default(),
        })
    }

    fn external(&mut self, ios: &mut Ios, idx: usize, buffer: &PlanBuffer) -> Result<External, RuntimeError> {
        let buffer = match &buffer.kind {
            BufferKind::Param { name, ty } => self.weights.typed(name, ty)?.buffer.clone(),
            BufferKind::Pack { .. } => {
                self.packs.get(&idx).cloned().ok_or_else(|| plan_error(self.plan, format!("pack b{idx} was not made")))?
            }
            BufferKind::State { name, ty, storage } => {
                ios.states.push(StateSpec { name: name.clone(), ty: ty.clone(), storage: *storage });
                return Ok(External::State(ios.states.len() - 1));
            }
            BufferKind::Input { name, ty } => {
                let device_buffer = self.create(name, buffer.size_bytes);
                ios.inputs.push(Io { name: name.clone(), ty: ty.clone(), buffer: device_buffer.clone(), staged_at: ios.upload_end });
                ios.upload_end += staged_bytes(ty);
                device_buffer
            }
            BufferKind::Output { name, ty } => {
                let device_buffer = self.create(name, buffer.size_bytes);
                ios.outputs.push(Io { name: name.clone(), ty: ty.clone(), buffer: device_buffer.clone(), staged_at: ios.download_end });
                ios.download_end += staged_bytes(ty);
                device_buffer
            }
        };
        Ok(External::Fixed(buffer))
    }

    fn create(&mut self, name: &str, size_bytes: u64) -> Buffer {
        self.device.0.gpu.buffer(self.tally, name, physical_bytes(size_bytes), STORAGE)
    }

    fn slot(&mut self, idx: usize) -> Buffer {
        let size_bytes = physical_bytes(self.plan.slots[idx].size_bytes);
        self.device.0.gpu.buffer(self.tally, &format!("s{idx}"), size_bytes, wgpu::BufferUsages::STORAGE)
    }

    fn dims(&mut self, layout: &Layout) -> Option<Buffer> {
        if layout.dims.is_empty() {
            return None;
        }
        let gpu = &self.device.0.gpu;
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let buffer = gpu.buffer(self.tally, "dims", layout.dims.len() as u64, usage);
        gpu.write(self.tally, &buffer, 0, &layout.dims);
        Some(buffer)
    }

    fn ready(&self, cmd: &Cmd, dims_offset: u64, externals: &[External], pipelines: &[Pipeline]) -> Result<ReadyCmd, RuntimeError> {
        let kernel_idx = cmd.kernel.0 as usize;
        let pipeline = pipelines.get(kernel_idx).cloned();
        let pipeline = pipeline.ok_or_else(|| plan_error(self.plan, format!("kernel k{kernel_idx} was not compiled")))?;
        Ok(ReadyCmd { kernel_idx, pipeline, workgroups: cmd.workgroups, fixed: None, states: states_of(cmd, externals), dims_offset })
    }
}

/// Inputs, outputs and states as they are met in the plan.
#[derive(Default)]
struct Ios {
    inputs: Vec<Io>,
    outputs: Vec<Io>,
    states: Vec<StateSpec>,
    upload_end: u64,
    download_end: u64,
}

impl Layout {
    /// Lays out the sizes and the staging.
    pub(crate) fn new(plan: &Plan, target: &Target) -> Result<Self, RuntimeError> {
        let align = usize::try_from(target.uniform_align_bytes.max(16)).unwrap_or(256);
        let (mut dims, mut known) = (Vec::new(), IndexMap::<&[u32], u64>::new());
        let mut dims_offsets = Vec::with_capacity(plan.cmds.len());
        for cmd in &plan.cmds {
            dims_offsets.push(*known.entry(&cmd.dims).or_insert(dims.len() as u64));
            if dims_offsets.last() == Some(&(dims.len() as u64)) {
                dims.extend_from_slice(bytemuck::cast_slice(&cmd.dims));
                dims.resize(dims.len().next_multiple_of(align), 0);
            }
        }
        let (mut upload_bytes, mut download_bytes) = (0u64, 0u64);
        for buffer in &plan.buffers {
            match &buffer.kind {
                BufferKind::Input { ty, .. } => upload_bytes = upload_bytes.saturating_add(staged_bytes(ty)),
                BufferKind::Output { ty, .. } => download_bytes = download_bytes.saturating_add(staged_bytes(ty)),
                BufferKind::Param { .. } | BufferKind::Pack { .. } | BufferKind::State { .. } => {}
            }
        }
        limit("staging of all inputs", "bytes of one buffer", upload_bytes, target.max_buffer_bytes)?;
        limit("staging of all outputs", "bytes of one buffer", download_bytes, target.max_buffer_bytes)?;
        limit("the sizes of all commands", "bytes of one buffer", dims.len() as u64, target.max_buffer_bytes)?;
        Ok(Self { dims, dims_offsets, upload_bytes, download_bytes })
    }
}

/// The packs of a plan, by the index of their buffer.
pub(crate) async fn packs(plan: &Plan, weights: &Weights, tally: &mut Counters) -> Result<IndexMap<usize, Buffer>, RuntimeError> {
    let mut packs = IndexMap::new();
    for (idx, buffer) in plan.buffers.iter().enumerate() {
        if let BufferKind::Pack { parts } = &buffer.kind {
            packs.insert(idx, weights.pack(tally, parts, buffer.size_bytes).await?);
        }
    }
    Ok(packs)
}

/// Bytes of a command's uniform binding: whole vectors of four, which some drivers want.
pub(crate) fn dims_bytes(cmd: &Cmd) -> u64 {
    round_up(4 * cmd.dims.len() as u64, 16)
}

/// Mapped ranges start at multiples of 8.
fn staged_bytes(ty: &TensorType) -> u64 {
    round_up(copied_bytes(ty), 8)
}

/// The states that a command binds, each once.
fn states_of(cmd: &Cmd, externals: &[External]) -> Vec<usize> {
    let mut states: Vec<usize> = Vec::new();
    for arg in &cmd.args {
        let (Resource::Buffer(id) | Resource::NewState(id)) = arg.resource else { continue };
        if let Some(External::State(idx)) = externals.get(id.0 as usize)
            && !states.contains(idx)
        {
            states.push(*idx);
        }
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;
    use monopass_lower::plan::KernelId;

    #[test]
    fn equal_sizes_lie_in_the_uniform_buffer_once() {
        let cmd = |dims: &[u32]| Cmd {
            kernel: KernelId(0),
            workgroups: [1; 3],
            args: Vec::new(),
            dims: dims.to_vec(),
            loop_trips: 0,
            flops: 0,
            bytes_moved: 0,
            scope: String::new(),
            computes: String::new(),
        };
        let cmds = vec![cmd(&[]), cmd(&[1, 2]), cmd(&[3]), cmd(&[1, 2]), cmd(&[])];
        let plan = Plan { cmds, ..Plan::default() };
        let layout = Layout::new(&plan, &Target { uniform_align_bytes: 64, ..Target::webgpu_default() }).unwrap();
        assert_eq!(layout.dims_offsets, [0, 0, 64, 0, 0]);
        assert_eq!(layout.dims.len(), 128);
        assert_eq!(layout.dims[64..68], [3, 0, 0, 0]);
        assert_eq!(dims_bytes(&plan.cmds[1]), 16);
    }
}
