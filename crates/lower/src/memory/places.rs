//! Where each value lives: an external buffer, the second buffer of a state, or the pool of slots.

use super::{defect, narrow};
use crate::error::LowerError;
use crate::plan::{Buffer, BufferId, BufferKind, PackPart, PlanValue, PlanValueId, StateStorage};
use crate::step::{Step, StepArg, StepValue, Temp};
use indexmap::{IndexMap, IndexSet};
use monopass_ir::graph::{Named, NodeKind};
use monopass_ir::{Graph, ValueId};

/// Where a value lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In an external buffer.
    Buffer(BufferId),
    /// In the buffer that takes a state's new content.
    NewState(BufferId),
    /// In the slot of the group that this value heads.
    Pool(PlanValueId),
}

/// Parts of a pack: weight and offset.
type PackKey = Vec<(StepValue, u64)>;

/// All values of a plan, with the external buffers.
pub(super) struct Places {
    pub(super) values: Vec<PlanValue>,
    pub(super) buffers: Vec<Buffer>,
    ids: IndexMap<StepValue, PlanValueId>,
    /// The value whose storage a value takes over, in place.
    heads: Vec<PlanValueId>,
    is_written: Vec<bool>,
    external: Vec<Option<Place>>,
    packs: IndexMap<PackKey, BufferId>,
}

impl Places {
    pub(super) fn find(graph: &Graph, steps: &[Step], temps: &[Temp]) -> Result<Self, LowerError> {
        let mut places = Self::number(graph, steps, temps)?;
        places.follow_writes(steps)?;
        places.place_sources(graph, steps)?;
        places.place_packs(graph, steps)?;
        places.place_outputs(graph)?;
        Ok(places)
    }

    pub(super) fn id(&self, value: StepValue) -> Option<PlanValueId> {
        self.ids.get(&value).copied()
    }

    pub(super) fn place(&self, value: PlanValueId) -> Place {
        let head = self.head(value);
        self.external[head.index()].unwrap_or(Place::Pool(head))
    }

    pub(super) fn pack(&self, arg: &StepArg) -> Option<BufferId> {
        self.packs.get(&pack_key(arg)).copied()
    }

