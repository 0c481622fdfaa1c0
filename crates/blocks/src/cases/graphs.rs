//! The graphs of a case, by its kind.

use super::{Case, CaseError, Tensors};
use crate::checkpoint::Checkpoint;
use crate::config::{LmConfig, Mamba2Config, NormKind, Taps};
use crate::conv::{Conv, conv, resets};
use crate::error::ConfigErrors;
use crate::json;
use crate::linear::linear;
use crate::loss::cross_entropy;
use crate::mamba2::{BlockGraph, Io, graph_with};
use crate::model::{Head, LmGraph, graph as lm_graph};
use crate::norm::{gated_rms_norm, rms_norm};
use crate::ssd::{Ssd, SsdInputs};
use monopass_ir::error::BuildErrors;
use monopass_ir::{Graph, GraphBuilder, Tensor};
use serde_json::Value;
use std::ops::Range;

/// Every kind that has a graph.
pub(super) const KINDS: &[&str] = &[
    "linear",
    "conv1d",
    "rmsnorm",
    "gated_rmsnorm",
    "unary",
    "cross_entropy",
    "ssd",
    "mamba2_block",
    "seed2_block",
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
}

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
        let build = Build { case, tensors };
        match case.kind.as_str() {
            "linear" => build.part(&["x", "w"], linear_case),
            "conv1d" => build.part(&["x", "w"], conv_case),
            "rmsnorm" => build.part(&["x", "w"], rms_case),
            "gated_rmsnorm" => build.part(&["y", "z", "w"], gated_case),
            "unary" => build.part(&["x"], unary_case),
            "cross_entropy" => build.part(&["logits", "target"], loss_case),
            "ssd" => build.part(&["x", "dt", "A_log", "B", "C", "D", "dt_bias"], ssd_case),
            "mamba2_block" | "seed2_block" => build.block(),
            "decode" => build.decode(),
            "lm" => build.lm(),
            _ => Err(CaseError::UnknownKind { id: case.id.clone(), kind: case.kind.clone() }),
        }
    }

    /// The graph of a case of kind `checkpoint`: logits of its `in.ids` by the model that was loaded.
    ///
    /// # Errors
    /// [`CaseError`]: a missing tensor, or sizes that do not fit.
    pub fn of_checkpoint(case: &Case, tensors: &Tensors, checkpoint: &Checkpoint) -> Result<Self, CaseError> {
        Build { case, tensors }.model(&checkpoint.config, Head::Logits)
    }

    fn one(graph: Graph) -> Self {
        Self { graphs: vec![graph], steps: vec![CaseStep { graph_idx: 0, tokens: None }] }
    }
}

struct Build<'a> {
    case: &'a Case,
    tensors: &'a Tensors,
}

/// A part's sources, by their names without prefix.
struct Part<'a, 'g> {
    build: &'a Build<'a>,
    g: &'g GraphBuilder,
}

type PartResult<'g> = Result<Vec<(&'static str, Tensor<'g>)>, CaseError>;

