//! The adjoint of the scan: against finite differences of the scan in f64, by hand, and on empty sizes.

use super::*;

/// Operands that the derivatives are by, in the order of the results.
const NAMES: [&str; 7] = ["log_decay", "v", "k", "q", "s0", "weight", "own_weight"];

#[derive(Clone, Copy)]
struct Case {
    len: usize,
    heads: usize,
    groups: usize,
    ranks: usize,
    headdim: usize,
    d_state: usize,
    has_s0: bool,
    has_reset: bool,
    has_weight: bool,
    has_own_weight: bool,
    has_ds_last: bool,
}

const PLAIN: Case = Case {
    len: 5,
    heads: 2,
    groups: 1,
    ranks: 1,
    headdim: 3,
    d_state: 4,
    has_s0: false,
    has_reset: false,
    has_weight: false,
    has_own_weight: false,
    has_ds_last: false,
};
const ALL: Case = Case {
    len: 7,
    heads: 4,
    groups: 2,
    ranks: 2,
    has_s0: true,
    has_reset: true,
    has_weight: true,
    has_own_weight: true,
    has_ds_last: true,
    ..PLAIN
};

const BATCH: usize = 3;

impl Case {
    fn shape(&self, name: &str) -> Vec<usize> {
        let Self { len, heads, groups, ranks, headdim, d_state, .. } = *self;
        match name {
            "v" | "dy" => vec![BATCH, len, heads, ranks, headdim],
            "k" | "q" => vec![BATCH, len, groups, ranks, d_state],
            "s0" | "ds_last" => vec![BATCH, heads, headdim, d_state],
            _ => vec![BATCH, len, heads],
        }
    }

    /// All operands as states, which hold f64.
    fn states(&self) -> WideTensors {
        let all = NAMES.iter().chain(&["dy", "ds_last"]).enumerate();
        let contents = |(i, &name): (usize, &&str)| {
            let numbers = noise(self.shape(name).iter().product(), 11 + u32::try_from(i).unwrap_or(0)).into_iter().map(f64::from);
            let is_decay = name == "log_decay";
            (name.to_owned(), numbers.map(|x| if is_decay { -x.abs() } else { x }).collect())
        };
        all.map(contents).collect()
    }

