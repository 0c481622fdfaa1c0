//! A plan as JSON, for tools: every field of [`crate::plan`] under its own name, ids and value labels as in the text.

use crate::plan::{Access, Arg, Buffer, BufferId, BufferKind, Cmd, Kernel, KernelId, Plan, PlanValueId, Slot, SlotId};
use crate::plan_text::label;
use serde_json::{Value, json};

/// The plan with its totals; print it with `{:#}` for lines.
#[must_use]
pub fn plan_json(plan: &Plan) -> Value {
    let totals = plan.totals();
    json!({
        "plan": 1,
        "name": plan.name,
        "target": plan.target,
        "values": plan.values.iter().map(|value| json!({ "label": value.label, "size_bytes": value.size_bytes })).collect::<Vec<_>>(),
        "buffers": (0..).map(BufferId).zip(&plan.buffers).map(|(id, one)| buffer(plan, id, one)).collect::<Vec<_>>(),
        "slots": (0..).map(SlotId).zip(&plan.slots).map(|(id, one)| slot(plan, id, one)).collect::<Vec<_>>(),
        "kernels": (0..).map(KernelId).zip(&plan.kernels).map(|(id, one)| kernel(id, one)).collect::<Vec<_>>(),
        "cmds": plan.cmds.iter().map(|one| cmd(plan, one)).collect::<Vec<_>>(),
        "not_fused": plan.not_fused,
        "recompute": plan.recompute.as_ref().map(|recompute| json!({
            "segments": recompute.segments,
            "n_segments": recompute.n_segments,
            "kept_bytes": recompute.kept_bytes,
            "recomputed_bytes": recompute.recomputed_bytes,
        })),
        "totals": {
            "dispatches": plan.cmds.len(),
            "kernels": plan.kernels.len(),
            "params_bytes": totals.params_bytes,
            "states_bytes": totals.states_bytes,
            "io_bytes": totals.io_bytes,
            "slots_bytes": totals.slots_bytes,
            "live_bytes": plan.live_bytes,
            "memory_bytes": totals.memory_bytes(),
            "flops": totals.flops,
            "bytes_moved": totals.bytes_moved,
        },
    })
}

fn buffer(plan: &Plan, id: BufferId, buffer: &Buffer) -> Value {
    let mut json = json!({ "id": id.to_string(), "kind": buffer.kind.word() });
    match &buffer.kind {
        BufferKind::Pack { parts } => {
            let part = |part: &crate::plan::PackPart| {
                let (ty, value) = (part.ty.to_string(), label(plan, part.value));
                json!({ "name": part.name, "type": ty, "offset_bytes": part.offset_bytes, "value": value })
            };
            json["parts"] = parts.iter().map(part).collect();
        }
        BufferKind::State { storage, .. } => json["storage"] = storage.word().into(),
        BufferKind::Input { .. } | BufferKind::Param { .. } | BufferKind::Output { .. } => {}
    }
    if let (Some(name), Some(ty)) = (buffer.name(), buffer.ty()) {
        json["name"] = name.into();
        json["type"] = ty.to_string().into();
        json["shape"] = ty.shape.clone().into();
    }
    json["size_bytes"] = buffer.size_bytes.into();
    for (key, value) in [("holds", buffer.holds), ("receives", buffer.receives)] {
        if let Some(value) = value {
            json[key] = label(plan, value).into();
        }
    }
    json
}

fn slot(plan: &Plan, id: SlotId, slot: &Slot) -> Value {
    let residents: Vec<Value> = slot
        .residents
        .iter()
        .map(|one| json!({ "value": label(plan, one.value), "first_cmd": one.first_cmd, "last_cmd": one.last_cmd }))
        .collect();
    json!({ "id": id.to_string(), "size_bytes": slot.size_bytes, "residents": residents })
}

fn kernel(id: KernelId, kernel: &Kernel) -> Value {
    let bindings: Vec<Value> =
        kernel.bindings.iter().map(|one| json!({ "name": one.name, "access": access(one.access), "in_place": one.in_place })).collect();
    json!({
        "id": id.to_string(),
        "label": kernel.label,
        "workgroup_size": kernel.workgroup_size,
        "workgroup_bytes": kernel.workgroup_bytes,
        "bindings": bindings,
        "n_dims": kernel.n_dims,
        "bounds_proved": kernel.bounds_proved,
        "wgsl": kernel.wgsl,
    })
}

fn cmd(plan: &Plan, cmd: &Cmd) -> Value {
    json!({
        "kernel": cmd.kernel.to_string(),
        "workgroups": cmd.workgroups,
        "args": cmd.args.iter().map(|one| arg(plan, one)).collect::<Vec<_>>(),
        "dims": cmd.dims,
        "loop_trips": cmd.loop_trips,
        "invocations": plan.kernels.get(cmd.kernel.0 as usize).map(|kernel| cmd.invocations(kernel)),
        "flops": cmd.flops,
        "bytes_moved": cmd.bytes_moved,
        "scope": cmd.scope,
        "computes": cmd.computes,
    })
}

fn arg(plan: &Plan, arg: &Arg) -> Value {
    let labels = |ids: &[PlanValueId]| ids.iter().map(|&id| label(plan, id)).collect::<Vec<_>>();
    let mut json = json!({ "storage": arg.resource.to_string(), "access": access(arg.access), "reads": labels(&arg.reads) });
    if let Some(value) = arg.writes {
        json["writes"] = label(plan, value).into();
    }
    json
}

const fn access(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::ReadWrite => "read_write",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_verify::tests::sound_plan;

    #[test]
    fn every_part_of_a_plan_is_there() {
        let plan = sound_plan();
        let json = plan_json(&plan);
        let count = |key: &str| json[key].as_array().map_or(0, Vec::len);
        assert_eq!([count("buffers"), count("slots"), count("kernels"), count("cmds")], [8, 2, 4, 8]);
        assert_eq!(json["buffers"][2]["parts"][1]["offset_bytes"], 32);
        assert_eq!(json["buffers"][4]["storage"], "double");
        assert_eq!(json["cmds"][3]["args"][0], json!({ "storage": "b3", "access": "read_write", "reads": ["%4"], "writes": "%5" }));
        assert_eq!(json["cmds"][7]["args"][0]["storage"], "b4.new");
        assert_eq!(json["slots"][1]["residents"][0]["value"], "%9.carry");
        assert_eq!((&json["totals"]["dispatches"], &json["totals"]["states_bytes"]), (&json!(8), &json!(144)));
    }

    #[test]
    fn equal_plans_print_equal_json_that_reads_back() {
        let text = format!("{:#}", plan_json(&sound_plan()));
        assert_eq!(text, format!("{:#}", plan_json(&sound_plan())));
        assert_eq!(text.parse::<Value>().unwrap(), plan_json(&sound_plan()));
    }
}
