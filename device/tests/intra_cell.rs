//! Tests of the intra-cell join.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use emulator::Emulator;
use tagore_device::block::sums::TileElement;
use tagore_device::block::tile;
use tagore_device::descent::cells::*;
use tagore_device::key;

use crate::cells::{MANY, ONE, TWO, dot, tiles};
use crate::exact::Sum;
use crate::{SEEDS, integers};

// Two overlapping cells, their members unordered; jobs of some members against parts of their cell.
fn intra_cell_join<E: TileElement<Sum: Sum>, K: Kernel<Arguments = (IntraCellJoin<E::Sum>,)>>(
    of: impl Fn(i64) -> E,
    units: [usize; 2],
) {
    for (seed, units) in SEEDS.into_iter().zip(units) {
        let (count, dim) = (200usize, units * 16 / size_of::<E>());
        let vectors = integers(count * dim, 0, 7, seed + 30);
        let members: Vec<u32> = (0..150).chain(80..200).rev().collect();
        let job = |first_query, query_count, first_row, row_count| Job {
            first_query,
            query_count,
            first_row,
            row_count,
        };
        let jobs = [job(5, 100, 0, 120), job(130, 128, 140, 130), job(0, 1, 119, 1), job(3, 7, 10, 0)];
        let lines = jobs.len() * tile::SIDE as usize;
        let capacity = 2 * tile::SIDE as usize;
        let biases = integers(count, 0, 50, seed);
        let dot = |a: u32, b: u32| dot(&vectors, dim, a, b);
        let value = |query: u32, row: u32| biases[row as usize] - 2 * dot(query, row);
        let emulator = Emulator::with_seed(seed);
        let there = emulator.upload(&vectors.iter().map(|&x| of(x)).collect::<Vec<E>>());
        let biases_there = emulator.upload(&biases.iter().map(|&x| E::Sum::of(x)).collect::<Vec<_>>());
        let members_there = emulator.upload(&members);
        let words = jobs.map(|j| [j.first_query, j.query_count, j.first_row, j.row_count]);
        let jobs_there = emulator.upload(&words.concat());
        let untouched = 0x5a5a_5a5au32;
        let found = emulator.upload(&vec![untouched; lines * capacity]);
        let arguments = IntraCellJoin {
            tiles: tiles(&there, &biases_there, units as u32),
            members: members_there.view().read_only(),
            jobs: jobs_there.view().read_only(),
            distances: found.view(),
            capacity: capacity as u32,
            padding: 0,
        };
        emulator.launch::<K>([jobs.len() as u32, 1, 1], tile::THREADS, (arguments,)).unwrap();
        let found = found.values::<u32>().unwrap();
        for (line, written) in found.chunks_exact(capacity).enumerate() {
            let (job, query) = (jobs[line / tile::SIDE as usize], line as u32 % tile::SIDE);
            let rows = if query < job.query_count { job.row_count as usize } else { 0 };
            for (place, &written) in written[..rows].iter().enumerate() {
                let (query, row) = (job.first_query + query, job.first_row + place as u32);
                let (query, row) = (members[query as usize], members[row as usize]);
                assert_eq!(written, key::ordered(value(query, row) as f32), "{query}, {row}, seed {seed}");
            }
            let padding = &written[rows.next_multiple_of(8)..];
            assert!(padding.iter().all(|&word| word == untouched), "line {line}, seed {seed}");
        }
    }
}

#[test]
fn the_intra_cell_join_computes_the_distances_of_members() {
    intra_cell_join::<f16, cells_intra_join_1_f16>(|x| f16::from_f32(x as f32), ONE);
    intra_cell_join::<f16, cells_intra_join_2_f16>(|x| f16::from_f32(x as f32), TWO);
    intra_cell_join::<f16, cells_intra_join_many_f16>(|x| f16::from_f32(x as f32), MANY);
    intra_cell_join::<u8, cells_intra_join_1_u8>(|x| x as u8, ONE);
    intra_cell_join::<u8, cells_intra_join_2_u8>(|x| x as u8, TWO);
    intra_cell_join::<u8, cells_intra_join_many_u8>(|x| x as u8, MANY);
    intra_cell_join::<i8, cells_intra_join_1_i8>(|x| x as i8, ONE);
    intra_cell_join::<i8, cells_intra_join_2_i8>(|x| x as i8, TWO);
    intra_cell_join::<i8, cells_intra_join_many_i8>(|x| x as i8, MANY);
}
