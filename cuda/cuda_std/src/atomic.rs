//! Atomic operations with a scope.
//!
//! The compiler's own atomics lose their ordering on this target, so these are relaxed
//! instructions. A fence of [`thread`](crate::thread) orders other accesses around them.

use crate::memory::Plain;

/// The threads for which an operation is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The block.
    Block,
    /// The device.
    Device,
    /// All devices and the host.
    System,
}

/// The address of a value.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub enum Place {
    Global(u64),
    Shared(u32),
}

/// Values with atomic operations: `u32`, `i32` and `u64`.
pub trait AtomicValue: Plain {
    #[doc(hidden)]
    fn fetch_add(place: Place, value: Self, scope: Scope) -> Self;
    #[doc(hidden)]
    fn fetch_min(place: Place, value: Self, scope: Scope) -> Self;
    #[doc(hidden)]
    fn fetch_max(place: Place, value: Self, scope: Scope) -> Self;
    #[doc(hidden)]
    fn fetch_and(place: Place, value: Self, scope: Scope) -> Self;
    #[doc(hidden)]
    fn fetch_or(place: Place, value: Self, scope: Scope) -> Self;
    #[doc(hidden)]
    fn exchange(place: Place, value: Self, scope: Scope) -> Self;
    #[doc(hidden)]
    fn reduce_min(address: u64, value: Self);
    #[doc(hidden)]
    fn compare_exchange(place: Place, current: Self, new: Self, scope: Scope) -> Self;
}

#[cfg(target_os = "cuda")]
macro_rules! instruction {
    ($operation:literal, $operands:literal, $register:ident, $place:ident, $scope:ident, $($value:ident),*) => {{
        macro_rules! one {
            ($scope_and_space:literal, $address:ident, $width:ident) => {{
                let old;
                // SAFETY: the promise of the running kernel covers the address.
                unsafe {
                    core::arch::asm!(
                        concat!("atom.relaxed.", $scope_and_space, ".", $operation, $operands),
                        out($register) old, in($width) $address, $(in($register) $value,)* options(nostack)
                    );
                }
                old
            }};
        }
        match ($place, $scope) {
            (Place::Global(address), Scope::Block) => one!("cta.global", address, reg64),
            (Place::Global(address), Scope::Device) => one!("gpu.global", address, reg64),
            (Place::Global(address), Scope::System) => one!("sys.global", address, reg64),
            (Place::Shared(address), _) => one!("cta.shared", address, reg32),
        }
    }};
}

macro_rules! operation {
    ($type:ty, $register:ident, $name:ident, $instruction:literal, $old:ident, $value:ident => $change:expr) => {
        #[inline(always)]
        #[track_caller]
        fn $name(place: Place, $value: Self, scope: Scope) -> Self {
            #[cfg(target_os = "cuda")]
            {
                instruction!($instruction, " {}, [{}], {};", $register, place, scope, $value)
            }
            #[cfg(not(target_os = "cuda"))]
            {
                let _ = scope;
                let change = |$old: Self| -> Self { $change };
                update(place, size_of::<Self>(), &mut |old| change(old as Self) as u64) as Self
            }
        }
    };
}

macro_rules! values {
    ($($type:ty, $register:ident, $add:literal, $min:literal, $max:literal, $and:literal, $or:literal, $exch:literal, $cas:literal;)*) => {$(
        impl AtomicValue for $type {
            operation!($type, $register, fetch_add, $add, old, value => old.wrapping_add(value));
            operation!($type, $register, fetch_min, $min, old, value => old.min(value));
            operation!($type, $register, fetch_max, $max, old, value => old.max(value));
            operation!($type, $register, fetch_and, $and, old, value => old & value);
            operation!($type, $register, fetch_or, $or, old, value => old | value);
            operation!($type, $register, exchange, $exch, _old, value => value);

            #[inline(always)]
            #[track_caller]
            fn reduce_min(address: u64, value: Self) {
                #[cfg(target_os = "cuda")]
                // SAFETY: the promise of the running kernel covers the address.
                unsafe {
                    core::arch::asm!(
                        concat!("red.relaxed.gpu.global.", $min, " [{}], {};"),
                        in(reg64) address, in($register) value, options(nostack)
                    );
                }
                #[cfg(not(target_os = "cuda"))]
                {
                    let _ = Self::fetch_min(Place::Global(address), value, Scope::Device);
                }
            }

            #[inline(always)]
            #[track_caller]
            fn compare_exchange(place: Place, current: Self, new: Self, scope: Scope) -> Self {
                #[cfg(target_os = "cuda")]
                {
                    instruction!($cas, " {}, [{}], {}, {};", $register, place, scope, current, new)
                }
                #[cfg(not(target_os = "cuda"))]
                {
                    let _ = scope;
                    let change = |old: Self| if old == current { new } else { old };
                    update(place, size_of::<Self>(), &mut |old| change(old as Self) as u64) as Self
                }
            }
        }
    )*};
}

values! {
    u32, reg32, "add.u32", "min.u32", "max.u32", "and.b32", "or.b32", "exch.b32", "cas.b32";
    i32, reg32, "add.s32", "min.s32", "max.s32", "and.b32", "or.b32", "exch.b32", "cas.b32";
    u64, reg64, "add.u64", "min.u64", "max.u64", "and.b64", "or.b64", "exch.b64", "cas.b64";
}

/// Applies `change`; returns the old value. For 4 bytes, stores the low half of the result.
#[cfg(not(target_os = "cuda"))]
#[track_caller]
fn update(place: Place, bytes: usize, change: &mut dyn FnMut(u64) -> u64) -> u64 {
    use crate::host::{Space, lane};
    let (space, address) = match place {
        Place::Global(address) => (Space::Global, address),
        Place::Shared(address) => (Space::Shared, u64::from(address)),
    };
    lane(|lane, at| lane.update(space, address, bytes, change, at))
}
