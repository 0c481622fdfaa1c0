//! An opened checkpoint: all that can be known without reading elements, and its tensors one at a time.

use super::tensors::{self, Source, Stored};
use super::{
    CONFIG_FILE, Checkpoint, CheckpointError, Files, Layout, LoadOptions, TORCH_FILE, gguf_config, hf_config, own_config, ssm_config,
};
use crate::config::LmConfig;
use crate::json;
use crate::names;
use crate::params::{ParamInfo, Role};
use indexmap::IndexMap;
use monopass_ir::{Storage, StoredTensor};
use std::fmt;

/// A checkpoint that was opened and checked: every parameter is there, in its shape and in an element type that is read.
/// Elements are read and converted when they are asked for, one tensor at a time.
pub struct Opened<'a> {
    source: Source<'a>,
    pub(super) stored: IndexMap<String, Stored>,
    config: LmConfig,
    layout: Layout,
    params: IndexMap<String, ParamEntry>,
    warnings: Vec<String>,
}

/// A parameter of an opened checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamEntry {
    /// Our name, as in graphs.
    pub name: String,
    /// Sizes.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// How [`Opened::tensor`] gives it.
    pub storage: Storage,
    /// Name in the file.
    pub name_in_file: String,
    /// The file.
    pub file: String,
    /// Element type in the file's words, such as `BF16`.
    pub dtype: String,
}

impl fmt::Debug for Opened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("layout", &self.layout).field("config", &self.config).finish_non_exhaustive()
    }
}

/// Opens a checkpoint and checks all of it but its elements.
///
/// # Errors
/// [`CheckpointError`]: files missing or broken, a configuration that is of another model or does not fit together, tensors
/// missing or of another shape or element type; [`CheckpointError::AskAAct`] of a Mamba-3 that does not record it; options that
/// contradict the files.
pub fn open<'a>(files: &'a impl Files, options: &LoadOptions) -> Result<Opened<'a>, CheckpointError> {
    let source = Source::open(files)?;
    let mut stored = source.tensors()?;
    let (config, layout) = read_config(files, &stored, &source, options)?;
    if layout == Layout::Monopass {
        tensors::join_scales(&mut stored)?;
    }
    check_layers(&config, &stored, layout)?;
    let wanted = config.parameters()?;
    let mut warnings = check_shapes(&config, &wanted, &stored, layout)?;
    check_memory(&wanted, &source)?;
    let params = entries(wanted, &stored, options.storage)?;
    warnings.extend(source.unlisted(&stored));
    warnings.extend(unused_options(&config, options));
    warnings.extend(not_blocks(&params, options.storage));
    Ok(Opened { source, stored, config, layout, params, warnings })
}

impl Opened<'_> {
    /// Sizes and options.
    #[must_use]
    pub const fn config(&self) -> &LmConfig {
        &self.config
    }

    /// How the files are laid out.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Oddities that do not matter for the model, such as tensors that it does not have.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Every parameter, in the order of [`LmConfig::parameters`].
    #[must_use]
    pub fn params(&self) -> impl ExactSizeIterator<Item = &ParamEntry> {
        self.params.values()
    }

    /// Bytes of all tensor files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.source.n_bytes()
    }

    /// The parameter of this name, read from the files and stored as its [`ParamEntry::storage`] says.
    ///
    /// # Errors
    /// [`CheckpointError::NoSuchParam`]; [`CheckpointError::Storage`] for an element that the storage type does not have, and
    /// [`CheckpointError::Rate`].
    pub fn tensor(&self, name: &str) -> Result<StoredTensor, CheckpointError> {
        let (entry, stored) = self.find(name)?;
        self.source.tensor(stored)?.into_storage(entry.storage).map_err(|problem| stored.storage_error(problem))
    }

    /// Reads all parameters and keeps none: whether every element is a finite number.
    ///
    /// # Errors
    /// [`CheckpointError::NotFinite`] names the first element that is not, and as for [`Self::tensor`].
    pub fn check_finite(&self) -> Result<(), CheckpointError> {
        for name in self.params.keys() {
            let (_, stored) = self.find(name)?;
            let tensor = self.source.tensor(stored)?;
            if let Some(index) = tensor.first_not_finite() {
                let value = tensor.into_f32().to_f32_vec().get(index).copied().unwrap_or(f32::NAN);
                return Err(CheckpointError::NotFinite { name: name.clone(), index, value });
            }
        }
        Ok(())
    }

    /// All of it in memory, parameters as f32.
    ///
    /// # Errors
    /// As for [`Self::tensor`].
    pub fn load(self) -> Result<Checkpoint, CheckpointError> {
        let tensor = |name: &String| Ok((name.clone(), self.tensor(name)?.into_f32()));
        let params = self.params.keys().map(tensor).collect::<Result<_, CheckpointError>>()?;
        Ok(Checkpoint { config: self.config, params, warnings: self.warnings })
    }

    fn find(&self, name: &str) -> Result<(&ParamEntry, &Stored), CheckpointError> {
        let found = self.params.get(name).zip(self.stored.get(name));
        found.ok_or_else(|| CheckpointError::NoSuchParam { name: name.to_owned() })
    }
}

