//! A writer of GGUF files for tests, so that each field of one can be wrong.

use super::Result;
use half::{bf16, f16};
use indexmap::IndexMap;
use monopass_blocks::{LmConfig, names};
use monopass_ir::TensorData;

/// The value of a key, written with the number of its type.
#[derive(Clone, Debug)]
pub(crate) enum Meta {
    U32(u32),
    F32(f32),
    Text(&'static str),
    /// Type and bytes as they are.
    Raw(u32, Vec<u8>),
}

/// A tensor, its sizes innermost first as in the file.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) sizes: Vec<u64>,
    pub(crate) ty: u32,
    pub(crate) data: Vec<u8>,
    /// In place of where it lies.
    pub(crate) offset: Option<u64>,
}

/// All that a file says.
#[derive(Clone, Debug)]
pub(crate) struct Gguf {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) meta: Vec<(String, Meta)>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) alignment: usize,
    /// In place of the true numbers of tensors and keys.
    pub(crate) counts: [Option<u64>; 2],
}

/// Element type of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    F32,
    F16,
    Bf16,
    Q8_0,
}

impl Gguf {
    /// The file of a Mamba-2 with these parameters, matrices in `ty` where rows are whole blocks, else in f16.
    pub(crate) fn new(config: &LmConfig, params: &IndexMap<String, TensorData>, ty: Ty) -> Result<Self> {
        let block = config.block.as_mamba2().ok_or("another block")?;
        let sizes = block.sizes()?;
        let count = |n: usize| Ok::<_, std::num::TryFromIntError>(Meta::U32(u32::try_from(n)?));
        let keys = [
            ("embedding_length", count(block.d_model)?),
            ("block_count", count(config.n_layer)?),
            ("feed_forward_length", count(0)?),
            ("attention.head_count", count(0)?),
            ("ssm.conv_kernel", count(block.d_conv)?),
            ("ssm.inner_size", count(sizes.d_inner)?),
            ("ssm.state_size", count(block.d_state)?),
            ("ssm.time_step_rank", count(sizes.nheads)?),
            ("ssm.group_count", count(block.ngroups)?),
            ("attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        ];
        let mut meta = vec![("general.architecture".to_owned(), Meta::Text("mamba2"))];
        meta.extend(keys.map(|(key, value)| (format!("mamba2.{key}"), value)));
        // What a tokenizer adds: a list of texts, and one of numbers.
        let words = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &1u64.to_le_bytes(), b"a", &0u64.to_le_bytes()].concat();
        meta.push(("tokenizer.ggml.tokens".to_owned(), Meta::Raw(9, words)));
        let scores = [&6u32.to_le_bytes()[..], &1u64.to_le_bytes(), &0.5f32.to_le_bytes()].concat();
        meta.push(("tokenizer.ggml.scores".to_owned(), Meta::Raw(9, scores)));
        let tensors = params.iter().map(|(name, tensor)| Tensor::new(name, tensor, block.ngroups, ty)).collect();
        Ok(Self { magic: *b"GGUF", version: 3, meta, tensors, alignment: 32, counts: [None; 2] })
    }

    pub(crate) fn set(&mut self, key: &str, value: Meta) {
        self.meta.retain(|(own, _)| own != key);
        self.meta.push((key.to_owned(), value));
    }

    /// The tensor of this name.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<&mut Tensor> {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).ok_or_else(|| name.into())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = [&self.magic[..], &self.version.to_le_bytes()].concat();
        let [n_tensors, n_keys] = [self.tensors.len(), self.meta.len()].map(|n| n as u64);
        out.extend(self.counts[0].unwrap_or(n_tensors).to_le_bytes());
        out.extend(self.counts[1].unwrap_or(n_keys).to_le_bytes());
        for (key, value) in &self.meta {
            text(&mut out, key);
            match value {
                Meta::U32(number) => out.extend([4u32.to_le_bytes(), number.to_le_bytes()].concat()),
                Meta::F32(number) => out.extend([6u32.to_le_bytes(), number.to_le_bytes()].concat()),
                Meta::Text(word) => {
                    out.extend(8u32.to_le_bytes());
                    text(&mut out, word);
                }
                Meta::Raw(ty, bytes) => {
                    out.extend(ty.to_le_bytes());
                    out.extend(bytes);
                }
            }
        }
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            text(&mut out, &tensor.name);
            out.extend(u32::try_from(tensor.sizes.len()).unwrap_or(u32::MAX).to_le_bytes());
            tensor.sizes.iter().for_each(|size| out.extend(size.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }

    /// A checkpoint of this file alone.
    pub(crate) fn files(&self) -> IndexMap<String, Vec<u8>> {
        [("model.gguf".to_owned(), self.bytes())].into()
    }
}

impl Tensor {
    fn new(name: &str, tensor: &TensorData, ngroups: usize, ty: Ty) -> Self {
        let theirs = names::to_gguf(name);
        let (shape, values) = (tensor.shape().to_vec(), tensor.to_f32_vec());
        let is_rate = theirs.ends_with("ssm_a");
        let shape = if is_rate || theirs.ends_with("ssm_d") {
            vec![shape[0], 1]
        } else if theirs.ends_with("ssm_conv1d.weight") {
            vec![shape[0], shape[2]]
        } else if theirs.ends_with("ssm_norm.weight") {
            vec![ngroups, shape[0] / ngroups]
        } else {
            shape
        };
        let values: Vec<f32> = if is_rate { values.iter().map(|x| -x.exp()).collect() } else { values };
        let is_matrix = ["token_embd.weight", "output.weight", "ssm_in.weight", "ssm_out.weight"].iter().any(|end| theirs.ends_with(end));
        let ty = match ty {
            _ if !is_matrix => Ty::F32,
            Ty::Q8_0 if !shape[1].is_multiple_of(32) => Ty::F16,
            Ty::F32 | Ty::F16 | Ty::Bf16 | Ty::Q8_0 => ty,
        };
        let sizes = shape.iter().rev().map(|&size| size as u64).collect();
        Self { name: theirs, sizes, ty: ty.number(), data: ty.encoded(&values), offset: None }
    }
}

impl Ty {
    const fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 30,
            Self::Q8_0 => 8,
        }
    }

    fn encoded(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            Self::Q8_0 => values.chunks(32).flat_map(block).collect(),
        }
    }
}

/// A block of `Q8_0`: its scale, and the nearest whole numbers of it.
fn block(values: &[f32]) -> Vec<u8> {
    let scale = f16::from_f32(values.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 127.0);
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the range of i8 before")]
    let number = |x: &f32| ((x / scale.to_f32()).round().clamp(-127.0, 127.0) as i8).to_le_bytes()[0];
    scale.to_le_bytes().into_iter().chain(values.iter().map(number)).collect()
}

/// What [`block`] leaves of the values.
pub(crate) fn through_blocks(values: &[f32]) -> Vec<f32> {
    let back = |values: &[f32]| {
        let bytes = block(values);
        let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        bytes[2..].iter().map(|&byte| scale * f32::from(byte.cast_signed())).collect::<Vec<_>>()
    };
    values.chunks(32).flat_map(back).collect()
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
