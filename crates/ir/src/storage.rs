//! How weights are stored: in f32, in 16 bits, or quantized to 8, whole or in parts.
//!
//! Graphs are written in f32. [`Graph::with_storage`](crate::Graph::with_storage) gives the same graph for weights that are stored otherwise: each such
//! param becomes one of its storage type with the ops that widen it, which fusion computes where the weight is read. All
//! arithmetic stays in f32.

mod graph;

use crate::data::{Elements, TensorData};
use crate::types::{DType, TensorType};
use half::{bf16, f16};
use std::fmt;
use std::ops::Range;

/// Elements of a block of [`Storage::Q8_0`].
pub const Q8_0_BLOCK: usize = 32;

/// How a weight is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// IEEE 754 binary32.
    #[default]
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 8-bit integers with one f32 scale for each row of a matrix.
    Int8,
    /// 8-bit integers with one f16 scale for each 32 neighbors of a row: the type of this name in GGUF (ggml, `block_q8_0`).
    Q8_0,
}

impl Storage {
    /// Every way to store, from wide to narrow.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Int8];

    /// Its name: `f32`, `f16`, `bf16`, `int8`, `q8_0`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => self.dtype().name(),
            Self::Int8 => "int8",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Element type of what is stored, scales apart.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::Bf16,
            Self::Int8 | Self::Q8_0 => DType::I8,
        }
    }

    /// Type of the scales of a tensor of this shape; `None` if there are none.
    #[must_use]
    pub fn scale_type(self, shape: &[usize]) -> Option<TensorType> {
        let (&last, rows) = shape.split_last()?;
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => None,
            Self::Int8 => Some(TensorType::new(DType::F32, [rows, &[1]].concat())),
            Self::Q8_0 => Some(TensorType::new(DType::F16, [rows, &[last / Q8_0_BLOCK]].concat())),
        }
    }

    /// Whether a tensor of this shape can be stored this way: only matrices are quantized, and blocks are whole.
    #[must_use]
    pub fn fits(self, shape: &[usize]) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => true,
            Self::Int8 => shape.len() == 2,
            Self::Q8_0 => shape.len() == 2 && shape[1].is_multiple_of(Q8_0_BLOCK),
        }
    }

    /// Bytes of a tensor of this shape, scales included; saturates.
    #[must_use]
    pub fn size_bytes(self, shape: &[usize]) -> u64 {
        let scale_bytes = self.scale_type(shape).map_or(0, |ty| ty.size_bytes());
        TensorType::new(self.dtype(), shape).size_bytes().saturating_add(scale_bytes)
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Storage {
    type Err = StorageError;

    fn from_str(text: &str) -> Result<Self, StorageError> {
        Self::ALL.into_iter().find(|storage| storage.name() == text).ok_or_else(|| StorageError::Unknown { name: text.to_owned() })
    }
}

/// A weight that cannot be stored as was asked. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// No storage type has this name.
    #[error("no storage type is called {name:?}\n  help: they are f32, f16, bf16, int8 and q8_0")]
    Unknown {
        /// As given.
        name: String,
    },
    /// A finite number that the type does not have.
    #[error("element {index} is {value}, which {storage} does not have\n  help: store it as bf16 or f32")]
    Range {
        /// Where, in row-major order.
        index: usize,
        /// The number, as text.
        value: String,
        /// The type.
        storage: Storage,
    },
    /// The shape does not allow it.
    #[error(
        "a tensor of shape {shape:?} cannot be stored as {storage}\n  help: only matrices are quantized, q8_0 in whole blocks of 32 along a row"
    )]
    Shape {
        /// The shape.
        shape: Vec<usize>,
        /// The type.
        storage: Storage,
    },
    /// Elements or scales are not those that the storage has.
    #[error("{what} of a tensor stored as {storage} with shape {shape:?} are {found}, not {wanted}")]
    Parts {
        /// `elements` or `scales`.
        what: &'static str,
        /// The shape.
        shape: Vec<usize>,
        /// The type.
        storage: Storage,
        /// What was given.
        found: String,
        /// What it should be.
        wanted: String,
    },
    /// A tensor has no such rows.
    #[error("a tensor of shape {shape:?} has no rows {rows:?}\n  help: ask how it is stored by its own shape")]
    Rows {
        /// The rows of the first axis.
        rows: Range<usize>,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A graph replaces a param that is not stored as it is declared.
    #[error("param {name:?} is updated by the graph and stored as {storage}\n  help: weights that train are stored as f32, whole")]
    Updated {
        /// The param.
        name: String,
        /// How it is stored.
        storage: Storage,
    },
}

