//! What the tests of this crate share: files of the repository, small tensors.

#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod gguf;
pub(crate) mod random;

use monopass_blocks::checkpoint::{Bytes, Files, ReadError};
use monopass_ir::TensorData;
use std::path::{Path, PathBuf};

/// Result of a test or helper.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A directory on disk.
pub(crate) struct Dir(PathBuf);

impl Dir {
    /// The reference vectors.
    pub(crate) fn golden() -> Self {
        Self(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"))
    }

    /// A directory in this one.
    pub(crate) fn sub(&self, name: &str) -> Self {
        Self(self.0.join(name))
    }

    /// Content of a file.
    pub(crate) fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        std::fs::read(self.0.join(name)).map_err(|error| format!("{name}: {error}").into())
    }
}

impl Files for Dir {
    fn read(&self, name: &str) -> std::result::Result<Option<Bytes<'_>>, ReadError> {
        match std::fs::read(self.0.join(name)) {
            Ok(bytes) => Ok(Some(Box::new(bytes))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Box::new(error)),
        }
    }
}

/// Numbers in -1..1, the same for the same seed.
pub(crate) fn noise(shape: &[usize], seed: u32) -> Result<TensorData> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as u16) / 32768.0 - 1.0
    };
    Ok(TensorData::f32(shape, (0..shape.iter().product()).map(|_| next()).collect::<Vec<_>>())?)
}

/// Tokens `start..end` (axis 1) of a tensor.
pub(crate) fn tokens(tensor: &TensorData, start: usize, end: usize) -> Result<TensorData> {
    let (shape, values) = (tensor.shape(), tensor.to_f32_vec());
    let width: usize = shape[2..].iter().product();
    let rows = (0..shape[0]).flat_map(|b| &values[(b * shape[1] + start) * width..(b * shape[1] + end) * width]);
    Ok(TensorData::f32([&[shape[0], end - start], &shape[2..]].concat(), rows.copied().collect::<Vec<_>>())?)
}

/// Largest difference of two elements at the same place; infinite if there are not as many.
pub(crate) fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    a.iter().zip(b).map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() }).fold(0.0, f32::max)
}

/// Random choices, the same for the same seed.
pub(crate) struct Choices(u32);

impl Choices {
    pub(crate) const fn new(seed: u32) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9).wrapping_add(0x7F4A_7C15))
    }

    /// A number below `end`, or 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) as usize % end.max(1)
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn of<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())]
    }
}
