//! Pointers of the caller as Rust sees them.
//!
//! Every function of the interface trusts its caller as any C function does: a pointer that is not
//! null is valid for what the header says, for as long as it says. [`Input`] and [`Output`] are
//! such pointers in signatures: only C makes them, and references made of them end with the call.
//! Pointers in structs become them by `unsafe` code that names the promise of the header.

use std::ffi::{CStr, CString, OsString, c_char, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::{ptr, slice};

use crate::status::{Failure, Result, tagore_status};

/// The most bytes of a struct of any version.
const MAX_SIZE: usize = 4096;

/// A pointer that C gives to a call, to read a text or a struct: null, or valid during the call.
#[repr(transparent)]
pub struct Input<'a, T>(*const T, PhantomData<&'a T>);

/// A pointer that C gives to a call, to write a struct: null, or valid during the call and used by
/// no one else.
#[repr(transparent)]
pub struct Output<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<T> Clone for Input<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Input<'_, T> {}

impl<T> Input<'_, T> {
    /// The pointer of a field.
    ///
    /// # Safety
    /// - It is null, or valid for the lifetime: a text ends with a zero byte, a struct begins with
    ///   its size and has as many bytes.
    pub(crate) unsafe fn new(place: *const T) -> Self {
        Self(place, PhantomData)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A struct that begins with its size, and may grow at its end.
///
/// # Safety
/// The first field is the size, a `usize`. Zero bytes, and all values that a C caller can write,
/// are values of every field.
///
/// There is no padding at the end (`reserved` fills it): a later field there would not change the
/// size, and old programs leave garbage in it.
pub(crate) unsafe trait Struct: Copy {
    /// The name, for errors.
    const NAME: &str;
    /// The bytes of its first version. Fields that were added since are zero in old programs.
    const MIN_SIZE: usize = size_of::<Self>();
}

/// Declares structs of the interface.
macro_rules! structs {
    ($($name:ident),+) => {$(
        // SAFETY: it begins with its size, and holds numbers, pointers and optional functions.
        unsafe impl crate::pointers::Struct for $name {
            const NAME: &str = stringify!($name);
        }
    )+};
}
pub(crate) use structs;

/// The caller's size of a struct.
fn size_at<T: Struct>(place: Input<'_, T>) -> Result<usize> {
    if place.is_null() {
        return Err(Failure::null(T::NAME));
    }
    // SAFETY: not null, so it is a struct of the caller, which begins with its size.
    let size = unsafe { place.0.cast::<usize>().read_unaligned() };
    if (T::MIN_SIZE..=MAX_SIZE).contains(&size) {
        return Ok(size);
    }
    Err(Failure::argument("size", size, format_args!("sizeof({})", T::NAME)))
}

/// Copies a struct of the caller. An older caller's is shorter: the rest is zero. A newer caller's
/// is longer: it is refused if it uses the fields that this library does not know.
pub(crate) fn read<T: Struct>(place: Input<'_, T>) -> Result<T> {
    let size = size_at(place)?;
    // SAFETY: the caller's struct has `size` bytes, and does not change during the call.
    let bytes = unsafe { slice::from_raw_parts(place.0.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|&byte| byte != 0) {
        let expected = format!("at most {}: the program needs a newer libtagore", known.len());
        return Err(Failure::argument(T::NAME, format_args!("{size} bytes in use"), expected));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `value` has room for the known bytes, which with zeros after them are a struct.
    Ok(unsafe {
        ptr::copy_nonoverlapping(known.as_ptr(), value.as_mut_ptr().cast::<u8>(), known.len());
        value.assume_init()
    })
}

/// Copies a struct that may be absent.
pub(crate) fn read_if<T: Struct>(place: Input<'_, T>) -> Result<Option<T>> {
    if place.is_null() { Ok(None) } else { read(place).map(Some) }
}

/// Writes a struct over that of the caller, whose size is set and stays. An older caller's is
/// shorter: it does not get the rest.
pub(crate) fn write<T: Struct>(place: Output<'_, T>, value: impl FnOnce(usize) -> T) -> Result<()> {
    let Output(place, _) = place;
    // SAFETY: what can be written during the call can be read.
    let size = size_at(unsafe { Input::new(place) })?;
    let value = value(size);
    let from = (&raw const value).cast::<u8>();
    // SAFETY: both structs have the bytes, and they are two: `value` is on the stack of this call.
    unsafe { ptr::copy_nonoverlapping(from, place.cast::<u8>(), size.min(size_of::<T>())) };
    Ok(())
}

/// A handle that must be there.
pub(crate) fn required<'a, T>(handle: Option<&'a T>, name: &str) -> Result<&'a T> {
    handle.ok_or_else(|| Failure::null(name))
}

/// The handle that a field of a struct names, if any.
///
/// # Safety
/// - It is null, or a handle that is not freed during `'a`.
pub(crate) unsafe fn handle<'a, T>(place: *const T) -> Option<&'a T> {
    // SAFETY: the caller's promise; handles were made by `Box`.
    unsafe { place.as_ref() }
}

/// `len` values, read only.
///
/// # Safety
/// - If the address is not null, `len` initialised values lie there, and no one changes them during
///   `'a`.
pub(crate) unsafe fn values<'a, T>(place: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    check(place, len, name)?;
    // SAFETY: aligned and not null by the check, or none. The caller promises the values.
    Ok(if len == 0 { &[] } else { unsafe { slice::from_raw_parts(place, len) } })
}

