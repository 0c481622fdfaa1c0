//! How well a model expects a text.

use super::decode::u32s;
use super::{Generator, Shape};
use crate::error::Error;
use monopass_ir::{Elements, TensorData};
use std::f64::consts::LN_2;

/// What a model makes of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Tokens that were judged: all but the first.
    pub n_tokens: u64,
    /// Bytes that they stand for.
    pub n_bytes: u64,
    /// Sum of `-log p` of each, in nats.
    pub loss_sum: f64,
    /// How often the token was the likeliest.
    pub n_first: u64,
    /// How often it was among the `k` likeliest.
    pub n_top_k: u64,
}

impl Evaluation {
    /// Mean loss a token, in nats; 0 of no tokens.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.loss_sum / as_f64(self.n_tokens).max(1.0)
    }

    /// `exp` of the mean loss.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// Bits a token.
    #[must_use]
    pub fn bits_per_token(&self) -> f64 {
        self.loss() / LN_2
    }

    /// Bits a byte of text; `None` where the tokens stand for no bytes.
    #[must_use]
    pub fn bits_per_byte(&self) -> Option<f64> {
        (self.n_bytes > 0).then(|| self.loss_sum / LN_2 / as_f64(self.n_bytes))
    }

    /// Share of tokens that were the likeliest.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        as_f64(self.n_first) / as_f64(self.n_tokens).max(1.0)
    }

    /// Share of tokens that were among the `k` likeliest.
    #[must_use]
    pub fn top_k_accuracy(&self) -> f64 {
        as_f64(self.n_top_k) / as_f64(self.n_tokens).max(1.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^53")]
const fn as_f64(n: u64) -> f64 {
    n as f64
}

impl Generator {
    /// Judges a text of tokens, each with the bytes that it stands for. States go on from one window of `chunk_len` tokens to the next, so
    /// every token but the first counts once, with all before it, whatever the window. With a `batch` above 1 the text is cut into so
    /// many pieces of equal length, which run side by side, each from the model's initial state and the last token of the piece before.
    ///
    /// `progress` gets the number of tokens judged so far.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] for fewer than two tokens; [`Error::UnknownToken`]; what a run can meet.
    pub async fn evaluate(
        &mut self,
        tokens: &[u32],
        n_bytes: &[usize],
        batch: usize,
        k: usize,
        mut progress: impl FnMut(u64),
    ) -> Result<Evaluation, Error> {
        if tokens.len() < 2 {
            return Err(Error::EmptyPrompt);
        }
        self.check_tokens(tokens, 0)?;
        let n = tokens.len() - 1;
        let batch = batch.clamp(1, n);
        let piece = n.div_ceil(batch);
        let window = (self.chunk_len / batch).max(1);
        let mut session = self.whole_session(batch)?;
        let mut judged = Evaluation::default();
        for first in (0..piece).step_by(window) {
            self.check_interrupt()?;
            let len = window.min(piece - first);
            // The last pieces may end before the others; what fills them up does not count.
            let place = |idx: usize| idx / len * piece + first + idx % len;
            let counts = |idx: &usize| place(*idx) < n && first + idx % len < piece;
            let token = |at: usize| tokens.get(at).copied().unwrap_or(0);
            let ids = u32s([batch, len], (0..batch * len).map(|idx| token(place(idx))).collect())?;
            let targets = (0..batch * len).map(|idx| i32::try_from(token(place(idx) + 1)).unwrap_or(0)).collect();
            let target = TensorData::new([batch, len], Elements::I32(targets)).map_err(|_| Error::NoToken)?;
            let program = self.program(Shape::Score { batch, len }).await?;
            let run = program.run(&mut session, &[("ids", &ids), ("target", &target)]).await?;
            let (Some(losses), Some(ranks)) = (run.outputs.get("loss"), run.outputs.get("rank").and_then(TensorData::as_u32)) else {
                return Err(Error::NoToken);
            };
            let losses = losses.to_f32_vec();
            for idx in (0..batch * len).filter(counts) {
                if !losses[idx].is_finite() {
                    return Err(Error::NotFinite { what: "losses".to_owned() });
                }
                judged.n_tokens += 1;
                judged.n_bytes += n_bytes.get(place(idx) + 1).map_or(0, |&n| n as u64);
                judged.loss_sum += f64::from(losses[idx]);
                let rank = usize::try_from(ranks[idx]).unwrap_or(usize::MAX);
                judged.n_first += u64::from(rank == 0);
                judged.n_top_k += u64::from(rank < k);
            }
            progress(judged.n_tokens);
        }
        Ok(judged)
    }
}
