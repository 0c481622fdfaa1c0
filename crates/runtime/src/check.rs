//! A plan against a device, before any GPU work: ids in range, arguments as the kernels declare them, limits kept. That a
//! plan is sound otherwise is the business of `monopass_lower`, which proves it when it makes one.

use crate::buffers::padded_bytes;
use crate::error::RuntimeError;
use monopass_lower::Target;
use monopass_lower::plan::{Buffer, BufferKind, Cmd, Kernel, Plan, Resource, StateStorage};

/// Refuses a plan that contradicts itself or needs more than the target has.
pub(crate) fn check_plan(plan: &Plan, target: &Target) -> Result<(), RuntimeError> {
    for (idx, kernel) in plan.kernels.iter().enumerate() {
        check_kernel(idx, kernel, target)?;
    }
    for (idx, buffer) in plan.buffers.iter().enumerate() {
        check_buffer(plan, idx, buffer)?;
        check_size(&format!("buffer b{idx}"), buffer.size_bytes, target)?;
    }
    for (idx, slot) in plan.slots.iter().enumerate() {
        check_word(plan, &format!("slot s{idx}"), slot.size_bytes)?;
        check_size(&format!("slot s{idx}"), slot.size_bytes, target)?;
    }
    check_names(plan)?;
    plan.cmds.iter().enumerate().try_for_each(|(idx, cmd)| check_cmd(plan, idx, cmd, target))
}

/// Refuses a buffer that the device cannot have or bind as a whole.
pub(crate) fn check_size(what: &str, size_bytes: u64, target: &Target) -> Result<(), RuntimeError> {
    limit(what, "bytes of one storage binding", size_bytes, target.max_binding_bytes)?;
    limit(what, "bytes of one buffer", size_bytes, target.max_buffer_bytes)
}

/// Refuses what is over a limit.
pub(crate) fn limit(what: &str, limit: &'static str, needed: u64, available: u64) -> Result<(), RuntimeError> {
    if needed <= available { Ok(()) } else { Err(RuntimeError::Limit { what: what.to_owned(), limit, needed, available }) }
}

pub(crate) fn plan_error(plan: &Plan, what: impl Into<String>) -> RuntimeError {
    RuntimeError::Plan { plan: plan.name.clone(), what: what.into() }
}

fn check_kernel(idx: usize, kernel: &Kernel, target: &Target) -> Result<(), RuntimeError> {
    let what = format!("kernel k{idx} {}", kernel.label);
    let invocations = kernel.workgroup_size.iter().map(|&n| u64::from(n)).product();
    limit(&what, "storage buffers a stage", kernel.bindings.len() as u64, target.max_storage_buffers.into())?;
    limit(&what, "bytes of workgroup memory", kernel.workgroup_bytes, target.max_workgroup_bytes)?;
    limit(&what, "invocations a workgroup", invocations, target.max_invocations.into())?;
    for (&n, max) in kernel.workgroup_size.iter().zip(target.max_workgroup_size) {
        limit(&what, "invocations in one dimension of a workgroup", n.into(), max.into())?;
    }
    Ok(())
}

fn check_buffer(plan: &Plan, idx: usize, buffer: &Buffer) -> Result<(), RuntimeError> {
    let what = format!("buffer b{idx}");
    check_word(plan, &what, buffer.size_bytes)?;
    let needed = match &buffer.kind {
        BufferKind::Input { ty, .. } | BufferKind::Param { ty, .. } | BufferKind::State { ty, .. } | BufferKind::Output { ty, .. } => {
            padded_bytes(ty)
        }
        BufferKind::Pack { parts } => {
            if let Some(part) = parts.iter().find(|part| part.offset_bytes % 4 != 0) {
                return Err(plan_error(
                    plan,
                    format!("`{}` starts in {what} at {}, which is no multiple of 4", part.name, part.offset_bytes),
                ));
            }
            parts.iter().map(|part| part.offset_bytes.saturating_add(padded_bytes(&part.ty))).max().unwrap_or(4)
        }
    };
    if needed <= buffer.size_bytes {
        Ok(())
    } else {
        Err(plan_error(plan, format!("{what} has {} bytes and holds {needed}", buffer.size_bytes)))
    }
}

fn check_word(plan: &Plan, what: &str, size_bytes: u64) -> Result<(), RuntimeError> {
    if size_bytes >= 4 && size_bytes.is_multiple_of(4) {
        return Ok(());
    }
    Err(plan_error(plan, format!("{what} has {size_bytes} bytes, which are not whole words")))
}

/// Inputs, outputs and states are found by name, so each name occurs once in its kind.
fn check_names(plan: &Plan) -> Result<(), RuntimeError> {
    let mut seen = indexmap::IndexSet::new();
    for buffer in &plan.buffers {
        let named = match &buffer.kind {
            BufferKind::Input { name, .. } => ("input", name),
            BufferKind::Output { name, .. } => ("output", name),
            BufferKind::State { name, .. } => ("state", name),
            BufferKind::Param { .. } | BufferKind::Pack { .. } => continue,
        };
        if !seen.insert(named) {
            return Err(plan_error(plan, format!("two buffers are {} `{}`", named.0, named.1)));
        }
    }
    Ok(())
}

fn check_cmd(plan: &Plan, idx: usize, cmd: &Cmd, target: &Target) -> Result<(), RuntimeError> {
    let what = format!("cmd {idx}");
    let Some(kernel) = plan.kernels.get(cmd.kernel.0 as usize) else {
        return Err(plan_error(plan, format!("{what} names kernel k{}, which is not there", cmd.kernel.0)));
    };
    let declared = kernel.bindings.iter().map(|binding| binding.access);
    if !declared.eq(cmd.args.iter().map(|arg| arg.access)) {
        return Err(plan_error(plan, format!("the arguments of {what} are not those that k{} declares", cmd.kernel.0)));
    }
    if cmd.dims.len() != kernel.n_dims {
        return Err(plan_error(plan, format!("{what} gives {} sizes and k{} takes {}", cmd.dims.len(), cmd.kernel.0, kernel.n_dims)));
    }
    cmd.args.iter().try_for_each(|arg| check_resource(plan, &what, arg.resource))?;
    // Whose turn it is takes one bit of a word for each.
    limit(&what, "states bound by one command", cmd.args.iter().filter(|arg| is_state(plan, arg.resource)).count() as u64, 64)?;
    for n in cmd.workgroups {
        limit(&what, "workgroups in one dimension", n.into(), target.max_workgroups.into())?;
    }
    limit(&what, "iterations of one loop nest", cmd.loop_trips, target.max_loop_trips.unwrap_or(u64::MAX))
}

fn check_resource(plan: &Plan, what: &str, resource: Resource) -> Result<(), RuntimeError> {
    let is_there = match resource {
        Resource::Buffer(id) => plan.buffers.get(id.0 as usize).is_some(),
        Resource::Slot(id) => plan.slots.get(id.0 as usize).is_some(),
        Resource::NewState(id) => plan.buffers.get(id.0 as usize).is_some_and(is_double),
    };
    if is_there { Ok(()) } else { Err(plan_error(plan, format!("{what} binds {resource}, which the plan does not have"))) }
}

fn is_state(plan: &Plan, resource: Resource) -> bool {
    let (Resource::Buffer(id) | Resource::NewState(id)) = resource else { return false };
    plan.buffers.get(id.0 as usize).is_some_and(|buffer| matches!(buffer.kind, BufferKind::State { .. }))
}

fn is_double(buffer: &Buffer) -> bool {
    matches!(buffer.kind, BufferKind::State { storage: StateStorage::Double, .. })
}
