//! A block of any kind: its configuration, its parameters in a graph, and the graph of one block.

use crate::config::{Mamba2Config, Mamba2Sizes, Naming};
use crate::error::ConfigErrors;
use crate::mamba2::Mamba2;
use crate::mamba3::{Mamba3, Mamba3Config, Mamba3Sizes};
use crate::params::{ParamInfo, TrainRows, Trainable, TrainableError, select};
use crate::state::{Io, Packing, StateInfo, States};
use monopass_ir::error::BuildErrors;
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};
use serde_json::Value;
use std::ops::Range;

/// Options of a block.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockConfig {
    /// Mamba-2, also with complex states.
    Mamba2(Mamba2Config),
    /// Mamba-3.
    Mamba3(Mamba3Config),
}

/// A configuration whose options fit together, with the sizes that follow from it.
#[derive(Clone, Copy, Debug)]
pub enum BlockSizes<'c> {
    /// Mamba-2, also with complex states.
    Mamba2(&'c Mamba2Config, Mamba2Sizes),
    /// Mamba-3.
    Mamba3(&'c Mamba3Config, Mamba3Sizes),
}

/// A block with its parameters declared in a graph.
#[derive(Clone, Debug)]
pub enum Block<'g> {
    /// Mamba-2, also with complex states.
    Mamba2(Box<Mamba2<'g>>),
    /// Mamba-3.
    Mamba3(Box<Mamba3<'g>>),
}

impl From<Mamba2Config> for BlockConfig {
    fn from(config: Mamba2Config) -> Self {
        Self::Mamba2(config)
    }
}

impl From<Mamba3Config> for BlockConfig {
    fn from(config: Mamba3Config) -> Self {
        Self::Mamba3(config)
    }
}

impl BlockConfig {
    /// What a command line calls the blocks that [`named`](Self::named) knows.
    pub const NAMES: &'static [&'static str] = &["mamba2", "mamba2-seed", "cmamba", "mamba3"];

    /// The block that a command line calls `name`, with its defaults, of width `d_model`.
    #[must_use]
    pub fn named(name: &str, d_model: usize) -> Option<Self> {
        match name {
            "mamba3" => Some(Mamba3Config::new(d_model).into()),
            _ => Mamba2Config::named(name, d_model).map(Self::Mamba2),
        }
    }

    /// The block's kind: `mamba2`, `cmamba` (complex states) or `mamba3`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Mamba2(config) if config.complex => "cmamba",
            Self::Mamba2(_) => "mamba2",
            Self::Mamba3(_) => "mamba3",
        }
    }

    /// What its parameters are called.
    #[must_use]
    pub const fn naming(&self) -> Naming {
        match self {
            Self::Mamba2(config) => config.naming,
            Self::Mamba3(_) => Naming::Mixer,
        }
    }

    /// Width of the residual stream.
    #[must_use]
    pub const fn d_model(&self) -> usize {
        match self {
            Self::Mamba2(config) => config.d_model,
            Self::Mamba3(config) => config.d_model,
        }
    }

    /// Added to the mean square in the block's pre-norm.
    #[must_use]
    pub const fn eps(&self) -> f64 {
        match self {
            Self::Mamba2(config) => config.eps,
            Self::Mamba3(config) => config.eps,
        }
    }

    /// Whether the scan starts from a parameter where no state is given.
    #[must_use]
    pub const fn learns_initial_states(&self) -> bool {
        match self {
            Self::Mamba2(config) => config.learnable_init_states,
            Self::Mamba3(_) => false,
        }
    }

    /// The options of a Mamba-2 block; `None` if it is another.
    #[must_use]
    pub const fn as_mamba2(&self) -> Option<&Mamba2Config> {
        match self {
            Self::Mamba2(config) => Some(config),
            Self::Mamba3(_) => None,
        }
    }

    /// The options of a Mamba-3 block; `None` if it is another.
    #[must_use]
    pub const fn as_mamba3(&self) -> Option<&Mamba3Config> {
        match self {
            Self::Mamba2(_) => None,
            Self::Mamba3(config) => Some(config),
        }
    }

    /// The sizes that follow, if all options fit together.
    ///
    /// # Errors
    /// Every inconsistency, each with how to fix it.
    pub fn sizes(&self) -> Result<BlockSizes<'_>, ConfigErrors> {
        Ok(match self {
            Self::Mamba2(config) => BlockSizes::Mamba2(config, config.sizes()?),
            Self::Mamba3(config) => BlockSizes::Mamba3(config, config.sizes()?),
        })
    }

    /// Changes the settings that `text` names, such as `d_model=256,d_state=16`.
    ///
    /// # Errors
    /// A name that no setting has, or a value of another type. Whether the sizes fit together is asked of
    /// [`sizes`](Self::sizes).
    pub fn set(&mut self, text: &str) -> Result<(), ConfigErrors> {
        match self {
            Self::Mamba2(config) => config.set(text),
            Self::Mamba3(config) => config.set(text),
        }
    }

    /// This configuration with the settings of a JSON object, which may state derived sizes too.
    ///
    /// # Errors
    /// Unknown keys, values of another type, derived sizes that do not follow, and every inconsistency.
    pub fn with_json(self, object: &Value) -> Result<Self, ConfigErrors> {
        Ok(match self {
            Self::Mamba2(config) => config.with_json(object)?.into(),
            Self::Mamba3(config) => config.with_json(object)?.into(),
        })
    }

    /// The block's parameters, their names after `prefix`.
    ///
    /// # Errors
    /// Every inconsistency of the configuration.
    pub fn parameters(&self, prefix: &str) -> Result<Vec<ParamInfo>, ConfigErrors> {
        match self {
            Self::Mamba2(config) => config.parameters(prefix),
            Self::Mamba3(config) => config.parameters(prefix),
        }
    }

    /// Which rows of which of the block's parameters train.
    ///
    /// # Errors
    /// A pattern that matches nothing, or an inconsistent configuration.
    pub fn trainable(&self, mode: &Trainable) -> Result<Vec<TrainRows>, TrainableError> {
        select(&self.parameters("")?, mode, self.sizes()?.bc_rows())
    }
}

