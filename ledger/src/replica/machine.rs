//! The machine: checking and appending are one step (B3).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quire_proto::id::{EntryId, Epoch, LedgerId, Nonce};

use super::facts::UNKNOWN_WHEN_FENCED;
use super::stream::{Attempt, Streams};
use super::{
    Action, Admission, CheckId, ConnectionId, Event, Facts, Ledger, LedgerFacts, RangeSet, RequestId, Ticket,
};
use crate::fault::{Fault, planted};
use crate::message::{Append, AppendEvent, Refusal, ReplicaState, Response};
use crate::record::{Header, Kind, Payload, Record};

/// All ledgers of one bookie (B2 to B8).
#[derive(Debug, Default)]
pub struct Replicas {
    ledgers: BTreeMap<LedgerId, Ledger>,
    tombstones: RangeSet,
    mark: LedgerId,
    admission: Admission,
    streams: Streams,
    logged: Ticket,
    waiting: VecDeque<(Ticket, Waiting)>,
    checks: BTreeMap<CheckId, Check>,
    next_check: CheckId,
}

/// What is answered once the log has synced.
#[derive(Debug)]
enum Waiting {
    Entry { ledger: LedgerId, entry: EntryId, connection: Option<ConnectionId> },
    Duplicate { ledger: LedgerId, entry: EntryId, connection: ConnectionId },
    Fence { ledger: LedgerId, epoch: Epoch, request: RequestId },
    Import { ledger: LedgerId, request: RequestId },
    Response { request: RequestId, response: Response },
}

#[derive(Debug)]
struct Check {
    connection: ConnectionId,
    ledger: LedgerId,
    entry: EntryId,
    attempt: Attempt,
    payload_crc: u32,
}

/// What an append is, by B3.
enum Verdict {
    Next,
    PendingDuplicate,
    DurableDuplicate,
    Gap(EntryId),
    Refused(Refusal),
}

type Acks = BTreeMap<ConnectionId, BTreeMap<LedgerId, EntryId>>;

impl Replicas {
    /// The ledgers of a log that was replayed. Everything in it counts as
    /// durable: the caller has synced it.
    #[must_use]
    pub fn restore(facts: Facts) -> Self {
        let ledgers = facts.ledgers.into_iter().map(|(id, facts)| (id, restored(&facts))).collect();
        let mark = if planted(Fault::MarkCleared) { LedgerId(0) } else { facts.mark };
        Self { ledgers, tombstones: facts.tombstones, mark, ..Self::default() }
    }

