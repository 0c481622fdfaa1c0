//! Kernel families: from clusters of ops to WGSL. One family a file.

pub mod elementwise;
pub mod prefix;
pub mod rows;
