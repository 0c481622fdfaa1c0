//! Guards that checkpoints of state-spaces, and blocks of the predecessor, are read right, and that each broken one is
//! refused with what, where and how to fix it.

mod support;

use indexmap::IndexMap;
use monopass_blocks::checkpoint::{self, CheckpointError, Layout, LoadOptions, SaveLayout, SaveOptions, Storage, load_predecessor};
use monopass_blocks::{AAct, Mamba2Config, init};
use monopass_ir::TensorData;
use safetensors::tensor::TensorView;
use support::{Choices, Dir, Result};

type FileMap = IndexMap<String, Vec<u8>>;

const HEAVY_TAIL: LoadOptions = LoadOptions { a_act: Some(AAct::HeavyTail), storage: None };

fn files(id: &str) -> Result<FileMap> {
    let dir = Dir::golden().sub(id);
    let file = |name: &str| Ok((name.to_owned(), dir.bytes(name)?));
    ["config.json", "pytorch_model.bin"].into_iter().map(file).collect()
}

/// The checkpoint with one replacement in its configuration, without regard to spaces.
fn with_config(id: &str, from: &str, to: &str) -> Result<FileMap> {
    let mut files = files(id)?;
    let value: serde_json::Value = serde_json::from_slice(&files["config.json"])?;
    let text = value.to_string();
    assert!(text.contains(from), "{from} is not in {text}");
    files.insert("config.json".into(), text.replacen(from, to, 1).into_bytes());
    Ok(files)
}

fn message(files: &FileMap, options: &LoadOptions) -> String {
    checkpoint::load_with(files, options).map_or_else(|error| error.to_string(), |_| "loaded".into())
}

#[test]
fn both_blocks_are_told_apart() -> Result {
    let two = checkpoint::inspect(&files("ckpt_ssm_mamba2")?)?;
    assert_eq!((two.layout, two.layout.to_string(), two.config.block.kind()), (Layout::SsmBin, "ssm-bin".to_owned(), "mamba2"));
    // 21 tokens, padded to a multiple of 16.
    assert_eq!((two.config.vocab_size, two.config.tie_embeddings, two.config.n_layer), (32, true, 2));
    assert!(two.tensors.iter().all(|tensor| tensor.dtype == "F16"));
    assert_eq!(two.warnings, Vec::<String>::new());
    let asked = checkpoint::inspect_with(&files("ckpt_ssm_mamba2")?, &HEAVY_TAIL)?;
    assert_eq!(asked.warnings, ["a_act = heavy_tail was given, which is for a Mamba-3, and this is none"]);
    let three = checkpoint::inspect_with(&files("ckpt_ssm_mamba3")?, &HEAVY_TAIL)?;
    let block = three.config.block.as_mamba3().ok_or("another block")?;
    assert_eq!((block.is_mimo, block.mimo_rank, block.a_act, block.rope_fraction), (true, 2, AAct::HeavyTail, 0.5));
    Ok(())
}

#[test]
fn the_activation_of_the_decay_rate_is_asked_for_or_recorded() -> Result {
    let files = files("ckpt_ssm_mamba3")?;
    let asked = message(&files, &LoadOptions::default());
    assert!(asked.contains("does not say a_act") && asked.contains("softplus") && asked.contains("heavy_tail"), "{asked}");
    let recorded = with_config("ckpt_ssm_mamba3", "\"layer\":", "\"a_act\":\"softplus\",\"layer\":")?;
    let loaded = checkpoint::load(&recorded)?;
    assert_eq!(loaded.config.block.as_mamba3().map(|block| block.a_act), Some(AAct::Softplus));
    assert!(message(&recorded, &HEAVY_TAIL).contains("ssm_cfg.a_act is \"softplus\", but heavy_tail is asked for"));
    Ok(())
}

