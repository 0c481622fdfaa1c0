//! Arguments against what kernels declare, and against what each buffer is for.

use super::error::{ArgSite, PlanError};
use super::{buffer, kernel, resource_bytes, value, value_bytes};
use crate::plan::{Access, Arg, BindingSpec, BufferKind, Cmd, Plan, Resource, StateStorage};
use indexmap::IndexMap;

pub(super) fn check(plan: &Plan, errors: &mut Vec<PlanError>) {
    for (idx, cmd) in plan.cmds.iter().enumerate() {
        match kernel(plan, cmd.kernel) {
            None => errors.push(PlanError::NoSuchKernel { cmd: idx, kernel: cmd.kernel }),
            Some(kernel) => {
                if cmd.args.len() != kernel.bindings.len() {
                    errors.push(PlanError::ArgCount { cmd: idx, args: cmd.args.len(), bindings: kernel.bindings.len() });
                }
                if cmd.dims.len() != kernel.n_dims {
                    errors.push(PlanError::DimsCount { cmd: idx, dims: cmd.dims.len(), n_dims: kernel.n_dims });
                }
                for (arg_idx, (arg, binding)) in cmd.args.iter().zip(&kernel.bindings).enumerate() {
                    declared(plan, ArgSite { cmd: idx, arg: arg_idx }, arg, binding, errors);
                }
            }
        }
        for (arg_idx, arg) in cmd.args.iter().enumerate() {
            let site = ArgSite { cmd: idx, arg: arg_idx };
            names(plan, site, arg, errors);
            shape(plan, site, arg, errors);
            target_of_write(plan, site, arg, errors);
        }
        aliases(idx, cmd, errors);
        bytes_moved(plan, idx, cmd, errors);
    }
}

/// The argument is bound as the kernel declares.
fn declared(plan: &Plan, site: ArgSite, arg: &Arg, binding: &BindingSpec, errors: &mut Vec<PlanError>) {
    if arg.access != binding.access {
        errors.push(PlanError::WrongAccess { site, bound: arg.access, declared: binding.access });
    }
    let (Some(new), [old]) = (arg.writes, arg.reads.as_slice()) else { return };
    if !binding.in_place {
        errors.push(PlanError::InPlaceUndeclared { site });
    }
    let (old_bytes, new_bytes) = (value_bytes(plan, *old), value_bytes(plan, new));
    if old_bytes != new_bytes {
        errors.push(PlanError::InPlaceSize { site, old_bytes, new_bytes });
    }
}

/// What the argument names exists.
fn names(plan: &Plan, site: ArgSite, arg: &Arg, errors: &mut Vec<PlanError>) {
    if resource_bytes(plan, arg.resource).is_none() {
        errors.push(PlanError::NoSuchStorage { site, resource: arg.resource });
    }
    for &id in arg.reads.iter().chain(&arg.writes) {
        if value(plan, id).is_none() {
            errors.push(PlanError::NoSuchValue { place: site.to_string(), value: id });
        }
    }
}

/// Reads, writes and access of one argument agree with each other and with the storage.
fn shape(plan: &Plan, site: ArgSite, arg: &Arg, errors: &mut Vec<PlanError>) {
    match (arg.access, arg.writes) {
        (Access::Read, Some(_)) => errors.push(PlanError::WritesThroughRead { site }),
        (Access::ReadWrite, None) => errors.push(PlanError::WritableUnwritten { site }),
        (Access::Read, None) | (Access::ReadWrite, Some(_)) => {}
    }
    if arg.reads.is_empty() && arg.writes.is_none() {
        errors.push(PlanError::IdleArg { site });
    }
    let is_pack = match arg.resource {
        Resource::Buffer(id) => buffer(plan, id).is_some_and(|buffer| matches!(buffer.kind, BufferKind::Pack { .. })),
        Resource::NewState(_) | Resource::Slot(_) => false,
    };
    if arg.reads.len() > 1 && !is_pack {
        errors.push(PlanError::SeveralReads { site, resource: arg.resource });
    }
    if let Resource::NewState(id) = arg.resource
        && !buffer(plan, id).is_some_and(|buffer| matches!(buffer.kind, BufferKind::State { storage: StateStorage::Double, .. }))
    {
        errors.push(PlanError::NotDouble { site, buffer: id });
    }
    let has_bytes = resource_bytes(plan, arg.resource).unwrap_or(u64::MAX);
    for &id in arg.reads.iter().chain(&arg.writes).filter(|id| value_bytes(plan, **id) > has_bytes) {
        let needs_bytes = value_bytes(plan, id);
        errors.push(match arg.resource {
            Resource::Slot(slot) => PlanError::SlotTooSmall { slot, value: id, needs_bytes, has_bytes },
            Resource::Buffer(buffer) | Resource::NewState(buffer) => {
                PlanError::BufferTooSmall { buffer, value: id, needs_bytes, has_bytes }
            }
        });
    }
}

/// Only outputs, slots and new states are written.
fn target_of_write(plan: &Plan, site: ArgSite, arg: &Arg, errors: &mut Vec<PlanError>) {
    let is_write = arg.writes.is_some() || arg.access == Access::ReadWrite;
    let Resource::Buffer(id) = arg.resource else { return };
    let Some(known) = buffer(plan, id).filter(|_| is_write) else { return };
    match &known.kind {
        BufferKind::Input { .. } => errors.push(PlanError::WritesInput { site, buffer: id }),
        BufferKind::Param { .. } | BufferKind::Pack { .. } => errors.push(PlanError::WritesWeight { site, buffer: id }),
        BufferKind::State { storage: StateStorage::Constant, .. } => errors.push(PlanError::WritesConstantState { site, buffer: id }),
        BufferKind::State { storage: StateStorage::Double, .. } => errors.push(PlanError::WritesOldState { site, buffer: id }),
        BufferKind::State { storage: StateStorage::InPlace, .. } | BufferKind::Output { .. } => {}
    }
}

/// wgpu refuses a buffer that one dispatch binds for reading and for writing, even in disjoint ranges; it allows two
/// bindings for writing, which then overwrite each other.
fn aliases(idx: usize, cmd: &Cmd, errors: &mut Vec<PlanError>) {
    let mut bound: IndexMap<Resource, (usize, usize)> = IndexMap::new();
    for arg in &cmd.args {
        let (reads, writes) = bound.entry(arg.resource).or_default();
        match arg.access {
            Access::Read => *reads += 1,
            Access::ReadWrite => *writes += 1,
        }
    }
    for (resource, (reads, writes)) in bound {
        if reads > 0 && writes > 0 {
            errors.push(PlanError::ReadAndWrite { cmd: idx, resource });
        }
        if writes > 1 {
            errors.push(PlanError::WriteTwice { cmd: idx, resource });
        }
    }
}

fn bytes_moved(plan: &Plan, idx: usize, cmd: &Cmd, errors: &mut Vec<PlanError>) {
    let values = cmd.args.iter().flat_map(|arg| arg.reads.iter().chain(&arg.writes));
    let is = values.fold(0u64, |sum, &id| sum.saturating_add(value_bytes(plan, id)));
    if is != cmd.bytes_moved {
        errors.push(PlanError::BytesMoved { cmd: idx, says: cmd.bytes_moved, is });
    }
}
