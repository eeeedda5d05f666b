//! One partition's writing side: judges sequences, assigns offsets, makes
//! entries, and acknowledges what its chain says is committed. No I/O: the
//! shard's driver carries out what the chain asks for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quire_ledger::chain::{self, AppendError, AppendSequence, ChainWriter, Entry};
use quire_ledger::clock::Millis;
use quire_ledger::fault::{self, Fault};
use quire_ledger::record::Payload;
use quire_proto::batch::Batch;
use quire_proto::id::{EntryId, Offset};
use quire_proto::v1::ErrorReason;
use smallvec::SmallVec;

use crate::call::{Placed, Reply};
use crate::entry::{EntryBuilder, EntryHeader, Line};
use crate::failure::{self, Failure};
use crate::log::{PartitionLog, StoredEntry};
use crate::producer::table::{KEPT_FOR, PRODUCERS_MAX};
use crate::producer::{Append, Producers, Snapshot, Verdict};
use crate::shard::piece::{Acks, Piece};

/// What a partition's state is when it is taken over, or rebuilt.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    pub next_offset: Offset,
    /// Greatest batch timestamp below, `i64::MIN` when there is none.
    pub running_max_ms: i64,
    pub producers: Producers,
}

/// An acknowledgement that waits.
#[derive(Debug)]
struct Ack {
    reply: Reply,
    placed: Placed,
}

impl Ack {
    fn good(self) {
        self.reply.end(Ok(self.placed));
    }
}

/// An entry that is appended and not committed.
#[derive(Debug)]
struct Pending {
    header: EntryHeader,
    payload: Payload,
    /// Wait until it is committed.
    all: SmallVec<[Ack; 1]>,
    /// Wait until it is durable once.
    leader: SmallVec<[Ack; 1]>,
}

/// The entry that is being made.
#[derive(Debug, Default)]
struct Staged {
    builder: EntryBuilder,
    base_offset: Offset,
    all: SmallVec<[Ack; 1]>,
    leader: SmallVec<[Ack; 1]>,
    none: SmallVec<[Ack; 1]>,
}

/// What a clock says: monotonic, and of the wall.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub millis: Millis,
    pub wall_ms: i64,
}

/// The partition's own clock, by which its producers are silent: it goes on from
/// when the last of them wrote, as fast as the monotonic clock, and jumps nowhere
/// with the wall's. What passed before a take-over since that does not count.
#[derive(Clone, Copy, Debug)]
struct PartitionClock {
    /// Milliseconds at its first use; of an empty log, the wall's.
    from_ms: Option<i64>,
    since: Option<Millis>,
}

impl PartitionClock {
    fn after(producers: &Producers) -> Self {
        let from_ms = producers.committed().values().map(|producer| producer.appended_ms).max();
        Self { from_ms, since: None }
    }

    fn ms(&mut self, now: Now) -> i64 {
        let since = *self.since.get_or_insert(now.millis);
        let from_ms = *self.from_ms.get_or_insert(now.wall_ms);
        let passed = now.millis.0.saturating_sub(since.0);
        from_ms.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }
}

/// One partition's writer under one epoch.
#[derive(Debug)]
pub struct PartitionWriter {
    pub log: Arc<PartitionLog>,
    pub chain: ChainWriter,
    clock: PartitionClock,
    producers: Producers,
    producer_expiry: Duration,
    /// The next offset to assign.
    next_offset: Offset,
    /// Greatest batch timestamp of all that is appended.
    running_max_ms: i64,
    /// Of what is committed.
    committed_max_ms: i64,
    /// Of what is committed in the chain's last ledger.
    segment_max_ms: i64,
    pending: VecDeque<Pending>,
    /// The sequence of the first pending entry.
    first_pending: u64,
    /// Up to here acks=leader was answered.
    leader_acked: u64,
    staged: Staged,
}

impl PartitionWriter {
    /// A writer that goes on from what was restored.
    #[must_use]
    pub fn new(
        log: Arc<PartitionLog>,
        chain: ChainWriter,
        restored: Restored,
        producer_expiry: Duration,
    ) -> Self {
        let Restored { next_offset, running_max_ms, producers } = restored;
        Self {
            log,
            chain,
            clock: PartitionClock::after(&producers),
            producers,
            producer_expiry,
            next_offset,
            running_max_ms,
            committed_max_ms: running_max_ms,
            segment_max_ms: i64::MIN,
            pending: VecDeque::new(),
            first_pending: 1,
            leader_acked: 0,
            staged: Staged::default(),
        }
    }

