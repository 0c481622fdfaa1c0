//! Guards that any split of a sequence gives the same results and states as the whole, one token at a time included, for
//! blocks of every kind with random options.

mod support;

use monopass_blocks::cases::Tensors;
use monopass_blocks::mamba3::RopePairs;
use monopass_blocks::{AAct, BlockConfig, Io, Mamba2Config, Mamba3Config, NormKind, Taps, block, init};
use monopass_ir::TensorData;
use monopass_ir::eval::{Interpreter, Precision};
use support::{Choices, Result, noise, tokens};

/// A random block of width 8 or 12.
fn any_block(choose: &mut Choices) -> BlockConfig {
    let d_model = choose.of(&[8, 12]);
    let (headdim, ngroups) = (choose.of(&[2, 4]), choose.of(&[1, 2]));
    if choose.flag() {
        return any_mamba3(choose, &Mamba3Config { headdim, ngroups, ..Mamba3Config::new(d_model) }).into();
    }
    let base = choose.of(&[Mamba2Config::new, Mamba2Config::seed, Mamba2Config::cmamba, Mamba2Config::cmamba])(d_model);
    let config = Mamba2Config {
        headdim,
        ngroups,
        d_state: choose.of(&[1, 2, 3, 5]),
        mimo_rank: if base.complex { choose.of(&[1, 2, 3]) } else { 1 },
        d_conv: choose.of(&[1, 2, 4]),
        gate: choose.flag(),
        conv_act: choose.flag(),
        norm: choose.of(&[NormKind::None, NormKind::AfterGate, NormKind::BeforeGate]),
        d_has_hdim: choose.flag(),
        taps: choose.of(&[Taps::NewestFirst, Taps::NewestLast]),
        dt_limit: choose.of(&[[0.0, f32::MAX], [0.05, 0.4]]),
        ..base
    };
    config.into()
}

fn any_mamba3(choose: &mut Choices, base: &Mamba3Config) -> Mamba3Config {
    Mamba3Config {
        d_state: choose.of(&[4, 5, 6, 8]),
        rope_fraction: choose.of(&[0.5, 1.0]),
        a_act: choose.of(&[AAct::Softplus, AAct::HeavyTail]),
        is_mimo: choose.flag(),
        mimo_rank: choose.of(&[1, 2, 3]),
        is_outproj_norm: choose.flag(),
        rope_pairs: choose.of(&[None, None, Some(RopePairs::Interleaved), Some(RopePairs::Halves)]),
        ..base.clone()
    }
}

/// Values for the parameters from a wide range, so that every one of them has a say.
fn any_params(config: &BlockConfig, seed: u32) -> Result<Tensors> {
    let mut params = Tensors::new();
    for (i, (name, tensor)) in init::block(config, 1)?.into_iter().enumerate() {
        let values = noise(tensor.shape(), seed.wrapping_mul(31).wrapping_add(u32::try_from(i)?))?;
        params.insert(name, values);
    }
    Ok(params)
}

/// The block on `u`, cut after the tokens in `cuts`, with states carried by the graph or by the caller.
fn in_parts(config: &BlockConfig, params: &Tensors, u: &TensorData, cuts: &[usize], io: Io) -> Result<Tensors> {
    let (batch, len) = (u.shape()[0], u.shape()[1]);
    let mut states = Tensors::new();
    let mut rows = vec![Vec::new(); batch];
    let ends = cuts.iter().copied().chain([len]);
    for (start, end) in [0].into_iter().chain(cuts.iter().copied()).zip(ends) {
        let graph = block::graph(config, batch, end - start, io)?;
        let mut inputs: Tensors = [("u".to_owned(), tokens(u, start, end)?)].into();
        if io == Io::Explicit {
            for (name, value) in graph.inputs().filter(|(name, _)| name.ends_with("state")) {
                let state = states.get(name).cloned().unwrap_or_else(|| TensorData::zeros(graph.ty(value)));
                inputs.insert(name.to_owned(), state);
            }
        }
        let outputs = Interpreter::new(&graph)?.precision(Precision::F32).run(&inputs, params, &mut states)?;
        let out = outputs["out"].to_f32_vec();
        let width = out.len() / batch;
        rows.iter_mut().enumerate().for_each(|(b, row)| row.extend_from_slice(&out[b * width..(b + 1) * width]));
        let kept = outputs.into_iter().filter_map(|(name, state)| Some((name.strip_suffix("_out")?.to_owned(), state)));
        states.extend(kept);
    }
    states.insert("out".to_owned(), TensorData::f32(u.shape(), rows.concat())?);
    Ok(states)
}

