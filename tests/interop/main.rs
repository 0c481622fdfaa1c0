//! Guards the checkpoints that we write for others: what is written is read back as it was, with the same logits.
//!
//! With `MONOPASS_INTEROP=DIR` the checkpoints, token ids and our logits are left in DIR, for `tests/interop/run.sh`, which
//! loads them in `transformers` and compares.

use monopass::blocks::checkpoint::{SaveLayout, SaveOptions, Storage, load, save_with, write_tensors};
use monopass::blocks::{Head, Io, LmGraph, Mamba2Config, init, model};
use monopass::fs::DirFiles;
use monopass::ir::eval::{Interpreter, Precision};
use monopass::ir::{Elements, TensorData};
use monopass::{LmConfig, Tensors};
use std::error::Error;
use std::path::{Path, PathBuf};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const VOCAB: usize = 61;
const IDS: [usize; 2] = [3, 13];

fn configs() -> Vec<(&'static str, LmConfig)> {
    let plain = Mamba2Config { headdim: 8, d_state: 12, ..Mamba2Config::new(16) };
    let groups = Mamba2Config { ngroups: 2, bias: true, conv_bias: false, ..plain.clone() };
    vec![("tied", LmConfig::new(plain, 2, VOCAB)), ("groups_untied", LmConfig { tie_embeddings: false, ..LmConfig::new(groups, 3, VOCAB) })]
}

/// Weights far enough from zero that every part of the block shows in the logits.
fn params(config: &LmConfig) -> Outcome<Tensors> {
    let grown = |(name, tensor): (String, TensorData)| {
        let factor = if name.contains("proj") || name.contains("embedding") || name.contains("head") { 8.0 } else { 1.0 };
        let values: Vec<f32> = tensor.to_f32_vec().iter().map(|x| x * factor).collect();
        Ok((name, TensorData::f32(tensor.shape(), values)?))
    };
    init::lm(config, 11)?.into_iter().map(grown).collect()
}

fn ids() -> Outcome<TensorData> {
    let ids = (0..IDS[0] * IDS[1]).map(|i| u32::try_from((i * i + 3 * i) % VOCAB)).collect::<Result<Vec<_>, _>>()?;
    Ok(TensorData::new(IDS, Elements::U32(ids))?)
}

/// Logits by the definition of the ops, in f64.
fn logits(config: &LmConfig, params: &Tensors) -> Outcome<TensorData> {
    let graph = model::graph(config, IDS[0], IDS[1], LmGraph::new(Io::Stateless, Head::Logits))?;
    let inputs = Tensors::from([("ids".to_owned(), ids()?)]);
    let outputs = Interpreter::new(&graph)?.precision(Precision::F64).run(&inputs, params, &mut Tensors::new())?;
    Ok(outputs["logits"].clone())
}

/// Where checkpoints are written.
fn destination() -> PathBuf {
    std::env::var_os("MONOPASS_INTEROP").map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop"), PathBuf::from)
}

fn write(dir: &Path, files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Outcome {
    std::fs::create_dir_all(dir)?;
    files.into_iter().try_for_each(|(name, bytes)| Ok(std::fs::write(dir.join(name), bytes)?))
}

#[test]
fn checkpoints_are_written_as_others_read_them() -> Outcome {
    let out = destination();
    for (name, config) in configs() {
        let params = params(&config)?;
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            let dir = out.join(format!("{name}_{storage}"));
            let options = SaveOptions { storage, layout: Some(SaveLayout::HuggingFace) };
            write(&dir, save_with(&config, &params, &options)?)?;
            let read = load(&DirFiles::open(&dir)?)?;
            assert!(read.warnings.is_empty() && read.config == config, "{name}: {:?}", read.warnings);
            let ours = logits(&read.config, &read.params)?;
            if storage == Storage::F32 {
                assert_eq!(ours, logits(&config, &params)?);
            }
            let vectors = [("ids".to_owned(), ids()?), ("logits".to_owned(), ours)].into_iter().collect();
            std::fs::write(dir.join("vectors.safetensors"), write_tensors("vectors", &vectors, None)?)?;
        }
    }
    Ok(())
}
