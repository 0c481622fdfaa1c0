//! The two arithmetics of the interpreter: f32, as devices compute, and f64, to judge them by.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::LinalgScalar;
use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::{AddAssign, MulAssign, Neg};

/// A type that f32 values of the graph are computed in.
pub(crate) trait Real:
    LinalgScalar + PartialOrd + AddAssign + MulAssign + Neg<Output = Self> + Default + Debug + Send + Sync
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The nearest value to an f64.
    fn from_f64(x: f64) -> Self;
    /// `e^x`.
    fn exp(self) -> Self;
    /// `ln(x)`.
    fn ln(self) -> Self;
    /// `ln(1 + x)`.
    fn ln_1p(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Sine.
    fn sin(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
    /// Largest whole number not above.
    fn floor(self) -> Self;
    /// Magnitude.
    fn abs(self) -> Self;
    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// Whether it is no number.
    fn is_nan(self) -> bool;
    /// Truncated to an i32, saturating; NaN gives 0.
    fn to_i32(self) -> i32;
    /// Truncated to a u32, saturating; NaN gives 0.
    fn to_u32(self) -> u32;
    /// Rounded to half precision.
    fn to_f16(self) -> f16;
    /// Rounded to the upper half of an f32.
    fn to_bf16(self) -> bf16;
    /// A view of f32 elements, or a copy where the types differ.
    fn view(elements: &[f32]) -> Cow<'_, [Self]>;
    /// Elements rounded to f32; the same vector where the types agree.
    fn into_f32(elements: Vec<Self>) -> Vec<f32>;
    /// Halves, widened into `to`, which has their length.
    fn widen_f16(from: &[f16], to: &mut [Self]);
    /// Upper halves, widened into `to`, which has their length.
    fn widen_bf16(from: &[bf16], to: &mut [Self]);
}

macro_rules! real {
    ($t:ident, $from:ident, $convert:ident, $view:expr, $into:expr) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[expect(clippy::allow_attributes, reason = "only one of the two types truncates")]
            #[allow(clippy::cast_possible_truncation, reason = "rounding to the arithmetic's precision is the point")]
            fn from_f64(x: f64) -> Self {
                x as Self
            }
            fn exp(self) -> Self {
                $t::exp(self)
            }
            fn ln(self) -> Self {
                $t::ln(self)
            }
            fn ln_1p(self) -> Self {
                $t::ln_1p(self)
            }
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            fn tanh(self) -> Self {
                $t::tanh(self)
            }
            fn sin(self) -> Self {
                $t::sin(self)
            }
            fn cos(self) -> Self {
                $t::cos(self)
            }
            fn floor(self) -> Self {
                $t::floor(self)
            }
            fn abs(self) -> Self {
                $t::abs(self)
            }
            fn is_finite(self) -> bool {
                $t::is_finite(self)
            }
            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }
            #[expect(clippy::cast_possible_truncation, reason = "the cast rule: truncate and saturate")]
            fn to_i32(self) -> i32 {
                self as i32
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast rule: truncate and saturate")]
            fn to_u32(self) -> u32 {
                self as u32
            }
            fn to_f16(self) -> f16 {
                f16::$from(self)
            }
            fn to_bf16(self) -> bf16 {
                bf16::$from(self)
            }
            fn view(elements: &[f32]) -> Cow<'_, [Self]> {
                $view(elements)
            }
            fn into_f32(elements: Vec<Self>) -> Vec<f32> {
                $into(elements)
            }
            fn widen_f16(from: &[f16], to: &mut [Self]) {
                to.iter_mut().zip(from).for_each(|(to, &x)| *to = Self::from(half_to_f32(x)));
            }
            fn widen_bf16(from: &[bf16], to: &mut [Self]) {
                from.$convert(to);
            }
        }
    };
}

real!(f32, from_f32, convert_to_f32_slice, Cow::Borrowed, std::convert::identity);
real!(f64, from_f64, convert_to_f64_slice, widen, narrow);

fn widen(elements: &[f32]) -> Cow<'_, [f64]> {
    elements.iter().copied().map(f64::from).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "results are rounded to f32")]
fn narrow(elements: Vec<f64>) -> Vec<f32> {
    elements.into_iter().map(|x| x as f32).collect()
}

/// Exact, and in a form that compilers turn into vector instructions.
fn half_to_f32(x: f16) -> f32 {
    const TWO_TO_112: u32 = (127 + 112) << 23;
    let bits = u32::from(x.to_bits());
    // Shifted into place the exponent is too small by the difference of the two biases, for subnormals as well.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(TWO_TO_112);
    let infinity = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | infinity | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            let (got, want) = (half_to_f32(x), x.to_f32());
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits:#06x}: {got} instead of {want}");
        }
    }
}
