//! Live indexes: rows come, go and change, on disk and in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tagore::{
    Builder, Device, ElementType, IdSet, Ids, LiveIndex, Metric, Progress, Search, Snapshot, Strategy, Synth,
    Vectors, ground_truth,
};

pub(crate) const SILENT: fn() -> Progress = Progress::silent;

/// The rows that should be there, by id.
pub(crate) type Model = BTreeMap<u64, Vec<f32>>;

/// Repeatable random numbers.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

pub(crate) fn vectors(rows: &[Vec<f32>], element: ElementType) -> Vectors {
    let dim = rows[0].len();
    let all = rows.concat();
    match element {
        ElementType::F32 => Vectors::from_f32(all, dim),
        ElementType::F16 => Vectors::from_f16(all.iter().map(|&x| half::f16::from_f32(x)).collect(), dim),
        ElementType::Bf16 => Vectors::from_bf16(all.iter().map(|&x| half::bf16::from_f32(x)).collect(), dim),
        ElementType::U8 => Vectors::from_u8(all.iter().map(|&x| x as u8).collect(), dim),
        ElementType::I8 => Vectors::from_i8(all.iter().map(|&x| x as i8).collect(), dim),
        ElementType::B1 => unreachable!("not in these tests"),
    }
    .unwrap()
}

pub(crate) fn created(
    folder: &Path,
    strategy: Strategy,
    metric: Metric,
    dim: usize,
    element: ElementType,
) -> LiveIndex {
    let builder = Builder::new(strategy).metric(metric).device(Device::Cpu);
    let index = LiveIndex::create(folder, builder, dim, element).unwrap();
    index.set_synced(false);
    index
}

/// Compares searches with exact search of the model: only rows that are there, at their distances,
/// and nearly all of the nearest.
pub(crate) fn check(
    snapshot: &Snapshot,
    model: &Model,
    metric: Metric,
    element: ElementType,
    least: f64,
    seed: u64,
) {
    assert_eq!(snapshot.len(), model.len());
    let Some(first) = model.values().next() else {
        return;
    };
    let dim = first.len();
    let ids: Vec<u64> = model.keys().copied().collect();
    let base = vectors(&model.values().cloned().collect::<Vec<_>>(), element);
    let mut random = Random(seed);
    let rows: Vec<Vec<f32>> = (0..20)
        .map(|_| {
            let near = &model[&ids[random.below(ids.len() as u64) as usize]];
            near.iter().map(|x| (x + random.below(20) as f32).clamp(0.0, 127.0)).collect()
        })
        .collect();
    let queries = vectors(&rows, element);
    let k = 10;
    let found = snapshot.search(&queries, Search::new(k).beam(100), &SILENT()).unwrap();
    let truth = ground_truth(&base, &queries, metric, k.min(ids.len()), &SILENT()).unwrap();
    let mut hits = 0;
    for (query, asked) in rows.iter().enumerate() {
        let real = found.ids(query).iter().take_while(|&&id| id != u64::MAX).count();
        assert_eq!(real, k.min(ids.len()), "rows found");
        assert!(found.ids(query)[..real].iter().all(|id| model.contains_key(id)), "a removed row");
        let last = *truth.distances(query).unwrap().last().unwrap();
        hits += found.distances(query)[..real].iter().filter(|&&distance| distance <= last).count();
        // Distances are those of exact search.
        let each: Vec<f32> = found.ids(query)[..real]
            .iter()
            .map(|id| {
                let row = vectors(&[model[id].clone()], element);
                ground_truth(&row, &vectors(std::slice::from_ref(asked), element), metric, 1, &SILENT())
                    .unwrap()
                    .distances(0)
                    .unwrap()[0]
            })
            .collect();
        assert_eq!(each, found.distances(query)[..real], "distances");
        let one = queries.row_to_f32(query).unwrap().to_vec();
        let one = snapshot.search_one(&one, Search::new(k).beam(100)).unwrap();
        assert_eq!(one.iter().map(|near| near.id).collect::<Vec<_>>(), found.ids(query)[..real]);
        assert_eq!(one.iter().map(|near| near.distance).collect::<Vec<_>>(), found.distances(query)[..real]);
    }
    let recall = hits as f64 / (queries.len() * k.min(ids.len())) as f64;
    assert!(recall >= least, "recall {recall} of {} rows, {dim} {element} {metric}", ids.len());
}

