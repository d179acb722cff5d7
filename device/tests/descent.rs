//! Tests of the kernels of descent.

use std::collections::{BTreeMap, BTreeSet};

use cuda_std::f16;
use cuda_std::launch::Kernel;
use emulator::Emulator;
use tagore_device::block::sums::TileElement;
use tagore_device::descent::expand::*;
use tagore_device::descent::join::*;
use tagore_device::descent::merge::*;
use tagore_device::descent::sample::*;
use tagore_device::descent::slots::{scramble, slot, unscramble};
use tagore_device::key::{self, Key, NONE, UNVISITED};

use crate::exact::Sum;
use crate::{SEEDS, integers, room};

const SALT: u32 = 0x1234_5678;

/// A sorted list of `k` slots with up to `full` keys of nodes other than `node`; about a third is
/// unvisited.
fn list(node: u32, nodes: u32, k: usize, full: usize, seed: u64) -> Vec<Key> {
    let values = integers(k, 0, 400, seed * 1000 + u64::from(node));
    let mut keys: Vec<Key> = (0..full.min(nodes as usize - 1))
        .map(|i| key::pack(values[i] as f32, (node + 1 + i as u32 * 7 % (nodes - 1)) % nodes))
        .collect();
    keys.sort_unstable();
    keys.dedup_by_key(|key| key::id(*key));
    for key in &mut keys {
        *key |= if (key::id(*key) + node).is_multiple_of(3) { UNVISITED } else { 0 };
    }
    keys.resize(k, NONE);
    keys
}

/// Rows of ids, as [`Sample`] describes them.
struct Rows(Vec<u32>);

impl Rows {
    fn new(nodes: u32) -> Self {
        Self(vec![u32::MAX; (nodes * ROW) as usize])
    }

    /// Puts `id` in the row of `node`, and `node` in a slot of the group of `2^bits` places in that
    /// of `id`.
    fn bring(&mut self, node: u32, place: u32, id: u32, group: u32, bits: u32) {
        self.0[(node * ROW + place) as usize] = id;
        let reverse = &mut self.0[(id * ROW + group + slot(node, SALT, bits)) as usize];
        *reverse = (*reverse).min(scramble(node, SALT));
    }
}

#[test]
fn nodes_bring_neighbours_and_reverse_neighbours() {
    for (seed, (nodes, k)) in SEEDS.into_iter().zip([(3u32, 2usize), (61, 40), (100, 97)]) {
        let full = |node: u32| if node == 1 { 0 } else { k - node as usize % 2 };
        let lists: Vec<Vec<Key>> = (0..nodes).map(|node| list(node, nodes, k, full(node), seed)).collect();
        let emulator = Emulator::with_seed(seed);
        let grid = [nodes.div_ceil(SAMPLE_NODES), 1, 1];
        let mut sample = Rows::new(nodes);
        let mut after_sample = lists.clone();
        let mut gather = Rows::new(nodes);
        let mut after_gather = lists.clone();
        for node in 0..nodes {
            let (mut new, mut old) = (0, 0);
            for key in &mut after_sample[node as usize] {
                let (id, is_new) = (key::id(*key), key::is_unvisited(*key));
                let (place, group) = if is_new { (&mut new, 0) } else { (&mut old, SAMPLE) };
                if *key != NONE && *place < SAMPLE {
                    sample.bring(node, group + *place, id, 2 * SAMPLE + group, SAMPLE_BITS);
                    *place += 1;
                    *key = key::plain(*key);
                }
            }
            for (place, key) in after_gather[node as usize].iter_mut().enumerate() {
                if *key != NONE {
                    if (place as u32) < GATHER {
                        gather.bring(node, place as u32, key::id(*key), GATHER, GATHER_BITS);
                    }
                    *key |= UNVISITED;
                }
            }
        }
        let run = |gathers: bool, unvisit: u32| {
            let there = emulator.upload(&lists.concat());
            let rows = emulator.upload(&Rows::new(nodes).0);
            let arguments = Sample {
                lists: there.view(),
                rows: rows.view(),
                seed: 5,
                nodes,
                k: k as u32,
                salt: SALT,
                unvisit,
            };
            if gathers {
                emulator.launch::<descent_gather>(grid, SAMPLE_THREADS, (arguments,)).unwrap();
            } else {
                emulator.launch::<descent_sample>(grid, SAMPLE_THREADS, (arguments,)).unwrap();
            }
            (there.values::<Key>().unwrap(), rows.values::<u32>().unwrap())
        };
        assert_eq!(run(false, 0), (after_sample.concat(), sample.0), "seed {seed}");
        assert_eq!(run(true, 1), (after_gather.concat(), gather.0.clone()), "seed {seed}");
        assert_eq!(run(true, 0), (lists.concat(), gather.0), "seed {seed}");
    }
}

