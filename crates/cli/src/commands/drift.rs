//! `monopass bench drift`: how far a long run of decode steps strays from the same run in f64.

use crate::args::{ExecutorArgs, PassArgs, at_least_one};
use crate::output::{bar, print_line};
use crate::report::{Failure, OrReport};
use crate::{Outcome, engine};
use clap::builder::PossibleValuesParser;
use miette::Result;
use monopass::blocks::{BlockConfig, Io, block, init};
use monopass::engine::{Engine, Program, Session, blocking};
use monopass::ir::eval::{Interpreter, WideTensors};
use monopass::{TensorData, Tensors};
use serde_json::{Map, Value, json};
use std::f64::consts::TAU;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the block
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(BlockConfig::NAMES))]
    name: String,
    /// Settings that differ from the published block's
    #[arg(long, value_name = "K=V,...", default_value = "d_model=32,d_state=16,headdim=8")]
    config: String,
    /// Steps
    #[arg(long, value_name = "N", default_value = "100000", value_parser = at_least_one())]
    tokens: usize,
    /// Seed of parameters and inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
}

/// Tokens between two looks at the states, of a whole run.
const LOOKS: usize = 1000;
const OUT: &str = "out";

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let config = BlockConfig::named(&args.name, 32);
    let mut config = config.ok_or_else(|| Failure::new(format!("no block is called {:?}", args.name)))?;
    config.set(&args.config).or_report()?;
    config.sizes().or_report()?;
    let engine = engine::open(&args.executor)?;
    let mut pair = Pair::new(args, &config, &engine)?;
    let progress = bar("stepping", args.tokens as u64);
    let every = args.tokens.div_ceil(LOOKS);
    let mut inputs = Noise::new(args.seed);
    // A line at each power of ten, and at the end.
    let mut next_line = 10;
    for done in 1..=args.tokens {
        let is_line = done == next_line || done == args.tokens;
        pair.step(&inputs.token(config.d_model())?, is_line || done % every == 0)?;
        progress.inc(1);
        if is_line {
            next_line *= 10;
            progress.suspend(|| print_line(&pair.line(args, &engine, done).to_string()))?;
        }
    }
    progress.finish_and_clear();
    Ok(Outcome::Good)
}

/// The run that is judged, and the one in f64.
struct Pair {
    params: Tensors,
    reference: Interpreter<'static>,
    wide: WideTensors,
    program: Program,
    session: Session,
    /// By tensor: the largest difference, and the largest magnitude.
    largest: Vec<(String, f64, f64)>,
}

impl Pair {
    fn new(args: &Args, config: &BlockConfig, engine: &Engine) -> Result<Self> {
        let graph = block::graph(config, 1, 1, Io::Stateful).or_report()?;
        let mut params = init::block(config, args.seed).or_report()?;
        lengthen_memory(config, &mut params)?;
        let uploaded = blocking::upload(engine, params.clone()).or_report()?;
        let program = blocking::load(engine, &graph, &uploaded, &args.passes.options()).or_report()?;
        let names = [OUT.to_owned()].into_iter().chain(program.states().into_iter().map(|(name, _)| name));
        Ok(Self {
            largest: names.map(|name| (name, 0.0, 0.0)).collect(),
            params,
            reference: Interpreter::shared(graph).or_report()?,
            wide: WideTensors::new(),
            program,
            session: engine.session(),
        })
    }

