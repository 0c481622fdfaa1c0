//! An order-3 byte model with interpolated smoothing: what a trained model has to be better than.
//!
//! The probability of a byte after a context of three is that of the longest context mixed with the one of the next shorter, down to a
//! uniform one: `p_k = (c(context, byte) + t(context) p_{k-1}) / (c(context) + t(context))`, where `t` counts the distinct bytes seen after
//! the context.
//!
//! # Source
//! Witten and Bell 1991, "The zero-frequency problem", method C, interpolated as in Chen and Goodman 1998, section 2.5.

use indexmap::IndexMap;

/// Longest context, in bytes.
const ORDER: usize = 3;

/// What followed a context.
#[derive(Clone, Debug, Default)]
struct Followers {
    total: u32,
    counts: IndexMap<u8, u32>,
}

/// Counts of bytes after contexts of up to three bytes.
#[derive(Clone, Debug, Default)]
pub struct ByteModel {
    /// By the length of the context.
    followers: [IndexMap<u32, Followers>; ORDER + 1],
}

impl ByteModel {
    /// Counts a text.
    #[must_use]
    pub fn of(text: &[u8]) -> Self {
        let mut model = Self::default();
        for at in 0..text.len() {
            for order in 0..=ORDER.min(at) {
                let followers = model.followers[order].entry(key(&text[at - order..at])).or_default();
                followers.total += 1;
                *followers.counts.entry(text[at]).or_insert(0) += 1;
            }
        }
        model
    }

    /// Probability of `byte` after `context`, of which the last three bytes count.
    #[must_use]
    pub fn probability(&self, context: &[u8], byte: u8) -> f64 {
        let mut probability = 1.0 / 256.0;
        for order in 0..=ORDER.min(context.len()) {
            let Some(followers) = self.followers[order].get(&key(&context[context.len() - order..])) else { break };
            let distinct = f64::from(u32::try_from(followers.counts.len()).unwrap_or(u32::MAX));
            let count = f64::from(followers.counts.get(&byte).copied().unwrap_or(0));
            probability = (count + distinct * probability) / (f64::from(followers.total) + distinct);
        }
        probability
    }

    /// Bits for each byte of a text but the first.
    #[must_use]
    pub fn bits_per_byte(&self, text: &[u8]) -> f64 {
        let bits = |at: usize| -self.probability(&text[at.saturating_sub(ORDER)..at], text[at]).log2();
        let n = f64::from(u32::try_from(text.len().saturating_sub(1)).unwrap_or(u32::MAX));
        if n > 0.0 { (1..text.len()).map(bits).sum::<f64>() / n } else { 0.0 }
    }
}

/// Up to three bytes as a number; contexts of one length have different ones.
fn key(context: &[u8]) -> u32 {
    context.iter().fold(0, |key, &byte| key << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one() {
        let model = ByteModel::of(b"the cat sat on the mat");
        for context in [&b"the"[..], b"at ", b"xyz", b"", b"t"] {
            let sum: f64 = (0..=255).map(|byte| model.probability(context, byte)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{context:?}: {sum}");
        }
    }

    #[test]
    fn a_known_count_gives_a_known_probability() {
        // "ab" twice and "ac" once: after "a" p = (2 + 2 q) / (3 + 2) with q of the empty context.
        let model = ByteModel::of(b"abacab");
        let uniform = 1.0 / 256.0;
        let q = (2.0 + 3.0 * uniform) / (6.0 + 3.0);
        assert!((model.probability(b"a", b'b') - (2.0 + 2.0 * q) / 5.0).abs() < 1e-15);
    }

    #[test]
    fn a_repeated_text_costs_few_bits_and_noise_costs_eight() {
        let text = b"abcd".repeat(500);
        assert!(ByteModel::of(&text).bits_per_byte(&text) < 0.05);
        assert!((ByteModel::of(b"").bits_per_byte(b"anything") - 8.0).abs() < 1e-12);
    }
}
