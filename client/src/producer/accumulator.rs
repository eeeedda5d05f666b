use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quire_proto::batch::Builder;
use quire_proto::error::Failure;
use quire_proto::murmur2;
use quire_proto::v1::ErrorReason;
use rand::RngExt;
use tokio::time::Instant;

use super::Record;
use super::delivery::{Ack, Completion, Outcome, Tag};
use crate::Error;
use crate::metadata::recreated;

/// A new partition's first batch is given this much room; later ones as much as
/// the one before had.
const FIRST_CAPACITY: usize = 4 << 10;

/// Of a topic that states no limit.
const MESSAGE_BYTES_DEFAULT: usize = 1 << 20;

/// Whatever a topic states, a batch must fit a gRPC message.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// The batches that records are encoded into, and the account of the memory
/// that they hold until it is known what became of them. Without I/O.
#[derive(Debug)]
pub(crate) struct Accumulator {
    limits: Limits,
    topics: HashMap<Arc<str>, TopicSlots>,
    slots: Vec<Slot>,
    used: usize,
    next_serial: u64,
    unresolved: BTreeSet<u64>,
    /// Batches up to this serial do not linger.
    flush_through: u64,
    /// Calls that wait for memory: while there are any, nothing lingers.
    starving: usize,
    closed: bool,
    completions: VecDeque<(Completion, usize)>,
    /// When the driver looks again by itself.
    pub(crate) driver_wakes_at: Option<Instant>,
}

/// What an accumulator is bound by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) batch_bytes: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) linger: Duration,
}

#[derive(Debug)]
struct TopicSlots {
    /// As it was learnt first.
    id: Bytes,
    /// By partition; none of a topic that was forgotten.
    slots: Vec<usize>,
    /// Where records without a key go until that batch is full or sent.
    sticky: usize,
    max_message_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    topic: Arc<str>,
    topic_id: Bytes,
    partition: u32,
    open: Option<Pending>,
    full: VecDeque<Pending>,
    last_size: usize,
}

/// A batch that is not sealed yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) builder: Builder,
    pub(crate) opened_at: Instant,
    pub(crate) ticket: Ticket,
}

/// What is owed for a batch once it is known what became of it.
#[derive(Debug)]
pub(crate) struct Ticket {
    serial: u64,
    slot: usize,
    ack: Arc<Ack>,
    tags: Vec<Tag>,
    /// Bytes of memory on its account.
    pub(crate) charge: usize,
}

/// Where a record was put.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) ack: Arc<Ack>,
    pub(crate) place: u32,
    /// Whether the driver has something to do before it wakes by itself.
    pub(crate) wake: bool,
}

/// Why a record was not taken.
#[derive(Debug)]
pub(crate) enum Refused {
    /// [`Accumulator::learn`] the topic first.
    UnknownTopic,
    /// Until a batch is resolved.
    NoMemory,
    For(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::For(error)
    }
}