/// A weight as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    storage: Storage,
    /// In the storage's element type.
    elements: TensorData,
    scale: Option<TensorData>,
}

impl StoredTensor {
    /// A weight from its parts. `scale` has the type of [`Storage::scale_type`].
    ///
    /// # Errors
    /// [`StorageError::Shape`] and [`StorageError::Parts`].
    pub fn new(storage: Storage, elements: TensorData, scale: Option<TensorData>) -> Result<Self, StorageError> {
        let shape = elements.shape().to_vec();
        if !storage.fits(&shape) {
            return Err(StorageError::Shape { shape, storage });
        }
        let wrong = |what, found: Option<TensorType>, wanted: Option<TensorType>| {
            let text = |ty: Option<TensorType>| ty.map_or_else(|| "absent".to_owned(), |ty| ty.to_string());
            Err(StorageError::Parts { what, shape: shape.clone(), storage, found: text(found), wanted: text(wanted) })
        };
        let wanted = TensorType::new(storage.dtype(), shape.clone());
        if elements.ty() != wanted {
            return wrong("elements", Some(elements.ty()), Some(wanted));
        }
        let (found, wanted) = (scale.as_ref().map(TensorData::ty), storage.scale_type(&shape));
        if found != wanted {
            return wrong("scales", found, wanted);
        }
        Ok(Self { storage, elements, scale })
    }

    /// An f32 tensor, stored as `storage`. 16-bit numbers are the nearest; 8-bit ones are those nearest to `127 x / m`, `m` the
    /// largest magnitude of the row or block.
    ///
    /// # Errors
    /// [`StorageError::Shape`]; [`StorageError::Range`]; [`StorageError::Parts`] if the tensor is not f32.
    pub fn quantize(tensor: TensorData, storage: Storage) -> Result<Self, StorageError> {
        let shape = tensor.shape().to_vec();
        if !storage.fits(&shape) {
            return Err(StorageError::Shape { shape, storage });
        }
        if storage == Storage::F32 {
            return Self::new(storage, tensor, None);
        }
        let Some(values) = tensor.as_f32() else {
            let (found, wanted) = (tensor.ty().to_string(), TensorType::new(DType::F32, shape.clone()).to_string());
            return Err(StorageError::Parts { what: "elements", shape, storage: Storage::F32, found, wanted });
        };
        let (elements, scale) = match storage {
            Storage::F32 | Storage::F16 => (Elements::F16(to_f16(values)?), None),
            Storage::Bf16 => (Elements::Bf16(to_bf16(values)?), None),
            Storage::Int8 => {
                let (elements, scales) = quantized(values, shape[1], Storage::Int8)?;
                (Elements::I8(elements), Some(Elements::F32(scales)))
            }
            Storage::Q8_0 => {
                let (elements, scales) = quantized(values, Q8_0_BLOCK, Storage::Q8_0)?;
                (Elements::I8(elements), Some(Elements::F16(scales.into_iter().map(f16::from_f32).collect())))
            }
        };
        let data = |shape: &[usize], elements| {
            TensorData::new(shape, elements).map_err(|_| StorageError::Shape { shape: shape.to_vec(), storage })
        };
        let scale_shape = storage.scale_type(&shape).map(|ty| ty.shape).unwrap_or_default();
        Self::new(storage, data(&shape, elements)?, scale.map(|scale| data(&scale_shape, scale)).transpose()?)
    }

    /// How it is stored.
    #[must_use]
    pub const fn storage(&self) -> Storage {
        self.storage
    }