pub(crate) fn random_rows(random: &mut Random, count: usize, dim: usize) -> Vec<Vec<f32>> {
    // Around one of eight points.
    (0..count)
        .map(|_| {
            let centre = random.below(8);
            (0..dim as u64).map(|at| ((centre * 13 + at * 7) % 64 + random.below(50)) as f32).collect()
        })
        .collect()
}

#[test]
fn random_changes_are_found_and_survive_reopening() {
    let cases = [
        (Strategy::cagra(), Metric::L2, ElementType::F32),
        (Strategy::nsg(), Metric::Cosine, ElementType::F32),
        (Strategy::vamana(), Metric::InnerProduct, ElementType::F32),
        (Strategy::nssg(), Metric::L2, ElementType::U8),
        (Strategy::dpg(), Metric::Cosine, ElementType::F16),
        (Strategy::nsg(), Metric::InnerProduct, ElementType::I8),
        (Strategy::vamana(), Metric::L2, ElementType::Bf16),
    ];
    for (case, (strategy, metric, element)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("live");
        let (dim, mut random, mut model) = (12, Random(case as u64), Model::new());
        let mut index = created(&path, strategy, metric, dim, element);
        let mut next = 0;
        for step in 0..24 {
            match random.below(6) {
                0..3 => {
                    // Also rows of ids that are there.
                    let count = random.below(150) as usize;
                    let rows = random_rows(&mut random, count, dim);
                    let mut ids: BTreeSet<u64> = (next..next + count as u64).collect();
                    next += count as u64;
                    for id in model.keys().copied().filter(|id| id % 17 == step) {
                        ids.pop_first();
                        ids.insert(id);
                    }
                    let ids: Vec<u64> = ids.into_iter().take(count).collect();
                    let rows = &rows[..ids.len()];
                    if !rows.is_empty() {
                        index.insert(&ids, &vectors(rows, element), &SILENT()).unwrap();
                    }
                    model.extend(ids.iter().copied().zip(rows.iter().cloned()));
                }
                3 => {
                    let share = 2 + random.below(9);
                    let gone: Vec<u64> =
                        model.keys().copied().filter(|id| id % share == step % share).collect();
                    assert_eq!(
                        index.remove(&[&gone[..], &[1 << 40]].concat(), &SILENT()).unwrap(),
                        gone.len()
                    );
                    gone.iter().for_each(|id| drop(model.remove(id)));
                }
                4 => {
                    index.consolidate(&SILENT()).unwrap();
                    assert!(!index.consolidate(&SILENT()).unwrap(), "nothing to do");
                }
                _ => {
                    drop(index);
                    index = LiveIndex::open(&path).unwrap();
                    index.set_device(Device::Cpu);
                    index.set_synced(false);
                }
            }
            check(&index.snapshot(), &model, metric, element, 0.93, step);
            assert!(model.keys().all(|&id| index.contains(id)) && !index.contains(1 << 40));
        }
        let before =
            (index.remove(&model.keys().copied().collect::<Vec<_>>(), &SILENT()).unwrap(), model.len());
        assert_eq!(before.0, before.1);
        index.consolidate(&SILENT()).unwrap();
        assert!(index.is_empty() && index.snapshot().rows() == 0);
        index.insert(&[5], &vectors(&random_rows(&mut random, 1, dim), element), &SILENT()).unwrap();
        index.consolidate(&SILENT()).unwrap();
        assert_eq!(index.len(), 1);
    }
}

