//! Guards that checkpoints are read and written right, and that each broken one is refused with what, where and how to fix it.

mod support;

use half::{bf16, f16};
use indexmap::IndexMap;
use monopass_blocks::checkpoint::{self, CheckpointError, Layout, SaveLayout, SaveOptions, Storage};
use monopass_blocks::{Checkpoint, LmConfig, Mamba2Config, NormKind, init};
use monopass_ir::TensorData;
use support::{Dir, Result};

type FileMap = IndexMap<String, Vec<u8>>;

fn small_block() -> Mamba2Config {
    Mamba2Config { headdim: 4, d_state: 3, ngroups: 2, ..Mamba2Config::new(8) }
}

fn small() -> LmConfig {
    LmConfig { tie_embeddings: false, ..LmConfig::new(small_block(), 2, 11) }
}

fn saved(config: &LmConfig) -> Result<FileMap> {
    Ok(checkpoint::save(config, &init::lm(config, 1)?)?)
}

/// The checkpoint with one replacement in its configuration.
fn with_config(from: &str, to: &str) -> Result<FileMap> {
    let mut files = saved(&small())?;
    let text = String::from_utf8(files["config.json"].clone())?;
    assert!(text.contains(from), "{from} is not in {text}");
    files.insert("config.json".into(), text.replacen(from, to, 1).into_bytes());
    Ok(files)
}

/// The message with its causes.
fn message(files: &FileMap) -> String {
    let Err(error) = checkpoint::load(files) else { return "loaded".into() };
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    message
}

#[test]
fn what_is_saved_is_loaded_again() -> Result {
    for tie_embeddings in [false, true] {
        let block = Mamba2Config { dt_limit: [0.001, 0.5], bias: true, conv_bias: false, d_conv: 1, ..small_block() };
        for block in [small_block(), block] {
            let config = LmConfig { tie_embeddings, block: block.into(), ..small() };
            let params = init::lm(&config, 1)?;
            let files = checkpoint::save(&config, &params)?;
            assert_eq!(files, checkpoint::save(&config, &params)?);
            let Checkpoint { config: read_config, params: read_params, warnings } = checkpoint::load(&files)?;
            assert_eq!((read_config, read_params, warnings), (config, params, Vec::new()));
        }
    }
    Ok(())
}

/// Weights come back rounded, norms, biases and decays as they were, and what was rounded once is saved as it is.
#[test]
fn half_floats_are_saved_and_loaded_again() -> Result {
    for (storage, name, dtype) in [(Storage::F16, "float16", "F16"), (Storage::Bf16, "bfloat16", "BF16")] {
        for layout in [None, Some(SaveLayout::StateSpaces)] {
            let (config, options) = (small(), SaveOptions { storage, layout });
            let params = init::lm(&config, 1)?;
            let files = checkpoint::save_with(&config, &params, &options)?;
            let loaded = checkpoint::load(&files)?;
            assert_eq!((&loaded.config, loaded.warnings.len()), (&config, 0));
            for param in config.parameters()? {
                let values = params[&param.name].to_f32_vec();
                let stored = values.iter().map(|&value| match storage {
                    Storage::F16 if !param.role.stays_f32() => f16::from_f32(value).to_f32(),
                    Storage::Bf16 if !param.role.stays_f32() => bf16::from_f32(value).to_f32(),
                    Storage::F32 | Storage::F16 | Storage::Bf16 | Storage::Int8 | Storage::Q8_0 => value,
                });
                assert_eq!(loaded.params[&param.name].to_f32_vec(), stored.collect::<Vec<_>>(), "{}", param.name);
            }
            assert_eq!(checkpoint::save_with(&config, &loaded.params, &options)?, files);
            let report = checkpoint::inspect(&files)?;
            let of = |end: &str| report.tensors.iter().find(|tensor| tensor.name.ends_with(end)).map(|tensor| tensor.dtype.as_str());
            assert_eq!([of("0.mixer.in_proj.weight"), of("0.mixer.A_log"), of("0.norm.weight")], [Some(dtype), Some("F32"), Some("F32")]);
            assert!(report.file_bytes < report.load_bytes);
            // The package's configuration has no field for it, and would refuse one.
            let text = String::from_utf8_lossy(&files["config.json"]).into_owned();
            assert_eq!(text.contains(&format!("\"torch_dtype\": \"{name}\"")), layout.is_none(), "{text}");
        }
    }
    Ok(())
}

