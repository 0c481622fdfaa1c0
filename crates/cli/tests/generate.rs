//! Guards `generate`, `embed` and `eval` as scripts see them: texts by bytes and by a tokenizer, several at once, states on disk, and one
//! clear error for each bad input. All of it runs without a graphics adapter.

use monopass::blocks::{LmConfig, Mamba2Config, Mamba3Config, checkpoint, init};
use serde_json::Value;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Letters and some words, with a token that ends a text.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
    "added_tokens": [{"id": 9, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "vocab": {"t": 0, "h": 1, "e": 2, "Ġ": 3, "c": 4, "a": 5, "th": 6, "the": 7, "Ġc": 8}, "merges": ["t h", "th e", "Ġ c"]}}"#;

/// A fresh directory for one test.
fn scratch(name: &str) -> Outcome<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generate").join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// A model with random weights in a directory.
fn model(name: &str, config: &LmConfig, seed: u64) -> Outcome<PathBuf> {
    let dir = scratch(name)?;
    for (name, bytes) in checkpoint::save(config, &init::lm(config, seed)?)? {
        std::fs::write(dir.join(name), bytes)?;
    }
    Ok(dir)
}

fn bytes_config() -> LmConfig {
    LmConfig::new(Mamba2Config { headdim: 8, d_state: 4, ..Mamba2Config::new(16) }, 2, 256)
}

fn words_config() -> LmConfig {
    LmConfig { vocab_padding: 6, ..LmConfig::new(Mamba3Config { headdim: 8, d_state: 4, ..Mamba3Config::new(16) }, 2, 16) }
}

/// The binary, where it finds no graphics driver.
fn run(command: &str, model: &Path, args: &[&str]) -> Outcome<Output> {
    let mut process = Command::new(env!("CARGO_BIN_EXE_monopass"));
    process.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent").env("NO_COLOR", "1");
    Ok(process.arg(command).arg("--model").arg(model).args(args).output()?)
}

fn good(command: &str, model: &Path, args: &[&str]) -> Outcome<String> {
    let output = run(command, model, args)?;
    let stderr = String::from_utf8(output.stderr)?;
    if output.status.success() { Ok(String::from_utf8(output.stdout)?) } else { Err(format!("{args:?}:\n{stderr}").into()) }
}

