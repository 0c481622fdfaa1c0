//! The text of a plan. It prints only; equal plans print equal text, byte for byte.
//!
//! ```text
//! plan     := "plan 1 @"NAME "target" NAME "(unmeasured)"? line*
//! buffer   := "buffer" ID kind STR type BYTES ("in_place" | "double" | "constant")? ("=" VALUE)? ("->" VALUE)?
//! part     := "  part" STR type "at" OFFSET "=" VALUE                         (of the pack above)
//! slot     := "slot" ID BYTES ":" VALUE "live" FIRST..=LAST ("," …)*
//! kernel   := "kernel" ID LABEL "workgroup" [X, Y, Z] ("," "shared" BYTES)? ("," "unchecked")?  "//" VALUES
//! cmd      := "cmd" N "dispatch" ID [X, Y, Z] arg ("," arg)* "," figures "//" SCOPES ":" OPS
//! arg      := ("read" | "write" | "update") STORAGE "=" VALUE ("->" VALUE)?   (of a pack: "= {VALUE, …}")
//! total    := "total" figures, and where a budget was to be kept "recompute" INT "of" INT "segments" figures
//! notes    := "// not fused:" REASON
//! ```
//!
//! `b3 -> %7` is a buffer that holds `%7` at the end; `b3.new` is the buffer that takes a state's new content.

use crate::plan::{Arg, Buffer, BufferId, BufferKind, Cmd, Kernel, KernelId, Plan, PlanValueId, Recompute, Resource, SlotId};
use crate::target::Target;
use std::fmt;

/// Values that a kernel's comment names before it says how many more there are.
const MOST_VALUES: usize = 6;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_unmeasured = Target::profile(&self.target).is_some_and(|target| target.is_unmeasured);
        let mark = if is_unmeasured { " (unmeasured)" } else { "" };
        writeln!(f, "plan 1 @{} target {}{mark}", self.name, self.target)?;
        buffers(self, f)?;
        slots(self, f)?;
        kernels(self, f)?;
        for (idx, cmd) in self.cmds.iter().enumerate() {
            command(self, idx, cmd, f)?;
        }
        total(self, f)?;
        self.recompute.iter().try_for_each(|recompute| {
            let Recompute { segments, n_segments, kept_bytes, recomputed_bytes } = recompute;
            writeln!(
                f,
                "recompute {} of {n_segments} segments: slots {kept_bytes} bytes with none of them, {recomputed_bytes} with all",
                segments.len()
            )
        })?;
        self.not_fused.iter().try_for_each(|reason| writeln!(f, "// not fused: {reason}"))
    }
}

/// Label of a value, or its id if the plan has none.
pub(crate) fn label(plan: &Plan, id: PlanValueId) -> String {
    plan.values.get(id.index()).map_or_else(|| id.to_string(), |value| value.label.clone())
}

/// Labels of values, with commas.
pub(crate) fn labels(plan: &Plan, ids: &[PlanValueId]) -> String {
    ids.iter().map(|&id| label(plan, id)).collect::<Vec<_>>().join(", ")
}

/// An argument as a command's line names it.
pub(crate) fn argument(plan: &Plan, arg: &Arg) -> String {
    let Arg { resource, reads, writes, .. } = arg;
    match (reads.as_slice(), writes) {
        ([old], Some(new)) => format!("update {resource} = {} -> {}", label(plan, *old), label(plan, *new)),
        (_, Some(new)) => format!("write {resource} = {}", label(plan, *new)),
        ([value], None) if !is_pack(plan, *resource) => format!("read {resource} = {}", label(plan, *value)),
        (values, None) => format!("read {resource} = {{{}}}", labels(plan, values)),
    }
}

fn is_pack(plan: &Plan, resource: Resource) -> bool {
    let Resource::Buffer(id) = resource else { return false };
    plan.buffers.get(id.0 as usize).is_some_and(|buffer| matches!(buffer.kind, BufferKind::Pack { .. }))
}

