//! A kernel on the host: its name, the types of its arguments and its launch contract.
//!
//! A launcher takes the arguments as [`Kernel::Arguments`], so wrong ones do not compile:
//!
//! ```
//! use cuda_std::launch::{Contract, Kernel, Limits};
//! use cuda_std::prelude::*;
//!
//! /// # Safety
//! /// `out` holds 2 n values.
//! #[kernel(unsafe, block = 32..=256, shared = 8 * n)]
//! pub unsafe fn double(out: GlobalMut<f32>, n: u32) {}
//!
//! fn launch<K: Kernel>(arguments: K::Arguments) -> Contract {
//!     K::contract(&arguments)
//! }
//!
//! # let out = unsafe { GlobalMut::<f32>::new(0) };
//! let contract = launch::<double>((out, 100));
//! assert_eq!(contract, Contract { block: (32, 256), shared: 800 });
//!
//! let limits = Limits { block: 1024, grid: [100, 1, 1], shared: 4096 };
//! let error = contract.check("double", [1, 1, 1], 512, &limits).unwrap_err();
//! let expected = "kernel double: block: requested 512 threads, \
//!     allowed 32 to 256 threads, in warps of 32";
//! assert_eq!(error.to_string(), expected);
//! ```
//!
//! The same launch with an argument of another type, and with one too few:
//!
//! ```compile_fail
//! # use cuda_std::launch::{Contract, Kernel};
//! # use cuda_std::prelude::*;
//! # #[kernel(unsafe, block = 32..=256, shared = 8 * n)]
//! # pub unsafe fn double(out: GlobalMut<f32>, n: u32) {}
//! # fn launch<K: Kernel>(arguments: K::Arguments) -> Contract { K::contract(&arguments) }
//! # let out = unsafe { GlobalMut::<u32>::new(0) };
//! launch::<double>((out, 100));
//! ```
//!
//! ```compile_fail
//! # use cuda_std::launch::{Contract, Kernel};
//! # use cuda_std::prelude::*;
//! # #[kernel(unsafe, block = 32..=256, shared = 8 * n)]
//! # pub unsafe fn double(out: GlobalMut<f32>, n: u32) {}
//! # fn launch<K: Kernel>(arguments: K::Arguments) -> Contract { K::contract(&arguments) }
//! # let out = unsafe { GlobalMut::<f32>::new(0) };
//! launch::<double>((out,));
//! ```

use std::ffi::c_void;
use std::fmt;

/// A kernel, as [`kernel`](crate::kernel) describes it: a type of the function's name.
///
/// # Safety
/// - With any arguments, and a [`Lane`](crate::host::Lane) that checks all accesses, exchanges and
///   barriers, [`run`](Self::run) is sound: it touches memory through views alone.
pub unsafe trait Kernel {
    /// The name of its entry in the PTX.
    const NAME: &'static str;

    /// The parameters' types, as a tuple.
    type Arguments: Arguments;

    /// The contract of a launch with these arguments.
    fn contract(arguments: &Self::Arguments) -> Contract;

    /// Runs the kernel's body as one lane on the host.
    ///
    /// # Safety
    /// - A [`Lane`](crate::host::Lane) is current. Either it checks all that the kernel does, or
    ///   the arguments meet the kernel's own safety section.
    unsafe fn run(arguments: Self::Arguments);
}

/// The requirements of a kernel on its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Minimum and maximum number of threads per block, multiples of 32.
    pub block: (u32, u32),
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// The launch limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of threads per block.
    pub block: u32,
    /// Maximum number of blocks per grid, in x, y and z.
    pub grid: [u32; 3],
    /// Maximum bytes of dynamic shared memory per block.
    pub shared: u32,
}

/// A launch outside a kernel's contract or a device's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError {
    /// The kernel.
    pub kernel: &'static str,
    /// The parameter out of range: `block`, `grid` or `shared memory`.
    pub what: &'static str,
    /// The requested value.
    pub requested: String,
    /// The allowed values.
    pub allowed: String,
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, what, requested, allowed } = self;
        write!(f, "kernel {kernel}: {what}: requested {requested}, allowed {allowed}")
    }
}

