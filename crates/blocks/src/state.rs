//! What blocks carry from one token to the next, and the per-token inputs that all layers share.

use monopass_ir::{DType, GraphBuilder, Tensor};

/// A state that a block carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// Name in graphs, such as `ssm_state`.
    pub name: &'static str,
    /// Sizes of one sequence; in graphs the batch stands before them.
    pub shape: Vec<usize>,
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

/// Per-token inputs beside `u`, shared by all layers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packing<'g> {
    /// Number of the sequence that each token belongs to, `[B, L]` i32. Everything that is carried starts afresh where it
    /// changes; states that are handed in belong to the first.
    pub seq_idx: Option<Tensor<'g>>,
    /// 1 at tokens and 0 at padding before them, `[B, L]` f32.
    ///
    /// As in Hugging Face, multiplies the input of `in_proj` and the output of the convolution, and where `in_proj` has a bias also the
    /// input of the convolution, so that tokens see what they would see without the padding. Further, padding leaves a state that was handed in as
    /// it is, except for what concerns the last tokens: the convolution's window, and k and v of Mamba-3, are then those of
    /// the padding.
    pub mask: Option<Tensor<'g>>,
    /// Whether gradients will be taken: where there is a choice, forms whose derivatives keep their digits.
    pub gradients: bool,
}

impl<'g> Packing<'g> {
    /// The same for a graph of which gradients will be taken, if `gradients` says so.
    #[must_use]
    pub const fn for_gradients(self, gradients: bool) -> Self {
        Self { gradients, ..self }
    }

    /// Declares the inputs `seq_idx` and `mask` where they are wanted.
    #[must_use]
    pub fn declare(g: &'g GraphBuilder, batch: usize, len: usize, seq_idx: bool, mask: bool) -> Self {
        let input = |name, dtype| g.input_dynamic(name, dtype, [batch, len], &[0, 1]);
        Self { seq_idx: seq_idx.then(|| input("seq_idx", DType::I32)), mask: mask.then(|| input("mask", DType::F32)), gradients: false }
    }
}

/// States of one block in a graph, by name, in the order of its [`StateInfo`]s.
#[derive(Clone, Debug, Default)]
pub struct States<'g>(Vec<(&'static str, Tensor<'g>)>);

impl<'g> States<'g> {
    /// States from their names and values; those without a value do not exist.
    #[must_use]
    pub fn new(states: impl IntoIterator<Item = (&'static str, Option<Tensor<'g>>)>) -> Self {
        Self(states.into_iter().filter_map(|(name, state)| Some((name, state?))).collect())
    }

    /// The state of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Tensor<'g>> {
        self.0.iter().find(|(own, _)| *own == name).map(|(_, state)| *state)
    }

    /// Declares the states that enter as `io` says, their names after `prefix`; `None` if none enter.
    #[must_use]
    pub fn declare(g: &'g GraphBuilder, infos: &[StateInfo], batch: usize, prefix: &str, io: Io) -> Option<Self> {
        let declare = |info: &StateInfo| {
            let name = format!("{prefix}{}", info.name);
            let shape = [&[batch], info.shape.as_slice()].concat();
            let state = match io {
                Io::Stateless | Io::Fresh => return None,
                Io::Explicit => g.input_dynamic(&name, DType::F32, shape, &[0]),
                Io::Stateful => g.state_dynamic(&name, DType::F32, shape, &[0]),
            };
            Some((info.name, state))
        };
        infos.iter().map(declare).collect::<Option<_>>().map(Self)
    }

    /// Names the states that leave as `io` says.
    pub fn publish(&self, g: &'g GraphBuilder, prefix: &str, io: Io) {
        for (name, state) in &self.0 {
            match io {
                Io::Stateless => {}
                Io::Fresh | Io::Explicit => g.output(&format!("{prefix}{name}_out"), *state),
                Io::Stateful => g.update(&format!("{prefix}{name}"), *state),
            }
        }
    }
}
