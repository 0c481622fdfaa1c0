//! `config.json` of `Mamba2ForCausalLM`, both ways.
//!
//! The class's own defaults are those of one large model, so a size that is not in the file is an error rather than a guess.

use super::{CONFIG_FILE, CheckpointError};
use crate::config::{LmConfig, Mamba2Config, Mamba2Sizes};
use crate::error::ConfigErrors;
use crate::json;
use monopass_ir::Storage;
use serde_json::{Value, json};

/// Sizes beyond this are a mistake; it also keeps every product of two of them countable.
const MAX_SIZE: usize = 1 << 31;

/// The configuration in the file, of which `text` is the text; `has_head` says whether the tensors include a head, for files
/// that do not say.
pub(super) fn parse(text: &str, value: &Value, has_head: impl FnOnce() -> bool) -> Result<LmConfig, CheckpointError> {
    let fields = Fields(value);
    fields.check_model()?;
    if let Some(key) = json::twice(text) {
        return Err(bad(&key, "stands in one object twice", "keep one of them"));
    }
    let d_model = fields.size("hidden_size")?;
    let (nheads, headdim) = (fields.size("num_heads")?, fields.size("head_dim")?);
    let eps = fields.number("layer_norm_epsilon", 1e-5)?;
    let block = Mamba2Config {
        d_state: fields.size("state_size")?,
        d_conv: fields.size("conv_kernel")?,
        expand: fields.expand(d_model, nheads.saturating_mul(headdim))?,
        headdim,
        ngroups: fields.size("n_groups")?,
        bias: fields.flag("use_bias")?.unwrap_or(false),
        conv_bias: fields.flag("use_conv_bias")?.unwrap_or(true),
        dt_limit: fields.dt_limit()?,
        eps,
        norm_eps: eps,
        ..Mamba2Config::new(d_model)
    };
    let config = LmConfig {
        block: block.into(),
        n_layer: fields.size("num_hidden_layers")?,
        vocab_size: fields.size("vocab_size")?,
        vocab_padding: 0,
        norm_eps: eps,
        tie_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or_else(|| !has_head()),
    };
    config.sizes().map_err(|errors| field_error(errors, WORDS))?;
    Ok(config)
}

/// The file's words for our settings and sizes.
const WORDS: &[(&str, &str)] = &[
    ("d_model", "hidden_size"),
    ("d_state", "state_size"),
    ("d_conv", "conv_kernel"),
    ("headdim", "head_dim"),
    ("nheads", "num_heads"),
    ("ngroups", "n_groups"),
    ("eps", "layer_norm_epsilon"),
    ("norm_eps", "layer_norm_epsilon"),
    ("dt_limit", "time_step_limit"),
    ("n_layer", "num_hidden_layers"),
];

/// The first inconsistency in the words of the file; the others mostly follow from it.
pub(super) fn field_error(errors: ConfigErrors, words: &[(&str, &str)]) -> CheckpointError {
    let Some(error) = errors.0.first() else { return CheckpointError::Config(errors) };
    let text = error.to_string();
    let text = in_words(text.strip_prefix("config: ").unwrap_or(&text), words);
    let (field, problem) = text.split_once(' ').unwrap_or((&text, ""));
    bad(field, problem, in_words(&error.help(), words))
}

/// The text with each name of ours that is a whole word replaced.
pub(super) fn in_words(text: &str, words: &[(&str, &str)]) -> String {
    let is_apart = |c: char| !(c.is_alphanumeric() || c == '_');
    let theirs = |part: &str| {
        let name = part.trim_end_matches(is_apart);
        let word = words.iter().find(|(ours, _)| *ours == name).map_or(name, |(_, word)| word);
        format!("{word}{}", &part[name.len()..])
    };
    text.split_inclusive(is_apart).map(theirs).collect()
}

/// The file that says `config`, in the order in which transformers lists the fields.
pub(super) fn print(config: &LmConfig, block: &Mamba2Config, sizes: &Mamba2Sizes, storage: Storage) -> Result<Vec<u8>, CheckpointError> {
    let [lo, hi] = block.dt_limit.map(f64::from);
    let hi = if block.dt_limit[1] == f32::MAX { json!({"__float__": "Infinity"}) } else { json!(hi) };
    let expand = if block.expand.fract() == 0.0 { json!(sizes.d_inner / block.d_model) } else { json!(block.expand) };
    let value = json!({
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "hidden_size": block.d_model,
        "num_heads": sizes.nheads,
        "head_dim": block.headdim,
        "state_size": block.d_state,
        "n_groups": block.ngroups,
        "num_hidden_layers": config.n_layer,
        "vocab_size": config.vocab_size,
        "expand": expand,
        "conv_kernel": block.d_conv,
        "use_bias": block.bias,
        "use_conv_bias": block.conv_bias,
        "hidden_act": "silu",
        "layer_norm_epsilon": block.eps,
        "chunk_size": if block.chunk_size == 0 { 256 } else { block.chunk_size },
        "residual_in_fp32": true,
        "rms_norm": true,
        "tie_word_embeddings": config.tie_embeddings,
        "time_step_limit": [lo, hi],
        "time_step_rank": block.d_model.div_ceil(16),
        "torch_dtype": torch_name(storage),
    });
    let mut text = serde_json::to_string_pretty(&value).map_err(|source| CheckpointError::Json { file: CONFIG_FILE.to_owned(), source })?;
    text.push('\n');
    Ok(text.into_bytes())
}

