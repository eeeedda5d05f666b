//! The writer of one ledger: pipelines entries to every replica, counts what is
//! durable, and decides what is committed (W1, W2).
//!
//! A machine without I/O. It never seals and never opens: [`crate::chain`] does.

use std::collections::VecDeque;

use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Offset};
use smallvec::SmallVec;

use crate::clock::Millis;
use crate::ensemble::Ensemble;
use crate::fault::{self, Fault};
use crate::message::{Append, Refusal, Response};
use crate::record::{Header, Kind, Payload, Record};

/// A replica whose stream was rewound this often without making anything
/// durable is given up.
const REWINDS_MAX: u32 = 8;

/// A bookie that could not tell its state is asked again after this long.
const ASK_AGAIN_MS: u64 = 200;

/// What a broker appends at once, before it is an entry of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The bytes, opaque here; at most [`crate::record::PAYLOAD_MAX`].
    pub payload: Payload,
    /// How many of them a prefix read returns.
    pub prefix_len: u32,
    /// The partition's next offset once this entry is in.
    pub next_offset: Offset,
}

/// How long payload is held for replicas slower than the quorum (W2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// W: payload bytes that A replicas have and another one lacks.
    pub bytes: u64,
    /// T: milliseconds since A replicas had it.
    pub ms: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { bytes: 32 << 20, ms: 2_000 }
    }
}

/// What happens to a ledger's writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The bookie has this many entries durably. May come late and twice.
    Durable { bookie: BookieId, durable: EntryId },
    /// An append of this attempt was not the next one (B3).
    Gap { bookie: BookieId, attempt: u32, accepted: EntryId },
    /// An append of this attempt was refused (B3).
    Refused { bookie: BookieId, attempt: u32, reason: Refusal },
    /// What was sent and is not durable may be lost; nothing can be sent.
    LinkBroken { bookie: BookieId },
    /// There is a link again.
    LinkUp { bookie: BookieId },
    /// The answer to [`Action::AskState`].
    State { bookie: BookieId, response: Response },
    /// The driver holds this bookie for sick: nothing more is sent to it.
    GiveUp { bookie: BookieId },
    /// Time has passed: [`LedgerWriter::deadline`] says when this is of use.
    Tick,
}

/// What a ledger's writer wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this append. When there is no link, answer with
    /// [`Event::LinkBroken`].
    Send { bookie: BookieId, append: Append },
    /// Send [`crate::message::Request::State`]. When there is no link, answer
    /// with [`Event::LinkBroken`].
    AskState { bookie: BookieId, ledger: LedgerId },
    /// This replica gets nothing more of this ledger.
    GaveUp { bookie: BookieId, ledger: LedgerId, cause: Cause },
}

/// Why a replica is given up for the rest of its ledger's life (W2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// It lacks entries that left the window.
    #[error("it fell behind the window of entries that are held for slow replicas")]
    Late,
    /// The driver holds the bookie for sick.
    #[error("its bookie is held for sick")]
    Sick,
    /// It refused an append.
    #[error("it refused an append: {0}")]
    Refused(Refusal),
    /// It has less than it had acknowledged: it lost data.
    #[error("it had acknowledged {acknowledged} entries and now has {answered}")]
    Shrunk {
        /// What it had acknowledged.
        acknowledged: EntryId,
        /// What it answers now.
        answered: EntryId,
    },
    /// It has more than was ever appended.
    #[error("it claims {answered} entries of {appended}")]
    Phantom {
        /// What was appended.
        appended: EntryId,
        /// What it answers.
        answered: EntryId,
    },
    /// It lost a tail of its log (B6).
    #[error("its bookie lost a tail of its log")]
    Uncertain,
    /// It does not know the ledger, which was created on it (B2).
    #[error("it does not hold the ledger that was created on it")]
    Absent,
    /// It says that the ledger is deleted.
    #[error("it says that the ledger is deleted")]
    Deleted,
    /// Its stream was rewound again and again without progress.
    #[error("its stream was rewound {REWINDS_MAX} times without progress")]
    Stuck,
}

