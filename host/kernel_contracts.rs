//! Launch contracts of all kernels, over the parameters of the host, against the limits of every
//! compute capability.

use std::collections::{BTreeMap, BTreeSet};

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::block::rows::Rows;
use tagore_device::block::tile_walk::{Chunks, Tiles};
use tagore_device::cluster::{
    Assign, MAX_PROBES, cluster_ids, cluster_keys, cluster_lists, cluster_member_keys, cluster_members,
    cluster_sample,
};
use tagore_device::descent::cells::{
    CrossCellJoin, Finish, FinishExact, IntraCellJoin, KnownSets, MergeCandidates, MergeProposals,
    cells_finish_exact, cells_known_sets, cells_merge_candidates, cells_merge_proposals, known_bits,
};
use tagore_device::descent::expand::Expand;
use tagore_device::descent::merge::{MergeJoin, descent_merge};
use tagore_device::descent::renumber::{renumber_ids, renumber_values, renumber_vectors};
use tagore_device::descent::sample::{descent_gather, descent_sample, descent_start};
use tagore_device::lists::lengths::Lengths;
use tagore_device::lists::merge::MergeLists;
use tagore_device::prune::collect::Collect;
use tagore_device::prune::detours::{Detours, prune_detours};
use tagore_device::prune::filter;
use tagore_device::prune::gram::prune_gram_spread;
use tagore_device::prune::ids::prune_ids;
use tagore_device::prune::kernels::RuleKernels;
use tagore_device::prune::layer_nodes::{layer_leave, layer_take};
use tagore_device::prune::monotonic::Monotonic;
use tagore_device::prune::path::Paths;
use tagore_device::prune::reverse::{prune_edge_sources, prune_edge_targets, prune_edges, prune_edges_count};
use tagore_device::prune::rule::{AlphaConvergent, Angle, Distance, Spread, TauMonotonic};
use tagore_device::prune::store::{MERGED, MergeReverse, Store, prune_merge, prune_store};
use tagore_device::prune::tree::prune_tree;
use tagore_device::reduce::{reduce_marks, reduce_min};
use tagore_device::search::beam::among::BeamAmong;
use tagore_device::search::beam::on_edges::{EdgeSearch, edge_table_slots};
use tagore_device::search::beam::search::BeamSearch;
use tagore_device::search::beam::walk::{BeamWalk, Graph};
use tagore_device::search::edges::code::EdgeCoding;
use tagore_device::search::edges::query::EdgeQueries;
use tagore_device::search::exact::{
    ExactFilter, ExactRerank, exact_norms_i8, exact_norms_u8, exact_prepare_f16, exact_prepare_f32,
};
use tagore_device::search::rerank::{Rerank, search_rerank_f16, search_rerank_f32};
use tagore_device::sort::{sort_count, sort_scan, sort_scatter};
use tagore_device::vectors::Strided;
use tagore_device::vectors::check::{vectors_check_f16, vectors_check_f32};
use tagore_device::vectors::code::{Coding, vectors_code_f16_i8, vectors_code_f32_f16, vectors_code_f32_i8};
use tagore_device::vectors::copy::{
    vectors_copy_bits, vectors_copy_bytes, vectors_copy_narrowed, vectors_copy_packed, vectors_copy_words,
};
use tagore_device::vectors::hash::{vectors_hash_bytes, vectors_hash_words};
use tagore_device::vectors::settle::{Settle, vectors_settle};
use tagore_device::vectors::split::vectors_split;

use crate::descent::MAX_KNN;
use crate::descent::gpu::DescentKernels;
use crate::descent::gpu::cells::ROUND;
use crate::descent::gpu::phases::MAX_EXPANDED;
use crate::gpu::Capability;
use crate::index::MAX_LAYER_BEAM;
use crate::outofcore::ListKernels;
use crate::prune::collect::{HOP, PATH};
use crate::prune::gpu::{PruneKernels, PruneShape};
use crate::search::EdgeKernels;
use crate::search::breadth::Breadth;
use crate::search::exact::gpu::{MAX_K, capacity};
use crate::search::gpu::{BeamKernels, BeamShape, MAX_BEAM};
use crate::vectors::gpu::{ByChunks, NormKernels, Side};
use crate::{MAX_CANDIDATES, MAX_DEGREE, MAX_DIM, MAX_WIDTH, Metric, Strategy};

