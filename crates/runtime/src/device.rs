//! Choosing an adapter, and what the compiler must know of it.

use crate::counters::{Counters, Memory};
use crate::error::RuntimeError;
use crate::gpu::Gpu;
use crate::pipelines::PipelineCache;
use monopass_lower::Target;
use std::sync::Arc;

/// Which adapter to take and how to run on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Run-time checks in kernels.
    pub checks: Checks,
    /// Which of several adapters to prefer.
    pub power: Power,
    /// Only adapters whose name or backend (`vulkan`, `metal`, `dx12`) contains this, in any case.
    pub adapter: Option<String>,
    /// Software adapters such as lavapipe are accepted, after all others.
    pub allow_cpu: bool,
    /// Measure the GPU time of every run, where the adapter can.
    pub profile: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { checks: Checks::Minimal, power: Power::High, adapter: None, allow_cpu: true, profile: false }
    }
}

/// Checks that wgpu builds into kernels.
///
/// A plan is trusted: the compiler makes only counted loops and says which kernels stay in bounds. For a plan that was
/// written by hand its author vouches, or takes [`Checks::All`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// Bounds checks except where the compiler proved them needless; loops are not bounded.
    #[default]
    Minimal,
    /// All.
    All,
}

/// Which of several adapters to prefer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Power {
    /// Discrete before integrated.
    #[default]
    High,
    /// Integrated before discrete.
    Low,
}

/// What is known of an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterReport {
    /// Its name.
    pub name: String,
    /// `vulkan`, `metal`, `dx12`, `webgpu` or `noop`.
    pub backend: String,
    /// `discrete gpu`, `integrated gpu`, `virtual gpu`, `software` or `other`.
    pub device_type: &'static str,
    /// Driver and its version; may be empty.
    pub driver: String,
    /// The features among those we know how to use: `shader-f16`, `subgroup`, `timestamp-query`.
    pub features: Vec<&'static str>,
    /// Smallest and largest subgroup.
    pub subgroup_sizes: [u32; 2],
    /// Cooperative matrix shapes that the driver lists, such as `16x16x16 F16 -> F32`.
    pub cooperative: Vec<String>,
    /// Its limits and features as the compiler sees them.
    pub target: Target,
}

/// An open device; cheap to clone.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<Shared>);

/// What the objects of a device share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) pipelines: PipelineCache,
    pub(crate) checks: Checks,
    pub(crate) has_stamps: bool,
    report: AdapterReport,
    reason: String,
}

