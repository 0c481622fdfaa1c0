//! Tensors on the host: what goes into a run and comes out of it.

use crate::types::{DType, TensorType, n_elems};
use half::{bf16, f16};
use std::ops::Range;

/// Elements of a host tensor, row-major, in the element type of the graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// f32.
    F32(Vec<f32>),
    /// IEEE half.
    F16(Vec<f16>),
    /// Upper half of an f32.
    Bf16(Vec<bf16>),
    /// i32.
    I32(Vec<i32>),
    /// u32.
    U32(Vec<u32>),
    /// Truth values.
    Bool(Vec<bool>),
    /// i8.
    I8(Vec<i8>),
}

/// A dense row-major tensor on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorData {
    shape: Vec<usize>,
    elements: Elements,
}

/// The elements do not fill the shape. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{n_given} elements do not fill shape {shape:?}, which has {n_wanted}")]
pub struct ShapeMismatch {
    /// The shape asked for.
    pub shape: Vec<usize>,
    /// Elements that the shape has.
    pub n_wanted: u64,
    /// Elements that were given.
    pub n_given: usize,
}

impl TensorData {
    /// A tensor from its parts.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if the number of elements is not that of the shape.
    pub fn new(shape: impl Into<Vec<usize>>, elements: Elements) -> Result<Self, ShapeMismatch> {
        let shape = shape.into();
        let (n_wanted, n_given) = (n_elems(&shape), elements.len());
        if n_wanted == n_given as u64 { Ok(Self { shape, elements }) } else { Err(ShapeMismatch { shape, n_wanted, n_given }) }
    }

    /// An f32 tensor.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if the number of elements is not that of the shape.
    pub fn f32(shape: impl Into<Vec<usize>>, elements: impl Into<Vec<f32>>) -> Result<Self, ShapeMismatch> {
        Self::new(shape, Elements::F32(elements.into()))
    }

    /// An i32 tensor.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if the number of elements is not that of the shape.
    pub fn i32(shape: impl Into<Vec<usize>>, elements: impl Into<Vec<i32>>) -> Result<Self, ShapeMismatch> {
        Self::new(shape, Elements::I32(elements.into()))
    }

    /// A tensor of zeros (false).
    #[must_use]
    pub fn zeros(ty: &TensorType) -> Self {
        let n: usize = ty.shape.iter().product();
        let elements = match ty.dtype {
            DType::F32 => Elements::F32(vec![0.0; n]),
            DType::F16 => Elements::F16(vec![f16::ZERO; n]),
            DType::Bf16 => Elements::Bf16(vec![bf16::ZERO; n]),
            DType::I32 => Elements::I32(vec![0; n]),
            DType::U32 => Elements::U32(vec![0; n]),
            DType::Bool => Elements::Bool(vec![false; n]),
            DType::I8 => Elements::I8(vec![0; n]),
        };
        Self { shape: ty.shape.clone(), elements }
    }

    /// Sizes, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements, row-major.
    #[must_use]
    pub const fn elements(&self) -> &Elements {
        &self.elements
    }

    /// Elements, row-major, taken out.
    #[must_use]
    pub fn into_elements(self) -> Elements {
        self.elements
    }

