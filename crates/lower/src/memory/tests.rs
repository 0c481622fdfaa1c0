//! Plans from steps written by hand.

use super::*;
use crate::plan::{BindingSpec, Buffer, BufferKind, StateStorage};
use crate::plan_verify::verify_plan;
use crate::step::{StepValue, Temp};
use monopass_ir::{DType, GraphBuilder};
use proptest::prelude::*;

/// A step of a made-up kernel; `args` are values read (several: a pack, 256 bytes apart) and the value written.
fn step(name: &str, args: &[(&[StepValue], Option<StepValue>)]) -> Step {
    let binding = |(idx, (reads, writes)): (usize, &(&[StepValue], Option<StepValue>))| BindingSpec {
        name: format!("a{idx}"),
        access: if writes.is_some() { Access::ReadWrite } else { Access::Read },
        in_place: writes.is_some() && !reads.is_empty(),
    };
    let offsets = |n: usize| if n > 1 { (0..n as u64).map(|idx| idx * 256).collect() } else { Vec::new() };
    Step {
        kernel: Kernel {
            label: name.to_owned(),
            wgsl: format!("// {name}"),
            workgroup_size: [64, 1, 1],
            workgroup_bytes: 0,
            bindings: args.iter().enumerate().map(binding).collect(),
            n_dims: 0,
            bounds_proved: false,
        },
        args: args
            .iter()
            .map(|(reads, writes)| StepArg { reads: reads.to_vec(), offsets_bytes: offsets(reads.len()), writes: *writes })
            .collect(),
        dims: Vec::new(),
        n_workgroups: 1,
        loop_trips: 1,
        flops: 10,
        computes: Vec::new(),
    }
}

/// Graph values by name: x, w, v, s, and the results y, t, u; `t` is no output.
struct Net {
    graph: Graph,
    x: StepValue,
    w: StepValue,
    v: StepValue,
    s: StepValue,
    y: StepValue,
    t: StepValue,
    u: StepValue,
}

/// The value printed `%idx`.
fn nth(graph: &Graph, idx: usize) -> StepValue {
    StepValue::Graph(graph.nodes().flat_map(|(_, node)| node.results.clone()).nth(idx).unwrap())
}

fn net(n: usize) -> Net {
    let b = GraphBuilder::new("net");
    let x = b.input("x", DType::F32, [n]);
    let w = b.param("w", DType::F32, [n]);
    let _v = b.param("v", DType::F16, [3]);
    let s = b.state("s", DType::F32, [n]);
    let t = x.mul(w);
    let y = t.add(s);
    let u = s.mul(w);
    b.output("y", y);
    b.update("s", u);
    let graph = b.finish().unwrap();
    let [x, w, v, s, t, y, u] = [0, 1, 2, 3, 4, 5, 6].map(|idx| nth(&graph, idx));
    Net { graph, x, w, v, s, y, t, u }
}

/// The plan, which the verifier, which knows nothing of this module, has to accept.
fn plan_of(net: &Net, steps: Vec<Step>, temps: Vec<Temp>) -> Result<Plan, LowerError> {
    checked(net, steps, temps, MemoryOptions::default())
}

fn checked(net: &Net, steps: Vec<Step>, temps: Vec<Temp>, options: MemoryOptions) -> Result<Plan, LowerError> {
    let target = Target::webgpu_default();
    let plan = assign(&net.graph, Steps { steps, temps, not_fused: Vec::new() }, &target, &options)?;
    verify_plan(&plan, &target).map_err(|errors| LowerError::Plan(format!("{errors:?}")))?;
    Ok(plan)
}

fn three_steps(net: &Net) -> Vec<Step> {
    vec![
        step("mul", &[(&[net.x], None), (&[net.w], None), (&[], Some(net.t))]),
        step("add", &[(&[net.t], None), (&[net.s], None), (&[], Some(net.y))]),
        step("mul", &[(&[net.s], None), (&[net.w], None), (&[], Some(net.u))]),
    ]
}

