//! The graphs of cases of one part: ops, norms, recurrences.

use super::CaseError;
use super::graphs::Build;
use crate::complex::{Complex, zero_order_hold};
use crate::config::{NormKind, Taps};
use crate::conv::{Conv, conv, resets};
use crate::cssd::{Cssd, CssdInputs};
use crate::json;
use crate::linear::linear;
use crate::loss::cross_entropy;
use crate::mamba3::core::{Core, CoreInputs, CoreStates};
use crate::mamba3::{AAct, RopePairs};
use crate::norm::{gated_rms_norm, rms_norm};
use crate::s6::{S6, S6Inputs};
use crate::ssd::{Ssd, SsdInputs};
use crate::train::{AdamW, StepScalars};
use monopass_ir::{DType, GraphBuilder, Tensor};
use serde_json::Value;

/// A part's sources, by their names without prefix.
pub(super) struct Part<'a, 'g> {
    pub(super) build: &'a Build<'a>,
    pub(super) g: &'g GraphBuilder,
}

type PartResult<'g> = Result<Vec<(&'static str, Tensor<'g>)>, CaseError>;

/// Builds the results of a part by name.
pub(super) type Make = for<'a, 'g> fn(&Part<'a, 'g>) -> PartResult<'g>;

/// The tensors without which there is no graph of a kind, and what builds it; `None` if it is not one part.
pub(super) fn of_kind(kind: &str) -> Option<(&'static [&'static str], Make)> {
    Some(match kind {
        "linear" => (&["x", "w"], linear_case),
        "conv1d" => (&["x", "w"], conv_case),
        "rmsnorm" => (&["x", "w"], rms_case),
        "gated_rmsnorm" => (&["y", "z", "w"], gated_case),
        "unary" => (&["x"], unary_case),
        "zoh" => (&["delta", "A"], zoh_case),
        "cross_entropy" => (&["logits", "target"], loss_case),
        "ssd" => (&["x", "dt", "A_log", "B", "C", "D", "dt_bias"], ssd_case),
        "cssd" => (&["x", "dt", "A_log", "B", "C", "D", "dt_bias"], cssd_case),
        "m3_core" => (&["x", "Bn", "Cn", "dt", "dd_A", "trap", "angle", "dt_bias", "B_bias", "C_bias", "D"], core_case),
        "adamw" => (&["p", "g"], adamw_case),
        "s6" => (&["u", "dt", "A_log", "B", "C", "D", "dt_bias"], s6_case),
        _ => return None,
    })
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

    fn dt_limit(&self) -> Result<[f32; 2], CaseError> {
        json::dt_limit(self.build.field("dt_limit")?).ok_or_else(|| self.build.bad_field("dt_limit", "two numbers"))
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
        Some("heavy_tail") => AAct::HeavyTail.apply(x),
        _ => return Err(part.build.bad_field("fn", "silu, softplus, sigmoid or heavy_tail")),
    };
    Ok(vec![("y", y)])
}

fn loss_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let ignore = part.build.field("ignore")?.as_i64().and_then(|ignore| i32::try_from(ignore).ok());
    let ignore = ignore.ok_or_else(|| part.build.bad_field("ignore", "a whole number"))?;
    Ok(vec![("loss", cross_entropy(part.needed("logits", &[0])?, part.needed("target", &[0])?, ignore))])
}

/// All steps, one after another, in one graph.
fn adamw_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let (mut p, grads) = (part.needed("p", &[])?, part.needed("g", &[])?);
    let number = |field| part.number(field);
    let adamw = AdamW { beta1: number("beta1")?, beta2: number("beta2")?, eps: number("eps")?, weight_decay: number("weight_decay")? };
    let (g, lr, shape) = (part.g, part.g.scalar(number("lr")?), p.shape());
    let mut means = [g.constant(0.0, DType::F32, shape.clone()); 2];
    let mut after = Vec::new();
    for (at, step) in (0..grads.dim(0)).zip(1..) {
        let grad = grads.slice_axis(0, at, at + 1).reshape(shape.clone());
        let bias_corrections = adamw.bias_corrections(step).map(|correction| g.scalar(correction));
        let stepped = adamw.step(p, grad, means, &StepScalars { lr, bias_corrections, clip_scale: g.scalar(1.0) }, false);
        (p, means) = (stepped.param, [stepped.m, stepped.v]);
        after.push(p.reshape([&[1], shape.as_slice()].concat()));
    }
    Ok(vec![("p", g.concat(&after, 0usize)), ("m", means[0]), ("v", means[1])])
}

