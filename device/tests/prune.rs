//! The kernels that filter candidates.

use cuda_std::launch::Kernel;
use tagore_device::block::exact::Metric;
use tagore_device::block::rows::Rows;
use tagore_device::key::{self, Key, NONE};
use tagore_device::prune::filter::PruneFilter;
use tagore_device::prune::gram::{GRAM_THREADS, prune_gram_spread};
use tagore_device::prune::kernels::RuleKernels;
use tagore_device::prune::rule::{
    AlphaConvergent, Angle, Distance, Form, Rule, Spread, TauMonotonic, survives,
};
use tagore_device::rule_kernels;

use crate::device::{TestDevice, part};
use crate::exact::{Value, exact_distance, padded, padded_rows};
use crate::{SEEDS, integers};

/// A user's rule, with parameters and both forms.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Weighted {
    weight: f32,
    by_score: u32,
}

impl Rule for Weighted {
    #[inline(always)]
    fn form(&self) -> Form {
        if self.by_score != 0 { Form::Score } else { Form::Keep }
    }

    #[inline(always)]
    fn keep(&self, d_pc: f32, d_pa: f32, d_ac: f32, t: f32) -> bool {
        d_pc + self.weight * d_pa < t * d_ac
    }

    #[inline(always)]
    fn score(&self, d_pc: f32, _d_pa: f32, d_ac: f32, t: f32) -> f32 {
        self.weight * d_pc - t * d_ac
    }
}

rule_kernels! {
    unsafe Weighted: weighted_f32 weighted_f16 weighted_u8 weighted_i8;
}

/// A base with the distances between its rows.
struct Base<T> {
    values: Vec<T>,
    /// Empty for a base without lifts.
    lifts: Vec<f32>,
    /// Inner products: the square of the norm that lifts give all rows. Else -1.
    square: f32,
    dim: usize,
}

impl<T: Value> Base<T> {
    const ROWS: usize = 50;

    /// Seed 0: no lifts. Seed 1: any lifts. Seed 2: those of inner products.
    fn new(dim: usize, seed: u64) -> Self {
        let mut base = Self::without_lifts(Self::ROWS, dim, seed);
        if seed > 0 {
            let lifts = integers(Self::ROWS, -1, 3, seed);
            base.lifts = lifts.into_iter().map(|lift| lift as f32).collect();
        }
        if seed == 2 {
            base.lift();
        }
        base
    }

    fn without_lifts(rows: usize, dim: usize, seed: u64) -> Self {
        let stride = padded::<T>(dim);
        let mut values = padded_rows::<T>(rows, dim, seed);
        // Duplicates of each other, and of nodes.
        for (copy, of) in [(1, 0), (2, 0), (30, 29), (31, 3)] {
            values.copy_within(of * stride..(of + 1) * stride, copy * stride);
        }
        Self { values, lifts: Vec::new(), square: -1.0, dim }
    }

    /// Uploads the rows.
    fn rows(&self, device: &TestDevice) -> Rows<T> {
        Rows {
            values: device.input(&self.values),
            lifts: device.input(&[&self.lifts[..], &[0.0]].concat()),
            stride: padded::<T>(self.dim) as u32,
            dim: self.dim as u32,
            lifted: u32::from(!self.lifts.is_empty()),
            square: self.square,
        }
    }

    fn row(&self, id: u32) -> &[T] {
        &self.values[id as usize * padded::<T>(self.dim)..][..self.dim]
    }

    /// Sets the lifts of inner products.
    fn lift(&mut self) {
        let rows = 0..(self.values.len() / padded::<T>(self.dim)) as u32;
        let squares: Vec<f64> =
            rows.map(|id| self.row(id).iter().map(|x| x.exactly().powi(2)).sum()).collect();
        let largest = squares.iter().copied().fold(0.0, f64::max);
        self.lifts = squares.iter().map(|square| (largest - square).sqrt() as f32).collect();
        self.square = largest as f32;
    }

