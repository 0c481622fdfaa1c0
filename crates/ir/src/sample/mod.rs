//! Random graphs for property tests, from the op table.
//!
//! [`graph`] makes the same graph for the same seed and size everywhere. Sizes are small and odd, sometimes 1 or 0;
//! each op of the table gets operands that it has a meaning on: values are followed by their range and by how far two
//! right executors may differ (`facts`), so that a disagreement beyond [`tolerance`] is a mistake and not bad luck.
//! That is also why comparisons, rounding to integers and argmax read only values that executors agree on to the bit.
//!
//! Not generated: sources with dynamic axes.

mod data;
mod facts;
mod propose;
mod rng;

pub use data::{Named, inputs};

use crate::graph::{Graph, Named as NamedValue, NodeKind, ValueId};
use crate::op::{OPS, Op};
use crate::ops;
use crate::types::{DType, TensorType};
use facts::{Facts, Known};
pub(crate) use rng::Rng;
use std::sync::Arc;

/// Most elements of a value.
const MAX_ELEMS: u64 = 2048;
/// Tries to place an op on what is there; from half of them on, new sources are made for it.
const MAX_TRIES: usize = 16;
const SCOPES: [&str; 5] = ["", "embed", "layers.0/mixer", "layers.0/mixer/norm", "layers.1"];

/// Most by which an output element of type `dtype` may differ between two right executors of a sampled graph.
#[must_use]
pub const fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-3,
        DType::F16 => 1e-2,
        DType::Bf16 => 8e-2,
        DType::I32 | DType::U32 | DType::Bool | DType::I8 => 0.0,
    }
}

/// A graph of about `size` ops that passes [`verify`](crate::verify::verify); different ones as long as the table lasts.
///
/// Every result that no op reads is an output; most states have an update.
#[must_use]
pub fn graph(seed: u64, size: usize) -> Graph {
    let mut sampler = Sampler {
        rng: Rng::new(seed),
        graph: Graph::new(format!("sample_{seed:x}_{size}")),
        pool: Vec::new(),
        n_sources: 0,
        wants_new: false,
    };
    let mut deck: Vec<&'static str> = Vec::new();
    for _ in 0..size.max(1) {
        if deck.is_empty() {
            deck = OPS.iter().map(|info| info.mnemonic).collect();
            sampler.rng.shuffle(&mut deck);
        }
        if let Some(mnemonic) = deck.pop() {
            sampler.place(mnemonic);
        }
    }
    sampler.finish()
}

/// A value that later ops may read.
#[derive(Clone, Debug)]
struct Entry {
    id: ValueId,
    ty: TensorType,
    facts: Facts,
    is_source: bool,
}

struct Sampler {
    rng: Rng,
    graph: Graph,
    pool: Vec<Entry>,
    n_sources: usize,
    /// Whether operands are new sources instead of values of the pool.
    wants_new: bool,
}

/// An op with operands.
type Proposal = (Op, Vec<Option<Entry>>);

impl Sampler {
    /// Adds an application of the op, unless no try gives one.
    fn place(&mut self, mnemonic: &str) {
        for attempt in 0..MAX_TRIES {
            self.wants_new = attempt >= MAX_TRIES / 2;
            let n_before = self.pool.len();
            if let Some((op, operands)) = self.propose(mnemonic)
                && self.push(op, &operands).is_some()
            {
                return;
            }
            // A source made for this op may promise a range that only a reader of this kind brings about.
            self.pool.truncate(n_before);
        }
    }

    /// Adds an application if its results are small, finite and known well enough to be outputs. Gives the first result.
    fn push(&mut self, op: Op, operands: &[Option<Entry>]) -> Option<Entry> {
        let types: Vec<Option<&TensorType>> = operands.iter().map(|entry| entry.as_ref().map(|entry| &entry.ty)).collect();
        let results = ops::infer(&op, &types).ok()?;
        let known: Vec<Option<Known<'_>>> = operands.iter().map(|entry| entry.as_ref().map(|entry| (entry.facts, &entry.ty))).collect();
        let facts = facts::of_results(&op, &known, &results)?;
        if !results.iter().zip(&facts).all(|(ty, facts)| ty.n_elems() <= MAX_ELEMS && is_fit(ty.dtype, *facts)) {
            return None;
        }
        let scope = self.scope();
        let ids = self.graph.push_op(op, operands.iter().map(|entry| entry.as_ref().map(|entry| entry.id)).collect(), scope, None).ok()?;
        let entries = ids.into_iter().zip(results).zip(facts).map(|((id, ty), facts)| Entry { id, ty, facts, is_source: false });
        let mut first = None;
        for entry in entries {
            if is_readable(entry.ty.dtype, entry.facts) {
                self.pool.push(entry.clone());
            }
            first.get_or_insert(entry);
        }
        first
    }