impl Device {
    /// Opens the best adapter that fits the options.
    ///
    /// # Errors
    /// [`RuntimeError::NoAdapter`] if none fits, [`RuntimeError::DeviceRefused`] if the best one cannot be opened.
    pub async fn request(options: &DeviceOptions) -> Result<Self, RuntimeError> {
        let (adapter, reason) = choose(options).await?;
        let features = adapter.features() & wanted_features(options.profile);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("monopass"),
            required_features: features,
            required_limits: wanted_limits(&adapter.limits()),
            memory_hints: wgpu::MemoryHints::Performance,
            ..wgpu::DeviceDescriptor::default()
        };
        let report = report(&adapter);
        tracing::debug!(adapter = %report.name, backend = %report.backend, "opening the device");
        let (device, queue) = adapter
            .request_device(&descriptor)
            .await
            .map_err(|error| RuntimeError::DeviceRefused { adapter: report.name.clone(), reason: error.to_string() })?;
        Ok(Self::open(device, queue, report, reason, options))
    }

    /// A device without a driver: it checks shaders, bindings and commands, copies buffers, and computes nothing. For tests.
    ///
    /// Its limits are those of every WebGPU device.
    #[cfg(not(target_arch = "wasm32"))]
    #[must_use]
    pub fn noop() -> Self {
        let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor { label: Some("monopass"), ..wgpu::DeviceDescriptor::default() });
        Self::open_noop(device, queue, &Target::webgpu_default())
    }

    /// A device without a driver, with the limits and features of `target`: plans for any profile can be checked on it.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceRefused`] if wgpu does not know such limits.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn noop_for(target: &Target) -> Result<Self, RuntimeError> {
        let refused = |reason: String| RuntimeError::DeviceRefused { adapter: format!("noop for {}", target.name), reason };
        let descriptor = wgpu::InstanceDescriptor {
            backends: wgpu::Backends::NOOP,
            backend_options: wgpu::BackendOptions { noop: wgpu::NoopBackendOptions::enabled(), ..wgpu::BackendOptions::default() },
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        };
        let instance = wgpu::Instance::new(descriptor);
        let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()));
        let adapter = adapter.map_err(|error| refused(error.to_string()))?;
        let mut features = wgpu::Features::empty();
        features.set(wgpu::Features::SHADER_F16, target.has_f16);
        features.set(wgpu::Features::SUBGROUP, target.subgroup_size.is_some());
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("monopass"),
            required_features: features,
            required_limits: limits_of(target).or_worse_values_from(&adapter.limits()),
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| refused(error.to_string()))?;
        Ok(Self::open_noop(device, queue, target))
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn open_noop(device: wgpu::Device, queue: wgpu::Queue, target: &Target) -> Self {
        let report = AdapterReport {
            name: "noop".to_owned(),
            backend: "noop".to_owned(),
            device_type: "other",
            driver: String::new(),
            features: used_features(device.features()),
            subgroup_sizes: [target.subgroup_size.unwrap_or(0); 2],
            cooperative: Vec::new(),
            target: target.clone(),
        };
        Self::open(device, queue, report, "the program asked for a device that computes nothing".to_owned(), &DeviceOptions::default())
    }

    fn open(device: wgpu::Device, queue: wgpu::Queue, report: AdapterReport, reason: String, options: &DeviceOptions) -> Self {
        let gpu = Gpu::new(device, queue);
        let has_stamps = options.profile && gpu.features().contains(wgpu::Features::TIMESTAMP_QUERY);
        let shared = Shared { gpu, pipelines: PipelineCache::default(), checks: options.checks, has_stamps, report, reason };
        Self(Arc::new(shared))
    }

    /// Limits and features, for the compiler.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.0.report.target
    }

    /// The adapter.
    #[must_use]
    pub fn info(&self) -> &AdapterReport {
        &self.0.report
    }

    /// Why this adapter was chosen.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Whether runs report their GPU time.
    #[must_use]
    pub fn has_timestamps(&self) -> bool {
        self.0.has_stamps
    }

    /// Everything recorded and created on this device so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.gpu.totals()
    }

    /// Device memory in use and its peak.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.0.gpu.memory()
    }

    /// Frees everything on the device at once; whatever uses it afterwards gets [`RuntimeError::DeviceLost`].
    pub fn destroy(&self) {
        self.0.gpu.destroy();
    }

    pub(crate) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.0.gpu, gpu)
    }
}

/// All adapters that could be opened, software last.
pub async fn adapters() -> Vec<AdapterReport> {
    let mut found: Vec<AdapterReport> = enumerate().await.iter().map(report).collect();
    found.sort_by_key(|adapter| rank(adapter.device_type, Power::High));
    found
}

async fn choose(options: &DeviceOptions) -> Result<(wgpu::Adapter, String), RuntimeError> {
    let all = enumerate().await;
    let seen: Vec<String> = all.iter().map(|adapter| one_line(&report(adapter))).collect();
    let mut fitting: Vec<(wgpu::Adapter, AdapterReport)> =
        all.into_iter().map(|adapter| (report(&adapter), adapter)).map(|(r, a)| (a, r)).collect();
    fitting.retain(|(_, report)| fits(report, options));
    // The sort is stable, so of equals the first that the system names wins.
    fitting.sort_by_key(|(_, report)| rank(report.device_type, options.power));
    let n_fitting = fitting.len();
    let Some((adapter, report)) = fitting.into_iter().next() else { return Err(no_adapter(seen, options).await) };
    Ok((
        adapter,
        format!("{}: first of {n_fitting} that fit, of {} found; {:?} power preferred", one_line(&report), seen.len(), options.power),
    ))
}

/// Without the GL backend, which is not compliant and prints messages, and without environment variables.
fn instance() -> wgpu::Instance {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12 | wgpu::Backends::BROWSER_WEBGPU;
    let flags = wgpu::InstanceFlags::empty();
    wgpu::Instance::new(wgpu::InstanceDescriptor { backends, flags, ..wgpu::InstanceDescriptor::new_without_display_handle() })
}

