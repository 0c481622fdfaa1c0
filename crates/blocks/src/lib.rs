//! Mamba-2 and Mamba-3 blocks, their parts, a small language model around them, and the checkpoints they are stored in.
//!
//! In reading order: [`config`] (sizes and options, and what makes them consistent), [`settings`] (the same from text and
//! JSON), [`linear`], [`norm`] and [`conv`] (the parts), [`ssd`] (Mamba-2's recurrence), [`complex`], [`angle`] and [`cssd`]
//! (with complex states), [`s6`] (Mamba-1's), [`state`] (what blocks carry), [`mamba2`] and [`mamba3`] (the blocks: whole
//! sequences and one token), [`block`] (any of them), [`loss`] and [`model`] (the language model), [`names`] (what parameters
//! are called), [`params`] (which there are and which of them train), [`init`] (their values before training), [`train`] (whole training steps),
//! [`checkpoint`] (files), [`cases`] (reference cases as graphs), [`error`] (mistakes).
//!
//! The crate writes graphs with the builder of `monopass-ir` and knows neither kernels nor devices nor files.

pub mod angle;
pub mod block;
pub mod cases;
pub mod checkpoint;
pub mod complex;
pub mod config;
pub mod conv;
pub mod cssd;
pub mod error;
pub mod init;
mod json;
pub mod linear;
pub mod loss;
pub mod mamba2;
pub mod mamba3;
pub mod model;
pub mod names;
pub mod norm;
pub mod params;
pub mod s6;
pub mod score;
pub mod settings;
pub mod shapes;
pub mod ssd;
pub mod state;
pub mod train;

pub use block::{Block, BlockConfig, BlockGraph, BlockSizes};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use config::{LmConfig, Mamba2Config, Mamba2Sizes, Naming, NormKind, Taps};
pub use error::{ConfigError, ConfigErrors};
pub use mamba2::Mamba2;
pub use mamba3::{AAct, Mamba3, Mamba3Config, Mamba3Sizes};
pub use model::{Head, Lm, LmGraph, TokenIo};
pub use params::{ParamInfo, Role, TrainRows, Trainable};
pub use state::{Io, Packing, StateInfo, States};
