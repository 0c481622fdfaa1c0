//! Tensors during a run: borrowed from the caller or shared between values, never copied without need.

use super::loops::zeroed;
use super::real::Real;
use crate::data::{Elements, TensorData};
use crate::error::EvalError;
use crate::types::{DType, TensorType, n_elems};
use half::{bf16, f16};
use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Elements borrowed from the caller or shared by several values (a reshape shares its operand's).
#[derive(Clone, Debug)]
pub(crate) enum Store<'a, T> {
    /// The caller's.
    Borrowed(&'a [T]),
    /// Ours.
    Shared(Arc<Vec<T>>),
}

impl<T> Deref for Store<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Borrowed(elements) => elements,
            Self::Shared(elements) => elements,
        }
    }
}

impl<T> From<Vec<T>> for Store<'_, T> {
    fn from(elements: Vec<T>) -> Self {
        Self::Shared(Arc::new(elements))
    }
}

impl<'a, T: Clone> From<Cow<'a, [T]>> for Store<'a, T> {
    fn from(elements: Cow<'a, [T]>) -> Self {
        match elements {
            Cow::Borrowed(elements) => Self::Borrowed(elements),
            Cow::Owned(elements) => elements.into(),
        }
    }
}

impl<T: Clone> Store<'_, T> {
    /// The vector itself if nobody else holds it, so that it can be overwritten in place.
    pub(crate) fn try_into_vec(self) -> Result<Vec<T>, Self> {
        match self {
            Self::Borrowed(_) => Err(self),
            Self::Shared(elements) => Arc::try_unwrap(elements).map_err(Self::Shared),
        }
    }

    /// The vector, copied if somebody else holds it.
    pub(crate) fn into_vec(self) -> Vec<T> {
        self.try_into_vec().unwrap_or_else(|shared| shared.to_vec())
    }
}

