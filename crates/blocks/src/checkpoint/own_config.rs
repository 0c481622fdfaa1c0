//! `config.json` of our own layout, both ways: every option of a model under our names, and no other.

use super::hf_config::{bad, missing, short};
use super::{CONFIG_FILE, CheckpointError};
use crate::block::BlockConfig;
use crate::config::{LmConfig, Mamba2Config, Naming, NormKind, Taps};
use crate::json;
use crate::mamba3::{Mamba3Config, RopePairs};
use serde_json::{Map, Value, json};

/// What stands at `model_type`.
pub(super) const MODEL_TYPE: &str = "monopass";
/// The version that is written, and the newest that is read.
const VERSION: usize = 1;

/// Whether the file is of our own layout.
pub(super) fn is_one(value: &Value) -> bool {
    value.get("model_type").is_some_and(|model| model == MODEL_TYPE)
}

/// The configuration in the file, of which `text` is the text.
pub(super) fn parse(text: &str, value: &Value) -> Result<LmConfig, CheckpointError> {
    if let Some(key) = json::twice(text) {
        return Err(bad(&key, "stands in one object twice", "keep one of them"));
    }
    let object = value.as_object().ok_or_else(|| bad("the file", "is no object", "write the checkpoint again"))?;
    // A later version may have other fields, so that it is looked at first.
    match object.get("format_version").map(json::count) {
        Some(Some(VERSION)) => {}
        Some(_) => {
            let found = format!("is {}", short(&value["format_version"]));
            return Err(bad("format_version", found, format!("version {VERSION} is read; use a newer release, or save it again")));
        }
        None => return Err(missing("format_version", "a whole number")),
    }
    let kind = object.get("block").ok_or_else(|| missing("block", "mamba2 or mamba3"))?;
    let settings = object.get("block_cfg").ok_or_else(|| missing("block_cfg", "the options of the block"))?;
    let block: BlockConfig = match kind.as_str() {
        Some("mamba2") => Mamba2Config::new(0).into(),
        Some("mamba3") => Mamba3Config::new(0).into(),
        _ => return Err(bad("block", format!("is {}", short(kind)), "block is mamba2 or mamba3")),
    };
    check_keys("block_cfg.", settings, &settings_of(&block))?;
    let block = block.with_json(settings)?;
    let config = LmConfig::new(block, 1, 1);
    check_keys("", value, &object_of(&config))?;
    let count = |key: &str| json::count(&value[key]).ok_or_else(|| wrong(key, &value[key], "a whole number that is not negative"));
    let config = LmConfig {
        n_layer: count("n_layer")?,
        vocab_size: count("vocab_size")?,
        vocab_padding: count("vocab_padding")?,
        norm_eps: json::number(&value["norm_eps"]).ok_or_else(|| wrong("norm_eps", &value["norm_eps"], "a number"))?,
        tie_embeddings: value["tie_embeddings"]
            .as_bool()
            .ok_or_else(|| wrong("tie_embeddings", &value["tie_embeddings"], "true or false"))?,
        ..config
    };
    config.sizes()?;
    Ok(config)
}

/// The file that says `config`.
pub(super) fn print(config: &LmConfig) -> Result<Vec<u8>, CheckpointError> {
    let json_error = |source| CheckpointError::Json { file: CONFIG_FILE.to_owned(), source };
    let mut text = serde_json::to_string_pretty(&object_of(config)).map_err(json_error)?;
    text.push('\n');
    Ok(text.into_bytes())
}

/// Every key is known, and none is missing: what a file does not say would be guessed.
fn check_keys(prefix: &str, found: &Value, wanted: &Value) -> Result<(), CheckpointError> {
    let empty = Map::new();
    let found = found.as_object().ok_or_else(|| wrong(prefix.trim_end_matches('.'), found, "an object"))?;
    let wanted = wanted.as_object().unwrap_or(&empty);
    if let Some(key) = found.keys().find(|key| !wanted.contains_key(*key)) {
        let known = wanted.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(bad(&format!("{prefix}{}", short(&key.as_str().into())), "is not known", format!("the fields are {known}")));
    }
    match wanted.keys().find(|key| !found.contains_key(*key)) {
        Some(key) => Err(missing(&format!("{prefix}{key}"), "which every file of this version has")),
        None => Ok(()),
    }
}

