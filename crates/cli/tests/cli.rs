//! Guards the command line as scripts see it: exit codes, what stands on stdout, last lines, JSON keys, and one clear error
//! for each bad input. All of it runs without a graphics adapter.

use serde_json::Value;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A file of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A fresh directory for one test.
fn scratch(name: &str) -> Outcome<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// The binary, where it finds no graphics driver.
fn monopass() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_monopass"));
    command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent").env("NO_COLOR", "1");
    command
}

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn ran(output: &Output) -> Outcome<Ran> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    Ok(Ran { code: output.status.code(), stdout: text(&output.stdout)?, stderr: text(&output.stderr)? })
}

fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome<Ran> {
    ran(&monopass().args(args).output()?)
}

/// With a graph on standard input.
fn run_on(graph: &str, args: &[&str]) -> Outcome<Ran> {
    let mut child = monopass().args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(graph.as_bytes())?;
    ran(&child.wait_with_output()?)
}

fn good<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome<String> {
    let ran = run(args)?;
    if ran.code == Some(0) { Ok(ran.stdout) } else { Err(format!("exit code {:?}\n{}", ran.code, ran.stderr).into()) }
}

/// Asserts that a run fails with `code`, says `what`, prints no result and does not panic.
fn check_bad(ran: &Ran, code: i32, what: &str) {
    let said: String =
        ran.stderr.split(|c: char| c.is_whitespace() || c == '│').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    assert_eq!(ran.code, Some(code), "{}", ran.stderr);
    assert!(said.contains(what), "{what:?} is not in:\n{}", ran.stderr);
    assert!(ran.stdout.is_empty(), "{}", ran.stdout);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

const DOUBLE: &str = "ir 1\ngraph @double {\n  %0 = input \"x\" : f32[3]\n  %1 = add %0, %0 : f32[3] @ top\n  output \"y\" = %1\n}\n";

#[test]
fn each_stage_of_a_file_prints_its_text() -> Outcome {
    let file = project("tests/cases/proj_act.ir");
    let stage = |command: &str| good([command.as_ref(), file.as_os_str()]);
    assert!(stage("cat")?.starts_with("ir 1\ngraph @proj_act {"));
    assert_eq!(stage("verify")?, "@proj_act: valid, 4 nodes\n");
    assert!(stage("opt")?.starts_with("ir 1\n"));
    assert!(stage("plan")?.starts_with("plan 1 @proj_act target webgpu-default"));
    assert!(stage("wgsl")?.contains("fn main("));
    assert!(stage("dot")?.starts_with("digraph"));
    assert!(stage("interp")?.starts_with("output \"y\" f32[4, 512]: "));
    Ok(())
}

#[test]
fn a_graph_comes_from_standard_input_and_goes_back() -> Outcome {
    let ran = run_on(DOUBLE, &["cat", "-"])?;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), DOUBLE));
    let optimized = run_on(DOUBLE, &["opt", "-", "--until", "canonicalize"])?;
    assert_eq!(run_on(&optimized.stdout, &["verify", "-"])?.code, Some(0));
    Ok(())
}

#[test]
fn run_without_a_card_uses_the_interpreter_and_says_so() -> Outcome {
    let ran = run_on(DOUBLE, &["run", "-", "--json"])?;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("using the CPU executor"), "{}", ran.stderr);
    let line: Value = serde_json::from_str(&ran.stdout)?;
    assert_eq!((&line["name"], &line["shape"][0], line["values"].as_array().map(Vec::len)), (&"y".into(), &3.into(), Some(3)));
    let ran = run_on(DOUBLE, &["run", "-", "--check", "--executor", "cpu"])?;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    Ok(())
}

#[test]
fn integers_are_printed_exactly() -> Outcome {
    let graph = "ir 1\ngraph @g {\n  %0 = const 16777217 : i32[2]\n  %1 = const 1 : bool[]\n  output \"y\" = %0\n  output \"z\" = %1\n}\n";
    let ran = run_on(graph, &["interp", "-"])?;
    assert_eq!(ran.stdout, "output \"y\" i32[2]: 16777217, 16777217\noutput \"z\" bool[]: true\n");
    Ok(())
}

