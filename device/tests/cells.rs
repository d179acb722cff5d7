//! Tests of the kernels of cells, and of the exact distances at the end of every descent.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use emulator::Emulator;
use tagore_device::block::exact::Metric;
use tagore_device::block::sums::TileElement;
use tagore_device::block::tile;
use tagore_device::block::tile_walk::Tiles;
use tagore_device::descent::cells::*;
use tagore_device::descent::merge::{COUNTERS, MERGE_NODES, MERGE_THREADS};
use tagore_device::descent::slots::two_slots;
use tagore_device::key::{self, Key, NONE, UNVISITED};
use tagore_device::search::exact::RERANK_THREADS;

use crate::exact::{Sum, Value, exact_distance, padded, padded_rows};
use crate::{SEEDS, integers, room};

/// Vectors of `units` units, as queries and as rows.
pub fn tiles<S: Sum>(vectors: &emulator::Allocation, biases: &emulator::Allocation, units: u32) -> Tiles<S> {
    Tiles {
        queries: vectors.view().read_only(),
        rows: vectors.view().read_only(),
        biases: biases.view().read_only(),
        query_stride: units * 16,
        row_stride: units * 16,
        units,
        weight: S::of(-2),
    }
}

/// Units of vectors of one chunk, of two and of more: partial and whole chunks.
pub const ONE: [usize; 2] = [1, 8];
pub const TWO: [usize; 2] = [9, 16];
pub const MANY: [usize; 2] = [17, 24];

/// The inner product of vectors `a` and `b` of `dim` components.
pub fn dot(vectors: &[i64], dim: usize, a: u32, b: u32) -> i64 {
    let (a, b) = (a as usize * dim, b as usize * dim);
    vectors[a..a + dim].iter().zip(&vectors[b..b + dim]).map(|(x, y)| x * y).sum()
}

/// Merges one line of distances of `rows` rows, from row 20 on, into `list`, where the query is
/// the row at place `own`, if any. Returns the list and its bound.
fn merge_line(
    distances: &[f32],
    list: &[Key],
    own: Option<usize>,
    capacity: usize,
    seed: u64,
) -> (Vec<Key>, f32) {
    let (k, rows) = (list.len(), distances.len());
    let first_row = 20u32;
    let members: Vec<u32> = (0..first_row + rows as u32).map(|place| place ^ 1).collect();
    let own = own.map_or(3, |own| first_row as usize + own);
    // The second of two queries; the first one has no distances.
    let (first_query, query) = (own as u32 - 1, 1);
    let node = members[own] as usize;
    let nodes = members.len() + 1;
    let mut words = vec![u32::MAX; tile::SIDE as usize * capacity];
    let line = &mut words[query * capacity..][..rows];
    line.iter_mut().zip(distances).for_each(|(word, &distance)| *word = key::ordered(distance));
    let mut lists = vec![NONE; nodes * k];
    lists[node * k..][..k].copy_from_slice(list);
    let emulator = Emulator::with_seed(seed);
    let (there, members_there) = (emulator.upload(&words), emulator.upload(&members));
    let jobs = emulator.upload(&[first_query, 2, first_row, rows as u32]);
    let (lists_there, bounds) = (emulator.upload(&lists), emulator.upload(&vec![OPEN; nodes]));
    let arguments = MergeCandidates {
        distances: there.view().read_only(),
        members: members_there.view().read_only(),
        jobs: jobs.view().read_only(),
        lists: lists_there.view(),
        bounds: bounds.view(),
        capacity: capacity as u32,
        k: k as u32,
    };
    let blocks = [tile::SIDE / CANDIDATE_LINES, 1, 1];
    emulator.launch::<cells_merge_candidates>(blocks, CANDIDATE_THREADS, (arguments,)).unwrap();
    let (mut after, bounds) = (lists_there.values::<Key>().unwrap(), bounds.values::<f32>().unwrap());
    let merged = after[node * k..][..k].to_vec();
    after[node * k..][..k].copy_from_slice(list);
    assert!(after == lists, "another list has changed");
    assert!(bounds.iter().enumerate().all(|(other, &bound)| other == node || bound == OPEN));
    (merged, bounds[node])
}

