//! Signal handlers of the command.

use std::sync::atomic::{AtomicBool, Ordering};

use tagore::Progress;

/// Exit code after a second signal.
const ENDED: i32 = 130;

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
            end(ENDED);
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
        tagore::with_mapped_file_at(address, |name| {
            last_words(&[
                b"error: ",
                name.as_bytes(),
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
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
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
