//! Guards on the GPU that any split of a sequence gives the same results and states as the whole, one token at a time included,
//! for blocks of every kind with random options, by the compile path that users take; and that both are the interpreter's.

mod common;
#[path = "../crates/blocks/tests/support/mod.rs"]
mod support;

use common::{Outcome, gpu, settle};
use monopass::engine::{Engine, LoadOptions, Params, Program, Session, blocking};
use monopass::{BlockConfig, Graph, TensorData, Tensors};
use monopass_blocks::Io;
use monopass_ir::eval::{Interpreter, Precision};
use monopass_ir::text;
use support::random::{Sequence, any_block, any_params, cuts, difference, in_parts, met};
use support::{Choices, noise};

/// Of the decode cases' tolerances, the least one relative to a peak of 1.
const TOLERANCE: f64 = 3e-5;

/// Runs the graphs of one block on the GPU, each compiled once, with states that stay there.
struct Gpu {
    engine: Engine,
    params: Params,
    programs: Vec<(String, Program)>,
    session: Session,
}

impl Gpu {
    fn new(engine: &Engine, params: &Tensors) -> Outcome<Self> {
        let params = blocking::upload(engine, params.clone())?;
        Ok(Self { params, programs: Vec::new(), session: engine.session(), engine: engine.clone() })
    }

    fn run(&mut self, graph: &Graph, inputs: &Tensors, states: &mut Tensors) -> Outcome<Tensors> {
        let key = text::print(graph);
        let known = self.programs.iter().find(|(known, _)| *known == key).map(|(_, program)| program.clone());
        let program = match known {
            Some(program) => program,
            None => {
                let program = blocking::load_with(&self.engine, graph, &self.params, LoadOptions::default())?;
                self.programs.push((key, program.clone()));
                program
            }
        };
        let given: Vec<(&str, &TensorData)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let run = blocking::run(&program, &mut self.session, &given)?;
        for (name, _) in program.states() {
            states.insert(name.clone(), blocking::read(&self.session, &name)?);
        }
        Ok(run.outputs)
    }

    /// The next sequence starts from zero.
    fn anew(&mut self) -> Outcome {
        Ok(self.session.reset()?)
    }
}

/// A block with a sequence of some tokens.
type Drawn = (BlockConfig, usize, u32);

/// Twenty random blocks of the newer kinds; the first ones have ranks and one token, and turn all entries.
fn drawn() -> Vec<Drawn> {
    let draw = |seed: u32| {
        let choose = &mut Choices::new(seed);
        let config = any_block(choose);
        (config, choose.of(&[1, 2, 5, 9]), seed)
    };
    let has_ranks = |(config, len, _): &Drawn| match config {
        BlockConfig::Mamba2(config) => config.mimo_rank > 1 && *len == 1,
        BlockConfig::Mamba3(config) => config.is_mimo && config.mimo_rank > 1 && config.rope_fraction == 1.0 && *len == 1,
    };
    let kind = |kind: &'static str| move |(config, ..): &Drawn| config.kind() == kind;
    let three = (0..1000).map(draw).filter(has_ranks).filter(kind("mamba3")).take(3);
    let two = (0..1000).map(draw).filter(has_ranks).filter(kind("cmamba")).take(2);
    let others = (1000..2000).map(draw).filter(|(config, len, _)| config.kind() != "mamba2" && *len > 1).take(15);
    three.chain(two).chain(others).collect()
}

/// What is off, if anything is.
fn check(engine: &Engine, (config, len, seed): &Drawn) -> Outcome<Vec<String>> {
    let choose = &mut Choices::new(seed.wrapping_add(77));
    let batch = choose.of(&[1, 3]);
    let params = any_params(config, *seed)?;
    let sequence = Sequence::of(noise(&[batch, *len, config.d_model()], *seed)?);
    let wanted = in_parts(config, &sequence, &[], Io::Stateful, |graph, inputs, states| {
        Ok(Interpreter::new(graph)?.precision(Precision::F64).run(inputs, &params, states)?)
    })?;
    let mut gpu = Gpu::new(engine, &params)?;
    let [each, some] = cuts(choose, *len);
    let mut problems = Vec::new();
    for (cuts, io) in [(Vec::new(), Io::Stateful), (each, Io::Stateful), (some, choose.of(&[Io::Explicit, Io::Stateful]))] {
        gpu.anew()?;
        let given = in_parts(config, &sequence, &cuts, io, |graph, inputs, states| gpu.run(graph, inputs, states))?;
        for (name, tensor) in &wanted {
            let off = given.get(name).map_or(f64::INFINITY, |given| difference(name, tensor, given));
            if off >= TOLERANCE {
                problems.push(format!("seed {seed}: {name} is off by {off} after {cuts:?} of {len} in {config:?}"));
            }
        }
    }
    Ok(problems)
}

#[test]
fn any_split_gives_the_same_as_the_whole() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let engine = Engine::on(device.clone());
    let drawn = drawn();
    assert_eq!(drawn.len(), 20);
    for (what, n) in met(drawn.iter().map(|(config, len, _)| (config, *len))) {
        assert!(n >= 2 || what == "mamba2", "{what} is met {n} times");
    }
    let mut problems = Vec::new();
    for one in &drawn {
        problems.extend(check(&engine, one).unwrap_or_else(|error| vec![format!("{one:?}: {error}")]));
    }
    settle(&problems)
}
