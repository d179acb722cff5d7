//! Codes of edges, a bit per dimension each (`device/src/search/edges/`), and searches on them.
//!
//! A search expands a node by one row of codes and one vector, in place of the vectors of all new
//! neighbours. It walks on estimates, and returns distances of vectors. Every backend makes the
//! same codes and finds the same rows.

pub(super) mod gpu;
mod walk;

use tagore_device::block::exact::Metric;
use tagore_device::cluster::drawn;
use tagore_device::random::{Draws, Stage};
use tagore_device::search::edges::query::levels;
use tagore_device::search::edges::{PLANES, Sums, row_words, slots, weighed, words};
use tagore_device::vectors::code::Code;

pub(super) use walk::{EdgeWalk, OnEdges};

use super::lazy::Lazy;
use crate::index::Index;
use crate::loops::map;
use crate::memory::zeros;
use crate::parallel::for_each_row;
use crate::vectors::gpu::metric_number;
use crate::vectors::rotation::Rotation;
use crate::vectors::space::{Query, Space};
use crate::vectors::{Element, Matrix, with_matrix};
use crate::{Progress, Result};

/// Rows whose medians are the center.
const SAMPLED: usize = 1024;

/// Edges that are coded together.
const EDGES: usize = 16;

/// Sums of each kind, which are added as a tree: the threads of a block on a GPU.
const SUMS: usize = 128;

/// The rotation and the center of codes, and the codes themselves once the CPU has needed them.
pub(super) struct EdgeCodes {
    rotation: Rotation,
    /// A center of the rows.
    center: Vec<f32>,
    rows: Lazy<Vec<u32>>,
}

/// The code of a query.
#[derive(Default)]
pub(super) struct QueryCode {
    values: Vec<[f32; 1]>,
    /// [`PLANES`] words for 32 dimensions each.
    planes: Vec<u32>,
    /// A level of the code.
    step: f32,
    /// The sum of the code's components.
    sum: i32,
}

impl EdgeCodes {
    /// Finds the center of the rows of `space`.
    ///
    /// # Errors
    /// If they lie on a device that fails.
    pub(super) fn new(space: &Space<'_>) -> Result<Self> {
        let (n, count) = (space.len(), space.len().min(SAMPLED));
        let id = |i| drawn(Draws::new(0, Stage::Verify, 2, i as u64), i as u32, count as u32, n as u32);
        let sample = space.vectors().select(&(0..count).map(id).collect::<Vec<u32>>())?.to_f32()?;
        let dim = space.dim();
        let median = |component: usize| {
            let mut values: Vec<f32> = sample.iter().skip(component).step_by(dim).copied().collect();
            let half = values.len() / 2;
            *values.select_nth_unstable_by(half, f32::total_cmp).1
        };
        let center = map(0..dim, median);
        Ok(Self { rotation: Rotation::new(dim), center, rows: Lazy::default() })
    }

    /// The codes of the edges of `index`, over the rows of `space`, made by the first call.
    ///
    /// # Errors
    /// If there is no memory for them, or the work is cancelled.
    pub(super) fn rows(&self, space: &Space<'_>, index: &Index, progress: &Progress) -> Result<&[u32]> {
        self.rows.get_or_make(|| self.make(space, index, progress)).map(Vec::as_slice)
    }

    fn make(&self, space: &Space<'_>, index: &Index, progress: &Progress) -> Result<Vec<u32>> {
        space.vectors().on_host()?;
        let width = row_words(space.dim() as u32, index.max_degree() as u32) as usize;
        let mut codes: Vec<u32> = zeros(index.len() * width)?;
        let stage = progress.stage("code edges", index.len() as u64);
        let metric = Metric::from_u32(metric_number(space.metric()));
        let rows = space.vectors().rows();
        let code = |coder: &mut Coder, node: u32, codes: &mut [u32]| {
            with_matrix!(rows, rows => {
                coder.node(self, rows, node);
                for (group, ids) in index.neighbors(node as usize).chunks(EDGES).enumerate() {
                    coder.edges(self, rows, ids);
                    let slots = slots(index.max_degree() as u32) as usize;
                    coder.write(ids.len(), metric, slots, &mut codes[group * EDGES..]);
                }
            });
        };
        for_each_row(&mut codes, width, &stage, || Coder::new(space.dim()), code)?;
        Ok(codes)
    }

    /// Writes the code of `query` to `code`.
    pub(super) fn query(&self, query: Query<'_>, code: &mut QueryCode) {
        let QueryCode { values, planes, step, sum } = code;
        query.widen(values);
        values.truncate(self.center.len());
        values.iter_mut().zip(&self.center).for_each(|([value], center)| *value -= center);
        self.rotation.apply(values);
        let largest = values.iter().fold(0f32, |largest, [value]| largest.max(value.abs()));
        let scale;
        (scale, *step) = levels(largest);
        planes.clear();
        planes.resize(values.len().div_ceil(32) * PLANES as usize, 0);
        for (word, values) in planes.chunks_exact_mut(PLANES as usize).zip(values.chunks(32)) {
            for (bit, &[value]) in values.iter().enumerate() {
                let component = i8::of(value * scale) as u32;
                for (plane, word) in word.iter_mut().enumerate() {
                    *word |= (component >> plane & 1) << bit;
                }
            }
        }
        let ones = planes.iter().zip((0..PLANES).cycle());
        *sum = ones.map(|(plane, number)| weighed(plane.count_ones(), number)).sum();
    }
}

