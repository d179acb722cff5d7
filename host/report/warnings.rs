//! Warnings of a report: the fault, its cause and the remedy.

use tagore_text::grouped;

use super::self_recall::{EQUAL, FAR, FEW_EDGES};
use super::{KnnQuality, Report, SearchQuality, SelfRecall};
use crate::Metric;

/// The widest beam that is advised.
const WIDEST: f64 = 1000.0;

impl Report {
    /// The least share of reachable nodes without a warning.
    pub const MIN_REACHABLE: f64 = 0.999;
    /// The least recall of searches, and of the k-NN graph, without a warning.
    pub const MIN_RECALL: f64 = 0.9;
    /// The least self-recall without a warning.
    pub const MIN_SELF_RECALL: f64 = 0.99;

    /// Warnings, one sentence each: the fault, its cause and the remedy. They cover more than one
    /// unreachable node in 1,000, recall@10 below 0.9 at beam 100, and self-recall below 0.99.
    pub fn warnings(&self) -> Vec<String> {
        [self.of_reach(), self.of_recall(), self.of_self_recall()].into_iter().flatten().collect()
    }

    fn is_by_product(&self) -> bool {
        self.metric == Metric::InnerProduct.name()
    }

    /// Whether this was measured at a build out of core.
    fn is_of_clusters(&self) -> bool {
        self.build.as_ref().is_some_and(|build| build.clusters.is_some())
    }

    /// The remedy for nodes that too few edges lead to.
    fn more_edges(&self) -> &'static str {
        if self.is_of_clusters() {
            "build in memory or in larger clusters, or raise the degree"
        } else {
            "raise the degree"
        }
    }

    /// The remedy for nodes that no path leads to.
    fn more_reach(&self) -> &'static str {
        if self.is_of_clusters() {
            self.more_edges()
        } else {
            "build the index anew from all its rows: a build attaches every node"
        }
    }

    fn of_reach(&self) -> Option<String> {
        if self.reachable >= Report::MIN_REACHABLE {
            return None;
        }
        let (unreachable, n) = (grouped(self.unreachable), grouped(self.n));
        let cause = if 2 * self.without_edges >= self.unreachable {
            format!("no edge leads to {} of them, and no search finds them", grouped(self.without_edges))
        } else {
            "no path leads to them, and no search finds them".to_owned()
        };
        let remedy = if self.is_by_product() {
            "most of them are short, the answer to hardly any query; for directions alone, build with cosine"
        } else {
            self.more_reach()
        };
        Some(format!("{unreachable} of {n} nodes cannot be reached: {cause}; {remedy}"))
    }

    fn of_recall(&self) -> Option<String> {
        let search = self.search.as_ref().filter(|search| search.recall < Report::MIN_RECALL)?;
        let SearchQuality { k, beam, recall, .. } = search;
        let cause = self.cause_of_recall(search);
        Some(format!("searches at beam {beam} find {:.1} % of the {k} nearest: {cause}", 100.0 * recall))
    }

    /// The cause of low recall and its remedy.
    fn cause_of_recall(&self, search: &SearchQuality) -> String {
        let lost = (1.0 - search.recall) * search.queries as f64;
        let many = |queries: usize| 2.0 * queries as f64 >= lost;
        let row = search.trapped.row.unwrap_or_default();
        let of_queries = |queries: usize| format!("{} of {}", grouped(queries), grouped(search.queries));
        if many(search.trapped.equal) {
            let queries = of_queries(search.trapped.equal);
            return format!("{queries} end among rows equal to row {row}; keep one of them, or drop them");
        }
        if many(search.trapped.dense) {
            let queries = of_queries(search.trapped.dense);
            let remedy = if self.is_of_clusters() {
                "build in memory, where its rows are a part of their own, or keep fewer of them"
            } else {
                "keep fewer of its rows, or raise knn above their number"
            };
            return format!("{queries} end in a dense spot around row {row}; {remedy}");
        }
        if 2.0 * (1.0 - self.reachable) >= 1.0 - search.recall {
            return format!("most of the others cannot be reached; {}", self.more_reach());
        }
        let has_poor_lists =
            |knn: &KnnQuality| knn.recall.get(&knn.k).is_some_and(|&recall| recall < Report::MIN_RECALL);
        if self.knn.as_ref().is_some_and(has_poor_lists) {
            let codes = self.parameters.get("vectors").filter(|codes| *codes != "full");
            return match codes {
                Some(codes) => {
                    format!("its k-NN graph, made of {codes} codes, is poor: build on full vectors")
                }
                None => "its k-NN graph is poor: run more iterations of descent, or raise knn".to_owned(),
            };
        }
        match wide_enough(search) {
            Some(beam) => {
                format!("search with a wider beam (about {beam} may find 90 %), or raise the degree")
            }
            None => format!("a wider beam finds little more: {}, or knn", self.more_edges()),
        }
    }

    fn of_self_recall(&self) -> Option<String> {
        let SelfRecall { queries, beam, recall, kinds } =
            self.self_recall.as_ref().filter(|found| found.recall < Report::MIN_SELF_RECALL)?;
        let worst = kinds.iter().min_by(|a, b| a.1.total_cmp(b.1));
        let (kind, share) = worst.map_or((FEW_EDGES, *recall), |(kind, share)| (*kind, *share));
        let drop_or_more_edges = format!("drop them if they are faults, or {}", self.more_edges());
        let (rows, remedy) = match kind {
            EQUAL => ("in the largest groups of equal rows", "keep one row of each group"),
            FAR => ("farthest from the mean", &*drop_or_more_edges),
            FEW_EDGES => ("with the fewest edges to them", self.more_edges()),
            _ => ("at random", self.more_edges()),
        };
        Some(format!(
            "{:.1} % of {} sampled rows are found by a search for the row itself at beam {beam}, and {:.1} % of \
             those {rows}: {remedy}",
            100.0 * recall,
            grouped(*queries),
            100.0 * share
        ))
    }
}

