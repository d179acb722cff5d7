//! HNSW's layers for export: ever smaller graphs that lead a search near its query. They are those
//! of the index, with more edges, or drawn here.
//!
//! Levels are drawn as in Malkov and Yashunin, HNSW, section 4.1. A layer's graph is not grown node
//! by node but built with Vamana's rule, which keeps the long edges that layers need.

use std::ops::Range;

use tagore_device::random::{Draws, Stage};

use super::export::Export;
use crate::build::monotonic::for_beam_of_one;
use crate::index::Layer;
use crate::{Builder, Device, MAX_DEGREE, Result, Strategy, Vectors};

/// The layers above the base layer, lowest first.
pub(super) struct Layers {
    layers: Vec<Layer>,
    /// The node where searches start, on the highest layer.
    pub entry: u32,
    /// HNSW's M, the largest degree above the base layer.
    pub degree: usize,
}

impl Layers {
    /// Takes the index's own layers, or builds layers if it has none and the export requests them.
    ///
    /// The readers search layers with a beam of one, so own layers get more edges.
    pub(super) fn for_export(export: &Export<'_>) -> Result<Self> {
        let index = export.index;
        let own = index.layers();
        let widened = |layer: &Layer| {
            let base = export.base.map(|base| for_beam_of_one(base, index.metric(), layer, &export.progress));
            Ok(base.transpose()?.flatten().unwrap_or_else(|| layer.clone()))
        };
        let layers: Vec<Layer> = own.iter().map(widened).collect::<Result<_>>()?;
        let degree = layers.iter().map(Layer::max_degree).max().unwrap_or(index.max_degree() / 2);
        let above = Self { layers, entry: index.entries()[0], degree: degree.clamp(2, MAX_DEGREE) };
        match export.base {
            Some(base) if export.layers && own.is_empty() => above.drawn(export, base),
            _ => Ok(above),
        }
    }

    /// HNSW's mL, the factor of drawn levels: each layer has one M-th of the nodes of the layer
    /// below.
    pub(super) fn level_factor(&self) -> f64 {
        1.0 / (self.degree as f64).ln()
    }

    /// These with the layers of HNSW over `base`.
    fn drawn(mut self, export: &Export<'_>, base: &Vectors) -> Result<Self> {
        let seed = export.index.description().seed;
        let factor = self.level_factor();
        let level = |node: u32| {
            // Entry points are drawn in iteration 0 of this stage, levels in iteration 1.
            let draws = Draws::new(seed, Stage::Entry, 1, node.into());
            (-draws.unit(0).ln() * factor) as usize
        };
        let index = export.index;
        // A search near one row of a group of equal rows finds the others in the base layer.
        let is_above =
            |&node: &u32| level(node) > 0 && !index.repeated().contains(node) && !index.is_left_out(node);
        let mut nodes: Vec<u32> = (0..export.index.len() as u32).filter(is_above).collect();
        let builder = Builder::new(Strategy::vamana().degree(self.degree))
            .metric(export.index.metric())
            .seed(seed)
            // A layer cannot have layers of its own in the file.
            .layers(false)
            .dedupe(false)
            // Always the CPU, so that every machine writes the same bytes; layers are small.
            .device(Device::Cpu)
            .progress(export.progress.clone());
        for height in 1.. {
            if nodes.is_empty() {
                break;
            }
            let values = nodes.iter().flat_map(|&node| base.host_row(node as usize).into_owned()).collect();
            let index = builder.build(&Vectors::from_f32(values, base.dim())?)?;
            self.entry = nodes[index.entries()[0] as usize];
            let higher = nodes.iter().copied().filter(|&node| level(node) > height).collect();
            self.layers.push(Layer::over(&index, &nodes, 1)?);
            nodes = higher;
        }
        Ok(self)
    }

    /// The number of the highest layer; 0 if the base layer is the only one.
    pub(super) fn highest(&self) -> usize {
        self.layers.len()
    }

    /// The layers above the base layer that hold `node`.
    pub(super) fn of_node(&self, node: usize) -> Range<usize> {
        let is_in = |layer: &&Layer| layer.place(node as u32).is_some();
        1..self.layers.iter().take_while(is_in).count() + 1
    }

    /// The neighbours of `node` in a layer that holds it.
    pub(super) fn neighbors(&self, layer: usize, node: usize) -> impl ExactSizeIterator<Item = u32> {
        let layer = &self.layers[layer - 1];
        layer.place(node as u32).map_or(&[][..], |place| layer.neighbors(place)).iter().copied()
    }
}
