//! Convolution and scan: against loops over the definition, with resets, and cut in two.

use super::*;

/// A convolution by its definition: `x [B, L, C]`, taps newest last, window `[B, C, K-1]`.
fn naive_conv(x: &TensorData, w: &TensorData, bias: &[f32], state: &[f32], reset: &[bool]) -> (Vec<f32>, Vec<f32>) {
    let [batch, len, channels] = *x.shape() else { return (vec![], vec![]) };
    let (taps, x, w) = (w.shape()[1], x.to_f32_vec(), w.to_f32_vec());
    let past = taps - 1;
    // What token `t` sees at time `at`, which is negative in the window.
    let seen = |b: usize, c: usize, t: isize, at: isize| -> f64 {
        let crossed = (at + 1..=t).any(|s| s > 0 && reset[b * len + usize::try_from(s).unwrap()]);
        match usize::try_from(at) {
            _ if crossed => 0.0,
            Ok(at) => f64::from(x[(b * len + at) * channels + c]),
            Err(_) => f64::from(state[(b * channels + c) * past + usize::try_from(at + past as isize).unwrap()]),
        }
    };
    let (mut y, mut window) = (Vec::new(), Vec::new());
    for b in 0..batch {
        for t in 0..len as isize {
            for c in 0..channels {
                let terms = (0..taps).map(|j| f64::from(w[c * taps + j]) * seen(b, c, t, t - past as isize + j as isize));
                y.push(narrow(f64::from(bias[c]) + terms.sum::<f64>()));
            }
        }
        for c in 0..channels {
            for i in 0..past as isize {
                window.push(narrow(seen(b, c, len as isize - 1, len as isize - past as isize + i)));
            }
        }
    }
    (y, window)
}

fn resets(batch: usize, len: usize) -> Vec<bool> {
    // The first token's reset has no effect; entry 1 has none at all; entry 2 begins anew at its last token.
    (0..batch * len).map(|i| [[0, 3].as_slice(), &[], &[2, len - 1]][i / len].contains(&(i % len))).collect()
}

#[test]
fn convolution_follows_its_definition() -> Fallible<()> {
    for (len, taps) in [(1, 4), (2, 4), (7, 4), (5, 1), (5, 2)] {
        let (batch, channels) = (3, 5);
        let (x, w) = (noisy(&[batch, len, channels], 1), noisy(&[channels, taps], 2));
        let (bias, state) = (noisy(&[channels], 3), noisy(&[batch, channels, taps - 1], 4));
        let reset = bools(&[batch, len], &resets(batch, len));
        let (y, window) = naive_conv(&x, &w, &bias.to_f32_vec(), &state.to_f32_vec(), &resets(batch, len));
        let got = apply_in(Precision::F32, [&x, &w, &bias, &state, &reset], |_, [x, w, bias, state, reset]| {
            let (y, state_out) = x.conv1d(w, Some(bias), Some(state), Some(reset), false);
            vec![y, state_out]
        })?;
        close(&got[0], &f32s(&[batch, len, channels], &y), 1e-6)?;
        close(&got[1], &f32s(&[batch, channels, taps - 1], &window), 0.0)?;
        let no_reset = vec![false; batch * len];
        let (y, window) = naive_conv(&x, &w, &vec![0.0; channels], &vec![0.0; state.to_f32_vec().len()], &no_reset);
        let got = apply_in(Precision::F32, [&x, &w], |_, [x, w]| {
            let (y, state_out) = x.conv1d(w, None, None, None, false);
            vec![y, state_out]
        })?;
        close(&got[0], &f32s(&[batch, len, channels], &y), 1e-6)?;
        close(&got[1], &f32s(&[batch, channels, taps - 1], &window), 0.0)?;
    }
    Ok(())
}

#[test]
fn convolution_by_hand() -> Fallible<()> {
    let (x, w) = (f32s(&[1, 4, 1], &[1.0, 2.0, 3.0, 4.0]), f32s(&[1, 3], &[100.0, 10.0, 1.0]));
    let state = f32s(&[1, 1, 2], &[8.0, 9.0]);
    let reset = bools(&[1, 4], &[true, false, true, false]);
    let run = |newest_first: bool| {
        apply_in(Precision::F32, [&x, &w, &state, &reset], |_, [x, w, state, reset]| {
            let (y, state_out) = x.conv1d(w, None, Some(state), Some(reset), newest_first);
            vec![y, state_out]
        })
    };
    let got = run(false)?;
    assert_eq!(got[0].to_f32_vec(), [891.0, 912.0, 3.0, 34.0]);
    assert_eq!(got[1].to_f32_vec(), [3.0, 4.0]);
    assert_eq!(run(true)?[0].to_f32_vec(), [198.0, 219.0, 300.0, 430.0]);
    Ok(())
}

