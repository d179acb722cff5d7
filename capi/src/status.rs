//! Statuses, the message of the last error, and the border that no panic crosses.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use tagore::{Error, check_room};
use tagore_text::one_line;

/// The result of a call: `TAGORE_OK`, or the kind of its error.
pub type tagore_status = i32;

/// Done.
pub const TAGORE_OK: tagore_status = 0;
/// An argument is a null pointer, out of its range, an unknown name, or at odds with another.
pub const TAGORE_ERROR_ARGUMENT: tagore_status = 1;
/// A file could not be read or written.
pub const TAGORE_ERROR_IO: tagore_status = 2;
/// A file has unexpected content.
pub const TAGORE_ERROR_FILE: tagore_status = 3;
/// A value of a vector cannot be used: a NaN, an infinity, or too large for the metric.
pub const TAGORE_ERROR_VALUE: tagore_status = 4;
/// Two inputs do not belong together, such as an index and other vectors than its own.
pub const TAGORE_ERROR_MISMATCH: tagore_status = 5;
/// A callback of the program reported a failure.
pub const TAGORE_ERROR_CALLBACK: tagore_status = 6;
/// A device, or its driver, is missing or failed.
pub const TAGORE_ERROR_DEVICE: tagore_status = 7;
/// A device has too little memory.
pub const TAGORE_ERROR_DEVICE_MEMORY: tagore_status = 8;
/// A progress callback cancelled the work.
pub const TAGORE_ERROR_CANCELLED: tagore_status = 9;
/// The system refused memory of the host, or address space for it.
pub const TAGORE_ERROR_MEMORY: tagore_status = 11;
/// A defect of the library, with a message for a report of it.
pub const TAGORE_ERROR_INTERNAL: tagore_status = 10;

/// The failure of a call.
pub(crate) struct Failure {
    status: tagore_status,
    message: Message,
}

/// The message of a failure.
enum Message {
    Text(String),
    /// Written when it is kept: memory may be short.
    Error(Error),
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// An argument that does not fit.
    pub(crate) fn argument(name: &str, found: impl ToString, expected: impl ToString) -> Self {
        let (found, expected) = (one_line(&found.to_string(), 160), expected.to_string());
        Self {
            status: TAGORE_ERROR_ARGUMENT,
            message: Message::Text(format!("{name}: found {found}, expected {expected}")),
        }
    }

    /// A null pointer.
    pub(crate) fn null(name: &str) -> Self {
        Self::argument(name, "a null pointer", "an address")
    }

    /// A panic, caught at the border.
    fn internal(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text");
        let message = format!("a defect of the library: {}", one_line(text, 800));
        Self { status: TAGORE_ERROR_INTERNAL, message: Message::Text(message) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Argument { .. } => TAGORE_ERROR_ARGUMENT,
            Error::Io { .. } => TAGORE_ERROR_IO,
            Error::File { .. } | Error::Unfinished { .. } => TAGORE_ERROR_FILE,
            Error::Value { .. } => TAGORE_ERROR_VALUE,
            Error::Mismatch { .. } => TAGORE_ERROR_MISMATCH,
            Error::Store { .. } => TAGORE_ERROR_CALLBACK,
            Error::Device { .. } => TAGORE_ERROR_DEVICE,
            Error::DeviceMemory { .. } => TAGORE_ERROR_DEVICE_MEMORY,
            Error::HostMemory { .. } => TAGORE_ERROR_MEMORY,
            Error::Cancelled => TAGORE_ERROR_CANCELLED,
            _ => TAGORE_ERROR_INTERNAL,
        };
        Self { status, message: Message::Error(error) }
    }
}

/// Room for a message and its zero byte. A longer one is cut.
const ROOM: usize = 2048;

thread_local! {
    /// It needs neither memory nor a destructor: both may be missing where memory is short.
    static LAST: RefCell<[u8; ROOM]> = const { RefCell::new([0; ROOM]) };
}

