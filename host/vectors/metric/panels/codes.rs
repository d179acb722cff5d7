//! Panels of codes in bytes.
//!
//! A row of f32 values is rotated, so that its components are of about the same size
//! ([`Rotation`]), and becomes a code and a rest:
//!
//! ```text
//! scale = largest component / 127
//! code  = round(x / scale)
//! rest  = round((x - scale * code) * 256 / scale)
//! ```
//!
//! Rows of bytes are their own codes. Let codes stand for `a` and `b`, and `x = a + e`,
//! `y = b + f`. Then `|x·y - a·b| <= |e| (|b| + |f|) + |a| |f|`, and these lengths are all known.
//! So a filter by products of codes is certain: its `h` is low by about a hundredth of `|x| |y|`.
//! Rows that are far nearer to each other than they are long pass it in great number; products with
//! the rests, which are low by a ten-thousandth, filter them again.

use super::dot::{self, DotSet, Quad, Quads};
use super::lanes::Limits;
use super::{PANEL, PanelForm, PerRow, Side};
use crate::gpu::MemoryPlan;
use crate::loops::{for_each, numbered, rows_mut, try_for_each_with};
use crate::memory::{fetch, filled};
use crate::vectors::rotation::Rotation;
use crate::vectors::space::{Query, Space};
use crate::{DataShape, ElementType, Metric, Progress, Result};

/// Of at least this many pairs of two panels, products with the rests are worth their time.
const MANY: u32 = 48;

/// Shorter rows gain nothing by products of bytes.
const MIN_DIM: usize = 24;

/// Rows that are on their way to the cache while one is copied to a panel.
const AHEAD: usize = 4;

/// Where a space has fewer rows, making codes of queries takes longer than comparing them. Tests
/// have few.
const MIN_ROWS: usize = if cfg!(test) { 1 } else { 1_024 };

/// A rest is counted in this share of the scale of its code.
const REST: f32 = 1.0 / 256.0;

/// The products of bytes of this processor; none if rows of `space` gain nothing by them.
pub(super) fn products(space: &Space<'_>) -> Option<DotSet> {
    DotSet::here().filter(|_| space.dim() >= MIN_DIM && space.len() >= MIN_ROWS)
}

/// How rows become codes, and the instructions that multiply them.
pub(super) struct Coding {
    set: DotSet,
    values: Values,
}

enum Values {
    /// Less an offset, components are whole numbers from -128 to 127.
    Whole {
        offset: f32,
    },
    Rotated(Rotation),
}

impl Coding {
    /// The coding of rows of `space`; none if they gain nothing by it.
    pub(super) fn new(space: &Space<'_>) -> Option<Self> {
        let set = products(space)?;
        let values = match (space.vectors().element_type(), space.metric()) {
            (ElementType::I8, Metric::L2 | Metric::InnerProduct) => Values::Whole { offset: 0.0 },
            (ElementType::U8, Metric::L2) => Values::Whole { offset: 128.0 },
            _ => Values::Rotated(Rotation::new(space.dim())),
        };
        Some(Self { set, values })
    }

    /// What is taken off each component, if that is not its mean.
    pub(super) fn offset(&self) -> Option<f32> {
        match self.values {
            Values::Whole { offset } => Some(offset),
            Values::Rotated(_) => None,
        }
    }

    /// The quads of a row of `dim` components.
    fn width(&self, dim: usize) -> Width {
        let code = dim.div_ceil(4);
        let all = if self.offset().is_some() { code } else { 2 * code };
        Width { code, all }
    }