    /// Takes a piece in: its batches get offsets and go into the entry that is
    /// being made, behind all others.
    pub fn stage(&mut self, now: Now, piece: Piece, actions: &mut Vec<chain::Action>) {
        let mut first = None;
        let mut last = Offset::default();
        let mut is_new = false;
        let Piece { batches, acks, reply, .. } = piece;
        for batch in batches {
            let verdict = if is_new { Verdict::New } else { self.judge(&batch, now) };
            let (base_offset, last_offset) = match verdict {
                Verdict::New => {
                    is_new = true;
                    self.place(now, batch, actions)
                }
                Verdict::Duplicate { base_offset, last_offset } => (base_offset, last_offset),
                Verdict::OutOfOrder { expected } => {
                    return reply.end(Err(self.out_of_order(&batch, expected)));
                }
                Verdict::Fenced { current } => return reply.end(Err(self.fenced(&batch, current))),
                Verdict::TooManyProducers => return reply.end(Err(self.too_many_producers())),
            };
            first.get_or_insert(base_offset);
            last = last_offset;
        }
        let Some(base_offset) = first else {
            return reply.end(Err(failure::invalid(format!("{}: there are no batches", self.log.name()))));
        };
        let ack = Ack { reply, placed: Placed { base_offset, last_offset: last } };
        if is_new { self.staged.add(ack, acks) } else { self.acknowledge_duplicate(ack) }
    }

    /// Appends the entry that is being made.
    pub fn flush(&mut self, now: Now, actions: &mut Vec<chain::Action>) {
        let Staged { builder, base_offset, .. } = &mut self.staged;
        let appended_ms = self.clock.ms(now);
        let Some(built) = builder.build(*base_offset, self.chain.epoch(), self.running_max_ms, appended_ms)
        else {
            return;
        };
        let entry = Entry {
            payload: built.payload.clone(),
            prefix_len: built.prefix_len,
            next_offset: built.header.next_offset(),
        };
        let all = std::mem::take(&mut self.staged.all);
        let leader = std::mem::take(&mut self.staged.leader);
        let none = std::mem::take(&mut self.staged.none);
        let before = actions.len();
        // Behind what is pending already, before its actions are looked at.
        self.pending.push_back(Pending { header: built.header, payload: built.payload, all, leader });
        match self.chain.append(now.millis, entry, actions) {
            Ok(_) => none.into_iter().for_each(Ack::good),
            Err(error) => {
                actions.truncate(before);
                self.not_appended(&error, none);
            }
        }
    }

    /// The chain committed entries (W1).
    pub fn committed(&mut self, through: AppendSequence, end: EntryId) -> Vec<Arc<StoredEntry>> {
        let count = (through.0 + 1).saturating_sub(self.first_pending);
        let mut entries = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        let mut acks: SmallVec<[Ack; 4]> = SmallVec::new();
        for _ in 0..count {
            let Some(pending) = self.pending.pop_front() else { break };
            self.commit_producers(&pending.header);
            self.committed_max_ms = self.committed_max_ms.max(pending.header.running_max_ms);
            let own_max = pending.header.lines.iter().map(|line| line.max_timestamp_ms).max();
            self.segment_max_ms = self.segment_max_ms.max(own_max.unwrap_or(i64::MIN));
            acks.extend(pending.all);
            acks.extend(pending.leader);
            entries.push(Arc::new(StoredEntry::appended(pending.header, pending.payload)));
        }
        self.first_pending += count;
        self.leader_acked = self.leader_acked.max(through.0);
        // Readers see it before its producer hears of it.
        self.log.committed(end, entries.iter().cloned());
        acks.into_iter().for_each(Ack::good);
        entries
    }

    /// All entries up to this one are durable on some bookie.
    pub fn first_durable(&mut self, through: AppendSequence) {
        let from = self.leader_acked.max(self.first_pending.saturating_sub(1)) + 1;
        for sequence in from..=through.0 {
            let at = usize::try_from(sequence - self.first_pending).unwrap_or(usize::MAX);
            let Some(pending) = self.pending.get_mut(at) else { break };
            std::mem::take(&mut pending.leader).into_iter().for_each(Ack::good);
        }
        self.leader_acked = self.leader_acked.max(through.0);
    }

