//! A session bound to an executable: which of its states the plan means, and the bind groups that name their buffers, for
//! both turns of states with two buffers, so that a run after the first creates nothing.

use crate::buffers::Buffer;
use crate::counters::Counters;
use crate::error::{RuntimeError, Site};
use crate::executor::{Bound, Inner};
use crate::state::{Session, State};
use indexmap::IndexMap;
use monopass_lower::plan::StateStorage;
use std::sync::{Arc, Weak};

/// The states of one executable in one session.
#[derive(Debug)]
pub(crate) struct Binding {
    exec: Weak<Inner>,
    id: u64,
    /// Index in the session of each state of the executable.
    states: Vec<usize>,
    /// For each command that binds states, the bind groups by whose turn it is.
    groups: Vec<Vec<(Turns, wgpu::BindGroup)>>,
}

/// Bit i says which buffer of the i-th state that a command binds has the content.
type Turns = u64;

impl Session {
    /// The index of the binding to `exec`; makes it, the states and the bind groups at the first call.
    pub(crate) fn bind(&mut self, tally: &mut Counters, exec: &Arc<Inner>) -> Result<usize, RuntimeError> {
        let known = self.bindings.iter().position(|binding| binding.id == exec.id);
        let idx = match known {
            Some(idx) => idx,
            None => self.add_binding(tally, exec)?,
        };
        // Another executable may have let the turns of two states fall apart; only then is anything missing here.
        self.complete(tally, idx, false)?;
        Ok(idx)
    }

    fn add_binding(&mut self, tally: &mut Counters, exec: &Arc<Inner>) -> Result<usize, RuntimeError> {
        let mut states = Vec::with_capacity(exec.states.len());
        for state in &exec.states {
            states.push(self.ensure(tally, &state.name, &state.ty, state.storage.n_buffers())?);
        }
        // Bind groups keep buffers alive, so those of executables that are gone go too.
        self.bindings.retain(|binding| binding.exec.strong_count() > 0);
        let groups = exec.cmds.iter().map(|_| Vec::new()).collect();
        self.bindings.push(Binding { exec: Arc::downgrade(exec), id: exec.id, states, groups });
        // The new executable may have given second buffers to states of the others.
        for idx in 0..self.bindings.len() {
            self.complete(tally, idx, false)?;
            self.complete(tally, idx, true)?;
        }
        Ok(self.bindings.len() - 1)
    }

    /// Makes the bind groups that are missing for the turns as they are, or for those after the next run.
    fn complete(&mut self, tally: &mut Counters, idx: usize, after_turn: bool) -> Result<(), RuntimeError> {
        let Some(binding) = self.bindings.get_mut(idx) else { return Ok(()) };
        let Some(exec) = binding.exec.upgrade() else { return Ok(()) };
        for cmd_idx in exec.stateful_cmds() {
            let turns = binding.turns(&exec, &self.states, cmd_idx, after_turn);
            if binding.groups[cmd_idx].iter().any(|(known, _)| *known == turns) {
                continue;
            }
            let (states, groups) = (&binding.states, &mut binding.groups);
            let view = |state_idx: usize, is_new: bool| buffer_of(&self.states, states[state_idx], is_new, after_turn);
            let site = Site { during: "bind states".to_owned(), kernel: None, cmd: Some(exec.cmd_name(cmd_idx)) };
            let group = exec.gpu.scoped_now(site, || exec.group(tally, cmd_idx, &Bound::States(&view)))?;
            groups[cmd_idx].push((turns, group?));
        }
        Ok(())
    }

    /// The bind group of a command that binds states.
    pub(crate) fn group(&self, binding_idx: usize, exec: &Inner, cmd_idx: usize) -> Option<&wgpu::BindGroup> {
        let binding = self.bindings.get(binding_idx)?;
        let turns = binding.turns(exec, &self.states, cmd_idx, false);
        binding.groups.get(cmd_idx)?.iter().find(|(known, _)| *known == turns).map(|(_, group)| group)
    }

    /// After a run, the states with two buffers that it updated have their content in the other one.
    pub(crate) fn take_turns(&mut self, binding_idx: usize, exec: &Inner) {
        let Some(binding) = self.bindings.get(binding_idx) else { return };
        for (spec, &idx) in exec.states.iter().zip(&binding.states) {
            if spec.storage == StateStorage::Double
                && let Some((_, state)) = self.states.get_index_mut(idx)
            {
                state.current ^= 1;
            }
        }
    }
}

impl Binding {
    fn turns(&self, exec: &Inner, states: &IndexMap<String, State>, cmd_idx: usize, after_turn: bool) -> Turns {
        let bit = |(bit, &state_idx): (usize, &usize)| {
            let current = states.get_index(self.states[state_idx]).map_or(0, |(_, state)| turn(state, after_turn));
            u64::from(current == 1) << bit
        };
        exec.cmds[cmd_idx].states.iter().enumerate().map(bit).sum()
    }
}

fn turn(state: &State, after_turn: bool) -> usize {
    if after_turn && state.buffers.len() == 2 { 1 - state.current } else { state.current }
}

fn buffer_of(states: &IndexMap<String, State>, idx: usize, is_new: bool, after_turn: bool) -> Option<&Buffer> {
    let (_, state) = states.get_index(idx)?;
    let current = turn(state, after_turn);
    state.buffers.get(if is_new { 1 - current } else { current })
}
