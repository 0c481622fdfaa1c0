//! Sequences that join a running batch and leave it.

use super::decode::{Step, is_drawn, make_like, tokens_of, u32s};
use super::{Generated, Generator, Sampling, Sequence};
use crate::engine::Session;
use crate::error::Error;
use monopass_ir::TensorData;

/// A batch with a fixed number of places, which sequences take and give back at any time. Each gets the tokens that it would get
/// alone.
#[derive(Debug)]
pub struct Slots {
    session: Session,
    slots: Vec<Option<Sequence>>,
    counts_tokens: bool,
    /// The states in `session` are those of the sequences.
    is_whole: bool,
    /// Made for the sequences that are here now.
    step: Option<Step>,
}

impl Slots {
    /// `n` free places for sequences of the generator's model. Sequences with a repetition penalty need `penalty`, for which the model
    /// counts the tokens of all.
    ///
    /// # Errors
    /// No memory left on the device.
    pub fn new(generator: &Generator, n: usize, penalty: bool) -> Result<Self, Error> {
        let session = generator.whole_session(n)?;
        Ok(Self { session, slots: std::iter::repeat_with(|| None).take(n).collect(), counts_tokens: penalty, is_whole: true, step: None })
    }

    /// Places that are taken, with their sequences.
    pub fn sequences(&self) -> impl Iterator<Item = (usize, &Sequence)> {
        self.slots.iter().enumerate().filter_map(|(slot, sequence)| Some((slot, sequence.as_ref()?)))
    }

    /// Places that are free.
    #[must_use]
    pub fn n_free(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_none()).count()
    }

    /// Gives a sequence a place; its prompt goes through the model here, alone.
    ///
    /// # Errors
    /// [`Error::NoSlot`]; [`Error::NoPenalty`]; [`Error::EmptyPrompt`]; [`Error::UnknownToken`]; what a run can meet. The sequence is
    /// lost then; fork it where that matters.
    pub async fn join(&mut self, generator: &mut Generator, mut sequence: Sequence) -> Result<usize, Error> {
        let slot = self.slots.iter().position(Option::is_none).ok_or(Error::NoSlot { n: self.slots.len() })?;
        if sequence.sampling.penalizes() && !self.counts_tokens {
            return Err(Error::NoPenalty { penalty: sequence.sampling.repetition_penalty });
        }
        generator.check(&sequence)?;
        generator.take_prompt(&mut sequence, &mut Generated::default()).await?;
        self.put(generator, slot, &mut sequence)?;
        self.slots[slot] = Some(sequence);
        self.step = None;
        Ok(slot)
    }

    /// The next token of each sequence, in one run.
    ///
    /// # Errors
    /// [`Error::NotFinite`] names a slot, whose sequence should leave; what a run can meet. No sequence has a new token then, and the
    /// next step takes the prompts again.
    pub async fn step(&mut self, generator: &mut Generator) -> Result<Vec<(usize, u32)>, Error> {
        if self.n_free() == self.slots.len() {
            return Ok(Vec::new());
        }
        if !std::mem::take(&mut self.is_whole) {
            self.rebuild(generator).await?;
        }
        let step = match self.step.take() {
            Some(step) => step,
            None => self.make_step(generator).await?,
        };
        let uniform = |slot: &Option<Sequence>| slot.as_ref().map_or(0.0, |own| own.sampling.uniform(own.tokens.len() as u64));
        let run = step.submit_with(&mut self.session, self.slots.iter().map(uniform).collect())?.wait().await?;
        let next = tokens_of(&run)?;
        let n_tokens = generator.config.n_tokens();
        let bad = self.slots.iter().zip(next).position(|(slot, &token)| slot.is_some() && !is_drawn(token, n_tokens));
        if let Some(slot) = bad {
            return Err(Error::NotFinite { what: format!("logits of slot {slot}") });
        }
        let mut drawn = Vec::new();
        for ((slot, sequence), &token) in self.slots.iter_mut().enumerate().zip(next) {
            if let Some(sequence) = sequence {
                sequence.tokens.push(token);
                drawn.push((slot, token));
            }
        }
        (self.is_whole, self.step) = (true, Some(step));
        Ok(drawn)
    }

    /// Takes a sequence from its place, to be continued elsewhere; `None` if the place is free.
    ///
    /// # Errors
    /// No memory left on the device; a lost device.
    pub fn leave(&mut self, generator: &Generator, slot: usize) -> Result<Option<Sequence>, Error> {
        if self.slots.get(slot).is_none_or(Option::is_none) {
            return Ok(None);
        }
        let session = if self.is_whole { Some(generator.row_of(&self.session, slot)?) } else { None };
        let Some(mut sequence) = self.slots[slot].take() else { return Ok(None) };
        if let Some(session) = session {
            sequence.session = session;
            sequence.n_consumed = sequence.tokens.len() - 1;
        }
        Ok(Some(sequence))
    }

    /// Copies the states of a sequence to its place, with the counts of its tokens.
    fn put(&mut self, generator: &Generator, slot: usize, sequence: &mut Sequence) -> Result<(), Error> {
        if self.counts_tokens {
            sequence.session.write("seen", &generator.seen(std::iter::once(sequence.tokens.as_slice()))?)?;
        }
        make_like(&mut self.session, &sequence.session, self.slots.len())?;
        self.session.copy_row(slot, &sequence.session, 0)?;
        // Here the states go on, so those of the sequence are none from now on.
        (sequence.n_consumed, sequence.drawn) = (0, None);
        Ok(())
    }

    /// All prompts again, after a run that failed.
    async fn rebuild(&mut self, generator: &mut Generator) -> Result<(), Error> {
        self.step = None;
        for slot in 0..self.slots.len() {
            let Some(mut sequence) = self.slots[slot].take() else { continue };
            let taken = generator.take_prompt(&mut sequence, &mut Generated::default()).await;
            let put = taken.and_then(|()| self.put(generator, slot, &mut sequence));
            self.slots[slot] = Some(sequence);
            put?;
        }
        Ok(())
    }

    /// The step for the sequences that are here now, with their last tokens on the device.
    async fn make_step(&mut self, generator: &mut Generator) -> Result<Step, Error> {
        let settings = |slot: &Option<Sequence>| slot.as_ref().map_or_else(Sampling::default, |own| own.sampling);
        let samplings: Vec<Sampling> = self.slots.iter().map(settings).collect();
        let step = Step::of(generator, &samplings, self.counts_tokens).await?;
        let last = self.slots.iter().map(|slot| slot.as_ref().and_then(|own| own.tokens.last().copied()).unwrap_or(0));
        let last: TensorData = u32s([self.slots.len(), 1], last.collect())?;
        self.session.write("token", &last)?;
        Ok(step)
    }
}
