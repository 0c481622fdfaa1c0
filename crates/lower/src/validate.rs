//! Checks every generated kernel before a driver sees it: naga's own validation, then what naga and wgpu let through.
//!
//! naga is given exactly the capabilities of the target. Our own checks, from the parsed module:
//! - **interface**: one compute entry point `main` of the declared workgroup size; storage bindings in group 0 in the
//!   order, with the names and the access that the kernel declares; the sizes last, as a struct of u32;
//! - **limits**: storage bindings, workgroup memory (summed from the module and equal to what the kernel declares),
//!   invocations in all and an axis;
//! - **flow**: barriers and subgroup operations only where all invocations of a workgroup arrive together
//!   ([`uniformity`]; naga and wgpu accept others, browsers do not);
//! - **numbers**: no infinity and no NaN as a literal; no `bitcast` to or from f16 vectors, which naga types wrongly.

pub mod uniformity;

#[cfg(test)]
mod tests;

use crate::error::LowerError;
use crate::plan::{Access, Kernel};
use crate::target::Target;
use indexmap::IndexMap;
use monopass_ir::error::OpSite;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Expression, GlobalVariable, Literal, Module, Scalar, StorageAccess, TypeInner};

/// Checks one kernel against a target.
///
/// # Errors
/// [`LowerError::Wgsl`] if the module is not what the kernel says, or not valid; [`LowerError::Limit`] if it needs more
/// than the target has.
pub fn validate(kernel: &Kernel, target: &Target) -> Result<(), LowerError> {
    let caps = capabilities(target);
    let module = parse(kernel, caps)?;
    let info = Validator::new(ValidationFlags::all(), caps)
        .validate(&module)
        .map_err(|error| wgsl_error(kernel, error.emit_to_string_with_path(&kernel.wgsl, "kernel.wgsl")))?;
    let mut faults = Vec::new();
    check_entry(&module, kernel, &mut faults);
    check_bindings(&module, kernel, &mut faults);
    check_workgroup_memory(&module, kernel, &mut faults);
    check_bitcasts(&module, &info, &kernel.wgsl, &mut faults);
    check_literals(&module, &mut faults);
    faults.extend(uniformity::faults(&module));
    if !faults.is_empty() {
        return Err(wgsl_error(kernel, faults.join("\n")));
    }
    check_limits(kernel, aligned_workgroup_bytes(&module), target)
}

/// Kernels of one target that have passed [`validate`], so that each text is parsed once.
#[derive(Clone, Debug)]
pub struct ValidationCache {
    target: Target,
    valid: IndexMap<String, Kernel>,
}

impl ValidationCache {
    /// An empty cache for `target`.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self { target, valid: IndexMap::new() }
    }

    /// Checks `kernel`, unless one of the same text and declarations has passed.
    ///
    /// # Errors
    /// Those of [`validate`].
    pub fn validate(&mut self, kernel: &Kernel) -> Result<(), LowerError> {
        if self.valid.get(&kernel.wgsl).is_some_and(|known| declares_same(known, kernel)) {
            return Ok(());
        }
        validate(kernel, &self.target)?;
        self.valid.insert(kernel.wgsl.clone(), kernel.clone());
        Ok(())
    }

    /// Number of kernel texts that have passed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.valid.len()
    }

    /// Whether none has passed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.valid.is_empty()
    }
}

fn declares_same(a: &Kernel, b: &Kernel) -> bool {
    a.workgroup_size == b.workgroup_size && a.workgroup_bytes == b.workgroup_bytes && a.bindings == b.bindings && a.n_dims == b.n_dims
}

/// What a target lets a module use. Packing two f16 in a u32 is part of WGSL's core, so it needs no feature.
fn capabilities(target: &Target) -> Capabilities {
    let mut caps = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    caps.set(Capabilities::SHADER_FLOAT16, target.has_f16);
    caps.set(Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER, target.subgroup_size.is_some());
    caps
}

fn parse(kernel: &Kernel, capabilities: Capabilities) -> Result<Module, LowerError> {
    let options = naga::front::wgsl::Options { parse_doc_comments: false, capabilities };
    naga::front::wgsl::Frontend::new_with_options(options)
        .parse(&kernel.wgsl)
        .map_err(|error| wgsl_error(kernel, error.emit_to_string_with_path(&kernel.wgsl, "kernel.wgsl")))
}

fn wgsl_error(kernel: &Kernel, report: String) -> LowerError {
    LowerError::Wgsl { label: kernel.label.clone(), report }
}

