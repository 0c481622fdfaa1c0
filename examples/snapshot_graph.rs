//! Stable texts of one's own graph, as the insta tests of a crate that uses Monopass would take them.
//!
//! In a test: `insta::assert_snapshot!(monopass::snapshot::plan(&graph, "webgpu-default")?)`. The text is the same on every
//! machine, with a device and without one, so a change of it is a change of the graph or of the compiler.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::{DType, GraphBuilder, snapshot};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let g = GraphBuilder::new("gated");
    let x = g.input("x", DType::F32, [3, 8]);
    let gate = g.param("gate", DType::F32, [8]);
    {
        let _scope = g.scope("mixer");
        g.output("y", x * gate.sigmoid());
    }
    let graph = g.finish()?;
    println!("{}", snapshot::ir(&graph));
    println!("{}", snapshot::plan(&graph, "webgpu-default")?);
    println!("{}", snapshot::wgsl(&graph, "webgpu-default")?);
    Ok(())
}
