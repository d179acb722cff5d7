//! Centre lists of guides: with many centres, a vector is compared only with centres near its
//! guide.
//!
//! ```text
//! pairs: values[guide][centre] = bias + weight * guide x centre         // tiles on tensor cores
//! lists: block = guide
//!     last = the value of rank `length`, by counts of one digit (8 bits) after another
//!     end of head = the value of rank 128, in the same way
//!     write the centres below the end of head by distance, the others up to `last` by number
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `values` | guides x centres, integers that sort as distances |
//! | `lists`, `list_biases` | guides x `length` |
//! | shared memory | pairs: a chunk of each side; lists: 256 keys and counts, sums, 2 numbers |
//!
//! Optimisations:
//!
//! 1. A selection by digits reads the values 8 times and sorts nothing but the head.
//! 2. The nearest 128 centres come first, in one tile, and sorted: most of a vector's nearest are
//!    among the first 32. Vectors then know near centres early, and few of the later ones pass the
//!    test of [`Assign`](super::Assign).
//! 3. Counts of head, rest and ties share one prefix sum, 10 bits each: a block has 256 threads.
//!
//! Bound by memory: guides x centres x 4 bytes, written once and read 9 times.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::{copy, shared};

use crate::block::copied;
use crate::block::scan::{WARPS, exclusive_sum};
use crate::block::sort::sort_block;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;

/// Bytes of dynamic shared memory of the pair kernels: a chunk of guides and one of centres.
pub const PAIR_SHARED_BYTES: u32 = 2 * tile::SIDE_BYTES;

