//! Square root and fused multiply-add, which `core` lacks. Rounded as in IEEE 754: the same bits on
//! GPU and host.

/// The square root, rounded to nearest.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    #[cfg(target_os = "cuda")]
    {
        core::f32::math::sqrt(x)
    }
    #[cfg(not(target_os = "cuda"))]
    x.sqrt()
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(target_os = "cuda")]
    {
        core::f32::math::mul_add(a, b, c)
    }
    #[cfg(not(target_os = "cuda"))]
    a.mul_add(b, c)
}
