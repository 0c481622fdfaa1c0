//! Guards that GGUF files are read in each element type, and that each broken one is refused with what, where and how to fix it.

mod support;

use half::{bf16, f16};
use indexmap::IndexMap;
use monopass_blocks::checkpoint::{self, Layout, LoadOptions, Storage};
use monopass_blocks::{LmConfig, Mamba2Config, init};
use monopass_ir::TensorData;
use support::gguf::{Gguf, Meta, Ty, through_blocks};
use support::{Dir, Result};

type Params = IndexMap<String, TensorData>;

/// Rows of 32 and of 64 are whole blocks; groups, heads and vocabulary are odd.
fn config(tie_embeddings: bool) -> LmConfig {
    let block = Mamba2Config { headdim: 16, d_state: 5, ngroups: 2, d_conv: 3, ..Mamba2Config::new(32) };
    LmConfig { tie_embeddings, ..LmConfig::new(block, 3, 13) }
}

fn params(config: &LmConfig) -> Result<Params> {
    Ok(init::lm(config, 3)?)
}

fn file(ty: Ty) -> Result<Gguf> {
    let config = config(false);
    Gguf::new(&config, &params(&config)?, ty)
}

fn message(gguf: &Gguf) -> String {
    checkpoint::load(&gguf.files()).map_or_else(|error| error.to_string(), |_| "loaded".into())
}

#[track_caller]
fn check(gguf: &Gguf, wanted: &[&str]) {
    let found = message(gguf);
    assert!(found.starts_with("model.gguf: ") && found.contains("\n  help: "), "{found}");
    for wanted in wanted {
        assert!(found.contains(wanted), "{wanted} is not in {found}");
    }
}