    /// These entries will not be acknowledged. The writer takes no more: what
    /// follows them in a producer's numbering must not get in.
    pub fn failed(&mut self, from: AppendSequence, through: AppendSequence, determinate: bool) {
        for sequence in from.0..=through.0 {
            let Some(at) = sequence.checked_sub(self.first_pending).and_then(|at| usize::try_from(at).ok())
            else {
                continue;
            };
            let Some(pending) = self.pending.get_mut(at) else { break };
            let acks =
                std::mem::take(&mut pending.all).into_iter().chain(std::mem::take(&mut pending.leader));
            for ack in acks {
                let name = self.log.name();
                ack.reply.end(Err(if determinate {
                    failure::not_leader(&name)
                } else {
                    failure::unknown_outcome(&name, "another broker took the partition over")
                }));
            }
        }
    }

    /// The snapshot of exactly what is committed: the first entries of the next
    /// ledger. `None` when the chain's next offset is another: then this writer
    /// does not know the partition's state and must not go on.
    pub fn snapshot(&mut self, base_offset: Offset, now: Now) -> Option<Vec<Entry>> {
        let next_offset = self.pending.front().map_or(
            if self.staged.builder.is_empty() { self.next_offset } else { self.staged.base_offset },
            |pending| pending.header.base_offset,
        );
        if next_offset != base_offset {
            return None;
        }
        let now_ms = self.clock.ms(now);
        self.producers.expire(now_ms, self.producer_expiry);
        let producers = if fault::planted(Fault::SnapshotOfUncommitted) {
            self.producers.appended()
        } else {
            self.producers.committed().clone()
        };
        let snapshot = Snapshot { next_offset, running_max_ms: self.committed_max_ms, producers };
        let entries = snapshot
            .encode(now_ms)
            .into_iter()
            .map(|payload| Entry {
                prefix_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
                payload,
                next_offset,
            })
            .collect();
        Some(entries)
    }

    /// Greatest batch timestamp that is committed in the last ledger.
    #[must_use]
    pub const fn segment_max_ms(&self) -> i64 {
        self.segment_max_ms
    }

    /// A new ledger is the chain's last.
    pub const fn segment_began(&mut self) {
        self.segment_max_ms = i64::MIN;
    }

    /// Entries that are appended and not committed.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn judge(&mut self, batch: &Batch, now: Now) -> Verdict {
        match append_of(batch) {
            Some(append) => self.producers.judge(&append, self.clock.ms(now), self.producer_expiry),
            None => Verdict::New,
        }
    }

    /// Gives a new batch its offsets.
    fn place(&mut self, now: Now, batch: Batch, actions: &mut Vec<chain::Action>) -> (Offset, Offset) {
        if !self.staged.builder.fits(batch.bytes.len()) {
            self.flush(now, actions);
        }
        let header = &batch.header;
        let base_offset = self.next_offset;
        let last_offset = Offset(base_offset.0 + u64::from(header.last_offset_delta));
        if self.staged.builder.is_empty() {
            self.staged.base_offset = base_offset;
        }
        if let Some(append) = append_of(&batch) {
            self.producers.append(&append, base_offset, last_offset, self.clock.ms(now));
        }
        self.next_offset = last_offset.next();
        self.running_max_ms = self.running_max_ms.max(header.max_timestamp_ms);
        let line = Line {
            position: 0,
            last_offset,
            max_timestamp_ms: header.max_timestamp_ms,
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            base_sequence: header.base_sequence,
            record_count: header.record_count,
            attributes: header.attributes.0,
            control_type: -1,
        };
        self.staged.builder.push(batch, line);
        (base_offset, last_offset)
    }

    /// A duplicate is answered once its original is committed.
    fn acknowledge_duplicate(&mut self, ack: Ack) {
        if fault::planted(Fault::DuplicateAcknowledgedWhilePending) {
            return ack.good();
        }
        let last = ack.placed.last_offset;
        if !self.staged.builder.is_empty() && last >= self.staged.base_offset {
            return self.staged.all.push(ack);
        }
        let at = self.pending.partition_point(|pending| pending.header.last_offset < last);
        match self.pending.get_mut(at) {
            Some(pending) => pending.all.push(ack),
            None => ack.good(),
        }
    }

    fn commit_producers(&mut self, header: &EntryHeader) {
        for (line, base_offset) in header.lines.iter().zip(header.base_offsets()) {
            if line.producer_id >= 0 {
                let append = line_append(line);
                self.producers.commit(&append, base_offset, line.last_offset, header.appended_ms);
            }
        }
    }

    fn not_appended(&mut self, error: &AppendError, none: SmallVec<[Ack; 1]>) {
        let Some(pending) = self.pending.pop_back() else { return };
        let name = self.log.name();
        let failure = match error {
            AppendError::Closing => failure::shutting_down(),
            AppendError::Deposed => failure::not_leader(&name),
            AppendError::Malformed { .. } => failure::internal(format!("{name}: {error}")),
        };
        let acks = pending.all.into_iter().chain(pending.leader).chain(none);
        acks.for_each(|ack| ack.reply.end(Err(failure.clone())));
    }

    fn out_of_order(&self, batch: &Batch, expected: i32) -> Failure {
        let header = &batch.header;
        Failure::new(
            ErrorReason::OutOfOrderSequence,
            format!(
                "{}: producer {} sent sequence {} where {expected} follows",
                self.log.name(),
                header.producer_id,
                header.base_sequence
            ),
        )
    }

    fn too_many_producers(&self) -> Failure {
        let (name, minutes) = (self.log.name(), KEPT_FOR.as_secs() / 60);
        Failure::new(
            ErrorReason::Overloaded,
            format!(
                "{name}: {PRODUCERS_MAX} idempotent producers wrote to the partition in the last {minutes} \
                 minutes, and no more are told apart: keep producers open and use them again"
            ),
        )
    }

    fn fenced(&self, batch: &Batch, current: i16) -> Failure {
        let header = &batch.header;
        Failure::new(
            ErrorReason::InvalidProducerEpoch,
            format!(
                "{}: producer {} wrote with epoch {current}, epoch {} is over",
                self.log.name(),
                header.producer_id,
                header.producer_epoch
            ),
        )
    }
}

