//! Text from a language model: prompts in chunks of bounded length, then token by token.
//!
//! A [`Generator`] is a model ready to run; a [`Sequence`] is a text in progress, with the states that the model has after it.
//! All but the last token of what a sequence was given goes through the model in chunks. Each further token is one decode step: a run
//! whose token comes from a state on the device, and which draws the next one there, so that it costs one submit and one read-back of
//! four bytes a sequence. On a device the next step is submitted before the token of this one is read.
//!
//! In reading order: [`Sampling`] (how a token is chosen), [`Sequence`], [`Generator`], [`Slots`] (sequences that join and leave a
//! batch), [`Generator::save`] and [`StateError`] (sequences on disk), [`Generator::embed`] (texts as vectors), [`Generator::evaluate`] (how
//! well a model expects a text).

mod decode;
mod embed;
mod eval;
mod fingerprint;
mod sampling;
mod sequence;
mod slots;
mod state;

pub use decode::Generated;
pub use eval::Evaluation;
pub use sampling::{Sampling, SamplingError};
pub use sequence::{Mark, Sequence};
pub use slots::Slots;
pub use state::StateError;

use crate::engine::{Engine, LoadOptions, Params, Program, Session};
use crate::error::Error;
use crate::hooks::{Culprit, trace_non_finite};
use fingerprint::Fingerprint;
use indexmap::IndexMap;
use monopass_blocks::checkpoint::Opened;
use monopass_blocks::params::Role;
use monopass_blocks::{Head, Io, LmConfig, LmGraph, TokenIo, model, names};
use monopass_ir::eval::Tensors;
use monopass_ir::storage::StoredTensor;
use monopass_ir::{Graph, TensorData, TensorType};
use monopass_lower::CompileOptions;
use monopass_runtime::BuildProgress;
use std::borrow::Cow;
use std::sync::Arc;

/// Tokens of prompts that go through the model in one run, at most, unless told otherwise.
pub const DEFAULT_CHUNK_LEN: usize = 512;
/// Programs that are kept ready: each batch and each length of a chunk has one.
const MAX_PROGRAMS: usize = 32;

/// How a generator works.
#[derive(Clone)]
pub struct GeneratorOptions<'a> {
    /// Passes of the compiler.
    pub compile: CompileOptions,
    /// Tokens of prompts that go through the model in one run, at most, all sequences together; 0 counts as 1.
    pub chunk_len: usize,
    /// Told after each tensor how many bytes of weights are on the device.
    pub uploaded: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl Default for GeneratorOptions<'_> {
    fn default() -> Self {
        Self { compile: CompileOptions::default(), chunk_len: DEFAULT_CHUNK_LEN, uploaded: None }
    }
}

impl std::fmt::Debug for GeneratorOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GeneratorOptions").field("compile", &self.compile).field("chunk_len", &self.chunk_len).finish_non_exhaustive()
    }
}

/// A model, ready to continue sequences.
#[derive(Debug)]
pub struct Generator {
    engine: Engine,
    config: LmConfig,
    params: Params,
    fingerprint: u64,
    compile: CompileOptions,
    chunk_len: usize,
    /// States that do not start from zero, of one sequence.
    initial: Tensors,
    interrupt: Interrupt,
    programs: IndexMap<Shape, Program>,
}

/// Says when to stop.
#[derive(Clone)]
struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Interrupt").field(&self.0.is_some()).finish()
    }
}

/// What a program of a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    /// Tokens of prompts.
    Prompt { batch: usize, len: usize, mask: bool },
    /// One token from a state, and the next one drawn; with a count of tokens if some are penalized.
    Step { batch: usize, penalty: bool },
    /// Tokens whose final hidden states are summed.
    Pooled { batch: usize, len: usize },
    /// Tokens that are judged.
    Score { batch: usize, len: usize },
}

