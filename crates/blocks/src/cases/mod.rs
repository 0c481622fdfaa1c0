//! Reference cases: a manifest that lists them, the graphs that compute them, and the rule by which results are judged.
//!
//! A case is a safetensors file whose tensors are called `in.…` (inputs and initial states), `param.…` and `out.…` (what has
//! to come out), for gradients also `cot.…` (adjoints of outputs) and `grad.…`, and an entry of `manifest.json` that says its kind, configuration and tolerances. [`Manifest::parse`] reads the
//! list, [`CaseGraphs::new`] builds a case's graphs, [`CaseGraphs::run`] runs them by any executor, [`Case::judge`] compares.
//!
//! As everywhere in this crate, the caller reads the files.

mod graphs;
mod parts;
mod run;

pub use graphs::{CaseGraphs, CaseStep};
pub use run::{Tensors, read_tensors};

use crate::checkpoint::{CheckpointError, LoadOptions};
use crate::error::ConfigErrors;
use crate::json;
use crate::mamba3::AAct;
use indexmap::{IndexMap, IndexSet};
use monopass_ir::TensorData;
use monopass_ir::autodiff::GRADIENT_PREFIX;
use monopass_ir::error::BuildErrors;
use serde_json::Value;

/// Name of the list of cases.
pub const MANIFEST_FILE: &str = "manifest.json";

/// What a manifest says of its own form.
const FORMAT: &str = "ssm-oracle/1";

/// The cases of a directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// In the order of the file.
    pub cases: Vec<Case>,
}

/// One case.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Unique name.
    pub id: String,
    /// What it computes, such as `mamba2_block`.
    pub kind: String,
    /// File of its tensors.
    pub file: String,
    /// Files of its checkpoint, if it is one.
    pub files: Vec<String>,
    /// Options and sizes.
    pub config: Value,
    /// Shapes of the tensors in the file that the manifest states, by name with prefix.
    pub shapes: IndexMap<String, Vec<usize>>,
    /// What is expected of each tensor, by name with prefix; at least one `out.…`.
    pub expect: IndexMap<String, Expect>,
}

/// How a tensor is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expect {
    /// Largest absolute difference of an element.
    pub atol: f64,
    /// Whether differences count modulo 2π.
    pub is_angle: bool,
}

/// How far a tensor is from what it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Name with prefix.
    pub tensor: String,
    /// Largest absolute difference of an element; infinite if the tensor is missing, of another shape, or not finite.
    pub error: f64,
    /// Largest allowed.
    pub atol: f64,
    /// What is wrong beside the numbers, if anything.
    pub problem: Option<String>,
}

impl Verdict {
    /// Whether the tensor is as it should be.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.problem.is_none() && self.error <= self.atol
    }
}

/// A case that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The manifest is not one. The file's fault.
    #[error("{MANIFEST_FILE}: {problem}\n  help: give a directory of cases with its {MANIFEST_FILE}")]
    Manifest {
        /// What is wrong.
        problem: String,
    },
    /// No graph is known for the kind.
    #[error("case {id}: unknown kind {kind:?}\n  help: the kinds are {}", graphs::KINDS.join(", "))]
    UnknownKind {
        /// The case.
        id: String,
        /// Its kind.
        kind: String,
    },
    /// A tensor that the kind needs is not in the file. The file's fault.
    #[error("case {id}: tensor {tensor} is missing\n  help: kind {kind} needs it")]
    MissingTensor {
        /// The case.
        id: String,
        /// Name with prefix.
        tensor: String,
        /// The case's kind.
        kind: String,
    },
    /// The file is not the one that the manifest describes.
    #[error(
        "case {id}: tensor {tensor} is {found}, and {MANIFEST_FILE} states {stated:?}\n  help: file and manifest are of different sets"
    )]
    OtherShape {
        /// The case.
        id: String,
        /// Name with prefix.
        tensor: String,
        /// What the file has.
        found: String,
        /// Shape by the manifest.
        stated: Vec<usize>,
    },
    /// A field of the case's configuration is missing or of another type. The manifest's fault.
    #[error("case {id}: config {field} is {found}\n  help: {expects} is expected")]
    Field {
        /// The case.
        id: String,
        /// The field.
        field: &'static str,
        /// As it stands.
        found: String,
        /// What should stand there.
        expects: &'static str,
    },
    /// The configuration does not fit together. The manifest's fault.
    #[error("case {id}: configuration")]
    Config {
        /// The case.
        id: String,
        /// What does not fit.
        #[source]
        source: ConfigErrors,
    },
    /// The tensors do not fit the kind.
    #[error("case {id}: graph")]
    Build {
        /// The case.
        id: String,
        /// What does not fit.
        #[source]
        source: BuildErrors,
    },
    /// A file of tensors cannot be read.
    #[error(transparent)]
    Tensors(#[from] CheckpointError),
}

