//! Views of device memory, through which kernels read and write it.
//!
//! A view is an address and a type. Its creator, in the end the launch, guarantees the memory
//! after it. The author of the [`kernel`](crate::kernel) promises that every access lies there and
//! reads what was written. On a GPU views check nothing. On the host every access goes to the
//! [`Lane`](crate::host::Lane), which checks it.

use core::marker::PhantomData;

use crate::atomic::{AtomicValue, Scope};

/// Types that kernels load and store: plain bits of 1, 2, 4, 8 or 16 bytes, aligned to their size.
///
/// # Safety
/// - Every bit pattern is a value, there is no padding, and the size is 1, 2, 4, 8 or 16 bytes and
///   equals the alignment.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {$(
        // SAFETY: a number.
        unsafe impl Plain for $type {}
    )*};
}

plain!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 half::f16);

/// Sixteen bytes, loaded and stored at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Quad(pub [u32; 4]);

// SAFETY: four numbers, aligned to their size.
unsafe impl Plain for Quad {}

/// A view of memory that a kernel reads.
#[repr(transparent)]
pub struct Global<T> {
    address: u64,
    of: PhantomData<*const T>,
}

/// A view of memory that a kernel reads and writes. Threads that access the same value without a
/// barrier use atomic operations.
#[repr(transparent)]
pub struct GlobalMut<T> {
    address: u64,
    of: PhantomData<*mut T>,
}

macro_rules! views {
    ($($view:ident)*) => {$(
        impl<T> Clone for $view<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $view<T> {}

        // SAFETY: an address and no memory: host threads can only copy it.
        unsafe impl<T> Send for $view<T> {}
        // SAFETY: a shared view has no methods that reach memory outside a kernel, where the
        // kernel's author rules out races, or the lane finds them.
        unsafe impl<T> Sync for $view<T> {}

        impl<T> $view<T> {
            /// The view of the values at a device address.
            ///
            /// # Safety
            /// - Every access of the kernel through the view, and through views made of it, lies in
            ///   allocated memory at a multiple of its size, and every value it reads was written.
            ///   If a lane checks all accesses, any address will do.
            #[inline(always)]
            pub const unsafe fn new(address: u64) -> Self {
                Self { address, of: PhantomData }
            }

            /// The device address.
            #[inline(always)]
            pub const fn address(self) -> u64 {
                self.address
            }

            /// The address of value `index`.
            #[inline(always)]
            const fn at(self, index: usize) -> u64 {
                #[cfg(target_os = "cuda")]
                {
                    self.address.wrapping_add((index * size_of::<T>()) as u64)
                }
                // Beyond 64 bits lies no memory: the lane finds that, and not another buffer.
                #[cfg(not(target_os = "cuda"))]
                {
                    self.address.saturating_add(index.saturating_mul(size_of::<T>()) as u64)
                }
            }

            /// The same memory from value `index` on.
            #[inline(always)]
            pub const fn offset(self, index: usize) -> Self {
                Self { address: self.at(index), of: PhantomData }
            }

            /// The same memory as values of another type.
            #[inline(always)]
            pub const fn cast<U>(self) -> $view<U> {
                $view { address: self.address, of: PhantomData }
            }
        }

        impl<T: Plain> $view<T> {
            /// Value `index`.
            #[inline(always)]
            #[track_caller]
            pub fn get(self, index: usize) -> T {
                load(self.at(index))
            }

            /// Tells the memory that value `index` will be read soon, so that its line comes
            /// meanwhile.
            #[inline(always)]
            pub fn prefetch(self, index: usize) {
                #[cfg(target_os = "cuda")]
                // SAFETY: a hint; no address makes it fail.
                unsafe {
                    core::arch::asm!("prefetch.global.L1 [{}];", in(reg64) self.at(index),
                        options(nostack, preserves_flags));
                }
                #[cfg(not(target_os = "cuda"))]
                let _ = index;
            }

            /// The sixteen bytes from value `index` on, whose address is a multiple of 16.
            #[inline(always)]
            #[track_caller]
            pub fn get_quad(self, index: usize) -> Quad {
                load(self.at(index))
            }
        }
    )*};
}

views!(Global GlobalMut);

impl<T> GlobalMut<T> {
    /// The same memory, to be read.
    #[inline(always)]
    pub const fn read_only(self) -> Global<T> {
        Global { address: self.address, of: PhantomData }
    }
}

impl<T: Plain> GlobalMut<T> {
    /// Sets value `index`.
    #[inline(always)]
    #[track_caller]
    pub fn set(self, index: usize, value: T) {
        store(self.at(index), value);
    }

    /// Sets the sixteen bytes from value `index` on, whose address is a multiple of 16.
    #[inline(always)]
    #[track_caller]
    pub fn set_quad(self, index: usize, value: Quad) {
        store(self.at(index), value);
    }
}

macro_rules! atomics {
    ($($name:ident, $what:literal;)*) => {$(
        #[doc = $what]
        /// Returns the old value. Relaxed, atomic for the threads of `scope`.
        #[inline(always)]
        #[track_caller]
        pub fn $name(self, index: usize, value: T, scope: Scope) -> T {
            T::$name(crate::atomic::Place::Global(self.at(index)), value, scope)
        }
    )*};
}

