//! Whether a value needs reductions of its own row only.
//!
//! A rows kernel keeps a reduction's result in a register and hands it to whatever asks for it, so nothing in the kernel
//! may ask for the result of another row, as a transposed or shifted copy of the result would.

use super::Rows;
use indexmap::IndexMap;
use monopass_ir::op::Class;
use monopass_ir::{Graph, Op, ValueId};

/// Where a value is asked for while a row is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// At the element that has the flat position of the one computed.
    Element,
    /// At the row's position.
    Row,
}

impl Rows {
    /// Whether `value` can be an output, or the operand of a reduction, of this cluster: whatever it computes inline
    /// asks for reductions of its own row only.
    #[must_use]
    pub fn reads_own_row(&self, graph: &Graph, value: ValueId, inline: &dyn Fn(ValueId) -> bool) -> bool {
        let mut walk = Walk { rows: self, graph, inline, needs: IndexMap::new(), verdicts: IndexMap::new() };
        let (n, n_rows) = (graph.ty(value).n_elems(), walk.n_rows());
        let is_domain = graph.ty(value).shape == graph.ty(self.domain).shape;
        if is_domain || n == graph.ty(self.domain).n_elems() && n != n_rows {
            walk.reads_own(value, Place::Element)
        } else {
            n == n_rows && walk.reads_own(value, Place::Row)
        }
    }
}

struct Walk<'w> {
    rows: &'w Rows,
    graph: &'w Graph,
    inline: &'w dyn Fn(ValueId) -> bool,
    /// Whether a value needs a reduction of the cluster at all.
    needs: IndexMap<ValueId, bool>,
    verdicts: IndexMap<(ValueId, Place), bool>,
}

impl Walk<'_> {
    fn n_rows(&self) -> u64 {
        let sizes = self.graph.ty(self.rows.domain).shape.iter().enumerate();
        sizes.filter(|(axis, _)| !self.rows.axes.contains(axis)).fold(1, |n: u64, (_, &size)| n.saturating_mul(size as u64))
    }

    fn needs(&mut self, value: ValueId) -> bool {
        if let Some(&known) = self.needs.get(&value) {
            return known;
        }
        let needs = self.rows.reductions.contains(&value)
            || (self.inline)(value) && self.graph.def(value).present_operands().any(|operand| self.needs(operand));
        self.needs.insert(value, needs);
        needs
    }

    fn reads_own(&mut self, value: ValueId, place: Place) -> bool {
        if self.rows.reductions.contains(&value) {
            return place == Place::Row;
        }
        if !self.needs(value) {
            return true;
        }
        if let Some(&known) = self.verdicts.get(&(value, place)) {
            return known;
        }
        let verdict = self.operands_read_own(value, place);
        self.verdicts.insert((value, place), verdict);
        verdict
    }

    fn operands_read_own(&mut self, value: ValueId, place: Place) -> bool {
        let node = self.graph.def(value);
        let Some(op) = node.op() else { return true };
        let operands: Vec<ValueId> = node.present_operands().collect();
        match op.class() {
            Class::Elementwise => operands.into_iter().all(|operand| self.broadcast_reads_own(value, operand, place)),
            // Flat positions stay what they are.
            Class::Movement if matches!(op, Op::Reshape { .. }) => operands.into_iter().all(|operand| self.reads_own(operand, place)),
            Class::Movement if matches!(op, Op::Broadcast { .. }) => {
                operands.into_iter().all(|operand| self.broadcast_reads_own(value, operand, place))
            }
            Class::Movement => false,
            Class::Reduction
            | Class::Prefix
            | Class::Contraction
            | Class::Index
            | Class::Conv
            | Class::Scan
            | Class::ScanAdjoint
            | Class::Choice => false,
        }
    }

    /// An operand that is broadcast to `value`.
    fn broadcast_reads_own(&mut self, value: ValueId, operand: ValueId, place: Place) -> bool {
        if !self.needs(operand) {
            return true;
        }
        let (from, to) = (&self.graph.ty(operand).shape, &self.graph.ty(value).shape);
        if self.graph.ty(operand).n_elems() == self.graph.ty(value).n_elems() {
            return self.reads_own(operand, place);
        }
        if place == Place::Row || *to != self.graph.ty(self.rows.domain).shape {
            return false;
        }
        // What is repeated along the reduced axes and no others has one element a row.
        let offset = to.len() - from.len().min(to.len());
        let is_row = (0..to.len()).all(|axis| {
            let size = axis.checked_sub(offset).map_or(1, |own| from[own]);
            if self.rows.axes.contains(&axis) { size == 1 } else { size == to[axis] }
        });
        is_row && self.reads_own(operand, Place::Row)
    }
}
