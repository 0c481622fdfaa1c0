//! Guards that blocks, models and loaded checkpoints compute what the reference vectors say, on the interpreter, and that
//! any split of a sequence gives the same results.

mod support;

use monopass_blocks::cases::{CaseGraphs, Manifest, Tensors, read_tensors};
use monopass_blocks::mamba2::{self, BlockGraph};
use monopass_blocks::model::{self, LmGraph};
use monopass_blocks::{Head, Io, LmConfig, Mamba2Config, NormKind, checkpoint, init};
use monopass_ir::eval::Interpreter;
use monopass_ir::{Elements, Graph, TensorData};
use support::{Dir, Result, largest_difference, noise, tokens};

fn execute(graph: &Graph, inputs: &Tensors, params: &Tensors, states: &mut Tensors) -> Result<Tensors> {
    Ok(Interpreter::new(graph)?.run(inputs, params, states)?)
}

/// Runs the cases whose kind is among `kinds` and gives how many there were, and every tensor that is off.
fn run_cases(kinds: &[&str]) -> Result<(usize, Vec<String>)> {
    let dir = Dir::golden();
    let manifest = Manifest::parse(&String::from_utf8(dir.bytes("manifest.json")?)?)?;
    let cases: Vec<_> = manifest.cases.iter().filter(|case| kinds.contains(&case.kind.as_str())).collect();
    let mut off = Vec::new();
    for case in &cases {
        let tensors = read_tensors(&case.file, &dir.bytes(&case.file)?)?;
        let (graphs, params) = if case.kind == "checkpoint" {
            let loaded = checkpoint::load(&dir.sub(&case.id))?;
            (CaseGraphs::of_checkpoint(case, &tensors, &loaded)?, loaded.params)
        } else {
            (CaseGraphs::new(case, &tensors)?, CaseGraphs::params_of(&tensors))
        };
        let given = graphs.run(&tensors, &params, execute)?;
        let verdicts = case.judge(&given, &tensors);
        assert!(!verdicts.is_empty(), "{}: nothing to compare", case.id);
        off.extend(verdicts.iter().filter(|verdict| !verdict.passes()).map(|verdict| format!("{}: {verdict:?}", case.id)));
    }
    Ok((cases.len(), off))
}

fn check(kinds: &[&str], n_cases: usize) -> Result {
    let (found, off) = run_cases(kinds)?;
    assert!(off.is_empty(), "{}", off.join("\n"));
    assert_eq!(found, n_cases);
    Ok(())
}

#[test]
fn parts() -> Result {
    check(&["linear", "conv1d", "rmsnorm", "gated_rmsnorm", "unary"], 48)
}

#[test]
fn ssd() -> Result {
    check(&["ssd"], 30)
}

#[test]
fn blocks() -> Result {
    check(&["mamba2_block", "seed2_block"], 18)
}

#[test]
fn decoding() -> Result {
    check(&["decode"], 6)
}

#[test]
fn models() -> Result {
    check(&["lm", "checkpoint"], 3)
}

fn small() -> Mamba2Config {
    Mamba2Config {
        headdim: 4,
        d_state: 5,
        ngroups: 2,
        dt_limit: [0.01, 0.5],
        bias: true,
        norm: NormKind::BeforeGate,
        ..Mamba2Config::new(8)
    }
}

/// The block on `u [batch, len, d_model]`, cut after the tokens in `cuts`, with states carried by the graph or by the caller.
fn in_parts(config: &Mamba2Config, u: &TensorData, cuts: &[usize], io: Io) -> Result<(Vec<f32>, Tensors)> {
    let (batch, len) = (u.shape()[0], u.shape()[1]);
    let params = init::block(config, 5)?;
    let mut states = Tensors::new();
    let mut rows = vec![Vec::new(); batch];
    let ends = cuts.iter().copied().chain([len]);
    for (start, end) in [0].into_iter().chain(cuts.iter().copied()).zip(ends) {
        let graph = mamba2::graph(config, batch, end - start, io)?;
        let mut inputs: Tensors = [("u".to_owned(), tokens(u, start, end)?)].into();
        if io == Io::Explicit {
            for (name, value) in graph.inputs().filter(|(name, _)| name.ends_with("state")) {
                let state = states.get(name).cloned().unwrap_or_else(|| TensorData::zeros(graph.ty(value)));
                inputs.insert(name.to_owned(), state);
            }
        }
        let outputs = execute(&graph, &inputs, &params, &mut states)?;
        let out = outputs["out"].to_f32_vec();
        let width = out.len() / batch;
        rows.iter_mut().enumerate().for_each(|(b, row)| row.extend_from_slice(&out[b * width..(b + 1) * width]));
        let kept = outputs.into_iter().filter_map(|(name, state)| Some((name.strip_suffix("_out")?.to_owned(), state)));
        states.extend(kept);
    }
    Ok((rows.concat(), states))
}

