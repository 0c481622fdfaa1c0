//! The op table: every op of the graph, its operands, attributes, results, class and accuracy.
//!
//! One row makes the enum variant, the builder method, the mnemonic, printing, parsing, the documentation list and
//! the entry that the random-graph generator reads. What an op means stands in [`crate::ops`].

use crate::builder::{GraphBuilder, Tensor};
use crate::types::DType;
use std::fmt;

/// What passes ask about an op instead of naming it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Each result element depends on the operand elements at the same (broadcast) index.
    Elementwise,
    /// Each result element is one operand element, or a fill, at another index.
    Movement,
    /// Combines the elements along axes into one.
    Reduction,
    /// A running combination along an axis.
    Prefix,
    /// A matrix product.
    Contraction,
    /// Reads rows by an index tensor, or adds to them.
    Index,
    /// A short window along an axis, with a state.
    Conv,
    /// A linear recurrence along the length axis, with a state.
    Scan,
    /// The adjoint of such a recurrence.
    ScanAdjoint,
    /// Chooses one index of each row.
    Choice,
}

/// How exactly an executor has to agree with the interpreter; tests take their tolerance from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accuracy {
    /// The same bits: integers, comparisons, movement.
    Exact,
    /// A few units in the last place an element.
    Rounds,
    /// Error grows with the number of terms.
    Sums,
}

/// How many values an operand stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// Exactly one.
    Value,
    /// One or none; none prints as `_`.
    Option,
    /// One or more; only as the last operand.
    List,
}

/// Name and kind of an operand.
#[derive(Clone, Copy, Debug)]
pub struct OperandSpec {
    /// Name in messages and documentation.
    pub name: &'static str,
    /// How many values.
    pub kind: OperandKind,
}

/// An attribute as it stands in the text form.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a point or an exponent.
    Float(f64),
    /// Whole numbers in brackets.
    List(Vec<i64>),
    /// A bare word, such as an element type.
    Word(String),
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(v) => write!(f, "{v}"),
            Self::Int(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{v:?}"),
            Self::List(v) => write!(f, "{v:?}"),
            Self::Word(v) => f.write_str(v),
        }
    }
}

/// A Rust type that an attribute can have.
pub trait Attr: Sized + Clone + PartialEq {
    /// What the text form accepts, for messages.
    const EXPECTS: &'static str;
    /// To the text form.
    fn to_literal(&self) -> Literal;
    /// From the text form.
    fn from_literal(literal: &Literal) -> Option<Self>;
}

impl Attr for bool {
    const EXPECTS: &'static str = "true or false";
    fn to_literal(&self) -> Literal {
        Literal::Bool(*self)
    }
    fn from_literal(literal: &Literal) -> Option<Self> {
        if let Literal::Bool(v) = literal { Some(*v) } else { None }
    }
}

impl Attr for usize {
    const EXPECTS: &'static str = "a whole number that is not negative";
    fn to_literal(&self) -> Literal {
        Literal::Int(i64::try_from(*self).unwrap_or(i64::MAX))
    }
    fn from_literal(literal: &Literal) -> Option<Self> {
        if let Literal::Int(v) = literal { Self::try_from(*v).ok() } else { None }
    }
}

impl Attr for f64 {
    const EXPECTS: &'static str = "a finite number";
    fn to_literal(&self) -> Literal {
        Literal::Float(*self)
    }
    fn from_literal(literal: &Literal) -> Option<Self> {
        match literal {
            Literal::Float(v) if v.is_finite() => Some(*v),
            #[expect(clippy::cast_precision_loss, reason = "a literal this large has no exact meaning anyway")]
            Literal::Int(v) => Some(*v as Self),
            Literal::Float(_) | Literal::Bool(_) | Literal::List(_) | Literal::Word(_) => None,
        }
    }
}

impl Attr for Vec<usize> {
    const EXPECTS: &'static str = "whole numbers in brackets, none of them negative";
    fn to_literal(&self) -> Literal {
        Literal::List(self.iter().map(|&v| i64::try_from(v).unwrap_or(i64::MAX)).collect())
    }
    fn from_literal(literal: &Literal) -> Option<Self> {
        let Literal::List(values) = literal else { return None };
        values.iter().map(|&v| usize::try_from(v).ok()).collect()
    }
}

