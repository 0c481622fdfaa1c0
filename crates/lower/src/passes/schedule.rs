//! The order of kernels.
//!
//! - **Needs** clusters in an order in which they can run.
//! - **Ensures** the same clusters in such an order; among those that can run next, the one that leaves least alive goes first.
//! - **Order**: after `fuse`, before storage is assigned.

use super::fuse::{Cluster, Fusion};
use indexmap::{IndexMap, IndexSet};
use monopass_ir::{Graph, ValueId};

/// How many clusters ahead of the first one left a choice may go; 0 is any number. The first is the one that ties keep.
const WINDOWS: [usize; 4] = [0, 32, 8, 1];

/// Reorders the clusters: greedily, looking any number of clusters ahead or a few, whichever keeps the least alive at a time.
///
/// Looking far ahead runs what is small early, such as the first ops of every part that a backward pass computes again, and then keeps
/// it all the while.
pub fn schedule(graph: &Graph, fusion: &mut Fusion) {
    let problem = Problem::of(graph, fusion);
    let orders = WINDOWS.iter().map(|&window| problem.order(window));
    let Some(order) = orders.min_by_key(|order| problem.peak(order)) else { return };
    if order.len() < fusion.clusters.len() {
        return;
    }
    let mut clusters: Vec<Option<Cluster>> = std::mem::take(&mut fusion.clusters).into_iter().map(Some).collect();
    fusion.clusters = order.into_iter().filter_map(|idx| clusters[idx].take()).collect();
}

/// What clusters read and write, and which others have to come before them.
struct Problem {
    /// Stored values of clusters that each reads, with their bytes; what leaves the graph is alive anyway.
    reads: Vec<Vec<(ValueId, i128)>>,
    /// Bytes that each writes.
    born: Vec<i128>,
    writes: Vec<Vec<(ValueId, i128)>>,
    needs: Vec<IndexSet<usize>>,
    /// Clusters that read a value.
    readers: IndexMap<ValueId, usize>,
}

impl Problem {
    fn of(graph: &Graph, fusion: &Fusion) -> Self {
        let reads: Vec<IndexSet<ValueId>> = fusion.clusters.iter().map(|cluster| reads(graph, cluster, &fusion.stored)).collect();
        let writer: IndexMap<ValueId, usize> = (0..)
            .zip(&fusion.clusters)
            .flat_map(|(idx, cluster): (usize, &Cluster)| cluster.stores().into_iter().map(move |value| (value, idx)))
            .collect();
        let needs = (0..)
            .zip(&reads)
            .map(|(idx, own): (usize, &IndexSet<ValueId>)| {
                let written = own.iter().filter_map(|value| writer.get(value).copied());
                // What overwrites a state waits for everybody who reads it.
                let read = fusion.clusters[idx]
                    .in_place
                    .iter()
                    .flat_map(|(state, _)| reads.iter().enumerate().filter(|(_, reads)| reads.contains(state)).map(|(other, _)| other));
                written.chain(read).filter(|&other| other != idx).collect()
            })
            .collect();
        let mut readers: IndexMap<ValueId, usize> = IndexMap::new();
        for value in reads.iter().flatten() {
            *readers.entry(*value).or_insert(0) += 1;
        }
        let named: IndexSet<ValueId> = graph.outputs.iter().chain(&graph.updates).map(|named| named.value).collect();
        let pooled = |value: ValueId| (!named.contains(&value)).then(|| (value, i128::from(graph.ty(value).size_bytes())));
        let writes: Vec<Vec<(ValueId, i128)>> =
            fusion.clusters.iter().map(|cluster| cluster.stores().into_iter().filter_map(pooled).collect()).collect();
        Self {
            reads: reads
                .iter()
                .map(|own| own.iter().filter(|value| writer.contains_key(*value)).filter_map(|&value| pooled(value)).collect())
                .collect(),
            born: writes.iter().map(|own| own.iter().map(|(_, bytes)| bytes).sum()).collect(),
            writes,
            needs,
            readers,
        }
    }

    /// An order in which they can run: of those ready within the window, the one that leaves least alive goes first.
    fn order(&self, window: usize) -> Vec<usize> {
        let n = self.needs.len();
        let mut readers = self.readers.clone();
        let mut done = vec![false; n];
        let mut order = Vec::with_capacity(n);
        let mut first = 0;
        while order.len() < n {
            while done.get(first) == Some(&true) {
                first += 1;
            }
            let end = if window == 0 { n } else { n.min(first + window) };
            // What a cluster writes comes alive, what it is the last to read goes; ties keep the builder's order.
            let cost = |idx: usize| -> i128 {
                let freed: i128 = self.reads[idx].iter().filter(|(value, _)| readers.get(value) == Some(&1)).map(|(_, bytes)| bytes).sum();
                self.born[idx] - freed
            };
            let ready = |idx: &usize| !done[*idx] && self.needs[*idx].iter().all(|&need| done[need]);
            // In the builder's order the first one left is always ready, unless it waits for readers of what it overwrites.
            let next = (first..end).filter(ready).min_by_key(|&idx| (cost(idx), idx)).or_else(|| (0..n).find(ready));
            let Some(next) = next else { return order };
            done[next] = true;
            self.finish(next, &mut readers);
            order.push(next);
        }
        order
    }

    fn finish(&self, idx: usize, readers: &mut IndexMap<ValueId, usize>) {
        for (value, _) in &self.reads[idx] {
            if let Some(count) = readers.get_mut(value) {
                *count -= 1;
            }
        }
    }

    /// Most bytes alive at a time.
    fn peak(&self, order: &[usize]) -> i128 {
        let mut readers = self.readers.clone();
        let (mut alive, mut peak) = (0, 0);
        for &idx in order {
            alive += self.born[idx];
            peak = peak.max(alive);
            self.finish(idx, &mut readers);
            let is_dead = |value: &ValueId| readers.get(value).is_none_or(|&count| count == 0);
            let freed: i128 =
                self.reads[idx].iter().chain(&self.writes[idx]).filter(|(value, _)| is_dead(value)).map(|(_, bytes)| bytes).sum();
            alive -= freed;
        }
        peak
    }
}

/// Stored values and sources that a cluster loads.
pub(super) fn reads(graph: &Graph, cluster: &Cluster, stored: &IndexSet<ValueId>) -> IndexSet<ValueId> {
    let mut found = IndexSet::new();
    let mut seen: IndexSet<ValueId> = IndexSet::new();
    let mut open: Vec<ValueId> = cluster.roots().into_iter().collect();
    let roots: IndexSet<ValueId> = open.iter().copied().collect();
    while let Some(value) = open.pop() {
        if !seen.insert(value) {
            continue;
        }
        let is_own = roots.contains(&value) || cluster.computes.contains(&value);
        if graph.def(value).op().is_none() || (stored.contains(&value) && !is_own) {
            found.insert(value);
        } else {
            open.extend(graph.def(value).present_operands());
        }
    }
    found
}
