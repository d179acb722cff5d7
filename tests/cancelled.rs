//! Every pass over a data set, a ground truth or an index stops when it is cancelled.

use std::sync::Arc;

use tagore::outofcore::{ClusterGraph, ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, DataShape, Descent, Device, Error, ExactSearch, Format, GroundTruth, Index, IndexFormat,
    KnnTruth, Metric, Progress, RecallSample, Result, Search, Searcher, Strategy, Vectors,
};

use crate::reference::uniform;

#[test]
fn every_pass_over_data_can_be_cancelled() {
    let (base, queries) = (uniform(300, 4, 1), uniform(5, 4, 2));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    base.save(path("base.fbin")).unwrap();
    base.save(path("base.fvecs")).unwrap();
    let index = Arc::new(Builder::new(Strategy::nsg()).knn(10).build(&base).unwrap());
    index.save(path("x.tagore")).unwrap();
    let formats = IndexFormat::ALL.into_iter().filter(|&format| format != IndexFormat::Npy);
    let foreign: Vec<IndexFormat> = formats.collect();
    for format in &foreign {
        index.export(*format).base(&base).save(path(&format!("x-{format}.{format}"))).unwrap();
    }
    let truth = GroundTruth::new(10, vec![0; 50], Some(vec![0.0; 50])).unwrap();
    let truths = ["truth.bin", "truth.ibin", "truth.ivecs", "truth.npy"];
    truths.iter().for_each(|name| truth.save(path(name)).unwrap());
    let progress = Progress::silent();
    progress.cancel();
    let p = &progress;
    // Opened each time, since a second check of the same vectors is skipped.
    let open = || Vectors::open(path("base.fbin")).unwrap();
    let cosine = Builder::new(Strategy::nsg()).knn(10).metric(Metric::Cosine).progress(progress.clone());
    let clusters = Limits { cluster_size: Some(100), ..Limits::default() };
    let sample = RecallSample {
        nodes: 10,
        device: Device::Cpu,
        progress: progress.clone(),
        ..RecallSample::default()
    };
    let mut found: Vec<(String, Result<()>)> = [
        ("validate", open().validate(p)),
        ("validate fvecs", Vectors::open(path("base.fvecs")).unwrap().validate(p)),
        ("convert", open().save_as(path("y.fvecs"), Format::Fvecs, p)),
        ("shape", DataShape::inspect(&open(), p).map(drop)),
        ("exact search", ExactSearch::new(3).progress(progress.clone()).run(&open(), &queries).map(drop)),
        ("descent", Descent::new().progress(progress.clone()).build(&open()).map(drop)),
        ("build", cosine.build(&open()).map(drop)),
        ("k-NN truth", KnnTruth::new(&open(), Metric::L2, 3, &sample).map(drop)),
        ("overlap", ClusterGraph::of_vectors(&open(), 3, 0, Device::Cpu, p).map(drop)),
        ("searcher", Searcher::new(Arc::clone(&index), open(), p).map(drop)),
        (
            "queries",
            Searcher::new(Arc::clone(&index), base.clone(), &Progress::silent())
                .and_then(|s| s.search(&open(), Search::new(3), p))
                .map(drop),
        ),
        ("verify", Index::open(path("x.tagore")).unwrap().verify(p)),
        ("verify in memory", index.verify(p)),
        ("statistics", index.statistics(p).map(drop)),
        ("plan", ClusterPlan::new(&cosine, &open(), &clusters).map(drop)),
    ]
    .map(|(what, result)| (what.to_owned(), result))
    .into();
    for name in truths {
        found.push((name.to_owned(), GroundTruth::open(path(name), p).map(drop)));
    }
    for format in foreign {
        let file = path(&format!("x-{format}.{format}"));
        let import = Index::import(file, format, &base, Metric::L2, p).map(drop);
        found.push((format!("import {format}"), import));
        let export = index.export(format).base(&base).progress(progress.clone());
        found.push((format!("export {format}"), export.save(path(&format!("y.{format}")))));
    }
    let builder = Builder::new(Strategy::nsg()).knn(10).metric(Metric::InnerProduct);
    let plan = ClusterPlan::new(&builder, &base, &clusters).unwrap().unwrap();
    let run = OutOfCore::new(builder.progress(progress.clone()), plan);
    found.push(("out of core".to_owned(), run.build(&open(), &path("y.tagore")).map(drop)));
    for (what, result) in found {
        assert!(matches!(result, Err(Error::Cancelled)), "{what}: {result:?}");
    }
    let names = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(['y', '.'])).collect();
    assert!(left.is_empty(), "{left:?}");
}
