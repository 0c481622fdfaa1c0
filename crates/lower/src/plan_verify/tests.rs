//! A sound plan with every feature, and each way to damage it that the verifier has to refuse.

use super::*;
use crate::plan::{Access, Arg, BindingSpec, BufferKind, Cmd, PackPart, Resident, StateStorage};
use indexmap::IndexSet;
use monopass_ir::{DType, TensorType};

fn f32s(n: usize) -> TensorType {
    TensorType::new(DType::F32, [n])
}

const fn v(id: u32) -> PlanValueId {
    PlanValueId(id)
}

const fn buf(id: u32) -> Resource {
    Resource::Buffer(BufferId(id))
}

const fn slot_at(id: u32) -> Resource {
    Resource::Slot(SlotId(id))
}

fn read(resource: Resource, values: &[u32]) -> Arg {
    Arg { resource, access: Access::Read, reads: values.iter().copied().map(PlanValueId).collect(), writes: None }
}

fn write(resource: Resource, value: u32) -> Arg {
    Arg { resource, access: Access::ReadWrite, reads: Vec::new(), writes: Some(v(value)) }
}

fn replace(resource: Resource, old: u32, new: u32) -> Arg {
    Arg { reads: vec![v(old)], ..write(resource, new) }
}

/// A kernel whose bindings are given as letters: r reads, w writes, i writes in place.
fn kernel_of(name: &str, bindings: &str) -> Kernel {
    let binding = |(idx, letter): (usize, char)| BindingSpec {
        name: format!("a{idx}"),
        access: if letter == 'r' { Access::Read } else { Access::ReadWrite },
        in_place: letter == 'i',
    };
    Kernel {
        label: name.to_owned(),
        wgsl: format!("// {name}"),
        workgroup_size: [8, 8, 1],
        workgroup_bytes: 1024,
        bindings: bindings.chars().enumerate().map(binding).collect(),
        n_dims: 1,
        bounds_proved: false,
    }
}

fn cmd(plan: &Plan, kernel: u32, args: Vec<Arg>) -> Cmd {
    let bytes_moved = args.iter().flat_map(|arg| arg.reads.iter().chain(&arg.writes)).map(|id| value_bytes(plan, *id)).sum();
    Cmd {
        kernel: KernelId(kernel),
        workgroups: [3, 1, 1],
        args,
        dims: vec![5],
        loop_trips: 100,
        flops: 7,
        bytes_moved,
        scope: "mixer".to_owned(),
        computes: String::new(),
    }
}

fn buffer_of(kind: BufferKind, size_bytes: u64, holds: Option<u32>, receives: Option<u32>) -> Buffer {
    Buffer { kind, size_bytes, holds: holds.map(PlanValueId), receives: receives.map(PlanValueId) }
}

fn state(name: &str, n: usize, storage: StateStorage) -> BufferKind {
    BufferKind::State { name: name.to_owned(), ty: f32s(n), storage }
}

