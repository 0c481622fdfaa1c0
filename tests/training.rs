//! Guards training on the device: the loss curve of the interpreter in f64, the same bits twice, one submit a step that creates
//! nothing, what is frozen stays as it is, and what trains learns.

mod common;

use common::{Outcome, gpu};
use monopass::blocks::train::{AdamW, Adapter, TrainStep, graph};
use monopass::blocks::{Trainable, init};
use monopass::engine::Engine;
use monopass::ir::eval::{Interpreter, WideTensors};
use monopass::ir::{Elements, TensorData};
use monopass::train::{Batch, StepOutcome, Trainer, TrainerOptions};
use monopass::{BlockConfig, CompileOptions, LmConfig, Mamba2Config, Mamba3Config, Tensors};
use pollster::block_on;

const VOCAB: usize = 29;

/// The device; without one the test skips, loudly.
fn engine() -> Outcome<Option<Engine>> {
    Ok(gpu()?.map(|device| Engine::on(device.clone())))
}

fn lm(block: impl Into<BlockConfig>) -> LmConfig {
    LmConfig::new(block, 2, VOCAB)
}

fn mamba2() -> Mamba2Config {
    Mamba2Config { d_state: 5, headdim: 4, ..Mamba2Config::new(10) }
}

fn step(config: &LmConfig, mode: &Trainable) -> Outcome<TrainStep> {
    Ok(TrainStep {
        batch: 3,
        len: 11,
        ignore: -100,
        carry_states: true,
        trainable: config.trainable(mode)?,
        adapters: Vec::new(),
        adamw: AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        max_grad_norm: Some(1.0),
        block_rows: 13,
        phase: monopass::blocks::train::Phase::Whole,
    })
}

fn options(step: TrainStep) -> TrainerOptions {
    TrainerOptions { step, accumulate: 1, compile: CompileOptions::default() }
}

/// A stream of tokens that follow a rule with some noise, the same for the same seed; a few targets do not count.
fn batches(n: usize, [batch, len]: [usize; 2], seed: u64) -> Vec<Batch> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut last = vec![0u32; batch];
    let vocab = u32::try_from(VOCAB).unwrap_or(1);
    (0..n)
        .map(|_| {
            let (mut ids, mut targets) = (Vec::new(), Vec::new());
            for last in &mut last {
                for _ in 0..len {
                    ids.push(*last);
                    *last = if next(8) == 0 { u32::try_from(next(u64::from(vocab))).unwrap_or(0) } else { (*last * 3 + 1) % vocab };
                    targets.push(if next(12) == 0 { -100 } else { i32::try_from(*last).unwrap_or(0) });
                }
            }
            Batch { ids, targets }
        })
        .collect()
}

fn lr(step: usize) -> f64 {
    [0.002, 0.006, 0.01, 0.008, 0.004][step % 5]
}

fn train(trainer: &mut Trainer, batches: &[Batch]) -> Outcome<Vec<StepOutcome>> {
    let mut outcomes = Vec::new();
    for (i, batch) in batches.iter().enumerate() {
        outcomes.push(block_on(trainer.submit(batch, lr(i))?.wait())?);
    }
    Ok(outcomes)
}

/// Losses of the same steps by the interpreter, which keeps everything in f64.
fn wide_losses(config: &LmConfig, step: &TrainStep, params: &Tensors, batches: &[Batch]) -> Outcome<Vec<f64>> {
    let graph = graph(config, step)?;
    let interpreter = Interpreter::new(&graph)?;
    let mut states: WideTensors = params
        .iter()
        .filter(|(name, _)| graph.states().any(|(own, _)| own == name.as_str()))
        .map(|(name, tensor)| (name.clone(), tensor.to_f32_vec().into_iter().map(f64::from).collect()))
        .collect();
    #[expect(clippy::cast_possible_truncation, reason = "rates are f32")]
    let scalar = |value: f64| TensorData::f32([], [value as f32]);
    let mut losses = Vec::new();
    for (i, batch) in batches.iter().enumerate() {
        let shape = [step.batch, step.len];
        let [first, second] = step.adamw.bias_corrections(u32::try_from(i)? + 1);
        let inputs = Tensors::from([
            ("ids".to_owned(), TensorData::new(shape, Elements::U32(batch.ids.clone()))?),
            ("target".to_owned(), TensorData::new(shape, Elements::I32(batch.targets.clone()))?),
            ("lr".to_owned(), scalar(lr(i))?),
            ("bias_correction1".to_owned(), scalar(first)?),
            ("bias_correction2".to_owned(), scalar(second)?),
        ]);
        losses.push(interpreter.run_wide(&inputs, params, &mut states)?["loss"][0]);
    }
    Ok(losses)
}

