//! One partition's log: where its committed entries are, and the newest of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_metadata::chain::ChainSequence;
use quire_metadata::operations::roll::Last;
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Offset, PartitionId};

use crate::failure::{self, Failure};
use crate::log::stored::{Batches, StoredEntry};
use crate::log::waiter::Waiters;
use crate::topic::Topic;

/// One link of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: ChainSequence,
    pub base_offset: Offset,
    pub ledger: LedgerId,
    /// The ledger's own epoch.
    pub epoch: Epoch,
    /// Where to read it, the best first.
    pub replicas: Arc<[BookieId]>,
    /// Entries that may be read: all of a sealed ledger, the committed ones of
    /// an open one (I5).
    pub end: EntryId,
    /// The offset after the last of them.
    pub next_offset: Offset,
    /// Greatest timestamp of its batches; `i64::MAX` while it is open.
    pub max_timestamp_ms: i64,
}

impl Segment {
    /// A link as metadata shows it. Of a ledger that is not sealed nothing may
    /// be read until its writer or its recovery says how much is committed.
    #[must_use]
    pub fn of(last: &Last) -> Self {
        let Last { sequence, segment, ledger } = last;
        let ledger = &ledger.value;
        let (end, next_offset, max_timestamp_ms) = match ledger.sealed() {
            Some(sealed) => (sealed.end, sealed.next_offset, sealed.max_timestamp_ms),
            None => (EntryId(0), segment.base_offset, i64::MAX),
        };
        let complete =
            |bookie: &&BookieId| ledger.sealed().is_none_or(|sealed| sealed.complete.contains(bookie));
        let (mut replicas, others): (Vec<BookieId>, Vec<BookieId>) =
            ledger.replicas.iter().partition(complete);
        replicas.extend(others);
        Self {
            sequence: *sequence,
            base_offset: segment.base_offset,
            ledger: segment.ledger,
            epoch: ledger.epoch,
            replicas: replicas.into(),
            end,
            next_offset,
            max_timestamp_ms,
        }
    }
}

/// How this broker stands to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Taking over: what is below the last ledger may be read (T2).
    Recovering,
    /// Leading.
    Leading,
    /// Another leads, or will.
    Deposed,
    /// The topic is being deleted.
    Deleted,
}

/// What a read found at an offset.
#[derive(Clone, Debug)]
pub enum Found {
    /// Batches were collected from memory; the offset to go on from.
    Tail(Offset),
    /// The offset is in this segment, and no longer in memory.
    Cold(Segment),
    /// The offset is the next to be committed.
    End,
}

/// First and next offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub earliest: Offset,
    pub latest: Offset,
}

/// One partition's log.
#[derive(Debug)]
pub struct PartitionLog {
    pub id: PartitionId,
    pub topic: Arc<Topic>,
    pub waiters: Waiters,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    standing: Standing,
    epoch: Epoch,
    segments: Vec<Segment>,
    /// Committed and below every doubt: what readers see ends here.
    latest: Offset,
    /// Consecutive entries, the last ends at `latest`.
    tail: VecDeque<Arc<StoredEntry>>,
    /// Why nothing can be written now.
    stuck: Option<String>,
}

impl PartitionLog {
    /// A partition that this broker is about to take over.
    #[must_use]
    pub fn new(id: PartitionId, topic: Arc<Topic>) -> Arc<Self> {
        let state = State {
            standing: Standing::Recovering,
            epoch: Epoch::default(),
            segments: Vec::new(),
            latest: Offset::default(),
            tail: VecDeque::new(),
            stuck: None,
        };
        Arc::new(Self { id, topic, waiters: Waiters::default(), state: Mutex::new(state) })
    }

    /// A take-over began (T2): the segments below the last are readable.
    pub fn recovering(&self, epoch: Epoch, segments: Vec<Segment>) {
        let mut state = self.lock();
        state.standing = Standing::Recovering;
        state.epoch = epoch;
        state.stuck = None;
        state.latest = segments.last().map_or(Offset::default(), |last| last.next_offset).max(state.latest);
        state.segments = segments;
        drop(state);
        self.waiters.wake();
    }

    /// The take-over is done (T7).
    pub fn leading(&self, epoch: Epoch, segments: Vec<Segment>, next_offset: Offset) {
        let mut state = self.lock();
        state.standing = Standing::Leading;
        state.epoch = epoch;
        state.stuck = None;
        state.segments = segments;
        if state.latest != next_offset {
            state.tail.clear();
        }
        state.latest = next_offset;
        drop(state);
        self.waiters.wake();
    }

    /// This broker leads no longer.
    pub fn stopped(&self, standing: Standing) {
        let mut state = self.lock();
        state.standing = standing;
        state.tail.clear();
        drop(state);
        self.waiters.wake();
    }