    /// Element type and sizes.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.elements.dtype(), self.shape.clone())
    }

    /// The elements if they are f32.
    #[must_use]
    pub fn as_f32(&self) -> Option<&[f32]> {
        if let Elements::F32(v) = &self.elements { Some(v) } else { None }
    }

    /// The elements if they are f32, to change them.
    #[must_use]
    pub fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        if let Elements::F32(v) = &mut self.elements { Some(v) } else { None }
    }

    /// The elements if they are u32.
    #[must_use]
    pub fn as_u32(&self) -> Option<&[u32]> {
        if let Elements::U32(v) = &self.elements { Some(v) } else { None }
    }

    /// Rows of the first axis; `None` if they are not all there.
    #[must_use]
    pub fn rows(&self, rows: &Range<usize>) -> Option<Self> {
        let (&n_rows, inner) = self.shape.split_first()?;
        if rows.start > rows.end || rows.end > n_rows {
            return None;
        }
        let width: usize = inner.iter().product();
        let part = rows.start * width..rows.end * width;
        let elements = match &self.elements {
            Elements::F32(v) => Elements::F32(v.get(part)?.to_vec()),
            Elements::F16(v) => Elements::F16(v.get(part)?.to_vec()),
            Elements::Bf16(v) => Elements::Bf16(v.get(part)?.to_vec()),
            Elements::I32(v) => Elements::I32(v.get(part)?.to_vec()),
            Elements::U32(v) => Elements::U32(v.get(part)?.to_vec()),
            Elements::Bool(v) => Elements::Bool(v.get(part)?.to_vec()),
            Elements::I8(v) => Elements::I8(v.get(part)?.to_vec()),
        };
        Some(Self { shape: [&[rows.len()], inner].concat(), elements })
    }

    /// Replaces rows of the first axis, from `at` on, by all of another tensor; `None`, and nothing done, if they are not all there or
    /// the other is of another type.
    pub fn put_rows(&mut self, at: usize, rows: &Self) -> Option<()> {
        let (&n_rows, inner) = self.shape.split_first()?;
        let (&n_new, inner_new) = rows.shape.split_first()?;
        let width: usize = inner.iter().product();
        if inner != inner_new || at.checked_add(n_new)? > n_rows {
            return None;
        }
        let part = at * width..(at + n_new) * width;
        match (&mut self.elements, &rows.elements) {
            (Elements::F32(to), Elements::F32(from)) => to.get_mut(part)?.copy_from_slice(from),
            (Elements::F16(to), Elements::F16(from)) => to.get_mut(part)?.copy_from_slice(from),
            (Elements::Bf16(to), Elements::Bf16(from)) => to.get_mut(part)?.copy_from_slice(from),
            (Elements::I32(to), Elements::I32(from)) => to.get_mut(part)?.copy_from_slice(from),
            (Elements::U32(to), Elements::U32(from)) => to.get_mut(part)?.copy_from_slice(from),
            (Elements::Bool(to), Elements::Bool(from)) => to.get_mut(part)?.copy_from_slice(from),
            (Elements::I8(to), Elements::I8(from)) => to.get_mut(part)?.copy_from_slice(from),
            _ => return None,
        }
        Some(())
    }

    /// The elements as f32, whatever their type; bool gives 0 and 1.
    #[must_use]
    pub fn to_f32_vec(&self) -> Vec<f32> {
        #[expect(clippy::cast_precision_loss, reason = "the caller asked for f32")]
        match &self.elements {
            Elements::F32(v) => v.clone(),
            Elements::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
            Elements::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
            Elements::I32(v) => v.iter().map(|&x| x as f32).collect(),
            Elements::U32(v) => v.iter().map(|&x| x as f32).collect(),
            Elements::Bool(v) => v.iter().map(|&x| f32::from(u8::from(x))).collect(),
            Elements::I8(v) => v.iter().map(|&x| f32::from(x)).collect(),
        }
    }
}

impl Elements {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::F16(v) => v.len(),
            Self::Bf16(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::I8(v) => v.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::Bf16,
            Self::I32(_) => DType::I32,
            Self::U32(_) => DType::U32,
            Self::Bool(_) => DType::Bool,
            Self::I8(_) => DType::I8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_taken_out_and_put_back() {
        for dtype in DType::ALL {
            let tensor = TensorData::zeros(&TensorType::new(dtype, [4, 3, 2]));
            let middle = tensor.rows(&(1..3)).unwrap();
            assert_eq!(middle.ty(), TensorType::new(dtype, [2, 3, 2]));
            let mut other = tensor.clone();
            assert!(
                other.put_rows(2, &middle).is_some()
                    && other.put_rows(3, &middle).is_none()
                    && other.put_rows(usize::MAX, &middle).is_none()
            );
        }
        let mut tensor = TensorData::f32([3, 2], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let last = tensor.rows(&(2..3)).unwrap();
        tensor.put_rows(0, &last).unwrap();
        assert_eq!(tensor.as_f32(), Some(&[4.0, 5.0, 2.0, 3.0, 4.0, 5.0][..]));
        assert_eq!(tensor.rows(&(3..3)).unwrap().shape(), [0, 2]);
        assert!(tensor.rows(&(2..4)).is_none() && tensor.rows(&Range { start: 2, end: 1 }).is_none());
        assert!(TensorData::f32([], [1.0]).unwrap().rows(&(0..0)).is_none());
        assert!(tensor.put_rows(0, &TensorData::i32([1, 2], [1, 2]).unwrap()).is_none());
    }
}
