//! Guards that the plan verifier refuses damage to the plans that the compiler makes: at every place where it can be done,
//! with the error that names it. `plan_verify`'s own tests do the same to a plan written by hand, in more ways.

mod common;

use common::{Outcome, compile, profile};
use monopass_blocks::{Head, Io, LmConfig, LmGraph, Mamba2Config, mamba2, model};
use monopass_ir::Graph;
use monopass_lower::plan::{Access, Plan, Resource, SlotId};
use monopass_lower::plan_verify::verify_plan;
use monopass_lower::{CompileOptions, Target};

/// Plans with shared slots, states in place and in two buffers, packs, and a split product.
fn plans() -> Outcome<Vec<(Target, Plan)>> {
    let block = Mamba2Config::new(768);
    let small = Mamba2Config { headdim: 6, d_state: 5, ngroups: 2, ..Mamba2Config::new(12) };
    let lm = |len, head| model::graph(&LmConfig::new(small.clone(), 2, 61), 3, len, LmGraph::new(Io::Stateful, head));
    let graphs: Vec<Graph> = vec![
        mamba2::graph(&block, 1, 2048, Io::Stateful)?,
        mamba2::graph(&block, 3, 20, Io::Explicit)?,
        mamba2::graph(&block, 1, 1, Io::Stateful)?,
        lm(30, Head::Logits)?,
        lm(1, Head::Next)?,
    ];
    let mut plans = Vec::new();
    for target in ["nvidia", "webgpu-default", "lavapipe"] {
        for graph in &graphs {
            let target = profile(target)?;
            let plan = compile(graph, &target, &CompileOptions::default())?;
            plans.push((target, plan));
        }
    }
    Ok(plans)
}

/// Does `damage` to each of the first `n` places of every plan and asserts one of the errors `expected`; `damage` gives
/// whether there is anything to damage at that place.
fn check(expected: &[&str], n_least: usize, damage: impl Fn(&mut Plan, &Target, usize) -> bool) -> Outcome {
    let mut n_done = 0;
    for (target, plan) in plans()? {
        for place in 0..plan.cmds.len().max(plan.slots.len()).max(plan.buffers.len()) {
            let mut damaged = plan.clone();
            if !damage(&mut damaged, &target, place) {
                continue;
            }
            n_done += 1;
            let errors = verify_plan(&damaged, &target).err().unwrap_or_default();
            let found: Vec<String> = errors.iter().map(|error| format!("{error:?}")).collect();
            let is_named = found.iter().any(|error| expected.iter().any(|kind| error.split([' ', '{']).next() == Some(kind)));
            if !is_named {
                return Err(
                    format!("@{} for {} at {place}: expected {expected:?}, found {found:?}\n{damaged}", plan.name, target.name).into()
                );
            }
        }
    }
    assert!(n_done >= n_least, "only {n_done} places to damage");
    Ok(())
}

/// The place among the arguments of a command of the first that holds for `is_it`.
fn find_arg(plan: &Plan, cmd: usize, is_it: impl Fn(&monopass_lower::plan::Arg) -> bool) -> Option<usize> {
    plan.cmds.get(cmd)?.args.iter().position(is_it)
}

#[test]
fn a_dropped_command() -> Outcome {
    check(&["NeverWritten", "NotReceived"], 60, |plan, _, place| {
        let is_there = place < plan.cmds.len();
        if is_there {
            plan.cmds.remove(place);
        }
        is_there
    })
}

#[test]
fn a_command_twice() -> Outcome {
    check(&["WrittenTwice"], 60, |plan, _, place| {
        let again = plan.cmds.get(place).cloned();
        plan.cmds.extend(again.clone());
        again.is_some()
    })
}

#[test]
fn a_command_before_what_it_needs() -> Outcome {
    check(&["ReadBeforeWrite", "Overwritten"], 40, |plan, _, place| {
        let Some([first, second]) = plan.cmds.get(place..(place + 2).min(plan.cmds.len())).and_then(|pair| pair.first_chunk()) else {
            return false;
        };
        let written: Vec<_> = first.args.iter().filter_map(|arg| arg.writes).collect();
        let depends = second.args.iter().any(|arg| arg.reads.iter().any(|value| written.contains(value)));
        if depends {
            plan.cmds.swap(place, place + 1);
        }
        depends
    })
}

