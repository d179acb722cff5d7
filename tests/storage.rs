//! Data sets in memory of other owners and in stores; graphs written to stores; data as JSON.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use half::f16;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, Component, DataShape, Device, ElementType, Error, Fingerprint, Format, Ids, Index, IndexFormat,
    Metric, Progress, RowSink, Source, StoreError, Strategy, Synth, SynthKind, Vectors,
};

/// The rows of a data set, as a store gives them.
struct Rows<T> {
    values: Vec<T>,
    dim: usize,
}

impl<T: Component> Source for Rows<T> {
    type Value = T;

    fn rows(&self) -> usize {
        self.values.len() / self.dim
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn fill(&mut self, first: usize, rows: &mut [T]) -> Result<(), StoreError> {
        rows.copy_from_slice(&self.values[first * self.dim..][..rows.len()]);
        Ok(())
    }
}

/// The bytes of the index of `base`, and of the index that is built out of core.
fn built(base: &Vectors, metric: Metric, folder: &Path) -> [Vec<u8>; 2] {
    let builder = Builder::new(Strategy::nsg()).metric(metric).knn(24).device(Device::Cpu);
    let path = folder.join("x.tagore");
    builder.build(base).unwrap().save(&path).unwrap();
    let in_memory = fs::read(&path).unwrap();
    let limits = Limits { cluster_size: Some(400), ..Limits::default() };
    let plan = ClusterPlan::new(&builder, base, &limits).unwrap().unwrap();
    OutOfCore::new(builder, plan).build(base, &path).unwrap();
    [in_memory, fs::read(&path).unwrap()]
}

/// Compares indexes of values in a file, a source in memory, a spooled source and strided memory.
fn compare<T: Component>(values: &[T], dim: usize, metric: Metric) {
    let folder = tempfile::tempdir().unwrap();
    let whole = Vectors::from_owner(values.to_vec(), dim).unwrap();
    let (file, format) = (folder.path().join("base.npy"), Format::Npy);
    whole.save_as(&file, format, &Progress::silent()).unwrap();
    let expected = built(&Vectors::open(&file).unwrap(), metric, folder.path());
    let what = format!("{} under {metric}", whole.element_type());

    let mut source = Rows { values: values.to_vec(), dim };
    let read = Vectors::from_source(&mut source, &Progress::silent()).unwrap();
    assert!(built(&read, metric, folder.path()) == expected, "{what}, a source in memory");
    let spooled = Vectors::spooled(&mut source, folder.path(), &Progress::silent()).unwrap();
    assert!(built(&spooled, metric, folder.path()) == expected, "{what}, a spooled source");

    let mut wide = Vec::new();
    for row in values.chunks_exact(dim) {
        wide.extend_from_slice(row);
        wide.extend_from_slice(&row[..3]);
    }
    let owner: Arc<[T]> = Arc::from(wide);
    let strided = Vectors::from_strided(owner, whole.len(), dim, dim + 3).unwrap();
    assert!(built(&strided, metric, folder.path()) == expected, "{what}, strided memory");
    drop((read, spooled, strided));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the base and the index");
}

#[test]
fn an_index_of_a_store_equals_that_of_a_file_byte_for_byte() {
    let values = Synth::new(700, 9, 3).unwrap().base().to_f32().unwrap();
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        compare(&values, 9, metric);
    }
    let halves: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
    compare(&halves, 9, Metric::L2);
    let bytes: Vec<u8> = values.iter().map(|&x| (x * 40.0).clamp(0.0, 255.0) as u8).collect();
    compare(&bytes, 9, Metric::L2);
}

#[test]
fn a_base_may_come_from_another_store_than_the_index() {
    let base = Synth::new(500, 8, 1).unwrap().base();
    let index = Builder::new(Strategy::cagra()).build(&base).unwrap();
    let rows = Vectors::from_rows(base.rows_as::<f32>().unwrap()).unwrap();
    assert_eq!(Fingerprint::compute(&rows).unwrap(), index.fingerprint());
    index.check_base(&rows).unwrap();
}

