//! The tensor-op graph of Monopass.
//!
//! In reading order: [`types`] (element types and shapes), [`op`] (the op table), [`ops`] (what each op means),
//! [`graph`] (nodes and values), [`builder`] (how programs make graphs), [`verify`] (what holds of every graph),
//! [`text`] (the `.ir` form), [`tap`] (values inside a graph as outputs, by [`pattern`]), [`compact`](mod@compact) (drop and renumber), [`dot`](mod@dot) (pictures), [`sample`] (random
//! graphs for tests), [`storage`] (weights in 16 and 8 bits), [`eval`] (the interpreter), [`autodiff`] (reverse mode), [`gradcheck`] (gradients judged by differences), [`error`] (mistakes).
//!
//! The crate knows no device and no file.

pub mod autodiff;
pub mod builder;
pub mod compact;
pub mod data;
pub mod dot;
pub mod error;
pub mod eval;
pub mod gradcheck;
pub mod graph;
pub mod op;
pub mod ops;
pub mod pattern;
pub mod sample;
pub mod storage;
pub mod tap;
pub mod text;
pub mod types;
pub mod verify;

pub use builder::{GraphBuilder, Tensor};
pub use data::{Elements, TensorData};
pub use graph::{Graph, NodeId, ValueId};
pub use op::Op;
pub use storage::{Storage, StoredTensor};
pub use types::{DType, TensorType};
