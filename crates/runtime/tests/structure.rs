//! What a run records and creates, on a device without a driver: one encoder, one pass, one submit; nothing created on replay.

mod common;

use common::{Hand, counter, f32s, shift, two_cmds, vector};
use monopass_ir::TensorData;
use monopass_lower::Target;
use monopass_lower::plan::{Access, Plan};
use monopass_runtime::{BuildOptions, Counters, Device, Executable, Pending, RunOutput, Session, Weights, blocking};
use std::sync::{Arc, Mutex};

fn none() -> impl Iterator<Item = (String, TensorData)> {
    std::iter::empty()
}

#[test]
fn a_run_is_one_encoder_one_pass_one_submit() {
    let device = Device::noop();
    let weights = blocking::upload(&device, [("w", vector(&[0.0; 100]).unwrap())]).unwrap();
    let executable = blocking::executable(&device, two_cmds(100), &weights).unwrap();
    let x = vector(&[0.0; 100]).unwrap();
    let mut session = Session::new(&device);
    for _ in 0..3 {
        let got = blocking::run(&executable, &mut session, &[("x", &x)]).unwrap();
        let want = Counters {
            encoders: 1,
            passes: 1,
            submits: 1,
            dispatches: 2,
            copies: 2,
            bytes_uploaded: 400,
            bytes_read_back: 400,
            ..Counters::default()
        };
        assert_eq!(got.counters, want);
        assert_eq!(got.gpu_ns, None);
    }
}

#[test]
fn the_first_run_of_a_session_makes_both_turns_and_the_next_nothing() {
    let device = Device::noop();
    let weights = blocking::upload(&device, none()).unwrap();
    let executable = blocking::executable(&device, shift(), &weights).unwrap();
    let x = vector(&[1.0]).unwrap();
    let mut session = Session::new(&device);
    let first = blocking::run(&executable, &mut session, &[("x", &x)]).unwrap().counters;
    assert_eq!((first.buffers_created, first.bytes_allocated), (2, 32), "two buffers of one state");
    assert_eq!(first.bind_groups_created, 4, "two commands, two turns");
    assert_eq!(first.objects_created(), 6);
    assert_eq!(session.bytes(), 32);
    for _ in 0..5 {
        assert_eq!(blocking::run(&executable, &mut session, &[("x", &x)]).unwrap().counters.objects_created(), 0);
    }
    let mut bound = Session::new(&device);
    assert_eq!(executable.bind(&mut bound).unwrap().objects_created(), 6);
    assert_eq!(blocking::run(&executable, &mut bound, &[("x", &x)]).unwrap().counters.objects_created(), 0);
}

#[test]
fn equal_kernels_in_other_plans_compile_nothing() {
    let device = Device::noop();
    let upload = |n: usize| blocking::upload(&device, [("w", vector(&vec![0.0; n]).unwrap())]).unwrap();
    let first = blocking::executable(&device, two_cmds(10), &upload(10)).unwrap().counters();
    // Two storage layouts (three bindings and two), each as group and pipeline layout.
    assert_eq!((first.modules_created, first.pipelines_created, first.layouts_created), (2, 2, 4));
    let other_length = blocking::executable(&device, two_cmds(11), &upload(11)).unwrap().counters();
    assert_eq!((other_length.modules_created, other_length.pipelines_created, other_length.layouts_created), (0, 0, 0));
    assert!(other_length.bind_groups_created == 2 && other_length.buffers_created > 0);
}

#[test]
fn a_build_tells_how_far_it_is() {
    let device = Device::noop();
    let weights = blocking::upload(&device, [("w", vector(&[0.0; 5]).unwrap())]).unwrap();
    let plan = Arc::new(two_cmds(5));
    let seen = Mutex::new(Vec::new());
    let tell = |progress: monopass_runtime::BuildProgress| seen.lock().unwrap().push((progress.n_done, progress.n_total));
    let options = BuildOptions { progress: Some(&tell) };
    pollster::block_on(Executable::build(&device, Arc::clone(&plan), &weights, &options)).unwrap();
    let mut told = std::mem::take(&mut *seen.lock().unwrap());
    told.sort_unstable();
    assert_eq!(told, [(0, 2), (1, 2), (2, 2)]);
    pollster::block_on(Executable::build(&device, plan, &weights, &options)).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(0, 0)], "all of them are known by now");
}

#[test]
fn the_device_counts_what_its_runs_count() {
    let device = Device::noop();
    let weights = blocking::upload(&device, none()).unwrap();
    let executable = blocking::executable(&device, counter(), &weights).unwrap();
    let mut session = Session::new(&device);
    let before = device.counters();
    let mut sum = before;
    for _ in 0..3 {
        sum += &blocking::run(&executable, &mut session, &[("step", &vector(&[1.0; 3]).unwrap())]).unwrap().counters;
    }
    assert_eq!(device.counters(), sum);
    assert_eq!(sum.submits - before.submits, 3);
    let mut parts = weights.counters();
    parts += &executable.counters();
    assert_eq!(before, parts);
}

#[test]
fn memory_is_given_back_and_does_not_grow() {
    let device = Device::noop();
    assert_eq!(device.memory().n_live, 0);
    let weights = blocking::upload(&device, none()).unwrap();
    let executable = blocking::executable(&device, shift(), &weights).unwrap();
    let built = device.memory();
    assert_eq!(built.live_bytes, executable.bytes());
    let x = vector(&[1.0]).unwrap();
    let mut session = Session::new(&device);
    blocking::run(&executable, &mut session, &[("x", &x)]).unwrap();
    let bound = device.memory();
    assert_eq!(bound.live_bytes, built.live_bytes + session.bytes());
    for _ in 0..300 {
        blocking::run(&executable, &mut session, &[("x", &x)]).unwrap();
    }
    assert_eq!(device.memory(), bound);
    drop(session);
    assert_eq!(device.memory().live_bytes, built.live_bytes);
    drop(executable);
    drop(weights);
    let after = device.memory();
    assert_eq!((after.live_bytes, after.n_live), (0, 0));
    assert_eq!(after.peak_bytes, bound.peak_bytes);
}

