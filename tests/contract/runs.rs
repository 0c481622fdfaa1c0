//! What runs promise: one encoder, pass and submit, nothing created on replay, and results that do not depend on how a
//! sequence is cut or on which executor computes it.

use crate::common::{Outcome, Program, compile, difference_within, gpu};
use crate::small;
use monopass_blocks::{BlockConfig, BlockGraph, Head, Io, LmConfig, LmGraph, block, init, model};
use monopass_ir::eval::{Interpreter, Tensors};
use monopass_ir::{DType, Elements, Graph, TensorData, TensorType, sample};
use monopass_lower::CompileOptions;
use monopass_runtime::{Device, Session, Weights, blocking};

const BATCH: usize = 3;

fn program(device: &Device, graph: &Graph, weights: &Weights) -> Outcome<Program> {
    Program::new(device, compile(graph, device.target(), &CompileOptions::default())?, weights)
}

fn upload(device: &Device, params: &Tensors) -> Outcome<Weights> {
    Ok(blocking::upload(device, params.iter().map(|(name, data)| (name.clone(), data)))?)
}

/// Runs twice and asserts what each run recorded, and that the second one created nothing.
fn check_counters(name: &str, device: &Device, graph: &Graph, params: &Tensors) -> Outcome {
    let program = program(device, graph, &upload(device, params)?)?;
    let (inputs, _, _) = sample::inputs(graph, 3);
    let mut session = Session::new(device);
    let n_cmds = compile(graph, device.target(), &CompileOptions::default())?.cmds.len() as u64;
    for replay in [false, true] {
        let (_, _, counters) = program.run(&mut session, &inputs, &Tensors::new())?;
        assert_eq!((counters.encoders, counters.passes, counters.submits), (1, 1, 1), "{name}");
        assert_eq!(counters.dispatches, n_cmds, "{name}");
        assert!(!replay || counters.objects_created() == 0, "{name} creates on replay: {counters:?}");
    }
    Ok(())
}

#[test]
fn a_run_is_one_submit_and_a_replay_creates_nothing() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    for (name, config) in small() {
        let params = init::block(&config, 5)?;
        for (mode, len, io) in [
            ("forward", 70, Io::Stateless),
            ("prefill", 20, Io::Fresh),
            ("chunk", 20, Io::Explicit),
            ("chunk", 9, Io::Stateful),
            ("step", 1, Io::Stateful),
        ] {
            check_counters(&format!("{name} {mode}"), device, &block::graph(&config, BATCH, len, io)?, &params)?;
        }
        let packed = BlockGraph { seq_idx: true, mask: true, ..Io::Fresh.into() };
        check_counters(&format!("{name} packed"), device, &block::graph_with(&config, BATCH, 20, packed)?, &params)?;
        let config = LmConfig::new(config, 2, 61);
        let params = init::lm(&config, 5)?;
        for (mode, len, io, head) in
            [("logits", 20, Io::Stateless, Head::Logits), ("prefill", 9, Io::Stateful, Head::Next), ("step", 1, Io::Stateful, Head::Next)]
        {
            let graph = model::graph(&config, BATCH, len, LmGraph::new(io, head))?;
            check_counters(&format!("{name} lm {mode}"), device, &graph, &params)?;
        }
    }
    Ok(())
}

/// `u [BATCH, len, width]`.
fn sequence(len: usize, width: usize) -> TensorData {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as u16) / 32768.0 - 1.0
    };
    let mut tensor = TensorData::zeros(&TensorType::new(DType::F32, [BATCH, len, width]));
    if let Ok(filled) = TensorData::f32([BATCH, len, width], (0..BATCH * len * width).map(|_| next()).collect::<Vec<f32>>()) {
        tensor = filled;
    }
    tensor
}

/// Tokens `start..end` of `u`.
fn tokens(u: &TensorData, start: usize, end: usize) -> Outcome<TensorData> {
    let (len, width) = (u.shape()[1], u.shape()[2]);
    let all = u.to_f32_vec();
    let rows = (0..BATCH).flat_map(|b| &all[(b * len + start) * width..(b * len + end) * width]);
    Ok(TensorData::f32([BATCH, end - start, width], rows.copied().collect::<Vec<f32>>())?)
}

