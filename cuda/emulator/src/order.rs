//! The order of lanes and blocks, drawn from a seed.

/// A hash of 64 bits (the output step of SplitMix64).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A sequence of random numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    /// The sequence number `of` of a seed.
    pub fn new(seed: u64, of: u64) -> Self {
        Self(mix(seed ^ mix(of.wrapping_add(1))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }
}

/// An order of the blocks of a grid: steps of a drawn stride, modulo their number, from a drawn
/// block on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockOrder {
    blocks: u64,
    first: u64,
    stride: u64,
}

impl BlockOrder {
    pub fn new(blocks: u64, seed: u64) -> Self {
        let mut draws = Draws::new(seed, u64::MAX - 1);
        let first = draws.below(blocks);
        let mut stride = draws.below(blocks) + 1;
        while common_divisor(stride, blocks) != 1 {
            stride = draws.below(blocks) + 1;
        }
        Self { blocks, first, stride }
    }

    /// The block at a position of the order.
    pub fn block(&self, position: u64) -> u64 {
        let steps = u128::from(position) * u128::from(self.stride) + u128::from(self.first);
        (steps % u128::from(self.blocks)) as u64
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_once() {
        for blocks in [1, 2, 3, 7, 12, 64, 1000] {
            for seed in 0..5 {
                let order = BlockOrder::new(blocks, seed);
                let mut seen: Vec<u64> = (0..blocks).map(|position| order.block(position)).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..blocks));
            }
        }
    }
}
