//! Devices that run one program together.
//!
//! Each device has a thread of its own that runs the program, as a *rank* in NCCL. Ranks have the
//! same data and take the same decisions; they share the work on it, and meet where one needs what
//! the others have found. What they exchange goes from device to device, by their links where there
//! are any.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use bytemuck::Pod;
use cuda_std::launch::Kernel;
use cuda_std::memory::Global;
use tagore_device::key::{Key, NONE};
use tagore_device::reduce::{MARKED_KEYS, REDUCE_KEYS, REDUCE_THREADS, reduce_marks, reduce_min};

use super::gpus::first_error;
use super::{Buffer, Gpu, MemoryPlan};
use crate::parallel::{join, locked, shares, spawn};
use crate::{Error, Result};

/// Keys of another device that are compared at a time: 128 MiB.
const PIECE: usize = 1 << 24;

/// Keys of a word of marks.
const MARKED: usize = MARKED_KEYS as usize;

/// One rank of the devices that run a program together.
#[derive(Clone, Copy)]
pub(crate) struct Communicator<'a> {
    gpus: &'a [Gpu],
    rank: usize,
    /// None for a device alone.
    meeting: Option<&'a Meeting>,
}

impl<'a> Communicator<'a> {
    /// The only rank.
    pub(crate) fn alone(gpu: &'a Gpu) -> Self {
        Self { gpus: std::slice::from_ref(gpu), rank: 0, meeting: None }
    }

    /// Runs `program` on all of `gpus`, at least one, at the same time, each with its part of
    /// `parts`. Returns the results by rank.
    ///
    /// # Errors
    /// The first error of a rank; the other ranks end where they would meet it.
    pub(crate) fn run<P: Send, R: Send>(
        gpus: &'a [Gpu],
        parts: Vec<P>,
        program: impl Fn(Communicator<'_>, P) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        if let [gpu] = gpus {
            return parts.into_iter().map(|part| program(Self::alone(gpu), part)).collect();
        }
        for (gpu, other) in gpus.iter().flat_map(|gpu| gpus.iter().map(move |other| (gpu, other))) {
            gpu.machine.allow(&*other.machine)?;
        }
        let meeting = Meeting::new(gpus.len());
        let program = |rank, part| {
            let _leaving = Leaving(&meeting);
            program(Communicator { gpus, rank, meeting: Some(&meeting) }, part)
        };
        // Threads outside all pools: one of a pool that waits in the program may take up other
        // work, such as another rank, and never return.
        let found: Vec<Result<R>> = thread::scope(|scope| {
            let ranks: Vec<_> = parts
                .into_iter()
                .enumerate()
                .map(|(rank, part)| {
                    let program = &program;
                    spawn(scope, move || program(rank, part)).inspect_err(|_| meeting.fail())
                })
                .collect();
            ranks.into_iter().map(|rank| join(rank?)).collect()
        });
        first_error(found)
    }