#[test]
fn dropped_runs_give_their_staging_back() {
    let device = Device::noop();
    let weights = blocking::upload(&device, none()).unwrap();
    let executable = blocking::executable(&device, counter(), &weights).unwrap();
    let (mut session, step) = (Session::new(&device), vector(&[1.0; 3]).unwrap());
    for _ in 0..5 {
        drop(executable.submit(&mut session, &[("step", &step)]).unwrap());
    }
    let (first, second) = (executable.submit(&mut session, &[("step", &step)]), executable.submit(&mut session, &[("step", &step)]));
    let third = executable.submit(&mut session, &[("step", &step)]);
    assert!(third.unwrap_err().to_string().contains("two runs of `counter` are in flight"));
    // Waiting in the other order is fine too.
    blocking::wait(second.unwrap()).unwrap();
    blocking::wait(first.unwrap()).unwrap();
    blocking::run(&executable, &mut session, &[("step", &step)]).unwrap();
}

#[test]
fn checked_runs_have_an_encoder_for_each_command() {
    let device = Device::noop();
    let weights = blocking::upload(&device, none()).unwrap();
    let executable = blocking::executable(&device, shift(), &weights).unwrap();
    let (mut session, x) = (Session::new(&device), vector(&[1.0]).unwrap());
    let got = blocking::run_checked(&executable, &mut session, &[("x", &x)]).unwrap().counters;
    assert_eq!((got.encoders, got.passes, got.submits, got.dispatches), (4, 2, 4, 2));
    let got = blocking::run(&executable, &mut session, &[("x", &x)]).unwrap().counters;
    assert_eq!((got.submits, got.objects_created()), (1, 0));
}

/// Bind groups name buffers of both; when one goes, so must the memory.
#[test]
fn executables_that_are_gone_leave_sessions() {
    let device = Device::noop();
    let weights = blocking::upload(&device, none()).unwrap();
    let (mut session, x) = (Session::new(&device), vector(&[1.0]).unwrap());
    for _ in 0..3 {
        let executable = blocking::executable(&device, shift(), &weights).unwrap();
        blocking::run(&executable, &mut session, &[("x", &x)]).unwrap();
    }
    assert_eq!(device.memory().live_bytes, session.bytes());
}

#[test]
fn plans_for_any_profile_run_without_a_driver() {
    let target = Target { max_storage_buffers: 10, has_f16: true, max_invocations: 1024, ..Target::webgpu_default() };
    let device = Device::noop_for(&target).unwrap();
    assert_eq!(device.target(), &target);
    let mut hand = Hand::new("ten");
    let names: Vec<String> = (0..10).map(|i| format!("b{i}: array<f32>")).collect();
    let bindings: Vec<(&str, Access)> = names.iter().map(|name| (name.as_str(), Access::ReadWrite)).collect();
    let kernel = hand.kernel("ten", &bindings, 1, "    if i < dims.n0 { b0[i] = f32(f16(b9[i])); }");
    hand.0.kernels[0].wgsl.insert_str(0, "enable f16;\n");
    let args: Vec<_> = (0..10).map(|_| hand.slot(64)).collect();
    hand.cmd(kernel, 16, &args, &[16], "");
    let run = |device: &Device, plan: Plan| -> Result<RunOutput, monopass_runtime::RuntimeError> {
        let executable = blocking::executable(device, plan, &blocking::upload(device, none())?)?;
        blocking::run(&executable, &mut Session::new(device), &[])
    };
    assert_eq!(run(&device, hand.0.clone()).unwrap().counters.dispatches, 1);
    let error = run(&Device::noop(), hand.0).unwrap_err();
    assert!(error.to_string().contains("10 of storage buffers a stage, and the device has 8"), "{error}");
}

#[test]
fn a_plan_of_nothing_runs() {
    let device = Device::noop();
    let weights = blocking::upload(&device, none()).unwrap();
    let mut hand = Hand::new("nothing");
    hand.output("y", f32s(&[2]));
    for plan in [Plan::default(), hand.0] {
        let executable = blocking::executable(&device, plan, &weights).unwrap();
        let got = blocking::run(&executable, &mut Session::new(&device), &[]).unwrap();
        assert_eq!((got.counters.submits, got.counters.dispatches), (1, 0));
    }
}

#[test]
fn handles_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    fn moves<T: Send>(_: &T) {}
    fn moves_type<T: Send>() {}
    crosses::<Device>();
    crosses::<Executable>();
    crosses::<Weights>();
    crosses::<Session>();
    moves_type::<Pending>();
    let device = Device::noop();
    let weights = blocking::upload(&device, none()).unwrap();
    moves(&Device::request(&monopass_runtime::DeviceOptions::default()));
    moves(&Executable::new(&device, counter(), &weights));
    let executable = blocking::executable(&device, counter(), &weights).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut session, step) = (Session::new(&device), vector(&[1.0; 3]).unwrap());
                for _ in 0..50 {
                    blocking::run(&executable, &mut session, &[("step", &step)]).unwrap();
                }
            });
        }
    });
}
