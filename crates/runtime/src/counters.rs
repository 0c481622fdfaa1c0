//! Counts of what a run, or a device over its life, recorded and created.

use std::ops::AddAssign;

/// Commands recorded and objects created. `gpu` fills it, through which all of them pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Command encoders.
    pub encoders: u64,
    /// Compute passes.
    pub passes: u64,
    /// Calls of `queue.submit` with work.
    pub submits: u64,
    /// Dispatches.
    pub dispatches: u64,
    /// Copies between buffers (inputs in, outputs out) and clears.
    pub copies: u64,
    /// Buffers created.
    pub buffers_created: u64,
    /// Bind groups created.
    pub bind_groups_created: u64,
    /// Compute pipelines created.
    pub pipelines_created: u64,
    /// Shader modules created.
    pub modules_created: u64,
    /// Bind group layouts and pipeline layouts created.
    pub layouts_created: u64,
    /// Query sets created.
    pub query_sets_created: u64,
    /// Bytes of the buffers created.
    pub bytes_allocated: u64,
    /// Bytes copied from the host.
    pub bytes_uploaded: u64,
    /// Bytes copied to the host.
    pub bytes_read_back: u64,
}

impl Counters {
    /// Objects created, of all kinds: zero for every run but the first of an executable with a session.
    #[must_use]
    pub const fn objects_created(&self) -> u64 {
        self.buffers_created
            + self.bind_groups_created
            + self.pipelines_created
            + self.modules_created
            + self.layouts_created
            + self.query_sets_created
    }
}

impl AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        self.encoders += other.encoders;
        self.passes += other.passes;
        self.submits += other.submits;
        self.dispatches += other.dispatches;
        self.copies += other.copies;
        self.buffers_created += other.buffers_created;
        self.bind_groups_created += other.bind_groups_created;
        self.pipelines_created += other.pipelines_created;
        self.modules_created += other.modules_created;
        self.layouts_created += other.layouts_created;
        self.query_sets_created += other.query_sets_created;
        self.bytes_allocated += other.bytes_allocated;
        self.bytes_uploaded += other.bytes_uploaded;
        self.bytes_read_back += other.bytes_read_back;
    }
}

/// Device memory in buffers that this library made, staging included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes now.
    pub live_bytes: u64,
    /// The most there ever were.
    pub peak_bytes: u64,
    /// Buffers now.
    pub n_live: u64,
}
