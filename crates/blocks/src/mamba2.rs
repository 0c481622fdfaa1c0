//! The Mamba-2 block: `out = u + out_proj(norm(ssd(conv(in_proj(norm(u))))))`, for whole sequences and for one token.

use crate::config::{Mamba2Config, Mamba2Sizes};
use crate::conv::{Conv, conv, resets};
use crate::linear::linear;
use crate::names;
use crate::norm::{gated_rms_norm, rms_norm};
use crate::params::Role;
use crate::ssd::{Ssd, SsdInputs};
use monopass_ir::error::BuildErrors;
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};

/// A block with its parameters declared in a graph.
///
/// [`forward`](Self::forward) and [`decode_step`](Self::decode_step) are the same computation, so that any split of a
/// sequence gives the same results and states.
#[derive(Clone, Debug)]
pub struct Mamba2<'g> {
    config: Mamba2Config,
    sizes: Mamba2Sizes,
    pre_norm: Tensor<'g>,
    in_proj: Tensor<'g>,
    in_proj_bias: Option<Tensor<'g>>,
    conv: Conv<'g>,
    ssd: Ssd<'g>,
    norm: Option<Tensor<'g>>,
    out_proj: Tensor<'g>,
    out_proj_bias: Option<Tensor<'g>>,
    init_states: Option<Tensor<'g>>,
}

/// What a block carries from one token to the next.
#[derive(Clone, Copy, Debug)]
pub struct States<'g> {
    /// The last K-1 inputs of the convolution, `[B, conv_dim, K-1]`, newest last; absent with one tap.
    pub conv_state: Option<Tensor<'g>>,
    /// State of the scan, `[B, H, P, N]`.
    pub ssm_state: Tensor<'g>,
}

/// Per-token inputs beside `u`, shared by all layers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packing<'g> {
    /// Number of the sequence that each token belongs to, `[B, L]` i32. Conv and scan start afresh where it changes; states
    /// that are handed in belong to the first.
    pub seq_idx: Option<Tensor<'g>>,
    /// 1 at tokens and 0 at padding before them, `[B, L]` f32.
    ///
    /// As in Hugging Face: multiplies the input of `in_proj` and the output of the convolution, so that tokens see what they
    /// would see without the padding, if the projections have no bias. Further, padding leaves a state that was handed in as
    /// it is, except that the convolution's window then holds the padding.
    pub mask: Option<Tensor<'g>>,
}

/// How states enter and leave a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Neither: from the initial state, and the last one is dropped.
    Stateless,
    /// From the initial state; the last one is an output.
    Fresh,
    /// Inputs and outputs: `conv_state` in, `conv_state_out` out.
    Explicit,
    /// States of the graph, each with its update. A session starts them at zero; where initial states are learned, the
    /// caller has to store them there first.
    Stateful,
}

/// Options of [`graph_with`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGraph {
    /// How states enter and leave.
    pub io: Io,
    /// Whether there is an input `seq_idx`.
    pub seq_idx: bool,
    /// Whether there is an input `mask`.
    pub mask: bool,
}

impl From<Io> for BlockGraph {
    fn from(io: Io) -> Self {
        Self { io, seq_idx: false, mask: false }
    }
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
    let g = GraphBuilder::new("mamba2");
    match config.sizes() {
        Err(errors) => errors.report(&g),
        Ok(sizes) => {
            let u = g.input_dynamic("u", DType::F32, [batch, len, config.d_model], &[0, 1]);
            let packing = Packing::declare(&g, batch, len, options.seq_idx, options.mask);
            let states = States::declare(&g, config, &sizes, batch, "", options.io);
            let block = Mamba2::declare(&g, config, sizes, "");
            let (out, states) = block.forward(u, states, packing);
            g.output("out", out);
            states.publish(&g, "", options.io);
        }
    }
    g.finish()
}

impl<'g> Packing<'g> {
    /// Declares the inputs `seq_idx` and `mask` where they are wanted.
    #[must_use]
    pub fn declare(g: &'g GraphBuilder, batch: usize, len: usize, seq_idx: bool, mask: bool) -> Self {
        let input = |name, dtype| g.input_dynamic(name, dtype, [batch, len], &[0, 1]);
        Self { seq_idx: seq_idx.then(|| input("seq_idx", DType::I32)), mask: mask.then(|| input("mask", DType::F32)) }
    }
}