/// Input x, weights w and (packed) g and h, states s (in place), r (double) and c (constant), outputs y and z; slot s0
/// is used twice, in slot s1 one value replaces another in place.
pub(crate) fn sound_plan() -> Plan {
    let sizes = [64, 64, 16, 16, 64, 64, 32, 32, 16, 64, 64, 64, 64, 32, 48];
    let label = |idx: usize| if idx == 10 { "%9.carry".to_owned() } else { format!("%{idx}") };
    let part = |value: u32, name: &str, offset_bytes| PackPart { value: v(value), name: name.to_owned(), ty: f32s(4), offset_bytes };
    let resident = |value: u32, first_cmd, last_cmd| Resident { value: v(value), first_cmd, last_cmd };
    let mut plan = Plan {
        name: "sound".to_owned(),
        target: "webgpu-default".to_owned(),
        values: sizes.into_iter().enumerate().map(|(idx, size_bytes)| PlanValue { label: label(idx), size_bytes }).collect(),
        buffers: vec![
            buffer_of(BufferKind::Input { name: "x".to_owned(), ty: f32s(16) }, 64, Some(0), None),
            buffer_of(BufferKind::Param { name: "w".to_owned(), ty: f32s(16) }, 64, Some(1), None),
            buffer_of(BufferKind::Pack { parts: vec![part(2, "g", 0), part(3, "h", 32)] }, 48, None, None),
            buffer_of(state("s", 16, StateStorage::InPlace), 64, Some(4), Some(5)),
            buffer_of(state("r", 8, StateStorage::Double), 32, Some(6), Some(7)),
            buffer_of(state("c", 4, StateStorage::Constant), 16, Some(8), None),
            buffer_of(BufferKind::Output { name: "y".to_owned(), ty: f32s(16) }, 64, None, Some(12)),
            buffer_of(BufferKind::Output { name: "z".to_owned(), ty: f32s(8) }, 32, None, Some(13)),
        ],
        slots: vec![
            Slot { size_bytes: 64, residents: vec![resident(9, 0, 1), resident(14, 4, 5)] },
            Slot { size_bytes: 64, residents: vec![resident(10, 1, 2), resident(11, 2, 3)] },
        ],
        kernels: vec![kernel_of("mul", "rrw"), kernel_of("norm", "rrw"), kernel_of("scale", "ir"), kernel_of("copy", "rw")],
        cmds: Vec::new(),
        not_fused: Vec::new(),
        live_bytes: 128,
        recompute: None,
    };
    plan.cmds = vec![
        cmd(&plan, 0, vec![read(buf(0), &[0]), read(buf(1), &[1]), write(slot_at(0), 9)]),
        cmd(&plan, 1, vec![read(slot_at(0), &[9]), read(buf(2), &[2, 3]), write(slot_at(1), 10)]),
        cmd(&plan, 2, vec![replace(slot_at(1), 10, 11), read(buf(5), &[8])]),
        cmd(&plan, 2, vec![replace(buf(3), 4, 5), read(slot_at(1), &[11])]),
        cmd(&plan, 0, vec![read(buf(3), &[5]), read(buf(1), &[1]), write(slot_at(0), 14)]),
        cmd(&plan, 1, vec![read(slot_at(0), &[14]), read(buf(2), &[3]), write(buf(6), 12)]),
        cmd(&plan, 3, vec![read(buf(4), &[6]), write(Resource::NewState(BufferId(4)), 7)]),
        cmd(&plan, 0, vec![read(Resource::NewState(BufferId(4)), &[7]), read(buf(6), &[12]), write(buf(7), 13)]),
    ];
    plan
}

/// Tight limits, all of them met exactly by [`sound_plan`].
fn target() -> Target {
    Target {
        max_storage_buffers: 3,
        max_binding_bytes: 64,
        max_buffer_bytes: 64,
        max_workgroup_bytes: 1024,
        max_invocations: 64,
        max_workgroup_size: [8, 8, 1],
        max_workgroups: 3,
        max_loop_trips: Some(100),
        ..Target::webgpu_default()
    }
}

