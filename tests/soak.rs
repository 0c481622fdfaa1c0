//! Guards that running on and on takes no more memory and creates nothing: 100 steps here, 10 000 with `MONOPASS_SOAK=1`;
//! of training 20 and 2 000.

use monopass::blocks::train::{AdamW, Phase, TrainStep};
use monopass::blocks::{Head, Io, LmGraph, Trainable, init, model};
use monopass::engine::{Engine, EngineOptions, ExecutorChoice, blocking};
use monopass::ir::Elements;
use monopass::train::{Batch, Trainer, TrainerOptions};
use monopass::{CompileOptions, LmConfig, Mamba2Config, TensorData};

#[test]
fn memory_is_constant_over_many_steps() {
    let Some(engine) = engine() else { return };
    let n_steps = if is_set("MONOPASS_SOAK") { 10_000 } else { 100 };
    let config = LmConfig::new(Mamba2Config { d_state: 5, headdim: 4, ..Mamba2Config::new(12) }, 2, 31);
    let graph = model::graph(&config, 3, 1, LmGraph::new(Io::Stateful, Head::Next)).unwrap();
    let params = blocking::upload(&engine, init::lm(&config, 2).unwrap()).unwrap();
    let program = blocking::load(&engine, &graph, &params, &CompileOptions::default()).unwrap();
    let (mut session, device) = (engine.session(), engine.device().unwrap());
    let mut ids = TensorData::new([3, 1], Elements::U32(vec![1, 2, 30])).unwrap();
    let mut after_two = None;
    for step in 0..n_steps {
        let run = blocking::run(&program, &mut session, &[("ids", &ids)]).unwrap();
        ids = TensorData::new([3, 1], run.outputs["next"].elements().clone()).unwrap();
        // The first run binds the session, and both turns of its states have been used after the second.
        if step >= 2 {
            let counters = run.counters;
            assert_eq!((counters.submits, counters.encoders, counters.passes), (1, 1, 1), "step {step}");
            assert_eq!(counters.objects_created(), 0, "step {step}");
            assert_eq!(*after_two.get_or_insert(device.memory()), device.memory(), "step {step}");
        }
    }
    assert!(after_two.is_some_and(|memory| memory.live_bytes > 0));
}

#[test]
fn memory_is_constant_over_many_training_steps() {
    let Some(engine) = engine() else { return };
    let n_steps: u32 = if is_set("MONOPASS_SOAK") { 2_000 } else { 20 };
    let config = LmConfig::new(Mamba2Config { d_state: 3, headdim: 4, ..Mamba2Config::new(8) }, 1, 17);
    let step = TrainStep {
        batch: 3,
        len: 5,
        ignore: -100,
        carry_states: true,
        trainable: config.trainable(&Trainable::All).unwrap(),
        adapters: Vec::new(),
        adamw: AdamW::default(),
        max_grad_norm: Some(1.0),
        block_rows: 0,
        phase: Phase::Whole,
    };
    let options = TrainerOptions { step, accumulate: 1, compile: CompileOptions::default() };
    let mut trainer = pollster::block_on(Trainer::new(&engine, config.clone(), options, init::lm(&config, 2).unwrap(), None)).unwrap();
    let device = engine.device().unwrap();
    let mut after_two = None;
    for i in 0..n_steps {
        let ids: Vec<u32> = (0..15).map(|at| (i * 7 + at * 3) % 17).collect();
        let targets = ids.iter().map(|&id| i32::try_from((id * 5 + 1) % 17).unwrap()).collect();
        let outcome = pollster::block_on(trainer.submit(&Batch { ids, targets }, 1e-3).unwrap().wait()).unwrap();
        assert!(outcome.loss.is_finite());
        if i >= 2 {
            let counters = outcome.counters;
            assert_eq!((counters.submits, counters.encoders, counters.passes), (1, 1, 1), "step {i}");
            assert_eq!(counters.objects_created(), 0, "step {i}");
            assert_eq!(*after_two.get_or_insert(device.memory()), device.memory(), "step {i}");
        }
    }
}

/// A device of the test's own, whose memory nobody else changes; without one the test skips, loudly.
fn engine() -> Option<Engine> {
    match blocking::open(ExecutorChoice::Gpu, &EngineOptions::default()) {
        Ok(engine) => Some(engine),
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a test that does not run says so")]
            let () = eprintln!("SKIPPED, the test needs a graphics adapter: {error}");
            assert!(!is_set("MONOPASS_REQUIRE_GPU"), "MONOPASS_REQUIRE_GPU is set, so a test may not skip");
            None
        }
    }
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}
