//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

/// Looks every few milliseconds until `condition` holds.
///
/// # Panics
/// When it does not hold within `deadline`, with `what`.
#[track_caller]
pub(crate) fn wait_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < deadline, "{what}: not within {deadline:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
