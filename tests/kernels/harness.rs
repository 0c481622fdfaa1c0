//! Runs kernels that a test chose and compares every output and state with the interpreter.

pub(crate) use crate::common::Outcome;
use crate::common::gpu;
use indexmap::IndexSet;
use monopass_ir::eval::{Interpreter, Precision, Tensors};
use monopass_ir::graph::NodeKind;
use monopass_ir::{DType, Elements, Graph, Op, TensorData, TensorType, ValueId};
use monopass_lower::dynamic::DynamicAxes;
use monopass_lower::emit::LowerCtx;
use monopass_lower::memory::{MemoryOptions, assign};
use monopass_lower::plan::Plan;
use monopass_lower::plan_verify::verify_plan;
use monopass_lower::step::{Step, Steps, Temp};
use monopass_lower::validate::validate;
use monopass_lower::{LowerError, Target};
use monopass_runtime::{Session, blocking};

/// Makes the steps of a graph, and the intermediates they hand to each other.
pub(crate) type Lower<'t> = dyn Fn(&LowerCtx<'_>, &mut Vec<Temp>) -> Vec<Step> + 't;

/// Plans `graph` with the steps that `lower` makes for `target`, and proves the plan and its kernels.
pub(crate) fn plan(graph: &Graph, target: &Target, lower: &Lower<'_>) -> Outcome<Plan> {
    let (dynamic, updated) = (DynamicAxes::of(graph), IndexSet::new());
    let ctx = LowerCtx { graph, target, dynamic: &dynamic, updated: &updated };
    let mut temps = Vec::new();
    let steps = lower(&ctx, &mut temps);
    let steps = Steps { steps, temps, ..Steps::default() };
    for step in &steps.steps {
        validate(&step.kernel, target).map_err(|error| with_text(&error, &step.kernel.wgsl))?;
    }
    let plan = assign(graph, steps, target, &MemoryOptions::default())?;
    verify_plan(&plan, target).map_err(|errors| format!("{errors:?}"))?;
    Ok(plan)
}

fn with_text(error: &LowerError, wgsl: &str) -> String {
    format!("{error}\n{wgsl}")
}

/// Asserts that the steps which `lower` makes compute what the interpreter does.
pub(crate) fn check(name: &str, graph: &Graph, lower: &Lower<'_>) -> Outcome<()> {
    check_within(name, graph, 2e-5, lower)
}

/// As [`check`], with another tolerance, relative to the largest magnitude of each tensor or 1.
pub(crate) fn check_within(name: &str, graph: &Graph, tolerance: f64, lower: &Lower<'_>) -> Outcome<()> {
    for profile in ["webgpu-default", "lavapipe"] {
        let target = Target::profile(profile).ok_or("no such profile")?;
        plan(graph, &target, lower).map_err(|error| format!("{name} for {profile}: {error}"))?;
    }
    let Some(device) = gpu()? else { return Ok(()) };
    run_for(name, graph, tolerance, device.target(), lower)
}

/// As [`check_within`], with the kernels that a target like `target` gets, of which the device must be able to run all.
pub(crate) fn run_for(name: &str, graph: &Graph, tolerance: f64, target: &Target, lower: &Lower<'_>) -> Outcome<()> {
    let Some(device) = gpu()? else { return Ok(()) };
    let plan = plan(graph, target, lower)?;
    let texts: Vec<String> = plan.kernels.iter().map(|kernel| kernel.wgsl.clone()).collect();

    let mut tensors = Source(1);
    let fill = |values: Vec<(&str, ValueId)>, tensors: &mut Source| -> Outcome<Tensors> {
        values.into_iter().map(|(name, value)| Ok((name.to_owned(), tensors.fill(name, graph.ty(value))?))).collect()
    };
    let inputs = fill(graph.inputs().collect(), &mut tensors)?;
    let params = fill(graph.params().collect(), &mut tensors)?;
    let mut states = fill(graph.states().collect(), &mut tensors)?;

    let mut session = Session::new(device);
    let weights = blocking::upload(device, params.iter().map(|(name, data)| (name.clone(), data)))?;
    let executable = blocking::executable(device, plan, &weights).map_err(|error| format!("{name}: {error}\n{}", texts.join("\n")))?;
    executable.bind(&mut session)?;
    for (name, data) in &states {
        session.write(name, data)?;
    }
    let given: Vec<(&str, &TensorData)> = inputs.iter().map(|(name, data)| (name.as_str(), data)).collect();
    let outputs = blocking::run(&executable, &mut session, &given).map_err(|error| format!("{name}: {error}"))?.outputs;

    let expected = Interpreter::new(graph)?.precision(Precision::F64).run(&inputs, &params, &mut states)?;
    for (output, want) in &expected {
        let got = outputs.get(output).ok_or("an output is missing")?;
        compare(got, want, tolerance).map_err(|what| format!("{name}: output {output}: {what}\n{}", texts.join("\n")))?;
    }
    for update in &graph.updates {
        let got = blocking::read(&session, &update.name)?;
        let want = states.get(&update.name).ok_or("a state is missing")?;
        compare(&got, want, tolerance).map_err(|what| format!("{name}: state {}: {what}\n{}", update.name, texts.join("\n")))?;
    }
    Ok(())
}

