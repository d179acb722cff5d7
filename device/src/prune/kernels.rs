//! Kernels of pruning rules: one per rule and element type, with the body of [`super::filter`].
//!
//! The module of that body has the algorithm, the buffers and the floors. Kernels of a user's rule
//! are made in the user's crate, whose PTX is a text of its own. Kernels are cached by that text
//! and their name, so two users may give kernels the same name.

#[cfg(not(target_os = "cuda"))]
pub use host::{AnyFilter, RuleElement, RuleKernels};

use super::rule::{AlphaConvergent, Angle, Distance, Spread, TauMonotonic};

/// The types that launches are checked with.
#[cfg(not(target_os = "cuda"))]
mod host {
    use cuda_std::f16;
    use cuda_std::launch::Kernel;

    use crate::block::element::Element;
    use crate::prune::filter::PruneFilter;
    use crate::prune::rule::Rule;

    /// A rule with its kernels; [`rule_kernels!`](crate::rule_kernels) implements this.
    pub trait RuleKernels: Rule + Copy + Send + Sync + 'static {
        /// The kernel for f32.
        type F32: Kernel<Arguments = (PruneFilter<f32>, Self)>;
        /// The kernel for f16.
        type F16: Kernel<Arguments = (PruneFilter<f16>, Self)>;
        /// The kernel for u8.
        type U8: Kernel<Arguments = (PruneFilter<u8>, Self)>;
        /// The kernel for i8.
        type I8: Kernel<Arguments = (PruneFilter<i8>, Self)>;
    }

    /// Arguments of a rule's kernel, for any element type.
    #[derive(Clone, Copy)]
    pub enum AnyFilter {
        /// Arguments for f32.
        F32(PruneFilter<f32>),
        /// Arguments for f16.
        F16(PruneFilter<f16>),
        /// Arguments for u8.
        U8(PruneFilter<u8>),
        /// Arguments for i8.
        I8(PruneFilter<i8>),
    }

    /// An element type that rules have kernels for.
    pub trait RuleElement: Element {
        /// The arguments with their element type as a variant.
        fn any(filter: PruneFilter<Self>) -> AnyFilter;
    }

    macro_rules! rule_elements {
        ($($type:ty: $variant:ident;)*) => {$(
            impl RuleElement for $type {
                fn any(filter: PruneFilter<Self>) -> AnyFilter {
                    AnyFilter::$variant(filter)
                }
            }
        )*};
    }

    rule_elements! {
        f32: F32;
        f16: F16;
        u8: U8;
        i8: I8;
    }
}

/// Makes the kernels of rules:
/// `rule_kernels! { unsafe MyRule: my_rule_f32 my_rule_f16 my_rule_u8 my_rule_i8; }`.
///
/// `unsafe` is the promise of [`#[kernel]`](cuda_std::kernel), as far as it concerns the rule: its
/// methods compute with their arguments alone. They use no memory of `cuda_std`, no barriers and no
/// exchanges between lanes, since lanes may call them in any order.
///
/// Any crate that depends on `cuda_std` can use it and then compiles to PTX with these kernels. For
/// a GPU the crate enables the features `abi_ptx` and `asm_experimental_arch`. On the host the
/// macro implements [`RuleKernels`](crate::prune::kernels::RuleKernels) for the rule.
#[macro_export]
macro_rules! rule_kernels {
    ($(unsafe $rule:ty: $f32:ident $f16:ident $u8:ident $i8:ident;)*) => {$(
        $crate::rule_kernels!(@kernel $rule, $f32, f32);
        $crate::rule_kernels!(@kernel $rule, $f16, ::cuda_std::f16);
        $crate::rule_kernels!(@kernel $rule, $u8, u8);
        $crate::rule_kernels!(@kernel $rule, $i8, i8);

        #[cfg(not(target_os = "cuda"))]
        impl $crate::prune::kernels::RuleKernels for $rule {
            type F32 = $f32;
            type F16 = $f16;
            type U8 = $u8;
            type I8 = $i8;
        }
    )*};
    (@kernel $rule:ty, $name:ident, $element:ty) => {
        #[doc = concat!("Filters candidates by [`", stringify!($rule), "`] (see `tagore_device::prune::filter::PruneFilter`).")]
        ///
        /// Launch: a block of up to `FILTER_THREADS` per node; `filter_shared_bytes`.
        ///
        /// # Safety
        /// - The views match the fields of `PruneFilter`.
        #[::cuda_std::kernel(
            unsafe,
            block = 32..=$crate::prune::filter::FILTER_THREADS,
            shared = $crate::prune::filter::filter_shared_bytes(p.stride, p.rows.dim, $crate::prune::rule::Rule::form(&rule)),
            blocks_per_multiprocessor = 4
        )]
        pub unsafe fn $name(p: $crate::prune::filter::PruneFilter<$element>, rule: $rule) {
            $crate::prune::filter::wavefront(&p, &rule);
        }
    };
}

rule_kernels! {
    unsafe Distance: prune_filter_distance_f32 prune_filter_distance_f16 prune_filter_distance_u8 prune_filter_distance_i8;
    unsafe Angle: prune_filter_angle_f32 prune_filter_angle_f16 prune_filter_angle_u8 prune_filter_angle_i8;
    unsafe Spread: prune_filter_spread_f32 prune_filter_spread_f16 prune_filter_spread_u8 prune_filter_spread_i8;
    unsafe TauMonotonic: prune_filter_tau_f32 prune_filter_tau_f16 prune_filter_tau_u8 prune_filter_tau_i8;
    unsafe AlphaConvergent: prune_filter_alpha_f32 prune_filter_alpha_f16 prune_filter_alpha_u8 prune_filter_alpha_i8;
}