impl Accumulator {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            topics: HashMap::new(),
            slots: Vec::new(),
            used: 0,
            next_serial: 1,
            unresolved: BTreeSet::new(),
            flush_through: 0,
            starving: 0,
            closed: false,
            completions: VecDeque::new(),
            driver_wakes_at: None,
        }
    }

    /// Takes what a broker says of a topic. Partitions are only ever added.
    ///
    /// # Errors
    /// When it is another topic than the one that was learnt first under this
    /// name.
    pub(crate) fn learn(
        &mut self,
        topic: &str,
        id: &Bytes,
        partitions: u32,
        max_message_bytes: usize,
    ) -> Result<(), Error> {
        let max_message_bytes = match max_message_bytes {
            0 => MESSAGE_BYTES_DEFAULT,
            stated => stated.min(MESSAGE_BYTES_MAX),
        };
        let name = match self.topics.get_key_value(topic) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(topic),
        };
        let known = self.topics.entry(Arc::clone(&name)).or_insert_with(|| TopicSlots {
            id: id.clone(),
            slots: Vec::new(),
            sticky: 0,
            max_message_bytes,
        });
        if known.id != *id {
            return Err(recreated(topic));
        }
        known.max_message_bytes = max_message_bytes;
        for partition in known.slots.len()..partitions as usize {
            known.slots.push(self.slots.len());
            self.slots.push(Slot {
                topic: Arc::clone(&name),
                topic_id: known.id.clone(),
                partition: u32::try_from(partition).unwrap_or(u32::MAX),
                open: None,
                full: VecDeque::new(),
                last_size: FIRST_CAPACITY,
            });
        }
        Ok(())
    }

    /// Encodes a record into its partition's batch. `timestamp_ms` is for a
    /// record that has none.
    pub(crate) fn append(
        &mut self,
        now: Instant,
        timestamp_ms: i64,
        record: &Record<'_>,
        tag: Option<u64>,
    ) -> Result<Taken, Refused> {
        if self.closed {
            return Err(Error::Closed.into());
        }
        let timestamp_ms = record.timestamp_ms.unwrap_or(timestamp_ms);
        let (mut at, max_message_bytes) = self.route(record)?;
        let batch_bytes = self.limits.batch_bytes.min(max_message_bytes);
        let mut closed = self.close_for(at, timestamp_ms, record, batch_bytes);
        if closed && record.key.is_none() && record.partition.is_none() {
            (at, _) = self.route(record)?;
            closed |= self.close_for(at, timestamp_ms, record, batch_bytes);
        }
        let size = self.make_room(at, timestamp_ms, record, max_message_bytes)?;
        let slot = &mut self.slots[at];
        let opened = slot.open.is_none();
        let pending = slot.open.get_or_insert_with(|| {
            let serial = self.next_serial;
            self.next_serial += 1;
            self.unresolved.insert(serial);
            let ack = Ack::new(slot.partition);
            let ticket = Ticket { serial, slot: at, ack, tags: Vec::new(), charge: 0 };
            let capacity = slot.last_size.clamp(size, batch_bytes.max(size));
            Pending { builder: Builder::with_capacity(capacity), opened_at: now, ticket }
        });
        let headers = record.headers.iter().copied();
        let place = pending
            .builder
            .append(timestamp_ms, record.key, record.value, headers)
            .map_err(|_| too_large(size, max_message_bytes))?;
        if let Some(tag) = tag {
            pending.ticket.tags.push(Tag { place, tag });
        }
        let ack = Arc::clone(&pending.ticket.ack);
        let full = pending.builder.size() >= batch_bytes;
        let holds = pending.builder.capacity() + pending.ticket.tags.capacity() * size_of::<Tag>();
        self.used += holds.saturating_sub(pending.ticket.charge);
        pending.ticket.charge = holds;
        let due = now + self.limits.linger;
        let wake = closed || full || (opened && self.driver_wakes_at.is_none_or(|at| due < at));
        Ok(Taken { ack, place, wake })
    }

    /// The slot of a record's partition, and the limit of its topic.
    fn route(&mut self, record: &Record<'_>) -> Result<(usize, usize), Refused> {
        let topic = self.topics.get_mut(record.topic).filter(|topic| !topic.slots.is_empty());
        let topic = topic.ok_or(Refused::UnknownTopic)?;
        let count = u32::try_from(topic.slots.len()).unwrap_or(u32::MAX);
        let partition = match (record.partition, record.key) {
            (Some(partition), _) => partition as usize,
            (None, Some(key)) => murmur2::partition_for_key(key, count) as usize,
            (None, None) => {
                let settled = topic.slots.get(topic.sticky).is_some_and(|&at| self.slots[at].open.is_some());
                if !settled && count > 0 {
                    // The better of two, or what one partition cannot take in
                    // time ends up with all the memory.
                    let candidates: [usize; 2] =
                        std::array::from_fn(|_| rand::rng().random_range(0..count) as usize);
                    let waiting = |&at: &usize| topic.slots.get(at).map(|&slot| self.slots[slot].full.len());
                    topic.sticky = candidates.into_iter().min_by_key(waiting).unwrap_or_default();
                }
                topic.sticky
            }
        };
        let at =
            topic.slots.get(partition).ok_or_else(|| unknown_partition(record.topic, partition, count))?;
        Ok((*at, topic.max_message_bytes))
    }

    /// Closes the open batch when it holds something and the record does not fit
    /// it; whether it did.
    fn close_for(&mut self, at: usize, timestamp_ms: i64, record: &Record<'_>, batch_bytes: usize) -> bool {
        let slot = &mut self.slots[at];
        let full = |open: &mut Pending| size_with(&open.builder, timestamp_ms, record) > batch_bytes;
        let Some(open) = slot.open.take_if(full) else { return false };
        slot.last_size = open.builder.size();
        slot.full.push_back(open);
        true
    }

    /// Bytes of the open batch, or of a new one, with the record, when there is
    /// memory for that.
    fn make_room(
        &self,
        at: usize,
        timestamp_ms: i64,
        record: &Record<'_>,
        max_message_bytes: usize,
    ) -> Result<usize, Refused> {
        let slot = &self.slots[at];
        let (size, needed) = if let Some(open) = &slot.open {
            let (size, capacity) = (size_with(&open.builder, timestamp_ms, record), open.builder.capacity());
            (size, if size <= capacity { 0 } else { size.max(2 * capacity) - capacity })
        } else {
            let size = size_with(&Builder::with_capacity(0), timestamp_ms, record);
            let batch_bytes = self.limits.batch_bytes.min(max_message_bytes);
            (size, slot.last_size.clamp(size, batch_bytes.max(size)))
        };
        if size > max_message_bytes {
            return Err(too_large(size, max_message_bytes).into());
        }
        self.admits(needed).then_some(size).ok_or(Refused::NoMemory)
    }

    /// Whether so many more bytes may be held. One record always may when nothing
    /// else is held, however large.
    const fn admits(&self, bytes: usize) -> bool {
        self.used == 0 || self.used + bytes <= self.limits.memory_bytes
    }

    /// Number of slots: one for each partition of each topic learnt.
    pub(crate) const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Topic, with its id, and partition of a slot.
    pub(crate) fn place(&self, at: usize) -> (Arc<str>, Bytes, u32) {
        let Slot { topic, topic_id, partition, .. } = &self.slots[at];
        (Arc::clone(topic), topic_id.clone(), *partition)
    }

    /// When the slot's next batch is to be sent: None when it has none.
    pub(crate) fn ready_at(&self, at: usize, now: Instant) -> Option<Instant> {
        let slot = &self.slots[at];
        if !slot.full.is_empty() {
            return Some(now);
        }
        let open = slot.open.as_ref()?;
        let hurry = self.closed || self.starving > 0 || open.ticket.serial <= self.flush_through;
        let full = open.builder.size() >= self.limits.batch_bytes;
        Some(if hurry || full { now } else { open.opened_at + self.limits.linger })
    }

    /// The slot's next batch, when it is to be sent by now.
    pub(crate) fn take_ready(&mut self, at: usize, now: Instant) -> Option<Pending> {
        if self.ready_at(at, now)? > now {
            return None;
        }
        let slot = &mut self.slots[at];
        slot.full.pop_front().or_else(|| {
            let open = slot.open.take()?;
            slot.last_size = open.builder.size();
            Some(open)
        })
    }

    /// When the slot's oldest batch was opened.
    pub(crate) fn oldest(&self, at: usize) -> Option<Instant> {
        let slot = &self.slots[at];
        slot.full.front().or(slot.open.as_ref()).map(|pending| pending.opened_at)
    }

    /// The slot's oldest batch, ready or not.
    pub(crate) fn take_oldest(&mut self, at: usize) -> Option<Pending> {
        let slot = &mut self.slots[at];
        slot.full.pop_front().or_else(|| slot.open.take())
    }

    /// A batch holds this many bytes now that it is sealed.
    pub(crate) const fn recharge(&mut self, ticket: &mut Ticket, bytes: usize) {
        self.used = self.used.saturating_sub(ticket.charge) + bytes;
        ticket.charge = bytes;
    }

    /// It is known what became of a batch. Its memory is free now or, when its
    /// records are reported, once the report is taken.
    pub(crate) fn resolve(&mut self, ticket: Ticket, outcome: Outcome) {
        let Ticket { serial, slot, ack, tags, charge } = ticket;
        self.unresolved.remove(&serial);
        if tags.is_empty() {
            self.used = self.used.saturating_sub(charge);
        } else {
            let (topic, _, partition) = self.place(slot);
            self.completions
                .push_back((Completion { topic, partition, outcome: outcome.clone(), tags }, charge));
        }
        ack.resolve(outcome);
    }

    /// The next report.
    pub(crate) fn take_completion(&mut self) -> Option<Completion> {
        let (completion, charge) = self.completions.pop_front()?;
        self.used = self.used.saturating_sub(charge);
        Some(completion)
    }

    /// Begins a flush: nothing taken so far lingers. Returns what to wait for.
    pub(crate) const fn flush(&mut self) -> u64 {
        self.flush_through = self.next_serial - 1;
        self.flush_through
    }

    /// Whether it is known of everything up to a flush what became of it.
    pub(crate) fn is_flushed(&self, through: u64) -> bool {
        self.unresolved.first().is_none_or(|&first| first > through)
    }

    /// Forgets a topic that is gone, but for its id: its name is asked for anew.
    pub(crate) fn forget(&mut self, topic: &str) {
        if let Some(known) = self.topics.get_mut(topic) {
            known.slots.clear();
        }
    }

    /// Takes nothing more.
    pub(crate) const fn close(&mut self) {
        self.closed = true;
    }

    /// Whether nothing more is taken.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether nothing is unresolved.
    pub(crate) fn is_idle(&self) -> bool {
        self.unresolved.is_empty()
    }

    /// A call begins to wait for memory.
    pub(crate) const fn starve(&mut self) {
        self.starving += 1;
    }

    /// A call waits no longer.
    pub(crate) const fn fed(&mut self) {
        self.starving = self.starving.saturating_sub(1);
    }

    /// Bytes held.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }
}

/// Bytes of a batch with one more record.
fn size_with(builder: &Builder, timestamp_ms: i64, record: &Record<'_>) -> usize {
    builder.size_with(timestamp_ms, record.key, record.value, record.headers.iter().copied())
}

const fn too_large(size: usize, limit: usize) -> Error {
    Error::RecordTooLarge { size, limit }
}

fn unknown_partition(topic: &str, partition: usize, count: u32) -> Error {
    let message = format!("topic {topic:?} has no partition {partition}: it has {count}, counted from 0");
    Failure::new(ErrorReason::UnknownPartition, message).into()
}

#[cfg(test)]
mod tests;
