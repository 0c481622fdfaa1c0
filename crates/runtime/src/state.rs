//! Sessions: the states that live between runs, on the device, independent of the executables that update them.
//!
//! A state has one buffer, or two that take turns once an executable updates it that way. Its buffers never change after
//! that, so bind groups that name them stay good; writing, resetting and copying go into the buffer whose turn it is.

use crate::binding::Binding;
use crate::buffers::{Buffer, encode, padded_bytes};
use crate::check::check_size;
use crate::counters::Counters;
use crate::device::Device;
use crate::error::{RuntimeError, Site};
use crate::gpu::Gpu;
use crate::readback::read_tensor;
use crate::upload::{STORAGE, physical_bytes};
use indexmap::IndexMap;
use monopass_ir::{TensorData, TensorType};

/// The states of one sequence, or of one batch of them.
#[derive(Debug)]
pub struct Session {
    pub(crate) device: Device,
    pub(crate) states: IndexMap<String, State>,
    pub(crate) bindings: Vec<Binding>,
}

/// One state.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) ty: TensorType,
    /// One, or two that take turns.
    pub(crate) buffers: Vec<Buffer>,
    /// The one with the content.
    pub(crate) current: usize,
}

impl State {
    pub(crate) fn content(&self) -> Option<&Buffer> {
        self.buffers.get(self.current)
    }
}

