//! Operands and attributes for each op of the table.

use super::{Entry, MAX_ELEMS, Proposal, Sampler};
use crate::op::{Class, OPS, Op, OpInfo};
use crate::ops;
use crate::types::{DType, TensorType, broadcast_shapes, n_elems};

/// The largest number below 1 that is drawn.
const UNIFORM_END: f64 = 0.999;
const SIZES: [usize; 8] = [1, 2, 3, 3, 4, 5, 6, 7];
const FLOATS: [DType; 5] = [DType::F32, DType::F32, DType::F32, DType::F16, DType::Bf16];
const ALL: [DType; 9] = [DType::F32, DType::F32, DType::F32, DType::F32, DType::F16, DType::Bf16, DType::I32, DType::U32, DType::Bool];

impl Sampler {
    /// An application that may turn out not to fit; the caller tries again then.
    pub(super) fn propose(&mut self, mnemonic: &str) -> Option<Proposal> {
        match mnemonic {
            "log" | "sqrt" | "rsqrt" => {
                let x = self.float()?;
                let positive = self.positive(x)?;
                Some((plain(mnemonic)?, vec![Some(positive)]))
            }
            "div" => {
                let (lhs, rhs) = self.pair(DType::F32)?;
                let divisor = self.positive(rhs)?;
                Some((Op::Div {}, vec![Some(lhs), Some(divisor)]))
            }
            "eq" | "ne" | "lt" | "le" => self.comparison(mnemonic),
            "select" => self.select(),
            "clamp" => self.clamp(),
            "cast" => self.cast(),
            "reshape" | "permute" | "slice" | "broadcast" | "pad" => self.movement(mnemonic),
            "concat" => self.concat(),
            "iota" => self.iota(),
            "sum" | "mean" | "reduce_max" | "argmax" | "cumsum" => self.reduction(mnemonic),
            "matmul" => self.matmul(),
            "gather" => self.gather(),
            "scatter_add" => self.scatter_add(),
            "sample" => self.sample(),
            "conv1d" => self.conv1d(),
            "scan" => self.scan(),
            "scan_grad" => self.scan_grad(),
            _ => self.elementwise(OPS.iter().find(|info| info.mnemonic == mnemonic)?),
        }
    }

    /// Any elementwise op without attributes, on an element type that its typing rule accepts.
    fn elementwise(&mut self, info: &OpInfo) -> Option<Proposal> {
        if info.class != Class::Elementwise {
            return None;
        }
        let op = plain(info.mnemonic)?;
        let dtype = self.rng.of(&ALL)?;
        let scalar = TensorType::new(dtype, []);
        ops::infer(&op, &vec![Some(&scalar); info.operands.len()]).ok()?;
        let operands = if info.operands.len() == 1 {
            vec![Some(self.of_dtype(dtype)?)]
        } else {
            let (lhs, rhs) = self.pair(dtype)?;
            vec![Some(lhs), Some(rhs)]
        };
        Some((op, operands))
    }

    fn comparison(&mut self, mnemonic: &str) -> Option<Proposal> {
        let dtype = self.rng.of(&ALL)?;
        let lhs = self.entry(|entry| entry.ty.dtype == dtype && entry.facts.is_exact(), dtype)?;
        let rhs = self.partner(dtype, &lhs.ty.shape, true)?;
        Some((plain(mnemonic)?, vec![Some(lhs), Some(rhs)]))
    }

    fn select(&mut self) -> Option<Proposal> {
        let cond = self.of_dtype(DType::Bool)?;
        let dtype = self.rng.of(&ALL)?;
        let on_true = self.partner(dtype, &cond.ty.shape, false)?;
        let shape = broadcast_shapes(&cond.ty.shape, &on_true.ty.shape)?;
        let on_false = self.partner(dtype, &shape, false)?;
        Some((Op::Select {}, vec![Some(cond), Some(on_true), Some(on_false)]))
    }

    fn clamp(&mut self) -> Option<Proposal> {
        const MAX: f64 = f32::MAX as f64;
        let x = self.float()?;
        let (lo, hi) = self.rng.of(&[(-0.5, MAX), (-MAX, 0.75), (-0.25, 0.25), (-1e-3, 1.5)])?;
        Some((Op::Clamp { lo, hi }, vec![Some(x)]))
    }