#[test]
fn a_shrunk_slot() -> Outcome {
    check(&["SlotTooSmall"], 40, |plan, _, place| {
        let slot = plan.slots.get_mut(place);
        slot.map(|slot| slot.size_bytes -= 16).is_some()
    })
}

#[test]
fn a_shrunk_buffer() -> Outcome {
    check(&["BufferTooSmall", "PackTooSmall"], 100, |plan, _, place| {
        let buffer = plan.buffers.get_mut(place);
        buffer.map(|buffer| buffer.size_bytes -= 16).is_some()
    })
}

#[test]
fn two_slots_as_one() -> Outcome {
    check(&["SharedWhileLive", "ReadAndWrite", "WriteTwice", "Overwritten"], 20, |plan, _, place| {
        let Some(after) = plan.slots.get(place + 1) else { return false };
        let meets = plan.slots[place]
            .residents
            .iter()
            .any(|a| after.residents.iter().any(|b| a.first_cmd <= b.last_cmd && b.first_cmd <= a.last_cmd));
        if !meets {
            return false;
        }
        let [one, other] = [place, place + 1].map(|slot| Resource::Slot(SlotId(u32::try_from(slot).unwrap_or(0))));
        for arg in plan.cmds.iter_mut().flat_map(|cmd| &mut cmd.args) {
            if arg.resource == other {
                arg.resource = one;
            }
        }
        true
    })
}

#[test]
fn an_argument_that_reads_elsewhere() -> Outcome {
    check(&["WrongStorage", "ReadAndWrite", "NeverWritten"], 50, |plan, _, place| {
        let Some(arg) = find_arg(plan, place, |arg| arg.writes.is_none() && matches!(arg.resource, Resource::Slot(_))) else {
            return false;
        };
        plan.cmds[place].args[arg].resource = Resource::Buffer(monopass_lower::plan::BufferId(0));
        true
    })
}

#[test]
fn a_result_bound_for_reading() -> Outcome {
    check(&["WritesThroughRead"], 60, |plan, _, place| {
        let Some(arg) = find_arg(plan, place, |arg| arg.writes.is_some()) else { return false };
        plan.cmds[place].args[arg].access = Access::Read;
        true
    })
}

#[test]
fn a_result_over_an_operand() -> Outcome {
    check(&["ReadAndWrite"], 60, |plan, _, place| {
        let read = find_arg(plan, place, |arg| arg.access == Access::Read);
        let written = find_arg(plan, place, |arg| arg.access == Access::ReadWrite && arg.reads.is_empty());
        let (Some(read), Some(written)) = (read, written) else { return false };
        plan.cmds[place].args[written].resource = plan.cmds[place].args[read].resource;
        true
    })
}

#[test]
fn an_undeclared_update_in_place() -> Outcome {
    check(&["InPlaceUndeclared"], 6, |plan, _, place| {
        let Some(arg) = find_arg(plan, place, |arg| arg.writes.is_some() && !arg.reads.is_empty()) else { return false };
        let kernel = plan.cmds[place].kernel;
        plan.kernels[kernel.0 as usize].bindings[arg].in_place = false;
        true
    })
}

#[test]
fn a_resident_left_out() -> Outcome {
    check(&["ResidentMissing", "UnusedSlot"], 40, |plan, _, place| {
        let residents = plan.slots.get_mut(place).map(|slot| &mut slot.residents);
        residents.and_then(Vec::pop).is_some()
    })
}

#[test]
fn a_dispatch_over_the_limit() -> Outcome {
    check(&["Workgroups"], 60, |plan, target, place| {
        let cmd = plan.cmds.get_mut(place);
        cmd.map(|cmd| cmd.workgroups[1] = target.max_workgroups + 1).is_some()
    })
}

#[test]
fn a_missing_size() -> Outcome {
    check(&["DimsCount"], 40, |plan, _, place| {
        let dims = plan.cmds.get_mut(place).map(|cmd| &mut cmd.dims);
        dims.and_then(Vec::pop).is_some()
    })
}
