//! Synthetic data sets of any size; any part can be generated alone.

mod elsewhere;
mod fault;
mod kind;
mod lanes;
mod rows;
mod scale;

use std::ops::Range;
use std::path::Path;

pub use fault::Fault;
use fault::Faults;
pub use kind::{QueryKind, SynthKind};
use rows::{Generator, Table};
use scale::Scale;

use super::construct::check_dim;
use super::save::{RowWriter, vector_type};
use super::shape::with_type;
use super::storage::Storage;
use super::{Element, ElementType, Format, Layout, MAX_ROWS, Vectors, npy};
use crate::loops::{for_each_with, numbered, rows_mut};
use crate::progress::Progress;
use crate::{Error, Result};

/// Rows generated per task.
const BLOCK: usize = 256;

/// The largest f16.
const MAX_F16: f32 = 65_504.0;

/// Bytes of rows in memory while a file is written.
const CHUNK_BYTES: usize = 32 << 20;

/// A synthetic data set and its queries, of f32 vectors or of
/// [another type](Synth::element_type).
///
/// Row i depends on the kind, the seed, n, the dimension and i alone. So any part of a data set of
/// any size can be generated alone, on any number of threads, with the same bytes on every machine.
/// Queries are the rows from n on.
///
/// ```
/// use tagore::{QueryKind, Synth, SynthKind};
/// let synth = Synth::new(1000, 16, 42)?;
/// let (base, part) = (synth.base(), synth.rows(10..20)?);
/// assert_eq!(base.row_to_f32(10)?, part.row_to_f32(0)?);
///
/// let kind = SynthKind::Clusters { clusters: 50 };
/// let queries = Synth::of_kind(kind, 1000, 16, 42)?.query_kind(QueryKind::Sums).queries(10);
/// assert_eq!((queries.len(), queries.dim()), (10, 16));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Synth {
    generator: Generator,
    element: ElementType,
    /// The scale to whole numbers.
    scale: Option<Scale>,
}

impl Synth {
    /// A [mixture](SynthKind::Mixture) of `n` rows of `dim` components. Row i is A(c + g) plus
    /// noise: A is a matrix of rank at most 24, c one of about sqrt(n) centres and g an offset, all
    /// with standard normal elements.
    ///
    /// # Errors
    /// If `dim` is not in 1..=4096, or `n` is 0 or above [`MAX_ROWS`].
    pub fn new(n: usize, dim: usize, seed: u64) -> Result<Self> {
        Self::of_kind(SynthKind::Mixture, n, dim, seed)
    }

    /// A data set of `n` rows of `dim` components of any kind.
    ///
    /// # Errors
    /// If `dim` is not in 1..=4096, `n` is 0 or above [`MAX_ROWS`], or a parameter of `kind` is out
    /// of its range.
    pub fn of_kind(kind: SynthKind, n: usize, dim: usize, seed: u64) -> Result<Self> {
        check_dim(dim, ElementType::F32)?;
        if !(1..=MAX_ROWS).contains(&n) {
            return Err(Error::argument("n", n, format_args!("1 to {MAX_ROWS}")));
        }
        kind.check(n)?;
        let table = Table::new(kind, n, dim, seed);
        let faults = Faults::new(kind, n, seed);
        let generator = Generator { n, dim, seed, kind, queries: QueryKind::Rows, table, faults };
        Ok(Self { generator, element: ElementType::F32, scale: None })
    }

    /// Sets the type of the components, f32 by default. The same values are rounded to f16 or bf16.
    ///
    /// As u8 and i8, a standard deviation of a component becomes 32, and the mean 128 or 0; for
    /// kinds with components in [0, 1), 256 intervals of equal length become the 256 numbers.
    /// Values are rounded to whole numbers, and cut at the ends of the range: under 1 % of those of
    /// a data set, and more of queries that are [sums](QueryKind::Sums) and of [faults](Fault). f16
    /// cuts values of faults too.
    ///
    /// As b1 a component is 1 if it is at least 0; for kinds with components in [0, 1), at least
    /// 1/2.
    pub fn element_type(mut self, element: ElementType) -> Self {
        self.element = element;
        self.scale = Scale::new(self.generator.kind, self.generator.dim, element);
        self
    }

