//! Kernels that each check accepts and refuses.

use super::*;
use crate::plan::BindingSpec;

/// A kernel of two storage buffers and two sizes around `body`.
fn kernel(globals: &str, body: &str) -> Kernel {
    Kernel {
        label: "test {}".to_owned(),
        wgsl: format!(
            "struct Dims {{ n: u32, m: u32 }}
            @group(0) @binding(0) var<storage, read> x: array<f32>;
            @group(0) @binding(1) var<storage, read_write> y: array<f32>;
            @group(0) @binding(2) var<uniform> dims: Dims;
            {globals}
            @compute @workgroup_size(64, 1, 1)
            fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{ {body} }}"
        ),
        workgroup_size: [64, 1, 1],
        workgroup_bytes: 0,
        bindings: vec![
            BindingSpec { name: "x".to_owned(), access: Access::Read, in_place: false },
            BindingSpec { name: "y".to_owned(), access: Access::ReadWrite, in_place: true },
        ],
        n_dims: 2,
        bounds_proved: false,
    }
}

fn message(kernel: &Kernel, target: &Target) -> String {
    validate(kernel, target).err().map_or_else(String::new, |error| error.to_string())
}

#[track_caller]
fn check(kernel: &Kernel, expected: &str) {
    let message = message(kernel, &Target::webgpu_default());
    assert!(message.contains(expected) && message.is_empty() == expected.is_empty(), "{message}\nexpected: {expected}");
}

const SUM: &str = "y[lid] = x[lid];";

#[test]
fn a_kernel_that_is_what_it_declares_passes() {
    for name in Target::PROFILES {
        assert_eq!(message(&kernel("", SUM), &Target::profile(name).unwrap()), "");
    }
}

#[test]
fn naga_reports_are_drawn() {
    check(&kernel("", "y[lid] = 1;;  z = 2.0;"), "no definition in scope for identifier: `z`");
    check(&kernel("", "y[lid] = vec2<f32>(0.0, 1.0);"), "is not valid WGSL");
}

#[test]
fn the_interface_must_be_as_declared() {
    let declared = kernel("", SUM);
    let with = |change: &dyn Fn(&mut Kernel)| {
        let mut changed = declared.clone();
        change(&mut changed);
        changed
    };
    check(&with(&|k| k.workgroup_size = [32, 1, 1]), "@workgroup_size is [64, 1, 1]; the kernel declares [32, 1, 1]");
    check(&with(&|k| k.bindings.swap(0, 1)), "binding 0 is `x`; the kernel declares `y`");
    check(&with(&|k| k.bindings[1].access = Access::Read), "the kernel declares Read");
    check(&with(&|k| k.bindings[0].in_place = true), "in place but read-only");
    check(&with(&|k| k.n_dims = 3), "a uniform struct of 3 u32");
    check(&with(&|k| k.n_dims = 0), "the module has 3 bindings; the kernel declares 2");
    check(&with(&|k| drop(k.bindings.pop())), "the module has 3 bindings; the kernel declares 2");
    check(&with(&|k| k.wgsl = k.wgsl.replace("fn main", "fn run")), "the entry point is `run`");
    check(&with(&|k| k.wgsl = k.wgsl.replace("@group(0) @binding(1)", "@group(1) @binding(1)")), "in group 1");
    check(&with(&|k| k.wgsl = k.wgsl.replace("@binding(2)", "@binding(7)")), "the last binding, a uniform, is missing");
    check(&with(&|k| k.wgsl = k.wgsl.replace("m: u32", "m: f32")), "a uniform struct of 2 u32");
}

#[test]
fn workgroup_memory_is_summed_and_limited() {
    let mut shared =
        kernel("var<workgroup> a: array<f32, 100>; var<workgroup> b: array<vec4<f32>, 10>;", "a[lid] = x[lid]; b[0].x = a[0];");
    check(&shared, "var<workgroup> takes 560 bytes; the kernel declares 0");
    shared.workgroup_bytes = 560;
    check(&shared, "");
    let small = Target { max_workgroup_bytes: 559, ..Target::webgpu_default() };
    assert!(message(&shared, &small).contains("a kernel with at most 559 bytes of workgroup memory would fit"));
}

#[test]
fn limits_of_the_target_hold() {
    let target = Target::webgpu_default();
    let ok = kernel("", SUM);
    let two = |target: Target| message(&ok, &target);
    assert!(two(Target { max_storage_buffers: 1, ..target.clone() }).contains("max_storage_buffers = 1"));
    assert!(two(Target { max_invocations: 63, ..target.clone() }).contains("max_invocations = 63"));
    assert!(two(Target { max_workgroup_size: [63, 64, 64], ..target.clone() }).contains("64 invocations in x"));
    assert_eq!(two(Target { max_workgroup_size: [64, 1, 1], max_invocations: 64, max_storage_buffers: 2, ..target }), "");
}

#[test]
fn features_of_the_target_are_needed() {
    let half = {
        let mut half = kernel("", "let h = f16(x[lid]); y[lid] = f32(h);");
        half.wgsl.insert_str(0, "enable f16;\n");
        half
    };
    let sums = kernel("", "y[lid] = subgroupAdd(x[lid]);");
    let nvidia = Target::profile("nvidia").unwrap();
    for kernel in [half, sums] {
        assert!(message(&kernel, &Target::webgpu_default()).contains("is not valid WGSL"));
        assert_eq!(message(&kernel, &nvidia), "");
    }
    check(&kernel("", "let p = pack2x16float(vec2(x[lid], 1.0)); y[lid] = unpack2x16float(p).x;"), "");
}

