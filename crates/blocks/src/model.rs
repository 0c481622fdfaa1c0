//! A language model: embedding, layers, final norm, head.

use crate::block::{Block, BlockSizes};
use crate::config::LmConfig;
use crate::linear::linear;
use crate::loss::cross_entropy;
use crate::names;
use crate::norm::rms_norm;
use crate::params::Role;
use crate::score::scores;
use crate::state::{Io, Packing, States};
use monopass_ir::error::BuildErrors;
use monopass_ir::ops::choice::N_SETTINGS;
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
    /// `next [B]` u32: the token after the last one as [`Op::Sample`](monopass_ir::Op::Sample) draws it by the inputs `settings [B, 4]`
    /// temperature, top k, top p and min p, and `uniform [B]`; never a row of padding.
    Sample,
    /// `embedding [B, d_model]`: the mean over tokens of their final hidden states, all so far that are not masked, scaled to length 1.
    /// What is summed so far are states, `pooled [B, d_model]` and `n_pooled [B, 1]`.
    Pooled,
    /// Nothing but the states.
    States,
    /// `loss [B, L]` f32 and `rank [B, L]` u32 of the input `target [B, L]` i32, see [`crate::score::Scores`].
    Score,
    /// `logits [B, L, V]`, and `loss [1]`: the mean cross-entropy with the input `target [B, L]` i32, where it is not `ignore`.
    Loss {
        /// Target of tokens that do not count.
        ignore: i32,
    },
}

/// Where a graph has its tokens from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenIo {
    /// The input `ids [B, L]` u32.
    Input,
    /// The state `token [B, 1]` u32, whose update is `next`, so that a decode step needs no token from the host.
    State,
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
    /// Where the tokens come from.
    pub token: TokenIo,
    /// Whether a state `seen [B, n_tokens]` f32 counts the tokens that were not masked. [`Head::Sample`] then has an input
    /// `repetition_penalty [B]`: logits of tokens seen are divided by it where they are positive, and else multiplied.
    pub seen: bool,
}

impl LmGraph {
    /// The options without packed sequences or padding.
    #[must_use]
    pub const fn new(io: Io, head: Head) -> Self {
        Self { io, head, seq_idx: false, mask: false, gradients: false, token: TokenIo::Input, seen: false }
    }
}

/// The graph of a model: input `ids [batch, len]` u32, outputs as `options.head` says.
///
/// With [`TokenIo::State`] there is no such input, and `len` is 1.
///
/// States are called `layers.0.conv_state` and so on, see [`crate::block::graph`]. Batch and length are dynamic axes;
/// `len` 1 is a decode step.
///
/// # Errors
/// Every inconsistency of the configuration, sizes that are too large, a head over the last token of none, and a token carried as a state
/// over another length than 1 or by a head that gives none.
pub fn graph(config: &LmConfig, batch: usize, len: usize, options: LmGraph) -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("lm");
    match config.sizes() {
        Err(errors) => errors.report(&g),
        Ok(sizes) => build(&g, config, sizes, [batch, len], options),
    }
    g.finish()
}

