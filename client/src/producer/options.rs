use std::ops::RangeInclusive;
use std::time::Duration;

use quire_proto::batch::UNRESOLVED_MAX;
use quire_proto::codec::Compression;
use quire_proto::v1;

use crate::Error;
use crate::backoff::Backoff;

/// What `batch_bytes` may be.
pub const BATCH_BYTES: RangeInclusive<usize> = 256..=8 << 20;

/// What `linger` may be at most.
pub const LINGER_MAX: Duration = Duration::from_secs(60);

/// When a record counts as delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Acks {
    /// Durable on the topic's ack quorum of bookies.
    #[default]
    All,
    /// Durable on one bookie. May be lost; turns idempotence off.
    Leader,
    /// Accepted by the broker. May be lost; turns idempotence off.
    None,
}

impl From<Acks> for v1::Acks {
    fn from(acks: Acks) -> Self {
        match acks {
            Acks::All => Self::All,
            Acks::Leader => Self::Leader,
            Acks::None => Self::None,
        }
    }
}

/// How a producer batches, sends and tries again.
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    /// When a record counts as delivered. `All`.
    pub acks: Acks,
    /// Recognise repetitions, so that trying again neither doubles nor reorders.
    /// On; of no effect unless `acks` is `All`.
    pub idempotent: bool,
    /// How batches are compressed. `None`.
    pub compression: Compression,
    /// A batch that is not full waits this long for further records. 5 ms; at
    /// most 1 minute.
    pub linger: Duration,
    /// A batch is full at this many bytes before compression. 256 KiB; 256 bytes
    /// to 8 MiB, and never more than the topic's `max.message.bytes`.
    pub batch_bytes: usize,
    /// Bytes of records that wait or are under way; beyond them, sending waits.
    /// 64 MiB; at least two batches.
    pub memory_bytes: usize,
    /// How long sending waits for memory. 60 s.
    pub max_block: Duration,
    /// A record that is not delivered within this time has failed. 2 min; at
    /// least `linger`.
    pub delivery_timeout: Duration,
    /// Wait before a second try; doubles with each further one. 100 ms.
    pub retry_backoff: Duration,
    /// The longest wait between tries. 1 s.
    pub retry_backoff_max: Duration,
    /// Batches of a partition that may be under way at once. 16; 1 to 16. Without
    /// idempotence it is always 1, so that trying again does not reorder.
    pub max_in_flight: usize,
    /// Whether records that are sent with a tag are reported through
    /// [`Producer::completed`](super::Producer::completed). Off.
    pub completions: bool,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            acks: Acks::All,
            idempotent: true,
            compression: Compression::None,
            linger: Duration::from_millis(5),
            batch_bytes: 256 << 10,
            memory_bytes: 64 << 20,
            max_block: Duration::from_secs(60),
            delivery_timeout: Duration::from_secs(120),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            max_in_flight: UNRESOLVED_MAX,
            completions: false,
        }
    }
}

impl ProducerOptions {
    /// Whether repetitions are recognised: `idempotent`, as far as `acks` lets
    /// it.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        self.idempotent && self.acks == Acks::All
    }

    /// Batches of a partition under way at once.
    pub(crate) fn window(&self) -> usize {
        if self.is_idempotent() { self.max_in_flight } else { 1 }
    }

    pub(crate) const fn backoff(&self) -> Backoff {
        Backoff { first: self.retry_backoff, most: self.retry_backoff_max }
    }

    /// Refuses what is out of range, by name.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let rules = [
            (self.linger <= LINGER_MAX, "linger is at most 1 minute"),
            (BATCH_BYTES.contains(&self.batch_bytes), "batch_bytes is 256 bytes to 8 MiB"),
            (self.memory_bytes / 2 >= self.batch_bytes, "memory_bytes is at least twice batch_bytes"),
            (self.delivery_timeout > self.linger, "delivery_timeout is longer than linger"),
            ((1..=UNRESOLVED_MAX).contains(&self.max_in_flight), "max_in_flight is 1 to 16"),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::Invalid(rule.to_owned())),
            None => Ok(()),
        }
    }
}
