//! Elements of a tensor in a file as tensors of ours.

use super::CheckpointError;
use super::tensors::{Encoding, Source, Stored};
use half::{bf16, f16};
use monopass_ir::storage::{Q8_0_BLOCK, StorageError};
use monopass_ir::{Elements, Storage, StoredTensor, TensorData};
use safetensors::Dtype;

/// Bytes of a block of `Q8_0`: a scale and the integers.
const BLOCK_BYTES: usize = 2 + Q8_0_BLOCK;

impl Source<'_> {
    /// The tensor as the file has it, or as f32 where only that holds it.
    pub(super) fn tensor(&self, stored: &Stored) -> Result<StoredTensor, CheckpointError> {
        let data = self.data(stored);
        match &stored.encoding {
            Encoding::Plain(dtype) => plain(stored, *dtype, data),
            Encoding::Rates => Ok(stored.logarithms(&stored.f32_of(Dtype::F32, data)?)?.into()),
            Encoding::Blocks => blocks(stored, data),
            Encoding::Scaled(storage, scale) => {
                let of = |bytes| decode(bytes, f32::from_le_bytes);
                let scales = match storage {
                    Storage::Q8_0 => Elements::F16(decode(self.data(scale), f16::from_le_bytes)),
                    Storage::F32 | Storage::F16 | Storage::Bf16 | Storage::Int8 => Elements::F32(of(self.data(scale))),
                };
                let scales = TensorData::new(scale.shape.clone(), scales).map_err(|_| scale.type_error())?;
                quantized(stored, *storage, &stored.shape, decode(data, i8::from_le_bytes), scales)
            }
        }
    }
}

impl Stored {
    /// The elements as f32, of a tensor of a safetensors file whose bytes these are.
    pub(crate) fn to_f32(&self, bytes: &[u8]) -> Result<TensorData, CheckpointError> {
        let Encoding::Plain(dtype) = self.encoding else { return Err(self.type_error()) };
        self.f32_of(dtype, self.data_in(bytes))
    }

    /// The elements in the type of ours that holds them: floats as f32, I64 as i32 or u32 if all elements are in its range.
    pub(crate) fn to_any(&self, bytes: &[u8]) -> Result<TensorData, CheckpointError> {
        let Encoding::Plain(dtype) = self.encoding else { return Err(self.type_error()) };
        let data = self.data_in(bytes);
        let elements = if dtype == Dtype::I32 {
            Elements::I32(decode(data, i32::from_le_bytes))
        } else if dtype == Dtype::U32 {
            Elements::U32(decode(data, u32::from_le_bytes))
        } else if dtype == Dtype::I64 {
            self.words(data)?
        } else if dtype == Dtype::U8 {
            Elements::U32(data.iter().map(|&byte| byte.into()).collect())
        } else if dtype == Dtype::BOOL {
            Elements::Bool(data.iter().map(|&byte| byte != 0).collect())
        } else {
            return self.f32_of(dtype, data);
        };
        TensorData::new(self.shape.clone(), elements).map_err(|_| self.type_error())
    }

    /// This tensor cannot be what its element type says.
    pub(super) fn type_error(&self) -> CheckpointError {
        CheckpointError::ElementType { name: self.name.clone(), file: self.file.clone(), dtype: self.dtype() }
    }

    /// The error of storing this tensor otherwise.
    pub(super) fn storage_error(&self, problem: StorageError) -> CheckpointError {
        CheckpointError::Storage { name: self.name.clone(), file: self.file.clone(), problem: Box::new(problem) }
    }

