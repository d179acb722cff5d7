//! Live indexes of processes that are killed, on full disks, and of damaged files.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tagore::{Device, ElementType, LiveIndex, Metric, Search, Strategy};

use crate::live::{Random, SILENT, created, random_rows, vectors};

/// A folder with a graph and three batches since, and the ids after each batch.
fn with_batches(path: &Path) -> Vec<Vec<u64>> {
    let mut random = Random(4);
    let index = created(path, Strategy::nsg(), Metric::L2, 4, ElementType::F32);
    let ids: Vec<u64> = (0..60).collect();
    index
        .insert(&ids[..40], &vectors(&random_rows(&mut random, 40, 4), ElementType::F32), &SILENT())
        .unwrap();
    index.consolidate(&SILENT()).unwrap();
    let mut states = vec![ids[..40].to_vec()];
    index
        .insert(&ids[40..50], &vectors(&random_rows(&mut random, 10, 4), ElementType::F32), &SILENT())
        .unwrap();
    states.push(ids[..50].to_vec());
    index.remove(&ids[..20], &SILENT()).unwrap();
    states.push(ids[20..50].to_vec());
    index
        .insert(&ids[50..], &vectors(&random_rows(&mut random, 10, 4), ElementType::F32), &SILENT())
        .unwrap();
    states.push(ids[20..].to_vec());
    states
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_journal_cut_anywhere_opens_at_its_last_whole_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live");
    let states = with_batches(&path);
    let journal = fs::read(path.join("journal")).unwrap();
    let mut seen = BTreeSet::new();
    for cut in 0..=journal.len() {
        let copy = folder.path().join(format!("cut-{cut}"));
        copied(&path, &copy);
        fs::write(copy.join("journal"), &journal[..cut]).unwrap();
        match LiveIndex::open(&copy) {
            Ok(index) => {
                let held: Vec<u64> = (0..100).filter(|&id| index.contains(id)).collect();
                let state = states.iter().position(|ids| *ids == held);
                seen.insert(state.unwrap_or_else(|| panic!("cut at {cut}: {held:?}")));
                // What was cut off does not come back.
                index.insert(&[70], &vectors(&[vec![1.0; 4]], ElementType::F32), &SILENT()).unwrap();
                drop(index);
                assert_eq!(LiveIndex::open(&copy).unwrap().len(), held.len() + 1);
            }
            Err(error) => {
                assert!(cut < 500 && error.to_string().contains("journal"), "cut at {cut}: {error}")
            }
        }
        fs::remove_dir_all(copy).unwrap();
    }
    assert_eq!(seen, (0..4).collect());
}

#[test]
fn damage_is_an_error_or_leaves_whole_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live");
    let states = with_batches(&path);
    let mut random = Random(9);
    let (mut errors, mut opened) = (0, 0);
    let names = ["journal", "journal", "journal", "rows-1", "ids-1", "index-0.tagore"];
    for round in 0..1000 {
        let copy = folder.path().join(format!("round-{round}"));
        copied(&path, &copy);
        let name = copy.join(names[round % names.len()]);
        let mut bytes = fs::read(&name).unwrap();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        fs::write(&name, bytes).unwrap();
        match LiveIndex::open(&copy) {
            Ok(index) => {
                let held: Vec<u64> = (0..100).filter(|&id| index.contains(id)).collect();
                // Damage of the last change looks like one that was not finished.
                assert!(states[2..].contains(&held), "round {round}: {held:?}");
                opened += 1;
            }
            Err(error) => {
                assert!(!error.to_string().contains('\n'));
                errors += 1;
            }
        }
        fs::remove_dir_all(copy).unwrap();
    }
    assert!(errors > 700 && opened > 20, "{errors} errors, {opened} opened");
}

/// The variable with the folder of a process that changes a live index until it is killed.
const WRITER: &str = "TAGORE_TEST_LIVE_WRITER";

/// The ids after the first `changes` changes of a sequence that is always the same. `change` gets
/// the number of each, the ids it inserts and those it removes.
fn sequence(changes: usize, mut change: impl FnMut(usize, &[u64], &[u64])) -> BTreeSet<u64> {
    let (mut random, mut ids, mut next) = (Random(77), BTreeSet::new(), 0);
    for number in 1..=changes {
        let count = 1 + random.below(60);
        let (mut come, mut gone) = (Vec::new(), Vec::new());
        if random.below(3) > 0 {
            come.extend(next..next + count);
            next += count;
        } else {
            let share = 2 + random.below(5);
            gone.extend(ids.iter().copied().filter(|id| id % share == 0));
        }
        change(number, &come, &gone);
        ids.extend(&come);
        ids.retain(|id| !gone.contains(id));
    }
    ids
}

/// The vector of an id.
fn row_of(id: u64) -> Vec<f32> {
    (0..4).map(|at| (id * 7919 % 1009 + at) as f32).collect()
}

