//! The graphs of a case, by its kind.

use super::parts;
use super::{Case, CaseError, Tensors};
use crate::block::{BlockConfig, BlockGraph, graph_with};
use crate::checkpoint::Checkpoint;
use crate::config::LmConfig;
use crate::error::ConfigErrors;
use crate::json;
use crate::model::{Head, LmGraph, graph as lm_graph};
use crate::state::Io;
use monopass_ir::autodiff::{COTANGENT_PREFIX, GRADIENT_PREFIX, GradientOptions, gradient_graph};
use monopass_ir::error::BuildErrors;
use monopass_ir::{Graph, GraphBuilder};
use serde_json::Value;
use std::ops::Range;

/// Every kind that has a graph.
pub(super) const KINDS: &[&str] = &[
    "linear",
    "conv1d",
    "rmsnorm",
    "gated_rmsnorm",
    "unary",
    "zoh",
    "cross_entropy",
    "ssd",
    "cssd",
    "m3_core",
    "s6",
    "adamw",
    "mamba2_block",
    "seed2_block",
    "cmamba_block",
    "mamba3_block",
    "decode",
    "lm",
    "checkpoint",
];

/// The graphs of a case, and in which order they run.
#[derive(Clone, Debug)]
pub struct CaseGraphs {
    /// Distinct graphs.
    pub graphs: Vec<Graph>,
    /// Runs, in order, which share states by name.
    pub steps: Vec<CaseStep>,
    /// States whose names in the case's file differ from ours.
    pub(super) renamed: &'static [Renamed],
}

/// A state's name in our graphs, and in a case's file before and after the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renamed {
    pub(super) ours: &'static str,
    pub(super) before: &'static str,
    pub(super) after: &'static str,
}

/// The states of Mamba-3.
const MAMBA3_STATES: &[Renamed] = &[
    Renamed { ours: "angle_state", before: "angle0", after: "angle_last" },
    Renamed { ours: "ssm_state", before: "h0", after: "h_last" },
    Renamed { ours: "k_state", before: "k0", after: "k_last" },
    Renamed { ours: "v_state", before: "v0", after: "v_last" },
];

/// One run of a graph of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseStep {
    /// Which of the graphs.
    pub graph_idx: usize,
    /// Tokens (axis 1) of the inputs that it gets; absent: all of them.
    pub tokens: Option<Range<usize>>,
}

impl CaseGraphs {
    /// The graphs of a case whose file holds `tensors`.
    ///
    /// A case of kind `checkpoint` needs the checkpoint too, see [`of_checkpoint`](Self::of_checkpoint).
    ///
    /// # Errors
    /// [`CaseError`]: an unknown kind, a missing tensor or field, or sizes that do not fit.
    pub fn new(case: &Case, tensors: &Tensors) -> Result<Self, CaseError> {
        Self::build(&Build { case, tensors, gradients: false })
    }

    fn build(build: &Build<'_>) -> Result<Self, CaseError> {
        let case = build.case;
        match case.kind.as_str() {
            "mamba2_block" | "seed2_block" | "cmamba_block" | "mamba3_block" => build.block(case.kind.trim_end_matches("_block")),
            "decode" => build.decode(),
            "lm" => build.lm(),
            _ => match parts::of_kind(&case.kind) {
                Some((needed, make)) => build.part(needed, make),
                None => Err(CaseError::UnknownKind { id: case.id.clone(), kind: case.kind.clone() }),
            },
        }
    }

    /// The graph of a case of kind `checkpoint`: logits of its `in.ids` by the model that was loaded.
    ///
    /// # Errors
    /// [`CaseError`]: a missing tensor, or sizes that do not fit.
    pub fn of_checkpoint(case: &Case, tensors: &Tensors, checkpoint: &Checkpoint) -> Result<Self, CaseError> {
        Build { case, tensors, gradients: false }.model(&checkpoint.config, Head::Logits)
    }

