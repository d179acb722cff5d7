//! Live indexes change while their graphs are made, and are searched on any device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tagore::{Device, ElementType, IdSet, LiveIndex, Metric, Progress, Search, Strategy};

use crate::gpu::devices;
use crate::live::{Model, Random, SILENT, check, created, random_rows, vectors};

const DIM: usize = 8;

fn insert(index: &LiveIndex, ids: &[u64], rows: &[Vec<f32>]) {
    index.insert(ids, &vectors(rows, ElementType::F32), &SILENT()).unwrap();
}

fn checked(index: &LiveIndex, model: &Model) {
    check(&index.snapshot(), model, Metric::L2, ElementType::F32, 0.97, 3);
    assert!((0..1500).all(|id| index.contains(id) == model.contains_key(&id)));
}

/// Rows come, go and change from within a consolidation: of a graph that is made anew, and of one
/// that is brought up to date; and after one of an index that was empty.
#[test]
fn changes_go_on_while_the_graph_is_made() {
    for before in ["recent", "graph and recent", "none that is left"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("live");
        let mut random = Random(4);
        let index = Arc::new(created(&path, Strategy::nsg(), Metric::L2, DIM, ElementType::F32));
        index.set_automatic(false);
        let rows = Arc::new(random_rows(&mut random, 1500, DIM));
        let ids: Vec<u64> = (0..1500).collect();
        insert(&index, &ids[..600], &rows[..600]);
        if before == "graph and recent" {
            index.consolidate(&SILENT()).unwrap();
        }
        insert(&index, &ids[600..800], &rows[600..800]);
        index.remove(&ids[590..610], &SILENT()).unwrap();
        if before == "none that is left" {
            index.remove(&ids, &SILENT()).unwrap();
        }
        let mut model: Model = ids[..800].iter().copied().zip(rows.iter().cloned()).collect();
        model.retain(|id, _| before != "none that is left" && !(590..610).contains(id));

        let meanwhile = {
            let (rows, ids) = (Arc::clone(&rows), ids.clone());
            move |index: &LiveIndex| {
                insert(index, &ids[800..900], &rows[800..900]);
                // Rows of the graph, recent ones and new ones get other vectors, go, or go and come
                // back. One that was gone comes back.
                insert(index, &[3, 650, 801, 600], &rows[900..904]);
                index.remove(&[10, 11, 700, 850, 21, 701], &SILENT()).unwrap();
                insert(index, &[21], &rows[904..905]);
            }
        };
        let changes = [(800..900, 800), (3..4, 900), (650..651, 901), (801..802, 902), (600..601, 903)];
        for (ids, first) in changes {
            model.extend(ids.zip(rows[first..].iter().cloned()));
        }
        [10, 11, 700, 850, 701].iter().for_each(|id| drop(model.remove(id)));
        model.insert(21, rows[904].clone());
        let recent = 100 - 1 + 4 - 1 + 1;

        if before == "none that is left" {
            // Nothing reports there: the changes come after.
            assert!(index.consolidate(&SILENT()).unwrap());
            meanwhile(&index);
        } else {
            let (of_sink, has_run) = (Arc::clone(&index), Arc::new(AtomicBool::new(false)));
            let ran = Arc::clone(&has_run);
            let progress = Progress::new(move |_| {
                if !ran.swap(true, Ordering::Relaxed) {
                    meanwhile(&of_sink);
                }
            });
            assert!(index.consolidate(&progress).unwrap());
            assert!(has_run.load(Ordering::Relaxed), "no change came meanwhile");
        }
        assert_eq!(index.snapshot().recent(), recent, "{before}");
        checked(&index, &model);
        drop(Arc::try_unwrap(index).unwrap());
        let index = LiveIndex::open(&path).unwrap();
        index.set_device(Device::Cpu);
        assert_eq!(index.snapshot().recent(), recent, "{before}");
        checked(&index, &model);
        assert!(index.consolidate(&SILENT()).unwrap());
        assert_eq!(index.snapshot().recent(), 0);
        checked(&index, &model);
    }
}

