//! A Mamba-2 block over a sequence, on the graphics card or else the interpreter, and what the run did.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::blocks::{Io, init, mamba2};
use monopass::engine::{EngineOptions, ExecutorChoice, blocking};
use monopass::{CompileOptions, Mamba2Config, TensorData};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (batch, len) = (2, 33);
    let config = Mamba2Config { d_state: 16, headdim: 16, ..Mamba2Config::new(64) };
    let graph = mamba2::graph(&config, batch, len, Io::Stateful)?;

    let engine = blocking::open(ExecutorChoice::Auto, &EngineOptions::default())?;
    println!("{}", engine.describe());
    let params = blocking::upload(&engine, init::block(&config, 0)?)?;
    let program = blocking::load(&engine, &graph, &params, &CompileOptions::default())?;

    let n_elems: u16 = 2 * 33 * 64;
    let ramp: Vec<f32> = (0..n_elems).map(|i| f32::from(i % 17) / 8.0 - 1.0).collect();
    let u = TensorData::f32([batch, len, config.d_model], ramp)?;
    let mut session = engine.session();
    for turn in ["first", "second"] {
        let run = blocking::run(&program, &mut session, &[("u", &u)])?;
        let counters = run.counters;
        println!(
            "{turn} run: {} -> {} submit, {} compute pass, {} dispatches, {} objects created",
            run.outputs["out"].ty(),
            counters.submits,
            counters.passes,
            counters.dispatches,
            counters.objects_created(),
        );
    }
    println!("state: {}", blocking::read(&session, "ssm_state")?.ty());
    Ok(())
}
