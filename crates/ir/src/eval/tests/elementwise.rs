//! Elementwise ops.

use super::*;
use half::{bf16, f16};

#[test]
fn functions_match_their_formulas_on_both_tails() -> Fallible<()> {
    let points = [-100.0, -20.0, -3.0, -1e-4, 0.0, 1e-4, 0.5, 3.0, 20.0, 100.0_f32];
    let x = f32s(&[points.len()], &points);
    let want = |f: fn(f64) -> f64| points.map(|x| f(f64::from(x)));
    let check = |got: TensorData, f: fn(f64) -> f64| {
        for (got, want) in got.to_f32_vec().into_iter().zip(want(f)) {
            assert!((f64::from(got) - want).abs() <= 3e-7 * want.abs() + 1e-43, "{got} instead of {want}");
        }
    };
    check(apply([&x], |[x]| x.sigmoid())?, |x| if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) });
    check(apply([&x], |[x]| x.silu())?, |x| x / (1.0 + (-x).exp()));
    check(apply([&x], |[x]| x.softplus())?, |x| x.max(0.0) + (-x.abs()).exp().ln_1p());
    check(apply([&x], |[x]| x.tanh())?, f64::tanh);
    check(apply([&x], |[x]| x.sin())?, f64::sin);
    check(apply([&x], |[x]| x.cos())?, f64::cos);
    check(apply([&x], |[x]| x.neg())?, |x| -x);
    check(apply([&x], |[x]| x.abs())?, f64::abs);
    check(apply([&x], |[x]| x.floor())?, f64::floor);
    let x = f32s(&[3], &[0.25, 1.0, 9.0]);
    assert_eq!(apply([&x], |[x]| x.sqrt())?, f32s(&[3], &[0.5, 1.0, 3.0]));
    close(&apply([&x], |[x]| x.rsqrt())?, &f32s(&[3], &[2.0, 1.0, 1.0 / 3.0]), 1e-7)?;
    close(&apply([&x], |[x]| x.exp().log())?, &x, 1e-6)
}

#[test]
fn operands_broadcast_either_way() -> Fallible<()> {
    let x = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let (row, column) = (f32s(&[3], &[10.0, 20.0, 30.0]), f32s(&[2, 1], &[100.0, 200.0]));
    assert_eq!(apply([&x, &row], |[x, y]| x.sub(y))?, f32s(&[2, 3], &[-10.0, -19.0, -28.0, -7.0, -16.0, -25.0]));
    assert_eq!(apply([&row, &x], |[x, y]| x.sub(y))?, f32s(&[2, 3], &[10.0, 19.0, 28.0, 7.0, 16.0, 25.0]));
    assert_eq!(apply([&column, &row], |[x, y]| x.add(y))?, f32s(&[2, 3], &[110.0, 120.0, 130.0, 210.0, 220.0, 230.0]));
    assert_eq!(apply([&x], |[x]| x * x)?, f32s(&[2, 3], &[0.0, 1.0, 4.0, 9.0, 16.0, 25.0]));
    assert_eq!(apply([&x], |[x]| x.neg() / 2.0)?, f32s(&[2, 3], &[-0.0, -0.5, -1.0, -1.5, -2.0, -2.5]));
    assert_eq!(apply([&f32s(&[0, 3], &[]), &row], |[x, y]| x.mul(y))?, f32s(&[0, 3], &[]));
    let scalar = f32s(&[], &[3.0]);
    assert_eq!(apply([&scalar, &scalar], |[x, y]| x.max(y))?, scalar);
    Ok(())
}

#[test]
fn large_operands_are_cut_without_seams() -> Fallible<()> {
    let (x, y, z) = (noisy(&[3, 101, 67], 1), noisy(&[3, 1, 67], 2), noisy(&[101, 1], 3));
    let got = apply([&x, &y, &z], |[x, y, z]| x.mul(y).add(z).min(x))?;
    let (x, y, z) = (x.to_f32_vec(), y.to_f32_vec(), z.to_f32_vec());
    let want: Vec<f32> = (0..x.len()).map(|i| (x[i] * y[i / (101 * 67) * 67 + i % 67] + z[i / 67 % 101]).min(x[i])).collect();
    close(&got, &f32s(&[3, 101, 67], &want), 0.0)
}

