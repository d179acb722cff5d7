//! Collective operations of the 32 lanes of a warp.
//!
//! Functions with a mask have rust-cuda's names and are `unsafe`: exactly the lanes of the mask
//! must call them together. Functions without a mask are for whole warps: the promise of the
//! [`kernel`](crate::kernel) is that the whole warp reaches them, and on the host the lane checks
//! it.

#[cfg(target_os = "cuda")]
mod raw {
    unsafe extern "C" {
        #[link_name = "llvm.nvvm.read.ptx.sreg.laneid"]
        pub fn lane_id() -> u32;
        #[link_name = "llvm.nvvm.activemask"]
        pub fn activemask() -> u32;
        #[link_name = "llvm.nvvm.bar.warp.sync"]
        pub fn sync(mask: u32);
        #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
        pub fn shuffle_up(mask: u32, value: u32, b: u32, c: u32) -> u32;
        #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
        pub fn shuffle_down(mask: u32, value: u32, b: u32, c: u32) -> u32;
        #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
        pub fn shuffle_idx(mask: u32, value: u32, b: u32, c: u32) -> u32;
        #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
        pub fn shuffle_xor(mask: u32, value: u32, b: u32, c: u32) -> u32;
        #[link_name = "llvm.nvvm.vote.all.sync"]
        pub fn vote_all(mask: u32, predicate: bool) -> bool;
        #[link_name = "llvm.nvvm.vote.any.sync"]
        pub fn vote_any(mask: u32, predicate: bool) -> bool;
        #[link_name = "llvm.nvvm.vote.ballot.sync"]
        pub fn vote_ballot(mask: u32, predicate: bool) -> u32;
        #[link_name = "llvm.nvvm.match.any.sync.i32"]
        pub fn match_any_32(mask: u32, value: u32) -> u32;
        #[link_name = "llvm.nvvm.match.any.sync.i64"]
        pub fn match_any_64(mask: u32, value: u64) -> u32;
        #[link_name = "llvm.nvvm.redux.sync.add"]
        pub fn reduce_add(value: u32, mask: u32) -> u32;
        #[link_name = "llvm.nvvm.redux.sync.umin"]
        pub fn reduce_min_u32(value: u32, mask: u32) -> u32;
        #[link_name = "llvm.nvvm.redux.sync.umax"]
        pub fn reduce_max_u32(value: u32, mask: u32) -> u32;
        #[link_name = "llvm.nvvm.redux.sync.min"]
        pub fn reduce_min_i32(value: u32, mask: u32) -> u32;
        #[link_name = "llvm.nvvm.redux.sync.max"]
        pub fn reduce_max_i32(value: u32, mask: u32) -> u32;
        #[link_name = "llvm.nvvm.redux.sync.and"]
        pub fn reduce_and(value: u32, mask: u32) -> u32;
        #[link_name = "llvm.nvvm.redux.sync.or"]
        pub fn reduce_or(value: u32, mask: u32) -> u32;
        #[link_name = "llvm.nvvm.redux.sync.xor"]
        pub fn reduce_xor(value: u32, mask: u32) -> u32;
    }
}
#[cfg(not(target_os = "cuda"))]
use crate::host::lane;
use crate::memory::Plain;

/// The mask of all lanes.
pub const FULL: u32 = u32::MAX;

/// The index of this lane in its warp, 0 to 31.
#[inline(always)]
pub fn lane_id() -> u32 {
    #[cfg(target_os = "cuda")]
    // SAFETY: reads a special register.
    unsafe {
        raw::lane_id()
    }
    #[cfg(not(target_os = "cuda"))]
    lane(|lane, _| {
        let place = lane.place();
        let [x, y, z] = place.thread_idx;
        (x + place.block_dim[0] * (y + place.block_dim[1] * z)) % 32
    })
}

/// How many of the mask's lanes come before this one: this lane's place among them.
#[inline(always)]
pub fn lanes_before(mask: u32) -> u32 {
    (mask & ((1 << lane_id()) - 1)).count_ones()
}

/// The lanes that execute this together: a hint of the hardware. On the host, all lanes.
#[inline(always)]
pub fn activemask() -> u32 {
    #[cfg(target_os = "cuda")]
    // SAFETY: reads the state of the warp.
    unsafe {
        raw::activemask()
    }
    #[cfg(not(target_os = "cuda"))]
    FULL
}

