//! Guards the repository's habits: file headers and lengths, no leftovers, no stray snapshots, no trace of a machine.

use std::error::Error;
use std::path::{Path, PathBuf};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Longest file, and longest example, in lines.
const MAX_LINES: usize = 700;
const MAX_EXAMPLE_LINES: usize = 80;
/// Folders that are not ours to look into.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

/// What no text of the project holds, each in two halves, so that this file does not hold it either.
const FORBIDDEN: [(&str, &str, &str); 6] = [
    ("/ho", "me/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("/wo", "rk/", "a path of one machine"),
    ("/tm", "p/", "a path of one machine; tests use the folder that the system gives"),
    ("crates", ".io", "the host of a registry"),
    ("index", ".crates", "the host of a registry"),
];

/// The same for Rust.
const FORBIDDEN_IN_RUST: [(&str, &str, &str); 7] = [
    ("#[ign", "ore", "a test that never runs; assert the wrong result with a note instead"),
    ("#[should_", "panic", "libraries return errors"),
    ("tod", "o!(", "unfinished work"),
    ("unimplem", "ented!(", "unfinished work"),
    ("TO", "DO", "unfinished work; file an issue"),
    ("FIX", "ME", "unfinished work; file an issue"),
    ("XX", "X", "unfinished work; file an issue"),
];

#[test]
fn every_source_file_opens_with_what_it_is_for() {
    let bare: Vec<_> = rust().unwrap().into_iter().filter(|file| !file.text.starts_with("//!")).map(|file| file.name).collect();
    assert!(bare.is_empty(), "files without a `//!` line at the top: {bare:#?}");
}

#[test]
fn files_are_short_enough_to_read() {
    for file in rust().unwrap() {
        let max = if file.name.starts_with("examples") { MAX_EXAMPLE_LINES } else { MAX_LINES };
        let n_lines = file.text.lines().count();
        assert!(n_lines <= max, "{} has {n_lines} lines, at most {max}: split it by topic", file.name);
    }
}

#[test]
fn nothing_is_left_over() {
    let found: Vec<String> = rust().unwrap().iter().flat_map(|file| file.finds(&FORBIDDEN_IN_RUST)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_text_names_a_machine_or_a_registry() {
    let texts = files().unwrap().into_iter().filter(|path| !path.ends_with("Cargo.lock")).filter_map(|path| File::read(&path));
    let found: Vec<String> = texts.flat_map(|file| file.finds(&FORBIDDEN)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn snapshots_belong_to_a_test_and_an_input() {
    let files = files().unwrap();
    let has = |extension: &str| files.iter().filter(|path| path.to_string_lossy().ends_with(extension)).cloned().collect::<Vec<_>>();
    assert!(has(".snap.new").is_empty(), "snapshots to be looked at: {:#?}", has(".snap.new"));
    for path in has(".snap") {
        let file = File::read(&path).unwrap();
        let header = file.text.split("---\n").nth(1).unwrap_or_default();
        let field = |name: &str| header.lines().find_map(|line| line.strip_prefix(name));
        let source = field("source: ").unwrap_or_default().trim_matches('"');
        assert!(root().join(source).is_file(), "{}: its test {source:?} is gone; delete it", file.name);
        if let Some(input) = field("input_file: ") {
            assert!(root().join(input.trim_matches('"')).is_file(), "{}: its input {input} is gone; delete it", file.name);
        }
    }
}

#[test]
fn the_readme_and_continuous_integration_run_the_same() {
    let script = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    let command = script.lines().rfind(|line| line.starts_with("cargo")).unwrap();
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().any(|line| line.trim() == command), "README.md lacks the line `{command}`");
}

#[test]
fn the_quick_start_is_the_one_that_is_tested() {
    let library = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let doc: Vec<&str> =
        library.lines().filter_map(|line| line.strip_prefix("//!")).map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let tested =
        doc.join("\n").split("```\n").nth(1).unwrap().lines().filter(|line| !line.starts_with("# ")).collect::<Vec<_>>().join("\n");
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let shown = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(shown.trim_end(), tested.trim_end(), "the README and the documentation of the library show different code");
}

#[test]
fn documents_link_to_files_that_exist() {
    for path in files().unwrap().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let Some(file) = File::read(&path) else { continue };
        for target in file.text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_here = !target.is_empty() && !target.contains("://");
            let folder = path.parent().unwrap_or(&path);
            assert!(!is_here || folder.join(target).exists(), "{}: there is no {target}", file.name);
        }
    }
}

/// A text of the repository.
struct File {
    name: String,
    text: String,
}

impl File {
    /// `None` if the file is not text.
    fn read(path: &Path) -> Option<Self> {
        let text = String::from_utf8(std::fs::read(path).ok()?).ok()?;
        let name = path.strip_prefix(root()).unwrap_or(path).to_string_lossy().replace('\\', "/");
        Some(Self { name, text })
    }

    /// Places of forbidden texts.
    fn finds(&self, forbidden: &[(&str, &str, &str)]) -> Vec<String> {
        let mut found = Vec::new();
        for (first, second, why) in forbidden {
            let whole = [*first, *second].concat();
            let lines = self.text.lines().enumerate().filter(|(_, line)| line.contains(&whole));
            found.extend(lines.map(|(i, _)| format!("{}:{}: `{whole}` is {why}", self.name, i + 1)));
        }
        found
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust() -> Outcome<Vec<File>> {
    let sources = files()?.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    Ok(sources.filter_map(|path| File::read(&path)).collect())
}

/// Every file, in order of name.
fn files() -> Outcome<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![root().to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            let is_skipped = path.file_name().is_some_and(|name| SKIPPED.iter().any(|skipped| name == *skipped));
            match (is_skipped, path.is_dir()) {
                (true, _) => {}
                (false, true) => open.push(path),
                (false, false) => found.push(path),
            }
        }
    }
    found.sort();
    Ok(found)
}
