//! Guards who may know what: dependencies between crates, licences, and one version of everything that matters.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::Command;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A crate, the packages that it may use itself, and those that it may not reach by any way.
struct Rule {
    name: &'static str,
    may_use: &'static [&'static str],
    must_not_reach: &'static [&'static str],
}

/// The table of ARCHITECTURE.md.
const RULES: [Rule; 5] = [
    Rule {
        name: "monopass-ir",
        may_use: &["half", "indexmap", "ndarray", "petgraph", "rayon", "slotmap", "thiserror"],
        must_not_reach: &["wgpu", "wgpu-core", "naga", "safetensors", "memmap2"],
    },
    Rule { name: "monopass-shaders", may_use: &[], must_not_reach: &[] },
    Rule {
        name: "monopass-lower",
        may_use: &[
            "half",
            "indexmap",
            "monopass-ir",
            "monopass-shaders",
            "naga",
            "petgraph",
            "serde_json",
            "slotmap",
            "thiserror",
            "tracing",
        ],
        must_not_reach: &["wgpu", "wgpu-core", "wgpu-hal", "memmap2"],
    },
    Rule {
        name: "monopass-runtime",
        may_use: &["bytemuck", "futures-channel", "indexmap", "monopass-ir", "monopass-lower", "pollster", "thiserror", "tracing", "wgpu"],
        must_not_reach: &["monopass-blocks", "safetensors", "memmap2"],
    },
    Rule {
        name: "monopass-blocks",
        may_use: &["half", "indexmap", "monopass-ir", "safetensors", "serde_json", "thiserror"],
        must_not_reach: &["monopass-lower", "monopass-runtime", "monopass-shaders", "wgpu", "wgpu-core", "naga", "memmap2"],
    },
];

/// Licences that may be combined with ours. An `OR` needs one of them, an `AND` all.
const LICENCES: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages that are there in several versions, and why that cannot be helped.
const DUPLICATES: [(&str, &str); 12] = [
    ("bit-set", "naga, proptest and the regular expressions of tokenizers differ"),
    ("bit-vec", "naga, proptest and the regular expressions of tokenizers differ"),
    ("foldhash", "by way of hashbrown"),
    ("getrandom", "tokenizers and proptest differ"),
    ("hashbrown", "petgraph, indexmap and wgpu's allocator differ"),
    ("itertools", "criterion and tokenizers differ"),
    ("miniz_oxide", "png differs from flate2, which it uses, and from backtrace"),
    ("r-efi", "by way of getrandom"),
    ("rand", "tokenizers and proptest differ"),
    ("rand_core", "tokenizers and proptest differ"),
    ("syn", "derive macros differ"),
    ("unicode-width", "miette and indicatif differ"),
];

#[test]
fn crates_use_only_what_they_may_know() {
    let packages = Packages::read().unwrap();
    for rule in &RULES {
        let used = packages.declared(rule.name).unwrap();
        let forbidden: Vec<&String> = used.iter().filter(|name| !rule.may_use.contains(&name.as_str())).collect();
        assert!(forbidden.is_empty(), "{} depends on {forbidden:?}; a new dependency of a crate is a change of ARCHITECTURE.md", rule.name);
        let reached = packages.reached(rule.name).unwrap();
        let known: Vec<_> = rule.must_not_reach.iter().filter(|name| reached.contains(**name)).collect();
        assert!(known.is_empty(), "{} reaches {known:?}, which it must not know", rule.name);
    }
}

#[test]
fn no_library_forgets_its_rule() {
    let packages = Packages::read().unwrap();
    let libraries: BTreeSet<&str> =
        packages.members.iter().map(String::as_str).filter(|name| !["monopass-cli", "xtask", "monopass"].contains(name)).collect();
    assert_eq!(libraries, RULES.iter().map(|rule| rule.name).collect());
}

#[test]
fn licences_can_be_combined_with_ours() {
    let packages = Packages::read().unwrap();
    let refused: Vec<_> = packages.licences.iter().filter(|(_, licence)| !is_allowed(licence)).collect();
    assert!(refused.is_empty(), "licences that are not in the list of deny.toml: {refused:?}");
}

#[test]
fn the_two_lists_of_licences_agree() {
    let file = std::fs::read_to_string(in_root("deny.toml")).unwrap();
    let list = file.split("allow = [").nth(1).unwrap().split(']').next().unwrap();
    let names: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert_eq!(names, LICENCES);
}

#[test]
fn expressions_of_licences_are_understood() {
    for allowed in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR GPL-2.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception"] {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND GPL-2.0"] {
        assert!(!is_allowed(refused), "{refused}");
    }
}

#[test]
fn there_is_one_naga_and_it_is_that_of_wgpu() {
    let versions = locked().unwrap();
    assert_eq!(versions["naga"].len(), 1, "{:?}", versions["naga"]);
    assert_eq!(versions["wgpu"].len(), 1, "{:?}", versions["wgpu"]);
    let packages = Packages::read().unwrap();
    assert!(packages.reached("wgpu").unwrap().contains("naga"));
    assert!(packages.declared("monopass-lower").unwrap().contains("naga"));
}