    fn cast(&mut self) -> Option<Proposal> {
        let from = if self.rng.one_in(4) { self.rng.of(&DType::ALL)? } else { self.rng.of(&ALL)? };
        let dtype = self.rng.of(&ALL)?;
        let x = self.entry(|entry| entry.ty.dtype == from && (dtype == DType::F32 || entry.facts.is_exact()), from)?;
        Some((Op::Cast { dtype }, vec![Some(x)]))
    }

    fn movement(&mut self, mnemonic: &str) -> Option<Proposal> {
        let dtype = self.rng.of(&ALL)?;
        let x = self.of_dtype(dtype)?;
        let shape = x.ty.shape.clone();
        let op = match mnemonic {
            "reshape" => Op::Reshape { shape: self.refactored(&shape) },
            "permute" => {
                let mut axes: Vec<usize> = (0..shape.len()).collect();
                self.rng.shuffle(&mut axes);
                Op::Permute { axes }
            }
            "slice" => {
                let ranges: Vec<(usize, usize)> = shape.iter().map(|&size| self.range(size)).collect();
                let (starts, ends) = ranges.into_iter().unzip();
                Op::Slice { starts, ends }
            }
            "broadcast" => {
                let mut wide: Vec<usize> = shape.iter().map(|&size| if size == 1 { self.size() } else { size }).collect();
                if wide.len() < 4 && self.rng.one_in(2) {
                    wide.insert(0, 3);
                }
                Op::Broadcast { shape: wide }
            }
            _ => {
                let lo = shape.iter().map(|_| self.rng.below(3)).collect();
                let hi = shape.iter().map(|_| self.rng.below(3)).collect();
                let value = if dtype.is_float() { self.rng.of(&[0.0, -1.5])? } else { self.rng.of(&[0.0, 1.0])? };
                Op::Pad { lo, hi, value }
            }
        };
        Some((op, vec![Some(x)]))
    }

    /// Another shape of as many elements.
    fn refactored(&mut self, shape: &[usize]) -> Vec<usize> {
        let mut rest: usize = shape.iter().product();
        let mut sizes = Vec::new();
        for _ in 0..2 {
            if let Some(size) = self.rng.of(&SIZES)
                && rest.is_multiple_of(size)
            {
                rest /= size;
                sizes.push(size);
            }
        }
        sizes.push(rest);
        self.rng.shuffle(&mut sizes);
        sizes
    }

    /// A part of an axis; seldom empty.
    fn range(&mut self, size: usize) -> (usize, usize) {
        let start = self.rng.below(size);
        let len = self.rng.below(size - start + 1);
        if len == 0 && !self.rng.one_in(8) { (0, size) } else { (start, start + len) }
    }

    fn concat(&mut self) -> Option<Proposal> {
        let dtype = self.rng.of(&ALL)?;
        let first = self.entry_of_rank(dtype, 1)?;
        let axis = self.rng.below(first.ty.rank());
        let mut parts = vec![Some(first.clone())];
        for _ in 0..self.rng.below(3) {
            let fits = |entry: &Entry| {
                let (part, whole) = (&entry.ty, &first.ty);
                part.dtype == dtype && part.rank() == whole.rank() && (0..part.rank()).all(|a| a == axis || part.shape[a] == whole.shape[a])
            };
            let mut shape = first.ty.shape.clone();
            shape[axis] = self.size();
            parts.push(Some(self.entry_or(fits, dtype, shape)?));
        }
        Some((Op::Concat { axis }, parts))
    }

    fn iota(&mut self) -> Option<Proposal> {
        let shape = self.shape_of_rank(1);
        let axis = self.rng.below(shape.len());
        let dtype = self.rng.of(&[DType::F32, DType::I32, DType::U32])?;
        Some((Op::Iota { shape, axis, dtype }, Vec::new()))
    }

    fn reduction(&mut self, mnemonic: &str) -> Option<Proposal> {
        let dtype = if mnemonic == "mean" { self.rng.of(&FLOATS)? } else { self.rng.of(&ALL)? };
        let needs_exact = mnemonic == "argmax";
        let shape = self.shape_of_rank(1);
        let x = self.entry_or(|e| e.ty.dtype == dtype && e.ty.rank() > 0 && (!needs_exact || e.facts.is_exact()), dtype, shape)?;
        let mut axes: Vec<usize> = (0..x.ty.rank()).collect();
        self.rng.shuffle(&mut axes);
        axes.truncate(1 + self.rng.below(axes.len()));
        let axis = axes[0];
        let keepdims = self.rng.one_in(2);
        let op = match mnemonic {
            "sum" => Op::Sum { axes, keepdims },
            "mean" => Op::Mean { axes, keepdims },
            "reduce_max" => Op::ReduceMax { axes, keepdims },
            "argmax" => Op::Argmax { axis },
            _ => {
                let reset = self.maybe(DType::Bool, x.ty.shape[..=axis].to_vec());
                // Without a period: sums near half of it may fall on either side.
                return Some((Op::Cumsum { axis, reverse: keepdims, period: 0.0 }, vec![Some(x), reset]));
            }
        };
        Some((op, vec![Some(x)]))
    }

