//! The wgpu runtime of Monopass: executes a [`monopass_lower::Plan`] as one command encoder, one compute pass and one submit.
//!
//! In reading order: [`device`] (adapter, limits, features), [`upload`] (weights), [`state`] (what lives between runs),
//! [`executor`] (a plan bound to a device), [`run`] (one execution of it), [`counters`] (what a run did and created),
//! [`profile`] (GPU time), [`error`]; inside, `gpu` (the one place that creates device objects and counts them), `buffers`
//! (sizes and encodings), `build` (what an executable is made of), `pipelines` (cache), `binding` (states of a session bound to a plan), `readback`, `check` (a plan
//! against a device).
//!
//! The crate does not know what a plan computes. It reads no file and no environment variable, and prints nothing.
//!
//! The interface is asynchronous because browsers demand it. On native targets its futures block the calling thread inside
//! `poll` while the device works, since nothing else would drive it; [`blocking`] wraps them there.

#![cfg_attr(target_arch = "wasm32", allow(clippy::arc_with_non_send_sync, reason = "one thread there, and one type for both"))]

mod binding;
mod buffers;
mod build;
mod check;
pub mod counters;
pub mod device;
pub mod error;
pub mod executor;
mod gpu;
mod pipelines;
pub mod profile;
mod readback;
pub mod run;
pub mod state;
pub mod upload;

#[cfg(not(target_arch = "wasm32"))]
pub mod blocking;

pub use counters::{Counters, Memory};
pub use device::{AdapterReport, Checks, Device, DeviceOptions, Power, adapters};
pub use error::RuntimeError;
pub use executor::{BuildOptions, BuildProgress, Executable};
pub use profile::{CmdProfile, CmdTime};
pub use run::{Pending, RunOutput};
pub use state::Session;
pub use upload::{Upload, Weights};