/// The distances of all guides and centres.
#[repr(C)]
pub struct Pairs<S> {
    /// In: `guide_count` vectors of `units` units of 16 bytes, without gaps.
    pub guides: Global<u8>,
    /// In: `centre_count` vectors of as many units, without gaps.
    pub centres: Global<u8>,
    /// In: the squared norm of each centre.
    pub biases: Global<S>,
    /// Out: guides x centres: integers that sort as `bias + weight * product`.
    pub values: GlobalMut<u32>,
    /// Number of guides.
    pub guide_count: u32,
    /// Number of centres.
    pub centre_count: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// Factor of a product: -2.
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
    let vectors = |first| tile::Vectors { first, stride: p.units * 16 };
    let mut chunk = 0;
    while chunk * tile::UNITS < p.units {
        tile::start_copy(guides, vectors(p.guides), chunk, p.units, &guide_of);
        tile::start_copy(centres, vectors(p.centres), chunk, p.units, &centre_of);
        copy::commit();
        copy::wait::<0>();
        sync_threads();
        let steps = tile::steps(p.units - chunk * tile::UNITS);
        tile::multiply_add::<E>(&mut sums, guides, centres, steps);
        // The next chunk overwrites this one.
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
        /// Computes the distances of all guides and centres (see [`Pairs`]).
        ///
        /// Launch: grid x: a block of [`tile::THREADS`] per [`tile::SIDE`] centres; grid y: one per
        /// [`tile::SIDE`] guides; [`PAIR_SHARED_BYTES`].
        ///
        /// # Safety
        /// - The views have the shapes of [`Pairs`].
        #[kernel(unsafe, block = tile::THREADS, shared = PAIR_SHARED_BYTES)]
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

/// Length of the head of a list: the nearest centres, one tile (optimisation 2).
pub const HEAD: u32 = 128;

/// Bits of a digit.
const DIGIT_BITS: u32 = 8;

/// Bytes of dynamic shared memory of [`cluster_lists()`]: keys of the head and as many spare, a
/// count per digit, room for their sums, and two numbers.
pub const LIST_SHARED_BYTES: u32 = 2 * HEAD * 8 + (LIST_THREADS + WARPS + 2) * 4;

/// The centre lists of guides.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CentreLists {
    /// In: guides x `centre_count` integers that sort as distances.
    pub values: Global<u32>,
    /// In: the bits of one value per centre.
    pub biases: Global<u32>,
    /// Out: per guide its `length` nearest centres, ties by their number: first centres nearer than
    /// number [`HEAD`], the nearest first, then the others in the order of numbers.
    pub lists: GlobalMut<u32>,
    /// Out: the bits of the values of the listed centres.
    pub list_biases: GlobalMut<u32>,
    /// Number of centres.
    pub centre_count: u32,
    /// Centres in a list, 1 to `centre_count`.
    pub length: u32,
}

/// A part of a list: all values below `last`, and the first `ties` equal ones.
#[derive(Clone, Copy)]
struct Cut {
    last: u32,
    ties: u32,
}

/// Shared memory of [`cluster_lists()`].
#[derive(Clone, Copy)]
struct ListRoom {
    head: Shared<u64>,
    counts: Shared<u32>,
    sums: Shared<u32>,
    chosen: Shared<u32>,
}

/// The cut of the smallest `length` of `count` values. The whole block calls this.
#[inline(always)]
fn cut(values: Global<u32>, count: u32, length: u32, room: ListRoom) -> Cut {
    let thread = thread_idx_x();
    let (mut last, mut left) = (0, length);
    let mut shift = u32::BITS;
    while shift > 0 {
        shift -= DIGIT_BITS;
        room.counts.set(thread as usize, 0);
        sync_threads();
        // Values with the digits chosen so far are counted by their next one.
        let mut centre = thread;
        while centre < count {
            let value = values.get(centre as usize);
            if (value ^ last) >> shift >> DIGIT_BITS == 0 {
                room.counts.fetch_add((value >> shift) as usize % LIST_THREADS as usize, 1);
            }
            centre += LIST_THREADS;
        }
        sync_threads();
        let of_digit = room.counts.get(thread as usize);
        let (before, _) = exclusive_sum(of_digit, room.sums);
        if before < left && left <= before + of_digit {
            room.chosen.set(0, thread);
            room.chosen.set(1, left - before);
        }
        sync_threads();
        last |= room.chosen.get(0) << shift;
        left = room.chosen.get(1);
    }
    Cut { last, ties: left }
}

/// Chooses the nearest centres of each guide (see [`CentreLists`]).
///
/// Launch: a block of [`LIST_THREADS`] per guide; [`LIST_SHARED_BYTES`].
///
/// # Safety
/// - The views have the shapes of [`CentreLists`].
#[kernel(unsafe, block = LIST_THREADS, shared = LIST_SHARED_BYTES)]
pub unsafe fn cluster_lists(p: CentreLists) {
    let head: Shared<u64> = shared::dynamic(0);
    let counts: Shared<u32> = head.offset(2 * HEAD as usize).cast();
    let sums = counts.offset(LIST_THREADS as usize);
    let room = ListRoom { head, counts, sums, chosen: sums.offset(WARPS as usize) };
    let values = p.values.offset(block_idx_x() as usize * p.centre_count as usize);
    let all = cut(values, p.centre_count, p.length, room);
    let head = cut(values, p.centre_count, head_length(&p), room);
    write_list(&p, values, all, head, room);
}

/// Length of the sorted head of a list.
#[inline(always)]
fn head_length(p: &CentreLists) -> u32 {
    if p.length < HEAD { p.length } else { HEAD }
}

/// Writes the list of the block's guide: the centres below the cut of the head, sorted,
/// then the rest of the whole by number.
#[inline(always)]
fn write_list(p: &CentreLists, values: Global<u32>, all: Cut, head: Cut, room: ListRoom) {
    let (thread, guide) = (thread_idx_x(), block_idx_x() as usize);
    let head_count = head_length(p) - head.ties;
    let put = |place: u32, centre: u32| {
        let to = guide * p.length as usize + place as usize;
        p.lists.set(to, centre);
        p.list_biases.set(to, p.biases.get(centre as usize));
    };
    // Optimisation 3.
    const BITS: u32 = 10;
    let part = |sums: u32, number: u32| sums >> (number * BITS) & ((1 << BITS) - 1);
    let (mut of_head, mut below, mut equal) = (0, 0, 0);
    let mut first = 0;
    while first < p.centre_count {
        let centre = first + thread;
        let there = centre < p.centre_count;
        let value = if there { values.get(centre as usize) } else { u32::MAX };
        let is_head = there && value < head.last;
        let is_below = there && !is_head && value < all.last;
        let is_equal = there && value == all.last;
        let flags = (is_head as u32) << (2 * BITS) | (is_below as u32) << BITS | is_equal as u32;
        let (before, total) = exclusive_sum(flags, room.sums);
        let equal_before = equal + part(before, 0);
        if is_head {
            let place = of_head + part(before, 2);
            room.head.set(place as usize, (value as u64) << 32 | centre as u64);
        } else if is_below || is_equal && equal_before < all.ties {
            let taken = if equal_before < all.ties { equal_before } else { all.ties };
            put(head_count + below + part(before, 1) + taken, centre);
        }
        of_head += part(total, 2);
        (below, equal) = (below + part(total, 1), equal + part(total, 0));
        first += LIST_THREADS;
        // The next sum reuses the room.
        sync_threads();
    }
    let sorted = sort_block(room.head, room.head.offset(HEAD as usize), head_count);
    if thread < head_count {
        put(thread, sorted.get(thread as usize) as u32);
    }
}

const _: () = assert!(LIST_THREADS == 1 << DIGIT_BITS && LIST_THREADS < 1 << 10);