    /// The device of this rank.
    pub(crate) fn gpu(self) -> &'a Gpu {
        &self.gpus[self.rank]
    }

    /// The number of this rank.
    pub(crate) fn rank(self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub(crate) fn count(self) -> usize {
        self.gpus.len()
    }

    /// Whether this is the rank that does what one has to do for all.
    pub(crate) fn is_first(self) -> bool {
        self.rank == 0
    }

    /// Even parts of `count` values, one for each rank.
    pub(crate) fn shares(self, count: usize) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = shares(count, self.count()).collect();
        parts.resize(self.count(), count..count);
        parts
    }

    /// This rank's own of these parts.
    pub(crate) fn own(self, parts: &[Range<usize>]) -> Range<usize> {
        parts[self.rank].clone()
    }

    /// Device memory of [`reduce_scatter_min`](Self::reduce_scatter_min) for `keys` keys, beside
    /// them.
    pub(crate) fn plan(keys: usize) -> MemoryPlan {
        MemoryPlan::new()
            .with::<Key>("keys of another device", keys.min(PIECE))
            .with::<u32>("marks of keys", keys.div_ceil(MARKED))
    }

    /// Replaces each of `counts` by its sum over all ranks.
    pub(crate) fn all_reduce_sum(self, counts: &mut [u64]) -> Result<()> {
        let Some(meeting) = self.meeting else { return Ok(()) };
        let all = meeting.exchange(self.rank, counts.to_vec())?;
        for (place, count) in counts.iter_mut().enumerate() {
            *count = all.iter().map(|counts| counts[place]).sum();
        }
        Ok(())
    }

    /// Copies each rank's part of its rows, which have `width` values, to the buffers of all.
    /// `parts` of the rows are the same on all ranks.
    pub(crate) fn all_gather<T: Pod>(
        self,
        buffer: &mut Buffer<T>,
        parts: &[Range<usize>],
        width: usize,
    ) -> Result<()> {
        self.exchange(vec![buffer.address(0)], |other, addresses| {
            buffer.copy_from(values(&parts[other], width), &self.gpus[other], addresses[0])
        })
    }

    /// Leaves the least of the keys of all ranks in this rank's part of the rows, which have
    /// `width` keys, and no key in the other parts. `parts` are the same on all ranks, cover
    /// all rows, and begin at multiples of [`MARKED`] keys.
    pub(crate) fn reduce_scatter_min(
        self,
        keys: &mut Buffer<Key>,
        parts: &[Range<usize>],
        width: usize,
    ) -> Result<()> {
        self.reduce_min(keys, values(&parts[self.rank], width))?;
        for other in self.others() {
            // Every byte of an empty slot is this one.
            keys.fill_range(values(&parts[other], width), NONE as u8)?;
        }
        Ok(())
    }

    /// Leaves the least of the keys of all ranks in `keys`.
    pub(crate) fn all_reduce_min(self, keys: &mut Buffer<Key>) -> Result<()> {
        let parts = self.shares(keys.len().div_ceil(MARKED));
        let keys_of = |part: Range<usize>| part.start * MARKED..keys.len().min(part.end * MARKED);
        let parts: Vec<Range<usize>> = parts.into_iter().map(keys_of).collect();
        self.reduce_min(keys, self.own(&parts))?;
        self.all_gather(keys, &parts, 1)
    }

    /// Leaves the least of the keys of all ranks in this rank's `own` of them.
    fn reduce_min(self, keys: &mut Buffer<Key>, own: Range<usize>) -> Result<()> {
        if self.meeting.is_none() {
            return Ok(());
        }
        let (gpu, memory) = (self.gpu(), Self::plan(keys.len()).reserve(self.gpu())?);
        let mut room: Buffer<Key> = memory.buffer("keys of another device")?;
        let mut marks: Buffer<u32> = memory.buffer("marks of keys")?;
        for piece in pieces(0..own.start).chain(pieces(own.end..keys.len())) {
            let (first, count) = (piece.start, piece.len() as u32);
            let arguments = (keys.view().offset(first), marks.view_mut().offset(first / MARKED), count);
            // SAFETY: there are `count` keys and a word for each 32 of them, and the buffers
            // outlive the work.
            unsafe {
                gpu.launch::<reduce_marks>([count.div_ceil(REDUCE_KEYS), 1, 1], REDUCE_THREADS, arguments)?
            };
            gpu.count_work(reduce_marks::NAME, (piece.len() * size_of::<Key>()) as u64, 0);
        }
        self.exchange(vec![keys.address(0), marks.address(0)], |other, addresses| {
            let peer = &self.gpus[other];
            let is_linked = gpu.machine.reads(&*peer.machine)?;
            if !is_linked && !own.is_empty() {
                marks.copy_from(own.start / MARKED..own.end.div_ceil(MARKED), peer, addresses[1])?;
            }
            for piece in pieces(own.clone()) {
                let (first, count) = (piece.start, piece.len() as u32);
                let from = addresses[0] + (first * size_of::<Key>()) as u64;
                let (others, marks) = if is_linked {
                    let marks = addresses[1] + (first / MARKED * size_of::<u32>()) as u64;
                    // SAFETY: buffers of the other rank with these keys and their marks. Its work
                    // on them is done, and it changes none before the end of the exchange.
                    unsafe { (Global::new(from), Global::new(marks)) }
                } else {
                    room.copy_from(0..piece.len(), peer, from)?;
                    (room.view(), marks.view().offset(first / MARKED))
                };
                let arguments = (keys.view_mut().offset(first), others, marks, count);
                // SAFETY: the views hold `count` keys and their marks, and the buffers outlive the
                // work.
                unsafe {
                    gpu.launch::<reduce_min>([count.div_ceil(REDUCE_KEYS), 1, 1], REDUCE_THREADS, arguments)?
                };
                gpu.count_work(reduce_min::NAME, (piece.len() / 8) as u64, 0);
            }
            Ok(())
        })
    }

    /// Calls `copy` with each other rank and the `addresses` of its buffers, all of whose work is
    /// done.
    fn exchange(self, addresses: Vec<u64>, mut copy: impl FnMut(usize, &[u64]) -> Result<()>) -> Result<()> {
        let Some(meeting) = self.meeting else { return Ok(()) };
        self.gpu().synchronize()?;
        let all = meeting.exchange(self.rank, addresses)?;
        for other in self.others() {
            copy(other, &all[other])?;
        }
        self.gpu().synchronize()?;
        // No rank changes its buffer while another copies from it.
        meeting.exchange(self.rank, Vec::new()).map(drop)
    }

    /// The other ranks, each rank in another order: all links work at the same time.
    fn others(self) -> impl Iterator<Item = usize> {
        (self.rank + 1..self.count()).chain(0..self.rank)
    }
}

/// The values of `rows` of `width` values.
fn values(rows: &Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}

/// The range in pieces of [`PIECE`].
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(PIECE).map(move |first| first..end.min(first + PIECE))
}

/// Where ranks wait for each other.
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
    count: usize,
}