    fn push_unary(&mut self, op: Op, x: Entry) -> Option<Entry> {
        self.push(op, &[Some(x)])
    }

    fn scope(&mut self) -> Arc<str> {
        Arc::from(self.rng.of(&SCOPES).unwrap_or(""))
    }

    /// A new input, param or state, with contents as [`inputs`] makes them for a reader that asks for nothing.
    fn source(&mut self, dtype: DType, shape: Vec<usize>) -> Entry {
        let (lo, hi) = match dtype {
            DType::F32 | DType::F16 | DType::Bf16 => (-1.0, 1.0),
            DType::I32 => (-8.0, 8.0),
            DType::U32 => (0.0, 8.0),
            DType::Bool => (0.0, 1.0),
            DType::I8 => (-128.0, 127.0),
        };
        self.source_within(dtype, shape, lo, hi)
    }

    /// A new source whose reader makes [`inputs`] keep to `lo..=hi`.
    fn source_within(&mut self, dtype: DType, shape: Vec<usize>, lo: f64, hi: f64) -> Entry {
        let number = self.n_sources;
        self.n_sources += 1;
        let kind = match self.rng.below(8) {
            0 if dtype == DType::F32 => NodeKind::State { name: format!("s{number}"), dynamic: Vec::new() },
            1 | 2 => NodeKind::Param { name: format!("p{number}") },
            _ => NodeKind::Input { name: format!("x{number}"), dynamic: Vec::new() },
        };
        let ty = TensorType { dtype, shape };
        let scope = self.scope();
        let id = self.graph.push_source(kind, ty.clone(), scope, None);
        let entry = Entry { id, ty, facts: Facts::exact(lo, hi), is_source: true };
        self.pool.push(entry.clone());
        entry
    }

    /// A constant scalar; `number` is exact in every float type.
    fn constant(&mut self, number: f64, dtype: DType) -> Entry {
        let ty = TensorType::new(dtype, []);
        let scope = self.scope();
        let id = self.graph.push_source(NodeKind::Const(number), ty.clone(), scope, None);
        Entry { id, ty, facts: Facts::exact(number, number), is_source: true }
    }

    fn finish(mut self) -> Graph {
        self.update_states();
        let uses = self.graph.uses();
        let is_output = |value: ValueId| uses.get(value).is_none_or(Vec::is_empty);
        let results = self.graph.nodes().filter(|(_, node)| node.op().is_some()).flat_map(|(_, node)| node.results.clone());
        let mut outputs: Vec<ValueId> = results.filter(|&value| is_output(value)).collect();
        if outputs.is_empty() {
            // No op could be placed: hand something through.
            let last = self.pool.last().map(|entry| entry.id);
            outputs.push(last.unwrap_or_else(|| self.source(DType::F32, vec![3]).id));
        }
        self.graph.outputs = outputs.into_iter().enumerate().map(|(i, value)| NamedValue { name: format!("y{i}"), value }).collect();
        crate::compact::compact(&self.graph)
    }

