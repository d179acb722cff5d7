//! Which accesses of shared memory are ordered by barriers, and which race.
//!
//! Two things order the threads of a block: barriers, which whole warps take part in, and `sync_warp`,
//! which orders lanes of one warp. So a warp has a vector clock over warps, which counts barriers, and a
//! lane one over the lanes of its warp, in a time that each `sync_warp` of the warp moves on.

use cuda_std::host::At;

/// How a thread touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    Write,
    Atomic,
}

impl Touch {
    /// Whether the two need an order.
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

/// Accesses of one kind to the same bytes of a word, by lanes of one warp between two barriers, at one
/// line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    touch: Touch,
    /// Bit `b`: byte `b` of the word.
    bytes: u8,
    warp: u16,
    lanes: u32,
    /// Barriers that the warp had passed.
    barriers: u32,
    /// The time in the warp.
    time: u32,
    at: At,
}

/// An earlier access that races with a new one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub thread: u32,
    pub touch: Touch,
    pub at: At,
}

/// What each thread of a block knows of the others.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    warps: usize,
    /// Entry `w * warps + v`: how many barriers of warp `v` warp `w` knows; of itself, has passed.
    known: Vec<u32>,
    /// The time of each warp.
    time: Vec<u32>,
    /// Of each thread: what each lane of its warp did before this time is before what the thread does.
    seen: Vec<[u32; 32]>,
}

impl Clocks {
    /// Begins a block.
    pub fn reset(&mut self, threads: usize) {
        self.warps = threads / 32;
        for (list, length) in [(&mut self.known, self.warps * self.warps), (&mut self.time, self.warps)] {
            list.clear();
            list.resize(length, 0);
        }
        self.seen.clear();
        self.seen.resize(threads, [0; 32]);
    }

    /// These warps have met at a barrier.
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

    /// The lanes of `mask` of this warp have met at a `sync_warp`.
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

    /// The lanes of an access that are not ordered before what this thread does now.
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

    /// Notes an access to bytes of the word that `accesses` is kept for.
    pub fn touch(
        &self,
        accesses: &mut Vec<Access>,
        thread: u32,
        touch: Touch,
        bytes: u8,
        at: At,
    ) -> Result<(), Conflict> {
        let (warp, lane, thread) = (thread / 32, thread % 32, thread as usize);
        for access in &*accesses {
            if access.bytes & bytes != 0 && touch.conflicts(access.touch) {
                let lanes = self.unordered(access, thread);
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
            barriers: self.known[warp as usize * (self.warps + 1)],
            time: self.time[warp as usize],
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
        // What is ordered before the new access is ordered before all that comes after it, and need not be
        // kept: before a write, everything there; otherwise, accesses of the same kind.
        accesses.retain_mut(|access| {
            if touch == Touch::Write {
                access.bytes &= !bytes;
            } else if access.touch == touch && access.bytes & !bytes == 0 {
                access.lanes = self.unordered(access, thread);
            }
            access.bytes != 0 && access.lanes != 0
        });
        accesses.push(new);
        Ok(())
    }
}
