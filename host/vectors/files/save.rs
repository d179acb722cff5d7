//! Writing of vector and id files, and conversion between element types.

use std::borrow::Cow;
use std::path::Path;

use bytemuck::NoUninit;

use crate::atomic_file::AtomicFile;
use crate::loops::{numbered, rows_mut, try_for_each};
use crate::memory::zeros;
use crate::progress::StageProgress;
use crate::vectors::construct::check_rows;
use crate::vectors::format::Framing;
use crate::vectors::shape::with_type;
use crate::vectors::storage::Storage;
use crate::vectors::{Element, ElementType, Format, Layout, Matrix, Vectors, npy, with_matrix};
use crate::{Error, Progress, Result};

/// Rows converted at a time, and written between two checks for cancellation.
const AT_A_TIME: usize = 1024;

impl Vectors {
    /// Writes the vectors in the format of the extension of `path` ([`Format::from_path`]):
    /// [`save_as`](Self::save_as) without progress or cancellation.
    ///
    /// # Errors
    /// As [`save_as`](Self::save_as), or if the extension names no format.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_as(path.as_ref(), Format::from_path(path.as_ref())?, &Progress::silent())
    }

    /// Writes the vectors in `format`. The file appears only when it is complete.
    ///
    /// Values are converted to the type of the format; npy keeps their type. Conversion is exact,
    /// except that values are rounded to the nearest f16 or bf16.
    ///
    /// # Errors
    /// If the file cannot be written, `format` holds ids or is npy for bits, a value is not finite
    /// or cannot be converted, there are no rows and the format is fvecs or bvecs (which would lose
    /// the dimension), or the work is cancelled.
    pub fn save_as(&self, path: impl AsRef<Path>, format: Format, progress: &Progress) -> Result<()> {
        Self::save_joined(std::slice::from_ref(self), path, format, progress)
    }

    /// Writes the vectors of all `parts`, one part after another, as [`save_as`](Self::save_as)
    /// does.
    ///
    /// # Errors
    /// If there are no parts, their dimensions or types differ, or as [`save_as`](Self::save_as).
    pub fn save_joined(
        parts: &[Self],
        path: impl AsRef<Path>,
        format: Format,
        progress: &Progress,
    ) -> Result<()> {
        let first = parts.first().ok_or_else(|| Error::argument("parts", 0, "at least one data set"))?;
        let element = vector_type(format, first.element_type())?;
        for part in parts {
            if (part.dim(), part.element_type()) != (first.dim(), first.element_type()) {
                let found = format!("rows of {} {}", part.dim(), part.element_type());
                let expected = format!("{} {} as in {}", first.dim(), first.element_type(), first.describe());
                return Err(Error::mismatch(part.describe(), found, expected));
            }
            part.validate(progress)?;
        }
        let rows = parts.iter().map(|part| part.len() as u64).sum();
        let mut file = RowWriter::create(path.as_ref(), format, npy::name(element), rows, first.dim())?;
        let stage = progress.stage("write", rows);
        parts.iter().try_for_each(|part| part.write_rows(element, &mut file, &stage))?;
        file.commit()
    }

    /// Appends all rows to `file`, converted to `element`. Values must be finite.
    pub(in crate::vectors) fn write_rows(
        &self,
        element: ElementType,
        file: &mut RowWriter,
        stage: &StageProgress<'_>,
    ) -> Result<()> {
        with_matrix!(self.rows(), matrix => with_type!(element, T => self.write::<_, T>(matrix, file, stage)))
    }

    fn write<S: Element, T: Element>(
        &self,
        matrix: Matrix<'_, S>,
        file: &mut RowWriter,
        stage: &StageProgress<'_>,
    ) -> Result<()> {
        let width = T::TYPE.values(self.dim());
        let count = if S::TYPE == T::TYPE { 0 } else { AT_A_TIME.min(self.len()) };
        let mut converted: Vec<T> = zeros(count * width)?;
        for first in (0..self.len()).step_by(AT_A_TIME) {
            let rows = first..self.len().min(first + AT_A_TIME);
            stage.advance(rows.len() as u64)?;
            if S::TYPE == T::TYPE {
                match matrix.successive(rows.clone()) {
                    Some(values) => file.write_rows(values, width)?,
                    None => rows.into_iter().try_for_each(|row| file.write_rows(matrix.row(row), width))?,
                }
                continue;
            }
            let converted = &mut converted[..rows.len() * width];
            try_for_each(numbered(rows_mut(converted, width)), |(place, to)| {
                self.convert(first + place, matrix.row(first + place), to)
            })?;
            file.write_rows(converted, width)?;
        }
        Ok(())
    }

    /// Converts the vectors to another element type, as [`save_as`](Self::save_as) does.
    ///
    /// # Errors
    /// If a value is not finite or cannot be converted, or the work is cancelled.
    pub(crate) fn cast(&self, element: ElementType, progress: &Progress) -> Result<Cow<'_, Self>> {
        if element == self.element_type() {
            return Ok(Cow::Borrowed(self));
        }
        self.validate(progress)?;
        let storage = with_matrix!(self.rows(), matrix => with_type!(element, T => {
            Storage::owned(self.converted::<_, T>(matrix, progress)?)
        }));
        let layout = Layout::dense(element, self.len(), self.dim());
        Ok(Cow::Owned(Self::new(storage, layout, self.path.clone())))
    }

    fn converted<S: Element, T: Element>(
        &self,
        matrix: Matrix<'_, S>,
        progress: &Progress,
    ) -> Result<Vec<T>> {
        let width = T::TYPE.values(self.dim());
        let mut values = zeros(self.len() * width)?;
        for (index, row) in values.chunks_exact_mut(width).enumerate() {
            progress.check()?;
            self.convert(index, matrix.row(index), row)?;
        }
        Ok(values)
    }

    /// Converts row `index`; its values must be finite.
    fn convert<S: Element, T: Element>(&self, index: usize, from: &[S], to: &mut [T]) -> Result<()> {
        T::fill(to, S::components(from).take(self.dim()))
            .map_err(|(dim, value)| self.bad_value(index, dim, value, expected(T::TYPE)))
    }
}