/// The bound of a list that no merge has filled.
const OPEN: f32 = 123_456.0;

#[test]
fn the_smallest_distances_are_merged_once() {
    let capacity = 512;
    for (seed, k) in SEEDS.into_iter().zip([1usize, 13, 96]) {
        // No row, one, one step of places, all places; a list that is empty, short or full.
        for (number, rows) in [0usize, 1, 33, 128, 300, 512].into_iter().enumerate() {
            for held in [0, k / 2, k] {
                let values = integers(rows, -1000, 1000, seed + 40 + number as u64);
                let mut distances: Vec<f32> = values.iter().map(|&value| value as f32).collect();
                let own = (rows > 1).then_some(rows / 2);
                // Nearest of all, if it were a neighbour.
                own.into_iter().for_each(|own| distances[own] = -2000.0);
                // One value far away: a guess by interpolation finds none or all of the others.
                if rows == 300 {
                    distances[7] = 1e30;
                }
                let mut list: Vec<Key> =
                    (0..k as u32).map(|i| key::pack(i as f32 * 40.0 - 700.0, 9000 + i)).collect();
                list[held..].fill(NONE);
                let (merged, bound) = merge_line(&distances, &list, own, capacity, seed);
                let mut expected = list.clone();
                let others = (0..rows).filter(|&place| Some(place) != own);
                expected.extend(others.map(|place| key::pack(distances[place], (20 + place as u32) ^ 1)));
                expected.sort_unstable();
                expected.truncate(k);
                // Of equal distances at the end, any.
                let distances_of = |keys: &[Key]| keys.iter().map(|key| key >> 32).collect::<Vec<_>>();
                assert_eq!(distances_of(&merged), distances_of(&expected), "{rows} rows, {held} of {k}");
                let last = expected[k - 1];
                let certain = merged.iter().take_while(|&&key| key >> 32 != last >> 32).count();
                assert_eq!(merged[..certain], expected[..certain], "{rows} rows, {held} of {k}");
                let changed = last != NONE && merged != list;
                let expected = if changed { key::distance(last) } else { OPEN };
                assert_eq!(bound, expected, "{rows} rows, {held} of {k}");
            }
        }
    }
}

#[test]
fn equal_distances_fill_a_list_without_repeats() {
    for (below, k) in [(0usize, 96usize), (50, 96), (95, 96), (0, 1), (200, 256)] {
        let distances: Vec<f32> = (0..500).map(|i| if i % 500 < below { i as f32 } else { 7777.0 }).collect();
        let (merged, bound) = merge_line(&distances, &vec![NONE; k], Some(499), 512, 3);
        assert_eq!(bound, 7777.0);
        assert!(merged.is_sorted() && merged.windows(2).all(|pair| pair[0] != pair[1]));
        let near = merged.iter().filter(|&&key| key::distance(key) < 7777.0).count();
        assert_eq!((near, merged.len()), (below.min(k), k), "{below} below, k = {k}");
        assert!(merged.iter().all(|&key| key::id(key) ^ 1 >= 20 && key::id(key) ^ 1 < 519));
    }
}

/// Puts a key in both of its slots.
fn propose(slots: &mut [Key], key: Key, salt: u32) {
    let (first, second) = two_slots(key::id(key), salt, PROPOSAL_BITS);
    for slot in [first, second] {
        slots[slot as usize] = slots[slot as usize].min(key);
    }
}

