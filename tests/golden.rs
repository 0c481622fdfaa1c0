//! Guards that blocks, their parts, models and loaded checkpoints compute on the GPU what the reference vectors say: every
//! case once with all passes on, and a list with one of each kind and block with each pass off.

mod common;

use common::{Outcome, Program, compile, folder, gpu, settle};
use indexmap::IndexMap;
use monopass_blocks::cases::{Case, CaseGraphs, Manifest, Tensors, read_tensors};
use monopass_blocks::checkpoint::{self, Bytes, Files, ReadError};
use monopass_ir::Graph;
use monopass_lower::{CompileOptions, Pass};
use monopass_runtime::{Device, Session, blocking};
use std::path::PathBuf;

/// Kinds whose outputs are compared here.
const KINDS: [&str; 19] = [
    "linear",
    "conv1d",
    "rmsnorm",
    "gated_rmsnorm",
    "unary",
    "zoh",
    "ssd",
    "cssd",
    "m3_core",
    "s6",
    "mamba2_block",
    "seed2_block",
    "cmamba_block",
    "mamba3_block",
    "cross_entropy",
    "adamw",
    "decode",
    "lm",
    "checkpoint",
];

/// One of each kind and block, odd sizes, for what is too slow to do with all.
const CHOSEN: [&str; 40] = [
    "linear_1",
    "linear_3",
    "conv_k1_0",
    "conv_k3_2",
    "conv_k4_3",
    "rms_1",
    "rms_3",
    "grms_1_post",
    "grms_2_pre",
    "unary_silu",
    "ssd_1_packed",
    "ssd_2_h0",
    "ssd_3_plain",
    "ssd_4_clamp",
    "mamba2_basic",
    "mamba2_dssm",
    "mamba2_groups",
    "mamba2_packed",
    "mamba2_pregate",
    "seed2_groups",
    "seed2_states",
    "decode_mamba2_p6",
    "decode_seed2_p1",
    "lm_mamba2",
    "zoh_one",
    "cssd_3_mimo",
    "cssd_1_packed",
    "m3_3_packed",
    "m3_1_state",
    "s6_1",
    "cmamba_mimo",
    "cmamba_packed",
    "mamba3_mimonorm",
    "mamba3_groups",
    "mamba3_packed",
    "decode_cmamba_p1",
    "decode_mamba3_p6",
    "decode_mamba3m_p1",
    "ce_1",
    "adamw_1",
];

/// Those of them whose gradients are compared with each pass off, too.
const WITH_GRADIENTS: [&str; 24] = [
    "conv_k1_0",
    "ssd_4_clamp",
    "mamba2_packed",
    "mamba2_pregate",
    "zoh_one",
    "cssd_1_packed",
    "m3_3_packed",
    "cmamba_packed",
    "lm_mamba2",
    "mamba3_packed",
    "linear_3",
    "conv_k4_3",
    "rms_3",
    "grms_1_post",
    "unary_silu",
    "ssd_1_packed",
    "ssd_2_h0",
    "mamba2_groups",
    "seed2_states",
    "cssd_3_mimo",
    "m3_1_state",
    "s6_1",
    "mamba3_mimonorm",
    "ce_1",
];

/// A directory on disk.
struct Dir(PathBuf);

impl Files for Dir {
    fn read(&self, name: &str) -> Result<Option<Bytes<'_>>, ReadError> {
        match std::fs::read(self.0.join(name)) {
            Ok(bytes) => Ok(Some(Box::new(bytes))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Box::new(error)),
        }
    }
}

fn manifest() -> Outcome<Manifest> {
    Ok(Manifest::parse(&std::fs::read_to_string(folder("golden").join("manifest.json"))?)?)
}

/// What a case runs with.
#[derive(Clone, Copy, Debug)]
struct Setting<'a> {
    /// Passes that are off.
    off: &'a [Pass],
    /// Whether gradients are compared, too.
    gradients: bool,
}

/// Every tensor of a case that is off, with the case's name and that of the setting.
fn run(device: &Device, case: &Case, with: &Setting<'_>) -> Outcome<Vec<String>> {
    let Setting { off, gradients } = *with;
    let tensors = read_tensors(&case.file, &std::fs::read(folder("golden").join(&case.file))?)?;
    let (graphs, params) = if case.kind == "checkpoint" {
        let loaded = checkpoint::load_with(&Dir(folder("golden").join(&case.id)), &case.load_options())?;
        (CaseGraphs::of_checkpoint(case, &tensors, &loaded)?, loaded.params)
    } else {
        let graphs = if gradients { CaseGraphs::with_gradients(case, &tensors)? } else { CaseGraphs::new(case, &tensors)? };
        (graphs, CaseGraphs::params_of(&tensors))
    };
    let weights = blocking::upload(device, params.iter().map(|(name, data)| (name.clone(), data)))?;
    let mut programs: IndexMap<String, Program> = IndexMap::new();
    let mut session = Session::new(device);
    let given =
        graphs.run(&tensors, &params, |graph: &Graph, inputs: &Tensors, _: &Tensors, states: &mut Tensors| -> Outcome<Tensors> {
            let key = monopass_ir::text::print(graph);
            if !programs.contains_key(&key) {
                let plan = compile(graph, device.target(), &CompileOptions::without(off))?;
                programs.insert(key.clone(), Program::new(device, plan, &weights)?);
            }
            // States stay on the device from one run to the next.
            let (outputs, new, _) = programs[&key].run(&mut session, inputs, &Tensors::new())?;
            states.extend(new);
            Ok(outputs)
        })?;
    let verdicts = case.judge(&given, &tensors, gradients);
    if verdicts.is_empty() {
        return Err("nothing to compare".into());
    }
    Ok(verdicts.iter().filter(|verdict| !verdict.passes()).map(|verdict| format!("{} with {with:?}: {verdict:?}", case.id)).collect())
}

fn check(cases: &[&Case], with: &Setting<'_>) -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let mut problems = Vec::new();
    for case in cases {
        problems.extend(run(device, case, with).unwrap_or_else(|error| vec![format!("{} with {with:?}: {error}", case.id)]));
    }
    settle(&problems)
}

#[test]
fn every_case() -> Outcome {
    let manifest = manifest()?;
    let cases: Vec<&Case> = manifest.cases.iter().filter(|case| KINDS.contains(&case.kind.as_str())).collect();
    assert_eq!(cases.len(), 210);
    check(&cases, &Setting { off: &[], gradients: false })
}

#[test]
fn chosen_cases_with_each_pass_off() -> Outcome {
    let manifest = manifest()?;
    let cases: Vec<&Case> = manifest.cases.iter().filter(|case| CHOSEN.contains(&case.id.as_str())).collect();
    assert_eq!(cases.len(), CHOSEN.len());
    for kind in KINDS.iter().filter(|kind| **kind != "checkpoint") {
        assert!(cases.iter().any(|case| case.kind == *kind), "no {kind}");
    }
    let (with, without): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| WITH_GRADIENTS.contains(&case.id.as_str()));
    assert_eq!(with.len(), WITH_GRADIENTS.len());
    let run = |pass| {
        let both = [(&with, true), (&without, false)];
        let checked =
            both.map(|(cases, gradients)| check(cases, &Setting { off: &[pass], gradients }).err().map(|error| error.to_string()));
        checked.into_iter().flatten()
    };
    settle(&Pass::ALL.into_iter().flat_map(run).collect::<Vec<_>>())
}