    /// One token through both.
    fn step(&mut self, u: &TensorData, has_look: bool) -> Result<()> {
        let inputs: Tensors = [("u".to_owned(), u.clone())].into();
        let wanted = self.reference.run_wide(&inputs, &self.params, &mut self.wide).or_report()?;
        let given = blocking::run(&self.program, &mut self.session, &[("u", u)]).or_report()?;
        for (name, drift, peak) in &mut self.largest {
            let (given, wanted) = if name == OUT {
                (given.outputs.get(OUT).map(TensorData::to_f32_vec), wanted.get(OUT))
            } else if has_look {
                (Some(blocking::read(&self.session, name).or_report()?.to_f32_vec()), self.wide.get(name))
            } else {
                continue;
            };
            let (given, wanted) = given.zip(wanted).ok_or_else(|| Failure::new(format!("the step gave no {name}")))?;
            *drift = drift.max(difference(name, &given, wanted));
            *peak = wanted.iter().fold(*peak, |peak, x| peak.max(x.abs()));
        }
        Ok(())
    }

    fn line(&self, args: &Args, engine: &Engine, tokens: usize) -> Value {
        let named = |of: fn(&(String, f64, f64)) -> f64| -> Map<String, Value> {
            self.largest.iter().map(|entry| (entry.0.clone(), of(entry).into())).collect()
        };
        json!({
            "block": args.name,
            "config": args.config,
            "executor": engine::executor(engine),
            "adapter": engine::adapter(engine),
            "seed": args.seed,
            "tokens": tokens,
            "drift": named(|entry| entry.1),
            "peak": named(|entry| entry.2),
        })
    }
}

/// Complex states start with decay rates that forget in two tokens, after which there is nothing to drift; as they are here they
/// remember some hundred.
fn lengthen_memory(config: &BlockConfig, params: &mut Tensors) -> Result<()> {
    const LOG_RATE: f32 = -4.0;
    if !config.as_mamba2().is_some_and(|config| config.complex) {
        return Ok(());
    }
    for a_log in params.iter_mut().filter(|(name, _)| name.ends_with("A_log")).map(|(_, tensor)| tensor) {
        let mut values = a_log.to_f32_vec();
        values.as_chunks_mut::<2>().0.iter_mut().for_each(|[log_rate, _]| *log_rate = LOG_RATE);
        *a_log = TensorData::f32(a_log.shape(), values).or_report()?;
    }
    Ok(())
}

/// Largest difference; what is no number is as far off as can be.
fn difference(name: &str, given: &[f32], wanted: &[f64]) -> f64 {
    if given.len() != wanted.len() {
        return f64::INFINITY;
    }
    let distance = |(given, wanted): (&f32, &f64)| {
        let distance = (f64::from(*given) - wanted).abs();
        let distance = if name == "angle_state" { (distance % TAU).min(TAU - distance % TAU) } else { distance };
        if distance.is_nan() { f64::INFINITY } else { distance }
    };
    given.iter().zip(wanted).map(distance).fold(0.0, f64::max)
}

/// Numbers in -0.5..1.5, so that what turns or grows does so in one direction more than in the other; the same for the same
/// seed.
struct Noise(u64);

impl Noise {
    const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn token(&mut self, width: usize) -> Result<TensorData> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f32::from(u16::try_from(self.0 >> 48).unwrap_or(0)) / 32768.0 - 0.5
        };
        TensorData::f32([1, 1, width], (0..width).map(|_| next()).collect::<Vec<f32>>()).or_report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_differ_modulo_a_turn_and_nan_is_far() {
        assert!(difference("angle_state", &[3.0, -3.0], &[3.0 + TAU, 3.0]) < 0.29);
        assert_eq!(difference("out", &[1.0, 3.0], &[1.5, 1.0]), 2.0);
        assert_eq!(difference("out", &[f32::NAN, 1.0], &[1.0, 1.0]), f64::INFINITY);
        assert_eq!(difference("out", &[1.0], &[1.0, 1.0]), f64::INFINITY);
    }

    #[test]
    fn inputs_are_the_same_each_time() {
        let (mut a, mut b) = (Noise::new(3), Noise::new(3));
        let (a, b) = (a.token(40).unwrap(), b.token(40).unwrap());
        assert_eq!(a, b);
        assert!(a.to_f32_vec().iter().all(|x| (-0.5..1.5).contains(x)));
    }
}