    /// As [`new`](Self::new), with the gradients that the case expects: they are further outputs, and the adjoints in the case's file, the
    /// tensors `cot.…`, further inputs. The graphs of a case that expects none are those of `new`.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); a case of several runs, or an op without derivative.
    pub fn with_gradients(case: &Case, tensors: &Tensors) -> Result<Self, CaseError> {
        let names = |list: &mut dyn Iterator<Item = &String>, prefix| -> Vec<String> {
            list.filter_map(|name| Some(name.strip_prefix(prefix)?.to_owned())).collect()
        };
        let wanted = names(&mut case.expect.keys(), GRADIENT_PREFIX);
        let build = Build { case, tensors, gradients: !wanted.is_empty() };
        let plain = Self::build(&build)?;
        if wanted.is_empty() {
            return Ok(plain);
        }
        let [graph] = plain.graphs.as_slice() else { return Err(build.bad_field("prefill", "nothing: gradients are of one run")) };
        let given = names(&mut tensors.keys(), COTANGENT_PREFIX);
        let results = graph.outputs.iter().map(|named| named.name.clone());
        let options = GradientOptions {
            of: Some(results.filter(|name| given.contains(&plain.result_in_file(name))).collect()),
            wrt: Some(
                graph.sources().map(|(name, ..)| name.to_owned()).filter(|name| wanted.contains(&plain.source_in_file(name))).collect(),
            ),
        };
        let graph = gradient_graph(graph, &options).map_err(|source| build.build_error(source))?;
        Ok(Self { renamed: plain.renamed, ..Self::one(graph) })
    }

    /// What a case's file calls a source of ours, without prefix.
    pub(super) fn source_in_file(&self, name: &str) -> String {
        let renamed = self.renamed.iter().find(|state| state.ours == name);
        renamed.map_or(name, |state| state.before).to_owned()
    }

    /// What a case's file calls a result of ours, without the prefix of outputs.
    pub(super) fn result_in_file(&self, name: &str) -> String {
        if let Some(source) = name.strip_prefix(GRADIENT_PREFIX) {
            return format!("{GRADIENT_PREFIX}{}", self.source_in_file(source));
        }
        let renamed = self.renamed.iter().find(|state| name.strip_suffix("_out") == Some(state.ours));
        renamed.map_or(name, |state| state.after).to_owned()
    }

    fn one(graph: Graph) -> Self {
        Self { graphs: vec![graph], steps: vec![CaseStep { graph_idx: 0, tokens: None }], renamed: &[] }
    }
}

pub(super) struct Build<'a> {
    pub(super) case: &'a Case,
    pub(super) tensors: &'a Tensors,
    /// Whether gradients will be taken.
    pub(super) gradients: bool,
}