    /// What `build` makes of the operands, absent ones as `None`, with `weight` and `s0` after `reset` as in `scan_grad`.
    fn run(
        &self,
        states: &WideTensors,
        build: impl for<'g> Fn(&'g GraphBuilder, [Tensor<'g>; 5], [Option<Tensor<'g>>; 5]) -> Vec<(&'static str, Tensor<'g>)>,
    ) -> Fallible<WideTensors> {
        let builder = GraphBuilder::new("test");
        let state = |name: &str| builder.state(name, DType::F32, self.shape(name));
        let present = ["log_decay", "v", "k", "q", "dy"].map(state);
        let reset = self.has_reset.then(|| builder.input("reset", DType::Bool, [BATCH, self.len]));
        let [s0, weight, own_weight, ds_last] = ["s0", "weight", "own_weight", "ds_last"].map(state);
        let optional = [
            self.has_s0.then_some(s0),
            reset,
            self.has_weight.then_some(weight),
            self.has_own_weight.then_some(own_weight),
            self.has_ds_last.then_some(ds_last),
        ];
        for (name, result) in build(&builder, present, optional) {
            builder.output(name, result);
        }
        let graph = builder.finish()?;
        // The first token's reset has no effect, and the last entry begins anew at its last token.
        let is_start = |i: usize| [[0, 3].as_slice(), &[], &[2, 66, self.len - 1]][i / self.len].contains(&(i % self.len));
        let flags: Vec<bool> = (0..BATCH * self.len).map(is_start).collect();
        let inputs =
            if self.has_reset { Tensors::from_iter([("reset".to_owned(), bools(&[BATCH, self.len], &flags))]) } else { Tensors::new() };
        Ok(Interpreter::new(&graph)?.run_wide(&inputs, &Tensors::new(), &mut states.clone())?)
    }

    fn loss(&self, states: &WideTensors) -> Fallible<f64> {
        let results = self.run(states, |builder, [log_decay, v, k, q, dy], [s0, reset, weight, own_weight, ds_last]| {
            let (y, s_last) = log_decay.scan(v, k, q, s0, reset, weight, own_weight, 0_usize);
            let of_state = ds_last.map_or(builder.scalar(0.0), |ds_last| (s_last * ds_last).sum([0, 1, 2, 3], false));
            vec![("loss", (y * dy).sum([0, 1, 2, 3, 4], false) + of_state)]
        })?;
        Ok(results["loss"][0])
    }

    fn gradients(&self, states: &WideTensors) -> Fallible<WideTensors> {
        self.run(states, |_, [log_decay, v, k, q, dy], [s0, reset, weight, own_weight, ds_last]| {
            let (d_log_decay, d_v, d_k, d_q, d_s0, d_weight, d_own_weight) =
                log_decay.scan_grad(v, k, q, dy, s0, reset, weight, own_weight, ds_last, 0_usize);
            NAMES.into_iter().zip([d_log_decay, d_v, d_k, d_q, d_s0, d_weight, d_own_weight]).collect()
        })
    }

    /// Compares the derivative along some directions of each operand with the difference of two scans.
    fn check(&self) -> Fallible<()> {
        // An absent weight is one, and an absent own weight is the weight; present, they say where the derivative is taken.
        let mut states = self.states();
        let explicit = Self { has_s0: true, has_weight: true, ..*self };
        if !self.has_weight {
            states["weight"].fill(1.0);
        }
        if !self.has_s0 {
            states["s0"].fill(0.0);
        }
        let gradients = self.gradients(&states)?;
        for (i, name) in NAMES.into_iter().enumerate() {
            if name == "own_weight" && !self.has_own_weight {
                assert!(gradients[name].iter().all(|&x| x == 0.0));
                continue;
            }
            for seed in 0..3 {
                let direction: Vec<f64> =
                    noise(states[name].len(), 100 * seed + 31 + u32::try_from(i)?).into_iter().map(f64::from).collect();
                let moved = |by: f64| {
                    let mut states = states.clone();
                    states[name].iter_mut().zip(&direction).for_each(|(x, d)| *x += by * d);
                    explicit.loss(&states)
                };
                let want = (moved(STEP)? - moved(-STEP)?) / (2.0 * STEP);
                let got: f64 = gradients[name].iter().zip(&direction).map(|(g, d)| g * d).sum();
                let scale: f64 = gradients[name].iter().map(|g| g.abs()).fold(1.0, f64::max);
                assert!((got - want).abs() <= 1e-7 * scale, "d_{name}: {got}, finite differences give {want}");
            }
        }
        Ok(())
    }
}

/// Half the distance of two losses in f64: errors of second order and of rounding are both below 1e-8.
const STEP: f64 = 1e-5;

#[test]
fn plain_scans_have_the_derivatives_of_finite_differences() -> Fallible<()> {
    PLAIN.check()?;
    Case { len: 1, ..PLAIN }.check()?;
    Case { heads: 6, groups: 3, ranks: 3, ..PLAIN }.check()?;
    Case { has_s0: true, ..PLAIN }.check()?;
    Case { has_ds_last: true, ..PLAIN }.check()?;
    Case { has_reset: true, ..PLAIN }.check()
}

#[test]
fn weighted_scans_have_the_derivatives_of_finite_differences() -> Fallible<()> {
    ALL.check()?;
    Case { len: 1, ..ALL }.check()?;
    Case { has_own_weight: false, ..ALL }.check()?;
    Case { has_weight: false, ..ALL }.check()?;
    Case { has_weight: false, has_own_weight: false, ..ALL }.check()?;
    Case { ranks: 1, headdim: 1, d_state: 9, ..ALL }.check()
}

/// More tokens than there are between two states that are kept, and one more than twice as many.
#[test]
fn long_scans_have_the_derivatives_of_finite_differences() -> Fallible<()> {
    Case { len: 129, ..ALL }.check()?;
    Case { len: 64, ranks: 1, has_reset: false, ..ALL }.check()?;
    Case { len: 70, has_s0: false, ..ALL }.check()
}

