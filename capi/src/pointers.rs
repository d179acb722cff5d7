//! Pointers of the caller as Rust sees them.
//!
//! Every function of the interface trusts its caller as any C function does: a pointer that is not
//! null is valid for what the header says, for as long as it says. The functions here turn such
//! pointers into values and references; the rest of the crate holds no more of them than it must.

use std::ffi::{CStr, CString, OsString, c_char, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::slice;

use crate::status::{Failure, Result, tagore_status};

/// The most bytes of a struct of any version.
const MOST: usize = 4096;

/// A struct that begins with its size, and may grow at its end.
///
/// # Safety
/// The first field is the size, a `usize`. Zero bytes, and all values that a C caller can write,
/// are values of every field.
///
/// There is no padding at the end (`reserved` fills it): a later field there would not change the
/// size, and old programs leave garbage in it.
pub(crate) unsafe trait Sized: Copy {
    /// The name, for errors.
    const NAME: &str;
}

/// Declares structs of the interface.
macro_rules! sized {
    ($($name:ident),+) => {$(
        // SAFETY: it begins with its size, and holds numbers, pointers and optional functions alone.
        unsafe impl crate::pointers::Sized for $name {
            const NAME: &str = stringify!($name);
        }
    )+};
}
pub(crate) use sized;

/// The caller's size of a struct.
fn size_at<T: Sized>(place: *const T) -> Result<usize> {
    if place.is_null() {
        return Err(Failure::null(T::NAME));
    }
    // SAFETY: the caller's struct begins with its size.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if (size_of::<T>()..=MOST).contains(&size) {
        return Ok(size);
    }
    Err(Failure::argument("size", size, format_args!("sizeof({})", T::NAME)))
}

/// Copies a struct of the caller. A newer caller's struct is longer: it is refused if it uses the
/// fields that this library does not know.
pub(crate) fn read<T: Sized>(place: *const T) -> Result<T> {
    let size = size_at(place)?;
    // SAFETY: the caller's struct has `size` bytes.
    let bytes = unsafe { slice::from_raw_parts(place.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size_of::<T>());
    if unknown.iter().any(|&byte| byte != 0) {
        let expected = format!("at most {}: the program needs a newer libtagore", known.len());
        return Err(Failure::argument(T::NAME, format_args!("{size} bytes in use"), expected));
    }
    // SAFETY: the bytes are a value of this struct, wherever they lie.
    Ok(unsafe { place.read_unaligned() })
}

/// Copies a struct that may be absent.
pub(crate) fn read_if<T: Sized>(place: *const T) -> Result<Option<T>> {
    if place.is_null() { Ok(None) } else { read(place).map(Some) }
}

/// Writes a struct over that of the caller, whose size is set and stays.
pub(crate) fn write<T: Sized>(place: *mut T, value: impl FnOnce(usize) -> T) -> Result<()> {
    let size = size_at(place)?;
    // SAFETY: the caller's struct has room for this one.
    unsafe { place.write_unaligned(value(size)) };
    Ok(())
}

/// A handle that must be there.
pub(crate) fn required<'a, T>(handle: Option<&'a T>, name: &str) -> Result<&'a T> {
    handle.ok_or_else(|| Failure::null(name))
}

/// The handle that a field of a struct names, if any.
pub(crate) fn handle<'a, T>(place: *const T) -> Option<&'a T> {
    // SAFETY: handles are null, or live as long as the call that they are given to.
    unsafe { place.as_ref() }
}

/// `len` values, read only.
pub(crate) fn values<'a, T>(place: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    check(place.cast(), len, (size_of::<T>(), align_of::<T>()), name)?;
    // SAFETY: aligned, and the caller has `len` values there.
    Ok(if len == 0 { &[] } else { unsafe { slice::from_raw_parts(place, len) } })
}

/// `len` values to write, which may hold anything.
pub(crate) fn slots<'a, T>(place: *mut T, len: usize, name: &str) -> Result<&'a mut [MaybeUninit<T>]> {
    check(place.cast(), len, (size_of::<T>(), align_of::<T>()), name)?;
    // SAFETY: aligned, and the caller has room for `len` values there, used by no one else.
    Ok(if len == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(place.cast(), len) } })
}

/// Refuses an address at which no `len` values can lie.
fn check(place: *const c_void, len: usize, (size, align): (usize, usize), name: &str) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    if place.is_null() {
        return Err(Failure::null(name));
    }
    if !place.addr().is_multiple_of(align) {
        let expected = format!("one that is a multiple of {align}");
        return Err(Failure::argument(name, format_args!("the address {place:p}"), expected));
    }
    let bytes = len.checked_mul(size).filter(|&bytes| isize::try_from(bytes).is_ok());
    if bytes.and_then(|bytes| place.addr().checked_add(bytes)).is_none() {
        return Err(Failure::argument(name, format_args!("{len} values"), "values that fit memory"));
    }
    Ok(())
}

/// A text of the caller, in UTF-8.
pub(crate) fn text<'a>(place: *const c_char, name: &str) -> Result<&'a str> {
    let bytes = text_bytes(place, name)?;
    str::from_utf8(bytes)
        .map_err(|_| Failure::argument(name, String::from_utf8_lossy(bytes), "a text in UTF-8"))
}

/// A text that may be absent.
pub(crate) fn text_if<'a>(place: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if place.is_null() { Ok(None) } else { text(place, name).map(Some) }
}

/// A path: bytes on Unix, UTF-8 elsewhere.
pub(crate) fn path(place: *const c_char, name: &str) -> Result<PathBuf> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        Ok(OsString::from_vec(text_bytes(place, name)?.to_vec()).into())
    }
    #[cfg(not(unix))]
    Ok(OsString::from(text(place, name)?).into())
}

fn text_bytes<'a>(place: *const c_char, name: &str) -> Result<&'a [u8]> {
    if place.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: the caller's text ends with a zero byte.
    Ok(unsafe { CStr::from_ptr(place) }.to_bytes())
}

/// Runs a call that makes a text, which `tagore_text_free` frees. The text is null if it fails.
pub(crate) fn make_text(
    out: Option<&mut MaybeUninit<*mut c_char>>,
    work: impl FnOnce() -> Result<String>,
) -> tagore_status {
    crate::status::call(|| {
        let out = out.ok_or_else(|| Failure::null("out"))?;
        out.write(std::ptr::null_mut());
        let text = CString::new(work()?).map_err(|_| Failure::argument("text", "a zero byte", "none"))?;
        out.write(text.into_raw());
        Ok(())
    })
}

/// Frees a text that a call made. Null is allowed; a text freed twice is undefined behaviour.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it came from `make_text`, and the caller gives it up.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// A pointer that the callbacks of the caller get.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub *mut c_void);

// SAFETY: the library only hands it to callbacks, and the header says on which threads those run.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
