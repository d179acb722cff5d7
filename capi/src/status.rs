//! Statuses, the message of the last error, and the border that no panic crosses.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use tagore::{Error, check_room, one_line};

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

thread_local! {
    static LAST: RefCell<Kept> = const { RefCell::new(Kept::Text(Vec::new())) };
}

/// A message that is kept.
enum Kept {
    /// It ends with a zero byte, or is empty.
    Text(Vec<u8>),
    /// Memory was too short for the message.
    Short,
}

impl Kept {
    fn of(message: &Message) -> Self {
        let mut text = Room(Vec::new());
        let written = match message {
            Message::Text(message) => text.write_str(message),
            Message::Error(error) => write!(text, "{error}"),
        };
        let ended = written.and_then(|()| text.add(b"\0"));
        ended.map_or(Self::Short, |()| Self::Text(text.0))
    }

    fn as_ptr(&self) -> *const c_char {
        const SHORT: &CStr = c"memory of the host is short, and there is none for a longer message";
        match self {
            Self::Text(text) if text.is_empty() => c"".as_ptr(),
            Self::Text(text) => text.as_ptr().cast(),
            Self::Short => SHORT.as_ptr(),
        }
    }
}

/// Text that is an error where memory is short.
struct Room(Vec<u8>);

impl Room {
    fn add(&mut self, bytes: &[u8]) -> fmt::Result {
        self.0.try_reserve(bytes.len()).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

impl Write for Room {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut pieces = text.split('\0');
        pieces.next().map_or(Ok(()), |first| self.add(first.as_bytes()))?;
        pieces.try_for_each(|piece| self.add(b"\\0").and_then(|()| self.add(piece.as_bytes())))
    }
}

/// The message of the last call that failed on this thread: one line, in UTF-8, empty if none has
/// failed. It is valid until the next call fails on this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs a call: keeps the message of its failure, and stops panics. A panic leaves no handle in an
/// unsound state: handles are read only, but for a builder, which is replaced as a whole.
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
    let _ = LAST.try_with(|last| last.replace(Kept::of(&failure.message)));
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
        // SAFETY: it was set above.
        assert!(unsafe { out.assume_init() }.is_null() && last().ends_with("no memory"));
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
