//! Vectors stored inside index files of other systems: f32, normalised under cosine.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher};

use super::bytes::Bytes;
use super::export::Export;
use super::import::Source;
use crate::vectors::norms::normalise;
use crate::{Error, Metric, Result, Vectors};

/// Largest difference of a component of a normalised vector: other programs round differently.
const ROUNDING: f32 = 1e-5;

/// A hash of a stored vector.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The base in the form that files store.
#[derive(Clone, Copy)]
pub(super) struct Embedded<'a> {
    base: &'a Vectors,
    metric: Metric,
}

impl<'a> Embedded<'a> {
    /// The base of an export.
    pub(super) fn for_export(export: &Export<'a>) -> Result<Self> {
        let Some(base) = export.base else {
            let expected = format!("the data set of the index: {} holds vectors", export.format);
            return Err(Error::argument("base", "none", expected));
        };
        base.validate(&export.progress)?;
        Ok(Self { base, metric: export.index.metric() })
    }

    /// The base that a file is compared with.
    pub(super) fn expected(source: &Source<'a>) -> Self {
        Self { base: source.base, metric: source.metric }
    }

    pub(super) fn dim(&self) -> usize {
        self.base.dim()
    }

    /// The vector of `node`, normalised under cosine.
    pub(super) fn row(&self, node: usize) -> Cow<'a, [f32]> {
        let mut row = self.base.host_row(node);
        if self.metric == Metric::Cosine {
            normalise(row.to_mut());
        }
        row
    }

    /// The rows of the base that have the stored vectors of these hashes ([`hash`]), each row once.
    /// None if there is no such row for one: under cosine others round differently.
    pub(super) fn rows_with(&self, hashes: &[u64]) -> Option<Vec<u32>> {
        let hash_of = |row| (hash(bytemuck::cast_slice(&self.row(row as usize))), row);
        let mut rows: Vec<(u64, u32)> = (0..self.base.len() as u32).map(hash_of).collect();
        rows.sort_unstable();
        let mut taken = vec![0; rows.len()];
        let row_with = |&hash: &u64| {
            let first = rows.partition_point(|row| row.0 < hash);
            let count = taken.get_mut(first)?;
            *count += 1;
            rows.get(first + *count - 1).filter(|row| row.0 == hash).map(|row| row.1)
        };
        hashes.iter().map(row_with).collect()
    }

    /// Takes the vector of `node` from `file` and compares it with the base.
    pub(super) fn check(&self, file: &mut Bytes<'_>, node: usize) -> Result<()> {
        let found = file.numbers::<f32>(self.dim() as u64, format_args!("the vector of node {node}"))?;
        let most = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        let equal = |(found, expected): (f32, &f32)| (found - expected).abs() <= most;
        if found.zip(self.row(node).iter()).all(equal) {
            return Ok(());
        }
        let scaled = if self.metric == Metric::Cosine { ", normalised" } else { "" };
        let expected = format!("row {node} of {}{scaled}", self.base.describe());
        Err(file.refuse(format_args!("another vector of node {node}"), expected))
    }
}
