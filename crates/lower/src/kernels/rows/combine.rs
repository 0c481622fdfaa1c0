//! Combines what the invocations of a row have, through workgroup memory and in a fixed order.
//!
//! Two levels: some invocations each combine a stride of all shares, and after a barrier every invocation combines
//! those few for itself, so the result is in a register of each without being handed out. Few shares take one level.

use super::layout::{Layout, Row};
use super::{Accumulator, Kind};
use crate::emit::{KernelBuilder, Width};
use indexmap::IndexMap;

/// Rows of at most this many invocations are combined in one level.
const ONE_LEVEL: u32 = 16;

/// One invocation's share of a reduction: variables.
#[derive(Clone, Debug)]
pub(super) struct Partial {
    pub(super) kind: Kind,
    /// WGSL type of an element.
    pub(super) ty: &'static str,
    /// Sum or maximum so far.
    pub(super) value: String,
    /// Column of the maximum so far; only of an argmax.
    pub(super) index: String,
}

impl Partial {
    /// The statement that adds `x`, whose place does not matter: not for an argmax.
    pub(super) fn adding(&self, x: &str) -> String {
        let value = &self.value;
        if self.kind == Kind::Max { format!("{value} = max({value}, {x});") } else { format!("{value} += {x};") }
    }

    /// Four shares side by side become one.
    pub(super) fn fold_quad(self, kb: &mut KernelBuilder<'_>, width: Width) -> Self {
        if width == Width::One || self.kind == Kind::Argmax {
            return self;
        }
        let lanes: Vec<String> = ["x", "y", "z", "w"].iter().map(|lane| format!("{}.{lane}", self.value)).collect();
        let name = kb.fresh("acc");
        kb.line(format!("let {name} = {};", pairwise(self.kind, &lanes)));
        Self { value: name, ..self }
    }
}

