//! The cost of a build in tasks on many machines.

use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use tagore::outofcore::{ClusterPlan, StageCosts, StageTime, TaskCosts, TaskFolder, TaskMachines};
use tagore::{Builder, DataShape, Target};

use super::summary::rough;
use crate::error::{Error, Result};
use crate::number;
use crate::output::{Output, grouped, sized};

/// Machines for the tasks of a build.
#[derive(clap::Args)]
#[command(next_help_heading = "On many machines")]
pub(super) struct MachineOptions {
    /// Plan the build in tasks, as of `tagore task plan`, for these numbers of workers
    #[arg(
        long, value_name = "W,..", value_delimiter = ',', requires = "strategy",
        value_parser = number::within::<u32>(1..=4096)
    )]
    workers: Vec<u32>,
    /// Network of each worker, such as 10Gbit or 1.2GB/s
    #[arg(long, value_name = "RATE", requires = "workers", default_value = "10Gbit")]
    network: Rate,
    /// Rate of the shared folder or store, reading and writing for all workers
    #[arg(long, value_name = "RATE", requires = "workers", default_value = "5GB/s")]
    store: Rate,
    /// Time of each request to it, such as 500us or 20ms
    #[arg(long, value_name = "TIME", requires = "workers", default_value = "1ms")]
    latency: Latency,
    /// Rows of the data set per second that a worker builds in clusters [default: by rates of other
    /// machines]
    #[arg(long, value_name = "ROWS", requires = "workers", value_parser = number::real::<f64>)]
    build_rate: Option<f64>,
    /// Rows of a task of assign, write and assemble: a multiple of 1024 [default: 262144, or as
    /// many as make 256 tasks]
    #[arg(long, value_name = "N", requires = "workers")]
    range_rows: Option<usize>,
}

/// Bytes per second: `10Gbit`, `5GB/s` or `300MB/s`.
#[derive(Clone, Copy)]
struct Rate(f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("Gbit", 1e9 / 8.0), ("Mbit", 1e6 / 8.0), ("GB", 1e9), ("MB", 1e6)];
        let rate = quantity(text.strip_suffix("/s").unwrap_or(text), &units);
        rate.map(Self).ok_or_else(|| format!("found {text}, expected a rate, such as 10Gbit or 5GB/s"))
    }
}

/// A time: `500us`, `20ms` or `1s`.
#[derive(Clone, Copy)]
struct Latency(Duration);

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = match text {
            "0" => Some(0.0),
            _ => quantity(text, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)]),
        };
        let time = seconds.filter(|&seconds| seconds <= 60.0).map(Duration::from_secs_f64);
        time.map(Self)
            .ok_or_else(|| format!("found {text}, expected a time up to 60s, such as 500us or 20ms"))
    }
}

/// A positive number with a unit.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = units.iter().find_map(|&(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    // No rate of a store is outside this range.
    let sound = |value: &f64| (1e-9..1e15).contains(value);
    number.trim().parse::<f64>().ok().map(|number| number * unit).filter(sound)
}

impl MachineOptions {
    /// Plans the tasks, if numbers of workers are given, and prints them. Returns them as JSON.
    pub(super) fn plan(
        &self,
        builder: &Builder,
        data: &DataShape,
        clusters: Option<&ClusterPlan>,
        target: Target,
        output: &Output,
    ) -> Result<Value> {
        if self.workers.is_empty() {
            return Ok(Value::Null);
        }
        let plan = clusters.ok_or_else(|| {
            let expected = "a build out of core: lower --cluster-size or --host-memory";
            Error::usage(format!("--workers: the build fits the memory limits, expected {expected}"))
        })?;
        let range_rows = self.range_rows.unwrap_or(TaskFolder::usual_range_rows(data.rows));
        let costs = TaskCosts::new(builder, data, plan, range_rows, target)?;
        let costs = match self.build_rate {
            Some(rate) => costs.build_rate(rate)?,
            None => costs,
        };
        let machines = TaskMachines {
            workers: 1,
            network: self.network.0,
            store: self.store.0,
            latency: self.latency.0,
        };
        let runs: Vec<Run> =
            self.workers.iter().map(|&workers| Run::simulate(&costs, &machines, workers)).collect();
        let (most, times) = costs.most_workers(&machines);
        let limit = Run { workers: most, times };
        let stages = costs.stages();
        say(&stages, &runs, &limit, output);
        Ok(json!({
            "range_rows": range_rows, "network": self.network.0, "store": self.store.0,
            "latency": self.latency.0.as_secs_f64(), "threads": target.threads,
            "stages": stages.iter().map(stage_event).collect::<Vec<_>>(),
            "runs": runs.iter().map(Run::event).collect::<Vec<_>>(), "limit": limit.event(),
        }))
    }
}

