//! Guards the files of `tests/cases`: each parses, verifies, prints as it stands and runs, and every op has one of its name.

use monopass_ir::eval::{Interpreter, Precision};
use monopass_ir::op::{OPS, Op};
use monopass_ir::{Graph, sample, text};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The text and graph of each case by name.
fn cases() -> BTreeMap<String, (String, Graph)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let mut cases = BTreeMap::new();
    for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap_or_else(|error| panic!("{error}")).path();
        if path.extension().is_some_and(|extension| extension == "ir") {
            let content = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let graph = text::parse_one(&content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            cases.insert(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(), (content, graph));
        }
    }
    cases
}

#[test]
fn every_case_prints_as_it_stands() {
    for (name, (content, graph)) in cases() {
        // Leading comments say what a case is for; the rest is canonical.
        let canonical: String = content.lines().filter(|line| !line.starts_with("//")).map(|line| format!("{line}\n")).collect();
        assert_eq!(text::print(&graph), canonical, "{name}");
        assert_eq!(graph.name, name);
    }
}

#[test]
fn every_op_has_a_case_of_its_name() {
    let cases = cases();
    for info in OPS {
        let (_, graph) = cases.get(info.mnemonic).unwrap_or_else(|| panic!("tests/cases/{}.ir is missing", info.mnemonic));
        let ops: Vec<&str> = graph.nodes().filter_map(|(_, node)| node.op()).map(Op::mnemonic).collect();
        assert!(ops.contains(&info.mnemonic), "{}.ir does not use {}", info.mnemonic, info.mnemonic);
    }
}

#[test]
fn every_case_runs_alike_in_both_precisions() {
    for (name, (_, graph)) in cases() {
        for seed in 0..3 {
            let (inputs, params, states) = sample::inputs(&graph, seed);
            let run = |precision| {
                let mut states = states.clone();
                let interpreter = Interpreter::new(&graph).unwrap().precision(precision);
                let outputs = interpreter.run(&inputs, &params, &mut states).unwrap_or_else(|error| panic!("{name}: {error}"));
                outputs.into_iter().chain(states).collect::<Vec<_>>()
            };
            for ((result, single), (_, double)) in run(Precision::F32).into_iter().zip(run(Precision::F64)) {
                for (a, b) in single.to_f32_vec().into_iter().zip(double.to_f32_vec()) {
                    assert!((a - b).abs() <= 1e-3 * b.abs().max(1.0), "{name}: {result}: {a} in f32, {b} in f64");
                }
            }
        }
    }
}
