//! Temporary copies of vectors: from standard input and from pipes, and in other formats than the
//! library maps. Vectors are read several times. The copies are removed at the end of the command,
//! also after a signal.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{IsTerminal, Read, Write, stdin};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{io, thread};

use clap::builder::{OsStringValueParser, TypedValueParser};
use tagore::{Error, Progress};
use tagore_text::path_text;

use crate::output::STANDARD;

/// Maximum number of pipes of one command: a base, queries and one more.
const MAX_PIPES: usize = 4;

/// Time between two checks for a signal while a pipe is silent.
const CHECK: Duration = Duration::from_millis(50);

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// A pipe of the command line and its copy.
struct Spooled {
    /// The name on the command line.
    source: PathBuf,
    /// Path of the copy.
    copy: PathBuf,
    is_filled: bool,
}

impl Spooled {
    fn is_standard(&self) -> bool {
        self.source.as_os_str() == STANDARD
    }

    /// The name in messages.
    fn name(&self) -> String {
        if self.is_standard() { "standard input".to_owned() } else { path_text(&self.source) }
    }
}

static SPOOLED: Mutex<Vec<Spooled>> = Mutex::new(Vec::new());

/// Maximum number of copies of one command: of each pipe, its bytes, those decompressed, an array
/// of them, and its rows.
#[cfg(unix)]
const MAX_COPIES: usize = 4 * MAX_PIPES;

/// Paths of existing copies, for code that may not lock or allocate.
#[cfg(unix)]
static COPIES: [OnceLock<std::ffi::CString>; MAX_COPIES] = [const { OnceLock::new() }; MAX_COPIES];

/// The progress that a signal cancels.
static PROGRESS: OnceLock<Progress> = OnceLock::new();

fn spooled() -> MutexGuard<'static, Vec<Spooled>> {
    SPOOLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the handle that stops the copying of pipes.
pub(crate) fn stop_with(progress: &Progress) {
    // A second call would be another command in this process.
    let _ = PROGRESS.set(progress.clone());
}

/// Parser of the path of vectors: a file, `-` for standard input, or a pipe. Returns the path of
/// the copy of a pipe, which [`fill`] makes.
pub(crate) fn vectors() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text| place(PathBuf::from(text)))
}

fn place(path: PathBuf) -> Result<PathBuf, String> {
    let is_standard = path.as_os_str() == STANDARD;
    if !is_standard && !is_pipe(&path) {
        return Ok(path);
    }
    if is_standard && stdin().is_terminal() {
        return Err("found a terminal as standard input, expected a pipe or a redirected file".to_owned());
    }
    let mut all = spooled();
    if all.iter().any(|other| other.source == path) {
        return Err(format!("found {} twice, expected it once: a pipe is read once", path.display()));
    }
    if all.len() == MAX_PIPES {
        return Err(format!("found more than {MAX_PIPES} pipes, expected files"));
    }
    let copy = new_copy(path.extension().unwrap_or_default());
    all.push(Spooled { source: path, copy: copy.clone(), is_filled: false });
    Ok(copy)
}

/// The path of a new copy.
fn new_copy(extension: impl AsRef<OsStr>) -> PathBuf {
    // Hashers are seeded at random.
    let name = std::hash::RandomState::new().build_hasher().finish();
    std::env::temp_dir().join(format!("tagore-{name:016x}")).with_extension(extension)
}

#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_pipe(_: &Path) -> bool {
    false
}

/// Whether `path` is the copy of a pipe.
pub(crate) fn is_copy(path: &Path) -> bool {
    spooled().iter().any(|spooled| spooled.copy == path)
}

/// `text` with the names of pipes in place of the paths of their copies.
pub(crate) fn named(text: &str) -> Cow<'_, str> {
    let mut named = Cow::Borrowed(text);
    for spooled in spooled().iter() {
        let copy = path_text(&spooled.copy);
        if named.contains(&copy) {
            named = named.replace(&copy, &spooled.name()).into();
        }
    }
    named
}

/// Copies a pipe to its file, if `path` is the copy of one and is not yet made.
///
/// # Errors
/// If the pipe cannot be read, the copy cannot be written, or the work is cancelled.
pub(crate) fn fill(path: &Path) -> Result<(), Error> {
    let mut all = spooled();
    let Some((number, spooled)) = all.iter_mut().enumerate().find(|(_, spooled)| spooled.copy == path) else {
        return Ok(());
    };
    if spooled.is_filled {
        return Ok(());
    }
    let to = create_file(number, &spooled.copy)?;
    spooled.is_filled = true;
    let (source, copy) = (spooled.source.clone(), spooled.copy.clone());
    // Errors name the pipe, which takes the lock.
    drop(all);
    copy_all(&source, to, &copy)
}

