//! The order of kernels.
//!
//! - **Needs** clusters in an order in which they can run.
//! - **Ensures** the same clusters in such an order; among those that can run next, the one that leaves least alive goes first.
//! - **Order**: after `fuse`, before storage is assigned.

use super::fuse::{Cluster, Fusion};
use indexmap::{IndexMap, IndexSet};
use monopass_ir::{Graph, ValueId};

/// Reorders the clusters.
pub fn schedule(graph: &Graph, fusion: &mut Fusion) {
    let reads: Vec<IndexSet<ValueId>> = fusion.clusters.iter().map(|cluster| reads(graph, cluster, &fusion.stored)).collect();
    let writer: IndexMap<ValueId, usize> = (0..)
        .zip(&fusion.clusters)
        .flat_map(|(idx, cluster): (usize, &Cluster)| cluster.stores().into_iter().map(move |value| (value, idx)))
        .collect();
    let needs: Vec<IndexSet<usize>> = (0..)
        .zip(&reads)
        .map(|(idx, own): (usize, &IndexSet<ValueId>)| {
            let written = own.iter().filter_map(|value| writer.get(value).copied());
            // What overwrites a state waits for everybody who reads it.
            let read = fusion.clusters[idx].in_place.iter().flat_map(|(state, _)| {
                reads.iter().enumerate().filter(|(_, reads)| reads.contains(state)).map(|(other, _)| other)
            });
            written.chain(read).filter(|&other| other != idx).collect()
        })
        .collect();
    let mut readers: IndexMap<ValueId, usize> = IndexMap::new();
    for value in reads.iter().flatten() {
        *readers.entry(*value).or_insert(0) += 1;
    }
    let named: IndexSet<ValueId> = graph.outputs.iter().chain(&graph.updates).map(|named| named.value).collect();
    let bytes = |value: ValueId| i128::from(graph.ty(value).size_bytes());
    let mut done = vec![false; reads.len()];
    let mut order = Vec::with_capacity(reads.len());
    for _ in 0..reads.len() {
        // What a cluster writes comes alive, what it is the last to read goes; ties keep the builder's order.
        let cost = |idx: usize| -> i128 {
            let born: i128 = fusion.clusters[idx].stores().iter().filter(|value| !named.contains(*value)).map(|&value| bytes(value)).sum();
            let freed: i128 = reads[idx]
                .iter()
                .filter(|value| writer.contains_key(*value) && !named.contains(*value) && readers.get(*value) == Some(&1))
                .map(|&value| bytes(value))
                .sum();
            born - freed
        };
        let ready = (0..reads.len()).filter(|&idx| !done[idx] && needs[idx].iter().all(|&need| done[need]));
        let Some(next) = ready.min_by_key(|&idx| (cost(idx), idx)) else { return };
        done[next] = true;
        for value in &reads[next] {
            if let Some(count) = readers.get_mut(value) {
                *count -= 1;
            }
        }
        order.push(next);
    }
    let mut clusters: Vec<Option<Cluster>> = std::mem::take(&mut fusion.clusters).into_iter().map(Some).collect();
    fusion.clusters = order.into_iter().filter_map(|idx| clusters[idx].take()).collect();
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
