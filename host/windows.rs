//! What Windows does in its own way, as in `unix.rs`. Folders of a user's profile are closed to
//! other users, so no access rights are set or checked.

use std::ffi::c_void;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::Path;

use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT,
    GetDiskFreeSpaceExW, GetFileInformationByHandle,
};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

/// Volume and index of a file.
pub(crate) type FileId = (u64, u64);

pub(crate) fn identity(file: &File) -> io::Result<FileId> {
    information(file)
        .map(|info| (info.dwVolumeSerialNumber.into(), joined(info.nFileIndexHigh, info.nFileIndexLow)))
}

/// The identity of the file that `path` leads to.
pub(crate) fn identity_at(path: &Path) -> io::Result<FileId> {
    identity(&File::options().access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path)?)
}

/// The identity of the file or link that `path` names.
pub(crate) fn identity_of_name(path: &Path) -> io::Result<FileId> {
    let flags = FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT;
    identity(&File::options().access_mode(0).custom_flags(flags).open(path)?)
}

/// Number of names of a file.
pub(crate) fn links(file: &File) -> io::Result<u32> {
    information(file).map(|info| info.nNumberOfLinks)
}

fn information(file: &File) -> io::Result<BY_HANDLE_FILE_INFORMATION> {
    let mut info = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open, and the call writes the value alone.
    match unsafe { GetFileInformationByHandle(file.as_raw_handle(), &mut info) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(info),
    }
}

fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

pub(crate) fn special_kind(_: FileType) -> Option<&'static str> {
    None
}

pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

pub(crate) fn unblocked(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// Opens a link itself, which is no regular file.
pub(crate) fn unfollowed(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
}

pub(crate) fn is_link(_: &io::Error) -> bool {
    false
}

pub(crate) fn take_over(_: &File, _: &Metadata) -> Option<u32> {
    None
}

pub(crate) fn set_mode(_: &File, _: u32) {}

pub(crate) fn reserve(_: &File, _: u64) -> io::Result<u64> {
    Ok(0)
}

/// A rename is in the journal of the file system.
pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

pub(crate) fn advise_file(_: &File, _: Range<u64>, _: bool) {}

pub(crate) fn create_private_folders(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

pub(crate) fn check_own_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

pub(crate) fn check_own_file(_: &File) -> io::Result<()> {
    Ok(())
}

/// Free bytes of the disk of `folder` for this user.
pub(crate) fn free_disk(folder: &Path) -> io::Result<u64> {
    let path: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0;
    // SAFETY: the path ends with a zero, and the call writes the number alone.
    let found =
        unsafe { GetDiskFreeSpaceExW(path.as_ptr(), &mut free, std::ptr::null_mut(), std::ptr::null_mut()) };
    if found == 0 { Err(io::Error::last_os_error()) } else { Ok(free) }
}

/// Bytes of the machine's memory.
pub(crate) fn total_memory() -> Option<u64> {
    memory_status().map(|status| status.ullTotalPhys)
}

/// Free bytes of the machine's memory. Cached pages of files count as free.
pub(crate) fn free_memory() -> Option<u64> {
    memory_status().map(|status| status.ullAvailPhys)
}

fn memory_status() -> Option<MEMORYSTATUSEX> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the value has the length that it states, and the call writes it alone.
    (unsafe { GlobalMemoryStatusEx(&mut status) } != 0).then_some(status)
}

/// Not asked for.
pub(crate) fn peak_memory() -> Option<u64> {
    None
}

/// Whether the system would commit `bytes` bytes now.
pub(crate) fn has_room(bytes: usize) -> bool {
    let mut room = Vec::<u8>::new();
    let made = room.try_reserve_exact(bytes);
    // Else the compiler may leave the allocation out.
    std::hint::black_box(&mut room);
    made.is_ok()
}

/// # Safety
/// - None.
pub(crate) unsafe fn prefer_huge_pages(_: Range<*mut c_void>) {}

/// The system ends all other threads before it unloads a library, so no handler is needed.
pub(crate) fn at_exit(_: extern "C" fn()) {}