fn entries(
    wanted: Vec<ParamInfo>,
    stored: &IndexMap<String, Stored>,
    asked: Option<Storage>,
) -> Result<IndexMap<String, ParamEntry>, CheckpointError> {
    let mut entries = IndexMap::with_capacity(wanted.len());
    for ParamInfo { name, shape, role, .. } in wanted {
        let Some(tensor) = stored.get(&name) else { continue };
        let in_file = tensor.encoding.storage().ok_or_else(|| tensor.type_error())?;
        let storage = role.storage(&shape, asked.unwrap_or(in_file));
        let (name_in_file, file, dtype) = (tensor.name.clone(), tensor.file.clone(), tensor.dtype());
        entries.insert(name.clone(), ParamEntry { name, shape, role, storage, name_in_file, file, dtype });
    }
    Ok(entries)
}

/// What is stored otherwise than asked, because its rows are no whole blocks.
fn not_blocks(params: &IndexMap<String, ParamEntry>, asked: Option<Storage>) -> Option<String> {
    let off: Vec<&ParamEntry> = params.values().filter(|param| asked == Some(Storage::Q8_0) && param.storage == Storage::Int8).collect();
    let first = off.first()?;
    let (n, name, shape) = (off.len(), &first.name, &first.shape);
    Some(format!(
        "{n} tensors, such as {name} {shape:?}, have rows that are no whole blocks of 32, and are stored as int8 in place of q8_0"
    ))
}

/// Reads the configuration; whether the head is tied follows from the tensors where it is not stated. `config.json` says whose
/// layout it is, where files of tensors could be either's.
fn read_config(
    files: &impl Files,
    stored: &IndexMap<String, Stored>,
    source: &Source<'_>,
    options: &LoadOptions,
) -> Result<(LmConfig, Layout), CheckpointError> {
    if let Some((file, header)) = source.gguf() {
        return Ok((gguf_config::parse(file, header, stored)?, Layout::Gguf));
    }
    let bytes = tensors::read(files, CONFIG_FILE)?.ok_or(CheckpointError::NoConfig)?;
    let text = String::from_utf8_lossy((*bytes).as_ref());
    let value = json::parse(&text).map_err(|source| CheckpointError::Json { file: CONFIG_FILE.to_owned(), source })?;
    if own_config::is_one(&value) {
        return Ok((own_config::parse(&text, &value)?, Layout::Monopass));
    }
    if ssm_config::is_one(&value) {
        let layout = if source.layout == Layout::HfSafetensors { Layout::SsmSafetensors } else { source.layout };
        return Ok((ssm_config::parse(&text, &value, options)?, layout));
    }
    let config = hf_config::parse(&text, &value, || names::of_model(Role::Head).is_some_and(|head| stored.contains_key(head)))?;
    Ok((config, source.layout))
}

/// What was said of a model that is not of the kind that it is about.
fn unused_options(config: &LmConfig, options: &LoadOptions) -> Option<String> {
    let unused = options.a_act.filter(|_| config.block.as_mamba3().is_none());
    unused.map(|act| format!("a_act = {act} was given, which is for a Mamba-3, and this is none"))
}

/// Elements of all parameters.
pub(super) fn n_elems(params: &[ParamInfo]) -> u64 {
    let size = |param: &ParamInfo| param.shape.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
    params.iter().map(size).fold(0, u64::saturating_add)
}

