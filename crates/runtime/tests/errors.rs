//! Every mistake is an error that says what, where and how to fix it, and none is a panic.

mod common;

use common::{Hand, Outcome, counter, f32s, gpu, shift, two_cmds, vector};
use monopass_ir::{DType, TensorData, TensorType};
use monopass_lower::Target;
use monopass_lower::plan::{Access, BufferId, KernelId, Plan, Resource, SlotId, StateStorage};
use monopass_runtime::{Checks, Device, DeviceOptions, Executable, RuntimeError, Session, blocking};

fn build(device: &Device, plan: Plan) -> Result<Executable, RuntimeError> {
    let weights = blocking::upload(device, std::iter::empty::<(String, TensorData)>())?;
    blocking::executable(device, plan, &weights)
}

fn two_cmds_on(device: &Device, plan: Plan) -> Result<Executable, RuntimeError> {
    let weights = blocking::upload(device, [("w", TensorData::zeros(&f32s(&[4])))])?;
    blocking::executable(device, plan, &weights)
}

/// Checks that an error shows all of these.
#[track_caller]
fn shows<T>(result: Result<T, RuntimeError>, wanted: &[&str]) {
    let text = match result {
        Ok(_) => "no error".to_owned(),
        Err(error) => error.to_string(),
    };
    for wanted in wanted {
        assert!(text.contains(wanted), "`{wanted}` is not in:\n{text}");
    }
}

#[test]
fn damaged_wgsl_names_the_kernel() {
    for device in [Some(Device::noop()), gpu().cloned()].into_iter().flatten() {
        let mut plan = two_cmds(4);
        plan.kernels[1].wgsl = plan.kernels[1].wgsl.replace("* 2.0", "* two");
        shows(two_cmds_on(&device, plan), &["refused to compile a kernel", "kernel k1 double", "no definition in scope", "two"]);
        // The device is as good as before.
        two_cmds_on(&device, two_cmds(4)).unwrap();
    }
}

#[test]
fn a_kernel_that_declares_other_bindings_is_named() {
    let device = Device::noop();
    let mut plan = two_cmds(4);
    plan.kernels[0].wgsl = plan.kernels[0].wgsl.replace("var<storage, read> a", "var<storage, read_write> a");
    shows(two_cmds_on(&device, plan), &["kernel k0 add"]);
    let mut plan = two_cmds(4);
    plan.kernels[0].wgsl = plan.kernels[0].wgsl.replace("fn main", "fn other");
    shows(two_cmds_on(&device, plan), &["kernel k0 add", "main"]);
}

/// wgpu finds this only while it records, and then a checked run says which command it is.
#[test]
fn a_buffer_read_and_written_by_one_command_is_found() {
    for device in [Some(Device::noop()), gpu().cloned()].into_iter().flatten() {
        let mut plan = two_cmds(4);
        plan.cmds[1].args[1].resource = plan.cmds[1].args[0].resource;
        let executable = two_cmds_on(&device, plan).unwrap();
        let (mut session, x) = (Session::new(&device), vector(&[1.0; 4]).unwrap());
        for _ in 0..3 {
            let run = blocking::run(&executable, &mut session, &[("x", &x)]);
            shows(run, &["the device refused to run `two_cmds`"]);
        }
        let run = blocking::run_checked(&executable, &mut session, &[("x", &x)]);
        shows(run, &["refused to run a command", "kernel k1 double", "at cmd 1 in block/double"]);
        let sound = two_cmds_on(&device, two_cmds(4)).unwrap();
        blocking::run(&sound, &mut session, &[("x", &x)]).unwrap();
    }
}

#[test]
fn a_refused_run_leaves_the_turns_of_states() {
    let Some(device) = gpu() else { return };
    let mut plan = shift();
    let good = build(device, plan.clone()).unwrap();
    // The second command reads and writes the output.
    plan.cmds[1].args[0].resource = plan.cmds[1].args[1].resource;
    let bad = build(device, plan).unwrap();
    let mut session = Session::new(device);
    session.write("window", &vector(&[1.0, 2.0, 3.0, 4.0]).unwrap()).unwrap();
    let x = vector(&[5.0]).unwrap();
    shows(blocking::run(&bad, &mut session, &[("x", &x)]), &["refused"]);
    assert_eq!(blocking::read(&session, "window").unwrap().as_f32(), Some(&[1.0, 2.0, 3.0, 4.0][..]));
    let got = blocking::run(&good, &mut session, &[("x", &x)]).unwrap();
    assert_eq!(got.outputs["y"].as_f32(), Some(&[14.0][..]));
}