    /// Sets the distribution of the queries, [`QueryKind::Rows`] by default. The data set stays the
    /// same.
    pub fn query_kind(mut self, kind: QueryKind) -> Self {
        self.generator.prepare(kind);
        self
    }

    /// The kind of the data set.
    pub fn kind(&self) -> SynthKind {
        self.generator.kind
    }

    /// The whole data set: rows 0..n.
    pub fn base(&self) -> Vectors {
        self.vectors(self.element, 0, self.generator.n)
    }

    /// The first `count` queries: rows n..n + count.
    ///
    /// # Panics
    /// If `count` is above [`MAX_ROWS`].
    pub fn queries(&self, count: usize) -> Vectors {
        assert!(count <= MAX_ROWS, "{count} queries, expected at most {MAX_ROWS}");
        self.vectors(self.element, self.generator.n as u64, count)
    }

    /// The rows of a range, which may extend past n into the queries.
    ///
    /// # Errors
    /// If the range ends before it starts or has more than [`MAX_ROWS`] rows.
    pub fn rows(&self, range: Range<u64>) -> Result<Vectors> {
        let count = count(&range)?;
        Ok(self.vectors(self.element, range.start, count))
    }

    /// Writes the rows of a range to a file of vectors, a chunk at a time. The file appears only
    /// when it is complete. A format of floats takes rows of any type.
    ///
    /// # Errors
    /// If the file cannot be written, the format is one of ids or of whole numbers of another type
    /// than [`element_type`](Self::element_type), [`rows`](Self::rows) would refuse the range, or
    /// the work is cancelled.
    pub fn write(
        &self,
        range: Range<u64>,
        path: impl AsRef<Path>,
        format: Format,
        progress: &Progress,
    ) -> Result<()> {
        let path = path.as_ref();
        let count = count(&range)?;
        let element = vector_type(format, self.element)?;
        if matches!(element, ElementType::U8 | ElementType::I8 | ElementType::B1) && element != self.element {
            let expected = format_args!("a format of {}, or of floats", self.element);
            return Err(Error::argument("format", format, expected));
        }
        let stage = progress.stage("synth", count as u64);
        let dim = self.generator.dim;
        let mut file = RowWriter::create(path, format, npy::name(element), count as u64, dim)?;
        let chunk = (CHUNK_BYTES / (dim * size_of::<f32>())).max(1);
        let chunk_at =
            |first: usize| self.vectors(element, range.start + first as u64, chunk.min(count - first));
        let mut next = (count > 0).then(|| chunk_at(0));
        let mut end = 0;
        // One chunk is written while the next is made.
        while let Some(rows) = next {
            end += rows.len();
            let (written, made) = rayon::join(
                || rows.write_rows(element, &mut file, &stage),
                || (end < count).then(|| chunk_at(end)),
            );
            written?;
            next = made;
        }
        file.commit()
    }

    /// The rows from `first` on, of type `element`, which holds their values.
    fn vectors(&self, element: ElementType, first: u64, count: usize) -> Vectors {
        let storage = with_type!(element, T => Storage::owned(self.values::<T>(first, count)));
        Vectors::new(storage, Layout::dense(element, count, self.generator.dim), None)
    }

    /// The values of the rows from `first` on. A block becomes `T` while a thread has it at hand.
    fn values<T: Element>(&self, first: u64, count: usize) -> Vec<T> {
        let (dim, width) = (self.generator.dim, T::TYPE.values(self.generator.dim));
        let mut values = vec![T::zeroed(); count * width];
        for_each_with(
            numbered(rows_mut(&mut values, width * BLOCK)),
            || (self.generator.scratch(), vec![0.0; dim * BLOCK]),
            |(scratch, wide), (block, rows)| {
                let wide = &mut wide[..rows.len() / width * dim];
                for (place, row) in wide.chunks_exact_mut(dim).enumerate() {
                    // Not a range of row numbers: one that ends at the last u64 would overflow.
                    self.generator.row(first + (block * BLOCK + place) as u64, row, scratch);
                }
                if let Some(scale) = self.scale {
                    lanes::round(scale, wide);
                } else if self.element == ElementType::F16 {
                    wide.iter_mut().for_each(|value| *value = value.clamp(-MAX_F16, MAX_F16));
                }
                lanes::narrow(rows, wide, dim);
            },
        );
        values
    }
}

