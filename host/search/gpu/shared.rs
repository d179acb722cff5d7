//! Beam search on GPUs that share the queries.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use tagore_device::key::{self, Key};

use super::launch::Work;
use super::{BatchLimits, KeysTo, OnGpu};
use crate::gpu::{Gpu, Gpus};
use crate::index::Index;
use crate::parallel::shares;
use crate::progress::StageProgress;
use crate::search::answer::Answer;
use crate::search::coded::Coded;
use crate::search::engine::{Found, fill};
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// Why the beam of a query does not tell its answer.
#[derive(Clone, Copy)]
enum Left {
    /// Too few of its rows pass the filter.
    Short,
    /// The search goes on in a dense spot.
    AtSpot,
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
        coded: Option<&Arc<Coded>>,
    ) -> Result<Self> {
        let codes =
            coded.map(|coded| coded.make(space, Some(gpus.first()), &Progress::silent())).transpose()?;
        let codes = coded.zip(codes.as_ref());
        let copy = |gpu: &Gpu| OnGpu::new(gpu.clone(), space, index, codes);
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

    /// Index and base on the first GPU, alone.
    pub(in crate::search) fn into_first(mut self) -> OnGpu {
        self.copies.swap_remove(0)
    }

    /// Searches for each of `queries`; each GPU takes a range of them. If the answer takes the beam,
    /// `limits.k` is the beam.
    ///
    /// # Errors
    /// If a device lacks memory or fails, a limit exceeds that of a device, or the work is
    /// cancelled.
    pub(in crate::search) fn search(
        &self,
        space: &Space<'_>,
        queries: &Queries<'_>,
        (answer, limits): (&Answer<'_>, BatchLimits),
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
            let (left, work) = copy.search_part(space, &part, (answer, limits), keys, &stage)?;
            let left = left.into_iter().map(move |(query, why)| (query + range.start as u32, why));
            Ok((left, work))
        };
        let found = self.gpus.run_stage(&stage, parts, search)?;
        let mut all = Found { keys, ..Found::default() };
        for (left, work) in found {
            for (query, why) in left {
                match why {
                    Left::Short => all.short.push(query),
                    Left::AtSpot => all.at_spots.push(query),
                }
            }
            all.computed += work.computed;
            all.times.add(work.kernels);
        }
        Ok(all)
    }
}

impl OnGpu {
    /// Writes the answers of `queries` to `keys`. Returns the queries whose answers are still to be
    /// found, ascending.
    fn search_part(
        &self,
        space: &Space<'_>,
        queries: &Queries<'_>,
        (answer, limits): (&Answer<'_>, BatchLimits),
        keys: &mut [Key],
        stage: &StageProgress<'_>,
    ) -> Result<(Vec<(u32, Left)>, Work)> {
        let (k, width) = (answer.k(), limits.k);
        if !answer.takes_beam() {
            let work = self.search(space, queries, limits, KeysTo::Host(keys), stage)?;
            if !answer.is_plain() {
                keys.par_chunks_exact_mut(k).for_each_init(Vec::new, |rows, slots| {
                    answer.take(slots.iter().copied(), k, rows);
                    fill(slots, rows);
                });
            }
            return Ok((Vec::new(), work));
        }
        let mut left: Vec<(u32, Left)> = Vec::new();
        let mut take = |first: usize, beams: &[Key]| {
            let slots = keys[first * k..].par_chunks_exact_mut(k).zip(beams.par_chunks_exact(width));
            let why = slots.map_init(Vec::new, |rows, (slots, beam)| {
                if answer.meets_spot(beam) {
                    return Some(Left::AtSpot);
                }
                let is_complete = answer.take(beam.iter().copied(), width, rows);
                fill(slots, rows);
                (!is_complete).then_some(Left::Short)
            });
            let why: Vec<Option<Left>> = why.collect();
            left.extend((first as u32..).zip(why).filter_map(|(query, why)| Some((query, why?))));
        };
        let work = self.search(space, queries, limits, KeysTo::Batches(&mut take), stage)?;
        Ok((left, work))
    }
}
