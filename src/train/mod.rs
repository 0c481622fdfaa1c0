//! Training: a model on an executor, one submit a step.

mod trainer;

pub use trainer::{Batch, Evaluation, PendingStep, StepOutcome, Trainer, TrainerOptions};