// Two cells with members of three ranks: query tiles of the first two ranks against ranges of
// ranks.
fn cross_cell_join<E: TileElement<Sum: Sum>, K: Kernel<Arguments = (CrossCellJoin<E::Sum>,)>>(
    of: impl Fn(i64) -> E,
    units: [usize; 2],
) {
    for (seed, units) in SEEDS.into_iter().zip(units) {
        let (count, dim, m, salt) = (300usize, units * 16 / size_of::<E>(), 3usize, 99);
        let vectors = integers(count * dim, 0, 7, seed + 50);
        let biases = integers(count, 0, 50, seed);
        // A vector may be a query and a row of the same tile. It is not compared with itself.
        let members: Vec<u32> = (0..150).chain(100..280).chain([7, 9, 299]).collect();
        let starts = [0u32, 130, 140, 270, 270, 300, 333];
        // 140 queries in two tiles, some of the second rank; and a cell that no other vectors
        // probe.
        let query_tiles = [
            QueryTile { cell: 0, first: 0, count: 128 },
            QueryTile { cell: 0, first: 128, count: 12 },
            QueryTile { cell: 1, first: 270, count: 30 },
        ];
        let most = 120;
        let dot = |a: u32, b: u32| dot(&vectors, dim, a, b);
        let value = |to: u32, other: u32| biases[other as usize] - 2 * dot(to, other);
        let middle = -2 * dot(0, 1);
        let bounds: Vec<i64> = (0..count as i64).map(|vector| middle + vector % 5 * 10 - 20).collect();
        let emulator = Emulator::with_seed(seed);
        let there = emulator.upload(&vectors.iter().map(|&x| of(x)).collect::<Vec<E>>());
        let biases_there = emulator.upload(&biases.iter().map(|&x| E::Sum::of(x)).collect::<Vec<_>>());
        let bounds_there = emulator.upload(&bounds.iter().map(|&x| x as f32).collect::<Vec<f32>>());
        let (members_there, starts_there) = (emulator.upload(&members), emulator.upload(&starts));
        let query_tiles_there = emulator.upload(&query_tiles.map(|p| [p.cell, p.first, p.count]).concat());
        let proposals = emulator.upload(&vec![NONE; count * PROPOSALS as usize]);
        // Every vector knows some others, in the last range of ranks.
        let bits = known_bits(40);
        let known: Vec<u32> = integers(count << bits, 0, i64::from(u32::MAX), seed + 70)
            .into_iter()
            .map(|word| word as u32)
            .collect();
        let known_there = emulator.upload(&known);
        let knows = |to: u32, other: u32| {
            let hash = known_hash(other, 3, bits);
            word_holds(known[((to << bits) + (hash >> 8)) as usize], hash)
        };
        for ranks in [0..1u32, 1..2, 1..3, 2..3] {
            let arguments = CrossCellJoin {
                tiles: tiles(&there, &biases_there, units as u32),
                bounds: bounds_there.view().read_only(),
                members: members_there.view().read_only(),
                starts: starts_there.view().read_only(),
                query_tiles: query_tiles_there.view().read_only(),
                proposals: proposals.view(),
                known: known_there.view().read_only(),
                probes: m as u32,
                first_rank: ranks.start,
                end_rank: ranks.end,
                most,
                salt,
                known_bits: if ranks.start == 2 { bits } else { 0 },
                known_salt: 3,
                padding: 0,
            };
            emulator.launch::<K>([query_tiles.len() as u32, 1, 1], tile::THREADS, (arguments,)).unwrap();
            let mut expected = vec![NONE; count * PROPOSALS as usize];
            let mut proposed = 0;
            for query_tile in query_tiles {
                let of_cell = &starts[query_tile.cell as usize * m..];
                let rows = of_cell[ranks.start as usize].max(query_tile.first)..of_cell[ranks.end as usize];
                for query in &members[query_tile.first as usize..][..query_tile.count as usize] {
                    for row in &members[rows.start as usize..rows.end.min(rows.start + most) as usize] {
                        for (to, other) in [(*query, *row), (*row, *query)] {
                            let norm = |vector: u32| biases[vector as usize];
                            let bound = bounds[to as usize];
                            let is_known = ranks.start == 2 && knows(to, other);
                            let asks = E::Sum::asks(value(to, other), norm(to), norm(other), bound);
                            if to != other && asks && !is_known {
                                let slots =
                                    &mut expected[to as usize * PROPOSALS as usize..][..PROPOSALS as usize];
                                propose(slots, key::pack(value(to, other) as f32, other), salt);
                                proposed += 1;
                            }
                        }
                    }
                }
            }
            let found = proposals.values::<Key>().unwrap();
            assert!(found == expected, "ranks {ranks:?}, seed {seed}: {proposed} proposals");
            assert!(proposed > 100, "{proposed} proposals");
            proposals.upload(0, &vec![0xff; found.len() * 8]).unwrap();
        }
    }
}

