//! Barriers of a block, exchanges of a warp, and the threads that wait at them.

use std::ptr;
use std::rc::Rc;

use cuda_std::host::{At, Barrier, Shown, WORDS};

use crate::fault::{FaultKind, Finding, threads};
use crate::order::Draws;
use crate::race::Clocks;

/// An exchange of a warp, as one lane calls it.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub mask: u32,
    pub operation: &'static str,
    pub at: At,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Running or ready to run.
    Runs,
    /// Waiting at a barrier.
    Barrier {
        barrier: Barrier,
        predicate: bool,
        at: At,
    },
    /// Waiting at an exchange, as one of a group of lanes.
    Exchange,
    Finished,
}

/// Lanes of a warp that wait at the same exchange.
#[derive(Debug)]
struct Group {
    exchange: Exchange,
    /// Bit `l` is set if lane `l` waits.
    lanes: u32,
}

impl Group {
    fn is_of(&self, other: &Exchange) -> bool {
        let Exchange { mask, operation, at } = &self.exchange;
        // Nearly always the addresses are equal, which is faster than comparing text.
        *mask == other.mask
            && (ptr::eq(*operation, other.operation) || *operation == other.operation)
            && (ptr::eq(*at, other.at) || *at == other.at)
    }
}

/// The states of the threads of a block.
#[derive(Debug)]
pub(crate) struct Waits {
    states: Vec<State>,
    /// Threads that are ready to run, in no order.
    ready: Vec<u32>,
    /// Per barrier, the threads that wait at it.
    arrived: [Vec<u32>; 16],
    /// Per barrier and warp, a thread of the warp that waits there.
    mates: [Vec<Option<u32>>; 16],
    /// Per thread, the count of its last barrier.
    counts: Vec<u32>,
    /// Per thread, the words that it shows in the exchange it waits at.
    words: Vec<[u32; WORDS]>,
    /// Per thread, the words of its last exchange, until the thread takes them.
    shown: Vec<Option<Rc<Shown>>>,
    /// Per warp, the exchanges that lanes wait at. They make the cost of an exchange the same for
    /// each lane.
    groups: Vec<Vec<Group>>,
}

/// A deadlock, and the line of the first thread in it.
pub(crate) struct Deadlock {
    pub finding: Finding,
    pub at: At,
}

