//! Weights: one read-only buffer each, uploaded once through staging of bounded size, shared by the executables that use them.

use crate::buffers::{Buffer, copied_bytes, encode, locked, padded_bytes, round_up};
use crate::check::check_size;
use crate::counters::Counters;
use crate::device::Device;
use crate::error::{RuntimeError, Site};
use crate::gpu::{Gpu, Mapping};
use crate::readback::read_tensor;
use indexmap::IndexMap;
use monopass_ir::{TensorData, TensorType};
use monopass_lower::plan::PackPart;
use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Usage of weights, inputs, states: bound, and copied both ways.
pub(crate) const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// The weights of a model on a device; cheap to clone. Executables share them.
#[derive(Clone, Debug)]
pub struct Weights(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: Device,
    tensors: IndexMap<String, Weight>,
    packs: Mutex<IndexMap<PackKey, Buffer>>,
    counters: Counters,
}

#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) ty: TensorType,
    pub(crate) buffer: Buffer,
}

/// What makes two packs the same: where each part starts, and the size of the whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PackKey {
    parts: Vec<(String, u64)>,
    size_bytes: u64,
}

impl Weights {
    /// Uploads weights. The iterator may make each tensor when it is asked for it, so that not all of them are in host
    /// memory at once. A name given twice keeps the last tensor.
    ///
    /// # Errors
    /// [`RuntimeError::Limit`] if a tensor is larger than a binding of the device; [`RuntimeError::OutOfMemory`];
    /// [`RuntimeError::DeviceLost`].
    pub async fn upload<N: Into<String>, T: Borrow<TensorData>>(
        device: &Device,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> Result<Self, RuntimeError> {
        let mut upload = Upload::new(device);
        for (name, data) in tensors {
            upload.put(name, data.borrow()).await?;
        }
        upload.finish().await
    }

    /// Bytes of the buffers, without the packs that executables made.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.tensors.values().map(|weight| weight.buffer.size_bytes()).sum()
    }

    /// Number of weights.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.tensors.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.tensors.is_empty()
    }

    /// Names and types, in the order of the upload.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.0.tensors.iter().map(|(name, weight)| (name.as_str(), &weight.ty))
    }

    /// What the upload recorded and created.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.counters
    }

    /// Replaces a weight, for runs submitted after this.
    ///
    /// # Errors
    /// [`RuntimeError::MissingWeight`] if it was not uploaded, [`RuntimeError::WrongWeight`] if the type is another.
    pub fn write(&self, name: &str, data: &TensorData) -> Result<(), RuntimeError> {
        let gpu = &self.0.device.0.gpu;
        gpu.healthy()?;
        let weight = self.typed(name, &data.ty())?;
        let (bytes, mut tally) = (encode(data), Counters::default());
        gpu.write(&mut tally, &weight.buffer, 0, &bytes);
        for (key, pack) in locked(&self.0.packs).iter() {
            for (_, offset) in key.parts.iter().filter(|(part, _)| part == name) {
                gpu.write(&mut tally, pack, *offset, &bytes);
            }
        }
        gpu.healthy()
    }

    /// A weight, read back.
    ///
    /// # Errors
    /// [`RuntimeError::MissingWeight`] if it was not uploaded; what a read-back can meet.
    pub async fn read(&self, name: &str) -> Result<TensorData, RuntimeError> {
        let weight = self.0.tensors.get(name).ok_or_else(|| self.missing(name))?;
        read_tensor(&self.0.device.0.gpu, &format!("weight `{name}`"), &weight.ty, &weight.buffer).await
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// A weight of the type that the plan wants.
    pub(crate) fn typed(&self, name: &str, ty: &TensorType) -> Result<&Weight, RuntimeError> {
        let weight = self.0.tensors.get(name).ok_or_else(|| self.missing(name))?;
        if weight.ty == *ty {
            return Ok(weight);
        }
        Err(RuntimeError::WrongWeight { name: name.to_owned(), expected: Box::new(ty.clone()), found: Box::new(weight.ty.clone()) })
    }

    /// A pack, filled by copies on the device; made once for all executables.
    pub(crate) async fn pack(&self, tally: &mut Counters, parts: &[PackPart], size_bytes: u64) -> Result<Buffer, RuntimeError> {
        let key = PackKey { parts: parts.iter().map(|part| (part.name.clone(), part.offset_bytes)).collect(), size_bytes };
        let weights = parts.iter().map(|part| self.typed(&part.name, &part.ty)).collect::<Result<Vec<_>, _>>()?;
        if let Some(pack) = locked(&self.0.packs).get(&key) {
            return Ok(pack.clone());
        }
        let gpu = &self.0.device.0.gpu;
        let (pack, caught) = gpu.scoped(Site::during("pack small weights"), || {
            let pack = gpu.buffer(tally, "pack", physical_bytes(size_bytes), STORAGE);
            let mut recorder = gpu.record("pack");
            for (part, weight) in parts.iter().zip(weights) {
                recorder.copy((&weight.buffer, 0), (&pack, part.offset_bytes), copied_bytes(&part.ty));
            }
            gpu.submit(tally, recorder);
            pack
        });
        caught.check().await?;
        locked(&self.0.packs).insert(key, pack.clone());
        Ok(pack)
    }

    fn missing(&self, name: &str) -> RuntimeError {
        RuntimeError::MissingWeight { name: name.to_owned(), known: alike(name, self.0.tensors.keys()) }
    }
}

