//! Guards the models that ship: they load, are as small as promised, and say that English is likely and noise is not.

use monopass::blocks::checkpoint;
use monopass::blocks::train::{AdamW, Phase, TrainStep, eval_graph};
use monopass::fs::DirFiles;
use monopass::generate::Sampling;
use monopass::ir::eval::Interpreter;
use monopass::ir::{Elements, TensorData};
use monopass::{Engine, Generator, Tensors};
use std::error::Error;
use std::ops::ControlFlow;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const MODELS: [&str; 2] = ["sotu-mamba2", "sotu-mamba3"];

/// The end of Lincoln's address at Gettysburg, which is not in the text that the models were trained on.
const ENGLISH: &str = "that we here highly resolve that these dead shall not have died in vain, that this nation, under God, shall have a new \
    birth of freedom, and that government of the people, by the people, for the people, shall not perish from the earth.";

fn dir(name: &str) -> String {
    format!("{}/models/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Bits a byte of a text by a model.
fn bits_per_byte(name: &str, text: &[u8]) -> Outcome<f64> {
    let model = checkpoint::load(&DirFiles::open(dir(name))?)?;
    let len = text.len() - 1;
    let step = TrainStep {
        batch: 1,
        len,
        ignore: -100,
        carry_states: false,
        trainable: Vec::new(),
        adapters: Vec::new(),
        adamw: AdamW::default(),
        max_grad_norm: None,
        block_rows: 0,
        phase: Phase::Whole,
    };
    let inputs = Tensors::from([
        ("ids".to_owned(), TensorData::new([1, len], Elements::U32(text[..len].iter().map(|&byte| byte.into()).collect()))?),
        ("target".to_owned(), TensorData::new([1, len], Elements::I32(text[1..].iter().map(|&byte| byte.into()).collect()))?),
    ]);
    let graph = eval_graph(&model.config, &step)?;
    let outputs = Interpreter::new(&graph)?.run(&inputs, &model.params, &mut Tensors::new())?;
    let [sum, rows] = ["loss_sum", "rows"].map(|name| f64::from(outputs[name].to_f32_vec()[0]));
    Ok(sum / rows / std::f64::consts::LN_2)
}

#[test]
fn the_shipped_models_are_small_and_of_bytes() -> Outcome {
    for name in MODELS {
        let n_bytes = std::fs::metadata(format!("{}/model.safetensors", dir(name)))?.len();
        assert!(n_bytes < 2_000_000, "{name}: {n_bytes} bytes");
        let model = checkpoint::load(&DirFiles::open(dir(name))?)?;
        assert_eq!((model.config.vocab_size, model.config.n_layer), (256, 6));
        assert!(model.warnings.is_empty(), "{:?}", model.warnings);
    }
    Ok(())
}

#[test]
fn english_is_likely_and_noise_is_not() -> Outcome {
    let noise: Vec<u8> = (0u32..160).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for name in MODELS {
        let (english, noise) = (bits_per_byte(name, ENGLISH.as_bytes())?, bits_per_byte(name, &noise)?);
        assert!(english < 2.2 && noise > 6.0, "{name}: {english} bits a byte of English, {noise} of noise");
    }
    Ok(())
}

#[test]
fn what_they_write_is_made_of_words() -> Outcome {
    for name in MODELS {
        let model = checkpoint::load(&DirFiles::open(dir(name))?)?;
        let prompt: Vec<u32> = "The ".bytes().map(u32::from).collect();
        let generated = pollster::block_on(async {
            let mut generator = Generator::new(&Engine::cpu(), model.config, model.params).await?;
            let mut text = generator.sequence(Sampling::default())?;
            text.push(&prompt);
            generator.generate(&mut text, 120, async |_| ControlFlow::Continue(())).await
        })?;
        let bytes: Vec<u8> = generated.tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect();
        let text = String::from_utf8(bytes)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let common = words.iter().filter(|word| ["the", "of", "and", "to", "in", "a", "that", "be", "is"].contains(word)).count();
        assert!(words.len() > 12 && common * 5 > words.len(), "{name}: {text:?}");
    }
    Ok(())
}