    /// The key of a candidate, by order distance.
    fn key(&self, node: u32, id: u32) -> Key {
        let distance = if self.square < 0.0 {
            self.rule_distance(node, id)
        } else {
            exact_distance(Metric::InnerProduct, self.row(node), self.row(id))
        };
        key::pack(distance, id)
    }

    /// The rule distance from `node` to a candidate, from its key.
    fn length(&self, node: u32, key: Key) -> f32 {
        let distance = key::distance(key);
        if self.square < 0.0 {
            return distance;
        }
        let lifts = self.lifts[node as usize] * self.lifts[key::id(key) as usize];
        let squared = 2.0 * (self.square + distance - lifts);
        if squared < 4e-6 * self.square { 0.0 } else { squared }
    }

    fn rule_distance(&self, a: u32, b: u32) -> f32 {
        let sum = exact_distance(Metric::L2, self.row(a), self.row(b));
        match (self.lifts.get(a as usize), self.lifts.get(b as usize)) {
            (Some(&x), Some(&y)) if x < 0.0 || y < 0.0 => 2.0,
            (Some(&x), Some(&y)) => sum + (x - y) * (x - y),
            _ => sum,
        }
    }

    /// The nearest `count` of all other rows.
    fn candidates(&self, node: u32, count: usize) -> Vec<Key> {
        let rows = (self.values.len() / padded::<T>(self.dim)) as u32;
        let others = (0..rows).filter(|&id| id != node);
        let mut keys: Vec<Key> = others.map(|id| self.key(node, id)).collect();
        keys.sort_unstable();
        keys.truncate(count);
        keys
    }

    /// The candidates of `node` that a rule accepts, by the definition of its form.
    fn accepted(&self, rule: &dyn Rule, t: f32, node: u32, candidates: &[Key], most: usize) -> Vec<Key> {
        let mut accepted: Vec<Key> = Vec::new();
        let length = |key: Key| self.length(node, key);
        let d_ac = |a: Key, c: Key| self.rule_distance(key::id(a), key::id(c));
        match rule.form() {
            Form::Keep => {
                for &c in candidates {
                    let kept = accepted.iter().all(|&a| survives(rule, length(c), length(a), d_ac(a, c), t));
                    if kept && accepted.len() < most {
                        accepted.push(c);
                    }
                }
                let dropped: Vec<Key> =
                    candidates.iter().copied().filter(|c| !accepted.contains(c)).collect();
                let missing = 16.min(most / 2).saturating_sub(accepted.len());
                accepted.extend(dropped.iter().take(missing));
            }
            Form::Score => {
                while accepted.len() < most.min(candidates.len()) {
                    let sum = |c: Key| {
                        accepted
                            .iter()
                            .fold(0.0f32, |sum, &a| sum + rule.score(length(c), length(a), d_ac(a, c), t))
                    };
                    let left = candidates.iter().copied().filter(|c| !accepted.contains(c));
                    accepted.extend(left.min_by(|&x, &y| sum(x).total_cmp(&sum(y)).then(x.cmp(&y))));
                }
            }
        }
        accepted
    }
}

/// Launches `K` for some nodes of bases of several sizes and compares with the definition.
fn filters<T: Value, R: Rule + Copy, K: Kernel<Arguments = (PruneFilter<T>, R)>>(
    rule: R,
    threshold: f32,
    block: u32,
) {
    for (seed, (dim, count, most)) in SEEDS.into_iter().zip([(1, 70, 8), (97, 45, 20), (33, 9, 512)]) {
        compare::<T, R, K>(&Base::new(dim, seed), rule, threshold, [count, most], block, seed);
    }
}

