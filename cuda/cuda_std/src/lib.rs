//! The device library of Rust kernels for rustc's NVPTX backend.
//!
//! It has the names of rust-cuda's `cuda_std`, and adds tensor cores, asynchronous copies and views
//! of memory.
//!
//! The same names exist on the host. There a kernel is an ordinary function, and its machine
//! operations (indices, loads, stores, barriers, exchanges) go to the [`host::Lane`] that runs it.
//! So a kernel can be run, checked and debugged on a CPU. On the host [`kernel`] also makes the
//! [`launch::Kernel`] that ties name, argument types and launch contract together.
//!
//! ```
//! use cuda_std::prelude::*;
//!
//! /// `out[i] = factor * values[i]` for `i < n`.
//! ///
//! /// Launch: one thread per value, any grid.
//! ///
//! /// # Safety
//! /// `values` and `out` hold n values.
//! #[kernel(unsafe, block = 256)]
//! pub unsafe fn scale(values: Global<f32>, out: GlobalMut<f32>, n: u32, factor: f32) {
//!     let i = thread::index_1d();
//!     if i < n {
//!         out.set(i as usize, factor * values.get(i as usize));
//!     }
//! }
//! # #[cfg(not(target_os = "cuda"))]
//! assert_eq!(<scale as cuda_std::launch::Kernel>::NAME, "scale");
//! ```
//!
//! # Safety
//!
//! On the host no safe call here can go wrong: the lane checks addresses, masks and barriers. On a
//! GPU nothing is checked. There the functions that device code calls thousands of times, such as
//! [`Global::get`](memory::Global::get), [`Shared::set`](shared::Shared::set),
//! [`shared::dynamic`] and [`warp::sync`], are safe to call because they run in kernels alone, and
//! the `unsafe` in the attribute of each [`kernel`] promises that all calls below it are right:
//! which accesses and calls are right is listed there. The tests of a kernel on the emulator show
//! that it keeps the promise. Launches promise the rest, what the kernel's own section asks for,
//! and are `unsafe` wherever a GPU runs them.
//!
//! Barriers, shuffles and votes are LLVM intrinsics that the compiler knows to be convergent. They
//! are never inline assembly, which the compiler may copy into branches.

#![cfg_attr(target_os = "cuda", no_std)]
#![cfg_attr(target_os = "cuda", allow(internal_features, reason = "intrinsics of LLVM are linked by name"))]
#![cfg_attr(
    target_os = "cuda",
    feature(asm_experimental_arch, stdarch_nvptx, link_llvm_intrinsics, abi_unadjusted, core_float_math)
)]

pub mod atomic;
pub mod bytes;
pub mod copy;
pub mod float;
pub mod float16;
#[cfg(not(target_os = "cuda"))]
pub mod host;
#[cfg(not(target_os = "cuda"))]
pub mod launch;
pub mod memory;
pub mod shared;
pub mod tensor;
pub mod thread;
pub mod warp;

pub use cuda_std_macros::kernel;
pub use half;
pub use half::f16;

/// The names that most kernels need.
pub mod prelude {
    pub use crate::memory::{Global, GlobalMut, Plain, Quad};
    pub use crate::shared::Shared;
    pub use crate::{f16, kernel, thread, unroll, warp};
}

/// Repeats `body` for 0 to `count` - 1, with the constant `I` bound to the number:
/// `unroll!(4, I => sums[I] += 1.0)`.
///
/// An array indexed by constants stays in registers. One indexed at run time goes to memory.
#[macro_export]
macro_rules! unroll {
    (2, $i:ident => $body:expr) => {{
        { const $i: usize = 0; $body; }
        { const $i: usize = 1; $body; }
    }};
    (4, $i:ident => $body:expr) => {{
        $crate::unroll!(2, $i => $body);
        { const $i: usize = 2; $body; }
        { const $i: usize = 3; $body; }
    }};
    (8, $i:ident => $body:expr) => {{
        $crate::unroll!(4, $i => $body);
        { const $i: usize = 4; $body; }
        { const $i: usize = 5; $body; }
        { const $i: usize = 6; $body; }
        { const $i: usize = 7; $body; }
    }};
}

/// `value`, whose origin the compiler does not see. What follows from it is computed where it is
/// used, not once before a loop and then held in registers.
#[inline(always)]
pub fn recomputed(value: u32) -> u32 {
    #[cfg(target_os = "cuda")]
    {
        let same: u32;
        // SAFETY: a copy between registers.
        unsafe {
            core::arch::asm!("mov.b32 {}, {};", out(reg32) same, in(reg32) value, options(nomem, nostack))
        };
        same
    }
    #[cfg(not(target_os = "cuda"))]
    value
}

/// Keeps the assembler from unrolling a loop whose body begins with this call. Otherwise it unrolls
/// small loops even if that makes registers spill.
#[inline(always)]
pub fn keep_rolled() {
    #[cfg(target_os = "cuda")]
    // SAFETY: a note to the assembler.
    unsafe {
        core::arch::asm!(".pragma \"nounroll\";", options(nomem, nostack, preserves_flags))
    }
}

#[cfg(target_os = "cuda")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Kernels do not panic (CI refuses calls in the PTX). A trap ends the launch with an error.
    // SAFETY: the instruction does not return.
    unsafe { core::arch::asm!("trap;", options(noreturn)) }
}
