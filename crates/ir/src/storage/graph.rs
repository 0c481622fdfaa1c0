//! A graph in f32 as one for weights that are stored otherwise.

use super::{ParamStorage, Q8_0_BLOCK, Storage, StorageError, part_name, scale_name};
use crate::graph::{Graph, Named, Node, NodeKind, ValueId};
use crate::op::Op;
use crate::types::{DType, TensorType};
use indexmap::IndexMap;
use slotmap::SecondaryMap;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

impl Graph {
    /// The same graph for params that lie in memory as `storage` says; those that it does not name are as declared.
    ///
    /// Element types other than f32 are widened where they are read. A matrix in parts is multiplied part by part.
    ///
    /// # Errors
    /// [`StorageError::Updated`], and [`StorageError::Shape`] for a param that is not f32, or cannot be stored so.
    pub fn with_storage(&self, storage: &IndexMap<String, ParamStorage>) -> Result<Cow<'_, Self>, StorageError> {
        let differs = |name: &str| storage.get(name).filter(|storage| !storage.is_plain());
        if let Some((name, storage)) = self.updates.iter().find_map(|named| Some((&named.name, differs(&named.name)?))) {
            return Err(StorageError::Updated { name: name.clone(), storage: storage.storage });
        }
        if !self.params().any(|(name, _)| differs(name).is_some()) {
            return Ok(Cow::Borrowed(self));
        }
        let mut stored = Stored { old: self, new: Self::new(self.name.clone()), map: SecondaryMap::new(), weights: SecondaryMap::new() };
        for (_, node) in self.nodes() {
            let done = match &node.kind {
                NodeKind::Param { name } => differs(name).map(|storage| stored.param(node, name, storage)).transpose()?,
                NodeKind::Op(op) => stored.product(node, op).or_else(|| stored.rows(node, op)),
                NodeKind::Input { .. } | NodeKind::State { .. } | NodeKind::Const(_) => None,
            };
            if done.is_none() {
                stored.copy(node);
            }
        }
        Ok(Cow::Owned(stored.finish()))
    }
}

/// A graph whose params become stored ones.
struct Stored<'a> {
    old: &'a Graph,
    new: Graph,
    map: SecondaryMap<ValueId, ValueId>,
    weights: SecondaryMap<ValueId, Vec<Part>>,
}

/// Rows of a weight in the new graph.
#[derive(Clone, Debug)]
struct Part {
    rows: Range<usize>,
    /// Elements, widened; a scale a row is not applied yet.
    elements: ValueId,
    /// `[rows]`: the scales of an int8 matrix.
    row_scale: Option<ValueId>,
}