/// The values that convert to `element`, for errors.
const fn expected(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => "a value in the range of f32",
        ElementType::F16 => "-65504 to 65504, the range of f16",
        ElementType::Bf16 => "-3.38e38 to 3.38e38, the range of bf16",
        ElementType::U8 => "an integer from 0 to 255 for u8",
        ElementType::I8 => "an integer from -128 to 127 for i8",
        ElementType::B1 => "0 or 1 for b1",
    }
}

/// The element type of a file of `format` written from vectors of type `source`.
///
/// # Errors
/// If the format holds ids, or is npy for bits.
pub(in crate::vectors) fn vector_type(format: Format, source: ElementType) -> Result<ElementType> {
    if format.holds_ids() {
        return Err(Error::argument(
            "format",
            format,
            format_args!("one of vectors: {}", Format::vector_names()),
        ));
    }
    let element = format.element().unwrap_or(source);
    if format == Format::Npy && npy::name(element).is_none() {
        let expected = "b1bin, or a format of another type: npy holds no packed bits";
        return Err(Error::argument("format", format, expected));
    }
    Ok(element)
}

/// Writes `ids`, `cols` per row, as ivecs, ibin or npy. The file appears only when it is complete.
///
/// # Errors
/// If the file cannot be written, the format does not hold ids, or the shape does not fit.
pub(crate) fn save_ids(path: &Path, format: Format, cols: usize, ids: &[u32]) -> Result<()> {
    if !format.may_hold_ids() {
        return Err(Error::argument("format", format, format_args!("one of ids: {}", Format::id_names())));
    }
    if !(1..=i32::MAX as usize).contains(&cols) || !ids.len().is_multiple_of(cols) {
        let found = format!("{} in rows of {cols}", ids.len());
        return Err(Error::argument("ids", found, "a multiple of the columns, at least one per row"));
    }
    let rows = ids.len() / cols;
    check_rows(rows)?;
    let mut file = RowWriter::create(path, format, Some("<u4"), rows as u64, cols)?;
    file.write_rows(ids, cols)?;
    file.commit()
}

/// A file of rows being written.
pub(in crate::vectors) struct RowWriter {
    file: AtomicFile,
    /// The prefix of each row.
    prefix: Option<[u8; 4]>,
}

impl RowWriter {
    /// Starts a file of rows × columns values, which must fit a `bin` header; `descr` is NumPy's
    /// name of their type, if any.
    pub(in crate::vectors) fn create(
        path: &Path,
        format: Format,
        descr: Option<&str>,
        rows: u64,
        cols: usize,
    ) -> Result<Self> {
        let (rows_word, cols_word) = (rows as u32, cols as u32);
        let framing = format.framing();
        if rows == 0 && framing == Framing::Vecs {
            let expected = format!("at least one: {format} stores the dimension in its rows");
            return Err(Error::file(path, "no rows to write", expected));
        }
        let mut file = AtomicFile::create(path)?;
        match framing {
            Framing::Vecs => {}
            Framing::Bin => file.write_all(bytemuck::cast_slice(&[rows_word, cols_word]))?,
            Framing::Npy => {
                file.write_all(&npy::header(descr.unwrap_or_default(), rows, Some(cols as u64)))?;
            }
        }
        let prefix = (framing == Framing::Vecs).then_some(cols_word.to_le_bytes());
        Ok(Self { file, prefix })
    }

