//! Targets: the limits and features that code generation depends on, as plain data.

use std::fmt;

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

/// Where a number of a profile comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The default limit of the WebGPU specification, which every device has.
    Spec,
    /// Read from a device or found by running on it; the text says which.
    Measured(&'static str),
    /// Published by who makes the device or driver; the text says where.
    Published(&'static str),
    /// No source: the WebGPU default stands in.
    Unsourced,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec => f.write_str("WebGPU default"),
            Self::Measured(on) => write!(f, "measured on {on}"),
            Self::Published(place) => f.write_str(place),
            Self::Unsourced => f.write_str("unmeasured, WebGPU default"),
        }
    }
}

const MIB: u64 = 1 << 20;
const SPEC: Source = Source::Spec;
const NONE: Source = Source::Unsourced;
const LVP: Source = Source::Measured("lavapipe of Mesa 22.3.6");
const MESA: Source = Source::Published("Mesa 22.3, compute limits of llvmpipe");
const H200: Source = Source::Measured("NVIDIA H200, driver 580.159.04, Vulkan");
const CUDA: Source = Source::Published("CUDA C++ programming guide, table of compute capabilities");
const REPORT: Source = Source::Published("Vulkan device reports of NVIDIA drivers");
const METAL: Source = Source::Published("Apple, Metal feature set tables, Apple7 and later");

/// A row of the profile table: each number with its source.
struct Profile {
    name: &'static str,
    storage_buffers: (u32, Source),
    binding_bytes: (u64, Source),
    buffer_bytes: (u64, Source),
    workgroup_bytes: (u64, Source),
    invocations: (u32, Source),
    workgroup_size: ([u32; 3], Source),
    workgroups: (u32, Source),
    storage_align_bytes: (u64, Source),
    uniform_align_bytes: (u64, Source),
    loop_trips: (Option<u64>, Source),
    has_f16: (bool, Source),
    subgroup_size: (Option<u32>, Source),
    is_cpu: bool,
}

/// What every WebGPU device has; rows of the table replace what they have a source for.
const fn defaults(name: &'static str, source: Source) -> Profile {
    Profile {
        name,
        storage_buffers: (8, source),
        binding_bytes: (128 * MIB, source),
        buffer_bytes: (256 * MIB, source),
        workgroup_bytes: (16 << 10, source),
        invocations: (256, source),
        workgroup_size: ([256, 256, 64], source),
        workgroups: (65535, source),
        storage_align_bytes: (256, source),
        uniform_align_bytes: (256, source),
        loop_trips: (None, source),
        has_f16: (false, source),
        subgroup_size: (None, source),
        is_cpu: false,
    }
}

/// The profile table.
const TABLE: [Profile; 6] = [
    defaults("webgpu-default", SPEC),
    // A page that asks for no limits and features gets the defaults, whatever the device has.
    defaults("chrome", SPEC),
    Profile {
        storage_buffers: (32, LVP),
        binding_bytes: (128 * MIB, LVP),
        buffer_bytes: (2048 * MIB, LVP),
        workgroup_bytes: (32 << 10, LVP),
        invocations: (1024, LVP),
        workgroup_size: ([1024, 1024, 1024], MESA),
        workgroups: (65535, LVP),
        storage_align_bytes: (32, LVP),
        uniform_align_bytes: (32, LVP),
        loop_trips: (Some(65535), LVP),
        has_f16: (true, LVP),
        // The subgroup is the host's vector: 8 on one machine, 4 on another.
        subgroup_size: (None, LVP),
        is_cpu: true,
        ..defaults("lavapipe", NONE)
    },
    Profile {
        // The driver reports over a million storage buffers; what lavapipe has is more than any kernel binds.
        storage_buffers: (32, REPORT),
        binding_bytes: (2_147_483_644, H200),
        buffer_bytes: (4_292_870_144, H200),
        workgroup_bytes: (48 << 10, H200),
        invocations: (1024, H200),
        workgroup_size: ([1024, 1024, 64], CUDA),
        // The device has more in x, but wgpu reports one number for all dimensions.
        workgroups: (65535, CUDA),
        storage_align_bytes: (32, H200),
        uniform_align_bytes: (64, H200),
        loop_trips: (None, H200),
        has_f16: (true, H200),
        subgroup_size: (Some(32), H200),
        ..defaults("nvidia", NONE)
    },
    Profile {
        workgroup_bytes: (32 << 10, METAL),
        invocations: (1024, METAL),
        workgroup_size: ([1024, 1024, 1024], METAL),
        ..defaults("apple", NONE)
    },
    defaults("adreno", NONE),
];