#[test]
fn convolution_of_no_tokens_returns_its_window() -> Fallible<()> {
    let (x, w, state) = (f32s(&[3, 0, 2], &[]), noisy(&[2, 4], 1), noisy(&[3, 2, 3], 2));
    let reset = bools(&[3, 0], &[]);
    let got = apply_in(Precision::F32, [&x, &w, &state, &reset], |_, [x, w, state, reset]| {
        let (y, state_out) = x.conv1d(w, None, Some(state), Some(reset), false);
        vec![y, state_out]
    })?;
    assert_eq!((&got[0], &got[1]), (&x, &state));
    Ok(())
}

#[test]
fn convolution_does_not_depend_on_where_it_is_cut() -> Fallible<()> {
    let (x, w, state) = (noisy(&[3, 6, 4], 1), noisy(&[4, 4], 2), noisy(&[3, 4, 3], 3));
    for cut in 0..=6 {
        let got = apply_in(Precision::F32, [&x, &w, &state], |builder, [x, w, state]| {
            let whole = x.conv1d(w, None, Some(state), None, false);
            let first = x.slice_axis(1, 0, cut).conv1d(w, None, Some(state), None, false);
            let second = x.slice_axis(1, cut, 6).conv1d(w, None, Some(first.1), None, false);
            vec![whole.0, whole.1, builder.concat(&[first.0, second.0], 1_usize), second.1]
        })?;
        assert_eq!((&got[0], &got[1]), (&got[2], &got[3]), "cut at {cut}");
    }
    Ok(())
}

struct Sizes {
    batch: usize,
    len: usize,
    heads: usize,
    groups: usize,
    ranks: usize,
    headdim: usize,
    d_state: usize,
}

impl Sizes {
    /// The five operands in order.
    fn operands(&self) -> [TensorData; 5] {
        let Self { batch, len, heads, groups, ranks, headdim, d_state } = *self;
        let decay: Vec<f32> = noise(batch * len * heads, 1).iter().map(|x| -x.abs()).collect();
        [
            f32s(&[batch, len, heads], &decay),
            noisy(&[batch, len, heads, ranks, headdim], 2),
            noisy(&[batch, len, groups, ranks, d_state], 3),
            noisy(&[batch, len, groups, ranks, d_state], 4),
            noisy(&[batch, heads, headdim, d_state], 5),
        ]
    }

    /// The recurrence by its definition, in f64.
    fn naive(&self, operands: [&TensorData; 5], reset: &[bool]) -> [TensorData; 2] {
        let ones = vec![1.0; self.batch * self.len * self.heads];
        self.naive_weighted(operands, reset, [&ones, &ones])
    }

    /// As [`Self::naive`], with the weight of each token and that of its own output.
    fn naive_weighted(&self, [log_decay, v, k, q, s0]: [&TensorData; 5], reset: &[bool], weights: [&[f32]; 2]) -> [TensorData; 2] {
        let Self { batch, len, heads, groups, ranks, headdim, d_state } = *self;
        let wide = |x: &TensorData| x.to_f32_vec().into_iter().map(f64::from).collect::<Vec<_>>();
        let (log_decay, v, k, q, mut s) = (wide(log_decay), wide(v), wide(k), wide(q), wide(s0));
        let mut y = vec![0.0_f64; batch * len * heads * ranks * headdim];
        for b in 0..batch {
            for t in 0..len {
                for h in 0..heads {
                    let token = b * len + t;
                    let decay = if t > 0 && reset[token] { 0.0 } else { log_decay[token * heads + h].exp() };
                    let group = token * groups + h / (heads / groups);
                    let [weight, own_weight] = weights.map(|weight| f64::from(weight[token * heads + h]));
                    for p in 0..headdim {
                        let row = &mut s[((b * heads + h) * headdim + p) * d_state..][..d_state];
                        for (n, s) in row.iter_mut().enumerate() {
                            let add = |r: usize| v[((token * heads + h) * ranks + r) * headdim + p] * k[(group * ranks + r) * d_state + n];
                            let added = (0..ranks).map(add).sum::<f64>();
                            for r in 0..ranks {
                                y[((token * heads + h) * ranks + r) * headdim + p] +=
                                    (*s * decay + own_weight * added) * q[(group * ranks + r) * d_state + n];
                            }
                            *s = *s * decay + weight * added;
                        }
                    }
                }
            }
        }
        let [y, s] = [y, s].map(|x| x.into_iter().map(narrow).collect::<Vec<f32>>());
        [f32s(&[batch, len, heads, ranks, headdim], &y), f32s(&[batch, heads, headdim, d_state], &s)]
    }
}

