//! The adjoint of a scan over chunks of its tokens.
//!
//! Inside a chunk each pair of tokens is one entry of a matrix; between chunks the state and its adjoint are carried, each by
//! one product with the decays between chunks. Axes: B batch, C chunks, T tokens of a chunk, G groups, E heads of a group, R ranks,
//! P headdim, N `d_state`; M stands for (T, R) and H for (G, E). What all heads of a group share is computed once a group.
//!
//! Numerics: every exponent is a sum of logarithms of decays over neighboring tokens and so not positive; it is masked before it is
//! exponentiated. `d_log_decay` of a token adds up the paths that cross it and is no difference of sums.
//!
//! Source: the chain rule on Dao and Gu 2024, arXiv 2405.21060, section 6.

use monopass_ir::{DType, GraphBuilder, Tensor};

/// Rows of a matrix of pairs that fill a tile of a product.
const ROWS: usize = 64;
/// Tokens of a chunk at least, however many ranks there are: states between chunks are work, too.
const MIN_TOKENS: usize = 16;

/// The results of a `scan_grad` on its operands; `None` if a required one is missing.
pub(super) fn in_chunks<'g>(builder: &'g GraphBuilder, operands: [Option<Tensor<'g>>; 10], chunk_size: usize) -> Option<[Tensor<'g>; 7]> {
    let [Some(log_decay), Some(v), Some(k), Some(q), Some(dy), s0, reset, weight, own_weight, ds_last] = operands else { return None };
    let sizes = Sizes::new(v.shape().try_into().ok()?, k.shape().try_into().ok()?, chunk_size);
    if sizes.len == 0 {
        return Some(sizes.of_no_tokens(builder, ds_last));
    }
    let tokens = Tokens {
        decays: Decays::new(builder, &sizes, log_decay, reset),
        v: sizes.heads(sizes.chunked(v)),
        dy: sizes.heads(sizes.chunked(dy)),
        k: sizes.rows(sizes.chunked(k)),
        q: sizes.rows(sizes.chunked(q)),
        weight: weight.map(|weight| sizes.scalars(weight)),
        own_weight: own_weight.map(|own_weight| sizes.scalars(own_weight)),
        sizes,
        builder,
    };
    Some(tokens.adjoint(s0, ds_last))
}

/// Sizes of axes, see the head of the file.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    len: usize,
    chunks: usize,
    tokens: usize,
    groups: usize,
    in_group: usize,
    ranks: usize,
    headdim: usize,
    d_state: usize,
}

impl Sizes {
    /// Chunks of `chunk_size` tokens, or of equal ones near a tile's rows if that is 0.
    fn new(v: [usize; 5], k: [usize; 5], chunk_size: usize) -> Self {
        let ([batch, len, heads, ranks, headdim], [_, _, groups, _, d_state]) = (v, k);
        let most = if chunk_size > 0 { chunk_size } else { (ROWS / ranks.max(1)).max(MIN_TOKENS) };
        let chunks = len.div_ceil(most).max(1);
        let tokens = if chunk_size > 0 { most.min(len) } else { len.div_ceil(chunks) };
        Self { batch, len, chunks, tokens, groups, in_group: heads / groups.max(1), ranks, headdim, d_state }
    }

    const fn n_heads(&self) -> usize {
        self.groups * self.in_group
    }

