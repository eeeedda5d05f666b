//! Fetch: whole batches of many partitions, waiting for them if asked to.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use quire_proto::id::Offset;
use quire_proto::v1::{self, ErrorReason};
use tokio::time::Instant;

use crate::failure::{self, Failure};
use crate::log::PartitionLog;
use crate::log::partition::Bounds;
use crate::log::reader::Turn;
use crate::log::stored::Batches;
use crate::log::waiter::Waiter;
use crate::service::budget::Room;
use crate::service::connection::Peer;
use crate::service::receiving::Held;
use crate::service::{Door, check_count, check_names, plain};

/// An answer has at most this many bytes of batches, but for its first batch.
pub const BYTES_MAX: usize = 32 << 20;

/// What a result takes beside its batches.
const RESULT_BYTES: usize = 128;

/// What a partition that is asked for takes until it is answered, beside the name
/// of its topic.
pub const ASKED_BYTES: usize = 128;

/// A request that has found something reads no further partitions after this long:
/// what is read from bookies may take long for each.
const READ_TIME: Duration = Duration::from_millis(500);

/// Bytes of one partition where the request does not say.
pub const PARTITION_BYTES: usize = 1 << 20;

/// What partitions take until they are answered.
#[must_use]
pub fn asked_bytes(partitions: &[v1::FetchPartition]) -> usize {
    partitions.iter().map(|asked| ASKED_BYTES + asked.topic.len()).sum()
}

/// A partition that is read, and from where.
#[derive(Debug)]
pub struct Position {
    pub topic: String,
    pub partition: u32,
    pub offset: Offset,
    pub max_bytes: usize,
    pub log: Result<Arc<PartitionLog>, Failure>,
}

/// Bytes that a partition may still take: of all batches, and of the first.
#[derive(Clone, Copy, Debug)]
struct Left {
    share: usize,
    first_max: usize,
}

impl Position {
    /// Whether there is something to read, as far as that is known.
    fn has_more(&self) -> bool {
        self.log.as_ref().is_ok_and(|log| log.known_bounds().latest > self.offset)
    }
}

/// What was found, and the memory that it takes.
#[derive(Debug)]
pub struct Found {
    pub fetched: Vec<Fetched>,
    pub room: Room,
    /// Whether it had to be waited for: it is not given back to wait for more.
    pub has_waited: bool,
}

/// What was found for one position.
#[derive(Debug)]
pub struct Fetched {
    pub topic: String,
    pub partition: u32,
    /// Where the partition begins and ends, as far as that is known.
    pub bounds: Option<Bounds>,
    pub outcome: Result<Slice, Failure>,
}

/// Batches of a partition.
#[derive(Debug, Default)]
pub struct Slice {
    pub from: Offset,
    pub next: Offset,
    pub batches: Batches,
    /// Bytes of the batches, also once they are messages.
    pub bytes: usize,
    /// Whether there may be more of them, for which there was no room.
    pub is_full: bool,
    /// Instead of batches, when they were asked for.
    pub messages: Vec<v1::FetchedMessage>,
}

impl Slice {
    /// The batches as plain messages.
    ///
    /// # Errors
    /// When the first batch cannot be read.
    fn into_messages(self, left: &mut plain::Left) -> Result<Self, Failure> {
        let (messages, next) = plain::messages(self.batches.into_bytes(), self.from, self.next, left)?;
        let is_full = self.is_full || next < self.next;
        Ok(Self { next, batches: Batches::default(), messages, is_full, ..self })
    }
}

/// Partitions that a waiter is registered with, until this is dropped.
#[derive(Debug)]
pub struct Watching {
    waiter: Arc<Waiter>,
    logs: Vec<Arc<PartitionLog>>,
}

impl Watching {
    /// Registers a new waiter with the partitions of these positions.
    #[must_use]
    pub fn start(positions: &[Position]) -> Self {
        let waiter = Arc::new(Waiter::default());
        let logs: Vec<_> =
            positions.iter().filter_map(|position| position.log.as_ref().ok().cloned()).collect();
        logs.iter().for_each(|log| log.waiters.add(&waiter));
        Self { waiter, logs }
    }

    /// Waits until one of them has changed. Cancel-safe.
    pub async fn changed(&self) {
        self.waiter.changed().await;
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.logs.iter().for_each(|log| log.waiters.remove(&self.waiter));
    }
}

impl Found {
    /// Bytes of its batches.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.fetched.iter().map(Fetched::bytes).sum()
    }
}