#[test]
fn scan_follows_its_definition() -> Fallible<()> {
    for (len, heads, groups, ranks, d_state) in [(1, 2, 1, 1, 7), (9, 6, 3, 1, 19), (9, 4, 2, 2, 5), (5, 3, 3, 3, 8)] {
        let sizes = Sizes { batch: 3, len, heads, groups, ranks, headdim: 5, d_state };
        let [log_decay, v, k, q, s0] = sizes.operands();
        let flags = resets(3, len);
        let reset = bools(&[3, len], &flags);
        let want = sizes.naive([&log_decay, &v, &k, &q, &s0], &flags);
        for (precision, tolerance) in [(Precision::F32, 1e-6), (Precision::F64, 1e-7)] {
            let got = apply_in(precision, [&log_decay, &v, &k, &q, &s0, &reset], |_, [log_decay, v, k, q, s0, reset]| {
                let (y, s_last) = log_decay.scan(v, k, q, Some(s0), Some(reset), None, None, 4_usize);
                vec![y, s_last]
            })?;
            close(&got[0], &want[0], tolerance)?;
            close(&got[1], &want[1], tolerance)?;
        }
        let zeros = f32s(s0.shape(), &vec![0.0; s0.to_f32_vec().len()]);
        let want = sizes.naive([&log_decay, &v, &k, &q, &zeros], &vec![false; 3 * len]);
        let got = apply([&log_decay, &v, &k, &q], |[log_decay, v, k, q]| log_decay.scan(v, k, q, None, None, None, None, 0_usize).0)?;
        close(&got, &want[0], 1e-6)?;
    }
    Ok(())
}