#[test]
fn external_values_have_buffers_and_the_rest_slots() {
    let net = net(100);
    let plan = plan_of(&net, three_steps(&net), Vec::new()).unwrap();
    let names: Vec<Option<&str>> = plan.buffers.iter().map(Buffer::name).collect();
    assert_eq!(names, [Some("x"), Some("w"), Some("v"), Some("s"), Some("y")]);
    assert_eq!(plan.buffers.iter().map(|buffer| buffer.size_bytes).collect::<Vec<_>>(), [400, 400, 16, 400, 400]);
    assert!(matches!(plan.buffers[3].kind, BufferKind::State { storage: StateStorage::Double, .. }));
    assert_eq!((plan.slots.len(), plan.slots[0].residents[0].first_cmd, plan.slots[0].residents[0].last_cmd), (1, 0, 1));
    assert_eq!(plan.kernels.len(), 2);
    let resources: Vec<Resource> = plan.cmds.iter().map(|cmd| cmd.args[2].resource).collect();
    let buffer = |idx| crate::plan::BufferId(idx);
    assert_eq!(resources, [Resource::Slot(SlotId(0)), Resource::Buffer(buffer(4)), Resource::NewState(buffer(3))]);
    assert_eq!((plan.live_bytes, plan.cmds[0].bytes_moved), (400, 1200));
}

#[test]
fn an_update_in_place_takes_the_buffer_of_its_state() {
    let net = net(7);
    let mut steps = three_steps(&net);
    steps[2] = step("scale", &[(&[net.s], Some(net.u)), (&[net.w], None)]);
    let plan = plan_of(&net, steps, Vec::new()).unwrap();
    assert!(matches!(plan.buffers[3].kind, BufferKind::State { storage: StateStorage::InPlace, .. }));
    assert_eq!((plan.buffers[3].holds.is_some(), plan.buffers[3].receives.is_some()), (true, true));
    let arg = &plan.cmds[2].args[0];
    assert_eq!((arg.resource, arg.access), (Resource::Buffer(crate::plan::BufferId(3)), Access::ReadWrite));
    assert_eq!(plan.cmds[2].bytes_moved, 3 * 32);
}

#[test]
fn weights_of_a_pack_have_one_buffer_each_list() {
    let net = net(5);
    let mut steps = three_steps(&net);
    steps[0] = step("packed", &[(&[net.x], None), (&[net.w, net.v], None), (&[], Some(net.t))]);
    steps[2] = step("packed too", &[(&[net.s], None), (&[net.w, net.v], None), (&[], Some(net.u))]);
    let plan = plan_of(&net, steps, Vec::new()).unwrap();
    let packs: Vec<&Buffer> = plan.buffers.iter().filter(|buffer| matches!(buffer.kind, BufferKind::Pack { .. })).collect();
    assert_eq!((packs.len(), packs[0].size_bytes, plan.buffers.len()), (1, 256 + 16, 4));
    assert_eq!(plan.cmds[0].args[1].resource, plan.cmds[2].args[1].resource);
}

#[test]
fn small_pools_are_not_shared_and_large_ones_are() {
    let chain = |size_bytes: u64, reuse: bool| {
        let net = net(9);
        let temps: Vec<Temp> = (0..6).map(|_| Temp { of: net.graph.outputs[0].value, name: "part", size_bytes }).collect();
        let mut steps = vec![step("first", &[(&[net.x], None), (&[], Some(StepValue::Temp(0)))])];
        steps.extend((1..6).map(|idx| step("next", &[(&[StepValue::Temp(idx - 1)], None), (&[], Some(StepValue::Temp(idx)))])));
        steps.extend([
            step("last", &[(&[StepValue::Temp(5)], None), (&[], Some(net.y))]),
            step("state", &[(&[net.s], None), (&[], Some(net.u))]),
        ]);
        checked(&net, steps, temps, MemoryOptions { reuse }).unwrap()
    };
    assert_eq!(chain(1 << 20, true).slots.len(), 2);
    assert_eq!(chain(1 << 20, false).slots.len(), 6);
    let small = chain(1 << 10, true);
    assert_eq!((small.slots.len(), small.live_bytes), (6, 2 << 10));
    assert_eq!(
        small.values.iter().map(|value| value.label.as_str()).skip(5).collect::<Vec<_>>(),
        ["%6", "%5.part", "%5.part.2", "%5.part.3", "%5.part.4", "%5.part.5", "%5.part.6"]
    );
}