#[test]
fn a_barrier_needs_uniform_flow() {
    const BARRIER: &str = "stands where only some invocations";
    let cases = [
        ("workgroupBarrier();", true),
        ("if wg.x < dims.n { workgroupBarrier(); }", true),
        ("if wg.x >= dims.n { return; } workgroupBarrier();", true),
        ("for (var i = 0u; i < dims.n; i++) { workgroupBarrier(); }", true),
        ("for (var s = 32u; s > 0u; s = s / 2u) { if lid < s { y[lid] = 0.0; } workgroupBarrier(); }", true),
        ("if x[wg.x] > 0.0 { workgroupBarrier(); }", true),
        ("let n = arrayLength(&y); if n > 4u { workgroupBarrier(); }", true),
        ("for (var i = lid; i < dims.n; i += 64u) { y[i] = 0.0; } workgroupBarrier();", true),
        ("switch wg.x { case 0u: { workgroupBarrier(); } default: {} }", true),
        ("var t = helper(wg.x); if t > 2u { workgroupBarrier(); }", true),
        ("loop { if lid > 3u { break; } y[0] = 1.0; break; } workgroupBarrier();", true),
        ("for (var i = 0u; i < 4u; i++) { if lid == i { continue; } y[lid] = 1.0; } workgroupBarrier();", true),
        ("sync();", true),
        ("if lid < 32u { workgroupBarrier(); }", false),
        ("if lid >= dims.n { return; } workgroupBarrier();", false),
        ("for (var i = lid; i < dims.n; i += 64u) { workgroupBarrier(); }", false),
        ("for (var i = 0u; i < 4u; i++) { workgroupBarrier(); if lid == i { break; } }", false),
        ("for (var i = 0u; i < 4u; i++) { if lid == i { continue; } workgroupBarrier(); }", false),
        ("if y[0] > 0.0 { workgroupBarrier(); }", false),
        ("if x[lid] > 0.0 { workgroupBarrier(); }", false),
        ("var t = 0u; if lid > 3u { t = 1u; } if t == 1u { workgroupBarrier(); }", false),
        ("var a = array<u32, 2>(0u, 0u); a[lid % 2u] = 1u; if a[0] == 1u { workgroupBarrier(); }", false),
        ("switch lid { case 0u: { workgroupBarrier(); } default: {} }", false),
        ("var t = helper(lid); if t > 2u { workgroupBarrier(); }", false),
        ("if lid > 2u && wg.x > 1u { workgroupBarrier(); }", false),
        ("if lid > 2u { sync(); }", false),
        ("loop { if lid > 3u { return; } y[0] = 1.0; break; } workgroupBarrier();", false),
    ];
    for (body, is_uniform) in cases {
        let message = message(
            &kernel("fn helper(a: u32) -> u32 { return a * 2u; } fn sync() { workgroupBarrier(); }", body),
            &Target::webgpu_default(),
        );
        assert_eq!(message.is_empty(), is_uniform, "{body}\n{message}");
        assert!(is_uniform || message.contains(BARRIER), "{body}\n{message}");
    }
}

#[test]
fn subgroup_operations_need_uniform_flow() {
    let nvidia = Target::profile("nvidia").unwrap();
    let divergent = kernel("", "var t = 0.0; if lid < 3u { t = subgroupAdd(x[lid]); } y[lid] = t;");
    assert!(message(&divergent, &nvidia).contains("a subgroup operation in `main`"));
}

#[test]
fn bitcasts_are_of_words() {
    check(
        &kernel("", "let b = bitcast<vec4<f32>>(vec4<u32>(1u)); y[lid] = b.x + bitcast<f32>(2u) + f32(bitcast<vec2u>(vec2f(1.0)).x);"),
        "",
    );
    let mut half = kernel("", "let h = bitcast<vec4<f16>>(vec2<u32>(1u, 2u)); y[lid] = f32(h.x);");
    half.wgsl.insert_str(0, "enable f16;\n");
    let nvidia = Target::profile("nvidia").unwrap();
    assert!(message(&half, &nvidia).contains("bitcast to `vec4<f16`"));
    let mut from = kernel("", "let h = vec2<f16>(1.0h, 2.0h); y[lid] = bitcast<f32>(h);");
    from.wgsl.insert_str(0, "enable f16;\n");
    assert_ne!(message(&from, &nvidia), "");
}

#[test]
fn numbers_are_finite() {
    for body in
        ["y[lid] = 1.0 / 0.0;", "y[lid] = 3.5e38f;", "const big = 3e38f; y[lid] = big * 10.0f;", "y[lid] = bitcast<f32>(0x7f800000u);"]
    {
        assert_ne!(message(&kernel("", body), &Target::webgpu_default()), "", "{body}");
    }
    check(&kernel("", "y[lid] = 3.4028234e38f;"), "");
}

#[test]
fn the_cache_checks_a_text_once_and_other_declarations_again() {
    let mut cache = ValidationCache::new(Target::webgpu_default());
    assert!(cache.is_empty());
    let ok = kernel("", SUM);
    for _ in 0..2 {
        assert!(cache.validate(&ok).is_ok());
    }
    assert_eq!(cache.len(), 1);
    assert!(cache.validate(&Kernel { workgroup_bytes: 64, ..ok }).is_err());
}
