//! One partition's writer, from ledger to ledger: opens lazily, rolls, seals
//! when idle, and hands entries past a seal to the next ledger (W3 to W5).
//!
//! A machine without I/O. Its driver, the shard that owns the partition, feeds
//! it events and carries out its actions in order. The driver
//!
//! - takes a new ledger for [`Action::NeedLedger`] out of its pool, created
//!   durably on all of its replicas (B2);
//! - runs the transaction of [`Action::Roll`] until its outcome is known, always
//!   under the same ledger id (W4), and computes the snapshot from the state
//!   that the committed entries have made: nothing is committed between a
//!   `Roll` and its answer;
//! - answers [`Action::Send`] and [`Action::AskState`] for a bookie that it has
//!   no link with by [`Event::LinkBroken`].
//!
//! Entries keep their order and get sequences without holes. The entries of a
//! ledger that have sequences are contiguous, so that the place of each follows
//! from one [`Action::Committed`].

use std::collections::VecDeque;

use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Offset};

use crate::clock::Millis;
use crate::ensemble::Ensemble;
use crate::fault::{self, Fault};
use crate::message::{Append, Refusal, Response};
use crate::record::PAYLOAD_MAX;
use crate::writer::{self, Cause, LedgerWriter};

pub use crate::writer::{Entry, Seal, Window};

/// When a partition's writer rolls and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A ledger rolls at this many payload bytes.
    pub roll_bytes: u64,
    /// A ledger rolls at this many entries.
    pub roll_entries: u64,
    /// A ledger without an append for this long is sealed without a successor.
    pub idle_ms: u64,
    /// How long payload is held for slow replicas (W2).
    pub window: Window,
    /// A voluntary roll is issued only when metadata answered a linearizable
    /// read at most this long ago (W4).
    pub metadata_fresh_ms: u64,
    /// Before a voluntary roll nothing is sent for at most this long, so that
    /// every replica can be complete at the seal.
    pub drain_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            roll_bytes: 1 << 30,
            roll_entries: 1_000_000,
            idle_ms: 300_000,
            window: Window::default(),
            metadata_fresh_ms: 1_000,
            drain_ms: 500,
        }
    }
}

/// The place of an appended entry in the order of one [`ChainWriter`], from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendSequence(pub u64);

/// A ledger that exists durably on all its replicas and is in no chain (B2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLedger {
    /// Its id, of a block that this process holds.
    pub ledger: LedgerId,
    /// Its replicas.
    pub ensemble: Ensemble,
    /// It rolls at this age. Differs from ledger to ledger, lest all roll at
    /// once.
    pub age_ms: u64,
}

/// One change of the chain: a single transaction (W3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roll {
    /// The ledger to seal; none at a first open.
    pub seal: Option<Seal>,
    /// The ledger to publish; none at an idle seal, or with no ensemble to be
    /// had.
    pub open: Option<NewLedger>,
    /// The base offset of the new segment: the next offset of the old one.
    pub base_offset: Offset,
}

/// What happens to a partition's writer. Events about a ledger that is no longer
/// written are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The bookie has this many entries of the ledger durably (B3).
    Durable { bookie: BookieId, ledger: LedgerId, durable: EntryId },
    /// An append was not the next one (B3).
    Gap { bookie: BookieId, ledger: LedgerId, attempt: u32, accepted: EntryId },
    /// An append was refused (B3).
    Refused { bookie: BookieId, ledger: LedgerId, attempt: u32, reason: Refusal },
    /// The link to the bookie broke, or there is none.
    LinkBroken { bookie: BookieId },
    /// There is a link to the bookie again.
    LinkUp { bookie: BookieId },
    /// The answer to [`Action::AskState`].
    State { bookie: BookieId, ledger: LedgerId, response: Response },
    /// The driver holds the bookie for sick.
    GiveUp { bookie: BookieId },
    /// The answer to [`Action::NeedLedger`].
    LedgerReady(NewLedger),
    /// No ensemble is to be had now. The need stands: [`Event::LedgerReady`]
    /// follows when one is.
    NoLedger,
    /// The roll has happened. With a ledger opened: its snapshot, at least one
    /// entry, which becomes entries 0, 1, … Empty else.
    RollApplied { snapshot: Vec<Entry> },
    /// The id block of the roll's new ledger is released: this roll has not
    /// happened and never will (W4).
    BlockReleased,
    /// Metadata shows another leader, or the ledger in a state that this writer
    /// did not put it into.
    Deposed,
    /// The driver wants the ledger rolled: a better ensemble exists.
    RollWanted,
    /// Metadata answered a linearizable read that was sent at this moment (W4).
    MetadataAnswered { sent: Millis },
    /// Time has passed: [`ChainWriter::deadline`] says when this is of use.
    Tick,
    /// Take no more appends, finish those that there are, and seal.
    Close,
}

