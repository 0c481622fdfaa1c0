//! Assigns storage: turns steps into a plan.
//!
//! **Needs** steps in execution order, each result written by one step, and a step of its own for every output and
//! update: one that is an input, a weight, a state, or a second name of another result, has to be copied before.
//! **Ensures** what [`crate::plan_verify`] proves. It does not trust this module and shares no code with it.
//!
//! External values have buffers of their own: inputs, weights and states by name, and outputs and new states that the
//! step which computes them writes directly. Everything else lives in slots, whole buffers that values share whose
//! live ranges do not meet. wgpu orders dispatches by whole buffer, so where all values together are small (decoding)
//! each has its own slot and independent dispatches run without barriers between them.

mod limits;
mod places;
mod slots;

#[cfg(test)]
mod tests;

use crate::error::LowerError;
use crate::plan::{Access, Arg, Cmd, Kernel, KernelId, Plan, PlanValueId, Resident, Resource, Slot, SlotId};
use crate::step::{Step, StepArg, Steps};
use crate::target::Target;
use indexmap::{IndexMap, IndexSet};
use monopass_ir::graph::{Node, Numbering};
use monopass_ir::{Graph, ValueId};
use places::{Place, Places};

/// How to assign storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Values whose live ranges do not meet share slots; otherwise each value has a slot of its own.
    pub reuse: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { reuse: true }
    }
}

/// Below this many bytes for all slot values together, each has its own slot.
const SMALL_POOL_BYTES: u64 = 1 << 20;

/// Assigns storage to everything that `steps` read and write.
///
/// # Errors
/// [`LowerError::Limit`] if a value, a kernel or a dispatch is over a limit of the target; [`LowerError::Plan`] if the
/// steps are not what this module needs.
pub fn assign(graph: &Graph, steps: Steps, target: &Target, options: &MemoryOptions) -> Result<Plan, LowerError> {
    let Steps { steps, temps, not_fused } = steps;
    // Results without elements have no work; whoever reads them still finds a buffer.
    let steps: Vec<Step> = steps.into_iter().filter(|step| step.n_workgroups > 0).collect();
    let places = Places::find(graph, &steps, &temps)?;
    limits::check_values(graph, &places, &temps, target)?;
    let pool = Pool::find(&places, &steps);
    let (slots, slot_of) = pool.slots(options);
    let mut maker = Maker { graph, numbering: graph.numbering(), places: &places, slot_of: &slot_of, target, kernels: Kernels::default() };
    let cmds = steps.into_iter().map(|step| maker.command(step)).collect::<Result<Vec<_>, _>>()?;
    let kernels = maker.kernels.list;
    Ok(Plan {
        name: graph.name.clone(),
        target: target.name.clone(),
        live_bytes: slots::live_bytes(&pool.tenants()),
        values: places.values,
        buffers: places.buffers,
        slots,
        kernels,
        cmds,
        not_fused,
        recompute: None,
    })
}

/// Values that live in slots, grouped where one takes another's place, with their live ranges.
struct Pool {
    groups: IndexMap<PlanValueId, Group>,
}

#[derive(Default)]
struct Group {
    size_bytes: u64,
    members: IndexMap<PlanValueId, (usize, usize)>,
}

impl Group {
    fn tenant(&self) -> slots::Tenant {
        let first = self.members.values().map(|range| range.0).min().unwrap_or(0);
        let last = self.members.values().map(|range| range.1).max().unwrap_or(0);
        slots::Tenant { size_bytes: self.size_bytes.max(16), first, last }
    }
}

impl Pool {
    fn find(places: &Places, steps: &[Step]) -> Self {
        let mut groups: IndexMap<PlanValueId, Group> = IndexMap::new();
        for (cmd, arg) in steps.iter().enumerate().flat_map(|(cmd, step)| step.args.iter().map(move |arg| (cmd, arg))) {
            if arg.is_pack() {
                continue;
            }
            for value in arg.reads.iter().chain(&arg.writes).filter_map(|value| places.id(*value)) {
                let Place::Pool(root) = places.place(value) else { continue };
                let group = groups.entry(root).or_default();
                group.size_bytes = group.size_bytes.max(places.values[value.index()].size_bytes);
                group.members.entry(value).or_insert((cmd, cmd)).1 = cmd;
            }
        }
        Self { groups }
    }

    fn tenants(&self) -> Vec<slots::Tenant> {
        self.groups.values().map(Group::tenant).collect()
    }

    /// The slots, and the slot of each group.
    fn slots(&self, options: &MemoryOptions) -> (Vec<Slot>, IndexMap<PlanValueId, SlotId>) {
        let tenants = self.tenants();
        let all_bytes = tenants.iter().fold(0u64, |sum, tenant| sum.saturating_add(tenant.size_bytes));
        let is_shared = options.reuse && all_bytes > SMALL_POOL_BYTES;
        let homes = if is_shared { slots::share(&tenants) } else { (0..tenants.len()).collect() };
        let mut slots: IndexMap<usize, Slot> = IndexMap::new();
        let mut slot_of = IndexMap::new();
        for (((&root, group), tenant), home) in self.groups.iter().zip(&tenants).zip(homes) {
            let entry = slots.entry(home);
            slot_of.insert(root, SlotId(narrow(entry.index())));
            let slot = entry.or_insert(Slot { size_bytes: 4, residents: Vec::new() });
            slot.size_bytes = slot.size_bytes.max(tenant.size_bytes);
            let residents = group.members.iter();
            slot.residents.extend(residents.map(|(&value, &(first_cmd, last_cmd))| Resident { value, first_cmd, last_cmd }));
        }
        let mut slots: Vec<Slot> = slots.into_values().collect();
        for slot in &mut slots {
            slot.residents.sort_by_key(|resident| (resident.first_cmd, resident.last_cmd, resident.value));
        }
        (slots, slot_of)
    }
}

