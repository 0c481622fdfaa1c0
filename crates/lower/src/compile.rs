//! From a graph to its plan: the whole order of passes, top to bottom, each verified and dumped.

use crate::dump::{DumpSink, NoDump};
use crate::dynamic::DynamicAxes;
use crate::emit::LowerCtx;
use crate::error::LowerError;
use crate::kernels::{choice, elementwise, matmul, prefix, rows, scan, scan_step, scatter};
use crate::memory::{self, MemoryOptions};
use crate::passes::fuse::{self, Cluster, ClusterKind, Forbidden, FuseOptions, Fusion};
use crate::passes::{canonicalize, expand, fold_norm, prepare, recompute, schedule};
use crate::plan::{Plan, Recompute};
use crate::plan_verify::verify_plan;
use crate::step::{Step, Steps};
use crate::target::Target;
use crate::validate::ValidationCache;
use indexmap::IndexSet;
use monopass_ir::{Graph, ValueId, text, verify};

/// Passes by name, in order; each can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Common subexpressions, dead nodes, identities. Off: the graph as built.
    Canonicalize,
    /// Views are read in place. Off: every view is a copy kernel.
    Layout,
    /// Ops share kernels. Off: one kernel an op.
    Fuse,
    /// Kernels in an order that keeps little alive. Off: the builder's order.
    Schedule,
    /// Values whose lives do not meet share a buffer. Off: one buffer a value.
    Memory,
}

impl Pass {
    /// Every pass, in order.
    pub const ALL: [Self; 5] = [Self::Canonicalize, Self::Layout, Self::Fuse, Self::Schedule, Self::Memory];

    /// Name on the command line and in dumps.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Canonicalize => "canonicalize",
            Self::Layout => "layout",
            Self::Fuse => "fuse",
            Self::Schedule => "schedule",
            Self::Memory => "memory",
        }
    }

    /// The pass called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pass| pass.name() == name)
    }
}

/// What is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileOptions {
    /// Passes that are off.
    pub off: IndexSet<Pass>,
    /// Most bytes of slots that a training graph may take: values of its forward pass are kept for the backward pass as far as they fit,
    /// and the others are computed again. Absent: all are kept.
    pub memory_budget: Option<u64>,
}

impl CompileOptions {
    /// All passes on but these.
    #[must_use]
    pub fn without(passes: &[Pass]) -> Self {
        Self { off: passes.iter().copied().collect(), memory_budget: None }
    }

    fn has(&self, pass: Pass) -> bool {
        !self.off.contains(&pass)
    }
}

/// Compiles graphs for one target, remembering which kernels were found valid.
#[derive(Debug)]
pub struct Compiler {
    target: Target,
    cache: ValidationCache,
}

/// Attempts to make clusters fit the target's bindings before the one that does not fit is an error.
const MAX_ATTEMPTS: usize = 64;