fn wrong(key: &str, found: &Value, expects: &str) -> CheckpointError {
    bad(key, format!("is {}", short(found)), format!("{key} is {expects}"))
}

fn object_of(config: &LmConfig) -> Value {
    let LmConfig { block, n_layer, vocab_size, vocab_padding, norm_eps, tie_embeddings } = config;
    let kind = match block {
        BlockConfig::Mamba2(_) => "mamba2",
        BlockConfig::Mamba3(_) => "mamba3",
    };
    json!({
        "model_type": MODEL_TYPE,
        "format_version": VERSION,
        "block": kind,
        "block_cfg": settings_of(block),
        "n_layer": n_layer,
        "vocab_size": vocab_size,
        "vocab_padding": vocab_padding,
        "norm_eps": norm_eps,
        "tie_embeddings": tie_embeddings,
    })
}

/// Every option of a block under the name that it has in settings, as our own layout writes them.
#[must_use]
pub fn settings_of(block: &BlockConfig) -> Value {
    match block {
        BlockConfig::Mamba2(block) => mamba2(block),
        BlockConfig::Mamba3(block) => mamba3(block),
    }
}

/// Taken apart, so that an option that is added has to be written, too.
fn mamba2(block: &Mamba2Config) -> Value {
    let Mamba2Config {
        d_model,
        d_state,
        complex,
        mimo_rank,
        d_conv,
        expand,
        headdim,
        d_ssm,
        ngroups,
        d_has_hdim,
        gate,
        conv_act,
        norm,
        norm_group,
        bias,
        conv_bias,
        dt_limit,
        eps,
        norm_eps,
        learnable_init_states,
        taps,
        naming,
        chunk_size,
    } = block;
    let norm = match norm {
        NormKind::None => None,
        NormKind::AfterGate => Some("after_gate"),
        NormKind::BeforeGate => Some("before_gate"),
    };
    let taps = match taps {
        Taps::NewestLast => "newest_last",
        Taps::NewestFirst => "newest_first",
    };
    let naming = match naming {
        Naming::Mixer => "mixer",
        Naming::Predecessor => "predecessor",
    };
    // No upper limit is the largest f32, which JSON can say.
    let dt_limit = dt_limit.map(f64::from);
    json!({
        "d_model": d_model, "d_state": d_state, "complex": complex, "mimo_rank": mimo_rank, "d_conv": d_conv, "expand": expand,
        "headdim": headdim, "d_ssm": d_ssm, "ngroups": ngroups, "d_has_hdim": d_has_hdim, "gate": gate, "conv_act": conv_act,
        "norm": norm, "norm_group": norm_group, "bias": bias, "conv_bias": conv_bias, "dt_limit": dt_limit, "eps": eps,
        "norm_eps": norm_eps, "learnable_init_states": learnable_init_states, "taps": taps, "naming": naming, "chunk_size": chunk_size,
    })
}

/// Taken apart, likewise.
fn mamba3(block: &Mamba3Config) -> Value {
    let Mamba3Config {
        d_model,
        d_state,
        expand,
        headdim,
        ngroups,
        rope_fraction,
        a_floor,
        a_act,
        is_mimo,
        mimo_rank,
        rope_pairs,
        is_outproj_norm,
        eps,
        norm_eps,
        chunk_size,
    } = block;
    let rope_pairs = rope_pairs.map(|pairs| match pairs {
        RopePairs::Interleaved => "interleaved",
        RopePairs::Halves => "halves",
    });
    json!({
        "d_model": d_model, "d_state": d_state, "expand": expand, "headdim": headdim, "ngroups": ngroups,
        "rope_fraction": rope_fraction, "a_floor": a_floor, "a_act": a_act.to_string(), "is_mimo": is_mimo, "mimo_rank": mimo_rank,
        "rope_pairs": rope_pairs, "is_outproj_norm": is_outproj_norm, "eps": eps, "norm_eps": norm_eps, "chunk_size": chunk_size,
    })
}