/// Kernels in order of first use; those of equal text are one.
#[derive(Default)]
struct Kernels {
    list: Vec<Kernel>,
    by_text: IndexMap<String, Vec<KernelId>>,
}

impl Kernels {
    fn intern(&mut self, kernel: Kernel) -> KernelId {
        let known = self.by_text.entry(kernel.wgsl.clone()).or_default();
        let same = known.iter().find(|id| {
            let other = &self.list[id.0 as usize];
            other.bindings == kernel.bindings
                && (other.workgroup_size, other.workgroup_bytes) == (kernel.workgroup_size, kernel.workgroup_bytes)
                && (other.n_dims, other.bounds_proved) == (kernel.n_dims, kernel.bounds_proved)
        });
        if let Some(&id) = same {
            return id;
        }
        let id = KernelId(narrow(self.list.len()));
        known.push(id);
        self.list.push(kernel);
        id
    }
}

/// What it takes to make commands of steps.
struct Maker<'a> {
    graph: &'a Graph,
    numbering: Numbering,
    places: &'a Places,
    slot_of: &'a IndexMap<PlanValueId, SlotId>,
    target: &'a Target,
    kernels: Kernels,
}

impl Maker<'_> {
    fn command(&mut self, step: Step) -> Result<Cmd, LowerError> {
        limits::check_step(self.graph, &step, self.target)?;
        let args = step.args.iter().map(|arg| self.argument(arg)).collect::<Result<Vec<_>, _>>()?;
        let values = args.iter().flat_map(|arg| arg.reads.iter().chain(&arg.writes));
        let bytes_moved = values.fold(0u64, |sum, value| sum.saturating_add(self.places.values[value.index()].size_bytes));
        Ok(Cmd {
            kernel: self.kernels.intern(step.kernel),
            workgroups: limits::fold(step.n_workgroups, self.target.max_workgroups).unwrap_or([0; 3]),
            args,
            dims: step.dims,
            loop_trips: step.loop_trips,
            flops: step.flops,
            bytes_moved,
            scope: scopes(self.graph, &step.computes),
            computes: computes(self.graph, &self.numbering, &step.computes),
        })
    }

    fn argument(&self, arg: &StepArg) -> Result<Arg, LowerError> {
        let reads: Vec<PlanValueId> = arg.reads.iter().filter_map(|value| self.places.id(*value)).collect();
        let writes = arg.writes.and_then(|value| self.places.id(value));
        let access = if writes.is_some() { Access::ReadWrite } else { Access::Read };
        let resource = if arg.is_pack() {
            self.places.pack(arg).map(Resource::Buffer).ok_or_else(|| defect("an argument binds a pack that has no buffer"))?
        } else {
            self.resource(writes.as_ref().map_or(reads.as_slice(), std::slice::from_ref))?
        };
        Ok(Arg { resource, access, reads, writes })
    }

    fn resource(&self, values: &[PlanValueId]) -> Result<Resource, LowerError> {
        let &[value] = values else {
            return Err(defect(format!("an argument binds {} values, but says not where each starts", values.len())));
        };
        match self.places.place(value) {
            Place::Buffer(buffer) => Ok(Resource::Buffer(buffer)),
            Place::NewState(buffer) => Ok(Resource::NewState(buffer)),
            Place::Pool(head) => self.slot_of.get(&head).map(|&slot| Resource::Slot(slot)).ok_or_else(|| defect("a value has no slot")),
        }
    }
}

/// Block paths of the values, each once.
fn scopes(graph: &Graph, values: &[ValueId]) -> String {
    let scopes: IndexSet<&str> = nodes(graph, values).map(|(_, node)| &*node.scope).filter(|scope| !scope.is_empty()).collect();
    scopes.into_iter().collect::<Vec<_>>().join(", ")
}

fn computes(graph: &Graph, numbering: &Numbering, values: &[ValueId]) -> String {
    let ops: Vec<String> = nodes(graph, values).map(|(value, node)| format!("%{} {}", numbering.of(value), node.mnemonic())).collect();
    ops.join(", ")
}

/// The nodes that compute `values`.
fn nodes<'g>(graph: &'g Graph, values: &'g [ValueId]) -> impl Iterator<Item = (ValueId, &'g Node)> {
    values.iter().filter(|&&value| graph.has_value(value)).map(|&value| (value, graph.def(value)))
}

/// A mistake of the stages before.
fn defect(message: impl Into<String>) -> LowerError {
    LowerError::Plan(message.into())
}

/// An index as it stands in an id; a plan of four thousand million parts does not fit in memory.
fn narrow(idx: usize) -> u32 {
    u32::try_from(idx).unwrap_or(u32::MAX)
}

impl StepArg {
    /// Whether it binds several weights that lie in one buffer.
    #[must_use]
    pub const fn is_pack(&self) -> bool {
        !self.offsets_bytes.is_empty()
    }
}
