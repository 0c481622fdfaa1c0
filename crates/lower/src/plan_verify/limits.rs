//! Kernels, and the limits of the target.

use super::error::PlanError;
use crate::plan::{Access, BufferId, BufferKind, Cmd, Kernel, KernelId, Plan, Resource, SlotId, StateStorage};
use crate::target::Target;
use indexmap::{IndexMap, IndexSet};

pub(super) fn check(plan: &Plan, target: &Target, errors: &mut Vec<PlanError>) {
    for (id, kernel) in (0..).map(KernelId).zip(&plan.kernels) {
        bindings(id, kernel, errors);
        workgroup(id, kernel, target, errors);
    }
    same_kernels(plan, errors);
    kernel_uses(plan, errors);
    for (idx, cmd) in plan.cmds.iter().enumerate() {
        dispatch(idx, cmd, target, errors);
    }
    sizes(plan, target, errors);
}

fn bindings(id: KernelId, kernel: &Kernel, errors: &mut Vec<PlanError>) {
    let mut names = IndexSet::new();
    for (idx, binding) in kernel.bindings.iter().enumerate() {
        if !names.insert(&binding.name) {
            errors.push(PlanError::SameBinding { kernel: id, name: binding.name.clone() });
        }
        if binding.in_place && binding.access == Access::Read {
            errors.push(PlanError::InPlaceReadOnly { kernel: id, binding: idx });
        }
    }
}

fn workgroup(id: KernelId, kernel: &Kernel, target: &Target, errors: &mut Vec<PlanError>) {
    let size = kernel.workgroup_size;
    if size.contains(&0) {
        errors.push(PlanError::EmptyWorkgroup { kernel: id, size });
    }
    for (axis, (&size, &limit)) in size.iter().zip(&target.max_workgroup_size).enumerate() {
        if size > limit {
            errors.push(PlanError::WorkgroupAxis { kernel: id, axis, size, limit });
        }
    }
    let invocations = size.iter().fold(1u64, |product, &size| product.saturating_mul(u64::from(size)));
    if invocations > u64::from(target.max_invocations) {
        errors.push(PlanError::Invocations { kernel: id, invocations, limit: target.max_invocations });
    }
    let (bytes, limit) = (kernel.workgroup_bytes, target.max_workgroup_bytes);
    if bytes > limit {
        errors.push(PlanError::WorkgroupMemory { kernel: id, bytes, limit });
    }
    let buffers = kernel.bindings.len();
    if buffers > target.max_storage_buffers as usize {
        errors.push(PlanError::StorageBuffers { kernel: id, buffers, limit: target.max_storage_buffers });
    }
}

fn same_kernels(plan: &Plan, errors: &mut Vec<PlanError>) {
    let mut by_text: IndexMap<&str, Vec<KernelId>> = IndexMap::new();
    for (second, kernel) in (0..).map(KernelId).zip(&plan.kernels) {
        let known = by_text.entry(&kernel.wgsl).or_default();
        let same = known.iter().find(|first| {
            super::kernel(plan, **first).is_some_and(|other| other.bindings == kernel.bindings && other.n_dims == kernel.n_dims)
        });
        if let Some(&first) = same {
            errors.push(PlanError::SameKernel { first, second });
        }
        known.push(second);
    }
}

fn kernel_uses(plan: &Plan, errors: &mut Vec<PlanError>) {
    let used: IndexSet<KernelId> = plan.cmds.iter().map(|cmd| cmd.kernel).collect();
    for id in (0..).map(KernelId).take(plan.kernels.len()) {
        if !used.contains(&id) {
            errors.push(PlanError::UnusedKernel { kernel: id });
        }
    }
    let known = used.iter().filter(|id| super::kernel(plan, **id).is_some());
    if !known.clone().is_sorted() {
        let out_of_order = known.clone().zip(known.skip(1)).find(|(a, b)| a > b);
        errors.extend(out_of_order.map(|(_, &kernel)| PlanError::KernelOrder { kernel }));
    }
}

fn dispatch(idx: usize, cmd: &Cmd, target: &Target, errors: &mut Vec<PlanError>) {
    if cmd.workgroups.contains(&0) {
        errors.push(PlanError::EmptyDispatch { cmd: idx });
    }
    let limit = target.max_workgroups;
    for (axis, &workgroups) in cmd.workgroups.iter().enumerate() {
        if workgroups > limit {
            errors.push(PlanError::Workgroups { cmd: idx, axis, workgroups, limit });
        }
    }
    if let Some(limit) = target.max_loop_trips.filter(|&limit| cmd.loop_trips > limit) {
        errors.push(PlanError::LoopTrips { cmd: idx, trips: cmd.loop_trips, limit });
    }
}

fn sizes(plan: &Plan, target: &Target, errors: &mut Vec<PlanError>) {
    let mut storage: Vec<(Resource, u64)> = Vec::new();
    for (id, buffer) in (0..).map(BufferId).zip(&plan.buffers) {
        storage.push((Resource::Buffer(id), buffer.size_bytes));
        if matches!(buffer.kind, BufferKind::State { storage: StateStorage::Double, .. }) {
            storage.push((Resource::NewState(id), buffer.size_bytes));
        }
    }
    storage.extend((0..).map(|id| Resource::Slot(SlotId(id))).zip(plan.slots.iter().map(|slot| slot.size_bytes)));
    for (resource, bytes) in storage {
        if bytes > target.max_binding_bytes {
            errors.push(PlanError::BindingSize { resource, bytes, limit: target.max_binding_bytes });
        }
        if bytes > target.max_buffer_bytes {
            errors.push(PlanError::BufferSize { resource, bytes, limit: target.max_buffer_bytes });
        }
    }
}