/// Waits for the lanes of `mask` and makes their writes visible to each other.
///
/// # Safety
/// - Exactly the lanes of `mask` make this call, together.
#[inline(always)]
#[track_caller]
pub unsafe fn sync_warp(mask: u32) {
    #[cfg(target_os = "cuda")]
    // SAFETY: the caller's promise.
    unsafe {
        raw::sync(mask);
    }
    #[cfg(not(target_os = "cuda"))]
    lane(|lane, at| lane.exchange(mask, "sync_warp", &[], at));
}

/// Types that lanes can shuffle: up to 8 bytes, moved as 32-bit words.
pub trait WarpShuffleValue: Plain {
    /// The value in the low bits.
    #[doc(hidden)]
    fn bits(self) -> u64;
    /// The value of the low bits.
    #[doc(hidden)]
    fn from_bits(bits: u64) -> Self;
}

macro_rules! shuffled {
    ($($type:ty: $to:expr, $from:expr;)*) => {$(
        impl WarpShuffleValue for $type {
            #[inline(always)]
            fn bits(self) -> u64 {
                ($to)(self)
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                ($from)(bits)
            }
        }
    )*};
}

shuffled! {
    u8: |v| v as u64, |b| b as u8;
    i8: |v: i8| v as u8 as u64, |b| b as i8;
    u16: |v| v as u64, |b| b as u16;
    i16: |v: i16| v as u16 as u64, |b| b as i16;
    u32: |v| v as u64, |b| b as u32;
    i32: |v: i32| v as u32 as u64, |b| b as i32;
    u64: |v| v, |b| b;
    i64: |v| v as u64, |b| b as i64;
    f32: |v: f32| v.to_bits() as u64, |b| f32::from_bits(b as u32);
    f64: |v: f64| v.to_bits(), f64::from_bits;
    half::f16: |v: half::f16| v.to_bits() as u64, |b| half::f16::from_bits(b as u16);
}

// On the host, `$in_range` and `$source` give the source lane of a lane and its argument.
macro_rules! shuffles {
    ($($name:ident, $raw:ident, $clamp:literal, $argument:ident, $in_range:expr, $source:expr, $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// The warp is divided into segments of `width` lanes, a power of two up to 32. Also
        /// returns whether the source lane is in range; if not, the value is the lane's own.
        ///
        /// # Safety
        /// - Exactly the lanes of `mask` make this call, together, with the same `width`.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name<T: WarpShuffleValue>(mask: u32, value: T, $argument: u32, width: u32) -> (T, bool) {
            #[cfg(target_os = "cuda")]
            {
                let control = ((32 - width) << 8) | $clamp;
                let bits = value.bits();
                // SAFETY: the caller's promise.
                let low = unsafe { raw::$raw(mask, bits as u32, $argument, control) };
                let high = if size_of::<T>() > 4 {
                    // SAFETY: the caller's promise.
                    unsafe { raw::$raw(mask, (bits >> 32) as u32, $argument, control) }
                } else {
                    0
                };
                let in_range: bool = ($in_range)(lane_id(), $argument, width);
                (T::from_bits((high as u64) << 32 | low as u64), in_range)
            }
            #[cfg(not(target_os = "cuda"))]
            {
                let bits = value.bits();
                let words = [bits as u32, (bits >> 32) as u32, width];
                let shown = lane(|lane, at| lane.exchange(mask, stringify!($name), &words, at));
                let own = lane_id();
                if !($in_range)(own, $argument, width) {
                    return (value, false);
                }
                let source = ($source)(own, $argument, width) & 31;
                assert!(mask >> source & 1 == 1, "lane {source} is not in the mask {mask:#x}: its value is undefined");
                let from = shown[source as usize];
                (T::from_bits(u64::from(from[1]) << 32 | u64::from(from[0])), true)
            }
        }
    )*};
}