fn lines(command: &str, model: &Path, args: &[&str]) -> Outcome<Vec<Value>> {
    let text = good(command, model, &[args, &["--json"]].concat())?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// One error that says `what`, with nothing on stdout and no panic.
fn bad(command: &str, model: &Path, args: &[&str], what: &str) -> Outcome {
    let output = run(command, model, args)?;
    let stderr = String::from_utf8(output.stderr)?;
    // The report wraps its lines.
    let words: String = stderr.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{args:?}: {stderr}");
    assert!(words.contains(what) && stderr.contains("help") && !stderr.contains("panicked"), "{args:?}: {what:?} is not in:\n{stderr}");
    Ok(())
}

fn tokens(line: &Value) -> Vec<u64> {
    line["tokens"].as_array().map(|tokens| tokens.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
}

#[test]
fn several_prompts_get_what_each_gets_alone() -> Outcome {
    let dir = model("several", &bytes_config(), 1)?;
    let prompts = ["Grüße", "a", "a longer prompt than the others", "xyz"];
    let sampled = ["--tokens", "12", "--temperature", "1.5", "--top-p", "0.95", "--repetition-penalty", "1.2"];
    let mut args: Vec<&str> = prompts.iter().flat_map(|prompt| ["--prompt", prompt]).collect();
    args.extend(sampled.iter().chain(&["--seed", "5", "--batch", "3"]));
    let batch = lines("generate", &dir, &args)?;
    assert_eq!(batch.len(), 4);
    for ((line, prompt), seed) in batch.iter().zip(prompts).zip(["5", "6", "7", "8"]) {
        let alone = lines("generate", &dir, &[&["--prompt", prompt, "--seed", seed, "--chunk-len", "3"], &sampled[..]].concat())?;
        assert_eq!((tokens(line).len(), tokens(line)), (12, tokens(&alone[0])), "{prompt}");
        assert_eq!((&line["text"], &line["finish_reason"], &line["seed"]), (&alone[0]["text"], &"length".into(), &alone[0]["seed"]));
        assert_eq!(line["prompt_tokens"].as_u64(), Some(prompt.len() as u64));
    }
    // Without JSON the texts stand one after the other.
    let text = good("generate", &dir, &args)?;
    for (idx, line) in batch.iter().enumerate() {
        assert!(text.contains(&format!("[{}] {}", idx + 1, line["text"].as_str().ok_or("no text")?)), "{text}");
    }
    // Another seed draws other tokens; the same one the same.
    let drawn =
        |seed| Ok::<_, Box<dyn Error>>(tokens(&lines("generate", &dir, &[&["--prompt", "a", "--seed", seed], &sampled[..]].concat())?[0]));
    assert_eq!(drawn("1")?, drawn("1")?);
    assert_ne!(drawn("1")?, drawn("2")?);
    Ok(())
}

#[test]
fn a_text_goes_on_from_disk_as_if_it_had_not_stopped() -> Outcome {
    let dir = model("states", &bytes_config(), 1)?;
    let other = model("states_other", &bytes_config(), 2)?;
    let state = dir.join("state.safetensors").display().to_string();
    let sampled = ["--temperature", "1.2", "--top-k", "50", "--repetition-penalty", "1.1", "--seed", "9"];
    let whole = tokens(&lines("generate", &dir, &[&["--prompt", "Once ", "--tokens", "20"], &sampled[..]].concat())?[0]);
    let first = lines("generate", &dir, &[&["--prompt", "Once ", "--tokens", "8", "--save-state", &state], &sampled[..]].concat())?;
    assert_eq!(tokens(&first[0]), whole[..8]);
    // How tokens are chosen is saved, too.
    let rest = lines("generate", &dir, &["--load-state", &state, "--tokens", "12", "--save-state", &state])?;
    assert_eq!(tokens(&rest[0]), whole[8..]);
    // A prompt is added to the text, and options change the settings.
    let more = lines("generate", &dir, &["--load-state", &state, "--prompt", " and", "--tokens", "3", "--temperature", "0"])?;
    assert_eq!(more[0]["prompt_tokens"].as_u64(), Some(5 + 20 + 4));

    bad("generate", &other, &["--load-state", &state, "--tokens", "3"], "saved from a model with the fingerprint")?;
    let as_f16 = ["--load-state", &state, "--tokens", "3", "--dtype", "f16"];
    bad("generate", &dir, &as_f16, "with its weights stored in the same type")?;
    bad("generate", &dir, &["--load-state", "no/such/file", "--tokens", "3"], "no/such/file")?;
    let bytes = std::fs::read(&state)?;
    for n in [0, 7, 100, bytes.len() - 1] {
        std::fs::write(&state, &bytes[..n])?;
        bad("generate", &dir, &["--load-state", &state, "--tokens", "3"], "not a saved sequence")?;
    }
    std::fs::copy(dir.join("model.safetensors"), &state)?;
    bad("generate", &dir, &["--load-state", &state, "--tokens", "3"], "not a saved sequence")?;
    bad("generate", &dir, &["--prompt", "a", "--prompt", "b", "--tokens", "3", "--save-state", &state], "a state is that of one text")?;
    // What cannot be written, or is something else, is said before anything is generated, and nothing is left beside it.
    for (place, what) in [("no/such/dir/state", "no/such/dir/state"), (".", "not a regular file"), ("model.safetensors", "no saved text")] {
        let place = dir.join(place).display().to_string();
        bad("generate", &dir, &["--prompt", "a", "--tokens", "3", "--save-state", &place], what)?;
    }
    let left: Vec<_> = std::fs::read_dir(&dir)?.map(|entry| Ok(entry?.file_name())).collect::<Outcome<_>>()?;
    assert_eq!(left.len(), 3, "{left:?}");
    Ok(())
}

#[test]
fn texts_end_where_they_are_told_to() -> Outcome {
    let dir = model("ends", &bytes_config(), 1)?;
    let fixed = ["--prompt", "abc", "--tokens", "30"];
    let whole = &lines("generate", &dir, &fixed)?[0];
    let all = tokens(whole);
    let end = all[4].to_string();
    let n = all.iter().position(|token| *token == all[4]).ok_or("no such token")? + 1;
    let stopped = &lines("generate", &dir, &[&fixed[..], &["--stop-id", &end]].concat())?[0];
    assert_eq!((tokens(stopped).len(), stopped["finish_reason"].as_str()), (n, Some("end")));
    // A text that comes ends it before itself.
    let text = whole["text"].as_str().ok_or("no text")?;
    let letters: Vec<char> = text.chars().collect();
    let stop = letters.windows(2).skip(3).find(|pair| !pair.contains(&'\0')).ok_or("no such text")?;
    let stop: String = stop.iter().collect();
    let stopped = &lines("generate", &dir, &[&fixed[..], &["--stop", &stop]].concat())?[0];
    let before = text.split_once(&stop).ok_or("no such text")?.0;
    assert_eq!((stopped["text"].as_str(), stopped["finish_reason"].as_str()), (Some(before), Some("stop")));
    assert_eq!(good("generate", &dir, &[&fixed[..], &["--stop", &stop]].concat())?, format!("{before}\n"));
    Ok(())
}

#[test]
fn a_tokenizer_takes_texts_apart_and_puts_them_together() -> Outcome {
    let dir = model("words", &words_config(), 3)?;
    std::fs::write(dir.join("tokenizer.json"), TOKENIZER)?;
    let line = &lines("generate", &dir, &["--prompt", "the cat", "--tokens", "40", "--ignore-eos", "--temperature", "2"])?[0];
    assert_eq!((line["prompt_tokens"].as_u64(), tokens(line).len()), (Some(4), 40));
    assert!(tokens(line).iter().all(|&token| token < 10), "{line}");
    let text = line["text"].as_str().ok_or("no text")?;
    let pieces = ["t", "h", "e", " ", "c", "a", "th", "the", " c", ""];
    let wanted: String = tokens(line).iter().map(|&token| pieces[usize::try_from(token).unwrap_or(9)]).collect();
    assert_eq!(text, wanted);
    // The token that ends a text ends it, and is no part of it.
    let n = tokens(line).iter().position(|&token| token == 9).ok_or("the text has no end")?;
    let ended = &lines("generate", &dir, &["--prompt", "the cat", "--tokens", "40", "--temperature", "2"])?[0];
    assert_eq!((tokens(ended).len(), ended["finish_reason"].as_str()), (n + 1, Some("end")));
    // The model's own file says which one it is.
    std::fs::write(dir.join("generation_config.json"), r#"{"eos_token_id": [5, 4]}"#)?;
    let n = tokens(line).iter().position(|&token| token == 4 || token == 5).ok_or("the text has no end")?;
    let ended = &lines("generate", &dir, &["--prompt", "the cat", "--tokens", "40", "--temperature", "2"])?[0];
    assert_eq!(tokens(ended).len(), n + 1);
    // Numbers in place of a text.
    let numbers = ["--ids", "--prompt", "7 8 5 0", "--tokens", "40", "--ignore-eos", "--temperature", "2"];
    assert_eq!(tokens(&lines("generate", &dir, &numbers)?[0]), tokens(line));

    bad("generate", &dir, &["--ids", "--prompt", "7 x", "--tokens", "1"], "\"x\" is no number of a token")?;
    bad(
        "generate",
        &dir,
        &["--ids", "--prompt", "7 12", "--tokens", "1"],
        "--prompt 1: token 12 is not below the model's vocabulary of 10",
    )?;
    let small = model("words_small", &LmConfig { vocab_size: 8, vocab_padding: 0, ..words_config() }, 3)?;
    std::fs::write(small.join("tokenizer.json"), TOKENIZER)?;
    for (file, what) in
        [(TOKENIZER, "the tokenizer has tokens up to 9, and the model those below 8"), ("{", "not a tokenizer"), ("", "not a tokenizer")]
    {
        std::fs::write(small.join("tokenizer.json"), file)?;
        for (command, args) in [("generate", &["--prompt", "the", "--tokens", "1"][..]), ("embed", &["--text", "the"])] {
            bad(command, &small, args, what)?;
        }
    }
    std::fs::remove_file(small.join("tokenizer.json"))?;
    bad("generate", &small, &["--prompt", "the", "--tokens", "1"], "a vocabulary of 8 and no tokenizer.json")?;
    Ok(())
}

#[test]
fn texts_become_vectors_and_are_judged() -> Outcome {
    let dir = model("judged", &bytes_config(), 1)?;
    let file = dir.join("texts");
    std::fs::write(&file, "the first\n\nthe second of them\r\nthe first\n")?;
    let path = file.display().to_string();
    let vectors = lines("embed", &dir, &["--text", "a", "--file", &path, "--batch", "2", "--chunk-len", "5"])?;
    assert_eq!(
        vectors.iter().map(|line| line["text"].as_str()).collect::<Vec<_>>(),
        ["a", "the first", "the second of them", "the first"].map(Some)
    );
    let vector =
        |line: &Value| line["embedding"].as_array().map(|x| x.iter().filter_map(Value::as_f64).collect::<Vec<_>>()).unwrap_or_default();
    assert_eq!(vector(&vectors[0]).len(), 16);
    let cosines = lines("embed", &dir, &["--text", "a", "--file", &path, "--similarity"])?;
    let row = &cosines[1]["cosines"];
    assert!(row[1].as_f64() > Some(0.999) && row[3].as_f64() > Some(0.999) && row[0].as_f64() < Some(0.999), "{row}");
    assert_eq!(good("embed", &dir, &["--text", "a", "--file", &path, "--similarity"])?.lines().count(), 4);

    let whole = &lines("eval", &dir, &["--data", &path])?[0];
    let windows = &lines("eval", &dir, &["--data", &path, "--chunk-len", "7"])?[0];
    assert_eq!((whole["tokens"].as_u64(), whole["bytes"].as_u64()), (Some(40), Some(40)));
    let difference = whole["loss"].as_f64().ok_or("no loss")? - windows["loss"].as_f64().ok_or("no loss")?;
    assert!(difference.abs() < 1e-5, "{difference}");
    // Random weights expect nothing: eight bits a byte, more or less.
    assert!(whole["bits_per_byte"].as_f64().is_some_and(|bits| (6.0..12.0).contains(&bits)), "{whole}");
    assert!(good("eval", &dir, &["--data", &path, "--batch", "3", "--top-k", "9"])?.contains("among 9 "));
    std::fs::write(&file, "x")?;
    bad("eval", &dir, &["--data", &path], "the text has 1 tokens, and the first one is not judged")?;
    bad("eval", &dir, &["--data", "no/such/file"], "no/such/file")?;
    bad("embed", &dir, &[], "there is no text")?;
    bad("embed", &dir, &["--text", ""], "the text has no tokens")?;
    Ok(())
}

#[test]
fn bad_input_is_one_clear_error_before_any_work() -> Outcome {
    let dir = model("bad", &bytes_config(), 1)?;
    let with = |more: &[&'static str]| [&["--prompt", "a", "--tokens", "1"], more].concat();
    bad("generate", &dir, &["--tokens", "1"], "there is no prompt")?;
    bad("generate", &dir, &["--prompt", "", "--tokens", "1"], "the prompt is empty")?;
    bad("generate", &dir, &["--prompt-file", "no/such/file", "--tokens", "1"], "no/such/file")?;
    bad("generate", &dir, &with(&["--temperature", "-1"]), "temperature is -1")?;
    bad("generate", &dir, &with(&["--temperature", "nan"]), "temperature is NaN")?;
    bad("generate", &dir, &with(&["--top-p", "1.5"]), "top_p is 1.5")?;
    bad("generate", &dir, &with(&["--min-p", "-0.1"]), "min_p is -0.1")?;
    bad("generate", &dir, &with(&["--repetition-penalty", "0"]), "repetition_penalty is 0")?;
    bad("generate", &dir, &with(&["--stop", ""]), "--stop is empty")?;
    bad("generate", &dir, &with(&["--stop-id", "256"]), "--stop-id 256 is not below the vocabulary of 256")?;
    // Weights that are no numbers are found, and where they lead to.
    let config = bytes_config();
    let mut params = init::lm(&config, 1)?;
    let weight = params.get_mut("backbone.layers.1.mixer.in_proj.weight").ok_or("no such weight")?;
    weight.as_f32_mut().ok_or("not f32")?[3] = f32::NAN;
    for (name, bytes) in checkpoint::save(&config, &params)? {
        std::fs::write(dir.join(name), bytes)?;
    }
    let file = dir.join("text");
    std::fs::write(&file, "some text")?;
    for (command, args) in
        [("generate", with(&[])), ("embed", vec!["--text", "a"]), ("eval", vec!["--data", file.to_str().unwrap_or_default()])]
    {
        bad(command, &dir, &args, "backbone.layers.1.mixer.in_proj.weight")?;
    }
    // A weight so large that what follows overflows is a finite number, and the trace tells where that happens.
    let mut params = init::lm(&config, 1)?;
    params.get_mut("backbone.layers.1.norm.weight").ok_or("no such weight")?.as_f32_mut().ok_or("not f32")?.fill(3e38);
    for (name, bytes) in checkpoint::save(&config, &params)? {
        std::fs::write(dir.join(name), bytes)?;
    }
    bad("generate", &dir, &with(&["--trace-nan"]), "layers.1/norm")?;
    bad("generate", &dir, &with(&[]), "the model's logits of sequence 0 are not finite")?;
    bad("generate", &dir, &with(&["--temperature", "1"]), "the model's logits of sequence 0 are not finite")?;
    bad("embed", &dir, &["--text", "a"], "the model's hidden states are not finite")?;
    bad("eval", &dir, &["--data", file.to_str().unwrap_or_default()], "the model's losses are not finite")?;
    let whole = model("whole", &bytes_config(), 1)?;
    assert_eq!(good("generate", &whole, &with(&["--trace-nan"]))?, "all values are finite\n");
    Ok(())
}
