//! What a graph is compiled to for a device that need not be here: the plan, why a fusion did not fire, and a kernel.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::blocks::{Io, mamba2};
use monopass::{Mamba2Config, Target, lower};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Mamba2Config { d_state: 16, headdim: 16, ..Mamba2Config::new(64) };
    let step = mamba2::graph(&config, 1, 1, Io::Stateful)?;
    for profile in Target::PROFILES {
        let target = Target::profile(profile).ok_or("a listed profile exists")?;
        let plan = lower::compile(&step, &target)?;
        let totals = plan.totals();
        println!(
            "{profile:>16}: {} dispatches, {} kernels, {} slots, {} bytes of memory, {} flops a token",
            plan.cmds.len(),
            plan.kernels.len(),
            plan.slots.len(),
            totals.memory_bytes(),
            totals.flops,
        );
    }

    let target = Target::profile("nvidia").ok_or("a listed profile exists")?;
    let plan = lower::compile(&step, &target)?;
    println!("\n{plan}");
    for reason in &plan.not_fused {
        println!("not fused: {reason}");
    }
    if let Some(kernel) = plan.kernels.first() {
        println!("\n{}", kernel.wgsl);
    }
    Ok(())
}