    /// Values with the step values that they are.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StepValue, &PlanValue)> + '_ {
        self.ids.iter().map(|(&value, id)| (value, &self.values[id.index()]))
    }

    /// Numbers the values: those of the graph in its order, then the intermediates.
    fn number(graph: &Graph, steps: &[Step], temps: &[Temp]) -> Result<Self, LowerError> {
        let numbering = graph.numbering();
        let named = graph.outputs.iter().chain(&graph.updates).map(|named| named.value);
        let external = graph.sources().map(|(_, value, _)| value).chain(named).map(StepValue::Graph);
        let args = steps.iter().flat_map(|step| &step.args);
        let used = args.flat_map(|arg| arg.reads.iter().chain(&arg.writes)).copied();
        let mut keys: Vec<(u32, usize, StepValue)> = Vec::new();
        for value in external.chain(used) {
            match value {
                StepValue::Graph(id) if graph.has_value(id) => keys.push((numbering.of(id), 0, value)),
                StepValue::Temp(idx) if idx < temps.len() => keys.push((u32::MAX, idx, value)),
                StepValue::Graph(_) | StepValue::Temp(_) => return Err(defect("a step names a value that the graph does not have")),
            }
        }
        keys.sort_by_key(|&(number, idx, _)| (number, idx));
        keys.dedup();
        let mut values = Vec::with_capacity(keys.len());
        for &(number, _, value) in &keys {
            values.push(match value {
                StepValue::Graph(id) => PlanValue { label: format!("%{number}"), size_bytes: words(graph.ty(id).size_bytes()) },
                StepValue::Temp(idx) => {
                    let temp = &temps[idx];
                    PlanValue { label: format!("%{}.{}", numbering.of(temp.of), temp.name), size_bytes: words(temp.size_bytes) }
                }
            });
        }
        let n_values = values.len();
        make_labels_unique(&mut values);
        Ok(Self {
            values,
            buffers: Vec::new(),
            ids: keys.into_iter().enumerate().map(|(idx, (_, _, value))| (value, PlanValueId(narrow(idx)))).collect(),
            heads: (0..n_values).map(|idx| PlanValueId(narrow(idx))).collect(),
            is_written: vec![false; n_values],
            external: vec![None; n_values],
            packs: IndexMap::new(),
        })
    }

    fn head(&self, mut value: PlanValueId) -> PlanValueId {
        // A chain is shorter than the number of values, or it is a circle, which the verifier refuses.
        for _ in 0..self.heads.len() {
            let head = self.heads[value.index()];
            if head == value {
                break;
            }
            value = head;
        }
        value
    }

    fn label(&self, value: PlanValueId) -> &str {
        &self.values[value.index()].label
    }

    fn follow_writes(&mut self, steps: &[Step]) -> Result<(), LowerError> {
        for arg in steps.iter().flat_map(|step| &step.args) {
            let Some(written) = arg.writes.and_then(|value| self.id(value)) else { continue };
            if std::mem::replace(&mut self.is_written[written.index()], true) {
                return Err(defect(format!("{} is written by two steps", self.label(written))));
            }
            if let Some(&read) = arg.reads.first()
                && let Some(read) = self.id(read)
            {
                if arg.reads.len() > 1 || arg.is_pack() {
                    return Err(defect(format!("{} is written into a pack", self.label(written))));
                }
                self.heads[written.index()] = self.head(read);
            }
        }
        Ok(())
    }

    fn place_sources(&mut self, graph: &Graph, steps: &[Step]) -> Result<(), LowerError> {
        let packed_only = packed_only(steps);
        for (name, value, node) in graph.sources() {
            let Some(id) = self.id(StepValue::Graph(value)) else { continue };
            let (name, ty) = (name.to_owned(), graph.ty(value).clone());
            let update = graph.updates.iter().find(|update| update.name == name);
            let mut receives = None;
            let kind = match &node.kind {
                NodeKind::Input { .. } => BufferKind::Input { name, ty },
                NodeKind::State { .. } => {
                    receives = update.map(|update| self.result(update, "update")).transpose()?;
                    let storage = match receives {
                        None => StateStorage::Constant,
                        Some(new) if self.head(new) == id => StateStorage::InPlace,
                        Some(_) => StateStorage::Double,
                    };
                    BufferKind::State { name, ty, storage }
                }
                NodeKind::Param { .. } if update.is_some() => {
                    return Err(defect(format!("param `{name}` has an update, but a plan keeps its weights as they are")));
                }
                NodeKind::Param { .. } if packed_only.contains(&value) => continue,
                NodeKind::Param { .. } => BufferKind::Param { name, ty },
                NodeKind::Const(_) | NodeKind::Op(_) => continue,
            };
            let buffer = self.add_buffer(kind, self.values[id.index()].size_bytes, Some(id), receives);
            self.external[id.index()] = Some(Place::Buffer(buffer));
            if let Some(new) = receives
                && self.head(new) != id
            {
                self.claim(new, Place::NewState(buffer))?;
            }
        }
        Ok(())
    }

    fn place_packs(&mut self, graph: &Graph, steps: &[Step]) -> Result<(), LowerError> {
        for arg in steps.iter().flat_map(|step| &step.args).filter(|arg| arg.is_pack()) {
            if arg.reads.len() != arg.offsets_bytes.len() {
                return Err(defect(format!("a pack of {} weights has {} offsets", arg.reads.len(), arg.offsets_bytes.len())));
            }
            let key = pack_key(arg);
            if self.packs.contains_key(&key) {
                continue;
            }
            let mut parts = key.iter().map(|&(value, offset)| self.pack_part(graph, value, offset)).collect::<Result<Vec<_>, _>>()?;
            parts.sort_by_key(|part| part.offset_bytes);
            let end = |part: &PackPart| part.offset_bytes.saturating_add(self.values[part.value.index()].size_bytes);
            let size_bytes = words(parts.iter().map(end).max().unwrap_or(0));
            let buffer = self.add_buffer(BufferKind::Pack { parts }, size_bytes, None, None);
            self.packs.insert(key, buffer);
        }
        Ok(())
    }

    fn pack_part(&self, graph: &Graph, value: StepValue, offset_bytes: u64) -> Result<PackPart, LowerError> {
        let id = self.id(value).ok_or_else(|| defect("a pack has a part that is no value"))?;
        let StepValue::Graph(param) = value else {
            return Err(defect(format!("{} is in a pack but is no weight", self.label(id))));
        };
        let node = graph.def(param);
        let NodeKind::Param { name } = &node.kind else {
            return Err(defect(format!("{} is in a pack but is a {}, no weight", self.label(id), node.mnemonic())));
        };
        Ok(PackPart { value: id, name: name.clone(), ty: graph.ty(param).clone(), offset_bytes })
    }

    fn place_outputs(&mut self, graph: &Graph) -> Result<(), LowerError> {
        for output in &graph.outputs {
            let value = self.result(output, "output")?;
            let kind = BufferKind::Output { name: output.name.clone(), ty: graph.ty(output.value).clone() };
            let buffer = self.add_buffer(kind, self.values[value.index()].size_bytes, None, Some(value));
            self.claim(value, Place::Buffer(buffer))?;
        }
        Ok(())
    }

    /// The value of an output or update, which a step has to compute unless it has no elements.
    fn result(&self, named: &Named, what: &str) -> Result<PlanValueId, LowerError> {
        let id = self.id(StepValue::Graph(named.value)).ok_or_else(|| defect(format!("{what} `{}` is no value", named.name)))?;
        if self.is_written[id.index()] || self.values[id.index()].size_bytes == 0 {
            return Ok(id);
        }
        Err(defect(format!("{what} `{}` is {}, which no step computes; it needs a step that copies it", named.name, self.label(id))))
    }

    /// Gives the group of `value` its external place, if it has none yet.
    fn claim(&mut self, value: PlanValueId, place: Place) -> Result<(), LowerError> {
        let head = self.head(value);
        if self.external[head.index()].is_some() {
            return Err(defect(format!("{} has two names outside; the second needs a step that copies it", self.label(value))));
        }
        self.external[head.index()] = Some(place);
        Ok(())
    }

    fn add_buffer(&mut self, kind: BufferKind, size_bytes: u64, holds: Option<PlanValueId>, receives: Option<PlanValueId>) -> BufferId {
        self.buffers.push(Buffer { kind, size_bytes: size_bytes.max(16), holds, receives });
        BufferId(narrow(self.buffers.len() - 1))
    }
}