fn ssd_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let (x, b) = (part.needed("x", &[0, 1])?, part.needed("B", &[0, 1])?);
    let ssd = Ssd {
        a_log: part.needed("A_log", &[])?,
        dt_bias: part.needed("dt_bias", &[])?,
        d_skip: part.needed("D", &[])?,
        nheads: x.dim(2),
        headdim: x.dim(3),
        ngroups: b.dim(2),
        d_state: b.dim(3),
        dt_limit: part.dt_limit()?,
        chunk_size: 0,
    };
    let (dt, c) = (part.needed("dt", &[0, 1])?, part.needed("C", &[0, 1])?);
    let (y, s_last) = ssd.apply(&SsdInputs { x, dt, b, c, s0: part.source("h0", &[0]), reset: part.reset(), mask: None });
    Ok(vec![("y", y), ("h_last", s_last)])
}

fn zoh_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let (delta, a) = (part.needed("delta", &[0])?, part.needed("A", &[0])?);
    let n = delta.dim(0);
    let [re, im] = [0, 1].map(|at| a.slice_axis(1, at, at + 1).reshape([n]));
    let (decay, held) = zero_order_hold(delta, Complex { re, im });
    let pairs = |z: Complex<'g>| part.g.concat(&[z.re.reshape([n, 1]), z.im.reshape([n, 1])], 1usize);
    Ok(vec![("Abar", pairs(decay)), ("F", pairs(held))])
}

fn cssd_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let (x, b) = (part.needed("x", &[0, 1])?, part.needed("B", &[0, 1])?);
    let ssd = Cssd {
        a_log: part.needed("A_log", &[])?,
        dt_bias: part.needed("dt_bias", &[])?,
        d_skip: part.needed("D", &[])?,
        mimo_x: part.source("mimo_x", &[]),
        mimo_o: part.source("mimo_o", &[]),
        nheads: x.dim(2),
        headdim: x.dim(3),
        ngroups: b.dim(3),
        ranks: b.dim(2),
        d_state: b.dim(4),
        dt_limit: part.dt_limit()?,
        chunk_size: 0,
    };
    let (dt, c) = (part.needed("dt", &[0, 1])?, part.needed("C", &[0, 1])?);
    let (y, s_last) = ssd.apply(&CssdInputs {
        x,
        dt,
        b,
        c,
        s0: part.source("h0", &[0]),
        reset: part.reset(),
        mask: None,
        gradients: part.build.gradients,
    });
    Ok(vec![("y", y), ("h_last", s_last)])
}

fn core_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let (x, b, angles) = (part.needed("x", &[0, 1])?, part.needed("Bn", &[0, 1])?, part.needed("angle", &[0, 1])?);
    let a_act = part.build.field("a_act")?.as_str().and_then(AAct::named);
    let pairwise = part.build.field("rope_pairwise")?.as_bool();
    let core = Core {
        dt_bias: part.needed("dt_bias", &[])?,
        b_bias: part.needed("B_bias", &[])?,
        c_bias: part.needed("C_bias", &[])?,
        d_skip: part.needed("D", &[])?,
        mimo_x: part.source("mimo_x", &[]),
        a_act: a_act.ok_or_else(|| part.build.bad_field("a_act", "softplus or heavy_tail"))?,
        a_floor: part.number("A_floor")?,
        pairs: match pairwise {
            Some(true) => RopePairs::Interleaved,
            Some(false) => RopePairs::Halves,
            None => return Err(part.build.bad_field("rope_pairwise", "true or false")),
        },
        nheads: x.dim(2),
        headdim: x.dim(3),
        ngroups: b.dim(3),
        ranks: b.dim(2),
        d_state: b.dim(4),
        n_angles: angles.dim(2),
        chunk_size: 0,
    };
    let state = |name| part.source(name, &[0]);
    let states = match [state("angle0"), state("h0"), state("k0"), state("v0")] {
        [Some(angle), Some(ssm), Some(k), Some(v)] => Some(CoreStates { angle, ssm, k, v }),
        _ => None,
    };
    let per_head = |name| part.needed(name, &[0, 1]);
    let (c, dt, dd_a, trap) = (per_head("Cn")?, per_head("dt")?, per_head("dd_A")?, per_head("trap")?);
    let (y, last) = core.apply(&CoreInputs { x, b, c, dt, dd_a, trap, angles, states, reset: part.reset(), mask: None });
    Ok(vec![("y", y), ("angle_last", last.angle), ("h_last", last.ssm), ("k_last", last.k), ("v_last", last.v)])
}

fn s6_case<'g>(part: &Part<'_, 'g>) -> PartResult<'g> {
    let s6 = S6 { a_log: part.needed("A_log", &[])?, dt_bias: part.needed("dt_bias", &[])?, d_skip: part.needed("D", &[])? };
    let per_token = |name| part.needed(name, &[0, 1]);
    let (u, dt, b, c) = (per_token("u")?, per_token("dt")?, per_token("B")?, per_token("C")?);
    let (y, s_last) = s6.apply(&S6Inputs { u, dt, b, c, s0: part.source("h0", &[0]), reset: part.reset() });
    Ok(vec![("y", y), ("h_last", s_last)])
}