/// Launches `K` for some nodes of `base`, with up to `count` candidates and `most` edges, and
/// compares with the definition.
fn compare<T: Value, R: Rule + Copy, K: Kernel<Arguments = (PruneFilter<T>, R)>>(
    base: &Base<T>,
    rule: R,
    threshold: f32,
    [count, most]: [usize; 2],
    block: u32,
    seed: u64,
) {
    let nodes = [0u32, 29, 3, 49];
    let candidates: Vec<Vec<Key>> =
        nodes.iter().zip([count, count, 5, 0]).map(|(&node, count)| base.candidates(node, count)).collect();
    let padded_candidates: Vec<Key> = (candidates.iter())
        .flat_map(|keys| keys.iter().copied().chain(std::iter::repeat(NONE)).take(count))
        .collect();
    let device = TestDevice::new(seed);
    for pass_short in [0, 1] {
        let forward = device.room::<Key>(Base::<T>::ROWS * most);
        let filter = PruneFilter {
            rows: base.rows(&device),
            nodes: device.input(&nodes),
            candidates: device.input(&padded_candidates),
            forward: forward.view(),
            stride: count as u32,
            most: most as u32,
            threshold: rule.prepare(threshold),
            pass_short,
        };
        device.launch::<K>(nodes.len() as u32, block, (filter, rule));
        for (&node, candidates) in nodes.iter().zip(&candidates) {
            let mut expected = if pass_short == 1 && candidates.len() <= most {
                candidates.clone()
            } else {
                base.accepted(&rule, rule.prepare(threshold), node, candidates, most)
            };
            expected.resize(most, NONE);
            let found = part::<Key>(&forward, node as usize * most, most);
            let (name, dim) = (K::NAME, base.dim);
            assert_eq!(found, expected, "{name}, node {node} of {dim}, seed {seed}, pass_short {pass_short}");
        }
    }
}

fn on_all_types<R: RuleKernels>(rule: R, threshold: f32) {
    filters::<f32, R, R::F32>(rule, threshold, 64);
    filters::<cuda_std::f16, R, R::F16>(rule, threshold, 32);
    filters::<u8, R, R::U8>(rule, threshold, 96);
    filters::<i8, R, R::I8>(rule, threshold, 256);
}

#[test]
fn the_wavefront_accepts_the_candidates_of_the_definition() {
    on_all_types(Distance, 1.0);
    on_all_types(Distance, 1.2);
    on_all_types(Angle, 60.0);
    on_all_types(Spread, 0.0);
    on_all_types(TauMonotonic, 0.3);
    on_all_types(AlphaConvergent { alpha: 1.2 }, 0.2);
}

/// Factors of all components: few bits decide; differences whose halves must be scaled much; and
/// squares near the ends of the range of f32.
const FACTORS: [f32; 4] = [1.0, 1e-6, 3e-19, 1e15];

#[test]
fn products_accept_the_candidates_of_the_definition() {
    let sizes =
        [(1, 40, 8), (97, 45, 20), (33, 9, 512), (301, 48, 31), (31, 16, 3), (64, 60, 31), (130, 33, 40)];
    for (i, (dim, count, most)) in sizes.into_iter().chain([(65, 17, 12), (961, 48, 24)]).enumerate() {
        let seed = SEEDS[i % SEEDS.len()];
        let mut base = Base::<f32>::without_lifts(150, dim, seed);
        if i % 2 == 1 {
            // No ties: a fraction that each component has of its own.
            for (i, value) in base.values.iter_mut().enumerate() {
                *value *= 1.0 + (i * 7919 % 1013) as f32 / 4096.0;
            }
        }
        for value in &mut base.values {
            *value *= FACTORS[i % FACTORS.len()];
        }
        if i % 3 == 2 {
            // Under cosine, the lifts of zero vectors.
            base.lifts = (0..150).map(|row| if row % 37 == 7 { -1.0 } else { 0.0 }).collect();
        }
        compare::<f32, _, prune_gram_spread>(&base, Spread, 0.0, [count, most], GRAM_THREADS, seed);
    }
}

#[test]
fn rules_of_users_have_kernels_with_their_parameters() {
    on_all_types(Weighted { weight: 0.25, by_score: 0 }, 1.5);
    on_all_types(Weighted { weight: 2.0, by_score: 1 }, 0.5);
}
