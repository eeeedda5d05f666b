use std::sync::Arc;

use super::{Completion, Delivery, ProducerOptions};
use crate::Error;
use crate::client::Shared;

/// What is sent. Its fields are borrowed: they are encoded into the batch at
/// once.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    topic: &'a str,
    partition: Option<u32>,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: &'a [(&'a [u8], Option<&'a [u8]>)],
    timestamp_ms: Option<i64>,
}

impl<'a> Record<'a> {
    /// A record for this topic: no key, a null value, no headers, the present
    /// time.
    #[must_use]
    pub const fn new(topic: &'a str) -> Self {
        Self { topic, partition: None, key: None, value: None, headers: &[], timestamp_ms: None }
    }

    /// To this partition, whatever the key.
    #[must_use]
    pub const fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// With this key, which chooses the partition unless one is given.
    #[must_use]
    pub const fn key(mut self, key: &'a [u8]) -> Self {
        self.key = Some(key);
        self
    }

    /// With this value.
    #[must_use]
    pub const fn value(mut self, value: &'a [u8]) -> Self {
        self.value = Some(value);
        self
    }

    /// With these headers: key and value, null where None. Keys may repeat.
    #[must_use]
    pub const fn headers(mut self, headers: &'a [(&'a [u8], Option<&'a [u8]>)]) -> Self {
        self.headers = headers;
        self
    }

    /// With this timestamp, in milliseconds since the epoch.
    #[must_use]
    pub const fn timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }
}

/// Sends records. Shared by reference among tasks.
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    options: ProducerOptions,
}

impl Producer {
    pub(crate) fn start(shared: Arc<Shared>, options: ProducerOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(Self { shared, options })
    }

    /// Takes a record into its partition's batch; waits while the producer's
    /// memory is full. The result says what becomes of it, and may be dropped.
    /// Records of one partition are delivered in the order in which these calls
    /// took them.
    ///
    /// # Errors
    /// The record is not taken: `Broker` with `UnknownTopic` or
    /// `UnknownPartition`, `RecordTooLarge`, `Timeout` when there is no memory in
    /// time, `Closed`.
    ///
    /// Cancel-safe: a call that is dropped while it waits has taken nothing.
    pub async fn send(&self, record: Record<'_>) -> Result<Delivery, Error> {
        let _ = record;
        unimplemented!()
    }

    /// As [`Producer::send`], reporting through [`Producer::completed`] under
    /// this tag: for very many records.
    ///
    /// # Errors
    /// As [`Producer::send`]; `Invalid` unless `completions` is on.
    pub async fn send_with(&self, record: Record<'_>, tag: u64) -> Result<(), Error> {
        let _ = (record, tag);
        unimplemented!()
    }

    /// The next batch of tagged records of which it is known what became of them;
    /// in order for each partition. None when the producer is closed and all are
    /// reported. The memory of a batch is free only when it has been taken from
    /// here, so keep taking while sending.
    ///
    /// Cancel-safe: nothing is lost.
    pub async fn completed(&self) -> Option<Completion> {
        unimplemented!()
    }

    /// Sends what waits without lingering further, and waits until it is known of
    /// every record taken before this call what became of it.
    ///
    /// Cancel-safe.
    pub async fn flush(&self) {
        unimplemented!()
    }

    /// Takes no more records and flushes. [`Producer::completed`] ends after the
    /// last report. A producer that is dropped instead fails what it has not
    /// sent.
    pub async fn close(&self) {
        unimplemented!()
    }

    /// Number of partitions of a topic.
    ///
    /// # Errors
    /// `Broker` with `UnknownTopic`, and those of asking a broker.
    pub async fn partitions(&self, topic: &str) -> Result<u32, Error> {
        Ok(self.shared.topic(topic).await?.partitions())
    }

    /// Its options.
    #[must_use]
    pub const fn options(&self) -> &ProducerOptions {
        &self.options
    }
}
