//! A language model: embedding, layers, final norm, head.

use crate::block::{Block, BlockSizes};
use crate::config::LmConfig;
use crate::linear::linear;
use crate::loss::cross_entropy;
use crate::names;
use crate::norm::rms_norm;
use crate::params::Role;
use crate::state::{Io, Packing, States};
use monopass_ir::error::BuildErrors;
use monopass_ir::{DType, Graph, GraphBuilder, Tensor};

/// A model with its parameters declared in a graph.
#[derive(Clone, Debug)]
pub struct Lm<'g> {
    config: LmConfig,
    embedding: Tensor<'g>,
    layers: Vec<Block<'g>>,
    norm_f: Tensor<'g>,
    head: Tensor<'g>,
}

/// What a model's graph gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// `logits [B, L, V]`.
    Logits,
    /// `logits [B, V]` of the last token.
    LastLogits,
    /// `next [B]` u32: the likeliest token after the last one, the lowest of equals; never a row of padding.
    Next,
    /// `logits [B, L, V]`, and `loss [1]`: the mean cross-entropy with the input `target [B, L]` i32, where it is not `ignore`.
    Loss {
        /// Target of tokens that do not count.
        ignore: i32,
    },
}

/// Options of [`graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmGraph {
    /// How states enter and leave.
    pub io: Io,
    /// What the graph gives.
    pub head: Head,
    /// Whether there is an input `seq_idx [B, L]` i32.
    pub seq_idx: bool,
    /// Whether there is an input `mask [B, L]` f32, 0 at padding before the tokens.
    pub mask: bool,
    /// Whether gradients will be taken, see [`Packing::gradients`].
    pub gradients: bool,
}

impl LmGraph {
    /// The options without packed sequences or padding.
    #[must_use]
    pub const fn new(io: Io, head: Head) -> Self {
        Self { io, head, seq_idx: false, mask: false, gradients: false }
    }
}

/// The graph of a model: input `ids [batch, len]` u32, outputs as `options.head` says.
///
/// States are called `layers.0.conv_state` and so on, see [`crate::block::graph`]. Batch and length are dynamic axes;
/// `len` 1 is a decode step.
///
/// # Errors
/// Every inconsistency of the configuration, sizes that are too large, and a head over the last token of none.
pub fn graph(config: &LmConfig, batch: usize, len: usize, options: LmGraph) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("lm");
    match config.sizes() {
        Err(errors) => errors.report(&g),
        Ok(sizes) => build(&g, config, sizes, [batch, len], options),
    }
    g.finish()
}

fn build(g: &GraphBuilder, config: &LmConfig, sizes: BlockSizes<'_>, [batch, len]: [usize; 2], options: LmGraph) {
    let ids = g.input_dynamic("ids", DType::U32, [batch, len], &[0, 1]);
    let packing = Packing::declare(g, batch, len, options.seq_idx, options.mask).for_gradients(options.gradients);
    let infos = sizes.states();
    let states: Option<Vec<States<'_>>> =
        (0..config.n_layer).map(|layer| States::declare(g, &infos, batch, &names::state_prefix(layer), options.io)).collect();
    let lm = Lm::declare(g, config, sizes);
    let (hidden, states) = lm.hidden(ids, states.as_deref(), packing);
    match options.head {
        Head::Logits => g.output("logits", lm.logits(hidden)),
        Head::LastLogits => g.output("logits", lm.last_logits(hidden)),
        Head::Next => g.output("next", lm.next(hidden)),
        Head::Loss { ignore } => {
            let target = g.input_dynamic("target", DType::I32, [batch, len], &[0, 1]);
            let logits = lm.logits(hidden);
            g.output("logits", logits);
            let _scope = g.scope("loss");
            let n_rows = batch.saturating_mul(len);
            let loss = cross_entropy(logits.reshape([n_rows, config.vocab_size]), target.reshape([n_rows]), ignore);
            g.output("loss", loss.reshape([1]));
        }
    }
    for (layer, states) in states.iter().enumerate() {
        states.publish(g, &names::state_prefix(layer), options.io);
    }
}

impl<'g> Lm<'g> {
    /// Declares the model's parameters. `sizes` are those of `config`.
    #[must_use]
    pub fn declare(g: &'g GraphBuilder, config: &LmConfig, sizes: BlockSizes<'_>) -> Self {
        let table = [config.vocab_size, config.block.d_model()];
        let param = |role, shape: &[usize]| g.param(names::of_model(role).unwrap_or_default(), DType::F32, shape);
        let embedding = param(Role::Embedding, &table);
        let layers = (0..config.n_layer).map(|layer| sizes.declare(g, &names::layer_prefix(layer))).collect();
        let norm_f = param(Role::FinalNorm, &table[1..]);
        let head = if config.tie_embeddings { embedding } else { param(Role::Head, &table) };
        Self { config: config.clone(), embedding, layers, norm_f, head }
    }

