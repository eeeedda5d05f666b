//! Recovery of a partition's last ledger by a new leader (T2 to T6): claim it,
//! fence its replicas, find its end, copy what is missing, seal it.
//!
//! A machine without I/O. Its driver has minted the epoch (T1) and carries out
//! the actions:
//!
//! - [`Action::Claim`], [`Action::NameTargets`], [`Action::Seal`] and
//!   [`Action::ReadMetadata`] are all answered by [`Event::Metadata`] with what
//!   a linearizable read shows *after* the attempt, whatever became of it, or by
//!   [`Event::Deposed`] when the partition's epoch is another's. An outcome that
//!   is unknown is thus never acted on.
//! - [`Action::Call`] is answered by [`Event::Called`], with the same request.
//! - [`Action::Append`] gets append events, or [`Event::LinkBroken`] when there
//!   is no link.
//!
//! Everything is decided anew from the answers at hand after each event, so
//! that a late answer finds its place up to the moment when the seal is issued.
//!
//! - [`replica`]: what is known of one replica and of the copy to it.
//! - [`report`]: why recovery waits, in words.

pub mod replica;
pub mod report;

use std::mem;

use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId};
use smallvec::SmallVec;

use crate::clock::Millis;
use crate::ensemble::Ensemble;
use crate::fault::{self, Fault};
use crate::message::{Append, Read, Refusal, ReplicaState, Request, Response};
use crate::record::{Kind, Record};
use replica::{Copy, Replica};
pub use report::{Alarm, Blocked, Silence};

/// How long recovery waits, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A bookie that did not answer is asked again after this long, then after
    /// twice as long, and so on.
    pub retry_ms: u64,
    /// But at most this long.
    pub retry_max_ms: u64,
    /// With enough answers, and then with enough holders, the others are waited
    /// for this long: a replica that is complete at the seal needs no repair.
    pub grace_ms: u64,
    /// After this long without A holders outside bookies are asked for (T5).
    pub targets_after_ms: u64,
    /// Bytes of one read of a copy.
    pub read_bytes: u32,
    /// Entries of one read of a copy.
    pub read_entries: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            retry_ms: 100,
            retry_max_ms: 5_000,
            grace_ms: 100,
            targets_after_ms: 2_000,
            read_bytes: 1 << 20,
            read_entries: 1_024,
        }
    }
}

/// A ledger as metadata shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The ledger.
    pub ledger: LedgerId,
    /// The epoch that it was opened with.
    pub own_epoch: Epoch,
    /// Its replicas and ack quorum.
    pub ensemble: Ensemble,
    /// Outside bookies that may be filled by `Import` (B7).
    pub targets: SmallVec<[BookieId; 2]>,
    /// Its state.
    pub state: State,
}

/// A ledger's state in metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its writer appends.
    Open,
    /// The leader of this epoch recovers it.
    Recovering(Epoch),
    /// It has this many entries, for good.
    Sealed(EntryId),
}

/// What recovery makes of the ledger (T6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The ledger.
    pub ledger: LedgerId,
    /// Number of its entries.
    pub end: EntryId,
    /// Its replicas from now on: filled targets in the places of dead ones. As
    /// many as before.
    pub replicas: Vec<BookieId>,
    /// Those of them that have every entry below the end durably.
    pub complete: Vec<BookieId>,
}

/// What happens to a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What metadata shows, read after the action that asked for it. `None`: the
    /// ledger is gone.
    Metadata(Option<View>),
    /// Another process minted a higher epoch of the partition.
    Deposed,
    /// What became of an [`Action::Call`]. `Err` says why the bookie could not
    /// be reached, or did not answer in time.
    Called { bookie: BookieId, request: Request, result: Result<Response, String> },
    /// The bookie has this many entries durably.
    Durable { bookie: BookieId, durable: EntryId },
    /// An append was not the next one (B3).
    Gap { bookie: BookieId, attempt: u32, accepted: EntryId },
    /// An append was refused (B3).
    Refused { bookie: BookieId, attempt: u32, reason: Refusal },
    /// The link to the bookie broke, or there is none.
    LinkBroken { bookie: BookieId },
    /// There is a link to the bookie again.
    LinkUp { bookie: BookieId },
    /// An operator accepts the loss that this states (T3), which
    /// [`Recovery::blocked`] once was. When recovery waits for something that it
    /// does not cover, it is refused, and the wait is told anew.
    AcceptLoss(Blocked),
    /// Time has passed: [`Recovery::deadline`] says when this is of use.
    Tick,
}

