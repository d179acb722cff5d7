//! Recall of searches on codes of dirty data, beside searches on the vectors: `cargo bench --bench
//! codes`. Arguments choose cases by parts of their names. Indexes are kept in `$CODES_INDEXES`, if
//! set, for later runs.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark stops at the first error")]

use std::path::PathBuf;

use rayon::prelude::*;
use tagore::{
    Builder, Compression, Device, Index, Metric, Progress, Search, Searcher, Strategy, Synth, Vectors,
};

const ROWS: usize = 10_000;
const QUERIES: usize = 200;
const K: usize = 10;

/// A generator of random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.unit(), self.unit());
        (-2.0 * a.ln()).sqrt() * (2.0 * std::f64::consts::PI * b).cos()
    }

    /// Student's t.
    fn student(&mut self, degrees: f64) -> f64 {
        // Bailey's polar method.
        let (u, v) = (1.0 - self.unit(), self.unit());
        (degrees * (u.powf(-2.0 / degrees) - 1.0)).sqrt() * (2.0 * std::f64::consts::PI * v).cos()
    }
}

/// Rows of normal numbers or of the mixture of `synth`.
fn clean(dim: usize, count: usize) -> Vec<f32> {
    let mut random = Random(dim as u64);
    (0..count * dim).map(|_| random.normal() as f32).collect()
}

fn mixture(dim: usize, count: usize) -> Vec<f32> {
    let synth = Synth::new(count, dim, 7).unwrap().base();
    // In random order.
    (0..count).flat_map(|row| synth.row_to_f32((row * 7919) % count).unwrap().into_owned()).collect()
}

fn each(mut values: Vec<f32>, dim: usize, mut with: impl FnMut(usize, &mut [f32])) -> Vec<f32> {
    values.chunks_exact_mut(dim).enumerate().for_each(|(row, values)| with(row, values));
    values
}

const DIM: usize = 48;

fn sentinels(share: f64, value: f32, same: bool) -> Vec<f32> {
    let mut random = Random(3);
    each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| {
        if random.unit() < share {
            let place = if same { 5 } else { random.below(DIM) };
            row[place] = value;
        }
    })
}

fn one_row(place: usize) -> Vec<f32> {
    each(mixture(DIM, ROWS + QUERIES), DIM, |row, values| {
        if row == place {
            values.fill(1e4);
        }
    })
}

fn offset(times: f32, is_axis: bool) -> Vec<f32> {
    let values = mixture(DIM, ROWS + QUERIES);
    let spread = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
    each(values, DIM, |_, row| {
        let row = if is_axis { &mut row[3..4] } else { row };
        row.iter_mut().for_each(|x| *x += times * spread);
    })
}

