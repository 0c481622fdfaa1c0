//! Sequences on disk: a file of tensors with the states and the tokens, and a description in its header.

use super::{Generator, Sampling, Sequence};
use crate::error::Error;
use crate::train::hash::fnv1a;
use monopass_blocks::cases::read_tensors;
use monopass_blocks::checkpoint::{read_metadata, write_tensors};
use monopass_ir::eval::Tensors;
use monopass_ir::{Elements, TensorData};
use serde::{Deserialize, Serialize};

/// Form of the file.
const FORMAT_VERSION: u32 = 1;
/// Where the description stands in the header.
const KEY: &str = "monopass.sequence";
/// The tensor of tokens.
const TOKENS: &str = "tokens";

/// A file that is no sequence of this model.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The bytes are no saved sequence, or not all of one.
    #[error(
        "{file}: not a saved sequence: {problem}\n  help: give a file that was saved from a sequence; it may have been cut off or changed"
    )]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// Another form.
    #[error("{file}: saved in format version {found}, and this build reads version {FORMAT_VERSION}\n  help: use the build that saved it")]
    Version {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
    },
    /// Another model, or the same one with its weights stored otherwise.
    #[error(
        "{file}: saved from a model with the fingerprint {saved}, and this one has {model}\n  \
         help: load the model that it was saved from, with its weights stored in the same type"
    )]
    OtherModel {
        /// The file.
        file: String,
        /// Fingerprint of the model that it was saved from.
        saved: String,
        /// Fingerprint of this model.
        model: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    format_version: u32,
    fingerprint: String,
    /// Hash of everything else, so that what was changed is found.
    checksum: String,
    n_consumed: usize,
    drawn: Option<u32>,
    sampling: Settings,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    repetition_penalty: f32,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    seed: u64,
}

impl Generator {
    /// A sequence as the bytes of a safetensors file: its states, its tokens, how its next ones are chosen, and the fingerprint of the
    /// model.
    ///
    /// # Errors
    /// Settings outside of their range; what a read-back can meet.
    pub async fn save(&self, sequence: &Sequence) -> Result<Vec<u8>, Error> {
        sequence.sampling.check()?;
        let mut tensors = Tensors::new();
        let mut n_consumed = sequence.n_consumed;
        for (name, _) in self.state_types(1)? {
            if n_consumed > 0 && sequence.session.ty(&name).is_some() {
                tensors.insert(name.clone(), sequence.session.read(&name).await?);
            }
        }
        if tensors.is_empty() {
            n_consumed = 0;
        }
        let tokens = TensorData::new([sequence.tokens.len()], Elements::U32(sequence.tokens.clone())).map_err(|_| Error::NoToken)?;
        tensors.insert(TOKENS.to_owned(), tokens);
        let Sampling { repetition_penalty, temperature, top_k, top_p, min_p, seed } = sequence.sampling;
        let description = Description {
            format_version: FORMAT_VERSION,
            fingerprint: hex(self.fingerprint),
            checksum: String::new(),
            n_consumed,
            drawn: sequence.known_next(),
            sampling: Settings { repetition_penalty, temperature, top_k, top_p, min_p, seed },
        };
        let checksum = checksum(&description, &tensors);
        let description = Description { checksum, ..description };
        let text = serde_json::to_string(&description).map_err(|_| Error::NoToken)?;
        Ok(write_tensors("the sequence", &tensors, Some((KEY, &text)))?)
    }

    /// Whether bytes look like a file that [`save`](Self::save) made, of whatever model.
    #[must_use]
    pub fn is_saved(bytes: &[u8]) -> bool {
        read_metadata(bytes, KEY).is_some()
    }