#[test]
fn the_cross_cell_join_proposes_to_both_vectors() {
    cross_cell_join::<f16, cells_cross_join_1_f16>(|x| f16::from_f32(x as f32), ONE);
    cross_cell_join::<f16, cells_cross_join_2_f16>(|x| f16::from_f32(x as f32), TWO);
    cross_cell_join::<f16, cells_cross_join_many_f16>(|x| f16::from_f32(x as f32), MANY);
    cross_cell_join::<u8, cells_cross_join_1_u8>(|x| x as u8, ONE);
    cross_cell_join::<u8, cells_cross_join_2_u8>(|x| x as u8, TWO);
    cross_cell_join::<u8, cells_cross_join_many_u8>(|x| x as u8, MANY);
    cross_cell_join::<i8, cells_cross_join_1_i8>(|x| x as i8, ONE);
    cross_cell_join::<i8, cells_cross_join_2_i8>(|x| x as i8, TWO);
    cross_cell_join::<i8, cells_cross_join_many_i8>(|x| x as i8, MANY);
}

#[test]
fn proposals_are_merged_once() {
    for (seed, k) in SEEDS.into_iter().zip([1usize, 40, 97]) {
        let (nodes, salt) = (35usize, 5);
        let slots = PROPOSALS as usize;
        // None, a few, a run, as many as slots, many more.
        let counts = [0, 3, 32, 128, 1000];
        let full = |node: usize| [k, k / 2, 0][node % 3];
        let mut lists = vec![NONE; nodes * k];
        let mut proposals = vec![NONE; nodes * slots];
        for node in 0..nodes {
            let old: Vec<Key> =
                (0..full(node) as u32).map(|i| key::pack((3 * i + 1) as f32, 2000 + i)).collect();
            lists[node * k..][..old.len()].copy_from_slice(&old);
            for (id, value) in (0..).zip(integers(counts[node % 5], 0, 4 * k as i64, seed + node as u64)) {
                // Some are known.
                let key = if id % 4 == 1 && !old.is_empty() {
                    old[id as usize % old.len()]
                } else {
                    key::pack(value as f32 + 0.5, id)
                };
                propose(&mut proposals[node * slots..][..slots], key, salt);
            }
            // The lists of the first nodes are unvisited.
            lists[node * k..][..old.len()]
                .iter_mut()
                .for_each(|key| *key |= if node < 6 { UNVISITED } else { 0 });
        }
        let emulator = Emulator::with_seed(seed);
        let (lists_there, proposals_there) = (emulator.upload(&lists), emulator.upload(&proposals));
        let bounds = emulator.upload(&vec![-1f32; nodes]);
        let changes = emulator.upload(&vec![0u32; COUNTERS as usize]);
        // Two devices may have a part of the nodes each.
        for (first, end) in [(13, nodes as u32), (0, 13)] {
            let arguments = MergeProposals {
                lists: lists_there.view(),
                proposals: proposals_there.view(),
                bounds: bounds.view(),
                changes: changes.view(),
                nodes: end,
                k: k as u32,
                salt,
                first,
            };
            let grid = [(end - first).div_ceil(MERGE_NODES), 1, 1];
            emulator.launch::<cells_merge_proposals>(grid, MERGE_THREADS, (arguments,)).unwrap();
        }
        let (after, bounds) = (lists_there.values::<Key>().unwrap(), bounds.values::<f32>().unwrap());
        let mut counted = 0;
        for node in 0..nodes {
            let old = &lists[node * k..][..k];
            let known: Vec<Key> = old.iter().map(|&key| key::plain(key)).collect();
            let mut new = proposals[node * slots..][..slots].to_vec();
            new.retain(|key| *key != NONE && !known.contains(key));
            new.sort_unstable();
            new.dedup();
            let mut expected: Vec<Key> = new.iter().map(|key| key | UNVISITED).collect();
            expected.extend(old);
            expected.sort_by_key(|&key| if key == NONE { NONE } else { key::plain(key) });
            expected.truncate(k);
            assert_eq!(after[node * k..][..k], expected, "node {node}, seed {seed}");
            if (node as u32).is_multiple_of(COUNTED) {
                counted += expected.iter().filter(|key| new.contains(&key::plain(**key))).count();
            }
            if expected != *old && expected[k - 1] != NONE {
                assert_eq!(bounds[node], key::distance(expected[k - 1]), "node {node}, seed {seed}");
            }
        }
        assert!(proposals_there.values::<Key>().unwrap().iter().all(|&key| key == NONE));
        assert_eq!(changes.values::<u32>().unwrap().iter().sum::<u32>() as usize, counted, "seed {seed}");
    }
}