/// What a partition's writer wants done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this append.
    Send { bookie: BookieId, append: Append },
    /// Send [`crate::message::Request::State`].
    AskState { bookie: BookieId, ledger: LedgerId },
    /// At least one replica has all entries up to this one durably, counted
    /// once: acknowledge those that wait for a leader only (acks=leader).
    FirstDurable { through: AppendSequence },
    /// All entries up to this one are committed: acknowledge (W1). The last of
    /// them is entry `end` − 1 of the ledger.
    Committed { through: AppendSequence, ledger: LedgerId, end: EntryId },
    /// Answer with [`Event::LedgerReady`], or [`Event::NoLedger`] and then that.
    NeedLedger,
    /// This ledger will not be used: put it back into the pool.
    ReturnLedger(NewLedger),
    /// Answer with [`Event::MetadataAnswered`] as soon as metadata answers.
    ProbeMetadata,
    /// Run this transaction until its outcome is known, and answer with
    /// [`Event::RollApplied`], [`Event::BlockReleased`] or [`Event::Deposed`].
    Roll(Roll),
    /// This replica gets nothing more of this ledger.
    GaveUp { bookie: BookieId, ledger: LedgerId, cause: Cause },
    /// These entries will not be acknowledged. `determinate`: they are not and
    /// will not be in the log; else they may be.
    Failed { from: AppendSequence, through: AppendSequence, determinate: bool },
    /// The last action: another leader has taken over.
    Deposed,
    /// The last action: the partition is sealed, as [`Event::Close`] asked.
    Closed,
}

impl From<writer::Action> for Action {
    fn from(action: writer::Action) -> Self {
        match action {
            writer::Action::Send { bookie, append } => Self::Send { bookie, append },
            writer::Action::AskState { bookie, ledger } => Self::AskState { bookie, ledger },
            writer::Action::GaveUp { bookie, ledger, cause } => Self::GaveUp { bookie, ledger, cause },
        }
    }
}

/// Why an append is not taken. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// [`Event::Close`] was given.
    #[error("the partition is being handed over")]
    Closing,
    /// Another leader has taken over.
    #[error("another broker leads the partition")]
    Deposed,
    /// The payload is above [`PAYLOAD_MAX`], or its prefix longer than itself.
    #[error("an entry of {bytes} bytes with a prefix of {prefix} is beyond the limits")]
    Malformed {
        /// Bytes of the payload.
        bytes: usize,
        /// Bytes of the prefix.
        prefix: u32,
    },
}

/// A ledger that is in the chain and written.
#[derive(Debug)]
struct Current {
    writer: LedgerWriter,
    opened: Millis,
    age_ms: u64,
    /// Entries of the snapshot: they have no sequence.
    snapshot: u64,
    /// The sequence of the first entry after the snapshot.
    first: u64,
    /// Since when nothing is sent, so that a voluntary roll finds all replicas
    /// complete.
    draining: Option<Millis>,
}

impl Current {
    /// The last sequence below this length of the ledger.
    const fn through(&self, length: EntryId) -> u64 {
        (self.first + length.0.saturating_sub(self.snapshot)).saturating_sub(1)
    }

    /// Whether entries are appended and not committed.
    fn is_pending(&self) -> bool {
        self.writer.committed() < self.writer.appended()
    }
}

/// Whether a ledger was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    None,
    Asked,
    /// Asked for, and none is to be had now.
    Unavailable,
}

