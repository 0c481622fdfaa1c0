//! A text in progress: its tokens, and what the model carries after them.

use super::sampling::Sampling;
use crate::engine::Session;
use crate::error::Error;

/// Tokens, and the states of a model after the first of them. Made by [`Generator::sequence`](super::Generator::sequence).
///
/// All tokens are kept, so what the states do not have can always be computed again.
#[derive(Debug)]
pub struct Sequence {
    pub(super) session: Session,
    pub(super) tokens: Vec<u32>,
    /// Tokens that the states have.
    pub(super) n_consumed: usize,
    /// The token after all of `tokens`, if the states have all of them, and the settings that it was drawn with.
    pub(super) drawn: Option<(u32, Sampling)>,
    /// How next tokens are chosen.
    pub sampling: Sampling,
}

/// A place in a sequence to come back to. Made by [`Sequence::mark`].
#[derive(Debug)]
pub struct Mark(Sequence);

impl Sequence {
    pub(super) const fn new(session: Session, sampling: Sampling) -> Self {
        Self { session, tokens: Vec::new(), n_consumed: 0, drawn: None, sampling }
    }

    /// Adds tokens at the end. The model takes them with the next generation.
    pub fn push(&mut self, tokens: &[u32]) {
        if !tokens.is_empty() {
            self.drawn = None;
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// All tokens so far, those of prompts and those that were generated.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens the states have.
    #[must_use]
    pub const fn n_consumed(&self) -> usize {
        self.n_consumed
    }

    /// Bytes of the states where the model runs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.session.bytes()
    }

    /// Another sequence that begins with the same tokens: what one does later does not touch the other. A prefix computed once serves many
    /// continuations so. States are copied on the device.
    ///
    /// # Errors
    /// No memory left on the device; a lost device.
    pub fn fork(&self) -> Result<Self, Error> {
        let (tokens, session) = (self.tokens.clone(), self.session.fork()?);
        Ok(Self { session, tokens, n_consumed: self.n_consumed, drawn: self.drawn, sampling: self.sampling })
    }

    /// This place, to come back to with [`rollback`](Self::rollback).
    ///
    /// # Errors
    /// As for [`fork`](Self::fork).
    pub fn mark(&self) -> Result<Mark, Error> {
        self.fork().map(Mark)
    }

    /// Goes back to a mark of this sequence, or on to one of another; the mark stays good. The settings stay what they are.
    ///
    /// # Errors
    /// A mark of another model or engine; nothing has changed then.
    pub fn rollback(&mut self, mark: &Mark) -> Result<(), Error> {
        let Mark(from) = mark;
        self.session.copy_from(&from.session)?;
        self.tokens.clone_from(&from.tokens);
        (self.n_consumed, self.drawn) = (from.n_consumed, from.drawn);
        Ok(())
    }

    /// The token after all that there are, if it is known under the settings of now.
    pub(super) fn known_next(&self) -> Option<u32> {
        self.drawn.filter(|(_, sampling)| *sampling == self.sampling && self.n_consumed == self.tokens.len()).map(|(token, _)| token)
    }
}
