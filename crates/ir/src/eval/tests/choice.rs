//! Tokens drawn from rows of logits.

use super::*;

/// What `settings` and each of `uniforms` draw from a row of logits.
fn drawn(logits: &[f32], settings: [f32; 4], uniforms: &[f32]) -> Fallible<Vec<u32>> {
    let n = uniforms.len();
    let rows = f32s(&[n, logits.len()], &logits.repeat(n));
    let settings = f32s(&[n, 4], &settings.repeat(n));
    let tokens = apply([&rows, &settings, &f32s(&[n], uniforms)], |[x, settings, uniform]| x.sample(settings, uniform))?;
    Ok(tokens.as_u32().ok_or("tokens are u32")?.to_vec())
}

/// Share of each of `n` tokens over a fine grid of numbers.
fn shares(logits: &[f32], settings: [f32; 4]) -> Fallible<Vec<f64>> {
    let n = 4000u16;
    let grid: Vec<f32> = (0..n).map(|i| (f32::from(i) + 0.5) / f32::from(n)).collect();
    let mut shares = vec![0.0; logits.len()];
    for token in drawn(logits, settings, &grid)? {
        shares[token as usize] += 1.0 / f64::from(n);
    }
    Ok(shares)
}

fn assert_close(shares: &[f64], weights: &[f64]) {
    let total: f64 = weights.iter().sum();
    for (share, weight) in shares.iter().zip(weights) {
        assert!((share - weight / total).abs() < 1e-3, "{shares:?} for {weights:?}");
    }
}

#[test]
fn tokens_come_as_often_as_they_are_likely() -> Fallible<()> {
    let weights = [0.1f64, 0.4, 0.05, 0.3, 0.15];
    let logits: Vec<f32> = weights.iter().map(|&weight| narrow(weight.ln() + 7.0)).collect();
    assert_close(&shares(&logits, [1.0, 0.0, 0.0, 0.0])?, &weights);
    assert_close(&shares(&logits, [0.5, 0.0, 0.0, 0.0])?, &weights.map(|weight| weight * weight));
    assert_close(&shares(&logits, [1.0, 2.0, 0.0, 0.0])?, &[0.0, 0.4, 0.0, 0.3, 0.0]);
    // 0.4 and 0.3 are less than 0.8, with 0.15 more.
    assert_close(&shares(&logits, [1.0, 0.0, 0.8, 0.0])?, &[0.0, 0.4, 0.0, 0.3, 0.15]);
    // Of 0.4, 0.3 and 0.15, the share 0.8 is reached by two.
    assert_close(&shares(&logits, [1.0, 3.0, 0.8, 0.0])?, &[0.0, 0.4, 0.0, 0.3, 0.0]);
    assert_close(&shares(&logits, [1.0, 0.0, 0.0, 0.3])?, &[0.0, 0.4, 0.0, 0.3, 0.15]);
    // The temperature comes before the share of the largest.
    assert_close(&shares(&logits, [0.5, 0.0, 0.0, 0.3])?, &[0.0, 0.16, 0.0, 0.09, 0.0]);
    Ok(())
}

#[test]
fn rules_are_off_outside_of_their_range_and_equal_logits_stay_together() -> Fallible<()> {
    let logits = [1.0, 3.0, 2.0, 3.0, 2.0, 0.0];
    let weights: Vec<f64> = logits.iter().map(|&x| f64::from(x).exp()).collect();
    for off in [[1.0, 6.0, 1.0, 0.0], [1.0, 9.0, -0.5, -1.0], [1.0, -1.0, 1.5, 0.0], [1.0, 0.5, 0.0, 0.0]] {
        assert_close(&shares(&logits, off)?, &weights);
    }
    let halves = [0.0, 1.0, 0.0, 1.0, 0.0, 0.0];
    for largest in [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1e-6, 0.0], [1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 7.0], [1e-9, 0.0, 0.0, 0.0]] {
        assert_close(&shares(&logits, largest)?, &halves);
    }
    let four = [0.0, weights[1], weights[2], weights[1], weights[2], 0.0];
    assert_close(&shares(&logits, [1.0, 3.0, 0.0, 0.0])?, &four);
    Ok(())
}

#[test]
fn without_a_temperature_the_first_largest_is_chosen() -> Fallible<()> {
    for temperature in [0.0, -0.0, -1.0, f32::NAN] {
        assert_eq!(drawn(&[1.0, 3.0, 2.0, 3.0], [temperature, 2.0, 0.5, 0.1], &[0.0, 0.6, 0.99])?, [1, 1, 1]);
    }
    assert_eq!(drawn(&[5.0], [1.0, 1.0, 0.5, 0.1], &[0.0, 0.6, 0.99])?, [0, 0, 0]);
    // What is not finite has no token.
    for logits in [[1.0, f32::NAN, 2.0], [f32::NEG_INFINITY; 3], [0.0, f32::INFINITY, 9.0]] {
        for temperature in [0.0, 1.0] {
            assert_eq!(drawn(&logits, [temperature, 0.0, 0.0, 0.0], &[0.9])?, [3]);
        }
    }
    // Minus infinity is a token that is never drawn.
    assert_eq!(drawn(&[0.0, f32::NEG_INFINITY, 0.0], [1.0, 0.0, 0.0, 0.0], &[0.0, 0.49, 0.51, 0.9999])?, [0, 0, 2, 2]);
    Ok(())
}

#[test]
fn rows_have_settings_of_their_own_and_shapes_are_checked() -> Fallible<()> {
    let logits = f32s(&[3, 1, 2], &[0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    let settings = f32s(&[3, 1, 4], &[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    let uniform = f32s(&[3, 1], &[0.0, 0.9, 0.9]);
    let sample = |logits: &TensorData, settings: &TensorData, uniform: &TensorData| {
        apply([logits, settings, uniform], |[x, settings, uniform]| x.sample(settings, uniform))
    };
    assert_eq!(sample(&logits, &settings, &uniform)?, TensorData::new([3, 1], Elements::U32(vec![1, 0, 1]))?);
    let message = |settings: &TensorData, uniform: &TensorData| sample(&logits, settings, uniform).unwrap_err().to_string();
    assert!(message(&f32s(&[3, 1, 3], &[0.0; 9]), &uniform).contains("settings"));
    assert!(message(&settings, &f32s(&[3], &[0.0; 3])).contains("uniform"));
    let none = sample(&f32s(&[3, 1, 0], &[]), &settings, &uniform).unwrap_err().to_string();
    assert!(none.contains("sample: logits f32[3, 1, 0] have no tokens"), "{none}");
    Ok(())
}