impl Fetched {
    /// Bytes of its batches.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.outcome.as_ref().map_or(0, |slice| slice.bytes)
    }

    /// What it takes in an answer.
    #[must_use]
    pub fn size(&self) -> usize {
        let outcome = match &self.outcome {
            Ok(slice) => slice.batches.bytes + plain::size(&slice.messages),
            Err(failure) => failure.message.len(),
        };
        RESULT_BYTES + self.topic.len() + outcome
    }

    /// Whether waiting adds nothing to it.
    fn is_final(&self) -> bool {
        match &self.outcome {
            Ok(slice) => slice.is_full,
            Err(failure) => failure.reason != ErrorReason::NotReady,
        }
    }

    /// With plain messages instead of batches.
    #[must_use]
    pub fn into_plain(self, left: &mut plain::Left) -> Self {
        Self { outcome: self.outcome.and_then(|slice| slice.into_messages(left)), ..self }
    }

    /// As the client gets it, but for the batches.
    #[must_use]
    pub fn split(self) -> (v1::FetchResult, Batches) {
        let Self { topic, partition, bounds, outcome } = self;
        let result = v1::FetchResult {
            topic,
            partition,
            earliest_offset: bounds.map_or(0, |bounds| bounds.earliest.0),
            latest_offset: bounds.map_or(0, |bounds| bounds.latest.0),
            ..v1::FetchResult::default()
        };
        match outcome {
            Ok(Slice { next, batches, messages, .. }) => {
                (v1::FetchResult { next_offset: next.0, messages, ..result }, batches)
            }
            Err(failure) => (v1::FetchResult { error: Some(failure.into()), ..result }, Batches::default()),
        }
    }

    /// As the client gets it.
    #[must_use]
    pub fn into_result(self) -> v1::FetchResult {
        let (result, batches) = self.split();
        v1::FetchResult { batches: batches.into_bytes(), ..result }
    }
}

impl Door {
    /// Fetches, waiting for `min_bytes` at most as long as the request says.
    /// `arrived`: the memory of the request, until there is some for its positions.
    ///
    /// # Errors
    /// When the request as a whole is wrong; failures of partitions are in
    /// their results.
    pub async fn fetch(
        &self,
        request: v1::FetchRequest,
        peer: &Peer,
        arrived: Held,
    ) -> Result<Found, Failure> {
        self.check_open()?;
        let wait = Duration::from_millis(u64::from(request.max_wait_ms));
        if wait > self.context.options.fetch_wait_max {
            let most = self.context.options.fetch_wait_max.as_millis();
            return Err(failure::invalid(format!("max_wait_ms is above {most}")));
        }
        check_count(request.partitions.len())?;
        let _asked = self.fetches.room(asked_bytes(&request.partitions), Some(peer), None).await?;
        let positions = self.positions(request.partitions)?;
        drop(arrived);
        let max_bytes = match request.max_bytes {
            0 => self.context.options.fetch_bytes,
            bytes => (bytes as usize).min(BYTES_MAX),
        };
        // There is room for about another beside it.
        let most = self.answers.part() / 2;
        let max_bytes = max_bytes.min(most);
        let min_bytes = (request.min_bytes as usize).clamp(1, max_bytes);
        metrics::counter!("quire_broker_fetch_requests_total").increment(1);
        let plain = request.plain.then_some(plain::BYTES_MAX.min(most));
        let mut found = self.fetch_until(&positions, min_bytes..=max_bytes, plain, wait, peer).await?;
        if found.bytes() == 0 {
            let bytes = found.fetched.iter().map(Fetched::size).sum();
            found.room = self.replies.room(bytes, Some(peer), None).await?;
        }
        metrics::counter!("quire_broker_fetch_bytes_total").increment(found.bytes() as u64);
        Ok(found)
    }

    async fn fetch_until(
        &self,
        positions: &[Position],
        bytes: RangeInclusive<usize>,
        plain: Option<usize>,
        wait: Duration,
        peer: &Peer,
    ) -> Result<Found, Failure> {
        let deadline = Instant::now() + wait;
        let (min_bytes, max_bytes) = bytes.into_inner();
        let enough = |found: &Found| {
            found.bytes() >= min_bytes || found.has_waited || found.fetched.iter().any(Fetched::is_final)
        };
        let found = self.collect(positions, max_bytes, plain, peer).await?;
        if wait.is_zero() || enough(&found) {
            return Ok(found);
        }
        drop(found);
        // From here on no change is missed: look again, then wait.
        let watching = Watching::start(positions);
        loop {
            let found = self.collect(positions, max_bytes, plain, peer).await?;
            if enough(&found) || self.context.stop.is_cancelled() {
                return Ok(found);
            }
            drop(found);
            tokio::select! {
                () = watching.changed() => {}
                () = tokio::time::sleep_until(deadline) => {
                    return self.collect(positions, max_bytes, plain, peer).await;
                }
                () = self.context.stop.cancelled() => {}
            }
        }
    }

