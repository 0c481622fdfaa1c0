//! Guards the contract of DESIGN: dispatches, workgroups and memory of the blocks' plans, the same texts for the same class of
//! lengths, one submit a run, nothing created on replay, and the same results however a sequence is cut.

#[path = "../common/mod.rs"]
mod common;
mod lengths;
mod plans;
mod runs;

use monopass_blocks::{Mamba2Config, NormKind};

/// The block at the sizes of the published 130m model, with every option that changes its graph.
fn published() -> Vec<(&'static str, Mamba2Config)> {
    let base = Mamba2Config::new(768);
    vec![
        ("default", base.clone()),
        ("groups", Mamba2Config { ngroups: 8, ..base.clone() }),
        ("d_ssm", Mamba2Config { d_ssm: Some(1024), ..base.clone() }),
        ("norm before gate", Mamba2Config { norm: NormKind::BeforeGate, ..base.clone() }),
        ("no norm", Mamba2Config { norm: NormKind::None, ..base.clone() }),
        ("biases", Mamba2Config { bias: true, ..base.clone() }),
        ("d per channel", Mamba2Config { d_has_hdim: true, ..base.clone() }),
        ("learned states", Mamba2Config { learnable_init_states: true, ..base.clone() }),
        ("limited steps", Mamba2Config { dt_limit: [0.001, 0.1], ..base }),
        ("seed", Mamba2Config::seed(768)),
    ]
}

/// Blocks small enough to run, with odd sizes.
fn small() -> Vec<(&'static str, Mamba2Config)> {
    let base = Mamba2Config { headdim: 6, d_state: 5, ngroups: 2, ..Mamba2Config::new(12) };
    vec![
        ("mamba2", base.clone()),
        ("d_ssm", Mamba2Config { d_ssm: Some(12), bias: true, norm: NormKind::BeforeGate, ..base.clone() }),
        ("one tap", Mamba2Config { d_conv: 1, norm: NormKind::None, ..base }),
        ("seed", Mamba2Config { headdim: 8, ..Mamba2Config::seed(12) }),
    ]
}
