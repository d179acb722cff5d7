//! `tagore update`.

use std::fs;

use tagore::{Index, Synth, Vectors};

use super::Session;

/// Rows of the base of a [`Session`], and of longer.fbin.
const ROWS: usize = 500;
const LONGER: usize = 600;

/// Adds longer.fbin: the rows of base.fbin, then others.
fn session() -> Session {
    let s = Session::new();
    let base = Vectors::open(s.path("base.fbin")).unwrap();
    let more = Synth::new(LONGER - ROWS, 8, 7).unwrap().base();
    save(&s, "longer.fbin", (0..ROWS).map(|row| row_of(&base, row)).chain(rows_of(&more)));
    s
}

pub(crate) fn row_of(vectors: &Vectors, row: usize) -> Vec<f32> {
    vectors.row_to_f32(row).unwrap().to_vec()
}

pub(crate) fn rows_of(vectors: &Vectors) -> impl Iterator<Item = Vec<f32>> {
    (0..vectors.len()).map(|row| row_of(vectors, row))
}

pub(crate) fn save(s: &Session, name: &str, rows: impl Iterator<Item = Vec<f32>>) {
    Vectors::from_rows(rows.collect::<Vec<_>>()).unwrap().save(s.path(name)).unwrap();
}

/// The rows found for each row of `base` as a query, nearest first.
pub(crate) fn found(s: &Session, index: &str, base: &str) -> Vec<Vec<u64>> {
    let search = format!("search --index {index} --base {base} --queries {base} -k 5 --device cpu");
    s.succeeds(&format!("{search} -o found.jsonl"));
    let text = fs::read_to_string(s.path("found.jsonl")).unwrap();
    let ids = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["ids"].clone();
    text.lines().map(|line| serde_json::from_value(ids(line)).unwrap()).collect()
}

/// The share of `rows` that a search for them finds first.
pub(crate) fn found_first(found: &[Vec<u64>], rows: std::ops::Range<usize>) -> f64 {
    let count = rows.len() as f64;
    rows.filter(|&row| found[row][0] == row as u64).count() as f64 / count
}

#[test]
fn appended_rows_are_found_and_removed_rows_are_not() {
    let s = session();
    fs::write(s.path("gone.txt"), "3, 17\n499").unwrap();
    let old = fs::read(s.path("index.tagore")).unwrap();
    let update = "update index.tagore --base longer.fbin --device cpu";
    let event = &s.succeeds(&format!("{update} --remove gone.txt -o new.tagore"))[0];
    let told = ["n", "dim", "inserted", "removed"].map(|key| event[key].as_u64().unwrap());
    assert_eq!(told, [600, 8, 100, 3]);
    assert_eq!((event["event"].as_str(), event["index"].as_str()), (Some("update"), Some("nsg")));
    assert!(event["mended"].as_u64().unwrap() > 0 && event["seconds"]["total"].is_number(), "{event}");
    assert!(fs::read(s.path("index.tagore")).unwrap() == old, "the old file was changed");
    let rows = found(&s, "new.tagore", "longer.fbin");
    assert!(rows.iter().flatten().all(|id| ![3, 17, 499].contains(id)));
    assert!(found_first(&rows, ROWS..LONGER) == 1.0 && found_first(&rows, 20..499) > 0.99);
    // Of an updated index too: a removed row comes back by --replace.
    let update = "update new.tagore --base longer.fbin --replace gone.txt --device cpu";
    let event = &s.succeeds(update)[0];
    assert_eq!((event["inserted"].as_u64(), event["removed"].as_u64()), (Some(3), Some(0)));
    assert!(found_first(&found(&s, "new.tagore", "longer.fbin"), 0..LONGER) > 0.99);
}

