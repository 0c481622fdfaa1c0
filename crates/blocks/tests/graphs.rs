//! Guards that every combination of options builds, with the inputs, outputs, states and parameters that it should have.

use monopass_blocks::mamba2::{self, BlockGraph};
use monopass_blocks::mamba3;
use monopass_blocks::model::{self, Head, LmGraph, TokenIo};
use monopass_blocks::{BlockConfig, Io, LmConfig, Mamba2Config, Mamba3Config, NormKind, Taps, block};
use monopass_ir::{Graph, Op};

fn small() -> Mamba2Config {
    Mamba2Config { headdim: 4, d_state: 5, ngroups: 2, ..Mamba2Config::new(8) }
}

/// Every combination of the options that change the shape of the graph.
fn all_options() -> Vec<Mamba2Config> {
    let mut all = Vec::new();
    for bits in 0..512u32 {
        let on = |bit: u32| bits >> bit & 1 == 1;
        let config = Mamba2Config {
            gate: on(0),
            conv_act: on(1),
            bias: on(2),
            conv_bias: on(3),
            d_has_hdim: on(4),
            learnable_init_states: on(5),
            d_ssm: on(6).then_some(8),
            taps: if on(7) { Taps::NewestFirst } else { Taps::NewestLast },
            d_conv: if on(8) { 1 } else { 4 },
            ..small()
        };
        for norm in [NormKind::None, NormKind::AfterGate, NormKind::BeforeGate] {
            all.push(Mamba2Config { norm, norm_group: (norm == NormKind::BeforeGate).then_some(2), ..config.clone() });
        }
    }
    all.push(Mamba2Config { headdim: 4, ..Mamba2Config::seed(8) });
    all
}

fn input_names(graph: &Graph) -> Vec<&str> {
    graph.inputs().map(|(name, _)| name).collect()
}

fn output_names(graph: &Graph) -> Vec<&str> {
    graph.outputs.iter().map(|output| output.name.as_str()).collect()
}

#[test]
fn every_combination_of_options_builds() {
    let ios = [Io::Stateless, Io::Fresh, Io::Explicit, Io::Stateful];
    for (i, config) in all_options().iter().enumerate() {
        let options = BlockGraph { io: ios[i % 4], seq_idx: i % 3 == 0, mask: i % 5 == 0, gradients: false };
        let (batch, len) = ([3, 1][i % 2], [7, 1, 0, 2][i / 4 % 4]);
        let graph = mamba2::graph_with(config, batch, len, options).unwrap_or_else(|errors| panic!("{config:?} {options:?}: {errors}"));
        let params: Vec<(String, Vec<usize>)> =
            graph.params().map(|(name, value)| (name.to_owned(), graph.ty(value).shape.clone())).collect();
        let mut wanted: Vec<_> = config.parameters("").unwrap().into_iter().map(|param| (param.name, param.shape)).collect();
        let mut found = params;
        wanted.sort();
        found.sort();
        assert_eq!(found, wanted, "{config:?}");
        assert_eq!(graph.ty(graph.outputs[0].value).shape, [batch, len, 8]);
    }
}

/// Every combination of the options of Mamba-3 and of complex states that change the shape of the graph.
fn all_new_options() -> Vec<BlockConfig> {
    let mut all = Vec::new();
    for bits in 0..32u32 {
        let on = |bit: u32| bits >> bit & 1 == 1;
        let mamba3 = Mamba3Config {
            is_mimo: on(0),
            mimo_rank: if on(1) || !on(0) { 1 } else { 3 },
            is_outproj_norm: on(2),
            rope_fraction: if on(3) { 0.5 } else { 1.0 },
            d_state: if on(4) { 5 } else { 6 },
            headdim: 4,
            ngroups: 2,
            ..Mamba3Config::new(8)
        };
        all.push(mamba3.into());
        let complex = Mamba2Config {
            mimo_rank: if on(0) { 1 } else { 3 },
            ngroups: if on(1) { 1 } else { 2 },
            gate: on(2),
            conv_act: on(3),
            d_conv: if on(4) { 1 } else { 4 },
            d_state: 3,
            headdim: 4,
            ..Mamba2Config::cmamba(8)
        };
        all.push(complex.into());
    }
    all
}

