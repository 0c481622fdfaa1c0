//! Proves that barriers and subgroup operations stand in uniform control flow: all invocations of a workgroup arrive
//! at them together, or none.
//!
//! A conservative walk of naga's IR. A value is **varying** if it may differ between invocations of a workgroup: it
//! comes from an invocation index, from memory that invocations write, or from a varying value, or it was assigned
//! where only some invocations run. Flow is **divergent** in a branch on a varying condition, in a loop that some
//! invocations may leave before others, and after a `return` that only some take. A local variable has one verdict for
//! the whole function: that keeps the walk simple, and generated kernels reuse no variable for something else.

use naga::{
    AddressSpace, Arena, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module, Statement, StorageAccess, TypeInner,
};

/// What stands where only some invocations run, in words; empty if nothing does.
#[must_use]
pub fn faults(module: &Module) -> Vec<String> {
    let mut faults = Vec::new();
    for entry in &module.entry_points {
        let varying_args = vec![false; entry.function.arguments.len()];
        analyze(module, &entry.function, &varying_args, Flow { divergent: false, is_entry: true }, &mut faults);
    }
    faults
}

#[derive(Clone, Copy)]
struct Flow {
    divergent: bool,
    is_entry: bool,
}

/// Ways in which some invocations may have left a block while others go on.
#[derive(Clone, Copy, Default)]
struct Left {
    by_return: bool,
    by_break: bool,
    by_continue: bool,
}

impl Left {
    const fn any(self) -> bool {
        self.by_return || self.by_break || self.by_continue
    }

    const fn and(self, other: Self) -> Self {
        Self {
            by_return: self.by_return || other.by_return,
            by_break: self.by_break || other.by_break,
            by_continue: self.by_continue || other.by_continue,
        }
    }
}

/// What is known of one function in one calling context. Verdicts only ever go from uniform to varying, so the walk
/// is repeated until nothing changes.
struct Walk<'m> {
    module: &'m Module,
    function: &'m Function,
    varying_args: &'m [bool],
    is_entry: bool,
    varying: Vec<bool>,
    varying_locals: Vec<bool>,
    varying_results: Vec<bool>,
    returns_varying: bool,
    changed: bool,
    faults: Vec<String>,
}

