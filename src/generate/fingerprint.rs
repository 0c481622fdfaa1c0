//! A number by which a model is known again.

use crate::train::hash::fnv1a;
use monopass_blocks::LmConfig;
use monopass_blocks::checkpoint::settings_of;
use monopass_ir::storage::StoredTensor;
use monopass_ir::{Elements, TensorData};

/// Elements of each tensor that are looked at, at most.
const SAMPLES: usize = 1 << 16;

/// The fingerprint of a model: of its configuration, and of the names, shapes, storage and some elements of its weights, in
/// any order. No protection against those who want two models to have the same.
#[derive(Debug)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn of(config: &LmConfig) -> Self {
        let LmConfig { block, n_layer, vocab_size, vocab_padding, norm_eps, tie_embeddings } = config;
        let text = format!("{} {n_layer} {vocab_size} {vocab_padding} {norm_eps} {tie_embeddings}", settings_of(block));
        Self(fnv1a(text.into_bytes()))
    }

    pub(super) fn add(&mut self, name: &str, tensor: &StoredTensor) {
        let head = format!("{name} {:?} {}", tensor.shape(), tensor.storage());
        let elements = samples(tensor.elements()).chain(tensor.scale().into_iter().flat_map(samples));
        // A sum does not depend on the order of tensors.
        self.0 = self.0.wrapping_add(fnv1a(head.into_bytes().into_iter().chain(elements)));
    }

    pub(super) const fn number(&self) -> u64 {
        self.0
    }
}

/// Bytes of elements at even distances, the first among them.
fn samples(tensor: &TensorData) -> Box<dyn Iterator<Item = u8> + '_> {
    let stride = tensor.elements().len().div_ceil(SAMPLES).max(1);
    match tensor.elements() {
        Elements::F32(v) => Box::new(v.iter().step_by(stride).flat_map(|x| x.to_le_bytes())),
        Elements::F16(v) => Box::new(v.iter().step_by(stride).flat_map(|x| x.to_le_bytes())),
        Elements::Bf16(v) => Box::new(v.iter().step_by(stride).flat_map(|x| x.to_le_bytes())),
        Elements::I8(v) => Box::new(v.iter().step_by(stride).map(|x| x.cast_unsigned())),
        Elements::I32(v) => Box::new(v.iter().step_by(stride).flat_map(|x| x.to_le_bytes())),
        Elements::U32(v) => Box::new(v.iter().step_by(stride).flat_map(|x| x.to_le_bytes())),
        Elements::Bool(v) => Box::new(v.iter().step_by(stride).map(|&x| x.into())),
    }
}
