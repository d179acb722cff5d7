//! `tagore merge`.

use std::fs;

use tagore::{Index, Synth, Vectors};

use super::Session;
use super::update::{found, found_first, rows_of, save};

/// Adds more.fbin (300 rows), more.tagore (nsg), and all.fbin: the rows of base.fbin, then these.
fn session() -> Session {
    let s = Session::new();
    let (base, more) = (Vectors::open(s.path("base.fbin")).unwrap(), Synth::new(300, 8, 7).unwrap().base());
    save(&s, "more.fbin", rows_of(&more));
    save(&s, "all.fbin", rows_of(&base).chain(rows_of(&more)));
    s.succeeds("build -i more.fbin -o more.tagore --kind nsg");
    s
}

#[test]
fn rows_of_both_indexes_are_found() {
    let s = session();
    let old = fs::read(s.path("index.tagore")).unwrap();
    fs::write(s.path("merged.tagore.report.json"), "of another index").unwrap();
    let merge = "merge index.tagore more.tagore --device cpu -o merged.tagore";
    let event = &s.succeeds(&format!("{merge} --base all.fbin"))[0];
    let told = ["n", "dim", "parts", "joined"].map(|key| event[key].as_u64().unwrap());
    assert_eq!(told, [800, 8, 2, 300]);
    assert_eq!((event["event"].as_str(), event["index"].as_str()), (Some("merge"), Some("nsg")));
    assert!(event["seconds"]["total"].is_number() && event["peak_host_bytes"].is_number(), "{event}");
    assert!(fs::read(s.path("index.tagore")).unwrap() == old, "an input was changed");
    assert!(!s.path("merged.tagore.report.json").exists(), "a report of another index");
    assert!(found_first(&found(&s, "merged.tagore", "all.fbin"), 0..800) > 0.99);
    // From the data sets of both.
    let merged = fs::read(s.path("merged.tagore")).unwrap();
    let output = s.run(&format!("{merge} --base base.fbin more.fbin --base-output joined.fbin"));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("merged.tagore: nsg of 800 x 8 from 2 indexes in "), "{stdout}");
    assert!(stdout.ends_with(" s: 300 joined the others\n"), "{stdout}");
    assert!(fs::read(s.path("joined.fbin")).unwrap() == fs::read(s.path("all.fbin")).unwrap());
    assert!(fs::read(s.path("merged.tagore")).unwrap() == merged);
    // In another order, and in another format.
    let other = "merge more.tagore index.tagore --base more.fbin base.fbin --base-output joined.npy";
    s.succeeds(&format!("{other} -o other.tagore"));
    s.succeeds("inspect other.tagore --base joined.npy");
    assert!(found_first(&found(&s, "other.tagore", "joined.npy"), 0..800) > 0.99);
    assert!(!s.names().iter().any(|name| name.starts_with('.')), "{:?}", s.names());
}

#[test]
fn one_index_and_rows_from_standard_input_are_merged() {
    let s = session();
    s.succeeds("merge index.tagore --base base.fbin -o same.tagore");
    let rows = |name: &str| Index::open(s.path(name)).unwrap().padded_rows().unwrap().to_vec();
    assert_eq!(rows("same.tagore"), rows("index.tagore"));
    s.succeeds("merge index.tagore more.tagore --base all.fbin -o expected.tagore");
    let merge = "merge index.tagore more.tagore --base - --base-format fbin -o piped.tagore --quiet";
    let mut piped = s.command(merge);
    let piped = piped.stdin(fs::File::open(s.path("all.fbin")).unwrap()).output().unwrap();
    let expected = fs::read(s.path("expected.tagore")).unwrap();
    assert!(piped.status.success() && fs::read(s.path("piped.tagore")).unwrap() == expected, "{piped:?}");
}

#[test]
fn wrong_files_are_refused() {
    let s = session();
    s.succeeds("build -i more.fbin -o vamana.tagore --kind vamana");
    s.succeeds("build -i more.fbin -o cosine.tagore --kind nsg --metric cosine");
    let before = s.names();
    for (arguments, what) in [
        (
            "vamana.tagore --base all.fbin",
            "vamana.tagore: found kind vamana, expected kind nsg as index.tagore has",
        ),
        (
            "cosine.tagore --base all.fbin",
            "cosine.tagore: found metric cosine, expected metric l2 as index.tagore has",
        ),
        ("more.tagore --base base.fbin", "base.fbin: found 500 rows, expected the 800 of 2 indexes"),
    ] {
        s.fails(1, &format!("merge index.tagore {arguments} -o x.tagore"), &[what]);
    }
    let swapped = "merge more.tagore index.tagore --base all.fbin -o x.tagore";
    s.fails(1, swapped, &["all.fbin: found other values, expected the data set of more.tagore"]);
    s.succeeds("convert index.tagore index.nsg --base base.fbin");
    s.fails(
        1,
        "merge index.nsg --base base.fbin -o x.tagore",
        &["index.nsg: found an index of nsg from another"],
    );
    assert_eq!(s.names().len(), before.len() + 1);
}