/// Workgroup arrays of one kernel, reused by its phases.
#[derive(Debug, Default)]
pub(super) struct Arrays(IndexMap<(usize, bool, &'static str), String>);

impl Arrays {
    /// The array of a place in a phase; `level` tells arrays that are in use at the same time apart.
    fn get(&mut self, kb: &mut KernelBuilder<'_>, place: usize, level: bool, ty: &'static str, size: u32) -> String {
        let next = self.0.len();
        let entry = self.0.entry((place, level, ty));
        entry
            .or_insert_with(|| {
                let name = format!("shared{next}");
                kb.global(&format!("var<workgroup> {name}: array<{ty}, {size}>;"), u64::from(size) * 4);
                name
            })
            .clone()
    }

    /// Totals of one phase's reductions, each known to every invocation of the row. Stands in uniform flow.
    pub(super) fn across_lanes(
        &mut self,
        kb: &mut KernelBuilder<'_>,
        layout: &Layout,
        row: &Row,
        partials: &[&Partial],
        phase: usize,
    ) -> Vec<String> {
        if layout.lanes == 1 {
            return partials
                .iter()
                .map(|partial| if partial.kind == Kind::Argmax { &partial.index } else { &partial.value }.clone())
                .collect();
        }
        let n = layout.lanes * layout.rows;
        let has_two_levels = layout.lanes > ONE_LEVEL;
        // Two levels write the first array again only after a barrier that all readers have reached; with one level
        // neighboring phases take turns with two arrays for the same reason.
        let first = !has_two_levels && phase % 2 == 1;
        let shares: Vec<Shares> = partials
            .iter()
            .enumerate()
            .map(|(place, partial)| {
                let values = self.get(kb, 2 * place, first, partial.ty, n);
                let indices = (partial.kind == Kind::Argmax).then(|| self.get(kb, 2 * place + 1, first, "u32", n));
                Shares { partial, values, indices }
            })
            .collect();
        for share in &shares {
            share.store(kb, &layout.slot_of_self(), &share.partial.value, &share.partial.index);
        }
        kb.line("workgroupBarrier();");
        if !has_two_levels {
            return shares.iter().map(|share| share.combine(kb, &layout.slots(row, "0u", 1, layout.lanes, layout.lanes))).collect();
        }
        let fan = layout.combining_lanes();
        let few: Vec<Shares> = shares
            .iter()
            .enumerate()
            .map(|(place, share)| {
                let values = self.get(kb, 2 * place, true, share.partial.ty, fan * layout.rows);
                let indices = share.indices.is_some().then(|| self.get(kb, 2 * place + 1, true, "u32", fan * layout.rows));
                Shares { partial: share.partial, values, indices }
            })
            .collect();
        kb.open(format!("if ({} < {fan}u)", row.lane));
        for (share, few) in shares.iter().zip(&few) {
            let slots = layout.slots(row, &row.lane, fan, layout.lanes / fan, layout.lanes);
            let (value, index) = share.combine_both(kb, &slots);
            few.store(kb, &layout.slot(row, &row.lane, fan), &value, &index);
        }
        kb.close();
        kb.line("workgroupBarrier();");
        few.iter().map(|share| share.combine(kb, &layout.slots(row, "0u", 1, fan, fan))).collect()
    }
}

/// A workgroup of long rows side by side that are reduced once; each total goes to the one invocation that stores it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sheet {
    /// Invocations a row, or for `rows_each` rows.
    pub(super) lanes: u32,
    /// Rows.
    pub(super) rows: u32,
    /// Rows an invocation: 1, or 4 as a vector.
    pub(super) rows_each: u32,
}

/// What an invocation of a [`Sheet`] stores.
pub(super) struct Totals {
    /// Position of its row among all.
    pub(super) row: String,
    /// Result of each reduction.
    pub(super) totals: Vec<String>,
}

impl Sheet {
    /// Invocations.
    pub(super) const fn threads(&self) -> u32 {
        self.lanes * self.rows / self.rows_each
    }

    /// Opens the block in which an invocation has the totals of a row, the rows being those from `first` that are below
    /// `n_rows`; `first` is `0u` where there are no others. Invocation `i` has brought its share of the row that is
    /// `i % (rows / rows_each)` behind the first, or of four rows. Stands in uniform flow.
    pub(super) fn open_totals(self, kb: &mut KernelBuilder<'_>, accumulators: &[Accumulator], first: &str, n_rows: u64) -> Totals {
        let size = self.lanes * self.rows;
        let mut shares = self.arrays(kb, accumulators, size, "shared");
        for (shared, Accumulator { partial, .. }) in shares.iter().zip(accumulators) {
            let value = &partial.value;
            if self.rows_each == 1 {
                kb.line(format!("{shared}[lid] = {value};"));
            } else {
                (0..4).for_each(|lane| kb.line(format!("{shared}[lid * 4u + {lane}u] = {value}[{lane}];")));
            }
        }
        kb.line("workgroupBarrier();");
        let mut n_shares = self.lanes;
        if n_shares > ONE_LEVEL {
            // At most as many as there are invocations: four rows each leave at least eight lanes a row.
            let fan = if n_shares > 64 { 16 } else { 8 };
            let few = self.arrays(kb, accumulators, fan * self.rows, "few");
            kb.open(format!("if (lid < {}u)", fan * self.rows));
            for ((few, shared), Accumulator { partial, .. }) in few.iter().zip(&shares).zip(accumulators) {
                kb.line(format!("{few}[lid] = {};", in_steps(partial.kind, shared, n_shares / fan, fan * self.rows)));
            }
            kb.close();
            kb.line("workgroupBarrier();");
            (shares, n_shares) = (few, fan);
        }
        let row = if first == "0u" { "lid".to_owned() } else { kb.bind(format!("{first} + lid")) };
        if first == "0u" {
            kb.open(format!("if (lid < {}u)", n_rows.min(u64::from(self.rows))));
        } else {
            kb.open(format!("if (lid < {}u && {row} < {n_rows}u)", self.rows));
        }
        let total = |(shared, accumulator): (&String, &Accumulator)| {
            let total = kb.fresh("r");
            kb.line(format!("let {total} = {};", in_steps(accumulator.partial.kind, shared, n_shares, self.rows)));
            total
        };
        let totals = shares.iter().zip(accumulators).map(total).collect();
        Totals { row, totals }
    }

    /// A workgroup array for each reduction.
    fn arrays(self, kb: &mut KernelBuilder<'_>, accumulators: &[Accumulator], size: u32, name: &str) -> Vec<String> {
        let array = |(idx, accumulator): (usize, &Accumulator)| {
            let name = format!("{name}{idx}");
            kb.global(&format!("var<workgroup> {name}: array<{}, {size}>;", accumulator.partial.ty), u64::from(size) * 4);
            name
        };
        accumulators.iter().enumerate().map(array).collect()
    }
}

/// Elements of an array from the invocation's own on, `n` of them at a distance of `step`, combined.
fn in_steps(kind: Kind, array: &str, n: u32, step: u32) -> String {
    let element = |i: u32| if i == 0 { format!("{array}[lid]") } else { format!("{array}[lid + {}u]", i * step) };
    pairwise(kind, &(0..n).map(element).collect::<Vec<_>>())
}

/// The shares of one reduction in workgroup memory.
struct Shares<'p> {
    partial: &'p Partial,
    values: String,
    indices: Option<String>,
}

