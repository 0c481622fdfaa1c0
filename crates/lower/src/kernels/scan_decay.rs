//! What a chunk of a scan keeps in workgroup memory: running log decays, segment numbers and the weights of its tokens.

use super::scan::{Geometry, ScanItem, single};
use crate::emit::{Finish, Index, KernelBuilder, Part, Width, num::product};
use crate::step::{Step, StepValue, Temp};
use monopass_ir::{DType, ValueId};

/// Workgroup memory of the weights that tokens enter the state with.
pub(super) const WEIGHT: &str = "weight_s";
/// Workgroup memory of the weights that tokens enter their own outputs with.
pub(super) const OWN_WEIGHT: &str = "own_s";

/// The chunk of a head: batch item, first token and head.
#[derive(Clone, Copy)]
pub(super) struct ChunkAt<'x> {
    pub(super) batch: &'x str,
    pub(super) first: &'x str,
    pub(super) head: &'x str,
}

/// A weight of tokens and the workgroup array that holds it for a chunk.
pub(super) type Weight = (ValueId, &'static str);

impl Geometry {
    /// The token of a position in its chunk.
    pub(super) fn token(&self, kb: &mut KernelBuilder<'_>, at: &str) -> String {
        if self.ranks == 1 { at.to_owned() } else { kb.bind(format!("{at} / {}u", self.ranks)) }
    }

    /// The weight that tokens enter the state with, if there is one.
    pub(super) fn state_weight(&self) -> Option<Weight> {
        self.weight.map(|weight| (weight, WEIGHT))
    }

    /// As [`Self::state_weight`], and the one of a token's own output.
    pub(super) fn output_weights(&self) -> impl Iterator<Item = Weight> + use<> {
        self.state_weight().into_iter().chain(self.own_weight.map(|weight| (weight, OWN_WEIGHT)))
    }

    /// ` * w` for the weight of a token, or nothing.
    fn times_weight(&self, token: &str) -> String {
        if self.weight.is_some() { format!(" * {WEIGHT}[{token}]") } else { String::new() }
    }
}

impl Geometry {
    /// What there is of log decays, weights and resets, at their places where they are gathered.
    const fn of_tokens(&self) -> [Option<ValueId>; 4] {
        [Some(self.log_decay), self.weight, self.own_weight, self.reset]
    }
}

/// `log_decay`, `reset` or a weight at a batch item, token and head, from where they are gathered if they are.
pub(super) fn emit_token(kb: &mut KernelBuilder<'_>, geometry: &Geometry, value: ValueId, at: [&str; 3]) -> String {
    let place = geometry.of_tokens().iter().position(|&of| of == Some(value));
    if let (Some(tokens), Some(place)) = (geometry.tokens, place) {
        let [batch, token, head] = at;
        let (len, heads) = (kb.num(&geometry.len), kb.num(&geometry.heads));
        let name = kb.read(tokens, DType::F32, true);
        let all = kb.bind(format!("ld4_{name}((({batch} * {len} + {token}) * {heads} + {head}) * 4u)"));
        let is_bool = geometry.reset == Some(value);
        return if is_bool { format!("({all}[{place}] != 0.0)") } else { format!("{all}[{place}]") };
    }
    let rank = kb.ctx.graph.ty(value).rank();
    let parts: Vec<Part> = (0..).zip(&at[..rank.min(3)]).map(|(axis, expr): (usize, &&str)| single(kb, value, axis, expr)).collect();
    kb.emit(value, &Index(parts), Width::One)
}

/// Puts log decays, weights and resets into one buffer, if a kernel that binds `n_others` buffers, log decays among them, has
/// no place for all of them: four numbers a token and head. Gives the step and the buffer.
pub(super) fn gather(
    mut kb: KernelBuilder<'_>,
    item: &ScanItem,
    geometry: &Geometry,
    n_others: usize,
    temps: &mut Vec<Temp>,
) -> Option<(Step, StepValue)> {
    let n_beside = geometry.of_tokens().iter().skip(1).flatten().count();
    let has_weight = geometry.weight.is_some() || geometry.own_weight.is_some();
    if !has_weight || n_others + n_beside <= kb.ctx.target.max_storage_buffers as usize {
        return None;
    }
    let total = product([&geometry.batch, &geometry.len, &geometry.heads]);
    temps.push(Temp { of: item.y, name: "tokens", size_bytes: total.value().saturating_mul(16) });
    let tokens = StepValue::Temp(temps.len() - 1);
    let limit = kb.num(&total);
    let i = kb.bind("wg * 64u + lid");
    kb.open(format!("if ({i} < {limit})"));
    let (heads, len) = (kb.divisor(&geometry.heads), kb.divisor(&geometry.len));
    let row = kb.bind(format!("{i} / {heads}"));
    let at = [format!("{row} / {len}"), format!("{row} % {len}"), format!("{i} % {heads}")].map(|at| kb.bind(at));
    let lanes = geometry.of_tokens().map(|value| {
        let Some(value) = value else { return "0.0".to_owned() };
        let x = emit_token(&mut kb, geometry, value, [&at[0], &at[1], &at[2]]);
        if geometry.reset == Some(value) { format!("select(0.0, 1.0, {x})") } else { x }
    });
    let name = kb.write(tokens, DType::F32, true);
    kb.line(format!("st4_{name}({i} * 4u, vec4<f32>({}));", lanes.join(", ")));
    kb.close();
    let step = kb.finish(Finish {
        label: "scan_tokens".to_owned(),
        comment: "Log decay, weights and reset of each token and head side by side, so that the scan binds one buffer for them.".to_owned(),
        workgroup_size: 64,
        n_workgroups: total.value().div_ceil(64),
        loop_trips: 0,
        flops: 0,
        computes: vec![item.y],
    });
    Some((step, tokens))
}

/// Fills workgroup arrays `lam` (running log decay), those of `weights` and, with resets, `seg` (segment number) for one
/// chunk and head, which `at` places. Past the end of the sequence decays and weights are 0 and no sequence starts.
pub(super) fn running_decay(kb: &mut KernelBuilder<'_>, geometry: &Geometry, at: ChunkAt<'_>, weights: &[Weight], threads: u32) {
    let ChunkAt { batch, first, head } = at;
    let chunk = geometry.chunk;
    kb.global(&format!("var<workgroup> ld_s: array<f32, {chunk}>;\nvar<workgroup> lam: array<f32, {chunk}>;"), chunk as u64 * 8);
    let has_reset = geometry.reset.is_some();
    if has_reset {
        kb.global(&format!("var<workgroup> start_s: array<u32, {chunk}>;\nvar<workgroup> seg: array<u32, {chunk}>;"), chunk as u64 * 8);
    }
    for (_, array) in weights {
        kb.global(&format!("var<workgroup> {array}: array<f32, {chunk}>;"), chunk as u64 * 4);
    }
    let len = kb.num(&geometry.len);
    let loads = u32::try_from(chunk).unwrap_or(u32::MAX).div_ceil(threads);
    for load in 0..loads {
        let at = kb.bind(format!("lid + {}u", load * threads));
        kb.open(format!("if ({at} < {chunk}u)"));
        kb.line("var decay = 0.0;");
        if has_reset {
            kb.line("var starts = 0u;");
        }
        for (_, array) in weights {
            kb.line(format!("var {array}_at = 0.0;"));
        }
        let token = kb.bind(format!("{first} + {at}"));
        kb.open(format!("if ({token} < {len})"));
        let x = emit_token(kb, geometry, geometry.log_decay, [batch, &token, head]);
        kb.line(format!("decay = {x};"));
        if let Some(reset) = geometry.reset {
            let flag = emit_token(kb, geometry, reset, [batch, &token, head]);
            kb.line(format!("starts = select(0u, 1u, {flag} && {token} > 0u);"));
        }
        for &(weight, array) in weights {
            let x = emit_token(kb, geometry, weight, [batch, &token, head]);
            kb.line(format!("{array}_at = {x};"));
        }
        kb.close();
        kb.line(format!("ld_s[{at}] = decay;"));
        if has_reset {
            kb.line(format!("start_s[{at}] = starts;"));
        }
        for (_, array) in weights {
            kb.line(format!("{array}[{at}] = {array}_at;"));
        }
        kb.close();
    }
    kb.line("workgroupBarrier();");
    for load in 0..loads {
        let at = kb.bind(format!("lid + {}u", load * threads));
        kb.open(format!("if ({at} < {chunk}u)"));
        kb.line("var sum = 0.0;");
        if has_reset {
            kb.line("var starts = 0u;");
        }
        kb.open(format!("for (var s = 0u; s <= {at}; s += 1u)"));
        kb.line("sum += ld_s[s];");
        if has_reset {
            kb.line("starts += start_s[s];");
        }
        kb.close();
        kb.line(format!("lam[{at}] = sum;"));
        if has_reset {
            kb.line(format!("seg[{at}] = starts;"));
        }
        kb.close();
    }
    kb.line("workgroupBarrier();");
}

/// The decay from position `j` to the chunk's end, times the weight of `j`; 0 past the sequence and before a later start.
pub(super) fn end_weight(kb: &mut KernelBuilder<'_>, geometry: &Geometry, first: &str, j: &str) -> String {
    let token = geometry.token(kb, j);
    let last = geometry.chunk - 1;
    let len = kb.num(&geometry.len);
    let mut inside = format!("{first} + {token} < {len}");
    if geometry.reset.is_some() {
        inside = format!("{inside} && seg[{token}] == seg[{last}u]");
    }
    let weight = geometry.times_weight(&token);
    kb.bind(format!("select(0.0, exp(lam[{last}u] - lam[{token}]){weight}, {inside})"))
}

/// The decay from the chunk's start to position `i`; 0 where a sequence started in between.
pub(super) fn start_weight(kb: &mut KernelBuilder<'_>, geometry: &Geometry, i: &str) -> String {
    let token = geometry.token(kb, i);
    kb.bind(if geometry.reset.is_some() {
        format!("select(0.0, exp(lam[{token}]), seg[{token}] == 0u)")
    } else {
        format!("exp(lam[{token}])")
    })
}

/// The decay from token `j` to token `i`, times the weight of `j`; 0 for pairs that do not see each other.
pub(super) fn pair_weight(kb: &mut KernelBuilder<'_>, geometry: &Geometry, i: &str, j: &str) -> String {
    let mut sees = format!("{j} <= {i}");
    if geometry.reset.is_some() {
        sees = format!("{sees} && seg[{j}] == seg[{i}]");
    }
    // The exponent of a hidden pair may be large, so it is dropped before and its exponential after.
    let sees = kb.bind(sees);
    let weight = geometry.times_weight(j);
    let decay = format!("select(0.0, exp(select(0.0, lam[{i}] - lam[{j}], {sees})){weight}, {sees})");
    if geometry.own_weight.is_none() {
        return kb.bind(decay);
    }
    // Nothing decays within a token, and all its ranks see each other.
    kb.bind(format!("select({decay}, {OWN_WEIGHT}[{i}], {j} == {i})"))
}
