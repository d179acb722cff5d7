//! `tagore bench dispatch`

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use tagore::outofcore::{CacheUse, ClusterGraph, Dispatcher, Order, OverlapStats};
use tagore::{Device, Format, MAX_ROWS, Result, Synth, Vectors};

use crate::files::Files;
use crate::options::open;
use crate::output::{Output, grouped, save_events};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The data set whose clusters are dispatched: fvecs, bvecs, fbin, f16bin, u8bin, i8bin or npy
    #[arg(short, long, value_name = "BASE", required_unless_present = "simulate")]
    input: Option<PathBuf>,
    /// The format of the data set [default: by its extension]
    #[arg(long, value_name = "FORMAT", requires = "input")]
    format: Option<Format>,
    /// Take the clusters of so many synthetic vectors instead, as a sample of them shows
    #[arg(long, value_name = "POINTS", requires = "dim", conflicts_with = "input",
          value_parser = clap::value_parser!(u64).range(1..=MAX_ROWS as u64))]
    simulate: Option<u64>,
    /// Components per synthetic vector
    #[arg(long, requires = "simulate", conflicts_with = "input")]
    dim: Option<usize>,
    /// Synthetic vectors of the sample per cluster
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// Clusters; each vector is in those of its two nearest centres
    #[arg(long, default_value_t = 400, value_name = "N")]
    clusters: usize,
    /// Clusters whose lists are in memory at once, the one at work among them
    #[arg(long, value_delimiter = ',', default_value = "32", value_name = "C,..",
          value_parser = clap::value_parser!(u32).range(1..))]
    cache: Vec<u32>,
    /// Orders: sequential, random, gorder, cluster [default: all]
    #[arg(long, value_delimiter = ',', value_name = "ORDER,..")]
    orders: Option<Vec<Order>>,
    /// Clusters that gorder looks back at
    #[arg(long, default_value_t = 5, value_name = "W")]
    window: usize,
    /// Neighbours of a list, of which each takes 8 bytes
    #[arg(long, default_value_t = 32, value_name = "R")]
    degree: u32,
    /// Another seed gives other clusters, another random order and other synthetic data
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where clusters are found: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Where the JSON lines go as well
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Clusters, and the vectors that they are of.
struct Clusters {
    graph: ClusterGraph,
    dim: usize,
    stats: OverlapStats,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        Files::read(&self.input).write(&self.output).check()?;
        let clusters = self.clusters(output)?;
        let Clusters { graph, dim, stats } = &clusters;
        output.say(format_args!(
            "{} x {dim} in {} clusters, of which {} pairs share vectors; {:.3} s on {}",
            grouped(graph.nodes()),
            graph.clusters(),
            grouped(graph.edges() as u64),
            stats.seconds,
            stats.device
        ));
        output.say(format_args!(
            "{:<10} {:>6} {:>9} {:>15} {:>15} {:>12} {:>9}",
            "order", "cache", "hit ratio", "hits", "second visits", "spilled MiB", "order s"
        ));
        let mut events = Vec::new();
        for &cache in &self.cache {
            for &order in self.orders.as_deref().unwrap_or(&Order::ALL) {
                let dispatcher =
                    Dispatcher::new(order).cache(cache as usize).window(self.window).seed(self.seed);
                let began = Instant::now();
                let dispatches = dispatcher.dispatch(graph)?;
                let seconds = began.elapsed().as_secs_f64();
                let found = graph.simulate(&dispatches);
                self.say((order, cache), &found, seconds, output);
                let event = self.event(&clusters, (order, cache), &found, seconds);
                output.event(&event);
                events.push(event);
            }
        }
        self.output.as_deref().map_or(Ok(()), |path| save_events(path, &events))
    }

    /// Finds the clusters of the data set, or of a sample of the synthetic one.
    fn clusters(&self, output: &Output) -> Result<Clusters> {
        let of = |base: &Vectors| {
            let found =
                ClusterGraph::of_vectors(base, self.clusters, self.seed, self.device, output.progress());
            found.map(|(graph, stats)| Clusters { graph, dim: base.dim(), stats })
        };
        match (&self.input, self.simulate.zip(self.dim)) {
            (_, Some((points, dim))) => {
                let sample = (self.clusters as u64).saturating_mul(self.sample.into()).min(points);
                let mut clusters = of(&Synth::new(points as usize, dim, self.seed)?.rows(0..sample)?)?;
                clusters.graph = clusters.graph.scaled(points)?;
                Ok(clusters)
            }
            (Some(path), None) => of(&open(path, self.format)?),
            (None, None) => unreachable!("clap asks for one of both"),
        }
    }

    /// Bytes of a list: an id and a distance of each neighbour.
    fn list_bytes(&self) -> u64 {
        u64::from(self.degree) * 8
    }

    fn say(&self, (order, cache): (Order, u32), found: &CacheUse, seconds: f64, output: &Output) {
        output.say(format_args!(
            "{order:<10} {cache:>6} {:>9.4} {:>15} {:>15} {:>12} {seconds:>9.4}",
            found.hit_ratio(),
            grouped(found.hits),
            grouped(found.second_visits),
            grouped(found.spilled_bytes(self.list_bytes()) >> 20)
        ));
    }

    fn event(
        &self,
        Clusters { graph, dim, stats }: &Clusters,
        (order, cache): (Order, u32),
        found: &CacheUse,
        seconds: f64,
    ) -> Value {
        json!({
            "event": "bench dispatch", "n": graph.nodes(), "dim": dim, "simulated": self.simulate.is_some(),
            "clusters": graph.clusters(), "edges": graph.edges(),
            "device": stats.device, "cluster_seconds": stats.seconds,
            "order": order.to_string(), "cache": cache, "window": (order == Order::Gorder).then_some(self.window),
            "seed": self.seed, "hits": found.hits, "second_visits": found.second_visits,
            "hit_ratio": found.hit_ratio(), "list_bytes": self.list_bytes(),
            "spilled_bytes": found.spilled_bytes(self.list_bytes()), "order_seconds": seconds,
        })
    }
}