/// An upload in progress: weights come one by one, so that the caller need not have all of them in memory, and may stop.
#[derive(Debug)]
pub struct Upload<'d> {
    device: &'d Device,
    stager: Stager<'d>,
    tensors: IndexMap<String, Weight>,
}

impl<'d> Upload<'d> {
    /// An upload of nothing yet.
    #[must_use]
    pub fn new(device: &'d Device) -> Self {
        let stager = Stager { gpu: &device.0.gpu, counters: Counters::default(), current: None, flying: VecDeque::new(), n_full: 0 };
        Self { device, stager, tensors: IndexMap::new() }
    }

    /// Uploads a weight; its bytes are on their way when this returns. A name given twice keeps the last tensor.
    ///
    /// # Errors
    /// Those of [`Weights::upload`].
    pub async fn put(&mut self, name: impl Into<String>, data: &TensorData) -> Result<(), RuntimeError> {
        let (name, ty, gpu) = (name.into(), data.ty(), self.stager.gpu);
        check_size(&format!("weight `{name}`"), padded_bytes(&ty), self.device.target())?;
        gpu.healthy()?;
        let size_bytes = physical_bytes(padded_bytes(&ty));
        let counters = &mut self.stager.counters;
        let site = Site::during(format!("upload weight `{name}`"));
        let (buffer, caught) = gpu.scoped(site, || gpu.buffer(counters, &name, size_bytes, STORAGE));
        caught.check().await?;
        self.stager.put(&buffer, &encode(data)).await?;
        self.tensors.insert(name, Weight { ty, buffer });
        Ok(())
    }

    /// The weights, once all of them are on the device.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`]; [`RuntimeError::DeviceLost`].
    pub async fn finish(mut self) -> Result<Weights, RuntimeError> {
        self.stager.flush().await?;
        self.stager.gpu.drive(None)?;
        self.stager.gpu.healthy()?;
        let (counters, tensors) = (self.stager.counters, self.tensors);
        tracing::debug!(weights = tensors.len(), bytes = counters.bytes_uploaded, submits = counters.submits, "uploaded weights");
        Ok(Weights(Arc::new(Inner { device: self.device.clone(), tensors, packs: Mutex::default(), counters })))
    }
}

/// Bytes that a buffer gets: kernels may read 16 bytes at a time, so the last of them must be there.
pub(crate) fn physical_bytes(size_bytes: u64) -> u64 {
    round_up(size_bytes, 16)
}

/// A few names that end like `name`, or else the first few.
fn alike<'a>(name: &str, known: impl Iterator<Item = &'a String> + Clone) -> Vec<String> {
    const FEW: usize = 6;
    let last = name.rsplit('.').next().unwrap_or(name);
    let same_end: Vec<String> = known.clone().filter(|other| other.ends_with(last)).take(FEW).cloned().collect();
    if same_end.is_empty() { known.take(FEW).cloned().collect() } else { same_end }
}

/// The first staging buffer, enough for a small model.
const FIRST_CHUNK_BYTES: u64 = 256 << 10;
/// Those after it; two at a time, so that the host fills one while the device empties the other.
const CHUNK_BYTES: u64 = 16 << 20;

/// Copies bytes into buffers through staging of bounded size.
#[derive(Debug)]
struct Stager<'g> {
    gpu: &'g Gpu,
    counters: Counters,
    current: Option<Chunk>,
    flying: VecDeque<(Buffer, Mapping, wgpu::SubmissionIndex)>,
    n_full: usize,
}

