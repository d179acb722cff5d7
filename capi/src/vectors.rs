//! Data sets: memory of the caller, files, and callbacks that read a store.

use std::error::Error as StdError;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};
use tagore::{Bits, Component, Device, DeviceRows, ElementType, Format, Source, StoreError, Vectors};

use crate::pointers::{Context, Input, Output, check, path, read, required, structs, text_if, write};
use crate::progress::{tagore_progress, watched};
use crate::status::{Failure, Result, call, free, make, tagore_status};

/// The type of the components of vectors: one of TAGORE_F32, TAGORE_F16, TAGORE_U8, TAGORE_I8,
/// TAGORE_BF16, TAGORE_B1.
pub type tagore_element = i32;

/// 32-bit floating point.
pub const TAGORE_F32: tagore_element = 0;
/// 16-bit floating point (IEEE 754 binary16), as uint16_t.
pub const TAGORE_F16: tagore_element = 1;
/// uint8_t
pub const TAGORE_U8: tagore_element = 2;
/// int8_t
pub const TAGORE_I8: tagore_element = 3;
/// 16-bit floating point with the exponent of 32-bit (bfloat16), as uint16_t.
pub const TAGORE_BF16: tagore_element = 4;
/// Bits, eight to a byte, as uint8_t: component j of a row is bit j % 8, from the least, of its
/// byte j / 8. Each row begins at a byte, and bits past the dimension are 0. Their metric is
/// TAGORE_L2, the Hamming distance.
pub const TAGORE_B1: tagore_element = 5;

/// The kind of memory of a pointer: TAGORE_HOST or TAGORE_CUDA.
pub type tagore_memory = i32;

/// Memory of the CPU.
pub const TAGORE_HOST: tagore_memory = 0;
/// Memory of a CUDA device, as of cudaMalloc. Builds and searches on that device use it there; all
/// else copies it to the host.
pub const TAGORE_CUDA: tagore_memory = 1;

/// Vectors in memory, one per row.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_matrix {
    /// sizeof(tagore_matrix)
    pub size: usize,
    /// The first component of row 0, aligned for its type. Components are little-endian.
    pub data: *const c_void,
    /// The number of rows, n: at most 4,294,967,294.
    pub rows: usize,
    /// Components per row, 1 to 4,096; of bits 1 to 32,768.
    pub dim: usize,
    /// Components, or bytes of bits, from the start of a row to the start of the next; 0 for rows
    /// without gaps.
    pub stride: usize,
    /// The type of the components.
    pub element: tagore_element,
    /// The kind of memory.
    pub memory: tagore_memory,
    /// Of TAGORE_CUDA: the cudaStream_t or CUstream whose work writes the vectors, which the call
    /// waits for; null for the default stream.
    pub stream: *mut c_void,
    /// Of TAGORE_CUDA: the number of the device.
    pub device: i32,
    /// 0
    pub reserved: i32,
}

/// Writes rows `first_row`, `first_row` + 1 and so on to `out`: `rows` rows of the dimension and
/// type of the source, without gaps. Returns 0, or the program's code of a failure, which ends the
/// work with TAGORE_ERROR_CALLBACK.
pub type tagore_fill = Option<
    unsafe extern "C" fn(context: *mut c_void, first_row: usize, rows: usize, out: *mut c_void) -> i32,
>;

/// A store that copies its vectors into a buffer, such as a database.
///
/// `fill` is called on the calling thread, for all rows in order, each once: a cursor is enough.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_source {
    /// sizeof(tagore_source)
    pub size: usize,
    /// Reads rows.
    pub fill: tagore_fill,
    /// Handed to `fill`.
    pub context: *mut c_void,
    /// The number of rows, n: at most 4,294,967,294.
    pub rows: usize,
    /// Components per row, 1 to 4,096; of bits 1 to 32,768.
    pub dim: usize,
    /// The type of the components.
    pub element: tagore_element,
    /// Null to keep the rows in memory. Otherwise a folder: the rows go to a file there, which has
    /// no name and is mapped, and the system frees it with the handle.
    pub spool_folder: *const c_char,
}

/// Gives memory back to its owner. Called once, on any thread.
pub type tagore_release = Option<unsafe extern "C" fn(context: *mut c_void)>;