#[test]
fn replaced_rows_are_found_at_their_new_vectors() {
    let s = session();
    let base = Vectors::open(s.path("base.fbin")).unwrap();
    let moved = |row: usize| row_of(&base, row).iter().map(|x| if row < 5 { x + 3.0 } else { *x }).collect();
    save(&s, "moved.fbin", (0..ROWS).map(moved));
    fs::write(s.path("moved.txt"), "0 1 2 3 4").unwrap();
    s.fails(1, "update index.tagore --base moved.fbin", &["moved.fbin: found other values", "index.tagore"]);
    let event = &s.succeeds("update index.tagore --base moved.fbin --replace moved.txt")[0];
    assert_eq!((event["inserted"].as_u64(), event["n"].as_u64()), (Some(5), Some(500)));
    let rows = found(&s, "index.tagore", "moved.fbin");
    assert!(found_first(&rows, 0..5) == 1.0 && found_first(&rows, 5..ROWS) > 0.99);
}

#[test]
fn the_index_takes_the_place_of_the_old_one() {
    let s = session();
    fs::write(s.path("index.tagore.report.json"), "of the old index").unwrap();
    #[cfg(unix)]
    fs::set_permissions(s.path("index.tagore"), mode(0o640)).unwrap();
    let output = s.run("update index.tagore --base longer.fbin");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("index.tagore: nsg of 600 x 8 in "), "{stdout}");
    assert!(stdout.contains(": 100 inserted, 0 removed, ") && stdout.ends_with(" neighbours\n"), "{stdout}");
    assert_eq!(Index::open(s.path("index.tagore")).unwrap().len(), LONGER);
    assert!(!s.path("index.tagore.report.json").exists(), "a report of the old index");
    #[cfg(unix)]
    assert_eq!(fs::metadata(s.path("index.tagore")).unwrap().permissions(), mode(0o100_640));
    // Named as the output, and by another path.
    s.succeeds("update index.tagore --base longer.fbin -o ./index.tagore");
    assert!(!s.names().iter().any(|name| name.starts_with('.')), "{:?}", s.names());
}

#[cfg(unix)]
fn mode(mode: u32) -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

#[test]
fn an_index_that_keeps_few_rows_is_built_anew() {
    let s = session();
    let header = "{'descr': '|b1', 'fortran_order': False, 'shape': (500,), }\n";
    let mut mask = [&b"\x93NUMPY\x01\x00"[..], &[header.len() as u8, 0], header.as_bytes()].concat();
    mask.extend((0..ROWS).map(|row| u8::from(row >= 50)));
    fs::write(s.path("mask.npy"), mask).unwrap();
    let update = "update index.tagore --base longer.fbin --remove mask.npy";
    let event = &s.succeeds(&format!("{update} -o new.tagore"))[0];
    assert!(event["mended"].is_null() && event["removed"] == 450, "{event}");
    let output = s.run(update);
    assert!(String::from_utf8(output.stdout).unwrap().ends_with("450 removed, built anew\n"));
    assert!(found(&s, "new.tagore", "longer.fbin").iter().flatten().all(|&id| !(50..500).contains(&id)));
}

#[test]
fn the_base_has_any_format() {
    let s = session();
    s.succeeds("update index.tagore --base longer.fbin -o expected.tagore");
    let expected = fs::read(s.path("expected.tagore")).unwrap();
    for format in ["fvecs", "npy"] {
        s.succeeds(&format!("convert longer.fbin longer.{format}"));
        s.succeeds(&format!("update index.tagore --base longer.{format} -o x.tagore"));
        assert!(fs::read(s.path("x.tagore")).unwrap() == expected, "{format}");
    }
    fs::copy(s.path("longer.fbin"), s.path("longer")).unwrap();
    s.succeeds("update index.tagore --base longer --base-format fbin -o x.tagore");
    assert!(fs::read(s.path("x.tagore")).unwrap() == expected);
    let mut piped = s.command("update index.tagore --base - --base-format fbin -o y.tagore --quiet");
    let piped = piped.stdin(fs::File::open(s.path("longer.fbin")).unwrap()).output().unwrap();
    assert!(piped.status.success() && fs::read(s.path("y.tagore")).unwrap() == expected, "{piped:?}");
    for format in ["f16bin", "u8bin", "i8bin"] {
        s.succeeds(&format!("synth -o long.{format} --n 400 --dim 8 --type {}", &format[..format.len() - 3]));
        s.succeeds(&format!("build -i long.{format} -o typed.tagore --kind vamana --no-report"));
        fs::write(s.path("gone.txt"), "7").unwrap();
        let event = &s.succeeds(&format!("update typed.tagore --base long.{format} --remove gone.txt"))[0];
        assert_eq!((event["removed"].as_u64(), event["n"].as_u64()), (Some(1), Some(400)), "{format}");
    }
}

