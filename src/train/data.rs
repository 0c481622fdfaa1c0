//! Text as tokens, and the order in which training sees it.

use super::hash::fnv1a;
use super::trainer::Batch;
use monopass_blocks::init::Random;
use serde::{Deserialize, Serialize};

/// Target of a place at which nothing is asked, as in other libraries.
pub const IGNORE: i32 = -100;

/// Tokens of a text, the last part of which is held out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    tokens: Vec<u32>,
    n_train: usize,
    /// Bytes of text that the tokens that are trained on stand for.
    training_bytes: usize,
    /// Bytes of text that the held-out tokens but the first stand for.
    held_out_bytes: usize,
}

/// A text that cannot be trained on. The caller's fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DataError {
    /// Too few tokens.
    #[error(
        "the {part} part of the text has {found} tokens, and a batch of {batch} sequences of {len} needs {needed}\n  help: give more text, or a smaller batch or shorter sequences"
    )]
    TooShort {
        /// `training` or `held-out`.
        part: &'static str,
        /// Tokens there.
        found: usize,
        /// Sequences of a batch.
        batch: usize,
        /// Tokens of each.
        len: usize,
        /// Tokens needed.
        needed: usize,
    },
    /// A fraction that is none.
    #[error("the held-out fraction is {fraction}\n  help: give a number from 0 to below 1")]
    BadFraction {
        /// As given.
        fraction: f64,
    },
    /// A token that the model does not have.
    #[error("the text has token {token}, and the model knows those below {vocab_size}\n  help: use the tokenizer of this model")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Tokens of the model.
        vocab_size: usize,
    },
}

/// In which order windows of the text come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As many streams as a batch has sequences, each a contiguous part of the text: a window goes on where the one before it ended, so
    /// that states can be carried.
    Carried,
    /// Windows that do not overlap, in an order and from a place that are drawn anew for each pass over the text.
    Shuffled,
}

/// Where in that order a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Passes over the text that are complete.
    pub epoch: u64,
    /// Batches taken of the pass under way.
    pub batch: u64,
}

impl Corpus {
    /// The text's bytes as tokens, the last `held_out` of them (a fraction) apart.
    ///
    /// # Errors
    /// [`DataError::BadFraction`].
    pub fn of_bytes(text: &[u8], held_out: f64) -> Result<Self, DataError> {
        let n_held_out = n_held_out(text.len(), held_out)?;
        Ok(Self {
            tokens: text.iter().map(|&byte| byte.into()).collect(),
            n_train: text.len() - n_held_out,
            training_bytes: text.len() - n_held_out,
            held_out_bytes: n_held_out.saturating_sub(1),
        })
    }

    /// Tokens of a tokenizer, each with the bytes of text that it stands for, the last `held_out` of them (a fraction) apart.
    ///
    /// # Errors
    /// [`DataError::BadFraction`]; [`DataError::UnknownToken`] if one is not below `vocab_size`.
    pub fn of_tokens(tokens: Vec<u32>, n_bytes: &[usize], vocab_size: usize, held_out: f64) -> Result<Self, DataError> {
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(DataError::UnknownToken { token, vocab_size });
        }
        let n_train = tokens.len() - n_held_out(tokens.len(), held_out)?;
        let training_bytes = n_bytes.iter().take(n_train).sum();
        let held_out_bytes = n_bytes.iter().skip(n_train + 1).sum();
        Ok(Self { tokens, n_train, training_bytes, held_out_bytes })
    }

    /// What is trained on.
    #[must_use]
    pub fn training(&self) -> &[u32] {
        &self.tokens[..self.n_train]
    }

    /// What is held out.
    #[must_use]
    pub fn held_out(&self) -> &[u32] {
        &self.tokens[self.n_train..]
    }

    /// Bytes of text that the tokens that are trained on stand for, from its beginning.
    #[must_use]
    pub const fn training_bytes(&self) -> usize {
        self.training_bytes
    }

    /// Bytes of text that the held-out tokens but the first, which nothing predicts, stand for.
    #[must_use]
    pub const fn held_out_bytes(&self) -> usize {
        self.held_out_bytes
    }

    /// A number that differs between texts.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        fnv1a(self.tokens.iter().flat_map(|token| token.to_le_bytes()))
    }
}