#[test]
fn dumps_go_to_a_directory() -> Outcome {
    let dir = scratch("dump")?;
    let file = project("tests/cases/proj_act.ir");
    good(["plan".as_ref(), file.as_os_str(), "--dump".as_ref(), dir.as_os_str()])?;
    for name in ["00-input.ir", "plan.txt", "k0.wgsl"] {
        assert!(dir.join(name).is_file(), "{name}");
    }
    let again = run(["plan".as_ref(), file.as_os_str(), "--dump".as_ref(), dir.as_os_str()])?;
    check_bad(&again, 1, "of an earlier dump");
    Ok(())
}

#[test]
fn a_block_shows_every_stage() -> Outcome {
    let block = |more: &[&str]| {
        let fixed = ["block", "mamba2", "--config", "d_model=32,headdim=8,d_state=8", "--batch", "3", "--len", "5"];
        good(fixed.iter().chain(more))
    };
    assert!(block(&["--emit", "ir"])?.starts_with("ir 1\ngraph @mamba2 {"));
    assert!(block(&["--emit", "plan", "--target", "nvidia"])?.starts_with("plan 1 @mamba2 target nvidia"));
    assert!(block(&["--emit", "wgsl"])?.contains("fn main("));
    assert!(block(&["--emit", "dot"])?.starts_with("digraph"));
    assert!(block(&["--emit", "html"])?.starts_with("<!doctype html>"));
    let json: Value = serde_json::from_str(&block(&["--emit", "json"])?)?;
    assert_eq!(json["name"], "mamba2");
    let step = good(["block", "mamba2-seed", "--config", "d_model=32,headdim=8", "--mode", "step", "--emit", "plan"])?;
    assert!(step.starts_with("plan 1 @mamba2"), "{step}");
    Ok(())
}

/// The blocks with complex states and ranks, small.
const NEW_BLOCKS: [(&str, &str); 4] = [
    ("cmamba", "d_model=16,headdim=4,d_state=3"),
    ("cmamba", "d_model=16,headdim=4,d_state=3,mimo_rank=2,gate=true"),
    ("mamba3", "d_model=16,headdim=4,d_state=6,a_act=softplus,rope_fraction=1"),
    ("mamba3", "d_model=16,headdim=4,d_state=6,is_mimo=true,mimo_rank=2,is_outproj_norm=true"),
];

#[test]
fn every_block_shows_every_stage() -> Outcome {
    for (name, config) in NEW_BLOCKS {
        for mode in ["forward", "step"] {
            let block = |emit: &str| good(["block", name, "--config", config, "--mode", mode, "--emit", emit]);
            assert!(block("ir")?.starts_with(&format!("ir 1\ngraph @{name} {{")), "{name}");
            assert!(block("plan")?.starts_with(&format!("plan 1 @{name} target webgpu-default")), "{name}");
            assert!(block("wgsl")?.contains("fn main("), "{name}");
            let json: Value = serde_json::from_str(&block("json")?)?;
            assert_eq!(json["name"], name);
        }
    }
    let help = good(["block", "--help"])?;
    assert!(help.contains("cmamba") && help.contains("mamba3"), "{help}");
    Ok(())
}

#[test]
fn every_block_is_measured() -> Outcome {
    for (name, config) in NEW_BLOCKS {
        for mode in ["forward", "step"] {
            let line = good(["bench", "block", name, "--config", config, "--mode", mode, "--executor", "cpu", "--runs", "1"])?;
            let line: Value = serde_json::from_str(&line)?;
            assert_eq!((&line["block"], &line["mode"], &line["executor"]), (&name.into(), &mode.into(), &"cpu".into()));
        }
    }
    Ok(())
}

#[test]
fn drift_is_a_line_at_each_power_of_ten() -> Outcome {
    for (name, config) in NEW_BLOCKS {
        let lines = good(["bench", "drift", name, "--config", config, "--tokens", "120", "--executor", "cpu"])?;
        let lines = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        assert_eq!(lines.iter().filter_map(|line| line["tokens"].as_u64()).collect::<Vec<_>>(), [10, 100, 120]);
        let last = lines.last().and_then(Value::as_object).ok_or("no line")?;
        let keys: Vec<&str> = last.keys().map(String::as_str).collect();
        assert_eq!(keys, ["block", "config", "executor", "adapter", "seed", "tokens", "drift", "peak"]);
        let states: &[&str] =
            if name == "cmamba" { &["out", "conv_state", "ssm_state"] } else { &["out", "angle_state", "ssm_state", "k_state", "v_state"] };
        for name in states {
            let drift = last["drift"][name].as_f64().ok_or("no drift")?;
            let peak = last["peak"][name].as_f64().ok_or("no peak")?;
            assert!(drift < 1e-4 && peak > 1e-3, "{name} drifts by {drift} of {peak}");
        }
        assert!(last["drift"]["out"].as_f64() > Some(0.0), "{last:?}");
    }
    check_bad(&run(["bench", "drift", "mamba3", "--config", "rope_fraction=0.3"])?, 1, "rope_fraction is 0.3");
    assert_eq!(run(["bench", "drift", "mamba3", "--tokens", "0"])?.code, Some(2));
    Ok(())
}