impl Staged {
    fn add(&mut self, ack: Ack, acks: Acks) {
        match acks {
            Acks::All => self.all.push(ack),
            Acks::Leader => self.leader.push(ack),
            Acks::None => self.none.push(ack),
        }
    }
}

/// What an idempotent producer says of its batch.
#[must_use]
pub fn append_of(batch: &Batch) -> Option<Append> {
    let header = &batch.header;
    header.is_idempotent().then_some(Append {
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        base_sequence: header.base_sequence,
        record_count: header.record_count,
    })
}

/// The same, from an entry's directory.
#[must_use]
pub const fn line_append(line: &Line) -> Append {
    Append {
        producer_id: line.producer_id,
        producer_epoch: line.producer_epoch,
        base_sequence: line.base_sequence,
        record_count: line.record_count,
    }
}

#[cfg(test)]
mod tests {
    use quire_ledger::ensemble::Ensemble;
    use quire_proto::batch::{Builder, NO_HEADERS, Producer};
    use quire_proto::codec::Compression;
    use quire_proto::id::{BookieId, Epoch, LedgerId, PartitionId};
    use tokio::sync::oneshot::Receiver;
    use uuid::Uuid;

    use super::*;
    use crate::call::{Call, Outcome};
    use crate::log::partition::Standing;
    use crate::testing::topic;

    const NOW: Now = Now { millis: Millis(5), wall_ms: 5 };
    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

    fn bookie() -> BookieId {
        BookieId(Uuid::from_u128(1))
    }

    /// A writer whose ledger is open and holds its snapshot, entry 0.
    struct Case {
        now: Now,
        writer: PartitionWriter,
        actions: Vec<chain::Action>,
    }

    impl Case {
        fn new() -> Self {
            let log = PartitionLog::new(PartitionId::default(), topic());
            log.leading(Epoch(1), Vec::new(), Offset(0));
            let chain = ChainWriter::new(Epoch(1), Offset(0), chain::Options::default());
            let restored = Restored { running_max_ms: i64::MIN, ..Restored::default() };
            let mut case = Self {
                now: NOW,
                writer: PartitionWriter::new(log, chain, restored, WEEK),
                actions: Vec::new(),
            };
            case.put(batch(-1, 0, 1), Acks::None);
            let ensemble = Ensemble::new(&[bookie()], 1).unwrap();
            let ledger = chain::NewLedger { ledger: LedgerId(1), ensemble, age_ms: 1_000_000 };
            case.step(chain::Event::LedgerReady(ledger));
            let snapshot = case.writer.snapshot(Offset(0), NOW).expect("nothing is committed yet");
            case.step(chain::Event::RollApplied { snapshot });
            case
        }

