//! A model in training: its programs, its parameters and moments on the executor, and one submit for each step.

use crate::engine::{Engine, LoadOptions, Params, Pending, Program, Session};
use crate::error::Error;
use monopass_blocks::train::{Phase, TrainStep, eval_graph, graph};
use monopass_blocks::{LmConfig, names};
use monopass_ir::eval::Tensors;
use monopass_ir::{Elements, Graph, TensorData};
use monopass_lower::CompileOptions;
use monopass_runtime::{BuildProgress, Counters, RunOutput};

/// How a model is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerOptions {
    /// What a run works on, and how parameters follow from it; the phase is chosen by [`accumulate`](Self::accumulate).
    pub step: TrainStep,
    /// Batches whose gradients make one step, at least 1.
    pub accumulate: usize,
    /// Passes of the compiler, and how much memory activations may take.
    pub compile: CompileOptions,
}

/// Token numbers of a batch and what should follow each.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// `[batch, len]`.
    pub ids: Vec<u32>,
    /// `[batch, len]`; the ignored number where nothing is asked.
    pub targets: Vec<i32>,
}

/// What a step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    /// Mean cross-entropy of the batch, in nats a token.
    pub loss: f32,
    /// Tokens that counted.
    pub rows: f32,
    /// Norm of all gradients before clipping; `None` where they were only accumulated.
    pub grad_norm: Option<f32>,
    /// What the run recorded.
    pub counters: Counters,
}

/// Losses on held-out text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Sum of the cross-entropies, in nats.
    pub loss_sum: f64,
    /// Tokens that counted.
    pub rows: f64,
}

impl Evaluation {
    /// Nats a token; 0 if none counted.
    #[must_use]
    pub fn loss(&self) -> f64 {
        if self.rows > 0.0 { self.loss_sum / self.rows } else { 0.0 }
    }

    /// `e` to the loss.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// Bits for each of `n_bytes` bytes of text that the tokens stand for.
    #[must_use]
    pub fn bits_per_byte(&self, n_bytes: f64) -> f64 {
        if n_bytes > 0.0 { self.loss_sum / std::f64::consts::LN_2 / n_bytes } else { 0.0 }
    }
}

/// A step that was submitted.
#[derive(Debug)]
#[must_use = "the loss comes out of `wait`"]
pub struct PendingStep(Pending);

impl PendingStep {
    /// Waits for the step.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub async fn wait(self) -> Result<StepOutcome, Error> {
        let output = self.0.wait().await?;
        let loss = number(&output, "loss")?;
        let grad_norm = output.outputs.contains_key("grad_norm").then(|| number(&output, "grad_norm")).transpose()?;
        Ok(StepOutcome { loss, rows: number(&output, "rows")?, grad_norm, counters: output.counters })
    }
}

/// A model in training.
#[derive(Debug)]
pub struct Trainer {
    engine: Engine,
    config: LmConfig,
    options: TrainerOptions,
    frozen: Params,
    session: Session,
    /// The run that ends a step, and the one of the batches before it.
    last: Program,
    before: Option<Program>,
    eval: Option<Program>,
    /// Steps taken.
    n_steps: u64,
    /// Batches of the step under way.
    n_batches: usize,
}

impl Trainer {
    /// Brings parameters to the executor and compiles the step. `params` holds all parameters and the adapters' factors; whatever else it
    /// holds is left alone.
    ///
    /// # Errors
    /// A configuration that does not fit together, parameters that are missing or of another type, no memory left.
    pub async fn new(
        engine: &Engine,
        config: LmConfig,
        options: TrainerOptions,
        params: Tensors,
        progress: Option<&(dyn Fn(BuildProgress) + Sync)>,
    ) -> Result<Self, Error> {
        let graph_of = |phase| graph(&config, &TrainStep { phase, ..options.step.clone() });
        let several = options.accumulate > 1;
        let graph = graph_of(if several { Phase::Apply } else { Phase::Whole })?;
        let mut session = engine.session();
        let mut frozen = Tensors::new();
        for (name, tensor) in params {
            let is_state = graph.states().any(|(own, _)| own == name);
            if is_state {
                session.write(&name, &tensor)?;
            } else {
                frozen.insert(name, tensor);
            }
        }
        check_states(&graph, &session)?;
        let frozen = engine.upload(frozen).await?;
        let load = |graph: Graph| {
            let (engine, frozen, compile) = (engine.clone(), frozen.clone(), options.compile.clone());
            async move { engine.load_with(&graph, &frozen, LoadOptions { compile, dump: None, progress }).await }
        };
        let last = load(graph).await?;
        let before = if several { Some(load(graph_of(Phase::Accumulate)?).await?) } else { None };
        Ok(Self { engine: engine.clone(), config, options, frozen, session, last, before, eval: None, n_steps: 0, n_batches: 0 })
    }

    /// Submits a batch, as one encoder with one compute pass. The last of [`TrainerOptions::accumulate`] batches ends the step, with the
    /// learning rate `lr`. At most two may be in flight.
    ///
    /// # Errors
    /// A batch of another size; a token that the model does not have; what the device meets.
    pub fn submit(&mut self, batch: &Batch, lr: f64) -> Result<PendingStep, Error> {
        let [ids, targets] = self.tensors(batch)?;
        if let Some(before) = self.before.as_ref().filter(|_| self.n_batches + 1 < self.options.accumulate) {
            let pending = before.submit(&mut self.session, &[("ids", &ids), ("target", &targets)])?;
            self.n_batches += 1;
            return Ok(PendingStep(pending));
        }
        let [first, second] = self.options.step.adamw.bias_corrections(u32::try_from(self.n_steps + 1).unwrap_or(u32::MAX));
        let [lr, first, second] = [lr, first, second].map(scalar);
        let inputs = [("ids", &ids), ("target", &targets), ("lr", &lr), ("bias_correction1", &first), ("bias_correction2", &second)];
        let pending = self.last.submit(&mut self.session, &inputs)?;
        self.n_steps += 1;
        self.n_batches = 0;
        Ok(PendingStep(pending))
    }

