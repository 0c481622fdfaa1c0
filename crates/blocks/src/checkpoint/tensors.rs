//! The tensors of a checkpoint: which file they are in, and where in it.

use super::{Bytes, CheckpointError, Files, GGUF_FILE, INDEX_FILE, Layout, TORCH_FILE, WEIGHTS_FILE, gguf, torch};
use crate::json;
use crate::names;
use indexmap::{IndexMap, IndexSet};
use monopass_ir::storage::scale_name;
use monopass_ir::{DType, Storage, TensorType};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::ops::Range;

/// The opened files of a checkpoint's tensors.
pub(super) struct Source<'a> {
    /// Name and bytes of each file, in the order of their names.
    files: Vec<(String, Bytes<'a>)>,
    /// What files they are.
    pub(super) layout: Layout,
    /// Where the list of shards says each tensor is.
    listed: IndexMap<String, String>,
    /// What stands before the tensors of a GGUF file.
    header: Option<gguf::Header>,
}

/// A tensor in a file, of which nothing but the place is known.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Name in the file.
    pub(crate) name: String,
    /// The file.
    pub(super) file: String,
    /// Which of the source's files it is.
    pub(super) file_idx: usize,
    pub(super) shape: Vec<usize>,
    pub(super) encoding: Encoding,
    /// Where its elements lie in the file.
    pub(super) range: Range<usize>,
}

/// How elements lie in a file.
#[derive(Clone, Debug)]
pub(super) enum Encoding {
    /// One after the other, in little-endian order.
    Plain(Dtype),
    /// Rates of decay in f32, `-exp` of the parameter, as GGUF has them.
    Rates,
    /// Blocks of an f16 scale and 32 i8, as GGUF has them.
    Blocks,
    /// i8, with scales in another tensor, as our own layout has them.
    Scaled(Storage, Box<Stored>),
}

impl Encoding {
    /// What holds the elements without loss; `None` if weights do not come in this type.
    pub(super) fn storage(&self) -> Option<Storage> {
        match self {
            // The type has more variants than weights come in, and grows.
            Self::Plain(dtype) => {
                [(Dtype::F32, Storage::F32), (Dtype::F64, Storage::F32), (Dtype::F16, Storage::F16), (Dtype::BF16, Storage::Bf16)]
                    .into_iter()
                    .find_map(|(known, storage)| (known == *dtype).then_some(storage))
            }
            Self::Rates => Some(Storage::F32),
            Self::Blocks => Some(Storage::Q8_0),
            Self::Scaled(storage, _) => Some(*storage),
        }
    }
}

impl Stored {
    /// Element type in the words of files, such as `BF16`.
    pub(super) fn dtype(&self) -> String {
        match &self.encoding {
            Encoding::Plain(dtype) => format!("{dtype:?}"),
            Encoding::Rates => "F32".to_owned(),
            Encoding::Blocks => "Q8_0".to_owned(),
            Encoding::Scaled(storage, _) => storage.name().to_uppercase(),
        }
    }

