//! Signals: one stops the work during any read, a second one ends the process at once, and no file
//! is left.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl, inotify};
use tagore::Synth;

use super::Session;

/// Rows of a file with minutes of reading.
const LARGE: u64 = 250_000_000;

/// Kills a process after two minutes, so that no test hangs.
struct Guard(Sender<()>);

impl Guard {
    fn new(child: &Child) -> Self {
        let (ended, wait) = channel();
        let process = child.id();
        thread::spawn(move || {
            if wait.recv_timeout(Duration::from_secs(120)).is_err() {
                send(process, "KILL");
            }
        });
        Self(ended)
    }

    fn wait(self, mut child: Child) -> ExitStatus {
        let status = child.wait().unwrap();
        self.0.send(()).unwrap();
        status
    }
}

fn send(process: u32, signal: &str) {
    Command::new("sh").args(["-c", &format!("kill -{signal} {process}")]).status().unwrap();
}

impl Session {
    /// Makes a sparse file of zeros, with 96 components of 4 bytes per row.
    fn zeros(&self, name: &str, rows: u64) {
        let file = File::create_new(self.path(name)).unwrap();
        file.write_all_at(bytemuck::cast_slice(&[rows as u32, 96]), 0).unwrap();
        file.set_len(8 + rows * 96 * 4).unwrap();
    }

    /// Runs the command and calls `act` with its process id when `stage` begins. Returns the exit
    /// code and the last line of standard error.
    fn meanwhile(&self, mut command: Command, stage: &str, act: impl Fn(u32)) -> (Option<i32>, String) {
        command.args(["--log", "debug", "--threads", "2"]).stderr(Stdio::piped()).stdout(Stdio::null());
        // Under nohup these tests ignore SIGHUP, and so would the command.
        let hear_hangups = || {
            // SAFETY: the default of a signal runs no code.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: setting a signal's default takes neither locks nor memory.
        unsafe { command.pre_exec(hear_hangups) };
        let mut child = command.spawn().unwrap();
        let guard = Guard::new(&child);
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let begins = format!("a stage begins stage=\"{stage}\"");
        let mut line = String::new();
        while !line.contains(&begins) {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "no stage {stage}: {command:?}");
        }
        act(child.id());
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        (guard.wait(child).code(), rest.lines().last().unwrap_or_default().to_owned())
    }
}

#[test]
fn a_signal_stops_whatever_reads_a_large_file() {
    let s = Session::new();
    s.zeros("large.fbin", LARGE);
    s.zeros("medium.fbin", 700_000);
    let query = fs::read(s.path("query.fbin")).unwrap();
    let rows: Vec<u8> = query[8..].chunks(32).flat_map(|row| row.repeat(12)).collect();
    fs::write(s.path("wide.fbin"), [&query[..4], &96u32.to_le_bytes(), &rows].concat()).unwrap();
    let before = s.names();
    let build = |base: &str, memory: &str| {
        format!("build -i {base} -o x.tagore --kind nsg --device cpu --host-memory {memory}")
    };
    let truth = "groundtruth --base large.fbin --queries wide.fbin -o x.bin --device cpu";
    for (arguments, stage, signal) in [
        ("inspect large.fbin --all", "check", "INT"),
        ("convert large.fbin x.fvecs", "check", "INT"),
        (truth, "check", "TERM"),
        ("groundtruth --base large.fbin --queries wide.fbin -o x.bin --metric ip", "check", "HUP"),
        ("knn -i large.fbin -o x --device cpu", "check", "TERM"),
        (&build("large.fbin", "4096GiB"), "check", "HUP"),
        (&build("medium.fbin", "512MiB"), "partition", "TERM"),
    ] {
        let (code, last) = s.meanwhile(s.command(arguments), stage, |process| send(process, signal));
        assert_eq!((code, last.as_str()), (Some(130), "error: interrupted"), "{arguments}, SIG{signal}");
        // A build out of core that is past its partition keeps its work files for `--resume`.
        let mut after = s.names();
        after.retain(|name| stage != "partition" || name != "x.tagore.work");
        assert_eq!(after, before, "{arguments}: files were left behind");
    }
}

/// Waits until a file of this name appears in a watched folder.
fn created(watch: &OwnedFd, name: &str) {
    let mut buffer = [const { MaybeUninit::uninit() }; 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    while events.next().unwrap().file_name().is_none_or(|found| found.to_bytes() != name.as_bytes()) {}
}

#[test]
fn ctrl_c_stops_a_build_and_leaves_nothing_behind() {
    let s = Session::new();
    Synth::new(20_000, 64, 1).unwrap().base().save(s.path("large.fbin")).unwrap();
    let before = s.names();
    // These iterations take far longer than the test.
    let command = s.command("build -i large.fbin -o x.tagore --kind nsg --start random --iterations 900,900");
    let (code, last) = s.meanwhile(command, "join", |process| send(process, "INT"));
    assert_eq!((code, last.as_str()), (Some(130), "error: interrupted"));
    assert_eq!(s.names(), before);
}

#[test]
fn a_second_signal_ends_the_command_at_once() {
    let s = Session::new();
    // Its standard error is a full pipe without a reader: the command blocks even when cancelled.
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'.'; 512]).map_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock)).is_ok()
    {
    }
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, s.folder.path(), inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CREATE)
        .unwrap();
    let mut command = s.command("convert base.fbin copy.fvecs");
    let child = command.stderr(writer).spawn().unwrap();
    let guard = Guard::new(&child);
    created(&watch, "copy.fvecs");
    send(child.id(), "INT");
    send(child.id(), "TERM");
    assert_eq!(guard.wait(child).code(), Some(130));
    drop(reader);
}

#[test]
fn a_file_that_is_cut_short_while_it_is_read_is_an_error() {
    let s = Session::new();
    s.zeros("large.fbin", LARGE);
    let large = fs::OpenOptions::new().write(true).open(s.path("large.fbin")).unwrap();
    let cut = || large.set_len(4096).unwrap();
    let (code, last) = s.meanwhile(s.command("inspect large.fbin --all"), "check", |_| cut());
    let path = s.path("large.fbin").canonicalize().unwrap();
    let expected = format!(
        "error: {}: found its end, expected more: it was cut short while it was read",
        path.display()
    );
    assert_eq!((code, last), (Some(1), expected));
}

#[test]
fn nohup_is_respected() {
    let s = Session::new();
    s.zeros("large.fbin", LARGE);
    let mut command = Command::new("sh");
    let shell = format!("trap '' HUP; exec {} inspect large.fbin --all \"$@\"", env!("CARGO_BIN_EXE_tagore"));
    command.args(["-c", &shell, "sh"]).current_dir(s.folder.path());
    let mut child = command.args(["--log", "debug"]).stderr(Stdio::piped()).spawn().unwrap();
    let guard = Guard::new(&child);
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(stderr.any(|line| line.unwrap().contains("a stage begins")));
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    send(child.id(), "INT");
    stderr.for_each(drop);
    assert_eq!(guard.wait(child).code(), Some(130));
    assert_eq!(ignored & 1, 1, "SIGHUP is not ignored: {ignored:x}");
}