#[test]
fn empty_values_have_storage_and_no_step() {
    let net = net(0);
    let mut steps = three_steps(&net);
    for step in &mut steps {
        step.n_workgroups = 0;
    }
    let plan = plan_of(&net, steps, Vec::new()).unwrap();
    assert_eq!((plan.cmds.len(), plan.buffers.len()), (0, 5));
    assert!(plan.buffers.iter().all(|buffer| buffer.size_bytes >= 16));
    let mut steps = three_steps(&net);
    steps[0].n_workgroups = 0;
    let plan = plan_of(&net, steps, Vec::new()).unwrap();
    assert_eq!((plan.cmds.len(), plan.slots.len(), plan.slots[0].size_bytes), (2, 1, 16));
}

#[test]
fn what_has_no_storage_is_named() {
    let net = net(4);
    let fails = |steps: Vec<Step>, expected: &str| {
        let message = plan_of(&net, steps, Vec::new()).err().map_or_else(String::new, |error| error.to_string());
        assert!(message.contains(expected), "{message}");
    };
    fails(three_steps(&net)[..1].to_vec(), "update `s` is %6, which no step computes; it needs a step that copies it");
    fails(three_steps(&net)[1..2].iter().chain(&three_steps(&net)[..1]).cloned().collect(), "update `s` is %6");
    let mut twice = three_steps(&net);
    twice.push(twice[0].clone());
    fails(twice, "%4 is written by two steps");
    let mut packed = three_steps(&net);
    packed[0].args[0] = StepArg { reads: vec![net.x, net.w], offsets_bytes: vec![0, 16], writes: None };
    fails(packed, "%0 is in a pack but is a input, no weight");
    let mut stray = three_steps(&net);
    stray[0].args[0].reads = vec![StepValue::Temp(3)];
    fails(stray, "a value that the graph does not have");
    let mut idle = three_steps(&net);
    idle[0].args[0].reads.clear();
    fails(idle, "an argument binds 0 values");
}

#[test]
fn an_output_that_is_the_new_state_needs_a_copy() {
    let b = GraphBuilder::new("twice");
    let s = b.state("s", DType::F32, [3]);
    let u = s.neg();
    b.output("y", u);
    b.update("s", u);
    let graph = b.finish().unwrap();
    let (s, u) = (nth(&graph, 0), nth(&graph, 1));
    let steps = Steps { steps: vec![step("neg", &[(&[s], None), (&[], Some(u))])], ..Steps::default() };
    let error = assign(&graph, steps, &Target::webgpu_default(), &MemoryOptions::default()).unwrap_err();
    assert!(error.to_string().contains("%1 has two names outside"), "{error}");
}

#[test]
fn limits_are_named_with_place_and_what_fits() {
    let fails = |n: usize, target: Target, change: &dyn Fn(&mut Step), expected: [&str; 2]| {
        let net = net(n);
        let mut steps = three_steps(&net);
        steps[1].computes = vec![net.graph.outputs[0].value];
        change(&mut steps[1]);
        let error = assign(&net.graph, Steps { steps, ..Steps::default() }, &target, &MemoryOptions::default()).unwrap_err();
        assert!(matches!(error, LowerError::Limit { .. }));
        let message = error.to_string();
        assert!(expected.iter().all(|part| message.contains(part)), "{message}");
    };
    let target = Target::webgpu_default;
    let none = |_: &mut Step| {};
    fails(
        1 << 26,
        target(),
        &none,
        ["%0 f32[67108864] takes 268435456 bytes; webgpu-default has max_binding_bytes", "at most 33554432 elements of f32"],
    );
    fails(9, Target { max_buffer_bytes: 8, ..target() }, &none, ["max_buffer_bytes = 8", "at %0"]);
    fails(9, Target { max_storage_buffers: 2, ..target() }, &none, ["3 storage buffers", "at most 2 operands"]);
    fails(9, target(), &|step| step.n_workgroups = 65535 * 65535 + 1, ["4294836226 workgroups", "at %5"]);
    fails(9, Target::profile("lavapipe").unwrap(), &|step| step.loop_trips = 65536, ["65536 loop trips", "at most 65535 trips"]);
}