impl Waits {
    pub fn new() -> Self {
        Self {
            states: Vec::new(),
            ready: Vec::new(),
            arrived: Default::default(),
            mates: Default::default(),
            counts: Vec::new(),
            words: Vec::new(),
            shown: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Starts a block.
    pub fn reset(&mut self, threads: u32) {
        self.states.clear();
        self.states.resize(threads as usize, State::Runs);
        self.ready.clear();
        self.ready.extend(0..threads);
        self.arrived.iter_mut().for_each(Vec::clear);
        for mates in &mut self.mates {
            mates.clear();
            mates.resize(threads.div_ceil(32) as usize, None);
        }
        self.counts.clear();
        self.counts.resize(threads as usize, 0);
        self.words.resize(threads as usize, [0; WORDS]);
        self.shown.clear();
        self.shown.resize(threads as usize, None);
        self.groups.iter_mut().for_each(Vec::clear);
        self.groups.resize_with(threads.div_ceil(32) as usize, Vec::new);
    }

    /// Draws the next thread to run, if one is ready.
    pub fn next(&mut self, draws: &mut Draws) -> Option<u32> {
        let count = self.ready.len() as u64;
        (count > 0).then(|| self.ready.swap_remove(draws.below(count) as usize))
    }

    /// Makes the running thread ready, so that others can run.
    pub fn step_aside(&mut self, thread: u32) {
        self.ready.push(thread);
    }

    pub fn finish(&mut self, thread: u32) {
        self.states[thread as usize] = State::Finished;
    }

    fn release(&mut self, thread: u32) {
        self.states[thread as usize] = State::Runs;
        self.ready.push(thread);
    }

    /// The count of the last barrier of the thread.
    pub fn count(&self, thread: u32) -> u32 {
        self.counts[thread as usize]
    }

    /// The words of the last exchange of the thread.
    pub fn take_shown(&mut self, thread: u32) -> Option<Rc<Shown>> {
        self.shown[thread as usize].take()
    }

    /// Records that the thread waits at a barrier. The caller then suspends the thread.
    pub fn barrier(
        &mut self,
        thread: u32,
        barrier: Barrier,
        predicate: bool,
        at: At,
        clocks: &mut Clocks,
    ) -> Result<(), Finding> {
        let block = self.states.len() as u32;
        let needed = barrier.threads.unwrap_or(block);
        let id = barrier.id;
        if id >= 16 || needed == 0 || needed > block || !needed.is_multiple_of(32) {
            let what = format!(
                "barrier {id} for {needed} threads, in a block of {block}: \
                 allowed are 0 to 15, for whole warps of the block"
            );
            return Err(Finding::new(FaultKind::Barrier, what));
        }
        // All lanes of a warp must make one call, and all threads at a barrier of the whole block.
        // The first thread that arrived stands for all of them.
        let warp = thread / 32;
        let first = self.arrived[id as usize].first().copied();
        // Lanes of this warp that wait here have been compared: one of them is enough.
        let mate = &mut self.mates[id as usize][warp as usize];
        for other in first.into_iter().chain(*mate) {
            let State::Barrier { barrier: others, at: others_at, .. } = self.states[other as usize] else {
                continue;
            };
            let one_call = barrier.threads.is_none() || other / 32 == warp;
            if others != barrier || (one_call && !ptr::eq(others_at, at) && others_at != at) {
                let what = format!(
                    "barrier {id} for {needed} threads, where thread {other} waits at barrier {id} \
                     for {} threads at {others_at}",
                    others.threads.unwrap_or(block)
                );
                return Err(Finding::with(FaultKind::Barrier, other, what));
            }
        }
        mate.get_or_insert(thread);
        self.states[thread as usize] = State::Barrier { barrier, predicate, at };
        self.arrived[id as usize].push(thread);
        if self.arrived[id as usize].len() as u32 >= needed {
            self.pass(id as usize, needed, clocks);
        }
        Ok(())
    }

    /// Releases the whole warps at a barrier if they are enough.
    fn pass(&mut self, id: usize, needed: u32, clocks: &mut Clocks) {
        let mut lanes = vec![0u32; self.states.len() / 32];
        for &thread in &self.arrived[id] {
            lanes[thread as usize / 32] += 1;
        }
        let whole: Vec<usize> = (0..lanes.len()).filter(|&warp| lanes[warp] == 32).collect();
        if 32 * whole.len() as u32 != needed {
            return;
        }
        clocks.barrier(&whole);
        whole.iter().for_each(|&warp| self.mates[id][warp] = None);
        self.arrived[id].retain(|&thread| lanes[thread as usize / 32] != 32);
        let passing = || whole.iter().flat_map(|&warp| 32 * warp..32 * warp + 32);
        let holds = |&thread: &usize| matches!(self.states[thread], State::Barrier { predicate: true, .. });
        let count = passing().filter(holds).count() as u32;
        for thread in passing() {
            self.counts[thread] = count;
            self.release(thread as u32);
        }
    }

    /// Records that the thread shows `words` and waits at an exchange. The caller then suspends the
    /// thread.
    pub fn exchange(
        &mut self,
        thread: u32,
        exchange: Exchange,
        words: &[u32],
        clocks: &mut Clocks,
    ) -> Result<(), Finding> {
        let &Exchange { mask, operation, .. } = &exchange;
        let (warp, lane) = (thread / 32, thread % 32);
        if mask >> lane & 1 == 0 {
            let what = format!("{operation} with mask {mask:#x}, which lacks the calling lane {lane}");
            return Err(Finding::new(FaultKind::Exchange, what));
        }
        self.states[thread as usize] = State::Exchange;
        let shown = &mut self.words[thread as usize];
        *shown = [0; WORDS];
        shown[..words.len()].copy_from_slice(words);
        let own = self.group(thread, &exchange)?;
        let groups = &mut self.groups[warp as usize];
        let number = own.unwrap_or_else(|| {
            groups.push(Group { exchange, lanes: 0 });
            groups.len() - 1
        });
        groups[number].lanes |= 1 << lane;
        if groups[number].lanes == mask {
            groups.swap_remove(number);
            if operation == "sync_warp" {
                clocks.sync_warp(warp as usize, mask);
            }
            self.show(warp, mask);
        }
        Ok(())
    }

    /// The number of the group that waits at the thread's exchange, if there is one. Fails if a
    /// lane of the mask waits at another exchange together with this lane.
    fn group(&self, thread: u32, exchange: &Exchange) -> Result<Option<usize>, Finding> {
        let (warp, lane) = (thread / 32, thread % 32);
        let (mut own, mut against) = (None, None::<(u32, &Exchange)>);
        for (number, group) in self.groups[warp as usize].iter().enumerate() {
            let others = group.lanes & exchange.mask;
            if others == 0 {
                continue;
            }
            if group.is_of(exchange) {
                own = Some(number);
            } else if group.exchange.mask >> lane & 1 == 1 {
                let other = others.trailing_zeros();
                if against.is_none_or(|(first, _)| other < first) {
                    against = Some((other, &group.exchange));
                }
            }
            // Otherwise the other lanes do not wait for this one, and may still come.
        }
        if let Some((other, theirs)) = against {
            let other = 32 * warp + other;
            let what = format!(
                "{} with mask {:#x}, where thread {other} waits at {} with mask {:#x} at {}",
                exchange.operation, exchange.mask, theirs.operation, theirs.mask, theirs.at
            );
            return Err(Finding::with(FaultKind::Exchange, other, what));
        }
        Ok(own)
    }

    /// Shows the words of the lanes of `mask` to each of them, and releases them.
    fn show(&mut self, warp: u32, mask: u32) {
        let lanes = || (0..32).filter(|lane| mask >> lane & 1 == 1).map(|lane| 32 * warp + lane);
        let mut shown: Shown = [[0; WORDS]; 32];
        lanes().for_each(|other| shown[other as usize % 32] = self.words[other as usize]);
        let shown = Rc::new(shown);
        for other in lanes() {
            self.shown[other as usize] = Some(Rc::clone(&shown));
            self.release(other);
        }
    }

    /// The deadlock when no thread is ready; `None` if all threads have finished.
    pub fn deadlock(&self) -> Option<Deadlock> {
        let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
        let mut note = |what: String, thread: u32| match groups.iter_mut().find(|group| group.0 == what) {
            Some(group) => group.1.push(thread),
            None => groups.push((what, vec![thread])),
        };
        let block = self.states.len();
        // Report an exchange rather than a barrier: the missing lanes may wait at the barrier.
        let mut first: Option<(FaultKind, String, At)> = None;
        for (thread, state) in (0u32..).zip(&self.states) {
            let (kind, waits, at) = match *state {
                State::Runs => continue,
                State::Finished => {
                    note("finished".to_owned(), thread);
                    continue;
                }
                State::Barrier { barrier: Barrier { id, threads }, at, .. } => {
                    let needed = threads.unwrap_or(block as u32);
                    (FaultKind::Barrier, format!("barrier {id} for {needed} threads"), at)
                }
                State::Exchange => {
                    let mut waiting = self.groups[thread as usize / 32].iter();
                    let Some(group) = waiting.find(|group| group.lanes >> (thread % 32) & 1 == 1) else {
                        continue;
                    };
                    let Exchange { mask, operation, at } = group.exchange;
                    (FaultKind::Exchange, format!("{operation} with mask {mask:#x}"), at)
                }
            };
            let what = format!("wait at {waits} at {at}");
            if !matches!(first, Some((FaultKind::Exchange, ..)))
                && (first.is_none() || kind == FaultKind::Exchange)
            {
                first = Some((kind, waits, at));
            }
            note(what, thread);
        }
        let (kind, waits, at) = first?;
        let missing = if kind == FaultKind::Barrier { "threads" } else { "lanes" };
        let listed: Vec<String> =
            groups.iter().map(|(what, indices)| format!("{} {what}", threads(indices))).collect();
        let what = format!("{waits} is not reached by all of its {missing}: {}", listed.join("; "));
        let headline = format!("wait at {waits} at {at}");
        let others =
            groups.into_iter().find(|group| group.0 == headline).map_or_else(Vec::new, |group| group.1);
        Some(Deadlock { finding: Finding { kind, others, what }, at })
    }
}