/// The number of rows in a range.
fn count(range: &Range<u64>) -> Result<usize> {
    let count = range.end.checked_sub(range.start).and_then(|count| usize::try_from(count).ok());
    count.filter(|&count| count <= MAX_ROWS).ok_or_else(|| {
        Error::argument("rows", format_args!("{range:?}"), format_args!("a range of at most {MAX_ROWS} rows"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_row_numbers_and_seeds_work() {
        let kinds = [
            SynthKind::Mixture,
            SynthKind::Clusters { clusters: 3 },
            SynthKind::Uniform,
            SynthKind::Repeated { copies: 2 },
            SynthKind::Lognormal,
            SynthKind::Dirty { fault: Fault::Ball { scale: 0.01 }, share: 0.5 },
        ];
        let queries = [QueryKind::Rows, QueryKind::Sums, QueryKind::Dirty];
        for (seed, kind, queries) in [0, 1 << 63, u64::MAX]
            .into_iter()
            .flat_map(|seed| kinds.map(|kind| queries.map(|queries| (seed, kind, queries))))
            .flatten()
        {
            let synth = Synth::of_kind(kind, 3, 2, seed).unwrap().query_kind(queries);
            let last = synth.rows(u64::MAX - 2 * BLOCK as u64 - 1..u64::MAX).unwrap();
            assert_eq!(last.len(), 2 * BLOCK + 1);
            assert!(last.validate(&Progress::silent()).is_ok());
            // A part equals that part of the whole.
            assert_eq!(last.host_row(2 * BLOCK), synth.rows(u64::MAX - 1..u64::MAX).unwrap().host_row(0));
            assert!(synth.rows(u64::MAX..u64::MAX).unwrap().is_empty());
        }
        let synth = Synth::new(3, 2, 0).unwrap();
        for range in [0..u64::MAX, 0..MAX_ROWS as u64 + 1, Range { start: u64::MAX, end: 0 }] {
            let text = synth.rows(range).unwrap_err().to_string();
            assert!(text.starts_with("rows: found ") && text.contains("a range of at most"), "{text}");
        }
        for n in [0, MAX_ROWS + 1, usize::MAX] {
            assert!(Synth::new(n, 2, 0).unwrap_err().to_string().starts_with("n: found "), "{n}");
        }
    }

    #[test]
    fn kinds_are_parsed_and_checked() {
        let kinds = ["mixture", "clusters", "uniform", "repeated", "lognormal", "dirty"];
        for name in kinds {
            let kind: SynthKind = name.parse().unwrap();
            assert_eq!((kind.to_string().as_str(), kind.name()), (name, name));
            assert_eq!(Synth::of_kind(kind, 100, 3, 0).unwrap().kind(), kind);
        }
        for name in ["rows", "sums", "dirty"] {
            let kind: QueryKind = name.parse().unwrap();
            assert_eq!((kind.to_string().as_str(), kind.name()), (name, name));
        }
        assert_eq!((SynthKind::default(), QueryKind::default()), (SynthKind::Mixture, QueryKind::Rows));
        let expected = "kind: found gauss, expected mixture, clusters, uniform, repeated, lognormal or dirty";
        assert_eq!("gauss".parse::<SynthKind>().unwrap_err().to_string(), expected);
        let expected = "query-kind: found near, expected rows, sums, dirty, tower or shifted";
        assert_eq!("near".parse::<QueryKind>().unwrap_err().to_string(), expected);
        let refused = |kind| Synth::of_kind(kind, 10, 3, 0).unwrap_err().to_string();
        for share in [0.0, -0.5, 1.5, f64::NAN] {
            let expected = format!("share: found {share}, expected above 0, at most 1");
            assert_eq!(refused(SynthKind::Dirty { fault: Fault::Zero, share }), expected);
        }
        for found in [0, 11, usize::MAX] {
            let expected = format!("clusters: found {found}, expected 1 to 10, the number of rows");
            assert_eq!(refused(SynthKind::Clusters { clusters: found }), expected);
            let expected = format!("copies: found {found}, expected 1 to 10, the number of rows");
            assert_eq!(refused(SynthKind::Repeated { copies: found }), expected);
        }
    }
}
