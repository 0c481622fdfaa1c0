//! Files of tensors, written: element types, and the bytes of a safetensors file. Equal input gives equal bytes.

use super::CheckpointError;
use half::{bf16, f16};
use indexmap::IndexMap;
use monopass_ir::{Elements, TensorData};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::fmt;
use std::str::FromStr;

/// Element type that weights are stored in; values are rounded to the nearest, ties to even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StorageType {
    /// Four bytes an element, as the weights are.
    #[default]
    F32,
    /// IEEE half: two bytes, 11 significant bits, at most 65504.
    F16,
    /// Upper half of an f32: two bytes, 8 significant bits, the range of f32.
    Bf16,
}

impl StorageType {
    /// Every type.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// The word for it in a `config.json` of Hugging Face.
    pub(super) const fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// The elements in this type; the number that is out of its range if there is one.
    pub(super) fn round(self, values: &[f32]) -> Result<Elements, f32> {
        Ok(match self {
            Self::F32 => Elements::F32(values.to_vec()),
            Self::F16 => Elements::F16(rounded(values, f16::from_f32, f16::is_finite)?),
            Self::Bf16 => Elements::Bf16(rounded(values, bf16::from_f32, bf16::is_finite)?),
        })
    }
}

/// Infinities and NaN stay what they are; a finite number that became infinite is an error.
fn rounded<T: Copy>(values: &[f32], round: fn(f32) -> T, is_finite: fn(T) -> bool) -> Result<Vec<T>, f32> {
    let round = |&value: &f32| Some(round(value)).filter(|&rounded| is_finite(rounded) || !value.is_finite()).ok_or(value);
    values.iter().map(round).collect()
}

impl fmt::Display for StorageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// A word that is no storage type. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no storage type is called {name:?}\n  help: weights are stored as f32, f16 or bf16")]
pub struct UnknownStorageType {
    /// As given.
    pub name: String,
}

impl FromStr for StorageType {
    type Err = UnknownStorageType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|ty| ty.to_string() == name).ok_or_else(|| UnknownStorageType { name: name.to_owned() })
    }
}

/// The bytes of a safetensors file with these tensors, each in its own element type, and `metadata` in the header;
/// `file` is its name for messages. [`read_tensors`](crate::cases::read_tensors) reads it.
///
/// # Errors
/// [`CheckpointError::Safetensors`] if the format cannot hold them.
pub fn write_tensors(
    file: &str,
    tensors: &IndexMap<String, TensorData>,
    metadata: Option<(&str, &str)>,
) -> Result<Vec<u8>, CheckpointError> {
    let corrupt = |source| CheckpointError::Safetensors { file: file.to_owned(), n_bytes: 0, source };
    let data: Vec<_> = tensors.iter().map(|(name, tensor)| (name, tensor.shape(), encoded(tensor.elements()))).collect();
    let views = data.iter().map(|(name, shape, (dtype, bytes))| Ok((*name, TensorView::new(*dtype, shape.to_vec(), bytes)?)));
    let views: Vec<_> = views.collect::<Result<_, _>>().map_err(corrupt)?;
    // One entry, so that the order of the header's map cannot show.
    let metadata = metadata.map(|(key, value)| [(key.to_owned(), value.to_owned())].into());
    safetensors::serialize(views, metadata).map_err(corrupt)
}

/// The format's element type, and the elements in little-endian order.
fn encoded(elements: &Elements) -> (Dtype, Vec<u8>) {
    match elements {
        Elements::F32(v) => (Dtype::F32, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Elements::F16(v) => (Dtype::F16, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Elements::Bf16(v) => (Dtype::BF16, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Elements::I32(v) => (Dtype::I32, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Elements::U32(v) => (Dtype::U32, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Elements::I8(v) => (Dtype::I8, v.iter().map(|x| x.cast_unsigned()).collect()),
        Elements::Bool(v) => (Dtype::BOOL, v.iter().map(|&x| u8::from(x)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::read_tensors;

    #[test]
    fn halves_are_rounded_to_the_nearest_even() {
        // One and half a unit in the last place on either side of an even and of an odd neighbour, and what rounds up to a limit.
        let values = [1.0 + 0.5f32.powi(11), 1.0 + 3.0 * 0.5f32.powi(11), -65_519.0, 1e-9, f32::INFINITY];
        let Ok(Elements::F16(halves)) = StorageType::F16.round(&values) else { panic!("not rounded") };
        let halves: Vec<f32> = halves.into_iter().map(f16::to_f32).collect();
        assert_eq!(halves, [1.0, 1.0 + 0.5f32.powi(9), -65_504.0, 0.0, f32::INFINITY]);
        let values = [1.0 + 0.5f32.powi(8), 1.0 + 3.0 * 0.5f32.powi(8), 1e38];
        let Ok(Elements::Bf16(halves)) = StorageType::Bf16.round(&values) else { panic!("not rounded") };
        assert_eq!(halves[..2].iter().map(|x| x.to_f32()).collect::<Vec<_>>(), [1.0, 1.0 + 0.5f32.powi(6)]);
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        assert_eq!(StorageType::F16.round(&[1.0, 65_520.0]), Err(65_520.0));
        assert_eq!(StorageType::Bf16.round(&[f32::MAX]), Err(f32::MAX));
        assert!(StorageType::F32.round(&[f32::MAX, f32::NAN]).is_ok());
        assert!(StorageType::F16.round(&[f32::NAN, f32::NEG_INFINITY]).is_ok());
    }

    #[test]
    fn names_read_back() {
        for ty in StorageType::ALL {
            assert_eq!(ty.to_string().parse(), Ok(ty));
        }
        assert!("f64".parse::<StorageType>().is_err());
    }

    #[test]
    fn every_element_type_reads_back() {
        let tensor = |shape: &[usize], elements| TensorData::new(shape, elements).unwrap();
        let tensors: IndexMap<String, TensorData> = [
            ("c", tensor(&[3], Elements::F32(vec![1.5, -0.0, f32::MIN_POSITIVE]))),
            ("a", tensor(&[2, 1], Elements::U32(vec![u32::MAX, 7]))),
            ("b", tensor(&[], Elements::I32(vec![-3]))),
            ("d", tensor(&[2], Elements::Bool(vec![true, false]))),
            ("e", tensor(&[0, 4], Elements::F32(Vec::new()))),
        ]
        .map(|(name, tensor)| (name.to_owned(), tensor))
        .into();
        let bytes = write_tensors("x", &tensors, Some(("step", "3"))).unwrap();
        assert_eq!(bytes, write_tensors("x", &tensors, Some(("step", "3"))).unwrap());
        let read = read_tensors("x", &bytes).unwrap();
        assert_eq!(read.len(), tensors.len());
        for (name, tensor) in &tensors {
            assert_eq!(&read[name], tensor, "{name}");
        }
        assert_eq!(read["c"].as_f32().unwrap()[1].to_bits(), (-0.0f32).to_bits());
    }
}