#[test]
fn a_weight_that_a_half_cannot_hold_is_named() -> Result {
    let config = small();
    let mut params = init::lm(&config, 1)?;
    let name = "backbone.layers.1.mixer.out_proj.weight";
    let mut values = params[name].to_f32_vec();
    values[3] = -70_000.0;
    params.insert(name.into(), TensorData::f32(params[name].shape(), values)?);
    // What stays f32 may be as large as it likes.
    let bias = "backbone.layers.0.mixer.conv1d.bias";
    params.insert(bias.into(), TensorData::f32(params[bias].shape(), vec![1e6; params[bias].to_f32_vec().len()])?);
    let options = SaveOptions { storage: Storage::F16, layout: None };
    let error = checkpoint::save_with(&config, &params, &options).err().ok_or("saved")?;
    let text =
        format!("tensor {name} has -7e4, which f16 cannot hold\n  help: save as bf16, whose range is wider than that of f16, or as f32");
    assert_eq!(error.to_string(), text);
    let options = SaveOptions { storage: Storage::Bf16, ..options };
    assert!(checkpoint::load(&checkpoint::save_with(&config, &params, &options)?).is_ok());
    Ok(())
}

/// The layout of the package states options of a Mamba-2 that Hugging Face's has no fields for.
#[test]
fn a_mamba2_is_saved_as_state_spaces_would() -> Result {
    let options = SaveOptions { layout: Some(SaveLayout::StateSpaces), ..SaveOptions::default() };
    let odd = Mamba2Config { d_ssm: Some(8), norm: NormKind::BeforeGate, dt_limit: [0.25, f32::MAX], bias: true, ..small_block() };
    let bare = Mamba2Config { norm: NormKind::None, d_has_hdim: true, learnable_init_states: true, chunk_size: 32, ..small_block() };
    for block in [small_block(), odd, bare] {
        let config = LmConfig { vocab_size: 16, vocab_padding: 5, block: block.into(), ..small() };
        let params = init::lm(&config, 1)?;
        let files = checkpoint::save_with(&config, &params, &options)?;
        let loaded = checkpoint::load(&files)?;
        assert_eq!((loaded.config, loaded.params, loaded.warnings), (config, params, Vec::new()));
        assert_eq!(checkpoint::inspect(&files)?.layout, Layout::SsmSafetensors);
    }
    let config = LmConfig { norm_eps: 1e-6, ..small() };
    let error = checkpoint::save_with(&config, &init::lm(&config, 1)?, &options).err().ok_or("saved")?;
    assert_eq!(error.to_string(), "the layout of mamba_ssm cannot state another eps than 1e-5\n  help: set all of them to 1e-5");
    Ok(())
}

#[test]
fn the_layouts_of_hugging_face_are_told_apart() -> Result {
    let one = checkpoint::inspect(&Dir::golden().sub("ckpt_hf_mamba2"))?;
    let block = one.config.block.as_mamba2().ok_or("another block")?;
    assert_eq!((one.layout, block.ngroups, one.config.tie_embeddings), (Layout::HfSafetensors, 2, true));
    assert_eq!(block.sizes()?.norm_group, 16);
    assert_eq!(one.load_bytes, 4 * one.n_params);
    assert!(one.tensors.iter().all(|tensor| tensor.dtype == "F32"));
    let shards = checkpoint::inspect(&Dir::golden().sub("ckpt_hf_mamba2_sharded"))?;
    assert_eq!((shards.layout, shards.config.tie_embeddings), (Layout::HfSafetensorsSharded, false));
    let block = shards.config.block.as_mamba2().ok_or("another block")?;
    assert_eq!((block.bias, block.conv_bias), (true, false));
    assert!(shards.tensors.iter().all(|tensor| tensor.dtype == "BF16"));
    assert_eq!(block.dt_limit, [0.0, f32::MAX]);
    assert!(shards.warnings.is_empty());
    Ok(())
}