const BENCH_KEYS: [&str; 23] = [
    "block",
    "mode",
    "executor",
    "adapter",
    "batch",
    "len",
    "len_class",
    "dtype",
    "config",
    "ms_median",
    "cpu_ms",
    "gpu_ms",
    "submits",
    "encoders",
    "passes",
    "dispatches",
    "buffers_created",
    "bytes_allocated",
    "peak_bytes",
    "flops",
    "bytes_moved",
    "tflops",
    "gbps",
];

#[test]
fn bench_prints_a_line_for_each_size() -> Outcome {
    let config = "d_model=16,headdim=4,d_state=4";
    let fixed = ["bench", "block", "mamba2", "--config", config, "--executor", "cpu", "--runs", "1", "--batch", "1,3", "--len", "9"];
    let lines = good(fixed)?;
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line)?;
        let keys: Vec<&str> = line.as_object().ok_or("no object")?.keys().map(String::as_str).collect();
        assert_eq!(keys, BENCH_KEYS);
        assert_eq!((&line["len_class"], &line["config"]), (&"short".into(), &config.into()));
    }
    Ok(())
}

#[test]
fn cases_pass_and_are_counted_on_the_last_line() -> Outcome {
    let dir = project("tests/golden");
    let fixed = ["cases".as_ref(), dir.as_os_str(), "--executor".as_ref(), "cpu".as_ref()];
    let with = |more: &[&str]| run(fixed.iter().copied().chain(more.iter().map(AsRef::as_ref)));
    let ran = with(&["--kind", "linear", "--kind", "rmsnorm", "--skip", "*_0"])?;
    let last = ran.stdout.lines().last().unwrap_or_default().to_owned();
    assert_eq!((ran.code, last.ends_with(" passed, 0 failed")), (Some(0), true), "{}", ran.stdout);
    let ran = with(&["--id", "decode_mamba2_*", "--json"])?;
    let lines = ran.stdout.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let (last, cases) = lines.split_last().ok_or("no lines")?;
    assert_eq!((last["failed"].as_u64(), last["passed"].as_u64()), (Some(0), Some(cases.len() as u64)));
    assert!(cases.iter().all(|case| case["passed"] == true && case["tensors"].as_array().is_some_and(|tensors| !tensors.is_empty())));
    check_bad(&with(&["--kind", "lineer"])?, 1, "--kind lineer matches no case");
    check_bad(&with(&["--id", "nothing*"])?, 1, "matches no case");
    check_bad(&with(&["--skip", "*"])?, 1, "no case is left by the filters");
    // With gradients a case has more to compare.
    let n_tensors = |more: &[&str]| -> Outcome<usize> {
        let ran = with(&[&["--id", "ssd_1_plain", "--json"], more].concat())?;
        let case: Value = serde_json::from_str(ran.stdout.lines().next().unwrap_or_default())?;
        assert!(ran.code == Some(0) && case["passed"] == true, "{}", ran.stdout);
        Ok(case["tensors"].as_array().map_or(0, Vec::len))
    };
    assert!(n_tensors(&["--grads"])? > n_tensors(&[])?);
    Ok(())
}

