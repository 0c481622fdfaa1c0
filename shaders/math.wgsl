// Elementary functions that WGSL lacks or does not define closely enough (see the numerics section of ARCHITECTURE.md).
// One function after another; a function calls only ones above it. Names ending in 4 take four values.

fn sigmoid(x: f32) -> f32 {
  let e = exp(-abs(x));
  return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

fn sigmoid4(x: vec4<f32>) -> vec4<f32> {
  let e = exp(-abs(x));
  return select(e, vec4<f32>(1.0), x >= vec4<f32>(0.0)) / (1.0 + e);
}

fn silu(x: f32) -> f32 {
  return x * sigmoid(x);
}

fn silu4(x: vec4<f32>) -> vec4<f32> {
  return x * sigmoid4(x);
}

fn softplus(x: f32) -> f32 {
  // log1p(e) by the series of atanh, good on both tails; no log is involved.
  let e = exp(-abs(x));
  let s = e / (2.0 + e);
  let q = s * s;
  let series = 1.0 + q * (0.33333334 + q * (0.2 + q * (0.14285715 + q * (0.11111111 + q * (0.09090909 + q * 0.07692308)))));
  return max(x, 0.0) + 2.0 * s * series;
}

fn softplus4(x: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(softplus(x.x), softplus(x.y), softplus(x.z), softplus(x.w));
}

fn tanh1(x: f32) -> f32 {
  // The odd polynomial keeps small arguments exact to rounding; elsewhere e^(-2|x|) cannot overflow.
  let q = x * x;
  let small = x * (1.0 + q * (-0.33333334 + q * (0.13333334 + q * (-0.053968254 + q * 0.021869488))));
  let e = exp(-2.0 * abs(x));
  let big = sign(x) * (1.0 - e) / (1.0 + e);
  return select(big, small, abs(x) < 0.1);
}

fn tanh4(x: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(tanh1(x.x), tanh1(x.y), tanh1(x.z), tanh1(x.w));
}

fn reduce_turn(x: f32) -> f32 {
  // x - 2 pi k in three steps, so that the product with k is exact for |k| < 2^11.
  let k = round(x * 0.15915494);
  return ((x - k * 6.28125) - k * 0.0019353072) - k * -2.8934556e-11;
}

fn sin_core(r: f32) -> f32 {
  // |r| <= pi is folded to [-pi/2, pi/2]; Taylor to r^13 is then good to 6e-8.
  let a = select(r, sign(r) * 3.1415927 - r, abs(r) > 1.5707964);
  let q = a * a;
  return a * (1.0 + q * (-0.16666667 + q * (0.008333334 + q * (-0.0001984127 + q * (2.7557319e-6 + q * (-2.5052108e-8 + q * 1.6059044e-10))))));
}

fn sin1(x: f32) -> f32 {
  return sin_core(reduce_turn(x));
}

fn sin4(x: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(sin1(x.x), sin1(x.y), sin1(x.z), sin1(x.w));
}

fn cos1(x: f32) -> f32 {
  // |cos| by the half angle would lose digits near 1; shifting the reduced angle by a quarter turn does not.
  let r = reduce_turn(x);
  let s = 1.5707964 - abs(r);
  let q = s * s;
  return s * (1.0 + q * (-0.16666667 + q * (0.008333334 + q * (-0.0001984127 + q * (2.7557319e-6 + q * (-2.5052108e-8 + q * 1.6059044e-10))))));
}

fn cos4(x: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(cos1(x.x), cos1(x.y), cos1(x.z), cos1(x.w));
}

fn bf16_bits(x: f32) -> u32 {
  // Round to nearest even by adding half of the last kept bit.
  let b = bitcast<u32>(x);
  return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}

fn pack_bf16(x: vec2<f32>) -> u32 {
  return bf16_bits(x.x) | (bf16_bits(x.y) << 16u);
}

fn f16_round(x: f32) -> f32 {
  // Round to nearest even by adding half of the last kept bit: quantizeToF16 may round to zero, and gives 0 for what f16 holds
  // as a subnormal number, a multiple of 2^-24. Packing to 16 bits and back would not, but a driver may take that for a pair
  // of operations that cancel. What is too large, or no number, is left to quantizeToF16.
  let b = bitcast<u32>(x);
  let nearest = bitcast<f32>((b + 0xfffu + ((b >> 13u) & 1u)) & 0xffffe000u);
  let normal = select(quantizeToF16(x), nearest, abs(x) < 65504.0);
  return select(normal, round(x * 16777216.0) * 5.9604645e-8, abs(x) < 6.1035156e-5);
}

fn bf16_round(x: f32) -> f32 {
  return bitcast<f32>(bf16_bits(x) << 16u);
}

fn order_key(x: f32) -> u32 {
  // Whole numbers above 0 in the order of the floats; equal for both zeros, the largest for what is no number.
  let bits = bitcast<u32>(x);
  let magnitude = bits & 0x7fffffffu;
  let key = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
  return select(select(key, 0x80000000u, magnitude == 0u), 0xffffffffu, magnitude > 0x7f800000u);
}

fn f32_to_i32(x: f32) -> i32 {
  // The largest f32 below 2^31 is 2147483520; above it the conversion saturates.
  return select(i32(clamp(x, -2147483648.0, 2147483520.0)), 2147483647, x >= 2147483648.0);
}

fn f32_to_u32(x: f32) -> u32 {
  return select(u32(clamp(x, 0.0, 4294967040.0)), 4294967295u, x >= 4294967296.0);
}