/// Creates a file for a copy of `source`, with this extension. It is removed at the end of the
/// command, and messages name the source in its place.
///
/// # Errors
/// If the file cannot be created.
pub(crate) fn create(source: &Path, extension: &str) -> Result<(File, PathBuf), Error> {
    let source = PathBuf::from(&*named(&path_text(source)));
    let mut all = spooled();
    let copy = new_copy(extension);
    let file = create_file(all.len(), &copy)?;
    all.push(Spooled { source, copy: copy.clone(), is_filled: true });
    Ok((file, copy))
}

/// Removes a copy before the end of the command.
pub(crate) fn discard(copy: &Path) {
    // A failure is ignored: it is removed at the end, too.
    let _ = std::fs::remove_file(copy);
}

/// Fails if the work is cancelled.
pub(crate) fn check() -> Result<(), Error> {
    if PROGRESS.get().is_some_and(Progress::is_cancelled) { Err(Error::Cancelled) } else { Ok(()) }
}

fn create_file(number: usize, copy: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    note(number, copy);
    options.open(copy).map_err(|error| no_copy(copy, &error))
}

/// The error of a copy that cannot be written.
pub(crate) fn no_copy(copy: &Path, error: &io::Error) -> Error {
    let found = format!("no room for a copy in {}: {error}", path_text(&std::env::temp_dir()));
    Error::File { path: copy.to_owned(), found, expected: "another folder by TMPDIR".to_owned() }
}

/// Copies all bytes of `source`. A thread opens and reads it, so that a signal stops the command
/// while the pipe has no writer or is silent.
fn copy_all(source: &Path, mut to: File, copy: &Path) -> Result<(), Error> {
    let failed = |path: &Path, source| Error::Io { path: path.to_owned(), source };
    let (send, pieces) = channel::<io::Result<Vec<u8>>>();
    let (take, taken) = channel::<()>();
    let from = source.to_owned();
    let reader = move || {
        let mut from: Box<dyn Read> = if from.as_os_str() == STANDARD {
            Box::new(stdin())
        } else {
            match File::open(from) {
                Ok(file) => Box::new(file),
                // A closed channel means that the work was cancelled.
                Err(error) => {
                    let _ = send.send(Err(error));
                    return;
                }
            }
        };
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read = from.by_ref().take(PIECE as u64).read_to_end(&mut piece).map(|_| piece);
            let is_last = read.as_ref().map_or(true, Vec::is_empty);
            // One piece waits at a time.
            if send.send(read).is_err() || is_last || taken.recv().is_err() {
                return;
            }
        }
    };
    thread::Builder::new().spawn(reader).map_err(|error| failed(source, error))?;
    loop {
        check()?;
        match pieces.recv_timeout(CHECK) {
            Ok(Ok(piece)) if piece.is_empty() => return Ok(()),
            Ok(Ok(piece)) => to.write_all(&piece).map_err(|error| no_copy(copy, &error))?,
            Ok(Err(error)) => return Err(failed(source, error)),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        // A reader that has ended sends an error or an end first.
        let _ = take.send(());
    }
}

#[cfg(unix)]
fn note(number: usize, copy: &Path) {
    use std::os::unix::ffi::OsStrExt;
    if let Ok(path) = std::ffi::CString::new(copy.as_os_str().as_bytes()) {
        // Each number is noted once. No command has more.
        let _ = COPIES.get(number).map(|copy| copy.set(path));
    }
}

#[cfg(not(unix))]
fn note(_: usize, _: &Path) {}

/// Removes all copies, without locks or allocation.
#[cfg(unix)]
pub(crate) fn remove() {
    for copy in COPIES.iter().filter_map(OnceLock::get) {
        // SAFETY: the pointer is that of a C string. A failure is ignored: the command ends.
        unsafe { libc::unlink(copy.as_ptr()) };
    }
}

/// Removes all copies.
#[cfg(not(unix))]
pub(crate) fn remove() {
    for spooled in spooled().iter().filter(|spooled| spooled.is_filled) {
        // A failure is ignored: the command ends.
        let _ = std::fs::remove_file(&spooled.copy);
    }
}