fn n_held_out(n: usize, fraction: f64) -> Result<usize, DataError> {
    if !(0.0..1.0).contains(&fraction) {
        return Err(DataError::BadFraction { fraction });
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a count of tokens"
    )]
    Ok((n as f64 * fraction).round() as usize)
}

/// Hands out batches of a corpus's training part. The same seed and position give the same batches.
#[derive(Clone, Debug)]
pub struct Batches<'c> {
    tokens: &'c [u32],
    order: Order,
    batch: usize,
    len: usize,
    seed: u64,
    position: Position,
    /// The order of windows of the pass under way.
    windows: Vec<usize>,
    /// Where the first window begins.
    offset: usize,
}

impl<'c> Batches<'c> {
    /// From a position on.
    ///
    /// # Errors
    /// [`DataError::TooShort`] if a batch needs more text than there is.
    pub fn new(corpus: &'c Corpus, order: Order, [batch, len]: [usize; 2], seed: u64, position: Position) -> Result<Self, DataError> {
        let tokens = corpus.training();
        let needed = match order {
            Order::Carried => len.saturating_add(1).saturating_mul(batch),
            // A pass may begin anywhere within the first window.
            Order::Shuffled => len.saturating_mul(batch.saturating_add(1)),
        };
        if tokens.len() < needed || batch == 0 || len == 0 {
            return Err(DataError::TooShort { part: "training", found: tokens.len(), batch, len, needed });
        }
        let mut batches = Self { tokens, order, batch, len, seed, position, windows: Vec::new(), offset: 0 };
        batches.begin();
        Ok(batches)
    }

    /// Where the next batch comes from.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.position
    }

    /// Batches in a pass over the text.
    #[must_use]
    pub fn per_epoch(&self) -> u64 {
        let n = match self.order {
            Order::Carried => (self.tokens.len() / self.batch).saturating_sub(1) / self.len,
            Order::Shuffled => self.windows.len() / self.batch,
        };
        n as u64
    }

    /// The next batch, and whether a new pass begins with it, so that what is carried has to be forgotten.
    pub fn next_batch(&mut self) -> (Batch, bool) {
        if self.position.batch >= self.per_epoch() {
            self.position = Position { epoch: self.position.epoch + 1, batch: 0 };
            self.begin();
        }
        let starts = self.position.batch == 0;
        let at = usize::try_from(self.position.batch).unwrap_or(usize::MAX);
        let first = |row: usize| match self.order {
            Order::Carried => row * (self.tokens.len() / self.batch) + at * self.len,
            Order::Shuffled => self.offset + self.windows[at * self.batch + row] * self.len,
        };
        let rows: Vec<&[u32]> = (0..self.batch).map(|row| &self.tokens[first(row)..=first(row) + self.len]).collect();
        self.position.batch += 1;
        (batch_of(&rows, self.len), starts)
    }

    /// Draws the order of a pass.
    fn begin(&mut self) {
        if self.order == Order::Carried {
            return;
        }
        let mut random = Random::new(self.seed ^ self.position.epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.offset = random.below(self.len);
        let n_windows = (self.tokens.len() - 1 - self.offset) / self.len;
        self.windows = (0..n_windows).collect();
        for last in (1..n_windows).rev() {
            self.windows.swap(last, random.below(last + 1));
        }
    }
}

/// Held-out text in order: each of as many streams as a batch has sequences is a contiguous part, the last of its windows filled up with
/// places that do not count.
///
/// # Errors
/// [`DataError::TooShort`] if a stream has no two tokens.
pub fn held_out_batches(corpus: &Corpus, [batch, len]: [usize; 2]) -> Result<Vec<Batch>, DataError> {
    let tokens = corpus.held_out();
    let needed = batch.saturating_mul(2);
    if batch == 0 || len == 0 || tokens.len() < needed {
        return Err(DataError::TooShort { part: "held-out", found: tokens.len(), batch, len, needed });
    }
    let n_targets = tokens.len() - 1;
    let per_stream = n_targets.div_ceil(batch);
    let stream = |row: usize| &tokens[(row * per_stream).min(n_targets)..=((row + 1) * per_stream).min(n_targets)];
    let window = |row: usize, at: usize| {
        let stream = stream(row);
        let start = (at * len).min(stream.len() - 1);
        &stream[start..=(start + len).min(stream.len() - 1)]
    };
    Ok((0..per_stream.div_ceil(len)).map(|at| batch_of(&(0..batch).map(|row| window(row, at)).collect::<Vec<_>>(), len)).collect())
}

