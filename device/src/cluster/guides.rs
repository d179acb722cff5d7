//! The lists of guides. Where there are many centres, a vector is compared with those near its guide alone.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::{copy, shared};

use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::scan::{WARPS, exclusive_sum};
use crate::block::tile;

/// Bytes of dynamic shared memory of the kernels of pairs: a chunk of guides and one of centres.
pub const PAIR_SHARED_BYTES: u32 = 2 * tile::SIDE_BYTES;

/// Guides and centres whose distances are wanted.
#[repr(C)]
pub struct Pairs<S> {
    /// In: `guide_count` vectors of `units` units of 16 bytes, one after another.
    pub guides: Global<u8>,
    /// In: `centre_count` vectors of as many units, one after another.
    pub centres: Global<u8>,
    /// In: the squared norm of each centre.
    pub biases: Global<S>,
    /// Out: of each guide, and of each centre for it, what sorts as `bias + weight * product` does.
    pub values: GlobalMut<u32>,
    /// How many guides.
    pub guide_count: u32,
    /// How many centres.
    pub centre_count: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// What a product is multiplied by: -2.
    pub weight: S,
}

copied! {
    Pairs<S>;
}

#[inline(always)]
fn pairs<E: TileElement>(p: &Pairs<E::Sum>) {
    let (first_guide, first_centre) = (block_idx_y() * tile::SIDE, block_idx_x() * tile::SIDE);
    let guides: Shared<u8> = shared::dynamic(0);
    let centres: Shared<u8> = shared::dynamic(tile::SIDE_BYTES as usize);
    let one_of = |number: u32, count: u32| if number < count { Some(number) } else { None };
    let guide_of = |line: u32| one_of(first_guide + line, p.guide_count);
    let centre_of = |line: u32| one_of(first_centre + line, p.centre_count);
    let mut sums: tile::Sums<E::Sum> = [[E::Sum::default(); 4]; 16];
    let mut chunk = 0;
    while chunk * tile::UNITS < p.units {
        tile::start_copy(guides, (p.guides, p.units * 16), chunk, p.units, &guide_of);
        tile::start_copy(centres, (p.centres, p.units * 16), chunk, p.units, &centre_of);
        copy::commit();
        copy::wait::<0>();
        sync_threads();
        let units = p.units - chunk * tile::UNITS;
        let steps = if units < tile::UNITS { units.div_ceil(2) } else { tile::UNITS / 2 };
        tile::multiply_add::<E>(&mut sums, guides, centres, steps);
        // The next chunk goes where this one is.
        sync_threads();
        chunk += 1;
    }

    // Rows lane / 4 + 8 h of each fragment, columns 2 (lane % 4) + c.
    let lane = warp::lane_id();
    let (part_row, part_column) = tile::part_of_warp();
    let (row, column) = (first_guide + part_row + lane / 4, first_centre + part_column + lane % 4 * 2);
    unroll!(4, N => {
        unroll!(2, C => {
            let centre = column + (8 * N + C) as u32;
            if centre < p.centre_count {
                let bias = p.biases.get(centre as usize);
                unroll!(4, M => {
                    unroll!(2, H => {
                        let guide = row + (16 * M + 8 * H) as u32;
                        if guide < p.guide_count {
                            let value = E::Sum::value(bias, p.weight, sums[4 * M + N][2 * H + C]);
                            let place = guide as usize * p.centre_count as usize + centre as usize;
                            p.values.set(place, value.ordered());
                        }
                    });
                });
            }
        });
    });
}

macro_rules! pair_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Finds how far each centre is from each guide (see [`Pairs`]).
        ///
        /// Launch: blocks of [`tile::THREADS`], one per [`tile::SIDE`] centres; grid y: one per as many guides;
        /// [`PAIR_SHARED_BYTES`].
        ///
        /// # Safety
        /// - The views hold what [`Pairs`] says.
        #[kernel(block = tile::THREADS, shared = PAIR_SHARED_BYTES)]
        pub unsafe fn $name(p: Pairs<$sum>) {
            pairs::<$element>(&p);
        }
    )*};
}

pair_kernels! {
    cluster_pairs_f16 f16, f32;
    cluster_pairs_u8 u8, i32;
    cluster_pairs_i8 i8, i32;
}

/// Threads of a block of [`cluster_lists()`], and values of a digit.
pub const LIST_THREADS: u32 = 256;

/// Of a guide's list, so many of the nearest come first: vectors meet them in one tile, and few of the others are nearer
/// than those they keep then.
pub const HEAD: u32 = 128;