/// What a recovery wants done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the ledger RECOVERING at my epoch, if the partition's epoch is mine
    /// and the ledger's is lower (T2).
    Claim { ledger: LedgerId, epoch: Epoch },
    /// Read the ledger's metadata.
    ReadMetadata { ledger: LedgerId },
    /// Name so many more bookies as targets of the ledger, none of its replicas
    /// and targets among them (T5). The ledger must still be RECOVERING(mine).
    NameTargets { ledger: LedgerId, count: usize },
    /// Send this request.
    Call { bookie: BookieId, request: Request },
    /// Send this append.
    Append { bookie: BookieId, append: Append },
    /// Make the ledger SEALED, if it is RECOVERING at my epoch (T6). The driver
    /// reads the entries' prefixes up to the end for what else the seal says.
    Seal(Seal),
    /// Recovery waits, and why. It asks again until it can go on.
    Blocked(Blocked),
    /// Somebody has to look at this.
    Alarm(Alarm),
    /// The last action.
    Done(Outcome),
}

/// How a recovery ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The ledger is sealed, by this recovery or another: adopt what metadata
    /// says.
    Sealed { end: EntryId },
    /// A higher epoch recovers the ledger, or leads the partition: stop.
    Superseded,
    /// The ledger is in metadata no more.
    Gone,
}

/// The metadata step that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    None,
    Claim,
    Read,
    Targets,
    Seal,
}

/// An outside bookie that is filled by `Import`.
#[derive(Debug)]
struct Target {
    bookie: BookieId,
    asked: bool,
    /// `[0, this)` is there.
    filled: Option<EntryId>,
    retry_at: Millis,
}

/// The recovery of one ledger.
#[derive(Debug)]
pub struct Recovery {
    epoch: Epoch,
    view: View,
    options: Options,
    replicas: SmallVec<[Replica; 4]>,
    targets: SmallVec<[Target; 2]>,
    pending: Pending,
    started: Millis,
    /// Since when there are A holders.
    held_since: Option<Millis>,
    /// Since when the end is known and there are fewer than A holders.
    lacking_since: Option<Millis>,
    /// The greatest number of committed entries that any answer told of.
    committed: EntryId,
    /// The losses that were accepted, the last of each kind.
    accepted: SmallVec<[Blocked; 2]>,
    blocked: Option<Blocked>,
    alarmed: Option<Alarm>,
    outcome: Option<Outcome>,
    now: Millis,
}

impl Recovery {
    /// Recovers the ledger that metadata shows so, under the epoch that this
    /// process minted (T1). Usually T1's transaction has claimed it already.
    #[must_use]
    pub fn start(now: Millis, epoch: Epoch, view: View, options: Options, actions: &mut Vec<Action>) -> Self {
        let mut recovery = Self {
            epoch,
            replicas: view.ensemble.replicas().iter().map(|&bookie| Replica::new(bookie)).collect(),
            view: view.clone(),
            options,
            targets: SmallVec::new(),
            pending: Pending::None,
            started: now,
            held_since: None,
            lacking_since: None,
            committed: EntryId(0),
            accepted: SmallVec::new(),
            blocked: None,
            alarmed: None,
            outcome: None,
            now,
        };
        recovery.metadata(Some(view), actions);
        recovery
    }

    /// The ledger.
    #[must_use]
    pub const fn ledger(&self) -> LedgerId {
        self.view.ledger
    }

    /// How it ended, once it has.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Why it waits, if it does: the text of a `NOT_READY`.
    #[must_use]
    pub const fn blocked(&self) -> Option<&Blocked> {
        self.blocked.as_ref()
    }