    /// Makes rows of these lengths codes, with rests if the width has room for them. Loops over
    /// rows are plain: the processor takes several at a time.
    fn code(
        &self,
        columns: &[PerRow],
        lengths: &[f64; PANEL],
        quads: &mut [Quad],
        width: Width,
    ) -> PanelFacts {
        let mut known = PanelFacts::NONE;
        let mut per_scale = [1.0; PANEL];
        let rounding = match &self.values {
            Values::Whole { .. } => {
                known.scale = per_scale;
                0.0
            }
            Values::Rotated(rotation) => {
                let mut largest = [0f32; PANEL];
                for column in columns {
                    for row in 0..PANEL {
                        largest[row] = largest[row].max(column[row].abs());
                    }
                }
                // Of smaller values, which codes lack then, not all quotients are finite.
                known.scale = largest.map(|largest| if largest > 1e-28 { largest / 127.0 } else { 0.0 });
                per_scale = known.scale.map(|scale| if scale > 0.0 { 1.0 / scale } else { 0.0 });
                rotation.rounding() + 4.0 * f64::from(f32::EPSILON)
            }
        };
        // Squares of code, of what it lacks, of rest and of what both lack, in units of the scale.
        let mut squares = [[0f32; PANEL]; 4];
        for (quad, columns) in columns.chunks(4).enumerate() {
            let [mut codes, mut rests] = [[0u32; PANEL]; 2];
            for (column, shift) in columns.iter().zip((0..).step_by(8)) {
                for row in 0..PANEL {
                    let value = column[row] * per_scale[row];
                    let code = nearest(value);
                    let lack = value - code;
                    let rest = nearest(lack * (1.0 / REST)).clamp(-127.0, 127.0);
                    let rest_lack = lack - rest * REST;
                    squares[0][row] += code * code;
                    squares[1][row] += lack * lack;
                    squares[2][row] += rest * REST * (rest * REST);
                    squares[3][row] += rest_lack * rest_lack;
                    known.sum[row] += code as i32;
                    known.rest_sum[row] += rest as i32;
                    codes[row] |= (code as i32 as u32 & 0xff) << shift;
                    rests[row] |= (rest as i32 as u32 & 0xff) << shift;
                }
            }
            let quad_of = |quads: u32| quads.to_le_bytes().map(|byte| byte as i8);
            for (row, quads) in quads.chunks_exact_mut(width.all).enumerate() {
                quads[quad] = quad_of(codes[row]);
                if let Some(rest) = quads.get_mut(width.code + quad) {
                    *rest = quad_of(rests[row]);
                }
            }
        }
        // Sums of squares, and quotients by the scale, are rounded.
        let up = 1.0 + (columns.len() + 8) as f64 * f64::from(f32::EPSILON);
        for row in 0..PANEL {
            let at_least = |part: usize, more: f64| {
                let length = f64::from(known.scale[row]) * f64::from(squares[part][row]).sqrt();
                ((length + more) * up) as f32
            };
            // A row without a scale is all that its code lacks.
            let share = if known.scale[row] > 0.0 { rounding } else { 1.0 };
            let more = share * lengths[row];
            known.length[row] = at_least(0, 0.0);
            known.lack[row] = at_least(1, more);
            known.rest_length[row] = at_least(2, 0.0);
            known.rest_lack[row] = at_least(3, more);
        }
        known
    }
}

/// What is known of a row; of a panel, of each of its rows.
#[derive(Clone, Copy, Default)]
struct Facts<F, I> {
    term: F,
    scale: F,
    /// At least the length of what the code stands for, and of what it lacks.
    length: F,
    lack: F,
    /// At least the length of what the rest stands for, and of what code and rest lack.
    rest_length: F,
    rest_lack: F,
    /// Sums of the components of code and rest.
    sum: I,
    rest_sum: I,
}

type RowFacts = Facts<f32, i32>;
type PanelFacts = Facts<PerRow, [i32; PANEL]>;

impl PanelFacts {
    /// Of a panel without rows: no pair of theirs is near.
    const NONE: Self = {
        let zeros = [0.0; PANEL];
        Self {
            term: [f32::INFINITY; PANEL],
            scale: zeros,
            length: zeros,
            lack: zeros,
            rest_length: zeros,
            rest_lack: zeros,
            sum: [0; PANEL],
            rest_sum: [0; PANEL],
        }
    };

    fn set(&mut self, place: usize, row: &RowFacts) {
        self.term[place] = row.term;
        self.scale[place] = row.scale;
        self.length[place] = row.length;
        self.lack[place] = row.lack;
        self.rest_length[place] = row.rest_length;
        self.rest_lack[place] = row.rest_lack;
        self.sum[place] = row.sum;
        self.rest_sum[place] = row.rest_sum;
    }

    fn row(&self, place: usize) -> RowFacts {
        Facts {
            term: self.term[place],
            scale: self.scale[place],
            length: self.length[place],
            lack: self.lack[place],
            rest_length: self.rest_length[place],
            rest_lack: self.rest_lack[place],
            sum: self.sum[place],
            rest_sum: self.rest_sum[place],
        }
    }

    /// At least the length of each row.
    fn reach(&self) -> PerRow {
        std::array::from_fn(|row| self.length[row] + self.lack[row] + self.rest_lack[row])
    }
}

/// The codes of rows, row by row.
pub(crate) struct CodeRows {
    set: DotSet,
    width: Width,
    /// Code after code, each with its rest if it has one.
    quads: Vec<Quad>,
    facts: Vec<RowFacts>,
}

/// Quads of a row.
#[derive(Clone, Copy)]
struct Width {
    code: usize,
    /// Of code and rest.
    all: usize,
}

impl CodeRows {
    /// Memory of the codes of all rows.
    pub(super) fn plan(data: &DataShape) -> MemoryPlan {
        let quads = data.rows * data.dim.div_ceil(4);
        MemoryPlan::new().with::<[Quad; 2]>("codes", quads).with::<RowFacts>("lengths of codes", data.rows)
    }