#[test]
fn every_combination_of_new_options_builds() {
    let ios = [Io::Stateless, Io::Fresh, Io::Explicit, Io::Stateful];
    for (i, config) in all_new_options().iter().enumerate() {
        for (batch, len) in [(3, 7), (1, 1), (3, 0), (1, 2)] {
            let options = BlockGraph { io: ios[(i + len) % 4], seq_idx: i % 3 == 0, mask: i % 5 == 0, gradients: false };
            let graph = block::graph_with(config, batch, len, options).unwrap_or_else(|errors| panic!("{config:?} {options:?}: {errors}"));
            let mut found: Vec<_> = graph.params().map(|(name, value)| (name.to_owned(), graph.ty(value).shape.clone())).collect();
            let mut wanted: Vec<_> = config.parameters("").unwrap().into_iter().map(|param| (param.name, param.shape)).collect();
            wanted.sort();
            found.sort();
            // A sequence of no tokens needs no parameters of the recurrence.
            assert!(found == wanted || len == 0, "{config:?}");
            assert_eq!(graph.ty(graph.outputs[0].value).shape, [batch, len, 8]);
        }
    }
}

#[test]
fn one_token_has_the_form_of_many() {
    let ops = |graph: &Graph| graph.nodes().map(|(_, node)| node.mnemonic().to_owned()).collect::<Vec<_>>();
    let count = |graph: &Graph, mnemonic: &str| ops(graph).iter().filter(|op| *op == mnemonic).count();
    let real = Mamba3Config { headdim: 4, d_state: 6, rope_fraction: 1.0, ..Mamba3Config::new(8) };
    let complex = Mamba2Config { headdim: 4, d_state: 3, ..Mamba2Config::cmamba(8) };
    for config in [BlockConfig::from(real.clone()), Mamba3Config { mimo_rank: 3, is_mimo: true, ..real }.into(), complex.into()] {
        let build = |len| block::graph(&config, 2, len, Io::Stateful).unwrap();
        let [one, two, more] = [1, 2, 9].map(build);
        assert_eq!(ops(&one), ops(&more), "{config:?}");
        assert_eq!(ops(&two), ops(&more), "{config:?}");
        assert_eq!((count(&one, "cumsum"), count(&one, "scan")), (1, 1));
    }
}

#[test]
fn the_trapezoidal_rule_takes_k_as_it_is() {
    let config = Mamba3Config { headdim: 4, d_state: 6, rope_fraction: 1.0, ..Mamba3Config::new(8) };
    let graph = mamba3::graph(&config, 2, 9, Io::Stateful).unwrap();
    let (_, scan) = graph.nodes().find(|(_, node)| node.mnemonic() == "scan").unwrap();
    assert!(["weight", "own_weight"].iter().all(|name| graph.operand(scan, name).is_some()));
    assert!(!graph.nodes().any(|(_, node)| node.mnemonic() == "sum"));
    let names: Vec<_> = graph.states().map(|(name, _)| name).collect();
    assert_eq!(names, ["angle_state", "ssm_state", "k_state", "v_state"]);
}

#[test]
fn states_enter_and_leave_as_asked() {
    let config = small();
    let explicit = mamba2::graph(&config, 3, 5, Io::Explicit).unwrap();
    assert_eq!(input_names(&explicit), ["u", "conv_state", "ssm_state"]);
    assert_eq!(output_names(&explicit), ["out", "conv_state_out", "ssm_state_out"]);
    assert_eq!(explicit.ty(explicit.outputs[1].value).shape, [3, 36, 3]);
    assert_eq!(explicit.ty(explicit.outputs[2].value).shape, [3, 4, 4, 5]);
    let stateful = mamba2::graph(&config, 3, 1, Io::Stateful).unwrap();
    assert_eq!(stateful.states().map(|(name, _)| name).collect::<Vec<_>>(), ["conv_state", "ssm_state"]);
    assert_eq!(stateful.updates.iter().map(|update| update.name.as_str()).collect::<Vec<_>>(), ["conv_state", "ssm_state"]);
    assert_eq!(output_names(&mamba2::graph(&config, 3, 5, Io::Fresh).unwrap()), ["out", "conv_state_out", "ssm_state_out"]);
    assert_eq!(output_names(&mamba2::graph(&config, 3, 5, Io::Stateless).unwrap()), ["out"]);
    let one_tap = mamba2::graph(&Mamba2Config { d_conv: 1, ..config }, 3, 5, Io::Explicit).unwrap();
    assert_eq!(input_names(&one_tap), ["u", "ssm_state"]);
}