#[test]
fn many_changes_go_into_the_graph_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live");
    let all = Synth::new(6000, 16, 3).unwrap().base();
    let rows: Vec<Vec<f32>> = (0..6000).map(|row| all.row_to_f32(row).unwrap().to_vec()).collect();
    let index = created(&path, Strategy::cagra(), Metric::L2, 16, ElementType::F32);
    let mut model = Model::new();
    // A window of 2,000 rows slides over them.
    for first in (0..6000).step_by(250) {
        let ids: Vec<u64> = (first as u64..first as u64 + 250).collect();
        index.insert(&ids, &vectors(&rows[first..first + 250], ElementType::F32), &SILENT()).unwrap();
        model.extend(ids.iter().copied().zip(rows[first..].iter().cloned()));
        if first >= 2000 {
            let gone: Vec<u64> = (first as u64 - 2000..first as u64 - 1750).collect();
            assert_eq!(index.remove(&gone, &SILENT()).unwrap(), 250);
            gone.iter().for_each(|id| drop(model.remove(id)));
        }
    }
    let snapshot = index.snapshot();
    assert!(snapshot.rows() < 2000 * 3 / 2 + 1024 + 500, "{} places for 2000 rows", snapshot.rows());
    let base = vectors(&model.values().cloned().collect::<Vec<_>>(), ElementType::F32);
    let queries = Synth::new(6000, 16, 3).unwrap().queries(100);
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &SILENT()).unwrap();
    let found = snapshot.search(&queries, Search::new(10), &SILENT()).unwrap();
    let first = *model.keys().next().unwrap();
    let hits: usize = (0..100)
        .map(|query| {
            let true_ids: Vec<u64> = truth.ids(query).iter().map(|&row| first + u64::from(row)).collect();
            found.ids(query).iter().filter(|id| true_ids.contains(id)).count()
        })
        .sum();
    assert!(hits >= 970, "{hits} of 1000");
    // One set of files stays, and what others have put there.
    drop(index);
    let others = [".nfs0001", "index-old.tagore", "rows-backup"];
    others.iter().for_each(|name| fs::write(path.join(name), name).unwrap());
    fs::write(path.join("rows-77"), "of a change that was not finished").unwrap();
    drop(LiveIndex::open(&path).unwrap());
    others.iter().for_each(|name| fs::remove_file(path.join(name)).unwrap());
    let mut names: Vec<String> =
        fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let kinds: Vec<&str> = names.iter().map(|name| name.split('-').next().unwrap()).collect();
    assert_eq!(kinds, ["ids", "index", "journal", "lock", "rows"]);
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(1);
    let index = created(&folder.path().join("live"), Strategy::nsg(), Metric::L2, 8, ElementType::F32);
    let rows = random_rows(&mut random, 600, 8);
    let ids: Vec<u64> = (0..600).collect();
    index.insert(&ids[..300], &vectors(&rows[..300], ElementType::F32), &SILENT()).unwrap();
    index.consolidate(&SILENT()).unwrap();
    index.insert(&ids[300..400], &vectors(&rows[300..400], ElementType::F32), &SILENT()).unwrap();
    let model: Model = ids[..400].iter().copied().zip(rows.iter().cloned()).collect();
    let before = index.snapshot();
    index.remove(&ids[100..350], &SILENT()).unwrap();
    index.insert(&ids[..1], &vectors(&rows[599..], ElementType::F32), &SILENT()).unwrap();
    index.consolidate(&SILENT()).unwrap();
    index.insert(&ids[400..], &vectors(&rows[400..], ElementType::F32), &SILENT()).unwrap();
    index.remove(&ids[400..], &SILENT()).unwrap();
    index.consolidate(&SILENT()).unwrap();
    check(&before, &model, Metric::L2, ElementType::F32, 0.97, 5);
    assert_eq!(index.len(), 150);
    drop(index);
    check(&before, &model, Metric::L2, ElementType::F32, 0.97, 6);
}

#[test]
fn filters_take_rows_of_the_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(2);
    let index = created(&folder.path().join("live"), Strategy::cagra(), Metric::L2, 8, ElementType::F32);
    let rows = random_rows(&mut random, 900, 8);
    let ids: Vec<u64> = (0..900).map(|row| row * 3).collect();
    index.insert(&ids[..700], &vectors(&rows[..700], ElementType::F32), &SILENT()).unwrap();
    index.consolidate(&SILENT()).unwrap();
    index.insert(&ids[700..], &vectors(&rows[700..], ElementType::F32), &SILENT()).unwrap();
    index.remove(&ids[690..720], &SILENT()).unwrap();
    let (snapshot, queries) = (index.snapshot(), vectors(&random_rows(&mut random, 10, 8), ElementType::F32));
    let passes = |row: u32| snapshot.id(row).is_some_and(|id| id % 2 == 0);
    let set =
        IdSet::from_ids(snapshot.rows(), (0..snapshot.rows() as u32).filter(|&row| passes(row))).unwrap();
    let search = Search::new(5).beam(200);
    let by_set = snapshot.search(&queries, search.among(&set), &SILENT()).unwrap();
    let by_predicate = snapshot.search(&queries, search.accept(&passes), &SILENT()).unwrap();
    assert_eq!(by_set.clone().into_parts(), by_predicate.into_parts());
    let kept: Vec<usize> =
        (0..900).filter(|row| ids[*row].is_multiple_of(2) && !(690..720).contains(row)).collect();
    let base = vectors(&kept.iter().map(|&row| rows[row].clone()).collect::<Vec<_>>(), ElementType::F32);
    let truth = ground_truth(&base, &queries, Metric::L2, 5, &SILENT()).unwrap();
    for query in 0..queries.len() {
        assert_eq!(by_set.distances(query), truth.distances(query).unwrap());
        assert!(by_set.ids(query).iter().all(|id| id % 2 == 0 && !(2070..2160).contains(id)));
    }
    let even: Vec<u64> = ids.iter().copied().filter(|id| id % 2 == 0).chain([5000]).collect();
    let live = snapshot.rows_of(&even);
    assert_eq!(live.len(), kept.len());
    let by_ids = snapshot.search(&queries, search.among(&live), &SILENT()).unwrap();
    assert_eq!(by_set.clone().into_parts(), by_ids.into_parts());
    let near = by_set.distances(0)[2];
    let within = snapshot.search(&queries, search.accept(&passes).radius(near), &SILENT()).unwrap();
    assert_eq!(within.ids(0)[3..], [u64::MAX; 2]);
    assert_eq!(within.distances(0)[..3], by_set.distances(0)[..3]);
    let none = snapshot.search(&queries, search.accept(&|_| false), &SILENT()).unwrap();
    assert_eq!(none.ids(3), [u64::MAX; 5]);
}

