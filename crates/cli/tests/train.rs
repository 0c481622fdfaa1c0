//! Guards `train` and `run --gradcheck` as scripts see them: tokens of a tokenizer, what a run leaves in its directory, going on after a
//! cut with the same bits, what trains, and one clear error for each mistake.
//! All of it runs without a graphics adapter.

use serde_json::Value;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Four words, the last of which stands for all others.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"the": 0, "cat": 1, "sat": 2, "?": 5}, "unk_token": "?"}}"#;

/// A fresh directory with a text and a tokenizer in it.
fn scratch(name: &str) -> Outcome<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("text"), "the cat sat, the dog sat\n".repeat(20))?;
    std::fs::write(dir.join("tokenizer.json"), TOKENIZER)?;
    Ok(dir)
}

/// Exit code, stdout and stderr.
fn run(dir: &Path, args: &str) -> Outcome<(Option<i32>, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_monopass"));
    command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent").env("NO_COLOR", "1");
    let output = command.current_dir(dir).args(args.split(' ')).output()?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

const SMALL: &str = "--data text --steps 2 --batch 3 --len 5 --layers 1 --config d_model=8,headdim=8,d_state=3 --held-out 0.2";

#[test]
fn a_model_of_words_is_trained_and_found_again() -> Outcome {
    let dir = scratch("words")?;
    let (code, stdout, stderr) = run(&dir, &format!("train {SMALL} --tokenizer tokenizer.json --out run --dtype f16 --json"))?;
    assert_eq!(code, Some(0), "{stderr}");
    let lines: Vec<Value> = stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    let (eval, end) = (of("eval")[0], of("end")[0]);
    assert_eq!(of("step").len(), 2);
    // Seven tokens a line of 25 bytes: 140 tokens, of which 28 are held out, and all but the first of them count.
    let nats = eval["loss"].as_f64().ok_or("no loss")? * 27.0;
    let bits = nats / std::f64::consts::LN_2 / (500.0 - 400.0 - 3.0);
    assert!((bits - end["bits_per_byte"].as_f64().ok_or("no bits")?).abs() < 1e-3, "{bits} {end}");
    // Both pictures, the log, and a model in halves that the other commands read.
    let run_dir = dir.join("run");
    assert!(std::fs::read(run_dir.join("curve.png"))?.starts_with(b"\x89PNG"));
    assert!(std::fs::read_to_string(run_dir.join("curve.svg"))?.contains("nats a token"));
    assert_eq!(std::fs::read_to_string(run_dir.join("curve.jsonl"))?.lines().count(), 3);
    let (code, stdout, stderr) = run(&dir, "inspect run")?;
    assert!(code == Some(0) && stdout.contains("vocabulary 6") && stdout.contains("F16") && stdout.contains("F32"), "{stdout}{stderr}");
    Ok(())
}

#[test]
fn a_model_of_bytes_in_halves_continues_a_prompt() -> Outcome {
    let dir = scratch("halves")?;
    for dtype in ["f16", "bf16"] {
        let (code, _, stderr) = run(&dir, &format!("train {SMALL} --out {dtype} --dtype {dtype}"))?;
        assert_eq!(code, Some(0), "{stderr}");
        let (code, stdout, stderr) = run(&dir, &format!("generate --model {dtype} --prompt the --tokens 3 --json"))?;
        assert_eq!(code, Some(0), "{stderr}");
        let json: Value = serde_json::from_str(&stdout)?;
        assert_eq!(json["tokens"].as_array().map(Vec::len), Some(3));
    }
    Ok(())
}

#[test]
fn tokenizers_that_do_not_fit_are_refused() -> Outcome {
    let dir = scratch("refused")?;
    std::fs::write(dir.join("latin"), b"caf\xe9 ".repeat(50))?;
    std::fs::write(dir.join("empty"), b"")?;
    assert_eq!(run(&dir, &format!("train {SMALL} --out bytes"))?.0, Some(0));
    assert_eq!(run(&dir, &format!("train {SMALL} --tokenizer tokenizer.json --out words"))?.0, Some(0));
    let cases = [
        ("train --data latin --tokenizer tokenizer.json --out x", "not text in UTF-8 from byte 3 on"),
        ("train --data text --tokenizer text --out x", "text: not a tokenizer"),
        ("train --data text --tokenizer nothing --out x", "nothing"),
        ("train --data empty --tokenizer tokenizer.json --out x", "has 0 tokens"),
        ("train --data text --model words --out x", "the model has a vocabulary of 6, and texts are read as bytes"),
    ];
    for (args, said) in cases {
        let (code, stdout, stderr) = run(&dir, args)?;
        assert!(code == Some(1) && stdout.is_empty() && stderr.contains(said), "{args}: {code:?} {stdout}{stderr}");
        assert!(!dir.join("x").join("training").exists());
    }
    Ok(())
}

/// Losses and gradient norms of a run's log, as they stand there.
fn curve(dir: &Path, run: &str) -> Outcome<Vec<(u64, String, String)>> {
    let text = std::fs::read_to_string(dir.join(run).join("curve.jsonl"))?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let of = |line: &Value| (line["step"].as_u64().unwrap_or(0), line["loss"].to_string(), line["grad_norm"].to_string());
    Ok(lines.iter().map(of).collect())
}

const BYTES: &str =
    "--data text --steps 6 --batch 3 --len 7 --layers 1 --config d_model=8,headdim=8,d_state=3 --held-out 0.2 --eval-every 2";

#[test]
fn a_run_that_was_cut_off_goes_on_with_the_same_bits() -> Outcome {
    let dir = scratch("resume")?;
    for windows in ["carried", "shuffled"] {
        let (whole, cut) = (format!("whole-{windows}"), format!("cut-{windows}"));
        let options = format!("{BYTES} --windows {windows} --save-every 2 --keep 9");
        let (code, _, stderr) = run(&dir, &format!("train {options} --out {whole}"))?;
        assert_eq!(code, Some(0), "{stderr}");
        // A run that ended after its second save: what came later is not there.
        std::fs::create_dir_all(dir.join(&cut).join("training"))?;
        for file in ["step-00000004.json", "step-00000004.safetensors"] {
            std::fs::copy(dir.join(&whole).join("training").join(file), dir.join(&cut).join("training").join(file))?;
        }
        std::fs::copy(dir.join(&whole).join("curve.jsonl"), dir.join(&cut).join("curve.jsonl"))?;
        let (code, _, stderr) = run(&dir, &format!("train {options} --out {cut} --resume"))?;
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(curve(&dir, &whole)?, curve(&dir, &cut)?, "{windows}");
        let model = |run: &str| std::fs::read(dir.join(run).join("model.safetensors"));
        assert!(model(&whole)? == model(&cut)?, "{windows}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_trained_is_one_clear_error() -> Outcome {
    let dir = scratch("mistakes")?;
    std::fs::write(dir.join("empty"), "")?;
    let (code, _, stderr) = run(&dir, &format!("train {BYTES} --out there"))?;
    assert_eq!(code, Some(0), "{stderr}");
    let mistakes = [
        (BYTES.replace("--data text", "--data empty") + " --out a", "training part of the text has 0 tokens"),
        (BYTES.replace("--data text", "--data nowhere") + " --out b", "nowhere"),
        (format!("{BYTES} --out there"), "there is a run already, saved at step 6"),
        (format!("{BYTES} --out nothing --resume"), "no saved step"),
        (BYTES.replace("--batch 3", "--batch 2") + " --out there --resume", "started with --batch 3, not 2"),
        (format!("{BYTES} --out c --trainable nothing.*"), "no parameter matches"),
        (format!("{BYTES} --out d --lora *norm*"), "no linear map"),
        (format!("{BYTES} --out e --lr 0"), "peak_lr is 0"),
        (format!("{BYTES} --out f --beta1 1"), "beta1 is 1"),
        (format!("{BYTES} --out g --vocab-rows 10"), "there are 256 tokens"),
    ];
    for (args, what) in mistakes {
        let (code, stdout, stderr) = run(&dir, &format!("train {args}"))?;
        // Lines of a report are wrapped where they are long.
        let flat = stderr.replace(['\n', '│'], " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(code == Some(1) && stdout.is_empty() && flat.contains(what), "{args}: {code:?}\n{stderr}");
    }
    Ok(())
}

#[test]
fn adapters_and_rows_train_by_their_options() -> Outcome {
    let dir = scratch("parts")?;
    for (i, more) in
        ["--trainable wsla", "--lora *in_proj* --lora-rank 2", "--trainable *norm* --accumulate 2", "--init predecessor"].iter().enumerate()
    {
        let (code, _, stderr) = run(&dir, &format!("train {BYTES} --out run{i} {more}"))?;
        assert_eq!(code, Some(0), "{more}: {stderr}");
        let (code, _, stderr) = run(&dir, &format!("generate --model run{i} --prompt the --tokens 4 --executor cpu"))?;
        assert_eq!(code, Some(0), "{more}: {stderr}");
    }
    Ok(())
}

#[test]
fn gradients_of_a_file_are_checked() -> Outcome {
    let dir = scratch("gradcheck")?;
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let (code, stdout, stderr) = run(&dir, &format!("run {} --gradcheck", cases.join("ssd.ir").display()))?;
    assert!(code == Some(0) && stdout.contains("worst") && stdout.ends_with("gradients agree\n"), "{stdout}{stderr}");
    let (code, stdout, _) = run(&dir, &format!("run {} --gradcheck --json", cases.join("rms_norm.ir").display()))?;
    let report: Value = serde_json::from_str(&stdout)?;
    assert!(code == Some(0) && report["passed"] == true && report["checked"].as_u64() > Some(0));
    let (code, _, stderr) = run(&dir, &format!("run {} --gradcheck", cases.join("not.ir").display()))?;
    assert!(code == Some(1) && stderr.contains("no float result"), "{stderr}");
    Ok(())
}

/// Models that no other program has a layout for are written in our own, in any storage type, and are found and trained again.
#[test]
fn every_block_is_written_as_a_checkpoint() -> Outcome {
    let dir = scratch("own")?;
    for (block, dtype, says) in
        [("cmamba", "f32", "complex states"), ("mamba2-seed", "bf16", "without gate"), ("mamba2", "int8", "8-bit weights")]
    {
        let out = format!("run-{block}");
        let (code, _, stderr) = run(&dir, &format!("train {SMALL} --block {block} --out {out} --dtype {dtype}"))?;
        assert!(code == Some(0) && stderr.contains("in monopass's own layout") && stderr.contains(says), "{stderr}");
        let (code, stdout, stderr) = run(&dir, &format!("inspect {out}"))?;
        let dtype = dtype.to_uppercase();
        assert!(code == Some(0) && stdout.starts_with("monopass: 1 layers") && stdout.contains(&format!(" {dtype}")), "{stdout}{stderr}");
        let (code, _, stderr) = run(&dir, &format!("generate --model {out} --prompt a --tokens 2 --executor cpu"))?;
        assert_eq!(code, Some(0), "{stderr}");
        let again = format!("train --data text --steps 1 --batch 3 --len 5 --held-out 0.2 --model {out} --out again-{block}");
        let (code, _, stderr) = run(&dir, &again)?;
        assert_eq!(code, Some(0), "{stderr}");
    }
    Ok(())
}
