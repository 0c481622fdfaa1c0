//! The configuration of a Mamba-2 from the metadata of a GGUF file.

use super::CheckpointError;
use super::gguf::{Header, Meta, Problem};
use super::hf_config::in_words;
use super::tensors::Stored;
use crate::config::{LmConfig, Mamba2Config, whole_product};
use crate::names;
use crate::params::Role;
use indexmap::IndexMap;

/// The file's words for our settings and sizes.
const WORDS: &[(&str, &str)] = &[
    ("d_model", "mamba2.embedding_length"),
    ("d_state", "mamba2.ssm.state_size"),
    ("d_conv", "mamba2.ssm.conv_kernel"),
    ("headdim", "mamba2.ssm.inner_size / mamba2.ssm.time_step_rank"),
    ("nheads", "mamba2.ssm.time_step_rank"),
    ("ngroups", "mamba2.ssm.group_count"),
    ("eps", "mamba2.attention.layer_norm_rms_epsilon"),
    ("norm_eps", "mamba2.attention.layer_norm_rms_epsilon"),
    ("n_layer", "mamba2.block_count"),
];
/// Sizes beyond this are a mistake.
const MAX_SIZE: u64 = 1 << 31;

/// The configuration of the file with this header; what the metadata leaves open, the tensors say.
pub(super) fn parse(file: &str, header: &Header, stored: &IndexMap<String, Stored>) -> Result<LmConfig, CheckpointError> {
    model(&Keys(&header.meta), stored).map_err(|problem| problem.of(file))
}

fn model(keys: &Keys<'_>, stored: &IndexMap<String, Stored>) -> Result<LmConfig, Problem> {
    keys.check_model()?;
    let d_model = keys.size("embedding_length")?;
    let (d_inner, nheads) = (keys.size("ssm.inner_size")?, keys.size("ssm.time_step_rank")?);
    if !d_inner.is_multiple_of(nheads) {
        let what = format!("mamba2.ssm.inner_size is {d_inner}, not a multiple of mamba2.ssm.time_step_rank = {nheads}");
        return Err(broken(what));
    }
    let has = |name: &str| stored.contains_key(&format!("{}{name}", names::layer_prefix(0)));
    let eps = keys.eps()?;
    let block = Mamba2Config {
        d_state: keys.size("ssm.state_size")?,
        d_conv: keys.size("ssm.conv_kernel")?,
        expand: expand(d_inner, d_model)?,
        headdim: d_inner / nheads,
        ngroups: keys.size("ssm.group_count")?,
        bias: has("mixer.in_proj.bias"),
        conv_bias: has("mixer.conv1d.bias"),
        eps,
        norm_eps: eps,
        ..Mamba2Config::new(d_model)
    };
    let (vocab_size, vocab_padding) = vocab(keys, stored)?;
    let config = LmConfig {
        block: block.into(),
        n_layer: keys.size("block_count")?,
        vocab_size,
        vocab_padding,
        norm_eps: eps,
        tie_embeddings: !names::of_model(Role::Head).is_some_and(|head| stored.contains_key(head)),
    };
    if let Err(errors) = config.sizes()
        && let Some(error) = errors.0.first()
    {
        let text = error.to_string();
        return Err(Problem {
            what: in_words(text.strip_prefix("config: ").unwrap_or(&text), WORDS),
            help: in_words(&error.help(), WORDS),
        });
    }
    Ok(config)
}

/// Rows of the embedding, and how many of them stand for no token.
fn vocab(keys: &Keys<'_>, stored: &IndexMap<String, Stored>) -> Result<(usize, usize), Problem> {
    let embedding = names::of_model(Role::Embedding).and_then(|name| stored.get(name));
    let &[rows, _] = embedding.map(|stored| stored.shape.as_slice()).unwrap_or_default() else {
        return Err(broken("token_embd.weight is missing or no matrix"));
    };
    if keys.get("vocab_size").is_none() {
        return Ok((rows, 0));
    }
    let n_tokens = keys.size("vocab_size")?;
    let padding = rows.checked_sub(n_tokens);
    padding
        .map(|padding| (rows, padding))
        .ok_or_else(|| broken(format!("mamba2.vocab_size is {n_tokens}, token_embd.weight has {rows} rows")))
}

