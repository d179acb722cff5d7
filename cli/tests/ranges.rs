//! Numbers at and beyond the ends of their ranges.

use super::Session;

#[test]
fn huge_numbers_are_planned_for_or_refused() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    let most = u64::MAX;
    let limit = ["found 4294967294 rows", "at most 2147483648"];
    s.fails(1, "plan --n 4294967294 --dim 4096 --knn 1024 --kind nsg", &limit);
    s.fails(2, &format!("plan --n {most} --dim 4 --kind nsg"), &["--n", "1 to "]);
    s.fails(2, "plan --n 9 --dim 4294967295 --kind nsg", &["--dim", "1 to 4096"]);
    for device in ["cpu", "cuda"] {
        let largest = "--dim 4096 --knn 1024 --degree 512 --candidates 8192 --iterations 1000,1000";
        let arguments =
            format!("plan --n 2147483648 {largest} --kind nsg --device {device} --host-memory {most}");
        assert!(s.succeeds(&arguments)[0]["host_bytes"].as_u64() > Some(4096 << 30), "{device}");
    }
    for iterations in ["1001,0", "0,1001", "4294967295,4294967295", "99999999999,1"] {
        let words = ["--iterations", iterations, "each at most 1000"];
        s.fails(2, &format!("plan --n 9 --dim 4 --iterations {iterations}"), &words);
    }
    s.fails(2, &format!("synth --n {most} --dim 2 -o x.fbin"), &["--n", "1 to "]);
    s.fails(2, &format!("synth --n 9 --dim 2 --queries {most} -o x.fbin"), &["rows: found 9..", "at most"]);
    s.succeeds(&format!("synth --n 9 --dim 2 --seed {most} -o x.fbin"));
}
