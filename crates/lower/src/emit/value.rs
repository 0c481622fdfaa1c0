//! The expression of a value at an index: every op that can be computed where it is needed.
//!
//! Matrix products and scans cannot, nor can reductions and prefixes over more than a few elements; their results are loaded,
//! or defined by their own kernel.

use super::index::{Index, Part};
use super::kernel::{HeldArray, KernelBuilder, Width, loads_quads, register_type};
use super::num::Num;
use super::sums::RunningSum;
use crate::step::StepValue;
use monopass_ir::graph::{Node, NodeKind};
use monopass_ir::op::Accuracy;
use monopass_ir::{DType, Op, ValueId};

impl KernelBuilder<'_> {
    /// Index over all axes of a value, from the flat row-major position `expr`, of which `align` is known to be a divisor.
    pub fn flat_index(&mut self, value: ValueId, expr: &str, align: u64) -> Index {
        let sizes = self.sizes(value);
        Index(vec![Part::new(expr, sizes, align)])
    }

    /// An identifier or literal for `value` at `index`, computed by the statements appended so far.
    pub fn emit(&mut self, value: ValueId, index: &Index, width: Width) -> String {
        if let Some(ident) = self.known_row(value) {
            return if width == Width::One { ident } else { self.four(value, &ident) };
        }
        if let Some(ident) = self.element_of_array(value, index, width) {
            return ident;
        }
        let key = index.key();
        if let Some(ident) = self.known(value, &key, width) {
            return ident;
        }
        let ident = self.compute(value, index, width);
        self.define(value, key, width, ident.clone());
        ident
    }

    /// The element, or four, of a value that is in workgroup memory.
    fn element_of_array(&mut self, value: ValueId, index: &Index, width: Width) -> Option<String> {
        let HeldArray { name: array, n_lead, at } = self.known_array(value)?;
        if let Some(at) = at {
            let lead = Index(index.run(self, 0..n_lead));
            if lead.key() != at {
                return None;
            }
        }
        let run = index.run(self, n_lead..index.rank());
        let sizes = run.iter().flat_map(|part| part.sizes.iter().cloned()).collect();
        let place = self.merge_parts(&run, sizes).expr;
        let is_repeated = self.ctx.graph.ty(value).shape.last().is_none_or(|&size| size == 1);
        if width == Width::One || is_repeated {
            let one = self.bind(format!("{array}[{place}]"));
            return Some(if width == Width::One { one } else { self.four(value, &one) });
        }
        let lanes: Vec<String> = (0..4).map(|lane| format!("{array}[{place} + {lane}u]")).collect();
        Some(self.bind(format!("vec4<{}>({})", register_type(self.ctx.graph.ty(value).dtype), lanes.join(", "))))
    }

    /// Four times an element of a value.
    fn four(&mut self, value: ValueId, one: &str) -> String {
        self.bind(format!("vec4<{}>({one})", register_type(self.ctx.graph.ty(value).dtype)))
    }

    fn compute(&mut self, value: ValueId, index: &Index, width: Width) -> String {
        let graph = self.ctx.graph;
        let node = graph.def(value);
        match &node.kind {
            NodeKind::Const(number) => literal(*number, graph.ty(value).dtype, width),
            NodeKind::Op(op) if self.is_inline(value) => self.compute_op(op, node, value, index, width),
            NodeKind::Op(_) | NodeKind::Input { .. } | NodeKind::Param { .. } | NodeKind::State { .. } => {
                self.load(StepValue::Graph(value), graph.ty(value).dtype, index, width)
            }
        }
    }

    /// Loads an element, or four, of a stored value.
    pub fn load(&mut self, value: StepValue, dtype: DType, index: &Index, width: Width) -> String {
        let (flat, aligned) = index.flat(self);
        let quad = width == Width::Four && aligned && loads_quads(dtype);
        let name = self.read(value, dtype, quad);
        let at = self.bind(flat);
        self.bind(match width {
            Width::One => format!("ld_{name}({at})"),
            Width::Four if quad => format!("ld4_{name}({at})"),
            Width::Four => {
                let ty = register_type(dtype);
                format!("vec4<{ty}>(ld_{name}({at}), ld_{name}({at} + 1u), ld_{name}({at} + 2u), ld_{name}({at} + 3u))")
            }
        })
    }

    fn compute_op(&mut self, op: &Op, node: &Node, value: ValueId, index: &Index, width: Width) -> String {
        let x = node.operands.first().copied().flatten();
        match (op, x) {
            (Op::Reshape { .. }, Some(x)) => {
                let sizes = self.sizes(x);
                let at = index.reshape(self, &sizes);
                self.emit_mapped(value, x, index, &at, width)
            }
            (Op::Permute { axes }, Some(x)) => {
                let parts = index.per_axis(self);
                let mut moved: Vec<Option<Part>> = vec![None; axes.len()];
                for (part, &axis) in parts.into_iter().zip(axes) {
                    moved[axis] = Some(part);
                }
                let at = Index(moved.into_iter().flatten().collect());
                let keeps_last = axes.last().is_none_or(|&axis| axis + 1 == axes.len());
                if width == Width::Four && !keeps_last { self.lanes(value, index) } else { self.emit_mapped(value, x, index, &at, width) }
            }
            (Op::Slice { starts, .. }, Some(x)) => self.slice(value, x, starts, index, width),
            (Op::Broadcast { .. }, Some(x)) => self.operand(x, value, index, width),
            (Op::Pad { lo, value: fill, .. }, Some(x)) => self.pad(value, x, lo, *fill, index, width),
            (Op::Concat { axis }, _) => self.concat(value, node, *axis, index, width),
            (Op::Iota { axis, dtype, .. }, _) => self.iota(value, *axis, *dtype, index, width),
            (Op::Gather {}, Some(table)) => self.gather(value, table, node.operands.get(1).copied().flatten(), index, width),
            (Op::Conv1d { newest_first }, Some(_)) => self.conv(value, node, *newest_first, index, width),
            (Op::Sum { keepdims, .. } | Op::Mean { keepdims, .. }, Some(x)) => {
                self.sum_of_row(value, x, *keepdims, matches!(op, Op::Mean { .. }), index, width)
            }
            (Op::Cumsum { axis, reverse, period }, Some(_)) => {
                self.running_sum(value, node, &RunningSum { axis: *axis, reverse: *reverse, period: *period }, index, width)
            }
            _ => self.elementwise(op, node, value, index, width),
        }
    }

    /// Four single elements side by side.
    pub(super) fn lanes(&mut self, value: ValueId, index: &Index) -> String {
        let ty = register_type(self.ctx.graph.ty(value).dtype);
        let lanes: Vec<String> = (0..4).map(|lane| self.emit(value, &index.lane(lane), Width::One)).collect();
        self.bind(format!("vec4<{ty}>({})", lanes.join(", ")))
    }

    /// Operand `x` of `value`, where a movement op has mapped the index to `at`.
    fn emit_mapped(&mut self, value: ValueId, x: ValueId, index: &Index, at: &Index, width: Width) -> String {
        if width == Width::Four && !at.is_quad() { self.lanes(value, index) } else { self.emit(x, at, width) }
    }

    /// Operand `x` of the broadcasting op that computes `value`.
    fn operand(&mut self, x: ValueId, value: ValueId, index: &Index, width: Width) -> String {
        let (graph, dtype) = (self.ctx.graph, self.ctx.graph.ty(x).dtype);
        let (from, to) = (&graph.ty(x).shape, &graph.ty(value).shape);
        if from == to {
            return self.emit(x, index, width);
        }
        let sizes = self.sizes(x);
        let at = index.broadcast(self, &sizes);
        if width == Width::One {
            return self.emit(x, &at, Width::One);
        }
        if from.last().is_none_or(|&size| size == 1) {
            let one = self.emit(x, &at, Width::One);
            return self.bind(format!("vec4<{}>({one})", register_type(dtype)));
        }
        if at.is_quad() {
            return self.emit(x, &at, Width::Four);
        }
        let lanes: Vec<String> = (0..4)
            .map(|lane| {
                let at = index.lane(lane).broadcast(self, &sizes);
                self.emit(x, &at, Width::One)
            })
            .collect();
        self.bind(format!("vec4<{}>({})", register_type(dtype), lanes.join(", ")))
    }

    fn slice(&mut self, value: ValueId, x: ValueId, starts: &[usize], index: &Index, width: Width) -> String {
        let from = self.sizes(x);
        let graph = self.ctx.graph;
        let changed = self.ctx.dynamic.cut_axes(graph, x, starts, &graph.ty(value).shape);
        // A cut before each changed axis keeps it the outermost of its run, where a start is one addition.
        let mut at = 0;
        let mut parts = Vec::new();
        for part in index.cut(self, &changed).0 {
            let axes = at..at + part.sizes.len();
            at = axes.end;
            let sizes = from[axes.clone()].to_vec();
            let start =
                if changed.contains(&axes.start) { self.slice_start(value, x, axes.start, starts[axes.start]) } else { Num::Static(0) };
            if matches!(start, Num::Static(0)) || axes.is_empty() {
                parts.push(Part { sizes, ..part });
                continue;
            }
            let inner = super::num::product(&sizes[1..]);
            let offset = start.mul(&inner);
            let text = self.num(&offset);
            let expr = if part.is_zero() { text } else { self.bind(format!("{} + {text}", part.expr)) };
            parts.push(Part::new(expr, sizes, super::kernel::gcd(part.align, offset.factor())));
        }
        self.emit_mapped(value, x, index, &Index(parts), width)
    }

    /// Where a slice starts on an axis. Where the size of the axis varies, the start may vary with it.
    fn slice_start(&mut self, value: ValueId, x: ValueId, axis: usize, start: usize) -> Num {
        if !self.ctx.dynamic.is_dynamic(x, axis) {
            return Num::Static(start as u64);
        }
        Num::Dynamic { key: format!("{}.start{axis}", self.name_of(value)), value: start as u64, factor: 1 }
    }

    fn pad(&mut self, value: ValueId, x: ValueId, lo: &[usize], fill: f64, index: &Index, width: Width) -> String {
        if width == Width::Four {
            return self.lanes(value, index);
        }
        let (dtype, sizes) = (self.ctx.graph.ty(x).dtype, self.sizes(x));
        let mut conditions = Vec::new();
        let mut parts = Vec::new();
        for (axis, part) in index.per_axis(self).into_iter().enumerate() {
            let size = sizes[axis].clone();
            // An axis that varies is padded from one element even where it has one itself, so that the text stays the same.
            let is_same = part.sizes[0].value() == size.value() && (size.is_one() == part.sizes[0].is_one());
            if lo[axis] == 0 && is_same {
                parts.push(part);
                continue;
            }
            // Below the start the unsigned difference wraps to a large number, so one comparison covers both ends.
            let inner = self.bind(format!("{} - {}u", part.expr, lo[axis]));
            let limit = self.num(&size);
            conditions.push(format!("{inner} < {limit}"));
            parts.push(Part::new(inner, vec![size], 1));
        }
        if conditions.is_empty() {
            return self.emit(x, index, width);
        }
        let result = self.fresh("p");
        self.line(format!("var {result} = {};", literal(fill, dtype, Width::One)));
        self.open(format!("if ({})", conditions.join(" && ")));
        let inside = self.emit(x, &Index(parts), Width::One);
        self.line(format!("{result} = {inside};"));
        self.close();
        result
    }

    fn concat(&mut self, value: ValueId, node: &Node, axis: usize, index: &Index, width: Width) -> String {
        let graph = self.ctx.graph;
        let parts: Vec<ValueId> = node.present_operands().filter(|&part| graph.ty(part).shape[axis] > 0).collect();
        let is_last = axis + 1 == index.rank();
        let quads = !is_last || parts.iter().all(|&part| self.size(part, axis).is_multiple_of_4());
        if width == Width::Four && !(quads && index.is_quad()) {
            return self.lanes(value, index);
        }
        let dtype = graph.ty(value).dtype;
        if parts.is_empty() {
            return literal(0.0, dtype, width);
        }
        let ty = register_type(dtype);
        let cut = index.cut(self, &[axis, axis + 1]);
        let slot = part_of_axis(&cut, axis);
        if let Some((part, at)) = self.known_part(&parts, axis, &cut.0[slot].expr) {
            let mut inside = cut;
            let size = self.size(part, axis);
            inside.0[slot] = if at == 0 { Part::zero(vec![size]) } else { Part::new(format!("{at}u"), vec![size], 1) };
            return self.emit(part, &inside, width);
        }
        if let [first, second] = parts[..] {
            let sizes = [first, second].map(|part| self.size(part, axis));
            // Software devices compute both sides of a branch anyway, and some take minutes to compile many of them.
            if sizes.iter().all(Num::is_one) || self.ctx.target.is_cpu && width == Width::One {
                return self.one_of_two([first, second], sizes, &cut, slot, width);
            }
        }
        let result = self.fresh("c");
        match width {
            Width::One => self.line(format!("var {result}: {ty};")),
            Width::Four => self.line(format!("var {result}: vec4<{ty}>;")),
        }
        let mut start = Num::Static(0);
        for (i, &part) in parts.iter().enumerate() {
            let size = self.size(part, axis);
            let end = sum(&start, &size);
            if i + 1 < parts.len() {
                let limit = self.num(&end);
                let head = format!("if ({} < {limit})", cut.0[slot].expr);
                if i == 0 { self.open(&head) } else { self.close_open(&format!("else {head}")) }
            } else if i > 0 {
                self.close_open("else");
            } else {
                self.open("");
            }
            let mut at = cut.clone();
            let align = super::kernel::gcd(cut.0[slot].align, start.factor());
            let expr = if start.value() == 0 && matches!(start, Num::Static(_)) {
                cut.0[slot].expr.clone()
            } else {
                let text = self.num(&start);
                self.bind(format!("{} - {text}", cut.0[slot].expr))
            };
            at.0[slot] = Part::new(expr, vec![size], align);
            let inside = self.emit(part, &at, width);
            self.line(format!("{result} = {inside};"));
            start = end;
        }
        self.close();
        result
    }

    /// A concat of two parts, such as the two numbers of a pair: both are computed, without a branch.
    fn one_of_two(&mut self, parts: [ValueId; 2], sizes: [Num; 2], cut: &Index, slot: usize, width: Width) -> String {
        let position = cut.0[slot].expr.clone();
        let [n_first, n_second] = sizes;
        let start = self.num(&n_first);
        let first_at = if n_first.is_one() { "0u".to_owned() } else { self.bind(format!("min({position}, {start} - 1u)")) };
        let second_at = if n_second.is_one() { "0u".to_owned() } else { self.bind(format!("max({position}, {start}) - {start}")) };
        let mut at = |part: ValueId, place: String, size: Num| {
            let mut at = cut.clone();
            at.0[slot] = Part::new(place, vec![size], 1);
            self.emit(part, &at, width)
        };
        let (first, second) = (at(parts[0], first_at, n_first), at(parts[1], second_at, n_second));
        self.bind(format!("select({second}, {first}, {position} < {start})"))
    }

    /// The part of a concat at a position that is known, and the position in it, if the sizes before it are.
    fn known_part(&mut self, parts: &[ValueId], axis: usize, at: &str) -> Option<(ValueId, u64)> {
        let mut at: u64 = at.strip_suffix('u')?.parse().ok()?;
        for &part in parts {
            let Num::Static(size) = self.size(part, axis) else { return None };
            if at < size {
                return Some((part, at));
            }
            at -= size;
        }
        None
    }

    fn iota(&mut self, value: ValueId, axis: usize, dtype: DType, index: &Index, width: Width) -> String {
        if width == Width::Four {
            return self.lanes(value, index);
        }
        let cut = index.cut(self, &[axis, axis + 1]);
        let slot = part_of_axis(&cut, axis);
        self.bind(format!("{}({})", register_type(dtype), cut.0[slot].expr))
    }

    fn gather(&mut self, value: ValueId, table: ValueId, ids: Option<ValueId>, index: &Index, width: Width) -> String {
        let Some(ids) = ids else { return literal(0.0, DType::F32, width) };
        let graph = self.ctx.graph;
        let n_id_axes = graph.ty(ids).rank();
        if width == Width::Four && graph.ty(table).rank() == 1 {
            return self.lanes(value, index);
        }
        let cut = index.cut(self, &[n_id_axes]);
        let id_index = Index(cut.run(self, 0..n_id_axes));
        let id = self.emit(ids, &id_index, Width::One);
        let rows = self.size(table, 0);
        let last = self.last(&rows);
        let row = match graph.ty(ids).dtype {
            DType::I32 => self.bind(format!("min(u32(max({id}, 0)), {last})")),
            DType::F32 | DType::F16 | DType::Bf16 | DType::U32 | DType::Bool | DType::I8 => self.bind(format!("min({id}, {last})")),
        };
        let mut parts = vec![Part::new(row, vec![rows], 1)];
        parts.extend(cut.run(self, n_id_axes..index.rank()));
        self.emit_mapped(value, table, index, &Index(parts), width)
    }

    fn elementwise(&mut self, op: &Op, node: &Node, value: ValueId, index: &Index, width: Width) -> String {
        if width == Width::Four && !index.is_quad() {
            return self.lanes(value, index);
        }
        let graph = self.ctx.graph;
        let operands: Vec<ValueId> = node.present_operands().collect();
        let mut args: Vec<String> = operands.iter().map(|&x| self.operand(x, value, index, width)).collect();
        if operands.iter().all(|&x| matches!(graph.def(x).kind, NodeKind::Const(_))) {
            // Arithmetic on literals is done by the shader compiler, to which an overflow is an error.
            for arg in &mut args {
                let name = self.fresh("k");
                self.line(format!("let {name} = {arg};"));
                *arg = name;
            }
        }
        let from = operands.first().map_or(DType::F32, |&x| graph.ty(x).dtype);
        let arg = |i: usize| args.get(i).map_or("", String::as_str);
        let (a, b) = (arg(0), arg(1));
        let four = width == Width::Four;
        let call = |kb: &mut Self, one: &'static str, quad: &'static str| {
            kb.helper(if four { quad } else { one });
            format!("{}({a})", if four { quad } else { one })
        };
        let expr = match op {
            Op::Neg {} => format!("-{a}"),
            Op::Abs {} => format!("abs({a})"),
            Op::Exp {} => format!("exp({a})"),
            Op::Log {} => format!("log({a})"),
            Op::Sqrt {} => format!("sqrt({a})"),
            Op::Rsqrt {} => format!("inverseSqrt({a})"),
            Op::Floor {} => format!("floor({a})"),
            Op::Sigmoid {} => call(self, "sigmoid", "sigmoid4"),
            Op::Silu {} => call(self, "silu", "silu4"),
            Op::Softplus {} => call(self, "softplus", "softplus4"),
            Op::Tanh {} => call(self, "tanh1", "tanh4"),
            Op::Sin {} => call(self, "sin1", "sin4"),
            Op::Cos {} => call(self, "cos1", "cos4"),
            Op::Not {} => format!("!{a}"),
            Op::Clamp { lo, hi } => {
                let dtype = graph.ty(value).dtype;
                format!("clamp({a}, {}, {})", literal(*lo, dtype, width), literal(*hi, dtype, width))
            }
            Op::Cast { dtype } => self.cast(a, from, *dtype, width),
            Op::Add {} => format!("{a} + {b}"),
            Op::Sub {} => format!("{a} - {b}"),
            Op::Mul {} => format!("{a} * {b}"),
            Op::Div {} => format!("{a} / {b}"),
            Op::Max {} => format!("max({a}, {b})"),
            Op::Min {} => format!("min({a}, {b})"),
            Op::Eq {} => format!("{a} == {b}"),
            Op::Ne {} => format!("{a} != {b}"),
            Op::Lt {} => format!("{a} < {b}"),
            Op::Le {} => format!("{a} <= {b}"),
            Op::And {} => format!("{a} & {b}"),
            Op::Or {} => format!("{a} | {b}"),
            Op::Select {} => format!("select({}, {b}, {a})", arg(2)),
            Op::Reshape { .. }
            | Op::Permute { .. }
            | Op::Slice { .. }
            | Op::Broadcast { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Iota { .. }
            | Op::Gather {}
            | Op::ScatterAdd { .. }
            | Op::Sample {}
            | Op::Conv1d { .. }
            | Op::Sum { .. }
            | Op::Mean { .. }
            | Op::ReduceMax { .. }
            | Op::Argmax { .. }
            | Op::Cumsum { .. }
            | Op::MatMul { .. }
            | Op::Scan { .. }
            | Op::ScanGrad { .. } => {
                // Fusion never makes these inline; loading is right wherever the value is stored.
                return self.load(StepValue::Graph(value), graph.ty(value).dtype, index, width);
            }
        };
        let rounded = self.round_to_storage(expr, op, graph.ty(value).dtype, width);
        self.bind(rounded)
    }

    /// Arithmetic on storage types is done in f32 and rounded, as the interpreter does.
    fn round_to_storage(&mut self, expr: String, op: &Op, dtype: DType, width: Width) -> String {
        // The bounds of a clamp need not be numbers of the storage type.
        let rounds = op.accuracy() != Accuracy::Exact || matches!(op, Op::Clamp { .. });
        match dtype {
            DType::F16 | DType::Bf16 if rounds => self.cast(&expr, DType::F32, dtype, width),
            DType::F32 | DType::F16 | DType::Bf16 | DType::I32 | DType::U32 | DType::Bool | DType::I8 => expr,
        }
    }

    /// `a` converted to another element type; to f16 and bf16 rounded, and still an f32.
    pub(crate) fn cast(&mut self, a: &str, from: DType, to: DType, width: Width) -> String {
        let vector = |ty: &str| if width == Width::Four { format!("vec4<{ty}>") } else { ty.to_owned() };
        match (from, to) {
            (DType::Bf16, DType::Bf16) | (DType::F16, DType::F16 | DType::F32) | (DType::Bf16 | DType::F32, DType::F32) => a.to_owned(),
            (_, DType::F16 | DType::Bf16) => {
                let as_f32 = if from.is_float() { a.to_owned() } else { format!("{}({a})", vector("f32")) };
                let one = if to == DType::F16 { "f16_round" } else { "bf16_round" };
                self.helper(one);
                if width == Width::One {
                    return format!("{one}({as_f32})");
                }
                let x = self.bind(as_f32);
                format!("vec4<f32>({one}({x}.x), {one}({x}.y), {one}({x}.z), {one}({x}.w))")
            }
            (DType::Bool, _) => {
                let ty = vector(register_type(to));
                if to == DType::Bool { a.to_owned() } else { format!("select({ty}(0), {ty}(1), {a})") }
            }
            (_, DType::Bool) => format!("({a} != {}(0))", vector(register_type(from))),
            (DType::F32 | DType::F16 | DType::Bf16, DType::I32 | DType::U32) => {
                let one = if to == DType::I32 { "f32_to_i32" } else { "f32_to_u32" };
                self.helper(one);
                if width == Width::One {
                    return format!("{one}({a})");
                }
                format!("vec4<{}>({one}({a}.x), {one}({a}.y), {one}({a}.z), {one}({a}.w))", register_type(to))
            }
            _ => format!("{}({a})", vector(register_type(to))),
        }
    }
}