#[test]
fn an_operand_still_in_use_is_not_overwritten() -> Fallible<()> {
    let x = f32s(&[3], &[1.0, 2.0, 3.0]);
    let got = apply_in(Precision::F32, [&x], |_, [x]| {
        let y = x.exp();
        let twice = y + y;
        vec![twice.neg(), y.reshape(vec![3, 1]).neg(), twice]
    })?;
    let e: Vec<f32> = [1.0_f32, 2.0, 3.0].map(f32::exp).to_vec();
    assert_eq!(got[0].to_f32_vec(), e.iter().map(|e| -2.0 * e).collect::<Vec<_>>());
    assert_eq!(got[1], f32s(&[3, 1], &[-e[0], -e[1], -e[2]]));
    assert_eq!(got[2].to_f32_vec(), e.iter().map(|e| 2.0 * e).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn integers_wrap_and_compare() -> Fallible<()> {
    let x = TensorData::i32([4], vec![i32::MAX, -1, 0, i32::MIN])?;
    let one = TensorData::i32([], vec![1])?;
    assert_eq!(apply([&x, &one], |[x, y]| x.add(y))?, TensorData::i32([4], vec![i32::MIN, 0, 1, i32::MIN + 1])?);
    assert_eq!(apply([&x, &one], |[x, y]| x.max(y))?, TensorData::i32([4], vec![i32::MAX, 1, 1, 1])?);
    assert_eq!(apply([&x], |[x]| x.abs())?, TensorData::i32([4], vec![i32::MAX, 1, 0, i32::MIN])?);
    assert_eq!(apply([&x, &one], |[x, y]| x.lt(y))?, bools(&[4], &[false, true, true, true]));
    let u = TensorData::new([3], Elements::U32(vec![0, 1, u32::MAX]))?;
    let two = TensorData::new([1], Elements::U32(vec![2]))?;
    assert_eq!(apply([&u, &two], |[x, y]| x.sub(y))?, TensorData::new([3], Elements::U32(vec![u32::MAX - 1, u32::MAX, u32::MAX - 2]))?);
    assert_eq!(apply([&u, &two], |[x, y]| x.lt(y))?, bools(&[3], &[true, true, false]));
    Ok(())
}

#[test]
fn truth_values_and_select() -> Fallible<()> {
    let (a, b) = (bools(&[4], &[false, false, true, true]), bools(&[4], &[false, true, false, true]));
    assert_eq!(apply([&a, &b], |[a, b]| a.and(b))?, bools(&[4], &[false, false, false, true]));
    assert_eq!(apply([&a, &b], |[a, b]| a.or(b))?, bools(&[4], &[false, true, true, true]));
    assert_eq!(apply([&a, &b], |[a, b]| a.eq(b))?, bools(&[4], &[true, false, false, true]));
    assert_eq!(apply([&a], |[a]| a.not())?, bools(&[4], &[true, true, false, false]));
    let (x, y) = (f32s(&[2, 1], &[1.0, 2.0]), f32s(&[], &[-1.0]));
    let chosen = apply([&a, &x, &y], |[a, x, y]| a.reshape(vec![2, 2]).select(x, y))?;
    assert_eq!(chosen, f32s(&[2, 2], &[-1.0, -1.0, 2.0, 2.0]));
    let x = f32s(&[4], &[f32::NAN, 1.0, 2.0, 3.0]);
    assert_eq!(apply([&x, &f32s(&[], &[2.0])], |[x, y]| x.le(y))?, bools(&[4], &[false, true, true, false]));
    assert_eq!(apply([&x, &x], |[x, y]| x.ne(y))?, bools(&[4], &[true, false, false, false]));
    Ok(())
}

#[test]
fn clamp_limits_and_its_default_does_not() -> Fallible<()> {
    let x = f32s(&[4], &[-5.0, 0.0, 0.5, f32::MAX]);
    assert_eq!(apply([&x], |[x]| x.clamp(0.25, f64::from(f32::MAX)))?, f32s(&[4], &[0.25, 0.25, 0.5, f32::MAX]));
    assert_eq!(apply([&x], |[x]| x.clamp(f64::from(f32::MIN), 0.25))?, f32s(&[4], &[-5.0, 0.0, 0.25, 0.25]));
    Ok(())
}

#[test]
fn casts_round_truncate_and_saturate() -> Fallible<()> {
    let x = f32s(&[6], &[-1.5, 0.0, 2.9, 3e9, -3e9, 1.000_976_6]);
    assert_eq!(cast_all(&x, DType::I32)?, TensorData::i32([6], vec![-1, 0, 2, i32::MAX, i32::MIN, 1])?);
    assert_eq!(cast_all(&x, DType::U32)?.elements(), &Elements::U32(vec![0, 0, 2, 3_000_000_000, 0, 1]));
    assert_eq!(cast_all(&x, DType::Bool)?, bools(&[6], &[true, false, true, true, true, true]));
    // Half of the last place of 1 in bf16 is 2^-8: even wins, then the larger.
    let ties = f32s(&[3], &[1.0 + 0.003_906_25, 1.0 + 3.0 * 0.003_906_25, 1.0 + 0.004]);
    assert_eq!(cast_all(&ties, DType::Bf16)?.to_f32_vec(), [1.0, 1.015_625, 1.007_812_5]);
    assert_eq!(cast_all(&f32s(&[2], &[65504.0, 1.0 + 0.000_488_281_25]), DType::F16)?.to_f32_vec(), [65504.0, 1.0]);
    let b = bools(&[2], &[true, false]);
    assert_eq!(cast_all(&b, DType::F32)?, f32s(&[2], &[1.0, 0.0]));
    assert_eq!(cast_all(&b, DType::U32)?.elements(), &Elements::U32(vec![1, 0]));
    let big = TensorData::i32([2], vec![16_777_217, -1])?;
    assert_eq!(cast_all(&big, DType::F32)?, f32s(&[2], &[16_777_216.0, -1.0]));
    assert_eq!(cast_all(&big, DType::U32)?.elements(), &Elements::U32(vec![16_777_217, u32::MAX]));
    assert_eq!(cast_all(&big, DType::Bool)?, bools(&[2], &[true, true]));
    Ok(())
}

#[test]
fn sixteen_bit_values_are_rounded_at_every_store() -> Fallible<()> {
    for precision in [Precision::F32, Precision::F64] {
        let x = TensorData::new([2], Elements::F16(vec![f16::from_f32(1.0), f16::from_f32(3.0)]))?;
        let third = apply_in(precision, [&x], |builder, [x]| vec![x.div(builder.constant(3.0, DType::F16, [])).cast(DType::F32)])?;
        assert_eq!(third[0].to_f32_vec(), [f16::from_f32(1.0 / 3.0).to_f32(), 1.0]);
        let y = TensorData::new([1], Elements::Bf16(vec![bf16::from_f32(256.0)]))?;
        let sum = apply_in(precision, [&y], |builder, [y]| vec![y.add(builder.constant(1.0, DType::Bf16, [1]))])?;
        assert_eq!(sum[0].elements(), &Elements::Bf16(vec![bf16::from_f32(256.0)]));
    }
    Ok(())
}
