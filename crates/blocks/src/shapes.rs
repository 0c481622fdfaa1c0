//! Sizes of published models, for measurements: the family that state-spaces released as `mamba2-*`, and Mamba-3 of like size.
//!
//! # Source
//! `config.json` of the models that state-spaces published with Dao and Gu 2024, arXiv 2405.21060; no Mamba-3 of these sizes is published.

use crate::config::{LmConfig, Mamba2Config};
use crate::mamba3::Mamba3Config;

/// Name, width, layers.
const SIZES: [(&str, usize, usize); 5] =
    [("130m", 768, 24), ("370m", 1024, 48), ("780m", 1536, 48), ("1.3b", 2048, 48), ("2.7b", 2560, 64)];

/// Rows of the embedding: 50277 tokens, padded to a multiple of 16.
const VOCAB: usize = 50288;

/// Every name that [`published`] knows.
#[must_use]
pub fn names() -> Vec<String> {
    ["mamba2", "mamba3"].iter().flat_map(|block| SIZES.iter().map(move |(size, ..)| format!("{block}-{size}"))).collect()
}

/// The configuration of a model of published sizes, such as `mamba2-130m` or `mamba3-1.3b`; `None` for an unknown name.
#[must_use]
pub fn published(name: &str) -> Option<LmConfig> {
    let (block, size) = name.split_once('-')?;
    let &(_, d_model, n_layer) = SIZES.iter().find(|(known, ..)| *known == size)?;
    match block {
        "mamba2" => Some(LmConfig::new(Mamba2Config::new(d_model), n_layer, VOCAB)),
        "mamba3" => Some(LmConfig::new(Mamba3Config::new(d_model), n_layer, VOCAB)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_as_many_parameters_as_their_names_say() {
        for name in names() {
            let config = published(&name).unwrap();
            let n: u64 = config.parameters().unwrap().iter().map(|param| param.shape.iter().product::<usize>() as u64).sum();
            let (_, size) = name.split_once('-').unwrap();
            let (number, unit) = size.split_at(size.len() - 1);
            let said = number.parse::<f64>().unwrap() * if unit == "b" { 1e9 } else { 1e6 };
            #[expect(clippy::cast_precision_loss, reason = "compared within a twentieth")]
            let ratio = n as f64 / said;
            assert!((0.95..1.05).contains(&ratio), "{name} has {n}");
        }
        // Exactly, for Mamba-2.
        let exact = [128_989_632u64, 368_346_624, 780_161_280, 1_343_757_312, 2_702_599_680];
        for (name, count) in names().iter().zip(exact) {
            let params = published(name).unwrap().parameters().unwrap();
            assert_eq!(params.iter().map(|param| param.shape.iter().product::<usize>() as u64).sum::<u64>(), count, "{name}");
        }
        assert!(names().iter().all(|name| published(name).unwrap().sizes().is_ok()));
        assert!(published("mamba2-7b").is_none() && published("130m").is_none());
    }
}