fn finish<T: Value, K: Kernel<Arguments = (Finish<T>,)>>() {
    let metrics = [Metric::L2, Metric::InnerProduct, Metric::Cosine];
    for ((seed, metric), (dim, k)) in SEEDS.into_iter().zip(metrics).zip([(1, 1), (97, 13), (70, 40)]) {
        let (count, stride) = (45usize, padded::<T>(dim));
        let vectors = padded_rows::<T>(count, dim, seed + 3);
        // Node i is row 7 i.
        let order: Vec<u32> = (0..count as u32).map(|node| node * 7 % count as u32).collect();
        let full = |node: usize| if node == 7 { k / 2 } else { k };
        let others = |node: usize| (1..=full(node)).map(move |i| ((node + i) % count) as u32);
        // A third is unvisited.
        let lists: Vec<Key> = (0..count)
            .flat_map(|node| {
                let keys =
                    others(node).map(|id| key::pack(0.5, id) | if id % 3 == 0 { UNVISITED } else { 0 });
                keys.chain(vec![NONE; k - full(node)])
            })
            .collect();
        let emulator = Emulator::with_seed(seed);
        let (there, lists_there) = (emulator.upload(&vectors), emulator.upload(&lists));
        let (order_there, nearest) = (emulator.upload(&order), room::<Key>(&emulator, count * k));
        // Rounding moved row 3 alone.
        let errors: Vec<f32> = (0..count).map(|row| if row == 3 { 1e9 } else { 0.0 }).collect();
        let errors_there = emulator.upload(&errors);
        let (lacking, lacking_count) = (emulator.upload(&vec![0u32; count]), emulator.upload(&[0u32]));
        let arguments = Finish {
            rows: there.view().read_only(),
            order: order_there.view().read_only(),
            lists: lists_there.view().read_only(),
            errors: errors_there.view().read_only(),
            nearest: nearest.view(),
            lacking: lacking.view(),
            lacking_count: lacking_count.view(),
            stride: stride as u32,
            dim: dim as u32,
            k: k as u32,
            metric: metric as u32,
            least_per_error: 16.0,
            padding: 0,
        };
        emulator.launch::<K>([count as u32, 1, 1], RERANK_THREADS, (arguments,)).unwrap();
        let after = nearest.values::<Key>().unwrap();
        let row = |id: u32| &vectors[id as usize * stride..][..dim];
        for node in 0..count {
            let own = order[node];
            let exact = |id: u32| {
                let id = order[id as usize];
                key::pack(exact_distance(metric, row(own), row(id)), id)
            };
            let mut expected: Vec<Key> = others(node).map(exact).collect();
            expected.sort_unstable();
            expected.resize(k, NONE);
            assert_eq!(after[own as usize * k..][..k], expected, "{metric:?}, node {node}");
        }
        let mut expected = vec![order[7]];
        expected.extend((metric != Metric::InnerProduct).then_some(3));
        let len = lacking_count.values::<u32>().unwrap()[0] as usize;
        let mut found = lacking.values::<u32>().unwrap()[..len].to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{metric:?}");
    }
}

