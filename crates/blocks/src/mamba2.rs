//! The Mamba-2 block: `out = u + out_proj(norm(ssd(conv(in_proj(norm(u))))))`, for whole sequences and for one token.
//!
//! With complex states and ranks (see [`cssd`](crate::cssd)) it is the predecessor's Mamba-3, mended; the rest of the block is the
//! same.

use crate::block::{BlockSizes, sized_graph};
use crate::config::{Mamba2Config, Mamba2Sizes};
use crate::conv::{Conv, conv, resets};
use crate::cssd::{Cssd, CssdInputs};
use crate::linear::linear;
use crate::names;
use crate::norm::{gated_rms_norm, rms_norm};
use crate::params::Role;
use crate::ssd::{Ssd, SsdInputs};
use monopass_ir::error::BuildErrors;
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};

pub use crate::block::BlockGraph;
pub use crate::state::{Io, Packing, States};

/// A block with its parameters declared in a graph.
///
/// A decode step is [`forward`](Self::forward) of one token, so that any split of a sequence gives the same results and
/// states.
#[derive(Clone, Debug)]
pub struct Mamba2<'g> {
    config: Mamba2Config,
    sizes: Mamba2Sizes,
    pre_norm: Tensor<'g>,
    in_proj: Tensor<'g>,
    in_proj_bias: Option<Tensor<'g>>,
    conv: Conv<'g>,
    recurrence: Recurrence<'g>,
    norm: Option<Tensor<'g>>,
    out_proj: Tensor<'g>,
    out_proj_bias: Option<Tensor<'g>>,
    init_states: Option<Tensor<'g>>,
}

/// The graph of one block: input `u [batch, len, d_model]`, output `out` of the same shape, states as `io` says.
///
/// States are called `conv_state` and `ssm_state`, as outputs `conv_state_out` and `ssm_state_out`. Batch and length are
/// dynamic axes. `len` 1 is a decode step, 0 gives the states back.
///
/// ```
/// use monopass_blocks::{Io, Mamba2Config, init, mamba2};
/// use monopass_ir::{TensorData, eval::{Interpreter, Tensors}};
///
/// let config = Mamba2Config { d_state: 16, headdim: 8, ..Mamba2Config::new(32) };
/// let params = init::block(&config, 0)?;
/// let mut states = Tensors::new();
/// for len in [5, 1] {
///     // Five tokens at once, then one more, which sees the five through the states.
///     let graph = mamba2::graph(&config, 1, len, Io::Stateful)?;
///     let u = TensorData::f32([1, len, 32], vec![0.5; len * 32])?;
///     let outputs = Interpreter::new(&graph)?.run(&[("u".into(), u)].into(), &params, &mut states)?;
///     assert_eq!(outputs["out"].shape(), [1, len, 32]);
/// }
/// assert_eq!(states["ssm_state"].shape(), [1, 8, 8, 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Every inconsistency of the configuration, and sizes that are too large.
pub fn graph(config: &Mamba2Config, batch: usize, len: usize, io: Io) -> Result<Graph, BuildErrors> {
    graph_with(config, batch, len, io.into())
}

/// As [`graph`], with the further inputs `seq_idx` (i32) and `mask` (f32), both `[batch, len]`, as `options` says.
///
/// # Errors
/// Every inconsistency of the configuration, and sizes that are too large.
pub fn graph_with(config: &Mamba2Config, batch: usize, len: usize, options: BlockGraph) -> Result<Graph, BuildErrors> {
    let name = if config.complex { "cmamba" } else { "mamba2" };
    sized_graph(name, config.sizes().map(|sizes| BlockSizes::Mamba2(config, sizes)), [batch, len], options)
}

