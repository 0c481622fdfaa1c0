//! Reductions and running sums.

use super::*;

#[test]
fn sums_over_any_axes() -> Fallible<()> {
    let x = f32s(&[2, 3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    let sum = |axes: &[usize], keepdims| apply([&x], |[x]| x.sum(axes.to_vec(), keepdims));
    assert_eq!(sum(&[2], false)?, f32s(&[2, 3], &[3.0, 7.0, 11.0, 15.0, 19.0, 23.0]));
    assert_eq!(sum(&[0], true)?, f32s(&[1, 3, 2], &[8.0, 10.0, 12.0, 14.0, 16.0, 18.0]));
    assert_eq!(sum(&[1], false)?, f32s(&[2, 2], &[9.0, 12.0, 27.0, 30.0]));
    assert_eq!(sum(&[0, 2], false)?, f32s(&[3], &[18.0, 26.0, 34.0]));
    assert_eq!(sum(&[2, 1, 0], false)?, f32s(&[], &[78.0]));
    assert_eq!(apply([&x], |[x]| x.mean(vec![1], false))?, f32s(&[2, 2], &[3.0, 4.0, 9.0, 10.0]));
    assert_eq!(apply([&x], |[x]| x.neg().reduce_max(vec![1], true))?, f32s(&[2, 1, 2], &[-1.0, -2.0, -7.0, -8.0]));
    Ok(())
}

#[test]
fn nothing_sums_to_zero() -> Fallible<()> {
    let x = f32s(&[2, 0, 3], &[]);
    assert_eq!(apply([&x], |[x]| x.sum(vec![1], false))?, f32s(&[2, 3], &[0.0; 6]));
    assert_eq!(apply([&x], |[x]| x.sum(vec![2], false))?, f32s(&[2, 0], &[]));
    assert_eq!(apply([&x], |[x]| x.mean(vec![2], false))?, f32s(&[2, 0], &[]));
    assert_eq!(apply([&x], |[x]| x.cumsum(None, 1_usize, false, 0.0))?, x);
    assert_eq!(apply([&x], |[x]| x.argmax(2_usize))?.shape(), [2, 0]);
    Ok(())
}

#[test]
fn long_sums_keep_their_digits_along_either_axis() -> Fallible<()> {
    let n = 100_003;
    let x = f32s(&[n], &vec![0.1; n]);
    let want = f32s(&[1], &[0.1 * 100_003.0]);
    close(&apply([&x], |[x]| x.sum(vec![0], true))?, &want, 1e-6)?;
    close(&apply([&x], |[x]| x.reshape(vec![n, 1]).broadcast(vec![n, 3]).sum(vec![0], false))?, &f32s(&[3], &[10000.3; 3]), 1e-6)?;
    close(&apply([&x], |[x]| x.cumsum(None, 0_usize, false, 0.0).slice_axis(0, n - 1, n))?, &want, 3e-6)
}

#[test]
fn wide_reductions_are_cut_without_seams() -> Fallible<()> {
    let x = noisy(&[3, 130, 201], 1);
    let v = x.to_f32_vec();
    let at = |a: usize, b: usize, c: usize| f64::from(v[(a * 130 + b) * 201 + c]);
    let rows: Vec<f32> = (0..3 * 201).map(|i| narrow((0..130).map(|b| at(i / 201, b, i % 201)).sum::<f64>())).collect();
    close(&apply([&x], |[x]| x.sum(vec![1], false))?, &f32s(&[3, 201], &rows), 1e-6)?;
    let columns: Vec<f32> = (0..3 * 130).map(|i| narrow((0..201).map(|c| at(i / 130, i % 130, c)).sum::<f64>())).collect();
    close(&apply([&x], |[x]| x.sum(vec![2], false))?, &f32s(&[3, 130], &columns), 1e-6)?;
    let outer: Vec<f32> = (0..130).map(|b| narrow((0..3 * 201).map(|i| at(i / 201, b, i % 201)).sum::<f64>())).collect();
    close(&apply([&x], |[x]| x.sum(vec![0, 2], false))?, &f32s(&[130], &outer), 1e-6)
}

#[test]
fn argmax_is_the_first_largest() -> Fallible<()> {
    let x = f32s(&[3, 3], &[1.0, 5.0, 5.0, 0.0, -1.0, -2.0, 2.0, 5.0, 7.0]);
    assert_eq!(apply([&x], |[x]| x.argmax(1_usize))?.as_u32(), Some([1, 0, 2].as_slice()));
    assert_eq!(apply([&x], |[x]| x.argmax(0_usize))?.as_u32(), Some([2, 0, 2].as_slice()));
    let ints = TensorData::i32([4], vec![-3, i32::MIN, i32::MAX, i32::MAX])?;
    assert_eq!(apply([&ints], |[x]| x.argmax(0_usize))?.as_u32(), Some([2].as_slice()));
    Ok(())
}

#[test]
fn running_sums_include_themselves() -> Fallible<()> {
    let x = f32s(&[3, 2], &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    assert_eq!(apply([&x], |[x]| x.cumsum(None, 0_usize, false, 0.0))?, f32s(&[3, 2], &[1.0, 10.0, 3.0, 30.0, 6.0, 60.0]));
    assert_eq!(apply([&x], |[x]| x.cumsum(None, 0_usize, true, 0.0))?, f32s(&[3, 2], &[6.0, 60.0, 5.0, 50.0, 3.0, 30.0]));
    assert_eq!(apply([&x], |[x]| x.cumsum(None, 1_usize, true, 0.0))?, f32s(&[3, 2], &[11.0, 10.0, 22.0, 20.0, 33.0, 30.0]));
    let long = TensorData::i32([200], vec![3; 200])?;
    let want: Vec<i32> = (1..=200).map(|i| 3 * i).collect();
    assert_eq!(apply([&long], |[x]| x.cumsum(None, 0_usize, false, 0.0))?, TensorData::i32([200], want)?);
    Ok(())
}

#[test]
fn running_sums_start_anew_at_resets() -> Fallible<()> {
    let x = f32s(&[2, 4, 2], &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0, 1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0]);
    let reset = TensorData::new([2, 4], Elements::Bool(vec![true, false, true, false, false, true, true, false]))?;
    let run = |reverse| apply([&x, &reset], |[x, reset]| x.cumsum(Some(reset), 1_usize, reverse, 0.0));
    let sums = [1.0, 10.0, 3.0, 30.0, 3.0, 30.0, 7.0, 70.0, 1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 7.0, 70.0];
    assert_eq!(run(false)?, f32s(&[2, 4, 2], &sums));
    let sums = [3.0, 30.0, 2.0, 20.0, 7.0, 70.0, 4.0, 40.0, 1.0, 10.0, 2.0, 20.0, 7.0, 70.0, 4.0, 40.0];
    assert_eq!(run(true)?, f32s(&[2, 4, 2], &sums));
    Ok(())
}

#[test]
fn running_sums_modulo_a_period_keep_their_digits() -> Fallible<()> {
    let n = 100_003;
    let x = f32s(&[n], &vec![0.375; n]);
    let sums = apply([&x], |[x]| x.cumsum(None, 0_usize, false, 1.0))?;
    // Every term and sum is a multiple of 1/8, so that nothing is rounded.
    let want = |i: usize| [0.375, -0.25, 0.125, -0.5, -0.125, 0.25, -0.375, 0.0][i % 8];
    let want: Vec<f32> = (0..n).map(want).collect();
    assert_eq!(sums, f32s(&[n], &want));
    Ok(())
}

#[test]
fn a_hundred_thousand_turns_of_2_pi_stay_together() -> Fallible<()> {
    use std::f64::consts::TAU;
    let n = 100_000;
    // Each addition rounds by up to 2.4e-7, the same way in every block of equal terms; that is what remains. The rounding of
    // 2π to f32, 1.7e-7 a turn, would add 8e-3 over these 47746 turns.
    let sums = apply([&f32s(&[n], &vec![3.0; n])], |[x]| x.cumsum(None, 0_usize, false, TAU))?.to_f32_vec();
    let off = |(i, &sum): (u32, &f32)| {
        let turns = (f64::from(sum) - 3.0 * f64::from(i)) / TAU;
        (turns - turns.round()).abs() * TAU
    };
    let worst = (1_u32..).zip(&sums).map(off).fold(0.0, f64::max);
    assert!(worst < 2e-3, "off by {worst}");
    Ok(())
}

#[test]
fn the_head_of_a_period_has_twelve_bits() {
    for period in [std::f64::consts::TAU, 1.0, 0.7, 1000.1, 1e-30, f64::MIN_POSITIVE] {
        let (head, tail) = crate::ops::reduce::period_parts(period);
        assert!(head + tail == period && tail.abs() <= head / 4096.0, "{period}: {head} {tail}");
        #[expect(clippy::cast_possible_truncation, reason = "heads are short")]
        let narrow = head as f32;
        assert!(period < 1e-37 || f64::from(narrow) == head && f64::from(narrow * 4095.0) == head * 4095.0, "{period}: {head}");
    }
}
