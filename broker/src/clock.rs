//! The broker's clocks, read once and handed to the machines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quire_ledger::clock::Millis;
use tokio::time::Instant;

use crate::shard::writer::Now;

/// A monotonic clock that began when the broker started, and the wall's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock {
    /// Both clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        Now { millis: self.millis(), wall_ms: wall_ms() }
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn millis(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The moment that is meant by these milliseconds.
    #[must_use]
    pub fn instant(&self, at: Millis) -> Instant {
        self.started + Duration::from_millis(at.0)
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