/// `len` values to write, which may hold anything.
///
/// # Safety
/// - If the address is not null, there is room for `len` values, which no one else uses during
///   `'a`.
pub(crate) unsafe fn slots<'a, T>(place: *mut T, len: usize, name: &str) -> Result<&'a mut [MaybeUninit<T>]> {
    check(place.cast_const(), len, name)?;
    // SAFETY: aligned and not null by the check, or none. The caller promises the room.
    Ok(if len == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(place.cast(), len) } })
}

/// Refuses an address at which no `len` values can lie.
pub(crate) fn check<T>(place: *const T, len: usize, name: &str) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    if place.is_null() {
        return Err(Failure::null(name));
    }
    if !place.is_aligned() {
        let expected = format!("one that is a multiple of {}", align_of::<T>());
        return Err(Failure::argument(name, format_args!("the address {place:p}"), expected));
    }
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    if bytes.and_then(|bytes| place.addr().checked_add(bytes)).is_none() {
        return Err(Failure::argument(name, format_args!("{len} values"), "values that fit memory"));
    }
    Ok(())
}

/// A text of the caller, in UTF-8.
pub(crate) fn text<'a>(place: Input<'a, c_char>, name: &str) -> Result<&'a str> {
    let bytes = text_bytes(place, name)?;
    str::from_utf8(bytes)
        .map_err(|_| Failure::argument(name, String::from_utf8_lossy(bytes), "a text in UTF-8"))
}

/// A text that may be absent.
pub(crate) fn text_if<'a>(place: Input<'a, c_char>, name: &str) -> Result<Option<&'a str>> {
    if place.is_null() { Ok(None) } else { text(place, name).map(Some) }
}

/// A path: bytes on Unix, UTF-8 elsewhere.
pub(crate) fn path(place: Input<'_, c_char>, name: &str) -> Result<PathBuf> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        Ok(OsString::from_vec(text_bytes(place, name)?.to_vec()).into())
    }
    #[cfg(not(unix))]
    Ok(OsString::from(text(place, name)?).into())
}

fn text_bytes<'a>(place: Input<'a, c_char>, name: &str) -> Result<&'a [u8]> {
    if place.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not null, so it is a text of the caller, which ends with a zero byte and does not
    // change during the call.
    Ok(unsafe { CStr::from_ptr(place.0) }.to_bytes())
}

/// Runs a call that makes a text, which `tagore_text_free` frees. The text is null if it fails.
pub(crate) fn make_text(
    out: Option<&mut MaybeUninit<*mut c_char>>,
    work: impl FnOnce() -> Result<String>,
) -> tagore_status {
    crate::status::call(|| {
        let out = out.ok_or_else(|| Failure::null("out"))?;
        out.write(ptr::null_mut());
        let text = CString::new(work()?).map_err(|_| Failure::argument("text", "a zero byte", "none"))?;
        out.write(text.into_raw());
        Ok(())
    })
}