#[test]
fn workgroups_are_folded() {
    assert_eq!(limits::fold(1, 65535), Some([1, 1, 1]));
    assert_eq!(limits::fold(65535, 65535), Some([65535, 1, 1]));
    assert_eq!(limits::fold(65536, 65535), Some([32768, 2, 1]));
    assert_eq!(limits::fold(65537, 65535), Some([32769, 2, 1]));
    assert_eq!(limits::fold(65535 * 65535, 65535), Some([65535, 65535, 1]));
    assert_eq!(limits::fold(65535 * 65535 + 1, 65535), None);
}

/// Random steps: the size of each result, how far back each operand lies, and whether the first is replaced in place.
fn random_steps() -> impl Strategy<Value = Vec<(u64, Vec<usize>, bool)>> {
    let size = prop_oneof![Just(0u64), 1u64..5000, Just(3 << 20), 1u64..(8 << 20)];
    prop::collection::vec((size, prop::collection::vec(0usize..12, 1..4), any::<bool>()), 1..40)
}

/// The steps as a program over [`net`]; an operand that would be before the first result is the input.
fn program(net: &Net, parts: &[(u64, Vec<usize>, bool)]) -> (Vec<Step>, Vec<Temp>) {
    let mut temps: Vec<Temp> = Vec::new();
    let mut replaced = vec![false; parts.len()];
    let mut steps = Vec::new();
    for (idx, (size_bytes, back, in_place)) in parts.iter().enumerate() {
        let mut operands: IndexSet<StepValue> = back
            .iter()
            .map(|back| match idx.checked_sub(back + 1).filter(|&at| !replaced[at]) {
                Some(at) => StepValue::Temp(at),
                None => net.x,
            })
            .collect();
        let mut temp = Temp { of: net.graph.outputs[0].value, name: "part", size_bytes: *size_bytes };
        let mut args: Vec<(Vec<StepValue>, Option<StepValue>)> = Vec::new();
        match operands.first().copied() {
            Some(StepValue::Temp(at)) if *in_place => {
                temp.size_bytes = temps[at].size_bytes;
                replaced[at] = true;
                operands.shift_remove_index(0);
                args.push((vec![StepValue::Temp(at)], Some(StepValue::Temp(idx))));
            }
            Some(_) | None => args.push((Vec::new(), Some(StepValue::Temp(idx)))),
        }
        args.extend(operands.into_iter().map(|operand| (vec![operand], None)));
        temps.push(temp);
        let args: Vec<(&[StepValue], Option<StepValue>)> = args.iter().map(|(reads, writes)| (reads.as_slice(), *writes)).collect();
        steps.push(step(&format!("random {idx}"), &args));
    }
    let last = StepValue::Temp(parts.len() - 1);
    steps.push(step("output", &[(&[last], None), (&[], Some(net.y))]));
    steps.push(step("state", &[(&[net.s], None), (&[], Some(net.u))]));
    (steps, temps)
}

proptest! {
    #[test]
    fn random_steps_give_plans_that_the_verifier_accepts(parts in random_steps(), reuse in any::<bool>()) {
        let net = net(3);
        let (steps, temps) = program(&net, &parts);
        let plan = checked(&net, steps, temps, MemoryOptions { reuse }).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let slot_bytes: u64 = plan.slots.iter().map(|slot| slot.size_bytes).sum();
        prop_assert!(slot_bytes >= plan.live_bytes);
        for slot in &plan.slots {
            for pair in slot.residents.windows(2) {
                // In place, one value ends in the command in which the next begins.
                prop_assert!(pair[0].last_cmd <= pair[1].first_cmd);
            }
        }
    }
}