#[test]
fn a_random_start_brings_different_nodes() {
    for (seed, nodes) in SEEDS.into_iter().zip([2u32, 20, 500]) {
        let emulator = Emulator::with_seed(seed);
        let lists = room::<Key>(&emulator, 1);
        let rows = emulator.upload(&Rows::new(nodes).0);
        let arguments =
            Sample { lists: lists.view(), rows: rows.view(), seed, nodes, k: 1, salt: SALT, unvisit: 0 };
        let grid = [nodes.div_ceil(SAMPLE_NODES), 1, 1];
        emulator.launch::<descent_start>(grid, SAMPLE_THREADS, (arguments,)).unwrap();
        let rows = rows.values::<u32>().unwrap();
        let mut expected = Rows::new(nodes);
        for node in 0..nodes {
            let row = &rows[(node * ROW) as usize..][..SAMPLE as usize];
            let ids: Vec<u32> = row.iter().copied().filter(|&id| id != u32::MAX).collect();
            assert_eq!(ids.len(), (nodes as usize - 1).min(SAMPLE as usize));
            assert!(ids.iter().all(|&id| id < nodes && id != node));
            assert_eq!(
                ids.iter().collect::<BTreeSet<_>>().len(),
                ids.len(),
                "node {node}: found an id twice"
            );
            for (place, &id) in row.iter().enumerate().filter(|id| *id.1 != u32::MAX) {
                expected.bring(node, place as u32, id, 2 * SAMPLE, SAMPLE_BITS);
            }
        }
        assert_eq!(rows, expected.0);
    }
}

/// Vectors of small integers, so that all sums are exact, and their biases.
struct Base {
    values: Vec<i64>,
    biases: Vec<i64>,
    dim: usize,
}

impl Base {
    fn new(count: usize, dim: usize, seed: u64) -> Self {
        let values = integers(count * dim, 0, 7, seed + 50);
        Self { values, biases: integers(count, 0, 90, seed + 60), dim }
    }

    /// The distance of `row` from `node`, less the part that depends on `node` alone.
    fn value(&self, node: u32, row: u32) -> f32 {
        let (a, b) = (node as usize * self.dim, row as usize * self.dim);
        let products = self.values[a..a + self.dim].iter().zip(&self.values[b..b + self.dim]);
        (self.biases[row as usize] - 2 * products.map(|(x, y)| x * y).sum::<i64>()) as f32
    }

    fn key(&self, node: u32, row: u32) -> Key {
        key::pack(self.value(node, row), row)
    }
}

/// The ids that one node brings: new, old, reverse new, reverse old.
type Groups = [Vec<u32>; 4];

/// Rows of nodes that bring these numbers of ids per group, and the groups. Some reverse ids are
/// forward ids as well.
fn join_rows(counts: &[[usize; 4]], nodes: u32, seed: u64) -> (Vec<u32>, Vec<Groups>) {
    let mut rows = Rows::new(counts.len() as u32).0;
    let mut groups = Vec::new();
    for (node, count) in counts.iter().enumerate() {
        let mut ids: Vec<u32> = (0..nodes).collect();
        ids.sort_by_key(|id| scramble(*id, node as u32 + 9 * seed as u32));
        let mut groups_here = Groups::default();
        for (group, &count) in count.iter().enumerate() {
            let first = if group < 2 { group * 32 } else { group * 32 - 3 };
            for place in 0..count.min(32) {
                let id = ids[first + place];
                let place = if group < 2 { place } else { 31 - place };
                rows[node * ROW as usize + group * 32 + place] =
                    if group < 2 { id } else { scramble(id, SALT) };
                groups_here[group].push(id);
            }
            if group >= 2 {
                groups_here[group].reverse();
            }
        }
        groups.push(groups_here);
    }
    (rows, groups)
}

/// The new and the old ids of a node, each id once: reverse ids that are forward ids are dropped.
fn new_and_old(groups: &Groups) -> (Vec<u32>, Vec<u32>) {
    let forward: BTreeSet<u32> = groups[0].iter().chain(&groups[1]).copied().collect();
    let with_reverse = |group: usize| -> Vec<u32> {
        let reverse = groups[group + 2].iter().filter(|id| !forward.contains(id));
        groups[group].iter().chain(reverse).copied().collect()
    };
    (with_reverse(0), with_reverse(1))
}