fn kind(error: &PlanError) -> String {
    let text = format!("{error:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

#[test]
fn a_sound_plan_passes() {
    assert_eq!(verify_plan(&sound_plan(), &target()), Ok(()));
    assert_eq!(verify_plan(&Plan::default(), &target()), Ok(()));
}

type Damage = (&'static str, &'static str, fn(&mut Plan));

const TABLES: &[Damage] = &[
    ("a buffer holds an unknown value", "NoSuchValue", |p| p.buffers[0].holds = Some(v(99))),
    ("an argument reads an unknown value", "NoSuchValue", |p| p.cmds[0].args[0].reads = vec![v(99)]),
    ("a slot has an unknown resident", "NoSuchValue", |p| p.slots[0].residents[0].value = v(99)),
    ("a pack part is an unknown value", "NoSuchValue", |p| parts(p)[0].value = v(99)),
    ("an argument binds an unknown buffer", "NoSuchStorage", |p| p.cmds[0].args[0].resource = buf(99)),
    ("an argument binds an unknown slot", "NoSuchStorage", |p| p.cmds[0].args[2].resource = slot_at(99)),
    ("a command runs an unknown kernel", "NoSuchKernel", |p| p.cmds[0].kernel = KernelId(99)),
    ("a label is no id", "BadLabel", |p| p.values[9].label = "a".to_owned()),
    ("a label has no number", "BadLabel", |p| p.values[10].label = "%.carry".to_owned()),
    ("a label is given twice", "SameLabel", |p| p.values[9].label = "%4".to_owned()),
    ("a value is not padded", "UnpaddedValue", |p| p.values[9].size_bytes = 60),
    ("a slot is not padded", "UnpaddedStorage", |p| p.slots[0].size_bytes = 66),
    ("a buffer is empty", "UnpaddedStorage", |p| p.buffers[5].size_bytes = 0),
    ("two outputs have one name", "SameName", |p| p.buffers[7].kind = BufferKind::Output { name: "y".to_owned(), ty: f32s(8) }),
    ("an input holds nothing", "HoldsNothing", |p| p.buffers[0].holds = None),
    ("an output holds a value", "HoldsWrongly", |p| p.buffers[7].holds = Some(v(13))),
    ("an output receives nothing", "ReceivesNothing", |p| p.buffers[6].receives = None),
    ("an updated state receives nothing", "ReceivesNothing", |p| p.buffers[4].receives = None),
    ("a weight receives a value", "ReceivesWrongly", |p| p.buffers[1].receives = Some(v(1))),
    ("two buffers hold one value", "HeldTwice", |p| p.buffers[1].holds = Some(v(0))),
    ("two outputs receive one value", "ReceivedTwice", |p| p.buffers[7].receives = Some(v(12))),
    ("a buffer's type has another size", "TypeSize", |p| p.buffers[4].kind = state("r", 9, StateStorage::Double)),
    ("a pack part's type has another size", "TypeSize", |p| parts(p)[0].ty = f32s(5)),
    ("a buffer is shrunk", "BufferTooSmall", |p| p.buffers[6].size_bytes = 60),
    ("a slot is shrunk", "SlotTooSmall", |p| p.slots[0].size_bytes = 60),
    ("a pack has no parts", "PackEmpty", |p| parts(p).clear()),
    ("a pack part is not aligned", "PackUnaligned", |p| parts(p)[1].offset_bytes = 30),
    ("pack parts overlap", "PackOverlap", |p| parts(p)[1].offset_bytes = 12),
    ("pack parts are out of order", "PackOverlap", |p| parts(p).reverse()),
    ("a pack part ends behind its pack", "PackTooSmall", |p| parts(p)[1].offset_bytes = 36),
    ("a weight's name stands for two values", "WeightDiffers", |p| parts(p)[1].name = "w".to_owned()),
];

const LIMITS: &[Damage] = &[
    ("a kernel stands twice", "SameKernel", |p| p.kernels[3] = p.kernels[0].clone()),
    ("a kernel is not run", "UnusedKernel", |p| p.kernels.push(kernel_of("idle", "r"))),
    ("kernels are out of order", "KernelOrder", |p| {
        p.kernels.swap(0, 1);
        for cmd in &mut p.cmds {
            cmd.kernel = KernelId([1, 0, 2, 3][cmd.kernel.0 as usize]);
        }
    }),
    ("two bindings have one name", "SameBinding", |p| p.kernels[0].bindings[1].name = "a0".to_owned()),
    ("a read-only binding is declared in place", "InPlaceReadOnly", |p| p.kernels[0].bindings[0].in_place = true),
    ("a workgroup is empty", "EmptyWorkgroup", |p| p.kernels[0].workgroup_size = [8, 0, 1]),
    ("a workgroup is too long in z", "WorkgroupAxis", |p| p.kernels[0].workgroup_size = [8, 4, 2]),
    ("a workgroup is too large", "Invocations", |p| p.kernels[0].workgroup_size = [8, 9, 1]),
    ("workgroup memory is over the limit", "WorkgroupMemory", |p| p.kernels[0].workgroup_bytes = 1028),
    ("too many storage buffers", "StorageBuffers", |p| p.kernels[0] = kernel_of("mul", "rrrw")),
    ("a dispatch is empty", "EmptyDispatch", |p| p.cmds[0].workgroups = [3, 0, 1]),
    ("too many workgroups in x", "Workgroups", |p| p.cmds[0].workgroups = [4, 1, 1]),
    ("too many workgroups in z", "Workgroups", |p| p.cmds[0].workgroups = [1, 1, 4]),
    ("a loop runs too long", "LoopTrips", |p| p.cmds[0].loop_trips = 101),
    ("a slot is over the binding limit", "BindingSize", |p| p.slots[0].size_bytes = 68),
    ("a buffer is over the buffer limit", "BufferSize", |p| p.buffers[0].size_bytes = 68),
];

const COMMANDS: &[Damage] = &[
    ("an argument is missing", "ArgCount", |p| drop(p.cmds[0].args.pop())),
    ("a size is missing", "DimsCount", |p| p.cmds[0].dims.clear()),
    ("a size is too many", "DimsCount", |p| p.cmds[0].dims.push(1)),
    ("arguments are swapped", "WrongAccess", |p| p.cmds[0].args.swap(1, 2)),
    ("a result is bound for reading", "WrongAccess", |p| p.cmds[0].args[2].access = Access::Read),
    ("a kernel declares another access", "WrongAccess", |p| p.kernels[3].bindings[0].access = Access::ReadWrite),
    ("an argument has no value", "IdleArg", |p| p.cmds[0].args[0].reads.clear()),
    ("a result is written through a read-only binding", "WritesThroughRead", |p| p.cmds[7].args[1].writes = Some(v(13))),
    ("a result is left out", "WritableUnwritten", |p| p.cmds[7].args[2] = Arg { writes: None, ..replace(buf(7), 13, 13) }),
    ("several values are read from a slot", "SeveralReads", |p| p.cmds[1].args[0].reads = vec![v(9), v(9)]),
    ("an operand and the result share a slot", "ReadAndWrite", |p| p.cmds[1].args[2].resource = slot_at(0)),
    ("a state is read beside its update in place", "ReadAndWrite", |p| p.cmds[3].args[1] = read(buf(3), &[4])),
    ("two results share a slot", "WriteTwice", |p| {
        p.kernels[1] = kernel_of("norm", "rww");
        p.cmds[1].args[1] = write(slot_at(1), 14);
    }),
    ("a binding is not declared in place", "InPlaceUndeclared", |p| p.kernels[2].bindings[0].in_place = false),
    ("a result replaces its operand by itself", "InPlaceUndeclared", |p| p.cmds[5].args[2] = replace(slot_at(0), 14, 12)),
    ("a value is replaced by a smaller one", "InPlaceSize", |p| p.values[11].size_bytes = 60),
    ("an output is said to have a second buffer", "NotDouble", |p| p.cmds[5].args[2].resource = Resource::NewState(BufferId(6))),
    ("a double-buffered state is declared in place", "NotDouble", |p| p.buffers[4].kind = state("r", 8, StateStorage::InPlace)),
    ("a double-buffered state is declared constant", "ReceivesWrongly", |p| p.buffers[4].kind = state("r", 8, StateStorage::Constant)),
    ("an input is written", "WritesInput", |p| p.cmds[0].args[2].resource = buf(0)),
    ("a weight is written", "WritesWeight", |p| p.cmds[5].args[2].resource = buf(1)),
    ("a pack is written", "WritesWeight", |p| p.cmds[0].args[2].resource = buf(2)),
    ("a constant state is written", "WritesConstantState", |p| p.cmds[6].args[1].resource = buf(5)),
    ("a state is declared constant but updated", "WritesConstantState", |p| {
        p.buffers[3].kind = state("s", 16, StateStorage::Constant);
    }),
    ("the old content of a state is written", "WritesOldState", |p| p.cmds[6].args[1] = replace(buf(4), 6, 7)),
    ("a state in place is declared double", "WritesOldState", |p| p.buffers[3].kind = state("s", 16, StateStorage::Double)),
    ("the bytes moved are wrong", "BytesMoved", |p| p.cmds[0].bytes_moved += 4),
];

const CONTENTS: &[Damage] = &[
    ("a command is run twice", "WrittenTwice", |p| p.cmds.insert(1, p.cmds[0].clone())),
    ("an input's value is computed", "WritesHeld", |p| p.cmds[0].args[2] = write(slot_at(0), 0)),
    ("the first command is dropped", "NeverWritten", |p| drop(p.cmds.remove(0))),
    ("two commands are swapped", "ReadBeforeWrite", |p| p.cmds.swap(0, 1)),
    ("a state is read after its update in place", "Overwritten", |p| p.cmds[4].args[0].reads = vec![v(4)]),
    ("a slot is taken over too early", "Overwritten", |p| {
        let mut early = p.cmds.remove(4);
        early.args[0] = read(buf(0), &[0]);
        p.cmds.insert(1, early);
    }),
    ("slots are swapped in one command", "WrongStorage", |p| p.cmds[1].args[0].resource = slot_at(1)),
    ("a value is read from another buffer", "WrongStorage", |p| p.cmds[0].args[0].resource = buf(1)),
    ("a weight is read from a pack without it", "WrongStorage", |p| p.cmds[5].args[1].reads = vec![v(1)]),
    ("a new state is read as the old one", "WrongStorage", |p| p.cmds[7].args[0].resource = buf(4)),
    ("the last command is dropped", "NotReceived", |p| drop(p.cmds.pop())),
    ("the state's update is dropped", "NotReceived", |p| drop(p.cmds.remove(6))),
    ("an output receives another value", "NotReceived", |p| p.buffers[6].receives = Some(v(9))),
    ("an output is overwritten", "ResultLost", |p| {
        let mut again = p.cmds[6].clone();
        again.args = vec![read(buf(4), &[6]), write(buf(6), 14)];
        p.cmds.push(again);
    }),
];

const RESIDENTS: &[Damage] = &[
    ("a slot is not used", "UnusedSlot", |p| p.slots.push(Slot { size_bytes: 4, residents: Vec::new() })),
    ("slots are swapped in the table", "ResidentMissing", |p| p.slots.swap(0, 1)),
    ("a resident is left out", "ResidentMissing", |p| p.slots[0].residents.truncate(1)),
    ("a resident is made up", "ResidentExtra", |p| p.slots[0].residents.push(Resident { value: v(12), first_cmd: 5, last_cmd: 5 })),
    ("a resident stands twice", "ResidentExtra", |p| p.slots[0].residents.extend_from_within(..1)),
    ("a resident lives too short", "ResidentRange", |p| p.slots[0].residents[0].last_cmd = 0),
    ("a resident is born too late", "ResidentRange", |p| p.slots[1].residents[0].first_cmd = 2),
    ("two live values share a slot", "SharedWhileLive", |p| {
        p.cmds[4].args[2].resource = slot_at(1);
        p.cmds[5].args[0].resource = slot_at(1);
        p.cmds[6].args[0] = read(slot_at(1), &[11]);
    }),
    ("the live bytes are wrong", "LiveBytes", |p| p.live_bytes = 124),
];

fn parts(plan: &mut Plan) -> &mut Vec<PackPart> {
    let BufferKind::Pack { parts } = &mut plan.buffers[2].kind else { panic!("buffer 2 is the pack") };
    parts
}

#[test]
fn every_damage_is_refused_with_its_error() {
    let mut kinds = IndexSet::new();
    let all = [TABLES, LIMITS, COMMANDS, CONTENTS, RESIDENTS].concat();
    for (what, expected, damage) in &all {
        let mut plan = sound_plan();
        damage(&mut plan);
        let errors = verify_plan(&plan, &target()).err().unwrap_or_default();
        let found: Vec<String> = errors.iter().map(kind).collect();
        assert!(found.iter().any(|found| found == expected), "{what}: expected {expected}, found {found:?}");
        assert!(errors.iter().all(|error| !error.to_string().is_empty()));
        kinds.insert(*expected);
    }
    let names: IndexSet<&str> = all.iter().map(|(what, ..)| *what).collect();
    assert_eq!(names.len(), all.len(), "two damages have one name");
    assert!(all.len() >= 90 && kinds.len() >= 60, "{} damages, {} kinds", all.len(), kinds.len());
}

#[test]
fn one_mistake_in_a_table_is_one_error() {
    let found = |damage: fn(&mut Plan)| {
        let mut plan = sound_plan();
        damage(&mut plan);
        verify_plan(&plan, &target()).err().unwrap_or_default()
    };
    let site = error::ArgSite { cmd: 4, arg: 0 };
    assert_eq!(found(|p| p.cmds[4].args[0].reads = vec![v(4)]), [PlanError::Overwritten { site, value: v(4), overwritten_by: 3 }]);
    assert_eq!(found(|p| p.live_bytes = 0), [PlanError::LiveBytes { says: 0, is: 128 }]);
    assert_eq!(
        found(|p| p.slots[0].residents[0].last_cmd = 3),
        [PlanError::ResidentRange { slot: SlotId(0), value: v(9), says: (0, 3), is: (0, 1) }]
    );
}

#[test]
fn values_without_elements_need_no_writer() {
    let mut plan = sound_plan();
    plan.values[9].size_bytes = 0;
    plan.cmds.remove(0);
    let errors: Vec<String> = verify_plan(&plan, &target()).err().unwrap_or_default().iter().map(kind).collect();
    assert!(!errors.contains(&"NeverWritten".to_owned()), "{errors:?}");
}

#[test]
fn profiles_accept_the_plan() {
    for name in Target::PROFILES {
        assert_eq!(verify_plan(&sound_plan(), &Target::profile(name).unwrap()), Ok(()), "{name}");
    }
}
