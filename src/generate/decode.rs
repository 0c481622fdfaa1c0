//! Sequences continued, one or several at a time.

use super::{Generator, Sampling, Sequence, Shape};
use crate::engine::{Pending, Program, Session};
use crate::error::Error;
use monopass_ir::{Elements, TensorData};
use monopass_runtime::{Counters, RunOutput};
use std::ops::{ControlFlow, Range};

/// What a generation gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The new tokens, without the prompt.
    pub tokens: Vec<u32>,
    /// Runs that the prompts took.
    pub n_prefill_runs: usize,
    /// What the prompts' runs did, summed.
    pub prefill: Counters,
    /// Decode steps.
    pub n_steps: usize,
    /// What the last decode step did; the same as all before it but the first.
    pub step: Counters,
}

/// How a sequence of a batch fares.
struct Row {
    tokens: Vec<u32>,
    n_left: usize,
    /// The next read-back has the token after the last one.
    awaits_next: bool,
    /// Tokens that the states have, once the sequence has ended.
    n_consumed: usize,
}

impl Generator {
    /// Takes all tokens of a sequence but the last, in chunks of bounded length, so that what is generated next begins at once, and forks of
    /// the sequence share the work.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`]; [`Error::UnknownToken`]; what a run can meet, after which the sequence has its tokens and no states.
    pub async fn prefill(&mut self, sequence: &mut Sequence) -> Result<(), Error> {
        self.check(sequence)?;
        // A text that was stopped may have all of them, and the token after them.
        if sequence.known_next().is_some() {
            return Ok(());
        }
        self.take_prompt(sequence, &mut Generated::default()).await
    }

    /// Continues a sequence by up to `n_tokens` tokens. `on_token` gets each as it comes, and may end the generation; the sequence
    /// has all that it got.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`]; [`Error::UnknownToken`]; settings outside of their range; what a run can meet, after which the sequence has
    /// its tokens and no states, and can be continued still.
    pub async fn generate(
        &mut self,
        sequence: &mut Sequence,
        n_tokens: usize,
        mut on_token: impl AsyncFnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        let all = self.generate_all(std::slice::from_mut(sequence), n_tokens, async |_, token| on_token(token).await).await?;
        all.into_iter().next().ok_or(Error::NoToken)
    }

    /// Continues several sequences, each by up to `n_tokens` tokens, as one batch. `on_token` gets the number of the sequence and the token;
    /// it may end a sequence while the others go on. Prompts that begin together are filled up on the left to one length, which does not change what
    /// comes out.
    ///
    /// The counters of the results are those of the whole batch.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    pub async fn generate_all(
        &mut self,
        sequences: &mut [Sequence],
        n_tokens: usize,
        mut on_token: impl AsyncFnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, Error> {
        for sequence in sequences.iter_mut() {
            self.check(sequence)?;
        }
        let mut total = Generated::default();
        let mut rows: Vec<Row> =
            sequences.iter().map(|_| Row { tokens: Vec::new(), n_left: n_tokens, awaits_next: false, n_consumed: 0 }).collect();
        if !sequences.is_empty() && n_tokens > 0 {
            for (idx, (sequence, row)) in sequences.iter_mut().zip(&mut rows).enumerate() {
                if let Some(next) = sequence.known_next() {
                    row.take(sequence, next);
                    if on_token(idx, next).await.is_break() {
                        row.n_left = 0;
                    }
                }
            }
            if rows.iter().any(|row| row.n_left > 0) {
                let mut session = self.batch_session(sequences, &mut total).await?;
                self.decode(&mut session, sequences, &mut rows, &mut total, &mut on_token).await?;
                if let ([sequence], [row]) = (&mut *sequences, rows.as_slice()) {
                    (sequence.session, sequence.n_consumed) = (session, row.n_consumed);
                }
            }
        }
        Ok(rows.into_iter().map(|row| Generated { tokens: row.tokens, ..total.clone() }).collect())
    }

    pub(super) fn check(&self, sequence: &Sequence) -> Result<(), Error> {
        sequence.sampling.check()?;
        if sequence.tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let first = sequence.n_consumed.min(sequence.tokens.len());
        self.check_tokens(&sequence.tokens[first..], first)
    }

