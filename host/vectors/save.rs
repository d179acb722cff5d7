//! Writing vectors and ids, and converting between element types.

use std::borrow::Cow;
use std::path::Path;

use half::f16;

use super::{Element, ElementType, Format, Vectors, with_matrix};
use crate::atomic_file::AtomicFile;
use crate::{Error, Result};

impl Vectors {
    /// Writes the vectors in the format that the extension of `path` names. See
    /// [`save_as`](Self::save_as).
    ///
    /// # Errors
    /// As [`save_as`](Self::save_as), or if the extension is unknown.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.save_as(path, Format::of(path)?)
    }

    /// Writes the vectors in a format, converted to its element type (npy keeps theirs). The file
    /// appears when it is complete. Floats are rounded to f16; every other conversion is exact.
    ///
    /// # Errors
    /// If a value is not finite or does not exist in the target type, or the file cannot be written.
    pub fn save_as(&self, path: impl AsRef<Path>, format: Format) -> Result<()> {
        self.validate()?;
        let mut writer =
            VectorWriter::create(path.as_ref(), format, self.element_type(), self.len(), self.dim())?;
        writer.write(self)?;
        writer.commit()
    }

    /// These vectors with components of `element`, converted as [`save_as`](Self::save_as) does.
    pub(crate) fn cast(&self, element: ElementType) -> Result<Cow<'_, Self>> {
        if element == self.element_type() {
            return Ok(Cow::Borrowed(self));
        }
        let mut cast = match element {
            ElementType::F32 => Self::from_f32(self.converted()?, self.dim()),
            ElementType::F16 => Self::from_f16(self.converted()?, self.dim()),
            ElementType::U8 => Self::from_u8(self.converted()?, self.dim()),
            ElementType::I8 => Self::from_i8(self.converted()?, self.dim()),
        }?;
        cast.path.clone_from(&self.path);
        Ok(Cow::Owned(cast))
    }

    fn converted<T: Element>(&self) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(self.len() * self.dim());
        for row in 0..self.len() {
            self.convert_row(row, &mut values)?;
        }
        Ok(values)
    }

    /// Appends row `row`, converted, to `out`.
    fn convert_row<T: Element>(&self, row: usize, out: &mut Vec<T>) -> Result<()> {
        with_matrix!(self.rows(), m => {
            for (dim, &value) in m.row(row).iter().enumerate() {
                let wide = value.to_f32();
                // Rounding is what f16 is for; an integer type has the value or has it not.
                let fits = |narrow: &T| T::TYPE == ElementType::F16 || narrow.to_f32() == wide;
                match T::from_f32(wide).filter(fits) {
                    Some(narrow) => out.push(narrow),
                    None => return Err(self.bad_value(row, dim, value, expected(T::TYPE))),
                }
            }
        });
        Ok(())
    }
}

const fn expected(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => "a finite number",
        ElementType::F16 => "at most 65504 in magnitude for f16",
        ElementType::U8 => "a whole number from 0 to 255 for u8",
        ElementType::I8 => "a whole number from -128 to 127 for i8",
    }
}

/// A file of vectors that is written piece by piece.
pub(super) struct VectorWriter {
    file: AtomicFile,
    element: ElementType,
    /// Each row is preceded by this.
    prefix: Vec<u8>,
}

impl VectorWriter {
    /// Begins a file of `rows` rows; `element` is the type of an npy file.
    pub(super) fn create(
        path: &Path,
        format: Format,
        element: ElementType,
        rows: usize,
        dim: usize,
    ) -> Result<Self> {
        let element = match format {
            Format::Npy => element,
            Format::Ivecs | Format::Ibin => {
                return Err(Error::file(
                    path,
                    format_args!("vectors to write as ids ({format})"),
                    "a vector format",
                ));
            }
            _ => format.element().unwrap_or(element),
        };
        let mut file = AtomicFile::create(path)?;
        let mut prefix = Vec::new();
        match format {
            Format::Fvecs | Format::Bvecs => prefix.extend((dim as i32).to_le_bytes()),
            Format::Npy => file.write_all(&npy_header(npy_type(element), rows, dim))?,
            _ => file.write_all(&bin_header(rows, dim))?,
        }
        Ok(Self { file, element, prefix })
    }

    /// Appends all rows of `vectors`.
    pub(super) fn write(&mut self, vectors: &Vectors) -> Result<()> {
        match self.element {
            ElementType::F32 => self.write_rows::<f32>(vectors),
            ElementType::F16 => self.write_rows::<f16>(vectors),
            ElementType::U8 => self.write_rows::<u8>(vectors),
            ElementType::I8 => self.write_rows::<i8>(vectors),
        }
    }

    fn write_rows<T: Element>(&mut self, vectors: &Vectors) -> Result<()> {
        let mut values: Vec<T> = Vec::with_capacity(vectors.dim());
        for row in 0..vectors.len() {
            values.clear();
            vectors.convert_row(row, &mut values)?;
            self.file.write_all(&self.prefix)?;
            self.file.write_all(bytemuck::cast_slice(&values))?;
        }
        Ok(())
    }

    pub(super) fn commit(self) -> Result<()> {
        self.file.commit()
    }
}

/// Writes rows of `cols` ids as ivecs, ibin or npy.
pub(crate) fn save_ids(path: &Path, format: Format, cols: usize, ids: &[u32]) -> Result<()> {
    let rows = ids.len() / cols.max(1);
    let mut file = AtomicFile::create(path)?;
    match format {
        Format::Ibin => file.write_all(&bin_header(rows, cols))?,
        Format::Npy => file.write_all(&npy_header("<u4", rows, cols))?,
        Format::Ivecs => {
            for row in ids.chunks_exact(cols) {
                file.write_all(&(cols as i32).to_le_bytes())?;
                file.write_all(bytemuck::cast_slice(row))?;
            }
            return file.commit();
        }
        _ => {
            return Err(Error::file(
                path,
                format_args!("ids to write as vectors ({format})"),
                "ibin, ivecs or npy",
            ));
        }
    }
    file.write_all(bytemuck::cast_slice(ids))?;
    file.commit()
}

fn bin_header(rows: usize, cols: usize) -> [u8; 8] {
    let mut header = [0; 8];
    header[..4].copy_from_slice(&(rows as u32).to_le_bytes());
    header[4..].copy_from_slice(&(cols as u32).to_le_bytes());
    header
}

const fn npy_type(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => "<f4",
        ElementType::F16 => "<f2",
        ElementType::U8 => "|u1",
        ElementType::I8 => "|i1",
    }
}

/// The header of a NumPy file, version 1.0: magic, version, length, a Python dictionary, and spaces
/// up to a multiple of 64 bytes.
fn npy_header(descr: &str, rows: usize, cols: usize) -> Vec<u8> {
    let dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    let length = (10 + dictionary.len() + 1).next_multiple_of(64) - 10;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((length as u16).to_le_bytes());
    header.extend(format!("{dictionary:<width$}\n", width = length - 1).bytes());
    header
}
