//! The tensors of a checkpoint: which file they are in, and their elements as f32.

use super::{Bytes, CheckpointError, Files, INDEX_FILE, Layout, TORCH_FILE, WEIGHTS_FILE, torch};
use crate::json;
use crate::names;
use half::{bf16, f16};
use indexmap::{IndexMap, IndexSet};
use monopass_ir::{Elements, TensorData};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// The opened files of a checkpoint's tensors.
pub(super) struct Source<'a> {
    /// Name and bytes of each file, in the order of their names.
    files: Vec<(String, Bytes<'a>)>,
    /// What files they are.
    pub(super) layout: Layout,
    /// Where the list of shards says each tensor is.
    listed: IndexMap<String, String>,
}

/// A tensor in a file.
pub(crate) struct Stored<'a> {
    /// Name in the file.
    pub(crate) name: String,
    /// The file.
    pub(super) file: String,
    pub(super) shape: Vec<usize>,
    pub(crate) dtype: Dtype,
    pub(super) data: &'a [u8],
}

/// A file's bytes, `None` if it does not exist.
pub(super) fn read<'a>(files: &'a impl Files, name: &str) -> Result<Option<Bytes<'a>>, CheckpointError> {
    files.read(name).map_err(|source| CheckpointError::Read { file: name.to_owned(), source })
}

impl<'a> Source<'a> {
    /// Opens the file of tensors, or all shards.
    pub(super) fn open(files: &'a impl Files) -> Result<Self, CheckpointError> {
        if let Some(index) = read(files, INDEX_FILE)? {
            let listed = parse_index((*index).as_ref())?;
            let mut shards: IndexMap<String, Bytes<'a>> = IndexMap::new();
            for (tensor, shard) in &listed {
                if !shards.contains_key(shard) {
                    let missing = || CheckpointError::MissingShard { shard: shard.clone(), tensor: tensor.clone() };
                    shards.insert(shard.clone(), read(files, shard)?.ok_or_else(missing)?);
                }
            }
            shards.sort_keys();
            return Ok(Self { files: shards.into_iter().collect(), layout: Layout::HfSafetensorsSharded, listed });
        }
        for (file, layout) in [(WEIGHTS_FILE, Layout::HfSafetensors), (TORCH_FILE, Layout::SsmBin)] {
            if let Some(bytes) = read(files, file)? {
                return Ok(Self { files: vec![(file.to_owned(), bytes)], layout, listed: IndexMap::new() });
            }
        }
        Err(CheckpointError::NoWeights)
    }

    /// Size of all files together.
    pub(super) fn n_bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| (**bytes).as_ref().len() as u64).sum()
    }

    /// Every tensor by our name, in the order of the files and of the tensors in them.
    pub(super) fn tensors(&self) -> Result<IndexMap<String, Stored<'_>>, CheckpointError> {
        let mut tensors: IndexMap<String, Stored<'_>> = IndexMap::new();
        for (file, bytes) in &self.files {
            let bytes = (**bytes).as_ref();
            let in_file = if self.layout == Layout::SsmBin { torch::tensors(file, bytes)? } else { in_file(file, bytes)? };
            for stored in in_file {
                if let Some(other) = tensors.insert(names::from_hf(&stored.name), stored) {
                    return Err(CheckpointError::TwoTensors { name: other.name, file: file.clone(), other: other.file });
                }
            }
        }
        for (tensor, shard) in &self.listed {
            let problem = match tensors.get(&names::from_hf(tensor)) {
                None => format!("tensor {tensor} is not in {shard}"),
                Some(stored) if stored.file != *shard => format!("tensor {tensor} is not in {shard} but in {}", stored.file),
                Some(_) => continue,
            };
            return Err(CheckpointError::Index { problem });
        }
        Ok(tensors)
    }

    /// A warning for each tensor of a shard that the list of shards leaves out.
    pub(super) fn unlisted(&self, stored: &IndexMap<String, Stored<'_>>) -> Vec<String> {
        if self.listed.is_empty() {
            return Vec::new();
        }
        let listed: IndexSet<String> = self.listed.keys().map(|name| names::from_hf(name)).collect();
        let unlisted = stored.iter().filter(|(name, _)| !listed.contains(*name));
        unlisted.map(|(_, tensor)| format!("{}: tensor {} is not listed in {INDEX_FILE}", tensor.file, tensor.name)).collect()
    }
}

/// The files that hold the tensors, for a message: the first ones by name, and how many more.
pub(super) fn searched(stored: &IndexMap<String, Stored<'_>>) -> String {
    const SHOWN: usize = 3;
    let files: IndexSet<&str> = stored.values().map(|tensor| tensor.file.as_str()).collect();
    let shown = files.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match files.len() {
        0 => "the files, which hold no tensors".to_owned(),
        n if n > SHOWN => format!("{shown} and {} more files", n - SHOWN),
        _ => shown,
    }
}

