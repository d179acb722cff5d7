//! What the host knows of a kernel: its name, the types of its arguments and its launch contract.

use std::ffi::c_void;
use std::fmt;

/// A kernel, as [`kernel`](crate::kernel) describes it: a type of the function's name.
pub trait Kernel {
    /// The name of its entry in the PTX.
    const NAME: &'static str;

    /// The parameters' types, as a tuple.
    type Arguments: Arguments;

    /// What a launch with these arguments must be.
    fn contract(arguments: &Self::Arguments) -> Contract;

    /// Runs the kernel's body as one lane on the host.
    ///
    /// # Safety
    /// - The arguments are what the kernel asks for, and a [`Lane`](crate::host::Lane) is current.
    unsafe fn run(arguments: Self::Arguments);
}

/// What a kernel asks of its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Threads of a block: at least, at most; always a multiple of 32.
    pub block: (u32, u32),
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// What a device can launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads of a block.
    pub block: u32,
    /// Blocks of a grid, in x, y and z.
    pub grid: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

/// A launch that is outside a kernel's contract or a device's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError {
    /// The kernel.
    pub kernel: &'static str,
    /// What was out of range: `block`, `grid` or `shared memory`.
    pub what: &'static str,
    /// What was asked for.
    pub requested: String,
    /// What is allowed.
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
    /// With what was requested and what is allowed, for the first thing out of range.
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
