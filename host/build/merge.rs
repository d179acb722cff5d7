//! Merges indexes of parts of a base.
//!
//! The graph of the largest part stays, and the others join it with the rows that they have, the
//! larger ones first (`join.rs`). Then layers and reach follow as in a build (docs/updates.md).

use super::kept::{Earlier, Part};
use super::memory::{Built, Given};
use super::{BuildStats, Builder};
use crate::{Device, Error, Fingerprint, IdSet, Index, Progress, Result, Vectors};

/// A merge of indexes over different rows into one over all of them.
///
/// ```
/// use tagore::{Builder, IndexMerge, Strategy, Synth, Vectors};
/// let all = Synth::new(1200, 16, 1)?.base();
/// let rows: Vec<_> = (0..1200).map(|row| all.row_to_f32(row)).collect::<Result<_, _>>()?;
/// let builder = Builder::new(Strategy::nsg());
/// let one = builder.build(&Vectors::from_rows(&rows[..700])?)?;
/// let other = builder.build(&Vectors::from_rows(&rows[700..])?)?;
/// let (index, stats) = IndexMerge::new(&[&one, &other])?.run(&all)?;
/// assert_eq!((index.len(), stats.joined), (1200, Some(500)));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexMerge<'a> {
    parts: Vec<&'a Index>,
    builder: Builder,
}

/// What a merge did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeStats {
    /// Rows that joined those of the largest part; none if the index was built anew: on a GPU, or
    /// if rows lie in dense spots or in groups far apart.
    pub joined: Option<u64>,
    /// Statistics of the build.
    pub build: BuildStats,
}

impl<'a> IndexMerge<'a> {
    /// A merge of `parts` with the [builder](Builder::like) of the first.
    ///
    /// # Errors
    /// If there are no parts, or as [`Builder::like`].
    pub fn new(parts: &[&'a Index]) -> Result<Self> {
        let first = parts.first().ok_or_else(|| Error::argument("parts", 0, "at least one index"))?;
        Ok(Self::with(parts, Builder::like(first)?))
    }

    /// A merge of `parts`, which builders like `builder` have built.
    pub fn with(parts: &[&'a Index], builder: Builder) -> Self {
        Self { parts: parts.to_vec(), builder }
    }

    /// Sets the device. A GPU builds the index anew.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.builder = self.builder.device(device);
        self
    }

    /// Sets the handle that watches and cancels the merge.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.builder = self.builder.progress(progress);
        self
    }

    /// Makes the index of `base`: the rows of all parts, one part after another. Rows that a part
    /// leaves out stay out.
    ///
    /// # Errors
    /// If parts differ in kind, metric, dimension or element type; if `base` has other rows; if the
    /// file of a part is damaged; or as [`Builder::build`].
    pub fn run(self, base: &Vectors) -> Result<(Index, MergeStats)> {
        let (first, live) = self.check(base)?;
        let Self { parts, builder } = self;
        let inserted = parts.iter().map(|part| part.inserted()).sum();
        let is_on_gpu = builder.is_on_gpu(live.len(), base.dim())?;
        let is_anew = is_on_gpu || parts.iter().any(|part| part.spots().is_some());
        let builder = builder.up_to(live.len()).among(live);
        let fresh = IdSet::new(base.len());
        let (builder, given) = if is_anew {
            (builder, Given::Nothing)
        } else {
            let mut parts: Vec<Part<'_>> =
                parts.iter().zip(first).map(|(&index, first)| Part { index, first }).collect();
            parts.sort_by_key(|part| std::cmp::Reverse(part.live()));
            // Codes would only choose edges that distances of the vectors choose better.
            (builder.compressed(None), Given::Index(Earlier { parts, fresh: &fresh }))
        };
        let Built { index, stats } = builder.build_any(base, given)?;
        let joined = stats.mended.map(|_| {
            let live = parts.iter().map(|&index| Part { index, first: 0 }.live());
            (live.clone().sum::<usize>() - live.max().unwrap_or(0)) as u64
        });
        let index = index.described_like(parts[0], joined.map_or(0, |_| inserted));
        Ok((index, MergeStats { joined, build: stats }))
    }

    /// Checks the parts and `base`. Returns the first row of each part, and the rows that are in.
    fn check(&self, base: &Vectors) -> Result<(Vec<u32>, IdSet)> {
        let Self { parts, builder } = self;
        let Some(one) = parts.first() else {
            return Err(Error::argument("parts", 0, "at least one index"));
        };
        let Fingerprint { dim, element, .. } = one.fingerprint();
        for (number, part) in parts.iter().enumerate().skip(1) {
            let print = part.fingerprint();
            let (rows, expected) =
                (format!("rows of {} {}", print.dim, print.element), format!("rows of {dim} {element}"));
            let metric = |index: &Index| format!("metric {}", index.metric());
            let kind = |index: &Index| format!("kind {}", index.kind());
            for (found, expected) in [(kind(part), kind(one)), (metric(part), metric(one)), (rows, expected)]
            {
                if found != expected {
                    let expected = format!("{expected} as {} has", self.name(0));
                    return Err(Error::mismatch(self.name(number), found, expected));
                }
            }
        }
        let rows: usize = parts.iter().map(|part| part.len()).sum();
        if base.len() != rows {
            let expected = format!("the {rows} of {} indexes", parts.len());
            return Err(Error::mismatch(base.describe(), format_args!("{} rows", base.len()), expected));
        }
        builder.check_fit(one, &self.name(0), base)?;
        let (mut live, mut first) = (IdSet::all(rows), Vec::with_capacity(parts.len()));
        let mut next = 0;
        for (number, part) in parts.iter().enumerate() {
            // Rows of a damaged file would get new checksums.
            part.verify(&builder.descent.progress.unwatched())?;
            let of_part = Fingerprint::compute(&base.part(next..next + part.len())?)?;
            part.fingerprint().check(&of_part, &self.name(number), &base.describe())?;
            for row in part.left_out().into_iter().flat_map(IdSet::iter) {
                live.remove(next as u32 + row)?;
            }
            first.push(next as u32);
            next += part.len();
        }
        Ok((first, live))
    }

    /// The name of a part in an error: its file, or its number.
    fn name(&self, number: usize) -> String {
        let path = self.parts[number].path();
        path.map_or_else(|| format!("index {number}"), |path| path.display().to_string())
    }
}