    fn matmul(&mut self) -> Option<Proposal> {
        let (transpose_a, transpose_b) = (self.rng.one_in(4), self.rng.one_in(2));
        let dtype = self.rng.of(&FLOATS)?;
        let lhs = self.entry_of_rank(dtype, 2)?;
        let rank = lhs.ty.rank();
        let (lead, k) = (&lhs.ty.shape[..rank - 2], lhs.ty.shape[if transpose_a { rank - 2 } else { rank - 1 }]);
        let n = self.size();
        let tail = if transpose_b { [n, k] } else { [k, n] };
        // The leading axes of rhs: none, as in lhs, or some of size 1.
        let mut shape = match self.rng.below(3) {
            0 => Vec::new(),
            1 => lead.to_vec(),
            _ => lead.iter().map(|&size| if self.rng.one_in(2) { 1 } else { size }).collect(),
        };
        shape.extend(tail);
        let rhs_dtype = self.rng.of(&FLOATS)?;
        let rhs = self.entry_or(|entry| entry.ty.dtype == rhs_dtype && entry.ty.shape == shape, rhs_dtype, shape.clone())?;
        Some((Op::MatMul { transpose_a, transpose_b }, vec![Some(lhs), Some(rhs)]))
    }

    fn gather(&mut self) -> Option<Proposal> {
        // Above this an index source made for another reader may not reach all rows that its facts promise.
        const MAX_ROWS_OF_SHARED: usize = 9;
        let dtype = self.rng.of(&ALL)?;
        let table = self.entry_of_rank(dtype, 1)?;
        let n_rows = table.ty.shape[0];
        let ids_dtype = self.rng.of(&[DType::I32, DType::U32])?;
        #[expect(clippy::cast_precision_loss, reason = "few rows")]
        let end = n_rows as f64;
        let fits = |entry: &Entry| entry.ty.dtype == ids_dtype && entry.facts.lo >= 0.0 && entry.facts.hi < end;
        let shared = if n_rows <= MAX_ROWS_OF_SHARED { self.pick(fits) } else { None };
        let ids = match shared {
            Some(ids) => ids,
            None => {
                let mut shape = self.shape();
                shape.truncate(2);
                self.source_within(ids_dtype, shape, 0.0, end - 1.0)
            }
        };
        Some((Op::Gather {}, vec![Some(table), Some(ids)]))
    }

    fn scatter_add(&mut self) -> Option<Proposal> {
        let dtype = self.rng.of(&FLOATS)?;
        let updates = self.entry_of_rank(dtype, 1)?;
        let n_axes = 1 + self.rng.below(updates.ty.rank().min(2));
        let rows = self.size();
        #[expect(clippy::cast_precision_loss, reason = "few rows")]
        let end = rows as f64;
        let ids_dtype = self.rng.of(&[DType::I32, DType::U32])?;
        let ids = self.source_within(ids_dtype, updates.ty.shape[..n_axes].to_vec(), 0.0, end - 1.0);
        Some((Op::ScatterAdd { rows }, vec![Some(updates), Some(ids)]))
    }

    fn sample(&mut self) -> Option<Proposal> {
        let shape = vec![self.size(), self.size()];
        let exact = |entry: &Entry| entry.ty.dtype == DType::F32 && entry.ty.rank() > 0 && entry.facts.is_exact();
        let logits = self.entry_or(exact, DType::F32, shape)?;
        let rows = logits.ty.shape.split_last()?.1.to_vec();
        let settings = self.source_within(DType::F32, [&rows[..], &[ops::choice::N_SETTINGS]].concat(), 0.0, 9.0);
        let uniform = self.source_within(DType::F32, rows, 0.0, UNIFORM_END);
        Some((Op::Sample {}, vec![Some(logits), Some(settings), Some(uniform)]))
    }

