//! Sums at an index, over so few elements that whoever needs one does it.

use super::index::{Index, Part};
use super::kernel::{KernelBuilder, Width, register_type};
use super::value::literal;
use monopass_ir::ValueId;
use monopass_ir::graph::Node;
use monopass_ir::ops::reduce::period_parts;

/// Attributes of a running sum.
pub(super) struct RunningSum {
    pub(super) axis: usize,
    pub(super) reverse: bool,
    /// What sums are taken modulo; 0 for nothing.
    pub(super) period: f64,
}

impl KernelBuilder<'_> {
    /// The sum, or mean, over the last axis of `x`.
    pub(super) fn sum_of_row(&mut self, value: ValueId, x: ValueId, keepdims: bool, is_mean: bool, index: &Index, width: Width) -> String {
        if width == Width::Four {
            return self.lanes(value, index);
        }
        let last = self.ctx.graph.ty(x).rank().saturating_sub(1);
        let n = self.size(x, last);
        let (element, each) = if n.is_multiple_of_4() { (Width::Four, 4) } else { (Width::One, 1) };
        let mut parts = index.run(self, 0..if keepdims { last } else { index.rank() });
        let (sum, column, limit) = (self.fresh("sum"), self.fresh("c"), self.num(&n));
        self.line(format!("var {sum} = 0.0;"));
        self.open(format!("for (var {column} = 0u; {column} < {limit}; {column} += {each}u)"));
        parts.push(Part::new(&column, vec![n], each));
        let term = self.emit(x, &Index(parts), element);
        self.line(format!("{sum} += {};", if element == Width::Four { format!("dot({term}, vec4<f32>(1.0))") } else { term }));
        self.close();
        if is_mean { self.bind(format!("{sum} / f32({limit})")) } else { sum }
    }

    /// The running sum up to the place of `index` on the axis, in the order of the axis.
    pub(super) fn running_sum(&mut self, value: ValueId, node: &Node, attrs: &RunningSum, index: &Index, width: Width) -> String {
        let operand = |idx: usize| node.operands.get(idx).copied().flatten();
        if width == Width::Four {
            return self.lanes(value, index);
        }
        let dtype = self.ctx.graph.ty(value).dtype;
        let Some(x) = operand(0) else { return literal(0.0, dtype, width) };
        let parts = index.per_axis(self);
        let (place, n) = (parts[attrs.axis].clone(), self.size(x, attrs.axis));
        let (sum, step) = (self.fresh("sum"), self.fresh("s"));
        self.line(format!("var {sum}: {};", register_type(dtype)));
        let at = if attrs.reverse {
            let limit = self.num(&n);
            self.open(format!("for (var {step} = {}; {step} < {limit}; {step} += 1u)", place.expr));
            self.bind(format!("{limit} - 1u - {step} + {}", place.expr))
        } else {
            self.open(format!("for (var {step} = 0u; {step} <= {}; {step} += 1u)", place.expr));
            step
        };
        let at = Part::new(at, vec![n], 1);
        let anew = operand(1).map(|reset| {
            let mut lead = parts[..attrs.axis].to_vec();
            lead.push(at.clone());
            let starts = self.emit(reset, &Index(lead), Width::One);
            // From the end a start drops what comes after it, but not what is at it.
            let hides = if attrs.reverse { format!("{starts} && {} != {}", at.expr, place.expr) } else { starts };
            format!("if ({hides}) {{ {sum} = {}(); }}", register_type(dtype))
        });
        if let Some(anew) = anew.as_ref().filter(|_| !attrs.reverse) {
            self.line(anew);
        }
        let mut parts = parts;
        parts[attrs.axis] = at;
        let term = self.emit(x, &Index(parts), Width::One);
        self.line(format!("{sum} += {term};"));
        if attrs.period > 0.0 {
            let rest = self.modulo(&sum, attrs.period);
            self.line(format!("{sum} = {rest};"));
        }
        if let Some(anew) = anew.filter(|_| attrs.reverse) {
            self.line(anew);
        }
        self.close();
        sum
    }

    /// A sum, an identifier, less the whole periods in it.
    pub(crate) fn modulo(&mut self, sum: &str, period: f64) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "the kernel's arithmetic is f32")]
        let narrow = |x: f64| x as f32;
        let (head, tail) = period_parts(period);
        let (period, head, tail) = (narrow(period), narrow(head), narrow(tail));
        let turns = self.fresh("turns");
        self.line(format!("let {turns} = floor({sum} / {period:?} + 0.5);"));
        let rest = if tail == 0.0 { String::new() } else { format!(" - {turns} * ({tail:?})") };
        format!("{sum} - {turns} * {head:?}{rest}")
    }
}