    /// The partitions that a request names.
    ///
    /// # Errors
    /// When there are too many of them.
    pub fn positions(&self, partitions: Vec<v1::FetchPartition>) -> Result<Vec<Position>, Failure> {
        check_names(partitions.iter().map(|asked| &*asked.topic))?;
        let position = |asked: v1::FetchPartition| Position {
            log: self.partition(&asked.topic, &asked.topic_id, asked.partition).map(|(_, log)| log),
            topic: asked.topic,
            partition: asked.partition,
            offset: Offset(asked.offset),
            max_bytes: match asked.max_bytes {
                0 => PARTITION_BYTES,
                bytes => (bytes as usize).min(BYTES_MAX),
            },
        };
        Ok(partitions.into_iter().map(position).collect())
    }

    /// What is there now, in the order of the positions: batches of at most
    /// `max_bytes`, or as messages of at most `plain`, but for the first of them.
    /// Without any it takes no memory.
    ///
    /// # Errors
    /// `OVERLOADED`
    pub async fn collect(
        &self,
        positions: &[Position],
        mut max_bytes: usize,
        plain: Option<usize>,
        peer: &Peer,
    ) -> Result<Found, Failure> {
        // Whichever partition is looked at first differs from time to time, so that
        // one that is full does not keep the others out.
        let first = rand::random_range(0..positions.len().max(1));
        let mut room: Option<Room> = None;
        let mut has_waited = false;
        loop {
            let mut turn = Turn::default();
            let mut fetched = self.read(positions, first, max_bytes, &mut turn).await;
            let bytes: usize = fetched.iter().map(Fetched::bytes).sum();
            if let Some(plain) = plain {
                fetched = plain::convert(fetched, plain);
            }
            let size = if bytes > 0 { fetched.iter().map(Fetched::size).sum() } else { 0 };
            let room_now = room.take().filter(|room| size > 0 && room.covers(size));
            if let Some(room) = room_now.or_else(|| self.answers.room_now(size, Some(peer))) {
                return Ok(Found { fetched, room, has_waited });
            }
            // What waits for memory holds none. It is read again, no more of it.
            drop((fetched, turn));
            room = Some(self.answers.room(size, Some(peer), None).await?);
            (max_bytes, has_waited) = (bytes, true);
        }
    }

    async fn read<'a>(
        &'a self,
        positions: &[Position],
        first: usize,
        max_bytes: usize,
        turn: &mut Turn<'a>,
    ) -> Vec<Fetched> {
        let mut found: Vec<Option<Fetched>> = Vec::with_capacity(positions.len());
        found.resize_with(positions.len(), || None);
        let began = Instant::now();
        let mut left = max_bytes;
        let mut bytes = 0;
        // All go on at one pace: what was written together is read together.
        let mut sharing = positions.iter().filter(|position| position.has_more()).count();
        for step in 0..positions.len() {
            let at = (first + step) % positions.len();
            let first_max = match bytes {
                0 => usize::MAX,
                _ if began.elapsed() > READ_TIME => 0,
                _ => left,
            };
            let allowed = Left { share: left / sharing.max(1), first_max };
            let fetched = self.collect_one(&positions[at], allowed, turn).await;
            sharing = sharing.saturating_sub(usize::from(positions[at].has_more()));
            left = left.saturating_sub(fetched.bytes());
            bytes += fetched.bytes();
            found[at] = Some(fetched);
        }
        found.into_iter().flatten().collect()
    }

    async fn collect_one<'a>(&'a self, position: &Position, left: Left, turn: &mut Turn<'a>) -> Fetched {
        let outcome = match &position.log {
            Ok(log) => self.slice(log, position, left, turn).await,
            Err(failure) => Err(failure.clone()),
        };
        let bounds = position.log.as_ref().ok().map(|log| log.known_bounds());
        Fetched { topic: position.topic.clone(), partition: position.partition, bounds, outcome }
    }

    async fn slice<'a>(
        &'a self,
        log: &PartitionLog,
        position: &Position,
        left: Left,
        turn: &mut Turn<'a>,
    ) -> Result<Slice, Failure> {
        self.check_fresh()?;
        if left.first_max == 0 {
            let is_full = position.has_more();
            return Ok(Slice { from: position.offset, next: position.offset, is_full, ..Slice::default() });
        }
        let mut batches = Batches::new(left.first_max);
        let most = left.share.min(position.max_bytes);
        let next = self.reader.read(log, position.offset, most, &mut batches, turn).await?;
        let Batches { bytes, is_full, .. } = batches;
        Ok(Slice { from: position.offset, next, batches, bytes, is_full, messages: Vec::new() })
    }
}
