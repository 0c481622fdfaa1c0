//! A session's states: a sequence in chunks of any length, a fork, and two continuations from the same past.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::blocks::{Io, init, mamba2};
use monopass::engine::{Engine, EngineOptions, ExecutorChoice, Params, Session, blocking};
use monopass::{CompileOptions, Error, Mamba2Config, TensorData};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Mamba2Config { d_state: 8, headdim: 8, ..Mamba2Config::new(16) };
    let engine = blocking::open(ExecutorChoice::Auto, &EngineOptions::default())?;
    let params = blocking::upload(&engine, init::block(&config, 1)?)?;
    let tokens: Vec<f32> = (0..20 * 16u16).map(|i| f32::from(i % 13) / 6.0 - 1.0).collect();

    // All at once, and in chunks of 7, 1 and 12 tokens: the states carry the past.
    let mut whole = engine.session();
    run(&engine, &params, &config, &mut whole, &tokens)?;
    let mut stream = engine.session();
    for chunk in [&tokens[..7 * 16], &tokens[7 * 16..8 * 16], &tokens[8 * 16..]] {
        run(&engine, &params, &config, &mut stream, chunk)?;
    }
    println!("largest difference of the states: {:e}", difference(&whole, &stream)?);

    // A fork goes its own way from here; the original stays where it is.
    let mut fork = stream.fork()?;
    run(&engine, &params, &config, &mut fork, &tokens[..16])?;
    println!("after one more token in a fork:   {:e}", difference(&stream, &fork)?);
    fork.copy_from(&stream)?;
    println!("after going back:                 {:e}", difference(&stream, &fork)?);
    Ok(())
}

/// The block over the tokens in `rows`, from the session's states to its new ones.
fn run(
    engine: &Engine,
    params: &Params,
    config: &Mamba2Config,
    session: &mut Session,
    rows: &[f32],
) -> Result<(), Box<dyn std::error::Error>> {
    let len = rows.len() / config.d_model;
    let graph = mamba2::graph(config, 1, len, Io::Stateful).map_err(Error::from)?;
    let program = blocking::load(engine, &graph, params, &CompileOptions::default())?;
    let u = TensorData::f32([1, len, config.d_model], rows)?;
    blocking::run(&program, session, &[("u", &u)])?;
    Ok(())
}

/// The largest difference of two sessions' states.
fn difference(a: &Session, b: &Session) -> Result<f32, Error> {
    let mut largest = 0f32;
    for name in ["conv_state", "ssm_state"] {
        let (a, b) = (blocking::read(a, name)?, blocking::read(b, name)?);
        let pairs = a.as_f32().unwrap_or(&[]).iter().zip(b.as_f32().unwrap_or(&[]));
        largest = pairs.map(|(x, y)| (x - y).abs()).fold(largest, f32::max);
    }
    Ok(largest)
}
