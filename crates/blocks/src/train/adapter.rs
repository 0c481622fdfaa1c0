//! Low-rank adapters of linear maps: a frozen weight W acts as `W + alpha/rank B A`, and A and B train.
//!
//! # Source
//! Hu et al. 2021, arXiv 2106.09685, section 4.1.

use crate::model::Lm;
use monopass_ir::{DType, GraphBuilder, Tensor};

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
        g.fail(format!("adapter: no linear map's weight is called {:?}", adapter.weight), "adapt in_proj, out_proj or an untied head, once each");
    }
}
