//! Matrix products against loops.

use super::*;
use half::{bf16, f16};

/// Product of `[batch, m, k]` and `[k, n]` or `[batch, k, n]`, in f64.
fn naive(lhs: &[f32], rhs: &[f32], [batch, m, k, n]: [usize; 4], rhs_is_batched: bool) -> TensorData {
    let mut out = Vec::new();
    for b in 0..batch {
        let rhs = if rhs_is_batched { &rhs[b * k * n..] } else { rhs };
        for row in 0..m {
            for column in 0..n {
                let term = |i: usize| f64::from(lhs[(b * m + row) * k + i]) * f64::from(rhs[i * n + column]);
                out.push(narrow((0..k).map(term).sum::<f64>()));
            }
        }
    }
    f32s(&[batch, m, n], &out)
}

fn transpose(x: Tensor<'_>) -> Tensor<'_> {
    let rank = x.shape().len();
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    x.permute(axes)
}

#[test]
fn every_transposition_and_path_agrees_with_loops() -> Fallible<()> {
    // One row, few rows, short, long enough for whole row blocks; odd sizes throughout.
    for m in [1, 3, 7, 67] {
        let (k, n) = (37, 53);
        let (lhs, rhs) = (noisy(&[1, m, k], 1), noisy(&[k, n], 2));
        let want = naive(&lhs.to_f32_vec(), &rhs.to_f32_vec(), [1, m, k, n], false);
        close(&apply([&lhs, &rhs], |[a, b]| a.matmul(b, false, false))?, &want, 1e-6)?;
        close(&apply([&lhs, &rhs], |[a, b]| a.matmul(transpose(b), false, true))?, &want, 1e-6)?;
        close(&apply([&lhs, &rhs], |[a, b]| transpose(a).matmul(b, true, false))?, &want, 1e-6)?;
        close(&apply([&lhs, &rhs], |[a, b]| transpose(a).matmul(transpose(b), true, true))?, &want, 1e-6)?;
    }
    Ok(())
}

#[test]
fn leading_axes_broadcast() -> Fallible<()> {
    let [batch, m, k, n] = [3, 5, 9, 4];
    let (lhs, rhs, shared) = (noisy(&[batch, m, k], 1), noisy(&[batch, k, n], 2), noisy(&[k, n], 3));
    let (a, b) = (lhs.to_f32_vec(), rhs.to_f32_vec());
    close(&apply([&lhs, &rhs], |[a, b]| a.matmul(b, false, false))?, &naive(&a, &b, [batch, m, k, n], true), 1e-6)?;
    close(&apply([&lhs, &shared], |[a, b]| a.matmul(b, false, false))?, &naive(&a, &shared.to_f32_vec(), [batch, m, k, n], false), 1e-6)?;
    // [2, 1, m, k] with [3, k, n]: the left one is read three times, the right one twice.
    let pair = noisy(&[2, 1, m, k], 4);
    let got = apply([&pair, &rhs], |[a, b]| a.matmul(b, false, false))?;
    assert_eq!(got.shape(), [2, 3, m, n]);
    let repeated: Vec<f32> = (0..6).flat_map(|i| pair.to_f32_vec()[i / 3 * m * k..][..m * k].to_vec()).collect();
    let want = naive(&repeated, &[b.clone(), b].concat(), [6, m, k, n], true);
    close(&apply([&got], |[x]| x.reshape(vec![6, m, n]))?, &want, 1e-6)
}

#[test]
fn large_products_are_shared_out_without_seams() -> Fallible<()> {
    for [batch, m, k, n] in [[1, 1, 300, 1001], [1, 4, 300, 401], [1, 33, 131, 257], [1, 130, 131, 129], [2, 70, 65, 66], [7, 3, 5, 6]] {
        let (lhs, rhs) = (noisy(&[batch, m, k], 5), noisy(&[batch, n, k], 6));
        let rhs_t = apply([&rhs], |[b]| transpose(b))?;
        let want = naive(&lhs.to_f32_vec(), &rhs_t.to_f32_vec(), [batch, m, k, n], true);
        close(&apply([&lhs, &rhs], |[a, b]| a.matmul(b, false, true))?, &want, 1e-6)?;
        close(&apply([&lhs, &rhs_t], |[a, b]| a.matmul(b, false, false))?, &want, 1e-6)?;
    }
    Ok(())
}

#[test]
fn sixteen_bit_operands_are_widened_and_the_result_is_f32() -> Fallible<()> {
    for (m, dtype) in [(1, DType::Bf16), (6, DType::F16), (70, DType::Bf16)] {
        let (k, n) = (19, 23);
        let (lhs, rhs) = (cast_all(&noisy(&[1, m, k], 7), DType::F16)?, cast_all(&noisy(&[k, n], 8), dtype)?);
        let want = naive(&lhs.to_f32_vec(), &rhs.to_f32_vec(), [1, m, k, n], false);
        let got = apply([&lhs, &rhs], |[a, b]| a.matmul(transpose(b), false, true))?;
        assert!(got.as_f32().is_some());
        close(&got, &want, 1e-6)?;
        close(&apply([&lhs, &rhs], |[a, b]| a.matmul(b, false, false))?, &want, 1e-6)?;
    }
    let x = TensorData::new([1, 1], Elements::Bf16(vec![bf16::from_f32(3.0)]))?;
    let y = TensorData::new([1, 1], Elements::F16(vec![f16::from_f32(0.5)]))?;
    assert_eq!(apply([&x, &y], |[x, y]| x.matmul(y, false, false))?, f32s(&[1, 1], &[1.5]));
    Ok(())
}

#[test]
fn empty_sizes_give_zeros_or_nothing() -> Fallible<()> {
    let product = |lhs: &[usize], rhs: &[usize]| apply([&noisy(lhs, 1), &noisy(rhs, 2)], |[a, b]| a.matmul(b, false, true));
    assert_eq!(product(&[2, 0], &[3, 0])?, f32s(&[2, 3], &[0.0; 6]));
    assert_eq!(product(&[2, 0, 4], &[3, 4])?, f32s(&[2, 0, 3], &[]));
    assert_eq!(product(&[0, 2, 4], &[3, 4])?, f32s(&[0, 2, 3], &[]));
    assert_eq!(product(&[2, 4], &[0, 4])?, f32s(&[2, 0], &[]));
    Ok(())
}

#[test]
fn f64_is_closer_than_f32() -> Fallible<()> {
    let (lhs, rhs) = (noisy(&[1, 5, 999], 9), noisy(&[999, 3], 10));
    let exact = naive(&lhs.to_f32_vec(), &rhs.to_f32_vec(), [1, 5, 999, 3], false);
    let product = |precision| apply_in(precision, [&lhs, &rhs], |_, [a, b]| vec![a.matmul(b, false, false)]);
    assert_eq!(product(Precision::F64)?[0], exact);
    close(&product(Precision::F32)?[0], &exact, 1e-6)
}
