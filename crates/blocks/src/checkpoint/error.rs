//! What can be wrong with a checkpoint.

use super::{CONFIG_FILE, INDEX_FILE, ReadError, TORCH_FILE, WEIGHTS_FILE};
use crate::error::ConfigErrors;
use monopass_ir::Storage;
use monopass_ir::storage::StorageError;

/// A checkpoint that cannot be read or written. The fault of the files, unless said otherwise.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file exists and could not be read. The fault of the system.
    #[error("{file}: cannot be read")]
    Read {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// There is no configuration.
    #[error("no {CONFIG_FILE} in the checkpoint\n  help: give the directory that holds {CONFIG_FILE} and {WEIGHTS_FILE}")]
    NoConfig,
    /// There are no tensors.
    #[error(
        "neither {WEIGHTS_FILE} nor {INDEX_FILE} nor {TORCH_FILE} nor a .gguf file in the checkpoint\n  help: download the tensors into the same directory"
    )]
    NoWeights,
    /// A file is not JSON.
    #[error("{file}: not valid JSON\n  help: the file was cut off or changed; get it again")]
    Json {
        /// The file.
        file: String,
        /// Where it stops being JSON.
        #[source]
        source: serde_json::Error,
    },
    /// The configuration lacks a field, or has one of another type or value.
    #[error("{CONFIG_FILE}: {field} {problem}\n  help: {help}")]
    Field {
        /// The field.
        field: String,
        /// What is wrong.
        problem: String,
        /// What is right.
        help: String,
    },
    /// The sizes do not fit together; of a caller's configuration when writing.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The list of shards is not one.
    #[error("{INDEX_FILE}: {problem}\n  help: download it again")]
    Index {
        /// What is wrong.
        problem: String,
    },
    /// A listed shard does not exist.
    #[error("{shard} is missing, which {INDEX_FILE} names for tensor {tensor}\n  help: download the shard into the same directory")]
    MissingShard {
        /// The file.
        shard: String,
        /// A tensor that should be in it.
        tensor: String,
    },
    /// A file is not in safetensors format.
    #[error("{file}: not a complete safetensors file of {n_bytes} bytes\n  help: download it again")]
    Safetensors {
        /// The file.
        file: String,
        /// Its size.
        n_bytes: usize,
        /// What the reader says.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// A file is not one that `torch.save` has written, or holds more than a dictionary of tensors.
    #[error(
        "{file}: {problem}\n  help: save the model's state dict again, with contiguous tensors and PyTorch 1.6 or later, or as safetensors"
    )]
    Torch {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A Mamba-3 does not say which activation its decay rate was trained with. The caller has to say.
    #[error(
        "{CONFIG_FILE}: ssm_cfg does not say a_act\n  help: load with a_act = softplus (mamba_ssm before June 2026) or heavy_tail (since then), on the command line with --a-act, or record \"a_act\" in ssm_cfg"
    )]
    AskAAct,
    /// A head of a block of the predecessor grows without bound.
    #[error(
        "{file}: A_log of head {head} starts with {rate}, so that its state does not decay\n  help: retrain it from init::block; only negative numbers have an equivalent here"
    )]
    GrowingState {
        /// The file.
        file: String,
        /// The head.
        head: usize,
        /// Real part of its exponent.
        rate: f32,
    },
    /// Two tensors of the same name, after prefixes are taken off.
    #[error("{file}: tensor {name} stands in {other} too\n  help: keep one of them")]
    TwoTensors {
        /// The tensor.
        name: String,
        /// The second file.
        file: String,
        /// The first file.
        other: String,
    },
    /// A parameter is not among the tensors.
    #[error(
        "tensor {name} {shape:?} is missing from {files}\n  help: the model of {config} needs it; check the file's tensor names and the configuration's options"
    )]
    MissingTensor {
        /// The name in the files.
        name: String,
        /// The shape it should have.
        shape: Vec<usize>,
        /// The files that were looked into.
        files: String,
        /// What asks for it: `config.json`, or what stands in its place.
        config: &'static str,
    },
    /// A tensor's shape is not the one that the configuration gives.
    #[error(
        "{file}: tensor {name} is {found:?}, {config} gives {wanted:?}\n  help: the configuration and the tensors are of different models"
    )]
    WrongShape {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that follows from the configuration.
        wanted: Vec<usize>,
        /// Where the configuration is: `config.json`, or what stands in its place.
        config: &'static str,
    },
    /// A tensor has an element type that weights do not come in.
    #[error("{file}: tensor {name} is {dtype}\n  help: convert it to F32, F16 or BF16")]
    ElementType {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
        /// Its element type.
        dtype: String,
    },
    /// A tensor of 8-bit integers lacks scales that say what they stand for.
    #[error(
        "{file}: tensor {name} is I8 {shape:?} and {name}.scale is {found}\n  help: int8 has scales F32 [rows, 1], q8_0 has F16 [rows, columns / 32]; write the checkpoint again"
    )]
    Scales {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What its scales are.
        found: String,
    },
    /// A directory has several GGUF files, of which one would have to be guessed.
    #[error("{n} .gguf files in the directory, {first} among them\n  help: give the path of one of them")]
    SeveralGguf {
        /// How many.
        n: usize,
        /// The first by name.
        first: String,
    },
    /// A file is not a GGUF file, is of a model that is none of ours, or is damaged.
    #[error("{file}: {problem}\n  help: {help}")]
    Gguf {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
        /// What would be right.
        help: String,
    },
    /// A decay rate in a GGUF file is none: the state would grow.
    #[error(
        "{file}: tensor {name}: element {index} is {value}, where decay rates are negative\n  help: convert the model again; the file should hold -exp(A_log)"
    )]
    Rate {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
        /// Where.
        index: usize,
        /// The rate.
        value: f32,
    },
    /// A weight is not a finite number. Training broke it.
    #[error("parameter {name:?}: element {index} is {value}, not a finite number\n  help: use a checkpoint that training did not break")]
    NotFinite {
        /// Our name of it.
        name: String,
        /// Where, in row-major order.
        index: usize,
        /// What it is.
        value: f32,
    },
    /// The model has no parameter of this name. The caller's fault.
    #[error(
        "the model has no parameter called {name:?}\n  help: names are those of its list of parameters, such as backbone.embedding.weight"
    )]
    NoSuchParam {
        /// As given.
        name: String,
    },
    /// A tensor cannot be stored as was asked. The caller's fault.
    #[error("{file}: tensor {name}: {problem}")]
    Storage {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
        /// Which element, and what to ask for instead.
        problem: Box<StorageError>,
    },
    /// Elements of 64 bits that no element type of ours can hold.
    #[error("{file}: tensor {name} has elements outside the range of i32 and of u32\n  help: store it as I32 or U32")]
    Range {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
    },
    /// The configuration has an option that the file layout cannot state. The caller's fault.
    #[error("the layout of {layout} cannot state {what}\n  help: {help}")]
    NotExpressible {
        /// Whose layout.
        layout: &'static str,
        /// The option.
        what: &'static str,
        /// What it would have to be.
        help: &'static str,
    },
    /// A tensor to be written is missing, or not f32, or of another shape. The caller's fault.
    #[error("tensor {name} to be saved is {found}, not f32{wanted:?}\n  help: give every parameter of the configuration as f32")]
    NotSavable {
        /// The parameter.
        name: String,
        /// What was given.
        found: String,
        /// Its shape by the configuration.
        wanted: Vec<usize>,
    },
    /// A weight to be written is out of the range of the element type. The caller's fault.
    #[error(
        "tensor {name} has {value:e}, which {storage} cannot hold\n  help: save as bf16, whose range is wider than that of f16, or as f32"
    )]
    Overflow {
        /// The parameter.
        name: String,
        /// The first such element.
        value: f32,
        /// The element type asked for.
        storage: Storage,
    },
}