fn check_entry(module: &Module, kernel: &Kernel, faults: &mut Vec<String>) {
    let [entry] = module.entry_points.as_slice() else {
        faults.push(format!("the module has {} entry points; it must have one, `main`", module.entry_points.len()));
        return;
    };
    if entry.name != "main" || entry.stage != naga::ShaderStage::Compute {
        faults.push(format!("the entry point is `{}` of stage {:?}; it must be `main` of stage Compute", entry.name, entry.stage));
    }
    if entry.workgroup_size_overrides.is_some() {
        faults.push("the workgroup size is an override; it must be a number".to_owned());
    }
    if entry.workgroup_size != kernel.workgroup_size {
        faults.push(format!("@workgroup_size is {:?}; the kernel declares {:?}", entry.workgroup_size, kernel.workgroup_size));
    }
}

fn check_bindings(module: &Module, kernel: &Kernel, faults: &mut Vec<String>) {
    let mut found: IndexMap<u32, &GlobalVariable> = IndexMap::new();
    for (_, variable) in module.global_variables.iter() {
        let Some(place) = variable.binding else { continue };
        let name = variable.name.as_deref().unwrap_or("?");
        if place.group != 0 {
            faults.push(format!("`{name}` is in group {}; every binding must be in group 0", place.group));
        } else if found.insert(place.binding, variable).is_some() {
            faults.push(format!("binding {} is declared twice, the second time as `{name}`", place.binding));
        }
    }
    let n_storage = kernel.bindings.len();
    let n_declared = n_storage + usize::from(kernel.n_dims > 0);
    if found.len() != n_declared {
        faults.push(format!("the module has {} bindings; the kernel declares {n_declared}", found.len()));
    }
    for (idx, spec) in (0u32..).zip(&kernel.bindings) {
        let Some(variable) = found.get(&idx) else {
            faults.push(format!("binding {idx} (`{}`) is missing", spec.name));
            continue;
        };
        if variable.name.as_deref() != Some(spec.name.as_str()) {
            faults.push(format!("binding {idx} is `{}`; the kernel declares `{}`", variable.name.as_deref().unwrap_or("?"), spec.name));
        }
        let wanted = match spec.access {
            Access::Read => StorageAccess::LOAD,
            Access::ReadWrite => StorageAccess::LOAD | StorageAccess::STORE,
        };
        if variable.space != (AddressSpace::Storage { access: wanted }) {
            faults.push(format!("binding {idx} (`{}`) is {:?}; the kernel declares {:?}", spec.name, variable.space, spec.access));
        }
        if spec.in_place && spec.access == Access::Read {
            faults.push(format!("binding {idx} (`{}`) is declared in place but read-only", spec.name));
        }
    }
    if kernel.n_dims > 0 {
        let sizes = u32::try_from(n_storage).ok().and_then(|idx| found.get(&idx));
        check_dims(module, sizes.copied(), kernel.n_dims, faults);
    }
}

/// The sizes are the last binding, a uniform struct of as many u32 as the kernel declares.
#[expect(clippy::wildcard_enum_match_arm, reason = "any other of naga's types is wrong here")]
fn check_dims(module: &Module, variable: Option<&GlobalVariable>, n_dims: usize, faults: &mut Vec<String>) {
    let Some(variable) = variable else {
        faults.push(format!("the kernel declares {n_dims} sizes, but the last binding, a uniform, is missing"));
        return;
    };
    let is_struct_of_u32 = match &module.types[variable.ty].inner {
        TypeInner::Struct { members, .. } => {
            members.len() == n_dims && members.iter().all(|member| module.types[member.ty].inner == TypeInner::Scalar(Scalar::U32))
        }
        _ => false,
    };
    if variable.space != AddressSpace::Uniform || !is_struct_of_u32 {
        faults.push(format!("`{}` must be a uniform struct of {n_dims} u32", variable.name.as_deref().unwrap_or("?")));
    }
}

fn check_workgroup_memory(module: &Module, kernel: &Kernel, faults: &mut Vec<String>) {
    let used: u64 = workgroup_sizes(module).sum();
    if used != kernel.workgroup_bytes && aligned_workgroup_bytes(module) != kernel.workgroup_bytes {
        faults.push(format!("var<workgroup> takes {used} bytes; the kernel declares {}", kernel.workgroup_bytes));
    }
}

fn workgroup_sizes(module: &Module) -> impl Iterator<Item = u64> + '_ {
    let variables = module.global_variables.iter().filter(|(_, variable)| variable.space == AddressSpace::WorkGroup);
    variables.map(|(_, variable)| u64::from(module.types[variable.ty].inner.size(module.to_ctx())))
}

/// What WebGPU counts against the limit: each variable takes a multiple of 16 bytes.
fn aligned_workgroup_bytes(module: &Module) -> u64 {
    workgroup_sizes(module).map(|size| size.next_multiple_of(16)).sum()
}

