//! Plans written by hand, and the devices that tests run them on.

#![allow(dead_code, reason = "each test binary uses some of it")]
#![allow(clippy::cast_possible_truncation, reason = "sizes in tests are small")]
#![allow(clippy::print_stderr, reason = "a skipped test must be seen")]

use monopass_ir::{DType, TensorData, TensorType};
use monopass_lower::plan::{
    Access, Arg, BindingSpec, Buffer, BufferId, BufferKind, Cmd, Kernel, KernelId, PackPart, Plan, PlanValueId, Resource, Slot, SlotId,
    StateStorage,
};
use monopass_runtime::{Device, DeviceOptions, RuntimeError, blocking};
use std::error::Error;
use std::sync::OnceLock;

/// Result of a helper.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The machine's adapter, opened once for all tests of a binary. Without one the test skips, loudly; with
/// `MONOPASS_REQUIRE_GPU=1` that is a failure.
pub(crate) fn gpu() -> Option<&'static Device> {
    static DEVICE: OnceLock<Result<Device, RuntimeError>> = OnceLock::new();
    let opened = DEVICE.get_or_init(|| blocking::request(&DeviceOptions { profile: true, ..DeviceOptions::default() }));
    match opened {
        Ok(device) => Some(device),
        Err(error) => {
            eprintln!("SKIPPED, the test needs a graphics adapter: {error}");
            let is_required = std::env::var("MONOPASS_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!is_required, "MONOPASS_REQUIRE_GPU is set, so a test may not skip");
            None
        }
    }
}

/// A type of f32.
pub(crate) fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// A vector of f32.
pub(crate) fn vector(elements: &[f32]) -> Outcome<TensorData> {
    Ok(TensorData::f32([elements.len()], elements)?)
}

/// A plan under construction.
#[derive(Default)]
pub(crate) struct Hand(pub(crate) Plan);

impl Hand {
    /// An empty plan.
    pub(crate) fn new(name: &str) -> Self {
        Self(Plan { name: name.to_owned(), target: "webgpu-default".to_owned(), ..Plan::default() })
    }

    /// An input.
    pub(crate) fn input(&mut self, name: &str, ty: TensorType) -> Resource {
        let size = padded(&ty);
        self.buffer(BufferKind::Input { name: name.to_owned(), ty }, size)
    }

    /// A weight.
    pub(crate) fn param(&mut self, name: &str, ty: TensorType) -> Resource {
        let size = padded(&ty);
        self.buffer(BufferKind::Param { name: name.to_owned(), ty }, size)
    }

    /// An output.
    pub(crate) fn output(&mut self, name: &str, ty: TensorType) -> Resource {
        let size = padded(&ty);
        self.buffer(BufferKind::Output { name: name.to_owned(), ty }, size)
    }

    /// A state; its buffers with the old content and with the new.
    pub(crate) fn state(&mut self, name: &str, ty: TensorType, storage: StateStorage) -> (Resource, Resource) {
        let size = padded(&ty);
        let old = self.buffer(BufferKind::State { name: name.to_owned(), ty, storage }, size);
        let Resource::Buffer(id) = old else { return (old, old) };
        (old, Resource::NewState(id))
    }

    /// Weights in one buffer.
    pub(crate) fn pack(&mut self, parts: &[(&str, TensorType, u64)], size_bytes: u64) -> Resource {
        let part = |(name, ty, offset_bytes): &(&str, TensorType, u64)| PackPart {
            value: PlanValueId(0),
            name: (*name).to_owned(),
            ty: ty.clone(),
            offset_bytes: *offset_bytes,
        };
        self.buffer(BufferKind::Pack { parts: parts.iter().map(part).collect() }, whole_vectors(size_bytes))
    }

    /// A slot.
    pub(crate) fn slot(&mut self, size_bytes: u64) -> Resource {
        self.0.slots.push(Slot { size_bytes: whole_vectors(size_bytes), residents: Vec::new() });
        Resource::Slot(SlotId(self.0.slots.len() as u32 - 1))
    }

    /// A kernel of 64 invocations a workgroup from its body; `i` is the invocation. Bindings are `name: type` with access.
    pub(crate) fn kernel(&mut self, label: &str, bindings: &[(&str, Access)], n_dims: usize, body: &str) -> KernelId {
        let mut wgsl = String::new();
        for (idx, (declaration, access)) in bindings.iter().enumerate() {
            let access = if *access == Access::Read { "read" } else { "read_write" };
            wgsl += &format!("@group(0) @binding({idx}) var<storage, {access}> {declaration};\n");
        }
        if n_dims > 0 {
            let fields: Vec<String> = (0..n_dims).map(|idx| format!("n{idx}: u32")).collect();
            wgsl += &format!("struct Dims {{ {} }}\n@group(0) @binding({}) var<uniform> dims: Dims;\n", fields.join(", "), bindings.len());
        }
        wgsl += "@compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) id: vec3<u32>) {\n    let i = id.x;\n";
        wgsl += body;
        wgsl += "\n}\n";
        let spec = |(declaration, access): &(&str, Access)| BindingSpec {
            name: declaration.split(':').next().unwrap_or_default().to_owned(),
            access: *access,
            in_place: false,
        };
        self.0.kernels.push(Kernel {
            label: label.to_owned(),
            wgsl,
            workgroup_size: [64, 1, 1],
            workgroup_bytes: 0,
            bindings: bindings.iter().map(spec).collect(),
            n_dims,
            bounds_proved: false,
        });
        KernelId(self.0.kernels.len() as u32 - 1)
    }