/// What a kernel's commands write, shortened.
pub(crate) fn kernel_values(plan: &Plan, id: KernelId) -> String {
    let cmds = plan.cmds.iter().filter(|cmd| cmd.kernel == id);
    let values: Vec<PlanValueId> = cmds.flat_map(|cmd| cmd.args.iter().filter_map(|arg| arg.writes)).collect();
    let shown = labels(plan, &values[..values.len().min(MOST_VALUES)]);
    match values.len().saturating_sub(MOST_VALUES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Name and type columns of a buffer.
fn columns(buffer: &Buffer) -> (String, String) {
    match &buffer.kind {
        BufferKind::Pack { parts } => (format!("{} parts", parts.len()), String::new()),
        BufferKind::Input { name, ty }
        | BufferKind::Param { name, ty }
        | BufferKind::State { name, ty, .. }
        | BufferKind::Output { name, ty } => (format!("{name:?}"), ty.to_string()),
    }
}

fn buffers(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let rows: Vec<(String, String)> = plan.buffers.iter().map(columns).collect();
    let widest = |of: fn(&(String, String)) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let (name_width, ty_width) = (widest(|row| row.0.chars().count()), widest(|row| row.1.len()));
    let bytes_width = plan.buffers.iter().map(|buffer| buffer.size_bytes.to_string().len()).max().unwrap_or(0);
    for ((id, buffer), (name, ty)) in (0..).map(BufferId).zip(&plan.buffers).zip(&rows) {
        let (kind, size) = (buffer.kind.word(), buffer.size_bytes);
        write!(f, "buffer {id} {kind:6} {name:name_width$} {ty:ty_width$} {size:bytes_width$} bytes")?;
        if let BufferKind::State { storage, .. } = &buffer.kind {
            write!(f, " {}", storage.word())?;
        }
        if let Some(value) = buffer.holds {
            write!(f, " = {}", label(plan, value))?;
        }
        if let Some(value) = buffer.receives {
            write!(f, " -> {}", label(plan, value))?;
        }
        writeln!(f)?;
        if let BufferKind::Pack { parts } = &buffer.kind {
            for part in parts {
                writeln!(f, "  part {:?} {} at {} = {}", part.name, part.ty, part.offset_bytes, label(plan, part.value))?;
            }
        }
    }
    Ok(())
}

fn slots(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (id, slot) in (0..).map(SlotId).zip(&plan.slots) {
        let lives = slot.residents.iter().map(|one| format!("{} live {}..={}", label(plan, one.value), one.first_cmd, one.last_cmd));
        writeln!(f, "slot {id} {} bytes: {}", slot.size_bytes, lives.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

fn kernels(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (id, kernel) in (0..).map(KernelId).zip(&plan.kernels) {
        let Kernel { label, workgroup_size, workgroup_bytes, bounds_proved, .. } = kernel;
        write!(f, "kernel {id} {label} workgroup {workgroup_size:?}")?;
        if *workgroup_bytes > 0 {
            write!(f, ", shared {workgroup_bytes} bytes")?;
        }
        if *bounds_proved {
            write!(f, ", unchecked")?;
        }
        writeln!(f, " // {}", kernel_values(plan, id))?;
    }
    Ok(())
}

fn command(plan: &Plan, idx: usize, cmd: &Cmd, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "cmd {idx} dispatch {} {:?}", cmd.kernel, cmd.workgroups)?;
    for (idx, arg) in cmd.args.iter().enumerate() {
        write!(f, "{}{}", if idx == 0 { " " } else { ", " }, argument(plan, arg))?;
    }
    if !cmd.dims.is_empty() {
        write!(f, ", dims {:?}", cmd.dims)?;
    }
    let invocations = plan.kernels.get(cmd.kernel.0 as usize).map_or(0, |kernel| cmd.invocations(kernel));
    let Cmd { loop_trips, flops, bytes_moved, .. } = cmd;
    write!(f, ", trips {loop_trips}, invocations {invocations}, flops {flops}, bytes {bytes_moved}")?;
    match (cmd.scope.as_str(), cmd.computes.as_str()) {
        ("", "") => writeln!(f),
        ("", computes) => writeln!(f, " // {computes}"),
        (scope, "") => writeln!(f, " // {scope}"),
        (scope, computes) => writeln!(f, " // {scope}: {computes}"),
    }
}

fn total(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let totals = plan.totals();
    writeln!(
        f,
        "total params {} bytes, states {} bytes, inputs and outputs {} bytes, slots {} bytes (at least {}), flops {}, moved {} bytes, {}, {}",
        totals.params_bytes,
        totals.states_bytes,
        totals.io_bytes,
        totals.slots_bytes,
        plan.live_bytes,
        totals.flops,
        totals.bytes_moved,
        count(plan.kernels.len(), "kernel", "kernels"),
        count(plan.cmds.len(), "dispatch", "dispatches"),
    )
}

/// `1 kernel`, `2 kernels`.
pub(crate) fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::plan_verify::tests::sound_plan;

    #[test]
    fn a_plan_with_every_feature_prints() {
        let mut plan = sound_plan();
        plan.kernels[2].bounds_proved = true;
        plan.kernels[3].workgroup_bytes = 0;
        plan.cmds[6].computes = "%7 copy".to_owned();
        plan.not_fused.push("%9 into %10: read twice".to_owned());
        insta::assert_snapshot!(plan.to_string(), @r#"
        plan 1 @sound target webgpu-default
        buffer b0 input  "x"     f32[16] 64 bytes = %0
        buffer b1 param  "w"     f32[16] 64 bytes = %1
        buffer b2 pack   2 parts         48 bytes
          part "g" f32[4] at 0 = %2
          part "h" f32[4] at 32 = %3
        buffer b3 state  "s"     f32[16] 64 bytes in_place = %4 -> %5
        buffer b4 state  "r"     f32[8]  32 bytes double = %6 -> %7
        buffer b5 state  "c"     f32[4]  16 bytes constant = %8
        buffer b6 output "y"     f32[16] 64 bytes -> %12
        buffer b7 output "z"     f32[8]  32 bytes -> %13
        slot s0 64 bytes: %9 live 0..=1, %14 live 4..=5
        slot s1 64 bytes: %9.carry live 1..=2, %11 live 2..=3
        kernel k0 mul workgroup [8, 8, 1], shared 1024 bytes // %9, %14, %13
        kernel k1 norm workgroup [8, 8, 1], shared 1024 bytes // %9.carry, %12
        kernel k2 scale workgroup [8, 8, 1], shared 1024 bytes, unchecked // %11, %5
        kernel k3 copy workgroup [8, 8, 1] // %7
        cmd 0 dispatch k0 [3, 1, 1] read b0 = %0, read b1 = %1, write s0 = %9, dims [5], trips 100, invocations 192, flops 7, bytes 192 // mixer
        cmd 1 dispatch k1 [3, 1, 1] read s0 = %9, read b2 = {%2, %3}, write s1 = %9.carry, dims [5], trips 100, invocations 192, flops 7, bytes 160 // mixer
        cmd 2 dispatch k2 [3, 1, 1] update s1 = %9.carry -> %11, read b5 = %8, dims [5], trips 100, invocations 192, flops 7, bytes 144 // mixer
        cmd 3 dispatch k2 [3, 1, 1] update b3 = %4 -> %5, read s1 = %11, dims [5], trips 100, invocations 192, flops 7, bytes 192 // mixer
        cmd 4 dispatch k0 [3, 1, 1] read b3 = %5, read b1 = %1, write s0 = %14, dims [5], trips 100, invocations 192, flops 7, bytes 176 // mixer
        cmd 5 dispatch k1 [3, 1, 1] read s0 = %14, read b2 = {%3}, write b6 = %12, dims [5], trips 100, invocations 192, flops 7, bytes 128 // mixer
        cmd 6 dispatch k3 [3, 1, 1] read b4 = %6, write b4.new = %7, dims [5], trips 100, invocations 192, flops 7, bytes 64 // mixer: %7 copy
        cmd 7 dispatch k0 [3, 1, 1] read b4.new = %7, read b6 = %12, write b7 = %13, dims [5], trips 100, invocations 192, flops 7, bytes 128 // mixer
        total params 112 bytes, states 144 bytes, inputs and outputs 160 bytes, slots 128 bytes (at least 128), flops 56, moved 1184 bytes, 4 kernels, 8 dispatches
        // not fused: %9 into %10: read twice
        "#);
    }

    #[test]
    fn unmeasured_profiles_are_marked_and_unknown_ids_printed() {
        let plan = Plan { name: "empty".to_owned(), target: "adreno".to_owned(), ..Plan::default() };
        assert!(plan.to_string().starts_with("plan 1 @empty target adreno (unmeasured)\n"));
        let mut broken = sound_plan();
        broken.values.clear();
        broken.kernels.clear();
        assert!(broken.to_string().contains("read b0 = v0"));
    }

    #[test]
    fn long_lists_of_values_are_shortened() {
        let mut plan = sound_plan();
        for _ in 0..4 {
            plan.cmds.push(plan.cmds[0].clone());
        }
        assert!(plan.to_string().contains("// %9, %14, %13, %9, %9, %9 and 1 more"));
    }
}