#[test]
fn the_graph_holds_no_needless_ops() {
    let count = |graph: &Graph, mnemonic: &str| graph.nodes().filter(|(_, node)| node.mnemonic() == mnemonic).count();
    let graph = mamba2::graph(&Mamba2Config { ngroups: 1, ..small() }, 2, 9, Io::Explicit).unwrap();
    for absent in ["broadcast", "permute", "concat", "clamp", "pad", "cast"] {
        assert_eq!(count(&graph, absent), 0, "{absent}");
    }
    for once in ["conv1d", "scan", "softplus", "exp"] {
        assert_eq!(count(&graph, once), 1, "{once}");
    }
    assert_eq!((count(&graph, "matmul"), count(&graph, "rsqrt"), count(&graph, "silu")), (2, 2, 2));
    let scopes: Vec<&str> = graph.nodes().filter(|(_, node)| node.op().is_some()).map(|(_, node)| &*node.scope).collect();
    for scope in ["norm", "mixer/in_proj", "mixer/conv1d", "mixer/ssd", "mixer/norm", "mixer/out_proj"] {
        assert!(scopes.contains(&scope), "{scope}");
    }
    let seed = mamba2::graph(&Mamba2Config { headdim: 4, ..Mamba2Config::seed(8) }, 1, 3, Io::Stateless).unwrap();
    assert!(seed.nodes().any(|(_, node)| matches!(node.op(), Some(Op::Conv1d { newest_first: true }))));
    assert_eq!(count(&seed, "silu"), 0);
}

#[test]
fn models_build_with_every_head() {
    let config = LmConfig { tie_embeddings: false, ..LmConfig::new(small(), 2, 11) };
    let build = |head, len| model::graph(&config, 3, len, LmGraph::new(Io::Stateful, head));
    assert_eq!(build(Head::Logits, 5).unwrap().ty(build(Head::Logits, 5).unwrap().outputs[0].value).shape, [3, 5, 11]);
    let next = build(Head::Next, 1).unwrap();
    assert_eq!((output_names(&next), next.ty(next.outputs[0].value).to_string()), (vec!["next"], "u32[3]".to_owned()));
    assert_eq!(
        next.updates.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(),
        ["layers.0.conv_state", "layers.0.ssm_state", "layers.1.conv_state", "layers.1.ssm_state"]
    );
    assert!(next.nodes().any(|(_, node)| &*node.scope == "layers.1/mixer/in_proj"));
    assert_eq!(output_names(&build(Head::Loss { ignore: -100 }, 4).unwrap()), ["logits", "loss"]);
    let states = build(Head::States, 4).unwrap();
    assert!(states.outputs.is_empty() && states.updates.len() == 4);
    let options = LmGraph { token: TokenIo::State, seen: true, ..LmGraph::new(Io::Stateful, Head::Sample) };
    let sample = model::graph(&config, 3, 1, options).unwrap();
    assert_eq!(input_names(&sample), ["settings", "uniform", "repetition_penalty"]);
    assert_eq!(sample.updates.iter().filter(|update| ["token", "seen"].contains(&update.name.as_str())).count(), 2);
    for (head, len) in [(Head::Sample, 2), (Head::Logits, 1)] {
        let error = model::graph(&config, 3, len, LmGraph { head, ..options }).unwrap_err().to_string();
        assert!(error.contains("a token carried as a state"), "{error}");
    }
    assert_eq!(next.params().count(), config.parameters().unwrap().len());
    let packed = LmGraph { seq_idx: true, mask: true, ..LmGraph::new(Io::Explicit, Head::LastLogits) };
    let graph = model::graph(&LmConfig { tie_embeddings: true, ..config }, 2, 6, packed).unwrap();
    assert_eq!(input_names(&graph)[..3], ["ids", "seq_idx", "mask"]);
    assert!(graph.params().all(|(name, _)| name != "lm_head.weight"));
}

#[test]
fn mistakes_come_back_as_errors() {
    let message = |config: &Mamba2Config| mamba2::graph(config, 1, 3, Io::Stateless).unwrap_err().to_string();
    assert!(message(&Mamba2Config { ngroups: 3, ..small() }).contains("nheads = 4 is not a multiple of ngroups = 3"));
    assert!(message(&Mamba2Config { d_state: 1 << 33, ..small() }).contains("too large"));
    let config = LmConfig::new(small(), 1, 11);
    let empty = model::graph(&config, 1, 0, LmGraph::new(Io::Stateful, Head::Next)).unwrap_err().to_string();
    assert!(empty.contains("no last token in a sequence of none") && empty.contains("at least one token"), "{empty}");
    let huge = model::graph(&config, usize::MAX, usize::MAX, LmGraph::new(Io::Stateless, Head::Loss { ignore: 0 })).unwrap_err();
    assert!(huge.to_string().contains("more than 4294967295 elements"), "{huge}");
}