shuffles! {
    warp_shuffle_up, shuffle_up, 0, delta,
        |lane: u32, delta: u32, width: u32| lane & (width - 1) >= delta,
        |lane: u32, delta: u32, _| lane - delta,
        "The value of the lane `delta` below.";
    warp_shuffle_down, shuffle_down, 0x1f, delta,
        |lane: u32, delta: u32, width: u32| (lane & (width - 1)) + delta < width,
        |lane: u32, delta: u32, _| lane + delta,
        "The value of the lane `delta` above.";
    warp_shuffle_idx, shuffle_idx, 0x1f, idx,
        |_, _, _| true,
        |lane: u32, idx: u32, width: u32| (lane & !(width - 1)) | (idx & (width - 1)),
        "The value of lane `idx` of the segment.";
    warp_shuffle_xor, shuffle_xor, 0x1f, lane_mask,
        |lane: u32, lane_mask: u32, width: u32| (lane ^ lane_mask) <= (lane | (width - 1)),
        |lane: u32, lane_mask: u32, _| lane ^ lane_mask,
        "The value of the lane whose index differs in the bits of `lane_mask`.";
}

macro_rules! votes {
    ($($name:ident, $raw:ident, $result:ty, $of:expr, $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// - Exactly the lanes of `mask` make this call, together.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name(mask: u32, predicate: bool) -> $result {
            #[cfg(target_os = "cuda")]
            // SAFETY: the caller's promise.
            unsafe {
                raw::$raw(mask, predicate)
            }
            #[cfg(not(target_os = "cuda"))]
            {
                let word = [u32::from(predicate)];
                let shown = lane(|lane, at| lane.exchange(mask, stringify!($name), &word, at));
                let votes = (0..32).fold(0u32, |votes, lane| votes | shown[lane][0] << lane);
                ($of)(votes & mask, mask)
            }
        }
    )*};
}

votes! {
    warp_vote_all, vote_all, bool, |votes, mask| votes == mask, "Whether `predicate` holds in all lanes.";
    warp_vote_any, vote_any, bool, |votes, _| votes != 0, "Whether `predicate` holds in any lane.";
    warp_vote_ballot, vote_ballot, u32, |votes, _| votes, "The lanes in which `predicate` holds.";
}

/// Types that lanes can match.
pub trait WarpMatchValue: WarpShuffleValue {}
impl WarpMatchValue for u32 {}
impl WarpMatchValue for i32 {}
impl WarpMatchValue for u64 {}
impl WarpMatchValue for i64 {}
impl WarpMatchValue for f32 {}
impl WarpMatchValue for f64 {}

/// The lanes whose value has the same bits as this lane's.
///
/// # Safety
/// - Exactly the lanes of `mask` make this call, together.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_match_any<T: WarpMatchValue>(mask: u32, value: T) -> u32 {
    let bits = value.bits();
    #[cfg(target_os = "cuda")]
    // SAFETY: the caller's promise.
    unsafe {
        if size_of::<T>() > 4 { raw::match_any_64(mask, bits) } else { raw::match_any_32(mask, bits as u32) }
    }
    #[cfg(not(target_os = "cuda"))]
    {
        let words = [bits as u32, (bits >> 32) as u32];
        let shown = lane(|lane, at| lane.exchange(mask, "warp_match_any", &words, at));
        (0..32).filter(|&l| mask >> l & 1 == 1 && shown[l][..2] == words).fold(0, |lanes, l| lanes | 1 << l)
    }
}

/// The mask, if all lanes have the same bits.
///
/// # Safety
/// - Exactly the lanes of `mask` make this call, together.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_match_all<T: WarpMatchValue>(mask: u32, value: T) -> Option<u32> {
    // SAFETY: the caller's promise.
    (unsafe { warp_match_any(mask, value) } == mask).then_some(mask)
}

/// The operation of [`warp_reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WarpReductionOp {
    /// The sum, wrapping.
    Add,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// Types that one instruction reduces.
pub trait WarpReduceValue: WarpShuffleValue {
    /// Whether comparisons are signed.
    #[doc(hidden)]
    const SIGNED: bool;
}
impl WarpReduceValue for u32 {
    const SIGNED: bool = false;
}
impl WarpReduceValue for i32 {
    const SIGNED: bool = true;
}

