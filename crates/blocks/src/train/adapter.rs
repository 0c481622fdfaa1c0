//! Low-rank adapters of linear maps: a frozen weight W acts as `W + alpha/rank B A`, and A and B train.
//!
//! # Source
//! Hu et al. 2021, arXiv 2106.09685, section 4.1.

use crate::config::LmConfig;
use crate::error::ConfigErrors;
use crate::init::{Random, by_fan_in};
use crate::model::Lm;
use indexmap::IndexMap;
use monopass_ir::error::{BuildErrors, EvalError};
use monopass_ir::eval::Interpreter;
use monopass_ir::{DType, GraphBuilder, Tensor, TensorData};

/// What the first factor's name has after the weight's.
const A_SUFFIX: &str = ".lora_A";
/// What the second factor's name has after the weight's.
const B_SUFFIX: &str = ".lora_B";

/// A low-rank adapter of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The weight, `[out, in]`.
    pub weight: String,
    /// Rows of A `[rank, in]` and columns of B `[out, rank]`.
    pub rank: usize,
    /// The product of B and A counts `alpha / rank`.
    pub alpha: f64,
}

impl Adapter {
    /// Names of A and B.
    #[must_use]
    pub fn names(&self) -> [String; 2] {
        [A_SUFFIX, B_SUFFIX].map(|suffix| format!("{}{suffix}", self.weight))
    }

    /// Shapes of A and B for a weight `[out, in]`.
    #[must_use]
    pub const fn shapes(&self, [n_out, n_in]: [usize; 2]) -> [[usize; 2]; 2] {
        [[self.rank, n_in], [n_out, self.rank]]
    }

    /// Whether `name` is that of A or B.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.names().iter().any(|own| own == name)
    }

    /// `W + alpha/rank B A`.
    #[track_caller]
    #[must_use]
    pub fn merged<'g>(&self, weight: Tensor<'g>, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
        let scale = self.alpha / self.rank.max(1) as f64;
        weight + b.matmul(a, false, false) * scale
    }

    /// The merged weight, with A and B declared as params.
    #[track_caller]
    fn declare<'g>(&self, g: &'g GraphBuilder, weight: Tensor<'g>) -> Tensor<'g> {
        let &[n_out, n_in] = weight.shape().as_slice() else {
            g.fail(format!("adapter: {} is {}, not a matrix", self.weight, weight.ty()), "adapt the weights of linear maps");
            return weight;
        };
        if self.rank == 0 {
            g.fail(format!("adapter: rank 0 of {}", self.weight), "give a rank of at least 1");
            return weight;
        }
        let (names, shapes) = (self.names(), self.shapes([n_out, n_in]));
        let [a, b] = [0, 1].map(|at| g.param(&names[at], DType::F32, shapes[at]));
        self.merged(weight, a, b)
    }
}

/// Lets the adapted weights of a model act as merged ones. An adapter whose weight the model does not have, or that is none of a linear
/// map, is a mistake.
pub(super) fn adapted<'g>(g: &'g GraphBuilder, lm: &mut Lm<'g>, adapters: &[Adapter]) {
    let mut left: Vec<&Adapter> = adapters.iter().collect();
    lm.map_linears(&mut |name, weight| match left.iter().position(|adapter| adapter.weight == name) {
        Some(at) => left.remove(at).declare(g, weight),
        None => weight,
    });
    for adapter in left {
        g.fail(
            format!("adapter: no linear map's weight is called {:?}", adapter.weight),
            "adapt in_proj, out_proj or an untied head, once each",
        );
    }
}

/// First values of the adapters' factors: A uniform by fan-in, B zero, so that an adapted model starts as the one it adapts.
///
/// # Errors
/// [`AdapterError`] if a weight is none of the model's matrices, or the configuration does not fit together.
pub fn init_adapters(config: &LmConfig, adapters: &[Adapter], seed: u64) -> Result<IndexMap<String, TensorData>, AdapterError> {
    let params = config.parameters()?;
    let mut random = Random::new(seed);
    let mut factors = IndexMap::new();
    for adapter in adapters {
        let shape = params.iter().find(|param| param.name == adapter.weight).map(|param| param.shape.clone());
        let Some(&[n_out, n_in]) = shape.as_deref() else { return Err(AdapterError::NoMatrix { weight: adapter.weight.clone() }) };
        let bound = by_fan_in(n_in);
        let [a, b] = adapter.shapes([n_out, n_in]);
        #[expect(clippy::cast_possible_truncation, reason = "parameters are f32")]
        let drawn: Vec<f32> = (0..a.iter().product()).map(|_| random.uniform(-bound, bound) as f32).collect();
        let zeros = vec![0.0; b.iter().product()];
        for (name, shape, values) in
            adapter.names().into_iter().zip([a, b]).zip([drawn, zeros]).map(|((name, shape), values)| (name, shape, values))
        {
            if let Ok(tensor) = TensorData::f32(shape, values) {
                factors.insert(name, tensor);
            }
        }
    }
    Ok(factors)
}

/// Parameters with the adapters' factors multiplied into the weights, and without the factors.
///
/// # Errors
/// [`AdapterError`] if a weight or a factor is missing or of another shape.
pub fn merge_adapters(adapters: &[Adapter], params: &IndexMap<String, TensorData>) -> Result<IndexMap<String, TensorData>, AdapterError> {
    let mut merged = params.clone();
    for adapter in adapters {
        let missing = || AdapterError::NoMatrix { weight: adapter.weight.clone() };
        let [a, b] = adapter.names();
        let g = GraphBuilder::new("merge");
        let source = |name: &str| params.get(name).map(|tensor| g.param(name, DType::F32, tensor.shape())).ok_or_else(missing);
        g.output("merged", adapter.merged(source(&adapter.weight)?, source(&a)?, source(&b)?));
        let graph = g.finish()?;
        let mut outputs = Interpreter::new(&graph)?.run(&IndexMap::new(), params, &mut IndexMap::new())?;
        merged.insert(adapter.weight.clone(), outputs.swap_remove("merged").ok_or_else(missing)?);
        merged.shift_remove(&a);
        merged.shift_remove(&b);
    }
    Ok(merged)
}

/// Adapters that do not fit a model. The caller's fault.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// The model has no such weight, or it is no matrix, or its factors are not there.
    #[error(
        "adapter: {weight:?} is no weight of a linear map of the model, or its factors are missing\n  help: adapt in_proj or out_proj of a layer"
    )]
    NoMatrix {
        /// As given.
        weight: String,
    },
    /// The configuration does not fit together.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Weight and factors do not fit.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// A factor is of another type.
    #[error(transparent)]
    Eval(#[from] EvalError),
}
