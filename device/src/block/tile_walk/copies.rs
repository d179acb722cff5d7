//! Asynchronous copies of a tile walk, and its products.

use cuda_std::copy;
use cuda_std::prelude::*;
use cuda_std::thread::{sync_named, sync_threads, thread_idx_x};

use super::{MANY, Room, Tiles};
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;
use crate::key::NO_ID;

/// Stages in use.
pub(super) struct Stages {
    pub rows: u32,
    pub queries: u32,
}

/// Asynchronous copies of a walk. `visit`, `chunk` and `stage` name the next copy of rows.
///
/// Copies are waited for in groups, all but the latest group. That one holds the rows of the chunk
/// after the next; it is empty where there is no stage for them.
pub(super) struct Copies<'a, S, const CHUNKS: u32> {
    pub p: &'a Tiles<S>,
    pub visits: u32,
    pub room: Room<S>,
    pub visit: u32,
    pub chunk: u32,
    pub stage: u32,
}

/// Source of copies: the vectors of lines.
#[inline(always)]
fn source(vectors: Shared<u32>) -> impl Fn(u32) -> Option<u32> {
    move |line: u32| {
        let vector = vectors.get(line as usize);
        if vector == NO_ID { None } else { Some(vector) }
    }
}

impl<S: TileSum, const CHUNKS: u32> Copies<'_, S, CHUNKS> {
    /// Whether all chunks of the queries stay in shared memory.
    const SHORT: bool = CHUNKS != MANY;

    /// Starts the copies of the first chunks. For short vectors, returns when all queries are
    /// there.
    #[inline(always)]
    pub(super) fn start_first(&mut self) {
        self.start_queries(0, (0, if Self::SHORT { self.room.chunks } else { 1 }));
        self.start_rows();
        self.end_groups();
        if self.room.row_stages == 3 {
            self.start_rows();
            copy::commit();
        }
        if Self::SHORT {
            copy::wait::<1>();
            sync_threads();
        }
    }

    /// Starts the copies of `chunk` (first, count) of the queries to slot `slot`.
    #[inline(always)]
    pub(super) fn start_queries(&self, slot: u32, chunk: (u32, u32)) {
        let (p, room) = (self.p, self.room);
        let lines = (thread_idx_x() / tile::UNITS, tile::SIDE / 4);
        let vectors = source(room.query_vectors());
        tile::start_copy_of(
            lines,
            (room.queries(slot), (p.queries, p.query_stride)),
            chunk,
            (p.units, true),
            &vectors,
        );
    }

    /// Starts the next copy of rows, if any remains. A pair of warps copies the 32 rows it reads.
    #[inline(always)]
    pub(super) fn start_rows(&mut self) {
        if self.visit < self.visits {
            let (p, room) = (self.p, self.room);
            let lines = (32 * (thread::warp_idx() / 2) + thread_idx_x() / tile::UNITS % 8, 8);
            let (to, vectors) = (room.rows(self.stage), source(room.row_vectors(self.visit)));
            // Optimisation 5.
            let units = (p.units, !Self::SHORT || room.chunks > 1 || self.visit < room.row_stages);
            tile::start_copy_of(lines, (to, (p.rows, p.row_stride)), (self.chunk, 1), units, &vectors);
            self.chunk += 1;
            if self.chunk == room.chunks {
                (self.visit, self.chunk) = (self.visit + 1, 0);
            }
            self.stage = if self.stage + 1 == room.row_stages { 0 } else { self.stage + 1 };
        }
    }

    #[inline(always)]
    pub(super) fn end_groups(&self) {
        copy::commit();
        if self.room.row_stages == 2 {
            copy::commit();
        }
    }

    /// Waits for the next chunk, and starts later copies: of rows, and of long queries the chunk
    /// `next_queries` (slot, chunk). All warps that read a target have left it.
    #[inline(always)]
    pub(super) fn arrive(&mut self, next_queries: Option<(u32, u32)>) {
        copy::wait::<1>();
        if Self::SHORT {
            sync_named(1 + thread::warp_idx() / 2, 64);
        } else {
            sync_threads();
            if let Some((slot, chunk)) = next_queries {
                self.start_queries(slot, (chunk, 1));
            }
            copy::commit();
        }
        self.start_rows();
        self.end_groups();
    }

    /// Adds the products of all chunks of a tile to `sums`. The first chunk has arrived.
    #[inline(always)]
    pub(super) fn multiply<E: TileElement<Sum = S>>(
        &mut self,
        sums: &mut tile::Sums<S>,
        stages: &mut Stages,
        visit: u32,
    ) {
        if Self::SHORT {
            if CHUNKS == 2 {
                self.multiply_chunk::<E>(sums, stages, 0);
                self.arrive(None);
            }
            self.multiply_chunk::<E>(sums, stages, CHUNKS - 1);
            return;
        }
        let room = self.room;
        let mut chunk = 0;
        loop {
            self.multiply_chunk::<E>(sums, stages, chunk);
            chunk += 1;
            if chunk == room.chunks {
                return;
            }
            self.arrive(match chunk + 1 < room.chunks {
                true => Some((stages.queries ^ 1, chunk + 1)),
                false if visit + 1 < self.visits => Some((stages.queries ^ 1, 0)),
                false => None,
            });
        }
    }

    /// Adds the products of a chunk, which has arrived, and moves `stages` to the next one.
    #[inline(always)]
    fn multiply_chunk<E: TileElement<Sum = S>>(
        &self,
        sums: &mut tile::Sums<S>,
        stages: &mut Stages,
        chunk: u32,
    ) {
        let room = self.room;
        let queries = room.queries(if Self::SHORT { chunk } else { stages.queries });
        let rows = room.rows(stages.rows);
        let is_last = chunk + 1 == room.chunks;
        let steps = if is_last { tile::steps(self.p.units - chunk * tile::UNITS) } else { tile::STEPS };
        // Without a loop in the other chunks too, registers spill.
        if Self::SHORT && is_last && steps == tile::STEPS {
            tile::multiply_add_whole::<E>(sums, queries, rows);
        } else {
            tile::multiply_add::<E>(sums, queries, rows, steps);
        }
        stages.rows = if stages.rows + 1 == room.row_stages { 0 } else { stages.rows + 1 };
        stages.queries ^= 1;
    }
}