/// Combines the values of all lanes; all lanes get the result.
///
/// # Safety
/// - Exactly the lanes of `mask` make this call, together, with the same `op`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_reduce<T: WarpReduceValue>(mask: u32, value: T, op: WarpReductionOp) -> T {
    let bits = value.bits() as u32;
    #[cfg(target_os = "cuda")]
    // SAFETY: the caller's promise.
    let reduced = unsafe {
        match (op, T::SIGNED) {
            (WarpReductionOp::Add, _) => raw::reduce_add(bits, mask),
            (WarpReductionOp::Min, false) => raw::reduce_min_u32(bits, mask),
            (WarpReductionOp::Max, false) => raw::reduce_max_u32(bits, mask),
            (WarpReductionOp::Min, true) => raw::reduce_min_i32(bits, mask),
            (WarpReductionOp::Max, true) => raw::reduce_max_i32(bits, mask),
            (WarpReductionOp::And, _) => raw::reduce_and(bits, mask),
            (WarpReductionOp::Or, _) => raw::reduce_or(bits, mask),
            (WarpReductionOp::Xor, _) => raw::reduce_xor(bits, mask),
        }
    };
    #[cfg(not(target_os = "cuda"))]
    let reduced = {
        let shown = lane(|lane, at| lane.exchange(mask, "warp_reduce", &[bits, op as u32], at));
        let values = (0..32).filter(|l| mask >> l & 1 == 1).map(|l| shown[l][0]);
        let signed = |a: u32, b: u32, less: bool| if ((a as i32) < b as i32) == less { a } else { b };
        let combine = |a: u32, b: u32| match (op, T::SIGNED) {
            (WarpReductionOp::Add, _) => a.wrapping_add(b),
            (WarpReductionOp::Min, false) => a.min(b),
            (WarpReductionOp::Max, false) => a.max(b),
            (WarpReductionOp::Min, true) => signed(a, b, true),
            (WarpReductionOp::Max, true) => signed(a, b, false),
            (WarpReductionOp::And, _) => a & b,
            (WarpReductionOp::Or, _) => a | b,
            (WarpReductionOp::Xor, _) => a ^ b,
        };
        values.reduce(combine).unwrap_or(bits)
    };
    T::from_bits(reduced as u64)
}

/// Waits for all lanes of the warp and makes their writes visible to each other. The whole warp
/// calls this.
#[inline(always)]
#[track_caller]
pub fn sync() {
    // SAFETY: the whole warp is here, by the promise of the running kernel.
    unsafe { sync_warp(FULL) }
}

/// The value of lane `from`. The whole warp calls this.
#[inline(always)]
#[track_caller]
pub fn broadcast<T: WarpShuffleValue>(value: T, from: u32) -> T {
    // SAFETY: the whole warp is here, by the promise of the running kernel.
    unsafe { warp_shuffle_idx(FULL, value, from, 32) }.0
}

/// The value of the lane whose index differs in the bits of `lane_mask`. The whole warp calls this.
#[inline(always)]
#[track_caller]
pub fn shuffle_xor<T: WarpShuffleValue>(value: T, lane_mask: u32) -> T {
    // SAFETY: the whole warp is here, by the promise of the running kernel.
    unsafe { warp_shuffle_xor(FULL, value, lane_mask, 32) }.0
}

/// The value of the lane `delta` below, or the lane's own if there is none. The whole warp calls
/// this.
#[inline(always)]
#[track_caller]
pub fn shuffle_up<T: WarpShuffleValue>(value: T, delta: u32) -> T {
    // SAFETY: the whole warp is here, by the promise of the running kernel.
    unsafe { warp_shuffle_up(FULL, value, delta, 32) }.0
}

/// The lanes in which `predicate` holds. The whole warp calls this.
#[inline(always)]
#[track_caller]
pub fn ballot(predicate: bool) -> u32 {
    // SAFETY: the whole warp is here, by the promise of the running kernel.
    unsafe { warp_vote_ballot(FULL, predicate) }
}

/// Whether `predicate` holds in any lane. The whole warp calls this.
#[inline(always)]
#[track_caller]
pub fn any(predicate: bool) -> bool {
    // SAFETY: the whole warp is here, by the promise of the running kernel.
    unsafe { warp_vote_any(FULL, predicate) }
}

/// The sum over the lanes as a balanced tree; all lanes get it. The whole warp calls this.
#[inline(always)]
#[track_caller]
pub fn sum(value: f32) -> f32 {
    let mut value = value;
    let mut width = 16;
    while width > 0 {
        value += shuffle_xor(value, width);
        width /= 2;
    }
    value
}
