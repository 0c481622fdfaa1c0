//! The adjoint of a scan written out over chunks against the op itself, in f64.

use super::*;
use monopass_ir::eval::{Interpreter, Tensors, WideTensors};
use monopass_ir::{DType, Elements, TensorData};
use std::error::Error;

type Fallible<T> = Result<T, Box<dyn Error>>;

const RESULTS: [&str; 7] = ["d_log_decay", "d_v", "d_k", "d_q", "d_s0", "d_weight", "d_own_weight"];

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn size(&mut self, sizes: &[usize]) -> usize {
        sizes.get(usize::try_from(self.below(sizes.len() as u64)).unwrap_or(0)).copied().unwrap_or(1)
    }

    fn is_one_of_two(&mut self) -> bool {
        self.below(2) == 0
    }

    /// In [-1, 1).
    fn unit(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(1 << 20)).unwrap_or(0)) / f64::from(1 << 19) - 1.0
    }
}

/// A `scan_grad` with its operands, the floats of which are states, so that they are f64.
struct Sample {
    graph: Graph,
    inputs: Tensors,
    states: WideTensors,
}

impl Sample {
    /// Of `len` tokens; `is_read` says which results there are, and `strong` makes some decays as small as e^-80.
    fn new(rng: &mut Random, len: usize, strong: bool, is_read: impl Fn(usize) -> bool) -> Fallible<Self> {
        let groups = rng.size(&[1, 1, 2, 3]);
        let (batch, heads) = (rng.size(&[1, 2, 3]), groups * rng.size(&[1, 2, 3]));
        let (ranks, headdim, d_state) = (rng.size(&[1, 1, 2, 3]), rng.size(&[1, 3, 4]), rng.size(&[1, 2, 5]));
        let builder = GraphBuilder::new("sample");
        let mut states = WideTensors::new();
        let mut state = |rng: &mut Random, name: &str, shape: &[usize]| {
            let number = |rng: &mut Random| match name {
                "log_decay" if strong && rng.is_one_of_two() => -80.0 + rng.unit(),
                "log_decay" => -0.2 * rng.unit().abs(),
                _ => rng.unit(),
            };
            states.insert(name.to_owned(), (0..shape.iter().product()).map(|_| number(rng)).collect());
            builder.state(name, DType::F32, shape)
        };
        let (of_token, of_state) = ([batch, len, heads], [batch, heads, headdim, d_state]);
        let (of_v, of_k) = ([batch, len, heads, ranks, headdim], [batch, len, groups, ranks, d_state]);
        let [log_decay, v] = [state(rng, "log_decay", &of_token), state(rng, "v", &of_v)];
        let [k, q, dy] = [state(rng, "k", &of_k), state(rng, "q", &of_k), state(rng, "dy", &of_v)];
        let s0 = rng.is_one_of_two().then(|| state(rng, "s0", &of_state));
        let weight = rng.is_one_of_two().then(|| state(rng, "weight", &of_token));
        let own_weight = rng.is_one_of_two().then(|| state(rng, "own_weight", &of_token));
        let ds_last = rng.is_one_of_two().then(|| state(rng, "ds_last", &of_state));
        let mut inputs = Tensors::new();
        let reset = if rng.is_one_of_two() {
            let is_start = (0..batch * len).map(|_| rng.below(6) == 0).collect();
            inputs.insert("reset".to_owned(), TensorData::new([batch, len], Elements::Bool(is_start))?);
            Some(builder.input("reset", DType::Bool, [batch, len]))
        } else {
            None
        };
        let chunk_size = rng.size(&[0, 0, 1, 2, 4, 7]);
        let d = log_decay.scan_grad(v, k, q, dy, s0, reset, weight, own_weight, ds_last, chunk_size);
        for (i, result) in [d.0, d.1, d.2, d.3, d.4, d.5, d.6].into_iter().enumerate().filter(|(i, _)| is_read(*i)) {
            builder.output(RESULTS[i], result);
        }
        builder.output("log_decay", log_decay);
        Ok(Self { graph: builder.finish()?, inputs, states })
    }

    fn run(&self, graph: &Graph) -> Fallible<WideTensors> {
        Ok(Interpreter::new(graph)?.run_wide(&self.inputs, &Tensors::new(), &mut self.states.clone())?)
    }

    /// Fails unless the written-out graph gives what the op gives, to `tolerance` of each result's largest number.
    fn check(&self, tolerance: f64) -> Fallible<()> {
        let written_out = expand(&self.graph)?.ok_or("nothing was written out")?;
        monopass_ir::verify::verify(&written_out)?;
        let (want, got) = (self.run(&self.graph)?, self.run(&written_out)?);
        assert_eq!(want.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
        for (name, want) in &want {
            let peak = want.iter().fold(1e-300, |peak: f64, x| peak.max(x.abs()));
            let worst = want
                .iter()
                .zip(&got[name])
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, |worst: f64, x| if x > worst || x.is_nan() { x } else { worst });
            assert_eq!(want.len(), got[name].len());
            assert!(worst <= tolerance * peak, "{name} differs by {worst} of {peak}\n{}", self.graph);
        }
        Ok(())
    }
}