/// Walks a function to a fixed point, adds what it finds to `faults` and says whether its result is varying.
fn analyze(module: &Module, function: &Function, varying_args: &[bool], flow: Flow, faults: &mut Vec<String>) -> bool {
    let mut walk = Walk {
        module,
        function,
        varying_args,
        is_entry: flow.is_entry,
        varying: vec![false; function.expressions.len()],
        varying_locals: vec![false; function.local_variables.len()],
        varying_results: vec![false; function.expressions.len()],
        returns_varying: flow.divergent,
        changed: true,
        faults: Vec::new(),
    };
    while walk.changed {
        walk.changed = false;
        walk.faults.clear();
        walk.judge_expressions();
        walk.block(&function.body, flow.divergent);
    }
    for fault in walk.faults {
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    walk.returns_varying
}

impl Walk<'_> {
    fn is_varying(&self, expression: Handle<Expression>) -> bool {
        self.varying[expression.index()]
    }

    /// Operands stand before the expressions that use them, so one pass in order judges all.
    fn judge_expressions(&mut self) {
        for (handle, expression) in self.function.expressions.iter() {
            self.varying[handle.index()] = self.judge(handle, expression);
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "whatever else naga has (images, ray queries) is taken as varying")]
    fn judge(&self, handle: Handle<Expression>, expression: &Expression) -> bool {
        let is = |expression: &Handle<Expression>| self.is_varying(*expression);
        match expression {
            Expression::Literal(_) | Expression::Constant(_) | Expression::Override(_) | Expression::ZeroValue(_) => false,
            Expression::Compose { components, .. } => components.iter().any(is),
            Expression::Access { base, index } => is(base) || is(index),
            Expression::AccessIndex { base, index } => self.member_of_argument(*base, *index).unwrap_or_else(|| is(base)),
            Expression::Splat { value: operand, .. }
            | Expression::Swizzle { vector: operand, .. }
            | Expression::Load { pointer: operand }
            | Expression::Unary { expr: operand, .. }
            | Expression::Relational { argument: operand, .. }
            | Expression::As { expr: operand, .. } => is(operand),
            // The length of a buffer is one number for the whole dispatch, whoever writes the elements.
            Expression::ArrayLength(_) | Expression::WorkGroupUniformLoadResult { .. } => false,
            Expression::FunctionArgument(idx) => self.argument(*idx),
            Expression::GlobalVariable(variable) => !is_read_only(self.module.global_variables[*variable].space),
            Expression::LocalVariable(variable) => self.varying_locals[variable.index()],
            Expression::Binary { left, right, .. } => is(left) || is(right),
            Expression::Select { condition, accept, reject } => is(condition) || is(accept) || is(reject),
            Expression::Math { arg, arg1, arg2, arg3, .. } => is(arg) || [arg1, arg2, arg3].into_iter().flatten().any(is),
            Expression::CallResult(_) => self.varying_results[handle.index()],
            _ => true,
        }
    }

    fn argument(&self, idx: u32) -> bool {
        let idx = idx as usize;
        if !self.is_entry {
            return self.varying_args.get(idx).copied().unwrap_or(true);
        }
        self.function.arguments.get(idx).is_none_or(|argument| !is_uniform_builtin(argument.binding.as_ref()))
    }

    /// The verdict on a member of an entry point's struct argument, whose members are built-ins of their own.
    fn member_of_argument(&self, base: Handle<Expression>, member: u32) -> Option<bool> {
        let Expression::FunctionArgument(idx) = self.function.expressions[base] else { return None };
        let argument = self.function.arguments.get(idx as usize)?;
        let TypeInner::Struct { members, .. } = &self.module.types[argument.ty].inner else { return None };
        let member = members.get(member as usize)?;
        self.is_entry.then(|| !is_uniform_builtin(member.binding.as_ref()))
    }

    fn block(&mut self, block: &Block, divergent: bool) -> Left {
        let mut left = Left::default();
        for statement in block {
            left = left.and(self.statement(statement, divergent || left.any()));
        }
        left
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "other statements neither branch, nor wait, nor write a local variable")]
    fn statement(&mut self, statement: &Statement, divergent: bool) -> Left {
        match statement {
            Statement::Block(block) => self.block(block, divergent),
            Statement::If { condition, accept, reject } => {
                let divergent = divergent || self.is_varying(*condition);
                self.block(accept, divergent).and(self.block(reject, divergent))
            }
            Statement::Switch { selector, cases } => {
                let divergent = divergent || self.is_varying(*selector);
                let mut left = Left::default();
                for case in cases {
                    left = left.and(self.block(&case.body, divergent || (case.fall_through && left.any())));
                }
                // A break ends the switch, behind which all meet again.
                Left { by_break: false, ..left }
            }
            Statement::Loop { body, continuing, break_if } => self.looped(body, continuing, *break_if, divergent),
            Statement::Break => Left { by_break: divergent, ..Left::default() },
            Statement::Continue => Left { by_continue: divergent, ..Left::default() },
            Statement::Return { value } => {
                let varying = divergent || value.is_some_and(|value| self.is_varying(value));
                self.changed |= varying && !self.returns_varying;
                self.returns_varying |= varying;
                Left { by_return: divergent, ..Left::default() }
            }
            Statement::Store { pointer, value } => {
                if divergent || self.is_varying(*value) || self.is_varying(*pointer) {
                    self.spoil(*pointer);
                }
                Left::default()
            }
            Statement::Call { function, arguments, result } => {
                self.call(*function, arguments, *result, divergent);
                Left::default()
            }
            Statement::ControlBarrier(_) => self.meeting("a barrier", divergent),
            Statement::WorkGroupUniformLoad { .. } => self.meeting("workgroupUniformLoad", divergent),
            Statement::SubgroupBallot { .. } | Statement::SubgroupGather { .. } | Statement::SubgroupCollectiveOperation { .. } => {
                self.meeting("a subgroup operation", divergent)
            }
            Statement::CooperativeStore { .. } => self.meeting("a cooperative store", divergent),
            _ => Left::default(),
        }
    }

    /// An invocation that leaves before the others makes every later round divergent, so the body is walked again.
    fn looped(&mut self, body: &Block, continuing: &Block, break_if: Option<Handle<Expression>>, divergent: bool) -> Left {
        let round = |walk: &mut Self, divergent: bool| {
            let left = walk.block(body, divergent);
            let gone = left.by_return || left.by_break;
            let left = left.and(walk.block(continuing, divergent || gone));
            let by_break = left.by_break || (break_if.is_some_and(|condition| walk.is_varying(condition)));
            Left { by_break, ..left }
        };
        let n_faults = self.faults.len();
        let mut left = round(self, divergent);
        if !divergent && (left.by_break || left.by_return) {
            self.faults.truncate(n_faults);
            left = round(self, true);
        }
        // Behind the loop all that broke out of it meet again; those that returned do not.
        Left { by_return: left.by_return, ..Left::default() }
    }

    fn call(&mut self, callee: Handle<Function>, arguments: &[Handle<Expression>], result: Option<Handle<Expression>>, divergent: bool) {
        let varying_args: Vec<bool> = arguments.iter().map(|&argument| self.is_varying(argument)).collect();
        let flow = Flow { divergent, is_entry: false };
        let is_result_varying = analyze(self.module, &self.module.functions[callee], &varying_args, flow, &mut self.faults);
        if let Some(result) = result
            && is_result_varying
            && !self.varying_results[result.index()]
        {
            self.varying_results[result.index()] = true;
            self.changed = true;
        }
        // What a callee writes through a pointer is not followed.
        for &argument in arguments {
            self.spoil(argument);
        }
    }

    fn meeting(&mut self, what: &str, divergent: bool) -> Left {
        if divergent {
            let name = self.function.name.as_deref().unwrap_or("main");
            self.faults.push(format!("{what} in `{name}` stands where only some invocations of a workgroup may arrive"));
        }
        Left::default()
    }

    /// Marks the local variable that `pointer` points into as varying, if it points into one.
    fn spoil(&mut self, pointer: Handle<Expression>) {
        let Some(variable) = pointee(&self.function.expressions, pointer) else { return };
        if !self.varying_locals[variable.index()] {
            self.varying_locals[variable.index()] = true;
            self.changed = true;
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "no other expression is a pointer into a local variable")]
fn pointee(expressions: &Arena<Expression>, mut pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
    loop {
        match &expressions[pointer] {
            Expression::LocalVariable(variable) => return Some(*variable),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = *base,
            _ => return None,
        }
    }
}

/// Memory that no invocation of the dispatch writes.
#[expect(clippy::wildcard_enum_match_arm, reason = "every other space is written by invocations")]
fn is_read_only(space: AddressSpace) -> bool {
    match space {
        AddressSpace::Uniform | AddressSpace::Immediate => true,
        AddressSpace::Storage { access } => !access.contains(StorageAccess::STORE),
        _ => false,
    }
}

fn is_uniform_builtin(binding: Option<&Binding>) -> bool {
    match binding {
        Some(Binding::BuiltIn(builtin)) => matches!(
            builtin,
            BuiltIn::WorkGroupId | BuiltIn::WorkGroupSize | BuiltIn::NumWorkGroups | BuiltIn::NumSubgroups | BuiltIn::SubgroupSize
        ),
        _ => false,
    }
}
