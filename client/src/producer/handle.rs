use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use quire_proto::error::Failure;
use quire_proto::v1::ErrorReason;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::accumulator::{Limits, Refused, Taken};
use super::driver::{Core, Driver};
use super::{Completion, Delivery, ProducerOptions};
use crate::Error;
use crate::client::Shared;

/// What is sent. Its fields are borrowed: they are encoded into the batch at
/// once.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: Option<u32>,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: &'a [(&'a [u8], Option<&'a [u8]>)],
    pub(super) timestamp_ms: Option<i64>,
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

/// Sends records. Shared by reference among tasks. A topic that is deleted and
/// created again under the same name is another one: for as long as the producer
/// lives, sending to it fails with `UnknownTopic`.
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    options: ProducerOptions,
    core: Arc<Core>,
    /// Stops the driver when the producer is dropped.
    _stop: DropGuard,
}

impl Producer {
    pub(crate) fn start(shared: Arc<Shared>, options: ProducerOptions) -> Result<Self, Error> {
        options.check()?;
        let ProducerOptions { batch_bytes, memory_bytes, linger, .. } = options;
        let core = Arc::new(Core::new(Limits { batch_bytes, memory_bytes, linger }));
        let stop = CancellationToken::new();
        let driver = Driver::new(Arc::clone(&shared), Arc::clone(&core), options.clone());
        tokio::spawn(driver.run(stop.clone()));
        Ok(Self { shared, options, core, _stop: stop.drop_guard() })
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
        let Taken { ack, place, .. } = self.take(&record, None).await?;
        Ok(Delivery::new(ack, place))
    }

    /// As [`Producer::send`], reporting through [`Producer::completed`] under
    /// this tag: for very many records.
    ///
    /// # Errors
    /// As [`Producer::send`]; `Invalid` unless `completions` is on.
    pub async fn send_with(&self, record: Record<'_>, tag: u64) -> Result<(), Error> {
        if !self.options.completions {
            return Err(Error::Invalid("sending with a tag needs the option completions".to_owned()));
        }
        self.take(&record, Some(tag)).await.map(drop)
    }

    /// The next batch of tagged records of which it is known what became of them;
    /// in order for each partition. None when the producer is closed and all are
    /// reported. The memory of a batch is free only when it has been taken from
    /// here, so keep taking while sending.
    ///
    /// Cancel-safe: nothing is lost.
    pub async fn completed(&self) -> Option<Completion> {
        self.when_settled(|core| {
            let mut accumulator = core.lock();
            match accumulator.take_completion() {
                Some(completion) => Some(Some(completion)),
                None => (accumulator.is_closed() && accumulator.is_idle()).then_some(None),
            }
        })
        .await
        .inspect(|_| self.core.settled.notify_waiters())
    }

    /// Sends what waits without lingering further, and waits until it is known of
    /// every record taken before this call what became of it.
    ///
    /// Cancel-safe.
    pub async fn flush(&self) {
        let through = self.core.lock().flush();
        self.core.wake.notify_one();
        self.when_settled(|core| core.lock().is_flushed(through).then_some(())).await;
    }

    /// Takes no more records and flushes. [`Producer::completed`] ends after the
    /// last report. A producer that is dropped instead fails what it has not
    /// sent.
    ///
    /// Cancel-safe; the producer is closed all the same.
    pub async fn close(&self) {
        self.core.lock().close();
        self.flush().await;
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

    /// Bytes of memory that records hold until it is known what became of them.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.core.lock().used()
    }

    async fn take(&self, record: &Record<'_>, tag: Option<u64>) -> Result<Taken, Error> {
        match self.try_take(record, tag) {
            Ok(taken) => Ok(taken),
            Err(Refused::For(error)) => Err(error),
            Err(refused) => self.take_later(record, tag, refused).await,
        }
    }

    fn try_take(&self, record: &Record<'_>, tag: Option<u64>) -> Result<Taken, Refused> {
        let taken = self.core.lock().append(Instant::now(), now_ms(), record, tag)?;
        if taken.wake {
            self.core.wake.notify_one();
        }
        Ok(taken)
    }

    /// The slow path: the topic is not known yet, or memory is full.
    async fn take_later(
        &self,
        record: &Record<'_>,
        tag: Option<u64>,
        mut refused: Refused,
    ) -> Result<Taken, Error> {
        let deadline = Instant::now() + self.options.max_block;
        loop {
            let tried = match refused {
                Refused::For(error) => return Err(error),
                Refused::UnknownTopic => {
                    self.learn(record.topic).await?;
                    self.try_take(record, tag)
                }
                Refused::NoMemory => self.take_when_fed(record, tag, deadline).await,
            };
            match tried {
                Ok(taken) => return Ok(taken),
                Err(again) => refused = again,
            }
        }
    }

    async fn take_when_fed(
        &self,
        record: &Record<'_>,
        tag: Option<u64>,
        deadline: Instant,
    ) -> Result<Taken, Refused> {
        let _starving = Starving::new(&self.core);
        let attempt = self.when_settled(|_| match self.try_take(record, tag) {
            Err(Refused::NoMemory) => None,
            tried => Some(tried),
        });
        timeout_at(deadline, attempt).await.unwrap_or_else(|_| {
            let what = "waiting for memory (memory_bytes) that undelivered records hold".to_owned();
            let after = self.options.max_block;
            Err(Error::Timeout { what, after, last: None, determinate: true }.into())
        })
    }

    async fn learn(&self, topic: &str) -> Result<(), Error> {
        // What is known may be old, and the producer holds to what it learns here.
        let view = self.shared.refresh_topic(topic).await?;
        if view.partitions() == 0 {
            return Err(unknown_topic(topic));
        }
        self.core.lock().learn(topic, &view.id, view.partitions(), view.max_message_bytes)
    }

    /// Waits until this returns something; looks whenever something has settled.
    async fn when_settled<T>(&self, mut look: impl FnMut(&Core) -> Option<T>) -> T {
        loop {
            let settled = self.core.settled.notified();
            let mut settled = std::pin::pin!(settled);
            // Listening before looking: nothing is missed in between.
            settled.as_mut().enable();
            if let Some(found) = look(&self.core) {
                return found;
            }
            settled.await;
        }
    }
}

/// A call that waits for memory: until it ends, nothing lingers.
struct Starving<'a>(&'a Core);

impl<'a> Starving<'a> {
    fn new(core: &'a Core) -> Self {
        core.lock().starve();
        core.wake.notify_one();
        Self(core)
    }
}

impl Drop for Starving<'_> {
    fn drop(&mut self) {
        self.0.lock().fed();
    }
}

fn unknown_topic(topic: &str) -> Error {
    let message = format!("topic {topic:?} does not exist: create it first");
    Failure::new(ErrorReason::UnknownTopic, message).into()
}

/// The wall clock, in milliseconds since the epoch.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
