//! Blocks of every kind with random options and parameters, and what a block gives for a sequence that is cut.

use super::{Choices, Result, noise, tokens};
use monopass_blocks::cases::Tensors;
use monopass_blocks::mamba3::RopePairs;
use monopass_blocks::{AAct, BlockConfig, BlockGraph, Io, Mamba2Config, Mamba3Config, NormKind, Taps, block, init};
use monopass_ir::{Elements, Graph, TensorData};

/// A random block of width 8 or 12.
pub(crate) fn any_block(choose: &mut Choices) -> BlockConfig {
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
    let is_mimo = choose.flag();
    Mamba3Config {
        d_state: choose.of(&[4, 5, 6, 8]),
        rope_fraction: choose.of(&[0.5, 1.0]),
        a_act: choose.of(&[AAct::Softplus, AAct::HeavyTail]),
        is_mimo,
        mimo_rank: if is_mimo { choose.of(&[1, 2, 3]) } else { base.mimo_rank },
        is_outproj_norm: choose.flag(),
        rope_pairs: choose.of(&[None, None, Some(RopePairs::Interleaved), Some(RopePairs::Halves)]),
        ..base.clone()
    }
}

/// Options that the tests are to have met, each with how many of `configs` have it.
pub(crate) fn met<'c>(configs: impl Iterator<Item = (&'c BlockConfig, usize)>) -> Vec<(&'static str, usize)> {
    let mut met: Vec<(&'static str, usize)> = Vec::new();
    for (config, len) in configs {
        let ranks = match config {
            BlockConfig::Mamba2(config) => config.mimo_rank,
            BlockConfig::Mamba3(config) if config.is_mimo => config.mimo_rank,
            BlockConfig::Mamba3(_) => 1,
        };
        let ngroups = config.as_mamba2().map_or_else(|| config.as_mamba3().map_or(1, |config| config.ngroups), |config| config.ngroups);
        let rows = [
            ("mamba2", config.kind() == "mamba2"),
            ("cmamba", config.kind() == "cmamba"),
            ("mamba3", config.kind() == "mamba3"),
            ("ranks", ranks > 1),
            ("groups", ngroups > 1),
            ("one token", len == 1),
            ("ranks of one token", ranks > 1 && len == 1),
            ("all entries turn", config.as_mamba3().is_some_and(|config| config.rope_fraction == 1.0)),
            (
                "ranks of one token, all entries turn",
                len == 1 && config.as_mamba3().is_some_and(|config| ranks > 1 && config.rope_fraction == 1.0),
            ),
            ("a norm of each head", config.as_mamba3().is_some_and(|config| config.is_outproj_norm)),
        ];
        for (what, holds) in rows {
            match met.iter_mut().find(|(known, _)| *known == what) {
                Some((_, n)) => *n += usize::from(holds),
                None => met.push((what, holds.into())),
            }
        }
    }
    met
}

/// Values for the parameters from a wide range, so that every one of them has a say.
pub(crate) fn any_params(config: &BlockConfig, seed: u32) -> Result<Tensors> {
    let mut params = Tensors::new();
    for (i, (name, tensor)) in init::block(config, 1)?.into_iter().enumerate() {
        let values = noise(tensor.shape(), seed.wrapping_mul(31).wrapping_add(u32::try_from(i)?))?;
        params.insert(name, values);
    }
    Ok(params)
}

/// A sequence, with the numbers of the sequences that are packed in it, if they are.
pub(crate) struct Sequence {
    pub(crate) u: TensorData,
    /// The same in every row.
    pub(crate) seq_idx: Option<Vec<i32>>,
}

impl Sequence {
    pub(crate) fn of(u: TensorData) -> Self {
        Self { u, seq_idx: None }
    }

    fn len(&self) -> usize {
        self.u.shape()[1]
    }

    /// Whether a sequence begins at this token, so that what was carried ends before it.
    fn begins_at(&self, token: usize) -> bool {
        self.seq_idx.as_ref().is_some_and(|seq_idx| token > 0 && seq_idx[token] != seq_idx[token - 1])
    }
}

/// The block on a sequence, cut after the tokens in `cuts`, with states carried by the graph or by the caller: `out` and the
/// last states. `run` runs a graph from states, which it changes where the graph has them.
pub(crate) fn in_parts(
    config: &BlockConfig,
    sequence: &Sequence,
    cuts: &[usize],
    io: Io,
    mut run: impl FnMut(&Graph, &Tensors, &mut Tensors) -> Result<Tensors>,
) -> Result<Tensors> {
    let (batch, len) = (sequence.u.shape()[0], sequence.len());
    let mut states = Tensors::new();
    let mut rows = vec![Vec::new(); batch];
    let ends = cuts.iter().copied().chain([len]);
    for (start, end) in [0].into_iter().chain(cuts.iter().copied()).zip(ends) {
        let options = BlockGraph { seq_idx: sequence.seq_idx.is_some(), ..io.into() };
        let graph = block::graph_with(config, batch, end - start, options)?;
        if start < len && sequence.begins_at(start) {
            states.values_mut().for_each(|state| *state = TensorData::zeros(&state.ty()));
        }
        let mut inputs: Tensors = [("u".to_owned(), tokens(&sequence.u, start, end)?)].into();
        if let Some(seq_idx) = &sequence.seq_idx {
            let repeated = seq_idx[start..end].repeat(batch);
            inputs.insert("seq_idx".to_owned(), TensorData::new([batch, end - start], Elements::I32(repeated))?);
        }
        if io == Io::Explicit {
            for (name, value) in graph.inputs().filter(|(name, _)| name.ends_with("state")) {
                let state = states.get(name).cloned().unwrap_or_else(|| TensorData::zeros(graph.ty(value)));
                inputs.insert(name.to_owned(), state);
            }
        }
        let outputs = run(&graph, &inputs, &mut states)?;
        let out = outputs["out"].to_f32_vec();
        let width = out.len() / batch;
        rows.iter_mut().enumerate().for_each(|(b, row)| row.extend_from_slice(&out[b * width..(b + 1) * width]));
        let kept = outputs.into_iter().filter_map(|(name, state)| Some((name.strip_suffix("_out")?.to_owned(), state)));
        states.extend(kept);
    }
    states.insert("out".to_owned(), TensorData::f32(sequence.u.shape(), rows.concat())?);
    Ok(states)
}

/// Largest difference relative to the larger of 1 and the peak; angles differ modulo a turn.
pub(crate) fn difference(name: &str, a: &TensorData, b: &TensorData) -> f64 {
    if a.shape() != b.shape() {
        return f64::INFINITY;
    }
    let (a, b) = (a.to_f32_vec(), b.to_f32_vec());
    let peak = a.iter().fold(1.0, |peak, x| x.abs().max(peak));
    let turn = std::f64::consts::TAU;
    let distance = |(&a, &b): (&f32, &f32)| {
        let distance = (f64::from(a) - f64::from(b)).abs();
        let distance = if name == "angle_state" { (distance % turn).min(turn - distance % turn) } else { distance };
        // A NaN counts as far.
        if distance.is_nan() { f64::INFINITY } else { distance }
    };
    a.iter().zip(&b).map(distance).fold(0.0, f64::max) / f64::from(peak)
}

/// Cuts of a sequence: after every token, and at a few random places, one of which may be its end.
pub(crate) fn cuts(choose: &mut Choices, len: usize) -> [Vec<usize>; 2] {
    let each = (1..len).collect();
    let mut some: Vec<usize> = (0..choose.of(&[1, 2, 3])).map(|_| choose.below(len + 1)).collect();
    some.sort_unstable();
    [each, some]
}
