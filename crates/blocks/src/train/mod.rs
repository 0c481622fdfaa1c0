//! What training adds to the graphs of a model: the loss of the head over blocks of rows, the optimizer, and whole steps.
//!
//! In reading order: [`loss`] (cross-entropy with its gradients, without logits of all rows at once), [`optimizer`] (a step of
//! `AdamW`, the norm of all gradients, and learning rates over time), [`adapter`] (low-rank adapters of frozen weights), [`graph`](mod@graph)
//! (a whole step).

pub mod adapter;
pub mod graph;
pub mod loss;
pub mod optimizer;

pub use adapter::{Adapter, AdapterError, init_adapters, merge_adapters};
pub use graph::{
    ACCUMULATED_PREFIX, ACCUMULATED_ROWS, EVAL_PREFIX, FIRST_MOMENT_PREFIX, Phase, SECOND_MOMENT_PREFIX, TrainStep, block_rows_for,
    eval_graph, graph,
};
pub use loss::{HeadLoss, HeadSum, head_loss, head_sum};
pub use optimizer::{AdamW, Decay, DecayTo, Schedule, StepScalars, Stepped, clip_scale, global_norm};
