//! `tagore synth`.

use tagore::{Fault, QueryKind, Synth, SynthKind, Vectors};

use super::Session;

fn session() -> Session {
    Session { folder: tempfile::tempdir().unwrap() }
}

/// Checks that the command writes the rows of `synth` from row 0, or from row n as queries.
fn writes(s: &Session, arguments: &str, synth: &Synth) {
    let line = &s.succeeds(&format!("synth -o rows.fbin --n 60 --dim 5 --seed 4 {arguments}"))[0];
    let queries = arguments.contains("--queries");
    let expected = if queries { synth.queries(9) } else { synth.base() };
    let found = Vectors::open(s.path("rows.fbin")).unwrap();
    assert_eq!((found.len(), found.dim()), (expected.len(), 5), "{arguments}");
    for row in 0..found.len() {
        assert_eq!(
            found.row_to_f32(row).unwrap(),
            expected.row_to_f32(row).unwrap(),
            "{arguments}, row {row}"
        );
    }
    assert_eq!(line["event"], "synth", "{line}");
    assert_eq!((&line["n"], &line["dim"], &line["seed"]), (&found.len().into(), &5.into(), &4.into()));
    assert_eq!(line["kind"], synth.kind().name(), "{line}");
    assert_eq!(line["query_kind"].is_string(), queries, "{line}");
}

#[test]
fn every_kind_is_written_as_the_library_makes_it() {
    let s = session();
    let kinds = [
        ("", SynthKind::Mixture),
        ("--kind mixture", SynthKind::Mixture),
        ("--kind clusters --clusters 7", SynthKind::Clusters { clusters: 7 }),
        // The default number is at most the rows.
        ("--kind clusters", SynthKind::Clusters { clusters: 60 }),
        ("--kind uniform", SynthKind::Uniform),
        ("--kind repeated", SynthKind::Repeated { copies: 10 }),
        ("--kind repeated --copies 60", SynthKind::Repeated { copies: 60 }),
        ("--kind lognormal", SynthKind::Lognormal),
        ("--kind dirty", SynthKind::Dirty { fault: Fault::Zero, share: 0.01 }),
        (
            "--kind dirty --fault near:1e-6 --share 0.5",
            SynthKind::Dirty { fault: Fault::Near { noise: 1e-6 }, share: 0.5 },
        ),
    ];
    for (flags, kind) in kinds {
        let synth = Synth::of_kind(kind, 60, 5, 4).unwrap();
        writes(&s, flags, &synth);
        writes(&s, &format!("{flags} --queries 9"), &synth);
        writes(&s, &format!("{flags} --queries 9 --query-kind rows"), &synth);
        if matches!(kind, SynthKind::Dirty { .. }) {
            let queries = synth.clone().query_kind(QueryKind::Dirty);
            writes(&s, &format!("{flags} --queries 9 --query-kind dirty"), &queries);
        }
        writes(
            &s,
            &format!("{flags} --queries 9 --query-kind shifted"),
            &synth.clone().query_kind(QueryKind::Shifted),
        );
        if kind == SynthKind::Mixture {
            let queries = synth.clone().query_kind(QueryKind::Tower);
            writes(&s, &format!("{flags} --queries 9 --query-kind tower"), &queries);
        }
        writes(&s, &format!("{flags} --queries 9 --query-kind sums"), &synth.query_kind(QueryKind::Sums));
    }
    let line = &s.succeeds("synth -o x.fbin --n 30 --dim 2 --kind dirty --fault near")[0];
    assert_eq!((&line["fault"], &line["share"]), (&"near:0.001".into(), &0.01.into()));
    let line = &s.succeeds("synth -o x.fbin --n 3 --dim 2 --kind repeated --queries 1 --query-kind sums")[0];
    let found = (&line["clusters"], &line["copies"], &line["query_kind"]);
    assert_eq!(found, (&().into(), &3.into(), &"sums".into()));
    let line = &s.succeeds("synth -o x.fbin --n 300 --dim 2 --kind clusters")[0];
    assert_eq!((&line["clusters"], &line["copies"]), (&100.into(), &().into()));
}