/// naga 30 types `bitcast<vec4<f16>>` as a vector of f32, so the text is searched as well as the module.
fn check_bitcasts(module: &Module, info: &ModuleInfo, wgsl: &str, faults: &mut Vec<String>) {
    for rest in wgsl.split("bitcast").skip(1) {
        let args = rest.trim_start().strip_prefix('<').and_then(|args| args.split('(').next());
        let Some(args) = args else { continue };
        let args: String = args.trim_end().trim_end_matches('>').chars().filter(|c| !c.is_whitespace()).collect();
        if !is_word_type(&args) {
            faults.push(format!("bitcast to `{args}`: only 32-bit scalars and vectors of them are safe in naga 30"));
        }
    }
    for (handle, function) in module.functions.iter() {
        check_bitcasts_from_f16(module, &function.expressions, &info[handle], faults);
    }
    for (idx, entry) in module.entry_points.iter().enumerate() {
        check_bitcasts_from_f16(module, &entry.function.expressions, info.get_entry_point(idx), faults);
    }
}

fn check_bitcasts_from_f16(
    module: &Module,
    expressions: &naga::Arena<Expression>,
    info: &naga::valid::FunctionInfo,
    faults: &mut Vec<String>,
) {
    for (_, expression) in expressions.iter() {
        let Expression::As { expr, convert: None, .. } = expression else { continue };
        if info[*expr].ty.inner_with(&module.types).scalar().is_some_and(|scalar| scalar.width != 4) {
            faults.push("bitcast from a type that is not 32 bits wide: naga 30 gives it a wrong type".to_owned());
        }
    }
}

fn is_word_type(ty: &str) -> bool {
    let scalar = |ty: &str| matches!(ty, "i32" | "u32" | "f32");
    let vector = |rest: &str| {
        let Some(tail) = rest.strip_prefix(['2', '3', '4']) else { return false };
        matches!(tail, "i" | "u" | "f") || tail.strip_prefix('<').is_some_and(scalar)
    };
    scalar(ty) || ty.strip_prefix("vec").is_some_and(vector)
}

/// naga refuses most of these itself; a constant that it folds later is caught here.
fn check_literals(module: &Module, faults: &mut Vec<String>) {
    let functions = module.functions.iter().map(|(_, function)| function);
    let entries = module.entry_points.iter().map(|entry| &entry.function);
    let arenas = functions.chain(entries).map(|function| &function.expressions);
    for arena in arenas.chain([&module.global_expressions]) {
        if !arena.iter().all(|(_, expression)| is_finite(arena, expression)) {
            faults.push("a literal is infinite or not a number; use the largest finite number".to_owned());
        }
    }
}

/// Whether an expression is anything but an infinite or undefined number that a reader of the text can see.
#[expect(clippy::wildcard_enum_match_arm, reason = "every other expression is no number by itself")]
fn is_finite(arena: &naga::Arena<Expression>, expression: &Expression) -> bool {
    match expression {
        Expression::Literal(Literal::F32(number)) => number.is_finite(),
        Expression::Literal(Literal::F64(number) | Literal::AbstractFloat(number)) => number.is_finite(),
        Expression::Literal(Literal::F16(number)) => number.is_finite(),
        Expression::As { expr, kind: naga::ScalarKind::Float, convert: None } => match arena[*expr] {
            Expression::Literal(Literal::U32(bits)) => f32::from_bits(bits).is_finite(),
            Expression::Literal(Literal::I32(bits)) => f32::from_bits(bits.cast_unsigned()).is_finite(),
            _ => true,
        },
        _ => true,
    }
}

fn check_limits(kernel: &Kernel, workgroup_bytes: u64, target: &Target) -> Result<(), LowerError> {
    let over = |what: &str, has: u64, limit: u64, name: &str| {
        if has <= limit {
            return Ok(());
        }
        Err(LowerError::Limit {
            what: format!("kernel {}: {has} {what}; {} has {name} = {limit}", kernel.label, target.name),
            site: Box::new(OpSite::default()),
            help: format!("a kernel with at most {limit} {what} would fit"),
        })
    };
    let [x, y, z] = kernel.workgroup_size.map(u64::from);
    over("storage buffers", kernel.bindings.len() as u64, u64::from(target.max_storage_buffers), "max_storage_buffers")?;
    over("bytes of workgroup memory", workgroup_bytes, target.max_workgroup_bytes, "max_workgroup_bytes")?;
    over("invocations a workgroup", x.saturating_mul(y).saturating_mul(z), u64::from(target.max_invocations), "max_invocations")?;
    let names = ["invocations in x", "invocations in y", "invocations in z"];
    for ((size, limit), what) in [x, y, z].into_iter().zip(target.max_workgroup_size).zip(names) {
        over(what, size, u64::from(limit), "max_workgroup_size")?;
    }
    Ok(())
}
