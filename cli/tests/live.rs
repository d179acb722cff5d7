//! `tagore live`.

use std::fs;

use tagore::{Ids, Index};

use super::Session;
use super::update::{found_first, save};

/// The ids found for each row of a data set as a query, nearest first.
fn found(s: &Session, base: &str) -> Vec<Vec<u64>> {
    s.succeeds(&format!("live search rows --queries {base} -k 5 -o found.jsonl"));
    let text = fs::read_to_string(s.path("found.jsonl")).unwrap();
    let ids = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["ids"].clone();
    text.lines().map(|line| serde_json::from_value(ids(line)).unwrap()).collect()
}

#[test]
fn rows_come_and_go_between_commands() {
    let s = Session::new();
    let event = &s.succeeds("live insert rows base.fbin --kind nsg --device cpu")[0];
    assert_eq!((event["inserted"].as_u64(), event["index"].as_str()), (Some(500), Some("nsg")));
    assert!(found_first(&found(&s, "base.fbin"), 0..500) > 0.99);
    // Further rows take the next numbers.
    let event = &s.succeeds("live insert rows query.fbin --device cpu")[0];
    assert_eq!(["inserted", "replaced", "n"].map(|key| event[key].as_u64()), [20, 0, 520].map(Some));
    let rows = found(&s, "query.fbin");
    assert!(rows.iter().zip(500..).all(|(ids, id)| ids[0] == id), "{rows:?}");
    // Rows with ids that are there are replaced, others inserted.
    let ids: Vec<u64> = (510..520).chain(1 << 60..(1 << 60) + 10).collect();
    Ids::new(ids.clone()).unwrap().save(s.path("ids.npy")).unwrap();
    let event = &s.succeeds("live insert rows query.fbin --ids ids.npy --device cpu")[0];
    assert_eq!(["inserted", "replaced", "n"].map(|key| event[key].as_u64()), [10, 10, 530].map(Some));
    let rows = found(&s, "query.fbin");
    assert!(rows.iter().zip(&ids).all(|(found, id)| found[..2].contains(id)), "{rows:?}");

    fs::write(s.path("gone.txt"), format!("{}, 3\n17", 1u64 << 60)).unwrap();
    let event = &s.succeeds("live remove rows --ids gone.txt")[0];
    assert_eq!(["removed", "missing"].map(|key| event[key].as_u64()), [3, 0].map(Some));
    let output = s.run("live remove rows 3 499");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 of 2 ids have no row"), "{text}");
    assert!(found(&s, "base.fbin").iter().flatten().all(|id| ![3, 17, 499, 1 << 60].contains(id)));

    let status = || s.succeeds("live status rows").remove(0);
    let told = ["n", "dim", "next_id"].map(|key| status()[key].as_u64());
    assert_eq!(told, [526, 8, (1 << 60) + 10].map(Some));
    assert!(status()["recent"].as_u64() > Some(0));
    assert_eq!(s.succeeds("live consolidate rows --device cpu")[0]["changed"], true);
    assert_eq!((status()["recent"].as_u64(), status()["n"].as_u64()), (Some(0), Some(526)));
    assert_eq!(s.succeeds("live consolidate rows")[0]["changed"], false);
}

#[test]
fn results_have_ids_of_64_bits() {
    let s = Session::new();
    let ids = (0..500).map(|row| (1 << 40) + row).collect();
    Ids::new(ids).unwrap().save(s.path("ids.u64bin")).unwrap();
    s.succeeds("live insert rows base.fbin --ids ids.u64bin --index index.tagore");
    s.succeeds("live search rows --queries base.fbin -k 1 -o found.npy");
    // One column: NumPy's array of ids.
    let found = Ids::open(s.path("found.npy")).unwrap();
    let own = found.as_slice().iter().zip(1u64 << 40..).filter(|&(&found, id)| found == id).count();
    assert!(own > 495, "{own}");
    s.succeeds("live search rows --queries query.fbin -o found.csv");
    let text = fs::read_to_string(s.path("found.csv")).unwrap();
    assert!(text.lines().skip(1).all(|line| line.split(',').nth(2).unwrap().len() == 13), "{text}");
    let expected = ["--to: found bin for ids of 64 bits, expected csv, jsonl or npy"];
    s.fails(2, "live search rows --queries query.fbin -o found.bin", &expected);
    assert!(Index::open(s.path("index.tagore")).is_ok());
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let s = Session::new();
    s.fails(1, "live status rows", &["rows: found no index", "`tagore live insert FOLDER BASE` makes one"]);
    fs::write(s.path("two.txt"), "1 2").unwrap();
    s.fails(1, "live insert rows query.fbin --ids two.txt", &["two.txt: found 2 ids, expected 20"]);
    let twenty = |last: &str| {
        let ids: Vec<String> = (0..19).map(|id| id.to_string()).collect();
        fs::write(s.path("twenty.txt"), format!("{} {last}", ids.join(" "))).unwrap();
    };
    twenty("7");
    s.fails(1, "live insert rows query.fbin --ids twenty.txt", &["twenty.txt: found the id 7 twice"]);
    assert!(!s.path("rows").exists(), "a folder is left behind");
    twenty("-7");
    s.fails(1, "live insert rows query.fbin --ids twenty.txt", &["\"-7\" in line 1, expected ids, whole"]);
    twenty("19");
    s.succeeds("live insert rows query.fbin --ids twenty.txt --device cpu");
    save(&s, "other.fbin", [vec![1.0f32; 5]].into_iter());
    s.fails(1, "live insert rows other.fbin", &["8"]);
    let expected = ["--kind: found one for rows, which has an index, expected none: it is for a new folder"];
    s.fails(2, "live insert rows query.fbin --kind nsg", &expected);
    s.fails(2, "live insert rows query.fbin --degree 8", &["--degree: found one for rows"]);
    assert_eq!(s.succeeds("live status rows")[0]["n"], 20);
    fs::write(s.path("rows/more"), "x").unwrap();
    s.fails(1, "live insert base.fbin query.fbin", &["base.fbin"]);
}
