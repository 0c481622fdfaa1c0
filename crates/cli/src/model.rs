//! A model from a checkpoint, on the executor.

use crate::args::CheckpointArgs;
use crate::files::MappedFiles;
use crate::output::{bytes_bar, note};
use crate::report::OrReport;
use crate::vocabulary::Vocabulary;
use miette::Result;
use monopass::CompileOptions;
use monopass::blocks::checkpoint::{self, LoadOptions, Opened, Storage};
use monopass::engine::Engine;
use monopass::generate::{Generator, GeneratorOptions};
use std::path::PathBuf;
use std::str::FromStr;

/// Which model, and how it is kept.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Directory of the checkpoint, or its .safetensors, .bin or .gguf file
    #[arg(long = "model", value_name = "DIR")]
    path: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Element type of weights on the device: auto (as in the file), f32, f16, bf16, int8 or `q8_0`
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    dtype: Dtype,
    /// Texts are numbers of tokens with spaces between them, for models without a tokenizer
    #[arg(long)]
    ids: bool,
}

/// An element type of weights, or that of the file.
#[derive(Clone, Copy, Debug)]
struct Dtype(Option<Storage>);

impl FromStr for Dtype {
    type Err = <Storage as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Self(None)) } else { text.parse().map(|storage| Self(Some(storage))) }
    }
}

impl ModelArgs {
    pub(crate) fn files(&self) -> Result<MappedFiles> {
        MappedFiles::open(&self.path)
    }

    /// The checkpoint, checked but for its elements; oddities go to stderr.
    pub(crate) fn open<'f>(&self, files: &'f MappedFiles) -> Result<Opened<'f>> {
        let options = LoadOptions { storage: self.dtype.0, ..self.checkpoint.options() };
        let opened = checkpoint::open(files, &options).or_report()?;
        opened.warnings().iter().for_each(|warning| note(&format!("warning: {warning}")));
        Ok(opened)
    }

    /// How texts become its tokens.
    pub(crate) fn vocabulary(&self, files: &MappedFiles, opened: &Opened<'_>) -> Result<Vocabulary> {
        if self.ids {
            return Ok(Vocabulary::Numbers(opened.config().n_tokens()));
        }
        Vocabulary::open(&self.path, files, opened.config().n_tokens())
    }
}

/// Brings the weights to the executor, with a bar of bytes.
pub(crate) fn load(engine: &Engine, opened: &Opened<'_>, compile: CompileOptions, chunk_len: usize) -> Result<Generator> {
    let total = opened.params().map(|param| param.storage.size_bytes(&param.shape)).sum();
    let bar = bytes_bar("loading weights", total);
    let uploaded = |n: u64| bar.set_position(n);
    let options = GeneratorOptions { compile, chunk_len, uploaded: Some(&uploaded) };
    let generator = pollster::block_on(Generator::load(engine, opened, &options));
    bar.finish_and_clear();
    generator.or_report()
}