/// Largest difference relative to the larger of 1 and the peak; angles differ modulo a turn.
fn difference(name: &str, a: &TensorData, b: &TensorData) -> f64 {
    let (a, b) = (a.to_f32_vec(), b.to_f32_vec());
    let peak = a.iter().fold(1.0, |peak, x| x.abs().max(peak));
    let turn = std::f64::consts::TAU;
    let distance = |(&a, &b): (&f32, &f32)| {
        let distance = (f64::from(a) - f64::from(b)).abs();
        if name == "angle_state" { (distance % turn).min(turn - distance % turn) } else { distance }
    };
    // A NaN counts as far.
    a.iter().zip(&b).map(distance).fold(0.0, |max, x| if x <= max { max } else { x }) / f64::from(peak)
}

#[test]
fn any_split_gives_the_same_as_the_whole() -> Result {
    let mut kinds = [0; 3];
    for seed in 0..200 {
        let choose = &mut Choices::new(seed);
        let config = any_block(choose);
        kinds[["mamba2", "cmamba", "mamba3"].iter().position(|kind| *kind == config.kind()).ok_or("another kind")?] += 1;
        let (batch, len) = (choose.of(&[1, 3]), choose.of(&[1, 2, 5, 9]));
        let u = noise(&[batch, len, config.d_model()], seed)?;
        let params = any_params(&config, seed)?;
        let whole = in_parts(&config, &params, &u, &[], Io::Stateful)?;
        let each: Vec<usize> = (1..len).collect();
        let mut some: Vec<usize> = (0..choose.of(&[1, 2, 3])).map(|_| choose.below(len + 1)).collect();
        some.sort_unstable();
        for (cuts, io) in [(each, Io::Stateful), (some, choose.of(&[Io::Explicit, Io::Stateful]))] {
            let parts = in_parts(&config, &params, &u, &cuts, io)?;
            assert_eq!(whole.len(), config.sizes()?.states().len() + 1);
            for (name, tensor) in &whole {
                let off = difference(name, tensor, &parts[name]);
                assert!(off < 3e-5, "seed {seed}: {name} differs by {off} after {cuts:?} of {len} in {config:?}");
            }
        }
    }
    assert!(kinds.iter().all(|&n| n >= 25), "{kinds:?}");
    Ok(())
}

#[test]
fn a_long_run_of_steps_does_not_drift() -> Result {
    // Every step turns by about a radian in the same direction, and the state keeps a long memory.
    let mamba3 = Mamba3Config { headdim: 4, d_state: 4, rope_fraction: 1.0, ..Mamba3Config::new(4) };
    let complex = Mamba2Config { headdim: 4, d_state: 2, ..Mamba2Config::cmamba(4) };
    for config in [BlockConfig::from(mamba3), complex.into()] {
        let params = any_params(&config, 3)?;
        let graph = block::graph(&config, 1, 1, Io::Stateful)?;
        let run = |precision| -> Result<Tensors> {
            let interpreter = Interpreter::new(&graph)?.precision(precision);
            let mut states = Tensors::new();
            let mut out = Tensors::new();
            for step in 0..3000u16 {
                let u = TensorData::f32([1, 1, 4], [0.9, -0.3, 0.5, f32::from(step % 7) * 0.2])?;
                out = interpreter.run(&[("u".to_owned(), u)].into(), &params, &mut states)?;
            }
            states.extend(out);
            Ok(states)
        };
        let (single, double) = (run(Precision::F32)?, run(Precision::F64)?);
        for (name, tensor) in &double {
            let off = difference(name, tensor, &single[name]);
            assert!(off < 1e-4, "{name} drifts by {off} in {config:?}");
        }
    }
    Ok(())
}

#[test]
fn a_prompt_longer_than_a_float_counts_turns_like_its_steps() -> Result {
    // Some hundreds of turns: as one unwrapped f32 angle they would lose the digits that are asked for here.
    let complex = Mamba2Config { headdim: 4, d_state: 2, ..Mamba2Config::cmamba(4) };
    let config = BlockConfig::from(complex);
    let mut params = any_params(&config, 3)?;
    params.insert("A_log".to_owned(), TensorData::f32([2, 2], vec![-6.0, 3.0, -4.0, -2.5])?);
    let u = noise(&[1, 1500, 4], 8)?;
    let whole = in_parts(&config, &params, &u, &[], Io::Stateful)?;
    let parts = in_parts(&config, &params, &u, &(1..15).map(|i| 100 * i).collect::<Vec<_>>(), Io::Stateful)?;
    for (name, tensor) in &whole {
        let off = difference(name, tensor, &parts[name]);
        assert!(off < 3e-5, "{name} differs by {off}");
    }
    Ok(())
}
