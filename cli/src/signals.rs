//! Signal handlers of the command.

use std::sync::atomic::{AtomicBool, Ordering};

use tagore::Progress;

/// Installs the signal handlers. The first SIGINT, SIGTERM or SIGHUP cancels the work. A second one
/// ends the process at once: its temporary files stay, and the next run of the same command removes
/// them; copies of pipes are removed. A file beyond `ulimit -f` is an error of the write, not a
/// signal. SIGBUS in a mapped file that another process has truncated is an error too.
///
/// # Errors
/// If the system has no thread left for signals.
pub(crate) fn handle(progress: &Progress) -> Result<(), ctrlc::Error> {
    let keeps_running = is_hangup_ignored();
    let (cancel, cancelled): (Progress, AtomicBool) = (progress.clone(), AtomicBool::new(false));
    let handler = move || {
        if cancelled.swap(true, Ordering::Relaxed) {
            end(crate::INTERRUPTED.into());
        }
        cancel.cancel();
    };
    ctrlc::set_handler(handler)?;
    if keeps_running {
        ignore_hangup();
    }
    ignore_file_size();
    report_short_files();
    Ok(())
}

/// Whether SIGHUP is ignored, as under nohup.
#[cfg(unix)]
fn is_hangup_ignored() -> bool {
    // SAFETY: the call reads a disposition into a value, for which all zeros are valid.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(unix)]
fn ignore_hangup() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

#[cfg(unix)]
fn ignore_file_size() {
    // SAFETY: ignoring a signal runs no code; writes beyond the limit then return an error.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Ends the command with an error on SIGBUS in a mapped file that was truncated.
#[cfg(unix)]
fn report_short_files() {
    extern "C" fn cut_short(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system passes a valid siginfo, with the address of the fault.
        let address = unsafe { (*info).si_addr() } as usize;
        with_mapped_file_at(address, |name| {
            last_words(&[
                b"error: ",
                name,
                b": found its end, expected more: it was cut short while it was read\n",
            ])
        });
        // Another fault: the instruction runs again, and the signal ends the process.
        // SAFETY: the default of a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the handler takes neither locks nor memory. All zeros are a valid action.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = cut_short as *const () as usize;
        // On the stack of the reading thread, which has room: alternate stacks are small.
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Calls `tell` with the name of the mapped file at `address`, if any. For a signal handler: takes
/// no locks and allocates nothing.
#[cfg(unix)]
fn with_mapped_file_at(address: usize, tell: impl FnOnce(&[u8])) {
    use rustix::fs::{Mode, OFlags, open};
    // Linux alone has it; elsewhere the signal ends the process.
    let Ok(maps) = open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
    // A longer line is cut.
    let (mut line, mut len, mut chunk) = ([0; 1000], 0, [0; 512]);
    while let Ok(read @ 1..) = rustix::io::read(&maps, &mut chunk) {
        for &byte in &chunk[..read] {
            if byte == b'\n' {
                if let Some(name) = mapped_at(&line[..len], address) {
                    return tell(name);
                }
                len = 0;
            } else if let Some(place) = line.get_mut(len) {
                (*place, len) = (if byte.is_ascii_control() { b'?' } else { byte }, len + 1);
            }
        }
    }
}

/// The path in a line of `/proc/self/maps`, if the line is that of `address`.
#[cfg(unix)]
fn mapped_at(line: &[u8], address: usize) -> Option<&[u8]> {
    let number = |digits| usize::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
    let range = line.split(|&byte| byte == b' ').next()?;
    let hyphen = range.iter().position(|&byte| byte == b'-')?;
    let (begin, end) = (number(&range[..hyphen])?, number(&range[hyphen + 1..])?);
    let path = line.iter().position(|&byte| byte == b'/')?;
    (begin..end).contains(&address).then_some(&line[path..])
}

/// Writes a line to standard error and ends the process with 1, without locks or allocation. If
/// several threads call it, the first one writes.
#[cfg(unix)]
pub(super) fn last_words(parts: &[&[u8]]) -> ! {
    static SPOKEN: AtomicBool = AtomicBool::new(false);
    while SPOKEN.swap(true, Ordering::Relaxed) {
        // SAFETY: the call waits for a signal. The other thread ends the process.
        unsafe { libc::pause() };
    }
    for part in parts {
        // SAFETY: the pointer and the length are those of a slice. A failed write is ignored.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    end(1)
}

/// Ends the process without exit handlers.
#[cfg(unix)]
fn end(code: i32) -> ! {
    crate::spool::remove();
    // SAFETY: nothing of this process runs afterwards.
    unsafe { libc::_exit(code) }
}

#[cfg(not(unix))]
fn is_hangup_ignored() -> bool {
    false
}

#[cfg(not(unix))]
fn ignore_hangup() {}

#[cfg(not(unix))]
fn ignore_file_size() {}

#[cfg(not(unix))]
fn report_short_files() {}

#[cfg(not(unix))]
fn end(code: i32) -> ! {
    crate::spool::remove();
    std::process::exit(code)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_mapped_file() {
        fn here() {}
        let mut found = Vec::new();
        with_mapped_file_at(here as fn() as usize, |name| found = name.to_owned());
        let program = std::env::current_exe().unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), program.to_str().unwrap());
        let heap = Box::new(7u64);
        with_mapped_file_at(&raw const *heap as usize, |_| panic!("no file is mapped there"));
        with_mapped_file_at(0, |_| panic!("nothing is mapped there"));
    }

    #[test]
    fn lines_of_maps_are_ranges_and_paths() {
        let line = b"7f10-7f20 r--s 00000000 fd:01 131   /data/a file.fbin";
        for (address, is_inside) in [(0x7f0f, false), (0x7f10, true), (0x7f1f, true), (0x7f20, false)] {
            assert_eq!(mapped_at(line, address), is_inside.then_some(&b"/data/a file.fbin"[..]));
        }
        for other in [&b"7f10-7f20 rw-p 00000000 00:00 0   [heap]"[..], b"7f10", b""] {
            assert_eq!(mapped_at(other, 0x7f10), None);
        }
    }
}