impl Session {
    /// A session without states. They come, zeroed, with the first run of an executable that has them, or by
    /// [`Self::write`].
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), states: IndexMap::new(), bindings: Vec::new() }
    }

    /// Names and types of the states.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.states.iter().map(|(name, state)| (name.as_str(), &state.ty))
    }

    /// Names of the states.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.states.keys().map(String::as_str)
    }

    /// Type of a state.
    #[must_use]
    pub fn ty(&self, name: &str) -> Option<&TensorType> {
        self.states.get(name).map(|state| &state.ty)
    }

    /// Bytes of the buffers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.states.values().flat_map(|state| &state.buffers).map(Buffer::size_bytes).sum()
    }

    /// A state, as all runs submitted so far leave it.
    ///
    /// # Errors
    /// [`RuntimeError::WrongState`] if it is unknown; what a read-back can meet.
    pub async fn read(&self, name: &str) -> Result<TensorData, RuntimeError> {
        let state = self.states.get(name).ok_or_else(|| self.unknown(name))?;
        let content = state.content().ok_or_else(|| self.unknown(name))?;
        read_tensor(self.gpu(), &format!("state `{name}`"), &state.ty, content).await
    }

    /// Sets a state, for runs submitted after this; makes it if it is not there.
    ///
    /// # Errors
    /// [`RuntimeError::WrongState`] if it is there with another type; [`RuntimeError::Limit`]; [`RuntimeError::OutOfMemory`].
    pub fn write(&mut self, name: &str, data: &TensorData) -> Result<(), RuntimeError> {
        let mut tally = Counters::default();
        let idx = self.ensure(&mut tally, name, &data.ty(), 1)?;
        let gpu = self.gpu();
        let Some(content) = self.states.get_index(idx).and_then(|(_, state)| state.content()) else { return Err(self.unknown(name)) };
        let site = Site::during(format!("write state `{name}`"));
        gpu.scoped_now(site, || gpu.write(&mut tally, content, 0, &encode(data)))
    }

    /// Makes a state of zeros if it is not there.
    ///
    /// # Errors
    /// [`RuntimeError::WrongState`] if it is there with another type; [`RuntimeError::Limit`]; [`RuntimeError::OutOfMemory`].
    pub fn make(&mut self, name: &str, ty: &TensorType) -> Result<(), RuntimeError> {
        self.ensure(&mut Counters::default(), name, ty, 1).map(drop)
    }

    /// Sets all states to zero, on the device.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceLost`].
    pub fn reset(&mut self) -> Result<(), RuntimeError> {
        let mut tally = Counters::default();
        let gpu = self.gpu();
        gpu.scoped_now(Site::during("reset a session"), || {
            let mut recorder = gpu.record("reset");
            for content in self.states.values().filter_map(State::content) {
                recorder.clear(content);
            }
            gpu.submit(&mut tally, recorder);
        })
    }

    /// Another session with the same states, copied on the device: what one does later does not touch the other.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`]; [`RuntimeError::DeviceLost`].
    pub fn fork(&self) -> Result<Self, RuntimeError> {
        let mut fork = Self::new(&self.device);
        fork.copy_from(self)?;
        Ok(fork)
    }

    /// Takes over the states of another session of the same device, copied there; states that it does not have become zero.
    ///
    /// # Errors
    /// [`RuntimeError::WrongState`] if a state has another type there; [`RuntimeError::OtherDevice`];
    /// [`RuntimeError::OutOfMemory`]. Nothing is copied then.
    pub fn copy_from(&mut self, other: &Self) -> Result<(), RuntimeError> {
        if !self.device.is_of(&other.device.0.gpu) {
            return Err(RuntimeError::OtherDevice { what: "session that is copied" });
        }
        let mut tally = Counters::default();
        for (name, state) in &other.states {
            self.ensure(&mut tally, name, &state.ty, 1)?;
        }
        let gpu = self.gpu();
        gpu.scoped_now(Site::during("copy a session"), || {
            let mut recorder = gpu.record("copy session");
            for (name, state) in &self.states {
                let from = other.states.get(name).and_then(State::content);
                match (from, state.content()) {
                    (Some(from), Some(to)) => recorder.copy((from, 0), (to, 0), to.size_bytes()),
                    (None, Some(to)) => recorder.clear(to),
                    (_, None) => {}
                }
            }
            gpu.submit(&mut tally, recorder);
        })
    }

    /// Takes over the states of row `from` of another session of the same device as those of row `to`, in one submit; states that the
    /// other does not have become zero in that row. The first axis of every state counts the rows.
    ///
    /// # Errors
    /// [`RuntimeError::WrongState`] if a row is not there, is not whole words of 4 bytes, or has another type in the other session;
    /// [`RuntimeError::OtherDevice`]; [`RuntimeError::DeviceLost`]. Nothing is copied then.
    pub fn copy_row(&mut self, to: usize, other: &Self, from: usize) -> Result<(), RuntimeError> {
        if !self.device.is_of(&other.device.0.gpu) {
            return Err(RuntimeError::OtherDevice { what: "session that a row is copied from" });
        }
        if let Some(name) = other.names().find(|name| !self.states.contains_key(*name)) {
            return Err(self.unknown(name));
        }
        for (name, state) in &self.states {
            check_row(name, &state.ty, to)?;
            let Some(source) = other.states.get(name) else { continue };
            check_row(name, &source.ty, from)?;
            if source.ty.dtype != state.ty.dtype || source.ty.shape.get(1..) != state.ty.shape.get(1..) {
                let problem = format!("is {} in one session and {} in the other", state.ty, source.ty);
                return Err(wrong(name, problem, "copy rows between sessions of one model"));
            }
        }
        let mut tally = Counters::default();
        let gpu = self.gpu();
        gpu.scoped_now(Site::during("copy a row of a session"), || {
            let mut recorder = gpu.record("copy row");
            for (name, state) in &self.states {
                let bytes = row_bytes(&state.ty);
                let place = |row: usize| bytes.saturating_mul(row as u64);
                match (other.states.get(name).and_then(State::content), state.content()) {
                    (Some(source), Some(content)) => recorder.copy((source, place(from)), (content, place(to)), bytes),
                    (None, Some(content)) => recorder.clear_part(content, place(to), bytes),
                    (_, None) => {}
                }
            }
            gpu.submit(&mut tally, recorder);
        })
    }

    /// The index of a state that has this type and at least `n_buffers` buffers; what is missing is made, zeroed.
    pub(crate) fn ensure(&mut self, tally: &mut Counters, name: &str, ty: &TensorType, n_buffers: u64) -> Result<usize, RuntimeError> {
        let known = self.states.get(name);
        if let Some(state) = known.filter(|state| state.ty != *ty) {
            let problem = format!("is {} in this session and {ty} here", state.ty);
            let help = "use a session of its own for a graph with other states".to_owned();
            return Err(RuntimeError::WrongState { name: name.to_owned(), problem, help });
        }
        let n_missing = n_buffers.saturating_sub(known.map_or(0, |state| state.buffers.len() as u64));
        let size_bytes = padded_bytes(ty);
        check_size(&format!("state `{name}`"), size_bytes, self.device.target())?;
        let gpu = self.gpu();
        let create = |_| gpu.buffer(tally, name, physical_bytes(size_bytes), STORAGE);
        let new = gpu.scoped_now(Site::during(format!("create state `{name}`")), || (0..n_missing).map(create).collect::<Vec<_>>())?;
        let entry = self.states.entry(name.to_owned());
        let idx = entry.index();
        entry.or_insert_with(|| State { ty: ty.clone(), buffers: Vec::new(), current: 0 }).buffers.extend(new);
        Ok(idx)
    }

    fn gpu(&self) -> &Gpu {
        &self.device.0.gpu
    }

    fn unknown(&self, name: &str) -> RuntimeError {
        let names: Vec<&str> = self.names().take(8).collect();
        let problem = "is not in this session".to_owned();
        let help = if names.is_empty() {
            "run an executable with it, or write it, first".to_owned()
        } else {
            format!("the states are {}", names.join(", "))
        };
        RuntimeError::WrongState { name: name.to_owned(), problem, help }
    }
}

/// Bytes of one row of a state; 0 without rows.
fn row_bytes(ty: &TensorType) -> u64 {
    let n_rows = ty.shape.first().map_or(0, |&n_rows| n_rows as u64);
    ty.size_bytes().checked_div(n_rows).unwrap_or(0)
}

/// WebGPU copies whole words from and to multiples of words.
fn check_row(name: &str, ty: &TensorType, row: usize) -> Result<(), RuntimeError> {
    if ty.shape.first().is_none_or(|&n_rows| row >= n_rows) {
        return Err(wrong(name, format!("is {ty}, which has no row {row}"), "rows are counted from 0 along the first axis"));
    }
    if !row_bytes(ty).is_multiple_of(4) {
        return Err(wrong(
            name,
            format!("is {ty}, whose rows are not whole words of 4 bytes"),
            "read the state, and write the whole of it",
        ));
    }
    Ok(())
}

fn wrong(name: &str, problem: String, help: &str) -> RuntimeError {
    RuntimeError::WrongState { name: name.to_owned(), problem, help: help.to_owned() }
}
