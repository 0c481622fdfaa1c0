//! The graph of a whole training step: forward, loss, backward, clipping, `AdamW`, and the states carried to the next step.

use super::adapter::{Adapter, adapted};
use super::loss::{head_loss, head_sum};
use super::optimizer::{AdamW, StepScalars, clip_scale, global_norm};
use crate::block::BlockSizes;
use crate::config::LmConfig;
use crate::model::Lm;
use crate::names;
use crate::params::TrainRows;
use crate::state::{Io, Packing, States};
use monopass_ir::error::BuildErrors;
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};

/// Prefix of the state that holds the running mean of a parameter's gradient.
pub const FIRST_MOMENT_PREFIX: &str = "adamw.m.";
/// Prefix of the state that holds the running mean of its square.
pub const SECOND_MOMENT_PREFIX: &str = "adamw.v.";
/// Prefix of the state that sums a parameter's gradient over several runs.
pub const ACCUMULATED_PREFIX: &str = "grad.";
/// Prefix of what blocks carry from window to window of held-out text.
pub const EVAL_PREFIX: &str = "eval.";
/// The state that counts the rows in those sums.
pub const ACCUMULATED_ROWS: &str = "grad_rows";

/// Which part of a step a graph is, where gradients are summed over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// All of it: one batch a step.
    #[default]
    Whole,
    /// One of the batches before the last: its gradients are added to those so far.
    Accumulate,
    /// The last batch: the sum is applied and then cleared.
    Apply,
}

/// How a model trains.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainStep {
    /// Sequences a batch.
    pub batch: usize,
    /// Tokens of each.
    pub len: usize,
    /// Target of tokens that do not count.
    pub ignore: i32,
    /// Whether the blocks' states go on from one run to the next. Gradients stop there either way.
    pub carry_states: bool,
    /// Rows of parameters that train.
    pub trainable: Vec<TrainRows>,
    /// Low-rank adapters of frozen weights, which train too.
    pub adapters: Vec<Adapter>,
    /// The optimizer.
    pub adamw: AdamW,
    /// Largest norm of all gradients together; longer ones are scaled down to it.
    pub max_grad_norm: Option<f64>,
    /// Rows that the head and the loss work on at a time; 0 leaves it to [`block_rows_for`].
    pub block_rows: usize,
    /// Which part of a step the graph is.
    pub phase: Phase,
}

/// Most bytes of logits that exist at a time.
const LOGITS_BYTES: usize = 64 << 20;

/// Rows that the head and the loss work on at a time, so that their logits take at most 64 MiB.
#[must_use]
pub fn block_rows_for(vocab_size: usize, n_rows: usize) -> usize {
    (LOGITS_BYTES / vocab_size.saturating_mul(4).max(1)).clamp(1, n_rows.max(1))
}

/// The graph of a training step.
///
/// Inputs: `ids [batch, len]` u32 and `target [batch, len]` i32; unless gradients are only accumulated also `lr`,
/// `bias_correction1` and `bias_correction2`, scalars (see [`AdamW`]). Outputs, scalars: `loss`, the mean over the rows of this batch
/// that count, `rows`, how many those are, and `grad_norm` before clipping where there is one.
///
/// Whatever trains is a state under the parameter's name, and so are its moments ([`FIRST_MOMENT_PREFIX`], [`SECOND_MOMENT_PREFIX`]) of
/// the rows that train; the other parameters are params. No axis varies between runs.
///
/// # Errors
/// Every inconsistency of the configuration; sizes that are too large; rows or adapters of parameters that there are not.
pub fn graph(config: &LmConfig, step: &TrainStep) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("train");
    match config.sizes() {
        Err(errors) => errors.report(&g),
        Ok(sizes) => build(&g, config, sizes, step),
    }
    let graph = g.finish()?;
    Ok(as_training(graph, step))
}

/// The graph that judges a model on held-out text: outputs `loss_sum`, the sum over the rows that count, and `rows`, scalars.
///
/// Inputs `ids` and `target` are as those of [`graph`], and so is what is a state.
///
/// # Errors
/// As for [`graph`].
pub fn eval_graph(config: &LmConfig, step: &TrainStep) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("eval");
    match config.sizes() {
        Err(errors) => errors.report(&g),
        Ok(sizes) => {
            let Forward { normed, target, head, states, .. } = Forward::build(&g, config, sizes, step, EVAL_PREFIX);
            let loss = {
                let _scope = g.scope("loss");
                head_sum(normed, head, target, step.ignore, step.block_rows_of(config))
            };
            g.output("loss_sum", loss.sum);
            g.output("rows", loss.count);
            publish(&g, &states, step, EVAL_PREFIX);
        }
    }
    let graph = g.finish()?;
    Ok(as_training(graph, step))
}