impl Build<'_> {
    /// A graph of one part; `needed` are the tensors without which there is none.
    fn part(&self, needed: &[&str], make: parts::Make) -> Result<CaseGraphs, CaseError> {
        for name in needed {
            let is_there = ["in", "param"].iter().any(|prefix| self.tensors.contains_key(&format!("{prefix}.{name}")));
            if !is_there {
                return Err(self.missing(&format!("in.{name}")));
            }
        }
        let g = GraphBuilder::new("case");
        for (name, value) in make(&parts::Part { build: self, g: &g })? {
            g.output(name, value);
        }
        g.finish().map(CaseGraphs::one).map_err(|source| self.build_error(source))
    }

    fn block(&self, kind: &str) -> Result<CaseGraphs, CaseError> {
        let config = self.block_config(kind)?;
        let [batch, len] = self.batch_and_len("in.u")?;
        let has = |name: &str| self.tensors.contains_key(name);
        let io = if has("in.ssm_state") || has("in.h0") { Io::Explicit } else { Io::Fresh };
        let options = BlockGraph { io, seq_idx: has("in.seq_idx"), mask: has("in.mask"), gradients: self.gradients };
        let graph = graph_with(&config, batch, len, options).map_err(|source| self.build_error(source))?;
        Ok(CaseGraphs { renamed: renamed_by(&config), ..CaseGraphs::one(graph) })
    }

    /// The first tokens at once, then one by one, through states of the graphs.
    fn decode(&self) -> Result<CaseGraphs, CaseError> {
        let kind = self.field("block")?.as_str().ok_or_else(|| self.bad_field("block", "the name of a block"))?;
        let config = self.block_config(kind)?;
        let prefill = json::count(self.field("prefill")?).ok_or_else(|| self.bad_field("prefill", "a whole number"))?;
        let [batch, len] = self.batch_and_len("in.u")?;
        let prefill = prefill.min(len);
        let graph = |len| graph_with(&config, batch, len, Io::Stateful.into()).map_err(|source| self.build_error(source));
        let mut case = CaseGraphs { graphs: vec![graph(1)?], steps: Vec::new(), renamed: renamed_by(&config) };
        if prefill > 0 {
            case.graphs.push(graph(prefill)?);
            case.steps.push(CaseStep { graph_idx: 1, tokens: Some(0..prefill) });
        }
        case.steps.extend((prefill..len).map(|token| CaseStep { graph_idx: 0, tokens: Some(token..token + 1) }));
        Ok(case)
    }

    fn lm(&self) -> Result<CaseGraphs, CaseError> {
        let config = LmConfig::from_json(&self.case.config).map_err(|source| self.config_error(source))?;
        let ignore = self.field("ignore")?.as_i64().and_then(|ignore| i32::try_from(ignore).ok());
        let ignore = ignore.ok_or_else(|| self.bad_field("ignore", "a whole number"))?;
        self.model(&config, Head::Loss { ignore })
    }

    fn model(&self, config: &LmConfig, head: Head) -> Result<CaseGraphs, CaseError> {
        let [batch, len] = self.batch_and_len("in.ids")?;
        let graph = lm_graph(config, batch, len, LmGraph { gradients: self.gradients, ..LmGraph::new(Io::Stateless, head) });
        graph.map(CaseGraphs::one).map_err(|source| self.build_error(source))
    }

    fn block_config(&self, kind: &str) -> Result<BlockConfig, CaseError> {
        BlockConfig::from_json(kind, &self.case.config).map_err(|source| self.config_error(source))
    }

    fn batch_and_len(&self, name: &str) -> Result<[usize; 2], CaseError> {
        match self.tensors.get(name).map(monopass_ir::TensorData::shape) {
            Some(&[batch, len, ..]) => Ok([batch, len]),
            _ => Err(self.missing(name)),
        }
    }

    pub(super) fn field(&self, field: &'static str) -> Result<&Value, CaseError> {
        self.case.config.get(field).ok_or_else(|| self.bad_field(field, "a value"))
    }

    pub(super) fn bad_field(&self, field: &'static str, expects: &'static str) -> CaseError {
        let found = self.case.config.get(field).map_or_else(|| "missing".to_owned(), Value::to_string);
        CaseError::Field { id: self.case.id.clone(), field, found, expects }
    }

    pub(super) fn missing(&self, tensor: &str) -> CaseError {
        CaseError::MissingTensor { id: self.case.id.clone(), tensor: tensor.to_owned(), kind: self.case.kind.clone() }
    }

    fn config_error(&self, source: ConfigErrors) -> CaseError {
        CaseError::Config { id: self.case.id.clone(), source }
    }

    fn build_error(&self, source: BuildErrors) -> CaseError {
        CaseError::Build { id: self.case.id.clone(), source }
    }
}

/// The states that a case's file calls otherwise.
const fn renamed_by(config: &BlockConfig) -> &'static [Renamed] {
    match config {
        BlockConfig::Mamba2(_) => &[],
        BlockConfig::Mamba3(_) => MAMBA3_STATES,
    }
}
