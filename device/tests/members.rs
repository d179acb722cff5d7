//! Samples, members of cells, and keys of centres, on the emulator.

use cuda_std::memory::Plain;
use emulator::{Allocation, Emulator};
use tagore_device::cluster::*;

use crate::{SEEDS, integers, room};

#[test]
fn the_sample_has_one_of_each_stretch() {
    for (seed, (count, n)) in SEEDS.into_iter().zip([(1, 1), (300, 300), (257, 100_003)]) {
        let emulator = Emulator::with_seed(seed);
        let ids = room::<u32>(&emulator, count);
        let grid = [(count as u32).div_ceil(VALUE_THREADS), 1, 1];
        emulator
            .launch::<cluster_sample>(grid, VALUE_THREADS, (ids.view(), count as u32, n as u32, seed))
            .unwrap();
        for (index, id) in ids.values::<u32>().unwrap().into_iter().enumerate() {
            assert!((index * n / count..(index + 1) * n / count).contains(&(id as usize)));
        }
    }
}

#[test]
fn shuffled_is_a_permutation() {
    for n in [1, 2, 3, 4, 5, 127, 128, 129, 1000, 65_536, 65_537] {
        let mut numbers: Vec<u32> = (0..n).map(|index| shuffled(index, n)).collect();
        // Any prefix is a fair sample: its mean is near that of all numbers.
        if n >= 1000 {
            let mean = numbers[..500].iter().map(|&x| f64::from(x)).sum::<f64>() / 500.0 / f64::from(n);
            assert!((mean - 0.5).abs() < 0.05, "{mean} of {n}");
        }
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..n), "{n}");
    }
    // The largest range.
    assert!(shuffled(5, u32::MAX) != shuffled(6, u32::MAX));
}

fn values<T: Plain>(allocation: &Allocation) -> Vec<T> {
    allocation.values().unwrap()
}

#[test]
fn members_are_cell_by_cell() {
    // The host sorts between the kernels. Cells 0 and 5 are empty.
    for (seed, (n, m)) in SEEDS.into_iter().zip([(1usize, 1usize), (300, 3), (700, 8)]) {
        let cells = 12u32;
        let cell = |i: usize, rank: usize| [1, 2, 3, 4, 6, 7, 8, 9, 10, 11][(i * i + rank) % 10];
        let nearest: Vec<u32> = (0..n * m).map(|place| cell(place / m, place % m)).collect();
        let emulator = Emulator::with_seed(seed);
        let (nearest_there, keys) = (emulator.upload(&nearest), room::<u64>(&emulator, n * m));
        let arguments = MemberKeys {
            nearest: nearest_there.view().read_only(),
            keys: keys.view(),
            count: n as u32,
            probes: m as u32,
        };
        let grid = [(n as u32).div_ceil(VALUE_THREADS), 1, 1];
        emulator.launch::<cluster_member_keys>(grid, VALUE_THREADS, (arguments,)).unwrap();
        let mut sorted = values::<u64>(&keys);
        sorted.sort_by_key(|key| key >> (ID_BITS + RANK_BITS));
        let keys = emulator.upload(&sorted);
        let members = room::<u32>(&emulator, n * m);
        let starts = room::<u32>(&emulator, cells as usize * m + 1);
        let arguments = Members {
            keys: keys.view().read_only(),
            members: members.view(),
            starts: starts.view(),
            count: (n * m) as u32,
            cells,
            probes: m as u32,
            padding: 0,
        };
        let grid = [((n * m) as u32).div_ceil(VALUE_THREADS), 1, 1];
        emulator.launch::<cluster_members>(grid, VALUE_THREADS, (arguments,)).unwrap();
        let (members, starts) = (values::<u32>(&members), values::<u32>(&starts));
        let order: Vec<usize> = (0..n as u32).map(|index| shuffled(index, n as u32) as usize).collect();
        let mut expected = Vec::new();
        for (group, &start) in starts.iter().enumerate() {
            assert_eq!(start as usize, expected.len(), "group {group}");
            let of_group = order.iter().filter(|&&i| cell(i, group % m) == (group / m) as u32);
            expected.extend(of_group.map(|&i| i as u32));
        }
        assert_eq!(members, expected);
    }
}

#[test]
fn keys_take_one_centre_after_another() {
    let (n, m) = (300usize, 3);
    let nearest: Vec<u32> = integers(n * m, 0, 1 << 20, 4).into_iter().map(|c| c as u32).collect();
    for seed in SEEDS {
        let emulator = Emulator::with_seed(seed);
        let (nearest_there, keys) = (emulator.upload(&nearest), room::<u64>(&emulator, n));
        let make = |keys: &Allocation, rank: u32| {
            let arguments = Keys {
                nearest: nearest_there.view().read_only(),
                keys: keys.view(),
                count: n as u32,
                probes: m as u32,
                rank,
                fresh: u32::from(rank == 2),
            };
            let grid = [(n as u32).div_ceil(VALUE_THREADS), 1, 1];
            emulator.launch::<cluster_keys>(grid, VALUE_THREADS, (arguments,)).unwrap();
        };
        make(&keys, 2);
        let mut sorted = values::<u64>(&keys);
        let key = |i: usize, rank: usize| u64::from(nearest[i * m + rank]) << ID_BITS | i as u64;
        assert!(sorted.iter().copied().eq((0..n).map(|i| key(i, 2))));
        sorted.sort_unstable();
        let keys = emulator.upload(&sorted);
        make(&keys, 1);
        assert!(values::<u64>(&keys).into_iter().eq(sorted.iter().map(|&k| key(k as u32 as usize, 1))));
        let ids = room::<u32>(&emulator, n);
        let grid = [(n as u32).div_ceil(VALUE_THREADS), 1, 1];
        let arguments = (keys.view().read_only(), ids.view(), n as u32);
        emulator.launch::<cluster_ids>(grid, VALUE_THREADS, arguments).unwrap();
        assert!(values::<u32>(&ids).into_iter().eq(sorted.iter().map(|&key| key as u32)));
    }
}