    /// The codes of `count` rows.
    ///
    /// # Errors
    /// If memory is short, or the work is cancelled.
    pub(super) fn new<'q>(
        form: &PanelForm,
        coding: &Coding,
        count: usize,
        row: &(dyn Fn(usize) -> Query<'q> + Sync),
        progress: &Progress,
    ) -> Result<Self> {
        let dim = form.mean.len();
        let width = coding.width(dim);
        let mut quads = filled([0; 4], count * width.all)?;
        let mut facts = filled(RowFacts::default(), count)?;
        let blocks = numbered((rows_mut(&mut quads, PANEL * width.all), rows_mut(&mut facts, PANEL)));
        let scratch = || (Vec::new(), vec![0f32; dim * PANEL]);
        try_for_each_with(blocks, scratch, |(components, values), (block, (quads, facts))| {
            progress.check()?;
            let mut squares = [0.0; PANEL];
            for (place, square) in squares.iter_mut().enumerate().take(facts.len()) {
                *square = form.fill(row(block * PANEL + place), components, values, place);
            }
            let columns = values.as_chunks_mut::<PANEL>().0;
            if let Values::Rotated(rotation) = &coding.values {
                rotation.apply(columns);
            }
            let known = coding.code(columns, &squares.map(f64::sqrt), quads, width);
            for (place, facts) in facts.iter_mut().enumerate() {
                *facts = known.row(place);
                facts.term = form.term(squares[place]);
            }
            Ok(())
        })?;
        Ok(Self { set: coding.set, width, quads, facts })
    }

    /// The quads of a row.
    fn quads(&self, row: usize) -> &[Quad] {
        &self.quads[row * self.width.all..][..self.width.all]
    }

    /// The panels of `count` rows; `row` gives the number of each.
    ///
    /// # Errors
    /// If memory is short.
    pub(super) fn panels(&self, count: usize, row: impl Fn(usize) -> usize + Sync) -> Result<CodePanels> {
        let (panels, width) = (count.div_ceil(PANEL), self.width);
        let mut facts = filled(PanelFacts::NONE, panels)?;
        let mut all = filled([[0; 4]; PANEL], panels * width.all)?;
        let each = numbered((rows_mut(&mut all, width.all), &mut facts[..]));
        for_each(each, |(panel, (panels, facts))| {
            let places = panel * PANEL..count.min((panel + 1) * PANEL);
            for (place, number) in places.clone().enumerate() {
                if number + AHEAD < places.end {
                    let next = row(number + AHEAD);
                    fetch(&self.facts[next..=next]);
                    fetch(self.quads(next));
                }
                let row = row(number);
                facts.set(place, &self.facts[row]);
                let quads = self.quads(row);
                panels.iter_mut().zip(quads).for_each(|(panel, &quad)| panel[place] = quad);
            }
        });
        Ok(CodePanels { set: self.set, width, quads: all, facts })
    }
}

/// The nearest whole number, of a value below 2^22. Without an instruction for it, `f32::round` is
/// a slow function of the C library.
#[inline(always)]
fn nearest(value: f32) -> f32 {
    // Added to it, a float has no bits left for fractions.
    const WHOLE: f32 = 1.5 * (1 << 23) as f32;
    (value + WHOLE) - WHOLE
}

/// Rows as panels of codes.
pub(crate) struct CodePanels {
    set: DotSet,
    width: Width,
    /// Panel after panel, each as the quads of a row.
    quads: Vec<Quads>,
    facts: Vec<PanelFacts>,
}

impl CodePanels {
    /// Memory of what is known of rows, while their panels are made.
    pub(super) fn plan_of_facts(rows: usize) -> MemoryPlan {
        MemoryPlan::new().with::<[RowFacts; 2]>("lengths of codes", rows)
    }

    /// The pairs of [`Panels::near`](super::Panels::near).
    pub(super) fn near(&self, side: Side<'_>, others: &Self, other: Side<'_>) -> [u32; PANEL] {
        self.panel(side).near(&others.panel(other), self.set, MANY)
    }

    fn panel<'a>(&'a self, side: Side<'a>) -> Panel<'a> {
        let Width { code, all } = self.width;
        let (codes, rests) = self.quads[side.panel * all..][..all].split_at(code);
        Panel { codes, rests, facts: &self.facts[side.panel], bounds: side.bounds }
    }
}

/// A panel of a comparison.
struct Panel<'a> {
    codes: &'a [Quads],
    rests: &'a [Quads],
    facts: &'a PanelFacts,
    bounds: &'a PerRow,
}