#[test]
fn every_field_of_the_configuration_is_checked() -> Result {
    let rows = [
        ("\"Mamba2\"", "\"Mamba1\"", "ssm_cfg.layer is \"Mamba1\""),
        ("\"layer\":\"Mamba2\",", "", "ssm_cfg.layer is missing, which means Mamba1"),
        ("\"attn_layer_idx\":[]", "\"attn_layer_idx\":[1]", "layers of attention are not supported"),
        ("\"d_intermediate\":0", "\"d_intermediate\":64", "d_intermediate is 64"),
        ("\"rms_norm\":true", "\"rms_norm\":false", "rms_norm is false"),
        ("\"vocab_size\":21", "\"vocab_size\":-1", "vocab_size is -1"),
        ("\"vocab_size\":21,", "", "vocab_size is missing"),
        ("\"tie_embeddings\":true", "\"tie_embeddings\":3", "tie_embeddings is 3"),
        ("\"ssm_cfg\":{", "\"ssm_cfg\":{\"d_stat\":3,", "no setting is called \"d_stat\""),
        ("\"vocab_size\":21", "\"vocab_size\":40", "tensor backbone.embedding.weight is [32, "),
        ("\"n_layer\":2", "\"n_layer\":3", "tensor backbone.layers.2.norm.weight ["),
        ("\"tie_embeddings\":true", "\"tie_embeddings\":false", "loaded"),
    ];
    for (from, to, wanted) in rows {
        let found = message(&with_config("ckpt_ssm_mamba2", from, to)?, &LoadOptions::default());
        assert!(found.contains(wanted), "{to}: {found}");
    }
    let wrong = message(&with_config("ckpt_ssm_mamba3", "\"mimo_rank\":2", "\"mimo_rank\":3")?, &HEAVY_TAIL);
    assert!(wrong.contains("tensor backbone.layers.0.mixer.in_proj.weight is [") && wrong.contains("config.json gives ["), "{wrong}");
    Ok(())
}

#[test]
fn damaged_files_are_refused() -> Result {
    let whole = files("ckpt_ssm_mamba2")?;
    let bytes = &whole["pytorch_model.bin"];
    let with = |bytes: Vec<u8>| {
        message(
            &[("config.json".to_owned(), whole["config.json"].clone()), ("pytorch_model.bin".to_owned(), bytes)].into(),
            &LoadOptions::default(),
        )
    };
    for n in [0, 1, 21, 22, 100, bytes.len() / 2, bytes.len() - 1] {
        let found = with(bytes[..n].to_vec());
        assert!(found.starts_with("pytorch_model.bin: it has no directory"), "{n}: {found}");
    }
    let old = with(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".repeat(10));
    assert!(old.contains("help: save the model's state dict again"), "{old}");
    // A byte of the pickle: a call that is not known.
    let at = bytes.windows(18).position(|bytes| bytes == b"_rebuild_tensor_v2").ok_or("no tensor")?;
    let mut evil = bytes.clone();
    evil[at] = b'X';
    assert!(with(evil).contains("its pickle calls torch._utils.Xrebuild_tensor_v2, which is never executed"));
    // Whatever byte of the pickle and of the directory is damaged, the reader gives an error or a model.
    for at in (at - 60..at + 200).chain(bytes.len() - 200..bytes.len()) {
        for byte in [0, 0x7F, 0xFF] {
            let mut damaged = bytes.clone();
            damaged[at] = byte;
            let _ = with(damaged);
        }
    }
    Ok(())
}

/// `bytes` with some of them changed, cut off or put in twice.
fn damaged(choose: &mut Choices, mut bytes: Vec<u8>) -> Vec<u8> {
    // The directory at the end and the pickle near the start are where most bytes mean something.
    let place = |choose: &mut Choices, len: usize| match choose.below(4) {
        0 => choose.below(len),
        1 => len.saturating_sub(1 + choose.below(22)),
        2 => len.saturating_sub(1 + choose.below(len.min(3000))),
        _ => choose.below(len.min(4000)),
    };
    for _ in 0..=choose.below(4) {
        let at = place(choose, bytes.len());
        let known = [0, 1, 0x7F, 0x80, 0xFF, b'R', b'h', b'(', b't', b'u', b'.', b'}', b'P'];
        match choose.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..(at + 1 + choose.below(9)).min(bytes.len()))),
            2 => bytes.extend_from_within(at..),
            3 | 4 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = choose.of(&known)),
            5 => bytes.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xFF),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << choose.below(8)),
        }
    }
    bytes
}

