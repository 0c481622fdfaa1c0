//! Files of tensors, written: the bytes of a safetensors file. Equal input gives equal bytes.

use super::CheckpointError;
use indexmap::IndexMap;
use monopass_ir::{Elements, TensorData};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

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

/// The text under `key` in the header of a safetensors file, if there is one; `None` too where the bytes are no such file.
#[must_use]
pub fn read_metadata(bytes: &[u8], key: &str) -> Option<String> {
    let (_, header) = safetensors::SafeTensors::read_metadata(bytes).ok()?;
    header.metadata().as_ref()?.get(key).cloned()
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
        assert_eq!(read_metadata(&bytes, "step").as_deref(), Some("3"));
        assert_eq!((read_metadata(&bytes, "x"), read_metadata(&bytes[..9], "step")), (None, None));
        for (name, tensor) in &tensors {
            assert_eq!(&read[name], tensor, "{name}");
        }
        assert_eq!(read["c"].as_f32().unwrap()[1].to_bits(), (-0.0f32).to_bits());
    }
}
