//! Ids, labels, names, sizes, and what each buffer holds and receives.

use super::error::PlanError;
use super::{slot, value, value_bytes};
use crate::plan::{Buffer, BufferId, BufferKind, PackPart, Plan, PlanValueId, Resource, SlotId, StateStorage};
use indexmap::{IndexMap, IndexSet};
use monopass_ir::TensorType;

pub(super) fn check(plan: &Plan, errors: &mut Vec<PlanError>) {
    values(plan, errors);
    storage_sizes(plan, errors);
    for (id, buffer) in (0..).map(BufferId).zip(&plan.buffers) {
        buffer_contract(id, buffer, errors);
        buffer_values(plan, id, buffer, errors);
        if let BufferKind::Pack { parts } = &buffer.kind {
            pack(plan, id, buffer, parts, errors);
        }
    }
    names(plan, errors);
    holders(plan, errors);
    residents(plan, errors);
}

fn values(plan: &Plan, errors: &mut Vec<PlanError>) {
    let mut seen = IndexSet::new();
    for (id, value) in (0..).map(PlanValueId).zip(&plan.values) {
        if !is_label(&value.label) {
            errors.push(PlanError::BadLabel { value: id, label: value.label.clone() });
        }
        if !seen.insert(&value.label) {
            errors.push(PlanError::SameLabel { label: value.label.clone() });
        }
        if !value.size_bytes.is_multiple_of(16) {
            errors.push(PlanError::UnpaddedValue { value: id, size_bytes: value.size_bytes });
        }
    }
}

/// `%12` or `%12.carry`.
fn is_label(label: &str) -> bool {
    let Some(rest) = label.strip_prefix('%') else { return false };
    let (number, name) = rest.split_once('.').unwrap_or((rest, "x"));
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty()
}

fn storage_sizes(plan: &Plan, errors: &mut Vec<PlanError>) {
    let buffers = (0..).map(|id| Resource::Buffer(BufferId(id))).zip(plan.buffers.iter().map(|buffer| buffer.size_bytes));
    let slots = (0..).map(|id| Resource::Slot(SlotId(id))).zip(plan.slots.iter().map(|slot| slot.size_bytes));
    for (resource, size_bytes) in buffers.chain(slots) {
        if size_bytes < 16 || !size_bytes.is_multiple_of(16) {
            errors.push(PlanError::UnpaddedStorage { resource, size_bytes });
        }
    }
}

/// Who has to hold a value before the run, and who has to receive one.
fn buffer_contract(id: BufferId, buffer: &Buffer, errors: &mut Vec<PlanError>) {
    let (holds, receives) = match &buffer.kind {
        BufferKind::Input { .. } | BufferKind::Param { .. } | BufferKind::State { storage: StateStorage::Constant, .. } => (true, false),
        BufferKind::Pack { .. } => (false, false),
        BufferKind::State { storage: StateStorage::InPlace | StateStorage::Double, .. } => (true, true),
        BufferKind::Output { .. } => (false, true),
    };
    match (holds, buffer.holds.is_some()) {
        (true, false) => errors.push(PlanError::HoldsNothing { buffer: id }),
        (false, true) => errors.push(PlanError::HoldsWrongly { buffer: id }),
        (true, true) | (false, false) => {}
    }
    match (receives, buffer.receives.is_some()) {
        (true, false) => errors.push(PlanError::ReceivesNothing { buffer: id }),
        (false, true) => errors.push(PlanError::ReceivesWrongly { buffer: id }),
        (true, true) | (false, false) => {}
    }
}

fn buffer_values(plan: &Plan, id: BufferId, buffer: &Buffer, errors: &mut Vec<PlanError>) {
    for value_id in buffer.holds.into_iter().chain(buffer.receives) {
        let Some(known) = value(plan, value_id) else {
            errors.push(PlanError::NoSuchValue { place: id.to_string(), value: value_id });
            continue;
        };
        if let Some(ty) = buffer.ty()
            && padded(ty) != known.size_bytes
        {
            errors.push(PlanError::TypeSize { buffer: id, value: value_id, ty_bytes: padded(ty), value_bytes: known.size_bytes });
        }
        if known.size_bytes > buffer.size_bytes {
            let (needs_bytes, has_bytes) = (known.size_bytes, buffer.size_bytes);
            errors.push(PlanError::BufferTooSmall { buffer: id, value: value_id, needs_bytes, has_bytes });
        }
    }
}