    /// The sequence in the bytes of a file that [`save`](Self::save) made; `file` is its name for messages. It goes on exactly as it
    /// would have.
    ///
    /// # Errors
    /// [`StateError`]: a file that is none, is not whole, has another version, or is of another model; no memory left on the device.
    pub fn restore(&self, file: &str, bytes: &[u8]) -> Result<Sequence, Error> {
        let wrong = |problem: String| StateError::File { file: file.to_owned(), problem };
        let text = read_metadata(bytes, KEY).ok_or_else(|| wrong("it has no description of one".to_owned()))?;
        let version: serde_json::Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let version = version.get("format_version").and_then(serde_json::Value::as_u64).and_then(|found| u32::try_from(found).ok());
        let found = version.ok_or_else(|| wrong("its description names no version".to_owned()))?;
        if found != FORMAT_VERSION {
            return Err(StateError::Version { file: file.to_owned(), found }.into());
        }
        let description: Description = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let model = hex(self.fingerprint);
        if description.fingerprint != model {
            return Err(StateError::OtherModel { file: file.to_owned(), saved: description.fingerprint, model }.into());
        }
        let mut tensors = read_tensors(file, bytes).map_err(|error| wrong(first_line(&error.to_string())))?;
        if description.checksum != checksum(&description, &tensors) {
            return Err(wrong("it was changed".to_owned()).into());
        }
        let Settings { repetition_penalty, temperature, top_k, top_p, min_p, seed } = description.sampling;
        let sampling = Sampling { repetition_penalty, temperature, top_k, top_p, min_p, seed };
        sampling.check().map_err(|error| wrong(first_line(&error.to_string())))?;
        let tokens = tensors.shift_remove(TOKENS).ok_or_else(|| wrong("it has no tokens".to_owned()))?;
        let tokens = tokens.as_u32().filter(|_| tokens.shape().len() == 1).ok_or_else(|| wrong("its tokens are no list".to_owned()))?;
        self.check_tokens(tokens, 0).map_err(|error| wrong(first_line(&error.to_string())))?;
        let (n_consumed, n_tokens) = (description.n_consumed, tokens.len());
        if n_consumed > n_tokens || description.drawn.is_some_and(|next| n_consumed < n_tokens || self.check_tokens(&[next], 0).is_err()) {
            return Err(wrong(format!("its states have {n_consumed} of {n_tokens} tokens")).into());
        }
        let types = if n_consumed > 0 { self.state_types(1)? } else { Vec::new() };
        for (name, ty) in &types {
            match tensors.get(name).map(TensorData::ty) {
                Some(found) if found == *ty => {}
                Some(found) => return Err(wrong(format!("state {name:?} is {found}, and this model's is {ty}")).into()),
                None => return Err(wrong(format!("state {name:?} is missing")).into()),
            }
        }
        if let Some(name) = tensors.keys().find(|name| !types.iter().any(|(known, _)| known == *name)) {
            return Err(wrong(format!("the model has no state {name:?}")).into());
        }
        let mut sequence = self.sequence(sampling)?;
        for (name, state) in &tensors {
            sequence.session.write(name, state)?;
        }
        sequence.tokens = tokens.to_vec();
        (sequence.n_consumed, sequence.drawn) = (n_consumed, description.drawn.map(|next| (next, sampling)));
        Ok(sequence)
    }
}

/// Of the description without its checksum, and of all tensors in the order of their names.
fn checksum(description: &Description, tensors: &Tensors) -> String {
    let Description { format_version, fingerprint, checksum: _, n_consumed, drawn, sampling } = description;
    let Settings { repetition_penalty, temperature, top_k, top_p, min_p, seed } = sampling;
    let floats = [repetition_penalty, temperature, top_p, min_p].map(|x| x.to_bits());
    let head = format!("{format_version} {fingerprint} {n_consumed} {drawn:?} {floats:?} {top_k} {seed}");
    let mut names: Vec<&String> = tensors.keys().collect();
    names.sort_unstable();
    let of_tensor = |name: &String| {
        let tensor = &tensors[name];
        let bytes: Box<dyn Iterator<Item = u8>> = match tensor.elements() {
            Elements::F32(v) => Box::new(v.iter().flat_map(|x| x.to_le_bytes())),
            Elements::U32(v) => Box::new(v.iter().flat_map(|x| x.to_le_bytes())),
            // Sequences have no others; a file with some is refused for their types.
            Elements::I32(_) | Elements::F16(_) | Elements::Bf16(_) | Elements::I8(_) | Elements::Bool(_) => Box::new(std::iter::empty()),
        };
        let bytes = format!("{name} {:?}", tensor.shape()).into_bytes().into_iter().chain(bytes);
        fnv1a(bytes)
    };
    let tensors: Vec<u64> = names.into_iter().map(of_tensor).collect();
    hex(fnv1a(format!("{head} {tensors:?}").into_bytes()))
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
