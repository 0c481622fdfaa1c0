//! The errors of all layers as one.

use crate::blocks::CheckpointError;
use crate::blocks::ConfigErrors;
use crate::blocks::cases::CaseError;
use crate::ir::error::{BuildErrors, EvalError, ParseError, VerifyErrors};
use crate::ir::storage::StorageError;
use crate::ir::tap::TapError;
use crate::lower::{LowerError, Target};
use crate::runtime::RuntimeError;

/// What can go wrong anywhere. Each layer's error says whose fault it is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A graph that was built has mistakes.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// A text is no graph.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A graph breaks an invariant.
    #[error(transparent)]
    Verify(#[from] VerifyErrors),
    /// The interpreter cannot run a graph with what it was given.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// A graph cannot be compiled.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A plan cannot be run.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A weight cannot be stored as asked, or a graph cannot use it so.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A pattern names no value of a graph.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// A configuration does not fit together.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// A checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A reference case cannot be run.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// A text cannot be trained on.
    #[error(transparent)]
    Data(#[from] crate::train::data::DataError),
    /// A training run on disk cannot be used.
    #[cfg(not(target_arch = "wasm32"))]
    #[error(transparent)]
    Store(#[from] crate::train::store::StoreError),
    /// Adapters do not fit a model.
    #[error(transparent)]
    Adapter(#[from] crate::blocks::train::AdapterError),
    /// No profile has this name. The caller's fault.
    #[error("no target profile is called {name:?}\n  help: the profiles are {}", Target::PROFILES.join(", "))]
    UnknownProfile {
        /// As given.
        name: String,
    },
    /// Parameters, session and program do not come from engines of one kind. The caller's fault.
    #[error("the {what} belongs to another executor\n  help: make parameters, sessions and programs with one `Engine`")]
    OtherExecutor {
        /// Which object.
        what: &'static str,
    },
    /// A state of a session is unknown, or of another type. The caller's fault.
    #[error("state `{name}` {problem}\n  help: {help}")]
    State {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
        /// How to fix it.
        help: &'static str,
    },
    /// Nothing to continue from. The caller's fault.
    #[error("the prompt is empty\n  help: give at least one token")]
    EmptyPrompt,
    /// A token that the model does not have. The caller's fault, or the tokenizer's.
    #[error(
        "token {token} at {position} of the prompt is not below the vocabulary of {vocab_size}\n  help: use the tokenizer of this model"
    )]
    UnknownToken {
        /// The token.
        token: u32,
        /// Its place in the prompt.
        position: usize,
        /// Tokens that the model has, without padding.
        vocab_size: usize,
    },
    /// A batch of another size than the training graph's. The caller's fault.
    #[error("a batch of {n_ids} tokens and {n_targets} targets\n  help: give {batch} sequences of {len} tokens, and as many targets")]
    Batch {
        /// Tokens given.
        n_ids: usize,
        /// Targets given.
        n_targets: usize,
        /// Sequences that the graph takes.
        batch: usize,
        /// Tokens of each.
        len: usize,
    },
    /// A training graph did not give a number that it should. Our fault.
    #[error("the training graph gave no {name}; this is a defect, please report it")]
    NoNumber {
        /// Name of the output.
        name: &'static str,
    },
    /// A model gave what is no finite number. The fault of its weights.
    #[error(
        "the model's {what} are not finite\n  help: find the first value that is not with `Generator::trace_non_finite`, or `monopass generate --trace-nan`"
    )]
    NotFinite {
        /// What it gave.
        what: String,
    },
    /// A generation was told to stop before its first token.
    #[error("interrupted")]
    Interrupted,
    /// A setting by which tokens are chosen is outside of its range. The caller's fault.
    #[error(transparent)]
    Sampling(#[from] crate::generate::SamplingError),
    /// A saved sequence cannot be continued.
    #[error(transparent)]
    SavedSequence(#[from] crate::generate::StateError),
    /// Every place of a batch is taken. The caller's fault.
    #[error("all {n} slots are taken\n  help: let a sequence leave first, or make more slots")]
    NoSlot {
        /// Slots that there are.
        n: usize,
    },
    /// A sequence with a repetition penalty among slots that count no tokens. The caller's fault.
    #[error("the slots count no tokens, and the sequence has a repetition penalty of {penalty}\n  help: make the slots with `penalty`")]
    NoPenalty {
        /// The penalty.
        penalty: f32,
    },
    /// A model's graph did not give what it should. Our fault.
    #[error("the graph of the model gave no next token; this is a defect, please report it")]
    NoToken,
}
