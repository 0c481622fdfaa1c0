//! Guards the kernel families one by one: each kernel against the interpreter, without the passes that choose kernels.
//!
//! Every plan is verified, every kernel validated for the WebGPU defaults as well as for the device, and then run.

mod choice;
#[path = "../common/mod.rs"]
mod common;
mod elementwise;
mod harness;
mod long_rows;
mod matmul;
mod prefix;
mod rows;
mod scatter;
