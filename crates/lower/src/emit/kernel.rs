//! One kernel under construction: bindings, sizes, statements.

use super::index::{From, Index, Part};
use super::num::{Num, product};
use crate::dynamic::DynamicAxes;
use crate::plan::{Access, BindingSpec, Kernel};
use crate::step::{Step, StepArg, StepValue};
use crate::target::Target;
use indexmap::{IndexMap, IndexSet};
use monopass_ir::graph::NodeKind;
use monopass_ir::{DType, Graph, ValueId};
use std::fmt::Write as _;

/// Params of at most this many bytes are bound together as one pack a kernel.
const PACK_LIMIT_BYTES: u64 = 1 << 16;
/// Members of a pack start at multiples of this, so that vec4 loads stay aligned.
const PACK_ALIGN_BYTES: u64 = 16;

/// Whether an expression stands for one element or for four neighbours along the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// One element.
    One,
    /// Four, as a `vec4`.
    Four,
}

/// Everything about the graph that kernels of all families read.
#[derive(Debug)]
pub struct LowerCtx<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The device.
    pub target: &'a Target,
    /// Varying axes.
    pub dynamic: &'a DynamicAxes,
    /// Params that a graph updates; they are never packed.
    pub updated: &'a IndexSet<String>,
}

impl LowerCtx<'_> {
    /// Whether a value is a small param, which a kernel binds together with others of its kind.
    #[must_use]
    pub fn is_packed(&self, value: ValueId) -> bool {
        let ty = self.graph.ty(value);
        match &self.graph.def(value).kind {
            // An empty one has no place in a pack.
            NodeKind::Param { name } => {
                ty.dtype == DType::F32 && (1..=PACK_LIMIT_BYTES).contains(&ty.size_bytes()) && !self.updated.contains(name)
            }
            NodeKind::Input { .. } | NodeKind::State { .. } | NodeKind::Const(_) | NodeKind::Op(_) => false,
        }
    }
}

#[derive(Debug)]
struct Binding {
    reads: Option<StepValue>,
    writes: Option<StepValue>,
    dtype: DType,
    quad: bool,
    in_place: bool,
}

/// A value in workgroup memory.
#[derive(Clone, Debug)]
pub(super) struct HeldArray {
    /// The array.
    pub(super) name: String,
    /// Axes at whose position it holds the value.
    pub(super) n_lead: usize,
    /// [`Index::key`](super::Index::key) of that position, where the block asks for others too.
    pub(super) at: Option<String>,
}

#[derive(Debug, Default)]
struct Scope {
    exprs: IndexMap<String, String>,
    values: IndexMap<(ValueId, String, Width), String>,
    rows: IndexMap<ValueId, String>,
    arrays: IndexMap<ValueId, HeldArray>,
}

/// Builds the text and the arguments of one kernel.
///
/// Loads and stores go through one helper function a binding (`ld_b0`, `ld4_b0`, `st_b0`), whose body is written last,
/// when it is known whether the binding is an array of `vec4`.
pub struct KernelBuilder<'a> {
    /// Graph, target, varying axes.
    pub ctx: &'a LowerCtx<'a>,
    inline: &'a dyn Fn(ValueId) -> bool,
    bindings: Vec<Binding>,
    pack: IndexMap<ValueId, u64>,
    pack_bytes: u64,
    pack_quad: bool,
    dims: IndexMap<String, u64>,
    names: IndexSet<ValueId>,
    helpers: IndexSet<&'static str>,
    scopes: Vec<Scope>,
    merged: IndexMap<String, Vec<Part>>,
    globals: String,
    workgroup_bytes: u64,
    body: String,
    indent: usize,
    next_ident: usize,
}

impl std::fmt::Debug for KernelBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelBuilder").field("bindings", &self.bindings).field("dims", &self.dims).finish_non_exhaustive()
    }
}