/// Outputs and last states of the block where the sequence is cut into pieces of these lengths.
fn in_pieces(device: &Device, config: &BlockConfig, u: &TensorData, lens: &[usize]) -> Outcome<Tensors> {
    let weights = upload(device, &init::block(config, 5)?)?;
    let mut session = Session::new(device);
    let mut rows = vec![Vec::new(); BATCH];
    let mut last = Tensors::new();
    let mut start = 0;
    for &len in lens {
        let program = program(device, &block::graph(config, BATCH, len, Io::Stateful)?, &weights)?;
        let inputs = [("u".to_owned(), tokens(u, start, start + len)?)].into();
        let (outputs, states, _) = program.run(&mut session, &inputs, &Tensors::new())?;
        let (out, width) = (outputs["out"].to_f32_vec(), len * config.d_model());
        rows.iter_mut().enumerate().for_each(|(b, row)| row.extend_from_slice(&out[b * width..(b + 1) * width]));
        (last, start) = (states, start + len);
    }
    last.insert("out".to_owned(), TensorData::f32(u.shape(), rows.concat())?);
    Ok(last)
}

#[test]
fn any_cut_of_a_sequence_gives_the_same() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    for (name, config) in small() {
        let u = sequence(73, config.d_model());
        let whole = in_pieces(device, &config, &u, &[73])?;
        for lens in [&[20, 53][..], &[8, 64, 1], &[0, 70, 3], &[9, 1, 1, 2, 60]] {
            let pieces = in_pieces(device, &config, &u, lens)?;
            if let Some(problem) = difference_within(&pieces, &whole, 0.05) {
                return Err(format!("{name} in pieces of {lens:?}: {problem}").into());
            }
        }
        let short = tokens(&u, 0, 12)?;
        let (whole, steps) = (in_pieces(device, &config, &short, &[12])?, in_pieces(device, &config, &short, &[1; 12])?);
        if let Some(problem) = difference_within(&steps, &whole, 0.05) {
            return Err(format!("{name} token by token: {problem}").into());
        }
    }
    Ok(())
}

/// Greedy tokens after a prompt, by an executor that takes a graph and token numbers and gives the next.
fn greedy(config: &LmConfig, mut next: impl FnMut(&Graph, &TensorData) -> Outcome<Vec<u32>>) -> Outcome<Vec<u32>> {
    let graph = |len| model::graph(config, BATCH, len, LmGraph::new(Io::Stateful, Head::Next));
    let ids = |len: usize, ids: Vec<u32>| TensorData::new([BATCH, len], Elements::U32(ids));
    let mut newest = next(&graph(11)?, &ids(11, (0..33).map(|i| (i * i + 7) % 61).collect())?)?;
    let step = graph(1)?;
    let mut all = newest.clone();
    for _ in 1..32 {
        newest = next(&step, &ids(1, newest)?)?;
        all.extend(&newest);
    }
    Ok(all)
}

#[test]
fn greedy_tokens_are_those_of_the_interpreter() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    for (name, block) in small() {
        let config = LmConfig::new(block, 2, 61);
        let params = init::lm(&config, 8)?;
        let mut states = Tensors::new();
        let wanted = greedy(&config, |graph, ids| {
            let outputs = Interpreter::new(graph)?.run(&[("ids".to_owned(), ids.clone())].into(), &params, &mut states)?;
            Ok(outputs["next"].as_u32().ok_or("not u32")?.to_vec())
        })?;
        let weights = upload(device, &params)?;
        let mut session = Session::new(device);
        let mut programs: Vec<(usize, Program)> = Vec::new();
        let given = greedy(&config, |graph, ids| {
            let len = ids.shape()[1];
            if !programs.iter().any(|(known, _)| *known == len) {
                programs.push((len, program(device, graph, &weights)?));
            }
            let (_, program) = programs.iter().find(|(known, _)| *known == len).ok_or("no program")?;
            let (outputs, _, _) = program.run(&mut session, &[("ids".to_owned(), ids.clone())].into(), &Tensors::new())?;
            Ok(outputs["next"].as_u32().ok_or("not u32")?.to_vec())
        })?;
        assert_eq!(given, wanted, "{name}");
    }
    Ok(())
}