/// Why the current ledger ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Fewer than A replicas are healthy, and something waits.
    Trouble,
    /// Size, count, age, or the driver's wish.
    Voluntary,
    /// Nothing was appended for long.
    Idle,
    /// The partition is handed over.
    Close,
}

/// A roll from its issue to its outcome.
#[derive(Debug)]
struct Issued {
    roll: Roll,
    /// False once its new ledger's block is released: it needs another.
    in_flight: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Serving,
    Closing,
    Deposed,
    Closed,
}

/// One partition's writer under one epoch.
#[derive(Debug)]
pub struct ChainWriter {
    epoch: Epoch,
    options: Options,
    life: Life,
    current: Option<Current>,
    issued: Option<Issued>,
    /// Entries that are in no ledger, the last of them `last` in sequence.
    queue: VecDeque<Entry>,
    queue_bytes: u64,
    last: u64,
    committed: u64,
    first_durable: u64,
    /// The next offset after the last sealed ledger.
    base_offset: Offset,
    need: Need,
    spare: Option<NewLedger>,
    roll_wanted: bool,
    probing: bool,
    metadata_answered: Option<Millis>,
    last_append: Millis,
    /// The moment of the last step.
    now: Millis,
    /// Reused, so that a step allocates nothing.
    scratch: Vec<writer::Action>,
}

impl ChainWriter {
    /// A writer for a partition whose epoch this process minted (T1) and whose
    /// last ledger, if any, is sealed and ends before `next_offset` (T6).
    #[must_use]
    pub fn new(epoch: Epoch, next_offset: Offset, options: Options) -> Self {
        Self {
            epoch,
            options,
            life: Life::Serving,
            current: None,
            issued: None,
            queue: VecDeque::new(),
            queue_bytes: 0,
            last: 0,
            committed: 0,
            first_durable: 0,
            base_offset: next_offset,
            need: Need::None,
            spare: None,
            roll_wanted: false,
            probing: false,
            metadata_answered: None,
            last_append: Millis(0),
            now: Millis(0),
            scratch: Vec::new(),
        }
    }

    /// The epoch.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The ledger that is written, if one is open.
    #[must_use]
    pub fn ledger(&self) -> Option<LedgerId> {
        self.current.as_ref().map(|current| current.writer.ledger())
    }

    /// Whether a roll is issued and its outcome unknown.
    #[must_use]
    pub const fn is_rolling(&self) -> bool {
        self.issued.is_some()
    }

    /// The last entry that is committed.
    #[must_use]
    pub const fn committed(&self) -> AppendSequence {
        AppendSequence(self.committed)
    }

    /// The last entry that was appended.
    #[must_use]
    pub const fn appended(&self) -> AppendSequence {
        AppendSequence(self.last)
    }

