//! Guards generation: a sequence gets the same tokens alone and in a batch, in chunks and whole, forked, rolled back, saved and loaded,
//! and among sequences that come and go; on the interpreter and on a device.

mod common;

use common::Outcome;
use monopass::blocks::{Head, Io, LmGraph, Mamba2Config, Mamba3Config, init, model};
use monopass::generate::{Generated, Generator, GeneratorOptions, Sampling, Sequence, Slots};
use monopass::ir::Elements;
use monopass::ir::eval::{Interpreter, Precision};
use monopass::{Engine, Error, Graph, LmConfig, TensorData, Tensors};
use pollster::block_on;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const VOCAB: usize = 37;

/// The interpreter, and the device if there is one.
fn engines() -> Outcome<Vec<Engine>> {
    let device = common::gpu()?.map(|device| Engine::on(device.clone()));
    Ok(std::iter::once(Engine::cpu()).chain(device).collect())
}

/// Learned initial states, biases of the projections, rows of padding, and a Mamba-3.
fn configs() -> Vec<LmConfig> {
    let mamba2 = Mamba2Config { headdim: 4, d_state: 5, learnable_init_states: true, bias: true, ..Mamba2Config::new(12) };
    let mamba3 = Mamba3Config { headdim: 4, d_state: 6, ..Mamba3Config::new(8) };
    let mamba2 = LmConfig { tie_embeddings: false, vocab_size: VOCAB + 3, vocab_padding: 3, ..LmConfig::new(mamba2, 2, VOCAB) };
    vec![mamba2, LmConfig { tie_embeddings: false, ..LmConfig::new(mamba3, 2, VOCAB) }]
}

/// Parameters large enough that tokens differ.
fn params(config: &LmConfig) -> Outcome<Tensors> {
    let grown = |(name, tensor): (String, TensorData)| {
        let values = tensor.to_f32_vec().into_iter().enumerate().map(|(i, x)| x * 12.0 + if i % 3 == 0 { 0.1 } else { 0.0 });
        let is_map = ["embed", "head", "proj", "init_states"].iter().any(|part| name.contains(part));
        let grown = TensorData::f32(tensor.shape(), values.collect::<Vec<_>>())?;
        Ok((name, if is_map { grown } else { tensor }))
    };
    init::lm(config, 5)?.into_iter().map(grown).collect()
}

fn generator(engine: &Engine, config: &LmConfig, chunk_len: usize) -> Outcome<Generator> {
    let options = GeneratorOptions { chunk_len, ..GeneratorOptions::default() };
    Ok(block_on(Generator::with_options(engine, config.clone(), params(config)?, &options))?)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % n
    }

    fn prompt(&mut self, max_len: usize) -> Vec<u32> {
        let len = 1 + self.below(max_len);
        (0..len).map(|_| u32::try_from(self.below(VOCAB)).unwrap_or(0)).collect()
    }

    /// Greedy, or drawn by some of the rules.
    fn sampling(&mut self) -> Sampling {
        let seed = self.below(1000) as u64;
        let base = Sampling { seed, ..Sampling::default() };
        match self.below(4) {
            0 => base,
            1 => Sampling { temperature: 1.0, ..base },
            2 => Sampling { temperature: 0.8, top_k: 9, top_p: 0.9, ..base },
            _ => Sampling { temperature: 1.2, min_p: 0.02, repetition_penalty: 1.3, ..base },
        }
    }
}