impl<'g> States<'g> {
    /// Declares the states that enter as `io` says, their names after `prefix`; `None` if none enter.
    #[must_use]
    pub fn declare(g: &'g GraphBuilder, config: &Mamba2Config, sizes: &Mamba2Sizes, batch: usize, prefix: &str, io: Io) -> Option<Self> {
        let declare = |name: &str, shape: Vec<usize>| {
            let name = format!("{prefix}{name}");
            match io {
                Io::Stateless | Io::Fresh => None,
                Io::Explicit => Some(g.input_dynamic(&name, DType::F32, shape, &[0])),
                Io::Stateful => Some(g.state_dynamic(&name, DType::F32, shape, &[0])),
            }
        };
        let conv_state = if config.d_conv > 1 { declare("conv_state", vec![batch, sizes.conv_dim, config.d_conv - 1]) } else { None };
        let ssm_state = declare("ssm_state", vec![batch, sizes.nheads, config.headdim, config.d_state])?;
        Some(Self { conv_state, ssm_state })
    }

    /// Names the states that leave as `io` says.
    pub fn publish(&self, g: &'g GraphBuilder, prefix: &str, io: Io) {
        for (name, state) in [("conv_state", self.conv_state), ("ssm_state", Some(self.ssm_state))] {
            let Some(state) = state else { continue };
            match io {
                Io::Stateless => {}
                Io::Fresh | Io::Explicit => g.output(&format!("{prefix}{name}_out"), state),
                Io::Stateful => g.update(&format!("{prefix}{name}"), state),
            }
        }
    }
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
            ssd: Ssd {
                a_log: required(Role::ALog),
                dt_bias: required(Role::DtBias),
                d_skip: required(Role::DSkip),
                nheads: sizes.nheads,
                headdim: config.headdim,
                ngroups: config.ngroups,
                d_state: config.d_state,
                dt_limit: config.dt_limit,
                chunk_size: config.chunk_size,
            },
            norm: optional(Role::Norm),
            out_proj: required(Role::OutProj),
            out_proj_bias: optional(Role::OutProjBias),
            init_states: optional(Role::InitStates),
            config: config.clone(),
            sizes,
        }
    }

    /// A sequence through the block.
    ///
    /// Shapes: `u [B, L, d_model]` → `out [B, L, d_model]` and the states after the last token. Without `states` the
    /// convolution starts from zeros, and the scan from the learned initial states if there are any, else from zero.
    #[track_caller]
    #[must_use]
    pub fn forward(&self, u: Tensor<'g>, states: Option<States<'g>>, packing: Packing<'g>) -> (Tensor<'g>, States<'g>) {
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

    /// One token through the block: [`forward`](Self::forward) of length 1.
    ///
    /// Shapes: `u [B, 1, d_model]` → `out [B, 1, d_model]` and the states after the token.
    #[track_caller]
    #[must_use]
    pub fn decode_step(&self, u: Tensor<'g>, states: States<'g>) -> (Tensor<'g>, States<'g>) {
        if u.dim(1) != 1 {
            u.builder().fail(format!("decode_step: u {} is not one token", u.ty()), "give [B, 1, d_model], or call forward");
        }
        self.forward(u, Some(states), Packing::default())
    }

    #[track_caller]
    fn mixer(&self, u: Tensor<'g>, states: Option<States<'g>>, packing: Packing<'g>) -> (Tensor<'g>, States<'g>) {
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
            let (xbc, state) = conv(parts.xbc, &self.conv, states.and_then(|states| states.conv_state), reset);
            (masked(xbc), (self.config.d_conv > 1).then_some(state))
        };
        let (y, ssm_state) = {
            let _scope = g.scope("ssd");
            let [x, b, c] = cut(xbc, [sizes.d_ssm, sizes.d_bc, sizes.d_bc]);
            let s0 = states.map(|states| states.ssm_state).or_else(|| self.initial_state(batch));
            self.ssd.apply(&SsdInputs { x, dt: parts.dt, b, c, s0, reset, mask })
        };
        let y = {
            let _scope = g.scope("norm");
            gated_rms_norm(y, parts.z, self.norm, self.config.norm, self.config.norm_eps, sizes.norm_group)
        };
        let _scope = g.scope("out_proj");
        let y = parts.mlp.map_or(y, |[z0, x0]| g.concat(&[z0.silu() * x0, y], 2usize));
        (linear(y, self.out_proj, self.out_proj_bias), States { conv_state, ssm_state })
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
