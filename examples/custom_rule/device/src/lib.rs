//! A pruning rule and its kernels. The host compiles the crate as a dependency, `../build.rs` for
//! GPUs.

#![cfg_attr(target_os = "cuda", no_std)]
#![cfg_attr(target_os = "cuda", feature(abi_ptx, asm_experimental_arch))]

use tagore_device::prune::rule::{Rule, cosine};
use tagore_device::rule_kernels;

/// Vamana's rule within a cone: an accepted neighbour a rejects candidate c iff a is nearer to c
/// than p is, by the factor alpha on squared distances, and the angle at p between a and c is below
/// the threshold, in degrees.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Cone {
    /// Factor of Vamana's rule.
    pub alpha: f32,
}

impl Rule for Cone {
    // Runs on the host, once per build.
    #[cfg(not(target_os = "cuda"))]
    fn prepare(&self, degrees: f32) -> f32 {
        degrees.to_radians().cos()
    }

    #[inline(always)]
    fn keep(&self, d_pc: f32, d_pa: f32, d_ac: f32, threshold: f32) -> bool {
        d_pc < self.alpha * d_ac || cosine(d_pc, d_pa, d_ac) <= threshold
    }
}

rule_kernels! {
    unsafe Cone: cone_f32 cone_f16 cone_u8 cone_i8;
}
