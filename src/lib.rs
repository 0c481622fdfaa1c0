//! Monopass: a compiler and runtime for state-space sequence models on wgpu. A whole pass is one submit.
//!
//! The [`engine`] is the way in: it compiles a graph for the graphics card, or interprets it where there is none.
//!
//! ```
//! use monopass::engine::{Engine, EngineOptions, ExecutorChoice, blocking};
//! use monopass::ir::{DType, GraphBuilder, TensorData};
//! use monopass::lower::CompileOptions;
//!
//! let g = GraphBuilder::new("proj_act");
//! let x = g.input("x", DType::F32, [4, 3]);
//! let w = g.param("w", DType::F32, [5, 3]);
//! g.output("y", x.matmul(w, false, true).silu());
//! let graph = g.finish()?;
//!
//! let engine = blocking::open(ExecutorChoice::Auto, &EngineOptions::default())?;
//! let weights = [("w".to_owned(), TensorData::f32([5, 3], vec![0.5; 15])?)];
//! let params = blocking::upload(&engine, monopass::Tensors::from(weights))?;
//! let program = blocking::load(&engine, &graph, &params, &CompileOptions::default())?;
//! let x = TensorData::f32([4, 3], vec![1.0; 12])?;
//! let run = blocking::run(&program, &mut engine.session(), &[("x", &x)])?;
//! assert_eq!(run.outputs["y"].shape(), [4, 5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In reading order: [`engine`] (one executor over graphics card and interpreter), [`generate`] (tokens from a model), [`text`] (tokens as text), [`train`] (a model in training), [`hooks`] (looking inside a run),
//! [`snapshot`] (stable texts of a graph for tests), `fs` (checkpoints in directories, on native targets), [`error`].
//! The layers below are [`ir`] (graphs), [`lower`] (plans), [`runtime`] (devices) and [`blocks`] (Mamba-2, Mamba-3).
//!
//! Nothing here prints or reads the environment, and `fs` alone reads files.

pub use monopass_blocks as blocks;
pub use monopass_ir as ir;
pub use monopass_lower as lower;
pub use monopass_runtime as runtime;

pub mod engine;
pub mod error;
#[cfg(not(target_arch = "wasm32"))]
pub mod fs;
pub mod generate;
pub mod hooks;
pub mod snapshot;
pub mod text;
#[cfg(all(feature = "tokenizers", not(target_arch = "wasm32")))]
pub mod tokenizer;
pub mod train;

pub use blocks::{BlockConfig, LmConfig, Mamba2Config, Mamba3Config};
pub use engine::{Engine, EngineOptions, ExecutorChoice, Params, Pending, Program, Session};
pub use error::Error;
pub use generate::Generator;
pub use ir::eval::Tensors;
pub use ir::{DType, Graph, GraphBuilder, Tensor, TensorData, TensorType};
pub use lower::{CompileOptions, Pass, Plan, Target};
pub use runtime::{Counters, RunOutput};