    /// Bytes in the file, scales included.
    pub(super) fn n_bytes(&self) -> u64 {
        let own = self.range.len() as u64;
        if let Encoding::Scaled(_, scale) = &self.encoding { own.saturating_add(scale.n_bytes()) } else { own }
    }
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
            return Ok(Self { files: shards.into_iter().collect(), layout: Layout::HfSafetensorsSharded, listed, header: None });
        }
        let one = |file: &str, layout| -> Result<Option<Self>, CheckpointError> {
            let Some(bytes) = read(files, file)? else { return Ok(None) };
            let parse = || gguf::parse((*bytes).as_ref()).map_err(|problem| problem.of(file));
            let header = (layout == Layout::Gguf).then(parse).transpose()?;
            Ok(Some(Self { files: vec![(file.to_owned(), bytes)], layout, listed: IndexMap::new(), header }))
        };
        for (file, layout) in [(WEIGHTS_FILE, Layout::HfSafetensors), (TORCH_FILE, Layout::SsmBin), (GGUF_FILE, Layout::Gguf)] {
            if let Some(source) = one(file, layout)? {
                return Ok(source);
            }
        }
        match named_gguf(files)? {
            Some(file) => one(&file, Layout::Gguf)?.ok_or(CheckpointError::NoWeights),
            None => Err(CheckpointError::NoWeights),
        }
    }

    /// The bytes of a tensor.
    pub(super) fn data(&self, stored: &Stored) -> &[u8] {
        let file = self.files.get(stored.file_idx).map(|(_, bytes)| (**bytes).as_ref());
        file.and_then(|bytes| bytes.get(stored.range.clone())).unwrap_or_default()
    }

    /// Name of a GGUF file, and what stands before its tensors; `None` of other files.
    pub(super) fn gguf(&self) -> Option<(&str, &gguf::Header)> {
        self.files.first().map(|(name, _)| name.as_str()).zip(self.header.as_ref())
    }

    /// Size of all files together.
    pub(super) fn n_bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| (**bytes).as_ref().len() as u64).sum()
    }

    /// Every tensor by our name, in the order of the files and of the tensors in them.
    pub(super) fn tensors(&self) -> Result<IndexMap<String, Stored>, CheckpointError> {
        let mut tensors: IndexMap<String, Stored> = IndexMap::new();
        for (file_idx, (file, bytes)) in self.files.iter().enumerate() {
            let bytes = (**bytes).as_ref();
            let in_file = match &self.header {
                Some(header) => header.tensors(file)?,
                None if self.layout == Layout::SsmBin => torch::tensors(file, bytes)?,
                None => in_file(file, bytes)?,
            };
            for stored in in_file {
                let name = if self.header.is_some() { names::from_gguf(&stored.name) } else { names::from_hf(&stored.name) };
                if let Some(other) = tensors.insert(name, Stored { file_idx, ..stored }) {
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
    pub(super) fn unlisted(&self, stored: &IndexMap<String, Stored>) -> Vec<String> {
        if self.listed.is_empty() {
            return Vec::new();
        }
        let listed: IndexSet<String> = self.listed.keys().map(|name| names::from_hf(name)).collect();
        let unlisted = stored.iter().filter(|(name, _)| !listed.contains(*name));
        unlisted.map(|(_, tensor)| format!("{}: tensor {} is not listed in {INDEX_FILE}", tensor.file, tensor.name)).collect()
    }
}

/// The files that hold the tensors, for a message: the first ones by name, and how many more.
pub(super) fn searched(stored: &IndexMap<String, Stored>) -> String {
    const SHOWN: usize = 3;
    let files: IndexSet<&str> = stored.values().map(|tensor| tensor.file.as_str()).collect();
    let shown = files.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match files.len() {
        0 => "the files, which hold no tensors".to_owned(),
        n if n > SHOWN => format!("{shown} and {} more files", n - SHOWN),
        _ => shown,
    }
}

/// The one file of a directory that is called `*.gguf`; `None` if there is none.
fn named_gguf(files: &impl Files) -> Result<Option<String>, CheckpointError> {
    let names = files.names().map_err(|source| CheckpointError::Read { file: "the directory".to_owned(), source })?;
    let mut found: Vec<String> = names.into_iter().filter(|name| name.ends_with(".gguf")).collect();
    found.sort();
    if found.len() > 1 { Err(CheckpointError::SeveralGguf { n: found.len(), first: found.swap_remove(0) }) } else { Ok(found.pop()) }
}

/// Joins the i8 tensors of our own layout with their scales, whose type and shape say how they are meant.
pub(super) fn join_scales(tensors: &mut IndexMap<String, Stored>) -> Result<(), CheckpointError> {
    let is_i8 = |stored: &Stored| matches!(stored.encoding, Encoding::Plain(dtype) if dtype == Dtype::I8);
    let narrow: Vec<String> = tensors.iter().filter(|(_, stored)| is_i8(stored)).map(|(name, _)| name.clone()).collect();
    for name in narrow {
        let scale = tensors.shift_remove(&scale_name(&name));
        let Some(stored) = tensors.get_mut(&name) else { continue };
        let found = scale.as_ref().map(|scale| (scale.dtype(), scale.shape.clone()));
        let fits = |storage: &Storage| storage.fits(&stored.shape) && storage.scale_type(&stored.shape).map(|ty| in_words(&ty)) == found;
        let storage = [Storage::Int8, Storage::Q8_0].into_iter().find(fits);
        let (Some(storage), Some(scale)) = (storage, scale) else {
            let found = found.map_or_else(|| "missing".to_owned(), |(dtype, shape)| format!("{dtype} {shape:?}"));
            let (name, file, shape) = (stored.name.clone(), stored.file.clone(), stored.shape.clone());
            return Err(CheckpointError::Scales { name, file, shape, found });
        };
        stored.encoding = Encoding::Scaled(storage, Box::new(scale));
    }
    Ok(())
}

/// A type of scales as files name it.
fn in_words(ty: &TensorType) -> (String, Vec<usize>) {
    let dtype = if ty.dtype == DType::F16 { Dtype::F16 } else { Dtype::F32 };
    (format!("{dtype:?}"), ty.shape.clone())
}

/// The tensors of one file, in their order in it.
pub(crate) fn in_file(file: &str, bytes: &[u8]) -> Result<Vec<Stored>, CheckpointError> {
    let parsed = SafeTensors::deserialize(bytes).map_err(|source| CheckpointError::Safetensors {
        file: file.to_owned(),
        n_bytes: bytes.len(),
        source,
    })?;
    let start = bytes.as_ptr().addr();
    let stored = |(name, view): (String, TensorView<'_>)| {
        // What is read lies in `bytes`, so that the difference of addresses is the place.
        let at = view.data().as_ptr().addr().saturating_sub(start);
        Stored {
            name,
            file: file.to_owned(),
            file_idx: 0,
            shape: view.shape().to_vec(),
            encoding: Encoding::Plain(view.dtype()),
            range: at..at.saturating_add(view.data().len()),
        }
    };
    let mut tensors: Vec<Stored> = parsed.tensors().into_iter().map(stored).collect();
    tensors.sort_by_key(|stored| stored.range.start);
    Ok(tensors)
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
