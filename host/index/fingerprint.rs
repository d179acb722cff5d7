//! Identification of data sets by shape and sampled content.

use serde::{Deserialize, Serialize};
use tagore_text::grouped;

use crate::{ElementType, Error, Result, Vectors};

/// Identifies a data set by its shape and a hash of rows spread over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Number of rows.
    pub rows: u64,
    /// Components per row.
    pub dim: u32,
    /// Type of the components.
    pub element: ElementType,
    /// 64-bit FNV-1a of the bytes of at most 1,024 evenly spread rows, first and last included.
    pub hash: u64,
}

impl Fingerprint {
    /// Computes the fingerprint of `vectors`.
    ///
    /// # Errors
    /// If they lie on a device that fails.
    pub fn compute(vectors: &Vectors) -> Result<Self> {
        let (some, rows) = vectors.spread()?;
        // All before the first is needed: a busy disk takes long for each.
        rows.iter().for_each(|&row| some.prefetch(row..row + 1));
        let hash_row = |hash, row| fnv1a(hash, some.bytes_of_row(row));
        let hash = vectors.far_apart(|| rows.into_iter().fold(FNV_START, hash_row));
        let (rows, dim) = (vectors.len() as u64, vectors.dim() as u32);
        Ok(Self { rows, dim, element: vectors.element_type(), hash })
    }

    /// Fails if `base`, the fingerprint of the data set `name`, differs from this one, of `index`.
    pub(crate) fn check(&self, base: &Self, index: &str, name: &str) -> Result<()> {
        let shape = |f: &Self| format!("{} x {} {}", grouped(f.rows), f.dim, f.element);
        if (base.rows, base.dim, base.element) != (self.rows, self.dim, self.element) {
            return Err(Error::mismatch(
                name,
                shape(base),
                format_args!("{} as in the data set of {index}", shape(self)),
            ));
        }
        if base.hash != self.hash {
            return Err(Error::mismatch(name, "other values", format_args!("the data set of {index}")));
        }
        Ok(())
    }
}

/// The 64-bit FNV-1a of no bytes.
pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds `bytes` to a 64-bit FNV-1a.
pub(crate) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv1a() {
        // Published test vectors of the 64-bit variant.
        assert_eq!(fnv1a(FNV_START, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(FNV_START, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(FNV_START, b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn the_last_row_counts() {
        let of = |last: u8| {
            let mut values = vec![1u8; 5000 * 3];
            values[14_999] = last;
            Fingerprint::compute(&Vectors::from_u8(values, 3).unwrap()).unwrap()
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7).hash, of(8).hash);
    }
}
