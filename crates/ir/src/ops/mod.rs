//! What each op means, by family: its typing rule (`infer`), its value (`eval`) and its adjoint (`vjp`) side by side.
//!
//! The functions here only hand an op to the family of its class; there every op is named, so that the compiler lists
//! what is missing.

pub mod choice;
pub mod conv;
pub mod elementwise;
pub mod index;
pub mod matmul;
pub mod movement;
pub mod reduce;
pub mod scan;
pub mod scan_grad;

use crate::autodiff::Applied;
use crate::builder::Tensor;
use crate::error::{EvalError, help_line};
use crate::eval::{Array, Real};
use crate::op::{Class, Op, OperandKind};
use crate::types::{DType, TensorType};
use std::fmt;

/// A typing rule that operands or attributes break: what, and how to fix it. The place is added by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeError {
    message: String,
    help: Option<String>,
}

impl TypeError {
    /// A broken rule; `message` starts with the mnemonic.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None }
    }

    /// Adds how to fix it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// How to fix it, if known.
    #[must_use]
    pub fn help_text(&self) -> Option<&str> {
        self.help.as_deref()
    }

    pub(crate) fn help_line(&self) -> String {
        help_line(self.help.as_deref())
    }
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Operand types as `infer` gets them.
pub type OperandTypes<'a> = [Option<&'a TensorType>];

/// Result types of `op` on operands of the given types: the only statement of its typing rule.
///
/// # Errors
/// [`TypeError`] says which rule is broken and, where it can, how to fix it.
pub fn infer(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    check_arity(op, operands)?;
    check_storage(op, operands)?;
    let results = infer_results(op, operands)?;
    for result in &results {
        if result.n_elems() > u64::from(u32::MAX) {
            return Err(TypeError::new(format!("{}: result {result} has more than 4294967295 elements", op.mnemonic()))
                .help("split the batch or the length into several runs"));
        }
    }
    Ok(results)
}

fn infer_results(op: &Op, operands: &OperandTypes) -> Result<Vec<TensorType>, TypeError> {
    match op.class() {
        Class::Elementwise => elementwise::infer(op, operands),
        Class::Movement => movement::infer(op, operands),
        Class::Reduction | Class::Prefix => reduce::infer(op, operands),
        Class::Contraction => matmul::infer(op, operands),
        Class::Index => index::infer(op, operands),
        Class::Conv => conv::infer(op, operands),
        Class::Scan => scan::infer(op, operands),
        Class::ScanAdjoint => scan_grad::infer(op, operands),
        Class::Choice => choice::infer(op, operands),
    }
}

/// Results of `op` on operands whose types [`infer`] has accepted; `types` are the result types that it gave.
pub(crate) fn eval<'a, R: Real>(
    op: &Op,
    operands: Vec<Option<Array<'a, R>>>,
    types: &[&TensorType],
) -> Result<Vec<Array<'a, R>>, EvalError> {
    let operands = Operands(operands);
    let ty = *types.first().ok_or_else(|| EvalError::new(format!("{}: no result types", op.mnemonic())))?;
    match op.class() {
        Class::Elementwise => elementwise::eval(op, operands, ty).map(one),
        Class::Movement => movement::eval(op, operands, ty).map(one),
        Class::Reduction | Class::Prefix => reduce::eval(op, operands, ty).map(one),
        Class::Contraction => matmul::eval(op, operands, ty).map(one),
        Class::Index => index::eval(op, operands, ty).map(one),
        Class::Conv => conv::eval(op, operands),
        Class::Scan => scan::eval(op, operands),
        Class::ScanAdjoint => scan_grad::eval(op, operands),
        Class::Choice => choice::eval(op, operands, ty).map(one),
    }
}

/// Adjoints of the operands of an application from those of its results; `None` where nothing is asked for or nothing passes.
#[track_caller]
pub(crate) fn vjp<'g>(at: &Applied<'_, 'g>) -> Vec<Option<Tensor<'g>>> {
    match at.op.class() {
        Class::Elementwise => elementwise::vjp(at),
        Class::Movement => movement::vjp(at),
        Class::Reduction | Class::Prefix => reduce::vjp(at),
        Class::Contraction => matmul::vjp(at),
        Class::Index => index::vjp(at),
        Class::Conv => conv::vjp(at),
        Class::Scan => scan::vjp(at),
        Class::ScanAdjoint | Class::Choice => Vec::new(),
    }
}

