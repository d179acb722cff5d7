//! Pinned memory of the host, through which copies to and from a device pass in pieces.

use std::sync::Mutex;

use cust::error::CudaResult;
use cust::event::EventFlags;
use cust::prelude::*;

use super::overhead::{COPYING_THREADS, PIECE, PIECES};
use crate::loops::on_threads;
use crate::parallel::{FEW_BYTES, locked, unlocked};

/// Pinned memory of [`PIECES`] pieces, and the event after the last copy of each.
#[derive(Debug)]
pub(super) struct Staging {
    memory: LockedBuffer<u8>,
    copied: Vec<Event>,
}

/// Bytes of a piece of a copy of `bytes`: small ones, where there are few for each thread.
pub(super) fn piece_bytes(bytes: usize) -> usize {
    (bytes / PIECES).clamp(FEW_BYTES, PIECE)
}

impl Staging {
    /// Pins `memory`, of [`PIECES`] pieces.
    pub(super) fn new(context: &Context, memory: Vec<u8>) -> CudaResult<Self> {
        let event = |_| Event::new(context, EventFlags::DisableTiming);
        let copied = (0..PIECES).map(event).collect::<CudaResult<_>>()?;
        Ok(Self { memory: LockedBuffer::from_vec(context, memory)?, copied })
    }

    /// Calls `copy` for each of `parts`, on several threads if these are many: with a piece that no
    /// earlier copy uses any more, and the event to record after a copy that begins.
    ///
    /// # Errors
    /// The first one; parts may be missing then.
    pub(super) fn copy<P>(
        &mut self,
        parts: impl ExactSizeIterator<Item = P> + Send,
        copy: impl Fn(P, &mut [u8], &Event) -> CudaResult<()> + Sync,
    ) -> CudaResult<()> {
        let threads = parts.len().min(COPYING_THREADS).min(rayon::current_num_threads());
        // A thread keeps its pieces, which stay in the cache of its core.
        let own = PIECES / COPYING_THREADS;
        let pieces = self.memory.chunks_exact_mut(own * PIECE).zip(self.copied.chunks_exact(own));
        let (parts, pieces, failed) = (Mutex::new(parts), Mutex::new(pieces), Mutex::new(None));
        on_threads(threads, &|| {
            let Some((memory, copied)) = locked(&pieces).next() else { return };
            for piece in (0..own).cycle() {
                let Some(part) = locked(&parts).next() else { return };
                let (memory, copied) = (&mut memory[piece * PIECE..][..PIECE], &copied[piece]);
                if let Err(error) = copied.synchronize().and_then(|()| copy(part, memory, copied)) {
                    locked(&failed).get_or_insert(error);
                    return locked(&parts).by_ref().for_each(drop);
                }
            }
        });
        unlocked(failed).map_or(Ok(()), Err)
    }
}
