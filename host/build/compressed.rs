//! Builds on codes of the vectors.

use std::sync::Arc;
use std::time::Instant;

use super::memory::Given;
use super::{Builder, Built};
use crate::quantize::{Codes, Compression, ScalarQuantizer, Use};
use crate::vectors::space::Space;
use crate::{Collect, DataShape, Error, Result, Vectors};

/// Share of making codes in the time of a build, for progress.
const CODES: f64 = 0.1;

impl Builder {
    /// Builds on codes of one or two bytes per component in place of the vectors: a GPU holds the
    /// codes alone, and reads less; full vectors if `None`, as unless set. Edges are chosen by the
    /// distances of codes, which rounding changes a little, so an index finds nearly as much.
    /// Codes are in host memory during the build. Not for a build from a given k-NN graph, nor out
    /// of core.
    ///
    /// On `Int8`, descent finds longer lists, and a second byte per component, in host memory too,
    /// chooses the nearest. Not where candidates come from paths or second hops
    /// ([`Strategy::collect`](crate::Strategy::collect)): their distances are those of the codes
    /// alone.
    ///
    /// ```
    /// use tagore::{Builder, Compression, Strategy, Synth};
    /// let base = Synth::new(1000, 64, 1)?.base();
    /// let index = Builder::new(Strategy::nsg()).compressed(Compression::Int8).build(&base)?;
    /// assert_eq!(index.description().parameters["vectors"], "int8");
    /// # Ok::<(), tagore::Error>(())
    /// ```
    pub fn compressed(mut self, compression: impl Into<Option<Compression>>) -> Self {
        self.compression = compression.into();
        self
    }

    /// This builder on codes of one byte per component.
    pub(crate) fn on_bytes(&self) -> Self {
        self.clone().compressed(Compression::Int8)
    }

    /// The codes that builds are on; none for the vectors themselves.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// The builder of an index of the codes of a base, from lists of `k`.
    pub(super) fn on_codes(&self, k: usize) -> Self {
        let builder = Self { compression: None, ..self.clone() };
        let metric = ScalarQuantizer::metric_of(self.descent.metric);
        builder
            .metric(metric)
            .dedupe(false)
            .keep_on_device(false)
            .with(|descent| descent.of_codes(self.settles(k)))
    }

    /// Whether lists of `k` are settled by rests of the codes. Paths and second hops know no rests,
    /// so they would give a node of a settled list a second distance, and rows the same edge twice.
    pub(super) fn settles(&self, k: usize) -> bool {
        self.compression == Some(Compression::Int8) && self.strategy.collect_from(k) == Collect::OneHop
    }

    /// The shape of the codes of `data`.
    pub(super) fn codes_of(compression: Compression, data: &DataShape) -> DataShape {
        DataShape { element: compression.element(), bytes: false, ..*data }
    }

    /// Builds the index of `vectors`, whose space this is, on their codes, from lists of `k`.
    pub(super) fn build_on_codes(
        &self,
        vectors: &Vectors,
        space: &Space<'_>,
        compression: Compression,
        k: usize,
    ) -> Result<Built> {
        let [coding, building] = self.descent.progress.parts([CODES, 1.0 - CODES]);
        let began = Instant::now();
        let gpu = self.descent.gpu(vectors.len(), vectors.dim())?;
        let (rows, metric) = (space.vectors(), self.descent.metric);
        let (Codes { codes, rests }, code_warning) = if self.settles(k) {
            let quantizer = ScalarQuantizer::for_settling(rows, metric, compression)?;
            (quantizer.with_rests(rows, gpu.as_ref(), &coding)?, quantizer.warning(Use::Settled))
        } else {
            let quantizer = ScalarQuantizer::for_build(rows, metric, compression)?;
            let codes = quantizer.base(rows, gpu.as_ref(), &coding)?;
            (Codes { codes, rests: None }, quantizer.warning(Use::Build))
        };
        if let Some(warning) = &code_warning {
            tracing::warn!("{warning}");
        }
        // On the host, where they take no memory of the device beside the build's own.
        let (codes, rests) = (codes.into_host()?, rests.map(Vectors::into_host).transpose()?);
        let coding = began.elapsed().as_secs_f64();
        let mut builder = self.on_codes(k).progress(building).with(|descent| descent.settled_by(rests));
        builder.of_vectors = Some(Arc::new((Self { compression: None, ..self.clone() }, vectors.clone())));
        let Built { mut index, mut stats } = builder.build_any(&codes, Given::Nothing)?;
        (stats.coding, stats.code_warning) = (coding, code_warning);
        stats.sample = stats.sample.by(space);
        index.describe_as(metric, compression);
        Ok(Built { index, stats })
    }

    /// Checks that a build, `what` says which, is one on the vectors themselves.
    pub(crate) fn check_full(&self, what: &str) -> Result<()> {
        let Some(compression) = self.compression else { return Ok(()) };
        let expected = "full: it takes the vectors themselves";
        Err(Error::argument("vectors", format_args!("{compression} for a build {what}"), expected))
    }
}