/// The tensors of one file, in their order in it.
pub(crate) fn in_file<'a>(file: &str, bytes: &'a [u8]) -> Result<Vec<Stored<'a>>, CheckpointError> {
    let parsed = SafeTensors::deserialize(bytes).map_err(|source| CheckpointError::Safetensors {
        file: file.to_owned(),
        n_bytes: bytes.len(),
        source,
    })?;
    let mut views = parsed.tensors();
    views.sort_by_key(|(_, view)| view.data().as_ptr().addr());
    let stored = |(name, view): (String, TensorView<'a>)| Stored {
        name,
        file: file.to_owned(),
        shape: view.shape().to_vec(),
        dtype: view.dtype(),
        data: view.data(),
    };
    Ok(views.into_iter().map(stored).collect())
}

/// Tensor names and their shards.
fn parse_index(bytes: &[u8]) -> Result<IndexMap<String, String>, CheckpointError> {
    let text = String::from_utf8_lossy(bytes);
    let value = json::parse(&text).map_err(|source| CheckpointError::Json { file: INDEX_FILE.to_owned(), source })?;
    let bad = |problem: &str| CheckpointError::Index { problem: problem.to_owned() };
    let map =
        value.get("weight_map").and_then(serde_json::Value::as_object).ok_or_else(|| bad("weight_map is missing or not an object"))?;
    if let Some(key) = json::twice(&text) {
        return Err(bad(&format!("{key} stands in one object twice")));
    }
    if map.is_empty() {
        return Err(bad("weight_map is empty"));
    }
    let entry = |(tensor, shard): (&String, &serde_json::Value)| {
        let shard = shard.as_str().ok_or_else(|| bad(&format!("the shard of {tensor} is {shard}, not a name")))?;
        // A name with a directory in it could lead the caller out of the checkpoint's directory.
        if shard.is_empty() || shard.contains(|c: char| c.is_control() || c == '/' || c == '\\') || shard == "." || shard == ".." {
            return Err(bad(&format!("the shard of {tensor} is {shard:?}, not the name of a file beside it")));
        }
        Ok((tensor.clone(), shard.to_owned()))
    };
    map.iter().map(entry).collect()
}

impl Stored<'_> {
    /// The elements as f32.
    pub(crate) fn to_f32(&self) -> Result<TensorData, CheckpointError> {
        let values: Vec<f32> = if self.dtype == Dtype::F32 {
            self.elements(f32::from_le_bytes)
        } else if self.dtype == Dtype::F16 {
            self.elements(|bytes| f16::from_le_bytes(bytes).to_f32())
        } else if self.dtype == Dtype::BF16 {
            self.elements(|bytes| bf16::from_le_bytes(bytes).to_f32())
        } else {
            return Err(self.type_error());
        };
        TensorData::f32(self.shape.clone(), values).map_err(|_| self.type_error())
    }

    /// The elements in the type of ours that holds them: floats as f32, I64 as i32 or u32 if all elements are in its range.
    pub(crate) fn to_any(&self) -> Result<TensorData, CheckpointError> {
        let elements = if self.dtype == Dtype::I32 {
            Elements::I32(self.elements(i32::from_le_bytes))
        } else if self.dtype == Dtype::U32 {
            Elements::U32(self.elements(u32::from_le_bytes))
        } else if self.dtype == Dtype::I64 {
            self.words()?
        } else if self.dtype == Dtype::U8 {
            Elements::U32(self.data.iter().map(|&byte| byte.into()).collect())
        } else if self.dtype == Dtype::BOOL {
            Elements::Bool(self.data.iter().map(|&byte| byte != 0).collect())
        } else {
            return self.to_f32();
        };
        TensorData::new(self.shape.clone(), elements).map_err(|_| self.type_error())
    }

    fn words(&self) -> Result<Elements, CheckpointError> {
        let long = self.elements(i64::from_le_bytes);
        if let Ok(words) = long.iter().map(|&word| i32::try_from(word)).collect() {
            return Ok(Elements::I32(words));
        }
        long.iter()
            .map(|&word| u32::try_from(word))
            .collect::<Result<_, _>>()
            .map(Elements::U32)
            .map_err(|_| CheckpointError::Range { name: self.name.clone(), file: self.file.clone() })
    }

    fn elements<const N: usize, T>(&self, decode: impl Fn([u8; N]) -> T) -> Vec<T> {
        self.data.as_chunks::<N>().0.iter().map(|&bytes| decode(bytes)).collect()
    }

    fn type_error(&self) -> CheckpointError {
        CheckpointError::ElementType { name: self.name.clone(), file: self.file.clone(), dtype: format!("{:?}", self.dtype) }
    }
}
