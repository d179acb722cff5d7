//! Live indexes of processes that are killed, and on full disks.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use tagore::{Device, ElementType, LiveIndex, Metric, Search, Strategy};

use crate::live::{Random, created, vectors};

/// The variable with the folder of a process that changes a live index until it is killed.
const WRITER: &str = "TAGORE_TEST_LIVE_WRITER";

/// The ids after the first `changes` of a sequence, of which each is repeatable; `change` gets the
/// ids that come and those that go.
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
                index.insert(come, &vectors(&rows, ElementType::F32)).unwrap();
            }
            index.remove(gone).unwrap();
            writeln!(out, "done {number}").unwrap();
            if number % 3 == 0 {
                index.consolidate().unwrap();
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
        index.insert(&[0, 1, 2], &rows(0..3)).unwrap();
        let limit = |bytes| {
            let maximum = getrlimit(Resource::Fsize).maximum;
            setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
        };
        // The journal can take no more of such a change, or the graph's file is too large.
        let ids: Vec<u64> = (10..110).collect();
        limit(Some(1000));
        let error = index.insert(&ids, &rows(10..110)).unwrap_err().to_string();
        assert!(error.contains("journal: "), "{error}");
        assert!(!index.contains(10) && index.len() == 3);
        limit(None);
        index.insert(&ids, &rows(10..110)).unwrap();
        limit(Some(2000));
        assert!(index.consolidate().is_err());
        assert_eq!((index.len(), index.snapshot().recent()), (103, 103));
        limit(None);
        index.remove(&[1]).unwrap();
        assert!(index.consolidate().unwrap());
        limit(Some(2000));
        index.insert(&[1], &rows(1..2)).unwrap();
        assert!(index.consolidate().is_err());
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