/// What a finished kernel still needs from its family.
#[derive(Debug)]
pub struct Finish {
    /// Family and choices, for people.
    pub label: String,
    /// Comment at the top of the module: what one invocation does.
    pub comment: String,
    /// Invocations a workgroup, all in x.
    pub workgroup_size: u32,
    /// Workgroups.
    pub n_workgroups: u64,
    /// Most iterations of one loop nest in one invocation.
    pub loop_trips: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// Values computed.
    pub computes: Vec<ValueId>,
}

impl<'a> KernelBuilder<'a> {
    /// An empty kernel; values for which `inline` holds are computed where they are needed, others are loaded.
    #[must_use]
    pub fn new(ctx: &'a LowerCtx<'a>, inline: &'a dyn Fn(ValueId) -> bool) -> Self {
        Self {
            ctx,
            inline,
            bindings: Vec::new(),
            pack: IndexMap::new(),
            pack_bytes: 0,
            pack_quad: false,
            dims: IndexMap::new(),
            names: IndexSet::new(),
            helpers: IndexSet::new(),
            scopes: vec![Scope::default()],
            merged: IndexMap::new(),
            globals: String::new(),
            workgroup_bytes: 0,
            body: String::new(),
            indent: 1,
            next_ident: 0,
        }
    }

    /// Whether a value is computed in this kernel wherever it is needed.
    #[must_use]
    pub fn is_inline(&self, value: ValueId) -> bool {
        (self.inline)(value)
    }

    // -- sizes -----------------------------------------------------------------------------------------------------

    /// Size of an axis of a value.
    pub fn size(&mut self, value: ValueId, axis: usize) -> Num {
        let size = self.ctx.graph.ty(value).shape[axis] as u64;
        if self.ctx.dynamic.is_dynamic(value, axis) {
            Num::Dynamic { key: format!("{}.{axis}", self.name_of(value)), value: size, factor: 1 }
        } else {
            Num::Static(size)
        }
    }

    /// What a value is called in the keys of sizes: numbered in the order of first use, so not by its place in the graph.
    pub(super) fn name_of(&mut self, value: ValueId) -> String {
        let (name, _) = self.names.insert_full(value);
        format!("v{name}")
    }

    /// Sizes of all axes of a value.
    pub fn sizes(&mut self, value: ValueId) -> Vec<Num> {
        (0..self.ctx.graph.ty(value).rank()).map(|axis| self.size(value, axis)).collect()
    }

    /// A number as text: a literal, or a field of the uniform binding.
    pub fn num(&mut self, num: &Num) -> String {
        match num {
            Num::Static(value) => format!("{value}u"),
            Num::Dynamic { key, value, .. } => {
                let (field, _) = self.dims.insert_full(key.clone(), *value);
                format!("dims.d{field}")
            }
        }
    }

    /// A number that is safe to divide by.
    pub fn divisor(&mut self, num: &Num) -> String {
        if num.value() == 0 && matches!(num, Num::Static(_)) { "1u".to_owned() } else { self.num(num) }
    }

    /// The last position below a size; 0 below a baked 0, where nothing is computed.
    pub fn last(&mut self, num: &Num) -> String {
        if let Num::Static(value) = num { format!("{}u", value.saturating_sub(1)) } else { format!("{} - 1u", self.num(num)) }
    }

    // -- statements ------------------------------------------------------------------------------------------------