fn all(_: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn sequence(generator: &Generator, prompt: &[u32], sampling: Sampling) -> Outcome<Sequence> {
    let mut sequence = generator.sequence(sampling)?;
    sequence.push(prompt);
    Ok(sequence)
}

fn more(generator: &mut Generator, sequence: &mut Sequence, n: usize) -> Outcome<Vec<u32>> {
    Ok(block_on(generator.generate(sequence, n, async |token| all(token)))?.tokens)
}

fn alone(generator: &mut Generator, prompt: &[u32], sampling: Sampling, n: usize) -> Outcome<Vec<u32>> {
    let mut sequence = sequence(generator, prompt, sampling)?;
    more(generator, &mut sequence, n)
}

#[test]
fn a_hundred_prompts_get_the_same_tokens_in_a_batch_and_alone() -> Outcome {
    for engine in engines()? {
        for config in configs() {
            let mut generator = generator(&engine, &config, 24)?;
            let mut random = Random(1);
            for _ in 0..15 {
                let mut sequences = Vec::new();
                for _ in 0..7 {
                    let (prompt, sampling) = (random.prompt(40), random.sampling());
                    sequences.push(sequence(&generator, &prompt, sampling)?);
                }
                let prompts: Vec<(Vec<u32>, Sampling)> = sequences.iter().map(|own| (own.tokens().to_vec(), own.sampling)).collect();
                // Sequences end at different lengths.
                let ends: Vec<usize> = (0..7).map(|_| 1 + random.below(9)).collect();
                let mut n_seen = [0; 7];
                let batch = block_on(generator.generate_all(&mut sequences, 9, async |row, _| {
                    n_seen[row] += 1;
                    if n_seen[row] == ends[row] { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                }))?;
                for (row, (prompt, sampling)) in prompts.iter().enumerate() {
                    let tokens = alone(&mut generator, prompt, *sampling, 12)?;
                    assert_eq!(batch[row].tokens, tokens[..ends[row]], "{}: {prompt:?} {sampling:?}", engine.describe());
                    // Each goes on alone from where it ended in the batch.
                    let rest = more(&mut generator, &mut sequences[row], 12 - ends[row])?;
                    assert_eq!(rest, tokens[ends[row]..], "{}: rest of {prompt:?} {sampling:?}", engine.describe());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn chunks_of_a_prompt_do_not_change_its_tokens() -> Outcome {
    let prompt = Random(3).prompt(1).repeat(3).into_iter().chain(Random(4).prompt(30)).collect::<Vec<_>>();
    for engine in engines()? {
        for config in configs() {
            let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
            let whole = alone(&mut generator(&engine, &config, 512)?, &prompt, sampling, 16)?;
            assert!(whole.iter().any(|token| *token != whole[0]), "{whole:?}");
            for chunk_len in [1, 3, 7, prompt.len() - 1] {
                let mut generator = generator(&engine, &config, chunk_len)?;
                let mut sequence = sequence(&generator, &prompt, sampling)?;
                let generated = block_on(generator.generate(&mut sequence, 16, async |token| all(token)))?;
                assert_eq!(generated.tokens, whole, "{} chunk_len {chunk_len}", engine.describe());
                assert_eq!((generated.n_prefill_runs, generated.n_steps), ((prompt.len() - 1).div_ceil(chunk_len), 16));
            }
        }
    }
    Ok(())
}

#[test]
fn forks_marks_and_resets_go_on_as_a_rerun_does() -> Outcome {
    let sampled = Sampling { temperature: 1.0, repetition_penalty: 1.2, seed: 4, ..Sampling::default() };
    for engine in engines()? {
        for config in configs() {
            let mut generator = generator(&engine, &config, 5)?;
            let prompt = Random(9).prompt(20);
            for sampling in [Sampling::default(), sampled] {
                let whole = alone(&mut generator, &prompt, sampling, 20)?;
                let mut own = sequence(&generator, &prompt, sampling)?;
                block_on(generator.prefill(&mut own))?;
                let (mut fork, mark) = (own.fork()?, own.mark()?);
                assert_eq!(more(&mut generator, &mut own, 8)?, whole[..8]);
                let later = own.mark()?;
                assert_eq!(more(&mut generator, &mut own, 12)?, whole[8..]);
                assert_eq!(more(&mut generator, &mut fork, 20)?, whole);
                for _ in 0..2 {
                    own.rollback(&later)?;
                    assert_eq!(more(&mut generator, &mut own, 12)?, whole[8..]);
                }
                own.rollback(&mark)?;
                assert_eq!(own.tokens(), prompt);
                // Other settings from the same prefix, and from the middle of a text.
                own.sampling = Sampling { temperature: 1.4, seed: 77, ..sampling };
                assert_eq!(more(&mut generator, &mut own, 9)?, alone(&mut generator, &prompt, own.sampling, 9)?);
                own.sampling.seed = 78;
                let longer = own.tokens().to_vec();
                assert_eq!(more(&mut generator, &mut own, 9)?, alone(&mut generator, &longer, own.sampling, 9)?);
                // More of a prompt after what was generated.
                own.push(&[1, 2, 3]);
                let longer = own.tokens().to_vec();
                assert_eq!(more(&mut generator, &mut own, 9)?, alone(&mut generator, &longer, own.sampling, 9)?);
                generator.reset(&mut own)?;
                assert!(own.tokens().is_empty());
                own.sampling = sampling;
                own.push(&prompt);
                assert_eq!(more(&mut generator, &mut own, 20)?, whole);
            }
        }
    }
    Ok(())
}

#[test]
fn a_text_that_was_stopped_goes_on_exactly_also_from_disk() -> Outcome {
    let sampled = Sampling { temperature: 0.9, top_k: 20, repetition_penalty: 1.1, seed: 11, ..Sampling::default() };
    for engine in engines()? {
        for config in configs() {
            let mut generator = generator(&engine, &config, 6)?;
            let prompt = Random(21).prompt(20);
            for sampling in [Sampling::default(), sampled] {
                let whole = alone(&mut generator, &prompt, sampling, 24)?;
                for stop_after in [1, 2, 7] {
                    let mut own = sequence(&generator, &prompt, sampling)?;
                    let mut n = 0;
                    let first = block_on(generator.generate(&mut own, 24, async |_| {
                        n += 1;
                        if n == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    }))?;
                    assert_eq!(first.tokens, whole[..stop_after]);
                    let bytes = block_on(generator.save(&own))?;
                    let mut loaded = generator.restore("state", &bytes)?;
                    assert_eq!((loaded.tokens(), loaded.sampling), (own.tokens(), own.sampling));
                    for own in [&mut own, &mut loaded] {
                        assert_eq!(more(&mut generator, own, 24 - stop_after)?, whole[stop_after..], "{}", engine.describe());
                    }
                    // A place among slots, too, and a batch with another text.
                    let mut slots = Slots::new(&generator, 2, true)?;
                    let joining = generator.restore("state", &bytes)?;
                    let slot = block_on(slots.join(&mut generator, joining))?;
                    assert_eq!(block_on(slots.step(&mut generator))?, [(slot, whole[stop_after])]);
                    let mut both = vec![generator.restore("state", &bytes)?, sequence(&generator, &prompt, sampling)?];
                    block_on(generator.prefill(&mut both[0]))?;
                    let batch = block_on(generator.generate_all(&mut both, 1, async |_, _| ControlFlow::Continue(())))?;
                    assert_eq!((batch[0].tokens[0], batch[1].tokens[0]), (whole[stop_after], whole[0]));
                    for (own, n) in both.iter_mut().zip([stop_after + 1, 1]) {
                        assert_eq!(more(&mut generator, own, 3)?, whole[n..n + 3]);
                    }
                    let mut more_text = generator.restore("state", &bytes)?;
                    more_text.push(&[5, 6]);
                    let longer = more_text.tokens().to_vec();
                    assert_eq!(more(&mut generator, &mut more_text, 6)?, alone(&mut generator, &longer, sampling, 6)?);
                }
            }
        }
    }
    Ok(())
}

/// A model whose logits are no numbers once token 5 was seen.
#[test]
fn a_text_without_numbers_is_named_and_the_others_go_on() -> Outcome {
    for engine in engines()? {
        for config in configs() {
            let mut weights = params(&config)?;
            let table = weights.get_mut("backbone.embedding.weight").and_then(TensorData::as_f32_mut).ok_or("no table")?;
            let d_model = table.len() / config.vocab_size;
            table[5 * d_model..6 * d_model].fill(f32::NAN);
            let mut generator = block_on(Generator::new(&engine, config.clone(), weights))?;
            let mut own = sequence(&generator, &[1, 5, 2], Sampling::default())?;
            let error = more(&mut generator, &mut own, 3).unwrap_err().to_string();
            assert!(error.contains("the model's logits of sequence 0 are not finite"), "{error}");
            let mut slots = Slots::new(&generator, 3, true)?;
            let good = [vec![1, 2, 3], vec![7, 8]];
            let mut expected = Vec::new();
            for prompt in &good {
                expected.push(alone(&mut generator, prompt, Sampling::default(), 1)?[0]);
            }
            for prompt in [&good[0], &vec![5, 1], &good[1]] {
                let own = sequence(&generator, prompt, Sampling::default())?;
                block_on(slots.join(&mut generator, own))?;
            }
            for _ in 0..2 {
                let error = block_on(slots.step(&mut generator)).unwrap_err().to_string();
                assert!(error.contains("logits of slot 1"), "{error}");
            }
            assert_eq!(slots.leave(&generator, 1)?.ok_or("no sequence")?.tokens(), [5, 1]);
            assert_eq!(block_on(slots.step(&mut generator))?, [(0, expected[0]), (2, expected[1])]);
        }
    }
    Ok(())
}

#[test]
fn sequences_that_come_and_go_get_the_tokens_that_they_get_alone() -> Outcome {
    for engine in engines()? {
        for config in configs() {
            let mut generator = generator(&engine, &config, 8)?;
            let mut random = Random(31);
            let jobs: Vec<(Vec<u32>, Sampling, usize)> =
                (0..7).map(|_| (random.prompt(15), random.sampling(), 1 + random.below(9))).collect();
            let mut slots = Slots::new(&generator, 3, true)?;
            let mut waiting = jobs.iter().enumerate();
            let mut running: Vec<Option<(usize, Vec<u32>)>> = vec![None; 3];
            let mut n_done = 0;
            while n_done < jobs.len() {
                while slots.n_free() > 0
                    && let Some((job, (prompt, sampling, _))) = waiting.next()
                {
                    let own = sequence(&generator, prompt, *sampling)?;
                    let slot = block_on(slots.join(&mut generator, own))?;
                    running[slot] = Some((job, Vec::new()));
                }
                for (slot, token) in block_on(slots.step(&mut generator))? {
                    let (job, tokens) = running[slot].as_mut().ok_or("a token of a free slot")?;
                    tokens.push(token);
                    let (prompt, sampling, n) = &jobs[*job];
                    if tokens.len() == *n {
                        let mut left = slots.leave(&generator, slot)?.ok_or("the slot is free")?;
                        let whole = alone(&mut generator, prompt, *sampling, n + 4)?;
                        assert_eq!(*tokens, whole[..*n], "{} job {job}", engine.describe());
                        assert_eq!(more(&mut generator, &mut left, 4)?, whole[*n..], "{} rest of job {job}", engine.describe());
                        running[slot] = None;
                        n_done += 1;
                    }
                }
            }
            assert!(block_on(slots.step(&mut generator))?.is_empty() && slots.n_free() == 3);
        }
    }
    Ok(())
}

#[test]
fn a_token_costs_one_submit_and_creates_nothing() -> Outcome {
    let Some(device) = common::gpu()? else { return Ok(()) };
    for config in configs() {
        for batch in [1usize, 3] {
            let mut generator = generator(&Engine::on(device.clone()), &config, 16)?;
            let mut sequences: Vec<Sequence> = (0..batch)
                .map(|_| sequence(&generator, &[1, 2, 3], Sampling { temperature: 1.0, ..Sampling::default() }))
                .collect::<Outcome<_>>()?;
            let generated: Vec<Generated> = block_on(generator.generate_all(&mut sequences, 20, async |_, _| ControlFlow::Continue(())))?;
            let step = &generated[0].step;
            assert_eq!((step.submits, step.encoders, step.passes), (1, 1, 1));
            assert_eq!(step.objects_created(), 0);
            // Four bytes a sequence come back, and the number that each token is drawn by goes there beside the settings.
            assert_eq!(step.bytes_read_back, 4 * batch as u64);
            assert_eq!(generated[0].n_steps, 20);
        }
    }
    Ok(())
}

#[test]
fn mistakes_are_errors_and_nothing_is_lost() -> Outcome {
    let config = &configs()[0];
    for engine in engines()? {
        let mut generator = generator(&engine, config, 16)?;
        let mut own = generator.sequence(Sampling::default())?;
        let error = |result: Outcome<Vec<u32>>| result.unwrap_err().to_string();
        assert!(error(more(&mut generator, &mut own, 3)).contains("the prompt is empty"));
        own.push(&[1, 40, 2]);
        assert!(error(more(&mut generator, &mut own, 3)).contains("token 40 at 1 of the prompt is not below the vocabulary of 37"));
        let wrong = Sampling { top_p: 2.0, ..Sampling::default() };
        assert!(generator.sequence(wrong).unwrap_err().to_string().contains("top_p is 2"));
        let mut own = sequence(&generator, &[1, 2], Sampling::default())?;
        own.sampling = wrong;
        assert!(error(more(&mut generator, &mut own, 3)).contains("top_p is 2"));
        own.sampling = Sampling::default();
        assert!(more(&mut generator, &mut own, 0)?.is_empty());
        assert_eq!(more(&mut generator, &mut own, 5)?, alone(&mut generator, &[1, 2], Sampling::default(), 5)?);
        assert!(block_on(generator.generate_all(&mut [], 3, async |_, _| ControlFlow::Continue(())))?.is_empty());

        // What ends before its first token keeps what it has.
        let stop = Arc::new(AtomicBool::new(true));
        let told = Arc::clone(&stop);
        generator.interrupt_with(move || told.load(Ordering::Relaxed));
        let prompt: Vec<u32> = (0..30).collect();
        let mut own = sequence(&generator, &prompt, Sampling::default())?;
        assert!(matches!(block_on(generator.prefill(&mut own)), Err(Error::Interrupted)));
        stop.store(false, Ordering::Relaxed);
        assert_eq!(more(&mut generator, &mut own, 5)?, alone(&mut generator, &prompt, Sampling::default(), 5)?);

        let mut slots = Slots::new(&generator, 1, false)?;
        let penalized = sequence(&generator, &[1], Sampling { repetition_penalty: 1.5, ..Sampling::default() })?;
        assert!(matches!(block_on(slots.join(&mut generator, penalized)), Err(Error::NoPenalty { .. })));
        let own = sequence(&generator, &[1], Sampling::default())?;
        block_on(slots.join(&mut generator, own))?;
        let own = sequence(&generator, &[1], Sampling::default())?;
        assert!(matches!(block_on(slots.join(&mut generator, own)), Err(Error::NoSlot { n: 1 })));
        assert!(slots.leave(&generator, 5)?.is_none());
    }
    Ok(())
}

#[test]
fn a_saved_sequence_of_another_model_or_a_damaged_one_is_refused() -> Outcome {
    let engine = Engine::cpu();
    let config = &configs()[0];
    let mut own_model = generator(&engine, config, 16)?;
    let mut own = sequence(&own_model, &[1, 2, 3, 4], Sampling::default())?;
    more(&mut own_model, &mut own, 3)?;
    let bytes = block_on(own_model.save(&own))?;
    let message = |generator: &Generator, bytes: &[u8]| generator.restore("s.safetensors", bytes).unwrap_err().to_string();
    // Another configuration, and the same one with another weight.
    assert!(message(&generator(&engine, &configs()[1], 16)?, &bytes).contains("s.safetensors: saved from a model with the fingerprint"));
    let mut other = params(config)?;
    other.insert("backbone.norm_f.weight".to_owned(), TensorData::f32([12], vec![2.0; 12])?);
    let other = block_on(Generator::new(&engine, config.clone(), other))?;
    assert!(message(&other, &bytes).contains("fingerprint"));
    for n in 0..bytes.len() {
        let error = message(&own_model, &bytes[..n]);
        assert!(error.starts_with("s.safetensors: not a saved sequence: ") && error.contains("\n  help: "), "{n}: {error}");
    }
    let replaced = |from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).ok_or("no such text")?;
        let mut bytes = bytes.clone();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        Ok::<_, Box<dyn std::error::Error>>(bytes)
    };
    assert!(message(&own_model, &replaced("format_version\\\":1", "format_version\\\":2")?).contains("format version 2"));
    for (from, to) in
        [("layers.0.conv_state", "layers.9.conv_state"), ("n_consumed\\\":6", "n_consumed\\\":9"), ("\"tokens\"", "\"tokenz\"")]
    {
        let error = message(&own_model, &replaced(from, to)?);
        assert!(error.contains("not a saved sequence"), "{error}");
    }
    for at in (0..bytes.len()).step_by(5) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let restored = own_model.restore("s", &changed);
        assert!(restored.is_err_and(|error| error.to_string().starts_with("s: ")), "a changed byte {at} was not seen");
    }
    assert!(Generator::is_saved(&bytes) && !Generator::is_saved(b"something else"));
    // A sequence without states yet is saved, too.
    let fresh = sequence(&own_model, &[7, 8], Sampling::default())?;
    let mut loaded = own_model.restore("s", &block_on(own_model.save(&fresh))?)?;
    assert_eq!(more(&mut own_model, &mut loaded, 4)?, alone(&mut own_model, &[7, 8], Sampling::default(), 4)?);
    Ok(())
}

#[test]
fn a_text_has_one_vector_however_it_runs() -> Outcome {
    let mut random = Random(51);
    let texts: Vec<Vec<u32>> = (0..7).map(|_| random.prompt(40)).collect();
    for config in configs() {
        let mut all: Vec<Vec<f32>> = Vec::new();
        for engine in engines()? {
            for (chunk_len, batch) in [(512, 1), (512, 7), (9, 3), (1, 1)] {
                let mut generator = generator(&engine, &config, chunk_len)?;
                let mut vectors = Vec::new();
                for batch in texts.chunks(batch) {
                    vectors.extend(block_on(generator.embed(&batch.iter().map(Vec::as_slice).collect::<Vec<_>>()))?);
                }
                all.push(vectors.concat());
                assert!(matches!(block_on(generator.embed(&[&[1], &[]])), Err(Error::EmptyPrompt)));
            }
        }
        let d_model = all[0].len() / texts.len();
        for vector in all[0].chunks(d_model) {
            let length: f32 = vector.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
        }
        for other in &all[1..] {
            assert!(all[0].iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-5));
        }
        // By hand: the mean of what comes out of the last norm.
        let hidden = tapped_norm(&config, &texts[0])?;
        let mean: Vec<f64> = (0..d_model).map(|i| hidden.iter().skip(i).step_by(d_model).map(|&x| f64::from(x)).sum()).collect();
        let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!(mean.iter().zip(&all[0]).all(|(mean, x)| (mean / length - f64::from(*x)).abs() < 1e-5));
    }
    Ok(())
}

/// Final hidden states of a text after the last norm, in f64 on the interpreter.
fn tapped_norm(config: &LmConfig, text: &[u32]) -> Outcome<Vec<f32>> {
    let (graph, taps) = whole(config, text.len(), Head::Logits)?.with_taps(&["norm_f"])?;
    let outputs = interpreted(&graph, config, text, None)?;
    Ok(outputs[&taps[0].output].to_f32_vec())
}

fn whole(config: &LmConfig, len: usize, head: Head) -> Outcome<Graph> {
    Ok(model::graph(config, 1, len, LmGraph::new(Io::Stateless, head))?)
}

fn interpreted(graph: &Graph, config: &LmConfig, text: &[u32], target: Option<Vec<i32>>) -> Outcome<Tensors> {
    let mut inputs = Tensors::from([("ids".to_owned(), TensorData::new([1, text.len()], Elements::U32(text.to_vec()))?)]);
    if let Some(target) = target {
        inputs.insert("target".to_owned(), TensorData::new([1, text.len()], Elements::I32(target))?);
    }
    Ok(Interpreter::new(graph)?.precision(Precision::F64).run(&inputs, &params(config)?, &mut Tensors::new())?)
}

#[test]
fn a_text_is_judged_the_same_in_any_window() -> Outcome {
    let mut random = Random(61);
    let n_bytes: Vec<usize> = (0..101).map(|_| random.below(5)).collect();
    for config in configs() {
        // A text that the model expects now and then.
        let sampling = Sampling { temperature: 0.8, seed: 6, ..Sampling::default() };
        let tokens = alone(&mut generator(&Engine::cpu(), &config, 16)?, &random.prompt(5), sampling, 101)?;
        // From the logits, in f64.
        let logits = interpreted(&whole(&config, 100, Head::Logits)?, &config, &tokens[..100], None)?["logits"].to_f32_vec();
        let (mut loss, mut n_first, mut n_top_k) = (0.0, 0, 0);
        for (row, &target) in logits.chunks(config.vocab_size).zip(&tokens[1..]) {
            let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            let own = row[target as usize];
            loss += total.ln() - f64::from(own);
            let rank = row[..VOCAB].iter().enumerate().filter(|&(i, &x)| x > own || (x >= own && i < target as usize)).count();
            n_first += u64::from(rank == 0);
            n_top_k += u64::from(rank < 5);
        }
        assert!(n_first > 0 && n_top_k > n_first, "{n_first} {n_top_k}");
        for engine in engines()? {
            for chunk_len in [512, 100, 33, 1] {
                let mut generator = generator(&engine, &config, chunk_len)?;
                let mut told = Vec::new();
                let judged = block_on(generator.evaluate(&tokens, &n_bytes, 1, 5, |n| told.push(n)))?;
                assert!((judged.loss_sum - loss).abs() < 1e-3 * loss, "{} {chunk_len}: {} for {loss}", engine.describe(), judged.loss_sum);
                assert_eq!((judged.n_tokens, judged.n_first, judged.n_top_k), (100, n_first, n_top_k), "{}", engine.describe());
                assert_eq!(judged.n_bytes, n_bytes[1..].iter().sum::<usize>() as u64);
                assert_eq!((told.len(), told.last()), (100usize.div_ceil(chunk_len), Some(&100)));
            }
            // Pieces side by side are the pieces one by one.
            for (batch, chunk_len) in [(3, 512), (7, 20), (100, 9), (1000, 512)] {
                let mut generator = generator(&engine, &config, chunk_len)?;
                let judged = block_on(generator.evaluate(&tokens, &n_bytes, batch, 5, |_| ()))?;
                let piece = 100usize.div_ceil(batch.min(100));
                let mut alone = (0.0, 0);
                for first in (0..100).step_by(piece) {
                    let last = (first + piece).min(100);
                    let own = block_on(generator.evaluate(&tokens[first..=last], &n_bytes[first..=last], 1, 5, |_| ()))?;
                    alone = (alone.0 + own.loss_sum, alone.1 + own.n_top_k);
                }
                assert_eq!((judged.n_tokens, judged.n_top_k), (100, alone.1));
                assert!((judged.loss_sum - alone.0).abs() < 1e-3 * alone.0);
            }
        }
        let mut generator = generator(&Engine::cpu(), &config, 8)?;
        assert!(matches!(block_on(generator.evaluate(&[1], &[1], 1, 5, |_| ())), Err(Error::EmptyPrompt)));
        assert!(matches!(block_on(generator.evaluate(&[1, 99], &[1, 1], 1, 5, |_| ())), Err(Error::UnknownToken { .. })));
    }
    Ok(())
}