/// Longest lists of descent.
const MAX_DESCENT_K: u32 = crate::descent::gpu::MAX_K as u32;

/// Numbers from 1 to `most`, with both ends, around which the formulas of contracts change.
fn breakpoints(most: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|bit| 1 << bit).take_while(|&power| power <= most);
    let near = powers.flat_map(|power| [power - 1, power, power + 1, power * 3 / 2 + 1]).chain([96, most]);
    let breakpoints: BTreeSet<usize> = near.filter(|&n| (1..=most).contains(&n)).collect();
    breakpoints.into_iter().collect()
}

/// Arguments of zeros; callers set some fields.
fn zeroed<T: Copy>() -> T {
    // SAFETY: kernels' arguments are addresses and numbers.
    unsafe { std::mem::zeroed() }
}

/// Kernels, each with the most shared memory of its launches.
#[derive(Default)]
struct Launched(BTreeMap<&'static str, u32>);

impl Launched {
    fn kernel<K: Kernel>(&mut self, arguments: K::Arguments) {
        let contract = K::contract(&arguments);
        assert!(contract.block.1 <= 1024, "{}", K::NAME);
        let most = self.0.entry(K::NAME).or_default();
        *most = contract.shared.max(*most);
    }

    /// The version for vectors of `units` units.
    fn by_chunks<K: ByChunks>(&mut self, units: u32, arguments: K::Arguments) {
        match Chunks::for_units(units) {
            Chunks::One => self.kernel::<K::One>(arguments),
            Chunks::Two => self.kernel::<K::Two>(arguments),
            Chunks::Many => self.kernel::<K::Many>(arguments),
        }
    }

    /// Kernels whose shared memory is constant.
    fn constant<K: Kernel>(&mut self) {
        self.kernel::<K>(zeroed());
    }

    fn check(&self, capability: Capability) {
        for (kernel, &bytes) in &self.0 {
            let allowed = capability.shared_memory();
            assert!(bytes <= allowed, "{kernel}: {bytes} bytes of {allowed} on {capability}");
        }
    }
}

/// Kernels with constant shared memory, or shared memory by lists alone.
fn of_lists(launched: &mut Launched) {
    launched.constant::<cluster_ids>();
    launched.constant::<cluster_keys>();
    launched.constant::<cluster_lists>();
    launched.constant::<cluster_member_keys>();
    launched.constant::<cluster_members>();
    launched.constant::<cluster_sample>();
    launched.constant::<descent_gather>();
    launched.constant::<descent_sample>();
    launched.constant::<descent_start>();
    launched.constant::<exact_norms_i8>();
    launched.constant::<exact_norms_u8>();
    launched.constant::<exact_prepare_f16>();
    launched.constant::<exact_prepare_f32>();
    launched.constant::<prune_edge_sources>();
    launched.constant::<prune_edge_targets>();
    launched.constant::<prune_edges>();
    launched.constant::<prune_edges_count>();
    launched.constant::<layer_leave>();
    launched.constant::<layer_take>();
    launched.constant::<prune_ids>();
    launched.constant::<prune_tree>();
    launched.constant::<reduce_marks>();
    launched.constant::<reduce_min>();
    launched.constant::<renumber_ids>();
    launched.constant::<renumber_values>();
    launched.constant::<renumber_vectors>();
    launched.constant::<sort_count>();
    launched.constant::<sort_scan>();
    launched.constant::<sort_scatter>();
    launched.constant::<vectors_copy_bits>();
    launched.constant::<vectors_copy_bytes>();
    launched.constant::<vectors_copy_narrowed>();
    launched.constant::<vectors_copy_packed>();
    launched.constant::<vectors_copy_words>();
    launched.constant::<vectors_check_f16>();
    launched.constant::<vectors_check_f32>();
    launched.constant::<vectors_hash_bytes>();
    launched.constant::<vectors_hash_words>();
    launched.constant::<vectors_split>();
    for k in 1..=MAX_DESCENT_K {
        launched.kernel::<descent_merge>((MergeJoin { k, ..zeroed() },));
        launched.kernel::<cells_merge_proposals>((MergeProposals { k, ..zeroed() },));
        launched.kernel::<cells_known_sets>((KnownSets { k, bits: known_bits(k), ..zeroed() },));
        launched.kernel::<cells_finish_exact>((FinishExact { k, ..zeroed() },));
        launched.kernel::<cells_merge_candidates>((MergeCandidates {
            capacity: ROUND as u32,
            k,
            ..zeroed()
        },));
    }
    for degree in 1..=MAX_DEGREE as u32 {
        launched.kernel::<prune_store>((Store { width: degree, degree, ..zeroed() },));
        launched.kernel::<prune_merge>((MergeReverse { width: degree, ..zeroed() },));
    }
}

/// Kernels with shared memory by vectors.
fn of_vectors<T: DescentKernels + PruneKernels + ListKernels + NormKernels>(launched: &mut Launched) {
    launched.constant::<T::Join>();
    launched.constant::<T::Pairs>();
    launched.constant::<T::Mean>();
    launched.constant::<T::MedoidSums>();
    launched.constant::<T::MedoidNearest>();
    launched.constant::<T::Squares>();
    launched.constant::<T::Unit>();
    for dim in 1..=MAX_DIM {
        let units = Side::<T>::tile_units(dim);
        let tiles = Tiles { units, ..zeroed() };
        launched.by_chunks::<T::Filter>(units, (ExactFilter { tiles, ..zeroed() },));
        launched.by_chunks::<T::IntraCellJoin>(units, (IntraCellJoin { tiles, ..zeroed() },));
        launched.by_chunks::<T::CrossCellJoin>(units, (CrossCellJoin { tiles, ..zeroed() },));
        launched.kernel::<T::Nearest>((Assign { units, ..zeroed() },));
        for probes in 1..=MAX_PROBES {
            launched.kernel::<T::Assign>((Assign { units, probes, ..zeroed() },));
        }
        let rows = Rows { dim: dim as u32, ..zeroed() };
        launched.kernel::<T::Monotonic>((Monotonic { rows, ..zeroed() },));
        for k in breakpoints(MAX_DESCENT_K as usize) {
            launched.kernel::<T::Finish>((Finish { dim: dim as u32, k: k as u32, ..zeroed() },));
            for expand in breakpoints(MAX_EXPANDED) {
                let (k, expand) = (k as u32, expand as u32);
                launched.kernel::<T::Expand>((Expand { units, k, expand, ..zeroed() },));
                launched.kernel::<T::ExpandPacked>((Expand { units, k, expand, ..zeroed() },));
            }
        }
        for k in breakpoints(MAX_K) {
            let (capacity, k) = (capacity(k) as u32, k as u32);
            launched.kernel::<T::Rerank>((ExactRerank { dim: dim as u32, capacity, k, ..zeroed() },));
        }
        for degree in breakpoints(MAX_DEGREE) {
            let degree = degree as u32;
            launched.kernel::<T::Lengths>((Lengths { rows, degree, ..zeroed() },));
            launched.kernel::<T::MergeLists>((MergeLists { rows, degree, ..zeroed() },));
        }
    }
}

/// Beam search: the host chooses the table by the device.
fn of_search<T: BeamKernels>(launched: &mut Launched, capability: Capability) {
    for dim in [1, 128, MAX_DIM] {
        for degree in breakpoints(MAX_DEGREE) {
            for beam in breakpoints(MAX_BEAM) {
                for width in 1..=MAX_WIDTH {
                    let breadth = Breadth::fixed(beam);
                    let shape = BeamShape { dim, degree, breadth, width, is_among: false };
                    let search = |slots| {
                        let base = Rows { dim: dim as u32, ..zeroed() };
                        let graph = Graph { degree: degree as u32, ..zeroed() };
                        let (beam, width) = (beam as u32, width as u32);
                        let walk = BeamWalk { base, graph, beam, width, slots, ..zeroed() };
                        BeamSearch { walk, ..zeroed() }
                    };
                    // The widest steps through the longest rows do not fit every device.
                    let slots = match shape.slots(capability.shared_memory()) {
                        Ok(slots) => slots,
                        Err(_) if degree * width > MAX_DEGREE => continue,
                        Err(bytes) => panic!("{bytes} bytes do not fit"),
                    };
                    let arguments = (search(slots),);
                    let among = BeamShape { is_among: true, ..shape };
                    if let Ok(slots) = among.slots(capability.shared_memory()) {
                        let arguments = (BeamAmong { search: search(slots), ..zeroed() },);
                        launched.kernel::<T::Among128>(arguments);
                        launched.kernel::<T::Among512>(arguments);
                        if beam <= MAX_LAYER_BEAM && width == 1 {
                            launched.kernel::<T::AmongLayer>(arguments);
                        }
                    }
                    if width > 1 {
                        launched.kernel::<T::BeamWide>(arguments);
                        continue;
                    }
                    launched.kernel::<T::Beam64>(arguments);
                    if beam <= MAX_LAYER_BEAM {
                        launched.kernel::<T::BeamLayer>(arguments);
                    }
                    launched.kernel::<T::Beam128>(arguments);
                    launched.kernel::<T::Beam256>(arguments);
                    launched.kernel::<T::Beam512>(arguments);
                }
            }
        }
    }
}

fn of_rule<R: RuleKernels>(launched: &mut Launched, rule: R, stride: u32, dim: u32) {
    fn arguments<T: Copy>(stride: u32, dim: u32) -> filter::PruneFilter<T>
    where
        filter::PruneFilter<T>: Copy,
        Rows<T>: Copy,
    {
        filter::PruneFilter { stride, rows: Rows { dim, ..zeroed() }, ..zeroed() }
    }
    launched.kernel::<R::F32>((arguments(stride, dim), rule));
    launched.kernel::<R::F16>((arguments(stride, dim), rule));
    launched.kernel::<R::U8>((arguments(stride, dim), rule));
    launched.kernel::<R::I8>((arguments(stride, dim), rule));
}

/// The steps of pruning that `shape` takes for vectors of type `T`.
fn of_pruning<T: PruneKernels>(
    launched: &mut Launched,
    shape: &PruneShape,
    dim: u32,
    k: u32,
    strategy: &Strategy,
) {
    let rows = Rows { dim, ..zeroed() };
    match strategy.collect_from(k as usize) {
        crate::Collect::Path => {
            let walk = BeamWalk {
                base: rows,
                graph: Graph { degree: k, ..zeroed() },
                entry_count: shape.entries() as u32,
                expansions: PATH.expansions as u32,
                ..zeroed()
            };
            launched.kernel::<T::Path>((Paths { walk, ..zeroed() },));
            launched.kernel::<T::LongPath>((Paths { walk, ..zeroed() },));
        }
        crate::Collect::OneHop => launched.kernel::<T::Collect>((Collect { rows, k, hop: 0, ..zeroed() },)),
        crate::Collect::TwoHop => {
            launched.kernel::<T::Collect>((Collect { rows, k, hop: HOP as u32, ..zeroed() },));
        }
    }
    for candidates in [shape.limit() as u32, MERGED] {
        match strategy.filter {
            crate::Filter::Rank { .. } => {
                let detours = Detours { count: candidates, ..zeroed() };
                launched.kernel::<prune_detours>((detours,));
            }
            crate::Filter::Distance { .. } => of_rule(launched, Distance, candidates, dim),
            crate::Filter::Angle { .. } => of_rule(launched, Angle, candidates, dim),
            crate::Filter::Spread => {
                of_rule(launched, Spread, candidates, dim);
                let rows = Rows { dim, ..zeroed() };
                let filter = filter::PruneFilter { rows, stride: candidates, ..zeroed() };
                launched.kernel::<prune_gram_spread>((filter, Spread));
            }
            crate::Filter::TauMonotonic { .. } => of_rule(launched, TauMonotonic, candidates, dim),
            crate::Filter::AlphaConvergent { rule, .. } => {
                of_rule::<AlphaConvergent>(launched, rule, candidates, dim)
            }
            crate::Filter::Custom(_) => {}
        }
    }
}

/// Pruning, for shapes that fit the device; the CPU prunes the others.
fn of_strategies(launched: &mut Launched, capability: Capability) {
    for strategy in Strategy::all() {
        for collect in [crate::Collect::OneHop, crate::Collect::TwoHop, crate::Collect::Path] {
            for candidates in [1, 96, 512, 1024, 4096, MAX_CANDIDATES] {
                for degree in [1, 32, MAX_DEGREE] {
                    let strategy = strategy.clone().collect(collect).candidates(candidates).degree(degree);
                    for (k, dim) in
                        breakpoints(MAX_KNN).into_iter().flat_map(|k| [1, 128, MAX_DIM].map(|dim| (k, dim)))
                    {
                        let shape = PruneShape::new(&strategy, 1 << 20, dim, k, Metric::L2);
                        if shape.block_bytes() > capability.shared_memory() {
                            // Only path collection from long lists exceeds the limit.
                            assert!(
                                collect == crate::Collect::Path && k > 384,
                                "{strategy:?}, K = {k}, {dim}"
                            );
                            continue;
                        }
                        let (dim, k) = (dim as u32, k as u32);
                        of_pruning::<f32>(launched, &shape, dim, k, &strategy);
                        of_pruning::<f16>(launched, &shape, dim, k, &strategy);
                        of_pruning::<u8>(launched, &shape, dim, k, &strategy);
                        of_pruning::<i8>(launched, &shape, dim, k, &strategy);
                    }
                }
            }
        }
    }
}

/// Searches on codes of edges.
fn of_edges<T: EdgeKernels>(launched: &mut Launched) {
    for dim in breakpoints(MAX_DIM) {
        let rows = Rows { dim: dim as u32, ..zeroed() };
        launched.kernel::<T::CodeGraph>((EdgeCoding { base: rows, ..zeroed() },));
        launched.kernel::<T::CodeQueries>((EdgeQueries { queries: rows, ..zeroed() },));
        for kept in breakpoints(MAX_BEAM) {
            let slots = edge_table_slots(kept as u32);
            let search = BeamSearch { walk: BeamWalk { base: rows, slots, ..zeroed() }, ..zeroed() };
            let arguments = (EdgeSearch { search, kept: kept as u32, ..zeroed() },);
            launched.kernel::<T::Search64>(arguments);
            launched.kernel::<T::Search128>(arguments);
            launched.kernel::<T::Search256>(arguments);
            launched.kernel::<T::Search512>(arguments);
        }
    }
}

/// Searches and builds on codes.
fn of_codes(launched: &mut Launched) {
    for dim in [1, 128, MAX_DIM as u32] {
        launched.kernel::<vectors_code_f32_f16>((Coding { rows: Strided { dim, ..zeroed() }, ..zeroed() },));
        launched.kernel::<vectors_code_f32_i8>((Coding { rows: Strided { dim, ..zeroed() }, ..zeroed() },));
        launched.kernel::<vectors_code_f16_i8>((Coding { rows: Strided { dim, ..zeroed() }, ..zeroed() },));
        for k in breakpoints(MAX_KNN) {
            launched.kernel::<vectors_settle>((Settle { k: k as u32, dim, ..zeroed() },));
        }
        for walked in [1, 32, MAX_BEAM as u32] {
            let queries = Rows { dim, ..zeroed() };
            launched.kernel::<search_rerank_f32>((Rerank { queries, walked, k: walked, ..zeroed() },));
            let queries = Rows { dim, ..zeroed() };
            launched.kernel::<search_rerank_f16>((Rerank { queries, walked, k: walked, ..zeroed() },));
        }
    }
}

#[test]
fn every_kernel_fits_every_device() {
    let mut everywhere = Launched::default();
    of_codes(&mut everywhere);
    of_lists(&mut everywhere);
    of_edges::<f32>(&mut everywhere);
    of_edges::<f16>(&mut everywhere);
    of_edges::<u8>(&mut everywhere);
    of_edges::<i8>(&mut everywhere);
    of_vectors::<f32>(&mut everywhere);
    of_vectors::<f16>(&mut everywhere);
    of_vectors::<u8>(&mut everywhere);
    of_vectors::<i8>(&mut everywhere);
    let entries = tagore_device::PTX.lines().filter_map(|line| line.split(".entry ").nth(1));
    let kernels: BTreeSet<&str> = entries.map(|entry| entry.trim_end_matches(['(', ')'])).collect();
    for capability in Capability::ALL {
        everywhere.check(capability);
        let mut launched = Launched::default();
        of_search::<f32>(&mut launched, capability);
        of_search::<f16>(&mut launched, capability);
        of_search::<u8>(&mut launched, capability);
        of_search::<i8>(&mut launched, capability);
        of_strategies(&mut launched, capability);
        launched.check(capability);
        let names: BTreeSet<&str> = everywhere.0.keys().chain(launched.0.keys()).copied().collect();
        assert_eq!(names, kernels, "the kernels of this test and of the PTX differ");
    }
}