    /// One step.
    pub fn step(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Append { connection, append } => self.append(connection, append, actions),
            Event::Corrupt { connection, ledger, epoch, attempt } => {
                let attempt = (epoch, attempt);
                if self.streams.admits(connection, ledger, attempt) {
                    self.refuse(connection, ledger, attempt, Refusal::Corrupt, actions);
                }
            }
            Event::Create { request, ledger, creator } => self.create(request, ledger, creator, actions),
            Event::Fence { request, ledger, epoch } => self.fence(request, ledger, epoch, actions),
            Event::State { request, ledger } => self.answer_state(request, ledger, actions),
            Event::Import { request, ledger, end } => self.import(request, ledger, end, actions),
            Event::Imported(record) => self.imported(record, actions),
            Event::Delete { request, first, last } => self.delete(request, first, last, actions),
            Event::Checked { check, payload_crc } => self.checked(check, payload_crc, actions),
            Event::Durable(through) => self.durable(through, actions),
            Event::Admission(admission) => self.admission = admission,
            Event::Disconnected(connection) => self.streams.disconnect(connection),
        }
    }

    /// The ledgers that are not deleted, in order.
    pub fn ledgers(&self) -> impl Iterator<Item = (LedgerId, &Ledger)> {
        self.ledgers.iter().map(|(&id, ledger)| (id, ledger))
    }

    /// A ledger that is not deleted.
    #[must_use]
    pub fn ledger(&self, ledger: LedgerId) -> Option<&Ledger> {
        self.ledgers.get(&ledger)
    }

    /// Deleted ids (B8).
    #[must_use]
    pub const fn tombstones(&self) -> &RangeSet {
        &self.tombstones
    }

    /// X (B6), 0 when nothing was ever lost.
    #[must_use]
    pub const fn mark(&self) -> LedgerId {
        self.mark
    }

    /// The last record that was handed to the log.
    #[must_use]
    pub const fn logged(&self) -> Ticket {
        self.logged
    }

    /// What is taken at present.
    #[must_use]
    pub const fn admission(&self) -> Admission {
        self.admission
    }

    fn append(&mut self, connection: ConnectionId, append: Append, actions: &mut Vec<Action>) {
        let Append { attempt, record } = append;
        let Header { ledger, epoch, entry, payload_crc, .. } = record.header;
        let attempt = (epoch, attempt);
        if !self.streams.admits(connection, ledger, attempt) {
            return;
        }
        match self.judge(&record.header) {
            Verdict::Next => self.admit(record, Some(connection), actions),
            Verdict::PendingDuplicate => {
                let original = self.ledgers.get(&ledger).and_then(|state| state.pending_crc(entry));
                if original == Some(payload_crc) {
                    self.wait(Waiting::Duplicate { ledger, entry, connection }, actions);
                } else {
                    self.refuse(connection, ledger, attempt, Refusal::Differs(entry), actions);
                }
            }
            Verdict::DurableDuplicate => {
                let check = self.next_check;
                self.next_check = CheckId(check.0 + 1);
                self.checks.insert(check, Check { connection, ledger, entry, attempt, payload_crc });
                actions.push(Action::Check { check, ledger, entry });
            }
            Verdict::Gap(accepted) => {
                self.streams.break_off(connection, ledger, attempt);
                let gap = AppendEvent::Gap { ledger, attempt: attempt.1, accepted };
                actions.push(Action::Deliver(connection, gap));
            }
            Verdict::Refused(reason) => self.refuse(connection, ledger, attempt, reason, actions),
        }
    }

    /// B3, and B6 for ids below X.
    fn judge(&self, header: &Header) -> Verdict {
        let Header { ledger, entry, .. } = *header;
        if self.tombstones.contains(ledger.0) {
            return Verdict::Refused(Refusal::Deleted);
        }
        if self.is_barred(ledger) && !header.is_recovery() {
            return Verdict::Refused(Refusal::Marked(self.mark));
        }
        let lost = Ledger::new(None);
        let state = match self.ledgers.get(&ledger) {
            Some(state) => state,
            None if ledger < self.mark && header.is_recovery() => &lost,
            None => return Verdict::Refused(Refusal::NotCreated),
        };
        if state.import.is_some() && !planted(Fault::ImportTargetCounted) {
            return Verdict::Refused(Refusal::Importing);
        }
        if state.creator.is_none() && ledger >= self.mark {
            return Verdict::Refused(Refusal::NotCreated);
        }
        if header.epoch < state.fence {
            return Verdict::Refused(Refusal::Fenced(state.fence));
        }
        if entry < state.durable {
            return Verdict::DurableDuplicate;
        }
        if entry < state.accepted {
            return Verdict::PendingDuplicate;
        }
        if entry > state.accepted {
            return Verdict::Gap(state.accepted);
        }
        let needed = if header.is_recovery() { Admission::Recovery } else { Admission::All };
        if self.admission < needed {
            return Verdict::Refused(Refusal::ReadOnly);
        }
        Verdict::Next
    }

    fn is_barred(&self, ledger: LedgerId) -> bool {
        if planted(Fault::NoBar) {
            return false;
        }
        let by_holdings = planted(Fault::BarByHoldings) && self.ledgers.contains_key(&ledger);
        ledger < self.mark && !by_holdings
    }

    /// Takes the next entry of a ledger.
    fn admit(&mut self, record: Record, connection: Option<ConnectionId>, actions: &mut Vec<Action>) {
        let Header { ledger, entry, committed, payload_crc, .. } = record.header;
        let state = self.ledgers.entry(ledger).or_insert_with(|| Ledger::new(None));
        state.accepted = entry.next();
        state.committed = state.committed.max(committed);
        state.pending.push_back(payload_crc);
        self.log(record, Waiting::Entry { ledger, entry, connection }, actions);
    }

    fn refuse(
        &mut self,
        connection: ConnectionId,
        ledger: LedgerId,
        attempt: Attempt,
        reason: Refusal,
        actions: &mut Vec<Action>,
    ) {
        self.streams.break_off(connection, ledger, attempt);
        actions
            .push(Action::Deliver(connection, AppendEvent::Refused { ledger, attempt: attempt.1, reason }));
    }

    /// B2.
    fn create(&mut self, request: RequestId, ledger: LedgerId, creator: Nonce, actions: &mut Vec<Action>) {
        let response = match self.judge_creation(ledger, creator) {
            Ok(true) => {
                self.ledgers.entry(ledger).or_insert_with(|| Ledger::new(None)).creator = Some(creator);
                let payload = Payload::from(Bytes::copy_from_slice(creator.0.as_bytes()));
                let header = Header { kind: Kind::Create, ledger, ..blank(&payload) };
                let waiting = Waiting::Response { request, response: Response::Created };
                return self.log(Record { header, payload }, waiting, actions);
            }
            Ok(false) => Response::Created,
            Err(refusal) => Response::Refused(refusal),
        };
        self.wait(Waiting::Response { request, response }, actions);
    }

    /// Whether a record is to be written; not when the same creation is there.
    fn judge_creation(&mut self, ledger: LedgerId, creator: Nonce) -> Result<bool, Refusal> {
        if self.tombstones.contains(ledger.0) {
            return Err(Refusal::Deleted);
        }
        if ledger < self.mark {
            if planted(Fault::CreateClearsMark) {
                self.mark = LedgerId(0);
            } else if self.is_barred(ledger) {
                return Err(Refusal::Marked(self.mark));
            }
        }
        match self.ledgers.get(&ledger) {
            Some(state) if state.import.is_some() => Err(Refusal::Importing),
            Some(state) if state.creator == Some(creator) => Ok(false),
            Some(state) if state.creator.is_some() => Err(Refusal::OtherCreator),
            _ if self.admission < Admission::All => Err(Refusal::ReadOnly),
            _ => Ok(true),
        }
    }

    /// B4: the record stands behind all accepted appends.
    fn fence(&mut self, request: RequestId, ledger: LedgerId, epoch: Epoch, actions: &mut Vec<Action>) {
        if self.tombstones.contains(ledger.0) {
            let waiting = Waiting::Response { request, response: Response::Deleted };
            return self.wait(waiting, actions);
        }
        let unknown = !self.ledgers.contains_key(&ledger);
        let state = self.ledgers.entry(ledger).or_insert_with(|| Ledger::new(None));
        state.unknown_when_fenced |= unknown;
        let waiting = Waiting::Fence { ledger, epoch, request };
        if epoch <= state.fence && !unknown {
            return self.wait(waiting, actions);
        }
        state.fence = state.fence.max(epoch);
        let entry = if unknown { UNKNOWN_WHEN_FENCED } else { EntryId(0) };
        let payload = Payload::default();
        let header = Header { kind: Kind::Fence, ledger, epoch, entry, ..blank(&payload) };
        if planted(Fault::FenceNotDurable) {
            actions.push(Action::Respond(request, Response::Fenced(self.fenced_state(ledger))));
            return;
        }
        self.log(Record { header, payload }, waiting, actions);
    }

    fn answer_state(&mut self, request: RequestId, ledger: LedgerId, actions: &mut Vec<Action>) {
        let response = match self.ledgers.get(&ledger) {
            _ if self.tombstones.contains(ledger.0) => {
                let waiting = Waiting::Response { request, response: Response::Deleted };
                return self.wait(waiting, actions);
            }
            Some(_) => Response::State(self.durable_state(ledger)),
            None if ledger < self.mark => Response::Unknown(lost_tail(self.mark)),
            None => Response::Absent,
        };
        actions.push(Action::Respond(request, response));
    }

    /// B7. An import that was cut short goes on where it was.
    fn import(&mut self, request: RequestId, ledger: LedgerId, end: EntryId, actions: &mut Vec<Action>) {
        if self.tombstones.contains(ledger.0) {
            let waiting = Waiting::Response { request, response: Response::Deleted };
            return self.wait(waiting, actions);
        }
        if self.admission < Admission::All {
            let response = Response::Refused(Refusal::ReadOnly);
            return actions.push(Action::Respond(request, response));
        }
        let state = self.ledgers.entry(ledger).or_insert_with(|| Ledger::new(None));
        let waiting = Waiting::Import { ledger, request };
        if state.import >= Some(end) {
            return self.wait(waiting, actions);
        }
        state.import = Some(end);
        let payload = Payload::default();
        let header = Header { kind: Kind::Import, ledger, entry: end, ..blank(&payload) };
        self.log(Record { header, payload }, waiting, actions);
    }

    fn imported(&mut self, mut record: Record, actions: &mut Vec<Action>) {
        let Header { ledger, entry, .. } = record.header;
        let takes = self
            .ledgers
            .get(&ledger)
            .is_some_and(|state| state.import > Some(entry) && state.accepted == entry);
        if takes {
            record.header.kind = Kind::Append;
            self.admit(record, None, actions);
        }
    }

    /// B8: closes admission at once, answers once the tombstone is durable.
    fn delete(&mut self, request: RequestId, first: LedgerId, last: LedgerId, actions: &mut Vec<Action>) {
        if first > last {
            let response = Response::Unknown(format!("ledgers {first} to {last} are no range"));
            return actions.push(Action::Respond(request, response));
        }
        let waiting = Waiting::Response { request, response: Response::Deleted };
        if self.tombstones.covers(first.0, last.0) {
            return self.wait(waiting, actions);
        }
        self.tombstones.insert(first.0, last.0);
        let gone: Vec<_> = self.ledgers.range(first..=last).map(|(&ledger, _)| ledger).collect();
        for ledger in gone {
            self.ledgers.remove(&ledger);
        }
        let payload = Payload::default();
        let header =
            Header { kind: Kind::Tombstone, ledger: first, entry: EntryId(last.0), ..blank(&payload) };
        self.log(Record { header, payload }, waiting, actions);
    }

    fn checked(&mut self, check: CheckId, original: Option<u32>, actions: &mut Vec<Action>) {
        let Some(check) = self.checks.remove(&check) else { return };
        let Check { connection, ledger, entry, attempt, payload_crc } = check;
        match original {
            Some(crc) if crc == payload_crc => {
                let event = AppendEvent::Durable(vec![(ledger, entry.next())]);
                actions.push(Action::Deliver(connection, event));
            }
            Some(_) => self.refuse(connection, ledger, attempt, Refusal::Differs(entry), actions),
            // It can't be told: the writer gives this replica up.
            None => self.refuse(connection, ledger, attempt, Refusal::Unreadable(entry), actions),
        }
    }

    fn durable(&mut self, through: Ticket, actions: &mut Vec<Action>) {
        let mut acks = Acks::new();
        let mut imports = BTreeMap::new();
        while self.waiting.front().is_some_and(|&(ticket, _)| ticket <= through) {
            let Some((_, waiting)) = self.waiting.pop_front() else { break };
            match waiting {
                Waiting::Entry { ledger, entry, connection } => {
                    let Some(state) = self.ledgers.get_mut(&ledger) else { continue };
                    state.durable = entry.next();
                    state.pending.pop_front();
                    match connection {
                        Some(connection) => ack(&mut acks, connection, ledger, entry),
                        None => _ = imports.insert(ledger, state.durable),
                    }
                }
                Waiting::Duplicate { ledger, entry, connection } => {
                    ack(&mut acks, connection, ledger, entry);
                }
                waiting => self.answer(waiting, actions),
            }
        }
        for (connection, ledgers) in acks {
            let event = AppendEvent::Durable(ledgers.into_iter().collect());
            actions.push(Action::Deliver(connection, event));
        }
        for (ledger, durable) in imports {
            actions.push(Action::ImportDurable { ledger, durable });
        }
    }

    fn answer(&mut self, waiting: Waiting, actions: &mut Vec<Action>) {
        match waiting {
            Waiting::Fence { ledger, epoch, request } => {
                let response = match self.ledgers.get_mut(&ledger) {
                    Some(state) => {
                        state.fence_durable = state.fence_durable.max(epoch.min(state.fence));
                        Response::Fenced(self.fenced_state(ledger))
                    }
                    None => Response::Deleted,
                };
                actions.push(Action::Respond(request, response));
            }
            Waiting::Import { ledger, request } => {
                let action = match self.ledgers.get(&ledger) {
                    // More may be accepted: it is heard of when it is durable.
                    Some(Ledger { import: Some(end), durable, .. }) => {
                        Action::Import { request, ledger, from: *durable, end: *end }
                    }
                    _ => Action::Respond(request, Response::Deleted),
                };
                actions.push(action);
            }
            Waiting::Response { request, response } => actions.push(Action::Respond(request, response)),
            Waiting::Entry { .. } | Waiting::Duplicate { .. } => {}
        }
    }

    /// Hands a record to the log; `waiting` is answered when it is durable.
    fn log(&mut self, record: Record, waiting: Waiting, actions: &mut Vec<Action>) {
        self.logged = Ticket(self.logged.0 + 1);
        self.waiting.push_back((self.logged, waiting));
        actions.push(Action::Log(record));
    }

    /// Answers when everything that was handed to the log so far is durable.
    fn wait(&mut self, waiting: Waiting, actions: &mut Vec<Action>) {
        if !self.waiting.is_empty() {
            return self.waiting.push_back((self.logged, waiting));
        }
        match waiting {
            Waiting::Duplicate { ledger, entry, connection } => {
                let event = AppendEvent::Durable(vec![(ledger, entry.next())]);
                actions.push(Action::Deliver(connection, event));
            }
            waiting => self.answer(waiting, actions),
        }
    }

    /// The answer to a fence: certain only for a ledger that was known all the
    /// time (B4, B6).
    fn fenced_state(&self, ledger: LedgerId) -> ReplicaState {
        let state = self.durable_state(ledger);
        let fence = self.ledgers.get(&ledger).map_or(state.fence, |ledger| ledger.fence);
        ReplicaState { fence, ..state }
    }

    fn durable_state(&self, ledger: LedgerId) -> ReplicaState {
        let Some(state) = self.ledgers.get(&ledger) else {
            return ReplicaState {
                fence: Epoch(0),
                durable: EntryId(0),
                committed: EntryId(0),
                certain: false,
            };
        };
        ReplicaState {
            fence: state.fence_durable,
            durable: state.durable,
            committed: state.committed,
            certain: self.is_certain(ledger, state),
        }
    }

    fn is_certain(&self, ledger: LedgerId, state: &Ledger) -> bool {
        ledger >= self.mark
            && state.creator.is_some()
            && !state.unknown_when_fenced
            && (state.import.is_none() || planted(Fault::ImportTargetCounted))
    }
}

fn restored(facts: &LedgerFacts) -> Ledger {
    let length = facts.length();
    Ledger {
        fence: facts.fence,
        fence_durable: facts.fence,
        accepted: length,
        durable: length,
        committed: facts.committed,
        unknown_when_fenced: facts.unknown_when_fenced,
        import: facts.import,
        ..Ledger::new(facts.creator)
    }
}

fn ack(acks: &mut Acks, connection: ConnectionId, ledger: LedgerId, entry: EntryId) {
    let durable = acks.entry(connection).or_default().entry(ledger).or_default();
    *durable = (*durable).max(entry.next());
}

/// A header with nothing but what it must say of its payload.
fn blank(payload: &Payload) -> Header {
    Header {
        kind: Kind::Mark,
        ledger: LedgerId(0),
        own_epoch: Epoch(0),
        epoch: Epoch(0),
        entry: EntryId(0),
        committed: EntryId(0),
        prefix_len: 0,
        payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        payload_crc: payload.crc(),
    }
}

/// Why a marked bookie does not know.
fn lost_tail(mark: LedgerId) -> String {
    format!("the bookie lost a tail of its log and is uncertain about every ledger below {mark}")
}
