//! Vectors of bits.

use super::Session;

#[test]
fn bits_are_made_searched_and_described() {
    let s = Session::new();
    let data = "--n 800 --dim 45 --seed 3";
    s.succeeds(&format!("synth -o bits.b1bin {data}"));
    s.succeeds(&format!("synth -o queries.b1bin {data} --queries 20"));
    // The signs of the floats.
    s.succeeds(&format!("synth -o bits.fbin {data} --type b1"));
    s.succeeds("convert bits.fbin again.b1bin");
    let read = |name: &str| std::fs::read(s.path(name)).unwrap();
    assert!(read("bits.b1bin") == read("again.b1bin") && read("bits.b1bin").len() == 8 + 800 * 6);
    let described = &s.succeeds("inspect bits.b1bin")[0];
    assert_eq!((&described["type"], &described["dim"]), (&"b1".into(), &45.into()), "{described}");

    s.succeeds("groundtruth --base bits.b1bin --queries queries.b1bin --metric hamming -k 10 -o gt.bin");
    s.succeeds("groundtruth --base bits.fbin --queries queries.b1bin -k 10 -o same.bin");
    assert!(read("gt.bin") == read("same.bin"));
    s.succeeds("build -i bits.b1bin -o x.tagore --kind nssg --metric hamming --report report.json");
    s.succeeds("build -i bits.b1bin -o y.tagore --kind nssg");
    assert!(read("x.tagore") == read("y.tagore"));
    let report: serde_json::Value = serde_json::from_slice(&read("report.json")).unwrap();
    assert_eq!(report["metric"], "hamming");
    let described = s.succeeds("inspect x.tagore --metric hamming");
    assert_eq!(described[0]["metric"], "hamming");
    let output = s.run("inspect x.tagore");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("800 x 45 b1, hamming"), "{text}");
    let asked = "--index x.tagore --base bits.b1bin --queries queries.b1bin";
    let found = s.succeeds(&format!("eval {asked} --groundtruth gt.bin -k 10 --beams 100"));
    assert!(
        found.iter().any(|line| line["recall"].as_f64().is_some_and(|recall| recall > 0.95)),
        "{found:?}"
    );
    s.succeeds(&format!("search {asked} -k 3 -o found.csv"));
    let plan = &s.succeeds("plan -i bits.b1bin --kind nssg --device cpu")[0];
    assert_eq!(plan["metric"], "hamming");
}