#[test]
fn a_wrong_result_and_an_unknown_kind_fail() -> Outcome {
    let dir = scratch("cases")?;
    let manifest: Value = serde_json::from_str(&std::fs::read_to_string(project("tests/golden/manifest.json"))?)?;
    let cases = manifest["cases"].as_array().ok_or("no cases")?;
    let mut linear = cases.iter().find(|case| case["kind"] == "linear").ok_or("no linear case")?.clone();
    let file = linear["file"].as_str().ok_or("no file")?.to_owned();
    std::fs::copy(project("tests/golden").join(&file), dir.join(&file))?;
    linear["expect"]["out.y"]["atol"] = (-1.0).into();
    let mut unknown = linear.clone();
    unknown["id"] = "odd".into();
    unknown["kind"] = "mystery".into();
    std::fs::write(dir.join("manifest.json"), serde_json::json!({ "cases": [linear, unknown] }).to_string())?;
    let ran = run(["cases".as_ref(), dir.as_os_str(), "--executor".as_ref(), "cpu".as_ref()])?;
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((ran.code, lines.len()), (Some(1), 3), "{}", ran.stdout);
    assert!(lines[0].contains("out.y error ") && lines[0].contains(" over atol -1"), "{}", lines[0]);
    assert!(lines[1].contains("unknown kind \"mystery\""), "{}", lines[1]);
    assert_eq!(lines[2], "0 passed, 2 failed");
    Ok(())
}

#[test]
fn a_checkpoint_is_inspected() -> Outcome {
    let dir = project("tests/golden/ckpt_hf_mamba2_sharded");
    let json: Value = serde_json::from_str(&good(["inspect".as_ref(), dir.as_os_str(), "--json".as_ref()])?)?;
    assert_eq!((&json["layout"], &json["config"]["n_layer"]), (&"hf-safetensors-sharded".into(), &2.into()));
    assert!(good(["inspect".as_ref(), dir.as_os_str()])?.starts_with("hf-safetensors-sharded: 2 layers"));
    let two = project("tests/golden/ckpt_ssm_mamba2");
    assert!(
        good(["inspect".as_ref(), two.as_os_str()])?.starts_with("ssm-bin: 2 layers, d_model 16, vocabulary 21 padded to 32, head tied")
    );
    let three = project("tests/golden/ckpt_ssm_mamba3");
    let args = ["inspect".as_ref(), three.as_os_str(), "--a-act".as_ref(), "heavy_tail".as_ref(), "--json".as_ref()];
    let json: Value = serde_json::from_str(&good(args)?)?;
    let said = |key: &str| json["config"][key].clone();
    assert_eq!((said("block"), said("a_act"), said("mimo_rank")), ("mamba3".into(), "heavy_tail".into(), 2.into()));
    assert_eq!((said("vocab_size"), said("vocab_padding")), (32.into(), 11.into()));
    Ok(())
}