    /// Payload bytes in memory: not committed, or held for slow replicas.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.queue_bytes + self.current.as_ref().map_or(0, |current| current.writer.held_bytes())
    }

    /// When [`Event::Tick`] is of use next; never for an idle partition.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        let current = self.current.as_ref()?;
        if self.issued.is_some() || self.life != Life::Serving && self.life != Life::Closing {
            return None;
        }
        let idle = self.last_append + self.options.idle_ms;
        let age = current.opened + current.age_ms;
        let drain = current.draining.map(|since| since + self.options.drain_ms);
        // What is due already waits for another event.
        let ahead = [Some(idle), Some(age), drain].into_iter().flatten().filter(|&due| due > self.now);
        current.writer.deadline().into_iter().chain(ahead).min()
    }

    /// Appends an entry behind all others.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn append(
        &mut self,
        now: Millis,
        entry: Entry,
        actions: &mut Vec<Action>,
    ) -> Result<AppendSequence, AppendError> {
        match self.life {
            Life::Serving => {}
            Life::Closing | Life::Closed => return Err(AppendError::Closing),
            Life::Deposed => return Err(AppendError::Deposed),
        }
        let (bytes, prefix) = (entry.payload.len(), entry.prefix_len);
        if bytes > PAYLOAD_MAX || prefix as usize > bytes {
            return Err(AppendError::Malformed { bytes, prefix });
        }
        self.last += 1;
        self.last_append = now;
        self.now = now;
        self.enqueue(entry);
        self.decide(now, actions);
        Ok(AppendSequence(self.last))
    }

    /// Takes an event in.
    pub fn step(&mut self, now: Millis, event: Event, actions: &mut Vec<Action>) {
        if matches!(self.life, Life::Deposed | Life::Closed) {
            if let Event::LedgerReady(ledger) = event {
                actions.push(Action::ReturnLedger(ledger));
            }
            return;
        }
        self.now = now;
        match event {
            Event::LedgerReady(ledger) => self.ledger_ready(ledger, actions),
            Event::NoLedger if self.need == Need::Asked => self.need = Need::Unavailable,
            Event::NoLedger => {}
            Event::RollApplied { snapshot } => self.roll_applied(now, snapshot, actions),
            Event::BlockReleased => self.block_released(),
            Event::Deposed => return self.depose(actions),
            Event::RollWanted => self.roll_wanted = self.current.is_some() && self.issued.is_none(),
            Event::MetadataAnswered { sent } => {
                self.probing = false;
                self.metadata_answered = self.metadata_answered.max(Some(sent));
            }
            Event::Close => self.life = Life::Closing,
            event => self.replica_event(now, event, actions),
        }
        if self.current.as_ref().is_some_and(|current| current.writer.fenced().is_some()) {
            return self.depose(actions);
        }
        self.acknowledge(actions);
        self.decide(now, actions);
    }

    /// Hands an event to the ledger that it speaks of.
    fn replica_event(&mut self, now: Millis, event: Event, actions: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        let (ledger, event) = match event {
            Event::Durable { bookie, ledger, durable } => {
                (Some(ledger), writer::Event::Durable { bookie, durable })
            }
            Event::Gap { bookie, ledger, attempt, accepted } => {
                (Some(ledger), writer::Event::Gap { bookie, attempt, accepted })
            }
            Event::Refused { bookie, ledger, attempt, reason } => {
                (Some(ledger), writer::Event::Refused { bookie, attempt, reason })
            }
            Event::State { bookie, ledger, response } => {
                (Some(ledger), writer::Event::State { bookie, response })
            }
            Event::LinkBroken { bookie } => (None, writer::Event::LinkBroken { bookie }),
            Event::LinkUp { bookie } => (None, writer::Event::LinkUp { bookie }),
            Event::GiveUp { bookie } => (None, writer::Event::GiveUp { bookie }),
            _ => (None, writer::Event::Tick),
        };
        if ledger.is_some_and(|ledger| ledger != current.writer.ledger()) {
            return;
        }
        current.writer.step(now, event, &mut self.scratch);
        actions.extend(self.scratch.drain(..).map(Action::from));
    }

    /// Reports what has become durable and committed.
    fn acknowledge(&mut self, actions: &mut Vec<Action>) {
        let Some(current) = &self.current else { return };
        let first_durable = current.through(current.writer.first_durable());
        if first_durable > self.first_durable {
            self.first_durable = first_durable;
            actions.push(Action::FirstDurable { through: AppendSequence(first_durable) });
        }
        let end = current.writer.committed();
        let committed = current.through(end);
        if committed > self.committed {
            self.committed = committed;
            let ledger = current.writer.ledger();
            actions.push(Action::Committed { through: AppendSequence(committed), ledger, end });
        }
    }

    /// The one place where ledgers begin and end.
    fn decide(&mut self, now: Millis, actions: &mut Vec<Action>) {
        match &self.issued {
            Some(issued) if issued.in_flight => return,
            Some(_) => return self.issue_again(actions),
            None => {}
        }
        let Some(current) = &self.current else { return self.decide_without_ledger(actions) };
        match self.reason(now, current) {
            Some(Reason::Trouble) => self.roll_in_trouble(actions),
            Some(Reason::Voluntary) => self.roll_voluntarily(now, actions),
            Some(Reason::Idle) => self.seal_idle(now, actions),
            Some(Reason::Close) => self.seal_for_good(now, actions),
            None => self.send_queue(actions),
        }
    }

    fn reason(&self, now: Millis, current: &Current) -> Option<Reason> {
        let waits = current.is_pending() || !self.queue.is_empty();
        if self.life == Life::Closing {
            return Some(Reason::Close);
        }
        if waits && !current.writer.is_healthy() {
            return Some(Reason::Trouble);
        }
        if self.is_due_voluntarily(current) || now.since(current.opened) >= current.age_ms {
            return Some(Reason::Voluntary);
        }
        (!waits && now.since(self.last_append) >= self.options.idle_ms).then_some(Reason::Idle)
    }

    fn is_due_voluntarily(&self, current: &Current) -> bool {
        self.roll_wanted
            || current.writer.bytes() >= self.options.roll_bytes
            || current.writer.appended().0 >= self.options.roll_entries
    }

    /// Lazy ledgers: the first append opens one (W3).
    fn decide_without_ledger(&mut self, actions: &mut Vec<Action>) {
        if self.life == Life::Closing {
            return self.close(actions);
        }
        if self.queue.is_empty() {
            return;
        }
        match self.spare.take() {
            Some(open) => self.issue(Some(open), actions),
            None => self.ask_for_ledger(actions),
        }
    }

    /// Fewer than A are healthy: roll at once, fresh metadata or not, and with
    /// no ensemble to be had seal without a successor (W2).
    fn roll_in_trouble(&mut self, actions: &mut Vec<Action>) {
        match self.spare.take() {
            Some(open) => self.issue(Some(open), actions),
            None if self.need == Need::Unavailable => self.issue(None, actions),
            None => self.ask_for_ledger(actions),
        }
    }

    /// The ledger is big or old: once there is a successor and metadata answers,
    /// hold new entries back until all replicas have everything, then roll.
    /// Until then appending goes on (W4).
    fn roll_voluntarily(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.spare.is_none() {
            self.ask_for_ledger(actions);
        }
        if self.spare.is_none() || !self.metadata_is_fresh(now, actions) {
            return self.send_queue(actions);
        }
        if self.is_drained(now)
            && let Some(open) = self.spare.take()
        {
            self.issue(Some(open), actions);
        }
    }

    fn seal_idle(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.metadata_is_fresh(now, actions) {
            self.issue(None, actions);
        }
    }

    /// Hand-over: send what there is, wait a little for it, seal.
    fn seal_for_good(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.current.as_ref().is_some_and(|current| current.draining.is_none()) {
            self.send_queue(actions);
        }
        if self.is_drained(now) {
            self.issue(None, actions);
        }
    }

    /// Starts the drain, or says that it is over.
    fn is_drained(&mut self, now: Millis) -> bool {
        let Some(current) = &mut self.current else { return true };
        let since = *current.draining.get_or_insert(now);
        current.writer.is_drained() || now.since(since) >= self.options.drain_ms
    }

    /// Whether a voluntary roll may be issued (W4); asks when it is not known.
    fn metadata_is_fresh(&mut self, now: Millis, actions: &mut Vec<Action>) -> bool {
        let fresh =
            self.metadata_answered.is_some_and(|sent| now.since(sent) <= self.options.metadata_fresh_ms);
        if !fresh && !self.probing {
            self.probing = true;
            actions.push(Action::ProbeMetadata);
        }
        fresh
    }

    fn ask_for_ledger(&mut self, actions: &mut Vec<Action>) {
        if self.need == Need::None {
            self.need = Need::Asked;
            actions.push(Action::NeedLedger);
        }
    }

    fn ledger_ready(&mut self, ledger: NewLedger, actions: &mut Vec<Action>) {
        if self.need == Need::None || self.spare.is_some() {
            return actions.push(Action::ReturnLedger(ledger));
        }
        self.need = Need::None;
        self.spare = Some(ledger);
    }

    /// From here on acks and `committed` of the old ledger stand still (W4).
    fn issue(&mut self, open: Option<NewLedger>, actions: &mut Vec<Action>) {
        let seal = self.current.as_mut().map(|current| current.writer.freeze());
        let base_offset = seal.as_ref().map_or(self.base_offset, |seal| seal.next_offset);
        let roll = Roll { seal, open, base_offset };
        actions.push(Action::Roll(roll.clone()));
        if fault::planted(Fault::AckBeforeRollApplied)
            && let Some(open) = &roll.open
            && self.committed < self.last
        {
            self.committed = self.last;
            let (through, ledger) = (AppendSequence(self.last), open.ledger);
            actions.push(Action::Committed { through, ledger, end: EntryId(self.last) });
        }
        self.issued = Some(Issued { roll, in_flight: true });
    }

    /// The roll's new ledger cannot be published any more: the old ledger stays
    /// frozen, and the same seal goes with another new ledger, or alone.
    fn issue_again(&mut self, actions: &mut Vec<Action>) {
        let alone = self.life == Life::Closing || self.need == Need::Unavailable;
        if self.spare.is_none() && !alone {
            return self.ask_for_ledger(actions);
        }
        if let Some(issued) = &mut self.issued {
            issued.roll.open = self.spare.take();
            issued.in_flight = true;
            actions.push(Action::Roll(issued.roll.clone()));
        }
    }

    fn block_released(&mut self) {
        let Some(issued) = &mut self.issued else { return };
        issued.roll.open = None;
        issued.in_flight = false;
        if issued.roll.seal.is_none() {
            self.issued = None;
        }
    }

    /// Only now may the new ledger be written (W5).
    fn roll_applied(&mut self, now: Millis, snapshot: Vec<Entry>, actions: &mut Vec<Action>) {
        let Some(issued) = self.issued.take_if(|issued| issued.in_flight) else { return };
        self.roll_wanted = false;
        self.base_offset = issued.roll.base_offset;
        if let (Some(old), Some(seal)) = (self.current.take(), &issued.roll.seal) {
            // A snapshot is never appended again: the next ledger has its own.
            let from = seal.end.max(EntryId(old.snapshot));
            for entry in old.writer.into_rest(from).rev() {
                self.queue_bytes += entry.payload.len() as u64;
                self.queue.push_front(entry);
            }
        }
        let Some(open) = issued.roll.open else { return };
        let mut writer =
            LedgerWriter::new(open.ledger, self.epoch, open.ensemble, self.base_offset, self.options.window);
        let entries = snapshot.len() as u64;
        for entry in snapshot {
            writer.append(entry, &mut self.scratch);
        }
        actions.extend(self.scratch.drain(..).map(Action::from));
        self.current = Some(Current {
            writer,
            opened: now,
            age_ms: open.age_ms,
            snapshot: entries,
            first: self.last - self.queue.len() as u64 + 1,
            draining: None,
        });
    }

    fn enqueue(&mut self, entry: Entry) {
        self.queue_bytes += entry.payload.len() as u64;
        self.queue.push_back(entry);
    }

    /// Appends what waits to the current ledger.
    fn send_queue(&mut self, actions: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        current.draining = None;
        for entry in self.queue.drain(..) {
            current.writer.append(entry, &mut self.scratch);
        }
        self.queue_bytes = 0;
        actions.extend(self.scratch.drain(..).map(Action::from));
    }

    fn close(&mut self, actions: &mut Vec<Action>) {
        self.life = Life::Closed;
        self.end(actions);
        actions.push(Action::Closed);
    }

    fn depose(&mut self, actions: &mut Vec<Action>) {
        self.life = Life::Deposed;
        self.end(actions);
        actions.push(Action::Deposed);
    }

    /// Fails what waits. Entries that are in no ledger are certainly not in the
    /// log; those that were sent may yet be found by whoever recovers it.
    fn end(&mut self, actions: &mut Vec<Action>) {
        let sent = self.last - self.queue.len() as u64;
        let mut fail = |from: u64, through: u64, determinate| {
            if from <= through {
                let (from, through) = (AppendSequence(from), AppendSequence(through));
                actions.push(Action::Failed { from, through, determinate });
            }
        };
        fail(self.committed + 1, sent, false);
        fail(self.committed.max(sent) + 1, self.last, true);
        self.queue.clear();
        self.queue_bytes = 0;
        self.current = None;
        self.issued = None;
        actions.extend(self.spare.take().map(Action::ReturnLedger));
    }
}
