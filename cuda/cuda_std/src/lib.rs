//! What GPU kernels in Rust are written with: the names of rust-cuda's `cuda_std`, on rustc's own
//! NVPTX backend, and what rust-cuda lacks: tensor cores, asynchronous copies, views of memory.
//!
//! The same names exist on the host. There a kernel is an ordinary function, and whatever it asks of
//! the machine (who am I, load, store, wait, exchange) goes to the [`host::Lane`] that runs it, so a
//! kernel can be run, checked and debugged on a CPU. [`kernel`] also makes, on the host, the
//! [`launch::Kernel`] that ties name, argument types and launch contract together.
//!
//! ```
//! use cuda_std::prelude::*;
//!
//! /// `out[i] = factor * values[i]` for `i < n`.
//! ///
//! /// Launch: one thread per value, any grid. `values` and `out` hold n values.
//! ///
//! /// # Safety
//! /// The views hold what is said above.
//! #[kernel(block = 256)]
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
//! Whatever makes the lanes of a warp or the threads of a block wait for each other is an LLVM
//! intrinsic that the compiler knows to be convergent, never inline assembly, which it may copy into
//! branches.

#![cfg_attr(target_os = "cuda", no_std)]
#![cfg_attr(target_os = "cuda", allow(internal_features, reason = "intrinsics of LLVM are linked by name"))]
#![cfg_attr(
    target_os = "cuda",
    feature(asm_experimental_arch, stdarch_nvptx, link_llvm_intrinsics, abi_unadjusted, core_float_math)
)]

pub mod atomic;
pub mod bytes;
pub mod compare;
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

/// Writes `body` once for each of the first `count` numbers, with the constant `I` bound to it:
/// `unroll!(4, I => sums[I] += 1.0)`. An array indexed by such constants stays in registers; one
/// indexed at run time goes to memory.
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

/// Keeps the assembler from unrolling a loop whose body begins with this: it unrolls small loops however many
/// registers that takes, and spills.
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
    // Kernels are written so that nothing panics; a trap ends the launch with an error.
    // SAFETY: the instruction does not return.
    unsafe { core::arch::asm!("trap;", options(noreturn)) }
}
