//! When records are due, at a given rate.

use std::time::{Duration, Instant};

/// An open loop: record `n` is due at `start + n / rate`, whatever has become
/// of the ones before. What is late is sent at once and its lateness counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    start: Instant,
    rate: u32,
}

impl Pace {
    /// `rate` records a second, at least 1, from `start` on.
    pub(crate) fn new(start: Instant, rate: u32) -> Self {
        Pace { start, rate: rate.max(1) }
    }

    /// When the record with this number, from 0, is due.
    pub(crate) fn due(&self, number: u64) -> Instant {
        let seconds = number / u64::from(self.rate);
        let rest = number % u64::from(self.rate);
        let nanos = rest * 1_000_000_000 / u64::from(self.rate);
        self.start + Duration::from_secs(seconds) + Duration::from_nanos(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_evenly_spaced() {
        let start = Instant::now();
        let pace = Pace::new(start, 4);
        assert_eq!(pace.due(0), start);
        assert_eq!(pace.due(1), start + Duration::from_millis(250));
        assert_eq!(pace.due(9), start + Duration::from_millis(2250));
    }
}
