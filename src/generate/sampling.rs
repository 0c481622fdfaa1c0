//! How the next token is chosen from a model's logits, and the numbers that it is drawn by.

/// A setting outside of its range. The caller's fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}\n  help: {name} is {expects}")]
pub struct SamplingError {
    /// Which setting.
    pub name: &'static str,
    /// As given.
    pub value: f32,
    /// What it may be.
    pub expects: &'static str,
}

/// How each next token is chosen. The rules apply in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits of tokens that the sequence has, the prompt included, are divided by this where they are positive and else multiplied; 1
    /// changes nothing.
    pub repetition_penalty: f32,
    /// Logits are divided by this; 0 takes the largest, the lowest token of equal ones.
    pub temperature: f32,
    /// Only so many of the largest logits are kept; 0 keeps all.
    pub top_k: u32,
    /// Only the likeliest tokens are kept whose probabilities together reach this; 1 keeps all.
    pub top_p: f32,
    /// Only tokens are kept that are at least this times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Where the random numbers come from: with the same seed, the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    /// The likeliest token, always.
    fn default() -> Self {
        Self { repetition_penalty: 1.0, temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// Whether the settings are in their ranges.
    ///
    /// # Errors
    /// The first setting that is not.
    pub fn check(&self) -> Result<(), SamplingError> {
        let rules = [
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "a number above 0; 1 is off"),
            ("temperature", self.temperature, self.temperature >= 0.0, "a number from 0 on; 0 takes the likeliest token"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "a number above 0 and at most 1; 1 is off"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "a number from 0 to 1; 0 is off"),
        ];
        let wrong = rules.into_iter().find(|(_, value, is_right, _)| !is_right || !value.is_finite());
        wrong.map_or(Ok(()), |(name, value, _, expects)| Err(SamplingError { name, value, expects }))
    }

    /// Whether tokens that the sequence has are treated otherwise than others.
    #[must_use]
    pub fn penalizes(&self) -> bool {
        (self.repetition_penalty - 1.0).abs() > 0.0
    }

    /// The inputs of a graph that draws: temperature, top k, top p, min p.
    pub(super) fn settings(&self) -> [f32; 4] {
        // As many tokens as f32 counts are more than any vocabulary has.
        let top_k = self.top_k.min(1 << 24);
        #[expect(clippy::cast_precision_loss, reason = "2^24 is exact")]
        let top_k = top_k as f32;
        [self.temperature, top_k, self.top_p, self.min_p]
    }

    /// The number in `[0, 1)` that the token at `position` of a sequence is drawn by: the same whether the sequence runs alone or in
    /// a batch, at once or continued from disk.
    ///
    /// # Source
    /// The mixing function is that of Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 14.
    #[must_use]
    pub fn uniform(&self, position: u64) -> f32 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |z: u64| {
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        // Mixed twice, so that the numbers of neighboring seeds are not those of neighboring positions.
        let bits = mix(mix(self.seed.wrapping_add(GOLDEN)).wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN))) >> 40;
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
        let numerator = bits as f32;
        numerator / 16_777_216.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_outside_of_their_range_are_named() {
        let base = Sampling::default();
        assert_eq!(base.check(), Ok(()));
        let wrong = [
            (Sampling { temperature: -1.0, ..base }, "temperature is -1"),
            (Sampling { temperature: f32::INFINITY, ..base }, "temperature is inf"),
            (Sampling { top_p: 0.0, ..base }, "top_p is 0"),
            (Sampling { top_p: 1.5, ..base }, "top_p is 1.5"),
            (Sampling { min_p: f32::NAN, ..base }, "min_p is NaN"),
            (Sampling { repetition_penalty: 0.0, ..base }, "repetition_penalty is 0"),
        ];
        for (sampling, message) in wrong {
            let error = sampling.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{message}\n  help: ")), "{error}");
        }
    }

    #[test]
    fn numbers_are_spread_evenly_and_differ_by_seed_and_position() {
        let n = 1u32 << 12;
        for seed in [0, 1, 2, u64::MAX] {
            let sampling = Sampling { seed, ..Sampling::default() };
            let all: Vec<f32> = (0..u64::from(n)).map(|position| sampling.uniform(position)).collect();
            assert!(all.iter().all(|x| (0.0..1.0).contains(x)));
            for part in 0..16u8 {
                let range = f32::from(part) / 16.0..f32::from(part + 1) / 16.0;
                let count = all.iter().filter(|x| range.contains(x)).count();
                // Five standard deviations of a share of 1/16.
                assert!(count.abs_diff(n as usize / 16) < 78, "{count} in {range:?}");
            }
        }
        let first = |seed| (0..4).map(|position| Sampling { seed, ..Sampling::default() }.uniform(position).to_bits()).collect::<Vec<_>>();
        assert!(first(0).iter().all(|x| !first(1).contains(x)));
    }
}