/// Elements by element type; f32 ones are held in the arithmetic `R`.
#[derive(Clone, Debug)]
pub(crate) enum Data<'a, R> {
    /// f32 of the graph.
    F32(Store<'a, R>),
    /// IEEE half.
    F16(Store<'a, f16>),
    /// Upper half of an f32.
    Bf16(Store<'a, bf16>),
    /// i32.
    I32(Store<'a, i32>),
    /// u32.
    U32(Store<'a, u32>),
    /// Truth values.
    Bool(Store<'a, bool>),
    /// i8.
    I8(Store<'a, i8>),
}

/// Applies one generic expression to the elements of any type, giving elements of the same type.
macro_rules! map_data {
    ($data:expr, $x:ident => $body:expr) => {
        match $data {
            Data::F32($x) => Data::F32($body.into()),
            Data::F16($x) => Data::F16($body.into()),
            Data::Bf16($x) => Data::Bf16($body.into()),
            Data::I32($x) => Data::I32($body.into()),
            Data::U32($x) => Data::U32($body.into()),
            Data::Bool($x) => Data::Bool($body.into()),
            Data::I8($x) => Data::I8($body.into()),
        }
    };
}
pub(crate) use map_data;

/// A dense row-major tensor during a run.
#[derive(Clone, Debug)]
pub(crate) struct Array<'a, R> {
    /// Sizes, outermost first.
    pub(crate) shape: Vec<usize>,
    /// Elements.
    pub(crate) data: Data<'a, R>,
}

impl<'a, R: Real> Array<'a, R> {
    /// An f32 array.
    pub(crate) fn real(shape: &[usize], elements: Vec<R>) -> Self {
        Self { shape: shape.to_vec(), data: Data::F32(elements.into()) }
    }

    /// The caller's tensor, borrowed where the arithmetic allows.
    pub(crate) fn borrow(tensor: &'a TensorData) -> Self {
        let data = match tensor.elements() {
            Elements::F32(v) => Data::F32(R::view(v).into()),
            Elements::F16(v) => Data::F16(Store::Borrowed(v)),
            Elements::Bf16(v) => Data::Bf16(Store::Borrowed(v)),
            Elements::I32(v) => Data::I32(Store::Borrowed(v)),
            Elements::U32(v) => Data::U32(Store::Borrowed(v)),
            Elements::Bool(v) => Data::Bool(Store::Borrowed(v)),
            Elements::I8(v) => Data::I8(Store::Borrowed(v)),
        };
        Self { shape: tensor.shape().to_vec(), data }
    }

    /// Every element `number`, converted to the element type; a bool is true for anything but 0.
    pub(crate) fn filled(ty: &TensorType, number: f64) -> Result<Self, EvalError> {
        let n = count(&ty.shape)?;
        let data = match ty.dtype {
            DType::F32 => Data::F32(filled(n, R::from_f64(number))?.into()),
            DType::F16 => Data::F16(filled(n, number.to_f16())?.into()),
            DType::Bf16 => Data::Bf16(filled(n, number.to_bf16())?.into()),
            DType::I32 => Data::I32(filled(n, number.to_i32())?.into()),
            DType::U32 => Data::U32(filled(n, number.to_u32())?.into()),
            DType::Bool => Data::Bool(filled(n, number != 0.0)?.into()),
            DType::I8 => Data::I8(filled(n, i8::try_from(number.to_i32()).unwrap_or_default())?.into()),
        };
        Ok(Self { shape: ty.shape.clone(), data })
    }

    /// Element type.
    pub(crate) const fn dtype(&self) -> DType {
        match self.data {
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::Bf16(_) => DType::Bf16,
            Data::I32(_) => DType::I32,
            Data::U32(_) => DType::U32,
            Data::Bool(_) => DType::Bool,
            Data::I8(_) => DType::I8,
        }
    }

    /// Elements of a float array in the arithmetic; 16-bit storage is widened.
    pub(crate) fn into_reals(self) -> Result<Store<'a, R>, EvalError> {
        let wide = match self.data {
            Data::F32(v) => return Ok(v),
            Data::F16(v) => widen(&v, R::widen_f16)?,
            Data::Bf16(v) => widen(&v, R::widen_bf16)?,
            Data::I32(_) | Data::U32(_) | Data::Bool(_) | Data::I8(_) => return Err(not_float(self.dtype())),
        };
        Ok(wide.into())
    }

    /// Elements of a float array rounded to its storage type `dtype`.
    pub(crate) fn store(shape: &[usize], dtype: DType, elements: Store<'a, R>) -> Result<Self, EvalError> {
        let data = match dtype {
            DType::F32 => Data::F32(elements),
            DType::F16 => Data::F16(elements.iter().map(|x| x.to_f16()).collect::<Vec<_>>().into()),
            DType::Bf16 => Data::Bf16(elements.iter().map(|x| x.to_bf16()).collect::<Vec<_>>().into()),
            DType::I32 | DType::U32 | DType::Bool | DType::I8 => return Err(not_float(dtype)),
        };
        Ok(Self { shape: shape.to_vec(), data })
    }

    /// The caller's copy; f32 values are rounded here and nowhere else.
    pub(crate) fn into_tensor(self) -> Result<TensorData, EvalError> {
        let elements = match self.data {
            Data::F32(v) => Elements::F32(R::into_f32(v.into_vec())),
            Data::F16(v) => Elements::F16(v.into_vec()),
            Data::Bf16(v) => Elements::Bf16(v.into_vec()),
            Data::I32(v) => Elements::I32(v.into_vec()),
            Data::U32(v) => Elements::U32(v.into_vec()),
            Data::Bool(v) => Elements::Bool(v.into_vec()),
            Data::I8(v) => Elements::I8(v.into_vec()),
        };
        TensorData::new(self.shape, elements).map_err(|error| EvalError::new(error.to_string()))
    }
}

impl<R: Real> Data<'_, R> {
    /// Elements of a range in the arithmetic, widened into `scratch` where the storage has 16 bits.
    pub(crate) fn reals<'s>(&'s self, range: Range<usize>, scratch: &'s mut Vec<R>) -> Result<&'s [R], EvalError> {
        let wrong = || EvalError::new("a 16-bit or f32 operand was expected");
        if let Self::F32(v) = self {
            return v.get(range).ok_or_else(wrong);
        }
        scratch.resize(range.len(), R::ZERO);
        match self {
            Self::F16(v) => R::widen_f16(v.get(range).ok_or_else(wrong)?, scratch),
            Self::Bf16(v) => R::widen_bf16(v.get(range).ok_or_else(wrong)?, scratch),
            Self::F32(_) | Self::I32(_) | Self::U32(_) | Self::Bool(_) | Self::I8(_) => return Err(wrong()),
        }
        Ok(scratch)
    }
}

/// Number of elements of a shape.
pub(crate) fn count(shape: &[usize]) -> Result<usize, EvalError> {
    usize::try_from(n_elems(shape)).map_err(|_| EvalError::new(format!("shape {shape:?} has more elements than memory has addresses")))
}

fn filled<T: Clone + Default + PartialEq>(n: usize, element: T) -> Result<Vec<T>, EvalError> {
    let mut elements = zeroed::<T>(n)?;
    if element != T::default() {
        elements.fill(element);
    }
    Ok(elements)
}

fn widen<T, R: Real>(from: &[T], convert: impl Fn(&[T], &mut [R])) -> Result<Vec<R>, EvalError> {
    let mut wide = zeroed(from.len())?;
    convert(from, &mut wide);
    Ok(wide)
}

fn not_float(dtype: DType) -> EvalError {
    EvalError::new(format!("elements of type {dtype} are not floats"))
}