    /// Sizes, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.elements.shape()
    }

    /// Elements in the storage's type.
    #[must_use]
    pub const fn elements(&self) -> &TensorData {
        &self.elements
    }

    /// Scales, of the type of [`Storage::scale_type`].
    #[must_use]
    pub const fn scale(&self) -> Option<&TensorData> {
        self.scale.as_ref()
    }

    /// Bytes, scales included.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.storage.size_bytes(self.shape())
    }

    /// The weight that computations see.
    #[must_use]
    pub fn into_f32(self) -> TensorData {
        let Some(scale) = self.scale else {
            if self.storage == Storage::F32 {
                return self.elements;
            }
            return with_f32(&self.elements, self.elements.to_f32_vec());
        };
        let scales = scale.to_f32_vec();
        let run = self.elements.elements().len() / scales.len().max(1);
        let mut values = self.elements.to_f32_vec();
        for (values, scale) in values.chunks_mut(run.max(1)).zip(scales) {
            values.iter_mut().for_each(|value| *value *= scale);
        }
        with_f32(&self.elements, values)
    }

    /// The same weight stored otherwise, by way of f32.
    ///
    /// # Errors
    /// Those of [`Self::quantize`].
    pub fn into_storage(self, storage: Storage) -> Result<Self, StorageError> {
        if self.storage == storage { Ok(self) } else { Self::quantize(self.into_f32(), storage) }
    }

    /// Index of the first element that is not a finite number once widened.
    #[must_use]
    pub fn first_not_finite(&self) -> Option<usize> {
        let is_bad = |data: &TensorData| match data.elements() {
            Elements::F32(v) => v.iter().position(|x| !x.is_finite()),
            Elements::F16(v) => v.iter().position(|x| !x.is_finite()),
            Elements::Bf16(v) => v.iter().position(|x| !x.is_finite()),
            Elements::I32(_) | Elements::U32(_) | Elements::Bool(_) | Elements::I8(_) => None,
        };
        match &self.scale {
            None => is_bad(&self.elements),
            Some(scale) => is_bad(scale).map(|at| at * (self.elements.elements().len() / scale.elements().len().max(1))),
        }
    }

    /// f32 tensors, one after the other along the first axis.
    ///
    /// # Errors
    /// [`StorageError::Shape`] if they are none, or differ in another axis.
    pub fn joined(mut parts: Vec<TensorData>) -> Result<TensorData, StorageError> {
        if parts.len() == 1
            && let Some(only) = parts.pop()
        {
            return Ok(only);
        }
        let inner = parts.first().and_then(|part| part.shape().get(1..)).unwrap_or_default().to_vec();
        let rows: usize = parts.iter().map(|part| part.shape().first().copied().unwrap_or(0)).sum();
        let shape = [&[rows], inner.as_slice()].concat();
        let values: Vec<f32> = parts.into_iter().flat_map(|part| part.to_f32_vec()).collect();
        TensorData::f32(shape.clone(), values).map_err(|_| StorageError::Shape { shape, storage: Storage::F32 })
    }

    /// Rows of the first axis, stored likewise.
    ///
    /// # Errors
    /// [`StorageError::Rows`] if they are not all there.
    pub fn rows(&self, rows: &Range<usize>) -> Result<Self, StorageError> {
        let missing = || StorageError::Rows { rows: rows.clone(), shape: self.shape().to_vec() };
        let of = |data: &TensorData| data.rows(rows).ok_or_else(missing);
        Ok(Self { storage: self.storage, elements: of(&self.elements)?, scale: self.scale.as_ref().map(of).transpose()? })
    }
}

impl From<TensorData> for StoredTensor {
    /// An f32, f16 or bf16 tensor as it is; others are kept as f32.
    fn from(elements: TensorData) -> Self {
        let storage = match elements.elements() {
            Elements::F16(_) => Storage::F16,
            Elements::Bf16(_) => Storage::Bf16,
            Elements::F32(_) => Storage::F32,
            Elements::I32(_) | Elements::U32(_) | Elements::Bool(_) | Elements::I8(_) => {
                let elements = with_f32(&elements, elements.to_f32_vec());
                return Self { storage: Storage::F32, elements, scale: None };
            }
        };
        Self { storage, elements, scale: None }
    }
}

/// A tensor of the shape of `like`, of which `values` has as many elements.
fn with_f32(like: &TensorData, values: Vec<f32>) -> TensorData {
    let ty = TensorType::new(DType::F32, like.shape());
    TensorData::f32(like.shape(), values).unwrap_or_else(|_| TensorData::zeros(&ty))
}

fn to_f16(values: &[f32]) -> Result<Vec<f16>, StorageError> {
    narrow(values, Storage::F16, f16::from_f32, f16::is_finite)
}

fn to_bf16(values: &[f32]) -> Result<Vec<bf16>, StorageError> {
    narrow(values, Storage::Bf16, bf16::from_f32, bf16::is_finite)
}

fn narrow<T: Copy>(
    values: &[f32],
    storage: Storage,
    convert: impl Fn(f32) -> T,
    is_finite: impl Fn(T) -> bool,
) -> Result<Vec<T>, StorageError> {
    let narrow: Vec<T> = values.iter().map(|&x| convert(x)).collect();
    match narrow.iter().zip(values).position(|(&y, x)| x.is_finite() && !is_finite(y)) {
        Some(index) => Err(StorageError::Range { index, value: values[index].to_string(), storage }),
        None => Ok(narrow),
    }
}

