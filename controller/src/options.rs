//! What can be set.

use std::time::Duration;

use quire_metadata::key::Keys;
use quire_metadata::process::Process;

/// The controller's settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster.
    pub keys: Keys,
    /// This run of this process.
    pub process: Process,
    /// How long the election outlives its last keep-alive, at least a second.
    pub lease: Duration,
    /// How long a broker process must have been seen gone before its id blocks
    /// are released.
    pub process_grace: Duration,
    /// Pieces of work of one kind that are under way at once.
    pub jobs_at_once: usize,
    /// A bookie that has not answered in this time is asked again later.
    pub request_timeout: Duration,
    /// The first pause after a failure; each further one doubles it.
    pub retry_min: Duration,
    /// The longest pause after a failure.
    pub retry_max: Duration,
}

/// A setting is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the controller's {0}")]
pub struct InvalidOptions(&'static str);

impl Options {
    /// The defaults.
    #[must_use]
    pub const fn new(keys: Keys, process: Process) -> Self {
        Self {
            keys,
            process,
            lease: Duration::from_secs(5),
            process_grace: Duration::from_secs(30),
            jobs_at_once: 16,
            request_timeout: Duration::from_secs(10),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(30),
        }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// When a setting is out of its range.
    pub fn check(&self) -> Result<(), InvalidOptions> {
        if self.lease < Duration::from_secs(1) {
            return Err(InvalidOptions("lease is below one second"));
        }
        if self.jobs_at_once == 0 {
            return Err(InvalidOptions("jobs_at_once is 0"));
        }
        if self.request_timeout.is_zero() {
            return Err(InvalidOptions("request_timeout is 0"));
        }
        if self.retry_min.is_zero() || self.retry_min > self.retry_max {
            return Err(InvalidOptions("retry_min is 0 or above retry_max"));
        }
        Ok(())
    }
}