        fn step(&mut self, event: chain::Event) {
            self.writer.chain.step(NOW.millis, event, &mut self.actions);
            for action in std::mem::take(&mut self.actions) {
                match action {
                    chain::Action::Committed { through, end, .. } => {
                        self.writer.committed(through, end);
                    }
                    chain::Action::FirstDurable { through } => self.writer.first_durable(through),
                    chain::Action::Failed { from, through, determinate } => {
                        self.writer.failed(from, through, determinate);
                    }
                    _ => {}
                }
            }
        }

        /// The bookie has so many entries, the snapshot among them.
        fn durable(&mut self, entries: u64) {
            let durable = EntryId(entries);
            self.step(chain::Event::Durable { bookie: bookie(), ledger: LedgerId(1), durable });
        }

        fn stage(&mut self, batches: impl IntoIterator<Item = Batch>, acks: Acks) -> Receiver<Vec<Outcome>> {
            let (_call, mut replies, outcomes) = Call::new(1, None);
            let piece = Piece {
                partition: PartitionId::default(),
                batches: batches.into_iter().collect(),
                acks,
                deadline: Millis(u64::MAX),
                reply: replies.remove(0),
            };
            self.writer.stage(self.now, piece, &mut self.actions);
            outcomes
        }

        fn put(&mut self, batch: Batch, acks: Acks) -> Receiver<Vec<Outcome>> {
            let outcomes = self.stage([batch], acks);
            self.writer.flush(self.now, &mut self.actions);
            outcomes
        }
    }

    fn batch(id: i64, base_sequence: i32, records: usize) -> Batch {
        let mut builder = Builder::with_capacity(100);
        for _ in 0..records {
            builder.append(9, None, Some(b"v"), NO_HEADERS).unwrap();
        }
        let producer = if id < 0 { Producer::NONE } else { Producer { id, epoch: 0, base_sequence } };
        builder.seal(Compression::None, producer).unwrap()
    }

    #[track_caller]
    fn placed(outcomes: &mut Receiver<Vec<Outcome>>) -> (u64, u64) {
        let placed = outcomes.try_recv().expect("it is answered").remove(0).expect("it is written");
        (placed.base_offset.0, placed.last_offset.0)
    }

    #[track_caller]
    fn failed(outcomes: &mut Receiver<Vec<Outcome>>) -> ErrorReason {
        outcomes.try_recv().expect("it is answered").remove(0).expect_err("it is not written").reason
    }

    #[track_caller]
    fn waits(outcomes: &mut Receiver<Vec<Outcome>>) {
        assert!(outcomes.try_recv().is_err(), "it is answered");
    }

    #[test]
    fn a_producer_is_not_silent_because_the_wall_clock_jumps() {
        let year = 365 * 24 * 3600 * 1000;
        let mut case = Case::new();
        for wall_ms in [0, year, -year, 2 * year] {
            case.now = Now { wall_ms, ..NOW };
            let mut once = case.put(batch(7, 0, 3), Acks::All);
            case.durable(3);
            assert_eq!(placed(&mut once), (1, 3), "at {wall_ms}");
        }
        // Nor is it for the next leader, which knows it from the log.
        let producers = case.writer.producers.clone();
        let restored = Restored { next_offset: Offset(4), running_max_ms: 9, producers };
        let chain = ChainWriter::new(Epoch(2), Offset(4), chain::Options::default());
        let mut next = PartitionWriter::new(Arc::clone(&case.writer.log), chain, restored, WEEK);
        let first = batch(7, 0, 3);
        let known = Verdict::Duplicate { base_offset: Offset(1), last_offset: Offset(3) };
        for wall_ms in [year, -year, 3 * year] {
            assert_eq!(next.judge(&first, Now { millis: Millis(1), wall_ms }), known);
        }
        let week = u64::try_from(WEEK.as_millis()).unwrap();
        assert_eq!(next.judge(&first, Now { millis: Millis(week), wall_ms: 0 }), known);
        assert_eq!(next.judge(&first, Now { millis: Millis(week + 2), wall_ms: 0 }), Verdict::New);
    }

    #[test]
    fn a_duplicate_is_answered_when_its_original_is_committed_and_not_before() {
        let mut case = Case::new();
        let mut original = case.put(batch(7, 0, 3), Acks::All);
        let mut behind = case.put(batch(7, 3, 1), Acks::All);
        let mut duplicate = case.put(batch(7, 0, 3), Acks::All);
        waits(&mut original);
        waits(&mut duplicate);
        case.durable(3);
        assert_eq!(placed(&mut original), (1, 3));
        assert_eq!(placed(&mut duplicate), (1, 3));
        waits(&mut behind);
        case.durable(4);
        assert_eq!(placed(&mut behind), (4, 4));
        assert_eq!(placed(&mut case.put(batch(7, 0, 3), Acks::All)), (1, 3));
    }