#[derive(Default)]
struct State {
    /// What the ranks that have come bring to the next meeting.
    brought: Vec<Vec<u64>>,
    arrived: usize,
    /// What all brought to the last one.
    all: Arc<Vec<Vec<u64>>>,
    /// The number of meetings that have taken place.
    meetings: u64,
    /// Whether a rank will not come any more.
    is_over: bool,
}

impl Meeting {
    fn new(count: usize) -> Self {
        let state = State { brought: vec![Vec::new(); count], ..State::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), count }
    }

    /// Waits until all ranks are here; returns what each brings.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if a rank has ended: its error is the one to report.
    fn exchange(&self, rank: usize, words: Vec<u64>) -> Result<Arc<Vec<Vec<u64>>>> {
        let mut state = locked(&self.state);
        let meeting = state.meetings;
        state.brought[rank] = words;
        state.arrived += 1;
        if state.arrived == self.count {
            let next = vec![Vec::new(); self.count];
            state.all = Arc::new(std::mem::replace(&mut state.brought, next));
            state.arrived = 0;
            state.meetings += 1;
            self.changed.notify_all();
        }
        while state.meetings == meeting {
            if state.is_over {
                return Err(Error::Cancelled);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // Another meeting needs this rank.
        Ok(Arc::clone(&state.all))
    }

    /// Ends the wait of all ranks.
    fn fail(&self) {
        locked(&self.state).is_over = true;
        self.changed.notify_all();
    }
}

/// A rank that ends, by a panic too: nobody may wait for it.
struct Leaving<'a>(&'a Meeting);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(count: u64) -> Vec<Gpu> {
        (0..count).map(Gpu::emulated).collect()
    }

    fn upload<T: Pod>(gpu: &Gpu, values: &[T]) -> Buffer<T> {
        let mut buffer = gpu.buffer("values", values.len()).unwrap();
        buffer.upload(values).unwrap();
        buffer
    }

    fn downloaded<T: Pod>(buffer: &Buffer<T>) -> Vec<T> {
        let mut values = vec![T::zeroed(); buffer.len()];
        buffer.download(&mut values).unwrap();
        values
    }

    #[test]
    fn all_ranks_have_what_each_has_found() {
        for count in 1..=4 {
            let gpus = devices(count as u64);
            let found = Communicator::run(&gpus, (0..count).collect(), |ranks, part| {
                assert_eq!((ranks.rank(), ranks.count()), (part, count));
                let own = (0..10).map(|i| (part * 100 + i) as u32).collect::<Vec<_>>();
                let mut buffer = upload(ranks.gpu(), &own);
                ranks.all_gather(&mut buffer, &ranks.shares(5), 2)?;
                let mut sums = [part as u64, 1];
                ranks.all_reduce_sum(&mut sums)?;
                Ok((downloaded(&buffer), sums))
            });
            let parts: Vec<u32> = shares(5, count)
                .enumerate()
                .flat_map(|(rank, part)| (part.start * 2..part.end * 2).map(move |i| (rank * 100 + i) as u32))
                .collect();
            let sums = [(0..count as u64).sum(), count as u64];
            assert_eq!(found.unwrap(), vec![(parts, sums); count]);
        }
    }

    #[test]
    fn the_least_keys_go_to_their_rank_or_to_all() {
        let count = 3;
        let gpus = devices(count as u64);
        const KEYS: usize = 10 * MARKED;
        let key = |rank: usize, i: usize| match (i * 7 + rank * 5) as Key % 11 {
            10 => NONE,
            key => key,
        };
        let least: Vec<Key> = (0..KEYS).map(|i| (0..count).map(|rank| key(rank, i)).min().unwrap()).collect();
        let found = Communicator::run(&gpus, vec![(); count], |ranks, ()| {
            let own: Vec<Key> = (0..KEYS).map(|i| key(ranks.rank(), i)).collect();
            let (mut scattered, mut all) = (upload(ranks.gpu(), &own), upload(ranks.gpu(), &own));
            ranks.reduce_scatter_min(&mut scattered, &ranks.shares(10), MARKED)?;
            ranks.all_reduce_min(&mut all)?;
            let own = values(&ranks.own(&ranks.shares(10)), MARKED);
            Ok((own, downloaded(&scattered), downloaded(&all)))
        });
        for (part, scattered, all) in found.unwrap() {
            assert_eq!(all, least);
            let expected = (0..KEYS).map(|i| if part.contains(&i) { least[i] } else { NONE });
            assert_eq!(scattered, expected.collect::<Vec<Key>>());
        }
    }

    #[test]
    fn an_error_of_one_rank_ends_all() {
        let gpus = devices(3);
        let found = Communicator::run(&gpus, vec![(); 3], |ranks, ()| {
            for round in 0.. {
                if (ranks.rank(), round) == (1, 5) {
                    return Err(ranks.gpu().error("failed"));
                }
                ranks.all_reduce_sum(&mut [1])?;
            }
            Ok(())
        });
        let error = found.unwrap_err();
        assert!(matches!(&error, Error::Device { problem, .. } if problem == "failed"), "{error}");
    }
}
