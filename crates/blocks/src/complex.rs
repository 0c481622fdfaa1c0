//! Complex numbers as pairs of real tensors, and the exact response of a linear system to a held input.

use monopass_ir::Tensor;

/// Complex numbers, real and imaginary parts apart.
#[derive(Clone, Copy, Debug)]
pub struct Complex<'g> {
    /// Real parts.
    pub re: Tensor<'g>,
    /// Imaginary parts, of the same shape.
    pub im: Tensor<'g>,
}

/// Terms of the series of `(e^z - 1) / z` below the radius of a half, where the next one is 5e-10.
const N_TERMS: u32 = 9;
/// Square of the radius.
const RADIUS_SQUARED: f64 = 0.25;

impl<'g> Complex<'g> {
    /// `e^(i angle)`; angles in radians.
    #[track_caller]
    #[must_use]
    pub fn cis(angle: Tensor<'g>) -> Self {
        Self { re: angle.cos(), im: angle.sin() }
    }

    /// The product.
    #[track_caller]
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        Self { re: self.re * other.re - self.im * other.im, im: self.re * other.im + self.im * other.re }
    }

    /// Both parts times real numbers.
    #[track_caller]
    #[must_use]
    pub fn scaled(self, by: Tensor<'g>) -> Self {
        Self { re: self.re * by, im: self.im * by }
    }

    /// Both parts, cut to a range of one axis.
    #[track_caller]
    #[must_use]
    pub fn slice_axis(self, axis: usize, start: usize, end: usize) -> Self {
        Self { re: self.re.slice_axis(axis, start, end), im: self.im.slice_axis(axis, start, end) }
    }

    /// Both parts under another shape.
    #[track_caller]
    #[must_use]
    pub fn reshape(self, shape: &[usize]) -> Self {
        Self { re: self.re.reshape(shape), im: self.im.reshape(shape) }
    }

    /// The product with pairs along the last axis, of which `i_pairs` is [`times_i`].
    #[track_caller]
    #[must_use]
    pub fn times_pairs(self, pairs: Tensor<'g>, i_pairs: Tensor<'g>) -> Tensor<'g> {
        pairs * self.re + i_pairs * self.im
    }
}

/// `i z` for complex numbers as pairs along an axis of size 2.
#[track_caller]
#[must_use]
pub fn times_i(pairs: Tensor<'_>, axis: usize) -> Tensor<'_> {
    let g = pairs.builder();
    g.concat(&[-pairs.slice_axis(axis, 1, 2), pairs.slice_axis(axis, 0, 1)], axis)
}

/// `(e^(Δa) - 1) / a`, which is Δ at `a = 0`: what a unit input held over a time step Δ leaves of itself; `z` is `Δa`.
///
/// Near 0 it is Δ times a series in `z`, elsewhere the quotient by `a`: no branch divides by a small number, and derivatives keep
/// their digits. That by Δ is `e^(Δa)`, which a quotient by `z` would only give as a difference of large numbers.
///
/// Shapes: `delta`, `a` and `z` broadcast.
#[track_caller]
#[must_use]
pub fn held<'g>(delta: Tensor<'g>, a: Complex<'g>, z: Complex<'g>) -> Complex<'g> {
    let square = z.re * z.re + z.im * z.im;
    let is_small = square.lt(z.re.number(RADIUS_SQUARED));
    // Each branch gets a harmless number where the other one is taken.
    let [zero, one] = [0.0, 1.0].map(|number| z.re.number(number));
    let near = |x: Tensor<'g>| is_small.select(x, zero);
    let small = series(Complex { re: near(z.re), im: near(z.im) }, near(square)).scaled(delta);
    let far = |x: Tensor<'g>, instead: Tensor<'g>| is_small.select(instead, x);
    let (re, im) = (far(a.re, one), far(a.im, zero));
    let grown = Complex::cis(far(z.im, zero)).scaled(far(z.re, zero).exp());
    let (top, square) = (grown.re - 1.0, re * re + im * im);
    let large = Complex { re: (top * re + grown.im * im) / square, im: (grown.im * re - top * im) / square };
    Complex { re: is_small.select(small.re, large.re), im: is_small.select(small.im, large.im) }
}

/// The first terms of `Σ z^k / (k+1)!`. Real coefficients at a complex place: the division by `z² - 2 Re(z) z + |z|²`
/// leaves real numbers only, half the work of Horner's rule.
#[track_caller]
fn series<'g>(z: Complex<'g>, square: Tensor<'g>) -> Complex<'g> {
    let coefficient = |k: u32| 1.0 / (1..=k + 1).map(f64::from).product::<f64>();
    let twice = z.re * 2.0;
    let mut before = z.re.number(coefficient(N_TERMS - 1));
    let mut last = twice * coefficient(N_TERMS - 1) + coefficient(N_TERMS - 2);
    for k in (1..N_TERMS - 2).rev() {
        (before, last) = (last, twice * last - square * before + coefficient(k));
    }
    Complex { re: z.re * last - square * before + 1.0, im: z.im * last }
}

/// Exact discretisation of `s' = a s + b x` for an input held over each time step: `e^(Δa)`, and the factor
/// `(e^(Δa) - 1) / a` of `b x`, see [`held`].
///
/// Shapes: `delta`, `a` broadcast.
#[track_caller]
#[must_use]
pub fn zero_order_hold<'g>(delta: Tensor<'g>, a: Complex<'g>) -> (Complex<'g>, Complex<'g>) {
    let z = a.scaled(delta);
    (Complex::cis(z.im).scaled(z.re.exp()), held(delta, a, z))
}