/// Name, dimension, and rows of the base and the queries.
type Case = (&'static str, usize, Vec<f32>);

fn cases(wanted: &dyn Fn(&str) -> bool) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut add = |name: &'static str, dim: usize, values: &dyn Fn() -> Vec<f32>| {
        if wanted(name) {
            cases.push((name, dim, values()));
        }
    };
    add("clean-normal", 32, &|| clean(32, ROWS + QUERIES));
    add("clean-mixture", 96, &|| mixture(96, ROWS + QUERIES));
    add("clean-mixture", DIM, &|| mixture(DIM, ROWS + QUERIES));
    add("sentinel-1%-any", DIM, &|| sentinels(0.01, -9999.0, false));
    add("sentinel-1%-same", DIM, &|| sentinels(0.01, -9999.0, true));
    add("sentinel-1%-1e4", DIM, &|| sentinels(0.01, 1e4, false));
    add("sentinel-.1%", DIM, &|| sentinels(0.001, -9999.0, false));
    add("sentinel-10%", DIM, &|| sentinels(0.1, -9999.0, false));
    add("sentinel-40%", DIM, &|| sentinels(0.4, -9999.0, true));
    add("row-first", DIM, &|| one_row(0));
    add("row-middle", DIM, &|| one_row(ROWS / 2));
    add("row-last", DIM, &|| one_row(ROWS - 1));
    for degrees in [1.5, 3.0] {
        let name = if degrees < 2.0 { "student-1.5" } else { "student-3" };
        add(name, 32, &|| {
            let mut random = Random(11);
            (0..(ROWS + QUERIES) * 32).map(|_| random.student(degrees) as f32).collect()
        });
    }
    add("offset-5", DIM, &|| offset(5.0, false));
    add("offset-20", DIM, &|| offset(20.0, false));
    add("offset-100", DIM, &|| offset(100.0, false));
    add("offset-axis-100", DIM, &|| offset(100.0, true));
    add("component+3e7", DIM, &|| each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| row[9] += 3e7));
    add("component+3e5", DIM, &|| each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| row[9] += 3e5));
    add("constant-dims", DIM, &|| each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| row[..32].fill(1000.0)));
    add("wide-dim-1000", DIM, &|| each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| row[9] *= 1000.0));
    add("wide-dim-30", DIM, &|| each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| row[9] *= 30.0));
    add("norms-lognormal", DIM, &|| {
        let mut random = Random(13);
        each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| {
            let factor = (1.5 * random.normal()).exp() as f32;
            row.iter_mut().for_each(|x| *x *= factor);
        })
    });
    add("large-rows-2%", DIM, &|| {
        let mut random = Random(15);
        each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| {
            if random.unit() < 0.02 {
                row.iter_mut().for_each(|x| *x *= 100.0);
            }
        })
    });
    add("ball-10%-1e-3", DIM, &|| {
        let mut random = Random(17);
        each(mixture(DIM, ROWS + QUERIES), DIM, |_, row| {
            if random.unit() < 0.1 {
                row.iter_mut().for_each(|x| *x *= 1e-3);
            }
        })
    });
    cases
}

/// Cases in bytes.
fn bytes(wanted: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Vectors, Vectors)> {
    let mut random = Random(19);
    let mut sentinel = |values: Vec<f32>| {
        each(values, DIM, |_, row| {
            if random.unit() < 0.01 {
                row[7] = 255.0;
            }
        })
    };
    let mut cases = Vec::new();
    if wanted("u8-sentinel") {
        let small = sentinel(mixture(DIM, ROWS + QUERIES).iter().map(|x| (x * 0.5 + 8.0).round()).collect());
        let bytes: Vec<u8> = small.iter().map(|&x| x as u8).collect();
        let (base, queries) = bytes.split_at(ROWS * DIM);
        let of = |bytes: &[u8]| Vectors::from_u8(bytes.to_vec(), DIM).unwrap();
        cases.push(("u8-sentinel", of(base), of(queries)));
    }
    if wanted("i8-sentinel") {
        let small = sentinel(mixture(DIM, ROWS + QUERIES).iter().map(|x| (x * 0.5).round()).collect());
        let bytes: Vec<i8> = small.iter().map(|&x| if x > 200.0 { -128 } else { x as i8 }).collect();
        let (base, queries) = bytes.split_at(ROWS * DIM);
        let of = |bytes: &[i8]| Vectors::from_i8(bytes.to_vec(), DIM).unwrap();
        cases.push(("i8-sentinel", of(base), of(queries)));
    }
    cases
}

/// The distance in f64, as results have it.
fn distance(metric: Metric, x: &[f32], y: &[f32]) -> f64 {
    let pairs = || x.iter().zip(y).map(|(&x, &y)| (f64::from(x), f64::from(y)));
    match metric {
        Metric::L2 => pairs().map(|(x, y)| (x - y) * (x - y)).sum(),
        Metric::InnerProduct => -pairs().map(|(x, y)| x * y).sum::<f64>(),
        Metric::Cosine => {
            let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
            pairs().for_each(|(x, y)| (xx, yy, xy) = (xx + x * x, yy + y * y, xy + x * y));
            1.0 - xy / (xx * yy).sqrt()
        }
    }
}

/// The distance of the k-th row, for each query.
fn truth(metric: Metric, base: &Vectors, queries: &Vectors) -> Vec<f64> {
    let of = |query: usize| {
        let query = queries.row_to_f32(query).unwrap();
        let mut distances: Vec<f64> =
            (0..base.len()).map(|row| distance(metric, &query, &base.row_to_f32(row).unwrap())).collect();
        *distances.select_nth_unstable_by(K - 1, f64::total_cmp).1
    };
    (0..queries.len()).into_par_iter().map(of).collect()
}