#[test]
fn a_killed_writer_loses_nothing_acknowledged() {
    if let Some(folder) = std::env::var_os(WRITER) {
        let mut out = std::io::stdout();
        let index = LiveIndex::open(folder).unwrap();
        index.set_device(Device::Cpu);
        sequence(10_000, |number, come, gone| {
            if !come.is_empty() {
                let rows: Vec<Vec<f32>> = come.iter().map(|&id| row_of(id)).collect();
                index.insert(come, &vectors(&rows, ElementType::F32), &SILENT()).unwrap();
            }
            index.remove(gone, &SILENT()).unwrap();
            writeln!(out, "done {number}").unwrap();
            if number % 3 == 0 {
                index.consolidate(&SILENT()).unwrap();
            }
        });
        return;
    }
    let kills: u64 = std::env::var("TAGORE_TEST_KILLS").map_or(40, |kills| kills.parse().unwrap());
    let (folder, mut random, mut most) = (tempfile::tempdir().unwrap(), Random(5), 0);
    for kill in 0..kills {
        let path = folder.path().join(format!("live-{kill}"));
        drop(created(&path, Strategy::nsg(), Metric::L2, 4, ElementType::F32));
        let name = "live_crashes::a_killed_writer_loses_nothing_acknowledged";
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(WRITER, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap());
        let stop = std::thread::spawn(move || {
            let numbers = lines.lines().map_while(Result::ok);
            numbers.filter_map(|line| line.rsplit_once("done ")?.1.parse().ok()).last().unwrap_or(0)
        });
        std::thread::sleep(Duration::from_micros(3000 + random.below(40_000) * (1 + kill % 4)));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let acknowledged: usize = stop.join().unwrap();
        most = most.max(acknowledged);
        let index = LiveIndex::open(&path).unwrap();
        let held: BTreeSet<u64> = (0..100_000).filter(|&id| index.contains(id)).collect();
        // The change that was going on may have become durable.
        let states = [acknowledged, acknowledged + 1].map(|changes| sequence(changes, |_, _, _| ()));
        assert!(states.contains(&held), "kill {kill} after change {acknowledged}");
        assert_eq!(index.len(), held.len());
        for &id in held.iter().take(5) {
            let found = index.snapshot().search_one(&row_of(id), Search::new(1)).unwrap();
            assert_eq!(found[0].distance, 0.0);
        }
        drop(index);
        fs::remove_dir_all(path).unwrap();
    }
    assert!(most > 5, "killed before there was anything to lose");
    println!("{kills} kills, after up to {most} changes");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_index_as_it_was() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    if let Some(folder) = std::env::var_os(WRITER) {
        // SAFETY: no handler runs. Writes past the limit fail, as on a full disk.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let index = LiveIndex::open(folder).unwrap();
        index.set_device(Device::Cpu);
        let rows = |ids: std::ops::Range<u64>| {
            let rows: Vec<Vec<f32>> = ids.map(row_of).collect();
            vectors(&rows, ElementType::F32)
        };
        index.insert(&[0, 1, 2], &rows(0..3), &SILENT()).unwrap();
        let limit = |bytes| {
            let maximum = getrlimit(Resource::Fsize).maximum;
            setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
        };
        // The journal can take no more of such a change, or the graph's file is too large.
        let ids: Vec<u64> = (10..110).collect();
        limit(Some(1000));
        let error = index.insert(&ids, &rows(10..110), &SILENT()).unwrap_err().to_string();
        assert!(error.contains("journal: "), "{error}");
        assert!(!index.contains(10) && index.len() == 3);
        limit(None);
        index.insert(&ids, &rows(10..110), &SILENT()).unwrap();
        limit(Some(2000));
        assert!(index.consolidate(&SILENT()).is_err());
        assert_eq!((index.len(), index.snapshot().recent()), (103, 103));
        limit(None);
        index.remove(&[1], &SILENT()).unwrap();
        assert!(index.consolidate(&SILENT()).unwrap());
        limit(Some(2000));
        index.insert(&[1], &rows(1..2), &SILENT()).unwrap();
        assert!(index.consolidate(&SILENT()).is_err());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live");
    drop(created(&path, Strategy::nsg(), Metric::L2, 4, ElementType::F32));
    let mut writer = Command::new(std::env::current_exe().unwrap());
    let writer =
        writer.args(["live_crashes::a_full_disk_leaves_the_index_as_it_was", "--exact"]).env(WRITER, &path);
    let output = writer.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let index = LiveIndex::open(&path).unwrap();
    assert_eq!((index.len(), index.contains(1)), (103, true));
    let found = index.snapshot().search_one(&row_of(1), Search::new(1)).unwrap();
    assert_eq!((found[0].id, found[0].distance), (1, 0.0));
}
