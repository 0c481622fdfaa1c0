//! Guards that damaged checkpoints of every layout end in an error of some lines: never a panic, and never more memory than the files have.

mod support;

use indexmap::IndexMap;
use monopass_blocks::checkpoint::{self, LoadOptions, SaveLayout, SaveOptions, Storage};
use monopass_blocks::{AAct, LmConfig, Mamba2Config, init};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;
use support::gguf::{Gguf, Ty};
use support::{Dir, Result};

type Files = IndexMap<String, Vec<u8>>;

const OPTIONS: LoadOptions = LoadOptions { a_act: Some(AAct::HeavyTail), storage: None };

/// A change of a file.
#[derive(Clone, Debug)]
enum Damage {
    /// A place, and what is at it from now on.
    Byte(usize, u8),
    /// A place, and eight bytes of a number that no file has.
    Number(usize, u64),
    Cut(usize),
    /// A place, and how many bytes go.
    Drop(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    // Most of what means something stands at the start or at the end.
    let place = prop_oneof![3 => 0..700usize, 1 => 0..40_000usize, 1 => Just(usize::MAX)];
    let number = prop_oneof![Just(u64::MAX), Just(1 << 60), Just(1 << 31), Just(0), Just(u64::MAX - 31), any::<u64>()];
    prop_oneof![
        4 => (place.clone(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        3 => (place.clone(), number).prop_map(|(at, number)| Damage::Number(at, number)),
        1 => place.clone().prop_map(Damage::Cut),
        1 => (place, 1..9usize).prop_map(|(at, n)| Damage::Drop(at, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let last = bytes.len().saturating_sub(1);
    let write = |bytes: &mut Vec<u8>, at: usize, new: &[u8]| {
        bytes.iter_mut().skip(at.min(last)).zip(new).for_each(|(old, new)| *old = *new);
    };
    match *damage {
        Damage::Byte(at, byte) => write(bytes, at, &[byte]),
        Damage::Number(at, number) => write(bytes, at.min(last.saturating_sub(7)), &number.to_le_bytes()),
        Damage::Cut(at) => bytes.truncate(at.min(last)),
        Damage::Drop(at, n) => drop(bytes.drain(at.min(last)..(at.min(last) + n).min(bytes.len()))),
    }
}

/// A small checkpoint of each layout, and of each way to store.
fn checkpoints() -> Result<Vec<Files>> {
    let mut all = Vec::new();
    for (id, names) in [
        ("ckpt_hf_mamba2", &["config.json", "model.safetensors"][..]),
        (
            "ckpt_hf_mamba2_sharded",
            &["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
        ("ckpt_ssm_mamba2", &["config.json", "pytorch_model.bin"]),
        ("ckpt_ssm_mamba3", &["config.json", "pytorch_model.bin"]),
        ("ckpt_gguf_mamba2", &["model.gguf"]),
    ] {
        let dir = Dir::golden().sub(id);
        all.push(names.iter().map(|&name| Ok((name.to_owned(), dir.bytes(name)?))).collect::<Result<Files>>()?);
    }
    let config = LmConfig::new(Mamba2Config { headdim: 8, d_state: 3, ..Mamba2Config::new(32) }, 1, 7);
    let params = init::lm(&config, 1)?;
    for storage in [Storage::Int8, Storage::Q8_0] {
        all.push(checkpoint::save_with(&config, &params, &SaveOptions { storage, layout: Some(SaveLayout::Monopass) })?);
    }
    all.push(Gguf::new(&config, &params, Ty::Q8_0)?.files());
    Ok(all)
}

/// What is read has the size that the files allow; what is not has a message of some lines.
fn judge(files: &Files) -> std::result::Result<bool, TestCaseError> {
    let n_bytes: usize = files.values().map(Vec::len).sum();
    let reported = checkpoint::inspect_with(files, &OPTIONS);
    match checkpoint::load_with(files, &OPTIONS) {
        Ok(model) => {
            let n_elems: usize = model.params.values().map(|tensor| tensor.elements().len()).sum();
            prop_assert!(n_elems <= n_bytes, "{n_elems} elements of {n_bytes} bytes");
            prop_assert!(reported.is_ok());
            Ok(true)
        }
        Err(error) => {
            let message = error.to_string();
            prop_assert!(message.len() < 2000, "{message}");
            Ok(false)
        }
    }
}

#[test]
fn whole_checkpoints_are_read() -> Result {
    for (i, files) in checkpoints()?.iter().enumerate() {
        let is_read = judge(files).map_err(|error| error.to_string())?;
        assert!(is_read, "checkpoint {i}");
    }
    Ok(())
}

#[test]
fn damage_never_breaks_the_reader() -> Result {
    let all = checkpoints()?;
    let config = ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let (read, refused) = (Cell::new(0), Cell::new(0));
    let strategy = (any::<Index>(), any::<Index>(), prop::collection::vec(damage(), 1..4));
    runner.run(&strategy, |(which, file, damages)| {
        let mut files = which.get(&all).clone();
        let at = file.index(files.len());
        if let Some((_, bytes)) = files.get_index_mut(at) {
            damages.iter().for_each(|damage| apply(bytes, damage));
        }
        let count = if judge(&files)? { &read } else { &refused };
        count.set(count.get() + 1);
        Ok(())
    })?;
    // Both happen: a byte of a weight is as good as any other.
    assert!(read.get() > 300 && refused.get() > 300, "{} read, {} refused", read.get(), refused.get());
    Ok(())
}

#[test]
fn every_file_that_ends_early_is_refused() -> Result {
    for whole in checkpoints()? {
        for name in whole.keys() {
            let len = whole[name].len();
            for cut in [0, 1, 8, len / 4, len / 2, len - 2] {
                let mut files = whole.clone();
                files[name].truncate(cut);
                let error = checkpoint::open(&files, &OPTIONS).err().ok_or_else(|| format!("{name} with {cut} of {len} bytes was read"))?;
                let message = error.to_string();
                assert!(message.contains(name.as_str()) && !message.contains("panicked"), "{name} {cut}: {message}");
            }
        }
    }
    Ok(())
}

#[test]
fn missing_files_and_files_of_other_models_are_named() -> Result {
    let empty = Files::new();
    let error = checkpoint::open(&empty, &OPTIONS).err().ok_or("opened")?.to_string();
    assert!(
        error.starts_with("neither model.safetensors nor model.safetensors.index.json nor pytorch_model.bin nor a .gguf file"),
        "{error}"
    );
    let mut sharded = checkpoints()?.swap_remove(1);
    sharded.shift_remove("model-00002-of-00002.safetensors");
    let error = checkpoint::open(&sharded, &OPTIONS).err().ok_or("opened")?.to_string();
    assert!(error.starts_with("model-00002-of-00002.safetensors is missing, which model.safetensors.index.json names"), "{error}");
    // The configuration of one model, the tensors of another.
    let (mut one, other) = (checkpoints()?.swap_remove(0), checkpoints()?.swap_remove(2));
    one["config.json"].clone_from(&other["config.json"]);
    let error = checkpoint::open(&one, &OPTIONS).err().ok_or("opened")?.to_string();
    assert!(
        error.contains(", config.json gives [") && error.contains("help: the configuration and the tensors are of different models"),
        "{error}"
    );
    Ok(())
}
