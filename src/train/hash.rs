//! A number for bytes, to tell texts and files apart.

/// The 64-bit hash of the bytes: equal on every machine, and no protection against those who want two texts to agree.
///
/// # Source
/// Fowler, Noll and Vo, FNV-1a of 64 bits.
#[must_use]
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_numbers_come_out() {
        let known = [(&b""[..], 0xcbf2_9ce4_8422_2325), (b"a", 0xaf63_dc4c_8601_ec8c), (b"foobar", 0x8594_4171_f739_67e8)];
        for (text, hash) in known {
            assert_eq!(fnv1a(text.iter().copied()), hash, "{text:?}");
        }
    }
}