impl Manifest {
    /// The cases that `text` lists.
    ///
    /// # Errors
    /// [`CaseError::Manifest`] if it is not a list of cases of a known form, or if two have the same id, or if one expects
    /// nothing or names a file that is not below the manifest's directory.
    pub fn parse(text: &str) -> Result<Self, CaseError> {
        let bad = |problem: String| CaseError::Manifest { problem };
        let value = json::parse(text).map_err(|error| bad(format!("not valid JSON: {error}")))?;
        if let Some(format) = value.get("format").filter(|format| **format != FORMAT) {
            return Err(bad(format!("the format is {format}, and {FORMAT:?} is known")));
        }
        let cases = value.get("cases").and_then(Value::as_array).ok_or_else(|| bad("no list called cases".to_owned()))?;
        let cases = cases.iter().enumerate().map(|(i, case)| Case::from_json(case).map_err(|problem| bad(format!("case {i}: {problem}"))));
        let cases: Vec<Case> = cases.collect::<Result<_, _>>()?;
        let mut ids = IndexSet::new();
        if let Some(case) = cases.iter().find(|case| !ids.insert(case.id.as_str())) {
            return Err(bad(format!("two cases have the id {:?}", case.id)));
        }
        Ok(Self { cases })
    }
}

impl Case {
    fn from_json(case: &Value) -> Result<Self, String> {
        let word = |key: &str| case.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| format!("{key} is not a string"));
        let list = |key: &str| case.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let expect = case.get("expect").and_then(Value::as_object).ok_or("expect is not an object")?;
        let entry = |(name, entry): (&String, &Value)| {
            let atol = entry.get("atol").and_then(Value::as_f64).ok_or_else(|| format!("{name} has no atol"))?;
            let is_angle = match entry.get("compare").map(Value::as_str) {
                None | Some(Some("value")) => false,
                Some(Some("angle")) => true,
                Some(_) => return Err(format!("{name} has a compare that is neither \"value\" nor \"angle\"")),
            };
            Ok::<_, String>((name.clone(), Expect { atol, is_angle }))
        };
        if !expect.keys().any(|name| name.starts_with("out.")) {
            return Err("expect has no tensor out.…, so nothing would be compared".to_owned());
        }
        let shape = |(name, shape): (&String, &Value)| {
            let sizes = shape.as_array().and_then(|sizes| sizes.iter().map(json::count).collect::<Option<Vec<usize>>>());
            Ok::<_, String>((name.clone(), sizes.ok_or_else(|| format!("the shape of {name} is {shape}, not a list of sizes"))?))
        };
        let shapes = case.get("shapes").and_then(Value::as_object).into_iter().flatten();
        let inside =
            |file: String| if is_inside(&file) { Ok(file) } else { Err(format!("file {file:?} is not below the manifest's directory")) };
        let files = list("files").iter().filter_map(Value::as_str).map(|file| inside(file.to_owned())).collect::<Result<_, _>>()?;
        Ok(Self {
            id: word("id")?,
            kind: word("kind")?,
            file: inside(word("file")?)?,
            files,
            shapes: shapes.map(shape).collect::<Result<_, _>>()?,
            config: case.get("config").cloned().unwrap_or(Value::Null),
            expect: expect.iter().map(entry).collect::<Result<_, _>>()?,
        })
    }

    /// Whether the file, which has `tensors`, is the one that the manifest describes.
    ///
    /// # Errors
    /// [`CaseError::OtherShape`] names the first tensor whose shape is stated and another, or which is missing.
    pub fn check_shapes(&self, tensors: &Tensors) -> Result<(), CaseError> {
        let other = self.shapes.iter().find(|(name, stated)| tensors.get(*name).map(TensorData::shape) != Some(stated.as_slice()));
        other.map_or(Ok(()), |(name, stated)| {
            let found = tensors.get(name).map_or_else(|| "missing".to_owned(), |tensor| format!("{:?}", tensor.shape()));
            Err(CaseError::OtherShape { id: self.id.clone(), tensor: name.clone(), found, stated: stated.clone() })
        })
    }

    /// What the files of a case of kind `checkpoint` do not say: the reference, which wrote them, uses the heavy tail in a
    /// Mamba-3 unless `a_act` of the case's configuration says otherwise.
    #[must_use]
    pub fn load_options(&self) -> LoadOptions {
        let is_mamba3 = self.config.get("block").is_some_and(|block| block == "mamba3");
        let recorded = self.config.get("a_act").and_then(Value::as_str).and_then(AAct::named);
        LoadOptions { a_act: recorded.or(is_mamba3.then_some(AAct::HeavyTail)), ..LoadOptions::default() }
    }

    /// Compares what a run gave (names without `out.`) with each `out.…` of `wanted`, the case's file, and `with_gradients` with each
    /// `grad.…` too.
    #[must_use]
    pub fn judge(&self, given: &Tensors, wanted: &Tensors, with_gradients: bool) -> Vec<Verdict> {
        let ours = |name: &'_ String| {
            let is_gradient = with_gradients && name.starts_with(GRADIENT_PREFIX);
            if is_gradient { Some(name.clone()) } else { name.strip_prefix("out.").map(str::to_owned) }
        };
        let outputs = self.expect.iter().filter_map(|(name, expect)| Some((name, ours(name)?, expect)));
        outputs.map(|(name, ours, expect)| verdict(name, *expect, given.get(&ours), wanted.get(name))).collect()
    }
}

