//! `tagore search`, `eval` and `bench search`.

use super::Session;

#[test]
fn searches_on_a_device_find_what_the_cpu_finds() {
    let s = Session::new();
    let search = |device: &str| {
        let found = &s.succeeds(&format!(
            "search --index index.tagore --base base.fbin --queries query.fbin --beam 20 --device {device} -o {device}.bin"
        ))[0];
        assert_eq!(found["device"], device);
        assert_eq!(found["device_seconds"].is_number(), device != "cpu");
        std::fs::read(s.path(&format!("{device}.bin"))).unwrap()
    };
    assert!(search("emulated") == search("cpu"));
    let asked = "--queries query.fbin --groundtruth gt.bin --beams 12 --device emulated";
    let eval = &s.succeeds(&format!("eval --index index.tagore --base base.fbin {asked}"))[0];
    assert!(eval["device_qps"].as_f64().unwrap() >= eval["qps"].as_f64().unwrap());
    let lines = s.succeeds(&format!(
        "bench search -i base.fbin --index index.tagore {asked} --widths 1,4 --batches 7 -o bench.jsonl"
    ));
    for (line, width) in lines.iter().zip([1, 4]) {
        assert_eq!((line["width"].as_u64(), line["batch"].as_u64()), (Some(width), Some(7)));
        for key in ["index", "recall", "distances", "qps", "device_qps", "device_bytes_per_second"] {
            assert!(!line[key].is_null(), "no {key}: {line}");
        }
    }
    assert_eq!((lines.len(), &lines[0]["recall"]), (2, &eval["recall"]));
    let written = std::fs::read_to_string(s.path("bench.jsonl")).unwrap();
    assert_eq!(written.lines().count(), 2);
    s.fails(
        2,
        "search --index index.tagore --base base.fbin --queries query.fbin --width 9 -o x",
        &["--width", "1 to 8"],
    );
}
