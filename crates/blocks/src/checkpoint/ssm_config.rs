//! `config.json` of the `mamba_ssm` package (state-spaces), whose sizes are the defaults of its classes where it says nothing.

use super::hf_config::{bad, missing, short};
use super::{CONFIG_FILE, CheckpointError, LoadOptions};
use crate::block::BlockConfig;
use crate::config::{LmConfig, Mamba2Config, NormKind};
use crate::error::ConfigError;
use crate::json;
use crate::mamba3::{AAct, Mamba3Config};
use serde_json::{Map, Value, json};

/// Added to the mean square in every norm; the package has no field for it.
pub(super) const NORM_EPS: f64 = 1e-5;
/// What the vocabulary is padded to a multiple of where the file does not say.
const PAD_VOCAB: usize = 8;

/// Fields of `ssm_cfg` that only matter before training, or to the package's kernels.
const IGNORED: &[&str] = &[
    "layer",
    "A_init_range",
    "conv_init",
    "dt_init",
    "dt_init_floor",
    "dt_max",
    "dt_min",
    "dt_rank",
    "dt_scale",
    "dropout",
    "use_fast_path",
    "use_mem_eff_path",
];

/// Whether the file is of this package rather than of Hugging Face.
pub(super) fn is_one(value: &Value) -> bool {
    value.get("model_type").is_none() && value.get("d_model").is_some()
}

/// The configuration in the file, of which `text` is the text.
pub(super) fn parse(text: &str, value: &Value, options: &LoadOptions) -> Result<LmConfig, CheckpointError> {
    if let Some(key) = json::twice(text) {
        return Err(bad(&key, "stands in one object twice", "keep one of them"));
    }
    check_supported(value)?;
    let count = |field: &str| value.get(field).map(|found| json::count(found).ok_or_else(|| not_a_count(field, found)));
    let needed = |field: &str| count(field).ok_or_else(|| missing(field, "a whole number of at least 1"))?;
    let flag = |field: &str| value.get(field).map_or(Ok(true), |found| found.as_bool().ok_or_else(|| not_a_flag(field, found)));
    let pad = count("pad_vocab_size_multiple").unwrap_or(Ok(PAD_VOCAB))?.max(1);
    let n_tokens = needed("vocab_size")?;
    let vocab_size = n_tokens.checked_next_multiple_of(pad).ok_or(ConfigError::TooLarge { key: "vocab_size", value: n_tokens });
    let vocab_size = vocab_size.map_err(|error| CheckpointError::Config(error.into()))?;
    let config = LmConfig {
        block: block(value, needed("d_model")?, options)?,
        n_layer: needed("n_layer")?,
        vocab_size,
        vocab_padding: vocab_size - n_tokens,
        norm_eps: NORM_EPS,
        tie_embeddings: flag("tie_embeddings")?,
    };
    config.sizes()?;
    Ok(config)
}

/// The file that says `config`, in the order in which the package lists the fields. `a_act` is ours: without it, nobody could
/// tell later what the weights were trained with.
pub(super) fn print(config: &LmConfig, block: &Mamba3Config) -> Result<Vec<u8>, CheckpointError> {
    let mut ssm = json!({
        "layer": "Mamba3",
        "d_state": block.d_state,
        "expand": block.expand,
        "headdim": block.headdim,
        "ngroups": block.ngroups,
        "rope_fraction": block.rope_fraction,
        "A_floor": block.a_floor,
        "is_mimo": block.is_mimo,
        "is_outproj_norm": block.is_outproj_norm,
        "a_act": block.a_act.to_string(),
    });
    if block.expand.fract() == 0.0 {
        ssm["expand"] = whole(block.expand);
    }
    if block.is_mimo {
        ssm["mimo_rank"] = json!(block.mimo_rank);
    }
    if block.chunk_size > 0 {
        ssm["chunk_size"] = json!(block.chunk_size);
    }
    model(config, block.d_model, &ssm)
}

/// As [`print()`], of a Mamba-2. Fields at the package's own default are left out where it has no reason to say them.
pub(super) fn print_mamba2(config: &LmConfig, block: &Mamba2Config) -> Result<Vec<u8>, CheckpointError> {
    let mut ssm = json!({
        "layer": "Mamba2",
        "d_state": block.d_state,
        "d_conv": block.d_conv,
        "expand": block.expand,
        "headdim": block.headdim,
        "ngroups": block.ngroups,
        "D_has_hdim": block.d_has_hdim,
        "rmsnorm": block.norm != NormKind::None,
        "norm_before_gate": block.norm == NormKind::BeforeGate,
        "bias": block.bias,
        "conv_bias": block.conv_bias,
    });
    if block.expand.fract() == 0.0 {
        ssm["expand"] = whole(block.expand);
    }
    if let Some(d_ssm) = block.d_ssm {
        ssm["d_ssm"] = json!(d_ssm);
    }
    if block.dt_limit != [0.0, f32::MAX] {
        // No limit is written as the largest f32, as JSON has no infinity.
        ssm["dt_limit"] = json!(block.dt_limit);
    }
    if block.learnable_init_states {
        ssm["learnable_init_states"] = json!(true);
    }
    if block.chunk_size > 0 {
        ssm["chunk_size"] = json!(block.chunk_size);
    }
    model(config, block.d_model, &ssm)
}