/// Whether a path cannot lead out of the directory that it is relative to, on any system.
fn is_inside(file: &str) -> bool {
    !file.is_empty() && !file.contains(['\\', ':', '\0']) && file.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

fn verdict(name: &str, expect: Expect, given: Option<&TensorData>, wanted: Option<&TensorData>) -> Verdict {
    let fail = |problem: String| Verdict { tensor: name.to_owned(), error: f64::INFINITY, atol: expect.atol, problem: Some(problem) };
    let Some(wanted) = wanted else { return fail("not in the case's file".to_owned()) };
    let Some(given) = given else { return fail("not computed".to_owned()) };
    if given.shape() != wanted.shape() {
        return fail(format!("has shape {:?}, not {:?}", given.shape(), wanted.shape()));
    }
    let (given, wanted) = (given.to_f32_vec(), wanted.to_f32_vec());
    if let Some(at) = given.iter().position(|value| !value.is_finite()) {
        return fail(format!("element {at} is {}", given[at]));
    }
    if let Some(at) = wanted.iter().position(|value| !value.is_finite()) {
        return fail(format!("element {at} is {} in the case's file, where every element has to be finite", wanted[at]));
    }
    let difference = |(&a, &b): (&f32, &f32)| {
        let difference = (f64::from(a) - f64::from(b)).abs();
        let turn = std::f64::consts::TAU;
        if expect.is_angle { (difference % turn).min(turn - difference % turn) } else { difference }
    };
    let error = given.iter().zip(&wanted).map(difference).fold(0.0, f64::max);
    Verdict { tensor: name.to_owned(), error, atol: expect.atol, problem: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors(name: &str, values: &[f32]) -> Tensors {
        [(name.to_owned(), TensorData::f32([values.len()], values).unwrap())].into()
    }

    fn judged(expect: Expect, given: &[f32], wanted: &[f32]) -> Verdict {
        verdict("out.y", expect, tensors("y", given).get("y"), tensors("out.y", wanted).get("out.y"))
    }

    #[test]
    fn every_element_counts_and_has_to_be_finite() {
        let plain = Expect { atol: 0.1, is_angle: false };
        assert!(judged(plain, &[1.0, 2.05], &[1.0, 2.0]).passes());
        assert!(!judged(plain, &[1.0, 2.2], &[1.0, 2.0]).passes());
        assert_eq!(judged(plain, &[f32::NAN], &[0.0]).problem.as_deref(), Some("element 0 is NaN"));
        assert!(!judged(plain, &[0.0], &[f32::NAN]).passes());
        assert!(!judged(Expect { atol: f64::INFINITY, is_angle: false }, &[f32::NAN], &[f32::NAN]).passes());
        assert_eq!(judged(plain, &[1.0], &[1.0, 2.0]).problem.as_deref(), Some("has shape [1], not [2]"));
        assert!(!verdict("out.y", plain, None, tensors("out.y", &[1.0]).get("out.y")).passes());
        assert!(judged(plain, &[], &[]).passes());
    }

    #[test]
    fn angles_compare_by_the_turn() {
        let angle = Expect { atol: 0.01, is_angle: true };
        assert!(judged(angle, &[std::f32::consts::TAU - 0.005], &[0.0]).passes());
        assert!(!judged(angle, &[3.0], &[0.0]).passes());
    }

    #[test]
    fn a_broken_manifest_says_where() {
        let message = |text: &str| Manifest::parse(text).unwrap_err().to_string();
        assert!(message("{").contains("not valid JSON"));
        assert!(message("{}").contains("no list called cases"));
        assert!(message(r#"{"cases": [{"id": "a"}]}"#).contains("case 0: expect is not an object"));
        assert!(
            message(r#"{"cases": [{"id": "a", "kind": "linear", "file": "f", "expect": {"out.y": {}}}]}"#).contains("out.y has no atol")
        );
        assert!(message(r#"{"format": "other/9", "cases": []}"#).contains("the format is \"other/9\""));
        let case = |file: &str, expect: &str| format!(r#"{{"id": "a", "kind": "linear", "file": "{file}", "expect": {{{expect}}}}}"#);
        let (file, expect) = ("f/g", r#""out.y": {"atol": 1}"#);
        let cases = |cases: &[String]| format!(r#"{{"cases": [{}]}}"#, cases.join(", "));
        assert!(Manifest::parse(&cases(&[case(file, expect)])).is_ok());
        assert!(message(&cases(&[case(file, expect), case(file, expect)])).contains("two cases have the id \"a\""));
        assert!(message(&cases(&[case(file, "")])).contains("nothing would be compared"));
        assert!(message(&cases(&[case(file, r#""out.y": {"atol": 1, "compare": "x"}"#)])).contains("out.y has a compare"));
        for outside in ["../f", "/f", "a/../../f", "c:f", ""] {
            assert!(message(&cases(&[case(outside, expect)])).contains("is not below"), "{outside}");
        }
    }

    #[test]
    fn a_file_of_other_shapes_is_not_the_manifests() {
        let text = r#"{"cases": [{"id": "a", "kind": "linear", "file": "f", "shapes": {"in.x": [2]}, "expect": {"out.y": {"atol": 1}}}]}"#;
        let case = Manifest::parse(text).unwrap().cases.remove(0);
        assert!(case.check_shapes(&tensors("in.x", &[1.0, 2.0])).is_ok());
        assert!(case.check_shapes(&tensors("in.x", &[1.0])).unwrap_err().to_string().contains("in.x is [1], and"));
        assert!(case.check_shapes(&Tensors::new()).unwrap_err().to_string().contains("in.x is missing"));
    }
}
