//! Pipelines and layouts, kept for a device by what they are made of: kernels of equal text in other plans compile nothing.

use crate::buffers::locked;
use crate::counters::Counters;
use crate::error::{RuntimeError, Site};
use crate::gpu::{Caught, Gpu};
use indexmap::IndexMap;
use monopass_lower::plan::{Access, Kernel};
use std::num::NonZeroU64;
use std::sync::Mutex;

/// What a device has compiled so far.
#[derive(Debug, Default)]
pub(crate) struct PipelineCache {
    pipelines: Mutex<IndexMap<PipelineKey, Pipeline>>,
    layouts: Mutex<IndexMap<LayoutKey, Layout>>,
}

/// A compiled kernel; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) group_layout: wgpu::BindGroupLayout,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PipelineKey {
    wgsl: String,
    layout: LayoutKey,
    is_checked: bool,
    has_bounds_checks: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LayoutKey {
    /// Of each storage binding, whether it is read-only.
    are_read_only: Vec<bool>,
    n_dims: usize,
}

#[derive(Clone, Debug)]
struct Layout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// A kernel that is not in the cache.
struct Job {
    kernel_idx: usize,
    key: PipelineKey,
    layout: Layout,
}

/// What a job gave: the pipeline, what it counted, what went wrong.
type Done = (Pipeline, Counters, Caught);

impl PipelineCache {
    /// The pipelines of `kernels`, in order; those that are new are compiled, on several threads on native targets.
    /// `progress` is told how many are done, of how many.
    pub(crate) async fn get(
        &self,
        gpu: &Gpu,
        tally: &mut Counters,
        kernels: &[Kernel],
        all_checks: bool,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Vec<Pipeline>, RuntimeError> {
        let keys: Vec<PipelineKey> = kernels.iter().map(|kernel| PipelineKey::new(kernel, all_checks)).collect();
        let jobs = self.missing(gpu, tally, &keys).await?;
        progress(0, jobs.len());
        for (job, (pipeline, counted, caught)) in jobs.iter().zip(compile_all(gpu, kernels, &jobs, progress)) {
            caught.check().await?;
            *tally += &counted;
            locked(&self.pipelines).insert(job.key.clone(), pipeline);
        }
        let cache = locked(&self.pipelines);
        let found: Vec<Pipeline> = keys.iter().filter_map(|key| cache.get(key).cloned()).collect();
        Ok(found)
    }

    async fn missing(&self, gpu: &Gpu, tally: &mut Counters, keys: &[PipelineKey]) -> Result<Vec<Job>, RuntimeError> {
        let mut jobs: Vec<Job> = Vec::new();
        for (kernel_idx, key) in keys.iter().enumerate() {
            let is_known = locked(&self.pipelines).contains_key(key) || jobs.iter().any(|job| job.key == *key);
            if !is_known {
                let layout = self.layout(gpu, tally, &key.layout).await?;
                jobs.push(Job { kernel_idx, key: key.clone(), layout });
            }
        }
        Ok(jobs)
    }

    async fn layout(&self, gpu: &Gpu, tally: &mut Counters, key: &LayoutKey) -> Result<Layout, RuntimeError> {
        if let Some(layout) = locked(&self.layouts).get(key) {
            return Ok(layout.clone());
        }
        let entries = layout_entries(key);
        let (layout, caught) = gpu.scoped(Site::during("create a bind group layout"), || {
            let group = gpu.bind_group_layout(tally, &entries);
            let pipeline = gpu.pipeline_layout(tally, &group);
            Layout { group, pipeline }
        });
        caught.check().await?;
        locked(&self.layouts).insert(key.clone(), layout.clone());
        Ok(layout)
    }
}

impl PipelineKey {
    fn new(kernel: &Kernel, is_checked: bool) -> Self {
        let are_read_only = kernel.bindings.iter().map(|binding| binding.access == Access::Read).collect();
        let layout = LayoutKey { are_read_only, n_dims: kernel.n_dims };
        Self { wgsl: kernel.wgsl.clone(), layout, is_checked, has_bounds_checks: is_checked || !kernel.bounds_proved }
    }

    /// Bounding of loops is what costs; the bounds checks go only where they were proved needless. Checks of integer
    /// divisions stay, since a divisor may come from the user's data and they cost nothing that could be measured.
    fn runtime_checks(&self) -> wgpu::ShaderRuntimeChecks {
        let all = wgpu::ShaderRuntimeChecks::checked();
        let bounds_checks = self.has_bounds_checks;
        wgpu::ShaderRuntimeChecks { bounds_checks, force_loop_bounding: self.is_checked, ..all }
    }
}

/// Storage bindings in order, then the uniform with the sizes.
fn layout_entries(key: &LayoutKey) -> Vec<wgpu::BindGroupLayoutEntry> {
    let storage = key.are_read_only.iter().map(|&read_only| (wgpu::BufferBindingType::Storage { read_only }, None));
    let uniform = (key.n_dims > 0).then(|| (wgpu::BufferBindingType::Uniform, NonZeroU64::new(4 * key.n_dims as u64)));
    let entry = |(binding, (ty, min_binding_size))| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size },
        count: None,
    };
    (0..).zip(storage.chain(uniform)).map(entry).collect()
}

fn compile(gpu: &Gpu, kernels: &[Kernel], job: &Job) -> Done {
    let kernel = &kernels[job.kernel_idx];
    let label = format!("k{} {}", job.kernel_idx, kernel.label);
    let site = Site { during: "compile a kernel".to_owned(), kernel: Some(label.clone()), cmd: None };
    let mut counted = Counters::default();
    let (raw, caught) =
        gpu.scoped(site, || gpu.pipeline(&mut counted, &label, &kernel.wgsl, job.key.runtime_checks(), &job.layout.pipeline));
    (Pipeline { raw, group_layout: job.layout.group.clone() }, counted, caught)
}

/// Compiles the jobs on as many threads as the machine runs at once.
#[cfg(not(target_arch = "wasm32"))]
fn compile_all(gpu: &Gpu, kernels: &[Kernel], jobs: &[Job], progress: &(dyn Fn(usize, usize) + Sync)) -> Vec<Done> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let (next, n_done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<(usize, Done)>> = Mutex::default();
    let work = || {
        while let Some((idx, job)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|idx| Some((idx, jobs.get(idx)?))) {
            let done = compile(gpu, kernels, job);
            locked(&results).push((idx, done));
            progress(n_done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads {
            // A thread that cannot start only leaves more work to the others.
            drop(std::thread::Builder::new().name("monopass-compile".to_owned()).spawn_scoped(scope, work));
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(idx, _)| *idx);
    results.into_iter().map(|(_, done)| done).collect()
}

/// Compiles the jobs one after another: a browser gives no threads, and compiles in its own.
#[cfg(target_arch = "wasm32")]
fn compile_all(gpu: &Gpu, kernels: &[Kernel], jobs: &[Job], progress: &(dyn Fn(usize, usize) + Sync)) -> Vec<Done> {
    let compile = |(idx, job)| {
        let done = compile(gpu, kernels, job);
        progress(idx + 1, jobs.len());
        done
    };
    jobs.iter().enumerate().map(compile).collect()
}