    /// The results of no tokens: nothing but the adjoint of the state.
    fn of_no_tokens<'g>(&self, builder: &'g GraphBuilder, ds_last: Option<Tensor<'g>>) -> [Tensor<'g>; 7] {
        let Self { batch, ranks, headdim, d_state, groups, .. } = *self;
        let heads = self.n_heads();
        let zeros = |shape: &[usize]| builder.scalar(0.0).broadcast(shape);
        let [of_token, of_v, of_k] =
            [zeros(&[batch, 0, heads]), zeros(&[batch, 0, heads, ranks, headdim]), zeros(&[batch, 0, groups, ranks, d_state])];
        let of_state = ds_last.unwrap_or_else(|| zeros(&[batch, heads, headdim, d_state]));
        [of_token, of_v, of_k, of_k, of_state, of_token, of_token]
    }

    /// `[B, L, ..]` as `[B, C, T, ..]`, the last chunk filled up with zeros: tokens that neither decay nor do anything else.
    fn chunked<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let rest = rest(x, 2);
        let n_filled = self.chunks * self.tokens - self.len;
        let x =
            if n_filled > 0 { x.pad(vec![0; rest.len() + 2], [&[0, n_filled], vec![0; rest.len()].as_slice()].concat(), 0.0) } else { x };
        x.reshape([[self.batch, self.chunks, self.tokens].as_slice(), &rest].concat())
    }

    /// `[B, C, T, ..]` as `[B, L, ..]`, without what filled up the last chunk.
    fn flat<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let x = x.reshape([[self.batch, self.chunks * self.tokens].as_slice(), &rest(x, 3)].concat());
        if self.chunks * self.tokens > self.len { x.slice_axis(1, 0, self.len) } else { x }
    }

    /// `[B, L, H]` as `[B, C, T, G, E]`.
    fn scalars<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let Self { batch, chunks, tokens, groups, in_group, .. } = *self;
        self.chunked(x).reshape([batch, chunks, tokens, groups, in_group])
    }

    /// `[B, C, G, E, T]` as `[B, L, H]`.
    fn of_scalars<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let shape = [self.batch, self.chunks, self.tokens, self.n_heads()];
        self.flat(permuted(x, &[0, 1, 4, 2, 3]).reshape(shape))
    }

    /// `[B, C, T, H, R, P]` as `[B, C, G, T, R, E, P]`.
    fn heads<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let Self { batch, chunks, tokens, groups, in_group, ranks, headdim, .. } = *self;
        permuted(x.reshape([batch, chunks, tokens, groups, in_group, ranks, headdim]), &[0, 1, 3, 2, 5, 4, 6])
    }

    /// `[B, C, G, T, R, E, P]` as `[B, L, H, R, P]`.
    fn of_heads<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let shape = [self.batch, self.chunks, self.tokens, self.n_heads(), self.ranks, self.headdim];
        self.flat(permuted(x, &[0, 1, 3, 2, 5, 4, 6]).reshape(shape))
    }

    /// `[B, C, T, G, R, N]` as `[B, C, G, M, N]`.
    fn rows<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let shape = [self.batch, self.chunks, self.groups, self.tokens * self.ranks, self.d_state];
        permuted(x, &[0, 1, 3, 2, 4, 5]).reshape(shape)
    }

    /// `[B, C, G, M, N]` as `[B, L, G, R, N]`.
    fn of_rows<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let Self { batch, chunks, tokens, groups, ranks, d_state, .. } = *self;
        self.flat(permuted(x.reshape([batch, chunks, groups, tokens, ranks, d_state]), &[0, 1, 3, 2, 4, 5]))
    }

    /// `[B, C, G, T, R, E, P]` as `[B, C, G, M, E P]`: the heads of a group side by side.
    fn joined<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let Self { batch, chunks, tokens, groups, in_group, ranks, headdim, .. } = *self;
        x.reshape([batch, chunks, groups, tokens * ranks, in_group * headdim])
    }

    /// The other way of [`Self::joined`].
    fn parted<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let Self { batch, chunks, tokens, groups, in_group, ranks, headdim, .. } = *self;
        x.reshape([batch, chunks, groups, tokens, ranks, in_group, headdim])
    }

    /// `[B, C, G, T, R, E, P]` as `[B, C, G, E, M, P]`: each head by itself.
    fn by_head<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let Self { batch, chunks, tokens, groups, in_group, ranks, headdim, .. } = *self;
        permuted(x, &[0, 1, 2, 5, 3, 4, 6]).reshape([batch, chunks, groups, in_group, tokens * ranks, headdim])
    }

    /// The other way of [`Self::by_head`].
    fn of_head<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let Self { batch, chunks, tokens, groups, in_group, ranks, headdim, .. } = *self;
        permuted(x.reshape([batch, chunks, groups, in_group, tokens, ranks, headdim]), &[0, 1, 2, 4, 5, 3, 6])
    }

    /// Products `[.., M, M]` of rows as `[B, C, G, E or 1, T, R, T, R]`.
    fn pairs<'g>(&self, x: Tensor<'g>, heads: usize) -> Tensor<'g> {
        let Self { batch, chunks, tokens, groups, ranks, .. } = *self;
        x.reshape([batch, chunks, groups, heads, tokens, ranks, tokens, ranks])
    }

    /// `[B, C, G, E P, N]` as `[B, H, C, P N]`, for a product over chunks.
    fn by_chunk<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        permuted(x.reshape([self.batch, self.chunks, self.n_heads(), self.headdim * self.d_state]), &[0, 2, 1, 3])
    }

    /// The other way of [`Self::by_chunk`].
    fn of_chunk<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        permuted(x, &[0, 2, 1, 3]).reshape([self.batch, self.chunks, self.groups, self.in_group * self.headdim, self.d_state])
    }
}