impl Cause {
    /// Whether somebody has to look at this: the bookie lost or mixed up data.
    #[must_use]
    pub const fn is_alarm(&self) -> bool {
        match self {
            Self::Late | Self::Sick | Self::Stuck | Self::Refused(Refusal::ReadOnly) => false,
            Self::Refused(_)
            | Self::Shrunk { .. }
            | Self::Phantom { .. }
            | Self::Uncertain
            | Self::Absent
            | Self::Deleted => true,
        }
    }

    /// Whether what this replica acknowledged is no longer believed.
    const fn is_distrust(&self) -> bool {
        self.is_alarm()
    }
}

/// How a ledger ends: what `SEALED` says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The ledger to seal.
    pub ledger: LedgerId,
    /// Number of its entries.
    pub end: EntryId,
    /// The offset that its first entry began at.
    pub base_offset: Offset,
    /// The offset after its last entry. Equal to `base_offset`: the ledger holds
    /// no record, and its segment is removed from the chain (W3).
    pub next_offset: Offset,
    /// Payload bytes below the end.
    pub bytes: u64,
    /// The replicas that have every entry below the end durably.
    pub complete: Vec<BookieId>,
}

/// What the writer knows of one replica.
#[derive(Debug)]
struct Replica {
    bookie: BookieId,
    health: Health,
    attempt: u32,
    /// Entries that it has durably. Only grows, as long as it is believed.
    durable: EntryId,
    /// Rewinds since `durable` last grew.
    rewinds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// Everything that was appended has been sent.
    Up,
    /// There is no link.
    Down,
    /// It was asked for its length; the stream goes on from the answer.
    Asked,
    /// It could not tell its length, and is asked again at this moment.
    AskAt(Millis),
    /// Nothing more is sent; what it has counts.
    GivenUp,
    /// Nothing more is sent, and nothing it says counts.
    Distrusted,
}

impl Health {
    const fn is_ended(self) -> bool {
        matches!(self, Self::GivenUp | Self::Distrusted)
    }
}

/// An entry whose payload may have to be sent again.
#[derive(Debug)]
struct Held {
    record: Record,
    next_offset: Offset,
    /// When it was committed; of meaning only below `committed`.
    committed_at: Millis,
}

/// The writer of one ledger.
#[derive(Debug)]
pub struct LedgerWriter {
    ledger: LedgerId,
    epoch: Epoch,
    ensemble: Ensemble,
    window: Window,
    replicas: SmallVec<[Replica; 4]>,
    /// The entries from `held_from` on.
    held: VecDeque<Held>,
    held_from: EntryId,
    held_bytes: u64,
    /// Payload bytes that are held for slow replicas alone.
    slow_bytes: u64,
    committed: EntryId,
    committed_bytes: u64,
    first_durable: EntryId,
    bytes: u64,
    base_offset: Offset,
    next_offset: Offset,
    frozen: bool,
    fenced: Option<Epoch>,
}

impl LedgerWriter {
    /// A writer for a ledger that metadata names OPEN under this epoch and that
    /// holds nothing yet (W5). All links are taken to be up.
    #[must_use]
    pub fn new(
        ledger: LedgerId,
        epoch: Epoch,
        ensemble: Ensemble,
        base_offset: Offset,
        window: Window,
    ) -> Self {
        let replicas = ensemble
            .replicas()
            .iter()
            .map(|&bookie| Replica {
                bookie,
                health: Health::Up,
                attempt: 0,
                durable: EntryId(0),
                rewinds: 0,
            })
            .collect();
        Self {
            ledger,
            epoch,
            ensemble,
            window,
            replicas,
            held: VecDeque::new(),
            held_from: EntryId(0),
            held_bytes: 0,
            slow_bytes: 0,
            committed: EntryId(0),
            committed_bytes: 0,
            first_durable: EntryId(0),
            bytes: 0,
            base_offset,
            next_offset: base_offset,
            frozen: false,
            fenced: None,
        }
    }

    /// The ledger.
    #[must_use]
    pub const fn ledger(&self) -> LedgerId {
        self.ledger
    }