/// Codes the edges of one node after another.
struct Coder {
    /// The node.
    row: Vec<f32>,
    /// The same, less the center, rotated.
    from: Vec<[f32; 1]>,
    /// The rotated differences of some edges, component by component.
    differences: Vec<[f32; EDGES]>,
    sums: Vec<[Sums; EDGES]>,
}

impl Coder {
    fn new(dim: usize) -> Self {
        Self {
            row: vec![0.0; dim],
            from: vec![[0.0]; dim],
            differences: vec![[0.0; EDGES]; dim],
            sums: vec![[Sums::default(); EDGES]; SUMS],
        }
    }

    fn node<T: Element>(&mut self, codes: &EdgeCodes, rows: Matrix<'_, T>, node: u32) {
        self.row.iter_mut().zip(rows.components(node as usize)).for_each(|(to, x)| *to = x);
        let centered = self.row.iter().zip(&codes.center).map(|(x, center)| [x - center]);
        self.from.iter_mut().zip(centered).for_each(|(to, x)| *to = x);
        codes.rotation.apply(&mut self.from);
    }

    /// The differences and sums of edges to `ids`.
    fn edges<T: Element>(&mut self, codes: &EdgeCodes, rows: Matrix<'_, T>, ids: &[u32]) {
        self.sums.fill([Sums::default(); EDGES]);
        for (place, &id) in ids.iter().enumerate() {
            let components = self.row.iter().zip(rows.components(id as usize)).zip(&codes.center);
            let differences = self.differences.iter_mut().zip(components).enumerate();
            for (i, (difference, ((from, to), center))) in differences {
                difference[place] = to - from;
                self.sums[i % SUMS][place].product += center * (to - from);
            }
        }
        codes.rotation.apply(&mut self.differences);
        for (i, (difference, &[from])) in self.differences.iter().zip(&self.from).enumerate() {
            for (sums, &u) in self.sums[i % SUMS].iter_mut().zip(difference) {
                sums.square += u * u;
                sums.magnitude += if u > 0.0 { u } else { -u };
                sums.signed += if u > 0.0 { from } else { -from };
            }
        }
        let mut half = SUMS / 2;
        while half > 0 {
            let (low, high) = self.sums.split_at_mut(half);
            for (low, high) in low.iter_mut().flatten().zip(high.iter().flatten()) {
                low.square += high.square;
                low.magnitude += high.magnitude;
                low.signed += high.signed;
                low.product += high.product;
            }
            half /= 2;
        }
    }

    /// Writes the codes of the first `count` edges, whose words lie `slots` apart.
    fn write(&self, count: usize, metric: Metric, slots: usize, codes: &mut [u32]) {
        let words = words(self.row.len() as u32) as usize;
        for (word, differences) in self.differences.chunks(32).enumerate() {
            for (edge, code) in codes[word * slots..].iter_mut().take(count).enumerate() {
                let bits = differences.iter().enumerate();
                *code = bits.fold(0, |code, (bit, u)| code | u32::from(u[edge] > 0.0) << bit);
            }
        }
        for (edge, sums) in self.sums[0][..count].iter().enumerate() {
            let (factor, offset) = sums.terms(metric);
            codes[words * slots + edge] = factor.to_bits();
            codes[(words + 1) * slots + edge] = offset.to_bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::walk::estimate_all;
    use super::*;
    use crate::{Builder, Metric as AnyMetric, Strategy, Synth};

    #[test]
    fn an_estimate_for_the_node_that_an_edge_leads_to_is_its_distance() {
        let silent = Progress::silent();
        // What is left is the rounding of the query's code. Inner products have another direction
        // than that of the edge, which errs as others do.
        let cases =
            [(64, AnyMetric::L2, 0.03), (100, AnyMetric::Cosine, 0.03), (33, AnyMetric::InnerProduct, 0.5)];
        for (dim, metric, most) in cases {
            let base = Synth::new(150, dim, 3).unwrap().base();
            let index =
                Builder::new(Strategy::cagra().degree(20)).knn(30).metric(metric).build(&base).unwrap();
            let space = Space::new(&base, metric, &silent).unwrap();
            let codes = EdgeCodes::new(&space).unwrap();
            let rows = codes.rows(&space, &index, &silent).unwrap();
            let width = row_words(dim as u32, 20) as usize;
            let (mut code, mut distances) = (QueryCode::default(), Vec::new());
            let mut estimates = vec![0.0; slots(20) as usize];
            let (mut errors, mut count) = (0.0, 0);
            for node in 0..150 {
                for (edge, &id) in index.neighbors(node).iter().enumerate() {
                    let query = space.query(id);
                    codes.query(query, &mut code);
                    space.list_distances(query, &[node as u32, id], &mut distances);
                    let row = &rows[node * width..][..width];
                    estimate_all(row, dim, &code, distances[0], &mut estimates);
                    let apart = (distances[0] - distances[1]).abs().max(f32::MIN_POSITIVE);
                    errors += f64::from((estimates[edge] - distances[1]).abs() / apart);
                    count += 1;
                }
            }
            let error = errors / f64::from(count);
            assert!(error < most, "{metric} of dimension {dim}: {error}");
        }
    }
}
