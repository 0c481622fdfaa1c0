//! Index vectors, and how movement ops and broadcasting map them.
//!
//! An index vector over the axes of a value is a list of parts, each one WGSL expression that is the row-major position
//! within a run of axes. Runs are only cut where an op needs it, so most kernels divide nothing.

use super::kernel::KernelBuilder;
use super::num::{Num, product};
use crate::dynamic::reshape_segments;

/// A position within a run of axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// A `u32` expression without side effects, an identifier or literal wherever it is not trivial.
    pub expr: String,
    /// Sizes of the axes of the run.
    pub sizes: Vec<Num>,
    /// A number known to divide the position; 0 for position 0, which everything divides.
    pub align: u64,
    /// What the position is counted from, if it is a neighbour of an aligned one.
    pub from: Option<From>,
}

/// An aligned position that another one lies a few steps behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct From {
    /// The aligned position.
    pub expr: String,
    /// A number known to divide it.
    pub align: u64,
    /// Steps from it.
    pub steps: u64,
}

/// An index vector over all axes of a value.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Index(pub Vec<Part>);

impl Part {
    /// A position in one run; 0 where the run has one element whatever the length, so that it is known under one name.
    pub fn new(expr: impl Into<String>, sizes: Vec<Num>, align: u64) -> Self {
        if sizes.iter().all(Num::is_one) { Self::zero(sizes) } else { Self { expr: expr.into(), sizes, align, from: None } }
    }

    /// Position 0 of axes of size 1.
    #[must_use]
    pub fn zero(sizes: Vec<Num>) -> Self {
        Self { expr: "0u".to_owned(), sizes, align: 0, from: None }
    }

    /// Whether the position is always 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.expr == "0u"
    }
}

