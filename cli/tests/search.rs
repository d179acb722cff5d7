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
    let on_cpu = search("cpu");
    assert!(search("emulated") == on_cpu && search("emulated,emulated:9.0") == on_cpu);
    let asked = "--queries query.fbin --groundtruth gt.bin --beams 12 --device emulated";
    let eval = &s.succeeds(&format!("eval --index index.tagore --base base.fbin {asked}"))[0];
    assert!(eval["device_qps"].as_f64().unwrap() >= eval["qps"].as_f64().unwrap());
    let shared = asked.replace("emulated", "emulated,emulated:9.0");
    let on_two = &s.succeeds(&format!("eval --index index.tagore --base base.fbin {shared}"))[0];
    assert_eq!((&on_two["recall"], &on_two["distances"]), (&eval["recall"], &eval["distances"]));
    let benched = &s.succeeds(&format!("bench search -i base.fbin --index index.tagore {shared}"))[0];
    assert_eq!((&benched["device"], &benched["recall"]), (&"emulated,emulated:9.0".into(), &eval["recall"]));
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

#[test]
fn ground_truths_of_several_devices_are_those_of_one() {
    let s = Session::new();
    let truth = |device: &str| {
        let command = "groundtruth --base base.fbin --queries query.fbin -k 10 -o x.bin --device";
        let line = s.succeeds(&format!("{command} {device}")).remove(0);
        assert_eq!(line["device"], device);
        (std::fs::read(s.path("x.bin")).unwrap(), line["kernels"].clone())
    };
    let (expected, _) = truth("cpu");
    let (one, two) = (truth("emulated"), truth("emulated,emulated:9.0,emulated:8.9"));
    assert!(one.0 == expected && two.0 == expected);
    let kernels = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(kernels(&one.1), kernels(&two.1));
}

#[test]
fn codes_that_lose_rows_are_named_with_the_remedy() {
    let s = Session::new();
    let plain = tagore::Synth::new(1200, 16, 1).unwrap().base();
    // One row in three is in a ball of a ten thousandth of the others' size.
    let rows = (0..1200).flat_map(|row| {
        let factor = if row % 3 == 0 { 1e-4 } else { 1.0 };
        plain.row_to_f32(row).unwrap().iter().map(|x| x * factor).collect::<Vec<_>>()
    });
    tagore::Vectors::from_f32(rows.collect(), 16).unwrap().save(s.path("ball.fbin")).unwrap();
    let warned = |arguments: &str| {
        let output = s.run(arguments);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let is_named = text.lines().any(|line| line.ends_with("use the full vectors"));
        assert_eq!(is_named, text.contains("warning: codes in int8"), "{text}");
        is_named
    };
    assert!(!warned("build -i ball.fbin -o ball.tagore --kind cagra --device cpu --vectors full"));
    let search = "search --index ball.tagore --base ball.fbin --queries ball.fbin --device cpu -o x.bin";
    assert!(warned(&format!("{search} --vectors int8")));
    assert!(!warned(&format!("{search} --vectors f16")));
    assert!(warned("build -i ball.fbin -o codes.tagore --kind cagra --device cpu --vectors int8"));
}