#[test]
fn wrong_kinds_and_numbers_are_refused() {
    let s = session();
    let fails =
        |flags: &str, words: &[&str]| s.fails(2, &format!("synth -o x.fbin --n 60 --dim 5 {flags}"), words);
    fails("--kind gauss", &["--kind", "gauss", "mixture, clusters, uniform, repeated, lognormal or dirty"]);
    fails("--queries 5 --query-kind near", &["--query-kind", "near", "rows, sums, dirty, tower or shifted"]);
    fails("--query-kind sums", &["--queries"]);
    for count in ["0", "61", "18446744073709551615"] {
        let found = format!("found {count}, expected 1 to 60, the number of rows");
        fails(&format!("--kind clusters --clusters {count}"), &["--clusters: ", &found]);
        fails(&format!("--kind repeated --copies {count}"), &["--copies: ", &found]);
    }
    fails("--kind clusters --clusters x", &["--clusters", "found x"]);
    fails("--clusters 5", &["--clusters: found 5 with --kind mixture, expected --kind clusters"]);
    fails(
        "--kind repeated --clusters 5",
        &["--clusters: found 5 with --kind repeated, expected --kind clusters"],
    );
    fails("--kind uniform --copies 5", &["--copies: found 5 with --kind uniform, expected --kind repeated"]);
    fails(
        "--kind clusters --copies 5",
        &["--copies: found 5 with --kind clusters, expected --kind repeated"],
    );
    fails("--kind dirty --fault zeros", &["--fault", "found zeros", "one of zero, equal, signed-zero, "]);
    fails("--kind dirty --fault grid:0", &["--fault: found grid:0", "expected a value of 1e-9 to 1e6"]);
    fails("--kind dirty --share 1.5", &["--share: found 1.5, expected above 0, at most 1"]);
    fails("--fault equal", &["--fault: found equal with --kind mixture, expected --kind dirty"]);
    fails("--share 0.5", &["--share: found 0.5 with --kind mixture, expected --kind dirty"]);
    fails("--queries 5 --query-kind dirty", &["--query-kind: found dirty with --kind mixture"]);
    fails(
        "--queries 5 --query-kind tower --kind uniform",
        &["found tower with --kind uniform, expected --kind mixture"],
    );
    s.fails(2, "synth -o x.fbin --n 0 --dim 5 --kind clusters", &["--n: found 0"]);
    s.fails(2, "synth -o x.fbin --n 0 --dim 5 --kind repeated", &["--n: found 0"]);
}

#[test]
fn every_type_is_written_and_searched() {
    let s = session();
    let types = [("u8bin", "u8"), ("i8bin", "i8"), ("f16bin", "f16"), ("bf16bin", "bf16"), ("fbin", "f32")];
    for (extension, name) in types {
        let element = name.parse().unwrap();
        let (base, queries) = (format!("base.{extension}"), format!("queries.{extension}"));
        let data = "--n 3000 --dim 16 --seed 2";
        let line = &s.succeeds(&format!("synth -o {base} {data}"))[0];
        assert_eq!(line["type"], name, "{line}");
        // The format's type is the default.
        s.succeeds(&format!("synth -o again.{extension} {data} --type {name}"));
        s.succeeds(&format!("synth -o rows.npy {data} --type {name}"));
        let read = |name: &str| std::fs::read(s.path(name)).unwrap();
        assert!(read(&base) == read(&format!("again.{extension}")), "{name}");
        assert!(read(&base)[8..] == read("rows.npy")[128..], "{name}: npy has other values");
        let expected = Synth::new(3000, 16, 2).unwrap().element_type(element).base();
        let found = Vectors::open(s.path(&base)).unwrap();
        assert_eq!((found.len(), found.dim(), found.element_type()), (3000, 16, element));
        assert!(
            (0..3000).all(|row| found.row_to_f32(row).unwrap() == expected.row_to_f32(row).unwrap()),
            "{name}"
        );
        s.succeeds(&format!("synth -o {queries} {data} --queries 100"));
        s.succeeds(&format!(
            "groundtruth --base {base} --queries {queries} -o truth.ivecs -k 10 --device cpu"
        ));
        s.succeeds(&format!(
            "build -i {base} -o index.tagore --kind vamana --knn 32 --device cpu --no-report"
        ));
        let found = &s.succeeds(&format!(
            "eval --index index.tagore --base {base} --queries {queries} --groundtruth truth.ivecs --beams 60 \
             --device cpu"
        ))[0];
        assert!(found["recall"].as_f64().unwrap() > 0.95, "{name}: {found}");
    }
    // Whole numbers as floats, as byte vectors often come.
    s.succeeds("synth -o floats.fbin --n 50 --dim 4 --type u8");
    let floats = Vectors::open(s.path("floats.fbin")).unwrap();
    assert!((0..50).all(|row| {
        floats.row_to_f32(row).unwrap().iter().all(|x| x.fract() == 0.0 && (0.0..=255.0).contains(x))
    }));
    let fails = |arguments: &str, word: &str| {
        s.fails(2, &format!("synth --n 50 --dim 4 {arguments}"), &["--format: found", word]);
    };
    fails("-o x.u8bin --type f32", "u8bin, expected a format of f32");
    fails("-o x.i8bin --type u8", "i8bin, expected a format of u8");
}
