//! What plans compute on a real adapter: slots, states, packs, sizes, every element type, empty tensors.

#![allow(clippy::cast_possible_truncation, reason = "sizes in tests are small")]

mod common;

use common::{Hand, Outcome, counter, f32s, gpu, shift, two_cmds, vector};
use monopass_ir::{DType, Elements, TensorData, TensorType};
use monopass_lower::plan::Access;
use monopass_runtime::{Device, Executable, Session, Weights, blocking};

fn no_weights(device: &Device) -> Outcome<Weights> {
    Ok(blocking::upload(device, std::iter::empty::<(String, TensorData)>())?)
}

fn ready(device: &Device, plan: monopass_lower::Plan) -> Outcome<(Executable, Session)> {
    let executable = blocking::executable(device, plan, &no_weights(device)?)?;
    Ok((executable, Session::new(device)))
}

#[test]
fn two_commands_hand_on_a_slot() {
    let Some(device) = gpu() else { return };
    for n in [1usize, 3, 64, 65, 1000] {
        let w: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let weights = blocking::upload(device, [("w", vector(&w).unwrap())]).unwrap();
        let executable = blocking::executable(device, two_cmds(n), &weights).unwrap();
        let x = vector(&vec![0.5; n]).unwrap();
        let got = blocking::run(&executable, &mut Session::new(device), &[("x", &x)]).unwrap();
        let want: Vec<f32> = w.iter().map(|w| (w + 0.5) * 2.0).collect();
        assert_eq!(got.outputs["y"].as_f32(), Some(&want[..]), "n {n}");
        if device.has_timestamps() {
            assert!(got.gpu_ns.is_some_and(|ns| ns < 60_000_000_000), "{:?}", got.gpu_ns);
        }
    }
}

#[test]
fn a_profile_has_the_time_of_each_command() {
    let Some(device) = gpu() else { return };
    let weights = blocking::upload(device, [("w", vector(&[1.0; 5]).unwrap())]).unwrap();
    let executable = blocking::executable(device, two_cmds(5), &weights).unwrap();
    let (mut session, x) = (Session::new(device), vector(&[0.5; 5]).unwrap());
    if !device.has_timestamps() {
        let error = blocking::profile(&executable, &mut session, &[("x", &x)]).unwrap_err();
        assert!(error.to_string().contains("does not measure"), "{error}");
        return;
    }
    let got = blocking::profile(&executable, &mut session, &[("x", &x)]).unwrap();
    assert_eq!(got.run.outputs["y"].as_f32(), Some(&[3.0; 5][..]));
    assert_eq!((got.run.counters.passes, got.run.counters.submits), (2, 1));
    let names: Vec<_> = got.cmds.iter().map(|cmd| (cmd.kernel.as_str(), cmd.scope.as_str())).collect();
    assert_eq!(names, [("k0 add", "block/add"), ("k1 double", "block/double")]);
    assert!(got.cmds.iter().all(|cmd| cmd.gpu_ns < 60_000_000_000));
}

#[test]
fn a_state_in_place_counts_on() {
    let Some(device) = gpu() else { return };
    let (executable, mut session) = ready(device, counter()).unwrap();
    let step = vector(&[1.0, 10.0, -2.0]).unwrap();
    for n in 1..=4u8 {
        let got = blocking::run(&executable, &mut session, &[("step", &step)]).unwrap();
        let n = f32::from(n);
        assert_eq!(got.outputs["y"].as_f32(), Some(&[n, 10.0 * n, -2.0 * n][..]));
    }
    assert_eq!(blocking::read(&session, "count").unwrap().as_f32(), Some(&[4.0, 40.0, -8.0][..]));
    session.reset().unwrap();
    assert_eq!(blocking::read(&session, "count").unwrap().as_f32(), Some(&[0.0; 3][..]));
}

#[test]
fn a_state_in_two_buffers_takes_turns() {
    let Some(device) = gpu() else { return };
    let (executable, mut session) = ready(device, shift()).unwrap();
    session.write("window", &vector(&[1.0, 2.0, 3.0, 4.0]).unwrap()).unwrap();
    let mut window = vec![1.0, 2.0, 3.0, 4.0];
    for x in [5.0f32, 6.0, 7.0, 8.0, 9.0] {
        let got = blocking::run(&executable, &mut session, &[("x", &vector(&[x]).unwrap())]).unwrap();
        window.remove(0);
        window.push(x);
        assert_eq!(got.outputs["y"].as_f32(), Some(&[window.iter().sum::<f32>()][..]));
        assert_eq!(blocking::read(&session, "window").unwrap().as_f32(), Some(&window[..]));
    }
}