    /// Forgets what the blocks carry from one batch to the next.
    ///
    /// # Errors
    /// A lost device.
    pub fn reset_carried(&mut self) -> Result<(), Error> {
        let carried = self.carried("");
        self.zero(&carried)
    }

    /// Losses on windows of held-out text, in order. Where blocks carry states they do so here as well, from zero, apart from those of
    /// training.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub async fn evaluate(&mut self, batches: &[Batch]) -> Result<Evaluation, Error> {
        if self.eval.is_none() {
            let graph = eval_graph(&self.config, &self.options.step)?;
            let options = LoadOptions { compile: self.options.compile.clone(), dump: None, progress: None };
            self.eval = Some(self.engine.load_with(&graph, &self.frozen, options).await?);
        }
        let carried = self.carried(monopass_blocks::train::EVAL_PREFIX);
        self.zero(&carried)?;
        let Some(program) = &self.eval else { return Ok(Evaluation::default()) };
        let mut evaluation = Evaluation::default();
        for batch in batches {
            let [ids, targets] = self.tensors(batch)?;
            let output = program.run(&mut self.session, &[("ids", &ids), ("target", &targets)]).await?;
            evaluation.loss_sum += f64::from(number(&output, "loss_sum")?);
            evaluation.rows += f64::from(number(&output, "rows")?);
        }
        Ok(evaluation)
    }

    /// Everything that steps change: parameters that train, their moments, carried states, sums of gradients.
    ///
    /// # Errors
    /// What a read-back can meet.
    pub async fn state(&self) -> Result<Tensors, Error> {
        let mut tensors = Tensors::new();
        for (name, _) in self.last.states() {
            if self.session.ty(&name).is_some() {
                tensors.insert(name.clone(), self.session.read(&name).await?);
            }
        }
        Ok(tensors)
    }

    /// Goes on from what [`state`](Self::state) gave after `n_steps` steps.
    ///
    /// # Errors
    /// A tensor that is missing or of another type.
    pub fn restore(&mut self, n_steps: u64, state: &Tensors) -> Result<(), Error> {
        for (name, ty) in self.last.states() {
            match state.get(&name).map(TensorData::ty) {
                Some(found) if found == ty => {}
                found => {
                    let found = found.map_or_else(|| "missing".to_owned(), |found| found.to_string());
                    let problem = format!("is {found} in what was saved, and {ty} here");
                    return Err(Error::State { name, problem, help: "resume with the options that the run was started with" });
                }
            }
        }
        state.iter().try_for_each(|(name, tensor)| self.session.write(name, tensor))?;
        self.n_steps = n_steps;
        self.n_batches = 0;
        Ok(())
    }

    /// Steps taken.
    #[must_use]
    pub const fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// The program that ends a step.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.last
    }

    /// The model.
    #[must_use]
    pub const fn config(&self) -> &LmConfig {
        &self.config
    }

    /// Tokens and targets of a batch, each `[batch, len]`.
    fn tensors(&self, given: &Batch) -> Result<[TensorData; 2], Error> {
        let TrainStep { batch, len, .. } = self.options.step;
        let ids = TensorData::new([batch, len], Elements::U32(given.ids.clone()));
        let targets = TensorData::new([batch, len], Elements::I32(given.targets.clone()));
        match (ids, targets) {
            (Ok(ids), Ok(targets)) => Ok([ids, targets]),
            _ => Err(Error::Batch { n_ids: given.ids.len(), n_targets: given.targets.len(), batch, len }),
        }
    }

    /// Names of the carried states after a prefix.
    fn carried(&self, prefix: &str) -> Vec<String> {
        let infos = self.config.sizes().map(|sizes| sizes.states()).unwrap_or_default();
        (0..self.config.n_layer)
            .flat_map(|layer| infos.iter().map(move |info| format!("{prefix}{}{}", names::state_prefix(layer), info.name)))
            .collect()
    }

    fn zero(&mut self, names: &[String]) -> Result<(), Error> {
        for name in names {
            if let Some(ty) = self.session.ty(name) {
                self.session.write(name, &TensorData::zeros(&ty))?;
            }
        }
        Ok(())
    }
}

/// The trainable parameters must have come; moments and carried states start at zero by themselves.
fn check_states(graph: &Graph, session: &Session) -> Result<(), Error> {
    for (name, value) in graph.states() {
        let is_param = graph.states().any(|(other, _)| other == format!("{}{name}", monopass_blocks::train::FIRST_MOMENT_PREFIX));
        let found = session.ty(name);
        if is_param && found.as_ref() != Some(graph.ty(value)) {
            let found = found.map_or_else(|| "missing".to_owned(), |found| found.to_string());
            let problem = format!("is {found}, and the model wants {}", graph.ty(value));
            return Err(Error::State { name: name.to_owned(), problem, help: "give every parameter that trains under its name" });
        }
    }
    Ok(())
}

fn scalar(value: f64) -> TensorData {
    #[expect(clippy::cast_possible_truncation, reason = "rates are f32 on devices")]
    let value = value as f32;
    TensorData::f32([], [value]).unwrap_or_else(|_| TensorData::zeros(&monopass_ir::TensorType::new(monopass_ir::DType::F32, [])))
}

fn number(output: &RunOutput, name: &'static str) -> Result<f32, Error> {
    let value = output.outputs.get(name).and_then(|tensor| tensor.as_f32()?.first().copied());
    value.ok_or(Error::NoNumber { name })
}
