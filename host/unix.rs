//! What Unix does in its own way: access rights, identities of files, memory. `windows.rs` has the
//! same functions.

use std::ffi::c_void;
use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use crate::memory::kibibytes;

/// Device and inode of a file.
pub(crate) type FileId = (u64, u64);

pub(crate) fn identity(file: &File) -> io::Result<FileId> {
    file.metadata().map(id)
}

/// The identity of the file that `path` leads to.
pub(crate) fn identity_at(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(id)
}

/// The identity of the file or link that `path` names.
pub(crate) fn identity_of_name(path: &Path) -> io::Result<FileId> {
    fs::symlink_metadata(path).map(id)
}

fn id(found: Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// The kind of a special file, if it has a name.
pub(crate) fn special_kind(kind: FileType) -> Option<&'static str> {
    if kind.is_fifo() { Some("a pipe") } else { kind.is_socket().then_some("a socket") }
}

/// Opens a file that the options create for its user alone.
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

/// Opens a pipe without waiting for its other end.
pub(crate) fn unblocked(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(libc::O_NONBLOCK)
}

/// As [`unblocked`], and opens no link: [`is_link`] knows the error.
pub(crate) fn unfollowed(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
}

pub(crate) fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

/// Gives `file`, which replaces `old`, the owner and group of `old` where that is allowed, and
/// returns its mode. The user can read and write it until then.
pub(crate) fn take_over(file: &File, old: &Metadata) -> Option<u32> {
    let own = file.metadata().ok()?;
    let mut mode = old.mode() & 0o777;
    if own.gid() != old.gid() && fchown(file, None, Some(old.gid())).is_err() {
        // Another group gets the access of all others at most.
        mode &= 0o707 | (mode & 0o007) << 3;
    }
    if own.uid() != old.uid() {
        // Only an administrator may give a file away.
        let _ = fchown(file, Some(old.uid()), None);
    }
    file.set_permissions(Permissions::from_mode(mode | 0o600)).ok()?;
    Some(mode)
}

/// Sets the mode of [`take_over`].
pub(crate) fn set_mode(file: &File, mode: u32) {
    // The older file may have been closed to its own user.
    let _ = file.set_permissions(Permissions::from_mode(mode));
}

/// Takes blocks for the first `bytes` bytes, where the file system gives them in advance. Returns
/// how many bytes have pages in memory by then: all of a file on tmpfs, none of others.
///
/// # Errors
/// If the disk or a quota has no room for them.
pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<u64> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate, fstatfs};
        use rustix::io::Errno;
        const TMPFS: u64 = 0x0102_1994;
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) if fstatfs(file).is_ok_and(|found| found.f_type as u64 == TMPFS) => return Ok(bytes),
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => return Err(error.into()),
            // Other errors are those of file systems that give blocks when they are written.
            _ => {}
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, bytes);
    Ok(0)
}

/// Waits until the names in a folder are on disk: a rename lasts only then.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Advises that bytes of a file are needed soon, or never again.
pub(crate) fn advise_file(file: &File, bytes: Range<u64>, soon: bool) {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Advice, fadvise};
        let advice = if soon { Advice::WillNeed } else { Advice::DontNeed };
        // Reading works without the advice.
        let _ = fadvise(file, bytes.start, std::num::NonZeroU64::new(bytes.end - bytes.start), advice);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, bytes, soon);
}

/// Creates a folder for its user alone, with all above it.
pub(crate) fn create_private_folders(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Refuses a folder that is not the user's own, that others can write to, or that others can
/// replace: they can if they can write to a folder above it, unless that is sticky as `/tmp` is.
pub(crate) fn check_own_folder(folder: &Path) -> io::Result<()> {
    const STICKY: u32 = 0o1000;
    let (user, found) = (rustix::process::geteuid().as_raw(), fs::metadata(folder)?);
    if found.uid() != user || found.mode() & 0o022 != 0 {
        return Err(refused("the folder belongs to another user, or others can write to it"));
    }
    // All folders above it: along the path as given, and along the path with its links resolved.
    let (path, real) = (std::path::absolute(folder)?, fs::canonicalize(folder)?);
    for above in path.ancestors().skip(1).chain(real.ancestors().skip(1)) {
        let found = fs::metadata(above)?;
        let is_closed = found.mode() & 0o022 == 0 || found.mode() & STICKY != 0;
        if !is_closed || ![user, 0].contains(&found.uid()) {
            return Err(refused("a folder above it belongs to another user, or others can write to it"));
        }
    }
    Ok(())
}

/// Refuses an open file that is not the user's own, or that others can open.
pub(crate) fn check_own_file(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    let is_private = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if is_private && found.is_file() {
        Ok(())
    } else {
        Err(refused("not a file of this user with mode 0600"))
    }
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// Bytes of the machine's memory, where the system has `/proc`, as Linux does.
pub(crate) fn total_memory() -> Option<u64> {
    bytes_in("/proc/meminfo", "MemTotal:")
}

/// Free bytes of the machine's memory. Cached pages of files count as free.
pub(crate) fn free_memory() -> Option<u64> {
    bytes_in("/proc/meminfo", "MemAvailable:")
}

/// Peak resident memory of this process, in bytes.
pub(crate) fn peak_memory() -> Option<u64> {
    bytes_in("/proc/self/status", "VmHWM:")
}

/// The value in kB after `name` in `file`, in bytes.
fn bytes_in(file: &str, name: &str) -> Option<u64> {
    kibibytes(&fs::read_to_string(file).ok()?, name)
}

/// Whether the system would map `bytes` bytes now.
pub(crate) fn has_room(bytes: usize) -> bool {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    share_heap_if_limited();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the system chooses.
    let room = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
    // SAFETY: the mapping above, which nothing refers to. If it fails, address space is lost.
    room.map(|room| _ = unsafe { munmap(room, bytes) }).is_ok()
}

/// Makes all threads share one heap where the address space is limited. Else glibc tries to map
/// 64 MiB for a new thread, at each of its allocations if they do not fit, and takes the memory of
/// small allocations by other threads meanwhile.
fn share_heap_if_limited() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if rustix::process::getrlimit(rustix::process::Resource::As).current.is_some() {
        static SHARED: std::sync::Once = std::sync::Once::new();
        // SAFETY: glibc changes one integer under the lock of its main heap. Threads that read it
        // meanwhile, to decide whether to map a heap, find the old or the new number.
        SHARED.call_once(|| _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) });
    }
}

/// Asks for huge pages in a range of addresses.
///
/// # Safety
/// - The range belongs to one allocation.
pub(crate) unsafe fn prefer_huge_pages(pages: Range<*mut c_void>) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        /// Upper bound of the small page size: `madvise` takes whole pages.
        const PAGE: usize = 64 << 10;
        let (begin, end) = ((pages.start as usize).next_multiple_of(PAGE), pages.end as usize / PAGE * PAGE);
        if begin < end {
            // SAFETY: the caller's promise; the advice does not change the contents of pages. If it
            // fails, pages stay small.
            let _ = unsafe { madvise(begin as *mut _, end - begin, Advice::LinuxHugepage) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = pages;
}

/// Calls `function` when the process exits, before the handlers that were there.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the handler takes no arguments and does not unwind.
    unsafe { libc::atexit(function) };
}