    fn conv1d(&mut self) -> Option<Proposal> {
        let shape = vec![self.rng.of(&[1, 2, 3])?, self.size(), self.size()];
        let x = self.entry_or(|entry| entry.ty.dtype == DType::F32 && entry.ty.rank() == 3, DType::F32, shape)?;
        let &[batch, len, channels] = x.ty.shape.as_slice() else { return None };
        let taps = self.rng.of(&[1, 2, 3, 4])?;
        let w = self.shaped(DType::F32, vec![channels, taps])?;
        let bias = self.maybe(DType::F32, vec![channels]);
        let state = self.maybe(DType::F32, vec![batch, channels, taps - 1]);
        let reset = self.maybe(DType::Bool, vec![batch, len]);
        Some((Op::Conv1d { newest_first: self.rng.one_in(2) }, vec![Some(x), Some(w), bias, state, reset]))
    }

    fn scan(&mut self) -> Option<Proposal> {
        let (chunk_size, operands) = self.operands_of_scan()?;
        Some((Op::Scan { chunk_size }, operands))
    }

    /// Adjoints of the results are the two operands more.
    fn operands_of_scan(&mut self) -> Option<(usize, Vec<Option<Entry>>)> {
        let groups = self.rng.of(&[1, 1, 2])?;
        let heads = groups * self.rng.of(&[1, 2, 3])?;
        let (batch, len) = (self.rng.of(&[1, 2, 3])?, self.length()?);
        let (ranks, headdim, d_state) = (self.rng.of(&[1, 1, 2])?, self.rng.of(&[1, 2, 3, 4])?, self.rng.of(&[1, 2, 3, 4])?);
        let log_decay = self.log_decay(vec![batch, len, heads])?;
        let v = self.value_of_scan(vec![batch, len, heads, ranks, headdim])?;
        let k = self.shaped(DType::F32, vec![batch, len, groups, ranks, d_state])?;
        let q = self.shaped(DType::F32, vec![batch, len, groups, ranks, d_state])?;
        let s0 = self.maybe(DType::F32, vec![batch, heads, headdim, d_state]);
        let reset = self.maybe(DType::Bool, vec![batch, len]);
        let weights = [(); 2].map(|()| self.maybe(DType::F32, vec![batch, len, heads]));
        let chunk_size = self.rng.of(&[0, 0, 2, 4])?;
        let mut operands = vec![Some(log_decay), Some(v), Some(k), Some(q), s0, reset];
        operands.extend(weights);
        Some((chunk_size, operands))
    }

    fn scan_grad(&mut self) -> Option<Proposal> {
        let (Op::Scan { chunk_size }, mut operands) = self.scan()? else { return None };
        let (v, k) = (operands[1].clone()?, operands[2].clone()?);
        let dy = self.shaped(DType::F32, v.ty.shape.clone())?;
        let (&[batch, _, heads, _, headdim], &d_state) = (v.ty.shape.as_slice(), k.ty.shape.get(4)?) else { return None };
        let ds_last = self.maybe(DType::F32, vec![batch, heads, headdim, d_state]);
        operands.insert(4, Some(dy));
        operands.push(ds_last);
        Some((Op::ScanGrad { chunk_size }, operands))
    }

    /// Zero tokens, one, or some.
    fn length(&mut self) -> Option<usize> {
        self.rng.of(&[0, 1, 1, 2, 3, 5, 7, 9])
    }

    /// A source, or minus the softplus of one.
    fn log_decay(&mut self, shape: Vec<usize>) -> Option<Entry> {
        if self.rng.one_in(2) {
            return Some(self.source_within(DType::F32, shape, -1.0, 0.0));
        }
        let dt = self.shaped(DType::F32, shape)?;
        let dt = self.push_unary(Op::Softplus {}, dt)?;
        self.push_unary(Op::Neg {}, dt)
    }

    /// A value of the pool of as many elements, reshaped, or a source.
    fn value_of_scan(&mut self, shape: Vec<usize>) -> Option<Entry> {
        let n = n_elems(&shape);
        match self.pick(|entry| entry.ty.dtype == DType::F32 && entry.ty.n_elems() == n && !entry.is_source) {
            Some(entry) if entry.ty.shape == shape => Some(entry),
            Some(entry) => self.push_unary(Op::Reshape { shape }, entry),
            None => Some(self.source(DType::F32, shape)),
        }
    }

    /// `|x| + 1/4`, in the domain of log, rsqrt and divisors.
    fn positive(&mut self, x: Entry) -> Option<Entry> {
        let dtype = x.ty.dtype;
        let abs = self.push_unary(Op::Abs {}, x)?;
        let quarter = self.constant(0.25, dtype);
        self.push(Op::Add {}, &[Some(abs), Some(quarter)])
    }

