//! Passes over the graph, one file each. Their order stands in [`compile`](mod@crate::compile).

pub mod canonicalize;
pub mod expand;
pub mod fold_norm;
pub mod fuse;
pub mod prepare;
pub mod recompute;
mod rewrite;
pub mod schedule;