#[test]
fn executables_share_the_states_of_a_session() {
    let Some(device) = gpu() else { return };
    let weights = no_weights(device).unwrap();
    let turns = blocking::executable(device, shift(), &weights).unwrap();
    // The same state, updated in place by another plan: every element doubled.
    let mut hand = Hand::new("double_window");
    let (window, _) = hand.state("window", f32s(&[4]), monopass_lower::plan::StateStorage::InPlace);
    let kernel = hand.kernel("double", &[("w: array<f32>", Access::ReadWrite)], 0, "    if i < 4u { w[i] = w[i] * 2.0; }");
    hand.cmd(kernel, 4, &[window], &[], "");
    let in_place = blocking::executable(device, hand.0, &weights).unwrap();
    let mut session = Session::new(device);
    blocking::run(&in_place, &mut session, &[]).unwrap();
    let mut window = [0.0f32; 4];
    for x in [1.0f32, 2.0, 3.0] {
        blocking::run(&turns, &mut session, &[("x", &vector(&[x]).unwrap())]).unwrap();
        blocking::run(&in_place, &mut session, &[]).unwrap();
        window = [window[1] * 2.0, window[2] * 2.0, window[3] * 2.0, x * 2.0];
        assert_eq!(blocking::read(&session, "window").unwrap().as_f32(), Some(&window[..]));
    }
    let x = vector(&[0.0]).unwrap();
    assert_eq!(blocking::run(&turns, &mut session, &[("x", &x)]).unwrap().counters.objects_created(), 0);
    assert_eq!(blocking::run(&in_place, &mut session, &[]).unwrap().counters.objects_created(), 0);
}

#[test]
fn a_fork_is_independent_and_can_be_rolled_back_to() {
    let Some(device) = gpu() else { return };
    let (executable, mut session) = ready(device, shift()).unwrap();
    let feed = |session: &mut Session, x: f32| -> Outcome<f32> {
        let got = blocking::run(&executable, session, &[("x", &vector(&[x])?)])?;
        Ok(got.outputs["y"].to_f32_vec()[0])
    };
    assert_eq!(feed(&mut session, 1.0).unwrap(), 1.0);
    let snapshot = session.fork().unwrap();
    assert_eq!(feed(&mut session, 10.0).unwrap(), 11.0);
    assert_eq!(feed(&mut session, 10.0).unwrap(), 21.0);
    let mut other = snapshot.fork().unwrap();
    assert_eq!(feed(&mut other, 5.0).unwrap(), 6.0);
    session.copy_from(&snapshot).unwrap();
    assert_eq!(feed(&mut session, 2.0).unwrap(), 3.0);
    assert_eq!(feed(&mut other, 5.0).unwrap(), 11.0);
    session.copy_from(&Session::new(device)).unwrap();
    assert_eq!(feed(&mut session, 4.0).unwrap(), 4.0, "states that the other lacks become zero");
}

#[test]
fn rows_are_copied_between_sessions_of_different_batches() {
    let Some(device) = gpu() else { return };
    let rows = |n: usize, first: f32| TensorData::f32([n, 3], (0..3 * n).map(|i| first + i as f32).collect::<Vec<_>>()).unwrap();
    let (mut batch, mut single) = (Session::new(device), Session::new(device));
    batch.write("a", &rows(3, 0.0)).unwrap();
    batch.write("b", &rows(3, 100.0)).unwrap();
    single.write("a", &rows(1, 50.0)).unwrap();
    batch.copy_row(1, &single, 0).unwrap();
    let read = |session: &Session, name: &str| blocking::read(session, name).unwrap().to_f32_vec();
    assert_eq!(read(&batch, "a"), [0.0, 1.0, 2.0, 50.0, 51.0, 52.0, 6.0, 7.0, 8.0]);
    assert_eq!(read(&batch, "b"), [100.0, 101.0, 102.0, 0.0, 0.0, 0.0, 106.0, 107.0, 108.0], "a state that the other lacks becomes zero");
    single.write("b", &rows(1, 0.0)).unwrap();
    single.copy_row(0, &batch, 2).unwrap();
    assert_eq!((read(&single, "a"), read(&single, "b")), (vec![6.0, 7.0, 8.0], vec![106.0, 107.0, 108.0]));
}