/// The recurrence with real or complex states.
#[derive(Clone, Copy, Debug)]
enum Recurrence<'g> {
    Real(Ssd<'g>),
    Complex(Cssd<'g>),
}

impl<'g> Mamba2<'g> {
    /// Declares the block's parameters, their names after `prefix`. `sizes` are those of `config`.
    #[must_use]
    pub fn declare(g: &'g GraphBuilder, config: &Mamba2Config, sizes: Mamba2Sizes, prefix: &str) -> Self {
        let optional = |role| {
            let name = format!("{prefix}{}", names::of_block(config.naming, role)?);
            Some(g.param(&name, DType::F32, config.shape_of(&sizes, role)?))
        };
        let required = |role| {
            optional(role).unwrap_or_else(|| {
                g.fail(format!("mamba2: no name for {role:?}"), "use naming=mixer");
                g.scalar(0.0)
            })
        };
        Self {
            pre_norm: required(Role::PreNorm),
            in_proj: required(Role::InProj),
            in_proj_bias: optional(Role::InProjBias),
            conv: Conv { weight: required(Role::Conv), bias: optional(Role::ConvBias), taps: config.taps, act: config.conv_act },
            recurrence: if config.complex {
                Recurrence::Complex(Cssd {
                    a_log: required(Role::ALog),
                    dt_bias: required(Role::DtBias),
                    d_skip: required(Role::DSkip),
                    mimo_x: optional(Role::MimoX),
                    mimo_o: optional(Role::MimoO),
                    nheads: sizes.nheads,
                    headdim: config.headdim,
                    ngroups: config.ngroups,
                    ranks: config.mimo_rank,
                    d_state: config.d_state,
                    dt_limit: config.dt_limit,
                    chunk_size: config.chunk_size,
                })
            } else {
                Recurrence::Real(Ssd {
                    a_log: required(Role::ALog),
                    dt_bias: required(Role::DtBias),
                    d_skip: required(Role::DSkip),
                    nheads: sizes.nheads,
                    headdim: config.headdim,
                    ngroups: config.ngroups,
                    d_state: config.d_state,
                    dt_limit: config.dt_limit,
                    chunk_size: config.chunk_size,
                })
            },
            norm: optional(Role::Norm),
            out_proj: required(Role::OutProj),
            out_proj_bias: optional(Role::OutProjBias),
            init_states: optional(Role::InitStates),
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
    /// Shapes: `u [B, L, d_model]` → `out [B, L, d_model]` and the states after the last token. Without `states` the
    /// convolution starts from zeros, and the scan from the learned initial states if there are any, else from zero.
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
        let reset = packing.seq_idx.and_then(resets);
        let masked = |t: Tensor<'g>| mask.map_or(t, |mask| t * mask);

        let parts = {
            let _scope = g.scope("in_proj");
            let rows = linear(masked(u), self.in_proj, self.in_proj_bias);
            Parts::of(rows, sizes)
        };
        let (xbc, conv_state) = {
            let _scope = g.scope("conv1d");
            // A bias of the projection would fill the window before the first token.
            let xbc = if self.in_proj_bias.is_some() { masked(parts.xbc) } else { parts.xbc };
            let (xbc, state) = conv(xbc, &self.conv, states.and_then(|states| states.get("conv_state")), reset);
            (masked(xbc), (self.config.d_conv > 1).then_some(state))
        };
        let (y, ssm_state) = {
            let _scope = g.scope("ssd");
            let [x, b, c] = cut(xbc, [sizes.d_ssm, sizes.d_bc, sizes.d_bc]);
            let s0 = states.and_then(|states| states.get("ssm_state")).or_else(|| self.initial_state(batch));
            let dt = parts.dt;
            match &self.recurrence {
                Recurrence::Real(ssd) => ssd.apply(&SsdInputs { x, dt, b, c, s0, reset, mask }),
                Recurrence::Complex(ssd) => ssd.apply(&CssdInputs { x, dt, b, c, s0, reset, mask, gradients: packing.gradients }),
            }
        };
        let y = {
            let _scope = g.scope("norm");
            gated_rms_norm(y, parts.z, self.norm, self.config.norm, self.config.norm_eps, sizes.norm_group)
        };
        let _scope = g.scope("out_proj");
        let y = parts.mlp.map_or(y, |[z0, x0]| g.concat(&[z0.silu() * x0, y], 2usize));
        let states = States::new([("conv_state", conv_state), ("ssm_state", Some(ssm_state))]);
        (linear(y, self.out_proj, self.out_proj_bias), states)
    }

    /// The learned initial states for every sequence of the batch.
    #[track_caller]
    fn initial_state(&self, batch: usize) -> Option<Tensor<'g>> {
        let states = self.init_states?;
        Some(states.broadcast([vec![batch], states.shape()].concat()))
    }
}

/// The parts of `in_proj`'s result, in the order of its rows.
struct Parts<'g> {
    /// Gate and input of the gated unit beside the scan, if there is one.
    mlp: Option<[Tensor<'g>; 2]>,
    z: Option<Tensor<'g>>,
    xbc: Tensor<'g>,
    dt: Tensor<'g>,
}

impl<'g> Parts<'g> {
    #[track_caller]
    fn of(rows: Tensor<'g>, sizes: &Mamba2Sizes) -> Self {
        let part = |start: usize, len: usize| (len > 0).then(|| rows.slice_axis(2, start, start + len));
        let (m, gate) = (sizes.d_mlp, sizes.d_gate);
        let xbc = 2 * m + gate;
        Self {
            mlp: part(0, m).zip(part(m, m)).map(|(z0, x0)| [z0, x0]),
            z: part(2 * m, gate),
            xbc: rows.slice_axis(2, xbc, xbc + sizes.conv_dim),
            dt: rows.slice_axis(2, xbc + sizes.conv_dim, sizes.in_proj_rows),
        }
    }
}

/// Three neighbouring parts of the last of three axes.
#[track_caller]
fn cut(t: Tensor<'_>, [a, b, c]: [usize; 3]) -> [Tensor<'_>; 3] {
    [t.slice_axis(2, 0, a), t.slice_axis(2, a, a + b), t.slice_axis(2, a + b, a + b + c)]
}
