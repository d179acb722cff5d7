//! Builds out of core, compared with builds in memory.

mod costs;
mod errors;
mod forged;
mod lone;
mod quality;
mod resume;
mod shapes;
mod tasks;
mod work_files;

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore, OutOfCoreStats};
use tagore::{Builder, Progress, Update, Vectors};

fn plan(builder: &Builder, base: &Vectors, size: usize) -> ClusterPlan {
    let limits = Limits { cluster_size: Some(size), ..Limits::default() };
    ClusterPlan::new(builder, base, &limits).unwrap().unwrap()
}

fn build(builder: &Builder, base: &Vectors, plan: ClusterPlan, path: &Path) -> OutOfCoreStats {
    let stats = OutOfCore::new(builder.clone(), plan).build(base, path).unwrap();
    let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(
        !names.iter().any(|name| name.extension().is_some_and(|e| e == "work")),
        "work files left behind"
    );
    stats
}

/// A sealed record of this version (docs/formats.md).
fn sealed(kind: &str, content: &str) -> String {
    let (bytes, crc) = (content.len(), crc32fast::hash(content.as_bytes()));
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{{\"tagore\":\"{version}\",\"format\":4,\"kind\":\"{kind}\",\"bytes\":{bytes},\"crc\":{crc},\"content\":\n{content}}}\n"
    )
}

/// A progress handle that cancels the build after `clusters` clusters.
fn stops_at(clusters: u64) -> Progress {
    stops_when(move |update| (update.stage, update.done) == ("build", clusters))
}

/// A progress handle that cancels the build at the first matching update.
fn stops_when(is_it: impl Fn(&Update) -> bool + Send + Sync + 'static) -> Progress {
    let handle = Arc::new(OnceLock::<Progress>::new());
    let seen = Arc::clone(&handle);
    let progress = Progress::new(move |update| {
        if is_it(&update) {
            seen.get().unwrap().cancel();
        }
    });
    handle.set(progress.clone()).unwrap();
    progress
}