    /// A command with enough workgroups for `n` invocations.
    pub(crate) fn cmd(&mut self, kernel: KernelId, n: usize, args: &[Resource], dims: &[u32], scope: &str) {
        let accesses: Vec<Access> = self.0.kernels[kernel.0 as usize].bindings.iter().map(|binding| binding.access).collect();
        let arg = |(&resource, &access): (&Resource, &Access)| Arg { resource, access, reads: Vec::new(), writes: None };
        self.0.cmds.push(Cmd {
            kernel,
            workgroups: [n.div_ceil(64) as u32, 1, 1],
            args: args.iter().zip(&accesses).map(arg).collect(),
            dims: dims.to_vec(),
            loop_trips: 1,
            flops: 0,
            bytes_moved: 0,
            scope: scope.to_owned(),
            computes: String::new(),
        });
    }

    fn buffer(&mut self, kind: BufferKind, size_bytes: u64) -> Resource {
        self.0.buffers.push(Buffer { kind, size_bytes, holds: None, receives: None });
        Resource::Buffer(BufferId(self.0.buffers.len() as u32 - 1))
    }
}

fn padded(ty: &TensorType) -> u64 {
    whole_vectors(ty.size_bytes())
}

/// `y = (x + w) * 2` over `n` elements, as two commands with a slot between them.
pub(crate) fn two_cmds(n: usize) -> Plan {
    let mut hand = Hand::new("two_cmds");
    let x = hand.input("x", f32s(&[n]));
    let w = hand.param("w", f32s(&[n]));
    let y = hand.output("y", f32s(&[n]));
    let sum = hand.slot(padded(&f32s(&[n])));
    let reads = [("a: array<f32>", Access::Read), ("b: array<f32>", Access::Read), ("c: array<f32>", Access::ReadWrite)];
    let add = hand.kernel("add", &reads, 1, "    if i < dims.n0 { c[i] = a[i] + b[i]; }");
    let double = hand.kernel("double", &[reads[0], reads[2]], 1, "    if i < dims.n0 { c[i] = a[i] * 2.0; }");
    hand.cmd(add, n, &[x, w, sum], &[n as u32], "block/add");
    hand.cmd(double, n, &[sum, y], &[n as u32], "block/double");
    hand.0
}

/// `count += step` in place and `y = count`, three elements.
pub(crate) fn counter() -> Plan {
    let mut hand = Hand::new("counter");
    let step = hand.input("step", f32s(&[3]));
    let (count, _) = hand.state("count", f32s(&[3]), StateStorage::InPlace);
    let y = hand.output("y", f32s(&[3]));
    let bindings = [("a: array<f32>", Access::Read), ("c: array<f32>", Access::ReadWrite), ("o: array<f32>", Access::ReadWrite)];
    let add = hand.kernel("count", &bindings, 0, "    if i < 3u { let v = c[i] + a[i]; c[i] = v; o[i] = v; }");
    hand.cmd(add, 3, &[step, count, y], &[], "counter");
    hand.0
}

/// A window of four that shifts by one, in two buffers that take turns: `new = old[1..] ++ x`; `y = sum(new)`.
pub(crate) fn shift() -> Plan {
    let mut hand = Hand::new("shift");
    let x = hand.input("x", f32s(&[1]));
    let (old, new) = hand.state("window", f32s(&[4]), StateStorage::Double);
    let y = hand.output("y", f32s(&[1]));
    let bindings = [("x: array<f32>", Access::Read), ("old: array<f32>", Access::Read), ("new_: array<f32>", Access::ReadWrite)];
    let move_on = hand.kernel("shift", &bindings, 0, "    if i < 3u { new_[i] = old[i + 1u]; } else if i == 3u { new_[i] = x[0]; }");
    let bindings = [("w: array<f32>", Access::Read), ("y: array<f32>", Access::ReadWrite)];
    let sum = hand.kernel("sum", &bindings, 0, "    if i == 0u { y[0] = w[0] + w[1] + w[2] + w[3]; }");
    hand.cmd(move_on, 4, &[x, old, new], &[], "conv/shift");
    hand.cmd(sum, 1, &[new, y], &[], "conv/sum");
    hand.0
}

/// Bytes as the planner pads them.
fn whole_vectors(size_bytes: u64) -> u64 {
    size_bytes.max(16).next_multiple_of(16)
}