impl Profile {
    /// Each number as text, with its source.
    fn fields(&self) -> [(&'static str, String, Source); 12] {
        let number = |number: Option<u64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
        [
            ("max_storage_buffers", self.storage_buffers.0.to_string(), self.storage_buffers.1),
            ("max_binding_bytes", self.binding_bytes.0.to_string(), self.binding_bytes.1),
            ("max_buffer_bytes", self.buffer_bytes.0.to_string(), self.buffer_bytes.1),
            ("max_workgroup_bytes", self.workgroup_bytes.0.to_string(), self.workgroup_bytes.1),
            ("max_invocations", self.invocations.0.to_string(), self.invocations.1),
            ("max_workgroup_size", format!("{:?}", self.workgroup_size.0), self.workgroup_size.1),
            ("max_workgroups", self.workgroups.0.to_string(), self.workgroups.1),
            ("storage_align_bytes", self.storage_align_bytes.0.to_string(), self.storage_align_bytes.1),
            ("uniform_align_bytes", self.uniform_align_bytes.0.to_string(), self.uniform_align_bytes.1),
            ("max_loop_trips", number(self.loop_trips.0), self.loop_trips.1),
            ("has_f16", self.has_f16.0.to_string(), self.has_f16.1),
            ("subgroup_size", number(self.subgroup_size.0.map(u64::from)), self.subgroup_size.1),
        ]
    }

    fn target(&self) -> Target {
        Target {
            name: self.name.to_owned(),
            max_storage_buffers: self.storage_buffers.0,
            max_binding_bytes: self.binding_bytes.0,
            max_buffer_bytes: self.buffer_bytes.0,
            max_workgroup_bytes: self.workgroup_bytes.0,
            max_invocations: self.invocations.0,
            max_workgroup_size: self.workgroup_size.0,
            max_workgroups: self.workgroups.0,
            storage_align_bytes: self.storage_align_bytes.0,
            uniform_align_bytes: self.uniform_align_bytes.0,
            max_loop_trips: self.loop_trips.0,
            has_f16: self.has_f16.0,
            subgroup_size: self.subgroup_size.0,
            is_cpu: self.is_cpu,
            is_unmeasured: self.fields().iter().any(|(_, _, source)| *source == NONE),
        }
    }
}

impl Target {
    /// Names of the built-in profiles, in the order of the table.
    pub const PROFILES: [&'static str; 6] = ["webgpu-default", "chrome", "lavapipe", "nvidia", "apple", "adreno"];

    /// The built-in profile called `name`; none if there is none, see [`Target::PROFILES`].
    #[must_use]
    pub fn profile(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(Profile::target)
    }

    /// Each number of the built-in profile called `name`, as field name, value and source.
    #[must_use]
    pub fn profile_sources(name: &str) -> Option<Vec<(&'static str, String, Source)>> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.fields().to_vec())
    }

    /// The limits every WebGPU device has, and no features.
    #[must_use]
    pub fn webgpu_default() -> Self {
        TABLE[0].target()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_table() {
        assert_eq!(Target::PROFILES.to_vec(), TABLE.iter().map(|row| row.name).collect::<Vec<_>>());
        assert_eq!(Target::profile("webgpu-default"), Some(Target::webgpu_default()));
        assert_eq!(Target::profile("voodoo"), None);
    }

    #[test]
    fn only_profiles_with_a_number_of_unknown_source_are_unmeasured() {
        let unmeasured: Vec<&str> =
            Target::PROFILES.into_iter().filter(|name| Target::profile(name).is_some_and(|target| target.is_unmeasured)).collect();
        assert_eq!(unmeasured, ["apple", "adreno"]);
    }

    #[test]
    fn no_profile_is_below_the_webgpu_defaults() {
        let least = Target::webgpu_default();
        for target in Target::PROFILES.into_iter().filter_map(Target::profile) {
            assert!(target.max_storage_buffers >= least.max_storage_buffers, "{}", target.name);
            assert!(target.max_binding_bytes >= least.max_binding_bytes, "{}", target.name);
            assert!(target.max_buffer_bytes >= target.max_binding_bytes, "{}", target.name);
            assert!(target.max_workgroup_bytes >= least.max_workgroup_bytes, "{}", target.name);
            assert!(target.max_invocations >= least.max_invocations, "{}", target.name);
            assert!(target.max_workgroups >= least.max_workgroups, "{}", target.name);
        }
    }

    #[test]
    fn an_unsourced_number_is_the_webgpu_default() {
        let least = Target::profile_sources("webgpu-default").unwrap();
        for name in Target::PROFILES {
            for ((field, value, source), (_, default, _)) in Target::profile_sources(name).unwrap().into_iter().zip(&least) {
                assert!(source != Source::Unsourced || value == *default, "{name}: {field}");
            }
        }
    }
}