impl Compiler {
    /// A compiler for `target`.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self { cache: ValidationCache::new(target.clone()), target }
    }

    /// The target.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// The plan of a graph; texts of every stage go to `sink`.
    ///
    /// # Errors
    /// [`LowerError`]: an invalid graph, a limit of the target, or a defect of ours that a check caught.
    pub fn compile(&mut self, graph: &Graph, options: &CompileOptions, sink: &mut dyn DumpSink) -> Result<Plan, LowerError> {
        let Some(budget) = options.memory_budget else { return self.compile_again(graph, options, &[], sink) };
        let expanded = expand::expand(graph)?.unwrap_or_else(|| graph.clone());
        let segments = recompute::segments(&if options.has(Pass::Canonicalize) { canonicalize::canonicalize(&expanded) } else { expanded });
        let mut plan_of = |n: usize| self.compile_again(graph, options, &segments[..n], &mut NoDump);
        let slots = |plan: &Plan| plan.totals().slots_bytes;
        let (kept, least) = (plan_of(0)?, plan_of(segments.len())?);
        let (kept_bytes, recomputed_bytes) = (slots(&kept), slots(&least));
        if kept_bytes.min(recomputed_bytes) > budget {
            return Err(LowerError::Budget { budget, kept_bytes, recomputed_bytes, n_segments: segments.len() });
        }
        // The fewest segments, the first ones, because they are kept longest.
        let (mut too_few, mut enough, mut plan) = if kept_bytes <= budget { (0, 0, kept) } else { (0, segments.len(), least) };
        while too_few + 1 < enough {
            let middle = usize::midpoint(too_few, enough);
            let tried = plan_of(middle)?;
            if slots(&tried) <= budget {
                (enough, plan) = (middle, tried);
            } else {
                too_few = middle;
            }
        }
        if sink.wants_text() {
            self.compile_again(graph, options, &segments[..enough], sink)?;
        }
        plan.recompute =
            Some(Recompute { segments: segments[..enough].to_vec(), n_segments: segments.len(), kept_bytes, recomputed_bytes });
        Ok(plan)
    }

    /// Compiles with the forward values of some segments computed again.
    fn compile_again(
        &mut self,
        graph: &Graph,
        options: &CompileOptions,
        again: &[String],
        sink: &mut dyn DumpSink,
    ) -> Result<Plan, LowerError> {
        let graph = graph_passes(graph, options, (self.target.max_storage_buffers, again), sink)?;
        let dynamic = DynamicAxes::of(&graph);
        let updated = graph.updates.iter().map(|named| named.name.clone()).collect();
        let ctx = LowerCtx { graph: &graph, target: &self.target, dynamic: &dynamic, updated: &updated };
        let steps = fused_steps(&ctx, options, sink)?;
        for step in &steps.steps {
            self.cache.validate(&step.kernel)?;
        }
        let plan = memory::assign(&graph, steps, &self.target, &MemoryOptions { reuse: options.has(Pass::Memory) })?;
        verify_plan(&plan, &self.target)
            .map_err(|errors| LowerError::Plan(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
        if sink.wants_text() {
            sink.dump("plan.txt", &plan.to_string());
            for (i, kernel) in plan.kernels.iter().enumerate() {
                sink.dump(&format!("k{i}.wgsl"), &kernel.wgsl);
            }
        }
        Ok(plan)
    }
}

/// The plan of a graph for a target, with all passes on.
///
/// # Errors
/// Those of [`Compiler::compile`].
pub fn compile(graph: &Graph, target: &Target) -> Result<Plan, LowerError> {
    Compiler::new(target.clone()).compile(graph, &CompileOptions::default(), &mut NoDump)
}

/// The graph after the graph passes, up to and with `until`; every pass keeps what the graph means.
///
/// # Errors
/// [`LowerError::Verify`] if the graph is not valid.
pub fn optimize(graph: &Graph, options: &CompileOptions, until: Option<Pass>) -> Result<Graph, LowerError> {
    let mut options = options.clone();
    if let Some(until) = until {
        options.off.extend(Pass::ALL.into_iter().filter(|&pass| pass > until));
    }
    graph_passes(graph, &options, (u32::MAX, &[]), &mut NoDump)
}

fn graph_passes(
    graph: &Graph,
    options: &CompileOptions,
    (max_buffers, again): (u32, &[String]),
    sink: &mut dyn DumpSink,
) -> Result<Graph, LowerError> {
    verify::verify(graph).map_err(|errors| LowerError::Verify { pass: "input", errors })?;
    let mut stage = Stage { sink, number: 0, last: String::new() };
    stage.dump("input", graph)?;
    let expanded = expand::expand(graph)?;
    if let Some(expanded) = &expanded {
        stage.dump("expand", expanded)?;
    }
    let graph = expanded.as_ref().unwrap_or(graph);
    let graph = if options.has(Pass::Canonicalize) { canonicalize::canonicalize(graph) } else { graph.clone() };
    stage.dump("canonicalize", &graph)?;
    let graph = if again.is_empty() { graph } else { recompute::recompute(&graph, again) };
    stage.dump("recompute", &graph)?;
    let graph = prepare::prepare(&graph, max_buffers);
    stage.dump("prepare", &graph)?;
    let graph = if options.has(Pass::Fuse) { fold_norm::fold_norm(&graph) } else { graph };
    stage.dump("fuse", &graph)?;
    let graph = monopass_ir::compact::compact(&graph);
    Ok(graph)
}

/// Verifies and dumps after each pass.
struct Stage<'s> {
    sink: &'s mut dyn DumpSink,
    number: usize,
    last: String,
}

