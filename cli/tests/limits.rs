//! Inputs other than regular files, and limits of the system: one line of error, never a signal or
//! a hang.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use super::{Session, names};

impl Session {
    /// Runs the command in a shell after `before`, such as a limit. It must end with 1, one line of
    /// error with all of `words`, and no new file.
    fn is_limited(&self, before: &str, arguments: &str, words: &[&str]) {
        let there = self.names();
        let shell = format!("{before}; exec {} {arguments}", env!("CARGO_BIN_EXE_tagore"));
        let output =
            Command::new("sh").args(["-c", &shell]).current_dir(self.folder.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{shell}: {:?} {stderr}", output.status);
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(errors.len() == 1 && stderr.trim_end().ends_with(errors[0]), "{shell}: {stderr}");
        words
            .iter()
            .for_each(|word| assert!(errors[0].contains(word), "{shell}: '{word}' is not in {stderr}"));
        assert_eq!(names(self.folder.path()), there, "{shell}: files were left behind");
    }
}

#[test]
fn sockets_folders_and_devices_are_refused_at_once_and_pipes_of_all_but_vectors() {
    let s = Session::new();
    Command::new("mkfifo").arg(s.path("pipe.fbin")).status().unwrap();
    let _socket = UnixListener::bind(s.path("socket.fbin")).unwrap();
    fs::create_dir(s.path("folder.fbin")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", s.path("device.fbin")).unwrap();
    for (name, found) in [
        ("pipe.fbin", "found a pipe"),
        ("socket.fbin", "found a socket"),
        ("folder.fbin", "found a folder"),
        ("device.fbin", "found a device"),
    ] {
        let others = [
            "search --index FILE --base base.fbin --queries query.fbin -o x.bin",
            "eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth FILE",
        ];
        let of_vectors = [
            "inspect FILE",
            "convert FILE x.fvecs",
            "convert FILE x.tagore --from nsg --base base.fbin",
            "build -i FILE -o x.tagore --kind nsg",
            "plan -i FILE --kind nsg",
            "knn -i FILE -o x",
            "groundtruth --base FILE --queries query.fbin -o x.bin",
            "groundtruth --base base.fbin --queries FILE -o x.bin",
        ];
        // Vectors may come from a pipe.
        let refused = if name == "pipe.fbin" { &[][..] } else { &of_vectors };
        for arguments in others.iter().chain(refused) {
            let expected = format!("{name}: {found}, expected a regular file");
            s.fails(1, &arguments.replace("FILE", name), &[&expected]);
        }
    }
    // Looking for text must not open it: nobody writes to this pipe.
    fs::rename(s.path("pipe.fbin"), s.path("pipe")).unwrap();
    let expected = "pipe: found a pipe or a device, expected a regular file";
    s.fails(1, "task plan -i pipe -o many.tagore --dir tasks --kind nsg", &[expected]);
}

#[test]
fn a_file_beyond_the_limit_is_an_error() {
    let s = Session::new();
    for (output, arguments) in [
        ("x.fvecs", "convert base.fbin x.fvecs"),
        ("x.nsg", "convert index.tagore x.nsg"),
        ("x.fbin", "synth -o x.fbin --n 1000 --dim 8"),
        ("x.tagore", "build -i base.fbin -o x.tagore --kind nsg --knn 30 --device cpu"),
        ("x.bin", "groundtruth --base base.fbin --queries base.fbin -k 10 -o x.bin --device cpu"),
        ("x", "knn -i base.fbin -o x --knn 30 --device cpu"),
    ] {
        s.is_limited("ulimit -f 8", arguments, &[output, "File too large"]);
    }
}

#[test]
fn missing_memory_and_threads_are_errors() {
    let s = Session::new();
    // 100,000 queries, 500 neighbours of each in 8 bytes.
    let (header, query) = ([100_000u32, 8], fs::read(s.path("query.fbin")).unwrap());
    let rows = query[8..].repeat(5000);
    fs::write(s.path("many.fbin"), [bytemuck::cast_slice(&header), &rows].concat()).unwrap();
    let ids = File::create(s.path("large.ibin")).unwrap();
    ids.write_all_at(bytemuck::cast_slice(&[1u32 << 18, 1 << 10]), 0).unwrap();
    ids.set_len(8 + (1 << 30)).unwrap();
    let data = "ulimit -d 262144";
    let refused = ["memory: the system refused", "bytes more"];
    let truth = "groundtruth --base base.fbin --queries many.fbin -k 500 -o x.bin --device cpu --threads 2";
    s.is_limited(data, truth, &refused);
    s.is_limited(data, "inspect large.ibin --threads 2", &refused);
    s.is_limited("ulimit -v 200000", truth, &refused);
}

#[test]
fn small_stacks_and_many_threads_do_no_harm() {
    let s = Session::new();
    let build = "build -i base.fbin -o x.tagore --kind nsg --knn 30 --device cpu --no-report --threads 1000";
    let built = fs::read(s.path("index.tagore")).unwrap();
    for before in ["ulimit -s 64", "export RUST_MIN_STACK=1", "export RAYON_NUM_THREADS=9999"] {
        let shell = format!("{before}; exec {} {build}", env!("CARGO_BIN_EXE_tagore"));
        let output = Command::new("sh").args(["-c", &shell]).current_dir(s.folder.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{shell}: {:?} {stderr}", output.status);
        assert!(stderr.contains("warning: 1000 threads are more than four per core"), "{stderr}");
        assert!(fs::read(s.path("x.tagore")).unwrap().len() > built.len() / 2);
    }
}

#[test]
fn values_whose_distances_overflow_are_an_error() {
    let s = Session::new();
    let header = fs::read(s.path("query.fbin")).unwrap()[..8].to_vec();
    let values: Vec<u8> = (0..160).flat_map(|i| (i as f32 * 1e20).to_le_bytes()).collect();
    fs::write(s.path("large.fbin"), [header, values].concat()).unwrap();
    let words =
        ["large.fbin: row 0, dimension 1", "at most", "in magnitude for dimension 8", "scale the data down"];
    for arguments in [
        "groundtruth --base large.fbin --queries query.fbin -k 5 -o x.bin",
        "groundtruth --base base.fbin --queries large.fbin -k 5 -o x.bin",
        "groundtruth --base large.fbin --queries large.fbin -k 5 -o x.bin --device emulated --metric ip",
        "knn -i large.fbin -o x --knn 5",
        "knn -i large.fbin -o x --knn 5 --device emulated",
        "build -i large.fbin -o x.tagore --kind nsg --knn 5",
        "build -i large.fbin -o x.tagore --kind vamana --knn 5 --device emulated --metric ip",
        "search --index index.tagore --base base.fbin --queries large.fbin -o x.bin",
        "eval --index index.tagore --base base.fbin --queries large.fbin --groundtruth gt.bin",
    ] {
        s.fails(1, arguments, &words);
    }
    s.succeeds("groundtruth --base large.fbin --queries large.fbin -k 5 -o x.bin --metric cosine");
}