#[test]
fn inputs_are_checked_before_anything_runs() {
    let device = Device::noop();
    let executable = build(&device, counter()).unwrap();
    let mut session = Session::new(&device);
    let (good, long) = (vector(&[1.0; 3]).unwrap(), vector(&[1.0; 4]).unwrap());
    let before = device.counters();
    let mut run = |inputs: &[(&str, &TensorData)]| executable.submit(&mut session, inputs);
    shows(run(&[]), &["input `step` is missing", "the plan takes `step` f32[3]"]);
    shows(run(&[("step", &long)]), &["input `step` is f32[4]", "the plan takes `step` f32[3]"]);
    shows(run(&[("step", &TensorData::i32([3], [0; 3]).unwrap())]), &["input `step` is i32[3]"]);
    shows(run(&[("step", &good), ("stop", &good)]), &["input `stop` is unknown"]);
    shows(run(&[("step", &good), ("step", &good)]), &["input `step` is given twice"]);
    assert_eq!(device.counters(), before, "nothing was recorded or created");
}

#[test]
fn a_profile_needs_a_device_that_measures_time() {
    let device = Device::noop();
    let executable = build(&device, counter()).unwrap();
    let profile = blocking::profile(&executable, &mut Session::new(&device), &[("step", &vector(&[1.0; 3]).unwrap())]);
    shows(profile, &["noop does not measure the time", "request the device with `profile`"]);
}

#[test]
fn weights_must_be_there_and_fit() {
    let device = Device::noop();
    shows(build(&device, two_cmds(4)), &["weight `w` is missing", "Weights::upload"]);
    let near = [("x.w", TensorData::zeros(&f32s(&[4]))), ("b", TensorData::zeros(&f32s(&[4])))];
    let weights = blocking::upload(&device, near).unwrap();
    shows(blocking::executable(&device, two_cmds(4), &weights), &["weight `w` is missing", "weights that are there: x.w\n"]);
    let weights = blocking::upload(&device, [("w", TensorData::zeros(&f32s(&[5])))]).unwrap();
    shows(blocking::executable(&device, two_cmds(4), &weights), &["weight `w` is f32[5], and the plan wants f32[4]"]);
    shows(weights.write("w", &TensorData::zeros(&f32s(&[1]))), &["weight `w` is f32[5]"]);
    shows(weights.write("v", &TensorData::zeros(&f32s(&[1]))), &["weight `v` is missing"]);
    shows(pollster::block_on(weights.read("v")), &["weight `v` is missing"]);
}

#[test]
fn states_must_be_known_and_keep_their_type() {
    let device = Device::noop();
    let executable = build(&device, counter()).unwrap();
    let mut session = Session::new(&device);
    shows(blocking::read(&session, "count"), &["state `count` is not in this session", "run an executable"]);
    session.write("count", &TensorData::zeros(&f32s(&[4]))).unwrap();
    let step = vector(&[1.0; 3]).unwrap();
    shows(blocking::run(&executable, &mut session, &[("step", &step)]), &["state `count` is f32[4] in this session and f32[3] here"]);
    let mut other = Session::new(&device);
    blocking::run(&executable, &mut other, &[("step", &step)]).unwrap();
    shows(other.copy_from(&session), &["state `count`"]);
    shows(other.write("count", &TensorData::zeros(&f32s(&[4]))), &["state `count` is f32[3]"]);
    shows(blocking::read(&other, "cont"), &["state `cont` is not in this session", "the states are count"]);
    assert_eq!((other.names().collect::<Vec<_>>(), other.ty("count")), (vec!["count"], Some(&f32s(&[3]))));
}

#[test]
fn rows_that_cannot_be_copied_are_named() {
    let device = Device::noop();
    let session = |ty: TensorType| {
        let mut session = Session::new(&device);
        session.write("s", &TensorData::zeros(&ty)).unwrap();
        session
    };
    let (mut batch, single) = (session(f32s(&[3, 2])), session(f32s(&[1, 2])));
    shows(batch.copy_row(3, &single, 0), &["state `s` is f32[3, 2], which has no row 3"]);
    shows(batch.copy_row(0, &single, 1), &["state `s` is f32[1, 2], which has no row 1"]);
    shows(batch.copy_row(0, &session(f32s(&[1, 4])), 0), &["is f32[3, 2] in one session and f32[1, 4] in the other"]);
    shows(session(f32s(&[])).copy_row(0, &single, 0), &["has no row 0"]);
    let halves = session(TensorType::new(DType::F16, [2, 3]));
    shows(session(TensorType::new(DType::F16, [2, 3])).copy_row(0, &halves, 1), &["not whole words"]);
    shows(Session::new(&device).copy_row(0, &single, 0), &["state `s` is not in this session"]);
    shows(batch.copy_row(0, &Session::new(&Device::noop()), 0), &["belongs to another device"]);
}

