//! Guards that parts, blocks, models and loaded checkpoints compute what the reference vectors say, gradients included, on the interpreter in both
//! precisions, and that padding and neighbors in a batch of packed sequences do not show.

mod support;

use monopass_blocks::cases::{CaseGraphs, Manifest, Tensors, read_tensors};
use monopass_blocks::model::{self, LmGraph};
use monopass_blocks::{BlockConfig, BlockGraph, Head, Io, LmConfig, Mamba2Config, Mamba3Config, NormKind, block, checkpoint, init};
use monopass_ir::eval::{Interpreter, Precision};
use monopass_ir::{Elements, Graph, TensorData};
use support::{Dir, Result, largest_difference, noise, tokens};

fn execute(graph: &Graph, inputs: &Tensors, params: &Tensors, states: &mut Tensors) -> Result<Tensors> {
    Ok(Interpreter::new(graph)?.run(inputs, params, states)?)
}

/// Runs the cases whose kind is among `kinds` and gives how many there were, and every tensor that is off.
fn run_cases(kinds: &[&str], precision: Precision) -> Result<(usize, Vec<String>)> {
    let execute = |graph: &Graph, inputs: &Tensors, params: &Tensors, states: &mut Tensors| {
        Interpreter::new(graph).and_then(|interpreter| interpreter.precision(precision).run(inputs, params, states))
    };
    let dir = Dir::golden();
    let manifest = Manifest::parse(&String::from_utf8(dir.bytes("manifest.json")?)?)?;
    let cases: Vec<_> = manifest.cases.iter().filter(|case| kinds.contains(&case.kind.as_str())).collect();
    let mut off = Vec::new();
    for case in &cases {
        let tensors = read_tensors(&case.file, &dir.bytes(&case.file)?)?;
        let (graphs, params) = if case.kind == "checkpoint" {
            let loaded = checkpoint::load_with(&dir.sub(&case.id), &case.load_options())?;
            (CaseGraphs::of_checkpoint(case, &tensors, &loaded)?, loaded.params)
        } else {
            (CaseGraphs::with_gradients(case, &tensors)?, CaseGraphs::params_of(&tensors))
        };
        let given = graphs.run(&tensors, &params, &execute)?;
        let verdicts = case.judge(&given, &tensors, true);
        assert!(!verdicts.is_empty(), "{}: nothing to compare", case.id);
        off.extend(verdicts.iter().filter(|verdict| !verdict.passes()).map(|verdict| format!("{}: {verdict:?}", case.id)));
    }
    Ok((cases.len(), off))
}

fn check(kinds: &[&str], n_cases: usize) -> Result {
    for precision in [Precision::F32, Precision::F64] {
        let (found, off) = run_cases(kinds, precision)?;
        assert!(off.is_empty(), "{precision:?}: {}", off.join("\n"));
        assert_eq!(found, n_cases);
    }
    Ok(())
}

#[test]
fn parts() -> Result {
    check(&["linear", "conv1d", "rmsnorm", "gated_rmsnorm", "unary", "cross_entropy", "adamw"], 54)
}

#[test]
fn recurrences() -> Result {
    check(&["zoh", "ssd", "cssd", "s6"], 67)
}

#[test]
fn mamba3_core() -> Result {
    check(&["m3_core"], 31)
}

#[test]
fn blocks() -> Result {
    check(&["mamba2_block", "seed2_block", "cmamba_block", "mamba3_block"], 35)
}

#[test]
fn decoding() -> Result {
    check(&["decode"], 15)
}

