//! Rules of any type, and their filters on both backends.
//!
//! A rule is a value with its kernels (`device/src/prune/rule.rs`), built in or a user's. Other
//! code sees one trait, and only this file tells rules apart.

use std::fmt;
use std::sync::Arc;

use cuda_std::launch::Kernel;
use tagore_device::key::Key;
use tagore_device::prune::filter;
use tagore_device::prune::kernels::{AnyFilter, RuleKernels};
use tagore_device::prune::rule::{Angle, Distance, Form, Rule, Spread, TauMonotonic};

use super::filter::Pruner;
use super::strategy::{Filter, checked};
use crate::gpu::Gpu;
use crate::{ElementType, Result};

/// A rule of any type, behind one interface for both backends.
pub(super) trait AnyRule: Send + Sync {
    /// Converts a threshold to the rule's own unit.
    fn prepare(&self, threshold: f32) -> f32;

    /// The form of the selection.
    fn form(&self) -> Form;

    /// Filters the candidates of `node` on the CPU; see [`Pruner::filter`].
    fn select(
        &self,
        pruner: &mut Pruner<'_>,
        node: u32,
        candidates: &[Key],
        most: usize,
        accepted: &mut Vec<Key>,
    );

    /// The rule's kernel for bases of `element`.
    fn kernel(&self, element: ElementType) -> &'static str;

    /// Launches the rule's kernel for the base's element type, with `threads` threads for each of
    /// `nodes` nodes.
    ///
    /// # Safety
    /// - As [`Gpu::launch`].
    unsafe fn launch(&self, gpu: &Gpu, filter: AnyFilter, nodes: u32, threads: u32) -> Result<()>;
}

impl<R: RuleKernels> AnyRule for R {
    fn prepare(&self, threshold: f32) -> f32 {
        self.prepare(threshold)
    }

    fn form(&self) -> Form {
        Rule::form(self)
    }

    fn select(
        &self,
        pruner: &mut Pruner<'_>,
        node: u32,
        candidates: &[Key],
        most: usize,
        accepted: &mut Vec<Key>,
    ) {
        pruner.select(self, node, candidates, most, accepted);
    }

    fn kernel(&self, element: ElementType) -> &'static str {
        match element {
            ElementType::F32 | ElementType::Bf16 => R::F32::NAME,
            ElementType::F16 => R::F16::NAME,
            ElementType::U8 | ElementType::B1 => R::U8::NAME,
            ElementType::I8 => R::I8::NAME,
        }
    }

    unsafe fn launch(&self, gpu: &Gpu, filter: AnyFilter, nodes: u32, threads: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match filter {
                AnyFilter::F32(filter) => launch::<_, R::F32, R>(gpu, filter, *self, nodes, threads),
                AnyFilter::F16(filter) => launch::<_, R::F16, R>(gpu, filter, *self, nodes, threads),
                AnyFilter::U8(filter) => launch::<_, R::U8, R>(gpu, filter, *self, nodes, threads),
                AnyFilter::I8(filter) => launch::<_, R::I8, R>(gpu, filter, *self, nodes, threads),
            }
        }
    }
}

/// Launches a rule's kernel and counts its work: candidates and their rows read, edges written.
///
/// # Safety
/// - As [`Gpu::launch`].
pub(super) unsafe fn launch<T, K, R>(
    gpu: &Gpu,
    filter: filter::PruneFilter<T>,
    rule: R,
    nodes: u32,
    threads: u32,
) -> Result<()>
where
    K: Kernel<Arguments = (filter::PruneFilter<T>, R)>,
{
    let row_bytes = u64::from(filter.rows.stride) * size_of::<T>() as u64;
    let bytes = u64::from(filter.stride) * (8 + row_bytes) + u64::from(filter.most) * 8;
    gpu.count_work(K::NAME, u64::from(nodes) * bytes, 0);
    // SAFETY: the caller's promise.
    unsafe { gpu.launch::<K>([nodes, 1, 1], threads, (filter, rule)) }
}

impl Filter {
    /// The rule of the filter; none if it counts detours.
    pub(super) fn rule(&self) -> Option<&dyn AnyRule> {
        match self {
            Self::Distance { .. } => Some(&Distance),
            Self::Angle { .. } => Some(&Angle),
            Self::Spread => Some(&Spread),
            Self::TauMonotonic { .. } => Some(&TauMonotonic),
            Self::AlphaConvergent { rule, .. } => Some(rule),
            Self::Custom(custom) => Some(custom.rule.as_ref()),
            Self::Rank { .. } => None,
        }
    }
}

/// A user's rule, with the PTX of its kernels, if any, and its threshold.
#[derive(Clone)]
pub struct CustomRule {
    pub(super) rule: Arc<dyn AnyRule>,
    pub(super) ptx: Option<&'static str>,
    pub(super) threshold: f32,
}

impl CustomRule {
    pub(super) fn new(rule: impl RuleKernels, ptx: Option<&'static str>, threshold: f32) -> Result<Self> {
        Self { rule: Arc::new(rule), ptx, threshold }.with_threshold(threshold)
    }

    /// The same rule with another threshold.
    pub(crate) fn with_threshold(self, threshold: f32) -> Result<Self> {
        let threshold = checked("threshold", threshold, f32::MIN..=f32::MAX, "a finite number")?;
        Ok(Self { threshold, ..self })
    }
}

impl fmt::Debug for CustomRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomRule").field("has_ptx", &self.ptx.is_some()).finish_non_exhaustive()
    }
}