    fn data_in<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        bytes.get(self.range.clone()).unwrap_or_default()
    }

    fn f32_of(&self, dtype: Dtype, data: &[u8]) -> Result<TensorData, CheckpointError> {
        let values = if dtype == Dtype::F32 {
            decode(data, f32::from_le_bytes)
        } else if dtype == Dtype::F16 {
            decode(data, |bytes| f16::from_le_bytes(bytes).to_f32())
        } else if dtype == Dtype::BF16 {
            decode(data, |bytes| bf16::from_le_bytes(bytes).to_f32())
        } else if dtype == Dtype::F64 {
            self.narrowed(data)?
        } else {
            return Err(self.type_error());
        };
        TensorData::f32(self.shape.clone(), values).map_err(|_| self.type_error())
    }

    fn narrowed(&self, data: &[u8]) -> Result<Vec<f32>, CheckpointError> {
        let doubles = decode(data, f64::from_le_bytes);
        #[expect(clippy::cast_possible_truncation, reason = "rounded to f32 on purpose, and checked below")]
        let values: Vec<f32> = doubles.iter().map(|&double| double as f32).collect();
        match values.iter().zip(&doubles).position(|(value, double)| double.is_finite() && !value.is_finite()) {
            Some(index) => Err(self.storage_error(StorageError::Range { index, value: doubles[index].to_string(), storage: Storage::F32 })),
            None => Ok(values),
        }
    }

    fn words(&self, data: &[u8]) -> Result<Elements, CheckpointError> {
        let long = decode(data, i64::from_le_bytes);
        if let Ok(words) = long.iter().map(|&word| i32::try_from(word)).collect() {
            return Ok(Elements::I32(words));
        }
        long.iter()
            .map(|&word| u32::try_from(word))
            .collect::<Result<_, _>>()
            .map(Elements::U32)
            .map_err(|_| CheckpointError::Range { name: self.name.clone(), file: self.file.clone() })
    }

    /// `A_log` of decay rates: the logarithm of their magnitude.
    fn logarithms(&self, rates: &TensorData) -> Result<TensorData, CheckpointError> {
        let rates = rates.to_f32_vec();
        if let Some(index) = rates.iter().position(|rate| rate.is_nan() || *rate >= 0.0) {
            return Err(CheckpointError::Rate { name: self.name.clone(), file: self.file.clone(), index, value: rates[index] });
        }
        // In f64, so that the exponential of the result is the rate that the file has.
        #[expect(clippy::cast_possible_truncation, reason = "rounded to f32 on purpose")]
        let logarithms: Vec<f32> = rates.iter().map(|&rate| f64::from(-rate).ln() as f32).collect();
        TensorData::f32(self.shape.clone(), logarithms).map_err(|_| self.type_error())
    }
}

/// Floats of a file, 16-bit ones as they are.
fn plain(stored: &Stored, dtype: Dtype, data: &[u8]) -> Result<StoredTensor, CheckpointError> {
    let elements = if dtype == Dtype::F16 {
        Elements::F16(decode(data, f16::from_le_bytes))
    } else if dtype == Dtype::BF16 {
        Elements::Bf16(decode(data, bf16::from_le_bytes))
    } else {
        return Ok(stored.f32_of(dtype, data)?.into());
    };
    Ok(TensorData::new(stored.shape.clone(), elements).map_err(|_| stored.type_error())?.into())
}

/// Blocks of a scale and integers, taken apart; of a tensor that is no matrix as f32.
fn blocks(stored: &Stored, data: &[u8]) -> Result<StoredTensor, CheckpointError> {
    let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
    let scales: Vec<f16> = blocks.iter().map(|block| f16::from_le_bytes([block[0], block[1]])).collect();
    let integers: Vec<i8> = blocks.iter().flat_map(|block| &block[2..]).map(|&byte| byte.cast_signed()).collect();
    let columns = stored.shape.last().copied().unwrap_or(0).max(1);
    let shape = [integers.len() / columns, columns];
    let scales = TensorData::new([shape[0], columns / Q8_0_BLOCK], Elements::F16(scales)).map_err(|_| stored.type_error())?;
    let matrix = quantized(stored, Storage::Q8_0, &shape, integers, scales)?;
    if stored.shape == shape {
        return Ok(matrix);
    }
    Ok(TensorData::f32(stored.shape.clone(), matrix.into_f32().to_f32_vec()).map_err(|_| stored.type_error())?.into())
}

fn quantized(
    stored: &Stored,
    storage: Storage,
    shape: &[usize],
    integers: Vec<i8>,
    scales: TensorData,
) -> Result<StoredTensor, CheckpointError> {
    let elements = TensorData::new(shape, Elements::I8(integers)).map_err(|_| stored.type_error())?;
    StoredTensor::new(storage, elements, Some(scales)).map_err(|problem| stored.storage_error(problem))
}

fn decode<const N: usize, T>(data: &[u8], decode: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|&bytes| decode(bytes)).collect()
}
