//! Guards that every layout gives the same model back, in every storage type, one tensor at a time, and that nothing is guessed.

mod support;

use half::{bf16, f16};
use indexmap::IndexMap;
use monopass_blocks::checkpoint::{self, CheckpointError, Layout, LoadOptions, SaveLayout, SaveOptions, Storage};
use monopass_blocks::mamba3::RopePairs;
use monopass_blocks::{AAct, BlockConfig, LmConfig, Mamba2Config, Mamba3Config, NormKind, ParamInfo, Role, init};
use monopass_ir::TensorData;
use monopass_ir::storage::StoredTensor;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use support::{Result, noise};

type Files = IndexMap<String, Vec<u8>>;
type Params = IndexMap<String, TensorData>;

/// A model of each kind of block, none at its defaults.
fn models() -> Vec<LmConfig> {
    let mamba2 = Mamba2Config { headdim: 8, d_state: 5, ngroups: 2, ..Mamba2Config::new(32) };
    let odd = Mamba2Config {
        d_ssm: Some(32),
        norm: NormKind::BeforeGate,
        norm_group: Some(8),
        d_has_hdim: true,
        bias: true,
        conv_bias: false,
        dt_limit: [0.001, 0.3],
        eps: 1.234_567_890_123e-7,
        learnable_init_states: true,
        chunk_size: 16,
        ..mamba2.clone()
    };
    let bare = Mamba2Config { norm: NormKind::None, conv_act: false, d_conv: 1, expand: 0.5, ..mamba2.clone() };
    let seed = Mamba2Config { headdim: 8, d_state: 3, ..Mamba2Config::seed(32) };
    let complex = Mamba2Config { headdim: 8, d_state: 3, mimo_rank: 2, gate: true, ..Mamba2Config::cmamba(32) };
    let siso = Mamba3Config { headdim: 8, d_state: 6, a_floor: 3.3e-4, ..Mamba3Config::new(32) };
    let mimo = Mamba3Config {
        is_mimo: true,
        mimo_rank: 3,
        is_outproj_norm: true,
        rope_fraction: 1.0,
        rope_pairs: Some(RopePairs::Interleaved),
        a_act: AAct::Softplus,
        ..siso.clone()
    };
    let blocks = [mamba2.into(), odd.into(), bare.into(), seed.into(), complex.into(), siso.into(), mimo.into()];
    let model = |(i, block): (usize, BlockConfig)| LmConfig {
        tie_embeddings: i % 2 == 0,
        vocab_padding: i,
        norm_eps: 3.0e-6,
        ..LmConfig::new(block, 1 + i % 3, 13)
    };
    blocks.into_iter().enumerate().map(model).collect()
}

fn saved(config: &LmConfig, params: &Params, storage: Storage) -> Result<Files> {
    Ok(checkpoint::save_with(config, params, &SaveOptions { storage, layout: Some(SaveLayout::Monopass) })?)
}

fn message(files: &Files) -> String {
    checkpoint::load(files).map_or_else(|error| error.to_string(), |_| "loaded".into())
}

#[test]
fn our_own_layout_states_every_block_in_every_storage_type() -> Result {
    for config in models() {
        let params = init::lm(&config, 5)?;
        for storage in Storage::ALL {
            let files = saved(&config, &params, storage)?;
            assert_eq!(files, saved(&config, &params, storage)?);
            let opened = checkpoint::open(&files, &LoadOptions::default())?;
            assert_eq!((opened.config(), opened.layout(), opened.warnings()), (&config, Layout::Monopass, &[][..]));
            opened.check_finite()?;
            for param in config.parameters()? {
                let in_file = in_file(&param, storage);
                let wanted = StoredTensor::quantize(params[&param.name].clone(), in_file)?.into_f32();
                let tensor = opened.tensor(&param.name)?;
                // Taps in 16 bits become f32 when they are read.
                assert_eq!(tensor.storage(), if is_matrix(param.role) { in_file } else { Storage::F32 }, "{}", param.name);
                assert_eq!(tensor.into_f32(), wanted, "{} {storage}", param.name);
            }
            // What was rounded once is written as it is.
            let again = checkpoint::load(&files)?;
            let twice = checkpoint::load(&saved(&config, &again.params, storage)?)?;
            if matches!(storage, Storage::F32 | Storage::F16 | Storage::Bf16) {
                assert_eq!(twice, again);
            }
        }
    }
    Ok(())
}