impl<'a> Panel<'a> {
    fn limits(&self) -> Limits<'a> {
        Limits { terms: &self.facts.term, bounds: self.bounds }
    }

    /// The codes as numbers.
    fn codes(&self) -> dot::Panel<'a> {
        let Facts { sum, scale, .. } = self.facts;
        dot::Panel { quads: self.codes, sums: sum, scales: scale }
    }

    /// The rests, with their scales.
    fn rests<'s>(&'s self, scales: &'s PerRow) -> dot::Panel<'s> {
        dot::Panel { quads: self.rests, sums: &self.facts.rest_sum, scales }
    }

    /// The near pairs by codes; where these leave at least `many`, by rests too.
    fn near(&self, others: &Self, set: DotSet, many: u32) -> [u32; PANEL] {
        let (rows, facts) = (self.facts, others.facts);
        let (reach, other_reach) = (rows.reach(), facts.reach());
        let mut products = [[0.0; PANEL]; PANEL];
        set.add_products(self.codes(), others.codes(), &mut products);
        let lacks = [(&rows.lack, &other_reach), (&rows.length, &facts.lack)];
        let near = set.near(&products, lacks, self.limits(), others.limits());
        if self.rests.is_empty() || near.iter().map(|near| near.count_ones()).sum::<u32>() < many {
            return near;
        }
        let scales = [rows, facts].map(|facts| facts.scale.map(|scale| scale * REST));
        set.add_products(self.codes(), others.rests(&scales[1]), &mut products);
        set.add_products(self.rests(&scales[0]), others.codes(), &mut products);
        let lacks = [
            (&rows.rest_length, &facts.rest_length),
            (&rows.rest_lack, &other_reach),
            (&reach, &facts.rest_lack),
        ];
        set.near(&products, lacks, self.limits(), others.limits())
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::Vectors;

    /// On every instruction set, a filter keeps all pairs within their bound, and none that is
    /// beyond it by more than codes lack.
    #[test]
    fn codes_drop_far_pairs_alone() {
        let silent = Progress::silent();
        for (dim, metric) in
            [24, 100, 384].into_iter().flat_map(|dim| [(dim, Metric::L2), (dim, Metric::InnerProduct)])
        {
            let draws = Draws::new(6, Stage::Test, 0, dim as u64);
            let unit = |i: usize| draws.unit(i as u64) as f32 - 0.5;
            // One component is far larger than the others.
            let value = |i: usize| if i % dim == 3 { 20.0 * unit(i) } else { unit(i) };
            let base = Vectors::from_f32((0..40 * dim).map(value).collect(), dim).unwrap();
            let space = Space::new(&base, metric, &silent).unwrap();
            let mean = vec![if metric == Metric::L2 { 0.01 } else { 0.0 }; dim];
            let form = PanelForm { metric, mean, coding: None };
            let row = |row| space.query(row as u32);
            let ids: Vec<u32> = (0..40).collect();
            let all = |row: u32| {
                let mut distances = Vec::new();
                space.list_distances(space.query(row), &ids, &mut distances);
                distances.into_iter().map(|distance| form.scale() * distance).collect::<Vec<_>>()
            };
            let exact: Vec<Vec<f32>> = ids.iter().map(|&row| all(row)).collect();
            let square = |row: usize| base.host_row(row).iter().map(|x| x * x).sum::<f32>();
            let longest = (0..40).map(square).fold(0f32, f32::max);
            let bounds: PerRow = std::array::from_fn(|row| exact[row][(row * 7 + 11) % 40]);
            let none = [f32::NEG_INFINITY; PANEL];
            for set in [Some(DotSet::Portable), DotSet::here()].into_iter().flatten() {
                let coding = Coding { set, values: Values::Rotated(Rotation::new(dim)) };
                let codes = CodeRows::new(&form, &coding, 40, &row, &silent).unwrap();
                let panels = codes.panels(40, |row| row).unwrap();
                for other in [0, 1] {
                    let rows = panels.panel(Side { panel: 0, bounds: &bounds });
                    let others = panels.panel(Side { panel: other, bounds: &none });
                    let found = [(u32::MAX, 0.05), (0, 5e-4)]
                        .map(|(many, share)| (rows.near(&others, set, many), share));
                    for ((near, share), row) in
                        found.iter().flat_map(|found| (0..PANEL).map(move |row| (found, row)))
                    {
                        for place in 0..PANEL {
                            let is_near = near[row] >> place & 1 == 1;
                            let id = other * PANEL + place;
                            let Some(h) = exact[row].get(id) else {
                                assert!(!is_near, "{dim}, {metric}: row {id} is none");
                                continue;
                            };
                            let case = format!("{dim}, {metric}, {share}: {row}, {id}: {h} {}", bounds[row]);
                            assert!(is_near || *h > bounds[row], "{case}");
                            assert!(!is_near || *h <= bounds[row] + share * longest, "{case}");
                        }
                    }
                }
            }
        }
    }
}