    /// The states of all sequences as a batch, each without its last token. The states of a single sequence are taken from it.
    async fn batch_session(&mut self, sequences: &mut [Sequence], total: &mut Generated) -> Result<Session, Error> {
        if let [sequence] = sequences {
            self.take_prompt(sequence, total).await?;
            // Until the end of the generation it has none.
            sequence.n_consumed = 0;
            return Ok(std::mem::replace(&mut sequence.session, self.session(1)?));
        }
        if sequences.iter().all(|sequence| sequence.n_consumed == 0) {
            return self.take_padded(sequences, total).await;
        }
        let batch = sequences.len();
        let mut session = self.whole_session(batch)?;
        for (row, sequence) in sequences.iter_mut().enumerate() {
            self.take_prompt(sequence, total).await?;
            make_like(&mut session, &sequence.session, batch)?;
            session.copy_row(row, &sequence.session, 0)?;
        }
        Ok(session)
    }

    /// Takes what a sequence's states do not have yet of all tokens but the last.
    pub(super) async fn take_prompt(&mut self, sequence: &mut Sequence, total: &mut Generated) -> Result<(), Error> {
        let end = sequence.tokens.len().saturating_sub(1);
        let mut first = std::mem::take(&mut sequence.n_consumed);
        sequence.drawn = None;
        // States that have the last token too have been used to draw under other settings: they are computed again.
        if first > end || first == 0 {
            sequence.session = self.session(1)?;
            first = 0;
        }
        let mut flying: Option<Pending> = None;
        for chunk in sequence.tokens[first..end].chunks(self.chunk_len) {
            if let Err(error) = self.check_interrupt() {
                total.count_prefill(flying).await?;
                sequence.n_consumed = first;
                return Err(error);
            }
            let program = self.program(Shape::Prompt { batch: 1, len: chunk.len(), mask: false }).await?;
            let ids = u32s([1, chunk.len()], chunk.to_vec())?;
            let pending = program.submit(&mut sequence.session, &[("ids", &ids)])?;
            total.count_prefill(flying.replace(pending)).await?;
            first += chunk.len();
        }
        total.count_prefill(flying).await?;
        sequence.n_consumed = end;
        Ok(())
    }

    /// All tokens but the last of fresh sequences, filled up on the left.
    async fn take_padded(&mut self, sequences: &mut [Sequence], total: &mut Generated) -> Result<Session, Error> {
        let batch = sequences.len();
        let mut session = self.whole_session(batch)?;
        let n_longest = padded_len(sequences.iter().map(|sequence| sequence.tokens.len() - 1));
        let chunk_len = (self.chunk_len / batch).max(1);
        let mut flying: Option<Pending> = None;
        for first in (0..n_longest).step_by(chunk_len) {
            self.check_interrupt()?;
            let len = chunk_len.min(n_longest - first);
            let texts = sequences.iter().map(|sequence| sequence.tokens.split_last().map_or(&[][..], |(_, before)| before));
            let [ids, mask] = padded(texts, n_longest, first..first + len)?;
            let program = self.program(Shape::Prompt { batch, len, mask: true }).await?;
            let pending = program.submit(&mut session, &[("ids", &ids), ("mask", &mask)])?;
            total.count_prefill(flying.replace(pending)).await?;
        }
        total.count_prefill(flying).await?;
        Ok(session)
    }