/// Each `run` of values as whole numbers from -127 to 127 and their scale. Scales of blocks are rounded to f16 first, so that the
/// numbers are the nearest for the scale that is kept.
fn quantized(values: &[f32], run: usize, storage: Storage) -> Result<(Vec<i8>, Vec<f32>), StorageError> {
    let mut numbers = Vec::with_capacity(values.len());
    let mut scales = Vec::new();
    for (i, part) in values.chunks(run.max(1)).enumerate() {
        let largest = part.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let exact = largest / 127.0;
        let scale = if storage == Storage::Q8_0 { f16::from_f32(exact).to_f32() } else { exact };
        if let Some(at) = part.iter().position(|x| !x.is_finite()) {
            return Err(StorageError::Range { index: i * run + at, value: part[at].to_string(), storage });
        }
        if !scale.is_finite() {
            return Err(StorageError::Range { index: i * run, value: largest.to_string(), storage });
        }
        let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
        #[expect(clippy::cast_possible_truncation, reason = "clamped to the range of i8 before")]
        numbers.extend(part.iter().map(|x| (x * inverse).round().clamp(-127.0, 127.0) as i8));
        scales.push(scale);
    }
    Ok((numbers, scales))
}

/// How a param lies in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParamStorage {
    storage: Storage,
    parts: Vec<Range<usize>>,
}

impl ParamStorage {
    /// In one buffer.
    #[must_use]
    pub const fn whole(storage: Storage) -> Self {
        Self { storage, parts: Vec::new() }
    }

    /// Its storage type.
    #[must_use]
    pub const fn storage(&self) -> Storage {
        self.storage
    }

    /// Rows of the first axis that each of several buffers holds, one run after the other; empty if one holds all.
    #[must_use]
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// Whether the param lies as a graph in f32 declares it.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.storage == Storage::F32 && self.parts.is_empty()
    }

    /// How a tensor must be stored so that no buffer has more than `max_bytes`, unless one row has: in runs of rows, as few as do.
    #[must_use]
    pub fn within(storage: Storage, shape: &[usize], max_bytes: u64) -> Self {
        let bytes = TensorType::new(storage.dtype(), shape).size_bytes();
        let rows = shape.first().copied().unwrap_or(0);
        if bytes <= max_bytes || rows < 2 {
            return Self::whole(storage);
        }
        let row_bytes = bytes.div_ceil(rows as u64);
        let most = usize::try_from(max_bytes / row_bytes).unwrap_or(usize::MAX).clamp(1, rows);
        let run = rows.div_ceil(rows.div_ceil(most));
        // Whole quads of rows, so that the columns of each product come in fours.
        let run = if run > 4 { run / 4 * 4 } else { run };
        let parts = (0..rows.div_ceil(run)).map(|i| i * run..((i + 1) * run).min(rows)).collect();
        Self { storage, parts }
    }

    /// Names of the buffers of the param `name`, each with that of its scales.
    #[must_use]
    pub fn names(&self, name: &str) -> Vec<(String, Option<String>)> {
        let is_quantized = self.storage.dtype() == DType::I8;
        let named = |name: String| {
            let scale = is_quantized.then(|| scale_name(&name));
            (name, scale)
        };
        if self.parts.is_empty() {
            return vec![named(name.to_owned())];
        }
        (0..self.parts.len()).map(|i| named(part_name(name, i))).collect()
    }

    /// Names of the buffers and what each holds, for the param `name` of this tensor.
    ///
    /// # Errors
    /// [`StorageError::Rows`] if it is another tensor than the one that this was made for.
    pub fn buffers(&self, name: &str, tensor: StoredTensor) -> Result<Vec<(String, TensorData)>, StorageError> {
        let named = |name: &str, tensor: StoredTensor| {
            let scale = tensor.scale.map(|scale| (scale_name(name), scale));
            [Some((name.to_owned(), tensor.elements)), scale].into_iter().flatten().collect::<Vec<_>>()
        };
        if self.parts.is_empty() {
            return Ok(named(name, tensor));
        }
        let mut buffers = Vec::new();
        for (i, rows) in self.parts.iter().enumerate() {
            buffers.extend(named(&part_name(name, i), tensor.rows(rows)?));
        }
        Ok(buffers)
    }
}

/// Name of the scales of a quantized param.
#[must_use]
pub fn scale_name(name: &str) -> String {
    format!("{name}.scale")
}

/// Name of a part of a param that several buffers hold.
fn part_name(name: &str, part: usize) -> String {
    format!("{name}.part{part}")
}