impl std::error::Error for LaunchError {}

impl Contract {
    /// Checks a launch of `kernel` against this contract and a device's limits.
    ///
    /// # Errors
    /// The first parameter out of range, with the requested and the allowed value.
    pub fn check(
        &self,
        kernel: &'static str,
        grid: [u32; 3],
        block: u32,
        limits: &Limits,
    ) -> Result<(), LaunchError> {
        let error =
            |what, requested: String, allowed: String| Err(LaunchError { kernel, what, requested, allowed });
        let (least, most) = self.block;
        if block < least || block > most || block > limits.block || !block.is_multiple_of(32) {
            let most = most.min(limits.block);
            let allowed = if least == most {
                format!("{most} threads")
            } else {
                format!("{least} to {most} threads, in warps of 32")
            };
            return error("block", format!("{block} threads"), allowed);
        }
        if (0..3).any(|axis| grid[axis] == 0 || grid[axis] > limits.grid[axis]) {
            let [x, y, z] = limits.grid;
            let allowed = format!("1 to {x} x {y} x {z} blocks");
            return error("grid", format!("{} x {} x {} blocks", grid[0], grid[1], grid[2]), allowed);
        }
        if self.shared > limits.shared {
            return error(
                "shared memory",
                format!("{} bytes", self.shared),
                format!("{} bytes on this device", limits.shared),
            );
        }
        Ok(())
    }
}

/// Tuples of kernel arguments.
pub trait Arguments: Copy + Send + Sync + 'static {
    /// Calls `with` with the address of each argument.
    fn addresses<R>(self, with: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<$($name: Copy + Send + Sync + 'static),*> Arguments for ($($name,)*) {
            #[expect(non_snake_case, reason = "one name for the type and its value")]
            #[allow(unused_mut, clippy::allow_attributes, reason = "the empty tuple has nothing to change")]
            fn addresses<R>(self, with: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
                let ($(mut $name,)*) = self;
                with(&mut [$((&raw mut $name).cast::<c_void>()),*])
            }
        }
    )*};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_error_gives_the_requested_and_the_allowed_value() {
        let contract = Contract { block: (256, 256), shared: 100_000 };
        let limits = Limits { block: 1024, grid: [10, 5, 1], shared: 163_840 };
        let check = |grid, block, limits: &Limits| contract.check("k", grid, block, limits);
        assert_eq!(check([10, 5, 1], 256, &limits), Ok(()));
        let message = |result: Result<(), LaunchError>| result.unwrap_err().to_string();
        for block in [0, 128, 257, 512] {
            let expected = format!("kernel k: block: requested {block} threads, allowed 256 threads");
            assert_eq!(message(check([1, 1, 1], block, &limits)), expected);
        }
        for grid in [[11, 1, 1], [1, 6, 1], [0, 1, 1]] {
            let [x, y, z] = grid;
            let expected =
                format!("kernel k: grid: requested {x} x {y} x {z} blocks, allowed 1 to 10 x 5 x 1 blocks");
            assert_eq!(message(check(grid, 256, &limits)), expected);
        }
        let small = Limits { shared: 99_999, ..limits };
        let expected = "kernel k: shared memory: requested 100000 bytes, allowed 99999 bytes on this device";
        assert_eq!(message(check([1, 1, 1], 256, &small)), expected);
    }

    #[test]
    fn addresses_are_those_of_the_arguments_in_order() {
        let read = |addresses: &mut [*mut c_void]| {
            assert_eq!(addresses.len(), 2);
            // SAFETY: the addresses are of a u32 and an f32.
            unsafe { (*addresses[0].cast::<u32>(), *addresses[1].cast::<f32>()) }
        };
        assert_eq!((7u32, 2.5f32).addresses(read), (7, 2.5));
    }
}