    async fn decode(
        &mut self,
        session: &mut Session,
        sequences: &mut [Sequence],
        rows: &mut [Row],
        total: &mut Generated,
        on_token: &mut impl AsyncFnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let step = Step::new(self, session, sequences).await?;
        let is_batch = sequences.len() > 1;
        for (sequence, _) in sequences.iter_mut().zip(rows.iter()).filter(|(_, row)| row.n_left > 0) {
            (sequence.n_consumed, sequence.drawn) = (0, None);
        }
        let mut flying: Option<Pending> = None;
        while rows.iter().any(|row| row.n_left > 0) || flying.is_some() {
            let pending = match flying.take() {
                Some(pending) => pending,
                None => step.submit(session, sequences, 0)?,
            };
            // The step after this one, while the device works. The last token of all needs none.
            if self.engine.is_gpu() && rows.iter().any(|row| row.n_left > 1) {
                flying = Some(step.submit(session, sequences, 1)?);
            }
            let run = pending.wait().await?;
            let next = tokens_of(&run)?;
            let n_tokens = self.config.n_tokens();
            (total.step, total.n_steps) = (run.counters, total.n_steps + 1);
            for (idx, (sequence, row)) in sequences.iter_mut().zip(rows.iter_mut()).enumerate() {
                let token = next.get(idx).copied().ok_or(Error::NoToken)?;
                if row.awaits_next {
                    // What is none is drawn again, and then reported, if it is asked for.
                    sequence.drawn = is_drawn(token, n_tokens).then_some((token, sequence.sampling));
                    row.awaits_next = false;
                }
                if row.n_left == 0 {
                    continue;
                }
                if !is_drawn(token, n_tokens) {
                    return Err(Error::NotFinite { what: format!("logits of sequence {idx}") });
                }
                row.take(sequence, token);
                if on_token(idx, token).await.is_break() {
                    row.n_left = 0;
                }
                if row.n_left == 0 {
                    // The step in flight has taken the token as well.
                    row.awaits_next = flying.is_some();
                    row.n_consumed = sequence.tokens.len() - usize::from(!row.awaits_next);
                    // That of a single sequence comes back when nothing is under way any more.
                    if is_batch {
                        sequence.session = self.row_of(session, idx)?;
                        sequence.n_consumed = row.n_consumed;
                    }
                }
            }
            if rows.iter().all(|row| row.n_left == 0 && !row.awaits_next) {
                break;
            }
        }
        Ok(())
    }

    /// The states of one sequence of a batch.
    pub(super) fn row_of(&self, batch: &Session, row: usize) -> Result<Session, Error> {
        let mut session = self.engine.session();
        make_like(&mut session, batch, 1)?;
        session.copy_row(0, batch, row)?;
        Ok(session)
    }
}

/// Makes the states of another session that are not there, zeroed, for so many sequences.
pub(super) fn make_like(session: &mut Session, other: &Session, batch: usize) -> Result<(), Error> {
    for name in other.names() {
        if let Some(mut ty) = other.ty(name) {
            ty.shape.splice(..1, [batch]);
            session.make(name, &ty)?;
        }
    }
    Ok(())
}

impl Row {
    fn take(&mut self, sequence: &mut Sequence, token: u32) {
        sequence.tokens.push(token);
        sequence.drawn = None;
        self.tokens.push(token);
        self.n_left -= 1;
    }
}

/// The decode step of a batch, with the inputs that stay.
#[derive(Debug)]
pub(super) struct Step {
    program: Program,
    settings: TensorData,
    penalty: Option<TensorData>,
}

impl Step {
    /// The step for these sequences, whose last tokens and counts it writes to the session.
    pub(super) async fn new(generator: &mut Generator, session: &mut Session, sequences: &[Sequence]) -> Result<Self, Error> {
        let samplings: Vec<Sampling> = sequences.iter().map(|sequence| sequence.sampling).collect();
        let step = Self::of(generator, &samplings, samplings.iter().any(Sampling::penalizes)).await?;
        let last = sequences.iter().map(|sequence| sequence.tokens.last().copied().unwrap_or(0));
        session.write("token", &u32s([sequences.len(), 1], last.collect())?)?;
        if step.penalty.is_some() {
            session.write("seen", &generator.seen(sequences.iter().map(|sequence| sequence.tokens.as_slice()))?)?;
        }
        Ok(step)
    }

    /// The step for sequences with these settings, which counts tokens if `has_penalty`; their last tokens have to be in the session.
    pub(super) async fn of(generator: &mut Generator, samplings: &[Sampling], has_penalty: bool) -> Result<Self, Error> {
        let batch = samplings.len();
        let program = generator.program(Shape::Step { batch, penalty: has_penalty }).await?;
        let settings = f32s([batch, 4], samplings.iter().flat_map(Sampling::settings).collect())?;
        let penalty = has_penalty.then(|| f32s([batch], samplings.iter().map(|sampling| sampling.repetition_penalty).collect()));
        Ok(Self { program, settings, penalty: penalty.transpose()? })
    }