/// The proposals of a join of these groups, and the number of pairs.
fn expected_proposals(base: &Base, groups: &[Groups], bounds: &[f32]) -> (Vec<Key>, u64) {
    let mut proposals = vec![NONE; bounds.len() * JOIN_PROPOSALS as usize];
    let mut pairs = 0;
    for groups in groups {
        let (new, old) = new_and_old(groups);
        if new.is_empty() {
            continue;
        }
        pairs += (new.len() * (new.len() - 1) / 2 + new.len() * old.len()) as u64;
        let mut propose = |node: u32, among: &[u32]| {
            let keys = among.iter().filter(|&&id| id != node).map(|&id| base.key(node, id));
            let Some(nearest) = keys.min() else { return };
            if key::distance(nearest) < bounds[node as usize] {
                let place = node * JOIN_PROPOSALS + slot(key::id(nearest), SALT, JOIN_PROPOSAL_BITS);
                proposals[place as usize] = proposals[place as usize].min(nearest);
            }
        };
        // A new id gets the nearest of each 32, an old one the nearest new one.
        for &node in &new {
            new.chunks(32).chain(old.chunks(32)).for_each(|chunk| propose(node, chunk));
        }
        old.iter().for_each(|&node| propose(node, &new));
    }
    (proposals, pairs)
}

/// Compares proposals. Among candidates at the same distance the kernel may choose any.
fn check_proposals(found: &[Key], expected: &[Key], base: &Base, seed: u64) {
    for (place, &key) in found.iter().enumerate().filter(|key| *key.1 != NONE) {
        let node = place as u32 / JOIN_PROPOSALS;
        assert_eq!(key, base.key(node, key::id(key)), "node {node}");
        assert_eq!(place as u32 % JOIN_PROPOSALS, slot(key::id(key), SALT, JOIN_PROPOSAL_BITS));
    }
    let nearest = |keys: &[Key]| -> Vec<u32> {
        let slots = keys.chunks(JOIN_PROPOSALS as usize);
        slots.map(|slots| slots.iter().map(|key| (key >> 32) as u32).min().unwrap()).collect()
    };
    assert_eq!(nearest(found), nearest(expected), "seed {seed}");
    let there = |keys: &[Key]| keys.iter().filter(|&&key| key != NONE).count();
    let (found, expected) = (there(found), there(expected));
    assert!(found.abs_diff(expected) * 20 <= expected, "{found} proposals, expected about {expected}");
}

fn join<E: TileElement<Sum: Sum>, K: Kernel<Arguments = (Join<E::Sum>,)>>(of: impl Fn(i64) -> E) {
    for (seed, units) in SEEDS.into_iter().zip([1usize, 11, 25]) {
        let nodes = 150u32;
        let base = Base::new(nodes as usize, units * 16 / size_of::<E>(), seed);
        let counts = [[0, 9, 4, 3], [1, 0, 0, 0], [32, 32, 30, 31], [20, 32, 9, 0], [33, 1, 7, 7]];
        let (rows, groups) = join_rows(&counts, nodes, seed);
        // Everything is below some bounds, and nothing below others.
        let bounds: Vec<f32> =
            (0..nodes).map(|id| if id % 5 == 0 { -1e9 } else { [3e38, -60.0][id as usize % 2] }).collect();
        let (expected, pairs) = expected_proposals(&base, &groups, &bounds);
        let emulator = Emulator::with_seed(seed);
        let there = emulator.upload(&base.values.iter().map(|&x| of(x)).collect::<Vec<E>>());
        let biases = emulator.upload(&base.biases.iter().map(|&x| E::Sum::of(x)).collect::<Vec<_>>());
        let (rows_there, bounds_there) = (emulator.upload(&rows), emulator.upload(&bounds));
        let proposals = emulator.upload(&vec![NONE; expected.len()]);
        let distances = emulator.upload(&vec![0u64; COUNTERS as usize]);
        let arguments = Join {
            vectors: there.view().read_only(),
            biases: biases.view().read_only(),
            rows: rows_there.view().read_only(),
            bounds: bounds_there.view().read_only(),
            proposals: proposals.view(),
            distances: distances.view(),
            stride: units as u32 * 16,
            units: units as u32,
            weight: E::Sum::of(-2),
            salt: SALT,
        };
        emulator.launch::<K>([counts.len() as u32, 1, 1], JOIN_THREADS, (arguments,)).unwrap();
        check_proposals(&proposals.values::<Key>().unwrap(), &expected, &base, seed);
        assert_eq!(distances.values::<u64>().unwrap().iter().sum::<u64>(), pairs);
    }
}

