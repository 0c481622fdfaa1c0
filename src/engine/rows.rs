//! Row numbers that come from the host, checked before a device reads with them: a kernel cannot say what is wrong.

use monopass_ir::error::EvalError;
use monopass_ir::graph::NodeKind;
use monopass_ir::op::Op;
use monopass_ir::types::position;
use monopass_ir::{Elements, Graph, TensorData, ValueId};

/// Which inputs are row numbers of which tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowChecks(Vec<RowCheck>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct RowCheck {
    op: &'static str,
    input: String,
    n_rows: usize,
}

impl RowChecks {
    /// Of every `gather` and `scatter_add` whose row numbers are an input, as it is or in another shape.
    pub(super) fn of(graph: &Graph) -> Self {
        let mut checks: Vec<RowCheck> = Vec::new();
        for (_, node) in graph.nodes() {
            let Some(op @ (Op::Gather { .. } | Op::ScatterAdd { .. })) = node.op() else { continue };
            // The rows are the first axis of what is read, or of what is made.
            let table = if let Op::Gather { .. } = op { graph.operand(node, "table") } else { node.results.first().copied() };
            let (Some(table), Some(ids)) = (table, graph.operand(node, "ids")) else { continue };
            let (Some(input), Some(&n_rows)) = (input_behind(graph, ids), graph.ty(table).shape.first()) else { continue };
            let check = RowCheck { op: op.mnemonic(), input: input.to_owned(), n_rows };
            if !checks.iter().any(|known| known.input == check.input && known.n_rows == n_rows) {
                checks.push(check);
            }
        }
        Self(checks)
    }

    /// The interpreter's error for the first number that is no row.
    pub(super) fn check(&self, inputs: &[(&str, &TensorData)]) -> Result<(), EvalError> {
        for RowCheck { op, input, n_rows } in &self.0 {
            // An input that is missing is found where all of them are looked at.
            let Some((_, ids)) = inputs.iter().find(|(name, _)| name == input) else { continue };
            let wrong = match ids.elements() {
                Elements::I32(v) => first_wrong(v, *n_rows),
                Elements::U32(v) => first_wrong(v, *n_rows),
                Elements::F32(_) | Elements::F16(_) | Elements::Bf16(_) | Elements::Bool(_) | Elements::I8(_) => None,
            };
            if let Some((at, id)) = wrong {
                let place = position(at, ids.shape());
                return Err(EvalError {
                    message: format!("{op}: index {id} at {place:?} of input {input:?} is outside 0..{n_rows}"),
                    help: Some("check the vocabulary that the ids were made with".to_owned()),
                });
            }
        }
        Ok(())
    }
}

/// Name of the input whose elements `value` has, in the same order.
fn input_behind(graph: &Graph, mut value: ValueId) -> Option<&str> {
    loop {
        let node = graph.def(value);
        match &node.kind {
            NodeKind::Input { name, .. } => return Some(name),
            NodeKind::Op(Op::Reshape { .. }) => value = node.present_operands().next()?,
            NodeKind::Op(_) | NodeKind::Const(_) | NodeKind::Param { .. } | NodeKind::State { .. } => return None,
        }
    }
}

fn first_wrong<T: Copy + TryInto<usize> + ToString>(ids: &[T], n_rows: usize) -> Option<(usize, String)> {
    let is_row = |id: T| id.try_into().is_ok_and(|row| row < n_rows);
    ids.iter().enumerate().find(|(_, id)| !is_row(**id)).map(|(at, id)| (at, id.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_behind_reshapes_are_checked_against_the_rows() {
        let text = "ir 1\ngraph @g {\n  %0 = input \"ids\" : i32[2, 3]\n  %1 = param \"table\" : f32[5, 2]\n  \
                    %2 = reshape %0 {shape = [6]} : i32[6]\n  %3 = gather %1, %2 : f32[6, 2]\n  output \"y\" = %3\n}\n";
        let checks = RowChecks::of(&monopass_ir::text::parse_one(text).unwrap());
        let check = |ids: [i32; 6]| checks.check(&[("ids", &TensorData::i32([2, 3], ids).unwrap())]);
        assert!(check([0, 1, 2, 3, 4, 0]).is_ok());
        assert!(checks.check(&[]).is_ok());
        assert!(check([0, 0, 0, 0, 5, 0]).unwrap_err().message.contains("index 5 at [1, 1] of input \"ids\" is outside 0..5"));
        assert!(check([0, 0, -1, 0, 0, 0]).unwrap_err().message.contains("index -1 at [0, 2]"));
        let sums = text.replace("param \"table\" : f32[5, 2]", "input \"x\" : f32[6, 2]");
        let sums = sums.replace("gather %1, %2 : f32[6, 2]", "scatter_add %1, %2 {rows = 4} : f32[4, 2]");
        let checks = RowChecks::of(&monopass_ir::text::parse_one(&sums).unwrap());
        let error = checks.check(&[("ids", &TensorData::i32([2, 3], [0, 1, 2, 3, 4, 0]).unwrap())]).unwrap_err();
        assert!(error.message.contains("scatter_add: index 4 at [1, 1] of input \"ids\" is outside 0..4"));
    }
}