    /// Appends a line.
    pub fn line(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.body, "{:width$}{}", "", text.as_ref(), width = self.indent * 2);
    }

    /// Opens a block: `head {`, in which nothing bound before is lost and nothing bound inside lives on.
    pub fn open(&mut self, head: impl AsRef<str>) {
        self.line(format!("{} {{", head.as_ref()));
        self.indent += 1;
        self.scopes.push(Scope::default());
    }

    /// Closes the innermost block.
    pub fn close(&mut self) {
        self.scopes.pop();
        self.indent -= 1;
        self.line("}");
    }

    /// Closes the innermost block and opens its alternative: `} else {`.
    pub fn close_open(&mut self, head: &str) {
        self.scopes.pop();
        self.scopes.push(Scope::default());
        self.indent -= 1;
        self.line(format!("}} {head} {{"));
        self.indent += 1;
    }

    /// A name not used before in this kernel. No name that a family writes out ends in an underscore and a number alone.
    pub fn fresh(&mut self, prefix: &str) -> String {
        self.next_ident += 1;
        format!("{prefix}_{}", self.next_ident)
    }

    /// An identifier for an expression; the same one for the same text while its block lasts.
    pub fn bind(&mut self, expr: impl Into<String>) -> String {
        let expr = expr.into();
        if is_atom(&expr) {
            return expr;
        }
        if let Some(ident) = self.scopes.iter().rev().find_map(|scope| scope.exprs.get(&expr)) {
            return ident.clone();
        }
        let ident = self.fresh("t");
        self.line(format!("let {ident} = {expr};"));
        if let Some(scope) = self.scopes.last_mut() {
            scope.exprs.insert(expr, ident.clone());
        }
        ident
    }

    /// The identifier of a value at an index, if it was computed in a block that is still open.
    pub(super) fn known(&self, value: ValueId, key: &str, width: Width) -> Option<String> {
        self.scopes.iter().rev().find_map(|scope| scope.values.get(&(value, key.to_owned(), width)).cloned())
    }

    /// Remembers that `ident` is a value at an index, while the innermost block lasts.
    pub fn define(&mut self, value: ValueId, key: String, width: Width, ident: String) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.values.insert((value, key, width), ident);
        }
    }

    /// Remembers that `ident` is the one element of a value that the innermost block can ask for, whatever the index says:
    /// the result of a reduction while its own row is computed.
    pub fn define_row(&mut self, value: ValueId, ident: String) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.rows.insert(value, ident);
        }
    }

    /// The identifier given to [`define_row`](Self::define_row) in a block that is still open.
    pub(super) fn known_row(&self, value: ValueId) -> Option<String> {
        self.scopes.iter().rev().find_map(|scope| scope.rows.get(&value).cloned())
    }

    /// Remembers that `array` in workgroup memory holds a value at the place of its axes after the first `n_lead`; `at` is the
    /// position of those, absent where the innermost block can ask for no other.
    pub fn define_array(&mut self, value: ValueId, array: String, n_lead: usize, at: Option<&Index>) {
        let held = HeldArray { name: array, n_lead, at: at.map(Index::key) };
        if let Some(scope) = self.scopes.last_mut() {
            scope.arrays.insert(value, held);
        }
    }

    /// The array given to [`define_array`](Self::define_array) in a block that is still open.
    pub(super) fn known_array(&self, value: ValueId) -> Option<HeldArray> {
        self.scopes.iter().rev().find_map(|scope| scope.arrays.get(&value).cloned())
    }

    /// Appends module-scope text, such as workgroup arrays; `workgroup_bytes` counts those.
    pub fn global(&mut self, text: &str, workgroup_bytes: u64) {
        self.globals.push_str(text);
        self.globals.push('\n');
        self.workgroup_bytes += workgroup_bytes;
    }

    /// Asks for a function of `shaders/math.wgsl`, with what it calls.
    pub fn helper(&mut self, name: &'static str) {
        self.helpers.insert(name);
    }

    // -- index arithmetic ------------------------------------------------------------------------------------------

    /// Cuts a part into its first `at` axes and the rest.
    pub fn split_part(&mut self, part: &Part, at: usize) -> (Part, Part) {
        let (outer, inner) = (part.sizes[..at].to_vec(), part.sizes[at..].to_vec());
        let (n_outer, n_inner) = (product(&outer), product(&inner));
        if part.is_zero() || n_outer.is_one() {
            return (Part::zero(outer), Part { sizes: inner, ..part.clone() });
        }
        if n_inner.is_one() {
            return (Part { sizes: outer, ..part.clone() }, Part::zero(inner));
        }
        if let (Some(from), Num::Static(n)) = (&part.from, &n_inner)
            && let Some(pieces) = self.split_neighbour(&from.clone(), *n, [outer.clone(), inner.clone()])
        {
            return pieces;
        }
        let n = self.divisor(&n_inner);
        let quotient = self.bind(format!("{} / {n}", part.expr));
        let rest = self.bind(format!("{} % {n}", part.expr));
        let align = gcd(part.align, n_inner.factor());
        (Part::new(quotient, outer, 1), Part::new(rest, inner, align))
    }

    /// Cuts the neighbour of an aligned position at `n` inner elements, so that all its neighbours share what they can.
    fn split_neighbour(&mut self, from: &From, n: u64, [outer, inner]: [Vec<Num>; 2]) -> Option<(Part, Part)> {
        let From { expr, align, steps } = from;
        if *align == 0 || n == 0 {
            return None;
        }
        if align.is_multiple_of(n) {
            // The aligned position is at the start of an outer element.
            let first = self.bind(format!("{expr} / {n}u"));
            let (more, rest) = (steps / n, steps % n);
            let mut quotient = Part::new(if more == 0 { first.clone() } else { format!("({first} + {more}u)") }, outer, 1);
            if more > 0 && !quotient.is_zero() {
                quotient.from = Some(From { expr: first, align: align / n, steps: more });
            } else if more == 0 && !quotient.is_zero() {
                quotient.align = align / n;
            }
            let rest = if rest == 0 { Part::zero(inner) } else { Part::new(format!("{rest}u"), inner, 1) };
            return Some((quotient, rest));
        }
        if n.is_multiple_of(*align) && steps < align {
            // It lies in the same outer element.
            let quotient = Part::new(self.bind(format!("{expr} / {n}u")), outer, 1);
            let first = self.bind(format!("{expr} % {n}u"));
            let mut rest = Part::new(format!("({first} + {steps}u)"), inner, 1);
            rest.from = Some(From { expr: first, align: *align, steps: *steps }).filter(|_| !rest.is_zero());
            return Some((quotient, rest));
        }
        None
    }

    /// One part for the row-major position in several.
    pub fn merge_parts(&mut self, parts: &[Part], sizes: Vec<Num>) -> Part {
        let mut terms = Vec::new();
        let mut align = 0;
        for (i, part) in parts.iter().enumerate() {
            let tail = product(parts[i + 1..].iter().flat_map(|part| &part.sizes));
            if part.is_zero() {
                continue;
            }
            align = gcd(align, part.align.saturating_mul(tail.factor()));
            terms.push(if tail.is_one() { part.expr.clone() } else { format!("{} * {}", part.expr, self.num(&tail)) });
        }
        if terms.is_empty() {
            return Part::zero(sizes);
        }
        let expr = self.bind(terms.join(" + "));
        self.merged.insert(expr.clone(), parts.to_vec());
        Part::new(expr, sizes, align)
    }

    /// A part under other sizes; where it was merged from parts of just these sizes it falls apart into them again, so that
    /// a value is found under the index that it was defined at.
    pub(super) fn unmerge(&mut self, part: &Part, sizes: &[Num]) -> Vec<Part> {
        let whole = || vec![Part { sizes: sizes.to_vec(), ..part.clone() }];
        let Some(pieces) = self.merged.get(&part.expr) else { return whole() };
        let mut rest = sizes;
        let mut found = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            let n_elems = product(&piece.sizes).value();
            let fits = |&n: &usize| n <= rest.len() && product(&rest[..n]).value() == n_elems;
            // The same number of axes if that fits, else as few as do; the last piece takes all that remain.
            let n = if i + 1 == pieces.len() {
                Some(rest.len()).filter(fits)
            } else {
                Some(piece.sizes.len()).filter(fits).or_else(|| (0..=rest.len()).find(fits))
            };
            let Some(n) = n else { return whole() };
            found.push(Part { sizes: rest[..n].to_vec(), ..piece.clone() });
            rest = &rest[n..];
        }
        found
    }

    // -- bindings --------------------------------------------------------------------------------------------------

    /// Name of the binding that holds a value to read. Small params share one pack.
    pub fn read(&mut self, value: StepValue, dtype: DType, quad: bool) -> String {
        if let StepValue::Graph(id) = value
            && self.ctx.is_packed(id)
        {
            return self.read_packed(id, quad);
        }
        let found = self.bindings.iter().position(|b| b.reads == Some(value));
        let idx = found.unwrap_or_else(|| self.push(Some(value), None, dtype, false));
        self.bindings[idx].quad |= quad;
        format!("b{idx}")
    }

    /// Name of the binding that takes a value.
    pub fn write(&mut self, value: StepValue, dtype: DType, quad: bool) -> String {
        if dtype == DType::Bf16 {
            self.helper("pack_bf16");
        }
        let found = self.bindings.iter().position(|b| b.writes == Some(value));
        let idx = found.unwrap_or_else(|| self.push(None, Some(value), dtype, false));
        self.bindings[idx].quad |= quad;
        format!("b{idx}")
    }

    /// Declares that `new` overwrites `old` in one binding. Call before either is read or written.
    pub fn update_in_place(&mut self, old: StepValue, new: StepValue, dtype: DType) {
        self.push(Some(old), Some(new), dtype, true);
    }

    /// Whether a binding is overwritten in place.
    #[must_use]
    pub fn overwrites(&self) -> bool {
        self.bindings.iter().any(|binding| binding.in_place)
    }

    fn push(&mut self, reads: Option<StepValue>, writes: Option<StepValue>, dtype: DType, in_place: bool) -> usize {
        self.bindings.push(Binding { reads, writes, dtype, quad: false, in_place });
        self.bindings.len() - 1
    }

    fn read_packed(&mut self, value: ValueId, quad: bool) -> String {
        self.pack_quad |= quad;
        if !self.pack.contains_key(&value) {
            self.pack.insert(value, self.pack_bytes);
            self.pack_bytes += self.ctx.graph.ty(value).size_bytes().next_multiple_of(PACK_ALIGN_BYTES);
        }
        format!("p{}", self.pack.get_index_of(&value).unwrap_or(0))
    }

    /// Storage bindings so far.
    #[must_use]
    pub fn n_bindings(&self) -> usize {
        self.bindings.len() + usize::from(!self.pack.is_empty())
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    /// The finished step.
    #[must_use]
    pub fn finish(self, finish: Finish) -> Step {
        let wgsl = self.module(&finish);
        let bindings = self.binding_specs();
        let kernel = Kernel {
            label: finish.label,
            wgsl,
            workgroup_size: [finish.workgroup_size, 1, 1],
            workgroup_bytes: self.workgroup_bytes,
            bindings,
            n_dims: self.dims.len(),
            bounds_proved: true,
        };
        let mut args: Vec<StepArg> = self
            .bindings
            .iter()
            .map(|b| StepArg { reads: b.reads.into_iter().collect(), offsets_bytes: Vec::new(), writes: b.writes })
            .collect();
        if !self.pack.is_empty() {
            let single = self.pack.len() == 1;
            args.push(StepArg {
                reads: self.pack.keys().map(|&value| StepValue::Graph(value)).collect(),
                offsets_bytes: if single { Vec::new() } else { self.pack.values().copied().collect() },
                writes: None,
            });
        }
        Step {
            kernel,
            args,
            dims: self.dims.values().map(|&value| u32::try_from(value).unwrap_or(u32::MAX)).collect(),
            n_workgroups: finish.n_workgroups,
            loop_trips: finish.loop_trips,
            flops: finish.flops,
            computes: finish.computes,
        }
    }

    fn binding_specs(&self) -> Vec<BindingSpec> {
        let mut specs: Vec<BindingSpec> = (0..)
            .zip(&self.bindings)
            .map(|(idx, b): (usize, _)| BindingSpec {
                name: format!("b{idx}"),
                access: if b.writes.is_some() { Access::ReadWrite } else { Access::Read },
                in_place: b.in_place,
            })
            .collect();
        if !self.pack.is_empty() {
            specs.push(BindingSpec { name: "pk".to_owned(), access: Access::Read, in_place: false });
        }
        specs
    }

    fn module(&self, finish: &Finish) -> String {
        let mut text = String::new();
        for line in finish.comment.lines() {
            let _ = writeln!(text, "// {line}");
        }
        for (idx, b) in self.bindings.iter().enumerate() {
            let access = if b.writes.is_some() { "read_write" } else { "read" };
            let _ = writeln!(text, "@group(0) @binding({idx}) var<storage, {access}> b{idx}: array<{}>;", storage_type(b.dtype, b.quad));
        }
        let mut next = self.bindings.len();
        if !self.pack.is_empty() {
            let ty = storage_type(DType::F32, self.pack_quad);
            let _ = writeln!(text, "@group(0) @binding({next}) var<storage, read> pk: array<{ty}>;");
            next += 1;
        }
        if !self.dims.is_empty() {
            let fields: Vec<String> = self.dims.keys().enumerate().map(|(i, key)| format!("  d{i}: u32, // {key}\n")).collect();
            let _ = writeln!(text, "struct Dims {{\n{}}}\n@group(0) @binding({next}) var<uniform> dims: Dims;", fields.concat());
        }
        for (idx, b) in self.bindings.iter().enumerate() {
            text.push_str(&accessors(&format!("b{idx}"), &format!("b{idx}"), 0, b.dtype, b.quad, b.writes.is_some()));
        }
        for (idx, offset) in self.pack.values().enumerate() {
            text.push_str(&accessors(&format!("p{idx}"), "pk", offset / 4, DType::F32, self.pack_quad, false));
        }
        text.push_str(&monopass_shaders::math(&self.helpers));
        text.push_str(&self.globals);
        let _ = writeln!(
            text,
            "@compute @workgroup_size({}, 1, 1)\nfn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{\n  let wg = wid.x + wid.y * nwg.x;",
            finish.workgroup_size
        );
        text.push_str(&self.body);
        text.push_str("}\n");
        prune_accessors(&text)
    }
}