/// Whatever is damaged, reading gives a model of the size that the configuration says, or an error of some lines.
#[test]
fn random_damage_never_breaks_the_reader() -> Result {
    let (mut n_read, mut n_refused) = (0, 0);
    for (id, seed) in [("ckpt_ssm_mamba2", 1), ("ckpt_ssm_mamba3", 2)] {
        let (whole, options) = (files(id)?, if id == "ckpt_ssm_mamba3" { HEAVY_TAIL } else { LoadOptions::default() });
        let choose = &mut Choices::new(seed);
        for n in 0..1500 {
            let mut files = whole.clone();
            let name = if n % 8 == 0 { "config.json" } else { "pytorch_model.bin" };
            files.insert(name.to_owned(), damaged(choose, whole[name].clone()));
            match checkpoint::load_with(&files, &options) {
                Ok(model) => {
                    n_read += 1;
                    let n_elems: usize = model.params.values().map(|tensor| tensor.shape().iter().product::<usize>()).sum();
                    assert!(n_elems < 100_000, "{id} {n}: {n_elems} elements");
                    assert!(checkpoint::inspect_with(&files, &options).is_ok(), "{id} {n}");
                }
                Err(error) => {
                    n_refused += 1;
                    assert!(error.to_string().len() < 1000, "{id} {n}: {error}");
                    let _ = checkpoint::inspect_with(&files, &options);
                }
            }
        }
    }
    // Both happen: a byte of a weight is as good as any other.
    assert!(n_read > 300 && n_refused > 300, "{n_read} read, {n_refused} refused");
    Ok(())
}

/// A Mamba-3 that was loaded is saved under the names it came with, says its activation, and is loaded again as it was.
#[test]
fn a_mamba3_is_saved_with_its_activation() -> Result {
    let mut loaded = checkpoint::load_with(&files("ckpt_ssm_mamba3")?, &HEAVY_TAIL)?;
    assert_eq!((loaded.config.vocab_size, loaded.config.vocab_padding, loaded.config.n_tokens()), (32, 11, 21));
    let saved = checkpoint::save(&loaded.config, &loaded.params)?;
    assert_eq!(saved.keys().collect::<Vec<_>>(), ["config.json", "model.safetensors"]);
    assert_eq!(checkpoint::save(&loaded.config, &loaded.params)?, saved);
    // Nobody needs to be asked for a_act any more.
    let again = checkpoint::load(&saved)?;
    assert_eq!(again, loaded);
    assert_eq!(checkpoint::inspect(&saved)?.layout.to_string(), "ssm-safetensors");
    let config: serde_json::Value = serde_json::from_slice(&saved["config.json"])?;
    let said = |field: &str| config["ssm_cfg"][field].clone();
    assert_eq!((said("layer"), said("a_act"), said("mimo_rank")), ("Mamba3".into(), "heavy_tail".into(), 2.into()));
    assert_eq!((&config["vocab_size"], &config["pad_vocab_size_multiple"]), (&21.into(), &16.into()));
    let text = String::from_utf8_lossy(&saved["model.safetensors"]).into_owned();
    assert!(text.contains("backbone.embedding.weight") && !text.contains("backbone.embeddings"));
    let halves = checkpoint::save_with(&loaded.config, &loaded.params, &SaveOptions { storage: Storage::Bf16, layout: None })?;
    let report = checkpoint::inspect(&halves)?;
    assert!(report.tensors.iter().any(|tensor| tensor.dtype == "BF16") && report.tensors.iter().any(|tensor| tensor.dtype == "F32"));
    assert_eq!(checkpoint::load(&halves)?.config, loaded.config);
    // Any padding can be stated, another eps cannot.
    loaded.config.vocab_padding = 3;
    assert_eq!(checkpoint::load(&checkpoint::save(&loaded.config, &loaded.params)?)?.config.n_tokens(), 29);
    loaded.config.norm_eps = 1e-6;
    let error = checkpoint::save(&loaded.config, &loaded.params).err().ok_or("saved")?.to_string();
    assert_eq!(error, "the layout of mamba_ssm cannot state another eps than 1e-5\n  help: set all of them to 1e-5");
    let options = SaveOptions { layout: Some(SaveLayout::HuggingFace), ..SaveOptions::default() };
    let error = checkpoint::save_with(&loaded.config, &loaded.params, &options).err().ok_or("saved")?.to_string();
    assert_eq!(error, "the layout of Mamba2ForCausalLM cannot state a Mamba-3\n  help: save it in the layout of mamba_ssm");
    // Hugging Face's layout has no word for padding, the package's own has.
    let two = checkpoint::load(&files("ckpt_ssm_mamba2")?)?;
    let error = checkpoint::save(&two.config, &two.params).err().ok_or("saved")?.to_string();
    assert!(error.starts_with("the layout of Mamba2ForCausalLM cannot state rows of padding"), "{error}");
    let options = SaveOptions { layout: Some(SaveLayout::StateSpaces), ..SaveOptions::default() };
    assert_eq!(checkpoint::load(&checkpoint::save_with(&two.config, &two.params, &options)?)?, two);
    Ok(())
}

