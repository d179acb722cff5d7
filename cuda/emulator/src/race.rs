//! Race detection for shared memory, by vector clocks.
//!
//! Barriers order whole warps of a block, and `sync_warp` orders lanes of one warp. So each warp
//! has a vector clock over warps that counts barriers, and each lane one over the lanes of its
//! warp, in a time that each `sync_warp` of the warp advances.

use cuda_std::host::At;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    Write,
    Atomic,
}

impl Touch {
    /// Whether two accesses to the same byte must be ordered.
    fn conflicts(self, other: Self) -> bool {
        self != other || self == Self::Write
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Atomic => "atomic update",
        }
    }
}

/// Accesses of one kind to the same bytes of a word, by lanes of one warp between two barriers, at
/// one line of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    touch: Touch,
    /// Bit `b` stands for byte `b` of the word.
    bytes: u8,
    warp: u16,
    lanes: u32,
    /// Number of barriers that the warp had passed.
    barriers: u32,
    /// The warp's time.
    time: u32,
    at: At,
}

/// The thread that accesses memory, its line in the kernel, and the clocks of its block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    pub thread: u32,
    pub at: At,
    pub clocks: &'a Clocks,
}

/// An earlier access that races with a new one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub thread: u32,
    pub touch: Touch,
    pub at: At,
}

/// The clocks of a block.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    warps: usize,
    /// Entry `w * warps + v`: barriers of warp `v` that are ordered before warp `w`. For `v = w`,
    /// barriers that it has passed.
    known: Vec<u32>,
    /// The time of each warp.
    time: Vec<u32>,
    /// Per thread and lane of its warp: accesses of the lane before this time are ordered before
    /// the thread.
    seen: Vec<[u32; 32]>,
}

impl Clocks {
    /// Starts a block.
    pub fn reset(&mut self, threads: usize) {
        self.warps = threads / 32;
        for (list, length) in [(&mut self.known, self.warps * self.warps), (&mut self.time, self.warps)] {
            list.clear();
            list.resize(length, 0);
        }
        self.seen.clear();
        self.seen.resize(threads, [0; 32]);
    }

    /// Records a barrier of the warps `met`.
    pub fn barrier(&mut self, met: &[usize]) {
        let warps = self.warps;
        let mut joined = vec![0; warps];
        for &warp in met {
            self.known[warp * warps + warp] += 1;
            let known = &self.known[warp * warps..][..warps];
            joined.iter_mut().zip(known).for_each(|(joined, &known)| *joined = known.max(*joined));
        }
        for &warp in met {
            self.known[warp * warps..][..warps].copy_from_slice(&joined);
        }
    }

    /// Records a `sync_warp` of the lanes of `mask` in this warp.
    pub fn sync_warp(&mut self, warp: usize, mask: u32) {
        self.time[warp] += 1;
        let mut joined = [0; 32];
        let lanes = || (0..32).filter(|lane| mask >> lane & 1 == 1);
        for lane in lanes() {
            let seen = &self.seen[32 * warp + lane];
            joined.iter_mut().zip(seen).for_each(|(joined, &seen)| *joined = seen.max(*joined));
        }
        lanes().for_each(|lane| joined[lane] = self.time[warp]);
        lanes().for_each(|lane| self.seen[32 * warp + lane] = joined);
    }

    /// The lanes of an access that are not ordered before this thread.
    fn unordered(&self, access: &Access, thread: usize) -> u32 {
        let (warp, other) = (thread / 32, usize::from(access.warp));
        if self.known[warp * self.warps + other] > access.barriers {
            return 0;
        }
        if other != warp {
            return access.lanes;
        }
        let mut lanes = access.lanes & !(1 << (thread % 32));
        let mut left = lanes;
        while left != 0 {
            let lane = left.trailing_zeros();
            left &= left - 1;
            if self.seen[thread][lane as usize] > access.time {
                lanes &= !(1 << lane);
            }
        }
        lanes
    }
}

impl Caller<'_> {
    /// Records an access to bytes of the word whose earlier accesses are `accesses`.
    pub fn touch(self, accesses: &mut Vec<Access>, touch: Touch, bytes: u8) -> Result<(), Conflict> {
        let Self { thread, at, clocks } = self;
        let (warp, lane, thread) = (thread / 32, thread % 32, thread as usize);
        for access in &*accesses {
            if access.bytes & bytes != 0 && touch.conflicts(access.touch) {
                let lanes = clocks.unordered(access, thread);
                if lanes != 0 {
                    let other = 32 * u32::from(access.warp) + lanes.trailing_zeros();
                    return Err(Conflict { thread: other, touch: access.touch, at: access.at });
                }
            }
        }
        let new = Access {
            touch,
            bytes,
            warp: warp as u16,
            lanes: 1 << lane,
            barriers: clocks.known[warp as usize * (clocks.warps + 1)],
            time: clocks.time[warp as usize],
            at,
        };
        let together = |access: &Access| {
            access.touch == touch
                && access.bytes == bytes
                && (access.warp, access.barriers, access.time) == (new.warp, new.barriers, new.time)
                && std::ptr::eq(access.at, at)
        };
        if touch != Touch::Write
            && let Some(access) = accesses.iter_mut().find(|access| together(access))
        {
            access.lanes |= new.lanes;
            return Ok(());
        }
        // Accesses ordered before the new one are ordered before all that follow it, so they can
        // go: all accesses before a write, or else those of the same kind.
        accesses.retain_mut(|access| {
            if touch == Touch::Write {
                access.bytes &= !bytes;
            } else if access.touch == touch && access.bytes & !bytes == 0 {
                access.lanes = clocks.unordered(access, thread);
            }
            access.bytes != 0 && access.lanes != 0
        });
        accesses.push(new);
        Ok(())
    }
}
