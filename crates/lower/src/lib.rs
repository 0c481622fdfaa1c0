//! Lowers a graph to a plan: passes, scheduling, memory and WGSL.
//!
//! In reading order: [`target`] (limits as data), [`dynamic`] (which sizes vary between runs), [`emit`] (WGSL of a value
//! at an index), [`kernels`] (kernel families), [`step`] (kernels before storage is assigned), [`plan`] (what comes out),
//! [`error`].
//!
//! Around these: [`validate`] (every kernel, before a driver sees it), [`memory`] (from steps to a plan), [`plan_verify`]
//! (proves a plan sound from the plan alone), [`plan_text`], [`plan_json`] and [`plan_html`] (a plan for readers),
//! [`dump`] (where texts go).

pub mod compile;
pub mod dump;
pub mod dynamic;
pub mod emit;
pub mod error;
pub mod kernels;
pub mod memory;
pub mod passes;
pub mod plan;
pub mod plan_html;
pub mod plan_json;
pub mod plan_text;
pub mod plan_verify;
pub mod step;
pub mod target;
pub mod validate;

pub use compile::{CompileOptions, Compiler, Pass, compile, optimize};
pub use error::LowerError;
pub use plan::Plan;
pub use target::Target;
