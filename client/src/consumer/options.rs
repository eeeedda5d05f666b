use std::time::Duration;

use quire_proto::id::Offset;

use crate::Error;
use crate::backoff::Backoff;

/// Where reading a partition begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the first record there is.
    Earliest,
    /// After the last record there is now.
    Latest,
    /// At this offset.
    Offset(Offset),
    /// At the first record with this timestamp or a later one, in milliseconds
    /// since the epoch; after the last when there is none.
    Time(i64),
}

/// Where reading ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// Never: records are delivered as they come.
    #[default]
    Forever,
    /// Where each partition ended when it was assigned.
    End,
}

/// How a consumer reads.
#[derive(Clone, Debug)]
pub struct ConsumerOptions {
    /// Where reading ends. `Forever`.
    pub until: Until,
    /// Bytes that are asked for ahead of being taken. 16 MiB; 64 KiB to 256 MiB.
    pub prefetch_bytes: u32,
    /// A batch may have at most this many bytes when it is decompressed. 64 MiB.
    pub decompressed_max: usize,
    /// How long a partition may be without a broker that serves it before
    /// [`Consumer::next_batch`](super::Consumer::next_batch) says so. 60 s.
    pub stall_timeout: Duration,
    /// Wait before a second try; doubles with each further one. 50 ms.
    pub retry_backoff: Duration,
    /// The longest wait between tries. 1 s.
    pub retry_backoff_max: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            until: Until::Forever,
            prefetch_bytes: 16 << 20,
            decompressed_max: 64 << 20,
            stall_timeout: Duration::from_secs(60),
            retry_backoff: Duration::from_millis(50),
            retry_backoff_max: Duration::from_secs(1),
        }
    }
}

impl ConsumerOptions {
    pub(crate) const fn backoff(&self) -> Backoff {
        Backoff { first: self.retry_backoff, most: self.retry_backoff_max }
    }

    /// Refuses what is out of range, by name.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(64 << 10..=256 << 20).contains(&self.prefetch_bytes) {
            return Err(Error::Invalid("prefetch_bytes is 64 KiB to 256 MiB".to_owned()));
        }
        Ok(())
    }
}