/// The beam at which the recall that wider beams gain would reach the threshold; none beyond
/// [`WIDEST`].
fn wide_enough(search: &SearchQuality) -> Option<u32> {
    let [.., before, last] = &search.beams[..] else { return None };
    let missed = |recall: f64| (1.0 - recall).max(1e-9);
    // Missed neighbours fall by a power of the beam.
    let power = libm::log(missed(before.recall) / missed(last.recall))
        / libm::log(last.beam as f64 / before.beam as f64);
    if power <= 0.0 {
        return None;
    }
    let factor = libm::pow(missed(last.recall) / (1.0 - Report::MIN_RECALL), 1.0 / power);
    let beam = last.beam as f64 * factor;
    // Rounding errors add no ten.
    (beam <= WIDEST).then(|| (beam / 10.0 - 1e-6).ceil() as u32 * 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descent::KnnSample;
    use crate::report::Trapped;
    use crate::report::self_recall::RANDOM;
    use crate::{BuildCost, Builder, Device, Measure, Strategy, Synth};

    /// A report without faults.
    fn sound(kind: &str) -> Report {
        let base = Synth::new(200, 8, 1).unwrap().base();
        let index = Builder::new(Strategy::vamana()).knn(20).device(Device::Cpu).build(&base).unwrap();
        let measure = Measure::default().on(Device::Cpu);
        let report = Report::measure(&index, Some(&base), &KnnSample::default(), &measure).unwrap();
        assert_eq!(report.warnings(), Vec::<String>::new());
        Report { index: kind.to_owned(), ..report }
    }

    /// The warning of a report with this fault.
    fn warning(kind: &str, fault: impl Fn(&mut Report)) -> String {
        let mut report = sound(kind);
        fault(&mut report);
        let warnings = report.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        warnings.into_iter().next().unwrap()
    }

    /// A fault of searches: half of the neighbours are found at the last beam.
    fn misses(report: &mut Report, before: f64, change: impl Fn(&mut SearchQuality)) {
        let search = report.search.as_mut().unwrap();
        (search.recall, search.beams[1].recall, search.beams[2].recall) = (0.5, before, 0.5);
        change(search);
    }

    #[test]
    fn what_no_path_or_few_edges_lead_to_has_a_remedy() {
        let unreached = |report: &mut Report| (report.unreachable, report.reachable) = (20, 0.9);
        let missed = |report: &mut Report| {
            let found = report.self_recall.as_mut().unwrap();
            found.recall = 0.9;
            found.kinds.insert(FEW_EDGES, 0.6);
        };
        assert!(warning("cagra", unreached).contains("build the index anew"));
        assert!(warning("cagra", missed).contains("raise the degree"));
        let in_clusters = warning("cagra", |report| {
            unreached(report);
            report.build = Some(BuildCost { clusters: Some(3), ..BuildCost::default() });
        });
        assert!(in_clusters.contains("larger clusters"), "{in_clusters}");
    }

    #[test]
    fn a_build_of_clusters_that_misses_rows_is_to_be_one_in_memory() {
        let clustered = |dense| {
            warning("nsg", |report| {
                misses(report, 0.495, |search| search.trapped.dense = dense);
                report.build = Some(BuildCost { clusters: Some(3), ..BuildCost::default() });
            })
        };
        let (flat, dense) = (clustered(0), clustered(90));
        assert!(flat.contains("little more: build in memory or in larger clusters"), "{flat}");
        assert!(dense.contains("build in memory, where its rows are a part of their own"), "{dense}");
    }

    #[test]
    fn lost_reach_names_nodes_without_edges() {
        let text = |without_edges| {
            warning("cagra", |report| {
                (report.unreachable, report.reachable, report.without_edges) = (20, 0.9, without_edges);
            })
        };
        assert!(text(15).contains("20 of 200 nodes cannot be reached: no edge leads to 15 of them"));
        assert!(text(5).contains("no path leads to them"), "{}", text(5));
        let by_product = warning("cagra", |report| {
            (report.unreachable, report.reachable, report.metric) = (20, 0.9, Metric::InnerProduct.name());
        });
        assert!(by_product.contains("build with cosine"), "{by_product}");
    }

    #[test]
    fn low_recall_names_its_cause() {
        let trapped = |equal, dense| {
            warning("nsg", |report| {
                misses(report, 0.49, |search| search.trapped = Trapped { equal, dense, row: Some(7) });
            })
        };
        assert!(
            trapped(90, 0).contains("find 50.0 % of the 10 nearest: 90 of 200 end among rows equal to row 7")
        );
        assert!(trapped(0, 90).contains("dense spot around row 7"), "{}", trapped(0, 90));
        assert!(!trapped(10, 10).contains("row 7"), "{}", trapped(10, 10));

        let poor = KnnQuality { nodes: 200, k: 20, recall: [(20, 0.7)].into() };
        let lists = |codes: Option<&str>| {
            warning("nsg", |report| {
                misses(report, 0.3, |_| ());
                report.knn = Some(poor.clone());
                report.parameters.extend(codes.map(|codes| ("vectors".to_owned(), codes.to_owned())));
            })
        };
        assert!(lists(None).contains("raise knn"), "{}", lists(None));
        assert!(lists(Some("int8")).contains("int8 codes, is poor: build on full vectors"));

        // Misses that fall as 1 / beam are 0.1 at five times the beam; others fall too slowly.
        let narrow = warning("nsg", |report| misses(report, 0.0, |_| ()));
        assert!(narrow.contains("a wider beam (about 500 may find 90 %)"), "{narrow}");
        let flat = warning("nsg", |report| misses(report, 0.495, |_| ()));
        assert!(flat.contains("a wider beam finds little more: raise the degree"), "{flat}");

        let lost = |report: &mut Report| {
            misses(report, 0.3, |_| ());
            (report.unreachable, report.reachable) = (60, 0.7);
        };
        let mut report = sound("nsg");
        lost(&mut report);
        assert!(report.warnings()[1].contains("most of the others cannot be reached"));
    }

    #[test]
    fn lost_rows_name_their_kind() {
        for (kind, text) in [
            (EQUAL, "60.0 % of those in the largest groups of equal rows: keep one row"),
            (FAR, "60.0 % of those farthest from the mean: drop them"),
            (FEW_EDGES, "60.0 % of those with the fewest edges to them: raise the degree"),
            (RANDOM, "60.0 % of those at random"),
        ] {
            let found = warning("nsg", |report| {
                let found = report.self_recall.as_mut().unwrap();
                found.recall = 0.9;
                found.kinds.insert(kind, 0.6);
            });
            assert!(found.starts_with("90.0 % of ") && found.contains(text), "{found}");
        }
    }
}
