//! The Mamba-2 block, its parts, a small language model around it, and the checkpoints it is stored in.
//!
//! In reading order: [`config`] (sizes and options, and what makes them consistent), [`settings`] (the same from text and
//! JSON), [`linear`], [`norm`], [`conv`] and [`ssd`] (the parts), [`mamba2`] (the block: whole sequences and one token),
//! [`loss`] and [`model`] (the language model), [`names`] (what parameters are called), [`params`] (which there are and
//! which of them train), [`init`] (their values before training), [`checkpoint`] (Hugging Face files), [`cases`]
//! (reference cases as graphs), [`error`] (mistakes).
//!
//! The crate writes graphs with the builder of `monopass-ir` and knows neither kernels nor devices nor files.

pub mod cases;
pub mod checkpoint;
pub mod config;
pub mod conv;
pub mod error;
pub mod init;
mod json;
pub mod linear;
pub mod loss;
pub mod mamba2;
pub mod model;
pub mod names;
pub mod norm;
pub mod params;
pub mod settings;
pub mod ssd;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use config::{LmConfig, Mamba2Config, Mamba2Sizes, Naming, NormKind, Taps};
pub use error::{ConfigError, ConfigErrors};
pub use mamba2::{BlockGraph, Io, Mamba2, States};
pub use model::{Head, Lm, LmGraph};
pub use params::{ParamInfo, Role, TrainRows, Trainable};
