//! WGSL text for values at indices.
//!
//! In reading order: [`num`] (sizes, baked or read at run time), [`index`] (index vectors and how movement ops map them),
//! [`kernel`] (bindings, sizes and text of one kernel), [`value`] (the expression of a value at an index).

mod conv;
pub mod index;
pub mod kernel;
pub mod num;
mod sums;
pub mod value;

pub use index::{Index, Part};
pub use kernel::{Finish, KernelBuilder, LowerCtx, Width};
pub use num::Num;