/// Weights that steps read only as parts of packs.
fn packed_only(steps: &[Step]) -> IndexSet<ValueId> {
    let of = |is_pack: bool| {
        let args = steps.iter().flat_map(|step| &step.args).filter(move |arg| arg.is_pack() == is_pack);
        args.flat_map(|arg| &arg.reads).filter_map(|value| match value {
            StepValue::Graph(value) => Some(*value),
            StepValue::Temp(_) => None,
        })
    };
    let plain: IndexSet<ValueId> = of(false).collect();
    of(true).filter(|value| !plain.contains(value)).collect()
}

fn pack_key(arg: &StepArg) -> PackKey {
    arg.reads.iter().copied().zip(arg.offsets_bytes.iter().copied()).collect()
}

/// Intermediates of one op with the same name get a number each, so that a label names one value.
fn make_labels_unique(values: &mut [PlanValue]) {
    let mut seen: IndexMap<String, usize> = IndexMap::new();
    for value in values {
        let count = seen.entry(value.label.clone()).or_insert(0);
        *count += 1;
        if *count > 1 {
            value.label = format!("{}.{count}", value.label);
        }
    }
}

/// Bytes padded to four words, as many as kernels read at a time.
fn words(size_bytes: u64) -> u64 {
    size_bytes.saturating_add(15) & !15
}