    /// Replaces the weights of the linear maps (the blocks' projections, and the head unless it is tied): `map` gets each one's name and
    /// tensor.
    pub fn map_linears(&mut self, map: &mut dyn FnMut(&str, Tensor<'g>) -> Tensor<'g>) {
        let naming = self.config.block.naming();
        for (layer, block) in self.layers.iter_mut().enumerate() {
            let prefix = names::layer_prefix(layer);
            let map = &mut |role, weight| names::of_block(naming, role).map_or(weight, |name| map(&format!("{prefix}{name}"), weight));
            match block {
                Block::Mamba2(block) => block.map_projections(map),
                Block::Mamba3(block) => block.map_projections(map),
            }
        }
        if !self.config.tie_embeddings {
            self.head = map(names::of_model(Role::Head).unwrap_or_default(), self.head);
        }
    }

    /// The weight of the head, `[V, d_model]`.
    #[must_use]
    pub const fn head(&self) -> Tensor<'g> {
        self.head
    }

    /// Tokens through the embedding and all layers.
    ///
    /// Shapes: `ids [B, L]` → `[B, L, d_model]`, and each layer's states after the last token. `states` holds one entry for
    /// each layer.
    #[track_caller]
    #[must_use]
    pub fn hidden(&self, ids: Tensor<'g>, states: Option<&[States<'g>]>, packing: Packing<'g>) -> (Tensor<'g>, Vec<States<'g>>) {
        let g = ids.builder();
        if let Some(states) = states.filter(|states| states.len() != self.layers.len()) {
            g.fail(format!("lm: states of {} layers for {}", states.len(), self.layers.len()), "give one entry for each layer");
        }
        let mut x = {
            let _scope = g.scope("embedding");
            self.embedding.gather(ids)
        };
        let mut after = Vec::with_capacity(self.layers.len());
        for (layer, block) in self.layers.iter().enumerate() {
            let _scope = g.scope(names::state_prefix(layer).trim_end_matches('.'));
            let before = states.and_then(|states| states.get(layer));
            let (out, states) = block.forward(x, before, packing);
            x = out;
            after.push(states);
        }
        (x, after)
    }

    /// Logits of every token.
    ///
    /// Shapes: `hidden [.., d_model]` → `[.., V]`.
    #[track_caller]
    #[must_use]
    pub fn logits(&self, hidden: Tensor<'g>) -> Tensor<'g> {
        let normed = self.final_norm(hidden);
        let _scope = hidden.builder().scope("lm_head");
        linear(normed, self.head, None)
    }

    /// The norm before the head.
    ///
    /// Shapes: `hidden [.., d_model]` → the same.
    #[track_caller]
    #[must_use]
    pub fn final_norm(&self, hidden: Tensor<'g>) -> Tensor<'g> {
        let _scope = hidden.builder().scope("norm_f");
        rms_norm(hidden, self.norm_f, self.config.norm_eps, self.config.block.d_model())
    }

    /// Logits of the last token, the only one that passes through the final norm and the head.
    ///
    /// Shapes: `hidden [B, L, d_model]` → `[B, V]`.
    #[track_caller]
    #[must_use]
    pub fn last_logits(&self, hidden: Tensor<'g>) -> Tensor<'g> {
        let (batch, len) = (hidden.dim(0), hidden.dim(1));
        if len == 0 {
            hidden.builder().fail("lm: no last token in a sequence of none", "give at least one token, or ask for all logits");
            return hidden;
        }
        // Also where it is the only one, so that its graph is that of longer sequences.
        let last = hidden.slice_axis(1, len - 1, len);
        self.logits(last.reshape([batch, self.config.block.d_model()]))
    }

    /// The likeliest token after the last one, the lowest of equals; rows of padding are no tokens.
    ///
    /// Shapes: `hidden [B, L, d_model]` → `[B]` u32.
    #[track_caller]
    #[must_use]
    pub fn next(&self, hidden: Tensor<'g>) -> Tensor<'g> {
        let logits = self.last_logits(hidden);
        let logits = if self.config.vocab_padding == 0 { logits } else { logits.slice_axis(1, 0, self.config.n_tokens()) };
        logits.argmax(1usize)
    }
}