impl Generator {
    /// The generator of a model in memory. On a device its weights are stored as f32.
    ///
    /// # Errors
    /// A configuration that does not fit together; parameters that are missing or of another type; no memory left.
    pub async fn new(engine: &Engine, config: LmConfig, params: impl Into<Arc<Tensors>>) -> Result<Self, Error> {
        Self::with_options(engine, config, params, &GeneratorOptions::default()).await
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn with_options(
        engine: &Engine,
        config: LmConfig,
        params: impl Into<Arc<Tensors>>,
        options: &GeneratorOptions<'_>,
    ) -> Result<Self, Error> {
        let params = params.into();
        let mut fingerprint = Fingerprint::of(&config);
        for (name, tensor) in params.iter() {
            fingerprint.add(name, &StoredTensor::from(tensor.clone()));
        }
        let params = engine.upload(params).await?;
        Self::of(engine, config, params, fingerprint.number(), options).await
    }

    /// The generator of a checkpoint, each weight stored as [`Opened::params`] says. Weights go to the device one by one, once all are known
    /// to be finite.
    ///
    /// # Errors
    /// What a checkpoint's tensors can meet, an element that is not finite among them; no memory left; a lost device.
    pub async fn load(engine: &Engine, checkpoint: &Opened<'_>, options: &GeneratorOptions<'_>) -> Result<Self, Error> {
        checkpoint.check_finite()?;
        let config = checkpoint.config().clone();
        let mut fingerprint = Fingerprint::of(&config);
        let mut uploader = engine.uploader();
        let mut n_bytes = 0;
        for param in checkpoint.params() {
            let tensor = checkpoint.tensor(&param.name)?;
            fingerprint.add(&param.name, &tensor);
            n_bytes += tensor.size_bytes();
            uploader.put(&param.name, tensor).await?;
            if let Some(uploaded) = options.uploaded {
                uploaded(n_bytes);
            }
        }
        let params = uploader.finish().await?;
        Self::of(engine, config, params, fingerprint.number(), options).await
    }

    async fn of(
        engine: &Engine,
        config: LmConfig,
        params: Params,
        fingerprint: u64,
        options: &GeneratorOptions<'_>,
    ) -> Result<Self, Error> {
        let initial = initial_states(&config, &params).await?;
        // A decode step of a graph that does not fit its weights is an error here and not with the first text.
        model::graph(&config, 1, 1, step_graph(false))?;
        let (compile, chunk_len) = (options.compile.clone(), options.chunk_len.max(1));
        Ok(Self {
            engine: engine.clone(),
            config,
            params,
            fingerprint,
            compile,
            chunk_len,
            initial,
            interrupt: Interrupt(None),
            programs: IndexMap::new(),
        })
    }

    /// Asks `stop` before each chunk of a prompt or text; once it says so, what is under way ends with [`Error::Interrupted`], and sequences
    /// keep the states that they have by then. While tokens come, `on_token` ends a generation.
    pub fn interrupt_with(&mut self, stop: impl Fn() -> bool + Send + Sync + 'static) {
        self.interrupt = Interrupt(Some(Arc::new(stop)));
    }

    fn check_interrupt(&self) -> Result<(), Error> {
        if self.interrupt.0.as_ref().is_some_and(|stop| stop()) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// The model.
    #[must_use]
    pub const fn config(&self) -> &LmConfig {
        &self.config
    }

    /// The parameters.
    #[must_use]
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// What the model runs on.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A number by which the model is known again: of its configuration, of how its weights are stored, and of some of their elements.
    #[must_use]
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// An empty sequence whose next tokens will be chosen by `sampling`.
    ///
    /// # Errors
    /// Settings outside of their range; no memory left on the device.
    pub fn sequence(&self, sampling: Sampling) -> Result<Sequence, Error> {
        sampling.check()?;
        Ok(Sequence::new(self.session(1)?, sampling))
    }

    /// Empties a sequence: no tokens, and the model's initial states. Its settings stay.
    ///
    /// # Errors
    /// No memory left on the device; a lost device.
    pub fn reset(&self, sequence: &mut Sequence) -> Result<(), Error> {
        *sequence = self.sequence(sequence.sampling)?;
        Ok(())
    }

    /// Makes the decode step ready, and the programs that `prompt_len` tokens of a prompt need, so that no compilation falls into their
    /// time. `progress` is told after each kernel that the driver compiled.
    ///
    /// # Errors
    /// Parameters that are missing or of another type; no memory left.
    pub async fn prepare(
        &mut self,
        prompt_len: usize,
        sampling: &Sampling,
        progress: Option<&(dyn Fn(BuildProgress) + Sync)>,
    ) -> Result<(), Error> {
        let n = prompt_len.saturating_sub(1);
        let prompts = [n.min(self.chunk_len), n % self.chunk_len].map(|len| Shape::Prompt { batch: 1, len, mask: false });
        let shapes = prompts.into_iter().filter(|shape| !matches!(shape, Shape::Prompt { len: 0, .. }));
        for shape in shapes.chain([Shape::Step { batch: 1, penalty: sampling.penalizes() }]) {
            self.program_with(shape, progress).await?;
        }
        Ok(())
    }

    /// The decode step of one sequence, if [`prepare`](Self::prepare) or a generation made it.
    #[must_use]
    pub fn step(&self, sampling: &Sampling) -> Option<&Program> {
        self.programs.get(&Shape::Step { batch: 1, penalty: sampling.penalizes() })
    }

    /// Bytes of intermediates of all programs that are kept ready.
    #[must_use]
    pub fn slots_bytes(&self) -> u64 {
        let slots = |program: &Program| program.plan().map_or(0, |plan| plan.totals().slots_bytes);
        self.programs.values().map(slots).sum()
    }

    /// The graph of the decode step of one sequence, as [`step`](Self::step) runs it.
    ///
    /// # Errors
    /// A configuration that does not fit together.
    pub fn step_graph(&self, sampling: &Sampling) -> Result<Graph, Error> {
        Ok(model::graph(&self.config, 1, 1, step_graph(sampling.penalizes()))?)
    }

    /// The first value that is not finite when these tokens go through the model from its initial states, chunk by chunk; slow.
    ///
    /// # Errors
    /// [`Error::UnknownToken`]; what a run can meet.
    pub async fn trace_non_finite(&mut self, tokens: &[u32]) -> Result<Option<Culprit>, Error> {
        self.check_tokens(tokens, 0)?;
        let mut session = self.session(1)?;
        for chunk in tokens.chunks(self.chunk_len) {
            let graph = model::graph(&self.config, 1, chunk.len(), LmGraph::new(Io::Stateful, Head::LastLogits))?;
            let ids = decode::u32s([1, chunk.len()], chunk.to_vec())?;
            let inputs = [("ids", &ids)];
            if let Some(culprit) = trace_non_finite(&self.engine, &graph, &self.params, &session, &inputs).await? {
                return Ok(Some(culprit));
            }
            let program = self.program(Shape::Prompt { batch: 1, len: chunk.len(), mask: false }).await?;
            program.run(&mut session, &inputs).await?;
        }
        Ok(None)
    }

    /// A fresh session of `batch` sequences.
    fn session(&self, batch: usize) -> Result<Session, Error> {
        let mut session = self.engine.session();
        for (name, state) in &self.initial {
            let rows = if batch == 1 { Cow::Borrowed(state) } else { Cow::Owned(repeated(state, batch)?) };
            session.write(name, &rows)?;
        }
        Ok(session)
    }

    /// A session of `batch` sequences whose states are all there, and zero where no initial ones are learned.
    fn whole_session(&self, batch: usize) -> Result<Session, Error> {
        let mut session = self.session(batch)?;
        for (name, ty) in self.state_types(batch)? {
            session.make(&name, &ty)?;
        }
        Ok(session)
    }

    /// Names and types of the states that a model carries for `batch` sequences, without tokens and their counts.
    fn state_types(&self, batch: usize) -> Result<Vec<(String, TensorType)>, Error> {
        let infos = self.config.sizes()?.states();
        let ty = |shape: &[usize]| TensorType::new(monopass_ir::DType::F32, [&[batch], shape].concat());
        let of_layer = |layer: usize| {
            let prefix = names::state_prefix(layer);
            infos.iter().map(move |info| (format!("{prefix}{}", info.name), ty(&info.shape))).collect::<Vec<_>>()
        };
        Ok((0..self.config.n_layer).flat_map(of_layer).collect())
    }

    async fn program(&mut self, shape: Shape) -> Result<Program, Error> {
        self.program_with(shape, None).await
    }

    async fn program_with(&mut self, shape: Shape, progress: Option<&(dyn Fn(BuildProgress) + Sync)>) -> Result<Program, Error> {
        if let Some(idx) = self.programs.get_index_of(&shape) {
            // The last one was used last.
            self.programs.move_index(idx, self.programs.len() - 1);
            return Ok(self.programs[self.programs.len() - 1].clone());
        }
        let (batch, len, options) = match shape {
            Shape::Prompt { batch, len, mask } => (batch, len, LmGraph { mask, ..LmGraph::new(Io::Stateful, Head::States) }),
            Shape::Step { batch, penalty } => (batch, 1, step_graph(penalty)),
            Shape::Pooled { batch, len } => (batch, len, LmGraph { mask: true, ..LmGraph::new(Io::Stateful, Head::Pooled) }),
            Shape::Score { batch, len } => (batch, len, LmGraph::new(Io::Stateful, Head::Score)),
        };
        let graph = model::graph(&self.config, batch, len, options)?;
        let options = LoadOptions { compile: self.compile.clone(), dump: None, progress };
        let program = self.engine.load_with(&graph, &self.params, options).await?;
        while self.programs.len() >= MAX_PROGRAMS {
            self.programs.shift_remove_index(0);
        }
        self.programs.insert(shape, program.clone());
        Ok(program)
    }

    /// The first token of a prompt that the model does not have.
    fn check_tokens(&self, tokens: &[u32], first: usize) -> Result<(), Error> {
        let vocab_size = self.config.n_tokens();
        let is_unknown = |token: &u32| usize::try_from(*token).is_ok_and(|token| token >= vocab_size);
        match tokens.iter().position(is_unknown) {
            Some(at) => Err(Error::UnknownToken { token: tokens[at], position: first + at, vocab_size }),
            None => Ok(()),
        }
    }
}

/// A decode step: the token from a state, the next one drawn.
const fn step_graph(penalty: bool) -> LmGraph {
    LmGraph { token: TokenIo::State, seen: penalty, ..LmGraph::new(Io::Stateful, Head::Sample) }
}

/// Where initial states are learned, a sequence does not start from zero.
async fn initial_states(config: &LmConfig, params: &Params) -> Result<Tensors, Error> {
    let mut initial = Tensors::new();
    if config.block.learns_initial_states() {
        let learned = config.parameters()?.into_iter().filter(|param| param.role == Role::InitStates);
        for (layer, param) in learned.enumerate() {
            let tensor = params.read(&param.name).await?;
            let shape = [&[1], tensor.shape()].concat();
            if let Ok(state) = TensorData::new(shape, tensor.elements().clone()) {
                initial.insert(format!("{}ssm_state", names::state_prefix(layer)), state);
            }
        }
    }
    Ok(initial)
}

/// The same row `n` times.
fn repeated(row: &TensorData, n: usize) -> Result<TensorData, Error> {
    let ty = TensorType::new(row.elements().dtype(), [&[n], row.shape().get(1..).unwrap_or_default()].concat());
    let mut rows = TensorData::zeros(&ty);
    let filled = (0..n).try_for_each(|to| rows.put_rows(to, row));
    filled.map(|()| rows).ok_or(Error::NoToken)
}
