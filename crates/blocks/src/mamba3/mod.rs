//! The Mamba-3 block: `out = u + out_proj(gate(core(in_proj(norm(u)))))`, for whole sequences and for one token. There is no
//! short convolution; the trapezoidal rule of the [`core`] takes its place.

mod config;
pub mod core;

pub use config::{AAct, Mamba3Config, Mamba3Sizes, RopePairs};

use crate::block::{BlockGraph, BlockSizes, sized_graph};
use crate::config::Naming;
use crate::conv::resets;
use crate::cssd::sum_of_ranks;
use crate::linear::linear;
use crate::names;
use crate::norm::rms_norm;
use crate::params::Role;
use crate::state::{Io, Packing, States};
use core::{Core, CoreInputs, CoreStates};
use monopass_ir::error::BuildErrors;
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};

/// A block with its parameters declared in a graph.
///
/// A decode step is [`forward`](Self::forward) of one token, so that any split of a sequence gives the same results and
/// states.
#[derive(Clone, Debug)]
pub struct Mamba3<'g> {
    config: Mamba3Config,
    sizes: Mamba3Sizes,
    pre_norm: Tensor<'g>,
    in_proj: Tensor<'g>,
    b_norm: Tensor<'g>,
    c_norm: Tensor<'g>,
    core: Core<'g>,
    norm: Option<Tensor<'g>>,
    mimo_z: Option<Tensor<'g>>,
    mimo_o: Option<Tensor<'g>>,
    out_proj: Tensor<'g>,
}

/// The graph of one block: input `u [batch, len, d_model]`, output `out` of the same shape, states as `io` says.
///
/// States are called `angle_state`, `ssm_state`, `k_state` and `v_state`, as outputs with `_out` after them. Batch and length
/// are dynamic axes. `len` 1 is a decode step, 0 gives the states back.
///
/// ```
/// use monopass_blocks::{Io, Mamba3Config, init, mamba3};
/// use monopass_ir::{TensorData, eval::{Interpreter, Tensors}};
///
/// let config = Mamba3Config { d_state: 16, headdim: 8, is_mimo: true, ..Mamba3Config::new(32) };
/// let params = init::block(&config, 0)?;
/// let mut states = Tensors::new();
/// for len in [5, 1] {
///     // Five tokens at once, then one more, which sees the five through the states.
///     let graph = mamba3::graph(&config, 1, len, Io::Stateful)?;
///     let u = TensorData::f32([1, len, 32], vec![0.5; len * 32])?;
///     let outputs = Interpreter::new(&graph)?.run(&[("u".into(), u)].into(), &params, &mut states)?;
///     assert_eq!(outputs["out"].shape(), [1, len, 32]);
/// }
/// assert_eq!(states["k_state"].shape(), [1, 4, 8, 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Every inconsistency of the configuration, and sizes that are too large.
pub fn graph(config: &Mamba3Config, batch: usize, len: usize, io: Io) -> Result<Graph, BuildErrors> {
    graph_with(config, batch, len, io.into())
}

/// As [`graph`], with the further inputs `seq_idx` (i32) and `mask` (f32), both `[batch, len]`, as `options` says.
///
/// # Errors
/// Every inconsistency of the configuration, and sizes that are too large.
pub fn graph_with(config: &Mamba3Config, batch: usize, len: usize, options: BlockGraph) -> Result<Graph, BuildErrors> {
    sized_graph("mamba3", config.sizes().map(|sizes| BlockSizes::Mamba3(config, sizes)), [batch, len], options)
}

impl<'g> Mamba3<'g> {
    /// Declares the block's parameters, their names after `prefix`. `sizes` are those of `config`.
    #[must_use]
    pub fn declare(g: &'g GraphBuilder, config: &Mamba3Config, sizes: Mamba3Sizes, prefix: &str) -> Self {
        let optional = |role| {
            let name = format!("{prefix}{}", names::of_block(Naming::Mixer, role)?);
            Some(g.param(&name, DType::F32, config.shape_of(&sizes, role)?))
        };
        let required = |role| {
            optional(role).unwrap_or_else(|| {
                g.fail(format!("mamba3: no parameter for {role:?}"), "this is a defect, please report it");
                g.scalar(0.0)
            })
        };
        Self {
            pre_norm: required(Role::PreNorm),
            in_proj: required(Role::InProj),
            b_norm: required(Role::BNorm),
            c_norm: required(Role::CNorm),
            core: Core {
                dt_bias: required(Role::DtBias),
                b_bias: required(Role::BBias),
                c_bias: required(Role::CBias),
                d_skip: required(Role::DSkip),
                mimo_x: optional(Role::MimoX),
                a_act: config.a_act,
                a_floor: config.a_floor,
                pairs: sizes.pairs,
                nheads: sizes.nheads,
                headdim: config.headdim,
                ngroups: config.ngroups,
                ranks: sizes.ranks,
                d_state: config.d_state,
                n_angles: sizes.n_angles,
                chunk_size: config.chunk_size,
            },
            norm: optional(Role::Norm),
            mimo_z: optional(Role::MimoZ),
            mimo_o: optional(Role::MimoO),
            out_proj: required(Role::OutProj),
            config: config.clone(),
            sizes,
        }
    }

