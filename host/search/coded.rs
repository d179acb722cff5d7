//! Searches that walk on codes of the vectors, and rerank what they find by exact distances.

use half::f16;
use tagore_device::key::{self, Key};

use super::lazy::Lazy;
use crate::gpu::Gpu;
use crate::quantize::{Compression, ScalarQuantizer, Use};
use crate::vectors::queries::Queries;
use crate::vectors::space::{Query, Space};
use crate::{Metric, Progress, Result};

/// The codes of a base.
pub(super) struct Coded {
    quantizer: ScalarQuantizer,
    /// The codes, once a search on the CPU has needed them.
    space: Lazy<Space<'static>>,
}

/// The code of one query at a time.
#[derive(Default)]
pub(super) struct CodeBuffer {
    wide: Vec<[f32; 1]>,
    f16: Vec<f16>,
    i8: Vec<i8>,
}

impl Coded {
    /// Fits codes to the rows of `space`.
    ///
    /// # Errors
    /// If the vectors are no larger than their codes, or lie on a device that fails.
    pub(super) fn new(space: &Space<'_>, compression: Compression) -> Result<Self> {
        let quantizer = ScalarQuantizer::for_search(space.vectors(), space.metric(), compression)?;
        if let Some(warning) = quantizer.warning(Use::Search) {
            tracing::warn!("{warning}");
        }
        Ok(Self { quantizer, space: Lazy::default() })
    }

    /// The metric of codes.
    pub(super) fn metric(&self) -> Metric {
        self.quantizer.metric()
    }

    /// Turns vectors into codes.
    pub(super) fn quantizer(&self) -> &ScalarQuantizer {
        &self.quantizer
    }

    /// The codes of the rows of `space`, made anew, on `gpu` if given.
    ///
    /// # Errors
    /// If a device lacks memory or fails, or the work is cancelled.
    pub(super) fn make(
        &self,
        space: &Space<'_>,
        gpu: Option<&Gpu>,
        progress: &Progress,
    ) -> Result<Space<'static>> {
        Space::owned(self.quantizer.base(space.vectors(), gpu, progress)?, self.metric(), progress)
    }

    /// The codes of the rows of `space`, made by the first call.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub(super) fn get_or_make(&self, space: &Space<'_>, progress: &Progress) -> Result<&Space<'static>> {
        self.space.get_or_make(|| self.make(space, None, progress))
    }

    /// The codes of queries, for a search on `gpu`.
    ///
    /// # Errors
    /// If the device lacks memory or fails, or the work is cancelled.
    pub(super) fn queries(
        &self,
        queries: &Queries<'_>,
        gpu: &Gpu,
        progress: &Progress,
    ) -> Result<Queries<'static>> {
        Ok(Queries::owned(self.quantizer.queries(queries.vectors(), Some(gpu), progress)?))
    }

    /// The numbers of the queries, whose codes are given, that codes do not hold. Searches for them
    /// walk on the vectors.
    ///
    /// # Errors
    /// If the device of the codes fails.
    pub(super) fn not_held(&self, codes: &Queries<'_>) -> Result<Vec<u32>> {
        self.quantizer.not_held(codes.vectors())
    }

    /// The code of one query; none if codes do not hold it.
    pub(super) fn query<'b>(&self, query: Query<'_>, buffer: &'b mut CodeBuffer) -> Option<Query<'b>> {
        let CodeBuffer { wide, f16, i8 } = buffer;
        query.widen(wide);
        let dim = wide.len();
        let (query, square) = match self.quantizer.compression() {
            Compression::F16 => {
                f16.resize(dim, f16::ZERO);
                self.quantizer.code_query(wide, f16);
                // In the order of the kernel.
                let square: f64 = f16.iter().map(|&x| f64::from(x).powi(2)).sum();
                (Query::new(f16, false), square)
            }
            Compression::Int8 => {
                i8.resize(dim, 0);
                self.quantizer.code_query(wide, i8);
                let square: i32 = i8.iter().map(|&x| i32::from(x) * i32::from(x)).sum();
                (Query::new(i8, false), f64::from(square))
            }
        };
        self.quantizer.holds(square).then_some(query)
    }
}

/// The nodes of some keys, by exact distances.
#[derive(Default)]
pub(super) struct Reranked {
    ids: Vec<u32>,
    distances: Vec<f32>,
    keys: Vec<Key>,
    computed: u64,
}

impl Reranked {
    /// Distances computed so far.
    pub(super) fn computed(&self) -> u64 {
        self.computed
    }

    /// Replaces the distances of `found` by those of `space`, and sorts. Stops at the first empty
    /// slot.
    pub(super) fn rerank(
        &mut self,
        space: &Space<'_>,
        query: Query<'_>,
        found: impl Iterator<Item = Key>,
    ) -> &[Key] {
        let Self { ids, distances, keys, computed } = self;
        ids.clear();
        ids.extend(found.take_while(|&key| key != key::NONE).map(key::id));
        space.list_distances(query, ids, distances);
        *computed += ids.len() as u64;
        keys.clear();
        keys.extend(distances.iter().zip(&*ids).map(|(&distance, &id)| key::pack(distance, id)));
        keys.sort_unstable();
        keys
    }
}
