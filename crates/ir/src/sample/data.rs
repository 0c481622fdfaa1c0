//! Contents for the sources of a graph, in the domain of the ops that read them.

use super::rng::Rng;
use crate::data::{Elements, TensorData};
use crate::graph::{Graph, NodeId, NodeKind, ValueId};
use crate::op::Op;
use crate::ops::choice::N_SETTINGS;
use crate::types::{DType, TensorType};
use half::{bf16, f16};
use indexmap::IndexMap;

/// Contents of sources by name, in graph order.
pub type Named = IndexMap<String, TensorData>;

/// Contents for all inputs, params and states of any graph, equal for equal graph and seed.
///
/// Floats lie in `[-1, 1]`, a quarter of the tensors on a coarse grid so that equal elements occur; integers in
/// `[-8, 8]` (u32 from 0). What an op reads directly lies in its domain: indices within their table, `log_decay` in
/// `[-1, 0]`, operands of `log`, `sqrt` and `rsqrt` and divisors in `[0.25, 1]`, one in four of a `reset` true.
#[must_use]
pub fn inputs(graph: &Graph, seed: u64) -> (Named, Named, Named) {
    let uses = graph.uses();
    let (mut inputs, mut params, mut states) = (Named::new(), Named::new(), Named::new());
    for (i, (name, value, node)) in graph.sources().enumerate() {
        // Each source has its own numbers, whatever the shapes of those before it.
        let mut rng = Rng::new(seed ^ (i as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
        let domain = uses.get(value).map_or(Domain::Any, |readers| Domain::of(graph, value, readers));
        let data = contents(graph.ty(value), domain, &mut rng);
        let list = match node.kind {
            NodeKind::Param { .. } => &mut params,
            NodeKind::State { .. } => &mut states,
            NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Op(_) => &mut inputs,
        };
        list.insert(name.to_owned(), data);
    }
    (inputs, params, states)
}

/// Where contents have to lie.
#[derive(Clone, Copy, PartialEq)]
enum Domain {
    Any,
    /// Not negative and below this number.
    Below(usize),
    Negative,
    Positive,
    /// Seldom true.
    Rare,
    /// From 0 to below 1, and on no grid.
    Unit,
    /// Temperature, top k, top p, min p in turn, for this many tokens.
    Settings(usize),
}

impl Domain {
    /// The narrowest domain that a reader asks for.
    fn of(graph: &Graph, value: ValueId, readers: &[NodeId]) -> Self {
        let mut domain = Self::Any;
        for node in readers.iter().map(|&reader| graph.node(reader)) {
            let is_operand = |name: &str| graph.operand(node, name) == Some(value);
            domain = match (node.op(), domain) {
                (Some(Op::Gather {}), before) if is_operand("ids") => {
                    let table = graph.operand(node, "table").and_then(|table| graph.get_value(table));
                    let n_rows = table.and_then(|table| table.ty.shape.first().copied()).unwrap_or(0);
                    if let Self::Below(n) = before { Self::Below(n.min(n_rows)) } else { Self::Below(n_rows) }
                }
                (Some(Op::ScatterAdd { rows }), before) if is_operand("ids") => {
                    if let Self::Below(n) = before {
                        Self::Below(n.min(*rows))
                    } else {
                        Self::Below(*rows)
                    }
                }
                (Some(Op::Sample {}), _) if is_operand("settings") => {
                    let logits = graph.operand(node, "logits").and_then(|logits| graph.get_value(logits));
                    Self::Settings(logits.and_then(|logits| logits.ty.shape.last().copied()).unwrap_or(0))
                }
                (Some(Op::Sample {}), _) if is_operand("uniform") => Self::Unit,
                (Some(Op::Log {} | Op::Sqrt {} | Op::Rsqrt {}), _) => Self::Positive,
                (Some(Op::Div {}), _) if is_operand("rhs") => Self::Positive,
                (Some(Op::Scan { .. } | Op::ScanGrad { .. }), _) if is_operand("log_decay") => Self::Negative,
                (Some(Op::Scan { .. } | Op::ScanGrad { .. } | Op::Conv1d { .. }), _) if is_operand("reset") => Self::Rare,
                (_, before) => before,
            };
        }
        domain
    }
}

fn contents(ty: &TensorType, domain: Domain, rng: &mut Rng) -> TensorData {
    let n: usize = ty.shape.iter().product();
    let is_coarse = rng.one_in(4);
    let float = |rng: &mut Rng| {
        let is_coarse = is_coarse && domain != Domain::Unit;
        let unit = if is_coarse { (rng.unit() * 8.0).floor() / 8.0 } else { rng.unit() };
        match domain {
            Domain::Negative => -unit,
            Domain::Positive => 0.25 + 0.75 * unit,
            Domain::Unit => 0.999 * unit,
            // Drawn by place, see `settings`.
            Domain::Settings(_) => unit,
            Domain::Any | Domain::Below(_) | Domain::Rare => 2.0 * unit - 1.0,
        }
    };
    let elements = match ty.dtype {
        DType::F32 if let Domain::Settings(n_tokens) = domain => Elements::F32((0..n).map(|i| setting(i, n_tokens, rng)).collect()),
        DType::F32 => Elements::F32((0..n).map(|_| float(rng)).collect()),
        DType::F16 => Elements::F16((0..n).map(|_| f16::from_f32(float(rng))).collect()),
        DType::Bf16 => Elements::Bf16((0..n).map(|_| bf16::from_f32(float(rng))).collect()),
        DType::I32 => Elements::I32((0..n).map(|_| int(domain, -8, rng)).collect()),
        DType::U32 => Elements::U32((0..n).map(|_| int(domain, 0, rng).unsigned_abs()).collect()),
        DType::I8 => Elements::I8((0..n).map(|_| i8::try_from(rng.below(255).cast_signed() - 127).unwrap_or_default()).collect()),
        DType::Bool => Elements::Bool((0..n).map(|_| rng.one_in(if domain == Domain::Rare { 4 } else { 2 })).collect()),
    };
    TensorData::new(ty.shape.clone(), elements).unwrap_or_else(|_| TensorData::zeros(ty))
}

/// The setting of a sample at a place: temperature, top k, top p or min p, each off now and then.
fn setting(place: usize, n_tokens: usize, rng: &mut Rng) -> f32 {
    let is_off = rng.one_in(3);
    match place % N_SETTINGS {
        _ if is_off => 0.0,
        0 => 0.25 + 1.5 * rng.unit(),
        1 => f32::from(u16::try_from(rng.below(n_tokens.min(7) + 2)).unwrap_or(0)),
        2 => rng.unit(),
        _ => 0.5 * rng.unit(),
    }
}

fn int(domain: Domain, lo: i32, rng: &mut Rng) -> i32 {
    let (lo, n) = match domain {
        Domain::Below(n_rows) => (0, n_rows),
        Domain::Positive => (1, 8),
        Domain::Negative => (-8, 9),
        Domain::Any | Domain::Rare | Domain::Unit | Domain::Settings(_) => (lo, 9 + lo.unsigned_abs() as usize),
    };
    lo.saturating_add(i32::try_from(rng.below(n)).unwrap_or(0))
}