#[test]
fn a_gguf_file_is_inspected_and_cases_run_it() -> Outcome {
    let source = project("tests/golden/ckpt_gguf_mamba2");
    let ran = run(["inspect".as_ref(), source.as_os_str()])?;
    assert!(ran.stdout.starts_with("gguf: 2 layers, d_model 16, vocabulary 32, head tied\nblock: mamba2, d_state 4, "), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("4840 parameters, ") && ran.stdout.contains(" as int8, and 2.12 KiB of states a sequence"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("put the model's tokenizer.json beside it"), "{}", ran.stderr);
    // One of several, by its own name, and with a tokenizer.
    let dir = scratch("gguf")?;
    std::fs::copy(source.join("model.gguf"), dir.join("tiny.f32.gguf"))?;
    std::fs::copy(source.join("model.gguf"), dir.join("other.gguf"))?;
    check_bad(&run(["inspect".as_ref(), dir.as_os_str()])?, 1, "2 .gguf files in the directory, other.gguf among them");
    std::fs::write(dir.join("tokenizer.json"), "{}")?;
    let ran = run(["inspect".as_ref(), dir.join("tiny.f32.gguf").as_os_str(), "--json".as_ref()])?;
    assert!(!ran.stderr.contains("tokenizer"), "{}", ran.stderr);
    let json: Value = serde_json::from_str(&ran.stdout)?;
    assert_eq!((&json["layout"], &json["tensors"][3]["file"]), (&"gguf".into(), &"tiny.f32.gguf".into()));
    assert_eq!(
        (&json["load_bytes"], &json["device_bytes"]["f32"], &json["device_bytes"]["int8"]),
        (&19360.into(), &19360.into(), &7616.into())
    );
    let golden = project("tests/golden");
    let args = ["cases".as_ref(), golden.as_os_str(), "--id".as_ref(), "ckpt_*".as_ref(), "--executor".as_ref(), "cpu".as_ref()];
    assert!(good(args)?.contains("5 passed, 0 failed"));
    Ok(())
}

#[test]
fn bad_gguf_files_are_one_clear_error() -> Outcome {
    let dir = scratch("bad_gguf")?;
    let whole = std::fs::read(project("tests/golden/ckpt_gguf_mamba2/model.gguf"))?;
    let path = dir.join("x.gguf");
    let check = |bytes: &[u8], what: &str| -> Outcome {
        std::fs::write(&path, bytes)?;
        for at in [&path, &dir] {
            check_bad(&run(["inspect".as_ref(), at.as_os_str()])?, 1, what);
        }
        Ok(())
    };
    check(b"", "x.gguf: it is empty help: download it again")?;
    check(b"PK\x03\x04 and so on", "x.gguf: it does not start with GGUF")?;
    check(&whole[..whole.len() - 1], "ends behind the end of the file, which has 21119 bytes")?;
    let at = whole.windows(6).position(|window| window == b"mamba2").ok_or("no architecture")?;
    check(&[&whole[..at], b"llama4", &whole[at + 6..]].concat(), "general.architecture is \"llama4\", not \"mamba2\"")?;
    check(&[&whole[..8], &(1u64 << 60).to_le_bytes(), &whole[16..]].concat(), "it has 1152921504606846976 tensors, too many")?;
    Ok(())
}

/// A copy of a checkpoint, in which a text of a file is replaced by one of the same length or, in JSON, of any.
fn altered(id: &str, name: &str, file: &str, from: &[u8], to: &[u8]) -> Outcome<PathBuf> {
    let (source, dir) = (project("tests/golden").join(id), scratch(name)?);
    for copied in ["config.json", "pytorch_model.bin"] {
        let bytes = std::fs::read(source.join(copied))?;
        let at = bytes.windows(from.len()).position(|window| window == from).filter(|_| copied == file);
        assert_eq!(at.is_some(), copied == file, "{copied}");
        let bytes = at.map_or_else(|| bytes.clone(), |at| [&bytes[..at], to, &bytes[at + from.len()..]].concat());
        std::fs::write(dir.join(copied), bytes)?;
    }
    Ok(dir)
}

#[test]
fn bad_checkpoints_of_state_spaces_are_one_clear_error() -> Outcome {
    let check = |dir: &Path, more: &[&str], what: &str| -> Outcome {
        for command in [&["inspect"][..], &["generate", "--prompt", "a", "--tokens", "1", "--model"], &["embed", "--text", "a", "--model"]]
        {
            let args = command.iter().map(AsRef::as_ref).chain([dir.as_os_str()]).chain(more.iter().map(AsRef::as_ref));
            check_bad(&run(args)?, 1, what);
        }
        Ok(())
    };
    let three = project("tests/golden/ckpt_ssm_mamba3");
    check(&three, &[], "load with a_act = softplus (mamba_ssm before June 2026) or heavy_tail")?;
    assert_eq!(run(["inspect".as_ref(), three.as_os_str(), "--a-act".as_ref(), "relu".as_ref()])?.code, Some(2));
    let config = |name: &str, from: &str, to: &str| altered("ckpt_ssm_mamba3", name, "config.json", from.as_bytes(), to.as_bytes());
    let recorded = config("ssm_recorded", "\"layer\":", "\"a_act\": \"softplus\", \"layer\":")?;
    check(&recorded, &["--a-act", "heavy_tail"], "ssm_cfg.a_act is \"softplus\", but heavy_tail is asked for")?;
    let act = ["--a-act", "softplus"];
    check(&config("ssm_attn", "\"attn_layer_idx\": []", "\"attn_layer_idx\": [1]")?, &act, "attn_layer_idx is [1]")?;
    check(
        &config("ssm_shape", "\"d_state\": 8", "\"d_state\": 12")?,
        &act,
        "mixer.in_proj.weight is [110, 16], config.json gives [127, 16]",
    )?;
    let weights = |name: &str, from: &[u8], to: &[u8]| altered("ckpt_ssm_mamba3", name, "pytorch_model.bin", from, to);
    let evil = weights("ssm_evil", b"_rebuild_tensor_v2", b"_rebuild_tensor_v3")?;
    check(&evil, &act, "its pickle calls torch._utils._rebuild_tensor_v3, which is never executed")?;
    let cut = weights("ssm_cut", b"PK\x05\x06", b"PK\x05\x07")?;
    check(&cut, &act, "it has no directory, as if it were cut off")?;
    let whole = std::fs::read(cut.join("pytorch_model.bin"))?;
    std::fs::write(cut.join("pytorch_model.bin"), &whole[..whole.len() / 3])?;
    check(&cut, &act, "it has no directory, as if it were cut off")?;
    Ok(())
}

#[test]
fn bad_command_lines_are_usage_errors() -> Outcome {
    for args in [&["nonsense"][..], &["plan"], &["plan", "x.ir", "--target", "gameboy"], &["run", "x.ir", "--off", "everything"]] {
        assert_eq!(run(args)?.code, Some(2), "{args:?}");
    }
    for bad in [&["--temperature", "hot"][..], &["--top-k", "-1"], &["--dtype", "f64"], &["--chunk-len", "0"], &["--beams", "2"]] {
        let fixed = ["generate", "--model", ".", "--prompt", "a", "--tokens", "1"];
        assert_eq!(run(fixed.iter().chain(bad))?.code, Some(2), "{bad:?}");
    }
    assert_eq!(run(["block", "mamba9"])?.code, Some(2));
    assert_eq!(run(["block", "mamba2", "--batch", "0"])?.code, Some(2));
    Ok(())
}

#[test]
fn bad_graphs_are_one_clear_error() -> Outcome {
    let bad = |graph: &str, command: &str, what: &str| -> Outcome {
        check_bad(&run_on(graph, &[command, "-"])?, 1, what);
        Ok(())
    };
    bad(&DOUBLE.replace("add", "addd"), "verify", "addd")?;
    bad(&DOUBLE.replace("%0, %0 :", "%0, %0 {axis = 1} :"), "verify", "axis")?;
    bad(&DOUBLE.replace("f32[3] @", "f32[4] @"), "verify", "at line 4")?;
    bad(&format!("ir 1\ngraph @g {{ {} oops }}", " ".repeat(70_000)), "verify", "at line 2, column 70013")?;
    bad(&DOUBLE.replace("add %0, %0 : f32[3]", "const 7 : bool[]"), "verify", "a bool is 0 or 1")?;
    bad("", "plan", "expected ir")?;
    bad("ir 1\n", "plan", "one graph is wanted, the text has 0")?;
    let large = DOUBLE.replace("f32[3]", "f32[2147483648]");
    bad(&large, "interp", "needs 8589934592 bytes")?;
    bad(&large, "run", "needs 8589934592 bytes")?;
    bad(&large, "plan", "help")?;
    let narrow = run_on(DOUBLE, &["interp", "-", "--max-bytes", "23"])?;
    check_bad(&narrow, 1, "sources and values at %1 need 24 bytes, over the limit of 23");
    check_bad(&run(["plan", "missing.ir"])?, 1, "missing.ir");
    check_bad(&run(["plan", env!("CARGO_TARGET_TMPDIR")])?, 1, "not a regular file");
    check_bad(&run_on(DOUBLE, &["run", "-", "--adapter", "nobody"])?, 1, "no usable graphics adapter");
    check_bad(&run_on(DOUBLE, &["run", "-", "--executor", "gpu"])?, 1, "no usable graphics adapter");
    Ok(())
}

#[test]
fn bad_configurations_are_one_clear_error() -> Outcome {
    let config = |text: &str, what: &str| -> Outcome {
        check_bad(&run(["block", "mamba2", "--config", text])?, 1, what);
        Ok(())
    };
    config("d_model=64,ngroups=3", "nheads = 2 is not a multiple of ngroups = 3")?;
    config("eps=NaN", "which is not a number")?;
    config("wings=2", "no setting is called \"wings\"")?;
    check_bad(&run(["block", "mamba2", "--mode", "step", "--len", "4"])?, 1, "a step is one token");
    check_bad(&run(["block", "mamba2", "--len", "100000000"])?, 1, "help");
    Ok(())
}

#[test]
fn bad_checkpoints_are_one_clear_error() -> Outcome {
    let dir = scratch("checkpoints")?;
    let source = project("tests/golden/ckpt_hf_mamba2");
    let bad = |what: &str| -> Outcome {
        for command in [&["inspect"][..], &["generate", "--prompt", "a", "--tokens", "1", "--model"], &["embed", "--text", "a", "--model"]]
        {
            check_bad(&run(command.iter().map(AsRef::as_ref).chain([dir.as_os_str()]))?, 1, what);
        }
        Ok(())
    };
    let weights = std::fs::read(source.join("model.safetensors"))?;
    std::fs::write(dir.join("model.safetensors"), &weights)?;
    bad("no config.json")?;
    let config = std::fs::read_to_string(source.join("config.json"))?;
    std::fs::write(dir.join("config.json"), config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"))?;
    bad("is missing")?;
    let mut json: Value = serde_json::from_str(&config)?;
    json["n_groups"] = 7.into();
    std::fs::write(dir.join("config.json"), json.to_string())?;
    bad("is not a multiple of n_groups = 7")?;
    std::fs::write(dir.join("config.json"), &config)?;
    std::fs::write(dir.join("model.safetensors"), &weights[..weights.len() / 2])?;
    bad("not a complete safetensors file")?;
    std::fs::remove_file(dir.join("model.safetensors"))?;
    bad("model.safetensors")?;
    check_bad(&run(["inspect", "no/such/place"])?, 1, "no/such/place");
    let source = source.display().to_string();
    check_bad(&run(["generate", "--model", &source, "--prompt", "", "--tokens", "1"])?, 1, "the prompt is empty");
    check_bad(&run(["generate", "--model", &source, "--prompt", "a", "--tokens", "1"])?, 1, "no tokenizer.json");
    Ok(())
}

#[test]
fn a_reader_that_goes_away_is_no_panic() -> Outcome {
    let mut child = monopass().args(["block", "mamba2", "--emit", "wgsl"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8(output.stderr)?;
    assert_eq!((output.status.code(), stderr.as_str()), (Some(141), ""));
    Ok(())
}

#[test]
fn a_padded_mamba3_of_bytes_gives_bytes() -> Outcome {
    use monopass::blocks::{LmConfig, Mamba3Config, checkpoint, init};
    let dir = scratch("bytes3")?;
    let block = Mamba3Config { headdim: 8, d_state: 4, is_mimo: true, mimo_rank: 2, ..Mamba3Config::new(16) };
    let config = LmConfig { vocab_padding: 16, ..LmConfig::new(block, 2, 272) };
    for (name, bytes) in checkpoint::save(&config, &init::lm(&config, 1)?)? {
        std::fs::write(dir.join(name), bytes)?;
    }
    let args = ["generate", "--prompt", "a b", "--tokens", "20", "--json", "--model"];
    let json: Value = serde_json::from_str(&good(args.iter().map(AsRef::as_ref).chain([dir.as_os_str()]))?)?;
    let tokens = json["tokens"].as_array().ok_or("no tokens")?;
    assert!(tokens.len() == 20 && tokens.iter().all(|token| token.as_u64() < Some(256)), "{tokens:?}");
    Ok(())
}

#[test]
fn a_model_of_bytes_continues_a_prompt() -> Outcome {
    use monopass::blocks::{LmConfig, Mamba2Config, checkpoint, init};
    let dir = scratch("bytes")?;
    let block = Mamba2Config { headdim: 8, d_state: 4, ..Mamba2Config::new(16) };
    let config = LmConfig::new(block, 2, 256);
    for (name, bytes) in checkpoint::save(&config, &init::lm(&config, 1)?)? {
        std::fs::write(dir.join(name), bytes)?;
    }
    let fixed = [
        "generate".as_ref(),
        "--prompt".as_ref(),
        "Grüße".as_ref(),
        "--tokens".as_ref(),
        "9".as_ref(),
        "--model".as_ref(),
        dir.as_os_str(),
    ];
    let ran = run(fixed)?;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for said in [
        "using the CPU executor",
        "decode step, interpreted",
        "dispatches of",
        "7 tokens of prompt in 1 run, 9 tokens; first after",
        "memory: weights",
    ] {
        assert!(ran.stderr.contains(said), "{said:?} is not in:\n{}", ran.stderr);
    }
    let json = run(fixed.into_iter().chain(["--json".as_ref()]))?;
    let json: Value = serde_json::from_str(&json.stdout)?;
    assert_eq!((json["tokens"].as_array().map(Vec::len), json["prompt_tokens"].as_u64()), (Some(9), Some(7)));
    assert_eq!(json["text"].as_str().map(|text| format!("{text}\n")).as_deref(), Some(ran.stdout.as_str()));
    Ok(())
}