fn one<T>(result: T) -> Vec<T> {
    vec![result]
}

/// Operands of an op under evaluation, taken one by one so that the op may overwrite them.
pub(crate) struct Operands<'a, R>(Vec<Option<Array<'a, R>>>);

impl<'a, R: Real> Operands<'a, R> {
    /// The operand at `idx`, which has to be there.
    fn take(&mut self, op: &Op, idx: usize) -> Result<Array<'a, R>, EvalError> {
        self.take_option(idx).ok_or_else(|| EvalError::new(format!("{}: operand {idx} is missing", op.mnemonic())))
    }

    /// The operand at `idx`, if it is there.
    fn take_option(&mut self, idx: usize) -> Option<Array<'a, R>> {
        self.0.get_mut(idx).and_then(Option::take)
    }

    /// All operands that are there, in order.
    fn take_all(self) -> Vec<Array<'a, R>> {
        self.0.into_iter().flatten().collect()
    }
}

/// Of the element types, i8 is there to be cast.
fn check_storage(op: &Op, operands: &OperandTypes) -> Result<(), TypeError> {
    let to = if let Op::Cast { dtype } = op { Some(*dtype) } else { None };
    match operands.iter().flatten().find(|ty| ty.dtype == DType::I8) {
        Some(ty) if to.is_none() => Err(TypeError::new(format!("{}: {ty} is a storage type", op.mnemonic())).help("cast it to f32 first")),
        _ if to == Some(DType::I8) => {
            Err(TypeError::new("cast: nothing is converted to i8").help("quantize weights before they are uploaded; i32 is for integers"))
        }
        _ => Ok(()),
    }
}

fn check_arity(op: &Op, operands: &OperandTypes) -> Result<(), TypeError> {
    let specs = op.info().operands;
    let is_list = specs.last().is_some_and(|spec| spec.kind == OperandKind::List);
    if operands.len() != specs.len() && !(is_list && operands.len() > specs.len()) {
        return Err(TypeError::new(format!("{}: takes {} operands, got {}", op.mnemonic(), specs.len(), operands.len())).help(format!(
            "operands are {}; write _ for an absent optional one",
            specs.iter().map(|s| s.name).collect::<Vec<_>>().join(", ")
        )));
    }
    for (idx, operand) in operands.iter().enumerate() {
        let spec = &specs[idx.min(specs.len() - 1)];
        if operand.is_none() && spec.kind != OperandKind::Option {
            return Err(TypeError::new(format!("{}: operand {} is missing", op.mnemonic(), spec.name)));
        }
    }
    Ok(())
}

/// The operand at `idx`, which `check_arity` has found present.
fn required<'a>(op: &Op, operands: &OperandTypes<'a>, idx: usize) -> Result<&'a TensorType, TypeError> {
    operands.get(idx).copied().flatten().ok_or_else(|| TypeError::new(format!("{}: operand {idx} is missing", op.mnemonic())))
}

/// An error unless `ty` has the dtype test's approval.
fn expect_dtype(op: &Op, name: &str, ty: &TensorType, ok: bool, wanted: &str) -> Result<(), TypeError> {
    if ok {
        return Ok(());
    }
    Err(TypeError::new(format!("{}: {name} {ty} is not {wanted}", op.mnemonic())).help(format!("cast it to {wanted} first")))
}

/// An error unless `ty` has exactly this shape; `form` says it in axis letters.
fn expect_shape(op: &Op, name: &str, ty: &TensorType, shape: &[usize], form: &str) -> Result<(), TypeError> {
    if ty.shape == shape {
        return Ok(());
    }
    Err(TypeError::new(format!("{}: {name} {ty} should be {form} = {shape:?}", op.mnemonic())))
}

/// An error unless `ty` has this rank; `form` says it in axis letters.
fn expect_rank(op: &Op, name: &str, ty: &TensorType, rank: usize, form: &str) -> Result<(), TypeError> {
    if ty.rank() == rank {
        return Ok(());
    }
    Err(TypeError::new(format!("{}: {name} {ty} should have {rank} axes {form}", op.mnemonic())))
}
