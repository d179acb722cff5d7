//! Views of shared memory, which the threads of a block have in common while it runs.
//!
//! The promise of the [`kernel`](crate::kernel) covers every access: it lies in the dynamic memory
//! of the launch contract, or in a static array. On the host the lane checks each.

use core::marker::PhantomData;

use crate::atomic::{AtomicValue, Place, Scope};
#[cfg(not(target_os = "cuda"))]
use crate::host::{Space, lane};
use crate::memory::{Plain, Quad};

#[cfg(target_os = "cuda")]
core::arch::global_asm!(".extern .shared .align 16 .b8 dynamic_smem[];");

/// A view of shared memory. A barrier lies between the write of one thread and the read of another.
/// Unwritten memory is not read.
#[repr(transparent)]
pub struct Shared<T> {
    address: u32,
    of: PhantomData<*mut T>,
}

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

/// The launch's dynamic shared memory from byte `offset` on, a multiple of the size of `T`. It
/// begins at a multiple of 16 and is the same memory for every call.
#[inline(always)]
pub fn dynamic<T>(offset: usize) -> Shared<T> {
    #[cfg(target_os = "cuda")]
    let base = {
        let base: u32;
        // SAFETY: `mov` of a symbol, which this module declares with `.shared`, accesses nothing.
        unsafe {
            core::arch::asm!("mov.u32 {}, dynamic_smem;", out(reg32) base, options(pure, nomem, nostack))
        };
        base
    };
    #[cfg(not(target_os = "cuda"))]
    let base = lane(|lane, _| lane.dynamic_shared());
    Shared::<u8> { address: base, of: PhantomData }.offset(offset).cast()
}

/// A static shared array, one per block: `let counts = static_shared!(COUNTS: [u32; 64]);`. Its
/// name is unique in the program.
#[macro_export]
macro_rules! static_shared {
    ($name:ident: [$type:ty; $count:expr]) => {{
        #[cfg(target_os = "cuda")]
        let address = {
            mod array {
                core::arch::global_asm!(
                    concat!(".shared .align 16 .b8 ", stringify!($name), "[{}];"),
                    const ($count) * size_of::<$type>()
                );
            }
            let address: u32;
            // SAFETY: `mov` of a symbol, which this block declares with `.shared`, accesses
            // nothing.
            unsafe {
                core::arch::asm!(concat!("mov.u32 {}, ", stringify!($name), ";"), out(reg32) address,
                    options(pure, nomem, nostack));
            }
            address
        };
        #[cfg(not(target_os = "cuda"))]
        let address = $crate::shared::on_host(stringify!($name), ($count) * size_of::<$type>());
        // SAFETY: the promise of the running kernel covers every access: the array holds `count`
        // values.
        unsafe { $crate::shared::Shared::<$type>::new(address) }
    }};
}

#[cfg(not(target_os = "cuda"))]
#[doc(hidden)]
#[track_caller]
pub fn on_host(name: &'static str, bytes: usize) -> u32 {
    lane(|lane, at| lane.static_shared(name, bytes as u32, at))
}

impl<T> Shared<T> {
    /// The view of the values at an address of shared memory.
    ///
    /// # Safety
    /// - Every access of the kernel through the view, and through views made of it, lies in the
    ///   block's shared memory. If a lane checks all accesses, any address will do.
    #[inline(always)]
    pub const unsafe fn new(address: u32) -> Self {
        Self { address, of: PhantomData }
    }

    /// The address in shared memory.
    #[inline(always)]
    pub const fn address(self) -> u32 {
        self.address
    }

    #[inline(always)]
    const fn at(self, index: usize) -> u32 {
        #[cfg(target_os = "cuda")]
        {
            self.address + (index * size_of::<T>()) as u32
        }
        // Beyond 32 bits lies no memory: the lane finds that, and not another array.
        #[cfg(not(target_os = "cuda"))]
        {
            let bytes = index.saturating_mul(size_of::<T>());
            if bytes > u32::MAX as usize { u32::MAX } else { self.address.saturating_add(bytes as u32) }
        }
    }

    /// The same memory from value `index` on.
    #[inline(always)]
    pub const fn offset(self, index: usize) -> Self {
        Self { address: self.at(index), of: PhantomData }
    }

    /// The same memory as values of another type.
    #[inline(always)]
    pub const fn cast<U>(self) -> Shared<U> {
        Shared { address: self.address, of: PhantomData }
    }
}

impl<T: Plain> Shared<T> {
    /// Value `index`.
    #[inline(always)]
    #[track_caller]
    pub fn get(self, index: usize) -> T {
        load(self.at(index))
    }

    /// The sixteen bytes from value `index` on, whose address is a multiple of 16.
    #[inline(always)]
    #[track_caller]
    pub fn get_quad(self, index: usize) -> Quad {
        load(self.at(index))
    }

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

impl<T: AtomicValue> Shared<T> {
    /// Adds to value `index`, wrapping. Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn fetch_add(self, index: usize, value: T) -> T {
        T::fetch_add(Place::Shared(self.at(index)), value, Scope::Block)
    }

    /// Makes value `index` the smaller of the two. Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn fetch_min(self, index: usize, value: T) -> T {
        T::fetch_min(Place::Shared(self.at(index)), value, Scope::Block)
    }

    /// Makes value `index` the larger of the two. Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn fetch_max(self, index: usize, value: T) -> T {
        T::fetch_max(Place::Shared(self.at(index)), value, Scope::Block)
    }

    /// Makes value `index` the bitwise or. Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn fetch_or(self, index: usize, value: T) -> T {
        T::fetch_or(Place::Shared(self.at(index)), value, Scope::Block)
    }

    /// Sets value `index`. Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn exchange(self, index: usize, value: T) -> T {
        T::exchange(Place::Shared(self.at(index)), value, Scope::Block)
    }

    /// Sets value `index` to `new` if it is `current`. Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange(self, index: usize, current: T, new: T) -> T {
        T::compare_exchange(Place::Shared(self.at(index)), current, new, Scope::Block)
    }
}

#[cfg(target_os = "cuda")]
crate::memory::accesses!("shared", u32, reg32);

#[cfg(not(target_os = "cuda"))]
#[track_caller]
fn load<T: Plain>(address: u32) -> T {
    crate::memory::load_from(Space::Shared, u64::from(address))
}

#[cfg(not(target_os = "cuda"))]
#[track_caller]
fn store<T: Plain>(address: u32, value: T) {
    crate::memory::store_to(Space::Shared, u64::from(address), value);
}
