//! Guards the text form on every file of `tests/cases`: it parses, verifies, and prints as it stands.

use monopass_ir::text;
use std::fs;
use std::path::Path;

#[test]
fn every_case_prints_as_it_stands() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let mut n_cases = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "ir") {
            continue;
        }
        let content = fs::read_to_string(&path).unwrap();
        let graph = text::parse_one(&content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // Leading comments say what a case is for; the rest is canonical.
        let canonical: String = content.lines().filter(|line| !line.starts_with("//")).map(|line| format!("{line}\n")).collect();
        assert_eq!(text::print(&graph), canonical, "{}", path.display());
        n_cases += 1;
    }
    assert!(n_cases > 0);
}
