//! Tensors on the host: what goes into a run and comes out of it.

use crate::types::{DType, TensorType, n_elems};
use half::{bf16, f16};

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
