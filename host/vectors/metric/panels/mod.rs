//! Panels of rows, and the pairs of their rows that may be near: a filter before exact distances.
//!
//! With the product `p` of two rows, half of their squared L2 distance is `|x|²/2 + |y|²/2 - p`,
//! and minus their inner product is `-p`. So every list distance is `h = term(x) + term(y) - p`, up
//! to a factor. Products are those of f32 values ([`floats`]), or of codes in bytes where the
//! processor multiplies bytes four times as fast ([`codes`]). They are fast and not exact. Each
//! filter takes off more than all that they may lack, so its `h` is never above the exact value: no
//! near pair is lost, and results do not depend on the processor.

pub(crate) mod codes;
mod dot;
pub(crate) mod floats;
mod lanes;

use codes::{CodePanels, CodeRows, Coding};
use floats::FloatPanels;

use crate::gpu::MemoryPlan;
use crate::vectors::bits::BitPanels;
use crate::vectors::space::{Query, Space};
use crate::vectors::{Bits, Matrix, Metric, TypedRows};
use crate::{DataShape, ElementType, Progress, Result};

/// Rows of a panel. A panel holds the first component of all of its rows, then the second, and so
/// on: `dim * PANEL` values.
pub(crate) const PANEL: usize = 32;

/// One value per row of a panel.
pub(crate) type PerRow = [f32; PANEL];

/// One value per pair of rows of two panels.
type PerPair = [PerRow; PANEL];

/// A panel of a comparison, with the largest `h` of a pair that may enter the list of each row.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub panel: usize,
    pub bounds: &'a PerRow,
}

/// Rows as panels.
pub(crate) struct Panels<'a> {
    /// The factor that turns a list distance into `h`.
    scale: f32,
    form: Form<'a>,
}

enum Form<'a> {
    Floats(FloatPanels),
    Codes(CodePanels),
    /// Rows of bits, whose exact distances take less time than a filter.
    Bits(BitPanels<'a>),
}

impl Panels<'_> {
    /// Memory of the panels of all rows, and of what they are made from.
    pub(crate) fn plan(data: &DataShape) -> MemoryPlan {
        if data.element == ElementType::B1 {
            return MemoryPlan::new();
        }
        // Codes with their rests, row by row and as panels, take as much as floats.
        let rows = data.rows.next_multiple_of(PANEL);
        let panels = MemoryPlan::new().with::<f32>("panels", rows * data.dim.next_multiple_of(4));
        panels.and(&CodePanels::plan_of_facts(rows))
    }

    /// The `h` of a list distance.
    pub(crate) fn bound(&self, distance: f32) -> f32 {
        self.scale * distance
    }

    /// The pairs of rows of a panel and of a panel of `others`, with an `h` of at most the bound of
    /// either row. Bit `j` of element `i` stands for row `i` of the first and row `j` of the
    /// second.
    ///
    /// # Panics
    /// If `others` are of another space.
    pub(crate) fn near(&self, side: Side<'_>, others: &Self, other: Side<'_>) -> [u32; PANEL] {
        match (&self.form, &others.form) {
            (Form::Floats(panels), Form::Floats(others)) => panels.near(side, others, other),
            (Form::Codes(panels), Form::Codes(others)) => panels.near(side, others, other),
            (Form::Bits(panels), Form::Bits(_)) => panels.near(side, other),
            _ => unreachable!("panels of one space have one form"),
        }
    }
}

/// How rows of a space become panels: under L2 and cosine minus its mean, since products of long
/// rows would lack more than the distances between them.
pub(crate) struct PanelForm {
    metric: Metric,
    mean: Vec<f32>,
    /// None where products of bytes are no faster.
    coding: Option<Coding>,
}

impl PanelForm {
    /// Whether a filter takes less time than comparing all rows: bits, and bytes without products
    /// of their own, are compared in less.
    pub(crate) fn is_worth_its_time(space: &Space<'_>) -> bool {
        match space.vectors().element_type() {
            ElementType::B1 => false,
            ElementType::U8 | ElementType::I8 => codes::products(space).is_some(),
            ElementType::F32 | ElementType::F16 | ElementType::Bf16 => true,
        }
    }

