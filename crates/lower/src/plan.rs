//! The plan: buffers, slots, kernels and commands, as plain data. The runtime executes it without asking what it computes.
//!
//! A command is one dispatch. Each of its arguments names the storage it binds, how, and **which value** it reads from or
//! writes to that storage; from these tags alone [`crate::plan_verify`] proves that the plan is sound.

use monopass_ir::TensorType;
use std::fmt;

/// An external buffer of the plan, printed `b3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);
/// A pooled buffer of the plan, printed `s3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);
/// A generated entry point, printed `k3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u32);
/// A value that commands hand to each other: a graph value or a kernel family's intermediate; index in [`Plan::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlanValueId(pub u32);

/// A value as the plan knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanValue {
    /// `%12` for a graph value, `%12.carry` for an intermediate of the kernel that computes `%12`.
    pub label: String,
    /// Bytes it takes, padded to a multiple of 16.
    pub size_bytes: u64,
}

/// What an external buffer is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// Written by the caller before each run.
    Input {
        /// Name of the graph input.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// A weight, written once, read-only.
    Param {
        /// Name of the graph param.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// Several small weights in one read-only buffer.
    Pack {
        /// The weights with their byte offsets, ascending.
        parts: Vec<PackPart>,
    },
    /// Lives in a session between runs.
    State {
        /// Name of the graph state.
        name: String,
        /// Its type.
        ty: TensorType,
        /// Updated in place, or in two buffers that take turns.
        storage: StateStorage,
    },
    /// Read by the caller after a run.
    Output {
        /// Name of the graph output.
        name: String,
        /// Its type.
        ty: TensorType,
    },
}

/// One weight of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackPart {
    /// The value that it holds.
    pub value: PlanValueId,
    /// Name of the graph param.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Where it starts.
    pub offset_bytes: u64,
}

/// How a state is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateStorage {
    /// One buffer; no command of the plan updates it.
    Constant,
    /// One buffer that a command reads and writes, each element by one invocation.
    InPlace,
    /// Two buffers: a run reads the one and writes the other, and the next run the other way round.
    Double,
}

/// An external buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// What for.
    pub kind: BufferKind,
    /// Bytes, padded to multiples of 16; at least 16.
    pub size_bytes: u64,
    /// The value that the buffer holds before the run: an input, weight or state's old content. None for outputs.
    pub holds: Option<PlanValueId>,
    /// The value that the run must leave in it: an output or a state's new content.
    pub receives: Option<PlanValueId>,
}

/// A pooled buffer, reused by values whose live ranges do not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Bytes, padded to multiples of 16; at least 16.
    pub size_bytes: u64,
    /// Who lives in it, and in which commands (first write to last read).
    pub residents: Vec<Resident>,
}

/// A value in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The value.
    pub value: PlanValueId,
    /// Command that writes it.
    pub first_cmd: usize,
    /// Last command that reads it (or writes it, if none reads).
    pub last_cmd: usize,
}

/// Storage that an argument binds, always as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// An external buffer; of a double-buffered state, the one with the old content.
    Buffer(BufferId),
    /// Of a double-buffered state, the one that takes the new content.
    NewState(BufferId),
    /// A pooled buffer.
    Slot(SlotId),
}

/// How a kernel declares a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
}

/// One storage binding of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingSpec {
    /// Name in the WGSL text.
    pub name: String,
    /// Access.
    pub access: Access,
    /// The kernel may find its old content in the buffer that it writes: each element is read by the invocation that
    /// writes it, before it writes.
    pub in_place: bool,
}

/// A generated entry point `main`. Kernels of equal text are one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Kernel family and its choices, such as `matmul {tile = [64, 64]}`.
    pub label: String,
    /// The module. Storage bindings are `@group(0) @binding(i)` in the order of `bindings`; a uniform struct of
    /// `n_dims` u32 follows as the last binding if `n_dims > 0`.
    pub wgsl: String,
    /// Invocations a workgroup in x, y, z.
    pub workgroup_size: [u32; 3],
    /// Bytes of `var<workgroup>`.
    pub workgroup_bytes: u64,
    /// Storage bindings.
    pub bindings: Vec<BindingSpec>,
    /// Sizes that the kernel reads from its uniform binding.
    pub n_dims: usize,
    /// Every index is proved in range, so the driver's bounds checks may be left out.
    pub bounds_proved: bool,
}

/// One storage argument of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// What is bound.
    pub resource: Resource,
    /// How.
    pub access: Access,
    /// The values it expects there (several only for a pack).
    pub reads: Vec<PlanValueId>,
    /// The value it leaves there.
    pub writes: Option<PlanValueId>,
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cmd {
    /// Kernel.
    pub kernel: KernelId,
    /// Workgroups in x, y, z, each at most the target's limit; the kernel folds x and y into one number and ignores
    /// what is over.
    pub workgroups: [u32; 3],
    /// Storage arguments, one for each binding of the kernel.
    pub args: Vec<Arg>,
    /// Content of the kernel's uniform binding.
    pub dims: Vec<u32>,
    /// Most iterations of one loop nest in one invocation.
    pub loop_trips: u64,
    /// Floating-point operations, a multiply-add counted as two.
    pub flops: u64,
    /// Bytes that must cross device memory: each input read once, each output written once.
    pub bytes_moved: u64,
    /// Block paths the command came from, such as `mixer/in_proj`.
    pub scope: String,
    /// Ops the command computes, such as `%4 matmul, %5 silu`.
    pub computes: String,
}