fn check_curve(config: &LmConfig, n_steps: usize) -> Outcome {
    let Some(engine) = engine()? else { return Ok(()) };
    let step = step(config, &Trainable::All)?;
    let params = init::lm(config, 4)?;
    let batches = batches(n_steps, [step.batch, step.len], 9);
    let wide = wide_losses(config, &step, &params, &batches)?;
    let run = || -> Outcome<Vec<StepOutcome>> {
        let mut trainer = block_on(Trainer::new(&engine, config.clone(), options(step.clone()), params.clone(), None))?;
        train(&mut trainer, &batches)
    };
    let (first, second) = (run()?, run()?);
    for (i, (outcome, &wide)) in first.iter().zip(&wide).enumerate() {
        assert!((f64::from(outcome.loss) - wide).abs() <= 1e-3, "step {i}: loss {} and not {wide}", outcome.loss);
        let counters = outcome.counters;
        assert_eq!((counters.submits, counters.encoders, counters.passes), (1, 1, 1), "step {i}");
        assert!(i < 2 || counters.objects_created() == 0, "step {i} created {} objects", counters.objects_created());
    }
    let bits =
        |outcomes: &[StepOutcome]| outcomes.iter().map(|one| (one.loss.to_bits(), one.grad_norm.map(f32::to_bits))).collect::<Vec<_>>();
    assert_eq!(bits(&first), bits(&second));
    assert!(wide[n_steps - 1] < wide[0] - 0.3, "from {} to {}", wide[0], wide[n_steps - 1]);
    Ok(())
}

#[test]
fn mamba2_follows_the_curve_in_f64() -> Outcome {
    check_curve(&lm(mamba2()), 50)
}

#[test]
fn mamba3_follows_the_curve_in_f64() -> Outcome {
    check_curve(&lm(Mamba3Config { d_state: 6, headdim: 4, ..Mamba3Config::new(10) }), 50)
}

#[test]
fn complex_states_follow_the_curve_in_f64() -> Outcome {
    let block = Mamba2Config { complex: true, d_state: 4, headdim: 5, ..Mamba2Config::seed(10) };
    check_curve(&LmConfig { tie_embeddings: false, ..lm(block) }, 50)
}

#[test]
fn one_pattern_is_learned() -> Outcome {
    let Some(engine) = engine()? else { return Ok(()) };
    let config = lm(mamba2());
    let step = step(&config, &Trainable::All)?;
    let mut trainer = block_on(Trainer::new(&engine, config.clone(), options(step.clone()), init::lm(&config, 1)?, None))?;
    let token = |i: usize| [3, 17, 3, 8][i % 4];
    let mut loss = f32::INFINITY;
    for run in 0..150 {
        let places = (0..step.batch).flat_map(|row| (0..step.len).map(move |t| row + run * step.len + t));
        let ids = places.clone().map(|i| u32::try_from(token(i)).unwrap_or(0)).collect();
        let targets = places.map(|i| token(i + 1)).collect();
        loss = block_on(trainer.submit(&Batch { ids, targets }, 0.01)?.wait())?.loss;
    }
    assert!(loss < 0.05, "loss {loss}");
    Ok(())
}

/// Bytes of every tensor.
fn bits(tensors: &Tensors) -> Vec<(String, Vec<u32>)> {
    tensors.iter().map(|(name, tensor)| (name.clone(), tensor.to_f32_vec().into_iter().map(f32::to_bits).collect())).collect()
}

