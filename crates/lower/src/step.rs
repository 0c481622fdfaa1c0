//! Steps: kernels and what they read and write, before storage is assigned. Made by [`crate::kernels`], consumed by
//! [`crate::memory`], which turns them into a [`crate::plan::Plan`].

use crate::plan::Kernel;
use monopass_ir::ValueId;

/// A value that steps hand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StepValue {
    /// A value of the graph.
    Graph(ValueId),
    /// An intermediate of a kernel family; index in [`Steps::temps`].
    Temp(usize),
}

/// An intermediate of a kernel family, such as the carries of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Temp {
    /// The graph value whose computation it belongs to.
    pub of: ValueId,
    /// What it is, such as `carry`.
    pub name: &'static str,
    /// Bytes.
    pub size_bytes: u64,
}

/// One storage argument of a step, in the order of the kernel's bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepArg {
    /// Values it reads there: none for a plain result, one otherwise, several for a pack of params
    /// (then `offsets_bytes` holds where each starts).
    pub reads: Vec<StepValue>,
    /// Byte offsets of the members of a pack; empty if it is none.
    pub offsets_bytes: Vec<u64>,
    /// The value it writes there. With a read as well it is an in-place update of a state.
    pub writes: Option<StepValue>,
}

/// One dispatch before storage is assigned.
#[derive(Clone, Debug)]
pub struct Step {
    /// Kernel.
    pub kernel: Kernel,
    /// Storage arguments.
    pub args: Vec<StepArg>,
    /// Sizes for the kernel's uniform binding.
    pub dims: Vec<u32>,
    /// Workgroups, as one number; the kernel computes it back from x and y.
    pub n_workgroups: u64,
    /// Most iterations of one loop nest in one invocation.
    pub loop_trips: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// Graph values computed, for scope and label.
    pub computes: Vec<ValueId>,
}

/// All steps of a graph, in order.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// Dispatches.
    pub steps: Vec<Step>,
    /// Intermediates.
    pub temps: Vec<Temp>,
    /// What was not fused, and why.
    pub not_fused: Vec<String>,
}