#[test]
fn every_element_type_is_read() -> Result {
    for (ty, storage) in [(Ty::F32, Storage::F32), (Ty::F16, Storage::F16), (Ty::Bf16, Storage::Bf16), (Ty::Q8_0, Storage::Q8_0)] {
        for tie_embeddings in [false, true] {
            let config = config(tie_embeddings);
            let params = params(&config)?;
            let files = Gguf::new(&config, &params, ty)?.files();
            let opened = checkpoint::open(&files, &LoadOptions::default())?;
            assert_eq!((opened.config(), opened.layout(), opened.warnings()), (&config, Layout::Gguf, &[][..]));
            assert_eq!(opened.params().map(|param| &param.name).collect::<Vec<_>>(), params.keys().collect::<Vec<_>>());
            for param in opened.params() {
                let is_matrix = param.shape.len() == 2;
                let tensor = opened.tensor(&param.name)?;
                assert_eq!(tensor.storage(), if is_matrix { storage } else { Storage::F32 }, "{}", param.name);
                assert_eq!(tensor.storage(), param.storage);
                let (values, found) = (params[&param.name].to_f32_vec(), tensor.into_f32());
                assert_eq!(found.shape(), params[&param.name].shape());
                let wanted: Vec<f32> = match ty {
                    // Through the exponential and back again.
                    _ if param.name.ends_with("A_log") => values.iter().map(|x| rounded(f64::from(x.exp()).ln())).collect(),
                    Ty::F16 if is_matrix => values.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
                    Ty::Bf16 if is_matrix => values.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
                    Ty::Q8_0 if is_matrix => through_blocks(&values),
                    Ty::F32 | Ty::F16 | Ty::Bf16 | Ty::Q8_0 => values,
                };
                assert_eq!(found.to_f32_vec(), wanted, "{ty:?} {}", param.name);
            }
            opened.check_finite()?;
        }
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to f32 on purpose")]
fn rounded(number: f64) -> f32 {
    number as f32
}

/// The file of the reference is the model that its case says.
#[test]
fn the_file_of_the_reference_is_read() -> Result {
    let report = checkpoint::inspect(&Dir::golden().sub("ckpt_gguf_mamba2"))?;
    let block = report.config.block.as_mamba2().ok_or("another block")?;
    assert_eq!((report.layout.to_string().as_str(), block.ngroups, report.config.tie_embeddings), ("gguf", 2, true));
    assert_eq!((block.eps, report.config.norm_eps, block.sizes()?.norm_group), (1e-5, 1e-5, 16));
    assert_eq!((report.config.vocab_size, report.config.vocab_padding, report.warnings.len()), (32, 0, 0));
    Ok(())
}

#[test]
fn version_2_another_alignment_and_a_padded_vocabulary_are_read() -> Result {
    let mut gguf = file(Ty::F16)?;
    gguf.version = 2;
    gguf.alignment = 128;
    gguf.set("general.alignment", Meta::U32(128));
    gguf.set("mamba2.vocab_size", Meta::U32(11));
    let loaded = checkpoint::load(&gguf.files())?;
    assert_eq!(loaded.config, LmConfig { vocab_padding: 2, ..config(false) });
    gguf.set("mamba2.vocab_size", Meta::U32(14));
    check(&gguf, &["mamba2.vocab_size is 14, token_embd.weight has 13 rows"]);
    Ok(())
}

#[test]
fn a_file_is_found_by_any_name_if_it_is_the_only_one() -> Result {
    let bytes = file(Ty::F32)?.bytes();
    let mut files: IndexMap<String, Vec<u8>> = [("mamba2-tiny.Q8_0.gguf".to_owned(), bytes.clone())].into();
    files.insert("README.md".to_owned(), Vec::new());
    assert_eq!(checkpoint::load(&files)?.config, config(false));
    files.insert("a.gguf".to_owned(), bytes);
    let error = checkpoint::load(&files).err().ok_or("loaded")?.to_string();
    assert_eq!(error, "2 .gguf files in the directory, a.gguf among them\n  help: give the path of one of them");
    Ok(())
}

#[test]
fn storage_is_changed_on_the_way() -> Result {
    let files = file(Ty::Q8_0)?.files();
    for storage in Storage::ALL {
        let opened = checkpoint::open(&files, &LoadOptions { storage: Some(storage), ..LoadOptions::default() })?;
        let report = checkpoint::inspect(&files)?;
        let mut n_bytes = 0;
        for param in opened.params() {
            let tensor = opened.tensor(&param.name)?;
            let wanted = if param.shape.len() == 2 { storage } else { Storage::F32 };
            assert_eq!((tensor.storage(), param.storage), (wanted, wanted), "{}", param.name);
            n_bytes += tensor.size_bytes();
        }
        assert_eq!(report.device_bytes.iter().find(|(of, _)| *of == storage), Some(&(storage, n_bytes)));
    }
    Ok(())
}

#[test]
fn damaged_headers_are_refused() -> Result {
    let whole = file(Ty::F32)?;
    let with = |change: fn(&mut Gguf)| {
        let mut gguf = whole.clone();
        change(&mut gguf);
        gguf
    };
    check(&with(|gguf| gguf.magic = *b"GGML"), &["it does not start with GGUF"]);
    check(&with(|gguf| gguf.version = 1), &["it has version 1", "versions 2 and 3 are read"]);
    check(&with(|gguf| gguf.version = 4), &["it has version 4"]);
    check(&with(|gguf| gguf.version = 3u32.swap_bytes()), &["its numbers are big-endian"]);
    check(&with(|gguf| gguf.counts[0] = Some(1 << 60)), &["it has 1152921504606846976 tensors, too many"]);
    check(&with(|gguf| gguf.counts[1] = Some(1 << 60)), &["it has 1152921504606846976 keys, too many"]);
    check(&with(|gguf| gguf.counts[1] = Some(u64::MAX)), &["it has 18446744073709551615 keys, too many"]);
    check(&with(|gguf| gguf.meta.push(("mamba2.block_count".into(), Meta::U32(3)))), &["key mamba2.block_count stands twice"]);
    check(&with(|gguf| gguf.set("x", Meta::Raw(13, Vec::new()))), &["key x: a value has the type 13"]);
    check(&with(|gguf| gguf.set("general.alignment", Meta::U32(24))), &["general.alignment is Count(24), not a power of two"]);
    check(&with(|gguf| gguf.set("general.alignment", Meta::Text("32"))), &["general.alignment is"]);
    let long = [&8u32.to_le_bytes()[..], &(1u64 << 60).to_le_bytes()].concat();
    check(&with(move |gguf| gguf.set("", Meta::U32(1))), &["the name of a key is empty"]);
    let mut gguf = whole.clone();
    gguf.set("x", Meta::Raw(9, long));
    check(&gguf, &["key x: it has a list of 1152921504606846976 values, more than its bytes"]);
    gguf.set("x", Meta::Raw(9, [&10u32.to_le_bytes()[..], &(1u64 << 61).to_le_bytes()].concat()));
    check(&gguf, &["key x: it has a list of 2305843009213693952 values"]);
    gguf.set("x", Meta::Raw(8, (1u64 << 60).to_le_bytes().to_vec()));
    check(&gguf, &["key x: it ends inside its header"]);
    // A list of one list of one list, and so on, without an end.
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(40);
    gguf.set("x", Meta::Raw(9, nested));
    check(&gguf, &["key x: lists are nested deeper than 4"]);
    Ok(())
}

#[test]
fn damaged_tensors_are_refused() -> Result {
    let whole = file(Ty::Q8_0)?;
    let with = |name: &str, change: &dyn Fn(&mut support::gguf::Tensor)| -> Result<Gguf> {
        let mut gguf = whole.clone();
        change(gguf.tensor(name)?);
        Ok(gguf)
    };
    let name = "blk.1.ssm_in.weight";
    check(
        &with(name, &|tensor| tensor.ty = 12)?,
        &["tensor blk.1.ssm_in.weight has the element type Q4_K\n  help: F32, F16, BF16 and Q8_0 are read"],
    );
    check(&with(name, &|tensor| tensor.ty = 99)?, &["has the element type number 99"]);
    check(&with(name, &|tensor| tensor.sizes = vec![16, 2])?, &["is Q8_0 and has rows of 16, not of whole blocks of 32"]);
    check(&with(name, &|tensor| tensor.sizes = vec![1 << 40, 1 << 40])?, &["[1099511627776, 1099511627776] is too large for any file"]);
    check(&with(name, &|tensor| tensor.sizes = vec![1 << 30, 1 << 20])?, &["ends behind the end of the file"]);
    check(&with(name, &|tensor| tensor.sizes = vec![32; 5])?, &["has 5 axes, more than 4"]);
    check(&with(name, &|tensor| tensor.offset = Some(u64::MAX - 31))?, &["ends behind the end of the file"]);
    check(&with(name, &|tensor| tensor.offset = Some(33))?, &["starts at 33, which is not a multiple of 32"]);
    check(&with(name, &|tensor| tensor.offset = Some(0))?, &["tensors ", " overlap"]);
    check(&with(name, &|tensor| tensor.name = "blk.2.ssm_in.weight".into())?, &["tensor blk.2.ssm_in.weight stands twice"]);
    check(&with(name, &|tensor| tensor.name = "x".repeat(300))?, &["the name of a tensor is empty, longer than 256 bytes"]);
    check(&with(name, &|tensor| tensor.sizes.push(1))?, &["tensor blk.1.ssm_in.weight is [1, ", ", its metadata gives ["]);
    let missing = message(&with(name, &|tensor| tensor.name = "x".into())?);
    assert!(
        missing.starts_with("tensor blk.1.ssm_in.weight [152, 32] is missing from model.gguf\n  help: the model of its metadata"),
        "{missing}"
    );
    // Decay rates are what the parameter is the logarithm of.
    for value in [0.0f32, 0.5, f32::NAN] {
        let broken = with("blk.2.ssm_a", &|tensor| tensor.data[4..8].copy_from_slice(&value.to_le_bytes()))?;
        check(&broken, &["tensor blk.2.ssm_a: element 1 is ", "decay rates are negative"]);
    }
    check(&with("blk.2.ssm_a", &|tensor| (tensor.ty, tensor.data) = (1, vec![0xBC; 8]))?, &["holds decay rates in another type than F32"]);
    Ok(())
}

#[test]
fn files_that_end_early_are_refused() -> Result {
    let whole = file(Ty::F16)?.bytes();
    for len in [0, 3, 4, 7, 8, 23, 24, 60, 500, whole.len() / 2, whole.len() - 1] {
        let files: IndexMap<String, Vec<u8>> = [("model.gguf".to_owned(), whole[..len].to_vec())].into();
        let found = checkpoint::load(&files).err().ok_or("loaded")?.to_string();
        assert!(found.starts_with("model.gguf: ") && found.ends_with("help: download it again"), "{len}: {found}");
    }
    Ok(())
}

#[test]
fn models_that_are_none_of_ours_are_refused() -> Result {
    let whole = file(Ty::F32)?;
    let with = |key: &str, value: Meta| {
        let mut gguf = whole.clone();
        gguf.set(key, value);
        message(&gguf)
    };
    let rows = [
        ("general.architecture", Meta::Text("llama"), "general.architecture is \"llama\", not \"mamba2\"\n  help: only Mamba-2"),
        ("general.architecture", Meta::U32(2), "general.architecture is 2, not"),
        ("split.count", Meta::U32(3), "it is one of several parts (split.count is 3)\n  help: join them first"),
        ("mamba2.feed_forward_length", Meta::U32(64), "mamba2.feed_forward_length is 64, so it has a feed-forward part"),
        ("mamba2.attention.head_count", Meta::U32(2), "so it has attention"),
        ("mamba2.block_count", Meta::Text("3"), "mamba2.block_count is \"3\", not a whole number"),
        ("mamba2.block_count", Meta::U32(0), "mamba2.block_count is 0, not a whole number of at least 1"),
        ("mamba2.ssm.time_step_rank", Meta::U32(3), "mamba2.ssm.inner_size is 64, not a multiple of mamba2.ssm.time_step_rank = 3"),
        ("mamba2.ssm.group_count", Meta::U32(3), "mamba2.ssm.time_step_rank = 4 is not a multiple of mamba2.ssm.group_count = 3"),
        ("mamba2.ssm.state_size", Meta::Raw(5, (-1i32).to_le_bytes().to_vec()), "mamba2.ssm.state_size is of another type"),
        ("mamba2.ssm.conv_kernel", Meta::U32(65), "mamba2.ssm.conv_kernel is 65"),
        ("mamba2.attention.layer_norm_rms_epsilon", Meta::F32(f32::NAN), "layer_norm_rms_epsilon is NaN, not a finite number"),
        ("mamba2.attention.layer_norm_rms_epsilon", Meta::F32(-1.0), "layer_norm_rms_epsilon is -1"),
        ("mamba2.embedding_length", Meta::U32(31), "tensor token_embd.weight is [13, 32], its metadata gives [13, 31]"),
    ];
    for (key, value, wanted) in rows {
        let found = with(key, value);
        assert!(found.contains(wanted), "{wanted} is not in {found}");
    }
    // More layers than there are tensors.
    let found = with("mamba2.block_count", Meta::U32(2_000_000_000));
    assert!(found.starts_with("tensor blk.3.attn_norm.weight [32] is missing from model.gguf"), "{found}");
    let mut gguf = whole;
    gguf.meta.retain(|(key, _)| key != "mamba2.ssm.state_size");
    check(&gguf, &["mamba2.ssm.state_size is missing, not a whole number"]);
    Ok(())
}