/// The part that starts at `axis` and covers only it.
fn part_of_axis(index: &Index, axis: usize) -> usize {
    let mut at = 0;
    for (slot, part) in index.0.iter().enumerate() {
        if at == axis && !part.sizes.is_empty() {
            return slot;
        }
        at += part.sizes.len();
    }
    0
}

/// Sum of two sizes along a concatenated axis.
fn sum(a: &Num, b: &Num) -> Num {
    match (a, b) {
        (Num::Static(a), Num::Static(b)) => Num::Static(a + b),
        _ => Num::Dynamic {
            key: format!("({}+{})", a.key(), b.key()),
            value: a.value() + b.value(),
            factor: super::kernel::gcd(a.factor(), b.factor()),
        },
    }
}

/// A number as a WGSL literal of an element type; finite, and exact in f32.
#[must_use]
pub fn literal(number: f64, dtype: DType, width: Width) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating conversion is what the graph's constant means")]
    let one = match dtype {
        DType::F32 => f32_literal(number as f32),
        DType::F16 => f32_literal(half::f16::from_f64(number).to_f32()),
        DType::Bf16 => f32_literal(half::bf16::from_f64(number).to_f32()),
        DType::I32 | DType::I8 => format!("i32({})", number as i32),
        DType::U32 => format!("{}u", number as u32),
        DType::Bool => (number != 0.0).to_string(),
    };
    match width {
        Width::One => one,
        Width::Four => format!("vec4<{}>({one})", register_type(dtype)),
    }
}

fn f32_literal(x: f32) -> String {
    let x = x.clamp(f32::MIN, f32::MAX);
    // Debug prints the shortest text that reads back to the same bits, with a point or an exponent.
    if x.is_nan() { "0.0".to_owned() } else { format!("f32({x:?})") }
}