fn is_matrix(role: Role) -> bool {
    [Role::InProj, Role::OutProj, Role::Embedding, Role::Head].contains(&role)
}

/// How a parameter lies in a file whose weights are asked to be `storage`.
fn in_file(param: &ParamInfo, storage: Storage) -> Storage {
    let is_8_bits = matches!(storage, Storage::Int8 | Storage::Q8_0);
    match is_matrix(param.role) {
        true if storage.fits(&param.shape) => storage,
        true => Storage::Int8,
        false if param.role.stays_f32() || is_8_bits => Storage::F32,
        false => storage,
    }
}

#[test]
fn rows_that_are_no_whole_blocks_become_int8_with_a_warning() -> Result {
    let block = Mamba2Config { headdim: 8, d_state: 3, ..Mamba2Config::new(40) };
    let config = LmConfig::new(block, 2, 7);
    let files = checkpoint::save(&config, &init::lm(&config, 1)?)?;
    let opened = checkpoint::open(&files, &LoadOptions { storage: Some(Storage::Q8_0), ..LoadOptions::default() })?;
    let warning = "5 tensors, such as backbone.embedding.weight [7, 40], have rows that are no whole blocks of 32, and are stored as int8 in place of q8_0";
    assert_eq!(opened.warnings(), [warning]);
    assert_eq!(opened.tensor("backbone.embedding.weight")?.storage(), Storage::Int8);
    assert_eq!(opened.tensor("backbone.norm_f.weight")?.storage(), Storage::F32);
    let error = opened.tensor("backbone.norm_g.weight").err().ok_or("found")?.to_string();
    assert!(error.starts_with("the model has no parameter called \"backbone.norm_g.weight\"\n  help: "), "{error}");
    Ok(())
}

/// Older files of Hugging Face have another prefix; types are mixed; some are in shards; f64 becomes f32.
#[test]
fn older_names_are_read_in_one_file_and_in_shards() -> Result {
    let block = Mamba2Config { headdim: 8, d_state: 5, ..Mamba2Config::new(16) };
    let config = LmConfig { tie_embeddings: false, ..LmConfig::new(block, 2, 11) };
    let params = init::lm(&config, 2)?;
    let json = checkpoint::save(&config, &params)?["config.json"].clone();
    for (dtype, bytes, rounded) in FILE_TYPES {
        let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = params.iter().map(|(name, tensor)| old(name, tensor, bytes)).collect();
        for n_shards in [1, 3] {
            let mut files: Files = [("config.json".to_owned(), json.clone())].into();
            let mut map = serde_json::Map::new();
            for (i, part) in tensors.chunks(tensors.len().div_ceil(n_shards)).enumerate() {
                let name = if n_shards == 1 { "model.safetensors".to_owned() } else { format!("part-{i}.safetensors") };
                map.extend(part.iter().map(|(tensor, ..)| (tensor.clone(), name.clone().into())));
                let views = part.iter().map(|(name, shape, bytes)| Ok((name, TensorView::new(dtype, shape.clone(), bytes)?)));
                let views = views.collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>()?;
                files.insert(name, safetensors::serialize(views, None)?);
            }
            if n_shards > 1 {
                let index = serde_json::json!({ "weight_map": map }).to_string();
                files.insert("model.safetensors.index.json".to_owned(), index.into_bytes());
            }
            let opened = checkpoint::open(&files, &LoadOptions::default())?;
            let layout = if n_shards == 1 { Layout::HfSafetensors } else { Layout::HfSafetensorsSharded };
            assert_eq!((opened.config(), opened.layout(), opened.warnings()), (&config, layout, &[][..]));
            for (name, tensor) in &params {
                let wanted: Vec<f32> = tensor.to_f32_vec().into_iter().map(rounded).collect();
                assert_eq!(opened.tensor(name)?.into_f32(), TensorData::f32(tensor.shape(), wanted)?, "{name} {dtype:?}");
            }
        }
    }
    Ok(())
}

