//! Stable texts of a graph, its plan and its kernels, for snapshot tests of programs that build graphs.
//!
//! Equal graphs give equal texts on every machine: plans are made for a named profile ([`Target::PROFILES`]), and no
//! device is asked.
//!
//! ```
//! use monopass::snapshot;
//! use monopass::ir::{DType, GraphBuilder};
//!
//! let g = GraphBuilder::new("double");
//! g.output("y", g.input("x", DType::F32, [3]) * 2.0);
//! let graph = g.finish()?;
//! // In a test: insta::assert_snapshot!(snapshot::plan(&graph, "webgpu-default")?);
//! assert!(snapshot::ir(&graph).starts_with("ir 1\ngraph @double {"));
//! assert!(snapshot::plan(&graph, "webgpu-default")?.starts_with("plan 1 @double"));
//! assert!(snapshot::wgsl(&graph, "nvidia")?.contains("fn main("));
//! # Ok::<(), monopass::Error>(())
//! ```

use crate::error::Error;
use monopass_ir::{Graph, compact, text};
use monopass_lower::{Plan, Target, compile};

/// The graph in text form, dead nodes left out and values renumbered.
#[must_use]
pub fn ir(graph: &Graph) -> String {
    text::print(&compact::compact(graph))
}

/// The plan for a profile.
///
/// # Errors
/// An unknown profile, an invalid graph, or one over a limit of the profile.
pub fn plan(graph: &Graph, profile: &str) -> Result<String, Error> {
    Ok(compile(graph, &target(profile)?)?.to_string())
}

/// All kernels for a profile, each after a line with its id and label.
///
/// # Errors
/// As for [`plan()`].
pub fn wgsl(graph: &Graph, profile: &str) -> Result<String, Error> {
    Ok(kernels(&compile(graph, &target(profile)?)?))
}

/// All kernels of a plan, each after a line with its id and label.
#[must_use]
pub fn kernels(plan: &Plan) -> String {
    let texts = plan.kernels.iter().enumerate().map(|(i, kernel)| format!("// k{i} {}\n{}\n", kernel.label, kernel.wgsl.trim_end()));
    texts.collect::<Vec<_>>().join("\n")
}

/// The profile called `name`.
///
/// # Errors
/// [`Error::UnknownProfile`].
pub fn target(name: &str) -> Result<Target, Error> {
    Target::profile(name).ok_or_else(|| Error::UnknownProfile { name: name.to_owned() })
}
