//! Parameter values before training, from a seed: the same seed gives the same bits on every machine.
//!
//! So that no system library has a say, the logarithm and the exponential are computed here from operations that IEEE 754
//! defines to the last bit.

use crate::block::{BlockConfig, BlockSizes};
use crate::config::{LmConfig, Naming};
use crate::error::ConfigErrors;
use crate::params::{ParamInfo, Role};
use indexmap::IndexMap;
use monopass_ir::TensorData;

/// Time steps that `dt_bias` starts from, as in the reference implementation.
const DT_MIN: f64 = 1e-3;
const DT_MAX: f64 = 1e-1;
const DT_FLOOR: f64 = 1e-4;
/// Decay rates that `A_log` starts from.
const A_RANGE: [f64; 2] = [1.0, 16.0];
/// Standard deviations of the embedding, and of the predecessor's convolution.
const EMBEDDING_STD: f64 = 0.02;
const PREDECESSOR_CONV_STD: f64 = 0.01;

/// Parameters of one block, in the order of [`BlockConfig::parameters`].
///
/// Under [`Naming::Mixer`] as in the reference implementation: A uniform in 1..16, `dt_bias` such that the time step is
/// log-uniform in 1e-3..1e-1, projections and convolution uniform by fan-in, norms and D one. Under
/// [`Naming::Predecessor`] as there: `A_log` and `dt_bias` 0, convolution normal with deviation 0.01. Angular rates of complex
/// states are spread evenly over a turn, over the heads; weights of ranks start at one over the rank, those of z, norms and
/// biases of B and C at one.
///
/// # Errors
/// Every inconsistency of the configuration.
pub fn block(config: &(impl Clone + Into<BlockConfig>), seed: u64) -> Result<IndexMap<String, TensorData>, ConfigErrors> {
    let config: BlockConfig = config.clone().into();
    fill(&Scales::new(&config.sizes()?, 1), &config.parameters("")?, seed)
}

/// Parameters of a model, in the order of [`LmConfig::parameters`]; each layer as [`block`], with `out_proj` divided by the
/// square root of the number of layers, the embedding normal with deviation 0.02.
///
/// # Errors
/// Every inconsistency of the configuration.
pub fn lm(config: &LmConfig, seed: u64) -> Result<IndexMap<String, TensorData>, ConfigErrors> {
    fill(&Scales::new(&config.sizes()?, config.n_layer), &config.parameters()?, seed)
}

/// Whose initial values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Those of the reference implementation.
    Official,
    /// The predecessor's: slow to train, kept for comparison.
    Predecessor,
}

/// As [`lm`], with the values of `scheme` whatever the parameters are called.
///
/// # Errors
/// Every inconsistency of the configuration.
pub fn lm_as(config: &LmConfig, seed: u64, scheme: Scheme) -> Result<IndexMap<String, TensorData>, ConfigErrors> {
    let scales = Scales { is_predecessor: scheme == Scheme::Predecessor, ..Scales::new(&config.sizes()?, config.n_layer) };
    fill(&scales, &config.parameters()?, seed)
}

fn fill(scales: &Scales, params: &[ParamInfo], seed: u64) -> Result<IndexMap<String, TensorData>, ConfigErrors> {
    let mut random = Random::new(seed);
    let mut tensors = IndexMap::with_capacity(params.len());
    for param in params {
        let values = scales.values(param, &mut random);
        let Ok(tensor) = TensorData::f32(param.shape.clone(), values) else { continue };
        tensors.insert(param.name.clone(), tensor);
    }
    Ok(tensors)
}

/// What the distributions depend on.
struct Scales {
    is_predecessor: bool,
    /// Bounds of the projections and the convolution.
    by_model: f64,
    by_inner: f64,
    by_taps: f64,
}

impl Scales {
    fn new(sizes: &BlockSizes<'_>, n_layer: usize) -> Self {
        let (is_predecessor, d_model, d_conv) = match sizes {
            BlockSizes::Mamba2(config, _) => (config.naming == Naming::Predecessor, config.d_model, config.d_conv),
            BlockSizes::Mamba3(config, _) => (false, config.d_model, 1),
        };
        let by_inner = by_fan_in(sizes.d_inner()) / ratio(n_layer).sqrt();
        Self { is_predecessor, by_model: by_fan_in(d_model), by_inner, by_taps: by_fan_in(d_conv) }
    }

    fn values(&self, param: &ParamInfo, random: &mut Random) -> Vec<f32> {
        let n_elems: usize = param.shape.iter().product();
        let mut draw = |value: &mut dyn FnMut(&mut Random) -> f64| -> Vec<f32> {
            #[expect(clippy::cast_possible_truncation, reason = "parameters are f32")]
            (0..n_elems).map(|_| value(random) as f32).collect()
        };
        match param.role {
            Role::PreNorm | Role::Norm | Role::FinalNorm | Role::DSkip => vec![1.0; n_elems],
            Role::BNorm | Role::CNorm | Role::BBias | Role::CBias | Role::MimoZ => vec![1.0; n_elems],
            Role::MimoX | Role::MimoO => draw(&mut |_| 1.0 / ratio(param.shape.get(1).copied().unwrap_or(1))),
            Role::InitStates => vec![0.0; n_elems],
            Role::ConvBias | Role::DtBias if self.is_predecessor => vec![0.0; n_elems],
            Role::Conv if self.is_predecessor => draw(&mut |r| PREDECESSOR_CONV_STD * r.normal()),
            Role::InProj | Role::InProjBias => draw(&mut |r| r.uniform(-self.by_model, self.by_model)),
            Role::OutProj | Role::OutProjBias => draw(&mut |r| r.uniform(-self.by_inner, self.by_inner)),
            Role::Conv | Role::ConvBias => draw(&mut |r| r.uniform(-self.by_taps, self.by_taps)),
            Role::ALog => {
                let mut rate = |r: &mut Random| if self.is_predecessor { 0.0 } else { ln(r.uniform(A_RANGE[0], A_RANGE[1])) };
                let &[nheads, 2] = param.shape.as_slice() else { return draw(&mut rate) };
                let mut entry = 0usize;
                draw(&mut |r| {
                    entry += 1;
                    if entry % 2 == 1 { rate(r) } else { std::f64::consts::TAU * ratio(entry / 2 - 1) / ratio(nheads) }
                })
            }
            Role::DtBias => draw(&mut |r| dt_bias(r)),
            Role::Embedding | Role::Head => draw(&mut |r| EMBEDDING_STD * r.normal()),
        }
    }
}