#[test]
fn adjoint_of_a_scan_by_hand() -> Fallible<()> {
    // One channel, decay 1/2 at the second token: S = 3·5 = 15, then 7.5 + 2·1 = 9.5, read by q = 2 and 4.
    let operands = [[0.0, 0.5_f32.ln()], [3.0, 2.0], [5.0, 1.0], [2.0, 4.0], [1.0, 10.0]];
    let [log_decay, v, k, q, dy] = operands.map(|x| f32s(&[1, 2, 1, 1, 1], &x));
    let got = apply_in(Precision::F32, [&log_decay, &v, &k, &q, &dy], |_, [log_decay, v, k, q, dy]| {
        let d = log_decay.reshape(vec![1, 2, 1]).scan_grad(v, k, q, dy, None, None, None, None, None, 0_usize);
        vec![d.0, d.1, d.2, d.3, d.4, d.5, d.6]
    })?;
    // The adjoint of the state is 40 after the second token and 40/2 + 2 = 22 after the first.
    let want: [&[f32]; 7] = [&[0.0, 300.0], &[110.0, 40.0], &[66.0, 80.0], &[15.0, 95.0], &[22.0], &[330.0, 80.0], &[0.0, 0.0]];
    for (got, want) in got.iter().zip(want) {
        close(got, &f32s(got.shape(), want), 1e-6)?;
    }
    Ok(())
}

#[test]
fn adjoint_of_no_tokens_is_that_of_the_state() -> Fallible<()> {
    let empty = Case { len: 0, has_reset: false, ..ALL };
    let states = empty.states();
    let got = empty.gradients(&states)?;
    assert_eq!(got["s0"], states["ds_last"]);
    assert!(NAMES.iter().all(|&name| name == "s0" || got[name].is_empty()));
    let got = Case { has_ds_last: false, ..empty }.gradients(&states)?;
    assert!(!got["s0"].is_empty() && got["s0"].iter().all(|&x| x == 0.0));
    Ok(())
}

#[test]
fn adjoint_of_empty_sizes() -> Fallible<()> {
    for (ranks, headdim, d_state) in [(0, 3, 4), (2, 0, 4), (2, 3, 0)] {
        let case = Case { ranks, headdim, d_state, ..ALL };
        let got = case.gradients(&case.states())?;
        assert_eq!(got["log_decay"].len(), BATCH * case.len * case.heads);
        assert_eq!(got["v"].len(), BATCH * case.len * case.heads * ranks * headdim);
        if ranks > 0 {
            assert!(got.values().flatten().all(|&x| x == 0.0));
        }
    }
    Ok(())
}

/// Far below what f32 holds, a decay gives no more than it should, and nothing that is not a number.
#[test]
fn strong_decays_keep_their_digits() -> Fallible<()> {
    let case = Case { len: 9, ..ALL };
    let mut states = case.states();
    states["log_decay"].iter_mut().for_each(|x| *x -= 80.0);
    let got = case.gradients(&states)?;
    // To first order the state before a token is what the token before it gave: decays of two tokens are beyond f64's digits.
    let mut cut = states.clone();
    cut["log_decay"].iter_mut().for_each(|x| *x -= 5.0);
    let less = case.gradients(&cut)?;
    for (got, less) in got["log_decay"].iter().zip(&less["log_decay"]) {
        assert!((got * (-5.0_f64).exp() - less).abs() <= 1e-12 * less.abs(), "{got} and {less}");
    }
    Ok(())
}

#[test]
fn adjoints_have_the_shapes_of_the_results() {
    let message = |dy: [usize; 5], ds_last: [usize; 4], dtype| {
        let g = GraphBuilder::new("g");
        let input = |name, shape: &[usize]| g.input(name, DType::F32, shape);
        let (v, [k, q]) = (input("v", &[3, 5, 2, 1, 6]), ["k", "q"].map(|name| input(name, &[3, 5, 1, 1, 4])));
        let (dy, ds_last) = (g.input("dy", dtype, dy), input("ds_last", &ds_last));
        g.output("d", input("log_decay", &[3, 5, 2]).scan_grad(v, k, q, dy, None, None, None, None, Some(ds_last), 0_usize).0);
        g.finish().map(|_| ()).map_err(|errors| errors.to_string())
    };
    let (dy, ds_last) = ([3, 5, 2, 1, 6], [3, 2, 6, 4]);
    assert_eq!(message(dy, ds_last, DType::F32), Ok(()));
    for (error, what) in [
        (message([3, 5, 2, 1, 4], ds_last, DType::F32), "scan_grad: dy"),
        (message(dy, ds_last, DType::F16), "scan_grad: dy"),
        (message(dy, [3, 2, 4, 6], DType::F32), "scan_grad: ds_last"),
    ] {
        let error = error.unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}