fn pack(plan: &Plan, id: BufferId, buffer: &Buffer, parts: &[PackPart], errors: &mut Vec<PlanError>) {
    if parts.is_empty() {
        errors.push(PlanError::PackEmpty { buffer: id });
    }
    let mut end_before = 0;
    for part in parts {
        let name = || part.name.clone();
        let end_bytes = part.offset_bytes.saturating_add(part.ty.size_bytes());
        match value(plan, part.value) {
            None => errors.push(PlanError::NoSuchValue { place: format!("part `{}` of {id}", part.name), value: part.value }),
            Some(known) if known.size_bytes != padded(&part.ty) => {
                let (ty_bytes, value_bytes) = (padded(&part.ty), known.size_bytes);
                errors.push(PlanError::TypeSize { buffer: id, value: part.value, ty_bytes, value_bytes });
            }
            Some(_) => {}
        }
        if !part.offset_bytes.is_multiple_of(4) {
            errors.push(PlanError::PackUnaligned { buffer: id, part: name(), offset_bytes: part.offset_bytes });
        }
        if part.offset_bytes < end_before {
            errors.push(PlanError::PackOverlap { buffer: id, part: name() });
        }
        if end_bytes > buffer.size_bytes {
            errors.push(PlanError::PackTooSmall { buffer: id, part: name(), end_bytes });
        }
        end_before = end_bytes;
    }
}

/// Names are unique among inputs, weights, states and outputs; a weight may lie in several packs as well.
fn names(plan: &Plan, errors: &mut Vec<PlanError>) {
    let mut seen = IndexSet::new();
    let mut weights: IndexMap<&str, PlanValueId> = IndexMap::new();
    for buffer in &plan.buffers {
        let (kind, name) = match &buffer.kind {
            BufferKind::Input { name, .. } => ("input", name),
            BufferKind::Param { name, .. } => ("param", name),
            BufferKind::State { name, .. } => ("state", name),
            BufferKind::Output { name, .. } => ("output", name),
            BufferKind::Pack { parts } => {
                for part in parts {
                    weight(&part.name, part.value, &mut weights, errors);
                }
                continue;
            }
        };
        if let (BufferKind::Param { .. }, Some(value)) = (&buffer.kind, buffer.holds) {
            weight(name, value, &mut weights, errors);
        }
        if !seen.insert((kind, name)) {
            errors.push(PlanError::SameName { kind, name: name.clone() });
        }
    }
}

fn weight<'p>(name: &'p str, value: PlanValueId, weights: &mut IndexMap<&'p str, PlanValueId>, errors: &mut Vec<PlanError>) {
    let first = *weights.entry(name).or_insert(value);
    if first != value {
        errors.push(PlanError::WeightDiffers { name: name.to_owned(), first, second: value });
    }
}

fn holders(plan: &Plan, errors: &mut Vec<PlanError>) {
    let (mut held, mut received) = (IndexSet::new(), IndexSet::new());
    for buffer in &plan.buffers {
        if let Some(value) = buffer.holds.filter(|value| !held.insert(*value)) {
            errors.push(PlanError::HeldTwice { value });
        }
        if let Some(value) = buffer.receives.filter(|value| !received.insert(*value)) {
            errors.push(PlanError::ReceivedTwice { value });
        }
    }
}

fn residents(plan: &Plan, errors: &mut Vec<PlanError>) {
    for id in (0..plan.slots.len()).filter_map(|idx| u32::try_from(idx).ok()).map(SlotId) {
        for resident in slot(plan, id).into_iter().flat_map(|slot| &slot.residents) {
            if value(plan, resident.value).is_none() {
                errors.push(PlanError::NoSuchValue { place: id.to_string(), value: resident.value });
            }
            let needs_bytes = value_bytes(plan, resident.value);
            let has_bytes = slot(plan, id).map_or(0, |slot| slot.size_bytes);
            if needs_bytes > has_bytes {
                errors.push(PlanError::SlotTooSmall { slot: id, value: resident.value, needs_bytes, has_bytes });
            }
        }
    }
}

/// Bytes of a value of its own: kernels read four words at a time, so it is padded to them.
fn padded(ty: &TensorType) -> u64 {
    ty.size_bytes().div_ceil(16).saturating_mul(16)
}