fn compare(got: &TensorData, want: &TensorData, tolerance: f64) -> Result<(), String> {
    if got.ty() != want.ty() {
        return Err(format!("is {}, should be {}", got.ty(), want.ty()));
    }
    if !want.ty().dtype.is_float() {
        return if got == want { Ok(()) } else { Err(format!("is {:?}\nshould be {:?}", got.elements(), want.elements())) };
    }
    // Rounding to 16 bits may go the other way after a difference in the last place of f32.
    let tolerance = match want.ty().dtype {
        DType::F16 => tolerance.max(1.0 / 1024.0),
        DType::Bf16 => tolerance.max(1.0 / 128.0),
        DType::F32 | DType::I32 | DType::U32 | DType::Bool | DType::I8 => tolerance,
    };
    let (got, want) = (got.to_f32_vec(), want.to_f32_vec());
    let scale = want.iter().fold(1.0f64, |scale, x| scale.max(f64::from(x.abs())));
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let close = (f64::from(*got) - f64::from(*want)).abs() <= tolerance * scale;
        if !close && got.to_bits() != want.to_bits() {
            return Err(format!("element {i} is {got}, should be {want}"));
        }
    }
    Ok(())
}

/// Numbers that are the same in every run.
pub(crate) struct Source(pub(crate) u64);

impl Source {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap_or(0)
    }

    /// A number in -2..2.
    fn real(&mut self) -> f32 {
        f32::from(u16::try_from(self.next() & 0xffff).unwrap_or(0)) / 16384.0 - 2.0
    }

    fn fill(&mut self, name: &str, ty: &TensorType) -> Outcome<TensorData> {
        let n = usize::try_from(ty.n_elems())?;
        // Names that begin with `ids` hold indices of small tables, with `pos` positive numbers.
        let is_positive = name.starts_with("pos");
        let elements = match ty.dtype {
            DType::F32 => Elements::F32((0..n).map(|_| if is_positive { self.real().abs() + 0.125 } else { self.real() }).collect()),
            DType::F16 => Elements::F16((0..n).map(|_| half::f16::from_f32(self.real())).collect()),
            DType::Bf16 => Elements::Bf16((0..n).map(|_| half::bf16::from_f32(self.real())).collect()),
            DType::I32 if name.starts_with("ids") => Elements::I32((0..n).map(|_| self.next().cast_signed() % 5).collect()),
            DType::I32 => Elements::I32((0..n).map(|_| self.next().cast_signed() % 1000 - 500).collect()),
            DType::U32 if name.starts_with("ids") => Elements::U32((0..n).map(|_| self.next() % 5).collect()),
            DType::U32 => Elements::U32((0..n).map(|_| self.next() % 1000).collect()),
            DType::Bool => Elements::Bool((0..n).map(|_| self.next().is_multiple_of(3)).collect()),
            DType::I8 => Elements::I8((0..n).map(|_| i8::try_from(self.next() % 255).unwrap_or(-1)).collect()),
        };
        Ok(TensorData::new(ty.shape.clone(), elements)?)
    }
}

/// The value of an output.
pub(crate) fn output(graph: &Graph, name: &str) -> Outcome<ValueId> {
    Ok(graph.outputs.iter().find(|output| output.name == name).ok_or("no such output")?.value)
}

/// Results of the reductions of a graph, in order.
pub(crate) fn reductions(graph: &Graph) -> Vec<ValueId> {
    let is_reduction = |op: &Op| matches!(op, Op::Sum { .. } | Op::Mean { .. } | Op::ReduceMax { .. } | Op::Argmax { .. });
    graph.nodes().filter(|(_, node)| node.op().is_some_and(is_reduction)).flat_map(|(_, node)| node.results.clone()).collect()
}

/// Every result of an op is computed where it is needed.
pub(crate) fn all_inline(graph: &Graph) -> impl Fn(ValueId) -> bool + '_ {
    |value| matches!(graph.def(value).kind, NodeKind::Op(_))
}
