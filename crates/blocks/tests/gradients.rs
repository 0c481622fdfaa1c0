//! Guards the gradients of every block against finite differences in f64: odd sizes, a batch of three, packed sequences, initial
//! states, one token and none.

mod support;

use monopass_blocks::{BlockConfig, BlockGraph, Io, Mamba2Config, Mamba3Config, NormKind, block, init};
use monopass_ir::gradcheck::{Gradcheck, check};
use monopass_ir::{Elements, Graph, TensorData, eval::Tensors};
use support::{Result, noise};

/// A block's graph at some sizes with contents for all sources.
struct Place {
    graph: Graph,
    inputs: Tensors,
    params: Tensors,
}

impl Place {
    fn of(config: &BlockConfig, [batch, len]: [usize; 2], options: BlockGraph) -> Result<Self> {
        let graph = block::graph_with(config, batch, len, options)?;
        let mut inputs = Tensors::new();
        for (seed, (name, value)) in (1..).zip(graph.inputs()) {
            let ty = graph.ty(value);
            let content = match name {
                // Two or three sequences of unequal length in each row.
                "seq_idx" => TensorData::i32(
                    ty.shape.clone(),
                    (0..batch * len).map(|i| i32::try_from(i % len / (2 + i / len)).unwrap_or(0)).collect::<Vec<_>>(),
                )?,
                "mask" => TensorData::f32(
                    ty.shape.clone(),
                    (0..batch * len).map(|i| if i % len < i / len { 0.0 } else { 1.0 }).collect::<Vec<_>>(),
                )?,
                _ => noise(&ty.shape, seed)?,
            };
            inputs.insert(name.to_owned(), content);
        }
        // Off the initial values, where many are equal.
        let mut params = init::block(config, 3)?;
        for (seed, (_, param)) in (50..).zip(params.iter_mut()) {
            let offsets = noise(param.shape(), seed)?;
            let moved: Vec<f32> =
                param.to_f32_vec().iter().zip(offsets.to_f32_vec()).map(|(value, offset)| value + 0.25 * offset).collect();
            *param = TensorData::new(param.shape(), Elements::F32(moved))?;
        }
        Ok(Self { graph, inputs, params })
    }
}

fn check_block(config: impl Into<BlockConfig>, sizes: [usize; 2], options: BlockGraph) -> Result {
    let config = config.into();
    let Place { graph, inputs, params } = Place::of(&config, sizes, options)?;
    let with = Gradcheck { max_elems: 6, tolerance: 2e-6, ..Gradcheck::default() };
    let report = check(&graph, &inputs, &params, &Tensors::new(), &with)?;
    let context = format!("{} {sizes:?} {options:?}: {report}", config.kind());
    if !report.passed || report.n_not_smooth > report.n_checked / 20 {
        return Err(context.into());
    }
    Ok(())
}

fn mamba2() -> Mamba2Config {
    Mamba2Config { d_state: 3, headdim: 2, ngroups: 2, ..Mamba2Config::new(6) }
}

fn mamba3() -> Mamba3Config {
    Mamba3Config { d_state: 5, headdim: 3, ..Mamba3Config::new(6) }
}

/// Fresh states, given ones, packed sequences with given ones, one token, none.
fn check_everywhere(config: impl Into<BlockConfig>) -> Result {
    let config = config.into();
    let plain = |io| BlockGraph { io, seq_idx: false, mask: false, gradients: true };
    check_block(config.clone(), [3, 7], plain(Io::Fresh))?;
    check_block(config.clone(), [3, 7], plain(Io::Explicit))?;
    check_block(config.clone(), [3, 7], BlockGraph { seq_idx: true, ..plain(Io::Explicit) })?;
    check_block(config.clone(), [3, 1], plain(Io::Explicit))?;
    check_block(config, [3, 0], plain(Io::Explicit))
}

#[test]
fn of_mamba2() -> Result {
    check_everywhere(mamba2())
}

#[test]
fn of_mamba2_with_other_options() -> Result {
    let options = Mamba2Config { bias: true, d_ssm: Some(8), d_has_hdim: true, dt_limit: [0.01, 0.5], ..mamba2() };
    check_everywhere(options.clone())?;
    check_everywhere(Mamba2Config { norm: NormKind::BeforeGate, learnable_init_states: true, ..mamba2() })?;
    check_block(
        Mamba2Config { norm: NormKind::None, ..mamba2() },
        [3, 5],
        BlockGraph { io: Io::Fresh, seq_idx: true, mask: false, gradients: true },
    )?;
    check_block(mamba2(), [3, 5], BlockGraph { io: Io::Explicit, seq_idx: false, mask: true, gradients: true })
}

#[test]
fn of_the_predecessors_blocks() -> Result {
    let seed = Mamba2Config { d_state: 3, headdim: 3, ..Mamba2Config::seed(6) };
    check_everywhere(seed.clone())?;
    check_everywhere(Mamba2Config { complex: true, ..seed.clone() })?;
    check_everywhere(Mamba2Config { complex: true, mimo_rank: 2, ..seed })
}

#[test]
fn of_mamba3() -> Result {
    check_everywhere(mamba3())
}

#[test]
fn of_mamba3_with_ranks_and_norm() -> Result {
    check_everywhere(Mamba3Config { is_mimo: true, mimo_rank: 2, d_state: 4, ..mamba3() })?;
    check_everywhere(Mamba3Config { is_outproj_norm: true, ngroups: 2, ..mamba3() })
}
