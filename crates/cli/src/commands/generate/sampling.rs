//! The options that say how tokens are chosen.

use crate::report::OrReport;
use miette::Result;
use monopass::generate::Sampling;

/// How each token is chosen; what is not given stays as it was saved, or as it is without.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Divides logits before a token is drawn; 0, unless given, takes the likeliest
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Draw among so many of the likeliest tokens; 0, unless given, is off
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Draw among the likeliest tokens that together have this probability; 1, unless given, is off
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Draw among tokens at least this times as likely as the likeliest; 0, unless given, is off
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divides positive logits of tokens that the text has and multiplies negative ones; 1, unless given, is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Seed of the numbers that tokens are drawn by; 0 unless given. The prompt after it gets the next one, and so on
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// Whether the values are in their ranges.
    pub(crate) fn check(&self) -> Result<()> {
        self.over(Sampling::default(), 0).check().or_report()
    }

    /// These settings over `base`, for the prompt at a place.
    pub(crate) fn over(&self, base: Sampling, place: u64) -> Sampling {
        Sampling {
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            seed: self.seed.unwrap_or(base.seed).wrapping_add(place),
        }
    }
}