    /// Number of entries appended.
    #[must_use]
    pub fn appended(&self) -> EntryId {
        EntryId(self.held_from.0 + self.held.len() as u64)
    }

    /// Number of entries committed (W1). Stands still once frozen (W4).
    #[must_use]
    pub const fn committed(&self) -> EntryId {
        self.committed
    }

    /// Number of entries that at least one replica has durably.
    #[must_use]
    pub const fn first_durable(&self) -> EntryId {
        self.first_durable
    }

    /// Payload bytes appended.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Payload bytes in memory.
    #[must_use]
    pub const fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Whether at least A replicas take appends.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let up = self.replicas.iter().filter(|replica| replica.health == Health::Up);
        up.count() >= self.ensemble.ack_quorum()
    }

    /// Whether every replica that takes appends has all that was appended, and
    /// all of it is committed.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let appended = self.appended();
        let mut up = self.replicas.iter().filter(|replica| replica.health == Health::Up);
        self.committed == appended && up.all(|replica| replica.durable == appended)
    }

    /// The higher epoch that fenced this ledger, once one is known.
    #[must_use]
    pub const fn fenced(&self) -> Option<Epoch> {
        self.fenced
    }

    /// When [`Event::Tick`] is of use next.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        let asks = self.replicas.iter().filter_map(|replica| match replica.health {
            Health::AskAt(moment) => Some(moment),
            _ => None,
        });
        let window = (self.held_from < self.committed && !self.frozen)
            .then(|| self.held.front().map(|held| held.committed_at + self.window.ms))
            .flatten();
        asks.chain(window).min()
    }

    /// Appends an entry and sends it to every replica that is up.
    pub fn append(&mut self, entry: Entry, actions: &mut Vec<Action>) {
        let record = self.record(&entry);
        self.bytes += u64::from(record.header.payload_len);
        self.held_bytes += u64::from(record.header.payload_len);
        for replica in self.replicas.iter().filter(|replica| replica.health == Health::Up) {
            let append = Append { attempt: replica.attempt, record: record.clone() };
            actions.push(Action::Send { bookie: replica.bookie, append });
        }
        self.held.push_back(Held { record, next_offset: entry.next_offset, committed_at: Millis(0) });
    }

    /// Takes an event in.
    pub fn step(&mut self, now: Millis, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Durable { bookie, durable } => self.durable(bookie, durable, actions),
            Event::Gap { bookie, attempt, accepted } => self.gap(bookie, attempt, accepted, actions),
            Event::Refused { bookie, attempt, reason } => self.refused(bookie, attempt, reason, actions),
            Event::LinkBroken { bookie } => self.link_broken(bookie),
            Event::LinkUp { bookie } => self.link_up(bookie, actions),
            Event::State { bookie, response } => self.state(now, bookie, response, actions),
            Event::GiveUp { bookie } => {
                if let Some(place) = self.place(bookie) {
                    self.give_up(place, Cause::Sick, actions);
                }
            }
            Event::Tick => self.ask_again(now, actions),
        }
        self.commit(now);
        self.release(now, actions);
    }

    /// Stops acks for good: a roll that seals the ledger is issued (W4).
    pub fn freeze(&mut self) -> Seal {
        self.frozen = true;
        let mut end = self.committed;
        let mut bytes = self.committed_bytes;
        let mut next_offset = self.next_offset;
        if fault::planted(Fault::RollEndBeyondCommitted) {
            end = self.appended();
            bytes = self.bytes;
            next_offset = self.held.back().map_or(next_offset, |held| held.next_offset);
        }
        let complete = self
            .replicas
            .iter()
            .filter(|replica| replica.durable >= end && replica.health != Health::Distrusted);
        Seal {
            ledger: self.ledger,
            end,
            base_offset: self.base_offset,
            next_offset,
            bytes,
            complete: complete.map(|replica| replica.bookie).collect(),
        }
    }

    /// The entries from `end` on, in order, to be appended to the next ledger.
    pub fn into_rest(self, end: EntryId) -> impl DoubleEndedIterator<Item = Entry> {
        let skipped = self.index(end);
        self.held.into_iter().skip(skipped).map(|held| Entry {
            prefix_len: held.record.header.prefix_len,
            payload: held.record.payload,
            next_offset: held.next_offset,
        })
    }

    /// One header for all replicas: they get the same bytes.
    fn record(&self, entry: &Entry) -> Record {
        let payload_len = u32::try_from(entry.payload.len()).unwrap_or(u32::MAX);
        let header = Header {
            kind: Kind::Append,
            ledger: self.ledger,
            own_epoch: self.epoch,
            epoch: self.epoch,
            entry: self.appended(),
            committed: self.committed,
            prefix_len: entry.prefix_len,
            payload_len,
            payload_crc: entry.payload.crc(),
        };
        Record { header, payload: entry.payload.clone() }
    }

    /// Where an entry is in `held`; its length for those past the last.
    fn index(&self, entry: EntryId) -> usize {
        let below = usize::try_from(entry.0.saturating_sub(self.held_from.0)).unwrap_or(usize::MAX);
        below.min(self.held.len())
    }

    fn place(&self, bookie: BookieId) -> Option<usize> {
        self.replicas.iter().position(|replica| replica.bookie == bookie)
    }

    fn durable(&mut self, bookie: BookieId, durable: EntryId, actions: &mut Vec<Action>) {
        let Some(place) = self.place(bookie) else { return };
        let appended = self.appended();
        let replica = &mut self.replicas[place];
        if replica.health == Health::Distrusted {
            return;
        }
        if durable > appended {
            let cause = Cause::Phantom { appended, answered: durable };
            self.give_up(place, cause, actions);
        } else if durable > replica.durable {
            replica.durable = durable;
            replica.rewinds = 0;
        }
    }

    /// The first Gap of an attempt rewinds the stream under the next one; those
    /// that the same refusal caused carry the old attempt and are dropped (B3).
    fn gap(&mut self, bookie: BookieId, attempt: u32, accepted: EntryId, actions: &mut Vec<Action>) {
        let Some(place) = self.place(bookie) else { return };
        let replica = &mut self.replicas[place];
        if replica.health != Health::Up || replica.attempt != attempt {
            return;
        }
        replica.rewinds += 1;
        if replica.rewinds > REWINDS_MAX {
            return self.give_up(place, Cause::Stuck, actions);
        }
        self.resume(place, accepted, actions);
    }

    fn refused(&mut self, bookie: BookieId, attempt: u32, reason: Refusal, actions: &mut Vec<Action>) {
        let Some(place) = self.place(bookie) else { return };
        if self.replicas[place].attempt != attempt {
            return;
        }
        match reason {
            Refusal::Fenced(epoch) if epoch > self.epoch => self.fenced = Some(epoch),
            _ => self.give_up(place, Cause::Refused(reason), actions),
        }
    }

    fn link_broken(&mut self, bookie: BookieId) {
        if let Some(place) = self.place(bookie) {
            let health = &mut self.replicas[place].health;
            if !health.is_ended() {
                *health = Health::Down;
            }
        }
    }

    fn link_up(&mut self, bookie: BookieId, actions: &mut Vec<Action>) {
        if let Some(place) = self.place(bookie) {
            self.ask(place, actions);
        }
    }

    fn ask(&mut self, place: usize, actions: &mut Vec<Action>) {
        let replica = &mut self.replicas[place];
        if !replica.health.is_ended() {
            replica.health = Health::Asked;
            actions.push(Action::AskState { bookie: replica.bookie, ledger: self.ledger });
        }
    }

    fn ask_again(&mut self, now: Millis, actions: &mut Vec<Action>) {
        for place in 0..self.replicas.len() {
            if matches!(self.replicas[place].health, Health::AskAt(moment) if moment <= now) {
                self.ask(place, actions);
            }
        }
    }

    fn state(&mut self, now: Millis, bookie: BookieId, response: Response, actions: &mut Vec<Action>) {
        let Some(place) = self.place(bookie) else { return };
        if self.replicas[place].health != Health::Asked {
            return;
        }
        match response {
            Response::State(state) if state.fence > self.epoch => self.fenced = Some(state.fence),
            Response::State(state) if !state.certain && !is_doubt_ignored() => {
                self.give_up(place, Cause::Uncertain, actions);
            }
            Response::State(state) => {
                self.resume(place, state.durable, actions);
                self.durable(bookie, state.durable, actions);
            }
            Response::Absent => self.give_up(place, Cause::Absent, actions),
            Response::Deleted => self.give_up(place, Cause::Deleted, actions),
            _ => self.replicas[place].health = Health::AskAt(now + ASK_AGAIN_MS),
        }
    }

    /// Sends everything from `from` on again, under the next attempt.
    fn resume(&mut self, place: usize, from: EntryId, actions: &mut Vec<Action>) {
        let appended = self.appended();
        let replica = &mut self.replicas[place];
        if from < replica.durable {
            let cause = Cause::Shrunk { acknowledged: replica.durable, answered: from };
            return self.give_up(place, cause, actions);
        }
        if from > appended {
            return self.give_up(place, Cause::Phantom { appended, answered: from }, actions);
        }
        if from < self.held_from {
            return self.give_up(place, Cause::Late, actions);
        }
        replica.attempt += 1;
        replica.health = Health::Up;
        if self.frozen {
            return;
        }
        let (bookie, attempt) = (replica.bookie, replica.attempt);
        let lacking = self.held.range(self.index(from)..);
        actions.extend(
            lacking
                .map(|held| Action::Send { bookie, append: Append { attempt, record: held.record.clone() } }),
        );
    }

    fn give_up(&mut self, place: usize, cause: Cause, actions: &mut Vec<Action>) {
        let replica = &mut self.replicas[place];
        if replica.health == Health::Distrusted || (replica.health == Health::GivenUp && !cause.is_distrust())
        {
            return;
        }
        replica.health = if cause.is_distrust() { Health::Distrusted } else { Health::GivenUp };
        actions.push(Action::GaveUp { bookie: replica.bookie, ledger: self.ledger, cause });
    }

    /// Moves `committed` to what A replicas have (W1), unless a roll was
    /// issued (W4).
    fn commit(&mut self, now: Millis) {
        if self.frozen && !fault::planted(Fault::AckAfterRollIssued) {
            return;
        }
        let believed = || self.replicas.iter().filter(|replica| replica.health != Health::Distrusted);
        let longest = believed().map(|replica| replica.durable).max().unwrap_or_default();
        self.first_durable = self.first_durable.max(longest);
        let quorum = self.ensemble.quorum_length(believed().map(|replica| replica.durable));
        while self.committed < quorum {
            let index = self.index(self.committed);
            let held = &mut self.held[index];
            let bytes = u64::from(held.record.header.payload_len);
            held.committed_at = now;
            self.next_offset = held.next_offset;
            self.committed_bytes += bytes;
            self.slow_bytes += bytes;
            self.committed = self.committed.next();
        }
    }

    /// Lets go of committed payload that no replica lacks, or that was held
    /// long enough (W2); whoever still lacks it is given up.
    fn release(&mut self, now: Millis, actions: &mut Vec<Action>) {
        while self.held_from < self.committed && !self.frozen {
            let Some(held) = self.held.front() else { return };
            let over = self.slow_bytes > self.window.bytes || now.since(held.committed_at) >= self.window.ms;
            let bytes = u64::from(held.record.header.payload_len);
            for place in 0..self.replicas.len() {
                let replica = &self.replicas[place];
                if replica.health.is_ended() || replica.durable > self.held_from {
                    continue;
                }
                if !over {
                    return;
                }
                self.give_up(place, Cause::Late, actions);
            }
            self.held.pop_front();
            self.held_from = self.held_from.next();
            self.held_bytes -= bytes;
            self.slow_bytes -= bytes;
        }
    }
}

/// Planted: where bookies bar no writer, writers do not bar themselves either.
fn is_doubt_ignored() -> bool {
    fault::planted(Fault::NoBar) || fault::planted(Fault::BarByHoldings)
}
