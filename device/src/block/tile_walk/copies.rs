//! Pipeline of a tile walk: asynchronous copies of chunks, and their products.
//!
//! A step computes the products of one row chunk. A stage of row chunks passes three states:
//!
//! ```text
//!         start_rows                 arrive                  arrive of the next step
//! free ----------------> pending -----------------> in use -------------------------> free
//! ```
//!
//! Copies are waited for in groups. [`arrive`](Pipeline::arrive) leaves [`PENDING`] groups pending,
//! for any number of stages. With two stages no copy may be pending, so a step ends with an empty
//! group:
//!
//! ```text
//! stages   groups that step s ends                             step s + 1 waits for
//!    3     [long queries of s + 1], [rows of s + 2]            rows and queries of s + 1
//!    2     [rows of s + 1], []                                 rows of s + 1
//! ```

use cuda_std::copy;
use cuda_std::prelude::*;
use cuda_std::thread::{sync_named, sync_threads, thread_idx_x};

use super::{MANY, Room, Tiles};
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile::{self, CopiedChunks, CopiedLines};
use crate::key::NO_ID;

/// Groups of copies that a wait leaves pending.
const PENDING: u32 = 1;

/// Copies and products of a walk.
pub(super) struct Pipeline<'a, S, const CHUNKS: u32> {
    p: &'a Tiles<S>,
    room: Room<S>,
    visits: u32,
    /// Number of the tile in use.
    pub(super) visit: u32,
    /// Stage of the row chunk in use.
    row_stage: u32,
    /// Stage of the query chunk in use, of long queries.
    query_stage: u32,
    /// The next copy of rows.
    next: RowChunk,
}

/// A chunk of rows, and the stage for it.
struct RowChunk {
    visit: u32,
    chunk: u32,
    stage: u32,
}

/// Source of copies: the vectors of lines.
#[inline(always)]
fn source(vectors: Shared<u32>) -> impl Fn(u32) -> Option<u32> {
    move |line: u32| {
        let vector = vectors.get(line as usize);
        if vector == NO_ID { None } else { Some(vector) }
    }
}

impl<'a, S: TileSum, const CHUNKS: u32> Pipeline<'a, S, CHUNKS> {
    /// Whether all chunks of the queries stay in shared memory.
    const SHORT: bool = CHUNKS != MANY;

    /// Starts the copies of the first chunks. For short vectors, returns when all queries are
    /// there.
    #[inline(always)]
    pub(super) fn start(p: &'a Tiles<S>, room: Room<S>, visits: u32) -> Self {
        let next = RowChunk { visit: 0, chunk: 0, stage: 0 };
        let mut pipeline = Self { p, room, visits, visit: 0, row_stage: 0, query_stage: 0, next };
        pipeline.start_queries(0, 0, if Self::SHORT { room.chunks } else { 1 });
        pipeline.start_rows();
        copy::commit();
        // With two stages, the empty group.
        if room.row_stages == 3 {
            pipeline.start_rows();
        }
        copy::commit();
        if Self::SHORT {
            copy::wait::<PENDING>();
            sync_threads();
        }
        pipeline
    }

    /// Starts the copies of `count` chunks of the queries, from `chunk` on, to stages from `stage`
    /// on.
    #[inline(always)]
    fn start_queries(&self, stage: u32, chunk: u32, count: u32) {
        let (p, room) = (self.p, self.room);
        let from = tile::Vectors { first: p.queries, stride: p.query_stride };
        let lines = CopiedLines { first: thread_idx_x() / tile::UNITS, step: tile::SIDE / 4 };
        let chunks = CopiedChunks { first: chunk, count, units: p.units, zero_tail: true };
        tile::start_copy_of(room.queries(stage), from, lines, chunks, &source(room.query_vectors()));
    }

    /// Starts the next copy of rows, if any remains. A pair of warps copies the 32 rows it reads.
    #[inline(always)]
    fn start_rows(&mut self) {
        let (p, room, next) = (self.p, self.room, &mut self.next);
        if next.visit < self.visits {
            let from = tile::Vectors { first: p.rows, stride: p.row_stride };
            let first = 32 * (thread::warp_idx() / 2) + thread_idx_x() / tile::UNITS % 8;
            let lines = CopiedLines { first, step: 8 };
            // Optimisation 5.
            let zero_tail = !Self::SHORT || room.chunks > 1 || next.visit < room.row_stages;
            let chunks = CopiedChunks { first: next.chunk, count: 1, units: p.units, zero_tail };
            let vectors = source(room.row_vectors(next.visit));
            tile::start_copy_of(room.rows(next.stage), from, lines, chunks, &vectors);
            next.chunk += 1;
            if next.chunk == room.chunks {
                (next.visit, next.chunk) = (next.visit + 1, 0);
            }
            next.stage = room.stage_after(next.stage);
        }
    }

    /// Waits for the chunk of this step, and starts later copies: of rows, and of long queries the
    /// chunk `next_queries`. All warps that read a target have left it.
    #[inline(always)]
    pub(super) fn arrive(&mut self, next_queries: Option<u32>) {
        copy::wait::<PENDING>();
        if Self::SHORT {
            sync_named(1 + thread::warp_idx() / 2, 64);
        } else {
            sync_threads();
            if let Some(chunk) = next_queries {
                self.start_queries(self.query_stage ^ 1, chunk, 1);
            }
            copy::commit();
        }
        self.start_rows();
        copy::commit();
        if self.room.row_stages == 2 {
            // The empty group.
            copy::commit();
        }
    }

    /// Adds the products of all chunks of a tile to `sums`. The first chunk has arrived.
    #[inline(always)]
    pub(super) fn multiply<E: TileElement<Sum = S>>(&mut self, sums: &mut tile::Sums<S>) {
        if Self::SHORT {
            if CHUNKS == 2 {
                self.multiply_chunk::<E>(sums, 0);
                self.arrive(None);
            }
            self.multiply_chunk::<E>(sums, CHUNKS - 1);
            return;
        }
        let room = self.room;
        let mut chunk = 0;
        loop {
            self.multiply_chunk::<E>(sums, chunk);
            chunk += 1;
            if chunk == room.chunks {
                return;
            }
            self.arrive(match chunk + 1 < room.chunks {
                true => Some(chunk + 1),
                false if self.visit + 1 < self.visits => Some(0),
                false => None,
            });
        }
    }

    /// Adds the products of a chunk, which has arrived, and moves on to the stages of the next one.
    #[inline(always)]
    fn multiply_chunk<E: TileElement<Sum = S>>(&mut self, sums: &mut tile::Sums<S>, chunk: u32) {
        let room = self.room;
        let queries = room.queries(if Self::SHORT { chunk } else { self.query_stage });
        let rows = room.rows(self.row_stage);
        let is_last = chunk + 1 == room.chunks;
        let steps = if is_last { tile::steps(self.p.units - chunk * tile::UNITS) } else { tile::STEPS };
        // Without a loop in the other chunks too, registers spill.
        if Self::SHORT && is_last && steps == tile::STEPS {
            tile::multiply_add_whole::<E>(sums, queries, rows);
        } else {
            tile::multiply_add::<E>(sums, queries, rows, steps);
        }
        self.row_stage = room.stage_after(self.row_stage);
        self.query_stage ^= 1;
    }
}