    /// Submits the step that draws the tokens `ahead` places after those that the sequences have.
    fn submit(&self, session: &mut Session, sequences: &[Sequence], ahead: u64) -> Result<Pending, Error> {
        let uniform = sequences.iter().map(|sequence| sequence.sampling.uniform(sequence.tokens.len() as u64 + ahead)).collect();
        self.submit_with(session, uniform)
    }

    /// Submits the step with the number that each token is drawn by.
    pub(super) fn submit_with(&self, session: &mut Session, uniform: Vec<f32>) -> Result<Pending, Error> {
        let uniform = f32s([uniform.len()], uniform)?;
        let mut inputs = vec![("settings", &self.settings), ("uniform", &uniform)];
        inputs.extend(self.penalty.as_ref().map(|penalty| ("repetition_penalty", penalty)));
        self.program.submit(session, &inputs)
    }
}

impl Generator {
    /// How often each sequence has each token, the last one not counted, which the next step takes.
    pub(super) fn seen<'t>(&self, sequences: impl ExactSizeIterator<Item = &'t [u32]>) -> Result<TensorData, Error> {
        let (batch, n_tokens) = (sequences.len(), self.config.n_tokens());
        let mut counts = vec![0.0f32; batch * n_tokens];
        for (tokens, counts) in sequences.zip(counts.chunks_mut(n_tokens.max(1))) {
            for &token in tokens.split_last().map_or(&[][..], |(_, before)| before) {
                if let Some(count) = usize::try_from(token).ok().and_then(|token| counts.get_mut(token)) {
                    *count += 1.0;
                }
            }
        }
        f32s([batch, n_tokens], counts)
    }
}

impl Generated {
    async fn count_prefill(&mut self, pending: Option<Pending>) -> Result<(), Error> {
        if let Some(pending) = pending {
            self.prefill += &pending.wait().await?.counters;
            self.n_prefill_runs += 1;
        }
        Ok(())
    }
}

/// Texts that are filled up get lengths that are multiples of this, so that batches of other lengths share programs.
const LEN_STEP: usize = 16;

/// The length that texts of these lengths are filled up to.
pub(super) fn padded_len(lens: impl Iterator<Item = usize>) -> usize {
    lens.max().unwrap_or(0).next_multiple_of(LEN_STEP)
}

/// Tokens at some places of texts that are filled up on the left to `n_longest`, and a mask of those that are there.
pub(super) fn padded<'t>(
    texts: impl ExactSizeIterator<Item = &'t [u32]>,
    n_longest: usize,
    places: Range<usize>,
) -> Result<[TensorData; 2], Error> {
    let (batch, len) = (texts.len(), places.len());
    let own = |tokens: &'t [u32]| {
        let n_before = n_longest - tokens.len();
        places.clone().map(move |at| at.checked_sub(n_before).map(|at| tokens[at]))
    };
    let ids: Vec<Option<u32>> = texts.flat_map(own).collect();
    let mask = ids.iter().map(|id| if id.is_some() { 1.0 } else { 0.0 }).collect();
    let ids = ids.into_iter().map(Option::unwrap_or_default).collect();
    Ok([u32s([batch, len], ids)?, f32s([batch, len], mask)?])
}

/// Whether a token was drawn at all.
pub(super) fn is_drawn(token: u32, n_tokens: usize) -> bool {
    usize::try_from(token).is_ok_and(|token| token < n_tokens)
}

pub(super) fn tokens_of(run: &RunOutput) -> Result<&[u32], Error> {
    run.outputs.get("next").and_then(TensorData::as_u32).ok_or(Error::NoToken)
}

pub(super) fn u32s<const N: usize>(shape: [usize; N], values: Vec<u32>) -> Result<TensorData, Error> {
    TensorData::new(shape, Elements::U32(values)).map_err(|_| Error::NoToken)
}

fn f32s<const N: usize>(shape: [usize; N], values: Vec<f32>) -> Result<TensorData, Error> {
    TensorData::f32(shape, values).map_err(|_| Error::NoToken)
}