#[test]
fn searches_run_while_rows_change() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(3);
    let index = created(&folder.path().join("live"), Strategy::nsg(), Metric::L2, 8, ElementType::F32);
    let rows = random_rows(&mut random, 3000, 8);
    let ids: Vec<u64> = (0..3000).collect();
    // The first 500 stay, each with its own vector.
    index.insert(&ids[..500], &vectors(&rows[..500], ElementType::F32), &SILENT()).unwrap();
    index.consolidate(&SILENT()).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (index, rows, is_done) = (&index, &rows, &is_done);
            scope.spawn(move || {
                let mut row = reader;
                while !is_done.load(Ordering::Relaxed) {
                    row = (row + 7) % 500;
                    let found = index.snapshot().search_one(&rows[row], Search::new(3)).unwrap();
                    assert!(
                        found.iter().any(|near| rows[near.id as usize] == rows[row] && near.distance == 0.0)
                    );
                    assert!(found.windows(2).all(|two| two[0].distance <= two[1].distance));
                }
            });
        }
        for first in (500..3000).step_by(100) {
            index
                .insert(
                    &ids[first..first + 100],
                    &vectors(&rows[first..first + 100], ElementType::F32),
                    &SILENT(),
                )
                .unwrap();
            index.remove(&ids[first..first + 50], &SILENT()).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(index.len(), 500 + 2500 / 2);
}

#[test]
fn a_finished_index_becomes_a_live_one() {
    let folder = tempfile::tempdir().unwrap();
    let base = Synth::new(1500, 16, 2).unwrap().base();
    let left_out = IdSet::from_ids(1500, (0..100).map(|row| row * 3)).unwrap();
    let builder = Builder::new(Strategy::nssg()).device(Device::Cpu).among(left_out.complement());
    let built = builder.build(&base).unwrap();
    let ids = Ids::new((0..1500).map(|row| 9_000_000_000 + row).collect()).unwrap();
    let index = LiveIndex::create_from(folder.path().join("live"), &built, &base, &ids).unwrap();
    assert_eq!(
        (index.len(), index.contains(9_000_000_003), index.contains(9_000_000_004)),
        (1400, false, true)
    );
    // The row comes back under its id.
    let row = base.row_to_f32(3).unwrap().to_vec();
    index.insert(&[9_000_000_003], &Vectors::from_f32(row.clone(), 16).unwrap(), &SILENT()).unwrap();
    index.remove(&[9_000_000_004], &SILENT()).unwrap();
    index.consolidate(&SILENT()).unwrap();
    drop(index);
    let index = LiveIndex::open(folder.path().join("live")).unwrap();
    let found = index.snapshot().search_one(&row, Search::new(1)).unwrap();
    assert_eq!((index.len(), found[0].id, found[0].distance), (1400, 9_000_000_003, 0.0));
}