/// The factor whose product with `d_model` is `d_inner`: the quotient or one of its neighbors.
fn expand(d_inner: usize, d_model: usize) -> Result<f64, Problem> {
    #[expect(clippy::cast_precision_loss, reason = "sizes below 2^31")]
    let quotient = d_inner as f64 / d_model as f64;
    let exact = [quotient, quotient.next_up(), quotient.next_down()].into_iter().find(|&q| whole_product(q, d_model) == Some(d_inner));
    exact.ok_or_else(|| {
        let sizes = format!("mamba2.ssm.inner_size is {d_inner} and mamba2.embedding_length is {d_model}");
        broken(format!("{sizes}, whose quotient is no number of 64 bits"))
    })
}

fn broken(what: impl Into<String>) -> Problem {
    Problem { what: what.into(), help: "convert the model again, or download it again".to_owned() }
}

/// Values by key, those of the architecture without its name.
struct Keys<'a>(&'a IndexMap<String, Meta>);

impl Keys<'_> {
    fn check_model(&self) -> Result<(), Problem> {
        match self.0.get("general.architecture") {
            Some(Meta::Text(name)) if name == "mamba2" => {}
            found => {
                let what = format!("general.architecture is {}, not \"mamba2\"", shown(found));
                return Err(Problem {
                    what,
                    help: "only Mamba-2 is read from GGUF; take another file, or another layout of the model".to_owned(),
                });
            }
        }
        if let Some(parts) = self.0.get("split.count").filter(|parts| !matches!(parts, Meta::Count(0 | 1))) {
            let help = "join them first, such as with llama-gguf-split --merge".to_owned();
            return Err(Problem { what: format!("it is one of several parts (split.count is {})", shown(Some(parts))), help });
        }
        for (key, what) in [("feed_forward_length", "a feed-forward part"), ("attention.head_count", "attention")] {
            if let Some(found) = self.get(key).filter(|found| **found != Meta::Count(0)) {
                let help = "models of Mamba-2 blocks alone are supported".to_owned();
                return Err(Problem { what: format!("mamba2.{key} is {}, so it has {what}", shown(Some(found))), help });
            }
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&Meta> {
        self.0.get(&format!("mamba2.{key}"))
    }

    fn size(&self, key: &str) -> Result<usize, Problem> {
        let found = self.get(key);
        let size = if let Some(&Meta::Count(count @ 1..MAX_SIZE)) = found { usize::try_from(count).ok() } else { None };
        size.ok_or_else(|| broken(format!("mamba2.{key} is {}, not a whole number of at least 1 and below {MAX_SIZE}", shown(found))))
    }

    fn eps(&self) -> Result<f64, Problem> {
        const KEY: &str = "attention.layer_norm_rms_epsilon";
        match self.get(KEY) {
            // What was meant is the shortest number that rounds to the f32 in the file, as in every other layout.
            Some(&Meta::Number(eps)) if eps.is_finite() => Ok(shortest(eps)),
            found => Err(broken(format!("mamba2.{KEY} is {}, not a finite number", shown(found)))),
        }
    }
}

/// The shortest decimal number with the same f32, if it is one.
fn shortest(number: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "compared with the number right after")]
    let narrow = number as f32;
    if f64::from(narrow) == number { narrow.to_string().parse().unwrap_or(number) } else { number }
}

fn shown(found: Option<&Meta>) -> String {
    match found {
        None => "missing".to_owned(),
        Some(Meta::Count(count)) => count.to_string(),
        Some(Meta::Number(number)) => number.to_string(),
        Some(Meta::Text(text)) => format!("{text:?}"),
        Some(Meta::Other) => "of another type".to_owned(),
    }
}
