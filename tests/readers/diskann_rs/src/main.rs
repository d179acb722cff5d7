//! `diskann-reader GRAPH DISK QUERIES TRUTH L...`: recall@10 of f32 queries by DiskANN's Rust
//! crates, in a graph in memory and in the files whose names begin with DISK. One JSON line per L.

use std::error::Error;
use std::fs::File;
use std::num::NonZeroUsize;

use diskann::graph::config::{Builder, MaxDegree};
use diskann::graph::search::Knn;
use diskann::graph::search_output_buffer::IdDistance;
use diskann_disk::data_model::{AdHoc, CachingStrategy};
use diskann_disk::search::provider::aligned_file_reader::AlignedFileReaderFactory;
use diskann_disk::search::provider::disk_provider::DiskIndexSearcher;
use diskann_disk::search::provider::disk_vertex_provider_factory::DiskVertexProviderFactory;
use diskann_disk::search::search_mode::SearchMode;
use diskann_disk::storage::disk_index_reader::DiskIndexReader;
use diskann_providers::model::configuration::IndexConfiguration;
use diskann_providers::model::graph::provider::async_::common::{FullPrecision, NoStore};
use diskann_providers::storage::{FileStorageProvider, load_fp_index};
use diskann_utils::io::read_bin;
use diskann_utils::views::rowmajor::{Matrix, Owned};
use diskann_vector::distance::Metric;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Neighbours asked for.
const K: usize = 10;

/// Nodes that a search on disk expands at a time: with one it does what a search in memory does.
const BEAM: usize = 1;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [graph, disk, queries, truth, lengths @ ..] = arguments.as_slice() else {
        return Err("usage: diskann-reader GRAPH DISK QUERIES TRUTH L...".into());
    };
    let queries = read_bin::<f32>(&mut File::open(queries)?)?;
    let truth = read_bin::<u32>(&mut File::open(truth)?)?;
    let lengths: Vec<usize> = lengths.iter().map(|l| l.parse()).collect::<std::result::Result<_, _>>()?;
    in_memory(graph, &queries, &truth, &lengths)?;
    on_disk(disk, &queries, &truth, &lengths)
}

/// The crates begin a search at the last vector of a graph, take it for a frozen point, and do not
/// report it.
fn in_memory(prefix: &str, queries: &Owned<f32>, truth: &Owned<u32>, lengths: &[usize]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let one = NonZeroUsize::MIN;
    let config = Builder::new(64, MaxDegree::default_slack(), 64, Metric::L2.into()).build()?;
    let parameters = IndexConfiguration::new(Metric::L2, queries.ncols(), 0, one, 1, config);
    let load = load_fp_index::<f32, _, NoStore>(&FileStorageProvider, prefix, parameters);
    let index = runtime.block_on(load)?;
    for &length in lengths {
        let mut found = Vec::new();
        for query in queries.as_view().rows() {
            let (mut ids, mut distances) = ([u32::MAX; K], [0.0; K]);
            let mut output = IdDistance::new(&mut ids, &mut distances);
            let context = Default::default();
            let knn = Knn::new(length, None)?;
            runtime.block_on(index.search(knn, &FullPrecision, &context, query, &mut output))?;
            found.push(ids);
        }
        report("diskann-providers 0.61, memory", length, &found, truth);
    }
    Ok(())
}

fn on_disk(prefix: &str, queries: &Owned<f32>, truth: &Owned<u32>, lengths: &[usize]) -> Result<()> {
    let reader = DiskIndexReader::new(
        format!("{prefix}_pq_pivots.bin"),
        format!("{prefix}_pq_compressed.bin"),
        &FileStorageProvider,
    )?;
    let file = AlignedFileReaderFactory::new(format!("{prefix}_disk.index"));
    let vertices = DiskVertexProviderFactory::<AdHoc<f32>, _>::new(file, CachingStrategy::None)?;
    let searcher = DiskIndexSearcher::new(1, usize::MAX, &reader, vertices, Metric::L2, None)?;
    for &length in lengths {
        let mut found = Vec::new();
        for query in queries.as_view().rows() {
            let results =
                searcher.search(query, K as u32, length as u32, Some(BEAM), SearchMode::graph())?.results;
            let mut ids = [u32::MAX; K];
            ids.iter_mut().zip(&results).for_each(|(id, result)| *id = result.vertex_id);
            found.push(ids);
        }
        report("diskann-disk 0.61", length, &found, truth);
    }
    Ok(())
}

fn report(reader: &str, length: usize, found: &[[u32; K]], truth: &Owned<u32>) {
    let hits =
        |(found, truth): (&[u32; K], &[u32])| truth[..K].iter().filter(|id| found.contains(id)).count();
    let hits: usize = found.iter().zip(truth.as_view().rows()).map(hits).sum();
    let recall = hits as f64 / (K * found.len()) as f64;
    println!(r#"{{"reader":"{reader}","l":{length},"recall":{recall:.4}}}"#);
}
