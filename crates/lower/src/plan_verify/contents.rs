//! Simulates what each storage contains while the commands run.

use super::error::{ArgSite, PlanError};
use super::value_bytes;
use crate::plan::{Arg, BufferId, BufferKind, Plan, PlanValueId, Resource, StateStorage};
use indexmap::IndexMap;

pub(super) fn check(plan: &Plan, errors: &mut Vec<PlanError>) {
    let mut run = Run::start(plan);
    for (cmd, args) in plan.cmds.iter().enumerate().map(|(idx, cmd)| (idx, &cmd.args)) {
        // A dispatch reads what was there before it, so all its reads come before its writes.
        for (arg_idx, arg) in args.iter().enumerate() {
            run.read(ArgSite { cmd, arg: arg_idx }, arg, errors);
        }
        for (arg_idx, arg) in args.iter().enumerate() {
            run.write(ArgSite { cmd, arg: arg_idx }, arg, errors);
        }
    }
    run.end(errors);
}

/// The state of a run between two commands.
struct Run<'p> {
    plan: &'p Plan,
    /// The one value that each storage contains; packs, which nobody may write, are looked up in the plan.
    contains: IndexMap<Resource, PlanValueId>,
    /// Values that were in a storage and are no more, with the command that overwrote them.
    lost: IndexMap<(Resource, PlanValueId), usize>,
    held: IndexMap<PlanValueId, BufferId>,
    /// First command that writes each value, in the whole plan.
    writer: IndexMap<PlanValueId, usize>,
    /// Values written so far.
    written: IndexMap<PlanValueId, ArgSite>,
}

impl<'p> Run<'p> {
    fn start(plan: &'p Plan) -> Self {
        let mut run = Self {
            plan,
            contains: IndexMap::new(),
            lost: IndexMap::new(),
            held: IndexMap::new(),
            writer: IndexMap::new(),
            written: IndexMap::new(),
        };
        for (id, buffer) in (0..).map(BufferId).zip(&plan.buffers) {
            if let Some(value) = buffer.holds {
                run.contains.insert(Resource::Buffer(id), value);
                run.held.insert(value, id);
            }
        }
        for (idx, cmd) in plan.cmds.iter().enumerate() {
            for value in cmd.args.iter().filter_map(|arg| arg.writes) {
                run.writer.entry(value).or_insert(idx);
            }
        }
        run
    }

    fn has(&self, resource: Resource, value: PlanValueId) -> bool {
        // Nothing has to be written of a value without elements.
        value_bytes(self.plan, value) == 0 || self.contains.get(&resource) == Some(&value) || self.is_part(resource, value)
    }

    fn is_part(&self, resource: Resource, value: PlanValueId) -> bool {
        let Resource::Buffer(id) = resource else { return false };
        match super::buffer(self.plan, id).map(|buffer| &buffer.kind) {
            Some(BufferKind::Pack { parts }) => parts.iter().any(|part| part.value == value),
            Some(BufferKind::Input { .. } | BufferKind::Param { .. } | BufferKind::State { .. } | BufferKind::Output { .. }) | None => {
                false
            }
        }
    }

    fn read(&self, site: ArgSite, arg: &Arg, errors: &mut Vec<PlanError>) {
        for &value in arg.reads.iter().filter(|value| !self.has(arg.resource, **value)) {
            let resource = arg.resource;
            errors.push(if let Some(&overwritten_by) = self.lost.get(&(resource, value)) {
                PlanError::Overwritten { site, value, overwritten_by }
            } else if self.is_somewhere(value) || self.written.contains_key(&value) {
                PlanError::WrongStorage { site, value, resource }
            } else if let Some(&written_by) = self.writer.get(&value) {
                PlanError::ReadBeforeWrite { site, value, written_by }
            } else {
                PlanError::NeverWritten { site, value }
            });
        }
    }

    /// Whether some buffer has the value from the start.
    fn is_somewhere(&self, value: PlanValueId) -> bool {
        let mut buffers = (0..).map(BufferId).take(self.plan.buffers.len());
        self.held.contains_key(&value) || buffers.any(|id| self.is_part(Resource::Buffer(id), value))
    }

    fn write(&mut self, site: ArgSite, arg: &Arg, errors: &mut Vec<PlanError>) {
        let Some(value) = arg.writes else { return };
        if let Some(&buffer) = self.held.get(&value) {
            errors.push(PlanError::WritesHeld { site, value, buffer });
        }
        if self.written.insert(value, site).is_some() {
            errors.push(PlanError::WrittenTwice { site, value });
        }
        if let Some(old) = self.contains.insert(arg.resource, value)
            && old != value
        {
            self.lost.insert((arg.resource, old), site.cmd);
        }
    }

    fn end(&self, errors: &mut Vec<PlanError>) {
        for (id, buffer) in (0..).map(BufferId).zip(&self.plan.buffers) {
            let is_double = matches!(buffer.kind, BufferKind::State { storage: StateStorage::Double, .. });
            let resource = if is_double { Resource::NewState(id) } else { Resource::Buffer(id) };
            let Some(value) = buffer.receives.filter(|&value| !self.has(resource, value)) else { continue };
            errors.push(match self.lost.get(&(resource, value)) {
                Some(&overwritten_by) => PlanError::ResultLost { buffer: id, value, overwritten_by },
                None => PlanError::NotReceived { buffer: id, value },
            });
        }
    }
}
