//! Targets: the limits and features that code generation depends on, as plain data.

/// Limits and features of a device. Built-in profiles need no device; the runtime makes one from an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Name, such as `nvidia`; adapters print as `device`.
    pub name: String,
    /// Storage buffers a stage (WebGPU default 8).
    pub max_storage_buffers: u32,
    /// Bytes of one storage binding (WebGPU default 128 MiB).
    pub max_binding_bytes: u64,
    /// Bytes of one buffer (WebGPU default 256 MiB).
    pub max_buffer_bytes: u64,
    /// Workgroup memory in bytes (WebGPU default 16 KiB).
    pub max_workgroup_bytes: u64,
    /// Invocations a workgroup (WebGPU default 256).
    pub max_invocations: u32,
    /// Invocations a workgroup in x, y, z (WebGPU default 256, 256, 64).
    pub max_workgroup_size: [u32; 3],
    /// Workgroups a dimension (WebGPU default 65535).
    pub max_workgroups: u32,
    /// Alignment of storage binding offsets (WebGPU default 256).
    pub storage_align_bytes: u64,
    /// Alignment of uniform binding offsets (WebGPU default 256).
    pub uniform_align_bytes: u64,
    /// Iterations after which the driver silently ends a loop nest of one invocation (llvmpipe: 65535).
    pub max_loop_trips: Option<u64>,
    /// `shader-f16`.
    pub has_f16: bool,
    /// Subgroup size, where every subgroup has the same one and subgroup operations exist.
    pub subgroup_size: Option<u32>,
    /// A software device: kernels that keep tiles in registers without staging through workgroup memory run better.
    pub is_cpu: bool,
    /// Some numbers of the profile have no published or measured source.
    pub is_unmeasured: bool,
}

const MIB: u64 = 1 << 20;

impl Target {
    /// The limits every WebGPU device has, and no features.
    #[must_use]
    pub fn webgpu_default() -> Self {
        Self {
            name: "webgpu-default".to_owned(),
            max_storage_buffers: 8,
            max_binding_bytes: 128 * MIB,
            max_buffer_bytes: 256 * MIB,
            max_workgroup_bytes: 16 << 10,
            max_invocations: 256,
            max_workgroup_size: [256, 256, 64],
            max_workgroups: 65535,
            storage_align_bytes: 256,
            uniform_align_bytes: 256,
            max_loop_trips: None,
            has_f16: false,
            subgroup_size: None,
            is_cpu: false,
            is_unmeasured: false,
        }
    }
}