    /// The chain changed by a roll: the ledger `before` is sealed, or gone
    /// because it was empty, and another was opened.
    pub fn rolled(&self, before: LedgerId, sealed: Option<&Last>, opened: Option<&Last>) {
        let mut state = self.lock();
        state.segments.retain(|segment| segment.ledger != before);
        state.segments.extend(sealed.map(Segment::of));
        state.segments.extend(opened.map(Segment::of));
    }

    /// Entries were committed: `end` is now the length of the open ledger.
    pub fn committed(&self, end: EntryId, entries: impl IntoIterator<Item = Arc<StoredEntry>>) {
        let mut state = self.lock();
        for entry in entries {
            state.latest = entry.header.next_offset();
            state.tail.push_back(entry);
        }
        let latest = state.latest;
        if let Some(last) = state.segments.last_mut() {
            last.end = last.end.max(end);
            last.next_offset = latest;
        }
        drop(state);
        self.waiters.wake();
    }

    /// Gives this entry up if it is the oldest in memory. Tells whether it was. It
    /// is freed by the caller, outside the lock.
    pub fn drop_from_tail(&self, entry: &Arc<StoredEntry>) -> bool {
        let mut state = self.lock();
        let is_oldest = state.tail.front().is_some_and(|oldest| Arc::ptr_eq(oldest, entry));
        if is_oldest {
            state.tail.pop_front();
        }
        is_oldest
    }

    /// Nothing can be written for this reason; `None`: it can again.
    pub fn set_stuck(&self, why: Option<String>) {
        self.lock().stuck = why;
    }

    /// Why nothing can be written now, if so.
    #[must_use]
    pub fn stuck(&self) -> Option<String> {
        self.lock().stuck.clone()
    }

    /// How this broker stands to the partition, and its epoch.
    #[must_use]
    pub fn standing(&self) -> (Standing, Epoch) {
        let state = self.lock();
        (state.standing, state.epoch)
    }

    /// The chain as far as it may be read.
    #[must_use]
    pub fn segments(&self) -> Vec<Segment> {
        self.lock().segments.clone()
    }

    /// Copies of the ledger that is open; 0 when none is.
    #[must_use]
    pub fn open_replicas(&self) -> u32 {
        let state = self.lock();
        let open = state.segments.last().filter(|last| last.max_timestamp_ms == i64::MAX);
        open.map_or(0, |open| u32::try_from(open.replicas.len()).unwrap_or(u32::MAX))
    }

    /// First and next offset, if this broker may tell (T2, T8).
    ///
    /// # Errors
    /// `NOT_READY`, `NOT_LEADER` or `UNKNOWN_TOPIC`.
    pub fn bounds(&self) -> Result<Bounds, Failure> {
        let state = self.lock();
        self.check(&state)?;
        Ok(state.bounds())
    }

    /// The first offset. While taking over it is known as soon as something is
    /// that can be read (T2).
    ///
    /// # Errors
    /// As [`PartitionLog::bounds`].
    pub fn earliest(&self) -> Result<Offset, Failure> {
        let state = self.lock();
        let earliest = state.bounds().earliest;
        if state.standing != Standing::Recovering || state.readable() <= earliest {
            self.check(&state)?;
        }
        Ok(earliest)
    }

    /// As [`PartitionLog::bounds`], but while taking over it tells what is
    /// certain: at least so much is there.
    #[must_use]
    pub fn known_bounds(&self) -> Bounds {
        self.lock().bounds()
    }

    /// What is at this offset. Batches that are in memory are collected.
    ///
    /// # Errors
    /// `OFFSET_OUT_OF_RANGE`, and as [`PartitionLog::bounds`] where the offset
    /// is above what is certain.
    pub fn find(&self, offset: Offset, max_bytes: usize, out: &mut Batches) -> Result<Found, Failure> {
        let state = self.lock();
        match state.standing {
            Standing::Deposed | Standing::Deleted => self.check(&state)?,
            Standing::Recovering if offset >= state.readable() => self.check(&state)?,
            Standing::Recovering | Standing::Leading => {}
        }
        let Bounds { earliest, latest } = state.bounds();
        if offset < earliest || offset > latest {
            return Err(failure::offset_out_of_range(&self.name(), offset, earliest, latest));
        }
        if offset == latest {
            return Ok(Found::End);
        }
        if let Some(next) = state.collect_tail(offset, max_bytes, out) {
            return Ok(Found::Tail(next));
        }
        let after = state.segments.partition_point(|segment| segment.base_offset <= offset);
        match after.checked_sub(1).and_then(|at| state.segments.get(at)) {
            Some(segment) => Ok(Found::Cold(segment.clone())),
            None => Err(failure::offset_out_of_range(&self.name(), offset, earliest, latest)),
        }
    }