structs!(tagore_matrix, tagore_source);

/// A data set, read only: any number of threads use it at the same time. Indexes need it beside
/// them, since they hold no vectors.
pub struct tagore_vectors(pub(crate) Arc<Vectors>);

/// Evaluates `$body` with `$T` as the Rust type of an element type.
macro_rules! with_component {
    ($element:expr, $T:ident => $body:expr) => {
        match $element {
            ElementType::F32 => {
                type $T = f32;
                $body
            }
            ElementType::F16 => {
                type $T = f16;
                $body
            }
            ElementType::Bf16 => {
                type $T = bf16;
                $body
            }
            ElementType::U8 => {
                type $T = u8;
                $body
            }
            ElementType::I8 => {
                type $T = i8;
                $body
            }
            ElementType::B1 => {
                type $T = Bits;
                $body
            }
        }
    };
}

pub(crate) fn element_of(given: tagore_element) -> Result<ElementType> {
    match given {
        TAGORE_F32 => Ok(ElementType::F32),
        TAGORE_F16 => Ok(ElementType::F16),
        TAGORE_U8 => Ok(ElementType::U8),
        TAGORE_I8 => Ok(ElementType::I8),
        TAGORE_BF16 => Ok(ElementType::Bf16),
        TAGORE_B1 => Ok(ElementType::B1),
        _ => Err(Failure::argument(
            "element",
            given,
            "TAGORE_F32, TAGORE_F16, TAGORE_U8, TAGORE_I8, TAGORE_BF16 or TAGORE_B1",
        )),
    }
}

pub(crate) fn name_of(element: ElementType) -> tagore_element {
    match element {
        ElementType::F32 => TAGORE_F32,
        ElementType::F16 => TAGORE_F16,
        ElementType::U8 => TAGORE_U8,
        ElementType::I8 => TAGORE_I8,
        ElementType::Bf16 => TAGORE_BF16,
        ElementType::B1 => TAGORE_B1,
    }
}

/// The device of a kind of memory; none for host memory.
pub(crate) fn device_of(memory: tagore_memory, number: i32) -> Result<Option<Device>> {
    match memory {
        TAGORE_HOST => Ok(None),
        TAGORE_CUDA => match u32::try_from(number) {
            Ok(number) => Ok(Some(Device::Cuda(number))),
            Err(_) => Err(Failure::argument("device", number, "the number of a CUDA device, from 0")),
        },
        _ => Err(Failure::argument("memory", memory, "TAGORE_HOST or TAGORE_CUDA")),
    }
}

/// Values of the caller, given back on drop.
struct Lent<T> {
    values: *const T,
    len: usize,
    _release: Release,
}

/// What gives memory back to the caller on drop.
pub(crate) struct Release {
    release: tagore_release,
    context: Context,
    /// Whether the library owes the caller the call of `release`.
    is_taken: Arc<AtomicBool>,
}

// SAFETY: the header lets any thread read the values and call `release`.
unsafe impl<T: Send + Sync> Send for Lent<T> {}
// SAFETY: a shared `Lent` only reads the values, which by the header do not change until the
// release.
unsafe impl<T: Send + Sync> Sync for Lent<T> {}

impl<T> AsRef<[T]> for Lent<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: the address was checked, and the caller keeps the values until the release.
        if self.len == 0 { &[] } else { unsafe { slice::from_raw_parts(self.values, self.len) } }
    }
}

impl Release {
    pub(crate) fn new(release: tagore_release, context: *mut c_void) -> Self {
        Self { release, context: Context(context), is_taken: Arc::default() }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let (Some(release), true) = (self.release, self.is_taken.load(Ordering::Acquire)) {
            // SAFETY: nothing uses the values any more, and this is the only call.
            unsafe { release(self.context.0) };
        }
    }
}

