//! Proves from a plan alone that it is sound on a target. It trusts nobody: it reads [`crate::plan`] and
//! [`crate::target`], and shares no code with what schedules, assigns storage or makes kernels.
//!
//! What is proved, in the order it is checked:
//! - **tables** (`tables`): ids are in range, labels and names are unique, sizes are padded and suffice; inputs, weights
//!   and states hold a value, outputs and new states receive one; the parts of a pack are aligned and do not overlap;
//! - **kernels and limits** (`limits`): every limit of the target holds for every kernel, dispatch and binding;
//! - **commands** (`commands`): arguments are what the kernel declares; no buffer is bound both for reading and for
//!   writing, or twice for writing; one that is read and written through a single binding is declared in place and keeps
//!   its size; inputs, weights, packs and the old content of double-buffered states are never written;
//! - **contents** (`contents`): simulating the dispatches in order, every read finds the value that it needs: written
//!   before, in this storage, and not overwritten since; at the end every output and state holds its value;
//! - **residents** (`residents`): no two values of a slot live together; the slot table, the live bytes and the bytes
//!   moved are those that follow from the commands.
//!
//! Not proved here: that a kernel computes what its label says (tests do), and that its text declares what
//! [`crate::plan::Kernel`] says ([`crate::validate`] does).

pub mod error;

mod commands;
mod contents;
mod limits;
mod residents;
mod tables;

#[cfg(test)]
pub(crate) mod tests;

use crate::plan::{Buffer, BufferId, Kernel, KernelId, Plan, PlanValue, PlanValueId, Resource, Slot, SlotId};
use crate::target::Target;
pub use error::PlanError;

/// Checks everything and returns all mistakes.
///
/// # Errors
/// A [`PlanError`] for each mistake, in the order of the module's documentation.
pub fn verify_plan(plan: &Plan, target: &Target) -> Result<(), Vec<PlanError>> {
    let mut errors = Vec::new();
    tables::check(plan, &mut errors);
    limits::check(plan, target, &mut errors);
    commands::check(plan, &mut errors);
    contents::check(plan, &mut errors);
    residents::check(plan, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

// Ids may be anything in a plan that is not sound, so every look-up may fail.

fn value(plan: &Plan, id: PlanValueId) -> Option<&PlanValue> {
    plan.values.get(id.0 as usize)
}

fn buffer(plan: &Plan, id: BufferId) -> Option<&Buffer> {
    plan.buffers.get(id.0 as usize)
}

fn slot(plan: &Plan, id: SlotId) -> Option<&Slot> {
    plan.slots.get(id.0 as usize)
}

fn kernel(plan: &Plan, id: KernelId) -> Option<&Kernel> {
    plan.kernels.get(id.0 as usize)
}

/// Bytes of a value; 0 if there is no such value.
fn value_bytes(plan: &Plan, id: PlanValueId) -> u64 {
    value(plan, id).map_or(0, |value| value.size_bytes)
}

/// Bytes of a storage, if it exists.
fn resource_bytes(plan: &Plan, resource: Resource) -> Option<u64> {
    match resource {
        Resource::Buffer(id) | Resource::NewState(id) => buffer(plan, id).map(|buffer| buffer.size_bytes),
        Resource::Slot(id) => slot(plan, id).map(|slot| slot.size_bytes),
    }
}