#[test]
fn packed_weights_lie_where_the_plan_says() {
    let Some(device) = gpu() else { return };
    let mut hand = Hand::new("pack");
    let pack = hand.pack(&[("a", f32s(&[3]), 0), ("b", f32s(&[2]), 256)], 264);
    let y = hand.output("y", f32s(&[5]));
    let bindings = [("p: array<f32>", Access::Read), ("y: array<f32>", Access::ReadWrite)];
    let body = "    if i < 3u { y[i] = p[i]; } else if i < 5u { y[i] = p[64u + i - 3u]; }";
    let kernel = hand.kernel("unpack", &bindings, 0, body);
    hand.cmd(kernel, 5, &[pack, y], &[], "");
    let tensors = [("a", vector(&[1.0, 2.0, 3.0]).unwrap()), ("b", vector(&[4.0, 5.0]).unwrap())];
    let weights = blocking::upload(device, tensors).unwrap();
    let executable = blocking::executable(device, hand.0.clone(), &weights).unwrap();
    let mut session = Session::new(device);
    let got = blocking::run(&executable, &mut session, &[]).unwrap();
    assert_eq!(got.outputs["y"].as_f32(), Some(&[1.0, 2.0, 3.0, 4.0, 5.0][..]));
    let again = blocking::executable(device, hand.0, &weights).unwrap();
    weights.write("b", &vector(&[-4.0, -5.0]).unwrap()).unwrap();
    for executable in [&executable, &again] {
        let got = blocking::run(executable, &mut session, &[]).unwrap();
        assert_eq!(got.outputs["y"].as_f32(), Some(&[1.0, 2.0, 3.0, -4.0, -5.0][..]), "a write reaches packs");
    }
}

#[test]
fn commands_of_one_kernel_have_sizes_of_their_own() {
    let Some(device) = gpu() else { return };
    let mut hand = Hand::new("sizes");
    let kernel = hand.kernel("fill", &[("y: array<u32>", Access::ReadWrite)], 2, "    if i < dims.n0 { y[i] = dims.n1; }");
    let u32s = |n: usize| TensorType::new(DType::U32, [n]);
    for (name, n, value) in [("p", 3u32, 7u32), ("q", 70, 9), ("r", 3, 7)] {
        let output = hand.output(name, u32s(n as usize));
        hand.cmd(kernel, n as usize, &[output], &[n, value], "");
    }
    let (executable, mut session) = ready(device, hand.0).unwrap();
    let got = blocking::run(&executable, &mut session, &[]).unwrap();
    for (name, n, value) in [("p", 3, 7), ("q", 70, 9), ("r", 3, 7)] {
        assert_eq!(got.outputs[name].as_u32(), Some(&vec![value; n][..]));
    }
}

/// Inputs of every element type and odd sizes, copied word by word.
#[test]
fn every_element_type_goes_in_and_out() {
    let Some(device) = gpu() else { return };
    let halves = TensorData::new([5], Elements::F16([1.5f32, -2.0, 0.25, 7.0, -0.5].map(half::f16::from_f32).to_vec()));
    let brains = TensorData::new([3, 1], Elements::Bf16([1.5f32, -2.0, 256.0].map(half::bf16::from_f32).to_vec()));
    let cases = [
        vector(&[1.0, -2.5, f32::MIN_POSITIVE]).unwrap(),
        halves.unwrap(),
        brains.unwrap(),
        TensorData::i32([2], [i32::MIN, 7]).unwrap(),
        TensorData::new([1], Elements::U32(vec![u32::MAX])).unwrap(),
        TensorData::new([3], Elements::Bool(vec![true, false, true])).unwrap(),
        TensorData::f32(Vec::<usize>::new(), [42.0]).unwrap(),
    ];
    for data in cases {
        let n_words = data.ty().size_bytes().div_ceil(4) as usize;
        let mut hand = Hand::new("copy");
        let x = hand.input("x", data.ty());
        let y = hand.output("y", data.ty());
        let bindings = [("x: array<u32>", Access::Read), ("y: array<u32>", Access::ReadWrite)];
        let kernel = hand.kernel("copy", &bindings, 1, "    if i < dims.n0 { y[i] = x[i]; }");
        hand.cmd(kernel, n_words, &[x, y], &[n_words as u32], "");
        let (executable, mut session) = ready(device, hand.0).unwrap();
        let got = blocking::run(&executable, &mut session, &[("x", &data)]).unwrap();
        assert_eq!(got.outputs["y"], data);
    }
}

