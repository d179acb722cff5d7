//! Tests of clustering: nearest centres, means, and orders of vectors.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use emulator::{Allocation, Emulator};
use tagore_device::block::sums::{TileElement, TileSum};
use tagore_device::block::tile;
use tagore_device::cluster::*;
use tagore_device::key::NO_ID;
use tagore_device::random::{Draws, Stage};

use crate::{SEEDS, integers, room};

/// Element types of tiles. Values and sums in these tests are small integers, exact in every type.
trait Value: TileElement {
    fn of(integer: i64) -> Self;
    fn sum(integer: i64) -> Self::Sum;
    fn integer(sum: Self::Sum) -> i64;
    fn exactly(self) -> f64;
    /// The mean, rounded as in the type.
    fn mean(sum: i64, count: usize) -> Self;
}

impl Value for f16 {
    fn of(integer: i64) -> Self {
        Self::from_f32(integer as f32)
    }
    fn sum(integer: i64) -> f32 {
        integer as f32
    }
    fn integer(sum: f32) -> i64 {
        sum as i64
    }
    fn exactly(self) -> f64 {
        self.to_f64()
    }
    fn mean(sum: i64, count: usize) -> Self {
        Self::from_f32(sum as f32 / count as f32)
    }
}

macro_rules! bytes {
    ($($type:ty)*) => {$(
        impl Value for $type {
            fn of(integer: i64) -> Self {
                integer as Self
            }
            fn sum(integer: i64) -> i32 {
                integer as i32
            }
            fn integer(sum: i32) -> i64 {
                i64::from(sum)
            }
            fn exactly(self) -> f64 {
                f64::from(self)
            }
            fn mean(sum: i64, count: usize) -> Self {
                (sum as f64 / count as f64 + 0.5).floor() as Self
            }
        }
    )*};
}

bytes!(u8 i8);

/// Uploads rows of `dim` integers, padded with zeros to units of 16 bytes; returns the bytes per
/// row too.
fn upload<E: Value>(emulator: &Emulator, values: &[i64], dim: usize) -> (Allocation, usize) {
    let stride = dim.next_multiple_of(16 / size_of::<E>());
    let mut padded = vec![E::of(0); values.len() / dim * stride];
    for (row, values) in padded.chunks_exact_mut(stride).zip(values.chunks_exact(dim)) {
        row.iter_mut().zip(values).for_each(|(to, &value)| *to = E::of(value));
    }
    (emulator.upload(&padded), stride * size_of::<E>())
}

fn dot(a: &[i64], b: &[i64]) -> i64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Seeds for case `number`: all for f16, one for each byte type, since their kernels have the same
/// source.
fn orders<E: Value>(number: usize) -> impl Iterator<Item = u64> {
    let all = size_of::<E>() > 1;
    SEEDS.into_iter().filter(move |&seed| all || number % SEEDS.len() == seed as usize)
}

/// Vectors, centres, dimension, probes, largest value. Few values make ties.
type Case = (usize, usize, usize, usize, i64);

/// Compares vectors with all centres, in the order that they are drawn in.
fn assign<E: Value, K: Kernel<Arguments = (Assign<E::Sum>,)>>(cases: &[Case]) {
    assign_in_order::<E, K>(cases, |_| 0);
}