#[test]
fn limits_are_named_before_anything_is_created() {
    let device = Device::noop();
    let before = device.counters();
    let plan = |change: fn(&mut Plan)| {
        let mut plan = counter();
        change(&mut plan);
        plan
    };
    shows(
        build(&device, plan(|p| p.kernels[0].workgroup_bytes = 16385)),
        &["k0 count needs 16385 of bytes of workgroup memory", "has 16384"],
    );
    shows(build(&device, plan(|p| p.kernels[0].workgroup_size = [16, 17, 1])), &["272 of invocations a workgroup"]);
    shows(build(&device, plan(|p| p.kernels[0].workgroup_size = [1, 1, 65])), &["65 of invocations in one dimension"]);
    shows(build(&device, plan(|p| p.cmds[0].workgroups[1] = 65536)), &["cmd 0 needs 65536 of workgroups in one dimension"]);
    shows(build(&device, plan(|p| p.buffers[0].size_bytes = (128 << 20) + 4)), &["buffer b0", "bytes of one storage binding"]);
    let target = Target { max_loop_trips: Some(65535), ..Target::webgpu_default() };
    let llvmpipe = Device::noop_for(&target).unwrap();
    shows(build(&llvmpipe, plan(|p| p.cmds[0].loop_trips = 65536)), &["cmd 0 needs 65536 of iterations of one loop nest"]);
    build(&device, plan(|p| p.cmds[0].loop_trips = 65536)).unwrap();
    let huge = TensorType::new(DType::F32, [(128 << 20) / 4 + 1]);
    assert_eq!(before.buffers_created, 0);
    let weights = blocking::upload(&device, [("w", TensorData::zeros(&huge))]);
    shows(weights, &["weight `w`", "bytes of one storage binding"]);
}

#[test]
fn plans_that_contradict_themselves_are_refused() {
    let device = Device::noop();
    let damaged = |change: &dyn Fn(&mut Plan), wanted: &str| {
        let mut plan = shift();
        change(&mut plan);
        shows(build(&device, plan), &["the plan `shift` is not executable", wanted]);
    };
    damaged(&|p| p.cmds[1].kernel = KernelId(9), "cmd 1 names kernel k9");
    damaged(&|p| p.cmds[0].args[0].resource = Resource::Buffer(BufferId(9)), "cmd 0 binds b9");
    damaged(&|p| p.cmds[0].args[0].resource = Resource::Slot(SlotId(0)), "cmd 0 binds s0");
    damaged(&|p| p.cmds[0].args[2].resource = Resource::NewState(BufferId(0)), "cmd 0 binds b0.new");
    damaged(&|p| drop(p.cmds[0].args.pop()), "the arguments of cmd 0 are not those that k0 declares");
    damaged(&|p| p.cmds[0].args[0].access = Access::ReadWrite, "the arguments of cmd 0");
    damaged(&|p| p.cmds[0].dims.push(1), "cmd 0 gives 1 sizes and k0 takes 0");
    damaged(&|p| p.buffers[1].size_bytes = 12, "buffer b1 has 12 bytes and holds 16");
    damaged(&|p| p.buffers[1].size_bytes = 18, "not whole words");
    damaged(&|p| p.buffers.push(p.buffers[2].clone()), "two buffers are output `y`");
    let mut hand = Hand::new("pack");
    hand.pack(&[("a", f32s(&[1]), 2)], 8);
    shows(build(&device, hand.0), &["`a` starts in buffer b0 at 2"]);
    // A pack and a state of plans larger than their tensors.
    let mut hand = Hand::new("large");
    let (state, _) = hand.state("s", f32s(&[1]), StateStorage::InPlace);
    hand.0.buffers[0].size_bytes = 64;
    let kernel = hand.kernel("k", &[("s: array<f32>", Access::ReadWrite)], 0, "    s[i] = 0.0;");
    hand.cmd(kernel, 1, &[state], &[], "");
    let executable = build(&device, hand.0).unwrap();
    shows(executable.bind(&mut Session::new(&device)), &["has 16 bytes and the plan wants 64"]);
}