#[test]
fn a_block_of_the_predecessor_is_converted() -> Result {
    let config = Mamba2Config { headdim: 4, d_state: 3, mimo_rank: 2, ..Mamba2Config::cmamba(8) };
    let mut params = init::block(&config, 4)?;
    assert_eq!(params.len(), 11);
    let saved = |params: &IndexMap<String, TensorData>| -> Result<Vec<u8>> {
        let bytes: Vec<(&String, &[usize], Vec<u8>)> = params
            .iter()
            .map(|(name, tensor)| (name, tensor.shape(), tensor.to_f32_vec().iter().flat_map(|value| value.to_le_bytes()).collect()))
            .collect();
        let views = bytes.iter().map(|(name, shape, bytes)| Ok((name, TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes)?)));
        Ok(safetensors::serialize(views.collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>()?, None)?)
    };
    params.insert("A_log".to_owned(), TensorData::f32([4, 2], vec![-1.0, 0.5, -0.25, -2.0, -1e-4, 3.0, -7.0, 0.0])?);
    let loaded = load_predecessor(&config, "block.safetensors", &saved(&params)?)?;
    let rates: Vec<f32> = [-1.0f32, -0.25, -1e-4, -7.0].iter().map(|a0| (-a0).ln()).collect();
    let wanted = vec![rates[0], 0.5, rates[1], -2.0, rates[2], 3.0, rates[3], 0.0];
    assert_eq!(loaded["A_log"], TensorData::f32([4, 2], wanted)?);
    assert_eq!(loaded["wInProj"], params["wInProj"]);
    // The predecessor's own initial values do not decay.
    params.insert("A_log".to_owned(), TensorData::f32([4, 2], vec![-1.0, 0.5, 0.0, 1.6, -1.0, 3.1, -1.0, 4.7])?);
    let error = load_predecessor(&config, "block.safetensors", &saved(&params)?).err().ok_or("loaded")?;
    assert!(matches!(error, CheckpointError::GrowingState { head: 1, .. }), "{error}");
    params.shift_remove("bConv");
    let error = load_predecessor(&config, "block.safetensors", &saved(&params)?).err().ok_or("loaded")?;
    assert!(error.to_string().starts_with("tensor bConv [40] is missing"), "{error}");
    let real = Mamba2Config { headdim: 4, ..Mamba2Config::seed(8) };
    let params = init::block(&real, 4)?;
    assert_eq!(load_predecessor(&real, "block.safetensors", &saved(&params)?)?, params);
    Ok(())
}
