//! A step of `AdamW` as ops, clipping by the norm of all gradients, and learning rates over time.
//!
//! What changes from step to step enters graphs as numbers, so that one plan serves a whole run; the host works them out.

use crate::error::{ConfigError, ConfigErrors};
use monopass_ir::Tensor;

/// `AdamW` with decoupled weight decay.
///
/// # Source
/// Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2, with the learning rate also before the decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the running mean of gradients, in `0..1`.
    pub beta1: f64,
    /// Decay of the running mean of their squares, in `0..1`.
    pub beta2: f64,
    /// Added to the root of the mean square; positive.
    pub eps: f64,
    /// Share of a parameter, times the learning rate, that is taken off in each step; not negative.
    pub weight_decay: f64,
}

impl Default for AdamW {
    /// What the Mamba papers train with.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }
    }
}

/// What changes from step to step; each `[]` f32.
#[derive(Clone, Copy, Debug)]
pub struct StepScalars<'g> {
    /// Learning rate.
    pub lr: Tensor<'g>,
    /// `1 - beta1^t` and `1 - beta2^t`, where `t` counts steps from 1; see [`AdamW::bias_corrections`].
    pub bias_corrections: [Tensor<'g>; 2],
    /// What gradients are multiplied by, see [`clip_scale`].
    pub clip_scale: Tensor<'g>,
}

/// What a step leaves.
#[derive(Clone, Copy, Debug)]
pub struct Stepped<'g> {
    /// The parameter.
    pub param: Tensor<'g>,
    /// Running mean of its gradients.
    pub m: Tensor<'g>,
    /// Running mean of their squares.
    pub v: Tensor<'g>,
}

impl AdamW {
    /// One step of a parameter.
    ///
    /// Shapes: `param`, `grad`, and the running means `[m, v]` are f32 of one shape, and so is what comes back. Without
    /// `weight_decay` the parameter only moves along its gradients: for norms, biases and what the reference marks so.
    ///
    /// `m' = β₁ m + (1-β₁) g`, `v' = β₂ v + (1-β₂) g²` with `g = clip_scale grad`, and
    /// `param' = param (1 - lr weight_decay) - lr m̂ / (√v̂ + eps)` with `m̂` and `v̂` divided by the bias corrections.
    #[track_caller]
    #[must_use]
    pub fn step<'g>(
        &self,
        param: Tensor<'g>,
        grad: Tensor<'g>,
        [m, v]: [Tensor<'g>; 2],
        scalars: &StepScalars<'g>,
        decay_exempt: bool,
    ) -> Stepped<'g> {
        let StepScalars { lr, bias_corrections: [correction1, correction2], clip_scale } = *scalars;
        let grad = grad * clip_scale;
        let m = m * self.beta1 + grad * (1.0 - self.beta1);
        let v = v * self.beta2 + grad * grad * (1.0 - self.beta2);
        let decays = !decay_exempt && self.weight_decay != 0.0;
        let kept = if decays { param * (lr.number(1.0) - lr * self.weight_decay) } else { param };
        let param = kept - lr * (m / correction1) / ((v / correction2).sqrt() + self.eps);
        Stepped { param, m, v }
    }

    /// `1 - beta1^step` and `1 - beta2^step`; `step` counts from 1.
    #[must_use]
    pub fn bias_corrections(&self, step: u32) -> [f64; 2] {
        [self.beta1, self.beta2].map(|beta| 1.0 - beta.powf(f64::from(step)))
    }

    /// Whether the numbers are in their ranges.
    ///
    /// # Errors
    /// Every number that is not.
    pub fn check(&self) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        let mut want = |key, value: f64, ok: bool, help| {
            if !ok {
                errors.push(ConfigError::OutOfRange { key, value: value.to_string(), help });
            }
        };
        want("beta1", self.beta1, (0.0..1.0).contains(&self.beta1), "beta1 is at least 0 and below 1");
        want("beta2", self.beta2, (0.0..1.0).contains(&self.beta2), "beta2 is at least 0 and below 1");
        want("eps", self.eps, self.eps > 0.0 && self.eps.is_finite(), "eps is positive");
        let is_decay = self.weight_decay >= 0.0 && self.weight_decay.is_finite();
        want("weight_decay", self.weight_decay, is_decay, "weight_decay is not negative");
        settle(errors)
    }
}

/// Root of the sum of all squares of all gradients, in order.
///
/// Shapes: f32 of any shapes, at least one → `[]`. Each tensor is summed by itself, over its last axis first, so that no
/// kernel reads more of them than it may bind, and long sums are of partial sums.
#[track_caller]
#[must_use]
pub fn global_norm<'g>(first: Tensor<'g>, rest: &[Tensor<'g>]) -> Tensor<'g> {
    let squares: Vec<Tensor<'g>> = std::iter::once(&first).chain(rest).map(|&grad| sum_of_squares(grad).reshape([1])).collect();
    first.builder().concat(&squares, 0usize).sum([0], false).sqrt()
}

fn sum_of_squares(x: Tensor<'_>) -> Tensor<'_> {
    let squares = x * x;
    match x.shape().len() {
        0 => squares,
        1 => squares.sum([0], false),
        rank => squares.sum([rank - 1], false).sum((0..rank - 1).collect::<Vec<_>>(), false),
    }
}

/// What gradients of this norm are multiplied by, so that their norm is at most `max_norm`: `min(1, max_norm / (norm + 1e-6))`.
///
/// Shapes: `norm []` → `[]`.
#[track_caller]
#[must_use]
pub fn clip_scale(norm: Tensor<'_>, max_norm: f64) -> Tensor<'_> {
    let g = norm.builder();
    (g.scalar(max_norm) / (norm + 1e-6)).min(g.scalar(1.0))
}

/// A learning rate over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Learning rate after the warm-up; positive.
    pub peak_lr: f64,
    /// Steps over which it rises in a line, the last of which has the peak; 0 for none.
    pub warmup_steps: u32,
    /// What comes after.
    pub decay: Decay,
}

/// How a learning rate falls from its peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// Not at all.
    Constant,
    /// In a line.
    Linear(DecayTo),
    /// By half a period of a cosine.
    Cosine(DecayTo),
}

/// Where a decay ends; the rate stays there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecayTo {
    /// The step that has the last rate, counted from the first step of the warm-up; above `warmup_steps`.
    pub total_steps: u32,
    /// Share of the peak that is left then, in `0..=1`.
    pub fraction: f64,
}

