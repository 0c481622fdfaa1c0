//! Text as tokens of a vocabulary, by the `tokenizer.json` that models on Hugging Face come with.

use std::error::Error;
use tokenizers::Tokenizer as Library;

/// A tokenizer that cannot be used. The fault of its file, or of a text that it does not take.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is no tokenizer.
    #[error(
        "{file}: not a tokenizer\n  help: give the tokenizer.json that stands beside the model; other formats have to be converted to it"
    )]
    File {
        /// The file.
        file: String,
        /// What the library says.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Tokens cannot be put together.
    #[error("{file}: the tokenizer cannot put the tokens together\n  help: use the tokenizer of this model")]
    Decode {
        /// The tokenizer's file.
        file: String,
        /// What the library says.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The model lacks tokens.
    #[error(
        "{file}: the tokenizer has tokens up to {last}, and the model those below {vocab_size}\n  \
         help: put the tokenizer.json of this model beside it"
    )]
    Vocabulary {
        /// The tokenizer's file.
        file: String,
        /// Largest number of a token.
        last: usize,
        /// Tokens that the model has.
        vocab_size: usize,
    },
    /// A text cannot be taken apart.
    #[error(
        "{file}: the tokenizer cannot take the text apart\n  help: give a tokenizer with a token for what is unknown, or train on bytes"
    )]
    Encode {
        /// The tokenizer's file.
        file: String,
        /// What the library says.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Usual names of the token that ends a text.
const END_NAMES: [&str; 4] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"];

/// Tokens whose text is waited for, at most; as many before them are kept.
const MAX_PENDING: usize = 16;

/// The library panics on a table of normalized letters that is not whole, so that is found before.
fn check_precompiled(bytes: &[u8]) -> Result<(), serde_json::Error> {
    let mut open: Vec<serde_json::Value> =
        serde_json::from_slice::<serde_json::Value>(bytes)?.get("normalizer").cloned().into_iter().collect();
    while let Some(value) = open.pop() {
        if value.get("type").and_then(serde_json::Value::as_str) == Some("Precompiled") {
            serde_json::from_value::<tokenizers::normalizers::Precompiled>(value.clone())?;
        }
        open.extend(value.get("normalizers").and_then(serde_json::Value::as_array).into_iter().flatten().cloned());
    }
    Ok(())
}

/// A vocabulary and how a text is taken apart into it.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    file: String,
    inner: Library,
}

/// A text in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Numbers of the tokens, in order.
    pub tokens: Vec<u32>,
    /// Bytes of the text that each stands for, those that it leaves out before the token included; together all of the text.
    pub n_bytes: Vec<usize>,
}

impl Tokenizer {
    /// The tokenizer in the bytes of a `tokenizer.json`; `file` is its name for messages.
    ///
    /// # Errors
    /// [`TokenizerError::File`].
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, TokenizerError> {
        let named = |source| TokenizerError::File { file: file.to_owned(), source };
        check_precompiled(bytes).map_err(|error| named(error.into()))?;
        let mut inner = Library::from_bytes(bytes).map_err(named)?;
        // A file may say that texts are cut to what a model was trained with, or filled up.
        inner.with_truncation(None).map_err(named)?;
        inner.with_padding(None);
        Ok(Self { file: file.to_owned(), inner })
    }

    /// One more than the largest number of a token.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |last| last as usize + 1)
    }

    /// Whether a model with tokens below `vocab_size` has all tokens of this vocabulary.
    ///
    /// # Errors
    /// [`TokenizerError::Vocabulary`].
    pub fn check_model(&self, vocab_size: usize) -> Result<(), TokenizerError> {
        match self.vocab_size() {
            n if n > vocab_size => Err(TokenizerError::Vocabulary { file: self.file.clone(), last: n - 1, vocab_size }),
            _ => Ok(()),
        }
    }

    /// Tokens that end a text by their usual names, for models that do not say which do.
    #[must_use]
    pub fn end_tokens(&self) -> Vec<u32> {
        END_NAMES.iter().filter_map(|name| self.inner.token_to_id(name)).collect()
    }

    /// Text of tokens as they come, as it is written after the tokens `before`; at a beginning, some tokenizers leave a space out.
    #[must_use]
    pub fn stream_after(&self, before: &[u32]) -> TokenStream<'_> {
        let tokens = before[before.len().saturating_sub(MAX_PENDING)..].to_vec();
        TokenStream { tokenizer: self, n_told: tokens.len(), tokens }
    }

    /// The text of tokens, without special ones such as those that mark ends.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(tokens, true).map_err(|source| TokenizerError::Decode { file: self.file.clone(), source })
    }

    /// The whole text, without tokens that mark its ends.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Encoded, TokenizerError> {
        let encoding = self.inner.encode(text, false).map_err(|source| TokenizerError::Encode { file: self.file.clone(), source })?;
        let mut done = 0;
        let mut n_bytes: Vec<usize> = Vec::with_capacity(encoding.len());
        for &(_, end) in encoding.get_offsets() {
            // Tokens for parts of one letter all end where the letter does: the first of them stands for it.
            n_bytes.push(end.saturating_sub(done));
            done = done.max(end);
        }
        if let Some(last) = n_bytes.last_mut() {
            *last += text.len().saturating_sub(done);
        }
        Ok(Encoded { tokens: encoding.get_ids().to_vec(), n_bytes })
    }
}