#[test]
fn rows_that_do_not_train_keep_every_bit() -> Outcome {
    let Some(engine) = engine()? else { return Ok(()) };
    let config = lm(mamba2());
    let params = init::lm(&config, 4)?;
    let step = step(&config, &Trainable::Wsla)?;
    let rows: Vec<_> = step.trainable.clone();
    let mut trainer = block_on(Trainer::new(&engine, config.clone(), options(step.clone()), params.clone(), None))?;
    let _ = train(&mut trainer, &batches(5, [step.batch, step.len], 3))?;
    let state = block_on(trainer.state())?;
    for train in &rows {
        let (before, after) = (params[&train.name].to_f32_vec(), state[&train.name].to_f32_vec());
        let width = before.len() / params[&train.name].shape()[0];
        for (i, (before, after)) in before.iter().zip(&after).enumerate() {
            if !train.rows.contains(&(i / width)) {
                assert_eq!(before.to_bits(), after.to_bits(), "{} row {}", train.name, i / width);
            }
        }
        assert_ne!(before, after, "{}", train.name);
    }
    // Nothing else is even a state, so nothing else can have changed.
    let n_moments = |state: &Tensors| {
        state.iter().filter(|(name, _)| name.starts_with("adamw.")).map(|(_, moment)| moment.to_f32_vec().len()).sum::<usize>()
    };
    assert_eq!(state.keys().filter(|name| params.contains_key(*name)).count(), rows.len());
    let n_params: usize = params.values().map(|param| param.to_f32_vec().len()).sum();
    assert!(n_moments(&state) * 5 < 2 * n_params, "{} moments of {n_params} parameters", n_moments(&state));
    Ok(())
}

#[test]
fn several_batches_make_the_step_of_one() -> Outcome {
    let Some(engine) = engine()? else { return Ok(()) };
    let config = lm(mamba2());
    let params = init::lm(&config, 4)?;
    let large = TrainStep { batch: 4, carry_states: false, ..step(&config, &Trainable::All)? };
    let small = TrainStep { batch: 2, ..large.clone() };
    let whole = batches(6, [4, large.len], 5);
    let halves: Vec<Batch> = whole
        .iter()
        .flat_map(|batch| {
            let n = batch.ids.len() / 2;
            [0, n].map(|at| Batch { ids: batch.ids[at..at + n].to_vec(), targets: batch.targets[at..at + n].to_vec() })
        })
        .collect();
    let mut one = block_on(Trainer::new(&engine, config.clone(), options(large), params.clone(), None))?;
    let mut two = block_on(Trainer::new(&engine, config.clone(), TrainerOptions { accumulate: 2, ..options(small) }, params, None))?;
    for (i, batch) in whole.iter().enumerate() {
        let _ = block_on(one.submit(batch, lr(i))?.wait())?;
        for half in &halves[2 * i..2 * i + 2] {
            let _ = block_on(two.submit(half, lr(i))?.wait())?;
        }
    }
    assert_eq!((one.n_steps(), two.n_steps()), (6, 6));
    let (one, two) = (block_on(one.state())?, block_on(two.state())?);
    for (name, tensor) in one.iter().filter(|(name, _)| !name.starts_with("adamw.")) {
        let worst = tensor.to_f32_vec().iter().zip(two[name].to_f32_vec()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-3, "{name} differs by {worst}");
    }
    Ok(())
}