fn old(name: &str, tensor: &TensorData, bytes: fn(f32) -> Vec<u8>) -> (String, Vec<usize>, Vec<u8>) {
    let data = tensor.to_f32_vec().into_iter().flat_map(bytes).collect();
    (format!("model.{}", name.replace("embedding.", "embeddings.")), tensor.shape().to_vec(), data)
}

/// An element type, a number in its bytes, and what it leaves of a number.
type FileType = (Dtype, fn(f32) -> Vec<u8>, fn(f32) -> f32);

const FILE_TYPES: [FileType; 4] = [
    (Dtype::F32, |x| x.to_le_bytes().to_vec(), |x| x),
    (Dtype::F16, |x| f16::from_f32(x).to_le_bytes().to_vec(), |x| f16::from_f32(x).to_f32()),
    (Dtype::BF16, |x| bf16::from_f32(x).to_le_bytes().to_vec(), |x| bf16::from_f32(x).to_f32()),
    (Dtype::F64, |x| f64::from(x).to_le_bytes().to_vec(), |x| x),
];

#[test]
fn numbers_that_a_type_does_not_have_are_named() -> Result {
    let config = LmConfig::new(Mamba2Config { headdim: 8, d_state: 3, ..Mamba2Config::new(32) }, 1, 7);
    let mut params = init::lm(&config, 1)?;
    let mut values = params["backbone.embedding.weight"].to_f32_vec();
    values[33] = 70_000.0;
    params.insert("backbone.embedding.weight".into(), TensorData::f32([7, 32], values)?);
    let files = checkpoint::save(&config, &params)?;
    let opened = checkpoint::open(&files, &LoadOptions { storage: Some(Storage::F16), ..LoadOptions::default() })?;
    let error = opened.tensor("backbone.embedding.weight").err().ok_or("stored")?.to_string();
    let wanted = "model.safetensors: tensor backbone.embeddings.weight: element 33 is 70000, which f16 does not have\n  help: store it as bf16 or f32";
    assert_eq!(error, wanted);
    assert!(opened.tensor("backbone.layers.0.mixer.in_proj.weight").is_ok());
    opened.check_finite()?;
    Ok(())
}

#[test]
fn weights_that_are_no_numbers_are_found_in_every_storage_type() -> Result {
    let config = LmConfig::new(Mamba2Config { headdim: 8, d_state: 3, ..Mamba2Config::new(32) }, 1, 7);
    let params = init::lm(&config, 1)?;
    for (storage, value) in [(Storage::F32, f32::NAN), (Storage::F16, f32::INFINITY), (Storage::Bf16, f32::NEG_INFINITY)] {
        let mut broken = params.clone();
        let name = "backbone.layers.0.mixer.out_proj.weight";
        let mut values = broken[name].to_f32_vec();
        values[70] = value;
        broken.insert(name.into(), TensorData::f32(broken[name].shape(), values)?);
        let files = saved(&config, &broken, storage)?;
        let error = checkpoint::open(&files, &LoadOptions::default())?.check_finite().err().ok_or("finite")?;
        let wanted =
            format!("parameter {name:?}: element 70 is {value}, not a finite number\n  help: use a checkpoint that training did not break");
        assert_eq!(error.to_string(), wanted);
        // 8-bit numbers have no way to hold it.
        for storage in [Storage::Int8, Storage::Q8_0] {
            assert!(matches!(saved(&config, &broken, storage), Err(error) if error.to_string().contains("which ")));
        }
    }
    // A scale that is none makes its whole row none.
    let mut files = saved(&config, &params, Storage::Q8_0)?;
    let tensors = safetensors::SafeTensors::deserialize(&files["model.safetensors"])?;
    let at = tensors.tensor("backbone.embedding.weight.scale")?.data().as_ptr().addr() - files["model.safetensors"].as_ptr().addr();
    let weights = files.get_mut("model.safetensors").ok_or("no tensors")?;
    weights[at + 4..at + 6].copy_from_slice(&f16::NAN.to_le_bytes());
    let error = checkpoint::open(&files, &LoadOptions::default())?.check_finite().err().ok_or("finite")?.to_string();
    assert!(error.starts_with("parameter \"backbone.embedding.weight\": element 64 is NaN"), "{error}");
    Ok(())
}

