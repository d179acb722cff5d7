//! Renumbering of vectors, values and ids.

use cuda_std::memory::Quad;
use emulator::Emulator;
use tagore_device::descent::renumber::*;

use crate::{SEEDS, integers, room};

#[test]
fn vectors_are_moved_to_their_places() {
    for (seed, (count, units)) in SEEDS.into_iter().zip([(1usize, 1usize), (13, 8), (21, 40)]) {
        let words: Vec<u32> =
            integers(count * units * 4, 0, 1 << 31, seed).iter().map(|&x| x as u32).collect();
        let biases: Vec<u32> = (0..count as u32).map(|i| i * 3).collect();
        let order: Vec<u32> = (0..count).map(|place| ((place * 8 + 3) % count) as u32).collect();
        let emulator = Emulator::with_seed(seed);
        let (from, biases_there) = (emulator.upload(&words), emulator.upload(&biases));
        let order_there = emulator.upload(&order);
        let (to, biases_to) = (room::<Quad>(&emulator, count * units), room::<u32>(&emulator, count));
        let places = room::<u32>(&emulator, count);
        let renumber = Renumber {
            from: from.view::<Quad>().read_only(),
            to: to.view(),
            order: order_there.view().read_only(),
            count: count as u32,
            from_stride: units as u32,
            to_stride: units as u32,
            units: units as u32,
            shift: Renumber::shift_of(units as u32),
            ordered: 1,
        };
        let grid = [renumber.blocks(), 1, 1];
        emulator.launch::<renumber_vectors>(grid, RENUMBER_THREADS, (renumber,)).unwrap();
        let arguments = RenumberValues {
            from: biases_there.view().read_only(),
            to: biases_to.view(),
            order: order_there.view().read_only(),
            places: places.view(),
            count: count as u32,
            padding: 0,
        };
        emulator.launch::<renumber_values>([1, 1, 1], RENUMBER_THREADS, (arguments,)).unwrap();
        // Some columns, at their places or in order.
        let (first, width) = (units / 3, (units / 2).max(1));
        let columns = room::<Quad>(&emulator, count * width);
        for ordered in [0, 1] {
            let renumber = Renumber {
                from: from.view::<Quad>().read_only().offset(first),
                to: columns.view(),
                to_stride: width as u32,
                units: width as u32,
                shift: Renumber::shift_of(width as u32),
                ordered,
                ..renumber
            };
            let grid = [renumber.blocks(), 1, 1];
            emulator.launch::<renumber_vectors>(grid, RENUMBER_THREADS, (renumber,)).unwrap();
            let columns = columns.values::<u32>().unwrap();
            for (place, &vector) in order.iter().enumerate() {
                let vector = if ordered == 1 { vector as usize } else { place };
                let expected = &words[(vector * units + first) * 4..][..width * 4];
                assert_eq!(columns[place * width * 4..][..width * 4], *expected);
            }
        }
        let (to, biases_to) = (to.values::<u32>().unwrap(), biases_to.values::<u32>().unwrap());
        for (place, &vector) in order.iter().enumerate() {
            let row = |words: &[u32], row: usize| words[row * units * 4..][..units * 4].to_vec();
            assert_eq!(row(&to, place), row(&words, vector as usize));
            assert_eq!(biases_to[place], biases[vector as usize]);
        }
        let ids: Vec<u32> = (0..300).map(|i| (i * 5 % count) as u32).collect();
        let ids_there = emulator.upload(&ids);
        let arguments = (ids_there.view(), places.view().read_only(), ids.len() as u32);
        emulator.launch::<renumber_ids>([2, 1, 1], RENUMBER_THREADS, arguments).unwrap();
        let back: Vec<u32> =
            ids_there.values::<u32>().unwrap().iter().map(|&place| order[place as usize]).collect();
        assert_eq!(back, ids);
    }
}
