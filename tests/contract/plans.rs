//! What plans promise before anything runs.

use crate::common::{Outcome, compile, gpu, profile, settle};
use crate::{published, small};
use monopass_blocks::{BlockConfig, BlockGraph, BlockSizes, Head, Io, LmConfig, LmGraph, TokenIo, block, model};
use monopass_lower::plan::Cmd;
use monopass_lower::{CompileOptions, Plan, Target};

fn plan(config: &BlockConfig, len: usize, target: &Target) -> Outcome<Plan> {
    compile(&block::graph(config, 1, len, Io::Stateful)?, target, &CompileOptions::default())
}

fn packed_plan(config: &BlockConfig, len: usize, target: &Target) -> Outcome<Plan> {
    let options = BlockGraph { seq_idx: true, ..Io::Fresh.into() };
    compile(&block::graph_with(config, 1, len, options)?, target, &CompileOptions::default())
}

fn kernel_label<'p>(plan: &'p Plan, cmd: &Cmd) -> &'p str {
    &plan.kernels[cmd.kernel.0 as usize].label
}

/// Eight dispatches a sequence and three a token. Where a kernel binds eight buffers, blocks that turn k and q need more.
#[test]
fn blocks_take_few_dispatches() -> Outcome {
    let mut problems = Vec::new();
    for (name, config) in published() {
        let turns = config.kind() != "mamba2";
        for (target, more) in [("nvidia", [0, 0]), ("webgpu-default", if turns { [6, 1] } else { [0, 0] })] {
            for (mode, len, most) in [("forward", 2048, 8 + more[0]), ("packed", 2048, 9 + more[0]), ("step", 1, 3 + more[1])] {
                let target = profile(target)?;
                let plan = if mode == "packed" { packed_plan(&config, len, &target)? } else { plan(&config, len, &target)? };
                if plan.cmds.len() > most {
                    problems.push(format!(
                        "{name} {mode} for {}: {} dispatches, at most {} wanted\n{plan}",
                        target.name,
                        plan.cmds.len(),
                        most
                    ));
                }
            }
        }
    }
    settle(&problems)
}

#[test]
fn kernels_have_enough_workgroups() -> Outcome {
    let mut problems = Vec::new();
    for (name, config) in published() {
        let n_heads = match config.sizes()? {
            BlockSizes::Mamba2(_, sizes) => sizes.nheads,
            BlockSizes::Mamba3(_, sizes) => sizes.nheads,
        };
        for (mode, len, least) in [("forward", 2048, 96), ("step", 1, n_heads)] {
            let plan = plan(&config, len, &profile("nvidia")?)?;
            for (i, cmd) in plan.cmds.iter().enumerate() {
                let label = kernel_label(&plan, cmd);
                let n_workgroups: u64 = cmd.workgroups.iter().map(|&n| u64::from(n)).product();
                // A sum along the sequence has one workgroup for each row, of which there are as many as heads.
                let least = if label.starts_with("cumsum") { n_heads } else { least };
                let invocations: u32 = plan.kernels[cmd.kernel.0 as usize].workgroup_size.iter().product();
                if !label.starts_with("scan_carry") && (n_workgroups < least as u64 || invocations < 64) {
                    problems.push(format!(
                        "{name} {mode} cmd {i} {label}: {n_workgroups} workgroups of {invocations}, at least {least} of 64 wanted"
                    ));
                }
            }
        }
    }
    settle(&problems)
}

#[test]
fn rows_of_padding_cost_no_dispatch() -> Outcome {
    for (name, block) in small() {
        let config = LmConfig::new(block, 2, 64);
        let padded = LmConfig { vocab_padding: 3, ..config.clone() };
        for target in ["nvidia", "webgpu-default"] {
            let n_cmds = |config: &LmConfig| -> Outcome<usize> {
                let graph = model::graph(config, 1, 1, LmGraph::new(Io::Stateful, Head::Next))?;
                Ok(compile(&graph, &profile(target)?, &CompileOptions::default())?.cmds.len())
            };
            assert_eq!(n_cmds(&padded)?, n_cmds(&config)?, "{name} for {target}");
        }
    }
    Ok(())
}

