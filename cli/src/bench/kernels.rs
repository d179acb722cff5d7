//! Times and rates of kernels, as JSON and as text.

use serde_json::{Value, json};
use tagore::gpu::{KernelTime, Rates};

use crate::output::Output;

/// Times of kernels on a device of this name, as JSON.
pub(super) fn kernels(times: &[KernelTime], device_name: Option<&str>) -> Value {
    let rates = device_name.and_then(Rates::for_device);
    let kernels: serde_json::Map<String, Value> =
        times.iter().map(|time| (time.kernel.to_owned(), kernel(time, rates))).collect();
    kernels.into()
}

/// `count` per second, if it was counted.
fn rate(count: u64, seconds: f64) -> Option<f64> {
    (count > 0 && seconds > 0.0).then(|| count as f64 / seconds)
}

/// Shares of the device's peak rates that a kernel reaches: of bytes and of operations.
fn shares(time: &KernelTime, rates: Option<Rates>) -> (Option<f64>, Option<f64>) {
    let share = |rate: Option<f64>, peak: Option<f64>| rate.zip(peak).map(|(rate, peak)| rate / peak);
    let operations = rates.and_then(|rates| rates.operations(time.kernel));
    (
        share(rate(time.bytes, time.seconds), rates.map(|rates| rates.bytes)),
        share(rate(time.operations, time.seconds), operations),
    )
}

fn kernel(time: &KernelTime, rates: Option<Rates>) -> Value {
    let (bandwidth, operations) = shares(time, rates);
    json!({
        "launches": time.launches, "seconds": time.seconds, "bytes": time.bytes, "operations": time.operations,
        "bytes_per_second": rate(time.bytes, time.seconds),
        "operations_per_second": rate(time.operations, time.seconds),
        "bandwidth_share": bandwidth, "operations_share": operations,
    })
}

/// Prints time, rates and shares of the device's peaks of each kernel.
pub(super) fn say_kernels(times: &[KernelTime], device_name: Option<&str>, output: &Output) {
    let rates = device_name.and_then(Rates::for_device);
    for time in times {
        let (bandwidth, operations) = shares(time, rates);
        let column = |count: u64, unit: &str, share: Option<f64>| {
            let rate = rate(count, time.seconds)
                .map_or(String::new(), |rate| format!("{:.1} G{unit}/s", rate / 1e9));
            let share = share.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
            format!("{rate:>16} {share:>7}")
        };
        let line = format!(
            "        {:<20} {:>6} launches {:>10.3} ms {}{}",
            time.kernel,
            time.launches,
            time.seconds * 1e3,
            column(time.bytes, "B", bandwidth),
            column(time.operations, "op", operations)
        );
        output.result(line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_is_known() {
        let time = KernelTime {
            kernel: "descent_join_u8",
            launches: 1,
            seconds: 2.0,
            bytes: 4_800_000_000_000,
            operations: 0,
        };
        assert_eq!(shares(&time, Rates::for_device("NVIDIA H200")), (Some(0.5), None));
        assert_eq!(shares(&time, None), (None, None));
        assert_eq!(rate(10, 0.0), None);
    }
}