impl<T: AtomicValue> GlobalMut<T> {
    atomics! {
        fetch_add, "Adds to value `index`, wrapping.";
        fetch_min, "Makes value `index` the smaller of the two.";
        fetch_max, "Makes value `index` the larger of the two.";
        fetch_and, "Makes value `index` the bitwise and.";
        fetch_or, "Makes value `index` the bitwise or.";
        exchange, "Sets value `index`.";
    }

    /// Makes value `index` the smaller of the two. Relaxed, atomic for the device. The device sends
    /// no old value back: not every compiler of PTX drops an unused one.
    #[inline(always)]
    #[track_caller]
    pub fn reduce_min(self, index: usize, value: T) {
        T::reduce_min(self.at(index), value);
    }

    /// Sets value `index` to `new` if it is `current`. Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange(self, index: usize, current: T, new: T, scope: Scope) -> T {
        T::compare_exchange(crate::atomic::Place::Global(self.at(index)), current, new, scope)
    }
}

/// `load` and `store` with the instructions of a state space. The compiler cannot infer the space
/// of an address in a parameter struct.
#[cfg(target_os = "cuda")]
macro_rules! accesses {
    ($space:literal, $address:ty, $register:ident) => {
        #[inline(always)]
        fn load<T: crate::memory::Plain>(address: $address) -> T {
            use core::arch::asm;
            use core::mem::transmute_copy;
            macro_rules! load {
                ($kind:literal, $value:ident: $to:ident) => {
                    asm!(concat!("ld.", $space, ".", $kind, " {}, [{}];"), out($to) $value,
                        in($register) address, options(pure, readonly, nostack))
                };
            }
            // SAFETY: the promise of the running kernel covers the address; a `Plain` may have any
            // bits.
            unsafe {
                match size_of::<T>() {
                    1 => {
                        let v: u16;
                        load!("u8", v: reg16);
                        transmute_copy(&(v as u8))
                    }
                    2 => {
                        let v: u16;
                        load!("b16", v: reg16);
                        transmute_copy(&v)
                    }
                    4 => {
                        let v: u32;
                        load!("b32", v: reg32);
                        transmute_copy(&v)
                    }
                    8 => {
                        let v: u64;
                        load!("b64", v: reg64);
                        transmute_copy(&v)
                    }
                    _ => {
                        let (a, b, c, d): (u32, u32, u32, u32);
                        asm!(concat!("ld.", $space, ".v4.b32 {{{}, {}, {}, {}}}, [{}];"), out(reg32) a,
                            out(reg32) b, out(reg32) c, out(reg32) d, in($register) address,
                            options(pure, readonly, nostack));
                        transmute_copy(&crate::memory::Quad([a, b, c, d]))
                    }
                }
            }
        }

        #[inline(always)]
        fn store<T: crate::memory::Plain>(address: $address, value: T) {
            use core::arch::asm;
            use core::mem::transmute_copy;
            macro_rules! store {
                ($kind:literal, $value:expr, $from:ident) => {
                    asm!(concat!("st.", $space, ".", $kind, " [{}], {};"), in($register) address,
                        in($from) $value, options(nostack))
                };
            }
            // SAFETY: the promise of the running kernel covers the address, and sizes match.
            unsafe {
                match size_of::<T>() {
                    1 => store!("u8", transmute_copy::<T, u8>(&value) as u16, reg16),
                    2 => store!("b16", transmute_copy::<T, u16>(&value), reg16),
                    4 => store!("b32", transmute_copy::<T, u32>(&value), reg32),
                    8 => store!("b64", transmute_copy::<T, u64>(&value), reg64),
                    _ => {
                        let crate::memory::Quad([a, b, c, d]) = transmute_copy(&value);
                        asm!(concat!("st.", $space, ".v4.b32 [{}], {{{}, {}, {}, {}}};"),
                            in($register) address, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
                            options(nostack));
                    }
                }
            }
        }
    };
}

#[cfg(target_os = "cuda")]
pub(crate) use accesses;
#[cfg(target_os = "cuda")]
accesses!("global", u64, reg64);

#[cfg(not(target_os = "cuda"))]
#[track_caller]
fn load<T: Plain>(address: u64) -> T {
    load_from(crate::host::Space::Global, address)
}

#[cfg(not(target_os = "cuda"))]
#[track_caller]
fn store<T: Plain>(address: u64, value: T) {
    store_to(crate::host::Space::Global, address, value);
}

#[cfg(not(target_os = "cuda"))]
#[track_caller]
pub(crate) fn load_from<T: Plain>(space: crate::host::Space, address: u64) -> T {
    use crate::host::lane;
    let mut bytes = [0u8; 16];
    lane(|lane, at| lane.load(space, address, &mut bytes[..size_of::<T>()], at));
    // SAFETY: any bits are a value, and the array holds at least the size of one.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

#[cfg(not(target_os = "cuda"))]
#[track_caller]
pub(crate) fn store_to<T: Plain>(space: crate::host::Space, address: u64, value: T) {
    use crate::host::lane;
    // SAFETY: a `Plain` has no padding, so all of its bytes are initialised.
    let bytes = unsafe { core::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
    lane(|lane, at| lane.store(space, address, bytes, at));
}