#[test]
fn older_names_and_half_floats_are_read() -> Result {
    let config = small();
    let params = init::lm(&config, 1)?;
    let halves: Vec<(String, Vec<usize>, Vec<u8>)> = params
        .iter()
        .map(|(name, tensor)| {
            let bytes = tensor.to_f32_vec().iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
            (format!("model.{}", name.replace("embedding.", "embeddings.")), tensor.shape().to_vec(), bytes)
        })
        .collect();
    let views = halves
        .iter()
        .map(|(name, shape, bytes)| Ok((name, safetensors::tensor::TensorView::new(safetensors::Dtype::F16, shape.clone(), bytes)?)));
    let views: Vec<_> = views.collect::<std::result::Result<_, safetensors::SafeTensorError>>()?;
    let mut files = saved(&config)?;
    files.insert("model.safetensors".into(), safetensors::serialize(views, None)?);
    let loaded = checkpoint::load(&files)?;
    for (name, tensor) in &params {
        let halved: Vec<f32> = tensor.to_f32_vec().iter().map(|&value| f16::from_f32(value).to_f32()).collect();
        assert_eq!(loaded.params[name], TensorData::f32(tensor.shape(), halved)?, "{name}");
    }
    Ok(())
}

#[test]
fn extra_tensors_are_warnings() -> Result {
    let mut config = small();
    let mut params = init::lm(&config, 1)?;
    let files = saved(&config)?;
    config.tie_embeddings = true;
    params.shift_remove("lm_head.weight");
    let mut tied = checkpoint::save(&config, &params)?;
    tied.insert("model.safetensors".into(), files["model.safetensors"].clone());
    assert_eq!(checkpoint::load(&tied)?.warnings, ["model.safetensors: tensor lm_head.weight [11, 8] is not part of the model"]);
    Ok(())
}

#[test]
fn a_head_decides_where_the_configuration_does_not() -> Result {
    let files = with_config("\"tie_word_embeddings\": false,", "")?;
    assert!(!checkpoint::load(&files)?.config.tie_embeddings);
    Ok(())
}

