//! What can be set.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;

/// How a bookie runs. All sizes are bytes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its data directory, made when missing. One bookie a directory.
    pub data_dir: PathBuf,
    /// Where it stands, for placement; may be empty.
    pub rack: String,
    /// `host:port` where brokers reach it; empty for an in-process bookie.
    pub address: String,
    /// Size of a log file: 1 MiB to 4 GiB.
    pub file_bytes: u64,
    /// Read cache of log blocks.
    pub cache_bytes: u64,
    /// What was written last and is served from memory.
    pub tail_bytes: u64,
    /// Appends that wait for the log thread; beyond it a connection breaks. At
    /// least what a broker in the same process may hold.
    pub inbox_bytes: u64,
    /// Reads that may be under way on the disk at once.
    pub reads_max: usize,
    /// Part of the disk in use at which the bookie becomes read-only.
    pub high_water: f64,
    /// Part of the disk in use below which it becomes writable again.
    pub low_water: f64,
    /// On a large disk a part of it is more than anybody needs: with this much
    /// free the bookie is not read-only, with twice as much it is writable again.
    pub headroom_bytes: u64,
    /// Space kept for fences, deletions, recovery and reclaiming.
    pub reserve_bytes: u64,
    /// How often the durable position is published in the registry.
    pub publish_every: Duration,
    /// How fast the scrub reads, bytes a second; 0 turns it off.
    pub scrub_bytes_per_second: u64,
}

impl Options {
    /// The defaults, for this data directory.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            rack: String::new(),
            address: String::new(),
            file_bytes: 256 << 20,
            cache_bytes: 128 << 20,
            tail_bytes: 16 << 20,
            inbox_bytes: 256 << 20,
            reads_max: 16,
            high_water: 0.95,
            low_water: 0.90,
            headroom_bytes: 8 << 30,
            reserve_bytes: 512 << 20,
            publish_every: Duration::from_secs(2),
            scrub_bytes_per_second: 4 << 20,
        }
    }

    /// Whether each option is in its range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |text: &str| Err(Error::Option(text.to_owned()));
        if !(1 << 20..=1 << 32).contains(&self.file_bytes) || !self.file_bytes.is_multiple_of(64 << 10) {
            return wrong("file_bytes must be 1 MiB to 4 GiB, in whole 64 KiB");
        }
        if !(0.0 < self.low_water && self.low_water <= self.high_water && self.high_water <= 1.0) {
            return wrong(
                "low_water and high_water must be above nothing and at most all of the disk, the low one not above the high one",
            );
        }
        if self.reads_max == 0 || self.inbox_bytes == 0 {
            return wrong("reads_max and inbox_bytes must be above 0");
        }
        if self.publish_every.is_zero() {
            return wrong("publish_every must be above 0");
        }
        Ok(())
    }
}