/// The value that softplus takes to a log-uniform time step.
fn dt_bias(random: &mut Random) -> f64 {
    let dt = exp(random.uniform(ln(DT_MIN), ln(DT_MAX))).max(DT_FLOOR);
    dt + ln(1.0 - exp(-dt))
}

/// Bound of the uniform distribution that a linear map or convolution over `n` inputs starts from.
pub(crate) fn by_fan_in(n: usize) -> f64 {
    1.0 / ratio(n).sqrt()
}

#[expect(clippy::cast_precision_loss, reason = "sizes are below 2^32")]
const fn ratio(n: usize) -> f64 {
    n as f64
}

/// Splitmix64, by Vigna (public domain): a counter through a mixing function. Equal seeds give equal numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    spare: Option<f64>,
}

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed, spare: None }
    }

    const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A whole number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n.max(1) as u64)).unwrap_or(0)
    }

    /// Uniform in `lo..hi`, by the upper 53 bits.
    pub(crate) fn uniform(&mut self, lo: f64, hi: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        lo + (hi - lo) * unit
    }

    /// Standard normal, by the polar method, which needs no sine.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (self.uniform(-1.0, 1.0), self.uniform(-1.0, 1.0));
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * ln(square) / square).sqrt();
                self.spare = Some(y * factor);
                return x * factor;
            }
        }
    }
}

/// Natural logarithm of a positive normal number, to about 1e-15.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = i32::try_from((bits >> 52) & 0x7FF).unwrap_or(0) - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // Mantissa in 2/3..4/3, so that the series below converges fast.
    let (mantissa, exponent) = if mantissa > 4.0 / 3.0 { (mantissa / 2.0, exponent + 1) } else { (mantissa, exponent) };
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..16).rev().fold(0.0, |sum, k| sum * s * s + 1.0 / f64::from(2 * k + 1));
    2.0 * s * series + f64::from(exponent) * std::f64::consts::LN_2
}

/// `e^x` for moderate x, to about 1e-15 relative.
fn exp(x: f64) -> f64 {
    // 2^-10 of the exponent by its series, then squared ten times.
    let small = x / 1024.0;
    let mut power = (1..=12).rev().fold(1.0, |sum, k| 1.0 + sum * small / f64::from(k));
    for _ in 0..10 {
        power *= power;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mamba2Config;

    #[test]
    fn own_functions_agree_with_the_library() {
        for x in [1e-4, 0.001, 0.3, 0.999, 1.0, 1.5, 7.0, 16.0, 1e6] {
            assert!((ln(x) - f64::ln(x)).abs() < 1e-14 * (1.0 + f64::ln(x).abs()), "ln {x}");
        }
        for x in [-7.0, -0.1, -1e-4, 0.0, 0.5, 2.3] {
            assert!((exp(x) / f64::exp(x) - 1.0).abs() < 1e-12, "exp {x}");
        }
    }

    #[test]
    fn values_lie_where_the_reference_puts_them() {
        let config = Mamba2Config { headdim: 4, ..Mamba2Config::new(128) };
        let tensors = block(&config, 7).unwrap();
        let get = |name: &str| tensors[name].as_f32().unwrap().to_vec();
        assert!(get("mixer.A_log").iter().all(|&a| (0.0..=16f32.ln()).contains(&a)));
        assert!(get("mixer.dt_bias").iter().all(|&b| (9.9e-4..0.1001).contains(&f64::from(b).exp().ln_1p())));
        assert!(get("mixer.in_proj.weight").iter().all(|w| w.abs() <= 1.0 / 128f32.sqrt()));
        let mean = |values: &[f32]| values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
        assert!(mean(&get("mixer.in_proj.weight")).abs() < 1e-3);
        assert_eq!(tensors.len(), config.parameters("").unwrap().len());
    }

    #[test]
    fn normals_have_mean_zero_and_deviation_one() {
        let mut random = Random::new(1);
        let draws: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 20_000.0;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn a_seed_gives_the_same_bits() {
        let config = LmConfig::new(Mamba2Config { headdim: 4, d_state: 3, ..Mamba2Config::seed(8) }, 2, 11);
        assert_eq!(lm(&config, 3).unwrap(), lm(&config, 3).unwrap());
        assert_ne!(lm(&config, 3).unwrap(), lm(&config, 4).unwrap());
        // Known values, so that a change of the generator or of a machine shows.
        assert_eq!(Random::new(0).next(), 0xE220_A839_7B1D_CDAF);
    }
}
