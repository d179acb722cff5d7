//! Wrong command lines: each answer is one line that names the mistake and the mend.

use super::Session;

/// Command lines with their exit codes and errors, made with `TAGORE_BLESS=1`. Read every changed
/// error as a user would.
const LINES: &str = include_str!("wrong.txt");

/// The files of the command lines beside those of a [`Session`].
fn session() -> Session {
    let s = Session::new();
    s.succeeds("knn -i base.fbin --knn 20 -o graph.bin");
    s.succeeds("task plan -i base.fbin -o t.tagore --kind vamana --knn 20 --device cpu --cluster-size 200 --dir tasks");
    s.succeeds("synth -o dim9.fbin --n 500 --dim 9");
    let wide = [&40u32.to_le_bytes()[..], &4097u32.to_le_bytes(), &[0; 40 * 513]].concat();
    std::fs::write(s.path("bits.b1bin"), wide).unwrap();
    std::fs::write(s.path("rows.csv"), "1.5,2.5\n3.5,4.5\n").unwrap();
    s
}

#[test]
fn every_wrong_command_line_is_answered_in_one_line() {
    let s = session();
    let mut answers = String::new();
    for line in LINES.lines().filter_map(|line| line.strip_prefix("$ tagore ")) {
        let before = s.names();
        let output = s.run(line);
        let stderr = String::from_utf8(output.stderr).unwrap();
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        let answer = stderr.lines().last().unwrap();
        assert_eq!((errors.as_slice(), output.stdout.len()), (&[answer][..], 0), "{line}: {stderr}");
        assert_eq!(s.names(), before, "{line}: files were left behind");
        answers += &format!("$ tagore {line}\n{} {answer}\n", output.status.code().unwrap());
    }
    assert!(LINES.lines().count() >= 200, "fewer than a hundred command lines");
    if std::env::var_os("TAGORE_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wrong.txt"), &answers).unwrap();
        return;
    }
    for (found, expected) in answers.lines().zip(LINES.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(answers.lines().count(), LINES.lines().count());
}
