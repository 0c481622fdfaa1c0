//! Training: a model on an executor, one submit a step, and what stands around it.
//!
//! In reading order: [`Trainer`] (a model in training), [`data`] (text in batches), [`ngram`] (what a model has to be better than), [`hash`], and on
//! native targets `store` (a run that survives interruptions) and `curve` (its log and picture).

#[cfg(not(target_arch = "wasm32"))]
pub mod curve;
pub mod data;
pub mod hash;
pub mod ngram;
#[cfg(not(target_arch = "wasm32"))]
mod pixels;
#[cfg(not(target_arch = "wasm32"))]
pub mod store;
mod trainer;

pub use trainer::{Batch, Evaluation, PendingStep, StepOutcome, Trainer, TrainerOptions};