#[test]
fn lists_end_at_exact_distances() {
    finish::<f32, cells_finish_f32>();
    finish::<f16, cells_finish_f16>();
    finish::<u8, cells_finish_u8>();
    finish::<i8, cells_finish_i8>();
}

// Few values, so that many distances are equal; node i is row 7 i.
#[test]
fn exact_keys_lack_only_the_norm() {
    for (seed, k) in SEEDS.into_iter().zip([1usize, 13, 40]) {
        let (count, dim) = (45usize, 3);
        let vectors = integers(count * dim, 0, 4, seed + 60);
        let order: Vec<u32> = (0..count as u32).map(|node| node * 7 % count as u32).collect();
        let norm = |node: usize| dot(&vectors, dim, node as u32, node as u32);
        let full = |node: usize| if node == 7 { k / 2 } else { k };
        let lists: Vec<Key> = (0..count)
            .flat_map(|node| {
                let value = |id: u32| norm(id as usize) - 2 * dot(&vectors, dim, node as u32, id);
                let mut keys: Vec<Key> = (1..=full(node))
                    .map(|i| ((node + i) % count) as u32)
                    .map(|id| key::pack(value(id) as f32, id))
                    .collect();
                keys.sort_unstable();
                keys.iter_mut().step_by(3).for_each(|key| *key |= UNVISITED);
                keys.resize(k, NONE);
                keys
            })
            .collect();
        let emulator = Emulator::with_seed(seed);
        let norms: Vec<i32> = (0..count).map(|node| norm(node) as i32).collect();
        let (norms_there, lists_there) = (emulator.upload(&norms), emulator.upload(&lists));
        let (order_there, nearest) = (emulator.upload(&order), room::<Key>(&emulator, count * k));
        let (lacking, lacking_count) = (emulator.upload(&vec![0u32; count]), emulator.upload(&[0u32]));
        let arguments = FinishExact {
            norms: norms_there.view().read_only(),
            order: order_there.view().read_only(),
            lists: lists_there.view().read_only(),
            nearest: nearest.view(),
            lacking: lacking.view(),
            lacking_count: lacking_count.view(),
            nodes: count as u32,
            k: k as u32,
        };
        let grid = [(count as u32).div_ceil(FINISH_EXACT_NODES), 1, 1];
        emulator.launch::<cells_finish_exact>(grid, FINISH_EXACT_THREADS, (arguments,)).unwrap();
        let after = nearest.values::<Key>().unwrap();
        for node in 0..count {
            let squared = |id: usize| {
                let (a, b) = (&vectors[node * dim..][..dim], &vectors[id * dim..][..dim]);
                a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum::<i64>() as f32
            };
            let others = (1..=full(node)).map(|i| (node + i) % count);
            let mut expected: Vec<Key> = others.map(|id| key::pack(squared(id), order[id])).collect();
            expected.sort_unstable();
            expected.resize(k, NONE);
            assert_eq!(after[order[node] as usize * k..][..k], expected, "node {node}");
        }
        assert_eq!(lacking_count.values::<u32>().unwrap()[0], 1);
        assert_eq!(lacking.values::<u32>().unwrap()[0], order[7]);
    }
}