impl BlockSizes<'_> {
    /// What the block carries from one token to the next.
    #[must_use]
    pub fn states(&self) -> Vec<StateInfo> {
        match self {
            Self::Mamba2(config, sizes) => config.states(sizes),
            Self::Mamba3(config, sizes) => config.states(sizes),
        }
    }

    /// Rows of `in_proj` that make B and C.
    #[must_use]
    pub const fn bc_rows(&self) -> Range<usize> {
        match self {
            Self::Mamba2(config, sizes) => config.bc_rows(sizes),
            Self::Mamba3(_, sizes) => sizes.bc_rows(),
        }
    }

    /// Channels inside the block.
    #[must_use]
    pub const fn d_inner(&self) -> usize {
        match self {
            Self::Mamba2(_, sizes) => sizes.d_inner,
            Self::Mamba3(_, sizes) => sizes.d_inner,
        }
    }

    /// Declares the block's parameters, their names after `prefix`.
    #[must_use]
    pub fn declare<'g>(&self, g: &'g GraphBuilder, prefix: &str) -> Block<'g> {
        match *self {
            Self::Mamba2(config, sizes) => Block::Mamba2(Box::new(Mamba2::declare(g, config, sizes, prefix))),
            Self::Mamba3(config, sizes) => Block::Mamba3(Box::new(Mamba3::declare(g, config, sizes, prefix))),
        }
    }
}

impl<'g> Block<'g> {
    /// A sequence through the block.
    ///
    /// Shapes: `u [B, L, d_model]` → `out [B, L, d_model]` and the states after the last token. Without `states` everything
    /// that is carried starts from zero, or from learned initial states.
    #[track_caller]
    #[must_use]
    pub fn forward(&self, u: Tensor<'g>, states: Option<&States<'g>>, packing: Packing<'g>) -> (Tensor<'g>, States<'g>) {
        match self {
            Self::Mamba2(block) => block.forward(u, states, packing),
            Self::Mamba3(block) => block.forward(u, states, packing),
        }
    }

    /// One token through the block: [`forward`](Self::forward) of length 1.
    ///
    /// Shapes: `u [B, 1, d_model]` → `out [B, 1, d_model]` and the states after the token.
    #[track_caller]
    #[must_use]
    pub fn decode_step(&self, u: Tensor<'g>, states: &States<'g>) -> (Tensor<'g>, States<'g>) {
        if u.dim(1) != 1 {
            u.builder().fail(format!("decode_step: u {} is not one token", u.ty()), "give [B, 1, d_model], or call forward");
        }
        self.forward(u, Some(states), Packing::default())
    }
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
    /// Whether gradients will be taken, see [`Packing::gradients`].
    pub gradients: bool,
}

impl From<Io> for BlockGraph {
    fn from(io: Io) -> Self {
        Self { io, seq_idx: false, mask: false, gradients: false }
    }
}

/// The graph of one block: input `u [batch, len, d_model]`, output `out` of the same shape, states as `io` says.
///
/// States have the names of [`BlockSizes::states`], as outputs with `_out` after them. Batch and length are dynamic axes.
/// `len` 1 is a decode step, 0 gives the states back.
///
/// # Errors
/// Every inconsistency of the configuration, and sizes that are too large.
pub fn graph(config: &BlockConfig, batch: usize, len: usize, io: Io) -> Result<Graph, BuildErrors> {
    graph_with(config, batch, len, io.into())
}

/// As [`graph`], with the further inputs `seq_idx` (i32) and `mask` (f32), both `[batch, len]`, as `options` says.
///
/// # Errors
/// Every inconsistency of the configuration, and sizes that are too large.
pub fn graph_with(config: &BlockConfig, batch: usize, len: usize, options: BlockGraph) -> Result<Graph, BuildErrors> {
    sized_graph(config.kind(), config.sizes(), [batch, len], options)
}

/// The graph called `name` of a block whose sizes were asked for.
pub(crate) fn sized_graph(
    name: &str,
    sizes: Result<BlockSizes<'_>, ConfigErrors>,
    [batch, len]: [usize; 2],
    options: BlockGraph,
) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new(name);
    match sizes {
        Err(errors) => errors.report(&g),
        Ok(sizes) => {
            let d_model = match sizes {
                BlockSizes::Mamba2(config, _) => config.d_model,
                BlockSizes::Mamba3(config, _) => config.d_model,
            };
            let u = g.input_dynamic("u", DType::F32, [batch, len, d_model], &[0, 1]);
            let packing = Packing::declare(&g, batch, len, options.seq_idx, options.mask).for_gradients(options.gradients);
            let states = States::declare(&g, &sizes.states(), batch, "", options.io);
            let block = sizes.declare(&g, "");
            let (out, states) = block.forward(u, states.as_ref(), packing);
            g.output("out", out);
            states.publish(&g, "", options.io);
        }
    }
    g.finish()
}