impl Build<'_> {
    /// A graph of one part; `needed` are the tensors without which there is none.
    fn part(&self, needed: &[&str], make: impl for<'g> Fn(&Part<'_, 'g>) -> PartResult<'g>) -> Result<CaseGraphs, CaseError> {
        for name in needed {
            let is_there = ["in", "param"].iter().any(|prefix| self.tensors.contains_key(&format!("{prefix}.{name}")));
            if !is_there {
                return Err(self.missing(&format!("in.{name}")));
            }
        }
        let g = GraphBuilder::new("case");
        for (name, value) in make(&Part { build: self, g: &g })? {
            g.output(name, value);
        }
        g.finish().map(CaseGraphs::one).map_err(|source| self.build_error(source))
    }

    fn block(&self) -> Result<CaseGraphs, CaseError> {
        let config = self.block_config(self.case.kind == "seed2_block", &self.case.config)?;
        let [batch, len] = self.batch_and_len("in.u")?;
        let has = |name: &str| self.tensors.contains_key(name);
        let io = if has("in.ssm_state") { Io::Explicit } else { Io::Fresh };
        let options = BlockGraph { io, seq_idx: has("in.seq_idx"), mask: has("in.mask") };
        graph_with(&config, batch, len, options).map(CaseGraphs::one).map_err(|source| self.build_error(source))
    }

    /// The first tokens at once, then one by one, through states of the graphs.
    fn decode(&self) -> Result<CaseGraphs, CaseError> {
        let block = self.field("block")?;
        if block != "mamba2" && block != "seed2" {
            return Err(self.bad_field("block", "mamba2 or seed2"));
        }
        let config = self.block_config(block == "seed2", &self.case.config)?;
        let prefill = json::count(self.field("prefill")?).ok_or_else(|| self.bad_field("prefill", "a whole number"))?;
        let [batch, len] = self.batch_and_len("in.u")?;
        let prefill = prefill.min(len);
        let graph = |len| graph_with(&config, batch, len, Io::Stateful.into()).map_err(|source| self.build_error(source));
        let mut case = CaseGraphs { graphs: vec![graph(1)?], steps: Vec::new() };
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
        let graph = lm_graph(config, batch, len, LmGraph::new(Io::Stateless, head));
        graph.map(CaseGraphs::one).map_err(|source| self.build_error(source))
    }

    fn block_config(&self, is_seed: bool, config: &Value) -> Result<Mamba2Config, CaseError> {
        let base = if is_seed { Mamba2Config::seed(0) } else { Mamba2Config::new(0) };
        base.with_json(config).map_err(|source| self.config_error(source))
    }

    fn batch_and_len(&self, name: &str) -> Result<[usize; 2], CaseError> {
        match self.tensors.get(name).map(monopass_ir::TensorData::shape) {
            Some(&[batch, len, ..]) => Ok([batch, len]),
            _ => Err(self.missing(name)),
        }
    }

    fn field(&self, field: &'static str) -> Result<&Value, CaseError> {
        self.case.config.get(field).ok_or_else(|| self.bad_field(field, "a value"))
    }

    fn bad_field(&self, field: &'static str, expects: &'static str) -> CaseError {
        let found = self.case.config.get(field).map_or_else(|| "missing".to_owned(), Value::to_string);
        CaseError::Field { id: self.case.id.clone(), field, found, expects }
    }

    fn missing(&self, tensor: &str) -> CaseError {
        CaseError::MissingTensor { id: self.case.id.clone(), tensor: tensor.to_owned(), kind: self.case.kind.clone() }
    }

    fn config_error(&self, source: ConfigErrors) -> CaseError {
        CaseError::Config { id: self.case.id.clone(), source }
    }

    fn build_error(&self, source: BuildErrors) -> CaseError {
        CaseError::Build { id: self.case.id.clone(), source }
    }
}

impl<'g> Part<'_, 'g> {
    /// The input or param of this name, if the case has it. Axes `dynamic` of an input vary.
    fn source(&self, name: &str, dynamic: &[usize]) -> Option<Tensor<'g>> {
        if let Some(tensor) = self.build.tensors.get(&format!("in.{name}")) {
            return Some(self.g.input_dynamic(name, tensor.elements().dtype(), tensor.shape(), dynamic));
        }
        let tensor = self.build.tensors.get(&format!("param.{name}"))?;
        Some(self.g.param(name, tensor.elements().dtype(), tensor.shape()))
    }

    /// As [`source`](Self::source), of a tensor whose absence is a mistake.
    fn needed(&self, name: &str, dynamic: &[usize]) -> Result<Tensor<'g>, CaseError> {
        self.source(name, dynamic).ok_or_else(|| self.build.missing(&format!("in.{name}")))
    }

    fn reset(&self) -> Option<Tensor<'g>> {
        self.source("seq_idx", &[0, 1]).and_then(resets)
    }

    fn number(&self, field: &'static str) -> Result<f64, CaseError> {
        json::number(self.build.field(field)?).ok_or_else(|| self.build.bad_field(field, "a number"))
    }

    /// Channels that are normalised together; all of them if the field is null or missing.
    fn group(&self, x: Tensor<'g>) -> Result<usize, CaseError> {
        match self.build.case.config.get("group") {
            None | Some(Value::Null) => Ok(x.shape().last().copied().unwrap_or(1)),
            Some(group) => json::count(group).ok_or_else(|| self.build.bad_field("group", "a whole number or null")),
        }
    }
}