#[test]
fn weights_of_a_scan_follow_their_definition() -> Fallible<()> {
    for (len, heads, groups, ranks, d_state) in
        [(1, 2, 1, 1, 7), (9, 6, 3, 1, 19), (9, 4, 2, 2, 5), (5, 3, 3, 3, 8), (0, 2, 1, 1, 3), (3, 2, 1, 0, 3)]
    {
        let sizes = Sizes { batch: 3, len, heads, groups, ranks, headdim: 5, d_state };
        let [log_decay, v, k, q, s0] = sizes.operands();
        let flags = resets(3, len);
        let reset = bools(&[3, len], &flags);
        let [weight, own] = [6, 7].map(|seed| noisy(&[3, len, heads], seed));
        let ones = f32s(&[3, len, heads], &vec![1.0; 3 * len * heads]);
        for (has_weight, has_own) in [(true, true), (true, false), (false, true)] {
            let in_state = if has_weight { &weight } else { &ones };
            let in_output = if has_own { &own } else { in_state };
            let weights = [in_state, in_output].map(TensorData::to_f32_vec);
            let want = sizes.naive_weighted([&log_decay, &v, &k, &q, &s0], &flags, [&weights[0], &weights[1]]);
            for (precision, tolerance) in [(Precision::F32, 1e-6), (Precision::F64, 1e-7)] {
                let operands = [&log_decay, &v, &k, &q, &s0, &reset, &weight, &own];
                let got = apply_in(precision, operands, |_, [log_decay, v, k, q, s0, reset, weight, own]| {
                    let (weight, own) = (has_weight.then_some(weight), has_own.then_some(own));
                    let (y, s_last) = log_decay.scan(v, k, q, Some(s0), Some(reset), weight, own, 4_usize);
                    vec![y, s_last]
                })?;
                close(&got[0], &want[0], tolerance)?;
                close(&got[1], &want[1], tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn weights_of_a_scan_are_one_a_token_and_head() {
    let message = |shape: [usize; 3], dtype| {
        let g = GraphBuilder::new("g");
        let input = |name, shape: &[usize]| g.input(name, DType::F32, shape);
        let [v, k, q] = ["v", "k", "q"].map(|name| input(name, &[3, 5, 2, 1, 4]));
        let own_weight = g.input("own_weight", dtype, shape);
        g.output("y", input("log_decay", &[3, 5, 2]).scan(v, k, q, None, None, None, Some(own_weight), 0_usize).0);
        g.finish().map(|_| ()).map_err(|errors| errors.to_string())
    };
    assert_eq!(message([3, 5, 2], DType::F32), Ok(()));
    for (shape, dtype) in [([3, 5, 1], DType::F32), ([3, 4, 2], DType::F32), ([3, 5, 2], DType::F16)] {
        let error = message(shape, dtype).unwrap_err();
        assert!(error.contains("scan: own_weight"), "{error}");
    }
}

#[test]
fn scan_of_empty_sizes() -> Fallible<()> {
    let scan = |len, ranks, headdim, d_state| {
        let sizes = Sizes { batch: 3, len, heads: 2, groups: 1, ranks, headdim, d_state };
        let [log_decay, v, k, q, s0] = sizes.operands();
        let want = sizes.naive([&log_decay, &v, &k, &q, &s0], &vec![false; 3 * len]);
        let got = apply_in(Precision::F32, [&log_decay, &v, &k, &q, &s0], |_, [log_decay, v, k, q, s0]| {
            let (y, s_last) = log_decay.scan(v, k, q, Some(s0), None, None, None, 0_usize);
            vec![y, s_last]
        })?;
        close(&got[0], &want[0], 1e-6)?;
        close(&got[1], &want[1], 1e-6)
    };
    scan(0, 1, 3, 4)?;
    scan(4, 0, 3, 4)?;
    scan(4, 2, 0, 4)?;
    scan(4, 1, 3, 0)
}

#[test]
fn scan_does_not_depend_on_where_it_is_cut() -> Fallible<()> {
    let [log_decay, v, k, q, s0] = Sizes { batch: 3, len: 6, heads: 2, groups: 1, ranks: 2, headdim: 3, d_state: 11 }.operands();
    for cut in 0..=6 {
        let got = apply_in(Precision::F32, [&log_decay, &v, &k, &q, &s0], |builder, [log_decay, v, k, q, s0]| {
            let whole = log_decay.scan(v, k, q, Some(s0), None, None, None, 0_usize);
            let run = |from, to, s| {
                let [log_decay, v, k, q] = [log_decay, v, k, q].map(|x| x.slice_axis(1, from, to));
                log_decay.scan(v, k, q, Some(s), None, None, None, 0_usize)
            };
            let first = run(0, cut, s0);
            let second = run(cut, 6, first.1);
            vec![whole.0, whole.1, builder.concat(&[first.0, second.0], 1_usize), second.1]
        })?;
        assert_eq!((&got[0], &got[1]), (&got[2], &got[3]), "cut at {cut}");
    }
    Ok(())
}

/// Vectors of the reference written with `NumPy`, computed there in f64 (its cases `conv_k4_0` and `ssd_0_h0`).
#[test]
fn reference_vectors() -> Fallible<()> {
    let x = f32s(&[1, 1, 3], &[1.261_081_1, -0.210_809_36, -1.840_120_6]);
    let w = f32s(
        &[3, 4],
        &[
            -2.243_089_7,
            1.087_346_1,
            -0.521_410_6,
            -1.748_107_1,
            0.704_015_2,
            -0.416_295_1,
            -2.469_936_6,
            -0.836_112_8,
            -1.417_773_6,
            0.303_312_6,
            -0.525_565_45,
            -1.336_665_3,
        ],
    );
    let bias = f32s(&[3], &[0.755_166_6, 0.620_106_34, 0.998_103_86]);
    let window =
        [0.138_511_46, 2.032_531, -0.260_925_4, -0.296_592_7, 0.351_701_3, -1.963_502_6, -0.235_915_23, -0.299_693_82, 2.590_500_4];
    let got = apply_in(Precision::F32, [&x, &w, &bias, &f32s(&[1, 3, 3], &window)], |_, [x, w, bias, state]| {
        let (y, state_out) = x.conv1d(w, Some(bias), Some(state), None, false);
        vec![y.silu(), state_out]
    })?;
    close(&got[0], &f32s(&[1, 1, 3], &[0.376_537_62, 5.264_358, 2.134_206]), 1e-6)?;
    let window = [2.032_531, -0.260_925_4, 1.261_081_1, 0.351_701_3, -1.963_502_6, -0.210_809_36, -0.299_693_82, 2.590_500_4, -1.840_120_6];
    assert_eq!(got[1], f32s(&[1, 3, 3], &window));

    let [x, dt, b, c, h0] = [-0.559_719_56, 1.102_532_9, 1.828_124_4, 0.797_072_5, -0.725_893_f32].map(|x| f32s(&[1, 1, 1, 1], &[x]));
    let got = apply_in(Precision::F32, [&x, &dt, &b, &c, &h0], |builder, [x, dt, b, c, h0]| {
        let dt = (dt - 2.314_054_250_717_163).softplus();
        let log_decay = (dt * builder.scalar(0.203_776_791_691_780_1).exp().neg()).reshape(vec![1, 1, 1]);
        let [v, k, q] = [x * dt, b, c].map(|x| x.reshape(vec![1, 1, 1, 1, 1]));
        let (y, h) = log_decay.scan(v, k, q, Some(h0), None, None, None, 0_usize);
        vec![y.reshape(vec![1]).add(x.reshape(vec![1]) * -1.016_061_186_790_466_3), h]
    })?;
    close(&got[0], &f32s(&[1], &[-0.064_194_076]), 1e-6)?;
    close(&got[1], &f32s(&[1, 1, 1, 1], &[-0.794_034_96]), 1e-6)
}