#[test]
fn adapters_train_and_nothing_else() -> Outcome {
    let Some(engine) = engine()? else { return Ok(()) };
    let config = lm(mamba2());
    let adapters: Vec<Adapter> = (0..2)
        .flat_map(|layer| {
            ["in_proj", "out_proj"].map(|of| Adapter { weight: format!("backbone.layers.{layer}.mixer.{of}.weight"), rank: 3, alpha: 6.0 })
        })
        .collect();
    let step = TrainStep { trainable: Vec::new(), adapters: adapters.clone(), ..step(&config, &Trainable::All)? };
    let mut params = init::lm(&config, 4)?;
    let factors = monopass::blocks::train::init_adapters(&config, &adapters, 7)?;
    params.extend(factors);
    let mut trainer = block_on(Trainer::new(&engine, config.clone(), options(step.clone()), params.clone(), None))?;
    let curve = train(&mut trainer, &batches(40, [step.batch, step.len], 9))?;
    assert!(curve[39].loss < curve[0].loss - 0.1, "from {} to {}", curve[0].loss, curve[39].loss);
    let state = block_on(trainer.state())?;
    let trained: Vec<&String> = state.keys().filter(|name| params.contains_key(*name)).collect();
    assert_eq!(trained.len(), 2 * adapters.len());
    assert!(trained.iter().all(|name| name.contains(".lora_")));
    // Merged into the weights, the model gives the losses that it gives with its adapters.
    let mut all = params.clone();
    all.extend(state.into_iter().filter(|(name, _)| params.contains_key(name)));
    let merged = monopass::blocks::train::merge_adapters(&adapters, &all)?;
    assert_eq!(merged.len(), config.parameters()?.len());
    let held_out = batches(3, [step.batch, step.len], 77);
    let with = block_on(trainer.evaluate(&held_out))?;
    let plain = TrainStep { adapters: Vec::new(), trainable: config.trainable(&Trainable::All)?, ..step };
    let mut plain = block_on(Trainer::new(&engine, config, options(plain), merged, None))?;
    let without = block_on(plain.evaluate(&held_out))?;
    assert!((with.loss() - without.loss()).abs() < 1e-4, "{} and {}", with.loss(), without.loss());
    Ok(())
}

#[test]
fn a_step_goes_on_from_what_was_saved() -> Outcome {
    let Some(engine) = engine()? else { return Ok(()) };
    let config = lm(mamba2());
    let step = step(&config, &Trainable::All)?;
    let params = init::lm(&config, 4)?;
    let all = batches(8, [step.batch, step.len], 9);
    let new = || block_on(Trainer::new(&engine, config.clone(), options(step.clone()), params.clone(), None));
    let mut whole = new()?;
    let _ = train(&mut whole, &all)?;
    let mut first = new()?;
    let _ = train(&mut first, &all[..3])?;
    let saved = block_on(first.state())?;
    let mut second = new()?;
    second.restore(3, &saved)?;
    for (i, batch) in all.iter().enumerate().skip(3) {
        let _ = block_on(second.submit(batch, lr(i))?.wait())?;
    }
    assert_eq!(bits(&block_on(whole.state())?), bits(&block_on(second.state())?));
    Ok(())
}

#[test]
fn less_memory_gives_the_same_losses() -> Outcome {
    let Some(engine) = engine()? else { return Ok(()) };
    let config = LmConfig::new(mamba2(), 6, VOCAB);
    let step = step(&config, &Trainable::All)?;
    let params = init::lm(&config, 4)?;
    let all = batches(4, [step.batch, step.len], 9);
    let run = |memory_budget: Option<u64>| -> Outcome<(Vec<f32>, monopass::Plan)> {
        let options = TrainerOptions { compile: CompileOptions { memory_budget, ..CompileOptions::default() }, ..options(step.clone()) };
        let mut trainer = block_on(Trainer::new(&engine, config.clone(), options, params.clone(), None))?;
        let plan = trainer.program().plan().cloned().ok_or("no plan")?;
        Ok((train(&mut trainer, &all)?.into_iter().map(|one| one.loss).collect(), plan))
    };
    let (kept, plan) = run(None)?;
    let budget = plan.totals().slots_bytes * 3 / 4;
    let (again, small) = run(Some(budget))?;
    let recompute = small.recompute.clone().ok_or("no recompute")?;
    assert!(small.totals().slots_bytes <= budget && !recompute.segments.is_empty() && recompute.segments.len() < recompute.n_segments);
    assert_eq!(recompute.kept_bytes, plan.totals().slots_bytes);
    for (kept, again) in kept.iter().zip(&again) {
        assert!((kept - again).abs() < 1e-4, "{kept} and {again}");
    }
    assert!(run(Some(1000)).is_err_and(|error| error.to_string().contains("slots of 1000 bytes are too few")));
    Ok(())
}