/// Logarithms of decays, and where sequences start.
struct Decays<'g> {
    builder: &'g GraphBuilder,
    sizes: Sizes,
    /// Sums from the start of each chunk, each token's own included, `[B, C, T, G, E]`.
    running: Tensor<'g>,
    /// Sums of whole chunks, `[B, C, 1, G, E]`.
    total: Tensor<'g>,
    /// Number of the sequence that each token belongs to, `[B, C, T]`, and that of the token before each chunk and of the last,
    /// `[B, C + 1]`; none if there is one sequence.
    sequences: Option<(Tensor<'g>, Tensor<'g>)>,
}

impl<'g> Decays<'g> {
    fn new(builder: &'g GraphBuilder, sizes: &Sizes, log_decay: Tensor<'g>, reset: Option<Tensor<'g>>) -> Self {
        let running = sizes.scalars(log_decay).cumsum(None, 2_usize, false, 0.0);
        let total = running.slice_axis(2, sizes.tokens - 1, sizes.tokens);
        let sequences = reset.map(|reset| {
            // The first token's reset has no effect.
            let starts = reset.slice_axis(1, 1, sizes.len).pad([0, 1], [0, 0], 0.0).cast(DType::I32);
            let numbers = sizes.chunked(starts).reshape([sizes.batch, sizes.chunks * sizes.tokens]).cumsum(None, 1_usize, false, 0.0);
            let tokens = numbers.reshape([sizes.batch, sizes.chunks, sizes.tokens]);
            let ends = tokens.slice_axis(2, sizes.tokens - 1, sizes.tokens).reshape([sizes.batch, sizes.chunks]);
            (tokens, ends.pad([0, 1], [0, 0], 0.0))
        });
        Self { builder, sizes: *sizes, running, total, sequences }
    }