#[test]
fn eight_bits_are_for_our_own_layout() -> Result {
    let config = LmConfig::new(Mamba2Config { headdim: 8, ..Mamba2Config::new(32) }, 1, 7);
    for layout in [None, Some(SaveLayout::HuggingFace), Some(SaveLayout::StateSpaces)] {
        let error =
            checkpoint::save_with(&config, &init::lm(&config, 1)?, &SaveOptions { storage: Storage::Int8, layout }).err().ok_or("saved")?;
        assert!(matches!(error, CheckpointError::NotExpressible { what: "8-bit weights", .. }), "{error}");
    }
    Ok(())
}

#[test]
fn nothing_in_our_own_configuration_is_guessed() -> Result {
    let config = LmConfig::new(Mamba3Config { headdim: 8, d_state: 6, ..Mamba3Config::new(16) }, 2, 7);
    let whole = saved(&config, &init::lm(&config, 1)?, Storage::F32)?;
    let text = String::from_utf8(whole["config.json"].clone())?;
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from} is not in {text}");
        let mut files = whole.clone();
        files.insert("config.json".into(), text.replacen(from, to, 1).into_bytes());
        message(&files)
    };
    let rows = [
        (
            "\"format_version\": 1",
            "\"format_version\": 2",
            "config.json: format_version is 2\n  help: version 1 is read; use a newer release",
        ),
        ("\"format_version\": 1", "\"format_version\": \"1\"", "format_version is \"1\""),
        ("\"format_version\": 1,", "", "config.json: format_version is missing"),
        ("\"block\": \"mamba3\"", "\"block\": \"mamba4\"", "block is \"mamba4\"\n  help: block is mamba2 or mamba3"),
        ("\"block\": \"mamba3\"", "\"block\": \"mamba2\"", "is not known"),
        ("\"n_layer\": 2", "\"n_layers\": 2", "n_layers\" is not known\n  help: the fields are model_type, "),
        ("\"n_layer\": 2,", "", "config.json: n_layer is missing"),
        ("\"n_layer\": 2", "\"n_layer\": -2", "n_layer is -2"),
        ("\"d_state\": 6", "\"d_state\": 6, \"chunk_hint\": 3", "block_cfg.\"chunk_hint\" is not known"),
        ("\"d_state\": 6", "\"d_state\": 6, \"d_state\": 7", "d_state stands in one object twice"),
        ("\"a_act\": \"heavy_tail\",", "", "block_cfg.a_act is missing"),
        ("\"headdim\": 8", "\"headdim\": 7", "is not a multiple of headdim = 7"),
        ("\"is_mimo\": false", "\"is_mimo\": 0", "is_mimo is 0"),
        ("\"n_layer\": 2", "\"n_layer\": 1000000000", "tensor backbone.layers.2.norm.weight [16] is missing"),
    ];
    for (from, to, wanted) in rows {
        let found = with(from, to);
        assert!(found.contains(wanted), "{to}: {found}");
    }
    Ok(())
}

