//! `tagore plan`

use serde_json::{Map, Value, json};
use tagore::gpu::Plan;
use tagore::outofcore::ClusterPlan;
use tagore::{Builder, Device, DevicePlan, Error, Iterations, Result, Start, Strategy};

use super::limits::{LimitOptions, clusters_event, limits_event, say_clusters, say_limits};
use super::options::{GraphOptions, Input, open};
use super::output::{Output, grouped};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    graph: GraphOptions,
    /// Iterations of the two phases of descent: auto, or A,B
    #[arg(long, default_value = "auto", value_name = "A,B")]
    iterations: Iterations,
    /// What descent starts from: auto, random or cells
    #[arg(long, default_value = "auto")]
    start: Start,
    /// The kind of index that is pruned from the graph, on the CPU: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng
    #[arg(long = "index", value_name = "KIND")]
    strategy: Option<Strategy>,
    /// The largest degree of the index [default: 50; 32 for cagra, vamana and dpg]
    #[arg(long, value_name = "R", requires = "strategy")]
    degree: Option<usize>,
    #[command(flatten)]
    limits: LimitOptions,
    /// Where the build will run: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let strategy = match (self.strategy.clone(), self.degree) {
            (Some(strategy), Some(degree)) => Some(strategy.degree(degree)),
            (strategy, _) => strategy,
        };
        strategy.as_ref().map_or(Ok(()), Strategy::check)?;
        let base = open(&self.input.input, self.input.format)?;
        let descent = self.graph.descent().iterations(self.iterations).start(self.start);
        let mut plan = descent.plan(&base)?;
        if let Some(strategy) = &strategy {
            let rows = base.len().checked_mul(strategy.max_degree()).ok_or_else(|| {
                let expected = "a number that the rows of an index can be counted with".to_owned();
                Error::Argument { what: "degree", found: strategy.max_degree().to_string(), expected }
            })?;
            plan.host = plan.host.with::<u32>("index", rows);
        }
        output.say(format_args!(
            "{} x {} {}, K = {}, start {}, {} on the device",
            base.len(),
            base.dim(),
            base.element_type(),
            plan.k,
            start_name(&plan),
            plan.element
        ));
        for stage in &plan.stages {
            say(stage.name, &stage.buffers, output);
        }
        say("host, beside the data set", &plan.host, output);
        let peak = plan.largest_stage().map(|stage| stage.name);
        output.say(format_args!(
            "peak of device memory: {} bytes, in {}; {:.0} bytes per vector",
            grouped(plan.peak_bytes()),
            peak.unwrap_or("no stage"),
            plan.bytes_per_vector()
        ));
        let strategy = strategy.unwrap_or_else(Strategy::vamana);
        let builder = Builder::new(strategy).descent(descent.device(self.device));
        let limits = self.limits.limits(self.device, base.len())?;
        let clusters = ClusterPlan::new(&builder, &base, &limits)?;
        say_limits(&limits, output);
        match &clusters {
            Some(clusters) => say_clusters(clusters, output),
            None => output.say("built in memory"),
        }
        let stages: Vec<Value> = plan
            .stages
            .iter()
            .map(|stage| {
                json!({
                    "name": stage.name, "bytes": stage.buffers.bytes(), "buffers": buffers(&stage.buffers),
                })
            })
            .collect();
        output.event(&json!({
            "event": "plan", "n": base.len(), "dim": base.dim(), "type": base.element_type().name(),
            "device_type": plan.element, "metric": self.graph.metric.to_string(), "knn": plan.k,
            "start": start_name(&plan), "stages": stages, "peak_gpu_bytes": plan.peak_bytes(),
            "peak_stage": peak, "bytes_per_vector": plan.bytes_per_vector(),
            "host": buffers(&plan.host), "host_bytes": plan.host_bytes(),
            "limits": limits_event(&limits), "out_of_core": clusters.as_ref().map(clusters_event),
        }));
        Ok(())
    }
}

fn start_name(plan: &DevicePlan) -> String {
    if plan.start == Start::Auto { "all pairs".to_owned() } else { plan.start.to_string() }
}

fn buffers(plan: &Plan) -> Map<String, Value> {
    plan.buffers().iter().map(|&(name, bytes)| (name.to_owned(), bytes.into())).collect()
}

fn say(stage: &str, plan: &Plan, output: &Output) {
    output.say(format_args!("{stage:<30} {:>20}", grouped(plan.bytes())));
    for &(name, bytes) in plan.buffers() {
        output.say(format_args!("    {name:<26} {:>20}", grouped(bytes)));
    }
}