/// Tokens as text: what they say comes out as soon as its characters are whole.
#[derive(Clone, Debug)]
pub struct TokenStream<'t> {
    tokenizer: &'t Tokenizer,
    /// Those that were told last, as others are written after them as they are not at a beginning, and those that were not told yet.
    tokens: Vec<u32>,
    n_told: usize,
}

impl TokenStream<'_> {
    /// The text that a further token completes; empty within a character.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn push(&mut self, token: u32) -> Result<String, TokenizerError> {
        self.tokens.push(token);
        let text = self.rest()?;
        // No character has so many tokens: what is none by then will be none.
        let is_open = text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER);
        if is_open && self.tokens.len() - self.n_told < MAX_PENDING {
            return Ok(String::new());
        }
        self.tokens.drain(..self.n_told);
        self.n_told = self.tokens.len();
        Ok(text)
    }

    /// What is left at the end, with U+FFFD for part of a character.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        let text = self.rest()?;
        self.tokens.clear();
        self.n_told = 0;
        Ok(text)
    }

    /// The text of tokens that were not told yet.
    fn rest(&self) -> Result<String, TokenizerError> {
        let told = self.tokenizer.decode(&self.tokens[..self.n_told])?;
        let all = self.tokenizer.decode(&self.tokens)?;
        // Where what was told ended within a character, that one is told again, whole.
        let n_told = if all.starts_with(&told) { told.len() } else { told.trim_end_matches(char::REPLACEMENT_CHARACTER).len() };
        Ok(all.get(n_told..).unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::data::{Corpus, DataError};

    /// Words apart at white space, which is left out; texts longer than four tokens would be cut.
    const WORDS: &str = r#"{"version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 3, "pad_type_id": 0,
            "pad_token": "?"},
        "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"the": 0, "cat": 1, "é": 2, "?": 7}, "unk_token": "?"}}"#;

    /// Bytes as letters, with one pair that is joined.
    const BYTES: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {"t": 0, "h": 1, "Ġ": 2, "Ã": 3, "©": 4, "th": 5}, "merges": ["t h"]}}"#;

    #[test]
    fn every_byte_of_the_text_belongs_to_a_token() {
        let words = Tokenizer::from_json("w", WORDS.as_bytes()).unwrap();
        let text = " the cat\n é dog the  ";
        let encoded = words.encode(text).unwrap();
        assert_eq!(encoded.tokens, [0, 1, 2, 7, 0]);
        assert_eq!((encoded.n_bytes.iter().sum::<usize>(), encoded.n_bytes[1], encoded.n_bytes[4]), (text.len(), 4, 6));
        assert_eq!(words.vocab_size(), 8);
        assert_eq!(words.encode("").unwrap(), Encoded::default());
        let bytes = Tokenizer::from_json("b", BYTES.as_bytes()).unwrap();
        let encoded = bytes.encode("th té").unwrap();
        assert_eq!(encoded.tokens, [5, 2, 0, 3, 4]);
        assert_eq!((encoded.n_bytes[0], encoded.n_bytes.iter().sum::<usize>()), (2, 6));
    }

    #[test]
    fn a_corpus_of_tokens_counts_the_bytes_they_stand_for() {
        let words = Tokenizer::from_json("w", WORDS.as_bytes()).unwrap();
        let text = "the cat ".repeat(10);
        let Encoded { tokens, n_bytes } = words.encode(&text).unwrap();
        let corpus = Corpus::of_tokens(tokens.clone(), &n_bytes, 8, 0.25).unwrap();
        assert_eq!((corpus.training().len(), corpus.held_out().len()), (15, 5));
        // "the" without the space before it and the last space, and what stands before the last tokens.
        assert_eq!((corpus.held_out_bytes(), corpus.training_bytes()), (17, 59));
        assert_eq!(Corpus::of_tokens(tokens, &n_bytes, 1, 0.25), Err(DataError::UnknownToken { token: 1, vocab_size: 1 }));
    }

    #[test]
    fn tokens_come_out_as_whole_characters() {
        // Bytes of "é" and "€" as the letters that stand for them, and a token with a space before it.
        let bytes = r#"{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": [{"id": 7, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"t": 0, "Ġt": 1, "Ã": 2, "©": 3, "â": 4, "Ĥ": 5, "¬": 6}, "merges": []}}"#;
        let tokenizer = Tokenizer::from_json("b", bytes.as_bytes()).unwrap();
        let mut stream = tokenizer.stream_after(&[]);
        let parts: Vec<String> = [0, 1, 2, 3, 7, 4, 5, 6, 1, 2].into_iter().map(|token| stream.push(token).unwrap()).collect();
        assert_eq!(parts, ["t", " t", "", "é", "", "", "", "€", " t", ""]);
        assert_eq!((stream.finish().unwrap().as_str(), stream.finish().unwrap().as_str()), ("\u{fffd}", ""));
        assert_eq!(tokenizer.end_tokens(), [7]);
        assert!(tokenizer.check_model(8).is_ok());
        let error = tokenizer.check_model(7).unwrap_err().to_string();
        assert!(error.starts_with("b: the tokenizer has tokens up to 7, and the model those below 7\n  help: "), "{error}");
        // Pieces of words, whose first space is that of the text's beginning.
        let words = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
            "model": {"type": "WordLevel", "vocab": {"▁the": 0, "▁cat": 1, "s": 2}, "unk_token": "s"}}"#;
        let words = Tokenizer::from_json("w", words.as_bytes()).unwrap();
        let mut stream = words.stream_after(&[]);
        let parts: Vec<String> = [0, 1, 2, 1].into_iter().map(|token| stream.push(token).unwrap()).collect();
        assert_eq!(parts, ["the", " cat", "s", " cat"]);
        assert_eq!(words.stream_after(&[0]).push(1).unwrap(), " cat");
        // A text that goes on within a character.
        for (before, rest) in [(&[0, 4][..], &[5, 6, 0][..]), (&[0, 4, 5], &[6, 0])] {
            let mut stream = tokenizer.stream_after(before);
            let told: String = rest.iter().map(|&token| stream.push(token).unwrap()).collect();
            assert_eq!(told, "€t");
        }
        // Bytes that are no character are told in the end, and special tokens are forgotten.
        let mut stream = tokenizer.stream_after(&[]);
        let told: String = std::iter::repeat_n(2, 100).map(|token| stream.push(token).unwrap()).collect();
        assert!(told.chars().count() > 80 && told.chars().all(|c| c == char::REPLACEMENT_CHARACTER), "{told:?}");
        let mut stream = tokenizer.stream_after(&[]);
        let told: String = std::iter::repeat_n(7, 100).chain([0, 1]).map(|token| stream.push(token).unwrap()).collect();
        assert!(told == "t t" && stream.tokens.len() <= 2 * MAX_PENDING, "{told:?}");
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        let letters = r#""normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "AAAA"}]}"#;
        for text in ["", "{}", "[1", &WORDS.replace("WordLevel", "Words"), &WORDS.replace("\"normalizer\": null", letters)] {
            let error = Tokenizer::from_json("tokenizer.json", text.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("tokenizer.json: not a tokenizer\n  help: "), "{error}");
            assert!(error.source().is_some());
        }
        // A vocabulary without a token for what is unknown.
        let strict = Tokenizer::from_json("t", WORDS.replace(r#""unk_token": "?""#, r#""unk_token": "x""#).as_bytes()).unwrap();
        assert!(strict.encode("the").is_ok() && matches!(strict.encode("dog"), Err(TokenizerError::Encode { .. })));
    }
}
