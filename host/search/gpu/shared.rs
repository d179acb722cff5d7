//! Beam search on GPUs that share the queries.

use std::fmt;
use std::ops::Range;

use tagore_device::key::{self, Key};

use super::launch::Work;
use super::{BatchLimits, KeysTo, OnGpu};
use crate::gpu::{Gpu, Gpus};
use crate::index::Index;
use crate::loops::{map_with, rows, rows_mut};
use crate::parallel::shares;
use crate::search::answer::Answer;
use crate::search::codes::Codes;
use crate::search::engine::{Found, fill};
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// Queries whose beams do not tell their answers, ascending.
#[derive(Default)]
struct Unanswered {
    /// The walk found fewer rows than there are.
    short: Vec<u32>,
    /// The search goes on in a dense spot.
    at_spots: Vec<u32>,
}

/// An index and its base on each of one or more GPUs.
pub(crate) struct OnGpus {
    gpus: Gpus,
    /// In the order of the GPUs.
    copies: Vec<OnGpu>,
}

impl fmt::Debug for OnGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnGpus").field(&self.gpus.name()).finish()
    }
}

impl OnGpus {
    /// Copies index and base, or its codes and as much of it as fits, to each GPU.
    ///
    /// # Errors
    /// If one lacks memory or fails.
    pub(in crate::search) fn new(
        gpus: Gpus,
        space: &Space<'_>,
        index: &Index,
        codes: Option<&Codes>,
    ) -> Result<Self> {
        let coded = codes.and_then(Codes::rows);
        let of_rows =
            coded.map(|coded| coded.make(space, Some(gpus.first()), &Progress::silent())).transpose()?;
        let of_rows = coded.zip(of_rows.as_ref());
        let of_edges = codes.and_then(Codes::edges);
        let copy = |gpu: &Gpu| match of_edges {
            Some(codes) => OnGpu::new(gpu.clone(), space, index, None)?.code_edges(codes, space.metric()),
            None => OnGpu::new(gpu.clone(), space, index, of_rows),
        };
        let copies = gpus.run(gpus.all().iter().collect(), copy)?;
        Ok(Self { gpus, copies })
    }

    /// Index and base where they already lie, on one GPU.
    pub(in crate::search) fn at(on_gpu: OnGpu) -> Self {
        Self { gpus: Gpus::one(on_gpu.gpu.clone()), copies: vec![on_gpu] }
    }

    /// The GPUs.
    pub(in crate::search) fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Index and base on the first GPU.
    pub(in crate::search) fn first(&self) -> &OnGpu {
        &self.copies[0]
    }

    /// Index and base on each GPU.
    pub(in crate::search) fn copies(&self) -> &[OnGpu] {
        &self.copies
    }

    /// Index and base on the first GPU, alone.
    pub(in crate::search) fn into_first(mut self) -> OnGpu {
        self.copies.swap_remove(0)
    }

    /// Searches for each of `queries`; each GPU takes a range of them. If the answer takes the
    /// beam, `limits.k` is the beam.
    ///
    /// # Errors
    /// If a device lacks memory or fails, a limit exceeds that of a device, or the work is
    /// cancelled.
    pub(in crate::search) fn search(
        &self,
        space: &Space<'_>,
        queries: &Queries<'_>,
        answer: &Answer<'_>,
        limits: BatchLimits<'_>,
        progress: &Progress,
    ) -> Result<Found> {
        let k = answer.k();
        let stage = progress.stage("search", queries.len() as u64);
        let mut keys = vec![key::NONE; queries.len() * k];
        let (mut parts, mut rest) = (Vec::new(), &mut keys[..]);
        for (copy, range) in self.copies.iter().zip(shares(queries.len(), self.copies.len())) {
            let (here, after) = rest.split_at_mut(range.len() * k);
            parts.push((copy, range, here));
            rest = after;
        }
        let search = |(copy, range, keys): (&OnGpu, Range<usize>, &mut [Key])| {
            let part = queries.part(range.clone())?;
            let search = |to: KeysTo<'_>| copy.search(space, &part, limits, to, &stage);
            let (unanswered, work) = search_part(answer, limits.k, keys, search)?;
            Ok((range.start as u32, unanswered, work))
        };
        let found = self.gpus.run_stage(&stage, parts, search)?;
        let mut all = Found { keys, ..Found::default() };
        for (first, Unanswered { short, at_spots }, work) in found {
            all.short.extend(short.into_iter().map(|query| first + query));
            let mut left = [at_spots, work.not_held].concat();
            left.sort_unstable();
            left.dedup();
            all.left.extend(left.into_iter().map(|query| first + query));
            all.computed += work.computed;
            all.times.add(work.kernels);
        }
        Ok(all)
    }
}

/// Writes the answers of some queries to `keys`, from the beams of `width` nodes that `search`
/// finds. Returns the queries whose answers are still to be found, ascending.
fn search_part(
    answer: &Answer<'_>,
    width: usize,
    keys: &mut [Key],
    search: impl FnOnce(KeysTo<'_>) -> Result<Work>,
) -> Result<(Unanswered, Work)> {
    let k = answer.k();
    if !answer.takes_beam() {
        let work = search(KeysTo::Host(keys))?;
        let unanswered = |short| Ok((Unanswered { short, ..Unanswered::default() }, work));
        if answer.is_plain() {
            // Sooner by one thread than a pool of them wakes up.
            let queries = (0..).zip(keys.chunks_exact(k));
            return unanswered(
                queries.filter(|(_, slots)| !answer.is_complete(slots)).map(|(i, _)| i).collect(),
            );
        }
        let take = |rows: &mut Vec<Key>, slots: &mut [Key]| {
            let is_complete = answer.take(slots.iter().copied(), rows);
            fill(slots, rows);
            is_complete
        };
        let is_complete = map_with(rows_mut(keys, k), Vec::new, take);
        return unanswered((0..).zip(is_complete).filter(|&(_, is)| !is).map(|(query, _)| query).collect());
    }
    let mut unanswered = Unanswered::default();
    let mut take = |first: usize, beams: &[Key]| {
        let slots = (rows_mut(&mut keys[first * k..], k), rows(beams, width));
        let take = |rows: &mut Vec<Key>, (slots, beam): (&mut [Key], &[Key])| {
            if answer.meets_spot(beam) {
                return (false, true);
            }
            let is_complete = answer.take(beam.iter().copied(), rows);
            fill(slots, rows);
            (!is_complete, false)
        };
        let outcomes = map_with(slots, Vec::new, take);
        for (query, (is_short, is_at_spot)) in (first as u32..).zip(outcomes) {
            unanswered.short.extend(is_short.then_some(query));
            unanswered.at_spots.extend(is_at_spot.then_some(query));
        }
    };
    let work = search(KeysTo::Batches(&mut take))?;
    Ok((unanswered, work))
}