#[test]
fn missing_files_are_named() -> Result {
    let without = |name: &str| -> Result<String> {
        let mut files = saved(&small())?;
        files.shift_remove(name);
        Ok(message(&files))
    };
    assert!(without("config.json")?.starts_with("no config.json in the checkpoint\n  help: give the directory"));
    assert!(without("model.safetensors")?.starts_with("neither model.safetensors nor model.safetensors.index.json"));
    let index = |map: &str| -> Result<String> {
        let mut files = saved(&small())?;
        files.insert("model.safetensors.index.json".into(), format!("{{\"weight_map\": {map}}}").into_bytes());
        Ok(message(&files))
    };
    assert!(
        index(r#"{"lm_head.weight": "a.safetensors"}"#)?.starts_with("a.safetensors is missing, which model.safetensors.index.json names")
    );
    assert!(index(r#"{"lm_head.weight": "../a.safetensors"}"#)?.contains("not the name of a file beside it"));
    for shard in [".", "..", "", "a\\u0000b"] {
        assert!(index(&format!("{{\"lm_head.weight\": \"{shard}\"}}"))?.contains("not the name of a file beside it"), "{shard}");
    }
    let twice = r#"{"lm_head.weight": "model.safetensors", "lm_head.weight": "model.safetensors"}"#;
    assert!(index(twice)?.contains("lm_head.weight stands in one object twice"));
    assert!(index(r#"{"lm_head.bias": "model.safetensors"}"#)?.contains("tensor lm_head.bias is not in model.safetensors"));
    assert!(index("{}")?.contains("weight_map is empty"));
    assert!(index("3")?.contains("weight_map is missing or not an object"));
    Ok(())
}

#[test]
fn the_list_of_shards_is_checked_against_the_shards() -> Result {
    const INDEX: &str = "model.safetensors.index.json";
    let mut files = saved(&small())?;
    let whole = files.shift_remove("model.safetensors").ok_or("no tensors")?;
    let parsed = safetensors::SafeTensors::deserialize(&whole)?;
    let (head, rest): (Vec<_>, Vec<_>) = parsed.tensors().into_iter().partition(|(name, _)| name == "lm_head.weight");
    let names: Vec<String> = rest.iter().map(|(name, _)| format!("\"{name}\": \"a.safetensors\"")).collect();
    files.insert("a.safetensors".into(), safetensors::serialize(rest, None)?);
    files.insert("b.safetensors".into(), safetensors::serialize(head, None)?);
    let index = |rows: &[&str]| format!("{{\"weight_map\": {{{}}}}}", rows.join(", ")).into_bytes();
    let mut rows: Vec<&str> = names.iter().map(String::as_str).collect();
    rows.push("\"lm_head.weight\": \"b.safetensors\"");
    files.insert(INDEX.into(), index(&rows));
    assert!(checkpoint::load(&files)?.warnings.is_empty());
    files.insert(INDEX.into(), index(&rows[1..]));
    let dropped = names[0].split('"').nth(1).ok_or("no name")?;
    let warning = format!("a.safetensors: tensor {dropped} is not listed in {INDEX}");
    assert_eq!(checkpoint::load(&files)?.warnings, std::slice::from_ref(&warning));
    assert_eq!(checkpoint::inspect(&files)?.warnings, [warning]);
    let wrong = names[0].replace("a.safetensors", "b.safetensors");
    rows[0] = &wrong;
    files.insert(INDEX.into(), index(&rows));
    let wanted = format!("{INDEX}: tensor {dropped} is not in b.safetensors but in a.safetensors");
    assert!(message(&files).starts_with(&wanted), "{}", message(&files));
    Ok(())
}

#[test]
fn damaged_tensors_are_refused() -> Result {
    let whole = saved(&small())?["model.safetensors"].clone();
    let with = |bytes: Vec<u8>| -> Result<String> {
        let mut files = saved(&small())?;
        files.insert("model.safetensors".into(), bytes);
        Ok(message(&files))
    };
    for n in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        let message = with(whole[..n].to_vec())?;
        assert!(message.contains(&format!("model.safetensors: not a complete safetensors file of {n} bytes")), "{message}");
    }
    let mut corrupt = whole.clone();
    corrupt[9..40].fill(b'#');
    assert!(with(corrupt)?.contains("not a complete safetensors file"));
    // A tensor of 8 GiB that the file does not hold.
    let header = r#"{"huge":{"dtype":"F32","shape":[2147483648],"data_offsets":[0,8589934592]}}"#;
    let huge = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    assert!(with(huge)?.contains("not a complete safetensors file"));
    Ok(())
}

#[test]
fn tensors_have_to_be_those_of_the_configuration() -> Result {
    let missing = message(&with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")?);
    assert!(missing.starts_with("tensor backbone.layers.2.norm.weight [8] is missing from model.safetensors\n"), "{missing}");
    // More layers than could be listed are refused by the tensors there are.
    let files = with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000000000")?;
    assert_eq!(message(&files), missing);
    assert_eq!(checkpoint::inspect(&files).err().ok_or("read")?.to_string(), missing);
    let shape = message(&with_config("\"state_size\": 3", "\"state_size\": 5")?);
    assert!(shape.contains("tensor backbone.layers.0.mixer.in_proj.weight is [48, 8], config.json gives [56, 8]"), "{shape}");
    let mut files = saved(&small())?;
    let at = files["model.safetensors"].windows(5).position(|bytes| bytes == b"\"F32\"").ok_or("no dtype")?;
    files["model.safetensors"][at..at + 5].copy_from_slice(b"\"I32\"");
    assert!(message(&files).contains("is I32\n  help: convert it to F32, F16 or BF16"), "{}", message(&files));
    Ok(())
}

#[test]
fn every_field_of_the_configuration_is_checked() -> Result {
    let rows = [
        ("\"mamba2\"", "\"mamba\"", "model_type is \"mamba\"\n  help: only mamba2"),
        ("\"model_type\": \"mamba2\",", "", "model_type is missing"),
        ("\"silu\"", "\"gelu\"", "hidden_act is \"gelu\""),
        ("\"hidden_size\": 8", "\"hidden_size\": 0", "hidden_size is 0"),
        ("\"hidden_size\": 8,", "", "hidden_size is missing"),
        ("\"head_dim\": 4", "\"head_dim\": NaN", "head_dim is NaN"),
        ("\"state_size\": 3", "\"state_size\": -3", "state_size is -3"),
        (
            "\"n_groups\": 2",
            "\"n_groups\": 3",
            "config.json: num_heads = 4 is not a multiple of n_groups = 3\n  help: choose n_groups so that num_heads is",
        ),
        ("\"expand\": 2", "\"expand\": 3", "expand is 3, but num_heads * head_dim = 16 and hidden_size = 8"),
        ("\"layer_norm_epsilon\": 0.00001", "\"layer_norm_epsilon\": NaN", "layer_norm_epsilon is NaN"),
        (
            "\"layer_norm_epsilon\": 0.00001",
            "\"layer_norm_epsilon\": -1",
            "config.json: layer_norm_epsilon is -1.0\n  help: layer_norm_epsilon is",
        ),
        ("\"expand\": 2", "\"expand\": 1e300", "expand is 1e+300, but"),
        ("\"state_size\": 3", "\"state_size\": 2000000000", "config.json: state_size = 2000000000 is too large"),
        ("\"conv_kernel\": 4", "\"conv_kernel\": 65", "config.json: conv_kernel is 65\n"),
        ("\"hidden_size\": 8", "\"hidden_size\": 8, \"hidden_size\": 16", "config.json: hidden_size stands in one object twice"),
        ("\"time_step_limit\": [", "\"time_step_limit\": [-1, NaN], \"x\": [", "time_step_limit is [-1,NaN]\n"),
        ("\"time_step_limit\": [", "\"time_step_limit\": [Infinity, Infinity], \"x\": [", "time_step_limit is [Infinity,Infinity]\n"),
        ("\"time_step_limit\": [", "\"time_step_limit\": [0, \"Infinity\"], \"x\": [", "loaded"),
        ("\"use_bias\": false", "\"use_bias\": 0", "use_bias is 0\n  help: use_bias is true or false"),
        ("\"__float__\": \"Infinity\"", "\"__float__\": \"NaN\"", "time_step_limit is"),
        ("\"vocab_size\": 11", "\"vocab_size\": 99999999999", "vocab_size is 99999999999"),
        ("{", "[", "config.json: not valid JSON"),
    ];
    for (from, to, wanted) in rows {
        let found = message(&with_config(from, to)?);
        assert!(found.contains(wanted), "{to}: {found}");
    }
    assert_eq!(message(&with_config("\"chunk_size\": 256", "\"chunk_size\": Infinity")?), "loaded");
    Ok(())
}

#[test]
fn options_without_a_field_are_not_saved() -> Result {
    let block = Mamba2Config { headdim: 4, ..Mamba2Config::seed(8) };
    let config = LmConfig::new(block, 1, 5);
    let error = checkpoint::save(&config, &init::lm(&config, 1)?).err().ok_or("saved")?;
    assert!(matches!(error, CheckpointError::NotExpressible { .. }), "{error}");
    let config = small();
    let mut params = init::lm(&config, 1)?;
    params.insert("backbone.norm_f.weight".into(), TensorData::i32([8], [1; 8])?);
    let error = checkpoint::save(&config, &params).err().ok_or("saved")?;
    assert!(error.to_string().starts_with("tensor backbone.norm_f.weight to be saved is i32[8], not f32[8]"), "{error}");
    Ok(())
}