/// Writes a message to its room, with `\0` for a zero byte.
struct Writer<'a> {
    room: &'a mut [u8; ROOM],
    used: usize,
}

impl Write for Writer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let mut bytes = [0; 4];
            let bytes = if character == '\0' { b"\\0" } else { character.encode_utf8(&mut bytes).as_bytes() };
            let place = self.room[..ROOM - 1].get_mut(self.used..self.used + bytes.len());
            place.ok_or(fmt::Error)?.copy_from_slice(bytes);
            self.used += bytes.len();
        }
        Ok(())
    }
}

/// Keeps a message as the last one of this thread.
fn keep(message: &Message, room: &mut [u8; ROOM]) {
    let mut writer = Writer { room, used: 0 };
    // An error means that the message is cut.
    let _ = match message {
        Message::Text(message) => writer.write_str(message),
        Message::Error(error) => write!(writer, "{error}"),
    };
    let used = writer.used;
    room[used] = 0;
}

/// The message of the last call that failed on this thread: one line, in UTF-8, empty if none has
/// failed. It is valid until the next call fails on this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr().cast()).unwrap_or(c"".as_ptr())
}

/// Runs a call: keeps the message of its failure, and stops panics. A panic leaves no handle in an
/// unsound state: handles are read only, but for a builder, which is replaced as a whole, and a
/// live index, which survives a change that panics.
pub(crate) fn call(work: impl FnOnce() -> Result<()>) -> tagore_status {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return TAGORE_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let changed = tagore::changed_while_read().map(Failure::from);
            let failure = changed.unwrap_or_else(|| Failure::internal(&*panic));
            // Dropping the payload of another's panic may panic too.
            std::mem::forget(panic);
            failure
        }
    };
    // Fails on a thread that is about to end: its last message is lost.
    let _ = LAST.try_with(|last| keep(&failure.message, &mut last.borrow_mut()));
    failure.status
}

/// Runs a call that makes a handle. The handle is null if it fails.
pub(crate) fn make<T>(
    out: Option<&mut MaybeUninit<*mut T>>,
    work: impl FnOnce() -> Result<T>,
) -> tagore_status {
    call(|| {
        let out = out.ok_or_else(|| Failure::null("out"))?;
        out.write(ptr::null_mut());
        check_room(0)?;
        out.write(Box::into_raw(Box::new(work()?)));
        Ok(())
    })
}

/// Frees a handle, if any.
pub(crate) fn free<T>(handle: Option<Box<T>>) {
    call(|| {
        drop(handle);
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: a text of this thread, which no call replaces meanwhile.
        unsafe { CStr::from_ptr(tagore_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_status() {
        assert_eq!(call(|| panic!("list {} of {}", 3, 2)), TAGORE_ERROR_INTERNAL);
        assert_eq!(last(), "a defect of the library: list 3 of 2");
        let mut out = MaybeUninit::new(ptr::dangling_mut());
        assert_eq!(make::<u8>(Some(&mut out), || panic!("no memory")), TAGORE_ERROR_INTERNAL);
        // SAFETY: it was made of a pointer, and `make` writes null.
        assert!(unsafe { out.assume_init() }.is_null() && last().ends_with("no memory"));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = format!("a\0{}", "ä".repeat(ROOM));
        call(|| Err(Failure { status: TAGORE_ERROR_FILE, message: Message::Text(long) }));
        assert_eq!(last(), format!("a\\0{}", "ä".repeat((ROOM - 4) / 2)));
    }

    #[test]
    fn each_thread_has_its_last_message() {
        let fails = |name: &str| call(|| Err(Failure::null(name)));
        assert_eq!(fails("here"), TAGORE_ERROR_ARGUMENT);
        std::thread::spawn(move || {
            assert_eq!(last(), "");
            fails("there");
            assert_eq!(last(), "there: found a null pointer, expected an address");
        })
        .join()
        .unwrap();
        // A call that works leaves the message.
        assert_eq!(call(|| Ok(())), TAGORE_OK);
        assert_eq!(last(), "here: found a null pointer, expected an address");
    }
}