    /// `e^exponent` where `keeps` holds, else zero; what is masked is never exponentiated.
    fn masked(&self, keeps: Tensor<'g>, exponent: Tensor<'g>) -> Tensor<'g> {
        let zero = self.builder.scalar(0.0);
        keeps.select(keeps.select(exponent, zero).exp(), zero)
    }

    /// As [`Self::masked`], everything if there is no mask.
    fn maybe_masked(&self, keeps: Option<Tensor<'g>>, exponent: Tensor<'g>) -> Tensor<'g> {
        keeps.map_or_else(|| exponent.exp(), |keeps| self.masked(keeps, exponent))
    }

    /// Numbers of sequences before (0) or at the end of (1) each chunk, `[B, C, 1, 1, 1]`.
    fn border(&self, borders: Tensor<'g>, at: usize) -> Tensor<'g> {
        borders.slice_axis(1, at, at + self.sizes.chunks).reshape([self.sizes.batch, self.sizes.chunks, 1, 1, 1])
    }

    /// Which tokens belong to the sequence before (0) or at the end of (1) their chunk, `[B, C, T, 1, 1]`.
    fn reaches(&self, at: usize) -> Option<Tensor<'g>> {
        let (tokens, borders) = self.sequences?;
        let Sizes { batch, chunks, tokens: n, .. } = self.sizes;
        Some(tokens.reshape([batch, chunks, n, 1, 1]).eq(self.border(borders, at)))
    }

    /// From before a chunk to each token, `[B, C, T, G, E]`.
    fn to_token(&self) -> Tensor<'g> {
        self.maybe_masked(self.reaches(0), self.running)
    }

    /// From each token to the end of its chunk, `[B, C, T, G, E]`.
    fn to_end(&self) -> Tensor<'g> {
        self.maybe_masked(self.reaches(1), self.total - self.running)
    }

    /// Over each whole chunk, `[B, C, 1, G, E]`.
    fn over_chunk(&self) -> Tensor<'g> {
        let is_one = self.sequences.map(|(_, borders)| self.border(borders, 0).eq(self.border(borders, 1)));
        self.maybe_masked(is_one, self.total)
    }

    /// From token `j` to token `i` of a chunk, `[B, C, G, E, T, T]` with `i` first: those before it, and itself unless `strictly`.
    fn between_tokens(&self, strictly: bool) -> Tensor<'g> {
        let Sizes { batch, chunks, tokens, groups, in_group, .. } = self.sizes;
        let [rows, cols] = self.places(tokens);
        let mut keeps = if strictly { cols.lt(rows) } else { cols.le(rows) };
        if let Some((numbers, _)) = self.sequences {
            let [i, j] = [[batch, chunks, 1, 1, tokens, 1], [batch, chunks, 1, 1, 1, tokens]].map(|shape| numbers.reshape(shape));
            keeps = keeps.and(i.eq(j));
        }
        let running = permuted(self.running, &[0, 1, 3, 4, 2]);
        let lead = [batch, chunks, groups, in_group];
        let i = running.reshape([lead.as_slice(), &[tokens, 1]].concat());
        let j = running.reshape([lead.as_slice(), &[1, tokens]].concat());
        self.masked(keeps, i - j)
    }

    /// From the end of chunk `b - 1` to before chunk `a`, `[B, H, C + 1, C + 1]` with `a` first; `b = 0` is before the first chunk and
    /// `a = C` behind the last.
    fn between_chunks(&self) -> Tensor<'g> {
        let Sizes { batch, chunks, .. } = self.sizes;
        let (heads, n) = (self.sizes.n_heads(), chunks + 1);
        let [rows, cols] = self.places(n);
        let passed = self.total.reshape([batch, chunks, heads]).permute([0, 2, 1]).pad([0, 0, 1], [0, 0, 0], 0.0);
        // Sums down each column of what is passed since: no difference of long sums.
        let steps = cols.lt(rows).select(passed.reshape([batch, heads, n, 1]), self.builder.scalar(0.0));
        let mut keeps = cols.le(rows);
        if let Some((_, borders)) = self.sequences {
            keeps = keeps.and(borders.reshape([batch, 1, n, 1]).eq(borders.reshape([batch, 1, 1, n])));
        }
        self.masked(keeps, steps.cumsum(None, 2_usize, false, 0.0))
    }

    /// Numbers of rows, `[n, 1]`, and of columns, `[1, n]`.
    fn places(&self, n: usize) -> [Tensor<'g>; 2] {
        [self.builder.iota([n, 1], 0_usize, DType::I32), self.builder.iota([1, n], 1_usize, DType::I32)]
    }
}

/// Operands in chunks.
struct Tokens<'g> {
    builder: &'g GraphBuilder,
    sizes: Sizes,
    decays: Decays<'g>,
    /// `[B, C, G, T, R, E, P]`.
    v: Tensor<'g>,
    /// `[B, C, G, T, R, E, P]`.
    dy: Tensor<'g>,
    /// `[B, C, G, M, N]`.
    k: Tensor<'g>,
    /// `[B, C, G, M, N]`.
    q: Tensor<'g>,
    /// `[B, C, T, G, E]`.
    weight: Option<Tensor<'g>>,
    /// `[B, C, T, G, E]`.
    own_weight: Option<Tensor<'g>>,
}

