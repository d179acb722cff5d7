//! Vectors of bits.
//!
//! The Hamming distance is squared L2 of zeros and ones, so rules, graphs and answers are those of
//! any other type that holds the same values. The CPU counts 64 bits at a time. On a device a bit
//! becomes a byte, so that bits need no kernels of their own.

use bytemuck::{Pod, Zeroable};

use crate::vectors::distance::{SquaredL2, one_to_many};
use crate::vectors::panels::{PANEL, Side};
use crate::vectors::{Element, ElementType, Matrix};

/// Eight components of a vector of bits: component `j` of a row is bit `j % 8`, from the least, of
/// its byte `j / 8`. Bits of the last byte past the dimension are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bits(pub u8);

impl Bits {
    /// The bytes of values.
    pub fn as_bytes(values: &[Self]) -> &[u8] {
        bytemuck::cast_slice(values)
    }

    /// The bits of a row, those of whole bytes.
    pub(in crate::vectors) fn ones(row: &[Self]) -> impl Iterator<Item = u8> {
        row.iter().flat_map(|&Self(byte)| (0..8).map(move |bit| byte >> bit & 1))
    }
}

impl Element for Bits {
    const TYPE: ElementType = ElementType::B1;

    fn components(row: &[Self]) -> impl Iterator<Item = f32> {
        Self::ones(row).map(f32::from)
    }

    fn fill(row: &mut [Self], components: impl Iterator<Item = f32>) -> Result<(), (usize, f32)> {
        row.fill(Self(0));
        for (place, wide) in components.enumerate() {
            if wide == 1.0 {
                row[place / 8].0 |= 1 << (place % 8);
            } else if wide != 0.0 {
                return Err((place, wide));
            }
        }
        Ok(())
    }

    /// The Hamming distance.
    #[inline(always)]
    fn squared_l2(a: &[Self], b: &[Self]) -> f32 {
        count(a, b, |x, y| x ^ y)
    }

    #[inline(always)]
    fn dot(a: &[Self], b: &[Self]) -> f32 {
        count(a, b, |x, y| x & y)
    }
}

/// The number of ones among the bits of `term`, by words.
#[inline(always)]
fn count(a: &[Bits], b: &[Bits], term: impl Fn(u64, u64) -> u64) -> f32 {
    let ones = |x: &[Bits; 8], y: &[Bits; 8]| {
        let word = |bytes: &[Bits; 8]| u64::from_le_bytes(bytes.map(|Bits(byte)| byte));
        term(word(x), word(y)).count_ones()
    };
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    let b_words = &b_words[..a_words.len()];
    let mut sum: u32 = (0..a_words.len()).map(|word| ones(&a_words[word], &b_words[word])).sum();
    if !a_rest.is_empty() {
        let (mut x, mut y) = ([Bits(0); 8], [Bits(0); 8]);
        x[..a_rest.len()].copy_from_slice(a_rest);
        y[..b_rest.len()].copy_from_slice(b_rest);
        sum += ones(&x, &y);
    }
    sum as f32
}

/// Rows of bits that are compared by panels.
pub(crate) struct BitPanels<'a> {
    pub rows: Matrix<'a, Bits>,
    pub count: usize,
}

impl BitPanels<'_> {
    /// The pairs of rows of two panels with a distance of at most the bound of either row; see
    /// [`Panels::near`](crate::vectors::panels::Panels::near).
    pub(in crate::vectors) fn near(&self, side: Side<'_>, other: Side<'_>) -> [u32; PANEL] {
        let rows = |panel: usize| (panel * PANEL..self.count).take(PANEL);
        let mut ids = [0; PANEL];
        let others = rows(other.panel).len();
        ids.iter_mut().zip(rows(other.panel)).for_each(|(id, row)| *id = row as u32);
        let mut distances = [0.0; PANEL];
        let mut near = [0; PANEL];
        for ((row, near), &bound) in rows(side.panel).zip(&mut near).zip(side.bounds) {
            one_to_many::<SquaredL2, Bits>(
                self.rows.row(row),
                self.rows,
                &ids[..others],
                &mut distances[..others],
            );
            for ((bit, &distance), &other_bound) in distances[..others].iter().enumerate().zip(other.bounds) {
                *near |= u32::from((distance <= bound) | (distance <= other_bound)) << bit;
            }
        }
        near
    }
}