/// The rows of the caller, which `release` ends. A failure takes nothing.
///
/// # Safety
/// - The rows exist and do not change until the vectors and their clones are dropped, which calls
///   `release`. A stream is one of the device that holds the rows.
pub(crate) unsafe fn lent(matrix: Input<'_, tagore_matrix>, release: Release) -> Result<Vectors> {
    let matrix = read(matrix)?;
    if let Some(device) = device_of(matrix.memory, matrix.device)? {
        // SAFETY: the caller's promise.
        return unsafe { lent_there(&matrix, device, release) };
    }
    // SAFETY: the caller's promise.
    with_component!(element_of(matrix.element)?, T => unsafe { lent_as::<T>(&matrix, release) })
}

/// Values per row: components, or bytes of bits.
fn row_values<T: Component>(dim: usize) -> usize {
    T::TYPE.row_bytes(dim) / size_of::<T>()
}

/// # Safety
/// - As of [`lent`].
unsafe fn lent_as<T: Component>(matrix: &tagore_matrix, release: Release) -> Result<Vectors> {
    let &tagore_matrix { data, rows, dim, stride, .. } = matrix;
    let row = row_values::<T>(dim);
    let stride = if stride == 0 { row } else { stride };
    let too_many = || Failure::argument("rows", format_args!("{rows} x {stride}"), "rows that fit memory");
    // The last row needs no room after it.
    let gaps = rows.saturating_sub(1).checked_mul(stride).ok_or_else(too_many)?;
    let len = if rows == 0 { 0 } else { gaps.checked_add(row).ok_or_else(too_many)? };
    let values = data.cast::<T>();
    check(values, len, "data")?;
    let is_taken = Arc::clone(&release.is_taken);
    let vectors = Vectors::from_strided(Lent { values, len, _release: release }, rows, dim, stride)?;
    is_taken.store(true, Ordering::Release);
    Ok(vectors)
}

/// The rows of the caller in the memory of a device.
///
/// # Safety
/// - As of [`lent`].
unsafe fn lent_there(matrix: &tagore_matrix, device: Device, release: Release) -> Result<Vectors> {
    let &tagore_matrix { data, rows, dim, stride, element, stream, .. } = matrix;
    let element = element_of(element)?;
    let lent = DeviceRows::new(data.addr() as u64, rows, dim, element, device).stream(stream.addr() as u64);
    let stride = if stride == 0 { dim } else { stride };
    let lent = lent.stride(stride.saturating_mul(element.size()));
    let is_taken = Arc::clone(&release.is_taken);
    // SAFETY: the caller's promise: it keeps the rows until the release, and names a stream of the
    // device.
    let vectors = unsafe { Vectors::from_device(lent, release) }?;
    is_taken.store(true, Ordering::Release);
    Ok(vectors)
}

/// A data set of vectors in the program's memory, of the host or of a device, which is neither
/// copied nor changed. It must stay
/// as it is until `release` is called, when the last handle that uses it is freed: this one, and
/// every searcher made from it. A null `release` is not called. A call that fails takes nothing,
/// and does not call `release`.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_vectors_from_memory(
    matrix: Input<'_, tagore_matrix>,
    release: tagore_release,
    context: *mut c_void,
    out: Option<&mut MaybeUninit<*mut tagore_vectors>>,
) -> tagore_status {
    make(out, || {
        // SAFETY: by the header, the rows stay as they are until the release.
        let vectors = unsafe { lent(matrix, Release::new(release, context)) }?;
        Ok(tagore_vectors(Arc::new(vectors)))
    })
}

/// A failure that a callback reported.
#[derive(Debug)]
pub(crate) struct Returned(pub i32);

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the callback returned {}", self.0)
    }
}

impl StdError for Returned {}

/// The result of a callback.
pub(crate) fn returned(code: i32) -> std::result::Result<(), StoreError> {
    if code == 0 { Ok(()) } else { Err(Returned(code).into()) }
}

/// A store behind a callback.
struct Store<T> {
    source: tagore_source,
    fill: unsafe extern "C" fn(*mut c_void, usize, usize, *mut c_void) -> i32,
    component: PhantomData<T>,
}

impl<T: Component> Source for Store<T> {
    type Value = T;

    fn rows(&self) -> usize {
        self.source.rows
    }

    fn dim(&self) -> usize {
        self.source.dim
    }

