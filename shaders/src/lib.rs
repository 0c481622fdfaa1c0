//! WGSL text of Monopass, one file a kernel family.

use std::fmt::Display;

/// Elementary functions, each with what it needs; see the comments in the file.
pub const MATH: &str = include_str!("../math.wgsl");

/// The functions of [`MATH`] named, and those that they call, in file order.
///
/// The file holds one function after another; a function only calls ones above it.
#[must_use]
pub fn math<S: Display>(names: impl IntoIterator<Item = S>) -> String {
    let functions = functions();
    let mut wanted: Vec<bool> = vec![false; functions.len()];
    for name in names {
        let name = name.to_string();
        if let Some(idx) = functions.iter().position(|(own, _)| *own == name) {
            wanted[idx] = true;
        }
    }
    for idx in (0..functions.len()).rev() {
        if wanted[idx] {
            for callee in 0..idx {
                wanted[callee] |= functions[idx].1.contains(&format!("{}(", functions[callee].0));
            }
        }
    }
    functions.iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|((_, text), _)| *text).collect()
}

/// Name and text of each function of [`MATH`].
#[must_use]
pub fn functions() -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    let mut rest = MATH;
    while let Some(start) = rest.find("\nfn ") {
        let body = &rest[start + 1..];
        let end = body.find("\n}\n").map_or(body.len(), |end| end + 3);
        let name = body[3..].split('(').next().unwrap_or("");
        found.push((name, &body[..end]));
        rest = &body[end - 1..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_comes_with_what_it_calls() {
        let text = math(["silu"]);
        assert!(text.contains("fn silu(") && text.contains("fn sigmoid(") && !text.contains("fn softplus("));
    }
}