/// Tensors of `torch.save` may share memory, by which a small file could hold a model of any size.
fn check_memory(wanted: &[ParamInfo], source: &Source<'_>) -> Result<(), CheckpointError> {
    // Halves become twice as large; the rest is room for files of a few small tensors.
    const GROWTH: u64 = 4;
    let (n_bytes, file_bytes) = (n_elems(wanted).saturating_mul(4), source.n_bytes());
    if source.layout == Layout::SsmBin && n_bytes > file_bytes.saturating_mul(GROWTH) {
        let problem = format!("its tensors share memory, and would take {n_bytes} bytes where the file has {file_bytes}");
        return Err(CheckpointError::Torch { file: TORCH_FILE.to_owned(), problem });
    }
    Ok(())
}

/// A number of layers that the tensors cannot make up is refused before anything is listed for each of them.
fn check_layers(config: &LmConfig, stored: &IndexMap<String, Stored>, layout: Layout) -> Result<(), CheckpointError> {
    if config.n_layer <= stored.len() {
        return Ok(());
    }
    let norm = names::of_block(config.block.naming(), Role::PreNorm).unwrap_or_default();
    let norm = |layer| format!("{}{norm}", names::layer_prefix(layer));
    // Each layer has a tensor of its own, so that the search ends after at most one step more than there are tensors.
    match (0..config.n_layer).map(norm).find(|name| !stored.contains_key(name)) {
        Some(name) => Err(missing(layout, &name, vec![config.block.d_model()], stored)),
        None => Ok(()),
    }
}

fn missing(layout: Layout, name: &str, shape: Vec<usize>, stored: &IndexMap<String, Stored>) -> CheckpointError {
    let (name, files, config) = (name_in(layout, name), tensors::searched(stored), layout.config_name());
    CheckpointError::MissingTensor { name, shape, files, config }
}

/// What files of a layout call a parameter of ours.
fn name_in(layout: Layout, name: &str) -> String {
    match layout {
        Layout::SsmBin | Layout::SsmSafetensors | Layout::Monopass => name.to_owned(),
        Layout::HfSafetensors | Layout::HfSafetensorsSharded => names::to_hf(name),
        Layout::Gguf => names::to_gguf(name),
    }
}

/// Every parameter is there in its shape; gives a warning for each tensor that is none of them.
fn check_shapes(
    config: &LmConfig,
    wanted: &[ParamInfo],
    stored: &IndexMap<String, Stored>,
    layout: Layout,
) -> Result<Vec<String>, CheckpointError> {
    for param in wanted {
        let Some(tensor) = stored.get(&param.name) else {
            return Err(missing(layout, &param.name, param.shape.clone(), stored));
        };
        if tensor.shape != param.shape {
            return Err(CheckpointError::WrongShape {
                name: tensor.name.clone(),
                file: tensor.file.clone(),
                found: tensor.shape.clone(),
                wanted: param.shape.clone(),
                config: layout.config_name(),
            });
        }
    }
    let known: IndexMap<&str, ()> = wanted.iter().map(|param| (param.name.as_str(), ())).collect();
    let extra = stored.iter().filter(|(name, _)| !known.contains_key(name.as_str()) && !is_tied_head(config, stored, name));
    Ok(extra.map(|(_, tensor)| format!("{}: tensor {} {:?} is not part of the model", tensor.file, tensor.name, tensor.shape)).collect())
}

/// Whether this is the head of a tied model, stored with the embedding's elements.
fn is_tied_head(config: &LmConfig, stored: &IndexMap<String, Stored>, name: &str) -> bool {
    let get = |role| names::of_model(role).and_then(|name| stored.get(name));
    let (Some(head), Some(embedding)) = (get(Role::Head), get(Role::Embedding)) else { return false };
    let is_same = head.file_idx == embedding.file_idx && head.range == embedding.range;
    config.tie_embeddings && names::of_model(Role::Head) == Some(name) && is_same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_no_way_to_a_large_model() {
        let files: IndexMap<String, Vec<u8>> = [(TORCH_FILE.to_owned(), vec![0; 100])].into();
        let source = Source::open(&files).unwrap_or_else(|error| panic!("{error}"));
        let wanted = |n| vec![ParamInfo { name: "w".into(), shape: vec![10, n], role: Role::Norm, decay_exempt: true }; 2];
        assert!(check_memory(&wanted(5), &source).is_ok());
        let error = check_memory(&wanted(6), &source).unwrap_err().to_string();
        assert!(
            error.starts_with("pytorch_model.bin: its tensors share memory, and would take 480 bytes where the file has 100"),
            "{error}"
        );
        assert!(check_memory(&wanted(usize::MAX), &source).is_err());
    }
}