impl Schedule {
    /// Learning rate of a step; steps count from 1.
    #[must_use]
    pub fn lr(&self, step: u32) -> f64 {
        if step < self.warmup_steps {
            return self.peak_lr * f64::from(step) / f64::from(self.warmup_steps);
        }
        let done = |to: DecayTo| {
            let span = to.total_steps.saturating_sub(self.warmup_steps).max(1);
            (f64::from(step - self.warmup_steps) / f64::from(span)).min(1.0)
        };
        let between = |to: DecayTo, left: f64| self.peak_lr * (to.fraction + (1.0 - to.fraction) * left);
        match self.decay {
            Decay::Constant => self.peak_lr,
            Decay::Linear(to) => between(to, 1.0 - done(to)),
            Decay::Cosine(to) => between(to, 0.5 * (1.0 + (std::f64::consts::PI * done(to)).cos())),
        }
    }

    /// Whether the numbers are in their ranges.
    ///
    /// # Errors
    /// Every number that is not.
    pub fn check(&self) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        if !(self.peak_lr > 0.0 && self.peak_lr.is_finite()) {
            errors.push(ConfigError::OutOfRange { key: "peak_lr", value: self.peak_lr.to_string(), help: "peak_lr is positive" });
        }
        if let Decay::Linear(to) | Decay::Cosine(to) = self.decay {
            if to.total_steps <= self.warmup_steps {
                let value = format!("{} with {} steps of warm-up", to.total_steps, self.warmup_steps);
                errors.push(ConfigError::OutOfRange { key: "total_steps", value, help: "total_steps is above warmup_steps" });
            }
            if !(0.0..=1.0).contains(&to.fraction) {
                errors.push(ConfigError::OutOfRange { key: "fraction", value: to.fraction.to_string(), help: "fraction is 0 to 1" });
            }
        }
        settle(errors)
    }
}

fn settle(errors: Vec<ConfigError>) -> Result<(), ConfigErrors> {
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_rises_in_a_line_and_falls_to_its_fraction() {
        let to = DecayTo { total_steps: 14, fraction: 0.25 };
        let schedule = |decay| Schedule { peak_lr: 0.5, warmup_steps: 4, decay };
        let rates = |decay, steps: [u32; 6]| steps.map(|step| schedule(decay).lr(step));
        assert_eq!(rates(Decay::Constant, [1, 2, 4, 5, 14, 99]), [0.125, 0.25, 0.5, 0.5, 0.5, 0.5]);
        let linear = rates(Decay::Linear(to), [1, 4, 9, 14, 15, u32::MAX]);
        assert_eq!(linear, [0.125, 0.5, 0.3125, 0.125, 0.125, 0.125]);
        let cosine = rates(Decay::Cosine(to), [3, 4, 9, 14, 15, 99]);
        let wanted = [0.375, 0.5, 0.3125, 0.125, 0.125, 0.125];
        assert!(cosine.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-15), "{cosine:?}");
        // No warm-up at all: the first step is a step of decay.
        let none = Schedule { peak_lr: 1.0, warmup_steps: 0, decay: Decay::Linear(DecayTo { total_steps: 1, fraction: 0.0 }) };
        assert_eq!((none.lr(0), none.lr(1)), (1.0, 0.0));
    }

    #[test]
    fn numbers_out_of_range_are_all_named() {
        assert!(AdamW::default().check().is_ok());
        let bad = AdamW { beta1: 1.0, beta2: -0.1, eps: 0.0, weight_decay: f64::NAN };
        let text = bad.check().unwrap_err().to_string();
        assert!(["beta1 is 1", "beta2 is -0.1", "eps is 0", "weight_decay is NaN"].iter().all(|what| text.contains(what)), "{text}");
        let decay = Decay::Cosine(DecayTo { total_steps: 3, fraction: 1.5 });
        let text = Schedule { peak_lr: 0.0, warmup_steps: 3, decay }.check().unwrap_err().to_string();
        assert!(["peak_lr is 0", "total_steps is 3 with 3 steps", "fraction is 1.5"].iter().all(|what| text.contains(what)), "{text}");
    }

    #[test]
    fn corrections_of_the_first_step_are_what_the_means_take_in() {
        let [first, second] = AdamW::default().bias_corrections(1);
        assert!((first - 0.1).abs() < 1e-15 && (second - 0.05).abs() < 1e-15);
        assert!(AdamW::default().bias_corrections(u32::MAX).iter().all(|&correction| correction == 1.0));
    }
}