impl Stage<'_> {
    fn dump(&mut self, pass: &'static str, graph: &Graph) -> Result<(), LowerError> {
        verify::verify(graph).map_err(|errors| LowerError::Verify { pass, errors })?;
        if self.sink.wants_text() {
            let text = text::print(&monopass_ir::compact::compact(graph));
            if text == self.last {
                tracing::debug!(pass, "unchanged");
            } else {
                self.sink.dump(&format!("{:02}-{pass}.ir", self.number), &text);
                self.last = text;
            }
        }
        self.number += 1;
        Ok(())
    }
}

/// Fuses, lowers, and fuses less where a kernel binds more than the target allows.
fn fused_steps(ctx: &LowerCtx<'_>, options: &CompileOptions, sink: &mut dyn DumpSink) -> Result<Steps, LowerError> {
    let fuse_options = FuseOptions { fuse: options.has(Pass::Fuse), views: options.has(Pass::Layout) };
    let mut forbidden = Forbidden::default();
    for attempt in 0.. {
        let mut fusion = fuse::fuse(ctx, fuse_options, &forbidden);
        if options.has(Pass::Schedule) {
            schedule::schedule(ctx.graph, &mut fusion);
        }
        let mut steps = Steps { not_fused: fusion.not_fused.clone(), ..Steps::default() };
        let mut fits = true;
        for cluster in &fusion.clusters {
            let lowered = lower_cluster(ctx, cluster, &fusion, &mut steps)?;
            let bound = lowered.iter().map(|step| step.args.len()).max().unwrap_or(0);
            if bound > ctx.target.max_storage_buffers as usize && attempt < MAX_ATTEMPTS {
                fits &= !fuse::shrink(ctx, cluster, &fusion, bound, &mut forbidden);
            }
            steps.steps.extend(lowered);
        }
        if fits {
            if sink.wants_text() {
                sink.dump("clusters.txt", &fuse::describe(ctx.graph, &fusion));
            }
            return Ok(steps);
        }
    }
    Ok(Steps::default())
}

fn lower_cluster(ctx: &LowerCtx<'_>, cluster: &Cluster, fusion: &Fusion, steps: &mut Steps) -> Result<Vec<Step>, LowerError> {
    let inline = |value: ValueId| -> bool { cluster.computes.contains(&value) || !fusion.stored.contains(&value) };
    let temps = &mut steps.temps;
    Ok(match &cluster.kind {
        ClusterKind::Elementwise(bodies) => vec![elementwise::lower(ctx, bodies, &inline, &cluster.in_place)],
        ClusterKind::Rows(item) => rows::lower(ctx, item, &inline, temps),
        ClusterKind::Cumsum(item) => vec![prefix::lower_cumsum(ctx, item, &inline)],
        ClusterKind::Product(item) => matmul::lower(ctx, item, &inline, temps),
        ClusterKind::Choice(item) => choice::lower(ctx, item, &inline),
        ClusterKind::Scatter(item) => scatter::lower(ctx, item, &inline, temps),
        ClusterKind::Scan(item) => {
            scan::check_limits(ctx, item)?;
            if scan::is_step(ctx.graph, item.y) {
                scan_step::lower(ctx, item, &inline, temps)
            } else {
                scan::lower(ctx, item, &inline, temps)
            }
        }
    })
}