#[test]
fn objects_of_two_devices_do_not_mix() {
    let (here, there) = (Device::noop(), Device::noop());
    let executable = build(&here, counter()).unwrap();
    let step = vector(&[1.0; 3]).unwrap();
    shows(executable.submit(&mut Session::new(&there), &[("step", &step)]), &["the session belongs to another device"]);
    shows(executable.bind(&mut Session::new(&there)), &["the session belongs to another device"]);
    shows(Session::new(&here).copy_from(&Session::new(&there)), &["belongs to another device"]);
    let weights = blocking::upload(&there, std::iter::empty::<(String, TensorData)>()).unwrap();
    shows(blocking::executable(&here, counter(), &weights), &["the set of weights belongs to another device"]);
}

#[test]
fn a_lost_device_is_an_error_everywhere() {
    for device in [Some(Device::noop()), blocking::request(&DeviceOptions::default()).ok()].into_iter().flatten() {
        let executable = build(&device, counter()).unwrap();
        let (mut session, step) = (Session::new(&device), vector(&[1.0; 3]).unwrap());
        blocking::run(&executable, &mut session, &[("step", &step)]).unwrap();
        let in_flight = executable.submit(&mut session, &[("step", &step)]).unwrap();
        device.destroy();
        let lost = &["the device is lost"][..];
        shows(blocking::wait(in_flight), lost);
        shows(blocking::run(&executable, &mut session, &[("step", &step)]), lost);
        shows(blocking::run_checked(&executable, &mut session, &[("step", &step)]), lost);
        shows(blocking::read(&session, "count"), lost);
        shows(session.write("count", &step), lost);
        shows(session.reset(), lost);
        shows(session.fork(), lost);
        shows(build(&device, counter()), lost);
    }
}

#[test]
fn a_filter_that_fits_nothing_says_so() {
    let options = DeviceOptions { adapter: Some("no adapter is called this".to_owned()), ..DeviceOptions::default() };
    shows(blocking::request(&options), &["no usable graphics adapter", "help:"]);
    let Some(device) = gpu() else { return };
    let name = device.info().name.to_uppercase();
    let again = blocking::request(&DeviceOptions { adapter: Some(name), ..DeviceOptions::default() }).unwrap();
    assert_eq!(again.info(), device.info());
    assert!(device.reason().contains(&device.info().name), "{}", device.reason());
    let hardware = blocking::request(&DeviceOptions { allow_cpu: false, ..DeviceOptions::default() });
    match hardware {
        Ok(device) => assert!(!device.target().is_cpu),
        Err(error) => shows(Err::<(), _>(error), &["none that is not software", &device.info().name, "allow software adapters"]),
    }
}

#[test]
fn the_target_is_what_the_adapter_has() {
    let Some(device) = gpu() else { return };
    let (target, base) = (device.target(), Target::webgpu_default());
    assert_eq!(target.name, "device");
    assert!(target.max_storage_buffers >= base.max_storage_buffers && target.max_binding_bytes >= base.max_binding_bytes);
    assert!(target.storage_align_bytes <= base.storage_align_bytes && target.max_invocations >= base.max_invocations);
    assert_eq!(target.has_f16, device.info().features.contains(&"shader-f16"));
    if device.info().name.contains("llvmpipe") {
        assert_eq!((target.max_loop_trips, target.is_cpu, device.info().device_type), (Some(65535), true, "software"));
    }
    assert!(blocking::adapters().iter().any(|adapter| adapter == device.info()));
}

#[test]
fn results_do_not_depend_on_the_checks() {
    fn sum(device: &Device) -> Outcome<TensorData> {
        let weights = blocking::upload(device, [("w", vector(&[1.0, 2.0, 3.0])?)])?;
        let mut plan = two_cmds(3);
        plan.kernels.iter_mut().for_each(|kernel| kernel.bounds_proved = true);
        let executable = blocking::executable(device, plan, &weights)?;
        let mut got = blocking::run(&executable, &mut Session::new(device), &[("x", &vector(&[0.5; 3])?)])?;
        Ok(got.outputs.swap_remove("y").ok_or("no output")?)
    }
    let Some(device) = gpu() else { return };
    let checked = blocking::request(&DeviceOptions { checks: Checks::All, ..DeviceOptions::default() }).unwrap();
    assert_eq!(sum(device).unwrap(), sum(&checked).unwrap());
}