#[test]
fn integers_need_scales_that_say_what_they_are() -> Result {
    let config = LmConfig::new(Mamba2Config { headdim: 8, d_state: 3, ..Mamba2Config::new(32) }, 1, 7);
    let files = saved(&config, &init::lm(&config, 1)?, Storage::Int8)?;
    let tensors = monopass_blocks::cases::read_tensors("x", &files["model.safetensors"]);
    assert!(tensors.is_err(), "cases have no 8-bit tensors");
    let parsed = safetensors::SafeTensors::deserialize(&files["model.safetensors"])?;
    let kept = |name: &str| parsed.tensors().into_iter().filter(move |(own, _)| own != name).collect::<Vec<_>>();
    let name = "lm_head.weight.scale";
    assert!(parsed.tensor(name).is_err(), "a tied model has no head");
    let name = "backbone.embedding.weight.scale";
    let mut without = files.clone();
    without.insert("model.safetensors".into(), safetensors::serialize(kept(name), None)?);
    let found = message(&without);
    let wanted = "model.safetensors: tensor backbone.embedding.weight is I8 [7, 32] and backbone.embedding.weight.scale is missing\n  help: int8 has scales";
    assert!(found.starts_with(wanted), "{found}");
    let bytes: Vec<u8> = noise(&[7], 1)?.to_f32_vec().iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut other = kept(name);
    other.push((name.to_owned(), TensorView::new(Dtype::F32, vec![7], &bytes)?));
    without.insert("model.safetensors".into(), safetensors::serialize(other, None)?);
    assert!(message(&without).contains("scale is F32 [7]"), "{}", message(&without));
    // In another layout i8 has no meaning.
    let hf = checkpoint::save(&config, &init::lm(&config, 1)?)?;
    without.insert("config.json".into(), hf["config.json"].clone());
    without.insert("model.safetensors".into(), files["model.safetensors"].clone());
    assert!(message(&without).contains("tensor backbone.embedding.weight is I8\n  help: convert it to F32, F16 or BF16"));
    Ok(())
}

/// Types that the format knows and weights do not come in, and types that it does not know.
#[test]
fn other_element_types_are_named() -> Result {
    let config = LmConfig::new(Mamba2Config { headdim: 8, d_state: 3, ..Mamba2Config::new(32) }, 1, 7);
    let files = checkpoint::save_with(&config, &init::lm(&config, 1)?, &SaveOptions { storage: Storage::F16, layout: None })?;
    let whole = &files["model.safetensors"];
    let start = usize::try_from(u64::from_le_bytes(whole[..8].try_into()?))? + 8;
    let header = String::from_utf8(whole[8..start].to_vec())?;
    for (dtype, wanted) in
        [("I16", "is I16\n  help: convert it to F32, F16 or BF16"), ("Q4_K", "model.safetensors: not a complete safetensors file")]
    {
        let header = header.replace("\"F16\"", &format!("\"{dtype}\""));
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &whole[start..]].concat();
        let mut files = files.clone();
        files.insert("model.safetensors".into(), bytes);
        assert!(message(&files).contains(wanted), "{}", message(&files));
        let error = checkpoint::open(&files, &LoadOptions::default()).err().ok_or("opened")?;
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(dtype == "I16" || cause.contains("unknown variant `Q4_K`"), "{cause}");
    }
    Ok(())
}

/// What is said of memory is what tensors take, and it is said without an element being read.
#[test]
fn reports_count_bytes_without_reading() -> Result {
    let config = LmConfig::new(Mamba2Config { headdim: 8, d_state: 3, ..Mamba2Config::new(32) }, 2, 7);
    let params = init::lm(&config, 1)?;
    for storage in Storage::ALL {
        let mut files = saved(&config, &params, storage)?;
        let parsed = safetensors::SafeTensors::deserialize(&files["model.safetensors"])?;
        let n_bytes: usize = parsed.tensors().iter().map(|(_, view)| view.data().len()).sum();
        let start = files["model.safetensors"].len() - n_bytes;
        let report = checkpoint::inspect(&files)?;
        assert_eq!(report.tensors.iter().map(|tensor| tensor.n_bytes).sum::<u64>(), n_bytes as u64);
        assert_eq!((report.tensors.len(), report.n_params), (params.len(), params.values().map(|t| t.elements().len() as u64).sum()));
        // Elements of which none is a number change nothing.
        files.get_mut("model.safetensors").ok_or("no tensors")?[start..].fill(0xFF);
        assert_eq!(checkpoint::inspect(&files)?, report);
    }
    Ok(())
}