/// Bits of a digit.
const DIGIT_BITS: u32 = 8;

/// Bytes of dynamic shared memory of [`cluster_lists()`]: a count of each digit, room for their sums, and two
/// numbers.
pub const LIST_SHARED_BYTES: u32 = (LIST_THREADS + WARPS + 2) * 4;

/// The lists of guides.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Lists {
    /// In: of each guide, and of each of `centre_count` centres for it, what sorts as the distance does.
    pub values: Global<u32>,
    /// In: the bits of one value of each centre.
    pub biases: Global<u32>,
    /// Out: of each guide its `length` nearest centres, ties by their number: those that are nearer than number
    /// [`HEAD`] of them, then the others, each in the order of their numbers.
    pub lists: GlobalMut<u32>,
    /// Out: the bits of the values of those centres.
    pub list_biases: GlobalMut<u32>,
    /// How many centres.
    pub centre_count: u32,
    /// Centres in a list, 1 to `centre_count`.
    pub length: u32,
}

/// Chooses the nearest centres of each guide (see [`Lists`]).
///
/// Launch: a block of [`LIST_THREADS`] per guide; [`LIST_SHARED_BYTES`].
///
/// # Safety
/// - The views hold what [`Lists`] says.
#[kernel(block = LIST_THREADS, shared = LIST_SHARED_BYTES)]
pub unsafe fn cluster_lists(p: Lists) {
    let (thread, guide) = (thread_idx_x(), block_idx_x() as usize);
    let counts: Shared<u32> = shared::dynamic(0);
    let room = counts.offset(LIST_THREADS as usize);
    let chosen = room.offset(WARPS as usize);
    let values = p.values.offset(guide * p.centre_count as usize);

    // The last value of the nearest `length`, digit by digit from the top, and how many of it are among them: those
    // that have the digits so far are counted by their next.
    let last_of = |length: u32| {
        let (mut last, mut left) = (0, length);
        let mut shift = u32::BITS;
        while shift > 0 {
            shift -= DIGIT_BITS;
            counts.set(thread as usize, 0);
            sync_threads();
            let mut centre = thread;
            while centre < p.centre_count {
                let value = values.get(centre as usize);
                if (value ^ last) >> shift >> DIGIT_BITS == 0 {
                    counts.fetch_add((value >> shift) as usize % LIST_THREADS as usize, 1);
                }
                centre += LIST_THREADS;
            }
            sync_threads();
            let count = counts.get(thread as usize);
            let (before, _) = exclusive_sum(count, room);
            if before < left && left <= before + count {
                chosen.set(0, thread);
                chosen.set(1, left - before);
            }
            sync_threads();
            last |= chosen.get(0) << shift;
            left = chosen.get(1);
        }
        (last, left)
    };
    let (last, left) = last_of(p.length);
    let head = if p.length < HEAD { p.length } else { HEAD };
    let (end_of_head, rest) = last_of(head);
    let head = head - rest;

    // Of the head, of the others below, and of the first that are equal, each keeps its order. The counts of all three
    // are in one sum.
    const BITS: u32 = 10;
    let part = |sums: u32, number: u32| sums >> (number * BITS) & ((1 << BITS) - 1);
    let (mut of_head, mut below, mut equal) = (0, 0, 0);
    let mut first = 0;
    while first < p.centre_count {
        let centre = first + thread;
        let there = centre < p.centre_count;
        let value = if there { values.get(centre as usize) } else { u32::MAX };
        let is_head = there && value < end_of_head;
        let is_below = there && !is_head && value < last;
        let is_equal = there && value == last;
        let flags = (is_head as u32) << (2 * BITS) | (is_below as u32) << BITS | is_equal as u32;
        let (before, total) = exclusive_sum(flags, room);
        let equal_before = equal + part(before, 0);
        if is_head || is_below || is_equal && equal_before < left {
            let taken = if equal_before < left { equal_before } else { left };
            let place =
                if is_head { of_head + part(before, 2) } else { head + below + part(before, 1) + taken };
            let to = guide * p.length as usize + place as usize;
            p.lists.set(to, centre);
            p.list_biases.set(to, p.biases.get(centre as usize));
        }
        of_head += part(total, 2);
        (below, equal) = (below + part(total, 1), equal + part(total, 0));
        first += LIST_THREADS;
        // The room is used again.
        sync_threads();
    }
}

const _: () = assert!(LIST_THREADS == 1 << DIGIT_BITS && LIST_THREADS < 1 << 10);