#[test]
fn models() -> Result {
    check(&["lm", "checkpoint"], 8)
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

#[test]
fn left_padding_leaves_tokens_as_they_are() -> Result {
    let mamba3 = Mamba3Config { headdim: 4, d_state: 6, is_mimo: true, mimo_rank: 2, ..Mamba3Config::new(8) };
    let complex = Mamba2Config { headdim: 4, d_state: 3, gate: true, ..Mamba2Config::cmamba(8) };
    for config in [BlockConfig::from(mamba3), complex.into()] {
        padding_leaves_tokens(&config, &init::block(&config, 5)?)?;
    }
    for learned in [false, true] {
        let config = Mamba2Config { bias: false, learnable_init_states: learned, ..small() };
        let mut params = init::block(&config, 5)?;
        if learned {
            params.insert("mixer.init_states".to_owned(), noise(&[4, 4, 5], 9)?);
        }
        padding_leaves_tokens(&config.into(), &params)?;
    }
    Ok(())
}

fn padding_leaves_tokens(config: &BlockConfig, params: &Tensors) -> Result {
    let run = |u: &TensorData, mask: Option<TensorData>| -> Result<Vec<f32>> {
        let options = BlockGraph { mask: mask.is_some(), ..Io::Stateless.into() };
        let graph = block::graph_with(config, 3, u.shape()[1], options)?;
        let inputs = [("u".to_owned(), u.clone())].into_iter().chain(mask.map(|mask| ("mask".to_owned(), mask))).collect();
        Ok(execute(&graph, &inputs, params, &mut Tensors::new())?["out"].to_f32_vec())
    };
    let padded = noise(&[3, 7, 8], 2)?;
    let mask = TensorData::f32([3, 7], [0., 0., 0., 1., 1., 1., 1.].repeat(3))?;
    let with_padding = TensorData::f32([3, 7, 8], run(&padded, Some(mask))?)?;
    let without = run(&tokens(&padded, 3, 7)?, None)?;
    let difference = largest_difference(&tokens(&with_padding, 3, 7)?.to_f32_vec(), &without);
    assert!(difference < 1e-5, "{config:?}: {difference}");
    Ok(())
}

#[test]
fn packed_sequences_do_not_see_each_other() -> Result {
    let complex = Mamba2Config { headdim: 4, d_state: 3, mimo_rank: 2, ngroups: 2, ..Mamba2Config::cmamba(8) };
    let siso = Mamba3Config { headdim: 4, d_state: 6, ngroups: 2, rope_fraction: 1.0, ..Mamba3Config::new(8) };
    let mimo = Mamba3Config { is_mimo: true, mimo_rank: 3, is_outproj_norm: true, d_state: 5, ..siso.clone() };
    for config in [BlockConfig::from(small()), complex.into(), siso.into(), mimo.into()] {
        let params = init::block(&config, 5)?;
        let u = noise(&[1, 9, 8], 3)?;
        let graph = block::graph_with(&config, 1, 9, BlockGraph { seq_idx: true, ..Io::Fresh.into() })?;
        let seq_idx = TensorData::i32([1, 9], [4, 4, 4, 4, 7, 2, 2, 2, 2])?;
        let inputs = [("u".to_owned(), u.clone()), ("seq_idx".to_owned(), seq_idx)].into();
        let packed = execute(&graph, &inputs, &params, &mut Tensors::new())?;
        let mut apart = Vec::new();
        for (start, end) in [(0, 4), (4, 5), (5, 9)] {
            let graph = block::graph(&config, 1, end - start, Io::Fresh)?;
            let inputs = [("u".to_owned(), tokens(&u, start, end)?)].into();
            let outputs = execute(&graph, &inputs, &params, &mut Tensors::new())?;
            apart.extend(outputs["out"].to_f32_vec());
            if end == 9 {
                assert_eq!(outputs.len(), config.sizes()?.states().len() + 1);
                for (name, state) in outputs.iter().filter(|(name, _)| *name != "out") {
                    let difference = largest_difference(&state.to_f32_vec(), &packed[name].to_f32_vec());
                    assert!(difference < 1e-5, "{config:?} {name}: {difference}");
                }
            }
        }
        assert!(largest_difference(&apart, &packed["out"].to_f32_vec()) < 1e-5, "{config:?}");
    }
    Ok(())
}

#[test]
fn greedy_tokens_are_those_of_the_logits() -> Result {
    let mamba3 = Mamba3Config { headdim: 4, d_state: 6, ..Mamba3Config::new(8) };
    greedy(&LmConfig { tie_embeddings: false, ..LmConfig::new(small(), 2, 13) })?;
    greedy(&LmConfig::new(mamba3, 2, 13))?;
    greedy(&LmConfig::new(Mamba2Config { headdim: 4, d_state: 3, ..Mamba2Config::cmamba(8) }, 2, 13))
}

fn greedy(config: &LmConfig) -> Result {
    let params = init::lm(config, 8)?;
    let build = |batch, len, io, head| model::graph(config, batch, len, LmGraph::new(io, head));
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