#[derive(Debug)]
struct Chunk {
    buffer: Buffer,
    used: u64,
    copies: Vec<Copy>,
}

#[derive(Debug)]
struct Copy {
    from: u64,
    to: Buffer,
    offset: u64,
    bytes: u64,
}

impl Stager<'_> {
    async fn put(&mut self, to: &Buffer, mut bytes: &[u8]) -> Result<(), RuntimeError> {
        let mut offset = 0;
        while !bytes.is_empty() {
            let mut chunk = match self.current.take() {
                Some(chunk) => chunk,
                None => self.chunk().await?,
            };
            let room = chunk.buffer.size_bytes() - chunk.used;
            let n = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, later) = bytes.split_at(n);
            let copied = chunk.fill(to, offset, now)?;
            (bytes, offset) = (later, offset + copied);
            let is_full = chunk.used == chunk.buffer.size_bytes();
            self.current = Some(chunk);
            if is_full {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Sends off what is staged.
    async fn flush(&mut self) -> Result<(), RuntimeError> {
        let Some(chunk) = self.current.take().filter(|chunk| !chunk.copies.is_empty()) else { return Ok(()) };
        let (gpu, counters) = (self.gpu, &mut self.counters);
        chunk.buffer.raw().unmap();
        let (submission, caught) = gpu.scoped(Site::during("upload weights"), || {
            let mut recorder = gpu.record("upload");
            for copy in &chunk.copies {
                recorder.copy((&chunk.buffer, copy.from), (&copy.to, copy.offset), copy.bytes);
            }
            recorder.crossing(chunk.used, 0);
            gpu.submit(counters, recorder)
        });
        caught.check().await?;
        self.n_full += 1;
        if chunk.buffer.size_bytes() == CHUNK_BYTES {
            let answer = gpu.map(&chunk.buffer, wgpu::MapMode::Write);
            self.flying.push_back((chunk.buffer, answer, submission));
        }
        Ok(())
    }

    /// A mapped staging buffer: the oldest that the device is done with, or a new one while there are fewer than two.
    async fn chunk(&mut self) -> Result<Chunk, RuntimeError> {
        if self.flying.len() >= 2
            && let Some((buffer, answer, submission)) = self.flying.pop_front()
        {
            self.gpu.drive(Some(submission))?;
            self.gpu.mapped("staging of the upload", answer).await?;
            return Ok(Chunk { buffer, used: 0, copies: Vec::new() });
        }
        let bytes = if self.n_full == 0 { FIRST_CHUNK_BYTES } else { CHUNK_BYTES };
        let (gpu, counters) = (self.gpu, &mut self.counters);
        let (buffer, caught) = gpu.scoped(Site::during("create staging"), || gpu.staging(counters, "upload", bytes));
        caught.check().await?;
        Ok(Chunk { buffer, used: 0, copies: Vec::new() })
    }
}

impl Chunk {
    /// Stages `bytes`, the last word filled up with zeros; gives the bytes that will be copied.
    fn fill(&mut self, to: &Buffer, offset: u64, bytes: &[u8]) -> Result<u64, RuntimeError> {
        let copied = round_up(bytes.len() as u64, 4);
        stage(&self.buffer, self.used, bytes)?;
        self.copies.push(Copy { from: self.used, to: to.clone(), offset, bytes: copied });
        // Mapped ranges start at multiples of 8.
        self.used += round_up(copied, 8);
        Ok(copied)
    }
}

/// Writes `bytes` into a mapped staging buffer, the last word filled up with zeros. `offset` is a multiple of 8.
pub(crate) fn stage(staging: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
    let end = offset + round_up(bytes.len() as u64, 4);
    if end == offset {
        return Ok(());
    }
    let failed = |reason: String| RuntimeError::MapFailed { what: "staging of an upload".to_owned(), reason };
    let mut view = staging.raw().get_mapped_range_mut(offset..end).map_err(|error| failed(error.to_string()))?;
    view.slice(..bytes.len()).copy_from_slice(bytes);
    view.slice(bytes.len()..).fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_end_alike_are_shown_first() {
        let known = ["a.weight", "b.bias", "c.weight"].map(str::to_owned);
        assert_eq!(alike("x.weight", known.iter()), ["a.weight", "c.weight"]);
        assert_eq!(alike("x.scale", known.iter()), ["a.weight", "b.bias", "c.weight"]);
    }
}