impl Index {
    /// Number of axes.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.iter().map(|part| part.sizes.len()).sum()
    }

    /// Sizes of all axes.
    #[must_use]
    pub fn sizes(&self) -> Vec<Num> {
        self.0.iter().flat_map(|part| part.sizes.iter().cloned()).collect()
    }

    /// What tells it from other index vectors of the same value: each position with the number of axes behind its run,
    /// so that a row and a column are told apart. Axes of size 1 whatever the length do not count, since they may stand in any
    /// part, and where a run has one element its position is 0 whatever it is called.
    #[must_use]
    pub fn key(&self) -> String {
        let mut behind = 0;
        let mut terms = Vec::new();
        for part in self.0.iter().rev() {
            let n_axes = part.sizes.iter().filter(|size| !size.is_one()).count();
            if !part.is_zero() && n_axes > 0 {
                terms.push(format!("{}@{behind}", part.expr));
            }
            behind += n_axes;
        }
        terms.reverse();
        terms.join(",")
    }

    /// Whether it may stand for itself and its next three neighbours along the last axis.
    #[must_use]
    pub fn is_quad(&self) -> bool {
        self.0.iter().rev().find(|part| !part.sizes.is_empty()).is_some_and(|part| {
            let inner = part.sizes.last().is_some_and(Num::is_multiple_of_4);
            !part.is_zero() && part.align != 0 && part.align % 4 == 0 && inner
        })
    }

    /// The neighbour `lane` steps along the last axis, as a single element.
    #[must_use]
    pub fn lane(&self, lane: usize) -> Self {
        let mut index = self.clone();
        if let Some(part) = index.0.iter_mut().rev().find(|part| !part.sizes.is_empty()) {
            let steps = lane as u64;
            part.from = part.from.take().map_or_else(
                || Some(From { expr: part.expr.clone(), align: part.align, steps }),
                |from| Some(From { steps: from.steps + steps, ..from }),
            );
            part.expr = format!("({} + {lane}u)", part.expr);
            part.align = 1;
        }
        index
    }

    /// Cuts parts so that each axis in `cuts` starts one.
    #[must_use]
    pub fn cut(&self, kb: &mut KernelBuilder<'_>, cuts: &[usize]) -> Self {
        let mut parts = Vec::new();
        let mut axis = 0;
        for part in &self.0 {
            let mut rest = part.clone();
            let mut start = axis;
            axis += part.sizes.len();
            for &cut in cuts {
                if cut <= start || cut >= axis {
                    continue;
                }
                let (outer, inner) = kb.split_part(&rest, cut - start);
                parts.push(outer);
                rest = inner;
                start = cut;
            }
            parts.push(rest);
        }
        Self(parts)
    }

    /// The part of exactly one axis each, for every axis.
    #[must_use]
    pub fn per_axis(&self, kb: &mut KernelBuilder<'_>) -> Vec<Part> {
        let cuts: Vec<usize> = (1..self.rank()).collect();
        self.cut(kb, &cuts).0.into_iter().filter(|part| !part.sizes.is_empty()).collect()
    }

    /// Index of an operand of `sizes` that was broadcast to this index's shape.
    #[must_use]
    pub fn broadcast(&self, kb: &mut KernelBuilder<'_>, sizes: &[Num]) -> Self {
        let rank = self.rank();
        let own = self.sizes();
        let skipped = rank - sizes.len().min(rank);
        // A baked 1 against a size that varies is repeated even where that size is 1 too, so that the text stays the same.
        let is_kept = |from: &Num, to: &Num| if from.is_one() { to.is_one() } else { from.value() == to.value() };
        let kept: Vec<bool> = (0..rank).map(|axis| axis >= skipped && is_kept(&sizes[axis - skipped], &own[axis])).collect();
        let cuts: Vec<usize> = (1..rank).filter(|&axis| kept[axis] != kept[axis - 1] || axis == skipped).collect();
        let mut axis = 0;
        let mut parts = Vec::new();
        // Runs of equal fate within a part stay together; a dropped run leaves position 0 of its size-1 axes.
        for part in self.cut(kb, &cuts).0 {
            let axes = axis..axis + part.sizes.len();
            axis = axes.end;
            if axes.is_empty() || axes.end <= skipped {
                continue;
            }
            if kept[axes.start] {
                parts.push(part);
            } else {
                parts.push(Part::zero(vec![Num::ONE; part.sizes.len()]));
            }
        }
        Self(parts)
    }

    /// The same elements in row-major order under `sizes`.
    #[must_use]
    pub fn reshape(&self, kb: &mut KernelBuilder<'_>, sizes: &[Num]) -> Self {
        let own = self.sizes();
        let values = |nums: &[Num]| -> Vec<usize> { nums.iter().map(|num| usize::try_from(num.value()).unwrap_or(usize::MAX)).collect() };
        let segments = reshape_segments(&values(&own), &values(sizes));
        let mut parts: Vec<Part> = Vec::new();
        let mut next = 0;
        while next < segments.len() {
            // As few segments as make up whole parts go together, so that a part over all axes is not cut at all.
            let start = next;
            let mut end = next + 1;
            while end < segments.len() && !self.has_boundary(segments[end - 1].old.end) {
                end += 1;
            }
            next = end;
            let old = segments[start].old.start..segments[end - 1].old.end;
            let new = segments[start].new.start..segments[end - 1].new.end;
            if new.is_empty() {
                // Axes of size 1 that are left out have no position to keep.
                continue;
            }
            let run = self.run(kb, old.clone());
            match run.as_slice() {
                [] => parts.push(Part::zero(sizes[new].to_vec())),
                [part] => parts.extend(kb.unmerge(part, &sizes[new])),
                _ => parts.push(kb.merge_parts(&run, sizes[new].to_vec())),
            }
        }
        Self(parts)
    }

    fn has_boundary(&self, axis: usize) -> bool {
        let mut at = 0;
        for part in &self.0 {
            if at == axis {
                return true;
            }
            at += part.sizes.len();
        }
        at == axis
    }

    /// The parts that cover `axes`, cut at their ends.
    #[must_use]
    pub fn run(&self, kb: &mut KernelBuilder<'_>, axes: std::ops::Range<usize>) -> Vec<Part> {
        let mut at = 0;
        let mut run = Vec::new();
        for part in self.cut(kb, &[axes.start, axes.end]).0 {
            let start = at;
            at += part.sizes.len();
            if !part.sizes.is_empty() && start >= axes.start && at <= axes.end {
                run.push(part);
            }
        }
        run
    }

    /// Position in the flat row-major order, and whether 4 divides it.
    #[must_use]
    pub fn flat(&self, kb: &mut KernelBuilder<'_>) -> (String, bool) {
        let mut terms = Vec::new();
        let mut aligned = true;
        for (i, part) in self.0.iter().enumerate() {
            if part.is_zero() {
                continue;
            }
            let tail = product(self.0[i + 1..].iter().flat_map(|part| &part.sizes));
            aligned &= part.align % 4 == 0 || tail.is_multiple_of_4();
            if tail.is_one() {
                terms.push(part.expr.clone());
            } else {
                terms.push(format!("{} * {}", part.expr, kb.num(&tail)));
            }
        }
        let text = if terms.is_empty() { "0u".to_owned() } else { terms.join(" + ") };
        (text, aligned)
    }
}
