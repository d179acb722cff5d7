//! `tagore bench dispatch`

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use tagore::outofcore::{CacheUse, ClusterGraph, Dispatcher, Order, OverlapStats};
use tagore::{Device, MAX_ROWS, Synth, Vectors};

use crate::error::Result;
use crate::files::{Files, Kind};
use crate::number;
use crate::options::{DATA_SET, DataSet};
use crate::output::{Output, grouped};

#[derive(clap::Args)]
#[command(mut_arg("positional", |base| base.required_unless_present_any(["base", "simulate"])))]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataSet,
    /// Simulate the clusters of this many synthetic vectors from a sample
    #[arg(long, value_name = "POINTS", requires = "dim", conflicts_with_all = DATA_SET,
          value_parser = number::within::<u32>(1..=MAX_ROWS as u64))]
    simulate: Option<u32>,
    /// Components per synthetic vector
    #[arg(long, requires = "simulate", conflicts_with_all = DATA_SET)]
    dim: Option<usize>,
    /// Synthetic vectors of the sample per cluster
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = number::positive)]
    sample: u32,
    /// Number of clusters; each vector is in the clusters of its two nearest centres [default: 400,
    /// or one per row if there are fewer]
    #[arg(long, value_name = "N")]
    clusters: Option<usize>,
    /// Clusters with lists in memory, including the current one
    #[arg(long, value_delimiter = ',', default_value = "32", value_name = "C,..",
          value_parser = number::positive)]
    cache: Vec<u32>,
    /// Orders: sequential, random, gorder, cluster [default: all]
    #[arg(long, value_delimiter = ',', value_name = "ORDER,..")]
    orders: Option<Vec<Order>>,
    /// Window of gorder, in clusters
    #[arg(long, default_value_t = 5, value_name = "W")]
    window: usize,
    /// Neighbours per list, 8 bytes each
    #[arg(long, default_value_t = 32, value_name = "R")]
    degree: usize,
    /// Seed of clusters, of the random order and of synthetic data
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Device of clustering: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Copy of the JSON lines
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The default number of clusters, unless there are fewer rows.
const CLUSTERS: usize = 400;

/// Clusters with the dimension of their vectors.
struct Clusters {
    graph: ClusterGraph,
    dim: usize,
    stats: OverlapStats,
}

/// One order of the clusters, with the use of a cache.
struct Run {
    order: Order,
    /// Clusters in the cache.
    cache: u32,
    used: CacheUse,
    /// Seconds of ordering.
    seconds: f64,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        Files::read(self.data.path()).write(Kind::Lines, &self.output).check(output)?;
        let clusters = self.clusters(output)?;
        let Clusters { graph, dim, stats } = &clusters;
        // Not before the first order, which checks the parameters.
        let head = || {
            output.result(format_args!(
                "{} x {dim} in {} clusters, {} pairs with common vectors; {:.3} s on {}",
                grouped(graph.nodes()),
                graph.clusters(),
                grouped(graph.edges()),
                stats.seconds,
                stats.device
            ));
            output.result(format_args!(
                "{:<10} {:>6} {:>9} {:>15} {:>15} {:>12} {:>9}",
                "order", "cache", "hit ratio", "hits", "second visits", "spilled MiB", "order s"
            ));
        };
        let mut events = Vec::new();
        for &cache in &self.cache {
            for &order in self.orders.as_deref().unwrap_or(&Order::ALL) {
                let dispatcher =
                    Dispatcher::new(order).cache(cache as usize).window(self.window).seed(self.seed);
                let began = Instant::now();
                let dispatches = dispatcher.dispatch(graph)?;
                let seconds = began.elapsed().as_secs_f64();
                let run = Run { order, cache, used: graph.simulate(&dispatches), seconds };
                if events.is_empty() {
                    head();
                }
                self.say(&run, output);
                let event = self.event(&clusters, &run);
                output.event(&event);
                events.push(event);
            }
        }
        self.output.as_deref().map_or(Ok(()), |path| output.write_events(path, &events))
    }

    /// Clusters the data set, or a sample of the synthetic one.
    fn clusters(&self, output: &Output) -> Result<Clusters> {
        let count = |rows: usize| self.clusters.unwrap_or(CLUSTERS.min(rows));
        let of = |base: &Vectors| {
            let clusters = count(base.len());
            let (graph, stats) =
                ClusterGraph::of_vectors(base, clusters, self.seed, self.device, output.progress())?;
            Result::Ok(Clusters { graph, dim: base.dim(), stats })
        };
        match self.simulate.zip(self.dim) {
            Some((points, dim)) => {
                let sample =
                    (count(points as usize) as u64).saturating_mul(self.sample.into()).min(points.into());
                let mut clusters = of(&Synth::new(points as usize, dim, self.seed)?.rows(0..sample)?)?;
                clusters.graph = clusters.graph.scaled(points.into())?;
                Ok(clusters)
            }
            None => of(&self.data.open()?),
        }
    }

    /// Bytes of a list: an id and a distance per neighbour.
    fn list_bytes(&self) -> u64 {
        self.degree as u64 * 8
    }

    fn say(&self, Run { order, cache, used, seconds }: &Run, output: &Output) {
        output.result(format_args!(
            "{order:<10} {cache:>6} {:>9.4} {:>15} {:>15} {:>12} {seconds:>9.4}",
            used.hit_ratio(),
            grouped(used.hits),
            grouped(used.second_visits),
            grouped(used.spilled_bytes(self.list_bytes()) >> 20)
        ));
    }

    /// A run as a JSON line.
    fn event(&self, Clusters { graph, dim, stats }: &Clusters, run: &Run) -> Value {
        let Run { order, cache, used, seconds } = run;
        json!({
            "event": "bench dispatch", "n": graph.nodes(), "dim": dim, "simulated": self.simulate.is_some(),
            "clusters": graph.clusters(), "edges": graph.edges(),
            "device": stats.device, "cluster_seconds": stats.seconds,
            "order": order.to_string(), "cache": cache,
            "window": (*order == Order::Gorder).then_some(self.window),
            "seed": self.seed, "hits": used.hits, "second_visits": used.second_visits,
            "hit_ratio": used.hit_ratio(), "list_bytes": self.list_bytes(),
            "spilled_bytes": used.spilled_bytes(self.list_bytes()), "order_seconds": seconds,
        })
    }
}