/// Windows of up to `len + 1` tokens as inputs and targets; what is missing does not count.
fn batch_of(rows: &[&[u32]], len: usize) -> Batch {
    let mut batch = Batch { ids: Vec::with_capacity(rows.len() * len), targets: Vec::with_capacity(rows.len() * len) };
    for row in rows {
        for t in 0..len {
            batch.ids.push(row.get(t).copied().unwrap_or(0));
            batch.targets.push(row.get(t + 1).map_or(IGNORE, |&token| i32::try_from(token).unwrap_or(IGNORE)));
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(n: u8, held_out: f64) -> Corpus {
        Corpus::of_bytes(&(0..n).collect::<Vec<u8>>(), held_out).unwrap()
    }

    #[test]
    fn carried_windows_go_on_where_they_ended() {
        let corpus = corpus(100, 0.25);
        let mut batches = Batches::new(&corpus, Order::Carried, [3, 7], 0, Position::default()).unwrap();
        // 75 tokens in three streams of 25, of which each batch takes 7 and looks one ahead.
        assert_eq!(batches.per_epoch(), 3);
        let (first, starts) = batches.next_batch();
        assert!(starts && first.ids[..7] == [0, 1, 2, 3, 4, 5, 6] && first.targets[..7] == [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((first.ids[7], first.ids[14]), (25, 50));
        let (second, starts) = batches.next_batch();
        assert!(!starts && second.ids[0] == 7 && second.targets[20] == 64);
        let _ = batches.next_batch();
        let (again, starts) = batches.next_batch();
        assert!(starts && again == first && batches.position() == Position { epoch: 1, batch: 1 });
    }

    #[test]
    fn shuffled_windows_cover_the_text_once_a_pass() {
        let corpus = corpus(101, 0.0);
        let mut batches = Batches::new(&corpus, Order::Shuffled, [2, 9], 5, Position::default()).unwrap();
        let pass = |batches: &mut Batches<'_>| {
            let n = batches.per_epoch();
            let mut starts: Vec<u32> =
                (0..n).flat_map(|_| batches.next_batch().0.ids.chunks(9).map(|row| row[0]).collect::<Vec<_>>()).collect();
            let drawn = starts.clone();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 9));
            drawn
        };
        let (first, second) = (pass(&mut batches), pass(&mut batches));
        assert_ne!(first, second);
    }

    #[test]
    fn a_position_gives_the_same_batches() {
        let corpus = corpus(200, 0.1);
        for order in [Order::Carried, Order::Shuffled] {
            let mut whole = Batches::new(&corpus, order, [2, 8], 3, Position::default()).unwrap();
            for _ in 0..13 {
                let _ = whole.next_batch();
            }
            let mut resumed = Batches::new(&corpus, order, [2, 8], 3, whole.position()).unwrap();
            assert_eq!((0..30).map(|_| whole.next_batch()).collect::<Vec<_>>(), (0..30).map(|_| resumed.next_batch()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn held_out_text_counts_every_token_but_the_first() {
        for n in [40u8, 41, 47, 63] {
            let corpus = corpus(n, 0.5);
            let n_held_out = corpus.held_out().len();
            let batches = held_out_batches(&corpus, [3, 4]).unwrap();
            let mut targets: Vec<i32> = batches.iter().flat_map(|batch| batch.targets.clone()).filter(|&target| target != IGNORE).collect();
            targets.sort_unstable();
            let wanted: Vec<i32> = corpus.held_out()[1..].iter().map(|&token| i32::try_from(token).unwrap()).collect();
            assert_eq!(targets, wanted);
            assert_eq!(corpus.held_out_bytes(), n_held_out - 1);
        }
    }

    #[test]
    fn mistakes_say_what_is_needed() {
        let message = |result: Result<(), DataError>| result.unwrap_err().to_string();
        let short = corpus(10, 0.0);
        assert!(message(Batches::new(&short, Order::Carried, [2, 8], 0, Position::default()).map(|_| ())).contains("needs 18"));
        assert!(message(held_out_batches(&short, [2, 8]).map(|_| ())).contains("held-out part of the text has 0 tokens"));
        assert!(message(Corpus::of_bytes(b"abc", 1.0).map(|_| ())).contains("fraction is 1"));
        assert!(message(Corpus::of_tokens(vec![1, 9], &[1, 1], 9, 0.0).map(|_| ())).contains("token 9"));
    }
}
