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
    /// How long the election outlives its last keep-alive.
    pub lease: Duration,
    /// How long a broker process must have been gone before its id blocks are
    /// released.
    pub process_grace: Duration,
    /// Bookie requests that are under way at once.
    pub requests_at_once: usize,
    /// A bookie that has not answered in this time is tried again later.
    pub request_timeout: Duration,
    /// Pauses between attempts: the first, and the longest.
    pub retry: (Duration, Duration),
}

impl Options {
    /// The defaults.
    #[must_use]
    pub const fn new(keys: Keys, process: Process) -> Self {
        Self {
            keys,
            process,
            lease: Duration::from_secs(5),
            process_grace: Duration::from_secs(30),
            requests_at_once: 16,
            request_timeout: Duration::from_secs(10),
            retry: (Duration::from_millis(100), Duration::from_secs(30)),
        }
    }
}