/// What pairs of tokens of a chunk give.
struct Within<'g> {
    /// `[B, C, G, E, M, P]`.
    d_v: Tensor<'g>,
    /// `[B, C, G, M, N]`.
    d_k: Tensor<'g>,
    /// `[B, C, G, M, N]`.
    d_q: Tensor<'g>,
    /// `[B, C, G, E, T]`, for outputs at token `t` or later, of each token `j`; `[B, C, G, E, T, T]` with `t` first.
    since: Tensor<'g>,
    /// `[B, C, G, E, T]`, of each token's own output.
    own: Tensor<'g>,
}

/// What a chunk exchanges with those before and behind it.
#[derive(Clone, Copy)]
struct Carries<'g> {
    /// State before each chunk, `[B, C, G, E P, N]`; none if it is zero.
    state: Option<Tensor<'g>>,
    /// Adjoint of the state behind each chunk, `[B, C, G, E P, N]`; none if it is zero.
    adjoint: Option<Tensor<'g>>,
    /// What each chunk's tokens alone give as the adjoint of the state before it, `[B, C, G, E P, N]`.
    of_tokens: Tensor<'g>,
}

impl<'g> Tokens<'g> {
    fn adjoint(&self, s0: Option<Tensor<'g>>, ds_last: Option<Tensor<'g>>) -> [Tensor<'g>; 7] {
        let sizes = self.sizes;
        // Tokens as they are at the end of their chunk, and adjoints of outputs as they are before it.
        let entering = self.scaled(self.v, self.weighted(self.decays.to_end()));
        let leaving = self.scaled(self.dy, self.decays.to_token());
        let within = self.within();
        let carries = self.carries(entering, leaving, s0, ds_last);
        // What the chunks behind ask of each token, `[B, C, G, M, E P]`, and what those before give to it.
        let asked = carries.adjoint.map(|adjoint| sizes.parted(self.k.matmul(adjoint, false, true)));
        let given = carries.state.map(|state| sizes.parted(self.q.matmul(state, false, true)));
        let of_weight = asked.map(|asked| self.paths(asked, self.v, self.decays.to_end()));
        let of_state = given.map(|given| self.paths(given, self.dy, self.decays.to_token()));
        let d_log_decay = self.d_log_decay(&within, of_weight, of_state, carries);
        let d_v = plus(sizes.of_head(within.d_v), asked.map(|asked| self.scaled_parted(asked)));
        let d_k = plus(within.d_k, carries.adjoint.map(|adjoint| entering.matmul(adjoint, false, false)));
        let d_q = plus(within.d_q, carries.state.map(|state| leaving.matmul(state, false, false)));
        let first = within.since.slice_axis(4, 0, 1).reshape([sizes.batch, sizes.chunks, sizes.groups, sizes.in_group, sizes.tokens]);
        let d_weight = sizes.of_scalars(plus(first, of_weight));
        let d_own_weight = match self.own_weight {
            Some(_) => sizes.of_scalars(within.own),
            None => self.builder.scalar(0.0).broadcast([sizes.batch, sizes.len, sizes.n_heads()]),
        };
        let d_s0 = self.d_s0(carries);
        [d_log_decay, sizes.of_heads(d_v), sizes.of_rows(d_k), sizes.of_rows(d_q), d_s0, d_weight, d_own_weight]
    }

