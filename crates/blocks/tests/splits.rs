//! Guards that any split of a sequence gives the same results and states as the whole, one token at a time included, for
//! blocks of every kind with random options; and that packed sequences are what each of them is alone.

mod support;

use monopass_blocks::cases::Tensors;
use monopass_blocks::{BlockConfig, Io, Mamba2Config, Mamba3Config, block};
use monopass_ir::eval::{Interpreter, Precision, WideTensors};
use monopass_ir::{Graph, TensorData};
use support::random::{Sequence, any_block, any_params, cuts, difference, in_parts, met};
use support::{Choices, Result, noise, tokens};

/// Runs graphs on the interpreter.
fn interpret(params: &Tensors) -> impl Fn(&Graph, &Tensors, &mut Tensors) -> Result<Tensors> {
    |graph, inputs, states| Ok(Interpreter::new(graph)?.precision(Precision::F32).run(inputs, params, states)?)
}

/// Fails if any tensor of `parts` is off from that of `whole`.
fn check(whole: &Tensors, parts: &Tensors, what: &str) {
    for (name, tensor) in whole {
        let off = difference(name, tensor, &parts[name]);
        assert!(off < 3e-5, "{name} differs by {off} {what}");
    }
}

#[test]
fn any_split_gives_the_same_as_the_whole() -> Result {
    let mut drawn: Vec<(BlockConfig, usize)> = Vec::new();
    for seed in 0..200 {
        let choose = &mut Choices::new(seed);
        let config = any_block(choose);
        let (batch, len) = (choose.of(&[1, 3]), choose.of(&[1, 2, 5, 9]));
        let sequence = Sequence::of(noise(&[batch, len, config.d_model()], seed)?);
        let params = any_params(&config, seed)?;
        let whole = in_parts(&config, &sequence, &[], Io::Stateful, interpret(&params))?;
        assert_eq!(whole.len(), config.sizes()?.states().len() + 1);
        let [each, some] = cuts(choose, len);
        for (cuts, io) in [(each, Io::Stateful), (some, choose.of(&[Io::Explicit, Io::Stateful]))] {
            let parts = in_parts(&config, &sequence, &cuts, io, interpret(&params))?;
            check(&whole, &parts, &format!("after {cuts:?} of {len}, seed {seed} in {config:?}"));
        }
        drawn.push((config, len));
    }
    for (what, n) in met(drawn.iter().map(|(config, len)| (config, *len))) {
        let least = if ["mamba2", "cmamba", "mamba3"].contains(&what) { 25 } else { 2 };
        assert!(n >= least, "{what} is met {n} times");
    }
    Ok(())
}

/// Packed sequences are each what they are alone, and may be cut anywhere.
#[test]
fn packed_sequences_are_those_of_each_alone() -> Result {
    let mut drawn: Vec<(BlockConfig, usize)> = Vec::new();
    for seed in 1000..1080 {
        let choose = &mut Choices::new(seed);
        let config = any_block(choose);
        let batch = choose.of(&[1, 3]);
        let lens: Vec<usize> = (0..choose.of(&[2, 3])).map(|_| choose.of(&[1, 2, 4])).collect();
        let len = lens.iter().sum();
        // Numbers that neither start at 0 nor grow by 1.
        let seq_idx: Vec<i32> = lens.iter().zip([7, 3, 4]).flat_map(|(&len, number)| vec![number; len]).collect();
        let u = noise(&[batch, len, config.d_model()], seed)?;
        let params = any_params(&config, seed)?;
        let packed = Sequence { u, seq_idx: Some(seq_idx) };
        let whole = in_parts(&config, &packed, &[], Io::Explicit, interpret(&params))?;
        let mut start = 0;
        for &n in &lens {
            let alone = Sequence::of(tokens(&packed.u, start, start + n)?);
            let mut alone = in_parts(&config, &alone, &[], Io::Explicit, interpret(&params))?;
            start += n;
            let mut part = whole.clone();
            part.insert("out".to_owned(), tokens(&whole["out"], start - n, start)?);
            if start < len {
                // The states are those after the last sequence.
                alone.retain(|name, _| name == "out");
            }
            check(&alone, &part, &format!("in the sequence before {start} of {lens:?}, seed {seed} in {config:?}"));
        }
        for cuts in cuts(choose, len) {
            let parts = in_parts(&config, &packed, &cuts, Io::Explicit, interpret(&params))?;
            check(&whole, &parts, &format!("after {cuts:?} of {lens:?}, seed {seed} in {config:?}"));
        }
        drawn.push((config, len));
    }
    for (what, n) in met(drawn.iter().map(|(config, len)| (config, *len))) {
        assert!(n >= 4 || what.contains("one token"), "{what} is met {n} times");
    }
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
        let interpreter = Interpreter::new(&graph)?;
        let (mut single, mut double) = (Tensors::new(), WideTensors::new());
        let (mut out, mut wide) = (Tensors::new(), WideTensors::new());
        for step in 0..3000u16 {
            let u = TensorData::f32([1, 1, 4], [0.9, -0.3, 0.5, f32::from(step % 7) * 0.2])?;
            let inputs = [("u".to_owned(), u)].into();
            out = interpreter.run(&inputs, &params, &mut single)?;
            wide = interpreter.run_wide(&inputs, &params, &mut double)?;
        }
        single.extend(out);
        double.extend(wide);
        for (name, values) in &double {
            #[expect(clippy::cast_possible_truncation, reason = "compared with f32")]
            let rounded: Vec<f32> = values.iter().map(|&value| value as f32).collect();
            let off = difference(name, &TensorData::f32(single[name].shape(), rounded)?, &single[name]);
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
    let sequence = Sequence::of(noise(&[1, 1500, 4], 8)?);
    let whole = in_parts(&config, &sequence, &[], Io::Stateful, interpret(&params))?;
    let cuts: Vec<usize> = (1..15).map(|i| 100 * i).collect();
    check(&whole, &in_parts(&config, &sequence, &cuts, Io::Stateful, interpret(&params))?, "in fifteen parts");
    Ok(())
}