#[cfg(not(target_arch = "wasm32"))]
async fn enumerate() -> Vec<wgpu::Adapter> {
    instance().enumerate_adapters(wgpu::Backends::all()).await
}

/// A browser shows one adapter for each preference.
#[cfg(target_arch = "wasm32")]
async fn enumerate() -> Vec<wgpu::Adapter> {
    let power_preference = wgpu::PowerPreference::HighPerformance;
    let options = wgpu::RequestAdapterOptions { power_preference, ..wgpu::RequestAdapterOptions::default() };
    instance().request_adapter(&options).await.into_iter().collect()
}

async fn no_adapter(seen: Vec<String>, options: &DeviceOptions) -> RuntimeError {
    if !seen.is_empty() {
        let filter = options.adapter.as_ref().map_or_else(String::new, |name| format!(" named like `{name}`"));
        let software = if options.allow_cpu { "" } else { " that is not software" };
        let reason = format!("none{filter}{software} among those found");
        return RuntimeError::NoAdapter { reason, seen, help: "widen the filter, or allow software adapters".to_owned() };
    }
    let asked = instance().request_adapter(&wgpu::RequestAdapterOptions::default()).await;
    let reason = asked.err().map_or_else(|| "no backend shows one".to_owned(), |error| error.to_string());
    let help = "install the driver of your graphics card; without one, a software driver will do (Debian and Ubuntu: \
                `apt-get install mesa-vulkan-drivers`), or use the CPU executor";
    RuntimeError::NoAdapter { reason, seen, help: help.to_owned() }
}

fn fits(report: &AdapterReport, options: &DeviceOptions) -> bool {
    let is_named = options.adapter.as_ref().is_none_or(|name| {
        let name = name.to_lowercase();
        report.name.to_lowercase().contains(&name) || report.backend.contains(&name)
    });
    is_named && (options.allow_cpu || !report.target.is_cpu)
}

fn rank(device_type: &str, power: Power) -> usize {
    let order = match power {
        Power::High => ["discrete gpu", "integrated gpu", "virtual gpu", "other"],
        Power::Low => ["integrated gpu", "discrete gpu", "virtual gpu", "other"],
    };
    order.iter().position(|&ty| ty == device_type).unwrap_or(order.len())
}

fn one_line(report: &AdapterReport) -> String {
    format!("{} ({}, {})", report.name, report.backend, report.device_type)
}

fn report(adapter: &wgpu::Adapter) -> AdapterReport {
    let (info, features) = (adapter.get_info(), adapter.features());
    let device_type = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => "discrete gpu",
        wgpu::DeviceType::IntegratedGpu => "integrated gpu",
        wgpu::DeviceType::VirtualGpu => "virtual gpu",
        wgpu::DeviceType::Cpu => "software",
        wgpu::DeviceType::Other => "other",
    };
    let shapes = adapter.cooperative_matrix_properties();
    let cooperative = shapes.iter().map(|p| format!("{}x{}x{} {:?} -> {:?}", p.m_size, p.n_size, p.k_size, p.ab_type, p.cr_type));
    AdapterReport {
        device_type,
        backend: info.backend.to_string().to_lowercase(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        features: used_features(features),
        subgroup_sizes: [info.subgroup_min_size, info.subgroup_max_size],
        cooperative: cooperative.collect(),
        target: target_of(&info, features, &wanted_limits(&adapter.limits())),
        name: info.name,
    }
}

fn used_features(features: wgpu::Features) -> Vec<&'static str> {
    let known = [
        (wgpu::Features::SHADER_F16, "shader-f16"),
        (wgpu::Features::SUBGROUP, "subgroup"),
        (wgpu::Features::TIMESTAMP_QUERY, "timestamp-query"),
    ];
    known.into_iter().filter(|(feature, _)| features.contains(*feature)).map(|(_, name)| name).collect()
}

fn wanted_features(profile: bool) -> wgpu::Features {
    let mut features = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP;
    features.set(wgpu::Features::TIMESTAMP_QUERY, profile);
    features
}

