//! The causal depthwise convolution at an index: a few multiply-adds, cheap enough to compute where it is needed.

use super::index::{Index, Part};
use super::kernel::{KernelBuilder, Width};
use super::value::literal;
use crate::kernels::scan::STEP_TOKENS;
use monopass_ir::graph::Node;
use monopass_ir::{DType, ValueId};

/// What both results of a convolution need at one batch item, token and channel.
struct Taps<'n> {
    node: &'n Node,
    n_taps: usize,
    batch: Part,
    channel: Part,
}

impl KernelBuilder<'_> {
    /// Result `value` of a `conv1d` node: `y [B, L, C]` or `state_out [B, C, K-1]`.
    pub(super) fn conv(&mut self, value: ValueId, node: &Node, newest_first: bool, index: &Index, width: Width) -> String {
        let graph = self.ctx.graph;
        let n_taps = node.operands.get(1).copied().flatten().map_or(1, |w| graph.ty(w).shape[1]);
        if graph.value(value).result_idx == 1 {
            if width == Width::Four {
                let lanes: Vec<String> = (0..4).map(|lane| self.emit(value, &index.lane(lane), Width::One)).collect();
                return self.bind(format!("vec4<f32>({})", lanes.join(", ")));
            }
            return self.conv_state_out(node, n_taps, index);
        }
        if width == Width::Four && !index.is_quad() {
            let lanes: Vec<String> = (0..4).map(|lane| self.emit(value, &index.lane(lane), Width::One)).collect();
            return self.bind(format!("vec4<f32>({})", lanes.join(", ")));
        }
        let Ok([batch, token, channel]) = <[Part; 3]>::try_from(index.per_axis(self)) else {
            return literal(0.0, DType::F32, width);
        };
        let taps = Taps { node, n_taps, batch, channel };
        self.conv_output(&taps, &token, newest_first, width)
    }

    fn conv_output(&mut self, taps: &Taps<'_>, token: &Part, newest_first: bool, width: Width) -> String {
        let operand = |idx: usize| taps.node.operands.get(idx).copied().flatten();
        let (Some(w), bias) = (operand(1), operand(2)) else { return literal(0.0, DType::F32, width) };
        let channel = Index(vec![taps.channel.clone()]);
        let sum = self.fresh("y");
        let start = match bias {
            Some(bias) => self.emit(bias, &channel, width),
            None => literal(0.0, DType::F32, width),
        };
        self.line(format!("var {sum} = {start};"));
        let keep = self.conv_segment_flags(taps, token);
        for back in 0..taps.n_taps {
            let tap = if newest_first { back } else { taps.n_taps - 1 - back };
            let weight = self.conv_weight(w, &taps.channel, tap, taps.n_taps, width);
            self.open(keep.get(back).map_or_else(String::new, |keep| format!("if ({keep})")));
            let x = self.conv_input(taps, token, back, width);
            self.line(format!("{sum} = fma({weight}, {x}, {sum});"));
            self.close();
        }
        sum
    }

    fn conv_weight(&mut self, w: ValueId, channel: &Part, tap: usize, n_taps: usize, width: Width) -> String {
        let sizes = self.sizes(w);
        let at = |channel: Part| {
            Index(vec![Part { sizes: vec![sizes[0].clone()], ..channel }, Part::new(format!("{tap}u"), vec![sizes[1].clone()], 1)])
        };
        if width == Width::One {
            return self.emit(w, &at(channel.clone()), Width::One);
        }
        if n_taps == 4 && !self.is_inline(w) {
            // A row of four taps is one vec4; the four rows are transposed by picking a lane of each.
            let rows: Vec<String> = (0..4)
                .map(|lane| {
                    let row = Index(vec![
                        Part::new(format!("({} + {lane}u)", channel.expr), vec![sizes[0].clone()], 1),
                        Part::new("0u", vec![sizes[1].clone()], 0),
                    ]);
                    let dtype = self.ctx.graph.ty(w).dtype;
                    self.load(crate::step::StepValue::Graph(w), dtype, &row, Width::Four)
                })
                .collect();
            let lanes: Vec<String> = rows.iter().map(|row| format!("{row}[{tap}]")).collect();
            return self.bind(format!("vec4<f32>({})", lanes.join(", ")));
        }
        let lanes: Vec<String> = (0..4)
            .map(|lane| {
                let shifted = Part { expr: format!("({} + {lane}u)", channel.expr), align: 1, from: None, ..channel.clone() };
                self.emit(w, &at(shifted), Width::One)
            })
            .collect();
        self.bind(format!("vec4<f32>({})", lanes.join(", ")))
    }

    /// For each step back, a condition that no sequence starts between it and the token; none without resets.
    fn conv_segment_flags(&mut self, taps: &Taps<'_>, token: &Part) -> Vec<String> {
        let Some(reset) = taps.node.operands.get(4).copied().flatten() else { return Vec::new() };
        let mut flags = vec!["true".to_owned()];
        let mut previous = "true".to_owned();
        for back in 1..taps.n_taps {
            // A start at token s hides everything before s; a start at token 0 counts for nothing.
            let at = back - 1;
            let flag = self.fresh("keep");
            self.line(format!("var {flag} = {previous};"));
            self.open(format!("if ({flag} && {} > {at}u)", token.expr));
            let position = if at == 0 { token.expr.clone() } else { self.bind(format!("{} - {at}u", token.expr)) };
            let index = Index(vec![taps.batch.clone(), Part::new(position, token.sizes.clone(), 1)]);
            let starts = self.emit(reset, &index, Width::One);
            self.line(format!("{flag} = !{starts};"));
            self.close();
            flags.push(flag.clone());
            previous = flag;
        }
        flags
    }

    /// Input `back` tokens before `token`, from the carried window where that lies before the first.
    fn conv_input(&mut self, taps: &Taps<'_>, token: &Part, back: usize, width: Width) -> String {
        let operand = |idx: usize| taps.node.operands.get(idx).copied().flatten();
        let Some(x) = operand(0) else { return literal(0.0, DType::F32, width) };
        let here = |position: String| Index(vec![taps.batch.clone(), Part::new(position, token.sizes.clone(), 1), taps.channel.clone()]);
        if back == 0 {
            return self.emit(x, &here(token.expr.clone()), width);
        }
        if self.ctx.target.is_cpu && token.sizes.iter().all(|size| size.value() <= STEP_TOKENS as u64) {
            // Software devices compute both sides of a branch anyway, and some take minutes to compile many of them.
            let position = self.bind(format!("max({}, {back}u) - {back}u", token.expr));
            let inside = self.emit(x, &here(position), width);
            let row = self.bind(format!("min({} + {}u, {}u)", token.expr, taps.n_taps - 1 - back, taps.n_taps - 2));
            let before = match operand(3) {
                Some(state) => self.conv_window(state, taps, &row, width),
                None => literal(0.0, DType::F32, width),
            };
            return self.bind(format!("select({before}, {inside}, {} >= {back}u)", token.expr));
        }
        let result = self.fresh("x");
        self.line(format!("var {result} = {};", literal(0.0, DType::F32, width)));
        self.open(format!("if ({} >= {back}u)", token.expr));
        let position = self.bind(format!("{} - {back}u", token.expr));
        let inside = self.emit(x, &here(position), width);
        self.line(format!("{result} = {inside};"));
        if let Some(state) = operand(3) {
            self.close_open("else");
            // Row K-1 of the window would be the token 0 itself.
            let row = self.bind(format!("{} + {}u", token.expr, taps.n_taps - 1 - back));
            let before = self.conv_window(state, taps, &row, width);
            self.line(format!("{result} = {before};"));
        }
        self.close();
        result
    }

    fn conv_window(&mut self, state: ValueId, taps: &Taps<'_>, row: &str, width: Width) -> String {
        let rows = self.size(state, 2);
        let at = |channel: Part| Index(vec![taps.batch.clone(), channel, Part::new(row, vec![rows.clone()], 1)]);
        if width == Width::One {
            return self.emit(state, &at(taps.channel.clone()), Width::One);
        }
        let lanes: Vec<String> = (0..4)
            .map(|lane| {
                let shifted = Part { expr: format!("({} + {lane}u)", taps.channel.expr), align: 1, from: None, ..taps.channel.clone() };
                self.emit(state, &at(shifted), Width::One)
            })
            .collect();
        self.bind(format!("vec4<f32>({})", lanes.join(", ")))
    }

    /// `state_out[b, c, j]` is the input at `L - (K-1) + j`, or the window's where that lies before the first token;
    /// zero where a later token starts a sequence.
    fn conv_state_out(&mut self, node: &Node, n_taps: usize, index: &Index) -> String {
        let Ok([batch, channel, row]) = <[Part; 3]>::try_from(index.per_axis(self)) else {
            return literal(0.0, DType::F32, Width::One);
        };
        let operand = |idx: usize| node.operands.get(idx).copied().flatten();
        let Some(x) = operand(0) else { return literal(0.0, DType::F32, Width::One) };
        let len = self.size(x, 1);
        let len_text = self.num(&len);
        let window = n_taps - 1;
        let result = self.fresh("s");
        self.line(format!("var {result} = 0.0;"));
        let ahead = self.bind(format!("{} + {len_text}", row.expr));
        let taps = Taps { node, n_taps, batch, channel };
        let keep = self.conv_keep_row(&taps, &ahead, &len, &len_text);
        let condition = format!("{ahead} >= {window}u");
        if let Some(keep) = keep {
            self.open(format!("if ({keep})"));
        } else {
            self.open("");
        }
        self.open(format!("if ({condition})"));
        let token = self.bind(format!("{ahead} - {window}u"));
        let at = Index(vec![taps.batch.clone(), Part::new(token, vec![len], 1), taps.channel.clone()]);
        let inside = self.emit(x, &at, Width::One);
        self.line(format!("{result} = {inside};"));
        if let Some(state) = operand(3) {
            self.close_open("else");
            let before = self.conv_window(state, &taps, &ahead, Width::One);
            self.line(format!("{result} = {before};"));
        }
        self.close();
        self.close();
        result
    }

    /// Whether no sequence starts after the input that lands in a row of the outgoing window.
    fn conv_keep_row(&mut self, taps: &Taps<'_>, ahead: &str, len: &super::Num, len_text: &str) -> Option<String> {
        let reset = taps.node.operands.get(4).copied().flatten()?;
        let window = taps.n_taps - 1;
        let keep = self.fresh("keep");
        self.line(format!("var {keep} = true;"));
        // The last K-1 tokens are the only ones that can come after any row.
        for back in 0..window {
            let after = self.fresh("after");
            self.open(format!("if ({len_text} > {}u && {len_text} + {window}u > {ahead} + {}u)", back + 1, back + 1));
            self.line(format!("let {after} = {len_text} - {}u;", back + 1));
            let index = Index(vec![taps.batch.clone(), Part::new(after, vec![len.clone()], 1)]);
            let starts = self.emit(reset, &index, Width::One);
            self.line(format!("{keep} = {keep} && !{starts};"));
            self.close();
        }
        Some(keep)
    }
}
