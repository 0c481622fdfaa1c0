//! What can go wrong between a plan and its results.

use monopass_ir::TensorType;

/// A mistake of the caller, of the device, or of ours; each variant says whose.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RuntimeError {
    /// No adapter fits the options. The machine's, or the caller's if the filter is too narrow.
    #[error("no usable graphics adapter: {reason}{}\n  help: {help}", seen_line(.seen))]
    NoAdapter {
        /// Why, in wgpu's words or ours.
        reason: String,
        /// Adapters that were there but did not fit.
        seen: Vec<String>,
        /// What to install or change.
        help: String,
    },
    /// The adapter exists but gives no device. The driver's fault.
    #[error("adapter {adapter} gives no device: {reason}\n  help: update the driver, or choose another adapter")]
    DeviceRefused {
        /// Name of the adapter.
        adapter: String,
        /// wgpu's reason.
        reason: String,
    },
    /// The plan or a tensor needs more than the device has. The caller's fault: it was compiled for another target.
    #[error(
        "{what} needs {needed} of {limit}, and the device has {available}\n  help: compile the graph for this device's target (`Device::target`)"
    )]
    Limit {
        /// What is over the limit.
        what: String,
        /// Name of the limit, with its unit.
        limit: &'static str,
        /// What it needs.
        needed: u64,
        /// What there is.
        available: u64,
    },
    /// The plan reads a weight that was not uploaded. The caller's or the model file's fault.
    #[error("weight `{name}` is missing{}\n  help: upload it with `Weights::upload` under exactly this name", known_line("weights", .known))]
    MissingWeight {
        /// The name that the plan wants.
        name: String,
        /// Names that are there and look alike; a few.
        known: Vec<String>,
    },
    /// A weight has another type than the plan wants. The caller's or the model file's fault.
    #[error(
        "weight `{name}` is {found}, and the plan wants {expected}\n  help: convert it before the upload, or compile the graph for this type"
    )]
    WrongWeight {
        /// Its name.
        name: String,
        /// What the plan wants.
        expected: Box<TensorType>,
        /// What was uploaded.
        found: Box<TensorType>,
    },
    /// An input of a run is missing, unknown, given twice, or of another type. The caller's fault.
    #[error("input `{name}` {problem}\n  help: {help}")]
    WrongInput {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
        /// What the plan takes.
        help: String,
    },
    /// A state of a session is unknown or of another type. The caller's fault.
    #[error("state `{name}` {problem}\n  help: {help}")]
    WrongState {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
        /// How to fix it.
        help: String,
    },
    /// wgpu refused a shader, an object or a command. Our fault, or that of a plan written by hand.
    #[error("{0}")]
    Validation(Box<Refusal>),
    /// The device has no memory left. The caller's: the model is too large for it, or too much else lives there.
    #[error(
        "the device is out of memory while it {during}\n  help: drop sessions and executables that are not used, or use smaller batches or weights"
    )]
    OutOfMemory {
        /// What was going on, as a verb phrase.
        during: String,
    },
    /// The device is gone: removed, reset by the driver, or destroyed.
    #[error("the device is lost: {reason}\n  help: request a new device; states of sessions are gone with the old one")]
    DeviceLost {
        /// The driver's reason.
        reason: String,
    },
    /// A staging buffer could not be mapped. The driver's fault.
    #[error("could not map {what}: {reason}")]
    MapFailed {
        /// Which buffer.
        what: String,
        /// wgpu's reason.
        reason: String,
    },
    /// The plan contradicts itself. Our fault, or that of a plan written by hand.
    #[error("the plan `{plan}` is not executable: {what}\n  help: plans that the compiler made are; check what changed this one")]
    Plan {
        /// Name of the plan.
        plan: String,
        /// What is wrong, with ids as the plan prints them.
        what: String,
    },
    /// Two runs of the executable are in flight already. The caller's fault.
    #[error("two runs of `{plan}` are in flight\n  help: wait for one of them (`Pending::wait`) before the next submit")]
    Busy {
        /// Name of the plan.
        plan: String,
    },
    /// The device does not measure time. The caller's fault, or the adapter's.
    #[error(
        "{adapter} does not measure the time of commands\n  help: request the device with `profile`; `AdapterReport::features` says whether it has `timestamp-query`"
    )]
    NoTimestamps {
        /// Name of the adapter.
        adapter: String,
    },
    /// Objects of two devices were mixed. The caller's fault.
    #[error("the {what} belongs to another device\n  help: make the weights, sessions and executables of a run with one `Device`")]
    OtherDevice {
        /// Which object.
        what: &'static str,
    },
}

/// What wgpu refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was being done, such as `create the pipeline`.
    pub during: String,
    /// Id and label of the kernel at fault, if one can be named.
    pub kernel: Option<String>,
    /// Command at fault and its scope, if one can be named.
    pub cmd: Option<String>,
    /// wgpu's text.
    pub text: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the device refused to {}", self.during)?;
        if let Some(kernel) = &self.kernel {
            write!(f, "\n  kernel {kernel}")?;
        }
        if let Some(cmd) = &self.cmd {
            write!(f, "\n  at {cmd}")?;
        }
        write!(f, "\n{}", self.text.trim_end())
    }
}

/// Where an error scope stands, so that what it catches can be named.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site {
    pub(crate) during: String,
    pub(crate) kernel: Option<String>,
    pub(crate) cmd: Option<String>,
}

impl Site {
    pub(crate) fn during(during: impl Into<String>) -> Self {
        Self { during: during.into(), ..Self::default() }
    }

    /// What a caught wgpu error means here.
    pub(crate) fn error(self, error: &wgpu::Error) -> RuntimeError {
        match error {
            wgpu::Error::OutOfMemory { .. } => RuntimeError::OutOfMemory { during: format!("was asked to {}", self.during) },
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => self.refusal(description.clone()),
        }
    }

    fn refusal(self, text: String) -> RuntimeError {
        let Self { during, kernel, cmd } = self;
        RuntimeError::Validation(Box::new(Refusal { during, kernel, cmd, text }))
    }
}

fn seen_line(seen: &[String]) -> String {
    if seen.is_empty() { String::new() } else { format!("\n  found: {}", seen.join(", ")) }
}

fn known_line(what: &str, known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!("\n  {what} that are there: {}", known.join(", ")) }
}