    /// The form of rows of `space`.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn new(space: &Space<'_>, progress: &Progress) -> Result<Self> {
        let metric = space.metric();
        let coding = Coding::new(space);
        let offset = coding.as_ref().and_then(Coding::offset);
        let mean = match (offset, metric) {
            (Some(offset), _) => vec![offset; space.dim()],
            (None, Metric::InnerProduct) => vec![0.0; space.dim()],
            (None, _) => space.mean(progress)?.into_iter().map(|mean| mean as f32).collect(),
        };
        Ok(Self { metric, mean, coding })
    }

    /// The panels of `count` rows.
    ///
    /// # Errors
    /// If memory is short, or the work is cancelled.
    pub(crate) fn panels<'q>(
        &self,
        count: usize,
        row: &(dyn Fn(usize) -> Query<'q> + Sync),
        progress: &Progress,
    ) -> Result<Panels<'static>> {
        let form = match &self.coding {
            None => Form::Floats(FloatPanels::new(self, count, row, progress)?),
            Some(coding) => {
                Form::Codes(CodeRows::new(self, coding, count, row, progress)?.panels(count, |place| place)?)
            }
        };
        Ok(Panels { scale: self.scale(), form })
    }

    /// Writes a row less the mean as row `place` of a panel of values; returns its squared length.
    fn fill(&self, row: Query<'_>, components: &mut Vec<[f32; 1]>, values: &mut [f32], place: usize) -> f64 {
        row.widen(components);
        let mut square = 0.0;
        let columns = values.as_chunks_mut::<PANEL>().0.iter_mut();
        for ((column, &[component]), mean) in columns.zip(&*components).zip(&self.mean) {
            let value = component - mean;
            column[place] = value;
            square += f64::from(value).powi(2);
        }
        square
    }

    /// The factor that turns a list distance into `h`.
    fn scale(&self) -> f32 {
        if self.metric == Metric::L2 { 0.5 } else { 1.0 }
    }

    /// The term of a row of this squared length.
    fn term(&self, square: f64) -> f32 {
        let half = 0.5 * square;
        let exact = if self.metric == Metric::InnerProduct { 0.0 } else { half };
        (exact - half * rounding(self.mean.len())) as f32 - f32::MIN_POSITIVE
    }
}

/// The rounding of `h` and of the exact distance, as a share of `(|x|² + |y|²) / 2`, for rows of
/// `dim` components. In units of 2^-24: `dim` of the product, at most `dim / 8 + 14` of the
/// distance with its sixteen sums, and 12 of differences from the mean, of terms and of `h`.
fn rounding(dim: usize) -> f64 {
    (2 * dim + 32) as f64 * f64::from(f32::EPSILON / 2.0)
}

/// The rows of a space, from which panels of all or of some are made.
pub(crate) struct PanelSource<'a> {
    space: &'a Space<'a>,
    rows: SourceRows<'a>,
}

enum SourceRows<'a> {
    /// Their panels are the rows themselves.
    Bits(Matrix<'a, Bits>),
    /// With the codes of all rows, if panels are codes.
    Values(PanelForm, Option<CodeRows>),
}

impl<'a> PanelSource<'a> {
    /// Memory beside the rows, unless they are bits.
    pub(crate) fn plan(data: &DataShape) -> MemoryPlan {
        CodeRows::plan(data)
    }

    /// The rows of `space`.
    ///
    /// # Errors
    /// If memory is short, or the work is cancelled.
    pub(crate) fn new(space: &'a Space<'a>, progress: &Progress) -> Result<Self> {
        if let TypedRows::B1(rows) = space.rows() {
            return Ok(Self { space, rows: SourceRows::Bits(rows) });
        }
        let form = PanelForm::new(space, progress)?;
        let row = |row| space.query(row as u32);
        let codes = form.coding.as_ref();
        let codes = codes.map(|coding| CodeRows::new(&form, coding, space.len(), &row, progress));
        Ok(Self { space, rows: SourceRows::Values(form, codes.transpose()?) })
    }

    pub(crate) fn space(&self) -> &'a Space<'a> {
        self.space
    }

    /// The panels of all rows.
    ///
    /// # Errors
    /// If memory is short, or the work is cancelled.
    pub(crate) fn all(&self, progress: &Progress) -> Result<Panels<'a>> {
        let count = self.space.len();
        match &self.rows {
            &SourceRows::Bits(rows) => Ok(Panels { scale: 1.0, form: Form::Bits(BitPanels { rows, count }) }),
            SourceRows::Values(form, codes) => {
                self.values(form, codes.as_ref(), count, |place| place, progress)
            }
        }
    }

    /// The panels of some rows; none of bits.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn some(&self, rows: &[u32]) -> Result<Option<Panels<'static>>> {
        let SourceRows::Values(form, codes) = &self.rows else { return Ok(None) };
        let row = |place: usize| rows[place] as usize;
        self.values(form, codes.as_ref(), rows.len(), row, &Progress::silent()).map(Some)
    }

    /// The panels of `count` rows; `row` gives the number of each.
    fn values(
        &self,
        form: &PanelForm,
        codes: Option<&CodeRows>,
        count: usize,
        row: impl Fn(usize) -> usize + Sync,
        progress: &Progress,
    ) -> Result<Panels<'static>> {
        match codes {
            Some(codes) => Ok(Panels { scale: form.scale(), form: Form::Codes(codes.panels(count, row)?) }),
            None => form.panels(count, &|place| self.space.query(row(place) as u32), progress),
        }
    }
}