/// The times of the stages on a number of workers.
struct Run {
    workers: usize,
    times: Vec<StageTime>,
}

impl Run {
    fn simulate(costs: &TaskCosts, machines: &TaskMachines, workers: u32) -> Self {
        let workers = workers as usize;
        Self { workers, times: costs.simulate(&TaskMachines { workers, ..*machines }) }
    }

    fn seconds(&self) -> f64 {
        self.times.iter().map(|time| time.seconds).sum()
    }

    /// The longest stage.
    fn longest(&self) -> Option<&StageTime> {
        self.times.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    fn event(&self) -> Value {
        let stage = |time: &StageTime| json!({ "stage": time.stage.name(), "seconds": time.seconds, "bound": time.bound.name() });
        let stages: Vec<Value> = self.times.iter().map(stage).collect();
        json!({ "workers": self.workers, "seconds": self.seconds(), "stages": stages })
    }
}

fn stage_event(costs: &StageCosts) -> Value {
    let StageCosts { stage, tasks, base, read, written, requests, seconds } = *costs;
    json!({
        "stage": stage.name(), "tasks": tasks, "base_bytes": base, "read_bytes": read,
        "written_bytes": written, "requests": requests, "work_seconds": seconds,
    })
}

/// Prints a line per stage, and the number of workers at which more save little.
fn say(stages: &[StageCosts], runs: &[Run], limit: &Run, output: &Output) {
    let line = |name: &str, moved: [String; 4], times: Vec<String>, bound: &str| {
        let [tasks, read, written, requests] = moved;
        let times: String = times.iter().map(|time| format!("{time:>12}")).collect();
        let line = format!("{name:<9}{tasks:>9}{read:>12}{written:>12}{requests:>13}{times}  {bound}");
        output.result(line.trim_end());
    };
    output.result("");
    let names = ["tasks", "read", "written", "requests"].map(str::to_owned);
    let workers = |run: &Run| format!("{} worker{}", run.workers, if run.workers == 1 { "" } else { "s" });
    line("in tasks", names, runs.iter().map(workers).collect(), "bound by");
    let moved = |tasks: usize, bytes: [u64; 2], requests: u64| {
        [grouped(tasks), sized(bytes[0]), sized(bytes[1]), grouped(requests)]
    };
    for (place, costs) in stages.iter().enumerate() {
        let StageCosts { stage, tasks, base, read, written, requests, .. } = *costs;
        let times = runs.iter().map(|run| rough(run.times[place].seconds)).collect();
        let bound = runs.last().map_or("", |run| run.times[place].bound.name());
        line(stage.name(), moved(tasks, [base + read, written], requests), times, bound);
    }
    let sum = |of: fn(&StageCosts) -> u64| stages.iter().map(of).sum::<u64>();
    let tasks = stages.iter().map(|stage| stage.tasks).sum();
    let bytes = [sum(|stage| stage.base + stage.read), sum(|stage| stage.written)];
    let times = runs.iter().map(|run| rough(run.seconds())).collect();
    line("all", moved(tasks, bytes, sum(|stage| stage.requests)), times, "");
    if let Some(longest) = limit.longest() {
        output.result(format_args!(
            "beyond {} workers, twice as many save less than a tenth of {}: {} takes {}, bound by {}",
            grouped(limit.workers),
            rough(limit.seconds()),
            longest.stage,
            rough(longest.seconds),
            longest.bound
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_have_units() {
        let rate = |text: &str| text.parse::<Rate>().map(|rate| rate.0).ok();
        assert_eq!(rate("10Gbit"), Some(1.25e9));
        assert_eq!(rate("25 Gbit/s"), Some(3.125e9));
        assert_eq!((rate("5GB/s"), rate("300MB"), rate("0.5GB/s")), (Some(5e9), Some(3e8), Some(5e8)));
        for wrong in ["", "GB/s", "5", "-1GB/s", "0Gbit", "5GiB/s", "infGB/s", "NaNGB/s", "1e30GB"] {
            assert_eq!(rate(wrong), None, "{wrong}");
        }
        let time = |text: &str| text.parse::<Latency>().map(|time| time.0).ok();
        assert_eq!((time("20ms"), time("0")), (Some(Duration::from_millis(20)), Some(Duration::ZERO)));
        assert_eq!(
            (time("500us"), time("1s")),
            (Some(Duration::from_micros(500)), Some(Duration::from_secs(1)))
        );
        for wrong in ["", "1", "ms", "-1ms", "61s", "1min"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }
}