/// The layout's word for an element type; 8-bit ones it has none for, and their other weights are f32.
const fn torch_name(storage: Storage) -> &'static str {
    match storage {
        Storage::F16 => "float16",
        Storage::Bf16 => "bfloat16",
        Storage::F32 | Storage::Int8 | Storage::Q8_0 => "float32",
    }
}

struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn check_model(&self) -> Result<(), CheckpointError> {
        if !self.0.is_object() {
            return Err(bad("the file", format!("is {}, not an object", short(self.0)), "give the config.json of a Mamba2ForCausalLM"));
        }
        match self.0.get("model_type") {
            None => return Err(missing("model_type", "mamba2")),
            Some(found) if found != "mamba2" => {
                return Err(bad("model_type", format!("is {}", short(found)), "only mamba2 is supported, and monopass, our own"));
            }
            Some(_) => {}
        }
        match self.0.get("hidden_act") {
            Some(found) if found != "silu" && found != "swish" => {
                Err(bad("hidden_act", format!("is {}", short(found)), "only silu is supported"))
            }
            _ => Ok(()),
        }
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn size(&self, field: &'static str) -> Result<usize, CheckpointError> {
        let value = self.get(field).ok_or_else(|| missing(field, "a whole number of at least 1"))?;
        match json::count(value) {
            Some(size) if (1..MAX_SIZE).contains(&size) => Ok(size),
            _ => Err(bad(field, format!("is {}", short(value)), format!("{field} is a whole number of at least 1 and below {MAX_SIZE}"))),
        }
    }

    fn number(&self, field: &str, default: f64) -> Result<f64, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        match json::number(value) {
            Some(number) if number.is_finite() => Ok(number),
            _ => Err(bad(field, format!("is {}", short(value)), format!("{field} is a finite number"))),
        }
    }

    fn flag(&self, field: &str) -> Result<Option<bool>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| bad(field, format!("is {}", short(value)), format!("{field} is true or false")))
    }

    fn dt_limit(&self) -> Result<[f32; 2], CheckpointError> {
        let Some(value) = self.get("time_step_limit") else { return Ok([0.0, f32::MAX]) };
        let limit = json::dt_limit(value).filter(|[lo, hi]| lo.is_finite() && *lo >= 0.0 && lo <= hi);
        limit.ok_or_else(|| {
            let help = "two numbers that are not negative, the lower first; the second may be Infinity";
            bad("time_step_limit", format!("is {}", short(value)), help)
        })
    }

    /// The expansion, which has to lead to `d_inner` channels.
    fn expand(&self, d_model: usize, d_inner: usize) -> Result<f64, CheckpointError> {
        #[expect(clippy::cast_precision_loss, reason = "sizes below 2^31, and their products are only compared")]
        let (model, inner) = (d_model as f64, d_inner as f64);
        let expand = self.number("expand", inner / model)?;
        if (expand * model).floor() == inner {
            return Ok(inner / model);
        }
        let problem = format!(
            "is {}, but num_heads * head_dim = {d_inner} and hidden_size = {d_model}",
            self.get("expand").map_or_else(String::new, short)
        );
        Err(bad("expand", problem, "expand * hidden_size has to equal num_heads * head_dim"))
    }
}

pub(super) fn missing(field: &str, expects: &str) -> CheckpointError {
    bad(field, "is missing", format!("add {field}, {expects}"))
}

pub(super) fn bad(field: &str, problem: impl Into<String>, help: impl Into<String>) -> CheckpointError {
    CheckpointError::Field { field: field.to_owned(), problem: problem.into(), help: help.into() }
}

/// A value as the file has it, cut so that a message stays a line. Numbers that JSON lacks read as words.
pub(super) fn short(value: &Value) -> String {
    let text = json::with_words(&value.to_string());
    if text.chars().count() > 60 { text.chars().take(57).chain("...".chars()).collect() } else { text }
}
