//! What training adds to the graphs of a model: the loss of the head over blocks of rows, and the optimizer.
//!
//! In reading order: [`loss`] (cross-entropy with its gradients, without logits of all rows at once), [`optimizer`] (a step of
//! `AdamW`, the norm of all gradients, and learning rates over time).

pub mod loss;
pub mod optimizer;

pub use loss::{HeadLoss, HeadSum, head_loss, head_sum};
pub use optimizer::{AdamW, Decay, DecayTo, Schedule, StepScalars, Stepped, clip_scale, global_norm};
