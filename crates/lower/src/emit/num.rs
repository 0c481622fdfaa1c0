//! Sizes and strides: numbers that are baked into the text, or read from the dispatch's uniform binding.

/// A size or stride.
///
/// Two numbers are the same in the text if they are static and equal, or dynamic under the same key. The key is built
/// from the structure of the kernel and never from values, so another length gives the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Num {
    /// Baked.
    Static(u64),
    /// Read at run time.
    Dynamic {
        /// What it is, in terms of the kernel.
        key: String,
        /// Its value in this dispatch.
        value: u64,
        /// A number known to divide it whatever the length.
        factor: u64,
    },
}

impl Num {
    /// 1.
    pub const ONE: Self = Self::Static(1);

    /// Its value in this dispatch.
    #[must_use]
    pub const fn value(&self) -> u64 {
        match self {
            Self::Static(value) | Self::Dynamic { value, .. } => *value,
        }
    }

    /// A number known to divide it; 0 for a static zero, which everything divides.
    #[must_use]
    pub const fn factor(&self) -> u64 {
        match self {
            Self::Static(value) => *value,
            Self::Dynamic { factor, .. } => *factor,
        }
    }

    /// Whether 4 divides it whatever the length.
    #[must_use]
    pub const fn is_multiple_of_4(&self) -> bool {
        self.factor().is_multiple_of(4)
    }

    /// Whether it is 1 whatever the length.
    #[must_use]
    pub const fn is_one(&self) -> bool {
        matches!(self, Self::Static(1))
    }

    /// Product.
    #[must_use]
    pub fn mul(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Static(a), Self::Static(b)) => Self::Static(a.saturating_mul(*b)),
            (Self::Static(1), n) | (n, Self::Static(1)) => n.clone(),
            _ => Self::Dynamic {
                key: format!("{}*{}", self.key(), other.key()),
                value: self.value().saturating_mul(other.value()),
                factor: self.factor().saturating_mul(other.factor()),
            },
        }
    }

    /// Quotient rounded up, by a static number.
    #[must_use]
    pub fn div_ceil(&self, by: u64) -> Self {
        match self {
            Self::Static(a) => Self::Static(a.div_ceil(by)),
            Self::Dynamic { key, value, .. } if by > 1 => {
                Self::Dynamic { key: format!("ceil({key}/{by})"), value: value.div_ceil(by), factor: 1 }
            }
            Self::Dynamic { .. } => self.clone(),
        }
    }

    /// The key under which a dynamic number is stored; the digits of a static one.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Static(a) => a.to_string(),
            Self::Dynamic { key, .. } => key.clone(),
        }
    }
}

/// Product of all.
#[must_use]
pub fn product<'a>(nums: impl IntoIterator<Item = &'a Num>) -> Num {
    nums.into_iter().fold(Num::ONE, |product, num| product.mul(num))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_know_their_factors_and_not_their_values() {
        let len = Num::Dynamic { key: "v0.1".into(), value: 7, factor: 1 };
        let stride = len.mul(&Num::Static(12));
        assert!(stride.is_multiple_of_4());
        assert_eq!((stride.value(), stride.key().as_str()), (84, "v0.1*12"));
        assert!(!len.is_multiple_of_4());
        assert_eq!(len.div_ceil(4).value(), 2);
    }
}