    /// When [`Event::Tick`] is of use next.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        if self.outcome.is_some() || !matches!(self.pending, Pending::None | Pending::Targets) {
            return None;
        }
        let retries = self.replicas.iter().filter_map(Replica::retry_at);
        let imports = self.targets.iter().filter(|target| !target.asked).map(|target| target.retry_at);
        let waits = [
            Some(self.started + self.options.grace_ms),
            self.held_since.map(|since| since + self.options.grace_ms),
            self.lacking_since.map(|since| since + self.options.targets_after_ms),
        ];
        // What is due already waits for another event.
        waits.into_iter().flatten().chain(imports).chain(retries).filter(|&due| due > self.now).min()
    }

    /// Takes an event in.
    pub fn step(&mut self, now: Millis, event: Event, actions: &mut Vec<Action>) {
        if self.outcome.is_some() {
            return;
        }
        self.now = now;
        match event {
            Event::Metadata(view) => self.metadata(view, actions),
            Event::Deposed => self.finish(Outcome::Superseded, actions),
            Event::Called { bookie, request, result } => self.called(bookie, &request, result, actions),
            Event::Durable { bookie, durable } => {
                if let Some(replica) = self.replica(bookie) {
                    replica.durable(durable);
                }
            }
            Event::Gap { bookie, attempt, accepted } => self.gap(bookie, attempt, accepted),
            Event::Refused { bookie, attempt, reason } => self.refused(bookie, attempt, reason, actions),
            Event::LinkBroken { bookie } => {
                let retry_at = now + self.options.retry_ms;
                if let Some(replica) = self.replica(bookie)
                    && matches!(replica.copy, Copy::Sent { .. })
                {
                    replica.refused(retry_at);
                }
            }
            Event::LinkUp { bookie } => {
                if let Some(replica) = self.replica(bookie) {
                    replica.retry_now(now);
                }
            }
            Event::AcceptLoss(loss) => self.accept_loss(loss, actions),
            Event::Tick => {}
        }
        self.advance(actions);
    }

    /// Goes on from what metadata shows.
    fn metadata(&mut self, view: Option<View>, actions: &mut Vec<Action>) {
        self.pending = Pending::None;
        let Some(view) = view else { return self.finish(Outcome::Gone, actions) };
        match view.state {
            State::Sealed(end) => return self.finish(Outcome::Sealed { end }, actions),
            State::Recovering(epoch) if epoch > self.epoch => {
                return self.finish(Outcome::Superseded, actions);
            }
            State::Recovering(epoch) if epoch == self.epoch => {}
            State::Open | State::Recovering(_) => {
                self.view = view;
                self.pending = Pending::Claim;
                return actions.push(Action::Claim { ledger: self.view.ledger, epoch: self.epoch });
            }
        }
        for &bookie in &view.targets {
            if !self.targets.iter().any(|target| target.bookie == bookie) {
                self.targets.push(Target { bookie, asked: false, filled: None, retry_at: self.now });
            }
        }
        self.view = view;
        self.advance(actions);
    }

    /// Decides what to do next from all that is known.
    fn advance(&mut self, actions: &mut Vec<Action>) {
        if self.outcome.is_some() || !matches!(self.pending, Pending::None | Pending::Targets) {
            return;
        }
        self.fence_silent(actions);
        match self.end(actions) {
            Ok(Some(end)) => {
                self.blocked.take_if(|blocked| !matches!(blocked, Blocked::Holders { .. }));
                self.fill(end, actions);
            }
            Ok(None) => {}
            Err(blocked) => self.block(blocked, actions),
        }
    }

    /// T3: fences every replica that has not answered and is due.
    fn fence_silent(&mut self, actions: &mut Vec<Action>) {
        let request = Request::Fence { ledger: self.view.ledger, epoch: self.epoch };
        for replica in &mut self.replicas {
            if replica.is_fence_due(self.now) {
                replica.ask();
                actions.push(Action::Call { bookie: replica.bookie, request: request.clone() });
            }
        }
    }

    /// T3 and T4: the ledger's end, once it is certain; `None` while answers are
    /// on their way.
    fn end(&mut self, actions: &mut Vec<Action>) -> Result<Option<EntryId>, Blocked> {
        let answers = || self.replicas.iter().filter_map(Replica::answer);
        let certain = answers().filter(|answer| answer.certain || fault::planted(Fault::UncertainCounted));
        let certain = certain.count();
        let greatest = answers().map(|answer| answer.length).max().unwrap_or_default();
        let needed = self.view.ensemble.fence_quorum();
        let waiting = self.replicas.iter().any(Replica::is_first_answer_awaited);
        let in_grace = self.now < self.started + self.options.grace_ms;
        if waiting && (in_grace || certain < needed) {
            return Ok(None);
        }
        let ledger = self.view.ledger;
        if certain < needed {
            let silences = self.silences();
            self.check_accepted(Blocked::Answers { ledger, needed, certain, greatest, silences })?;
        }
        let committed = self.committed;
        if committed > greatest {
            self.alarm(Alarm::CommittedAboveLength { ledger, committed, greatest }, actions);
            let silences = self.silences();
            self.check_accepted(Blocked::Committed { ledger, committed, greatest, silences })?;
        }
        if fault::planted(Fault::SealBelowGreatest) {
            return Ok(self.replicas.iter().filter_map(Replica::answer).map(|answer| answer.length).min());
        }
        Ok(Some(greatest))
    }

    /// T3: an acceptance holds for the wait that it names, not for what recovery
    /// comes to wait for later.
    fn accept_loss(&mut self, loss: Blocked, actions: &mut Vec<Action>) {
        if let Some(other) = self.blocked.as_ref().filter(|blocked| !loss.covers(blocked)) {
            return actions.push(Action::Blocked(other.clone()));
        }
        self.accepted.retain(|accepted| mem::discriminant(accepted) != mem::discriminant(&loss));
        self.accepted.push(loss);
    }

    fn check_accepted(&self, blocked: Blocked) -> Result<(), Blocked> {
        if self.accepted.iter().any(|accepted| accepted.covers(&blocked)) { Ok(()) } else { Err(blocked) }
    }

    fn silences(&self) -> Vec<Silence> {
        self.replicas.iter().filter_map(Replica::silence).collect()
    }

    /// T5: sees to it that there are A holders of `[0, end)`, then seals.
    fn fill(&mut self, end: EntryId, actions: &mut Vec<Action>) {
        if !self.copy(end, actions) {
            return self.advance(actions);
        }
        self.import(end, actions);
        let holders = self.replicas.iter().filter(|replica| replica.holds(end)).count()
            + self.targets.iter().filter(|target| is_filled(target, end)).count();
        // Also when loss is accepted: what is left of the ledger is made safe.
        if holders < self.view.ensemble.ack_quorum() {
            self.held_since = None;
            return self.wait_for_holders(end, holders, actions);
        }
        let since = *self.held_since.get_or_insert(self.now);
        let busy = self.replicas.iter().any(|replica| replica.is_copying(end));
        if self.pending != Pending::None || busy && self.now < since + self.options.grace_ms {
            return;
        }
        self.blocked = None;
        self.lacking_since = None;
        self.pending = Pending::Seal;
        actions.push(Action::Seal(self.seal(end)));
    }

    /// Copies to every replica that answered what it lacks.
    ///
    /// When an entry cannot be read from anyone who claims it, what those said
    /// is forgotten, as if they had not been heard, and the result is false: the
    /// end is then another, or answers are lacking. An error thus never makes
    /// the ledger shorter than certain answers allow.
    fn copy(&mut self, end: EntryId, actions: &mut Vec<Action>) -> bool {
        let Options { retry_ms, retry_max_ms, read_bytes, read_entries, .. } = self.options;
        for place in 0..self.replicas.len() {
            self.replicas[place].rewind_overdue(self.now);
            let Some(from) = self.replicas[place].copy_from(end, self.now) else { continue };
            let Some(source) = self.source(place, from) else {
                for Silence { bookie, why } in self.replicas[place].take_tried() {
                    let now = self.now;
                    if let Some(source) = self.replica(bookie) {
                        source.silent(why, now, retry_ms, retry_max_ms);
                    }
                }
                return false;
            };
            let ledger = self.view.ledger;
            let read = Read { ledger, from, max_entries: read_entries, max_bytes: read_bytes, prefix: false };
            self.replicas[place].copy = Copy::Reading { source, from };
            actions.push(Action::Call { bookie: source, request: Request::Read(read) });
        }
        true
    }

    /// A replica that claims the entry that this one lacks and has not failed to
    /// give it.
    fn source(&self, place: usize, entry: EntryId) -> Option<BookieId> {
        let lacking = &self.replicas[place];
        let source = self.replicas.iter().find(|source| {
            let claims = source.answer().is_some_and(|answer| answer.length > entry);
            claims && !lacking.was_tried(source.bookie)
        });
        source.map(|source| source.bookie)
    }

    /// Fills the targets (B7).
    fn import(&mut self, end: EntryId, actions: &mut Vec<Action>) {
        for target in &mut self.targets {
            if !target.asked && target.filled != Some(end) && target.retry_at <= self.now {
                target.asked = true;
                let request = Request::Import { ledger: self.view.ledger, end };
                actions.push(Action::Call { bookie: target.bookie, request });
            }
        }
    }

    /// Fewer than A holders: copies are under way, or bookies come back, or
    /// outside ones step in.
    fn wait_for_holders(&mut self, end: EntryId, holders: usize, actions: &mut Vec<Action>) {
        let ledger = self.view.ledger;
        let needed = self.view.ensemble.ack_quorum();
        let coming = self.replicas.iter().filter(|replica| replica.is_copying(end)).count();
        if holders + coming >= needed {
            self.blocked = None;
            return;
        }
        let since = *self.lacking_since.get_or_insert(self.now);
        self.block(Blocked::Holders { ledger, needed, holders, silences: self.silences() }, actions);
        let coming = coming + self.targets.iter().filter(|target| !is_filled(target, end)).count();
        if holders + coming < needed
            && self.pending == Pending::None
            && self.now >= since + self.options.targets_after_ms
        {
            self.pending = Pending::Targets;
            // Asked again, if none is named, after as long.
            self.lacking_since = Some(self.now);
            actions.push(Action::NameTargets { ledger, count: needed - holders - coming });
        }
    }

    /// T6: filled targets take the places of replicas that hold less.
    fn seal(&self, end: EntryId) -> Seal {
        let mut filled = self.targets.iter().filter(|target| is_filled(target, end));
        let mut replicas = Vec::with_capacity(self.replicas.len());
        let mut complete = Vec::with_capacity(self.replicas.len());
        for replica in &self.replicas {
            let holder = if replica.holds(end) { None } else { filled.next() };
            let bookie = holder.map_or(replica.bookie, |target| target.bookie);
            if replica.holds(end) || holder.is_some() {
                complete.push(bookie);
            }
            replicas.push(bookie);
        }
        Seal { ledger: self.view.ledger, end, replicas, complete }
    }

    fn replica(&mut self, bookie: BookieId) -> Option<&mut Replica> {
        self.replicas.iter_mut().find(|replica| replica.bookie == bookie)
    }

    fn called(
        &mut self,
        bookie: BookieId,
        request: &Request,
        result: Result<Response, String>,
        actions: &mut Vec<Action>,
    ) {
        match request {
            Request::Fence { .. } => self.fence_answered(bookie, result, actions),
            Request::Read(read) => self.read_answered(bookie, *read, result, actions),
            Request::Import { end, .. } => self.import_answered(bookie, *end, &result),
            _ => {}
        }
    }

    fn fence_answered(
        &mut self,
        bookie: BookieId,
        result: Result<Response, String>,
        actions: &mut Vec<Action>,
    ) {
        let (epoch, options, now) = (self.epoch, self.options, self.now);
        let Some(replica) = self.replica(bookie) else { return };
        if !replica.is_asked() {
            return;
        }
        let why = match result {
            Ok(Response::Fenced(state)) if state.fence > epoch => {
                return self.finish(Outcome::Superseded, actions);
            }
            Ok(Response::Fenced(state)) if state.fence == epoch => {
                replica.answered(state);
                self.committed = self.committed.max(state.committed);
                return;
            }
            Ok(Response::Fenced(ReplicaState { fence, .. })) => {
                format!("it is fenced at epoch {fence} only")
            }
            Ok(Response::Deleted) => {
                self.pending = Pending::Read;
                actions.push(Action::ReadMetadata { ledger: self.view.ledger });
                "it says that the ledger is deleted".to_owned()
            }
            Ok(Response::Unknown(why)) | Err(why) => why,
            Ok(other) => format!("it gave an answer that makes no sense: {other:?}"),
        };
        if let Some(replica) = self.replica(bookie) {
            replica.silent(why, now, options.retry_ms, options.retry_max_ms);
        }
    }

    /// Sends what was read on to every replica that waits for just this.
    fn read_answered(
        &mut self,
        source: BookieId,
        read: Read,
        result: Result<Response, String>,
        actions: &mut Vec<Action>,
    ) {
        let waits = Copy::Reading { source, from: read.from };
        let Some(place) = self.replicas.iter().position(|replica| replica.copy == waits) else { return };
        let (entries, why) = match result {
            Ok(Response::Entries(records)) => (self.checked(read.from, records), "it is damaged".to_owned()),
            Ok(Response::Unknown(why)) | Err(why) => (Vec::new(), why),
            Ok(other) => (Vec::new(), format!("it answered {other:?}")),
        };
        let (epoch, committed) = (self.epoch, self.committed);
        let retry_at = self.now + self.options.retry_max_ms;
        let replica = &mut self.replicas[place];
        if entries.is_empty() {
            return replica
                .source_failed(source, format!("entry {} cannot be read from it: {why}", read.from));
        }
        let through = EntryId(read.from.0 + entries.len() as u64);
        replica.copy = Copy::Sent { through, retry_at };
        let (bookie, attempt) = (replica.bookie, replica.attempt);
        actions.extend(entries.into_iter().map(|mut record| {
            record.header.kind = Kind::Append;
            record.header.epoch = epoch;
            record.header.committed = committed;
            Action::Append { bookie, append: Append { attempt, record } }
        }));
    }

    /// The records up to the first one that is not what was asked for: what is
    /// damaged or another ledger's is never copied.
    fn checked(&self, from: EntryId, records: Vec<Record>) -> Vec<Record> {
        let sound = |(entry, record): &(u64, Record)| {
            let header = &record.header;
            header.ledger == self.view.ledger
                && header.own_epoch == self.view.own_epoch
                && header.entry.0 == *entry
                && matches!(header.kind, Kind::Append | Kind::Copied)
                && record.verify().is_ok()
        };
        (from.0..).zip(records).take_while(sound).map(|(_, record)| record).collect()
    }

    fn import_answered(&mut self, bookie: BookieId, end: EntryId, result: &Result<Response, String>) {
        let retry_at = self.now + self.options.retry_max_ms;
        let Some(target) = self.targets.iter_mut().find(|target| target.bookie == bookie) else { return };
        target.asked = false;
        if matches!(result, Ok(Response::Imported)) {
            target.filled = Some(end);
        } else {
            target.retry_at = retry_at;
        }
    }

    fn refused(&mut self, bookie: BookieId, attempt: u32, reason: Refusal, actions: &mut Vec<Action>) {
        let (epoch, ledger) = (self.epoch, self.view.ledger);
        let retry_at = self.now + self.options.retry_max_ms;
        let Some(replica) = self.replica(bookie) else { return };
        if replica.attempt != attempt {
            return;
        }
        match reason {
            Refusal::Fenced(fence) if fence > epoch => self.finish(Outcome::Superseded, actions),
            Refusal::Differs(entry) => {
                replica.refused(retry_at);
                self.alarm(Alarm::Differs { ledger, bookie, entry }, actions);
            }
            _ => replica.refused(retry_at),
        }
    }

    /// The copy's stream is rewound to what the replica has; one that has less
    /// than it answered is asked anew.
    fn gap(&mut self, bookie: BookieId, attempt: u32, accepted: EntryId) {
        let (now, Options { retry_ms, retry_max_ms, .. }) = (self.now, self.options);
        let Some(replica) = self.replica(bookie) else { return };
        if replica.attempt != attempt {
            return;
        }
        let length = replica.answer().map(|answer| answer.length);
        if length.is_some_and(|length| accepted < length) {
            let why = format!("it had more entries than the {accepted} that it has now");
            return replica.silent(why, now, retry_ms, retry_max_ms);
        }
        replica.refused(now + retry_ms);
    }

    fn block(&mut self, blocked: Blocked, actions: &mut Vec<Action>) {
        if self.blocked.as_ref() != Some(&blocked) {
            actions.push(Action::Blocked(blocked.clone()));
            self.blocked = Some(blocked);
        }
    }

    fn alarm(&mut self, alarm: Alarm, actions: &mut Vec<Action>) {
        if self.alarmed.as_ref() != Some(&alarm) {
            actions.push(Action::Alarm(alarm.clone()));
            self.alarmed = Some(alarm);
        }
    }

    fn finish(&mut self, outcome: Outcome, actions: &mut Vec<Action>) {
        if self.outcome.is_none() {
            self.blocked = None;
            self.outcome = Some(outcome.clone());
            actions.push(Action::Done(outcome));
        }
    }
}

/// A target counts once it is filled up to the end, and for nothing but T5.
fn is_filled(target: &Target, end: EntryId) -> bool {
    target.filled == Some(end) || fault::planted(Fault::ImportTargetCounted)
}