/// Compares vectors, the first ones zero, with all centres, by the rank of their squared norm.
fn assign_in_order<E: Value, K: Kernel<Arguments = (Assign<E::Sum>,)>>(
    cases: &[Case],
    rank: impl Fn(i64) -> i64,
) {
    let cases = cases
        .iter()
        .copied()
        .enumerate()
        .flat_map(|(number, case)| orders::<E>(number).map(move |seed| (seed, case)));
    for (seed, (count, centre_count, dim, probes, most)) in cases {
        let mut vectors = integers(2 * count * dim, 0, most, seed + 1);
        let drawn = integers(centre_count * dim, 0, most, seed + 2);
        let mut rows: Vec<&[i64]> = drawn.chunks_exact(dim).collect();
        rows.sort_by_key(|row| rank(dot(row, row)));
        let centres = rows.concat();
        if rank(1) != rank(0) {
            vectors[..dim].fill(0);
        }
        // With a list: every third vector, from the last on.
        let listed = seed != 0;
        let ids: Vec<u32> = (0..count as u32)
            .map(|i| if listed { (2 * count as u32 - 1) - i * 3 % (2 * count as u32) } else { i })
            .collect();
        let centre = |index: usize| &centres[index * dim..][..dim];
        let emulator = Emulator::with_seed(seed);
        let (vectors_there, stride) = upload::<E>(&emulator, &vectors, dim);
        let (centres_there, _) = upload::<E>(&emulator, &centres, dim);
        let norms: Vec<E::Sum> =
            (0..centre_count).map(|index| E::sum(dot(centre(index), centre(index)))).collect();
        let (biases, ids_there) = (emulator.upload(&norms), emulator.upload(&ids));
        let nearest = room::<u32>(&emulator, count * probes);
        let arguments = Assign {
            vectors: vectors_there.view().read_only(),
            ids: ids_there.view().read_only(),
            centres: centres_there.view().read_only(),
            lists: biases.view::<u32>().read_only(),
            biases: biases.view().read_only(),
            guide_starts: biases.view::<u32>().read_only(),
            nearest: nearest.view(),
            listed: u32::from(listed),
            by_number: 0,
            count: count as u32,
            guide_count: 0,
            centre_count: centre_count as u32,
            probes: probes as u32,
            vector_stride: stride as u32,
            centre_stride: stride as u32,
            units: stride as u32 / 16,
            weight: E::sum(-2),
        };
        let blocks = assign_blocks(count as u32, 0);
        emulator.launch::<K>([blocks, 1, 1], tile::THREADS, (arguments,)).unwrap();
        let found = nearest.values::<u32>().unwrap();
        for (index, &id) in ids.iter().enumerate() {
            let vector = &vectors[id as usize * dim..][..dim];
            let mut values: Vec<(i64, u32)> = (0..centre_count)
                .map(|c| (dot(centre(c), centre(c)) - 2 * dot(vector, centre(c)), c as u32))
                .collect();
            values.sort_unstable();
            let mut expected: Vec<u32> = values.into_iter().map(|value| value.1).take(probes).collect();
            expected.resize(probes, NO_ID);
            let found = &found[index * probes..][..probes];
            assert_eq!(found, expected, "vector {index} of {count}, {centre_count} centres");
        }
    }
}

#[test]
fn vectors_find_their_nearest_centres() {
    let cases = [
        (1, 1, 1, 1, 9),
        (130, 3, 97, 8, 9),
        (257, 300, 12, 6, 2),
        (130, 700, 24, 32, 100),
        (200, 900, 40, 12, 50),
        (33, 40, 8, 21, 3),
        (70, 129, 300, 3, 9),
        (128, 128, 64, 1, 1),
    ];
    assign::<f16, cluster_assign_f16>(&cases);
    assign::<u8, cluster_assign_u8>(&cases);
    assign::<i8, cluster_assign_i8>(&cases);
}

#[test]
fn near_centres_come_first_or_last() {
    // Of later tiles no centre is near the first vector, or every one: more than its queue holds.
    let cases = [(1, 500, 24, 12, 50), (140, 400, 12, 5, 9), (3, 300, 40, 32, 30)];
    assign_in_order::<f16, cluster_assign_f16>(&cases, |norm| norm);
    assign_in_order::<f16, cluster_assign_f16>(&cases, |norm| -norm);
    assign_in_order::<u8, cluster_assign_u8>(&cases, |norm| norm);
    assign_in_order::<i8, cluster_assign_i8>(&cases, |norm| -norm);
}

#[test]
fn vectors_find_their_nearest_centre() {
    let cases = [(1, 1, 1, 1, 9), (257, 300, 12, 1, 2), (130, 129, 300, 1, 9), (128, 128, 64, 1, 1)];
    assign::<f16, cluster_nearest_f16>(&cases);
    assign::<u8, cluster_nearest_u8>(&cases);
    assign::<i8, cluster_nearest_i8>(&cases);
}

