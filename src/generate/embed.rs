//! Texts as vectors.

use super::decode::{padded, padded_len};
use super::{Generator, Shape};
use crate::error::Error;
use monopass_ir::TensorData;

impl Generator {
    /// The mean of each text's final hidden states (after the last norm), scaled to length 1: `d_model` numbers a text. Texts run as one
    /// batch, filled up on the left, in chunks of bounded length; neither changes a text's vector but by rounding.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] for a text of no tokens; [`Error::UnknownToken`]; what a run can meet.
    pub async fn embed(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>, Error> {
        for text in texts {
            if text.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            self.check_tokens(text, 0)?;
        }
        let batch = texts.len();
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let n_longest = padded_len(texts.iter().map(|text| text.len()));
        let chunk_len = (self.chunk_len / batch).max(1);
        let mut session = self.whole_session(batch)?;
        let mut embedding: Option<TensorData> = None;
        for first in (0..n_longest).step_by(chunk_len) {
            self.check_interrupt()?;
            let len = chunk_len.min(n_longest - first);
            let [ids, mask] = padded(texts.iter().copied(), n_longest, first..first + len)?;
            let program = self.program(Shape::Pooled { batch, len }).await?;
            let mut run = program.run(&mut session, &[("ids", &ids), ("mask", &mask)]).await?;
            embedding = run.outputs.shift_remove("embedding");
        }
        let values = embedding.ok_or(Error::NoToken)?.to_f32_vec();
        if values.iter().any(|x| !x.is_finite()) {
            return Err(Error::NotFinite { what: "hidden states".to_owned() });
        }
        Ok(values.chunks(self.config.block.d_model().max(1)).map(<[f32]>::to_vec).collect())
    }
}