#[test]
fn joins_propose_the_nearest_ids() {
    join::<f16, descent_join_f16>(|x| f16::from_f32(x as f32));
    join::<u8, descent_join_u8>(|x| x as u8);
    join::<i8, descent_join_i8>(|x| x as i8);
}

#[test]
fn proposals_are_merged_without_known_ids() {
    for (seed, k) in SEEDS.into_iter().zip([1usize, 40, 97]) {
        let nodes = 11u32;
        let full = |node: u32| [k, k / 2, 0][node as usize % 3];
        let lists: Vec<Vec<Key>> = (0..nodes).map(|node| list(node, 300, k, full(node), seed)).collect();
        let slots = JOIN_PROPOSALS as usize;
        let mut proposals = vec![NONE; nodes as usize * slots];
        for node in 0..nodes as usize {
            let values = integers(slots, 0, 500, seed * 77 + node as u64);
            for (place, &value) in values.iter().enumerate().filter(|i| i.0 % (node + 1) != 1) {
                // Known ids have another value here.
                let old = lists[node][place % k];
                let is_known = place % 4 == 0 && place < k && old != NONE;
                let id = if is_known { key::id(old) } else { 1000 + place as u32 };
                proposals[node * slots + place] = key::pack(value as f32 + 0.5, id);
            }
        }
        proposals[3 * slots..4 * slots].fill(NONE);
        let emulator = Emulator::with_seed(seed);
        let lists_there = emulator.upload(&lists.concat());
        let proposals_there = emulator.upload(&proposals);
        let bounds = emulator.upload(&vec![-1f32; nodes as usize]);
        let changes = emulator.upload(&vec![0u32; COUNTERS as usize]);
        let arguments = MergeJoin {
            lists: lists_there.view(),
            proposals: proposals_there.view(),
            bounds: bounds.view(),
            changes: changes.view(),
            nodes,
            k: k as u32,
        };
        let grid = [nodes.div_ceil(MERGE_NODES), 1, 1];
        emulator.launch::<descent_merge>(grid, MERGE_THREADS, (arguments,)).unwrap();
        let (after, bounds) = (lists_there.values::<Key>().unwrap(), bounds.values::<f32>().unwrap());
        let mut added = 0;
        for node in 0..nodes as usize {
            let old = &lists[node];
            let known: BTreeSet<u32> = old.iter().filter(|&&k| k != NONE).map(|&k| key::id(k)).collect();
            let new = proposals[node * slots..][..slots].iter();
            let new = new.filter(|&&key| key != NONE && !known.contains(&key::id(key)));
            let mut expected: Vec<Key> = old.iter().copied().chain(new.map(|key| key | UNVISITED)).collect();
            expected.sort_by_key(|&key| if key == NONE { NONE } else { key::plain(key) });
            expected.truncate(k);
            let added_here = expected.iter().filter(|key| !old.contains(key)).count();
            added += added_here;
            assert_eq!(after[node * k..][..k], expected, "node {node}, seed {seed}");
            if added_here > 0 {
                let last = expected[k - 1];
                let bound = if last == NONE { f32::INFINITY } else { key::distance(last) };
                assert_eq!(bounds[node], bound, "node {node}");
            }
        }
        assert_eq!(changes.values::<u32>().unwrap().iter().sum::<u32>() as usize, added);
        assert!(proposals_there.values::<Key>().unwrap().iter().all(|&key| key == NONE));
    }
}

/// The list of `node` after an expansion, and the number of distances computed for it.
fn expanded(base: &Base, rows: &Rows, node: u32, old: &[Key], most: usize) -> (Vec<Key>, u64) {
    let unvisited = old.iter().filter(|&&key| key != NONE && key::is_unvisited(key));
    let parents: Vec<u32> = unvisited.take(most).map(|&key| key::id(key)).collect();
    let mut met: BTreeMap<u32, Key> = BTreeMap::new();
    for &parent in &parents {
        for (place, &id) in rows.0[(parent * ROW) as usize..][..ROW as usize].iter().enumerate() {
            if id != u32::MAX {
                let id = if place < GATHER as usize { id } else { unscramble(id, SALT) };
                met.insert(id, base.key(node, id));
            }
        }
    }
    met.remove(&node);
    old.iter().filter(|&&key| key != NONE).for_each(|&key| _ = met.remove(&key::id(key)));
    let computed = met.len() as u64;
    let last = key::plain(old[old.len() - 1]);
    let visited = |key: Key| key != NONE && parents.contains(&key::id(key));
    let mut list: Vec<Key> = old
        .iter()
        .map(|&key| if visited(key) { key::plain(key) } else { key })
        .chain(met.into_values().filter(|&key| key < last).map(|key| key | UNVISITED))
        .collect();
    list.sort_by_key(|&key| if key == NONE { NONE } else { key::plain(key) });
    list.truncate(old.len());
    (list, computed)
}