#[test]
fn chunks_give_what_the_adjoint_is_by_definition() -> Fallible<()> {
    let mut rng = Random(1);
    for _ in 0..150 {
        let len = rng.size(&[1, 2, 3, 8, 9, 21]);
        Sample::new(&mut rng, len, false, |_| true)?.check(1e-11)?;
    }
    for len in [0, 0, 64, 65, 130, 200] {
        Sample::new(&mut rng, len, false, |_| true)?.check(1e-11)?;
    }
    Ok(())
}

/// The largest number of a result says little of those that strong decays make small: each is compared by itself.
#[test]
fn strong_decays_keep_the_digits_of_each_derivative() -> Fallible<()> {
    let mut rng = Random(2);
    for _ in 0..60 {
        let len = rng.size(&[2, 3, 9, 40]);
        let sample = Sample::new(&mut rng, len, true, |i| i == 0)?;
        let written_out = expand(&sample.graph)?.ok_or("nothing was written out")?;
        let (want, got) = (sample.run(&sample.graph)?, sample.run(&written_out)?);
        for (want, got) in want["d_log_decay"].iter().zip(&got["d_log_decay"]) {
            // A sum of a few numbers of one size may cancel by itself; a thousandfold is left for that.
            assert!((want - got).abs() <= 1e-9 * want.abs() + 1e-60, "{want} and {got}\n{}", sample.graph);
        }
    }
    Ok(())
}

#[test]
fn only_results_that_are_read_are_made() -> Fallible<()> {
    let mut rng = Random(3);
    for i in 0..7 {
        let all = Sample::new(&mut Random(3 + i as u64), 9, false, |_| true)?;
        let one = Sample::new(&mut Random(3 + i as u64), 9, false, |idx| idx == i)?;
        one.check(1e-11)?;
        let n_nodes = |sample: &Sample| -> Fallible<usize> { Ok(expand(&sample.graph)?.ok_or("nothing was written out")?.n_nodes()) };
        assert!(n_nodes(&one)? < n_nodes(&all)?);
    }
    Sample::new(&mut rng, 3, false, |_| false)?.check(0.0)
}

#[test]
fn empty_sizes_are_written_out_too() -> Fallible<()> {
    for (ranks, headdim, d_state) in [(0, 3, 4), (2, 0, 4), (2, 3, 0)] {
        let builder = GraphBuilder::new("g");
        let log_decay = builder.input("log_decay", DType::F32, [3, 5, 2]);
        let [v, dy] = ["v", "dy"].map(|name| builder.input(name, DType::F32, [3, 5, 2, ranks, headdim]));
        let [k, q] = ["k", "q"].map(|name| builder.input(name, DType::F32, [3, 5, 1, ranks, d_state]));
        let d = log_decay.scan_grad(v, k, q, dy, None, None, None, None, None, 2_usize);
        [d.0, d.1, d.2, d.3, d.4, d.5].into_iter().zip(RESULTS).for_each(|(result, name)| builder.output(name, result));
        let graph = builder.finish()?;
        let written_out = expand(&graph)?.ok_or("nothing was written out")?;
        let (inputs, params, states) = monopass_ir::sample::inputs(&graph, 1);
        let run = |graph: &Graph| -> Fallible<Tensors> { Ok(Interpreter::new(graph)?.run(&inputs, &params, &mut states.clone())?) };
        assert_eq!(run(&graph)?, run(&written_out)?);
    }
    Ok(())
}

#[test]
fn other_graphs_are_left_alone() -> Fallible<()> {
    for seed in 0..20 {
        let graph = monopass_ir::sample::graph(seed, 12);
        let has_adjoint = graph.nodes().any(|(_, node)| matches!(node.op(), Some(Op::ScanGrad { .. })));
        assert_eq!(expand(&graph)?.is_some(), has_adjoint);
    }
    Ok(())
}

#[test]
fn sizes_beyond_a_graph_are_an_error() -> Fallible<()> {
    let builder = GraphBuilder::new("g");
    let log_decay = builder.input("log_decay", DType::F32, [1, 1 << 20, 64]);
    let [v, dy, k, q] = ["v", "dy", "k", "q"].map(|name| builder.input(name, DType::F32, [1, 1 << 20, 64, 1, 1]));
    builder.output("d_v", log_decay.scan_grad(v, k, q, dy, None, None, None, None, None, 0_usize).1);
    let error = expand(&builder.finish()?).map(|_| ()).err().ok_or("no error")?.to_string();
    assert!(error.contains("scan_grad cannot be written out") && error.contains("split the batch"), "{error}");
    Ok(())
}