/// Collects a graph, and fails at a node.
#[derive(Default)]
struct Collected {
    entries: Vec<u32>,
    rows: Vec<Vec<u32>>,
    fails_at: Option<u32>,
}

impl RowSink for Collected {
    fn entries(&mut self, entries: &[u32]) -> Result<(), StoreError> {
        assert!(self.entries.is_empty() && self.rows.is_empty());
        self.entries = entries.to_vec();
        Ok(())
    }

    fn row(&mut self, node: u32, neighbors: &[u32]) -> Result<(), StoreError> {
        assert_eq!(node as usize, self.rows.len());
        if self.fails_at == Some(node) {
            return Err(std::io::Error::from(std::io::ErrorKind::StorageFull).into());
        }
        self.rows.push(neighbors.to_vec());
        Ok(())
    }
}

#[test]
fn a_sink_takes_the_rows_of_an_export_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for kind in [SynthKind::Mixture, SynthKind::Repeated { copies: 20 }] {
        let base = Synth::of_kind(kind, 600, 8, 1).unwrap().base();
        let index = Builder::new(Strategy::vamana()).build(&base).unwrap();
        assert_eq!(index.repeated().is_empty(), kind == SynthKind::Mixture);
        let mut sink = Collected::default();
        index.write_rows(&mut sink, &Progress::silent()).unwrap();
        assert_eq!(sink.entries, index.entries());
        let path = folder.path().join("x.nssg");
        index.export(IndexFormat::Nssg).save(&path).unwrap();
        let read = Index::import(&path, IndexFormat::Nssg, &base, Metric::L2, &Progress::silent()).unwrap();
        let expected: Vec<_> = (0..read.len()).map(|node| read.neighbors(node)).collect();
        assert!(sink.rows == expected, "{kind:?}");
    }
}

#[test]
fn errors_of_a_sink_are_carried_and_cancelled_writes_stop() {
    let base = Synth::new(300, 8, 1).unwrap().base();
    let index = Builder::new(Strategy::nsg()).build(&base).unwrap();
    let mut sink = Collected { fails_at: Some(70), ..Collected::default() };
    let error = index.write_rows(&mut sink, &Progress::silent()).unwrap_err();
    let Error::Store { place: "sink", row: 70, source } = &error else { panic!("{error}") };
    let source = source.downcast_ref::<std::io::Error>().unwrap();
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(error.to_string(), format!("sink: row 70: {source}"));
    let cancelled = Progress::silent();
    cancelled.cancel();
    let sink: &mut dyn RowSink = &mut Collected::default();
    assert!(matches!(index.write_rows(sink, &cancelled), Err(Error::Cancelled)));
}

#[test]
fn threads_may_share_data() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Vectors>();
    shared::<Index>();
    shared::<Ids>();
    shared::<Builder>();
    shared::<OutOfCore>();
    shared::<Progress>();
    shared::<Error>();
}

/// Checks that a value comes back from JSON, and that its JSON is `expected`.
fn json<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: T, expected: &str) {
    let text = serde_json::to_string(&value).unwrap();
    assert_eq!(text, expected);
    assert_eq!(serde_json::from_str::<T>(&text).unwrap(), value);
}

#[test]
fn data_is_json_by_its_names() {
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        json(metric, &format!("{:?}", metric.name()));
    }
    for element in ElementType::ALL {
        json(element, &format!("{:?}", element.name()));
    }
    Format::ALL.into_iter().for_each(|format| json(format, &format!("{:?}", format.name())));
    IndexFormat::ALL.into_iter().for_each(|format| json(format, &format!("{:?}", format.name())));
    let shape = DataShape::new(5, 2, ElementType::U8).unwrap();
    json(shape, r#"{"rows":5,"dim":2,"element":"u8","bytes":false}"#);
    let base = Synth::new(50, 4, 1).unwrap().base();
    let index = Builder::new(Strategy::nsg()).build(&base).unwrap();
    let description = serde_json::to_string(index.description()).unwrap();
    json(index.description().clone(), &description);
    assert_eq!(index.clone().neighbors(7), index.neighbors(7));
}