fn build(g: &GraphBuilder, config: &LmConfig, sizes: BlockSizes<'_>, [batch, len]: [usize; 2], options: LmGraph) {
    let ids = match options.token {
        TokenIo::Input => g.input_dynamic("ids", DType::U32, [batch, len], &[0, 1]),
        TokenIo::State => g.state_dynamic("token", DType::U32, [batch, 1], &[0]),
    };
    if options.token == TokenIo::State && (len != 1 || !matches!(options.head, Head::Next | Head::Sample)) {
        g.fail(format!("lm: a token carried as a state over a length of {len}"), "use length 1, and Head::Next or Head::Sample");
        return;
    }
    let packing = Packing::declare(g, batch, len, options.seq_idx, options.mask).for_gradients(options.gradients);
    let infos = sizes.states();
    let states: Option<Vec<States<'_>>> =
        (0..config.n_layer).map(|layer| States::declare(g, &infos, batch, &names::state_prefix(layer), options.io)).collect();
    let lm = Lm::declare(g, config, sizes);
    let (hidden, states) = lm.hidden(ids, states.as_deref(), packing);
    let seen = options.seen.then(|| lm.seen(g, ids, packing.mask));
    let publish_next = |next: Tensor<'_>| {
        g.output("next", next);
        if options.token == TokenIo::State {
            // A row without a token goes on with the last one, so that it does not leave its rows of tables.
            let last = u32::try_from(config.n_tokens().saturating_sub(1)).unwrap_or(u32::MAX);
            let token = if options.head == Head::Sample { next.min(g.constant(f64::from(last), DType::U32, [])) } else { next };
            g.update("token", token.reshape([batch, 1]));
        }
    };
    match options.head {
        Head::Logits => g.output("logits", lm.logits(hidden)),
        Head::LastLogits => g.output("logits", lm.last_logits(hidden)),
        Head::Next => publish_next(lm.next(hidden)),
        Head::Sample => {
            let row = |name: &str, sizes: &[usize]| g.input_dynamic(name, DType::F32, sizes, &[0]);
            let (settings, uniform) = (row("settings", &[batch, N_SETTINGS]), row("uniform", &[batch]));
            let penalty = seen.map(|seen| (seen, row("repetition_penalty", &[batch])));
            publish_next(lm.sample(hidden, settings, uniform, penalty));
        }
        Head::Pooled => {
            let state = |name: &str, size: usize| g.state_dynamic(name, DType::F32, [batch, size], &[0]);
            let (sum, n) = (state("pooled", config.block.d_model()), state("n_pooled", 1));
            let [embedding, sum, n] = lm.pooled(hidden, packing.mask, [sum, n]);
            g.output("embedding", embedding);
            g.update("pooled", sum);
            g.update("n_pooled", n);
        }
        Head::States => {}
        Head::Score => {
            let target = g.input_dynamic("target", DType::I32, [batch, len], &[0, 1]);
            let rows = batch.saturating_mul(len);
            let normed = lm.final_norm(hidden).reshape([rows, config.block.d_model()]);
            let _scope = g.scope("score");
            let scores = scores(normed, lm.head, target.reshape([rows]), config.n_tokens());
            g.output("loss", scores.losses.reshape([batch, len]));
            g.output("rank", scores.ranks.reshape([batch, len]));
        }
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

    /// Logits of the last token without rows of padding.
    ///
    /// Shapes: `hidden [B, L, d_model]` → `[B, n_tokens]`.
    #[track_caller]
    fn token_logits(&self, hidden: Tensor<'g>) -> Tensor<'g> {
        let logits = self.last_logits(hidden);
        if self.config.vocab_padding == 0 { logits } else { logits.slice_axis(1, 0, self.config.n_tokens()) }
    }

    /// How often each token was seen so far: the state `seen`, which counts `ids` from here on.
    ///
    /// Shapes: `ids [B, L]`, `mask [B, L]` → `[B, n_tokens]`.
    #[track_caller]
    fn seen(&self, g: &'g GraphBuilder, ids: Tensor<'g>, mask: Option<Tensor<'g>>) -> Tensor<'g> {
        let _scope = g.scope("seen");
        let (batch, len, n_tokens) = (ids.dim(0), ids.dim(1), self.config.n_tokens());
        let before = g.state_dynamic("seen", DType::F32, [batch, n_tokens], &[0]);
        // Each sequence has rows of its own in one table.
        let Ok(stride) = u32::try_from(n_tokens) else { return before };
        let first = g.iota([batch, 1], 0usize, DType::U32) * g.constant(f64::from(stride), DType::U32, []);
        let ones = mask.unwrap_or_else(|| g.constant(1.0, DType::F32, [batch, len]));
        let counts = ones.reshape([batch * len]).scatter_add((ids + first).reshape([batch * len]), batch * n_tokens);
        let seen = before + counts.reshape([batch, n_tokens]);
        g.update("seen", seen);
        seen
    }

    /// A token drawn after the last one. `penalty` is what was seen so far, and the repetition penalty of each sequence.
    ///
    /// Shapes: `hidden [B, L, d_model]`, `settings [B, 4]`, `uniform [B]`, `penalty` of `[B, n_tokens]` and `[B]` → `[B]` u32.
    ///
    /// # Source
    /// Keskar et al. 2019, arXiv 1909.05858, section 4.1, with the multiplication of negative logits as Hugging Face has it.
    #[track_caller]
    #[must_use]
    pub fn sample(
        &self,
        hidden: Tensor<'g>,
        settings: Tensor<'g>,
        uniform: Tensor<'g>,
        penalty: Option<(Tensor<'g>, Tensor<'g>)>,
    ) -> Tensor<'g> {
        let logits = self.token_logits(hidden);
        let g = hidden.builder();
        let _scope = g.scope("sample");
        let zero = g.constant(0.0, DType::F32, []);
        let penalized = |(seen, penalty): (Tensor<'g>, Tensor<'g>)| {
            let penalty = penalty.reshape([penalty.dim(0), 1]);
            zero.lt(seen).select(zero.lt(logits).select(logits / penalty, logits * penalty), logits)
        };
        penalty.map_or(logits, penalized).sample(settings, uniform)
    }

    /// The mean of the final hidden states, scaled to length 1, with their sum and number so far.
    ///
    /// Shapes: `hidden [B, L, d_model]`, `mask [B, L]`, sums before of `[B, d_model]` and `[B, 1]` → `[B, d_model]` and the new sums.
    #[track_caller]
    fn pooled(&self, hidden: Tensor<'g>, mask: Option<Tensor<'g>>, [sum, n]: [Tensor<'g>; 2]) -> [Tensor<'g>; 3] {
        let normed = self.final_norm(hidden);
        let g = hidden.builder();
        let _scope = g.scope("pool");
        let (batch, len) = (hidden.dim(0), hidden.dim(1));
        let ones = mask.unwrap_or_else(|| g.constant(1.0, DType::F32, [batch, len]));
        let sum = sum + (normed * ones.reshape([batch, len, 1])).sum([1], false);
        let n = n + ones.sum([1], true);
        let mean = sum / n.max(g.constant(1.0, DType::F32, []));
        // Nothing at all has length zero, and stays so.
        let length = (mean * mean).sum([1], true).sqrt();
        [mean / length.max(g.constant(f64::from(f32::MIN_POSITIVE), DType::F32, [])), sum, n]
    }

    /// The likeliest token after the last one, the lowest of equals; rows of padding are no tokens.
    ///
    /// Shapes: `hidden [B, L, d_model]` → `[B]` u32.
    #[track_caller]
    #[must_use]
    pub fn next(&self, hidden: Tensor<'g>) -> Tensor<'g> {
        self.token_logits(hidden).argmax(1usize)
    }
}