#[test]
fn packages_in_several_versions_are_known() {
    let versions = locked().unwrap();
    let several: BTreeSet<&str> = versions.iter().filter(|(_, versions)| versions.len() > 1).map(|(name, _)| name.as_str()).collect();
    let known: BTreeSet<&str> = DUPLICATES.iter().map(|(name, _)| *name).collect();
    assert_eq!(several, known, "add a package to the list with its reason, or take it out");
}

#[test]
fn every_dependency_has_a_reason_in_the_root_manifest() {
    let manifest = std::fs::read_to_string(in_root("Cargo.toml")).unwrap();
    let table = manifest.split("[workspace.dependencies]\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let bare: Vec<&str> = table.lines().filter(|line| !line.contains("path = ") && !line.contains(" # ")).collect();
    assert!(bare.is_empty(), "without a reason: {bare:?}");
}

/// Whether an SPDX expression can be met. `/` is an old way to write `OR`; `AND` binds tighter and may have parentheses in it.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    split_outside(&expression, " OR ").into_iter().any(|part| {
        split_outside(part, " AND ").into_iter().all(|part| match part.trim().strip_prefix('(').and_then(|part| part.strip_suffix(')')) {
            Some(inner) => is_allowed(inner),
            None => LICENCES.contains(&part.trim()),
        })
    })
}

/// Splits where no parenthesis is open.
fn split_outside<'t>(text: &'t str, separator: &str) -> Vec<&'t str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (i, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 && i >= start && text[i..].starts_with(separator) {
            parts.push(&text[start..i]);
            start = i + separator.len();
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Versions of each package in Cargo.lock, which covers every platform.
fn locked() -> Outcome<BTreeMap<String, BTreeSet<String>>> {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut name = String::new();
    for line in std::fs::read_to_string(in_root("Cargo.lock"))?.lines() {
        match line.split_once(" = ") {
            Some(("name", value)) => value.trim_matches('"').clone_into(&mut name),
            Some(("version", value)) if !name.is_empty() => {
                versions.entry(name.clone()).or_default().insert(value.trim_matches('"').to_owned());
            }
            _ => {}
        }
    }
    Ok(versions)
}

fn in_root(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What `cargo metadata` says about this platform, by name of package.
struct Packages {
    members: BTreeSet<String>,
    licences: BTreeMap<String, String>,
    declared: BTreeMap<String, BTreeSet<String>>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Packages {
    fn read() -> Outcome<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // Packages of other platforms were never downloaded, so the offline answer is about this one.
        let args = ["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", &host()?];
        let output = Command::new(cargo).args(args).current_dir(in_root("")).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let root: Value = serde_json::from_slice(&output.stdout)?;
        let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let packages = list(&root, "packages");
        let names: BTreeMap<String, String> = packages.iter().map(|package| (text(&package["id"]), text(&package["name"]))).collect();
        let name_of = |id: &Value| names.get(id.as_str().unwrap_or_default()).cloned().unwrap_or_default();
        let is_normal = |kind: &Value| kind["kind"].is_null();
        let uses =
            |package: &Value| list(package, "dependencies").iter().filter(|used| is_normal(used)).map(|used| text(&used["name"])).collect();
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in list(&root["resolve"], "nodes") {
            let used = list(&node, "deps").into_iter().filter(|dep| list(dep, "dep_kinds").iter().any(is_normal));
            edges.entry(name_of(&node["id"])).or_default().extend(used.map(|dep| name_of(&dep["pkg"])));
        }
        Ok(Self {
            members: list(&root, "workspace_members").iter().map(name_of).collect(),
            licences: packages.iter().map(|package| (text(&package["name"]), text(&package["license"]))).collect(),
            declared: packages.iter().map(|package| (text(&package["name"]), uses(package))).collect(),
            edges,
        })
    }

    /// What a package's manifest names outside of tests.
    fn declared(&self, name: &str) -> Outcome<&BTreeSet<String>> {
        Ok(self.declared.get(name).ok_or_else(|| format!("there is no package {name}"))?)
    }

    /// Everything that is linked with a package.
    fn reached(&self, name: &str) -> Outcome<BTreeSet<&str>> {
        let (name, _) = self.edges.get_key_value(name).ok_or_else(|| format!("there is no package {name}"))?;
        let (mut reached, mut open) = (BTreeSet::new(), vec![name.as_str()]);
        while let Some(next) = open.pop() {
            for used in self.edges.get(next).into_iter().flatten() {
                if reached.insert(used.as_str()) {
                    open.push(used);
                }
            }
        }
        Ok(reached)
    }
}

/// The platform that rustc compiles for.
fn host() -> Outcome<String> {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc does not say its host")?.to_owned())
}
