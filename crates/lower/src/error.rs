//! What can go wrong between a graph and its plan.

use monopass_ir::error::{BuildErrors, OpSite, VerifyErrors};

/// A graph that cannot be lowered to a target, or a mistake of ours that a check caught.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LowerError {
    /// The graph breaks an invariant (`pass` names the pass after which it did; the caller's fault if it is `input`).
    #[error("after {pass}: {errors}")]
    Verify {
        /// Pass after which the check ran, `input` before the first.
        pass: &'static str,
        /// Broken invariants.
        errors: VerifyErrors,
    },
    /// The graph needs more than the target has. The caller's fault: the message names the limit and what would fit.
    #[error("{what}{site}\n  help: {help}")]
    Limit {
        /// What is over which limit.
        what: String,
        /// Where.
        site: Box<OpSite>,
        /// What would fit.
        help: String,
    },
    /// Values of the forward pass do not fit, even if the backward pass computes them again. The caller's fault.
    #[error(
        "slots of {budget} bytes are too few: {kept_bytes} bytes are needed if everything is kept for the backward pass, {recomputed_bytes} \
         if all {n_segments} segments are computed again\n  help: allow more bytes, or take a smaller batch or shorter sequences"
    )]
    Budget {
        /// Bytes allowed.
        budget: u64,
        /// Bytes with everything kept.
        kept_bytes: u64,
        /// Bytes with everything computed again.
        recomputed_bytes: u64,
        /// Segments that can be computed again.
        n_segments: usize,
    },
    /// What an op stands for is beyond what a graph holds, such as a value of too many elements. The caller's fault: its sizes.
    #[error("{op} cannot be written out: {errors}\n  help: split the batch or the length into several runs")]
    Expand {
        /// Mnemonic of the op.
        op: &'static str,
        /// What does not fit.
        errors: BuildErrors,
    },
    /// A generated kernel does not parse or validate. Our fault; carries the drawn report.
    #[error("kernel {label} is not valid WGSL; this is a defect of the compiler, please report it with the graph\n{report}")]
    Wgsl {
        /// Kernel family and choices.
        label: String,
        /// naga's report.
        report: String,
    },
    /// A plan does not pass the plan verifier. Our fault.
    #[error("the plan is not sound; this is a defect of the compiler, please report it with the graph\n{0}")]
    Plan(String),
}