#[test]
fn wrong_files_are_refused_and_the_index_stays() {
    let s = session();
    let base = Vectors::open(s.path("base.fbin")).unwrap();
    save(&s, "shorter.fbin", rows_of(&base).take(400));
    save(&s, "other.fbin", rows_of(&Synth::new(ROWS, 8, 9).unwrap().base()));
    save(&s, "wider.fbin", rows_of(&Synth::new(ROWS, 9, 1).unwrap().base()));
    for (name, ids) in [("some.txt", "3 5"), ("more.txt", "5 6"), ("far.txt", "500")] {
        fs::write(s.path(name), ids).unwrap();
    }
    let every: Vec<String> = (0..ROWS).map(|row| row.to_string()).collect();
    fs::write(s.path("every.txt"), every.join(" ")).unwrap();
    let old = fs::read(s.path("index.tagore")).unwrap();
    let update = "update index.tagore --base";
    for (code, arguments, what) in [
        (1, "shorter.fbin", "shorter.fbin: found 400 rows, expected at least the 500 of index.tagore"),
        (1, "other.fbin", "other.fbin: found other values, expected the data set of index.tagore"),
        (
            1,
            "wider.fbin",
            "wider.fbin: found rows of 9 f32, expected 8 f32 as in the data set of index.tagore",
        ),
        (1, "wider.fbin --replace some.txt", "wider.fbin: found rows of 9 f32"),
        (1, "longer.fbin --remove far.txt", "far.txt: found 500 in line 1, expected ids of rows, 0 to 499"),
        (1, "longer.fbin --replace far.txt", "far.txt: found 500 in line 1, expected ids of rows, 0 to 499"),
        (
            2,
            "longer.fbin --remove some.txt --replace more.txt",
            "--remove: found 5, expected a row that is not",
        ),
        (
            2,
            "base.fbin --remove every.txt",
            "--remove: found every row, expected at least one row that stays",
        ),
        (1, "longer.fbin -o longer.fbin", "longer.fbin: found the input longer.fbin"),
        (1, "longer.fbin --remove some.txt -o some.txt", "some.txt: found the input some.txt"),
        (
            1,
            "longer.fbin -o new.hnswlib",
            "new.hnswlib: found the extension .hnswlib, expected .tagore or none",
        ),
        (1, "longer.fbin -o missing/x.tagore", "missing/x.tagore: found no such folder missing"),
    ] {
        s.fails(code, &format!("{update} {arguments}"), &[what]);
    }
    assert!(fs::read(s.path("index.tagore")).unwrap() == old, "the index was changed");
    s.fails(
        1,
        "update base.fbin --base longer.fbin",
        &["base.fbin: found vectors or ids, expected a tagore index"],
    );
    s.fails(1, "update none.tagore --base longer.fbin", &["none.tagore"]);
    // Degrees and rows are checked too: an update writes new checksums.
    let mut damaged = old;
    damaged[40_000] ^= 1;
    fs::write(s.path("damaged.tagore"), damaged).unwrap();
    s.fails(1, "update damaged.tagore --base longer.fbin", &["damaged.tagore: found damage in block"]);
}

#[test]
fn an_index_of_another_system_is_refused() {
    let s = session();
    for format in ["hnswlib", "nsg"] {
        s.succeeds(&format!("convert index.tagore x.{format} --base base.fbin"));
        s.succeeds(&format!("convert x.{format} {format}.tagore --base base.fbin"));
        for name in [format!("x.{format}"), format!("{format}.tagore")] {
            let what = format!("{name}: found an index of {format} from another system");
            let words = [&what, "`tagore build BASE` makes one"];
            s.fails(1, &format!("update {name} --base longer.fbin"), &words);
        }
    }
}
