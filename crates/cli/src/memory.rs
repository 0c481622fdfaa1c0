//! What a run needs of the host's memory, found before any of it is taken: a process that asks for too much is killed
//! without a message.

use crate::report::Failure;
use miette::Result;
use monopass::Graph;
use monopass::ir::ValueId;
use monopass::ir::graph::NodeKind;

/// Where values are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On a device: the host holds the sources alone.
    Device,
    /// On the interpreter.
    Host,
    /// On the interpreter in f64, which takes twice the memory.
    HostF64,
}

/// Refuses a graph that needs more than `max_bytes` of the host, or more than is free.
pub(crate) fn check(graph: &Graph, max_bytes: u64, place: Place) -> Result<()> {
    let (limit, whose, help) = match available_bytes() {
        Some(free) if free < max_bytes => (free, "the free memory", "use smaller sizes, or a machine with more memory"),
        _ => (max_bytes, "the limit", "use smaller sizes, or raise --max-bytes if the memory is there"),
    };
    let Some(what) = too_much(graph, limit, place) else { return Ok(()) };
    Err(Failure::new(format!("graph @{}: {what}, over {whose} of {limit}", graph.name)).help(help).into())
}

/// The first need over the limit, in words. Counts values from their op to their last reader, as the interpreter holds them.
fn too_much(graph: &Graph, limit: u64, place: Place) -> Option<String> {
    let (numbers, last_readers) = (graph.numbering(), last_readers(graph));
    let factor = if place == Place::HostF64 { 2 } else { 1 };
    let size = |value: ValueId| graph.ty(value).size_bytes();
    let mut sources = 0u64;
    let mut alive = 0u64;
    for (position, (_, node)) in graph.nodes().enumerate() {
        let is_source = !matches!(node.kind, NodeKind::Op(_) | NodeKind::Const(_));
        for &value in &node.results {
            let (number, ty, n) = (numbers.of(value), graph.ty(value), size(value));
            if n > limit {
                return Some(format!("%{number} {ty} needs {n} bytes"));
            }
            if is_source {
                sources = sources.saturating_add(n);
            } else {
                alive = alive.saturating_add(n.saturating_mul(factor));
            }
            if sources > limit {
                return Some(format!("the sources up to %{number} need {sources} bytes"));
            }
            let sum = sources.saturating_add(alive);
            if place != Place::Device && sum > limit {
                return Some(format!("sources and values at %{number} need {sum} bytes"));
            }
        }
        for value in dying(node.present_operands().chain(node.results.iter().copied()), graph, |value| {
            last_readers.get(numbers.of(value) as usize) == Some(&position)
        }) {
            alive = alive.saturating_sub(size(value).saturating_mul(factor));
        }
    }
    None
}

/// By the number of a value, the position of the node that reads it last; outputs and updates are read at the end.
fn last_readers(graph: &Graph) -> Vec<usize> {
    let numbers = graph.numbering();
    let mut last: Vec<usize> = Vec::new();
    let mut note = |value: ValueId, position: usize| {
        let at = numbers.of(value) as usize;
        if last.len() <= at {
            last.resize(at + 1, 0);
        }
        last[at] = position;
    };
    for (position, (_, node)) in graph.nodes().enumerate() {
        node.results.iter().for_each(|&value| note(value, position));
        node.present_operands().for_each(|value| note(value, position));
    }
    graph.outputs.iter().chain(&graph.updates).for_each(|named| note(named.value, usize::MAX));
    last
}

/// Computed values that nothing reads after a node, each once.
fn dying(values: impl Iterator<Item = ValueId>, graph: &Graph, is_read_last: impl Fn(ValueId) -> bool) -> Vec<ValueId> {
    let is_computed = |value: ValueId| matches!(graph.def(value).kind, NodeKind::Op(_) | NodeKind::Const(_));
    let mut dying: Vec<ValueId> = Vec::new();
    for value in values {
        if is_read_last(value) && is_computed(value) && !dying.contains(&value) {
            dying.push(value);
        }
    }
    dying
}

/// Bytes that can be had without taking them from other programs, where the system says it.
#[cfg(target_os = "linux")]
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(not(target_os = "linux"))]
const fn available_bytes() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain of ops on 12 bytes, of which two values live at once, and the source.
    const CHAIN: &str = "ir 1\ngraph @g {\n  %0 = input \"x\" : f32[3]\n  %1 = exp %0 : f32[3]\n  %2 = exp %1 : f32[3]\n  \
                         %3 = exp %2 : f32[3]\n  output \"y\" = %3\n}\n";

    #[test]
    fn values_count_while_they_live() {
        let graph = monopass::ir::text::parse_one(CHAIN).unwrap();
        assert_eq!(too_much(&graph, 36, Place::Host), None);
        assert_eq!(too_much(&graph, 35, Place::Host).as_deref(), Some("sources and values at %2 need 36 bytes"));
        assert_eq!(too_much(&graph, 60, Place::HostF64), None);
        assert!(too_much(&graph, 59, Place::HostF64).is_some());
        assert_eq!(too_much(&graph, 12, Place::Device), None);
        assert_eq!(too_much(&graph, 11, Place::Device).as_deref(), Some("%0 f32[3] needs 12 bytes"));
    }
}