#[test]
fn warnings_of_the_library_are_the_commands() {
    let s = Session::new();
    for (name, fault) in [("clean", ""), ("line", " --kind dirty --fault multiples --share 0.1")] {
        s.succeeds(&format!("synth --n 1200 --dim 16{fault} -o {name}.fbin"));
    }
    let build = |arguments: &str| {
        let build = "build --kind nsg --metric ip --device cpu --cluster-size 400 --no-report";
        let output = s.run(&format!("{build} {arguments}"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let warning = "searches of inner products in an index built in clusters may miss the nearest";
    let warned = |text: &str| text.lines().filter(|line| line.contains(warning)).count();
    let line = build("line.fbin -o line.tagore --quiet");
    assert!(warned(&line) == 1 && line.starts_with("warning: rows lie in"), "{line}");
    assert_eq!(warned(&build("clean.fbin -o clean.tagore")), 0);
    // A log has it already.
    let logged = build("line.fbin -o line.tagore --log warn");
    assert!(warned(&logged) == 1 && !logged.contains("warning:"), "{logged}");
}

#[test]
fn searches_on_codes_find_what_the_cpu_finds_on_them() {
    let s = Session::new();
    let search = "search --index index.tagore --base base.fbin --queries query.fbin --beam 40";
    for device in ["cpu", "emulated"] {
        s.succeeds(&format!("{search} --vectors int8 --rerank 25 --device {device} -o {device}.bin"));
    }
    let read = |name: &str| std::fs::read(s.path(name)).unwrap();
    assert!(read("cpu.bin") == read("emulated.bin"));
    let asked = "--queries query.fbin --groundtruth gt.bin --beams 40 --vectors f16 --device cpu";
    let eval = &s.succeeds(&format!("eval --index index.tagore --base base.fbin {asked}"))[0];
    assert!(eval["recall"].as_f64().unwrap() > 0.9, "{eval}");
    let bench = &s.succeeds(&format!("bench search -i base.fbin --index index.tagore {asked}"))[0];
    assert_eq!((&bench["vectors"], &bench["recall"]), (&"f16".into(), &eval["recall"]));
    s.fails(2, &format!("{search} --rerank 7 -o x"), &["--rerank: found 7 with --vectors full"]);
    s.fails(2, &format!("{search} --vectors f32 -o x"), &["f32", "expected full, f16, int8 or edges"]);
    assert!(!s.path("x").exists());
}

#[test]
fn a_filter_names_the_rows_that_may_be_found() {
    let s = Session::new();
    let rows = s.succeeds("inspect base.fbin")[0]["n"].as_u64().unwrap() as usize;
    let search = "search --index index.tagore --base base.fbin --queries query.fbin -k 3 --device cpu";
    let found = |file: &str| {
        let event = s.succeeds(&format!("{search} --filter {file} -o found.bin"))[0].clone();
        let bytes = std::fs::read(s.path("found.bin")).unwrap();
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        let (queries, k) = (words[0] as usize, words[1] as usize);
        (event, words[2..][..queries * k].to_vec())
    };
    std::fs::write(s.path("ids.txt"), "3 7,\n11\n\n19 20 21\n").unwrap();
    let npy = |descr: &str, count: usize, values: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}\n");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        [file, header.into_bytes(), values.to_vec()].concat()
    };
    let ids = [3u32, 7, 11, 19, 20, 21];
    let big: Vec<u8> = ids.iter().flat_map(|&id| i64::from(id).to_be_bytes()).collect();
    std::fs::write(s.path("ids.npy"), npy(">i8", ids.len(), &big)).unwrap();
    let mask: Vec<u8> = (0..rows as u32).map(|row| u8::from(ids.contains(&row))).collect();
    std::fs::write(s.path("mask.npy"), npy("|b1", rows, &mask)).unwrap();
    let (event, of_text) = found("ids.txt");
    assert_eq!(event["passing"], 6);
    assert!(of_text.len() > 3 && of_text.iter().all(|id| ids.contains(id)), "{of_text:?}");
    assert!(found("ids.npy").1 == of_text && found("mask.npy").1 == of_text);
    for (name, content, what) in [
        ("word.txt", &b"3\nx7\n"[..], "word.txt: found \"x7\" in line 2, expected ids of rows, 0 to"),
        ("far.txt", b"3\n4000000000\n", "far.txt: found 4000000000 in line 2, expected ids of rows"),
        ("short.npy", &npy("|b1", 2, &[1, 0]), "short.npy: found 2 bools, expected"),
        ("less.npy", &npy("<i8", 1, &(-1i64).to_le_bytes()), "less.npy: found -1 at place 0, expected ids"),
        ("real.npy", &npy("<f4", 1, &[0; 4]), "real.npy: found a 1-D array of <f4, expected ids of rows"),
        ("cut.npy", &npy("<i8", 2, &[0; 8]), "cut.npy: found 8 bytes of values, expected 2 numbers"),
    ] {
        std::fs::write(s.path(name), content).unwrap();
        s.fails(1, &format!("{search} --filter {name} -o x.bin"), &[what]);
    }
    s.fails(1, &format!("{search} --filter none.txt -o x.bin"), &["none.txt"]);
    assert!(!s.path("x.bin").exists());
    // Exact search and the measured recall know the filter too.
    let data = "base.fbin --queries query.fbin --device cpu --filter ids.txt";
    let truth = &s.succeeds(&format!("groundtruth {data} -o some.ibin"))[0];
    assert_eq!(truth["k"], 6);
    let written: Vec<u32> = bytemuck::pod_collect_to_vec(&std::fs::read(s.path("some.ibin")).unwrap());
    assert!(written[2..].iter().all(|id| ids.contains(id)), "{written:?}");
    for truth in ["", "--groundtruth some.ibin"] {
        let eval = &s.succeeds(&format!("eval {data} --index index.tagore {truth} -k 6 --beams 20"))[0];
        assert_eq!((&eval["recall"], &eval["recall_ids"]), (&1.0.into(), &1.0.into()), "{truth}");
    }
    let unfit = format!("eval {data} --index index.tagore --groundtruth gt.bin");
    s.fails(1, &unfit, &["that a search may find", "make it with more neighbours"]);
    s.fails(2, &format!("groundtruth {data} -k 7 -o x.bin"), &["k: found 7, expected 1 to the 6 rows in"]);
}

#[test]
fn files_without_an_extension_are_read_in_the_given_format() {
    let s = Session::new();
    for name in ["base", "query"] {
        std::fs::copy(s.path(&format!("{name}.fbin")), s.path(name)).unwrap();
    }
    let data = "--base base --format fbin --queries query --query-format fbin";
    let named = "--base base.fbin --queries query.fbin";
    let search = |data: &str| {
        s.succeeds(&format!("search --index index.tagore {data} -o found"));
        std::fs::read(s.path("found")).unwrap()
    };
    assert!(search(data) == search(named));
    s.succeeds(&format!("groundtruth {data} -k 10 -o truth"));
    assert!(std::fs::read(s.path("truth")).unwrap() == std::fs::read(s.path("gt.bin")).unwrap());
    let evaluated =
        &s.succeeds(&format!("eval --index index.tagore {data} --groundtruth gt.bin --beams 20"))[0];
    let benched =
        "bench search -i base --format fbin --queries query --query-format fbin --groundtruth gt.bin";
    let benched = &s.succeeds(&format!("{benched} --index index.tagore --beams 20"))[0];
    assert_eq!(evaluated["recall"], benched["recall"]);
    s.succeeds("convert index.tagore x.hnswlib --base base --base-format fbin");
    s.succeeds("inspect x.hnswlib --base base --base-format fbin");
    // The formats are those of vectors, and a name without one is refused.
    s.fails(1, "search --index index.tagore --base base --queries query.fbin -o x", &["base:", "extension"]);
    s.fails(2, "inspect index.tagore --base-format fbin", &["--base"]);
    s.fails(
        1,
        &format!("search --index index.tagore {named} --query-format ivecs -o x"),
        &["query.fbin", "ivecs"],
    );
}
