//! Lists on codes and rests, against plain sums in f64 and in the CPU's order.

use emulator::Emulator;
use tagore_device::block::exact::Metric;
use tagore_device::key::{self, Key, NONE};
use tagore_device::vectors::code::{Code, whole};
use tagore_device::vectors::settle::*;

use crate::exact::{padded, padded_rows};
use crate::{SEEDS, integers};

// Distances in the documented order of sums, and near those of f64; lists sorted, short ones too.
#[test]
fn lists_are_ordered_by_codes_and_rests() {
    let sizes = [(1, 1), (17, 31), (301, 40), (64, 33), (960, 44)];
    for ((number, (dim, k)), metric) in
        sizes.into_iter().enumerate().flat_map(|size| [Metric::L2, Metric::InnerProduct].map(|m| (size, m)))
    {
        let seed = SEEDS[number % SEEDS.len()];
        let (count, stride) = (45usize, padded::<i8>(dim));
        let mut codes = padded_rows::<i8>(count, dim, seed);
        let rests = padded_rows::<i8>(count, dim, seed + 1);
        // Quantizers give no code of -128, and one component in eight is cut.
        let cut = integers(codes.len(), 0, 15, seed + 2);
        for (i, (code, cut)) in codes.iter_mut().zip(cut).enumerate() {
            *code = match cut {
                _ if i % stride >= dim => 0,
                0 => 127,
                1 => -127,
                _ => (*code).max(-126),
            };
        }
        // Position i of the order is row 7 i.
        let order: Vec<u32> = (0..count as u32).map(|place| place * 7 % count as u32).collect();
        let full = |row: usize| if row == 7 { k / 2 } else { k };
        let ids = |row: usize| (1..=full(row)).map(move |i| ((row + i) % count) as u32);
        let lists: Vec<Key> = (0..count)
            .flat_map(|row| {
                ids(row).map(|id| key::pack(0.5 + id as f32, id)).chain(vec![NONE; k - full(row)])
            })
            .collect();
        let emulator = Emulator::with_seed(seed);
        let (codes_there, rests_there) = (emulator.upload(&codes), emulator.upload(&rests));
        let (order_there, lists_there) = (emulator.upload(&order), emulator.upload(&lists));
        let arguments = Settle {
            codes: codes_there.view().read_only(),
            rests: rests_there.view().read_only(),
            order: order_there.view().read_only(),
            lists: lists_there.view(),
            stride: stride as u32,
            dim: dim as u32,
            k: k as u32,
            metric: metric as u32,
        };
        let grid = [count as u32, 1, 1];
        emulator.launch::<vectors_settle>(grid, SETTLE_LISTS_THREADS, (arguments,)).unwrap();
        let after = lists_there.values::<Key>().unwrap();
        let value = |row: usize, i: usize| {
            if i < dim { whole(codes[row * stride + i], rests[row * stride + i]) } else { 0.0 }
        };
        let distance = |a: usize, b: usize| {
            let mut sums = [0f32; PARTS];
            for i in 0..dim.next_multiple_of(PARTS) {
                sums[i % PARTS] += term(metric, value(a, i), value(b, i));
            }
            let lanes: Vec<f32> =
                sums.chunks_exact(16).map(|part| sum_of(part.try_into().unwrap())).collect();
            let sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
            let terms = (0..dim).map(|i| (f64::from(value(a, i)), f64::from(value(b, i))));
            let terms = terms.map(|(x, y)| if metric == Metric::L2 { (x - y) * (x - y) } else { x * y });
            let (exact, most) = terms.fold((0.0, 0.0), |(sum, most), term| (sum + term, most + term.abs()));
            assert!((f64::from(sum) - exact).abs() <= 1e-5 * most, "{metric:?}, {dim}: {sum} {exact}");
            if metric == Metric::L2 { sum } else { -sum }
        };
        for row in 0..count {
            let mut expected: Vec<Key> =
                ids(row).map(|id| key::pack(distance(row, id as usize), id)).collect();
            expected.sort_unstable();
            expected.resize(k, NONE);
            assert_eq!(after[row * k..][..k], expected, "{metric:?}, dimension {dim}, row {row}");
        }
    }
}

// Codes and rests together: 256ths of a level up to the last level, and steps after it.
#[test]
fn rests_tell_what_codes_lack() {
    for i in -200_000..=200_000 {
        let x = i as f32 / 300.0;
        let code = i8::of(x);
        let (found, error) = (whole(code, code.rest(x)), if x.abs() < 126.5 { 1.0 / 256.0 } else { 2.0 });
        assert!((found - x).abs() <= error || x.abs() > 635.0, "{x}: {code}, {found}");
    }
    assert_eq!(whole(127, i8::of(1000.0).rest(1000.0)), 635.0);
    assert_eq!(whole(-3, 64), -2.75);
}