/// What a token is drawn by is done by the kernel that would take the largest logit, and its place is kept without another one.
#[test]
fn a_token_is_drawn_and_kept_without_further_dispatches() -> Outcome {
    for (name, block) in small() {
        let config = LmConfig::new(block, 2, 64);
        for target in ["nvidia", "webgpu-default", "lavapipe"] {
            let n_cmds = |options: LmGraph| -> Outcome<usize> {
                Ok(compile(&model::graph(&config, 1, 1, options)?, &profile(target)?, &CompileOptions::default())?.cmds.len())
            };
            let greedy = n_cmds(LmGraph::new(Io::Stateful, Head::Next))?;
            let drawn = LmGraph { token: TokenIo::State, ..LmGraph::new(Io::Stateful, Head::Sample) };
            assert_eq!(n_cmds(drawn)?, greedy, "{name} for {target}");
            // Counts of tokens, their sum with this one's, and the logits as they are penalized.
            assert!(n_cmds(LmGraph { seen: true, ..drawn })? <= greedy + 3, "{name} for {target}");
        }
    }
    Ok(())
}

/// A loop that grows with the length goes over chunks, in the carry and in sums along the sequence; no other kernel goes over
/// more than one chunk.
#[test]
fn no_kernel_loops_over_more_than_a_chunk() -> Outcome {
    for (name, config) in published() {
        for target in ["nvidia", "webgpu-default", "lavapipe"] {
            let target = profile(target)?;
            let (one, two) = (plan(&config, 1024, &target)?, plan(&config, 2048, &target)?);
            assert_eq!(one.cmds.len(), two.cmds.len(), "{name} for {}", target.name);
            let is_carry = |cmd: &Cmd| kernel_label(&one, cmd).starts_with("scan_carry");
            assert_eq!(one.cmds.iter().filter(|cmd| is_carry(cmd)).count(), 1, "{name} for {}", target.name);
            for (cmd, longer) in one.cmds.iter().zip(&two.cmds) {
                let label = kernel_label(&one, cmd);
                if is_carry(cmd) || label.starts_with("cumsum") {
                    assert!(longer.loop_trips <= 2048 / 16, "{name} for {}: {label} makes {} trips", target.name, longer.loop_trips);
                } else {
                    assert_eq!(cmd.loop_trips, longer.loop_trips, "{name} for {}: {label}", target.name);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn slots_are_near_the_least_that_could_do() -> Outcome {
    for (name, config) in published() {
        for target in ["nvidia", "webgpu-default", "lavapipe"] {
            let plan = plan(&config, 2048, &profile(target)?)?;
            let (slots, bound) = (plan.totals().slots_bytes, plan.live_bytes);
            assert!(slots * 100 <= bound * 115, "{name} for {target}: {slots} bytes of slots where {bound} live at once\n{plan}");
        }
    }
    Ok(())
}

/// Text of a plan and of its kernels.
fn texts(plan: &Plan) -> (String, Vec<String>) {
    (plan.to_string(), plan.kernels.iter().map(|kernel| kernel.wgsl.clone()).collect())
}

#[test]
fn plans_are_the_same_each_time() -> Outcome {
    for (name, config) in published() {
        for len in [1, 100, 2048] {
            for target in ["nvidia", "webgpu-default", "lavapipe"] {
                let [first, second] = [plan(&config, len, &profile(target)?)?, plan(&config, len, &profile(target)?)?];
                assert_eq!(texts(&first), texts(&second), "{name} of {len} for {target}");
            }
        }
    }
    Ok(())
}

/// What the driver reports is what the profile of its device says, as far as plans ask: on Mesa's software driver a plan made
/// for the device is the one that is made for the profile without it.
#[test]
fn plans_are_the_same_with_a_driver_and_without() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    if !device.info().name.contains("llvmpipe") {
        return Ok(());
    }
    let offline = profile("lavapipe")?;
    let driven = Target { name: offline.name.clone(), is_unmeasured: offline.is_unmeasured, ..device.target().clone() };
    for (name, config) in published() {
        for len in [1, 100, 2048] {
            assert_eq!(texts(&plan(&config, len, &offline)?), texts(&plan(&config, len, &driven)?), "{name} of {len}");
        }
    }
    Ok(())
}