#[test]
fn wrong_use_is_one_line_that_says_what_fits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live");
    let rows = |count: usize, dim: usize| Vectors::from_f32(vec![1.0; count * dim], dim).unwrap();
    let index = created(&path, Strategy::nsg(), Metric::L2, 4, ElementType::F32);
    let text = |result: tagore::Result<()>| result.unwrap_err().to_string();
    let shown = path.display();
    assert_eq!(
        text(LiveIndex::open(&path).map(drop)),
        format!(
            "{shown}: found an open live index, expected a live index that no one has open: close it there first"
        )
    );
    assert_eq!(
        text(LiveIndex::create(&path, Builder::new(Strategy::nsg()), 4, ElementType::F32).map(drop)),
        format!("{shown}: found a folder with files, expected an empty folder, or a new name")
    );
    let expected = "the folder of a live index: create one, or correct the path";
    for (name, found) in [("none", "no such folder"), ("", "a folder without a journal")] {
        let path = folder.path().join(name);
        let error = format!("{}: found {found}, expected {expected}", path.display());
        assert_eq!(text(LiveIndex::open(&path).map(drop)), error);
    }
    assert_eq!(text(index.insert(&[1], &rows(2, 4), &SILENT())), "ids: found 1 ids, expected 2, one per row");
    assert_eq!(
        text(index.insert(&[1, 1], &rows(2, 4), &SILENT())),
        "ids: found 1 twice, expected each id once"
    );
    assert_eq!(
        text(index.insert(&[u64::MAX], &rows(1, 4), &SILENT())),
        "ids: found 18446744073709551615, expected below 18446744073709551615"
    );
    assert_eq!(
        text(index.insert(&[1], &rows(1, 5), &SILENT())),
        "vectors: found rows of 5 f32, expected 4 f32 as in the index"
    );
    let nan = Vectors::from_f32(vec![1.0, 2.0, f32::NAN, 4.0], 4).unwrap();
    assert!(text(index.insert(&[1], &nan, &SILENT())).contains("row 0"));
    assert!(index.is_empty() && !index.contains(1));
    index.insert(&[1, 2], &rows(2, 4), &SILENT()).unwrap();
    let snapshot = index.snapshot();
    let search =
        |queries: &Vectors, search: Search<'_>| text(snapshot.search(queries, search, &SILENT()).map(drop));
    assert_eq!(search(&rows(1, 4), Search::new(0)), "k: found 0, expected at least 1");
    assert_eq!(search(&rows(1, 3), Search::new(1)), "vectors: found dimension 3, expected 4 as in the index");
    let set = IdSet::new(3);
    assert_eq!(
        search(&rows(1, 4), Search::new(1).among(&set)),
        "filter: found a set of 3 rows, expected 2 as the snapshot has"
    );
    // More than there are.
    let found = snapshot.search_one(&[1.0; 4], Search::new(5)).unwrap();
    assert_eq!(found.iter().map(|near| near.id).collect::<Vec<_>>(), [1, 2]);
    drop(index);
    fs::write(path.join("journal"), "something else, which is longer").unwrap();
    assert_eq!(
        text(LiveIndex::open(&path).map(drop)),
        format!("{shown}/journal: found another file, expected the journal of a live index, version 1")
    );
}

#[test]
fn the_bytes_of_a_journal_are_those_of_the_golden_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, golden) = (folder.path().join("live"), Path::new("tests/golden/live.journal"));
    let index = created(&path, Strategy::vamana(), Metric::Cosine, 4, ElementType::F16);
    let rows = |rows: &[[f32; 4]]| {
        let rows: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
        vectors(&rows, ElementType::F16)
    };
    index.insert(&[7, 1 << 40], &rows(&[[1.0, 2.0, 3.0, 4.0], [0.0, -1.0, 0.5, 2.0]]), &SILENT()).unwrap();
    index.remove(&[7, 8], &SILENT()).unwrap();
    index.insert(&[1 << 40], &rows(&[[4.0, 3.0, 2.0, 1.0]]), &SILENT()).unwrap();
    drop(index);
    if std::env::var_os("TAGORE_BLESS").is_some() {
        fs::copy(path.join("journal"), golden).unwrap();
    }
    assert!(fs::read(path.join("journal")).unwrap() == fs::read(golden).unwrap(), "other bytes");

    // A folder of that journal alone, and one that a killed process has begun.
    let begun = folder.path().join("begun");
    fs::create_dir(&begun).unwrap();
    fs::write(begun.join("lock"), "").unwrap();
    fs::write(begun.join(".journal.tagore-tmp"), "TAGORE").unwrap();
    drop(created(&begun, Strategy::nsg(), Metric::L2, 4, ElementType::F32));
    assert!(LiveIndex::open(&begun).unwrap().is_empty());
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::copy(golden, copy.join("journal")).unwrap();
    let index = LiveIndex::open(&copy).unwrap();
    let found = index.snapshot().search_one(&[4.0, 3.0, 2.0, 1.0], Search::new(5)).unwrap();
    assert_eq!((found.len(), found[0].id, index.kind().as_str()), (1, 1 << 40, "vamana"));
    assert!(found[0].distance.abs() < 1e-6);
}
