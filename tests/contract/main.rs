//! Guards the contract of DESIGN for blocks of every kind: dispatches, workgroups and memory of the blocks' plans, the same texts for the same class of
//! lengths, one submit a run, nothing created on replay, and the same results however a sequence is cut.

#[path = "../common/mod.rs"]
mod common;
mod lengths;
mod plans;
mod runs;
mod training;

use monopass_blocks::mamba3::RopePairs;
use monopass_blocks::{AAct, BlockConfig, Mamba2Config, Mamba3Config, NormKind};

/// The blocks at the sizes of the published 130m models, with every option that changes their graphs.
fn published() -> Vec<(&'static str, BlockConfig)> {
    let mamba2 = published_mamba2().into_iter().map(|(name, config)| (name, config.into()));
    let cmamba = published_cmamba().into_iter().map(|(name, config)| (name, config.into()));
    let mamba3 = published_mamba3().into_iter().map(|(name, config)| (name, config.into()));
    mamba2.chain(cmamba).chain(mamba3).collect()
}

fn published_mamba2() -> Vec<(&'static str, Mamba2Config)> {
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

/// The predecessor's defaults, and the published sizes.
fn published_cmamba() -> Vec<(&'static str, Mamba2Config)> {
    let base = Mamba2Config { d_state: 128, ..Mamba2Config::cmamba(768) };
    vec![
        ("cmamba", base.clone()),
        ("cmamba, two ranks", Mamba2Config { mimo_rank: 2, ..base.clone() }),
        ("cmamba, gate", Mamba2Config { gate: true, conv_act: true, ngroups: 2, ..base }),
        ("cmamba of the predecessor", Mamba2Config::cmamba(768)),
    ]
}

fn published_mamba3() -> Vec<(&'static str, Mamba3Config)> {
    let base = Mamba3Config::new(768);
    let mimo = Mamba3Config { is_mimo: true, ..base.clone() };
    vec![
        ("mamba3", base.clone()),
        ("mamba3, four ranks", mimo.clone()),
        ("mamba3, softplus, all turn, groups", Mamba3Config { a_act: AAct::Softplus, rope_fraction: 1.0, ngroups: 2, ..base.clone() }),
        ("mamba3, norm", Mamba3Config { is_outproj_norm: true, ..base }),
        ("mamba3, four ranks, norm, neighbors", Mamba3Config { is_outproj_norm: true, rope_pairs: Some(RopePairs::Interleaved), ..mimo }),
    ]
}

/// Blocks small enough to run, with odd sizes.
fn small() -> Vec<(&'static str, BlockConfig)> {
    let two = Mamba2Config { headdim: 6, d_state: 5, ngroups: 2, ..Mamba2Config::new(12) };
    let complex = Mamba2Config { headdim: 6, d_state: 3, ngroups: 2, ..Mamba2Config::cmamba(12) };
    let three = Mamba3Config { headdim: 6, d_state: 6, ngroups: 2, ..Mamba3Config::new(12) };
    vec![
        ("mamba2", two.clone().into()),
        ("d_ssm", Mamba2Config { d_ssm: Some(12), bias: true, norm: NormKind::BeforeGate, ..two.clone() }.into()),
        ("one tap", Mamba2Config { d_conv: 1, norm: NormKind::None, ..two }.into()),
        ("seed", Mamba2Config { headdim: 8, ..Mamba2Config::seed(12) }.into()),
        ("cmamba", complex.clone().into()),
        ("cmamba, two ranks", Mamba2Config { mimo_rank: 2, gate: true, ..complex }.into()),
        ("mamba3", three.clone().into()),
        (
            "mamba3, two ranks",
            Mamba3Config { is_mimo: true, mimo_rank: 2, is_outproj_norm: true, rope_fraction: 1.0, d_state: 5, ..three }.into(),
        ),
    ]
}