/// Lists of all nodes, one of them empty, with the distances of `base`.
fn expansion_lists(base: &Base, nodes: u32, k: usize, seed: u64) -> Vec<Vec<Key>> {
    let list_of = |node: u32| {
        let full = if node == 5 { 0 } else { k - node as usize % 2 };
        let mut keys: Vec<Key> = list(node, nodes, k, full, seed)
            .into_iter()
            .filter(|&key| key != NONE)
            .map(|old| base.key(node, key::id(old)) | (old & UNVISITED))
            .collect();
        keys.sort_by_key(|key| key::plain(*key));
        keys.resize(k, NONE);
        keys
    };
    (0..nodes).map(list_of).collect()
}

fn expand<E: TileElement<Sum: Sum>, K: Kernel<Arguments = (Expand<E::Sum>,)>>(of: impl Fn(i64) -> E) {
    for (seed, (units, k, most)) in SEEDS.into_iter().zip([(1usize, 1usize, 1u32), (11, 30, 4), (25, 64, 3)])
    {
        let nodes = 130u32;
        let base = Base::new(nodes as usize, units * 16 / size_of::<E>(), seed);
        let lists = expansion_lists(&base, nodes, k, seed);
        let mut rows = Rows::new(nodes);
        for node in 0..nodes {
            let mut ids: Vec<u32> = (0..nodes).filter(|&id| id != node).collect();
            ids.sort_by_key(|id| scramble(*id, node));
            for (place, &id) in ids.iter().take(20 + node as usize % 44).enumerate() {
                rows.bring(node, place as u32, id, GATHER, GATHER_BITS);
            }
        }
        let emulator = Emulator::with_seed(seed);
        let there = emulator.upload(&base.values.iter().map(|&x| of(x)).collect::<Vec<E>>());
        let biases = emulator.upload(&base.biases.iter().map(|&x| E::Sum::of(x)).collect::<Vec<_>>());
        let (rows_there, lists_there) = (emulator.upload(&rows.0), emulator.upload(&lists.concat()));
        let changes = emulator.upload(&vec![0u32; COUNTERS as usize]);
        let distances = emulator.upload(&vec![0u64; COUNTERS as usize]);
        // Two devices may have a part of the nodes each.
        let arguments = |first| Expand {
            vectors: there.view().read_only(),
            biases: biases.view().read_only(),
            rows: rows_there.view().read_only(),
            lists: lists_there.view(),
            changes: changes.view(),
            distances: distances.view(),
            stride: units as u32 * 16,
            units: units as u32,
            weight: E::Sum::of(-2),
            salt: SALT,
            k: k as u32,
            expand: most,
            first,
            padding: 0,
        };
        for (first, end) in [(47, nodes), (0, 47)] {
            emulator.launch::<K>([end - first, 1, 1], EXPAND_THREADS, (arguments(first),)).unwrap();
        }
        let after = lists_there.values::<Key>().unwrap();
        let (mut added, mut computed) = (0, 0);
        for node in 0..nodes {
            let old = &lists[node as usize];
            let (expected, computed_here) = expanded(&base, &rows, node, old, most as usize);
            computed += computed_here;
            let ids: BTreeSet<u32> = old.iter().map(|&key| key::id(key)).collect();
            added += expected.iter().filter(|&&key| key != NONE && !ids.contains(&key::id(key))).count();
            assert_eq!(after[node as usize * k..][..k], expected, "node {node}, seed {seed}");
        }
        assert_eq!(changes.values::<u32>().unwrap().iter().sum::<u32>() as usize, added);
        assert_eq!(distances.values::<u64>().unwrap().iter().sum::<u64>(), computed);
    }
}

#[test]
fn expansion_finds_neighbours_of_neighbours() {
    expand::<f16, descent_expand_f16>(|x| f16::from_f32(x as f32));
    expand::<u8, descent_expand_u8>(|x| x as u8);
    expand::<i8, descent_expand_i8>(|x| x as i8);
}
