//! What a [walk](super::walk) is for: a search for queries, or the collection of visited nodes.
//!
//! | | [`Search`] | [`Collect`] |
//! | --- | --- | --- |
//! | keys | of the last step | of all steps |
//! | table | emptied when three quarters full | holds all visited ids |
//! | entries | `entry_stride` apart for each block, shifted | the same for all blocks |
//! | expansions | `width` nodes per step | one node per step, `expansions` in all |
//! | bound | that of `stop` | none |

use cuda_std::thread::block_idx_x;

use super::list::Beam;
use super::stop::Stop;
use super::walk::{BeamWalk, Room};
use crate::block::element::Element;
use crate::key::{Key, NONE};

/// What a walk is for: the decisions in which queries and path collection differ.
pub(super) trait Purpose {
    /// Nodes expanded per step.
    fn width<T>(walk: &BeamWalk<T>) -> u32;

    /// Entry `i` of the block.
    fn entry<T>(walk: &BeamWalk<T>, i: usize) -> u32;

    /// The largest key of a node that is still expanded. The first warp calls this.
    fn last<T: Element, const C: usize>(walk: &BeamWalk<T>, room: &Room<T>, beam: &Beam<C>) -> Key;

    /// Whether a node may be expanded after `expanded` nodes.
    fn expands<T>(walk: &BeamWalk<T>, expanded: u32) -> bool;
}

/// A search for a query's nearest nodes.
pub(super) struct Search;

impl Purpose for Search {
    #[inline(always)]
    fn width<T>(walk: &BeamWalk<T>) -> u32 {
        walk.width
    }

    #[inline(always)]
    fn entry<T>(walk: &BeamWalk<T>, i: usize) -> u32 {
        let first = block_idx_x() as usize * walk.entry_stride as usize;
        walk.entries.get((first + i) << walk.entry_shift)
    }

    #[inline(always)]
    fn last<T: Element, const C: usize>(walk: &BeamWalk<T>, room: &Room<T>, beam: &Beam<C>) -> Key {
        let stop = Stop { slack: room.slack.get(0), ..walk.stop };
        stop.last(beam.distance_bits(walk.beam, stop.rank))
    }

    #[inline(always)]
    fn expands<T>(_: &BeamWalk<T>, _: u32) -> bool {
        true
    }
}

/// A search that keeps the keys of all visited nodes: [`BeamWalk::collect`].
pub(super) struct Collect;

impl Purpose for Collect {
    #[inline(always)]
    fn width<T>(_: &BeamWalk<T>) -> u32 {
        1
    }

    #[inline(always)]
    fn entry<T>(walk: &BeamWalk<T>, i: usize) -> u32 {
        walk.entries.get(i)
    }

    #[inline(always)]
    fn last<T: Element, const C: usize>(_: &BeamWalk<T>, _: &Room<T>, _: &Beam<C>) -> Key {
        NONE
    }

    #[inline(always)]
    fn expands<T>(walk: &BeamWalk<T>, expanded: u32) -> bool {
        expanded < walk.expansions
    }
}