    /// `x` of tokens times their weights, where they have any.
    fn weighted(&self, x: Tensor<'g>) -> Tensor<'g> {
        self.weight.map_or(x, |weight| x * weight)
    }

    /// A number a token and head, `[B, C, T, G, E]`, beside `[B, C, G, T, R, E, P]`.
    fn aligned(&self, scale: Tensor<'g>) -> Tensor<'g> {
        let Sizes { batch, chunks, tokens, groups, in_group, .. } = self.sizes;
        permuted(scale, &[0, 1, 3, 2, 4]).reshape([batch, chunks, groups, tokens, 1, in_group, 1])
    }

    /// `x` of `[B, C, G, T, R, E, P]` times a number a token and head, as `[B, C, G, M, E P]`.
    fn scaled(&self, x: Tensor<'g>, scale: Tensor<'g>) -> Tensor<'g> {
        self.sizes.joined(x * self.aligned(scale))
    }

    /// What the chunks behind ask of each token's `v`, `[B, C, G, T, R, E, P]`.
    fn scaled_parted(&self, asked: Tensor<'g>) -> Tensor<'g> {
        asked * self.aligned(self.weighted(self.decays.to_end()))
    }

    /// `lhs · rhs` of each token and head, times `scale`, as `[B, C, G, E, T]`.
    fn paths(&self, lhs: Tensor<'g>, rhs: Tensor<'g>, scale: Tensor<'g>) -> Tensor<'g> {
        permuted((lhs * rhs).sum([4, 6], false), &[0, 1, 2, 4, 3]) * permuted(scale, &[0, 1, 3, 4, 2])
    }

    fn within(&self) -> Within<'g> {
        let sizes = self.sizes;
        let Sizes { batch, chunks, tokens, groups, in_group, ranks, .. } = sizes;
        let (v, dy) = (sizes.by_head(self.v), sizes.by_head(self.dy));
        let by_keys = sizes.pairs(self.q.matmul(self.k, false, true), 1);
        let by_values = sizes.pairs(dy.matmul(v, false, true), in_group);
        let products = by_keys * by_values;
        let pair = [batch, chunks, groups, in_group, tokens, tokens];
        let products = if ranks == 1 { products.reshape(pair) } else { products.sum([5, 7], false) };
        let [rows, cols] = self.decays.places(tokens);
        let zero = self.builder.scalar(0.0);
        let own = rows.eq(cols).select(products, zero).sum([5], false);
        let decays = self.decays.between_tokens(self.own_weight.is_some());
        let weights = self.pair_weights(decays).reshape([batch, chunks, groups, in_group, tokens, 1, tokens, 1]);
        let rows = tokens * ranks;
        let of_values = (weights * by_keys).reshape([batch, chunks, groups, in_group, rows, rows]);
        let of_keys = weights * by_values;
        let of_keys = if in_group == 1 { of_keys } else { of_keys.sum([3], false) }.reshape([batch, chunks, groups, rows, rows]);
        Within {
            d_v: of_values.matmul(dy, true, false),
            d_k: of_keys.matmul(self.q, true, false),
            d_q: of_keys.matmul(self.k, false, false),
            since: (decays * products).cumsum(None, 4_usize, true, 0.0),
            own,
        }
    }

    /// How much of token `j` the output of token `i` has, `[B, C, G, E, T, T]` with `i` first, from the decays between them.
    fn pair_weights(&self, decays: Tensor<'g>) -> Tensor<'g> {
        let Some(own_weight) = self.own_weight else { return self.of_cols(self.weight).map_or(decays, |weight| decays * weight) };
        let before = self.of_cols(self.weight).map_or(decays, |weight| decays * weight);
        let [rows, cols] = self.decays.places(self.sizes.tokens);
        self.of_cols(Some(own_weight)).map_or(before, |own_weight| rows.eq(cols).select(own_weight, before))
    }

    /// A number a token and head, `[B, C, T, G, E]`, beside pairs of tokens, as that of `j`: `[B, C, G, E, 1, T]`.
    fn of_cols(&self, x: Option<Tensor<'g>>) -> Option<Tensor<'g>> {
        let Sizes { batch, chunks, tokens, groups, in_group, .. } = self.sizes;
        x.map(|x| permuted(x, &[0, 1, 3, 4, 2]).reshape([batch, chunks, groups, in_group, 1, tokens]))
    }

    fn carries(&self, entering: Tensor<'g>, leaving: Tensor<'g>, s0: Option<Tensor<'g>>, ds_last: Option<Tensor<'g>>) -> Carries<'g> {
        let sizes = self.sizes;
        let of_tokens = leaving.matmul(self.q, true, false);
        let wide = |x: Tensor<'g>| x.reshape([sizes.batch, sizes.n_heads(), 1, sizes.headdim * sizes.d_state]);
        if sizes.chunks == 1 {
            let [state, adjoint] = [s0, ds_last].map(|x| x.map(|x| sizes.of_chunk(wide(x))));
            return Carries { state, adjoint, of_tokens };
        }
        let n = sizes.chunks;
        let all = self.decays.between_chunks();
        let [from_s0, to_last] = [all.slice_axis(2, 0, n).slice_axis(3, 0, 1), all.slice_axis(2, n, n + 1).slice_axis(3, 1, n + 1)];
        let between = all.slice_axis(2, 0, n).slice_axis(3, 1, n + 1);
        let states = between.matmul(sizes.by_chunk(entering.matmul(self.k, true, false)), false, false);
        let adjoints = between.matmul(sizes.by_chunk(of_tokens), true, false);
        let states = plus(states, s0.map(|s0| from_s0 * wide(s0)));
        let adjoints = plus(adjoints, ds_last.map(|ds_last| to_last.permute([0, 1, 3, 2]) * wide(ds_last)));
        Carries { state: Some(sizes.of_chunk(states)), adjoint: Some(sizes.of_chunk(adjoints)), of_tokens }
    }

    /// For each token the sum of all paths that cross it: from a token before it, or the state before the chunk, to an output at
    /// it or behind it, or the end of the chunk.
    fn d_log_decay(
        &self,
        within: &Within<'g>,
        of_weight: Option<Tensor<'g>>,
        of_state: Option<Tensor<'g>>,
        carries: Carries<'g>,
    ) -> Tensor<'g> {
        let Sizes { batch, chunks, tokens, groups, in_group, headdim, d_state, .. } = self.sizes;
        let pair = [batch, chunks, groups, in_group, 1, tokens];
        let from_before = plus(within.since, of_weight.map(|paths| paths.reshape(pair)));
        let from_before = self.of_cols(self.weight).map_or(from_before, |weight| from_before * weight);
        let from_state = of_state.map_or(self.builder.scalar(0.0), |paths| paths.reshape(pair));
        let [t, j] = self.decays.places(tokens);
        let inside = j.lt(t).select(from_before, from_state).sum([5], false);
        let over = carries.state.zip(carries.adjoint).map(|(state, adjoint)| {
            let product = (state * adjoint).reshape([batch, chunks, groups, in_group, headdim * d_state]).sum([4], true);
            product * self.decays.over_chunk().reshape([batch, chunks, groups, in_group, 1])
        });
        self.sizes.of_scalars(plus(inside, over))
    }

    fn d_s0(&self, carries: Carries<'g>) -> Tensor<'g> {
        let Sizes { batch, headdim, d_state, .. } = self.sizes;
        let heads = self.sizes.n_heads();
        let of_first = |x: Tensor<'g>| x.slice_axis(1, 0, 1).reshape([batch, heads, headdim, d_state]);
        let decay = self.decays.over_chunk().slice_axis(1, 0, 1).reshape([batch, heads, 1, 1]);
        plus(of_first(carries.of_tokens), carries.adjoint.map(|adjoint| of_first(adjoint) * decay))
    }
}

/// Axis `i` of the result is axis `axes[i]` of `x`: a reshape, which fuses more freely, where only axes of size 1 move.
fn permuted<'g>(x: Tensor<'g>, axes: &[usize]) -> Tensor<'g> {
    let shape = x.shape();
    let long: Vec<usize> = axes.iter().copied().filter(|&axis| shape.get(axis).is_some_and(|&size| size != 1)).collect();
    if long.is_sorted() && shape.len() == axes.len() {
        return x.reshape(axes.iter().map(|&axis| shape[axis]).collect::<Vec<_>>());
    }
    x.permute(axes)
}

/// Sizes of the axes from `first` on; of a value that is too large, and so is none, no sizes.
fn rest(x: Tensor<'_>, first: usize) -> Vec<usize> {
    x.shape().get(first..).map(<[usize]>::to_vec).unwrap_or_default()
}

fn plus<'g>(x: Tensor<'g>, more: Option<Tensor<'g>>) -> Tensor<'g> {
    more.map_or(x, |more| x + more)
}
