//! Mistakes of a plan. All are defects of the compiler, except limits, which the compiler should have reported earlier.

use crate::plan::{Access, BufferId, KernelId, PlanValueId, Resource, SlotId};
use std::fmt;

/// Place of a storage argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgSite {
    /// Index of the command.
    pub cmd: usize,
    /// Index of the argument.
    pub arg: usize,
}

impl fmt::Display for ArgSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cmd {} argument {}", self.cmd, self.arg)
    }
}

/// A mistake of a plan. `v9` is the value of index 9 in the plan's table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum PlanError {
    // -- tables -------------------------------------------------------------------------------------------------
    /// A place names a value that the plan does not have.
    #[error("{place} names {value}, which the plan does not have")]
    NoSuchValue { place: String, value: PlanValueId },
    /// An argument names a storage that the plan does not have.
    #[error("{site} binds {resource}, which the plan does not have")]
    NoSuchStorage { site: ArgSite, resource: Resource },
    /// A command names a kernel that the plan does not have.
    #[error("cmd {cmd} runs {kernel}, which the plan does not have")]
    NoSuchKernel { cmd: usize, kernel: KernelId },
    /// A value's label is not `%N` or `%N.name`.
    #[error("{value} is labelled `{label}`; a label is %N or %N.name")]
    BadLabel { value: PlanValueId, label: String },
    /// Two values have one label.
    #[error("two values are labelled `{label}`")]
    SameLabel { label: String },
    /// A value is not padded.
    #[error("{value} takes {size_bytes} bytes, which is no multiple of 16")]
    UnpaddedValue { value: PlanValueId, size_bytes: u64 },
    /// A buffer or slot is not padded, or empty.
    #[error("{resource} has {size_bytes} bytes; storage has a multiple of 16, and at least 16")]
    UnpaddedStorage { resource: Resource, size_bytes: u64 },
    /// Two buffers of one kind have one name.
    #[error("two {kind} buffers are named `{name}`")]
    SameName { kind: &'static str, name: String },
    /// An input, weight or state holds no value.
    #[error("{buffer} is an input, weight or state, but holds no value")]
    HoldsNothing { buffer: BufferId },
    /// An output or a pack is said to hold one value.
    #[error("{buffer} is an output or a pack, but is said to hold a value before the run")]
    HoldsWrongly { buffer: BufferId },
    /// An output, or a state that is updated, receives no value.
    #[error("{buffer} is an output or an updated state, but receives no value")]
    ReceivesNothing { buffer: BufferId },
    /// Something that keeps its content is said to receive a value.
    #[error("{buffer} keeps its content, but is said to receive a value")]
    ReceivesWrongly { buffer: BufferId },
    /// Two buffers hold one value before the run.
    #[error("two buffers hold {value} before the run")]
    HeldTwice { value: PlanValueId },
    /// Two buffers are to receive one value.
    #[error("two buffers are to receive {value}")]
    ReceivedTwice { value: PlanValueId },
    /// A buffer's value has another size than its type.
    #[error("{buffer} has a type of {ty_bytes} bytes, but its {value} takes {value_bytes}")]
    TypeSize { buffer: BufferId, value: PlanValueId, ty_bytes: u64, value_bytes: u64 },
    /// A value is larger than the buffer that it lives in.
    #[error("{buffer} has {has_bytes} bytes, but {value} takes {needs_bytes}")]
    BufferTooSmall { buffer: BufferId, value: PlanValueId, needs_bytes: u64, has_bytes: u64 },
    /// A value is larger than the slot that it lives in.
    #[error("{slot} has {has_bytes} bytes, but {value} takes {needs_bytes}")]
    SlotTooSmall { slot: SlotId, value: PlanValueId, needs_bytes: u64, has_bytes: u64 },
    /// A pack has no parts.
    #[error("{buffer} is a pack without parts")]
    PackEmpty { buffer: BufferId },
    /// A part does not start at a word.
    #[error("part `{part}` of {buffer} starts at byte {offset_bytes}, which is no multiple of 4")]
    PackUnaligned { buffer: BufferId, part: String, offset_bytes: u64 },
    /// Two parts overlap, or stand out of order.
    #[error("part `{part}` of {buffer} starts before the one before it ends")]
    PackOverlap { buffer: BufferId, part: String },
    /// A part ends behind its pack.
    #[error("part `{part}` of {buffer} ends at byte {end_bytes}, behind the end of the buffer")]
    PackTooSmall { buffer: BufferId, part: String, end_bytes: u64 },
    /// A weight's name stands for different values in different places.
    #[error("weight `{name}` is {first} in one buffer and {second} in another")]
    WeightDiffers { name: String, first: PlanValueId, second: PlanValueId },

    // -- kernels and limits -------------------------------------------------------------------------------------
    /// Two kernels have one text and one interface.
    #[error("{first} and {second} are the same kernel")]
    SameKernel { first: KernelId, second: KernelId },
    /// No command runs a kernel.
    #[error("no command runs {kernel}")]
    UnusedKernel { kernel: KernelId },
    /// Kernels are not in order of first use.
    #[error("{kernel} does not stand in the order of first use")]
    KernelOrder { kernel: KernelId },
    /// Two bindings of a kernel have one name.
    #[error("two bindings of {kernel} are named `{name}`")]
    SameBinding { kernel: KernelId, name: String },
    /// A read-only binding is declared in place.
    #[error("binding {binding} of {kernel} is read-only, but declared in place")]
    InPlaceReadOnly { kernel: KernelId, binding: usize },
    /// A workgroup has no invocations.
    #[error("{kernel} has a workgroup of {size:?}")]
    EmptyWorkgroup { kernel: KernelId, size: [u32; 3] },
    /// A workgroup is too long in one axis.
    #[error("{kernel} has {size} invocations in axis {axis}; the target allows {limit}")]
    WorkgroupAxis { kernel: KernelId, axis: usize, size: u32, limit: u32 },
    /// A workgroup has too many invocations.
    #[error("{kernel} has {invocations} invocations a workgroup; the target allows {limit}")]
    Invocations { kernel: KernelId, invocations: u64, limit: u32 },
    /// A kernel takes too much workgroup memory.
    #[error("{kernel} takes {bytes} bytes of workgroup memory; the target has {limit}")]
    WorkgroupMemory { kernel: KernelId, bytes: u64, limit: u64 },
    /// A kernel binds too many storage buffers.
    #[error("{kernel} binds {buffers} storage buffers; the target allows {limit}")]
    StorageBuffers { kernel: KernelId, buffers: usize, limit: u32 },
    /// A dispatch has no workgroups.
    #[error("cmd {cmd} has no workgroups")]
    EmptyDispatch { cmd: usize },
    /// A dispatch has too many workgroups in one axis.
    #[error("cmd {cmd} has {workgroups} workgroups in axis {axis}; the target allows {limit}")]
    Workgroups { cmd: usize, axis: usize, workgroups: u32, limit: u32 },
    /// A loop nest runs longer than the driver lets it.
    #[error("cmd {cmd} has {trips} loop trips in one invocation; the target ends loops after {limit}")]
    LoopTrips { cmd: usize, trips: u64, limit: u64 },
    /// A buffer is larger than a binding may be.
    #[error("{resource} has {bytes} bytes; a binding has at most {limit} on the target")]
    BindingSize { resource: Resource, bytes: u64, limit: u64 },
    /// A buffer is larger than a buffer may be.
    #[error("{resource} has {bytes} bytes; a buffer has at most {limit} on the target")]
    BufferSize { resource: Resource, bytes: u64, limit: u64 },

    // -- commands -----------------------------------------------------------------------------------------------
    /// A command has more or fewer arguments than its kernel has bindings.
    #[error("cmd {cmd} has {args} arguments; its kernel has {bindings} bindings")]
    ArgCount { cmd: usize, args: usize, bindings: usize },
    /// A command has more or fewer sizes than its kernel reads.
    #[error("cmd {cmd} has {dims} sizes; its kernel reads {n_dims}")]
    DimsCount { cmd: usize, dims: usize, n_dims: usize },
    /// An argument is bound otherwise than the kernel declares.
    #[error("{site} is bound as {bound:?}; the kernel declares {declared:?}")]
    WrongAccess { site: ArgSite, bound: Access, declared: Access },
    /// An argument neither reads nor writes.
    #[error("{site} neither reads nor writes a value")]
    IdleArg { site: ArgSite },
    /// An argument writes through a read-only binding.
    #[error("{site} writes through a read-only binding")]
    WritesThroughRead { site: ArgSite },
    /// An argument is bound for writing but writes nothing.
    #[error("{site} is bound for writing, but writes no value")]
    WritableUnwritten { site: ArgSite },
    /// An argument expects several values in something that is no pack.
    #[error("{site} expects several values in {resource}, which is no pack")]
    SeveralReads { site: ArgSite, resource: Resource },
    /// A dispatch binds a buffer for reading and for writing.
    #[error("cmd {cmd} binds {resource} both for reading and for writing")]
    ReadAndWrite { cmd: usize, resource: Resource },
    /// A dispatch binds a buffer twice for writing.
    #[error("cmd {cmd} binds {resource} twice for writing")]
    WriteTwice { cmd: usize, resource: Resource },
    /// A value replaces another in place, which the kernel does not allow.
    #[error("{site} replaces a value in place; the kernel does not declare the binding in place")]
    InPlaceUndeclared { site: ArgSite },
    /// A value replaces one of another size in place.
    #[error("{site} replaces {old_bytes} bytes in place by {new_bytes}")]
    InPlaceSize { site: ArgSite, old_bytes: u64, new_bytes: u64 },
    /// An argument binds the second buffer of something that has none.
    #[error("{site} binds the second buffer of {buffer}, which is no double-buffered state")]
    NotDouble { site: ArgSite, buffer: BufferId },
    /// An input is written.
    #[error("{site} writes input {buffer}")]
    WritesInput { site: ArgSite, buffer: BufferId },
    /// A weight or a pack of weights is written.
    #[error("{site} writes weight {buffer}")]
    WritesWeight { site: ArgSite, buffer: BufferId },
    /// A state that the plan keeps is written.
    #[error("{site} writes {buffer}, a state without an update")]
    WritesConstantState { site: ArgSite, buffer: BufferId },
    /// The old content of a double-buffered state is written.
    #[error("{site} writes the old content of {buffer}, a double-buffered state")]
    WritesOldState { site: ArgSite, buffer: BufferId },
    /// The bytes moved are not those of the arguments.
    #[error("cmd {cmd} says it moves {says} bytes; its arguments take {is}")]
    BytesMoved { cmd: usize, says: u64, is: u64 },

    // -- contents -----------------------------------------------------------------------------------------------
    /// A value is written by two arguments.
    #[error("{site} writes {value}, which was written before")]
    WrittenTwice { site: ArgSite, value: PlanValueId },
    /// A value that a buffer holds from the start is written.
    #[error("{site} writes {value}, which {buffer} holds before the run")]
    WritesHeld { site: ArgSite, value: PlanValueId, buffer: BufferId },
    /// A value is read that nobody writes.
    #[error("{site} reads {value}, which nothing writes")]
    NeverWritten { site: ArgSite, value: PlanValueId },
    /// A value is read before it is written.
    #[error("{site} reads {value}, which cmd {written_by} writes")]
    ReadBeforeWrite { site: ArgSite, value: PlanValueId, written_by: usize },
    /// A value is read after something else took its storage.
    #[error("{site} reads {value}, which cmd {overwritten_by} overwrote")]
    Overwritten { site: ArgSite, value: PlanValueId, overwritten_by: usize },
    /// A value is read where it never was.
    #[error("{site} reads {value} from {resource}, where it is not")]
    WrongStorage { site: ArgSite, value: PlanValueId, resource: Resource },
    /// An output or new state is not in its buffer at the end, because nothing writes it there.
    #[error("{buffer} does not receive {value}")]
    NotReceived { buffer: BufferId, value: PlanValueId },
    /// An output or new state is not in its buffer at the end, because something overwrote it.
    #[error("{buffer} loses {value}, which cmd {overwritten_by} overwrites")]
    ResultLost { buffer: BufferId, value: PlanValueId, overwritten_by: usize },

    // -- residents ----------------------------------------------------------------------------------------------
    /// No value lives in a slot.
    #[error("no value lives in {slot}")]
    UnusedSlot { slot: SlotId },
    /// The table of a slot lacks a value that commands keep there.
    #[error("{value} lives in {slot}, but its table lacks it")]
    ResidentMissing { slot: SlotId, value: PlanValueId },
    /// The table of a slot has a value that no command keeps there.
    #[error("no command keeps {value} in {slot}, but its table has it")]
    ResidentExtra { slot: SlotId, value: PlanValueId },
    /// The table of a slot gives a value another life than the commands.
    #[error("{value} lives in {slot} in commands {is:?}; its table says {says:?}")]
    ResidentRange { slot: SlotId, value: PlanValueId, says: (usize, usize), is: (usize, usize) },
    /// Two values that live together share a slot.
    #[error("{first} and {second} live in {slot} at the same time")]
    SharedWhileLive { slot: SlotId, first: PlanValueId, second: PlanValueId },
    /// The plan's lower bound is not the one that follows from its commands.
    #[error("the plan says that at most {says} bytes live at once; it is {is}")]
    LiveBytes { says: u64, is: u64 },
}
