//! Wall times of the stages of a build, one after another; their sum is that of the command. The
//! line `time`, JSON, report and page all show these.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tagore::StageCost;

use crate::output::Output;

/// A clock with the stages so far.
pub(crate) struct Laps {
    last: Instant,
    stages: Vec<StageCost>,
}

/// Shorter stages are no news: they would read 0.000.
const SHORT: f64 = 0.0005;

/// The stages that take time enough to be shown.
pub(crate) fn shown(stages: &[StageCost]) -> impl Iterator<Item = &StageCost> {
    stages.iter().filter(|stage| stage.seconds >= SHORT)
}

impl Laps {
    /// Starts the clock.
    pub(crate) fn begin() -> Self {
        Self { last: Instant::now(), stages: Vec::new() }
    }

    /// Ends the stage that has run since the last one.
    pub(crate) fn end(&mut self, stage: &'static str) {
        self.end_parts(stage, &[]);
    }

    /// Ends a stage of which the seconds of `parts` are known; the rest of it is `stage`.
    pub(crate) fn end_parts(&mut self, stage: &'static str, parts: &[StageCost]) {
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        let known: f64 = parts.iter().map(|part| part.seconds).sum();
        self.stages.push(StageCost::new(stage, (seconds - known).max(0.0)));
        self.stages.extend_from_slice(parts);
    }

    /// Adds a stage of known seconds that ran first since the last one; others may run beside it.
    pub(crate) fn add(&mut self, stage: &'static str, seconds: f64) {
        let elapsed = self.last.elapsed();
        let stage = StageCost::new(stage, seconds.min(elapsed.as_secs_f64()));
        self.last += Duration::from_secs_f64(stage.seconds.max(0.0)).min(elapsed);
        self.stages.push(stage);
    }

    /// Seconds of all stages.
    pub(crate) fn sum(&self) -> f64 {
        self.stages.iter().map(|stage| stage.seconds).sum()
    }

    /// Prints the stages and their sum.
    pub(crate) fn say(&self, output: &Output) {
        let stages: Vec<String> = shown(&self.stages)
            .map(|StageCost { stage, seconds, .. }| format!("{stage} {seconds:.3}"))
            .collect();
        output.say(format_args!("time      {:.3} s: {}", self.sum(), stages.join(", ")));
    }

    /// The stages for a report.
    pub(crate) fn stages(&self) -> Vec<StageCost> {
        self.stages.clone()
    }

    /// The stages as a JSON object, with the `total` of a build.
    pub(crate) fn event(&self, total: f64) -> Value {
        let stage = |stage: &StageCost| (stage.stage.to_owned(), Value::from(stage.seconds));
        self.stages.iter().map(stage).chain([("total".to_owned(), json!(total))]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_add_up_to_the_time() {
        let began = Instant::now();
        let mut laps = Laps::begin();
        std::thread::sleep(Duration::from_millis(20));
        laps.end_parts("other", &[StageCost::new("known", 0.004), StageCost::new("more", 0.001)]);
        std::thread::sleep(Duration::from_millis(20));
        laps.add("beside", 0.015);
        // No stage is longer than the time since the last one.
        laps.add("wrong clock", 1e9);
        laps.end("rest");
        let (sum, total) = (laps.sum(), began.elapsed().as_secs_f64());
        assert!(sum >= 0.04 && sum <= total, "{sum} of {total}");
        let event = laps.event(sum);
        let keys: Vec<&str> = laps.stages.iter().map(|stage| stage.stage).collect();
        assert_eq!(keys, ["other", "known", "more", "beside", "wrong clock", "rest"]);
        assert_eq!((event["known"].as_f64(), event["beside"].as_f64()), (Some(0.004), Some(0.015)));
        assert_eq!(event["total"].as_f64(), Some(sum));
        let names: Vec<&str> = shown(&laps.stages).map(|stage| stage.stage).collect();
        assert!(names.contains(&"known") && !names.contains(&"rest"), "{names:?}");
    }
}