fn as_training(graph: Graph, step: &TrainStep) -> Graph {
    let trains = |name: &str| step.trainable.iter().any(|rows| rows.name == name) || step.adapters.iter().any(|adapter| adapter.has(name));
    graph.of_fixed_sizes().with_params_as_states(trains)
}

impl TrainStep {
    fn block_rows_of(&self, config: &LmConfig) -> usize {
        let n_rows = self.batch.saturating_mul(self.len);
        if self.block_rows == 0 { block_rows_for(config.vocab_size, n_rows) } else { self.block_rows }
    }
}

/// The model up to the norm before the head.
struct Forward<'g> {
    /// `[rows, d_model]`.
    normed: Tensor<'g>,
    /// `[rows]` i32.
    target: Tensor<'g>,
    head: Tensor<'g>,
    states: Vec<States<'g>>,
}

impl<'g> Forward<'g> {
    fn build(g: &'g GraphBuilder, config: &LmConfig, sizes: BlockSizes<'_>, step: &TrainStep, prefix: &str) -> Self {
        let &TrainStep { batch, len, .. } = step;
        let n_rows = batch.saturating_mul(len);
        let ids = g.input("ids", DType::U32, [batch, len]);
        let target = g.input("target", DType::I32, [batch, len]);
        let infos = sizes.states();
        let io = io(step);
        let before: Option<Vec<States<'_>>> = (0..config.n_layer)
            .map(|layer| States::declare(g, &infos, batch, &format!("{prefix}{}", names::state_prefix(layer)), io))
            .collect();
        let mut lm = Lm::declare(g, config, sizes);
        adapted(g, &mut lm, &step.adapters);
        let (hidden, states) = lm.hidden(ids, before.as_deref(), Packing::default().for_gradients(true));
        let normed = lm.final_norm(hidden).reshape([n_rows, config.block.d_model()]);
        Self { normed, target: target.reshape([n_rows]), head: lm.head(), states }
    }
}

const fn io(step: &TrainStep) -> Io {
    if step.carry_states { Io::Stateful } else { Io::Stateless }
}

fn publish<'g>(g: &'g GraphBuilder, states: &[States<'g>], step: &TrainStep, prefix: &str) {
    for (layer, states) in states.iter().enumerate() {
        states.publish(g, &format!("{prefix}{}", names::state_prefix(layer)), io(step));
    }
}

/// Rows of a parameter that train, with what the optimizer says of it.
struct Trained<'g> {
    name: String,
    whole: Tensor<'g>,
    rows: std::ops::Range<usize>,
    decay_exempt: bool,
}

impl<'g> Trained<'g> {
    /// The rows that train of a tensor like the parameter.
    #[track_caller]
    fn of(&self, tensor: Tensor<'g>) -> Tensor<'g> {
        if self.is_whole() { tensor } else { tensor.slice_axis(0, self.rows.start, self.rows.end) }
    }

    /// The parameter with other rows in the place of those that train.
    #[track_caller]
    fn replaced(&self, rows: Tensor<'g>) -> Tensor<'g> {
        let n_rows = self.whole.dim(0);
        let frozen =
            [(0, self.rows.start), (self.rows.end, n_rows)].map(|(start, end)| (start < end).then(|| self.whole.slice_axis(0, start, end)));
        match frozen {
            [None, None] => rows,
            [before, after] => self.whole.builder().concat(&[before, Some(rows), after].into_iter().flatten().collect::<Vec<_>>(), 0usize),
        }
    }

    fn is_whole(&self) -> bool {
        self.rows.start == 0 && self.rows.end == self.whole.dim(0)
    }
}

fn build(g: &GraphBuilder, config: &LmConfig, sizes: BlockSizes<'_>, step: &TrainStep) {
    if step.carry_states && config.block.learns_initial_states() {
        g.fail("train: carried states leave the learned initial states unused", "do not carry states, or do not learn them");
    }
    let Forward { normed, target, head, states } = Forward::build(g, config, sizes, step, "");
    let loss = {
        let _scope = g.scope("loss");
        head_loss(normed, head, target, step.ignore, step.block_rows_of(config))
    };
    let trained = trained(g, config, step);
    let wrt: Vec<Tensor<'_>> = trained.iter().map(|one| one.whole).collect();
    let gradients = g.gradients(&[(normed, loss.d_hidden), (head, loss.d_weight)], &wrt);
    let gradients: Vec<Tensor<'_>> = trained
        .iter()
        .zip(gradients)
        .map(|(one, gradient)| one.of(gradient.unwrap_or_else(|| g.constant(0.0, DType::F32, one.whole.shape()))))
        .collect();
    g.output("loss", loss.loss);
    g.output("rows", loss.count);
    let _scope = g.scope("optimizer");
    if let Some(gradients) = accumulated(g, step.phase, &trained, gradients, loss.count) {
        apply(g, step, &trained, &gradients);
    }
    publish(g, &states, step, "");
}

/// What trains, by the parameters' order.
fn trained<'g>(g: &'g GraphBuilder, config: &LmConfig, step: &TrainStep) -> Vec<Trained<'g>> {
    let params = config.parameters().unwrap_or_default();
    let rows = step.trainable.iter().filter_map(|TrainRows { name, rows }| {
        let whole = g.find_param(name);
        let info = params.iter().find(|param| param.name == *name);
        let (Some(whole), Some(info)) = (whole, info) else {
            g.fail(format!("train: no parameter is called {name:?}"), "take names from the model's parameters");
            return None;
        };
        if rows.is_empty() || rows.end > whole.dim(0) {
            g.fail(format!("train: rows {rows:?} of {name} {}", whole.ty()), "give a range of its first axis");
            return None;
        }
        Some(Trained { name: name.clone(), whole, rows: rows.clone(), decay_exempt: info.decay_exempt })
    });
    let adapters = step.adapters.iter().flat_map(Adapter::names).filter_map(|name| {
        let whole = g.find_param(&name)?;
        Some(Trained { name, rows: 0..whole.dim(0), whole, decay_exempt: false })
    });
    rows.chain(adapters).collect()
}

