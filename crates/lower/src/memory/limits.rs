//! What a target refuses, said before anything is made: which limit, where, and what would fit.

use super::places::Places;
use crate::error::LowerError;
use crate::step::{Step, StepValue, Temp};
use crate::target::Target;
use monopass_ir::error::OpSite;
use monopass_ir::{Graph, ValueId};

/// Checks the size of every value against what one buffer and one binding may have.
pub(super) fn check_values(graph: &Graph, places: &Places, temps: &[Temp], target: &Target) -> Result<(), LowerError> {
    let (limit, name) = binding_limit(target);
    if let Some((value, known)) = places.iter().find(|(_, known)| known.size_bytes > limit) {
        let (of, what) = match value {
            StepValue::Graph(id) => (Some(id), format!("{} {}", known.label, graph.ty(id))),
            StepValue::Temp(idx) => (temps.get(idx).map(|temp| temp.of), known.label.clone()),
        };
        return Err(LowerError::Limit {
            what: format!("{what} takes {} bytes; {} has {name} = {limit}", known.size_bytes, target.name),
            site: site(graph, of),
            help: smaller(graph, value, limit),
        });
    }
    if let Some(buffer) = places.buffers.iter().find(|buffer| buffer.size_bytes > limit) {
        return Err(LowerError::Limit {
            what: format!("a pack of weights takes {} bytes; {} has {name} = {limit}", buffer.size_bytes, target.name),
            site: Box::default(),
            help: format!("packs of at most {limit} bytes would fit"),
        });
    }
    Ok(())
}

/// Checks one step: storage bindings, loop trips and workgroups.
pub(super) fn check_step(graph: &Graph, step: &Step, target: &Target) -> Result<(), LowerError> {
    let site = || site(graph, step.computes.first().copied());
    let label = &step.kernel.label;
    let limit = |what: String, help: String| Err(LowerError::Limit { what: format!("kernel {label}: {what}"), site: site(), help });
    let n_buffers = step.args.len();
    if n_buffers > target.max_storage_buffers as usize {
        let most = target.max_storage_buffers;
        return limit(
            format!("{n_buffers} storage buffers; {} has max_storage_buffers = {most}", target.name),
            format!("a kernel of at most {most} operands and results would fit"),
        );
    }
    if let Some(most) = target.max_loop_trips.filter(|&most| step.loop_trips > most) {
        return limit(
            format!("{} loop trips in one invocation; {} has max_loop_trips = {most}", step.loop_trips, target.name),
            format!("at most {most} trips would fit: make the axis that one invocation runs over shorter"),
        );
    }
    if fold(step.n_workgroups, target.max_workgroups).is_none() {
        let most = u64::from(target.max_workgroups) * u64::from(target.max_workgroups);
        return limit(
            format!("{} workgroups; {} has max_workgroups = {} in x and y", step.n_workgroups, target.name, target.max_workgroups),
            format!("at most {most} workgroups would fit"),
        );
    }
    Ok(())
}

/// Workgroups in x, y, z, at least `n_workgroups` together; the kernel ignores those that are over.
pub(super) fn fold(n_workgroups: u64, most: u32) -> Option<[u32; 3]> {
    let y = n_workgroups.div_ceil(u64::from(most).max(1)).max(1);
    // As even as it gets: at most y - 1 workgroups are over.
    let x = n_workgroups.div_ceil(y).max(1);
    let (x, y) = (u32::try_from(x).ok()?, u32::try_from(y).ok()?);
    (x <= most && y <= most).then_some([x, y, 1])
}

/// The smaller of what a buffer and a binding may have.
fn binding_limit(target: &Target) -> (u64, &'static str) {
    if target.max_buffer_bytes < target.max_binding_bytes {
        (target.max_buffer_bytes, "max_buffer_bytes")
    } else {
        (target.max_binding_bytes, "max_binding_bytes")
    }
}

fn smaller(graph: &Graph, value: StepValue, limit: u64) -> String {
    match value {
        StepValue::Graph(id) => {
            let dtype = graph.ty(id).dtype;
            format!(
                "at most {} elements of {dtype} would fit; lower the batch or the length, or split the tensor",
                limit / dtype.size_bytes()
            )
        }
        StepValue::Temp(_) => format!("at most {limit} bytes would fit; lower the batch or the length"),
    }
}

fn site(graph: &Graph, value: Option<ValueId>) -> Box<OpSite> {
    Box::new(value.filter(|&value| graph.has_value(value)).map_or_else(OpSite::default, |value| OpSite::of(graph, value)))
}