/// A whole pass as data: one encoder, one compute pass, one submit.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// Name of the graph.
    pub name: String,
    /// Name of the target profile.
    pub target: String,
    /// Values that commands hand to each other.
    pub values: Vec<PlanValue>,
    /// External buffers.
    pub buffers: Vec<Buffer>,
    /// Pooled buffers.
    pub slots: Vec<Slot>,
    /// Kernels, in order of first use.
    pub kernels: Vec<Kernel>,
    /// Dispatches, in order.
    pub cmds: Vec<Cmd>,
    /// What was not fused, and why, in graph order.
    pub not_fused: Vec<String>,
    /// The most bytes of slot values that live at once: no assignment of slots can do with less.
    pub live_bytes: u64,
    /// What the backward pass computes again, if a budget was to be kept.
    pub recompute: Option<Recompute>,
}

/// Segments of a forward pass that the backward pass computes again, so that their values need not be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recompute {
    /// Those segments, first parts of scopes.
    pub segments: Vec<String>,
    /// How many there are.
    pub n_segments: usize,
    /// Bytes of slots with everything kept.
    pub kept_bytes: u64,
    /// Bytes of slots with all segments computed again.
    pub recomputed_bytes: u64,
}

/// Sums over a plan, known before anything runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of weights, packs included.
    pub params_bytes: u64,
    /// Bytes of inputs and outputs.
    pub io_bytes: u64,
    /// Bytes of states, double-buffered ones counted twice.
    pub states_bytes: u64,
    /// Bytes of slots.
    pub slots_bytes: u64,
    /// Floating-point operations of a run.
    pub flops: u64,
    /// Bytes that a run moves through device memory.
    pub bytes_moved: u64,
}

impl Totals {
    /// Bytes of device memory that the plan takes in all.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.params_bytes.saturating_add(self.io_bytes).saturating_add(self.states_bytes).saturating_add(self.slots_bytes)
    }
}

impl Plan {
    /// Sums over buffers, slots and commands.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for buffer in &self.buffers {
            let (sum, n_buffers) = match &buffer.kind {
                BufferKind::Input { .. } | BufferKind::Output { .. } => (&mut totals.io_bytes, 1),
                BufferKind::Param { .. } | BufferKind::Pack { .. } => (&mut totals.params_bytes, 1),
                BufferKind::State { storage, .. } => (&mut totals.states_bytes, storage.n_buffers()),
            };
            *sum = sum.saturating_add(buffer.size_bytes.saturating_mul(n_buffers));
        }
        totals.slots_bytes = self.slots.iter().fold(0, |sum, slot| slot.size_bytes.saturating_add(sum));
        totals.flops = self.cmds.iter().fold(0, |sum, cmd| cmd.flops.saturating_add(sum));
        totals.bytes_moved = self.cmds.iter().fold(0, |sum, cmd| cmd.bytes_moved.saturating_add(sum));
        totals
    }
}

impl PlanValueId {
    /// Index in [`Plan::values`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Buffer {
    /// Name of the input, weight, state or output; none for a pack.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.kind {
            BufferKind::Input { name, .. }
            | BufferKind::Param { name, .. }
            | BufferKind::State { name, .. }
            | BufferKind::Output { name, .. } => Some(name),
            BufferKind::Pack { .. } => None,
        }
    }

    /// Type of the input, weight, state or output; none for a pack.
    #[must_use]
    pub const fn ty(&self) -> Option<&TensorType> {
        match &self.kind {
            BufferKind::Input { ty, .. } | BufferKind::Param { ty, .. } | BufferKind::State { ty, .. } | BufferKind::Output { ty, .. } => {
                Some(ty)
            }
            BufferKind::Pack { .. } => None,
        }
    }
}

impl BufferKind {
    /// The word for it: `input`, `param`, `pack`, `state` or `output`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Input { .. } => "input",
            Self::Param { .. } => "param",
            Self::Pack { .. } => "pack",
            Self::State { .. } => "state",
            Self::Output { .. } => "output",
        }
    }
}

impl StateStorage {
    /// The word for it: `constant`, `in_place` or `double`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::InPlace => "in_place",
            Self::Double => "double",
        }
    }

    /// Buffers that the state takes.
    #[must_use]
    pub const fn n_buffers(self) -> u64 {
        match self {
            Self::Constant | Self::InPlace => 1,
            Self::Double => 2,
        }
    }
}

impl Cmd {
    /// Invocations in all, of a kernel of this workgroup size.
    #[must_use]
    pub fn invocations(&self, kernel: &Kernel) -> u64 {
        self.workgroups.iter().chain(&kernel.workgroup_size).fold(1, |product, &n| u64::from(n).saturating_mul(product))
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k{}", self.0)
    }
}

impl fmt::Display for PlanValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// `b3`, `s3`, or `b3.new` for the buffer with a state's new content.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(id) => write!(f, "{id}"),
            Self::NewState(id) => write!(f, "{id}.new"),
            Self::Slot(id) => write!(f, "{id}"),
        }
    }
}