#[test]
fn a_truth_value_is_a_word_that_a_kernel_may_write() {
    let Some(device) = gpu() else { return };
    let mut hand = Hand::new("not");
    let ty = TensorType::new(DType::Bool, [3]);
    let (x, y) = (hand.input("x", ty.clone()), hand.output("y", ty));
    let bindings = [("x: array<u32>", Access::Read), ("y: array<u32>", Access::ReadWrite)];
    let kernel = hand.kernel("not", &bindings, 0, "    if i < 3u { y[i] = select(1u, 0u, x[i] != 0u); }");
    hand.cmd(kernel, 3, &[x, y], &[], "");
    let (executable, mut session) = ready(device, hand.0).unwrap();
    let x = TensorData::new([3], Elements::Bool(vec![true, false, true])).unwrap();
    let got = blocking::run(&executable, &mut session, &[("x", &x)]).unwrap();
    assert_eq!(got.outputs["y"].elements(), &Elements::Bool(vec![false, true, false]));
}

#[test]
fn empty_tensors_go_through() {
    let Some(device) = gpu() else { return };
    let weights = blocking::upload(device, [("w", vector(&[]).unwrap())]).unwrap();
    let executable = blocking::executable(device, two_cmds(0), &weights).unwrap();
    let mut session = Session::new(device);
    session.write("unused", &TensorData::zeros(&f32s(&[2, 0]))).unwrap();
    let got = blocking::run(&executable, &mut session, &[("x", &vector(&[]).unwrap())]).unwrap();
    assert_eq!(got.outputs["y"].shape(), [0]);
    assert_eq!((got.counters.dispatches, got.counters.submits), (0, 1));
    assert_eq!(blocking::read(&session, "unused").unwrap().shape(), [2, 0]);
}

#[test]
fn a_run_may_be_submitted_before_the_last_was_waited_for() {
    let Some(device) = gpu() else { return };
    let (executable, mut session) = ready(device, counter()).unwrap();
    let mut waiting = std::collections::VecDeque::new();
    let mut total = 0.0;
    let mut check = |pending: monopass_runtime::Pending, step: f32| {
        total += step;
        let got = blocking::wait(pending).unwrap();
        assert_eq!(got.outputs["y"].as_f32(), Some(&[total; 3][..]));
    };
    for n in 1..=20u8 {
        let step = f32::from(n);
        let pending = executable.submit(&mut session, &[("step", &vector(&[step; 3]).unwrap())]).unwrap();
        waiting.push_back((pending, step));
        if waiting.len() == 2 {
            let (pending, step) = waiting.pop_front().unwrap();
            check(pending, step);
        }
    }
    let (pending, step) = waiting.pop_front().unwrap();
    check(pending, step);
}

#[test]
fn weights_larger_than_the_staging_arrive_whole() {
    let Some(device) = gpu() else { return };
    let n = (20 << 20) / 4 + 3;
    let large: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let odd = TensorData::new([3], Elements::F16([1.0f32, 2.0, 3.0].map(half::f16::from_f32).to_vec())).unwrap();
    let bools = TensorData::new([2], Elements::Bool(vec![false, true])).unwrap();
    let large = TensorData::new([n], Elements::U32(large)).unwrap();
    let tensors = [("odd", &odd), ("large", &large), ("bools", &bools), ("again", &large)];
    let weights = blocking::upload(device, tensors).unwrap();
    for (name, data) in tensors {
        let got = pollster::block_on(weights.read(name)).unwrap();
        assert!(got == *data, "{name} came back different");
    }
    assert_eq!(weights.len(), 4);
    assert_eq!(weights.bytes(), 2 * (4 * n as u64).next_multiple_of(16) + 16 + 16);
}