impl Stored<'_> {
    /// Appends an op in the scope of a node of the old graph; `None` if its operands do not fit.
    fn push(&mut self, op: Op, operands: &[ValueId], near: &Node) -> Option<ValueId> {
        let operands = operands.iter().map(|&value| Some(value)).collect();
        self.new.push_op(op, operands, Arc::clone(&near.scope), near.location).ok()?.first().copied()
    }

    fn param(&mut self, node: &Node, name: &str, storage: &ParamStorage) -> Result<(), StorageError> {
        let value = node.results[0];
        let shape = self.old.ty(value).shape.clone();
        let wrong = || StorageError::Shape { shape: shape.clone(), storage: storage.storage };
        let n_rows = storage.parts.last().map_or(shape.first().copied(), |rows| Some(rows.end));
        if !storage.storage.fits(&shape) || self.old.ty(value).dtype != DType::F32 || n_rows != shape.first().copied() {
            return Err(wrong());
        }
        let mut parts = Vec::new();
        if storage.parts.is_empty() {
            let rows = 0..shape.first().copied().unwrap_or(1);
            parts.push(self.part(node, name, storage.storage, &shape, rows).ok_or_else(wrong)?);
        }
        for (i, rows) in storage.parts.iter().enumerate() {
            let shape = [&[rows.len()], &shape[1..]].concat();
            parts.push(self.part(node, &part_name(name, i), storage.storage, &shape, rows.clone()).ok_or_else(wrong)?);
        }
        self.weights.insert(value, parts);
        Ok(())
    }

    fn part(&mut self, node: &Node, name: &str, storage: Storage, shape: &[usize], rows: Range<usize>) -> Option<Part> {
        let mut source = |name: String, ty| self.new.push_source(NodeKind::Param { name }, ty, Arc::clone(&node.scope), node.location);
        let raw = source(name.to_owned(), TensorType::new(storage.dtype(), shape));
        let scale = storage.scale_type(shape).map(|ty| source(scale_name(name), ty));
        let elements = if storage == Storage::F32 { raw } else { self.push(Op::Cast { dtype: DType::F32 }, &[raw], node)? };
        let Some(scale) = scale else { return Some(Part { rows, elements, row_scale: None }) };
        if storage == Storage::Int8 {
            let row_scale = self.push(Op::Reshape { shape: vec![shape[0]] }, &[scale], node)?;
            return Some(Part { rows, elements, row_scale: Some(row_scale) });
        }
        let blocks = shape[1] / Q8_0_BLOCK;
        let scale = self.push(Op::Cast { dtype: DType::F32 }, &[scale], node)?;
        let scale = self.push(Op::Reshape { shape: vec![shape[0], blocks, 1] }, &[scale], node)?;
        let elements = self.push(Op::Reshape { shape: vec![shape[0], blocks, Q8_0_BLOCK] }, &[elements], node)?;
        let elements = self.push(Op::Mul {}, &[elements, scale], node)?;
        let elements = self.push(Op::Reshape { shape: shape.to_vec() }, &[elements], node)?;
        Some(Part { rows, elements, row_scale: None })
    }

    /// A product with a stored matrix whose rows are the result's columns: part by part, scales of rows after it.
    fn product(&mut self, node: &Node, op: &Op) -> Option<()> {
        let Op::MatMul { transpose_b: true, .. } = op else { return None };
        let (lhs, rhs) = (node.operands[0]?, node.operands[1]?);
        let parts = self.weights.get(rhs)?.clone();
        if self.old.ty(rhs).rank() != 2 {
            return None;
        }
        let lhs = self.value(lhs, node)?;
        let mut products = Vec::new();
        for part in &parts {
            let product = self.push(op.clone(), &[lhs, part.elements], node)?;
            products.push(match part.row_scale {
                Some(scale) => self.push(Op::Mul {}, &[product, scale], node)?,
                None => product,
            });
        }
        let axis = self.old.ty(node.results[0]).rank() - 1;
        let result = if products.len() == 1 { products[0] } else { self.push(Op::Concat { axis }, &products, node)? };
        self.map.insert(node.results[0], result);
        Some(())
    }

    /// Rows of a stored matrix by index: from each part those that it has.
    fn rows(&mut self, node: &Node, op: &Op) -> Option<()> {
        let Op::Gather {} = op else { return None };
        let (table, ids) = (node.operands[0]?, node.operands[1]?);
        let parts = self.weights.get(table)?.clone();
        let ids = self.value(ids, node)?;
        let mut result = None;
        for part in &parts {
            let local = if parts.len() == 1 { ids } else { self.local_ids(ids, &part.rows, node)? };
            let rows = self.push(Op::Gather {}, &[part.elements, local], node)?;
            let rows = match part.row_scale {
                Some(scale) => {
                    let scales = self.push(Op::Gather {}, &[scale, local], node)?;
                    let shape = [self.new.ty(scales).shape.as_slice(), &vec![1; self.old.ty(table).rank() - 1]].concat();
                    let scales = self.push(Op::Reshape { shape }, &[scales], node)?;
                    self.push(Op::Mul {}, &[rows, scales], node)?
                }
                None => rows,
            };
            result = Some(match result {
                Some(before) => self.choose(ids, part.rows.start, before, rows, node)?,
                None => rows,
            });
        }
        self.map.insert(node.results[0], result?);
        Some(())
    }

    /// An integer of the type of `like`.
    fn number(&mut self, like: ValueId, number: usize, near: &Node) -> Option<ValueId> {
        let ty = TensorType::new(self.new.ty(like).dtype, Vec::new());
        let number = f64::from(u32::try_from(number).ok()?);
        Some(self.new.push_source(NodeKind::Const(number), ty, Arc::clone(&near.scope), near.location))
    }

    /// Indices from the start of a part, those of other parts held inside it.
    fn local_ids(&mut self, ids: ValueId, rows: &Range<usize>, near: &Node) -> Option<ValueId> {
        let (first, last) = (self.number(ids, rows.start, near)?, self.number(ids, rows.end - 1, near)?);
        let held = self.push(Op::Max {}, &[ids, first], near)?;
        let held = self.push(Op::Min {}, &[held, last], near)?;
        self.push(Op::Sub {}, &[held, first], near)
    }

    /// `rows` where the index is not below `start`, else `before`.
    fn choose(&mut self, ids: ValueId, start: usize, before: ValueId, rows: ValueId, near: &Node) -> Option<ValueId> {
        let start = self.number(ids, start, near)?;
        let is_before = self.push(Op::Lt {}, &[ids, start], near)?;
        let n_inner = self.new.ty(rows).rank() - self.new.ty(ids).rank();
        let shape = [self.new.ty(ids).shape.as_slice(), &vec![1; n_inner]].concat();
        let is_before = self.push(Op::Reshape { shape }, &[is_before], near)?;
        self.push(Op::Select {}, &[is_before, before, rows], near)
    }

    /// What stands for a value of the old graph; a stored weight is put together, once.
    fn value(&mut self, old: ValueId, near: &Node) -> Option<ValueId> {
        if let Some(&value) = self.map.get(old) {
            return Some(value);
        }
        let mut whole = Vec::new();
        for part in self.weights.get(old)?.clone() {
            whole.push(match part.row_scale {
                Some(scale) => {
                    let column = self.push(Op::Reshape { shape: vec![part.rows.len(), 1] }, &[scale], near)?;
                    self.push(Op::Mul {}, &[part.elements, column], near)?
                }
                None => part.elements,
            });
        }
        let value = if whole.len() == 1 { whole[0] } else { self.push(Op::Concat { axis: 0 }, &whole, near)? };
        self.map.insert(old, value);
        Some(value)
    }

    fn copy(&mut self, node: &Node) {
        let operands = node.operands.iter().map(|operand| operand.and_then(|value| self.value(value, node))).collect();
        let types = node.results.iter().map(|&result| self.old.ty(result).clone()).collect();
        let results = self.new.push_unchecked(node.kind.clone(), operands, types, Arc::clone(&node.scope));
        for (&old, new) in node.results.iter().zip(results) {
            self.map.insert(old, new);
        }
    }

    fn finish(mut self) -> Graph {
        let old = self.old;
        self.new.outputs = old.outputs.iter().filter_map(|named| self.named(named)).collect();
        self.new.updates = old.updates.iter().filter_map(|named| self.named(named)).collect();
        self.new
    }

    fn named(&mut self, named: &Named) -> Option<Named> {
        let value = self.value(named.value, self.old.def(named.value))?;
        Some(Named { name: named.name.clone(), value })
    }
}