/// WebGPU's defaults, or what the adapter has where it has less; and all that it has of what plans use.
fn wanted_limits(has: &wgpu::Limits) -> wgpu::Limits {
    wgpu::Limits {
        max_storage_buffers_per_shader_stage: has.max_storage_buffers_per_shader_stage,
        max_storage_buffer_binding_size: has.max_storage_buffer_binding_size,
        max_buffer_size: has.max_buffer_size,
        max_bindings_per_bind_group: has.max_bindings_per_bind_group,
        max_buffers_and_acceleration_structures_per_shader_stage: has.max_buffers_and_acceleration_structures_per_shader_stage,
        max_compute_workgroup_storage_size: has.max_compute_workgroup_storage_size,
        max_compute_invocations_per_workgroup: has.max_compute_invocations_per_workgroup,
        max_compute_workgroup_size_x: has.max_compute_workgroup_size_x,
        max_compute_workgroup_size_y: has.max_compute_workgroup_size_y,
        max_compute_workgroup_size_z: has.max_compute_workgroup_size_z,
        max_compute_workgroups_per_dimension: has.max_compute_workgroups_per_dimension,
        min_storage_buffer_offset_alignment: has.min_storage_buffer_offset_alignment,
        min_uniform_buffer_offset_alignment: has.min_uniform_buffer_offset_alignment,
        ..wgpu::Limits::default().or_worse_values_from(has)
    }
}

fn target_of(info: &wgpu::AdapterInfo, features: wgpu::Features, limits: &wgpu::Limits) -> Target {
    let names = format!("{} {}", info.name, info.driver).to_lowercase();
    let is_llvmpipe = names.contains("llvmpipe") || names.contains("lavapipe");
    let has_fixed_subgroups = features.contains(wgpu::Features::SUBGROUP) && info.subgroup_min_size == info.subgroup_max_size;
    Target {
        name: "device".to_owned(),
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        max_buffer_bytes: limits.max_buffer_size,
        max_workgroup_bytes: limits.max_compute_workgroup_storage_size.into(),
        max_invocations: limits.max_compute_invocations_per_workgroup,
        max_workgroup_size: [limits.max_compute_workgroup_size_x, limits.max_compute_workgroup_size_y, limits.max_compute_workgroup_size_z],
        max_workgroups: limits.max_compute_workgroups_per_dimension,
        storage_align_bytes: limits.min_storage_buffer_offset_alignment.into(),
        uniform_align_bytes: limits.min_uniform_buffer_offset_alignment.into(),
        // llvmpipe ends a loop nest of one invocation after that many iterations, and says nothing.
        max_loop_trips: is_llvmpipe.then_some(65535),
        has_f16: features.contains(wgpu::Features::SHADER_F16),
        subgroup_size: has_fixed_subgroups.then_some(info.subgroup_min_size),
        is_cpu: info.device_type == wgpu::DeviceType::Cpu,
        is_unmeasured: false,
    }
}

/// The inverse of [`target_of`], for devices without a driver.
#[cfg(not(target_arch = "wasm32"))]
fn limits_of(target: &Target) -> wgpu::Limits {
    let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let defaults = wgpu::Limits::default();
    wgpu::Limits {
        max_storage_buffers_per_shader_stage: target.max_storage_buffers,
        max_buffers_and_acceleration_structures_per_shader_stage: defaults
            .max_buffers_and_acceleration_structures_per_shader_stage
            .max(target.max_storage_buffers.saturating_add(1)),
        max_storage_buffer_binding_size: target.max_binding_bytes,
        max_buffer_size: target.max_buffer_bytes,
        max_compute_workgroup_storage_size: word(target.max_workgroup_bytes),
        max_compute_invocations_per_workgroup: target.max_invocations,
        max_compute_workgroup_size_x: target.max_workgroup_size[0],
        max_compute_workgroup_size_y: target.max_workgroup_size[1],
        max_compute_workgroup_size_z: target.max_workgroup_size[2],
        max_compute_workgroups_per_dimension: target.max_workgroups,
        min_storage_buffer_offset_alignment: word(target.storage_align_bytes),
        min_uniform_buffer_offset_alignment: word(target.uniform_align_bytes),
        ..defaults
    }
}
