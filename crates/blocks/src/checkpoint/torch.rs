//! Tensors of the files that `torch.save` writes: a zip archive of a pickle and the memory of each storage.

use super::tensors::{Encoding, Stored};
use super::{CheckpointError, pickle, zip};
use indexmap::IndexMap;
use safetensors::Dtype;
use std::ops::Range;

const PICKLE: &str = "data.pkl";

/// The tensors of a file, in the order of its dictionary. Tensors of one storage share their data.
pub(super) fn tensors(file: &str, bytes: &[u8]) -> Result<Vec<Stored>, CheckpointError> {
    let bad = |problem: String| CheckpointError::Torch { file: file.to_owned(), problem };
    let entries: IndexMap<String, Range<usize>> =
        zip::entries(bytes).map_err(bad)?.into_iter().map(|entry| (entry.name, entry.range)).collect();
    let root = entries.keys().find_map(|name| name.strip_suffix(PICKLE)).filter(|root| root.is_empty() || root.ends_with('/'));
    let root = root.ok_or_else(|| bad(format!("it holds no {PICKLE}")))?;
    let place = |name: &str| entries.get(&format!("{root}{name}")).cloned();
    let entry = |name: &str| place(name).and_then(|range| bytes.get(range));
    if entry("byteorder").is_some_and(|order| order.starts_with(b"big")) {
        return Err(bad("its numbers are big-endian".to_owned()));
    }
    let pickled = pickle::tensors(entry(PICKLE).unwrap_or_default()).map_err(bad)?;
    if pickled.is_empty() {
        return Err(bad("it holds no tensors".to_owned()));
    }
    let stored = |(name, tensor): (String, pickle::Tensor)| {
        let data = place(&format!("data/{}", tensor.storage.key));
        let found = dtype_of(&tensor.storage.class).ok_or_else(|| format!("tensor {name} has the storage {}", tensor.storage.class));
        let (dtype, size) = found.map_err(bad)?;
        let data = data.ok_or_else(|| bad(format!("tensor {name} has no data")))?;
        let range = view(&data, &tensor, size).map_err(|problem| bad(format!("tensor {name} {:?} {problem}", tensor.shape)))?;
        Ok(Stored { name, file: file.to_owned(), file_idx: 0, shape: tensor.shape, encoding: Encoding::Plain(dtype), range })
    };
    pickled.into_iter().map(stored).collect()
}

/// Element type of a class of storages, and its size in bytes.
fn dtype_of(class: &str) -> Option<(Dtype, usize)> {
    Some(match class {
        "torch.FloatStorage" => (Dtype::F32, 4),
        "torch.HalfStorage" => (Dtype::F16, 2),
        "torch.BFloat16Storage" => (Dtype::BF16, 2),
        "torch.DoubleStorage" => (Dtype::F64, 8),
        "torch.LongStorage" => (Dtype::I64, 8),
        "torch.IntStorage" => (Dtype::I32, 4),
        "torch.ShortStorage" => (Dtype::I16, 2),
        "torch.CharStorage" => (Dtype::I8, 1),
        "torch.ByteStorage" => (Dtype::U8, 1),
        "torch.BoolStorage" => (Dtype::BOOL, 1),
        _ => return None,
    })
}

/// Where a tensor lies in the file whose storage lies at `data`, if its elements lie in order.
fn view(data: &Range<usize>, tensor: &pickle::Tensor, size: usize) -> Result<Range<usize>, &'static str> {
    let mut n_elems = 1usize;
    let mut is_dense = tensor.shape.len() == tensor.strides.len();
    for (&len, &stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
        is_dense &= len == 1 || stride == n_elems;
        n_elems = n_elems.checked_mul(len).ok_or("is too large")?;
    }
    if n_elems == 0 {
        return Ok(0..0);
    }
    if !is_dense {
        return Err("is not contiguous");
    }
    let start = tensor.offset.checked_mul(size).ok_or("is too large")?;
    let end = n_elems.checked_mul(size).and_then(|len| start.checked_add(len)).ok_or("is too large")?;
    if end > data.len() {
        return Err("has more elements than data");
    }
    Ok(data.start + start..data.start + end)
}