impl Attr for DType {
    const EXPECTS: &'static str = "one of f32, f16, bf16, i32, u32, bool";
    fn to_literal(&self) -> Literal {
        Literal::Word(self.name().to_owned())
    }
    fn from_literal(literal: &Literal) -> Option<Self> {
        if let Literal::Word(name) = literal { Self::from_name(name) } else { None }
    }
}

/// Why a mnemonic with attributes is not an op.
#[derive(Clone, Debug, PartialEq)]
pub enum OpTextError {
    /// No op has this mnemonic.
    UnknownOp,
    /// The op has no such attribute.
    UnknownAttr {
        /// The attribute as written.
        name: String,
        /// The attributes that the op has.
        known: Vec<&'static str>,
    },
    /// The attribute has a literal of another type.
    BadAttr {
        /// The attribute.
        name: &'static str,
        /// What it expects.
        expects: &'static str,
    },
    /// An attribute without default is missing.
    MissingAttr {
        /// The attribute.
        name: &'static str,
    },
}

/// A row of the op table, as data.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// Mnemonic in the text form.
    pub mnemonic: &'static str,
    /// The row's documentation.
    pub doc: &'static str,
    /// Operands in order.
    pub operands: &'static [OperandSpec],
    /// Attribute names in order.
    pub attrs: &'static [&'static str],
    /// Result names in order.
    pub results: &'static [&'static str],
    /// Class.
    pub class: Class,
    /// Accuracy.
    pub accuracy: Accuracy,
}

macro_rules! operand_ty {
    ($g:lifetime Value) => { Tensor<$g> };
    ($g:lifetime Option) => { Option<Tensor<$g>> };
    ($g:lifetime List) => { &[Tensor<$g>] };
}

macro_rules! operand_push {
    ($v:ident, $x:ident Value) => {
        $v.push(Some($x))
    };
    ($v:ident, $x:ident Option) => {
        $v.push($x)
    };
    ($v:ident, $x:ident List) => {
        $v.extend($x.iter().copied().map(Some))
    };
}

macro_rules! result_ty {
    ($g:lifetime $r:ident) => { Tensor<$g> };
    ($g:lifetime $($r:ident)+) => { ($(result_one!($g $r),)+) };
}

macro_rules! result_one {
    ($g:lifetime $r:ident) => { Tensor<$g> };
}

macro_rules! result_take {
    ($v:ident $r:ident) => { $v.next().unwrap_or_default_result() };
    ($v:ident $($r:ident)+) => { ($( { let $r = $v.next().unwrap_or_default_result(); $r }, )+) };
}

macro_rules! attr_default {
    ($args:ident $name:ident) => {
        return Err(OpTextError::MissingAttr { name: stringify!($name) })
    };
    ($args:ident $name:ident $default:expr) => {
        $default
    };
}

