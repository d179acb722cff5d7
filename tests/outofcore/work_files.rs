//! Work files with wrong content, of another base, of killed builds, and planted links.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tagore::outofcore::{ClusterPlan, OutOfCore, OutOfCoreStats};
use tagore::{Builder, Device, Error, Fingerprint, Strategy, Synth, Vectors};

use super::{plan, sealed, stops_at, stops_when};

const ROWS: usize = 1500;

/// A build stopped after some clusters, and the bytes of its index without the stop.
struct Stopped {
    builder: Builder,
    base: Vectors,
    plan: ClusterPlan,
    folder: tempfile::TempDir,
    expected: Vec<u8>,
}

impl Stopped {
    fn new() -> Self {
        let base = Synth::new(ROWS, 12, 1).unwrap().base();
        let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
        let mut plan = plan(&builder, &base, 300);
        plan.cache = 2;
        let folder = tempfile::tempdir().unwrap();
        OutOfCore::new(builder.clone(), plan).build(&base, &folder.path().join("index")).unwrap();
        let expected = fs::read(folder.path().join("index")).unwrap();
        let stopped = Self { builder, base, plan, folder, expected };
        stopped.stop();
        stopped
    }

    fn index(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    fn work(&self, name: &str) -> PathBuf {
        self.folder.path().join("index.work").join(name)
    }

    /// Builds and stops after eight clusters.
    fn stop(&self) {
        let _ = fs::remove_file(self.index());
        let build = OutOfCore::new(self.builder.clone().progress(stops_at(8)), self.plan);
        let error = build.checkpoint(Duration::ZERO).build(&self.base, &self.index()).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }

    fn run(&self, base: &Vectors, resume: bool) -> Result<OutOfCoreStats, Error> {
        OutOfCore::new(self.builder.clone(), self.plan).resume(resume).build(base, &self.index())
    }

    /// Builds to the end, and checks the bytes of the index.
    fn ends(&self, resume: bool) -> OutOfCoreStats {
        let stats = self.run(&self.base, resume).unwrap_or_else(|error| panic!("{error}"));
        assert!(fs::read(self.index()).unwrap() == self.expected);
        assert!(!self.work("").exists());
        stats
    }

    /// Changes the content of a state and its checksum.
    fn forge(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut record: Value = serde_json::from_slice(&fs::read(self.work(name)).unwrap()).unwrap();
        change(&mut record["content"]);
        fs::write(self.work(name), sealed(name, &record["content"].to_string())).unwrap();
    }

    /// Changes the content of a piece of a log and its checksum.
    fn forge_piece(&self, log: &str, piece: &mut Value, change: impl FnOnce(&mut [u8])) {
        let mut content = fs::read(self.work(log)).unwrap();
        let [offset, bytes] = ["offset", "bytes"].map(|key| piece[key].as_u64().unwrap() as usize);
        let part = &mut content[offset..offset + bytes];
        change(part);
        piece["crc"] = crc32fast::hash(part).into();
        fs::write(self.work(log), content).unwrap();
    }
}

#[test]
fn a_cluster_is_built_again_after_all_pairs_are_merged() {
    let stopped = Stopped::new();
    let members = fs::read(stopped.work("clusters")).unwrap();
    let last = stops_when(|update| update.stage == "build" && update.done > 0 && update.done == update.total);
    let build = OutOfCore::new(stopped.builder.clone().progress(last), stopped.plan).resume(true);
    build.build(&stopped.base, &stopped.index()).unwrap_err();
    // A checkpoint may come between the last merge of a cluster and its entry point. The members
    // are still there then.
    fs::write(stopped.work("clusters"), members).unwrap();
    stopped.forge("checkpoint", |state| state["entries"][1] = Value::Null);
    let stats = stopped.ends(true);
    assert_eq!((stats.built, stats.repaired), (1, Vec::new()));
}

#[test]
fn wrong_numbers_with_right_checksums_are_found() {
    let stopped = Stopped::new();
    let huge = |value: &mut Value| *value = (1u64 << 60).into();
    // Huge sizes, places outside of a file, unknown clusters.
    let tables: [fn(&mut Value); 4] = [
        |table| table["members"][1][0]["offset"] = u64::MAX.into(),
        |table| table["shared"][0][1] = 4_000_000_000u32.into(),
        |table| table["mean"] = Value::Array(Vec::new()),
        |table| table["checksums"] = Value::Array(Vec::new()),
    ];
    for (number, table) in tables.into_iter().enumerate() {
        stopped.forge("table", table);
        if number == 0 {
            stopped.forge("table", |table| huge(&mut table["members"][0][0]["bytes"]));
        }
        stopped.ends(true);
        stopped.stop();
    }
    let waiting = |checkpoint: &Value| -> usize {
        let lists = checkpoint["waiting"].as_array().unwrap();
        lists.iter().position(|list| !list[1].is_null()).unwrap()
    };
    stopped.forge("checkpoint", |state| {
        let place = waiting(state);
        huge(&mut state["waiting"][place][1]["bytes"]);
    });
    stopped.ends(true);
    // Lists with unknown neighbours.
    stopped.stop();
    stopped.forge("checkpoint", |state| {
        let place = waiting(state);
        stopped.forge_piece("lists", &mut state["waiting"][place][1], |content| content.fill(0x11));
    });
    assert_eq!(stopped.ends(true).repaired, ["lists"]);
    // Rows of unknown nodes, two rows of a node, and rows with unknown neighbours.
    let rows: [fn(&mut [u8]); 3] = [
        |content| content[..4].fill(0xfe),
        |content| content.copy_within(..132, 132),
        |content| content[4..8].fill(0x11),
    ];
    for change in rows {
        stopped.stop();
        stopped.forge("checkpoint", |state| {
            let bins = state["rows"].as_array_mut().unwrap();
            let mut pieces = bins.iter_mut().flat_map(|bin| bin.as_array_mut().unwrap());
            let piece = pieces.find(|piece| piece["bytes"].as_u64() >= Some(2 * 132)).unwrap();
            stopped.forge_piece("rows", piece, change);
        });
        assert_eq!(stopped.ends(true).repaired, ["rows"]);
    }
    // Unknown members, and members of unknown clusters.
    for at in [0, 4] {
        stopped.stop();
        stopped.forge("table", |table| {
            for members in table["members"].as_array_mut().unwrap() {
                stopped.forge_piece("clusters", &mut members[0], |content| content[at..at + 4].fill(0x7f));
            }
        });
        assert_eq!(stopped.ends(true).repaired, ["clusters"]);
    }
}

#[test]
fn a_changed_base_is_not_resumed() {
    let stopped = Stopped::new();
    let changed = |row: usize| {
        let mut values = stopped.base.to_f32().unwrap();
        values[12 * row] += 1.0;
        Vectors::from_f32(values, 12).unwrap()
    };
    // A row outside the fingerprint of 1,024 rows.
    let fingerprint = |base: &Vectors| Fingerprint::compute(base).unwrap();
    let same = |changed: &Vectors| fingerprint(changed) == fingerprint(&stopped.base);
    let changed = (0..ROWS).map(changed).find(same).unwrap();
    let check = || {
        let error = stopped.run(&changed, true).unwrap_err().to_string();
        assert!(error.starts_with("vectors: found other values"), "{error}");
        assert!(error.ends_with("index.work; delete them to build anew"), "{error}");
        error
    };
    assert!(check().contains(&format!("in rows 0 to {}", ROWS - 1)));
    // Also without the table and its checksums.
    fs::remove_file(stopped.work("table")).unwrap();
    check();
    stopped.ends(true);
}

#[test]
fn leftovers_of_kills_are_removed() {
    let stopped = Stopped::new();
    for (resume, removed) in
        [(false, &["lists", "table"][..]), (true, &[]), (true, &["clusters", "checkpoint"])]
    {
        fs::rename(stopped.work("manifest.json"), stopped.work("done")).unwrap();
        removed.iter().for_each(|name| fs::remove_file(stopped.work(name)).unwrap());
        stopped.ends(resume);
        stopped.stop();
    }
    // A kill before the table is written, or while a state is written.
    for lost in [&["table", "lists", "rows", "checkpoint"][..], &["checkpoint"], &["table"], &[]] {
        lost.iter().for_each(|name| fs::remove_file(stopped.work(name)).unwrap());
        fs::write(stopped.work(".table.tagore-tmp"), "half").unwrap();
        let error = stopped.run(&stopped.base, false).unwrap_err().to_string();
        assert!(error.contains("found an unfinished build"), "{error}");
        stopped.ends(true);
        stopped.stop();
    }
}

#[cfg(unix)]
#[test]
fn planted_links_are_not_followed() {
    let stopped = Stopped::new();
    let secret = stopped.folder.path().join("secret");
    for name in ["lists", "rows", "clusters", "checkpoint", "table", "manifest.json", "lock"] {
        fs::write(&secret, "kept").unwrap();
        let saved = fs::read(stopped.work(name)).unwrap();
        fs::remove_file(stopped.work(name)).unwrap();
        std::os::unix::fs::symlink(&secret, stopped.work(name)).unwrap();
        let error = stopped.run(&stopped.base, true).unwrap_err().to_string();
        assert!(
            error.ends_with("found a link, expected a regular file; delete the folder to build anew"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&secret).unwrap(), "kept", "{name}");
        fs::remove_file(stopped.work(name)).unwrap();
        fs::write(stopped.work(name), saved).unwrap();
    }
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(stopped.work("")).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    stopped.ends(true);
}