/// The file around the settings of the block. The package has no field for the element type, which the tensors say themselves.
fn model(config: &LmConfig, d_model: usize, ssm: &Value) -> Result<Vec<u8>, CheckpointError> {
    let n_tokens = config.n_tokens();
    let pads = [16, PAD_VOCAB, 1].into_iter().find(|&pad| n_tokens.checked_next_multiple_of(pad) == Some(config.vocab_size));
    let value = json!({
        "d_model": d_model,
        "d_intermediate": 0,
        "n_layer": config.n_layer,
        "vocab_size": n_tokens,
        "ssm_cfg": ssm,
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": true,
        "residual_in_fp32": true,
        "fused_add_norm": true,
        // The whole size is a multiple of itself, so that any padding can be stated.
        "pad_vocab_size_multiple": pads.unwrap_or(config.vocab_size),
        "tie_embeddings": config.tie_embeddings,
    });
    let mut text = serde_json::to_string_pretty(&value).map_err(|source| CheckpointError::Json { file: CONFIG_FILE.to_owned(), source })?;
    text.push('\n');
    Ok(text.into_bytes())
}

/// A whole number as JSON has it.
fn whole(number: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "an expansion is below 2^32")]
    let number = number as i64;
    number.into()
}

/// Parts of the package's models that there are no blocks for.
fn check_supported(value: &Value) -> Result<(), CheckpointError> {
    let is_empty = |found: &Value| found.is_null() || found.as_array().is_some_and(Vec::is_empty);
    if let Some(found) = value.get("attn_layer_idx").filter(|found| !is_empty(found)) {
        return Err(bad("attn_layer_idx", format!("is {}", short(found)), "layers of attention are not supported"));
    }
    if let Some(found) = value.get("d_intermediate").filter(|found| json::count(found) != Some(0)) {
        return Err(bad("d_intermediate", format!("is {}", short(found)), "a gated MLP in each layer is not supported; it has to be 0"));
    }
    if let Some(found) = value.get("rms_norm").filter(|found| found.as_bool() != Some(true)) {
        return Err(bad("rms_norm", format!("is {}", short(found)), "layer norm is not supported; it has to be true"));
    }
    Ok(())
}

fn block(value: &Value, d_model: usize, options: &LoadOptions) -> Result<BlockConfig, CheckpointError> {
    let empty = Map::new();
    let ssm = match value.get("ssm_cfg") {
        None => &empty,
        Some(found) => found.as_object().ok_or_else(|| bad("ssm_cfg", format!("is {}", short(found)), "ssm_cfg is an object"))?,
    };
    let mut own: Map<String, Value> =
        ssm.iter().filter(|(key, _)| !IGNORED.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
    let layer = ssm.get("layer");
    match layer.and_then(Value::as_str) {
        Some("Mamba2") => Ok(Mamba2Config::new(d_model).with_json(&own.into())?.into()),
        Some("Mamba3") => {
            choose_a_act(&mut own, options.a_act)?;
            Ok(Mamba3Config::new(d_model).with_json(&own.into())?.into())
        }
        _ => {
            let found = layer.map_or_else(|| "is missing, which means Mamba1".to_owned(), |found| format!("is {}", short(found)));
            Err(bad("ssm_cfg.layer", found, "only Mamba2 and Mamba3 are supported"))
        }
    }
}

/// The activation of the decay rate, as the file records it or as the caller says; it is never guessed.
fn choose_a_act(ssm: &mut Map<String, Value>, asked: Option<AAct>) -> Result<(), CheckpointError> {
    ssm.retain(|key, value| key != "a_act" || !value.is_null());
    let recorded = ssm.get("a_act").map(Value::to_string);
    match (recorded, asked) {
        (None, None) => Err(CheckpointError::AskAAct),
        (Some(recorded), Some(asked)) if recorded != format!("\"{asked}\"") => {
            Err(bad("ssm_cfg.a_act", format!("is {recorded}, but {asked} is asked for"), "ask for what the file records, or for nothing"))
        }
        (Some(_), _) => Ok(()),
        (None, Some(asked)) => {
            ssm.insert("a_act".to_owned(), asked.to_string().into());
            Ok(())
        }
    }
}

fn not_a_count(field: &str, found: &Value) -> CheckpointError {
    bad(field, format!("is {}", short(found)), format!("{field} is a whole number of at least 1"))
}

fn not_a_flag(field: &str, found: &Value) -> CheckpointError {
    bad(field, format!("is {}", short(found)), format!("{field} is true or false"))
}