    /// `topic/partition`, for people.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.topic.name, self.id.index)
    }

    fn check(&self, state: &State) -> Result<(), Failure> {
        match state.standing {
            Standing::Leading => Ok(()),
            Standing::Recovering => Err(failure::not_ready(&self.name(), state.stuck.as_deref())),
            Standing::Deposed => Err(failure::not_leader(&self.name())),
            Standing::Deleted => Err(failure::unknown_topic(self.topic.name.as_str())),
        }
    }

    /// Whether this broker leads the partition.
    ///
    /// # Errors
    /// As [`PartitionLog::bounds`].
    pub fn check_led(&self) -> Result<(), Failure> {
        self.check(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bounds(&self) -> Bounds {
        let earliest = self.segments.first().map_or(self.latest, |first| first.base_offset);
        Bounds { earliest, latest: self.latest }
    }

    /// The offset after what the segments hold for certain: while a partition is
    /// taken over again, `latest` may be above it (T2).
    fn readable(&self) -> Offset {
        self.segments.last().map(|last| last.next_offset).unwrap_or_default()
    }

    fn collect_tail(&self, offset: Offset, max_bytes: usize, out: &mut Batches) -> Option<Offset> {
        let first = self.tail.front()?;
        if offset < first.header.base_offset {
            return None;
        }
        let at = self.tail.partition_point(|entry| entry.header.next_offset() <= offset);
        let mut next = offset;
        for entry in self.tail.range(at..) {
            if out.bytes >= max_bytes && out.bytes > 0 {
                out.is_full = true;
                break;
            }
            next = entry.collect(next, max_bytes, out);
            // A batch that did not fit ends it: a smaller one behind it must
            // not take its place.
            if next < entry.header.next_offset() {
                break;
            }
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use quire_proto::batch::{Builder, NO_HEADERS, Producer};
    use quire_proto::codec::Compression;
    use quire_proto::v1::ErrorReason;

    use super::*;
    use crate::bookies::fake::segment;
    use crate::entry::EntryBuilder;
    use crate::testing::line;
    use crate::testing::topic;

    /// An entry of one-record batches with values of these lengths.
    fn entry(base_offset: u64, values: &[usize]) -> Arc<StoredEntry> {
        let mut entry = EntryBuilder::default();
        for (offset, &len) in (base_offset..).zip(values) {
            let mut builder = Builder::with_capacity(len + 100);
            builder.append(5, None, Some(&vec![1; len]), NO_HEADERS).unwrap();
            entry.push(builder.seal(Compression::None, Producer::NONE).unwrap(), line(offset));
        }
        let built = entry.build(Offset(base_offset), Epoch(1), 0, 0).unwrap();
        Arc::new(StoredEntry::appended(built.header, built.payload))
    }

    #[test]
    fn a_batch_that_does_not_fit_is_not_jumped_over() {
        let tail = VecDeque::from([entry(0, &[10, 1000]), entry(2, &[10])]);
        let state = State {
            standing: Standing::Leading,
            epoch: Epoch(1),
            segments: Vec::new(),
            latest: Offset(3),
            tail,
            stuck: None,
        };
        for (max_bytes, next) in [(1, 1), (500, 1), (5000, 3)] {
            let mut out = Batches::default();
            let went_on = state.collect_tail(Offset(0), max_bytes, &mut out);
            assert_eq!(went_on, Some(Offset(next)), "{max_bytes} bytes");
        }
    }

    #[test]
    fn what_a_retaken_partition_is_not_certain_of_is_not_ready() {
        let log = PartitionLog::new(PartitionId::default(), topic());
        let sealed = segment(1, 0, 3, &[1]);
        let led = |end| vec![sealed.clone(), segment(2, 3, end, &[1])];
        log.leading(Epoch(1), led(2), Offset(5));
        log.set_stuck(Some("all disks are full".to_owned()));
        log.stopped(Standing::Deposed);
        // Nothing is known of the last ledger until it is recovered.
        log.recovering(Epoch(2), led(0));
        assert_eq!(log.stuck(), None, "what it was is of another leadership");
        assert_eq!(log.known_bounds().latest, Offset(5), "it never goes back");
        let find = |offset| log.find(Offset(offset), 1, &mut Batches::default());
        assert!(matches!(find(2), Ok(Found::Cold(segment)) if segment == sealed));
        for offset in 3..7 {
            assert_eq!(find(offset).unwrap_err().reason, ErrorReason::NotReady, "{offset}");
        }
    }
}
