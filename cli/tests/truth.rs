//! Ground truth of other data, metrics and conventions.

use serde_json::Value;
use tagore::GroundTruth;

use super::Session;

const QUERIES: usize = 30;

/// base.fbin (800 x 16), query.fbin, {l2,ip,cosine}.bin (20 neighbours) and {l2,ip}.tagore.
fn session() -> Session {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    s.succeeds("synth -o base.fbin --n 800 --dim 16 --seed 3");
    s.succeeds(&format!("synth -o query.fbin --n 800 --dim 16 --seed 3 --queries {QUERIES}"));
    for metric in ["l2", "ip", "cosine"] {
        s.succeeds(&format!(
            "groundtruth --base base.fbin --queries query.fbin --metric {metric} -k 20 -o {metric}.bin"
        ));
    }
    for metric in ["l2", "ip"] {
        s.succeeds(&format!(
            "build -i base.fbin -o {metric}.tagore --kind vamana --metric {metric} --knn 32"
        ));
    }
    s
}

fn eval(metric: &str, truth: &str) -> String {
    format!(
        "eval --index {metric}.tagore --base base.fbin --queries query.fbin --groundtruth {truth} --beams 100"
    )
}

/// Saves the rows of a truth in another order, with distances of `of`.
fn save(s: &Session, from: &str, row: impl Fn(usize) -> usize, of: impl Fn(f32) -> f32, to: &str) {
    let truth = GroundTruth::open(s.path(from), &tagore::Progress::silent()).unwrap();
    let ids = (0..truth.len()).flat_map(|query| truth.ids(row(query)).to_vec()).collect();
    let distances = (0..truth.len()).flat_map(|query| truth.distances(row(query)).unwrap().to_vec()).map(of);
    GroundTruth::new(truth.k(), ids, Some(distances.collect())).unwrap().save(s.path(to)).unwrap();
}

#[test]
fn wrong_truth_ends_with_1_and_is_named() {
    let s = session();
    let random: Vec<u32> = (0..QUERIES as u32 * 20).map(|place| place * 7 % 800).collect();
    let zeros = Some(vec![0.0; random.len()]);
    GroundTruth::new(20, random, zeros).unwrap().save(s.path("random.bin")).unwrap();
    save(&s, "l2.bin", |query| QUERIES - 1 - query, |d| d, "reversed.bin");
    for k in [1, 10] {
        let eval = |metric, truth| format!("{} -k {k} --plot x.svg", eval(metric, truth));
        s.fails(1, &eval("l2", "random.bin"), &["random.bin", "query 0", "by l2", "not the nearest rows"]);
        s.fails(1, &eval("ip", "random.bin"), &["random.bin", "query 0", "by ip", "not the nearest rows"]);
        s.fails(1, &eval("l2", "reversed.bin"), &["reversed.bin", "in another order than the queries"]);
    }
    s.fails(1, &eval("ip", "l2.bin"), &["l2.bin", "the list is ordered by l2", "by ip"]);
    s.fails(1, &eval("l2", "ip.bin"), &["ip.bin", "the list is ordered by ip", "by l2"]);
    s.fails(1, &eval("l2", "cosine.bin"), &["cosine.bin", "the list is ordered by cosine", "by l2"]);
    let benched =
        "-i base.fbin --queries query.fbin --groundtruth reversed.bin --beams 100 --device cpu -o x.jsonl";
    s.fails(1, &format!("bench search {benched} --index l2.tagore"), &["reversed.bin", "query 0"]);
    s.fails(1, &format!("bench prune {benched} --kinds vamana --knn 32"), &["reversed.bin", "query 0"]);
    let limits = "--kind vamana --knn 32 --cluster-size 300";
    s.fails(1, &format!("bench outofcore {benched} {limits}"), &["reversed.bin", "query 0"]);
}

#[test]
fn honest_truth_is_judged_by_its_ids() {
    let s = session();
    s.succeeds("convert l2.bin l2.ivecs");
    save(&s, "l2.bin", |query| query, f32::sqrt, "root.bin");
    save(&s, "ip.bin", |query| query, |d| -d, "positive.bin");
    save(&s, "l2.bin", |query| query, |_| 0.5, "odd.bin");
    let told = |metric, truth: &str| {
        let command = eval(metric, truth);
        let line = s.succeeds(&command).remove(0);
        for key in ["recall", "recall_ids"] {
            assert!(line[key].as_f64().is_some_and(|recall| recall > 0.95), "{line}");
        }
        let output = s.run(&command);
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(stdout.contains("recall@10     by ids"), "{stdout}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        (
            line["truth_distances"].clone(),
            stderr.lines().find(|line| line.starts_with(truth)).map(str::to_owned),
        )
    };
    assert_eq!(told("l2", "l2.bin"), ("squared l2".into(), None));
    assert_eq!(told("ip", "ip.bin"), ("negated inner product".into(), None));
    assert_eq!(told("l2", "l2.ivecs"), (Value::Null, None));
    for (metric, truth, name, words) in [
        ("l2", "root.bin", "l2", "its distances are l2, those of the index squared l2"),
        (
            "ip",
            "positive.bin",
            "inner product",
            "its distances are inner product, those of the index negated",
        ),
        ("l2", "odd.bin", "unknown", "no known convention"),
    ] {
        let (found, line) = told(metric, truth);
        assert!(found == name && line.as_ref().is_some_and(|line| line.contains(words)), "{found} {line:?}");
    }
}

// JSON has no NaN, the mean of no recalls.
#[test]
fn a_knn_graph_is_measured_and_warned_of_unless_no_nodes_are_asked() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    s.succeeds("synth -o base.fbin --n 2000 --dim 32");
    let poor = "knn -i base.fbin --knn 8 --start random --iterations 0,1";
    let warns = |arguments: &str| {
        let output = s.run(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).contains("--start all-pairs finds all")
    };
    assert!(warns(poor));
    assert!(!warns(&format!("{poor} --verify 0")));
    let exact = &s.succeeds("knn -i base.fbin --knn 8 --start all-pairs")[0];
    assert_eq!(exact["recall"]["8"], 1.0);
    assert!(s.succeeds("knn -i base.fbin --knn 8 --verify 0")[0]["recall"].is_null());
}
