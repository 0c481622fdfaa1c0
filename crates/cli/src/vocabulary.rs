//! Texts as tokens of a model, and back.

use crate::files::MappedFiles;
use crate::output::note;
use crate::report::{Failure, OrReport};
use miette::Result;
use monopass::blocks::checkpoint::CONFIG_FILE;
use monopass::text::Utf8Stream;
use monopass::tokenizer::{Encoded, TokenStream, Tokenizer};
use serde_json::Value;
use std::path::Path;

/// Vocabulary of a model of bytes.
const N_BYTES: usize = 256;
const TOKENIZER_FILE: &str = "tokenizer.json";
/// Says how a model wants to be used.
const GENERATION_FILE: &str = "generation_config.json";

/// How texts become tokens.
#[derive(Debug)]
pub(crate) enum Vocabulary {
    /// Each byte is one.
    Bytes,
    /// By the tokenizer beside the model.
    Tokens(Box<Tokenizer>),
    /// Texts are numbers of tokens, of which there are so many.
    Numbers(usize),
}

/// Text of tokens as they come.
#[derive(Debug)]
pub(crate) enum TextStream<'v> {
    Bytes(Utf8Stream),
    Tokens(TokenStream<'v>),
    /// Whether a number was written before.
    Numbers(bool),
}

impl Vocabulary {
    /// That of the model at `path` with tokens below `n_tokens`: its tokenizer, or bytes where it has none and 256 tokens.
    pub(crate) fn open(path: &Path, files: &MappedFiles, n_tokens: usize) -> Result<Self> {
        let Some(bytes) = files.get(TOKENIZER_FILE)? else {
            if n_tokens == N_BYTES {
                return Ok(Self::Bytes);
            }
            let what = format!("{}: the model has a vocabulary of {n_tokens} and no {TOKENIZER_FILE}", path.display());
            let help = format!("put the model's {TOKENIZER_FILE} beside it, or give numbers of tokens with --ids");
            return Err(Failure::new(what).help(help).into());
        };
        let name = path.join(TOKENIZER_FILE).display().to_string();
        let tokenizer = Tokenizer::from_json(&name, (*bytes).as_ref()).or_report()?;
        tokenizer.check_model(n_tokens).or_report()?;
        Ok(Self::Tokens(Box::new(tokenizer)))
    }

    /// A text as tokens, each with the bytes that it stands for; `what` names the text.
    pub(crate) fn encode(&self, what: &str, text: &[u8]) -> Result<Encoded> {
        match self {
            Self::Bytes => Ok(Encoded { tokens: text.iter().map(|&byte| byte.into()).collect(), n_bytes: vec![1; text.len()] }),
            Self::Tokens(tokenizer) => {
                let text = std::str::from_utf8(text).map_err(|error| {
                    Failure::new(format!("{what}: not text in UTF-8 from byte {} on", error.valid_up_to()))
                        .help("convert the text to UTF-8")
                })?;
                tokenizer.encode(text).or_report()
            }
            Self::Numbers(n_tokens) => {
                let text = String::from_utf8_lossy(text);
                let number = |word: &str| {
                    let wrong =
                        || Failure::new(format!("{what}: {word:?} is no number of a token")).help("with --ids, give numbers and spaces");
                    let token = word.parse::<u32>().map_err(|_| wrong())?;
                    if usize::try_from(token).is_ok_and(|token| token < *n_tokens) {
                        return Ok(token);
                    }
                    Err(Failure::new(format!("{what}: token {token} is not below the model's vocabulary of {n_tokens}"))
                        .help("give tokens of this model")
                        .into())
                };
                let tokens: Vec<u32> = text.split_whitespace().map(number).collect::<Result<_>>()?;
                // Numbers stand for no text.
                Ok(Encoded { n_bytes: vec![0; tokens.len()], tokens })
            }
        }
    }

    /// Text of tokens as they come, as it is written after the tokens `before`.
    pub(crate) fn stream_after(&self, before: &[u32]) -> TextStream<'_> {
        match self {
            Self::Bytes => TextStream::Bytes(Utf8Stream::default()),
            Self::Tokens(tokenizer) => TextStream::Tokens(tokenizer.stream_after(before)),
            Self::Numbers(_) => TextStream::Numbers(false),
        }
    }

    /// Tokens that end a text: as the model's files say, else by their usual names.
    pub(crate) fn end_tokens(&self, files: &MappedFiles) -> Result<Vec<u32>> {
        let Self::Tokens(tokenizer) = self else { return Ok(Vec::new()) };
        for file in [GENERATION_FILE, CONFIG_FILE] {
            let Some(bytes) = files.get(file)? else { continue };
            // A configuration that is no JSON was refused with the model; the other file only adds to it.
            let Ok(value) = serde_json::from_slice::<Value>((*bytes).as_ref()) else {
                note(&format!("warning: {file} is no JSON, and not read"));
                continue;
            };
            let ids = &value["eos_token_id"];
            let ids: Vec<u64> =
                ids.as_array().map_or_else(|| ids.as_u64().into_iter().collect(), |ids| ids.iter().filter_map(Value::as_u64).collect());
            if !ids.is_empty() {
                return Ok(ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect());
            }
        }
        Ok(tokenizer.end_tokens())
    }
}

impl TextStream<'_> {
    pub(crate) fn push(&mut self, token: u32) -> Result<String> {
        match self {
            Self::Bytes(stream) => Ok(stream.push(u8::try_from(token).unwrap_or(b'?'))),
            Self::Tokens(stream) => stream.push(token).or_report(),
            Self::Numbers(is_more) => Ok(if std::mem::replace(is_more, true) { format!(" {token}") } else { token.to_string() }),
        }
    }

    pub(crate) fn finish(&mut self) -> Result<String> {
        match self {
            Self::Bytes(stream) => Ok(stream.finish()),
            Self::Tokens(stream) => stream.finish().or_report(),
            Self::Numbers(_) => Ok(String::new()),
        }
    }
}
