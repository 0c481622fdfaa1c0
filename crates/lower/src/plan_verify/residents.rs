//! Who lives in each slot and when, recomputed from the commands.

use super::error::PlanError;
use super::value_bytes;
use crate::plan::{Plan, PlanValueId, Resource, Slot, SlotId};
use indexmap::{IndexMap, IndexSet};

/// First and last command of a value in a slot.
type Lives = IndexMap<PlanValueId, (usize, usize)>;

pub(super) fn check(plan: &Plan, errors: &mut Vec<PlanError>) {
    let mut lives: Vec<Lives> = vec![Lives::new(); plan.slots.len()];
    let mut handovers: IndexSet<(SlotId, PlanValueId, PlanValueId)> = IndexSet::new();
    for (idx, arg) in plan.cmds.iter().enumerate().flat_map(|(idx, cmd)| cmd.args.iter().map(move |arg| (idx, arg))) {
        let Resource::Slot(id) = arg.resource else { continue };
        let Some(lives) = lives.get_mut(id.0 as usize) else { continue };
        for &value in arg.reads.iter().chain(&arg.writes) {
            lives.entry(value).or_insert((idx, idx)).1 = idx;
        }
        handovers.extend(arg.reads.iter().zip(arg.writes).map(|(&old, new)| (id, old, new)));
    }
    for ((id, slot), lives) in (0..).map(SlotId).zip(&plan.slots).zip(&lives) {
        table(id, slot, lives, errors);
        overlaps(id, lives, &handovers, errors);
    }
    let is = live_bytes(plan, &lives);
    if is != plan.live_bytes {
        errors.push(PlanError::LiveBytes { says: plan.live_bytes, is });
    }
}

/// The slot's table says what the commands say.
fn table(id: SlotId, slot: &Slot, lives: &Lives, errors: &mut Vec<PlanError>) {
    if lives.is_empty() {
        errors.push(PlanError::UnusedSlot { slot: id });
    }
    let mut said = Lives::new();
    for resident in &slot.residents {
        let says = (resident.first_cmd, resident.last_cmd);
        match lives.get(&resident.value) {
            None => errors.push(PlanError::ResidentExtra { slot: id, value: resident.value }),
            Some(&is) if is != says => errors.push(PlanError::ResidentRange { slot: id, value: resident.value, says, is }),
            Some(_) => {}
        }
        if said.insert(resident.value, says).is_some() {
            errors.push(PlanError::ResidentExtra { slot: id, value: resident.value });
        }
    }
    for &value in lives.keys().filter(|value| !said.contains_key(*value)) {
        errors.push(PlanError::ResidentMissing { slot: id, value });
    }
}

/// Two values of a slot live in different commands, except that one may replace the other in place.
fn overlaps(id: SlotId, lives: &Lives, handovers: &IndexSet<(SlotId, PlanValueId, PlanValueId)>, errors: &mut Vec<PlanError>) {
    let mut order: Vec<(usize, usize, PlanValueId)> = lives.iter().map(|(&value, &(first, last))| (first, last, value)).collect();
    order.sort_unstable();
    let mut latest: Option<(usize, PlanValueId)> = None;
    for (first, last, value) in order {
        if let Some((end, before)) = latest.filter(|&(end, _)| end >= first) {
            let is_handover = end == first && handovers.contains(&(id, before, value));
            if !is_handover {
                errors.push(PlanError::SharedWhileLive { slot: id, first: before, second: value });
            }
        }
        if latest.is_none_or(|(end, _)| last >= end) {
            latest = Some((last, value));
        }
    }
}

/// The most bytes of slot values that live during one command.
fn live_bytes(plan: &Plan, lives: &[Lives]) -> u64 {
    let mut live = vec![0u64; plan.cmds.len()];
    for lives in lives {
        // A value and the one that replaces it in place are one tenant, so a slot counts once a command.
        let mut tenant = vec![0u64; plan.cmds.len()];
        for (&value, &(first, last)) in lives {
            for bytes in tenant.iter_mut().take(last + 1).skip(first) {
                *bytes = (*bytes).max(value_bytes(plan, value).max(16));
            }
        }
        for (sum, bytes) in live.iter_mut().zip(tenant) {
            *sum = sum.saturating_add(bytes);
        }
    }
    live.into_iter().max().unwrap_or(0)
}