    /// Gives most states a new content that keeps to the range of the old one.
    fn update_states(&mut self) {
        let states: Vec<(String, ValueId)> = self.graph.states().map(|(name, value)| (name.to_owned(), value)).collect();
        for (name, state) in states {
            if self.rng.one_in(8) {
                continue;
            }
            let Some(old) = self.pool.iter().find(|entry| entry.id == state).cloned() else { continue };
            let keeps =
                |entry: &Entry| entry.id != state && entry.ty == old.ty && entry.facts.lo >= old.facts.lo && entry.facts.hi <= old.facts.hi;
            let candidates: Vec<ValueId> = self.pool.iter().filter(|entry| keeps(entry)).map(|entry| entry.id).collect();
            let half = self.constant(0.5, DType::F32);
            let new = self.rng.of(&candidates).or_else(|| self.push(Op::Mul {}, &[Some(old), Some(half)]).map(|entry| entry.id));
            self.graph.updates.extend(new.map(|value| NamedValue { name, value }));
        }
    }
}

/// Whether a value may be an output.
fn is_fit(dtype: DType, facts: Facts) -> bool {
    // Below zero, u32 wraps.
    let is_in_type = dtype != DType::U32 || facts.lo >= 0.0;
    is_in_type && facts.max_abs() <= 1e5 && (facts.is_exact() || facts.err <= 0.5 * tolerance(dtype))
}

/// Whether later ops may read a value: errors of what they make of it stay small.
fn is_readable(dtype: DType, facts: Facts) -> bool {
    match dtype {
        DType::F32 => facts.max_abs() <= 32.0 && facts.err <= 1e-4,
        DType::F16 | DType::Bf16 => facts.max_abs() <= 32.0 && facts.is_exact(),
        DType::I32 | DType::U32 | DType::Bool | DType::I8 => facts.max_abs() <= 1000.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;
    use indexmap::IndexSet;

    /// An op that the sampler cannot place makes this fail: give it an arm in `propose`.
    #[test]
    fn every_op_of_the_table_is_sampled() {
        let mut seen: IndexSet<&str> = IndexSet::new();
        for seed in 0..24 {
            seen.extend(graph(seed, 24).nodes().filter_map(|(_, node)| node.op()).map(Op::mnemonic));
        }
        let missing: Vec<&str> = OPS.iter().map(|info| info.mnemonic).filter(|mnemonic| !seen.contains(mnemonic)).collect();
        assert!(missing.is_empty(), "never sampled: {missing:?}");
    }

    #[test]
    fn samples_verify_and_repeat() {
        for seed in 0..40 {
            let sample = graph(seed, 12);
            crate::verify::verify(&sample).unwrap();
            assert_eq!(text::print(&sample), text::print(&graph(seed, 12)));
            assert!(sample.nodes().filter(|(_, node)| node.op().is_some()).count() >= 6, "seed {seed} places few ops");
        }
    }

    #[test]
    fn samples_have_batches_empty_tensors_states_and_all_element_types() {
        let graphs: Vec<Graph> = (0..60).map(|seed| graph(seed, 24)).collect();
        let types: Vec<TensorType> =
            graphs.iter().flat_map(|g| g.nodes().flat_map(|(_, n)| n.results.iter().map(|&v| g.ty(v).clone()))).collect();
        assert!(types.iter().any(|ty| ty.shape.first() == Some(&3)));
        assert!(types.iter().any(|ty| ty.n_elems() == 0));
        assert!(graphs.iter().any(|g| !g.updates.is_empty()));
        for dtype in DType::ALL {
            assert!(types.iter().any(|ty| ty.dtype == dtype), "no {dtype}");
        }
    }

    #[test]
    fn contents_fill_every_source_and_lie_in_its_domain() {
        let text = r#"ir 1
graph @g {
  %0 = input "table" : f32[3, 5]
  %1 = input "ids" : u32[7]
  %2 = gather %0, %1 : f32[7, 5]
  %3 = param "w" : f32[7, 5]
  %4 = div %2, %3 : f32[7, 5]
  %5 = state "s" : f32[0, 4]
  output "y" = %4
}
"#;
        let graph = text::parse_one(text).unwrap();
        for seed in 0..20 {
            let (inputs, params, states) = inputs(&graph, seed);
            assert_eq!(inputs.keys().collect::<Vec<_>>(), ["table", "ids"]);
            assert!(inputs["ids"].as_u32().unwrap().iter().all(|&id| id < 3));
            assert!(params["w"].as_f32().unwrap().iter().all(|&w| (0.25..=1.0).contains(&w)));
            assert_eq!(states["s"].shape(), [0, 4]);
        }
    }
}
