//! Skips of tests that need a CUDA device. The unit tests of the library include this file too.

use std::io::{self, Write};
use std::sync::Once;

/// Prints, once per process, that tests skip the CUDA device.
///
/// # Panics
/// If `TAGORE_REQUIRE_CUDA` is 1.
#[track_caller]
pub fn no_cuda_device(reason: &str) {
    static PRINTED: Once = Once::new();
    let required = std::env::var_os("TAGORE_REQUIRE_CUDA").is_some_and(|value| value == "1");
    assert!(!required, "TAGORE_REQUIRE_CUDA=1, but there is no CUDA device: {reason}");
    // The test harness hides the output of `eprintln!` in passing tests.
    PRINTED.call_once(|| {
        let _ = writeln!(io::stderr(), "skipped: no CUDA device");
    });
}