macro_rules! builder_method {
    ($(#[doc = $doc:literal])+ $method:ident $variant:ident ($first:ident: Value $(, $x:ident: $k:ident)*) { $($a:ident: $t:ty),* } ($($r:ident)+)) => {
        impl<'g> Tensor<'g> {
            $(#[doc = $doc])+
            #[track_caller]
            #[must_use]
            #[allow(
                clippy::too_many_arguments,
                clippy::should_implement_trait,
                reason = "operands and attributes of the op, in the order of the table; the operators exist, too"
            )]
            pub fn $method(self $(, $x: operand_ty!('g $k))* $(, $a: impl Into<$t>)*) -> result_ty!('g $($r)+) {
                #[allow(unused_mut, reason = "an op of one operand pushes no more")]
                let mut operands = vec![Some(self)];
                $(operand_push!(operands, $x $k);)*
                let mut results = Results::new(self.builder(), self.builder().apply(Op::$variant { $($a: $a.into()),* }, &operands));
                result_take!(results $($r)+)
            }
        }
    };
    ($(#[doc = $doc:literal])+ $method:ident $variant:ident ($($x:ident: $k:ident),*) { $($a:ident: $t:ty),* } ($($r:ident)+)) => {
        impl GraphBuilder {
            $(#[doc = $doc])+
            #[track_caller]
            #[must_use]
            pub fn $method<'g>(&'g self $(, $x: operand_ty!('g $k))* $(, $a: impl Into<$t>)*) -> result_ty!('g $($r)+) {
                #[allow(unused_mut, reason = "an op without operands pushes none")]
                let mut operands: Vec<Option<Tensor<'g>>> = Vec::new();
                $(operand_push!(operands, $x $k);)*
                let mut results = Results::new(self, self.apply(Op::$variant { $($a: $a.into()),* }, &operands));
                result_take!(results $($r)+)
            }
        }
    };
}

/// Hands out the results of one application; a failed application gives poisoned tensors.
struct Results<'g> {
    builder: &'g GraphBuilder,
    values: std::vec::IntoIter<crate::graph::ValueId>,
}

struct NextResult<'g>(&'g GraphBuilder, Option<crate::graph::ValueId>);

impl<'g> Results<'g> {
    fn new(builder: &'g GraphBuilder, values: Vec<crate::graph::ValueId>) -> Self {
        Self { builder, values: values.into_iter() }
    }
    fn next(&mut self) -> NextResult<'g> {
        NextResult(self.builder, self.values.next())
    }
}

impl<'g> NextResult<'g> {
    fn unwrap_or_default_result(self) -> Tensor<'g> {
        Tensor::from_parts(self.0, self.1)
    }
}

macro_rules! op_table {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident $method:ident ($($x:ident: $k:ident),*) { $($a:ident: $t:ty $(= $d:expr)?),* } -> ($($r:ident),+) $class:ident, $acc:ident;
    )+) => {
        /// An op with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the attributes are documented with their row")]
        pub enum Op {
            $( $(#[doc = $doc])+ $variant { $($a: $t),* }, )+
        }

        /// Every row of the op table.
        pub const OPS: &[OpInfo] = &[$(OpInfo {
            mnemonic: stringify!($method),
            doc: concat!($($doc, "\n"),+),
            operands: &[$(OperandSpec { name: stringify!($x), kind: OperandKind::$k }),*],
            attrs: &[$(stringify!($a)),*],
            results: &[$(stringify!($r)),+],
            class: Class::$class,
            accuracy: Accuracy::$acc,
        }),+];

        impl Op {
            /// The op's row.
            #[must_use]
            pub fn info(&self) -> &'static OpInfo {
                let mnemonic = self.mnemonic();
                OPS.iter().find(|info| info.mnemonic == mnemonic).unwrap_or(&OPS[0])
            }

            /// Name in the text form.
            #[must_use]
            pub const fn mnemonic(&self) -> &'static str {
                match self { $( Self::$variant { .. } => stringify!($method), )+ }
            }

            /// Class, which passes ask about.
            #[must_use]
            pub const fn class(&self) -> Class {
                match self { $( Self::$variant { .. } => Class::$class, )+ }
            }

            /// Accuracy, from which tests take their tolerance.
            #[must_use]
            pub const fn accuracy(&self) -> Accuracy {
                match self { $( Self::$variant { .. } => Accuracy::$acc, )+ }
            }

            /// Attributes in the order of the row, each with whether it has its default.
            #[must_use]
            pub fn attrs(&self) -> Vec<(&'static str, Literal, bool)> {
                match self {
                    $( Self::$variant { $($a),* } => vec![$((
                        stringify!($a),
                        Attr::to_literal($a),
                        false $(|| *$a == { let default: $t = $d; default })?,
                    )),*], )+
                }
            }

            /// The op called `mnemonic` with the attributes given.
            ///
            /// # Errors
            /// [`OpTextError`] says which name or literal is wrong.
            pub fn from_text(mnemonic: &str, args: &[(String, Literal)]) -> Result<Self, OpTextError> {
                match mnemonic {
                    $( stringify!($method) => {
                        let known: &[&'static str] = &[$(stringify!($a)),*];
                        if let Some((name, _)) = args.iter().find(|(name, _)| !known.contains(&name.as_str())) {
                            return Err(OpTextError::UnknownAttr { name: name.clone(), known: known.to_vec() });
                        }
                        Ok(Self::$variant { $($a: match args.iter().find(|(name, _)| name == stringify!($a)) {
                            Some((_, literal)) => <$t as Attr>::from_literal(literal).ok_or(OpTextError::BadAttr {
                                name: stringify!($a), expects: <$t as Attr>::EXPECTS })?,
                            None => attr_default!(args $a $($d)?),
                        }),* })
                    } )+
                    _ => Err(OpTextError::UnknownOp),
                }
            }
        }

        $( builder_method! { $(#[doc = $doc])+ $method $variant ($($x: $k),*) { $($a: $t),* } ($($r)+) } )+
    };
}

op_table! {
    // -- elementwise, one operand -------------------------------------------------------------------------------
    /// `-x`.
    Neg neg(x: Value) {} -> (y) Elementwise, Exact;
    /// `|x|`.
    Abs abs(x: Value) {} -> (y) Elementwise, Exact;
    /// `e^x`.
    Exp exp(x: Value) {} -> (y) Elementwise, Rounds;
    /// Natural logarithm; `x` positive.
    Log log(x: Value) {} -> (y) Elementwise, Rounds;
    /// Square root; `x` not negative.
    Sqrt sqrt(x: Value) {} -> (y) Elementwise, Rounds;
    /// `1 / sqrt(x)`; `x` positive.
    Rsqrt rsqrt(x: Value) {} -> (y) Elementwise, Rounds;
    /// `1 / (1 + e^-x)`, from `exp(-|x|)` so that it never overflows.
    Sigmoid sigmoid(x: Value) {} -> (y) Elementwise, Rounds;
    /// `x * sigmoid(x)`.
    Silu silu(x: Value) {} -> (y) Elementwise, Rounds;
    /// `log(1 + e^x)` as `max(x, 0) + log1p(e^-|x|)`: right on both tails.
    Softplus softplus(x: Value) {} -> (y) Elementwise, Rounds;
    /// Hyperbolic tangent.
    Tanh tanh(x: Value) {} -> (y) Elementwise, Rounds;
    /// Sine of radians, with range reduction; `|x| < 2000` keeps 2e-7 absolute.
    Sin sin(x: Value) {} -> (y) Elementwise, Rounds;
    /// Cosine of radians, with range reduction; `|x| < 2000` keeps 2e-7 absolute.
    Cos cos(x: Value) {} -> (y) Elementwise, Rounds;
    /// Largest whole number that is not above `x`.
    Floor floor(x: Value) {} -> (y) Elementwise, Exact;
    /// Logical not of a bool.
    Not not(x: Value) {} -> (y) Elementwise, Exact;
    /// `x` within `[lo, hi]`; the default upper limit is the largest f32, so "no limit" needs no infinity.
    Clamp clamp(x: Value) { lo: f64 = -3.402_823_466_385_288_6e38, hi: f64 = 3.402_823_466_385_288_6e38 } -> (y) Elementwise, Exact;
    /// `x` as another element type: floats round to nearest even, float to integer truncates and saturates,
    /// bool gives 0 or 1, and anything not zero gives true.
    Cast cast(x: Value) { dtype: DType } -> (y) Elementwise, Exact;

    // -- elementwise, two and three operands (shapes broadcast) -------------------------------------------------
    /// `lhs + rhs`.
    Add add(lhs: Value, rhs: Value) {} -> (out) Elementwise, Rounds;
    /// `lhs - rhs`.
    Sub sub(lhs: Value, rhs: Value) {} -> (out) Elementwise, Rounds;
    /// `lhs * rhs`.
    Mul mul(lhs: Value, rhs: Value) {} -> (out) Elementwise, Rounds;
    /// `lhs / rhs`; floats only.
    Div div(lhs: Value, rhs: Value) {} -> (out) Elementwise, Rounds;
    /// The larger of the two.
    Max max(lhs: Value, rhs: Value) {} -> (out) Elementwise, Exact;
    /// The smaller of the two.
    Min min(lhs: Value, rhs: Value) {} -> (out) Elementwise, Exact;
    /// `lhs == rhs`, a bool.
    Eq eq(lhs: Value, rhs: Value) {} -> (out) Elementwise, Exact;
    /// `lhs != rhs`, a bool.
    Ne ne(lhs: Value, rhs: Value) {} -> (out) Elementwise, Exact;
    /// `lhs < rhs`, a bool.
    Lt lt(lhs: Value, rhs: Value) {} -> (out) Elementwise, Exact;
    /// `lhs <= rhs`, a bool.
    Le le(lhs: Value, rhs: Value) {} -> (out) Elementwise, Exact;
    /// Logical and of bools.
    And and(lhs: Value, rhs: Value) {} -> (out) Elementwise, Exact;
    /// Logical or of bools.
    Or or(lhs: Value, rhs: Value) {} -> (out) Elementwise, Exact;
    /// `on_true` where `cond` holds, else `on_false`; all three broadcast.
    Select select(cond: Value, on_true: Value, on_false: Value) {} -> (out) Elementwise, Exact;

    // -- movement ------------------------------------------------------------------------------------------------
    /// The same elements in row-major order under another shape.
    Reshape reshape(x: Value) { shape: Vec<usize> } -> (y) Movement, Exact;
    /// Axis `i` of the result is axis `axes[i]` of `x`.
    Permute permute(x: Value) { axes: Vec<usize> } -> (y) Movement, Exact;
    /// Elements `starts[i]..ends[i]` of each axis.
    Slice slice(x: Value) { starts: Vec<usize>, ends: Vec<usize> } -> (y) Movement, Exact;
    /// `x` repeated to `shape`, by the broadcasting rule.
    Broadcast broadcast(x: Value) { shape: Vec<usize> } -> (y) Movement, Exact;
    /// `x` with `lo[i]` elements before and `hi[i]` after each axis, filled with `value`.
    Pad pad(x: Value) { lo: Vec<usize>, hi: Vec<usize>, value: f64 = 0.0 } -> (y) Movement, Exact;
    /// The parts one after another along `axis`; all other sizes equal.
    Concat concat(parts: List) { axis: usize } -> (out) Movement, Exact;
    /// Whole numbers 0, 1, … along `axis` of `shape`, as `dtype` (i32, u32 or f32).
    Iota iota() { shape: Vec<usize>, axis: usize, dtype: DType } -> (out) Movement, Exact;

    // -- reductions and prefixes ---------------------------------------------------------------------------------
    /// Sum over `axes`, which stay as size 1 with `keepdims`. Over no elements: 0.
    Sum sum(x: Value) { axes: Vec<usize>, keepdims: bool = false } -> (y) Reduction, Sums;
    /// Mean over `axes`, which may not be empty of elements.
    Mean mean(x: Value) { axes: Vec<usize>, keepdims: bool = false } -> (y) Reduction, Sums;
    /// Maximum over `axes`, which may not be empty of elements.
    ReduceMax reduce_max(x: Value) { axes: Vec<usize>, keepdims: bool = false } -> (y) Reduction, Exact;
    /// Index (u32) of the first largest element along `axis`, which goes away.
    Argmax argmax(x: Value) { axis: usize } -> (index) Reduction, Exact;
    /// Running sum along `axis`, from the end with `reverse`; each element includes itself.
    ///
    /// Shapes: `x [A.., N, I..]` with `N` at `axis`, `reset [A.., N]` bool → as `x`.
    ///
    /// Where `reset` holds, nothing is added across the border between that place and the one before it, in either
    /// direction. With a `period` above 0 (floats only) sums count modulo it, within half of it on either side of 0:
    /// a running angle keeps its digits however long the axis is. The `n = floor(y / period + 0.5)` periods in a sum are
    /// taken off in two parts, `y - n head - n tail` with 12 significant bits in `head` and the rest of the period in `tail`,
    /// so that many turns of 2π do not add up the error of its rounding, and a period of 1 wraps without any.
    Cumsum cumsum(x: Value, reset: Option) { axis: usize, reverse: bool = false, period: f64 = 0.0 } -> (y) Prefix, Sums;

    // -- contractions, index, conv, scan -------------------------------------------------------------------------
    /// Matrix product over the last two axes; leading axes broadcast.
    ///
    /// Shapes: `lhs [.., M, K]` (`[.., K, M]` with `transpose_a`), `rhs [.., K, N]` (`[.., N, K]` with `transpose_b`) → `[.., M, N]`.
    /// Sums in f32 whatever the storage type; the result is f32.
    MatMul matmul(lhs: Value, rhs: Value) { transpose_a: bool = false, transpose_b: bool = false } -> (out) Contraction, Sums;
    /// Rows of `table` by index.
    ///
    /// Shapes: `table [V, ..]`, `ids [I..]` (i32 or u32) → `[I.., ..]`. An index outside `0..V` reads the nearest row
    /// on a device and is an error in the interpreter.
    Gather gather(table: Value, ids: Value) {} -> (out) Index, Exact;
    /// Sums of `updates` by row, the adjoint of `gather`.
    ///
    /// Shapes: `updates [I.., ..]` of floats, `ids [I..]` (i32 or u32) → `[rows, ..]`.
    /// Row `r` is the sum of the updates whose id is `r`, in ascending order of their positions; rows without any are 0.
    /// Sums in f32 whatever the storage type; the result is f32. Where the positions are many and the result is small, they are
    /// summed in pieces whose sums are then added in order. An id outside `0..rows` adds to the nearest row on a device, the one
    /// that `gather` reads there, and is an error in the interpreter.
    ScatterAdd scatter_add(updates: Value, ids: Value) { rows: usize } -> (out) Index, Sums;
    /// A token for each row of logits, drawn from what the row's settings keep of its distribution.
    ///
    /// Shapes: `logits [.., V]`, `settings [.., 4]` = temperature, top k, top p and min p, `uniform [..]` in `[0, 1)`, all f32 →
    /// `[..]` u32 below V, or V for none.
    ///
    /// Where the temperature is not above zero, the largest logit, the lowest index of equal ones. Else the weights are
    /// `w = exp((logit - largest) / temperature)`, and of them are kept, one rule after the other: logits not below the `top_k`-th
    /// largest, where `top_k` is from 1 to V - 1; of those, not below the last of the largest whose weights together reach `top_p` of
    /// what is left, where `top_p` lies between 0 and 1; of those, weights of at least `min_p`. Equal logits are kept or
    /// dropped together, and the largest is always kept. The token is the first one in order of the indices
    /// at which the sum of the kept weights exceeds `uniform` times their total. A row whose largest logit is not finite (NaN
    /// counts as larger than all) has no token, whatever the settings: V.
    ///
    /// Source: the order and the meaning of the rules are those of the logits processors of Hugging Face transformers.
    Sample sample(logits: Value, settings: Value, uniform: Value) {} -> (index) Choice, Sums;
    /// Causal depthwise convolution along the length, with the window carried over.
    ///
    /// Shapes: `x [B, L, C]`, `w [C, K]`, `bias [C]`, `state [B, C, K-1]`, `reset [B, L]` bool → `y [B, L, C]`, `state_out [B, C, K-1]`.
    ///
    /// `y[t] = bias + Σ_j w[j] x[t-(K-1)+j]`: the newest tap stands last, or first with `newest_first`
    /// (`y[t] = bias + Σ_k w[k] x[t-k]`). `state` holds the `K-1` inputs before `t = 0`, newest last; absent it is zero.
    /// Where `reset` holds at `t > 0` a new sequence starts: taps see nothing from before it, and `state_out` is zero there.
    Conv1d conv1d(x: Value, w: Value, bias: Option, state: Option, reset: Option) { newest_first: bool = false } -> (y, state_out) Conv, Sums;
    /// Linear recurrence with R ranks, the one scan under every block.
    ///
    /// Shapes: `log_decay [B, L, H]`, `v [B, L, H, R, P]`, `k` and `q [B, L, G, R, N]` with `G` dividing `H`,
    /// `s0 [B, H, P, N]`, `reset [B, L]` bool, `weight` and `own_weight [B, L, H]` → `y [B, L, H, R, P]`, `s_last [B, H, P, N]`.
    /// All but `reset` are f32; another type or shape is an error, and so are groups that do not divide the heads.
    ///
    /// `S_t = exp(log_decay_t) S_{t-1} + weight_t Σ_r v_{t,r} ⊗ k_{t,r}`, and
    /// `y_{t,r} = exp(log_decay_t) S_{t-1} q_{t,r} + own_weight_t Σ_s (q_{t,r} · k_{t,s}) v_{t,s}`; head `h` reads group `h / (H/G)`.
    /// Absent `s0` is zero, absent `weight` one. Absent `own_weight` is `weight`, so that `y_{t,r} = S_t q_{t,r}`; another one
    /// lets a token enter the state by more than its own output has of it, as rules that look a step ahead need.
    /// Where `reset` holds at `t > 0` the state is dropped before the token. `L = 0` returns `s0`.
    /// `log_decay` is never positive in use; the result does not depend on `chunk_size` (0: the planner chooses).
    ///
    /// Source: Dao and Gu 2024, arXiv 2405.21060, section 6; the two weights: the rule of Lahoti et al. 2026, arXiv 2603.15569,
    /// with each step's share of the token before taken one token ahead.
    Scan scan(log_decay: Value, v: Value, k: Value, q: Value, s0: Option, reset: Option, weight: Option, own_weight: Option) {
        chunk_size: usize = 0
    } -> (y, s_last) Scan, Sums;
    /// Adjoint of [`scan`](Tensor::scan): what a small change of each of its operands adds to `Σ dy · y + Σ ds_last · s_last`.
    ///
    /// Shapes: operands as of `scan`, `dy [B, L, H, R, P]` and `ds_last [B, H, P, N]` as its results → each result as the operand
    /// that it is named after, all f32; another type or shape is an error.
    ///
    /// `d_k` and `d_q` are sums over the heads of a group. Absent `ds_last` is zero. `d_s0` and `d_weight` are there whether or not
    /// `s0` and `weight` are: at a state of zero and at weight one. Absent `own_weight` is `weight`; then `d_weight` is the derivative
    /// through both and `d_own_weight` is zero. `L = 0` returns `ds_last` as `d_s0`.
    /// Nothing is divided by a decay, and `d_log_decay` is no difference of sums, so that strong decays keep its digits.
    /// The results do not depend on `chunk_size` (0: the planner chooses).
    ///
    /// With `a_t = exp(log_decay_t)`, `Z_t = a_t S_{t-1}` (zero at a reset) and `Ŝ_t` the adjoint of `S_t`, which starts at `ds_last`:
    /// `dZ_t = Ŝ_t + Σ_r dy_{t,r} ⊗ q_{t,r}`, `Ŝ_{t-1} = a_t dZ_t` (zero at a reset), `d_log_decay_t = ⟨dZ_t, Z_t⟩`;
    /// `d_v_r = weight Ŝ k_r + own_weight Σ_s (q_s · k_r) dy_s`, `d_k_r = weight Ŝᵀ v_r + own_weight Σ_s (dy_s · v_r) q_s`,
    /// `d_q_r = Zᵀ dy_r + own_weight Σ_s (dy_r · v_s) k_s`, `d_weight = Σ_r ⟨Ŝ, v_r ⊗ k_r⟩`,
    /// `d_own_weight = Σ_{r,s} (q_r · k_s) (dy_r · v_s)`, each of a token `t`; the last `Ŝ` is `d_s0`.
    ///
    /// Source: the chain rule on the two formulas of `scan`.
    ScanGrad scan_grad(
        log_decay: Value, v: Value, k: Value, q: Value, dy: Value, s0: Option, reset: Option, weight: Option, own_weight: Option,
        ds_last: Option
    ) {
        chunk_size: usize = 0
    } -> (d_log_decay, d_v, d_k, d_q, d_s0, d_weight, d_own_weight) ScanAdjoint, Sums;
}