    /// Replaces the weights of the projections: `map` gets each one's role and tensor.
    pub fn map_projections(&mut self, map: &mut dyn FnMut(Role, Tensor<'g>) -> Tensor<'g>) {
        self.in_proj = map(Role::InProj, self.in_proj);
        self.out_proj = map(Role::OutProj, self.out_proj);
    }

    /// A sequence through the block.
    ///
    /// Shapes: `u [B, L, d_model]` → `out [B, L, d_model]` and the states after the last token. Without `states` they start
    /// from zero.
    #[track_caller]
    #[must_use]
    pub fn forward(&self, u: Tensor<'g>, states: Option<&States<'g>>, packing: Packing<'g>) -> (Tensor<'g>, States<'g>) {
        let g = u.builder();
        let normed = {
            let _scope = g.scope("norm");
            rms_norm(u, self.pre_norm, self.config.eps, self.config.d_model)
        };
        let (mixed, states) = {
            let _scope = g.scope("mixer");
            self.mixer(normed, states, packing)
        };
        (u + mixed, states)
    }

    #[track_caller]
    fn mixer(&self, u: Tensor<'g>, states: Option<&States<'g>>, packing: Packing<'g>) -> (Tensor<'g>, States<'g>) {
        let (g, sizes) = (u.builder(), &self.sizes);
        let (batch, len) = (u.dim(0), u.dim(1));
        let mask = packing.mask.map(|mask| mask.reshape([batch, len, 1]));
        let parts = {
            let _scope = g.scope("in_proj");
            let rows = linear(mask.map_or(u, |mask| u * mask), self.in_proj, None);
            rows.split(2, &sizes.in_proj_parts())
        };
        let &[z, x, bc, dt, dd_a, trap, angles] = parts.as_slice() else { return (u, States::default()) };
        let [b, c] = {
            let _scope = g.scope("bc_norm");
            self.normed_bc(bc)
        };
        let (y, states) = {
            let _scope = g.scope("core");
            let reset = packing.seq_idx.and_then(resets);
            let states = states.and_then(CoreStates::of);
            self.core.apply(&CoreInputs { x, b, c, dt, dd_a, trap, angles, states, reset, mask })
        };
        let y = {
            let _scope = g.scope("norm");
            self.gated(y, z)
        };
        let _scope = g.scope("out_proj");
        (linear(y, self.out_proj, None), states.into())
    }

    /// B and C after their norms, `[B, L, R, G, N]` each. They are normalised together, and scaled apart.
    #[track_caller]
    fn normed_bc(&self, bc: Tensor<'g>) -> [Tensor<'g>; 2] {
        let (batch, len) = (bc.dim(0), bc.dim(1));
        let rows = bc.reshape([batch, len, 2, self.sizes.ranks, self.config.ngroups, self.config.d_state]);
        let normed = rows * ((rows * rows).mean([5], true) + self.config.norm_eps).rsqrt();
        [(0, self.b_norm), (1, self.c_norm)].map(|(at, weight)| {
            let one = normed.slice_axis(2, at, at + 1);
            one.reshape([batch, len, self.sizes.ranks, self.config.ngroups, self.config.d_state]) * weight
        })
    }

    /// The norm of every head and rank, the gate, and the sum over ranks: `y [B, L, H, R, P]`, `z [B, L, D]` → `[B, L, D]`.
    #[track_caller]
    fn gated(&self, y: Tensor<'g>, z: Tensor<'g>) -> Tensor<'g> {
        let (batch, len, nheads, headdim) = (y.dim(0), y.dim(1), self.sizes.nheads, self.config.headdim);
        let normed = self.norm.map_or(y, |weight| rms_norm(y, weight.reshape([nheads, 1, headdim]), self.config.norm_eps, headdim));
        let z = z.reshape([batch, len, nheads, 1, headdim]);
        let gated = normed * self.mimo_z.map_or(z, |weight| z * weight).silu();
        let o = self.mimo_o.map_or(gated, |weight| sum_of_ranks(gated * weight));
        o.reshape([batch, len, self.sizes.d_inner])
    }
}