/// The gradients to apply: those of this run, or their mean with those before it by the rows that count; `None` if there is more
/// to come.
fn accumulated<'g>(
    g: &'g GraphBuilder,
    phase: Phase,
    trained: &[Trained<'g>],
    gradients: Vec<Tensor<'g>>,
    count: Tensor<'g>,
) -> Option<Vec<Tensor<'g>>> {
    if phase == Phase::Whole {
        return Some(gradients);
    }
    let so_far = g.state(ACCUMULATED_ROWS, DType::F32, []);
    let n_rows = so_far + count;
    let sum = |(one, gradient): (&Trained<'g>, Tensor<'g>)| {
        let so_far = g.state(&format!("{ACCUMULATED_PREFIX}{}", one.name), DType::F32, gradient.shape());
        (so_far, so_far + gradient * count)
    };
    let sums: Vec<(Tensor<'g>, Tensor<'g>)> = trained.iter().zip(gradients).map(sum).collect();
    let is_last = phase == Phase::Apply;
    // After the last batch the sums start anew.
    let next = |so_far: Tensor<'g>, sum: Tensor<'g>| if is_last { g.constant(0.0, DType::F32, so_far.shape()) } else { sum };
    g.update(ACCUMULATED_ROWS, next(so_far, n_rows));
    for (one, &(so_far, sum)) in trained.iter().zip(&sums) {
        g.update(&format!("{ACCUMULATED_PREFIX}{}", one.name), next(so_far, sum));
    }
    let at_least_one = n_rows.max(n_rows.number(1.0));
    is_last.then(|| sums.into_iter().map(|(_, sum)| sum / at_least_one).collect())
}

/// Clips and takes the step.
fn apply<'g>(g: &'g GraphBuilder, step: &TrainStep, trained: &[Trained<'g>], gradients: &[Tensor<'g>]) {
    let scalar = |name| g.input(name, DType::F32, []);
    let (lr, bias_corrections) = (scalar("lr"), ["bias_correction1", "bias_correction2"].map(scalar));
    let Some((&first, rest)) = gradients.split_first() else {
        g.fail("train: nothing trains", "name parameters that train, or give adapters");
        return;
    };
    let norm = global_norm(first, rest);
    g.output("grad_norm", norm);
    let clip_scale = step.max_grad_norm.map_or_else(|| g.scalar(1.0), |max| clip_scale(norm, max));
    let scalars = StepScalars { lr, bias_corrections, clip_scale };
    for (one, &gradient) in trained.iter().zip(gradients) {
        let moments = [FIRST_MOMENT_PREFIX, SECOND_MOMENT_PREFIX].map(|prefix| format!("{prefix}{}", one.name));
        let [m, v] = [0, 1].map(|at| g.state(&moments[at], DType::F32, gradient.shape()));
        let next = step.adamw.step(one.of(one.whole), gradient, [m, v], &scalars, one.decay_exempt);
        g.update(&one.name, one.replaced(next.param));
        g.update(&moments[0], next.m);
        g.update(&moments[1], next.v);
    }
}