fn linear_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let y = linear(part.needed("x", &[0])?, part.needed("w", &[])?, part.source("b", &[]));
    Ok(vec![("y", y)])
}

fn conv_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let weight = part.needed("w", &[])?;
    let act = part.build.field("act")? == "silu";
    let with = Conv { weight, bias: part.source("b", &[]), taps: Taps::NewestLast, act };
    let (y, state) = conv(part.needed("x", &[0, 1])?, &with, part.source("state", &[0]), part.reset());
    let has_window = weight.dim(1) > 1;
    Ok([("y", y)].into_iter().chain(has_window.then_some(("state_out", state))).collect())
}

fn rms_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let x = part.needed("x", &[0])?;
    Ok(vec![("y", rms_norm(x, part.needed("w", &[])?, part.number("eps")?, part.group(x)?))])
}

fn gated_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let (y, z, w) = (part.needed("y", &[0])?, part.needed("z", &[0])?, part.needed("w", &[])?);
    let before = part.build.field("norm_before_gate")?.as_bool();
    let before = before.ok_or_else(|| part.build.bad_field("norm_before_gate", "true or false"))?;
    let kind = if before { NormKind::BeforeGate } else { NormKind::AfterGate };
    Ok(vec![("o", gated_rms_norm(y, Some(z), Some(w), kind, part.number("eps")?, part.group(y)?))])
}

fn unary_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let x = part.needed("x", &[0])?;
    let y = match part.build.field("fn")?.as_str() {
        Some("silu") => x.silu(),
        Some("softplus") => x.softplus(),
        Some("sigmoid") => x.sigmoid(),
        // 1 + x on the right and 1 / (1 - x) on the left, which meet in value and slope.
        Some("heavy_tail") => x.max(x.number(0.0)) + x.number(1.0) / (x.number(1.0) - x.min(x.number(0.0))),
        _ => return Err(part.build.bad_field("fn", "silu, softplus, sigmoid or heavy_tail")),
    };
    Ok(vec![("y", y)])
}

fn loss_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let ignore = part.build.field("ignore")?.as_i64().and_then(|ignore| i32::try_from(ignore).ok());
    let ignore = ignore.ok_or_else(|| part.build.bad_field("ignore", "a whole number"))?;
    Ok(vec![("loss", cross_entropy(part.needed("logits", &[0])?, part.needed("target", &[0])?, ignore))])
}

fn ssd_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let (x, b) = (part.needed("x", &[0, 1])?, part.needed("B", &[0, 1])?);
    let limit = part.build.field("dt_limit")?;
    let ssd = Ssd {
        a_log: part.needed("A_log", &[])?,
        dt_bias: part.needed("dt_bias", &[])?,
        d_skip: part.needed("D", &[])?,
        nheads: x.dim(2),
        headdim: x.dim(3),
        ngroups: b.dim(2),
        d_state: b.dim(3),
        dt_limit: json::dt_limit(limit).ok_or_else(|| part.build.bad_field("dt_limit", "two numbers"))?,
        chunk_size: 0,
    };
    let (dt, c) = (part.needed("dt", &[0, 1])?, part.needed("C", &[0, 1])?);
    let (y, s_last) = ssd.apply(&SsdInputs { x, dt, b, c, s0: part.source("h0", &[0]), reset: part.reset(), mask: None });
    Ok(vec![("y", y), ("h_last", s_last)])
}