#[test]
fn any_split_of_a_sequence_gives_the_same() -> Result {
    let configs = [small(), Mamba2Config { d_conv: 1, ..small() }, Mamba2Config { headdim: 4, ngroups: 2, ..Mamba2Config::seed(8) }];
    for config in configs {
        let u = noise(&[3, 9, 8], 1)?;
        let (whole, last) = in_parts(&config, &u, &[], Io::Stateful)?;
        let splits: [&[usize]; 4] = [&[1, 2, 3, 4, 5, 6, 7, 8], &[4], &[1, 8], &[0, 5, 5]];
        for (cuts, io) in splits.into_iter().zip([Io::Stateful, Io::Explicit, Io::Explicit, Io::Stateful]) {
            let (parts, states) = in_parts(&config, &u, cuts, io)?;
            assert!(largest_difference(&whole, &parts) < 2e-5, "{cuts:?}");
            for (name, state) in &last {
                assert!(largest_difference(&state.to_f32_vec(), &states[name].to_f32_vec()) < 2e-5, "{name} {cuts:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn left_padding_leaves_tokens_as_they_are() -> Result {
    for learned in [false, true] {
        let config = Mamba2Config { bias: false, learnable_init_states: learned, ..small() };
        let mut params = init::block(&config, 5)?;
        if learned {
            params.insert("mixer.init_states".to_owned(), noise(&[4, 4, 5], 9)?);
        }
        let run = |u: &TensorData, mask: Option<TensorData>| -> Result<Vec<f32>> {
            let options = BlockGraph { mask: mask.is_some(), ..Io::Stateless.into() };
            let graph = mamba2::graph_with(&config, 3, u.shape()[1], options)?;
            let inputs = [("u".to_owned(), u.clone())].into_iter().chain(mask.map(|mask| ("mask".to_owned(), mask))).collect();
            Ok(execute(&graph, &inputs, &params, &mut Tensors::new())?["out"].to_f32_vec())
        };
        let padded = noise(&[3, 7, 8], 2)?;
        let mask = TensorData::f32([3, 7], [0., 0., 0., 1., 1., 1., 1.].repeat(3))?;
        let with_padding = TensorData::f32([3, 7, 8], run(&padded, Some(mask))?)?;
        let without = run(&tokens(&padded, 3, 7)?, None)?;
        let difference = largest_difference(&tokens(&with_padding, 3, 7)?.to_f32_vec(), &without);
        assert!(difference < 1e-5, "learned {learned}: {difference}");
    }
    Ok(())
}

#[test]
fn packed_sequences_do_not_see_each_other() -> Result {
    let params = init::block(&small(), 5)?;
    let u = noise(&[1, 9, 8], 3)?;
    let graph = mamba2::graph_with(&small(), 1, 9, BlockGraph { seq_idx: true, ..Io::Fresh.into() })?;
    let seq_idx = TensorData::i32([1, 9], [4, 4, 4, 4, 7, 2, 2, 2, 2])?;
    let inputs = [("u".to_owned(), u.clone()), ("seq_idx".to_owned(), seq_idx)].into();
    let packed = execute(&graph, &inputs, &params, &mut Tensors::new())?;
    let mut apart = Vec::new();
    for (start, end) in [(0, 4), (4, 5), (5, 9)] {
        let graph = mamba2::graph(&small(), 1, end - start, Io::Fresh)?;
        let inputs = [("u".to_owned(), tokens(&u, start, end)?)].into();
        let outputs = execute(&graph, &inputs, &params, &mut Tensors::new())?;
        apart.extend(outputs["out"].to_f32_vec());
        if end == 9 {
            assert!(largest_difference(&outputs["ssm_state_out"].to_f32_vec(), &packed["ssm_state_out"].to_f32_vec()) < 1e-5);
            assert!(largest_difference(&outputs["conv_state_out"].to_f32_vec(), &packed["conv_state_out"].to_f32_vec()) < 1e-5);
        }
    }
    assert!(largest_difference(&apart, &packed["out"].to_f32_vec()) < 1e-5);
    Ok(())
}

#[test]
fn greedy_tokens_are_those_of_the_logits() -> Result {
    let config = LmConfig { tie_embeddings: false, ..LmConfig::new(small(), 2, 13) };
    let params = init::lm(&config, 8)?;
    let build = |batch, len, io, head| model::graph(&config, batch, len, LmGraph::new(io, head));
    let run = |graph: &Graph, ids: &[u32], states: &mut Tensors| -> Result<Tensors> {
        let ids = TensorData::new([2, ids.len() / 2], Elements::U32(ids.to_vec()))?;
        Ok(Interpreter::new(graph)?.run(&[("ids".to_owned(), ids)].into(), &params, states)?)
    };
    let mut sequences = [vec![1, 5, 9], vec![12, 0, 3]];
    let mut states = Tensors::new();
    let first = run(&build(2, 3, Io::Stateful, Head::Next)?, &sequences.concat(), &mut states)?;
    let mut next = first["next"].as_u32().ok_or("next is not u32")?.to_vec();
    let step = build(2, 1, Io::Stateful, Head::Next)?;
    for _ in 0..4 {
        sequences.iter_mut().zip(&next).for_each(|(sequence, &token)| sequence.push(token));
        next = run(&step, &next, &mut states)?["next"].as_u32().ok_or("next is not u32")?.to_vec();
    }
    let len = sequences[0].len();
    let logits = &run(&build(2, len, Io::Stateless, Head::Logits)?, &sequences.concat(), &mut Tensors::new())?["logits"];
    let last = &run(&build(2, len, Io::Stateless, Head::LastLogits)?, &sequences.concat(), &mut Tensors::new())?["logits"];
    assert!(largest_difference(&tokens(logits, len - 1, len)?.to_f32_vec(), &last.to_f32_vec()) < 1e-6);
    for (b, sequence) in sequences.iter().enumerate() {
        for t in 2..len {
            let row = &logits.to_f32_vec()[(b * len + t) * 13..][..13];
            let best = (0..13).rev().max_by(|&i, &j| row[i].total_cmp(&row[j])).ok_or("no logits")?;
            let chosen = sequence.get(t + 1).copied().unwrap_or(next[b]);
            assert_eq!(best, chosen as usize, "sequence {b}, token {t}");
        }
    }
    Ok(())
}