    /// Appends rows of `width` values each.
    pub(in crate::vectors) fn write_rows<T: NoUninit>(&mut self, rows: &[T], width: usize) -> Result<()> {
        let Some(prefix) = self.prefix else { return self.file.write_all(bytemuck::cast_slice(rows)) };
        for row in rows.chunks_exact(width) {
            self.file.write_all(&prefix)?;
            self.file.write_all(bytemuck::cast_slice(row))?;
        }
        Ok(())
    }

    /// Puts the file in place.
    pub(in crate::vectors) fn commit(self) -> Result<()> {
        self.file.commit()
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::vectors::open::open_ids_as;

    fn values(vectors: &Vectors) -> Vec<f32> {
        (0..vectors.len()).flat_map(|row| vectors.host_row(row).into_owned()).collect()
    }

    #[test]
    fn values_of_both_types_are_cast() {
        for from in ElementType::ALL {
            for to in ElementType::ALL {
                let most = if [from, to].contains(&ElementType::B1) { 1.0f32 } else { 127.0 };
                let integers: Vec<f32> = [0.0, 1.0, 127.0, 0.0, 2.0, 3.0].map(|x| most.min(x)).to_vec();
                let source = Vectors::from_f32(integers.clone(), 3).unwrap();
                let source = source.cast(from, &Progress::silent()).unwrap().into_owned();
                let cast = source.cast(to, &Progress::silent()).unwrap();
                assert_eq!((cast.element_type(), cast.len(), cast.dim()), (to, 2, 3));
                assert_eq!(values(&cast), integers, "{from} to {to}");
                assert_eq!(matches!(cast, Cow::Borrowed(_)), from == to);
            }
        }
    }

    #[test]
    fn a_cast_rounds_only_to_floats_of_16_bits() {
        let cast = |value: f32, to: ElementType| {
            let vectors = Vectors::from_f32(vec![1.0, value], 1).unwrap();
            vectors
                .cast(to, &Progress::silent())
                .map(|cast| values(&cast)[1])
                .map_err(|error| error.to_string())
        };
        assert_eq!(cast(0.1, ElementType::F16), Ok(f16::from_f32(0.1).to_f32()));
        assert_eq!(cast(0.1, ElementType::Bf16), Ok(bf16::from_f32(0.1).to_f32()));
        let refused = cast(f32::MAX, ElementType::Bf16).unwrap_err();
        assert!(refused.ends_with("expected -3.38e38 to 3.38e38, the range of bf16"), "{refused}");
        let expected = "an integer from 0 to 255 for u8";
        for value in [-1.0, 0.5, 256.0] {
            let refused = format!("vectors: row 1, dimension 0: found {value}, expected {expected}");
            assert_eq!(cast(value, ElementType::U8), Err(refused));
        }
        assert!(cast(f32::NAN, ElementType::F16).unwrap_err().contains("row 1, dimension 0: found NaN"));
        // An f16 infinity has no finite f32: it is refused, not widened.
        let infinite = Vectors::from_f16(vec![f16::INFINITY], 1).unwrap();
        assert!(infinite.cast(ElementType::F32, &Progress::silent()).is_err());
    }

    #[test]
    fn ids_round_trip_in_every_format() {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<u32> = vec![0, 1, u32::MAX, 1 << 31, 7, 8];
        for (rows, cols) in [(1, 6), (2, 3), (6, 1)] {
            assert_eq!(rows * cols, ids.len());
            for format in [Format::Ivecs, Format::Ibin, Format::Npy] {
                let path = folder.path().join(format!("x.{format}"));
                save_ids(&path, format, cols, &ids).unwrap();
                let read = open_ids_as(&path, format, &Progress::silent()).unwrap();
                assert_eq!((read.rows, read.cols, &read.ids), (rows, cols, &ids), "{format}");
            }
        }
        let path = folder.path().join("x.fbin");
        let error = save_ids(&path, Format::Fbin, 3, &ids).unwrap_err().to_string();
        assert_eq!(error, "format: found fbin, expected one of ids: ivecs, ibin or npy");
        for cols in [0, 4, usize::MAX] {
            assert!(save_ids(&path, Format::Ibin, cols, &ids).is_err(), "rows of {cols}");
        }
        assert!(!path.exists());
        Vectors::from_f32(vec![1.0], 1).unwrap().save(&path).unwrap();
        let error = open_ids_as(&path, Format::Fbin, &Progress::silent()).unwrap_err().to_string();
        assert!(error.ends_with("found vectors (fbin), expected ids: ivecs, ibin or npy"), "{error}");
    }
}