/// Recall over all queries, and over those at dirty rows.
fn recall(searcher: &Searcher, queries: &Vectors, metric: Metric, within: &[f64], beam: usize) -> (f64, f64) {
    let found = searcher.search(queries, Search::new(K).beam(beam), &Progress::silent()).unwrap();
    let hits = (0..queries.len()).map(|query| {
        let row = queries.row_to_f32(query).unwrap();
        let slack = match metric {
            // What f32 tells apart.
            Metric::Cosine => 2e-7,
            Metric::L2 => 0.0,
            Metric::InnerProduct => 0.0,
        };
        let within = within[query] + within[query].abs() * 1e-6 + slack;
        let ids = found.ids(query).iter().filter(|&&id| id != u32::MAX);
        ids.filter(|&&id| distance(metric, &row, &searcher.base().row_to_f32(id as usize).unwrap()) <= within)
            .count()
    });
    let hits: Vec<usize> = hits.collect();
    let norm = |query: usize| queries.row_to_f32(query).unwrap().iter().map(|x| x * x).sum::<f32>();
    let mut norms: Vec<(f32, usize)> = (0..queries.len()).map(|query| (norm(query), query)).collect();
    norms.sort_by(|a, b| b.0.total_cmp(&a.0));
    let of = |queries: &[(f32, usize)]| {
        queries.iter().map(|&(_, query)| hits[query]).sum::<usize>() as f64 / (queries.len() * K) as f64
    };
    (of(&norms), of(&norms[..queries.len() / 50]))
}

fn run(name: &str, base: Vectors, queries: &Vectors) {
    for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
        let is_code_smaller = base.element_type().size() == 4 || metric == Metric::Cosine;
        if !is_code_smaller {
            continue;
        }
        let path = std::env::var_os("CODES_INDEXES")
            .map(|folder| PathBuf::from(folder).join(format!("{name}-{}-{metric}.tagore", base.dim())));
        let index = match path.as_ref().filter(|path| path.exists()) {
            Some(path) => Index::open(path).unwrap(),
            None => {
                let index = Builder::new(Strategy::cagra()).metric(metric).device(Device::Cpu).build(&base);
                let index = index.unwrap();
                path.iter().for_each(|path| index.save(path).unwrap());
                index
            }
        };
        let within = truth(metric, &base, queries);
        let mut line = format!("{name:<18} {:>3} {metric:<7}", base.dim());
        let full = Searcher::new(index, base.clone(), &Progress::silent()).unwrap();
        for compression in [Compression::Int8, Compression::F16] {
            let searcher = full.clone().compressed(compression).unwrap();
            let (recall, warning) = (searcher.code_recall().unwrap(), searcher.code_warning());
            line += &format!(" {}{recall:.3}", if warning.is_some() { '!' } else { ' ' });
        }
        for beam in [30, 100] {
            let mut on = |what: &str, searcher: &Searcher| {
                let (all, far) = recall(searcher, queries, metric, &within, beam);
                line += &format!(" | {what} {all:.3} {far:.3}");
            };
            on("full", &full);
            for compression in [Compression::Int8, Compression::F16] {
                on(compression.name(), &full.clone().compressed(compression).unwrap());
            }
        }
        println!("{line}");
    }
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with("--")).collect();
    let wanted = |case: &str| names.is_empty() || names.iter().any(|name| case.contains(name.as_str()));
    println!("recall@{K} over all queries, and over the 2 % of largest norm; at beams 30 and 100");
    for (name, dim, values) in cases(&wanted) {
        let (base, queries) = values.split_at(ROWS * dim);
        let base = Vectors::from_f32(base.to_vec(), dim).unwrap();
        run(name, base, &Vectors::from_f32(queries.to_vec(), dim).unwrap());
    }
    for (name, base, queries) in bytes(&wanted) {
        run(name, base, &queries);
    }
}