/// Frees a text that a call made. Null is allowed; a text freed twice is undefined behaviour.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_text_free(text: Output<'_, c_char>) {
    if !text.0.is_null() {
        // SAFETY: by the header it came from `make_text`, and the caller gives it up.
        drop(unsafe { CString::from_raw(text.0) });
    }
}

/// A pointer that the callbacks of the caller get.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub *mut c_void);

// SAFETY: the library only hands it to callbacks, and the header says that those run on any thread.
unsafe impl Send for Context {}
// SAFETY: the library does not read through it, and the header says that callbacks of progress run
// on several threads at the same time.
unsafe impl Sync for Context {}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::export::tagore_export_options;
    use crate::index::{tagore_index_info, tagore_row_sink};
    use crate::live::{tagore_live_info, tagore_live_results, tagore_live_search_options};
    use crate::out_of_core::tagore_limits;
    use crate::progress::{tagore_progress, tagore_update};
    use crate::search::{
        tagore_exact_options, tagore_results, tagore_search_options, tagore_searcher_options,
    };
    use crate::vectors::{tagore_matrix, tagore_source};

    /// Whether a struct begins with its size and ends with this field, without padding.
    macro_rules! is_tight {
        ($name:ident, $last:ident: $type:ty) => {
            offset_of!($name, size) == 0
                && offset_of!($name, $last) + size_of::<$type>() == size_of::<$name>()
        };
    }

    #[test]
    fn structs_can_grow() {
        type Pointer = *const c_void;
        assert!(is_tight!(tagore_matrix, reserved: i32) && is_tight!(tagore_source, spool_folder: Pointer));
        assert!(is_tight!(tagore_progress, context: Pointer) && is_tight!(tagore_update, fraction: f64));
        assert!(is_tight!(tagore_limits, reserved: i32) && is_tight!(tagore_row_sink, context: Pointer));
        assert!(
            is_tight!(tagore_export_options, reserved: i32)
                && is_tight!(tagore_results, short_queries: Pointer)
        );
        assert!(is_tight!(tagore_searcher_options, rerank: usize));
        assert!(is_tight!(tagore_search_options, among: Pointer));
        assert!(is_tight!(tagore_exact_options, reserved: i32));
        assert!(is_tight!(tagore_index_info, reserved: i32));
        assert!(is_tight!(tagore_live_info, metric: i32));
        assert!(is_tight!(tagore_live_search_options, among_count: usize));
        assert!(is_tight!(tagore_live_results, short_queries: Pointer));
    }

    /// A struct that grew by a field.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Grown {
        size: usize,
        old: usize,
        new: usize,
    }

    // SAFETY: it begins with its size, and holds numbers.
    unsafe impl Struct for Grown {
        const NAME: &str = "grown";
        const MIN_SIZE: usize = size_of::<[usize; 2]>();
    }

    /// The struct at the beginning of these words.
    fn grown(words: &mut [usize]) -> Output<'_, Grown> {
        Output(words.as_mut_ptr().cast(), PhantomData)
    }

    #[test]
    fn structs_of_older_and_newer_programs_are_read() {
        let word = size_of::<usize>();
        let read = |mut words: Vec<usize>| {
            let Output(place, _) = grown(&mut words);
            // SAFETY: as many bytes as the first word says, if that is a size of the struct.
            read(unsafe { Input::new(place) }).ok().map(|read| (read.old, read.new))
        };
        assert_eq!(read(vec![2 * word, 7]), Some((7, 0)));
        assert_eq!(read(vec![3 * word, 7, 8]), Some((7, 8)));
        assert_eq!(read(vec![4 * word, 7, 8, 0]), Some((7, 8)));
        assert_eq!(read(vec![4 * word, 7, 8, 9]), None);
        for size in [0, 1, 2 * word - 1, MAX_SIZE + 1, usize::MAX] {
            assert_eq!(read(vec![size, 7, 8]), None, "{size}");
        }
        let mut words = vec![2 * word, 0, 5];
        write(grown(&mut words), |size| Grown { size, old: 1, new: 2 }).unwrap_or_else(|_| panic!());
        assert_eq!(words, [2 * word, 1, 5]);
    }
}
