//! Device buffers: sizes, how host tensors are laid out in them, and the ledger of memory in use.
//!
//! A tensor is dense and row-major. Booleans take one 32-bit word, f16 and bf16 two bytes; the whole is padded with zeros to
//! a multiple of four bytes and takes at least four, since wgpu copies whole words and binds no empty buffer.

use crate::counters::Memory;
use monopass_ir::{DType, Elements, TensorData, TensorType};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer with its size, given back to the ledger when the last handle goes.
#[derive(Clone, Debug)]
pub(crate) struct Buffer(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    raw: wgpu::Buffer,
    size_bytes: u64,
    ledger: Arc<Ledger>,
}

impl Buffer {
    pub(crate) fn new(raw: wgpu::Buffer, ledger: &Arc<Ledger>) -> Self {
        let size_bytes = raw.size();
        ledger.take(size_bytes);
        Self(Arc::new(Owned { raw, size_bytes, ledger: Arc::clone(ledger) }))
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.0.raw
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.ledger.give(self.size_bytes);
    }
}

/// Bytes and buffers in use.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Memory>);

impl Ledger {
    pub(crate) fn read(&self) -> Memory {
        *locked(&self.0)
    }

    fn take(&self, size_bytes: u64) {
        let mut memory = locked(&self.0);
        memory.n_live += 1;
        memory.live_bytes += size_bytes;
        memory.peak_bytes = memory.peak_bytes.max(memory.live_bytes);
    }

    fn give(&self, size_bytes: u64) {
        let mut memory = locked(&self.0);
        memory.n_live = memory.n_live.saturating_sub(1);
        memory.live_bytes = memory.live_bytes.saturating_sub(size_bytes);
    }
}

/// Locks, also after a panic of another thread: what these locks guard is valid between any two statements.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that a tensor's buffer must have: whole `vec4` words, at least one, so that a kernel may read it four numbers at a time.
pub(crate) fn padded_bytes(ty: &TensorType) -> u64 {
    round_up(ty.size_bytes().max(16), 16)
}

/// Bytes that are copied for a tensor: whole words, none for an empty tensor.
pub(crate) fn copied_bytes(ty: &TensorType) -> u64 {
    round_up(ty.size_bytes(), 4)
}

/// `value` rounded up to a multiple of `multiple`; saturates.
pub(crate) fn round_up(value: u64, multiple: u64) -> u64 {
    value.div_ceil(multiple.max(1)).saturating_mul(multiple.max(1))
}

/// A host tensor as the device sees it, without the padding.
pub(crate) fn encode(data: &TensorData) -> Cow<'_, [u8]> {
    match data.elements() {
        Elements::F32(v) => Cow::Borrowed(bytemuck::cast_slice(v)),
        Elements::F16(v) => Cow::Borrowed(bytemuck::cast_slice(v)),
        Elements::Bf16(v) => Cow::Borrowed(bytemuck::cast_slice(v)),
        Elements::I32(v) => Cow::Borrowed(bytemuck::cast_slice(v)),
        Elements::U32(v) => Cow::Borrowed(bytemuck::cast_slice(v)),
        Elements::I8(v) => Cow::Borrowed(bytemuck::cast_slice(v)),
        Elements::Bool(v) => Cow::Owned(v.iter().flat_map(|&b| u32::from(b).to_le_bytes()).collect()),
    }
}

/// A host tensor from a device's bytes; `None` if there are too few.
pub(crate) fn decode(ty: &TensorType, bytes: &[u8]) -> Option<TensorData> {
    let bytes = bytes.get(..usize::try_from(ty.size_bytes()).ok()?)?;
    let elements = match ty.dtype {
        DType::F32 => Elements::F32(bytemuck::pod_collect_to_vec(bytes)),
        DType::F16 => Elements::F16(bytemuck::pod_collect_to_vec(bytes)),
        DType::Bf16 => Elements::Bf16(bytemuck::pod_collect_to_vec(bytes)),
        DType::I32 => Elements::I32(bytemuck::pod_collect_to_vec(bytes)),
        DType::U32 => Elements::U32(bytemuck::pod_collect_to_vec(bytes)),
        DType::I8 => Elements::I8(bytemuck::pod_collect_to_vec(bytes)),
        DType::Bool => Elements::Bool(bytes.chunks_exact(4).map(|word| word != [0; 4]).collect()),
    };
    TensorData::new(ty.shape.clone(), elements).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_the_way_there_and_back() {
        let zeros = DType::ALL.map(|dtype| TensorData::zeros(&TensorType::new(dtype, [3, 5])));
        let bools = TensorData::new([2, 2], Elements::Bool(vec![true, false, false, true])).unwrap();
        let floats = TensorData::f32([3], [1.5, -0.0, f32::MAX]).unwrap();
        for data in zeros.iter().chain([&bools, &floats]) {
            let bytes = encode(data);
            assert_eq!(bytes.len() as u64, data.ty().size_bytes());
            assert_eq!(decode(&data.ty(), &bytes).as_ref(), Some(data));
        }
        assert_eq!(encode(&bools).len(), 16, "a truth value is a word");
    }

    #[test]
    fn sizes_are_whole_vectors_and_never_zero() {
        let ty = |dtype, n: usize| TensorType::new(dtype, [n]);
        assert_eq!(padded_bytes(&ty(DType::F16, 3)), 16);
        assert_eq!(padded_bytes(&ty(DType::F32, 0)), 16);
        assert_eq!(copied_bytes(&ty(DType::F32, 0)), 0);
        assert_eq!(padded_bytes(&ty(DType::Bool, 5)), 32);
        assert_eq!(decode(&ty(DType::F32, 2), &[0; 7]), None);
    }
}