    fn float(&mut self) -> Option<Entry> {
        let dtype = self.rng.of(&FLOATS)?;
        self.of_dtype(dtype)
    }

    fn of_dtype(&mut self, dtype: DType) -> Option<Entry> {
        self.entry(|entry| entry.ty.dtype == dtype, dtype)
    }

    /// A value of at least `min_rank` axes.
    fn entry_of_rank(&mut self, dtype: DType, min_rank: usize) -> Option<Entry> {
        let shape = self.shape_of_rank(min_rank);
        self.entry_or(|entry| entry.ty.dtype == dtype && entry.ty.rank() >= min_rank, dtype, shape)
    }

    /// A value of exactly this type.
    fn shaped(&mut self, dtype: DType, shape: Vec<usize>) -> Option<Entry> {
        let wanted = shape.clone();
        self.entry_or(move |entry| entry.ty.dtype == dtype && entry.ty.shape == wanted, dtype, shape)
    }

    /// A value of exactly this type, or none: for optional operands.
    fn maybe(&mut self, dtype: DType, shape: Vec<usize>) -> Option<Entry> {
        if self.rng.one_in(2) { None } else { self.shaped(dtype, shape) }
    }

    /// Two values of a type whose shapes broadcast.
    fn pair(&mut self, dtype: DType) -> Option<(Entry, Entry)> {
        let lhs = self.of_dtype(dtype)?;
        let rhs = self.partner(dtype, &lhs.ty.shape, false)?;
        Some(if self.rng.one_in(2) { (lhs, rhs) } else { (rhs, lhs) })
    }

    /// A value that broadcasts with `shape`; sometimes a constant.
    fn partner(&mut self, dtype: DType, shape: &[usize], needs_exact: bool) -> Option<Entry> {
        if dtype.is_float() && self.rng.one_in(8) {
            let number = self.rng.of(&[-1.5, -0.125, 0.25, 1.0, 2.0])?;
            return Some(self.constant(number, dtype));
        }
        let mut narrow: Vec<usize> = shape.iter().map(|&size| if self.rng.one_in(4) { 1 } else { size }).collect();
        if self.rng.one_in(4) && !narrow.is_empty() {
            narrow.remove(0);
        }
        let fits = |entry: &Entry| {
            let is_small = || broadcast_shapes(&entry.ty.shape, shape).is_some_and(|both| n_elems(&both) <= MAX_ELEMS);
            entry.ty.dtype == dtype && (!needs_exact || entry.facts.is_exact()) && is_small()
        };
        self.entry_or(fits, dtype, narrow)
    }

    fn entry(&mut self, test: impl Fn(&Entry) -> bool, dtype: DType) -> Option<Entry> {
        let shape = self.shape();
        self.entry_or(test, dtype, shape)
    }

    /// A value of the pool, or a source if there is none (and sometimes anyway). Later values are likelier, so that
    /// chains grow long.
    fn entry_or(&mut self, test: impl Fn(&Entry) -> bool, dtype: DType, shape: Vec<usize>) -> Option<Entry> {
        if !self.rng.one_in(6)
            && let Some(entry) = self.pick(test)
        {
            return Some(entry);
        }
        (n_elems(&shape) <= MAX_ELEMS).then(|| self.source(dtype, shape))
    }

    fn pick(&mut self, test: impl Fn(&Entry) -> bool) -> Option<Entry> {
        if self.wants_new {
            return None;
        }
        let fitting: Vec<&Entry> = self.pool.iter().filter(|entry| test(entry)).collect();
        let idx = self.rng.below(fitting.len()).max(self.rng.below(fitting.len()));
        fitting.get(idx).copied().cloned()
    }

    fn shape(&mut self) -> Vec<usize> {
        let rank = self.rng.of(&[0, 1, 2, 2, 3, 3, 3, 4]).unwrap_or(0);
        (0..rank).map(|axis| if axis == 0 { 1 + self.rng.below(3) } else { self.size() }).collect()
    }

    fn shape_of_rank(&mut self, min_rank: usize) -> Vec<usize> {
        let mut shape = self.shape();
        while shape.len() < min_rank {
            shape.push(self.size());
        }
        shape
    }

    /// A small size, seldom 0.
    fn size(&mut self) -> usize {
        if self.rng.one_in(32) { 0 } else { self.rng.of(&SIZES).unwrap_or(1) }
    }
}

/// The op of this name without attributes.
fn plain(mnemonic: &str) -> Option<Op> {
    Op::from_text(mnemonic, &[]).ok()
}
