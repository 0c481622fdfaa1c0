//! Element types, shapes and tensor types; the broadcasting rule.

use std::fmt;

/// Element type of a tensor.
///
/// `F16` and `Bf16` are storage types: arithmetic on them is done in f32 and rounded on store. `I8` is for quantized weights:
/// only params, inputs and states have it, and only `cast` reads it.
/// `Bool` takes one 32-bit word an element on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16, storage only.
    F16,
    /// The upper half of an f32, storage only.
    Bf16,
    /// Two's complement 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Truth value.
    Bool,
    /// Two's complement 8-bit integer, storage only, four in a word.
    I8,
}

impl DType {
    /// Every element type, in the order of the text form's documentation.
    pub const ALL: [Self; 7] = [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::U32, Self::Bool, Self::I8];

    /// Name in the text form.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::Bool => "bool",
            Self::I8 => "i8",
        }
    }

    /// The element type called `name` in the text form.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes an element takes in a device buffer.
    #[must_use]
    pub const fn size_bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 | Self::U32 | Self::Bool => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 => 1,
        }
    }

    /// True for f32, f16 and bf16.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// True for i32 and u32.
    #[must_use]
    pub const fn is_int(self) -> bool {
        matches!(self, Self::I32 | Self::U32)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Index along each axis of the element at flat position `at`.
#[must_use]
pub fn position(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut place = vec![0; shape.len()];
    for (idx, &size) in place.iter_mut().zip(shape).rev() {
        *idx = at % size.max(1);
        at /= size.max(1);
    }
    place
}

/// Most axes that a value may have; no op of the table needs more than half as many.
pub const MAX_RANK: usize = 16;

/// Most elements that a value may have, so that an index fits a 32-bit word.
pub const MAX_ELEMS: u64 = u32::MAX as u64;

/// Element type and sizes of a value, outermost axis first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Size of each axis; a scalar has none. Any size may be zero.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// Number of axes.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements; saturates, so an absurd shape reads as too large and not as small.
    #[must_use]
    pub fn n_elems(&self) -> u64 {
        n_elems(&self.shape)
    }

    /// Bytes the value takes in a device buffer, without padding.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.n_elems().saturating_mul(self.dtype.size_bytes())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// Product of the sizes; saturating.
#[must_use]
pub fn n_elems(shape: &[usize]) -> u64 {
    if shape.contains(&0) {
        return 0;
    }
    shape.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64))
}

/// Strides in elements of a dense row-major tensor.
#[must_use]
pub fn dense_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// The shape that `lhs` and `rhs` broadcast to: aligned at the last axis, sizes equal or one of them 1.
#[must_use]
pub fn broadcast_shapes(lhs: &[usize], rhs: &[usize]) -> Option<Vec<usize>> {
    let rank = lhs.len().max(rhs.len());
    let size = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
    (0..rank)
        .map(|axis| match (size(lhs, axis), size(rhs, axis)) {
            (a, b) if a == b => Some(a),
            (1, b) => Some(b),
            (a, 1) => Some(a),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_aligns_the_last_axis() {
        assert_eq!(broadcast_shapes(&[3, 1, 4], &[5, 1]), Some(vec![3, 5, 4]));
        assert_eq!(broadcast_shapes(&[], &[2]), Some(vec![2]));
        assert_eq!(broadcast_shapes(&[0], &[1]), Some(vec![0]));
        assert_eq!(broadcast_shapes(&[3], &[2]), None);
    }

    #[test]
    fn an_absurd_shape_reads_as_too_large() {
        assert_eq!(TensorType::new(DType::F32, [usize::MAX, 8]).size_bytes(), u64::MAX);
        assert_eq!(n_elems(&[usize::MAX, usize::MAX, 0]), 0);
    }
}
