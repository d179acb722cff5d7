//! Wall times of the stages of a command, one after another: their sum is the time of the command.

use std::time::Instant;

use serde_json::Value;

use crate::output::Output;

/// A clock with the stages so far.
pub(crate) struct Laps {
    began: Instant,
    last: Instant,
    stages: Vec<(&'static str, f64)>,
}

impl Laps {
    /// Starts the clock.
    pub(crate) fn begin() -> Self {
        let now = Instant::now();
        Self { began: now, last: now, stages: Vec::new() }
    }

    /// Ends the stage that has run since the last one.
    pub(crate) fn end(&mut self, stage: &'static str) {
        self.end_parts(stage, &[]);
    }

    /// Ends a stage of which the seconds of `parts` are known; the rest of it is `stage`.
    pub(crate) fn end_parts(&mut self, stage: &'static str, parts: &[(&'static str, f64)]) {
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        let known: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
        self.stages.push((stage, (seconds - known).max(0.0)));
        self.stages.extend(parts);
    }

    /// Seconds since the start.
    pub(crate) fn total(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Prints the stages and their sum.
    pub(crate) fn say(&self, output: &Output) {
        let stages: Vec<String> =
            self.stages.iter().map(|(stage, seconds)| format!("{stage} {seconds:.3}")).collect();
        output.say(format_args!("time      {:.3} s: {}", self.sum(), stages.join(", ")));
    }

    /// The stages as a JSON object.
    pub(crate) fn event(&self) -> Value {
        self.stages.iter().map(|&(stage, seconds)| (stage.to_owned(), Value::from(seconds))).collect()
    }

    fn sum(&self) -> f64 {
        self.stages.iter().map(|(_, seconds)| seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_add_up_to_the_time() {
        let mut laps = Laps::begin();
        std::thread::sleep(std::time::Duration::from_millis(20));
        laps.end_parts("other", &[("known", 0.004), ("more", 0.001)]);
        laps.end("rest");
        let (sum, total) = (laps.sum(), laps.total());
        assert!(sum >= 0.02 && sum <= total, "{sum} of {total}");
        let event = laps.event();
        assert_eq!(
            (event["known"].as_f64(), event.as_object().map(serde_json::Map::len)),
            (Some(0.004), Some(4))
        );
    }
}