/// Greatest common divisor, with 0 as "anything divides it".
#[must_use]
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn is_atom(expr: &str) -> bool {
    expr.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

/// WGSL type of one element in storage.
const fn storage_type(dtype: DType, quad: bool) -> &'static str {
    match (dtype, quad) {
        (DType::F32, true) => "vec4<f32>",
        (DType::F32, false) => "f32",
        (DType::I32, _) => "i32",
        (DType::F16 | DType::Bf16, true) => "vec2<u32>",
        (DType::U32 | DType::Bool | DType::F16 | DType::Bf16 | DType::I8, _) => "u32",
    }
}

/// Whether four neighbors of an element type that begin at a multiple of four are loaded at once.
#[must_use]
pub const fn loads_quads(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16 | DType::I8)
}

/// WGSL type of one element in a register.
#[must_use]
pub const fn register_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => "f32",
        DType::I32 | DType::I8 => "i32",
        DType::U32 => "u32",
        DType::Bool => "bool",
    }
}

/// Load and store functions of one binding, or of one member of a pack that starts at word `base`.
fn accessors(name: &str, array: &str, base: u64, dtype: DType, quad: bool, writes: bool) -> String {
    let ty = register_type(dtype);
    let at = |i: &str| if base == 0 { i.to_owned() } else { format!("{base}u + {i}") };
    let load = match (dtype, quad) {
        (DType::F32, true) => format!("{array}[({}) >> 2u][({}) & 3u]", at("i"), at("i")),
        (DType::F32 | DType::I32 | DType::U32, _) => format!("{array}[{}]", at("i")),
        (DType::Bool, _) => format!("{array}[i] != 0u"),
        (DType::F16, true) => format!("unpack2x16float({array}[i >> 2u][(i >> 1u) & 1u])[i & 1u]"),
        (DType::Bf16, true) => format!("bitcast<f32>(({array}[i >> 2u][(i >> 1u) & 1u] >> ((i & 1u) * 16u)) << 16u)"),
        (DType::F16, false) => format!("unpack2x16float({array}[i >> 1u])[i & 1u]"),
        (DType::Bf16, false) => format!("bitcast<f32>(({array}[i >> 1u] >> ((i & 1u) * 16u)) << 16u)"),
        (DType::I8, _) => format!("extractBits(bitcast<i32>({array}[i >> 2u]), (i & 3u) * 8u, 8u)"),
    };
    let mut text = format!("fn ld_{name}(i: u32) -> {ty} {{ return {load}; }}\n");
    let body = match (dtype, quad) {
        (DType::F32, true) => format!("return {array}[({}) >> 2u];", at("i")),
        (DType::F16, true) => format!("let w = {array}[i >> 2u]; return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));"),
        (DType::Bf16, true) => format!(
            "let w = {array}[i >> 2u]; return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));"
        ),
        (DType::I8, true) => {
            format!("let w = bitcast<i32>({array}[i >> 2u]); return vec4<i32>(w << 24u, w << 16u, w << 8u, w) >> vec4<u32>(24u);")
        }
        (DType::F32 | DType::I32 | DType::U32 | DType::Bool | DType::F16 | DType::Bf16 | DType::I8, _) => {
            let lanes: Vec<String> = ["i", "i + 1u", "i + 2u", "i + 3u"].iter().map(|i| format!("ld_{name}({i})")).collect();
            format!("return vec4<{ty}>({});", lanes.join(", "))
        }
    };
    let _ = writeln!(text, "fn ld4_{name}(i: u32) -> vec4<{ty}> {{ {body} }}");
    if writes {
        match (dtype, quad) {
            (DType::F32, true) => {
                let _ = writeln!(text, "fn st_{name}(i: u32, x: f32) {{ {array}[i >> 2u][i & 3u] = x; }}");
                let _ = writeln!(text, "fn st4_{name}(i: u32, x: vec4<f32>) {{ {array}[i >> 2u] = x; }}");
            }
            (DType::F32 | DType::I32 | DType::U32, _) => {
                let _ = writeln!(text, "fn st_{name}(i: u32, x: {ty}) {{ {array}[i] = x; }}");
                let _ = writeln!(
                    text,
                    "fn st4_{name}(i: u32, x: vec4<{ty}>) {{ {array}[i] = x.x; {array}[i + 1u] = x.y; {array}[i + 2u] = x.z; {array}[i + 3u] = x.w; }}"
                );
            }
            (DType::Bool, _) => {
                let _ = writeln!(text, "fn st_{name}(i: u32, x: bool) {{ {array}[i] = select(0u, 1u, x); }}");
                let _ = writeln!(
                    text,
                    "fn st4_{name}(i: u32, x: vec4<bool>) {{ st_{name}(i, x.x); st_{name}(i + 1u, x.y); st_{name}(i + 2u, x.z); st_{name}(i + 3u, x.w); }}"
                );
            }
            (DType::F16 | DType::Bf16, _) => {
                let pack = if dtype == DType::F16 { "pack2x16float" } else { "pack_bf16" };
                let [low, high] = if quad { ["[i >> 2u].x", "[i >> 2u].y"] } else { ["[i >> 1u]", "[(i >> 1u) + 1u]"] };
                let _ =
                    writeln!(text, "fn st4_{name}(i: u32, x: vec4<f32>) {{ {array}{low} = {pack}(x.xy); {array}{high} = {pack}(x.zw); }}");
            }
            // No op gives an i8.
            (DType::I8, _) => {}
        }
    }
    text
}

/// Leaves out accessor lines that nothing calls; callers stand below what they call.
fn prune_accessors(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut below = String::new();
    for line in text.lines().rev() {
        let name = line
            .strip_prefix("fn ")
            .and_then(|rest| rest.split('(').next())
            .filter(|name| name.starts_with("ld") || name.starts_with("st"));
        if name.is_none_or(|name| below.contains(&format!("{name}("))) {
            kept.push(line);
            below.push_str(line);
        }
    }
    kept.reverse();
    let mut text = kept.join("\n");
    text.push('\n');
    text
}