    fn fill(&mut self, first: usize, rows: &mut [T]) -> std::result::Result<(), StoreError> {
        let count = rows.len() / row_values::<T>(self.source.dim);
        // SAFETY: `rows` has room for `count` rows, and every bytes are values of its type.
        returned(unsafe { (self.fill)(self.source.context, first, count, rows.as_mut_ptr().cast()) })
    }
}

/// Reads a data set by callback.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_vectors_from_source(
    source: Input<'_, tagore_source>,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut tagore_vectors>>,
) -> tagore_status {
    make(out, || {
        let (source, progress) = (read(source)?, watched(progress)?);
        let fill = source.fill.ok_or_else(|| Failure::null("fill"))?;
        let vectors = with_component!(element_of(source.element)?, T => {
            let mut store = Store::<T> { source, fill, component: PhantomData };
            if source.spool_folder.is_null() {
                Vectors::from_source(&mut store, &progress)?
            } else {
                // SAFETY: by the header, a text that does not change during the call.
                let folder = unsafe { Input::new(source.spool_folder) };
                Vectors::spooled(&mut store, &path(folder, "spool_folder")?, &progress)?
            }
        });
        Ok(tagore_vectors(Arc::new(vectors)))
    })
}

/// The format that a text names, if it is there.
pub(crate) fn format_of(name: Input<'_, c_char>) -> Result<Option<Format>> {
    Ok(text_if(name, "format")?.map(str::parse).transpose()?)
}

/// Maps a file of vectors: fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin or npy. A
/// null `format` takes the file's extension. The file must not change or shrink while a handle
/// uses it.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_vectors_open(
    file: Input<'_, c_char>,
    format: Input<'_, c_char>,
    out: Option<&mut MaybeUninit<*mut tagore_vectors>>,
) -> tagore_status {
    make(out, || {
        let (file, format) = (path(file, "file")?, format_of(format)?);
        // SAFETY: by the header, the file does not change while a handle uses it.
        let vectors = unsafe {
            match format {
                Some(format) => Vectors::map_as(file, format)?,
                None => Vectors::map(file)?,
            }
        };
        Ok(tagore_vectors(Arc::new(vectors)))
    })
}

/// Writes vectors to a file, which appears when it is complete. A null `format` takes the file's
/// extension.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_vectors_save(
    vectors: Option<&tagore_vectors>,
    file: Input<'_, c_char>,
    format: Input<'_, c_char>,
    progress: Input<'_, tagore_progress>,
) -> tagore_status {
    call(|| {
        let tagore_vectors(vectors) = required(vectors, "vectors")?;
        let (file, progress) = (path(file, "file")?, watched(progress)?);
        let format = format_of(format)?.map_or_else(|| Format::from_path(&file), Ok)?;
        Ok(vectors.save_as(file, format, &progress)?)
    })
}

/// The rows of a data set where they lie: `matrix->size` is set before, all other fields after. The
/// pointer is valid as long as the handle. Vectors of a device are copied to the host.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_vectors_matrix(
    vectors: Option<&tagore_vectors>,
    matrix: Output<'_, tagore_matrix>,
) -> tagore_status {
    call(|| {
        let tagore_vectors(vectors) = required(vectors, "vectors")?;
        let (data, stride) = with_component!(vectors.element_type(), T => {
            let mut rows = vectors.rows_as::<T>()?.map(<[T]>::as_ptr);
            let (first, second) = (rows.next(), rows.next());
            let gap = first.zip(second).map(|(first, second)| second.addr() - first.addr());
            let stride = gap.map_or(row_values::<T>(vectors.dim()), |bytes| bytes / size_of::<T>());
            (first.unwrap_or(std::ptr::null()).cast::<c_void>(), stride)
        });
        let (rows, dim, element) = (vectors.len(), vectors.dim(), name_of(vectors.element_type()));
        write(matrix, |size| tagore_matrix {
            size,
            data,
            rows,
            dim,
            stride,
            element,
            memory: TAGORE_HOST,
            stream: std::ptr::null_mut(),
            device: 0,
            reserved: 0,
        })
    })
}

/// Frees a handle; null is allowed. A handle is freed once, by one thread, when no call uses it:
/// freed twice, or used after, it is undefined behaviour. Handles made from it stay valid.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_vectors_free(vectors: Option<Box<tagore_vectors>>) {
    free(vectors);
}
