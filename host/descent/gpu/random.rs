//! Random neighbours for a descent without phase 1, whose first iteration draws them otherwise.

use tagore_device::descent::sample::SAMPLE;
use tagore_device::key::{self, Key};
use tagore_device::random::{Draws, Stage};

use super::Build;
use crate::Result;
use crate::gpu::Buffer;
use crate::loops::{for_each, numbered, rows_mut};

impl Build<'_> {
    /// Gives every node [`SAMPLE`] random neighbours at the largest distance, so that every
    /// neighbour found in phase 2 is nearer. The end of the descent computes their distances.
    pub(super) fn random_lists(&self, lists: &mut Buffer<Key>) -> Result<()> {
        let mut keys = vec![key::NONE; self.space.len() * self.shape.k];
        let draw = |(node, list): (usize, &mut [Key])| self.draw_neighbours(node as u32, list);
        for_each(numbered(rows_mut(&mut keys, self.shape.k)), draw);
        lists.upload(&keys)
    }

    /// Fills the start of `list` with distinct random nodes other than `node`, ascending.
    fn draw_neighbours(&self, node: u32, list: &mut [Key]) {
        let draws = Draws::new(self.seed, Stage::Start, 0, u64::from(node));
        let others = self.space.len() as u64 - 1;
        let mut ids: Vec<u32> = (0..(SAMPLE as usize).min(self.shape.k))
            .map(|index| draws.below(index as u64, others) as u32)
            .map(|id| if id < node { id } else { id + 1 })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        list.iter_mut().zip(ids).for_each(|(key, id)| *key = key::pack(f32::MAX, id));
    }
}
