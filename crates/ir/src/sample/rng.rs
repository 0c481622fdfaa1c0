//! A small deterministic generator of numbers: splitmix64.

/// Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 14.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n.max(1) as u64)).unwrap_or(0)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of the items.
    pub(crate) fn of<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let idx = self.below(items.len());
        items.get(idx).copied()
    }

    /// A number of 24 bits in `[0, 1)`, so that it is exact in f32.
    pub(crate) fn unit(&mut self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
        let numerator = self.below(1 << 24) as f32;
        numerator / 16_777_216.0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let other = self.below(i + 1);
            items.swap(i, other);
        }
    }
}