/// Vectors of each guide, centres, length of a list, dimension, probes.
type ListCase = (&'static [usize], usize, usize, usize, usize);

/// Compares the vectors of each guide with the centres of its list.
fn assign_by_lists<E: Value, K: Kernel<Arguments = (Assign<E::Sum>,)>>(cases: &[ListCase]) {
    let cases = cases
        .iter()
        .copied()
        .enumerate()
        .flat_map(|(number, case)| orders::<E>(number).map(move |seed| (seed, case)));
    for (seed, (of_guides, centre_count, length, dim, probes)) in cases {
        let count: usize = of_guides.iter().sum();
        let vectors = integers(count * dim, 0, 5, seed + 1);
        let centres = integers(centre_count * dim, 0, 5, seed + 2);
        let ids: Vec<u32> = (0..count as u32).rev().collect();
        let mut starts = vec![0u32];
        starts.extend(of_guides.iter().scan(0, |end, &of_guide| {
            *end += of_guide as u32;
            Some(*end)
        }));
        let list = |guide: usize| {
            let mut list: Vec<u32> = (0..length).map(|i| ((guide * 7 + i) % centre_count) as u32).collect();
            list.sort_unstable();
            list
        };
        let lists: Vec<u32> = (0..of_guides.len()).flat_map(list).collect();
        let centre = |index: u32| &centres[index as usize * dim..][..dim];
        let norm = |index: u32| dot(centre(index), centre(index));
        let emulator = Emulator::with_seed(seed);
        let (vectors_there, stride) = upload::<E>(&emulator, &vectors, dim);
        let (centres_there, _) = upload::<E>(&emulator, &centres, dim);
        let biases = emulator.upload(&lists.iter().map(|&c| E::sum(norm(c))).collect::<Vec<_>>());
        let (ids_there, lists_there) = (emulator.upload(&ids), emulator.upload(&lists));
        let starts_there = emulator.upload(&starts);
        let nearest = room::<u32>(&emulator, count * probes);
        for by_number in [false, true] {
            let arguments = Assign {
                vectors: vectors_there.view().read_only(),
                ids: ids_there.view().read_only(),
                centres: centres_there.view().read_only(),
                lists: lists_there.view().read_only(),
                biases: biases.view().read_only(),
                guide_starts: starts_there.view().read_only(),
                nearest: nearest.view(),
                listed: 1,
                by_number: u32::from(by_number),
                count: count as u32,
                guide_count: of_guides.len() as u32,
                centre_count: length as u32,
                probes: probes as u32,
                vector_stride: stride as u32,
                centre_stride: stride as u32,
                units: stride as u32 / 16,
                weight: E::sum(-2),
            };
            let blocks = assign_blocks(count as u32, of_guides.len() as u32);
            emulator.launch::<K>([blocks, 1, 1], tile::THREADS, (arguments,)).unwrap();
            let found = nearest.values::<u32>().unwrap();
            for (place, &id) in ids.iter().enumerate() {
                let guide = starts.partition_point(|&start| start as usize <= place) - 1;
                let vector = &vectors[id as usize * dim..][..dim];
                let mut values: Vec<(i64, u32)> =
                    list(guide).into_iter().map(|c| (norm(c) - 2 * dot(vector, centre(c)), c)).collect();
                values.sort_unstable();
                let mut expected: Vec<u32> = values.into_iter().map(|value| value.1).take(probes).collect();
                expected.resize(probes, NO_ID);
                let row = if by_number { id as usize } else { place };
                let found = &found[row * probes..][..probes];
                assert_eq!(found, expected, "vector {id}, place {place}, guide {guide}");
            }
        }
    }
}

#[test]
fn vectors_find_the_nearest_centres_of_their_lists() {
    let cases: [ListCase; 4] = [
        (&[3, 0, 128, 1, 256, 129], 40, 13, 12, 8),
        (&[0, 0, 127, 130], 300, 200, 97, 3),
        (&[5], 9, 4, 300, 6),
        (&[140, 3], 260, 200, 20, 31),
    ];
    assign_by_lists::<f16, cluster_assign_f16>(&cases);
    assign_by_lists::<u8, cluster_assign_u8>(&cases);
    assign_by_lists::<i8, cluster_assign_i8>(&cases);
}

#[test]
fn vectors_find_the_nearest_centre_of_their_list() {
    let cases: [ListCase; 3] = [
        (&[3, 0, 128, 1, 256, 129], 40, 13, 12, 1),
        (&[0, 0, 127, 130], 300, 200, 97, 1),
        (&[5], 9, 4, 300, 1),
    ];
    assign_by_lists::<f16, cluster_nearest_f16>(&cases);
    assign_by_lists::<u8, cluster_nearest_u8>(&cases);
    assign_by_lists::<i8, cluster_nearest_i8>(&cases);
}

fn pairs<E: Value, K: Kernel<Arguments = (Pairs<E::Sum>,)>>() {
    // Guides, centres, dimension, length of a list, largest value. Few values make ties.
    let cases = [(1, 1, 1, 1, 9), (130, 300, 97, 70, 2), (3, 129, 300, 129, 9), (5, 700, 12, 256, 1)];
    let cases = cases.into_iter().enumerate();
    for (seed, case) in cases.flat_map(|(number, case)| orders::<E>(number).map(move |seed| (seed, case))) {
        let (guide_count, centre_count, dim, length, most) = case;
        let guides = integers(guide_count * dim, 0, most, seed + 1);
        let centres = integers(centre_count * dim, 0, most, seed + 2);
        let centre = |index: usize| &centres[index * dim..][..dim];
        let norm = |index: usize| dot(centre(index), centre(index));
        let emulator = Emulator::with_seed(seed);
        let (guides_there, stride) = upload::<E>(&emulator, &guides, dim);
        let (centres_there, _) = upload::<E>(&emulator, &centres, dim);
        let biases = emulator.upload(&(0..centre_count).map(|c| E::sum(norm(c))).collect::<Vec<_>>());
        let values = room::<u32>(&emulator, guide_count * centre_count);
        let arguments = Pairs {
            guides: guides_there.view().read_only(),
            centres: centres_there.view().read_only(),
            biases: biases.view().read_only(),
            values: values.view(),
            guide_count: guide_count as u32,
            centre_count: centre_count as u32,
            units: stride as u32 / 16,
            weight: E::sum(-2),
        };
        let tiles = |count: usize| (count as u32).div_ceil(tile::SIDE);
        let grid = [tiles(centre_count), tiles(guide_count), 1];
        emulator.launch::<K>(grid, tile::THREADS, (arguments,)).unwrap();
        let lists = room::<u32>(&emulator, guide_count * length);
        let list_biases = room::<E::Sum>(&emulator, guide_count * length);
        let arguments = CentreLists {
            values: values.view().read_only(),
            biases: biases.view::<u32>().read_only(),
            lists: lists.view(),
            list_biases: list_biases.view::<u32>(),
            centre_count: centre_count as u32,
            length: length as u32,
        };
        emulator.launch::<cluster_lists>([guide_count as u32, 1, 1], LIST_THREADS, (arguments,)).unwrap();
        let (lists, list_biases) = (lists.values::<u32>().unwrap(), list_biases.values::<E::Sum>().unwrap());
        for guide in 0..guide_count {
            let vector = &guides[guide * dim..][..dim];
            let mut expected: Vec<(i64, usize)> =
                (0..centre_count).map(|c| (norm(c) - 2 * dot(vector, centre(c)), c)).collect();
            expected.sort_unstable();
            // The head comes first, by distance; the rest is in the order of numbers.
            expected.truncate(length);
            let end_of_head = expected[(HEAD as usize).min(length) - 1].0;
            expected.sort_unstable_by_key(
                |&(value, c)| {
                    if value < end_of_head { (false, value, c) } else { (true, 0, c) }
                },
            );
            let expected: Vec<usize> = expected.into_iter().map(|pair| pair.1).collect();
            let range = guide * length..(guide + 1) * length;
            assert!(
                lists[range.clone()].iter().map(|&c| c as usize).eq(expected.iter().copied()),
                "{case:?}"
            );
            assert!(list_biases[range].iter().zip(expected).all(|(&bias, c)| E::integer(bias) == norm(c)));
        }
    }
}

#[test]
fn guides_list_their_nearest_centres() {
    pairs::<f16, cluster_pairs_f16>();
    pairs::<u8, cluster_pairs_u8>();
    pairs::<i8, cluster_pairs_i8>();
}

#[test]
fn values_sort_as_their_bits() {
    fn check<S: TileSum + PartialEq + std::fmt::Debug>(ascending: &[S]) {
        assert!(ascending.windows(2).all(|pair| pair[0].ordered() < pair[1].ordered()));
        assert!(ascending.windows(2).all(|pair| S::above(pair[1], pair[0]) && !S::above(pair[0], pair[1])));
        assert!(ascending.iter().all(|&value| S::from_ordered(value.ordered()) == value));
        assert!(ascending[0].ordered() > 0);
    }
    check(&[f32::NEG_INFINITY, -2.5, -1e-40, 0.0, 3.0, f32::NEVER]);
    check(&[i32::MIN + 1, -7, 0, 1, i32::NEVER]);
}

fn means<E: Value, K: Kernel<Arguments = (Means<E::Sum>,)>>(low: i64) {
    for (seed, (centre_count, dim)) in SEEDS.into_iter().zip([(1usize, 1usize), (9, 97), (5, 300)]) {
        let (vector_count, sample_count) = (70, 61);
        let vectors = integers(vector_count * dim, low, 40, seed);
        let ids: Vec<u32> = (0..sample_count as u32).map(|i| (i * 37 + 5) % vector_count as u32).collect();
        // Centre 3 has no vectors.
        let of: Vec<u64> = integers(sample_count, 0, centre_count as i64 - 1, seed + 3)
            .into_iter()
            .map(|c| if c == 3 { 0 } else { c as u64 })
            .collect();
        let mut keys: Vec<u64> = (0..sample_count).map(|i| of[i] << ID_BITS | i as u64).collect();
        keys.sort_unstable();
        for first in [true, false] {
            let key_count = if first { 0 } else { sample_count };
            let emulator = Emulator::with_seed(seed);
            let (vectors_there, stride) = upload::<E>(&emulator, &vectors, dim);
            let (ids_there, keys_there) = (emulator.upload(&ids), emulator.upload(&keys));
            let per_row = stride / size_of::<E>();
            let centres = room::<E>(&emulator, centre_count * per_row);
            let biases = room::<E::Sum>(&emulator, centre_count);
            let arguments = Means {
                vectors: vectors_there.view().read_only(),
                sample: ids_there.view().read_only(),
                keys: keys_there.view().read_only(),
                centres: centres.view(),
                biases: biases.view(),
                seed,
                sample_count: sample_count as u32,
                key_count: key_count as u32,
                centre_count: centre_count as u32,
                stride: stride as u32,
                round: 2,
                padding: 0,
            };
            emulator.launch::<K>([centre_count as u32, 1, 1], MEAN_THREADS, (arguments,)).unwrap();
            let (centres, biases) = (centres.values::<E>().unwrap(), biases.values::<E::Sum>().unwrap());
            for centre in 0..centre_count {
                let row = |place: usize| &vectors[ids[place] as usize * dim..][..dim];
                let members: Vec<usize> = keys[..key_count]
                    .iter()
                    .filter(|&key| key >> ID_BITS == centre as u64)
                    .map(|&key| key as u32 as usize)
                    .collect();
                let draws = Draws::new(seed, Stage::Cells, 3, centre as u64);
                let stretch = [centre, centre + 1].map(|c| (c * sample_count / centre_count) as u64);
                let drawn = match first {
                    true => stretch[0] + draws.below(0, stretch[1] - stretch[0]),
                    false => draws.below(0, sample_count as u64),
                };
                let expected = |i: usize| match members.len() {
                    0 => E::of(row(drawn as usize)[i]),
                    count => E::mean(members.iter().map(|&place| row(place)[i]).sum(), count),
                };
                let found = &centres[centre * per_row..][..per_row];
                for (i, value) in found.iter().enumerate() {
                    let expected = if i < dim { expected(i).exactly() } else { 0.0 };
                    assert_eq!(value.exactly(), expected, "centre {centre}, {i}, seed {seed}");
                }
                let norm: f64 = found.iter().map(|value| value.exactly().powi(2)).sum();
                let bias = E::integer(biases[centre]) as f64;
                assert!((bias - norm).abs() <= 1.0, "norm of {centre}: {bias}, not {norm}");
            }
        }
    }
}

#[test]
fn centres_are_means_of_their_vectors() {
    means::<f16, cluster_mean_f16>(-40);
    means::<u8, cluster_mean_u8>(0);
    means::<i8, cluster_mean_i8>(-40);
}