#[test]
fn a_thread_makes_graphs_while_others_change_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live");
    let mut random = Random(5);
    let index = created(&path, Strategy::cagra(), Metric::L2, DIM, ElementType::F32);
    index.set_automatic(false);
    let rows = random_rows(&mut random, 1500, DIM);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                index.consolidate(&SILENT()).unwrap();
            }
        });
        let changes = [0, 1].map(|half| {
            let (index, rows) = (&index, &rows);
            scope.spawn(move || {
                let mut model = BTreeMap::new();
                for first in (0..700).step_by(20) {
                    let ids: Vec<u64> = (first..first + 20).map(|id| 2 * id + half).collect();
                    let new = &rows[first as usize..][..20];
                    insert(index, &ids, new);
                    model.extend(ids.iter().copied().zip(new.iter().cloned()));
                    // An earlier row changes, and one goes.
                    let (changed, gone) = (2 * (first / 2) + half, 2 * (first / 3) + half);
                    insert(index, &[changed], &rows[1400..1401]);
                    model.insert(changed, rows[1400].clone());
                    assert_eq!(
                        index.remove(&[gone], &SILENT()).unwrap(),
                        usize::from(model.remove(&gone).is_some())
                    );
                }
                model
            })
        });
        let model: Model = changes.into_iter().flat_map(|change| change.join().unwrap()).collect();
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(index.len(), model.len());
        checked(&index, &model);
    });
    let rows_of = |index: &LiveIndex| (0..1500).filter(|&id| index.contains(id)).collect::<Vec<_>>();
    let (before, recent) = (rows_of(&index), index.snapshot().recent());
    drop(index);
    let index = LiveIndex::open(&path).unwrap();
    assert_eq!((rows_of(&index), index.snapshot().recent()), (before, recent));
}

#[test]
fn devices_give_the_answers_of_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(6);
    let index = created(&folder.path().join("live"), Strategy::cagra(), Metric::L2, DIM, ElementType::F32);
    let (rows, ids) = (random_rows(&mut random, 700, DIM), (0..700).collect::<Vec<u64>>());
    insert(&index, &ids[..400], &rows[..400]);
    let queries = vectors(&random_rows(&mut random, 3, DIM), ElementType::F32);
    for device in devices() {
        // Before there is a graph, too.
        index.set_search_device(device).unwrap();
        for step in 0..3 {
            if step == 1 {
                index.consolidate(&SILENT()).unwrap();
                insert(&index, &ids[400..600], &rows[400..600]);
                index.remove(&ids[100..130], &SILENT()).unwrap();
            }
            let there = index.snapshot();
            index.set_search_device(Device::Cpu).unwrap();
            let here = index.snapshot();
            index.set_search_device(device).unwrap();
            let even = IdSet::from_ids(here.rows(), (0..here.rows() as u32).step_by(2)).unwrap();
            let searches = [Search::new(5).beam(40), Search::new(9).beam(30).among(&even)];
            for search in searches {
                let [found, expected] =
                    [&there, &here].map(|s| s.search(&queries, search, &SILENT()).unwrap());
                assert_eq!(found.into_parts(), expected.into_parts(), "{device}, step {step}");
                let one = queries.row_to_f32(1).unwrap();
                let [found, expected] = [&there, &here].map(|s| s.search_one(&one, search).unwrap());
                assert_eq!(found, expected, "{device}, step {step}");
            }
        }
        index.insert(&ids[100..130], &vectors(&rows[100..130], ElementType::F32), &SILENT()).unwrap();
        index.remove(&ids[400..], &SILENT()).unwrap();
    }
    let missing = index.set_search_device(Device::Cuda(99)).unwrap_err().to_string();
    assert!(missing.starts_with("cuda:99: "), "{missing}");
    checked(&index, &ids[..400].iter().copied().zip(rows).collect());
}