impl Shares<'_> {
    fn store(&self, kb: &mut KernelBuilder<'_>, slot: &str, value: &str, index: &str) {
        kb.line(format!("{}[{slot}] = {value};", self.values));
        if let Some(indices) = &self.indices {
            kb.line(format!("{indices}[{slot}] = {index};"));
        }
    }

    /// The result over some slots.
    fn combine(&self, kb: &mut KernelBuilder<'_>, slots: &[String]) -> String {
        let (value, index) = self.combine_both(kb, slots);
        if self.indices.is_some() { index } else { value }
    }

    fn combine_both(&self, kb: &mut KernelBuilder<'_>, slots: &[String]) -> (String, String) {
        let value = kb.fresh("r");
        let Some(indices) = &self.indices else {
            let terms: Vec<String> = slots.iter().map(|slot| format!("{}[{slot}]", self.values)).collect();
            kb.line(format!("let {value} = {};", pairwise(self.partial.kind, &terms)));
            return (value, String::new());
        };
        let index = kb.fresh("r");
        for (i, slot) in slots.iter().enumerate() {
            if i == 0 {
                kb.line(format!("var {value} = {}[{slot}];", self.values));
                kb.line(format!("var {index} = {indices}[{slot}];"));
                continue;
            }
            // Not `bind`, which would take a read of an earlier phase for this one.
            let (x, at) = (kb.fresh("x"), kb.fresh("i"));
            kb.line(format!("let {x} = {}[{slot}];", self.values));
            kb.line(format!("let {at} = {indices}[{slot}];"));
            // Of equal elements the first counts, and shares are not in the order of columns.
            kb.line(format!("if ({x} > {value} || ({x} == {value} && {at} < {index})) {{ {value} = {x}; {index} = {at}; }}"));
        }
        (value, index)
    }
}

/// Terms combined two by two: the error of a sum grows with the logarithm of their number.
fn pairwise(kind: Kind, terms: &[String]) -> String {
    match terms {
        [] => "0".to_owned(),
        [one] => one.clone(),
        _ => {
            let (lhs, rhs) = terms.split_at(terms.len().div_ceil(2));
            let (lhs, rhs) = (pairwise(kind, lhs), pairwise(kind, rhs));
            if kind == Kind::Max { format!("max({lhs}, {rhs})") } else { format!("({lhs} + {rhs})") }
        }
    }
}