    #[test]
    fn a_duplicate_of_what_is_being_put_together_waits_for_it() {
        let mut case = Case::new();
        let mut original = case.stage([batch(7, 0, 2)], Acks::All);
        let mut duplicate = case.stage([batch(7, 0, 2)], Acks::All);
        waits(&mut duplicate);
        case.writer.flush(NOW, &mut Vec::new());
        case.durable(3);
        assert_eq!((placed(&mut original), placed(&mut duplicate)), ((1, 2), (1, 2)));
    }

    #[test]
    fn what_waits_for_one_partition_becomes_one_entry() {
        let mut case = Case::new();
        let mut all: Vec<_> = (0..5).map(|n| case.stage([batch(7, n, 1)], Acks::All)).collect();
        case.writer.flush(NOW, &mut case.actions);
        assert_eq!(case.writer.pending(), 2, "the entry before it, and it");
        case.durable(3);
        let offsets: Vec<_> = all.iter_mut().map(placed).collect();
        assert_eq!(offsets, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
    }

    #[test]
    fn each_acks_level_has_its_moment() {
        let mut case = Case::new();
        assert_eq!(placed(&mut case.put(batch(-1, 0, 1), Acks::None)), (1, 1));
        let mut leader = case.put(batch(-1, 0, 1), Acks::Leader);
        waits(&mut leader);
        case.writer.first_durable(AppendSequence(3));
        assert_eq!(placed(&mut leader), (2, 2));
        assert_eq!(case.writer.log.known_bounds().latest, Offset(0), "readers see what is committed only");
    }

    #[test]
    fn after_a_failure_nothing_of_the_pipeline_gets_in() {
        let mut case = Case::new();
        case.durable(2);
        let mut sent = case.put(batch(7, 0, 1), Acks::All);
        let mut duplicate = case.put(batch(7, 0, 1), Acks::All);
        case.step(chain::Event::Deposed);
        assert_eq!(failed(&mut sent), ErrorReason::OutcomeUnknown);
        assert_eq!(failed(&mut duplicate), ErrorReason::OutcomeUnknown);
        let mut later = case.put(batch(7, 1, 1), Acks::All);
        assert_eq!(failed(&mut later), ErrorReason::NotLeader);
        case.writer.log.stopped(Standing::Deposed);
        assert!(case.writer.log.bounds().is_err());
    }

    #[test]
    fn a_part_out_of_order_is_refused_as_a_whole() {
        let mut case = Case::new();
        let mut gap = case.stage([batch(7, 0, 1)], Acks::All);
        let mut refused = case.stage([batch(7, 5, 1), batch(7, 6, 1)], Acks::All);
        assert_eq!(failed(&mut refused), ErrorReason::OutOfOrderSequence);
        let mut both = case.stage([batch(7, 0, 1), batch(7, 1, 2)], Acks::All);
        case.writer.flush(NOW, &mut case.actions);
        case.durable(3);
        assert_eq!(placed(&mut gap), (1, 1));
        assert_eq!(placed(&mut both), (1, 3), "a repeat and what follows it");
    }

    #[test]
    fn a_snapshot_holds_what_is_committed_and_nothing_else() {
        let mut case = Case::new();
        case.durable(2);
        drop(case.put(batch(7, 0, 2), Acks::All));
        case.durable(3);
        drop(case.put(batch(7, 2, 2), Acks::All));
        assert!(case.writer.snapshot(Offset(5), NOW).is_none(), "that is not committed");
        let entries = case.writer.snapshot(Offset(3), NOW).expect("the committed end");
        let bytes = entries[0].payload.to_bytes();
        let (header, len) = EntryHeader::decode(&bytes).unwrap();
        let snapshot = Snapshot::decode(header.base_offset, header.running_max_ms, &bytes[len..]).unwrap();
        assert_eq!((snapshot.next_offset, snapshot.running_max_ms), (Offset(3), 9));
        let batches = &snapshot.producers[&7].batches;
        assert_eq!(batches.len(), 1);
        assert_eq!((batches[0].base_offset, batches[0].last_sequence), (Offset(1), 1));
    }
}
