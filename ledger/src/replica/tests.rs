//! The bookie's rules, one by one.

use bytes::Bytes;
use quire_proto::id::{EntryId, Epoch, LedgerId, Nonce};
use uuid::Uuid;

use super::*;
use crate::message::{Refusal, ReplicaState};
use crate::record::{Header, Kind, Payload};

const ONE: ConnectionId = ConnectionId(1);
const TWO: ConnectionId = ConnectionId(2);
const LEDGER: LedgerId = LedgerId(7);

/// A machine with a log that syncs when it is told to.
struct Bookie {
    replicas: Replicas,
    log: Vec<Record>,
    told: Vec<Action>,
    request: u64,
}

impl Bookie {
    fn new() -> Self {
        Self { replicas: Replicas::default(), log: Vec::new(), told: Vec::new(), request: 0 }
    }

    /// With the ledger created.
    fn with_ledger() -> Self {
        let mut bookie = Self::new();
        bookie.ask(|request| Event::Create { request, ledger: LEDGER, creator: nonce(1) });
        assert_eq!(bookie.sync(), [Response::Created]);
        bookie
    }

    /// What its log says, applied in any order: here backwards.
    fn restart(self) -> Self {
        let mut facts = Facts::default();
        for record in self.log.iter().rev() {
            facts.apply(&record.header, &record.payload);
        }
        Self { replicas: Replicas::restore(facts), ..Self::new() }
    }

    fn marked(mut self, mark: u64) -> Self {
        let mut facts = Facts { mark: LedgerId(mark), ..Facts::default() };
        for record in self.log.drain(..) {
            facts.apply(&record.header, &record.payload);
        }
        Self { replicas: Replicas::restore(facts), ..Self::new() }
    }

    fn step(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.replicas.step(event, &mut actions);
        for action in actions {
            match action {
                Action::Log(record) => self.log.push(record),
                told => self.told.push(told),
            }
        }
    }

    fn ask(&mut self, event: impl FnOnce(RequestId) -> Event) {
        self.request += 1;
        self.step(event(RequestId(self.request)));
    }

    fn append(&mut self, connection: ConnectionId, entry: u64, epoch: u64, bytes: &'static [u8]) {
        let append = Append { attempt: 0, record: record(entry, epoch, bytes) };
        self.step(Event::Append { connection, append });
    }

    /// Everything that was told since, in text.
    #[track_caller]
    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
            .into_iter()
            .map(|action| match action {
                Action::Deliver(connection, AppendEvent::Durable(acks)) => acks
                    .iter()
                    .map(|(ledger, durable)| format!("{} hears {ledger} durable {durable}", connection.0))
                    .collect::<Vec<_>>()
                    .join(", "),
                Action::Deliver(connection, AppendEvent::Gap { accepted, attempt, .. }) => {
                    format!("{} hears gap at {accepted} attempt {attempt}", connection.0)
                }
                Action::Deliver(connection, AppendEvent::Refused { reason, .. }) => {
                    format!("{} hears refused: {reason:?}", connection.0)
                }
                Action::Check { entry, .. } => format!("check {entry}"),
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn durable(&mut self) {
        let through = self.replicas.logged();
        self.step(Event::Durable(through));
    }

    /// Syncs and returns the responses.
    fn sync(&mut self) -> Vec<Response> {
        self.durable();
        std::mem::take(&mut self.told)
            .into_iter()
            .filter_map(|action| match action {
                Action::Respond(_, response) => Some(response),
                _ => None,
            })
            .collect()
    }

    fn fence(&mut self, epoch: u64) {
        self.ask(|request| Event::Fence { request, ledger: LEDGER, epoch: Epoch(epoch) });
    }

    fn state(&mut self) -> Response {
        self.ask(|request| Event::State { request, ledger: LEDGER });
        self.sync().remove(0)
    }
}

fn nonce(number: u128) -> Nonce {
    Nonce(Uuid::from_u128(number))
}

/// An entry of the ledger, which was opened with epoch 1.
fn record(entry: u64, epoch: u64, bytes: &'static [u8]) -> Record {
    let payload = Payload::from(Bytes::from_static(bytes));
    let header = Header {
        kind: Kind::Append,
        ledger: LEDGER,
        own_epoch: Epoch(1),
        epoch: Epoch(epoch),
        entry: EntryId(entry),
        committed: EntryId(entry),
        prefix_len: 0,
        payload_len: u32::try_from(payload.len()).unwrap(),
        payload_crc: payload.crc(),
    };
    Record { header, payload }
}

fn state(fence: u64, durable: u64, committed: u64, certain: bool) -> ReplicaState {
    ReplicaState { fence: Epoch(fence), durable: EntryId(durable), committed: EntryId(committed), certain }
}

#[test]
fn b2_create_is_answered_once_durable_and_again_for_the_same_creator_only() {
    let mut bookie = Bookie::new();
    bookie.ask(|request| Event::Create { request, ledger: LEDGER, creator: nonce(1) });
    bookie.ask(|request| Event::Create { request, ledger: LEDGER, creator: nonce(1) });
    assert_eq!(bookie.told(), [""; 0]);
    assert_eq!(bookie.sync(), [Response::Created, Response::Created]);
    let mut bookie = bookie.restart();
    bookie.ask(|request| Event::Create { request, ledger: LEDGER, creator: nonce(2) });
    assert_eq!(bookie.sync(), [Response::Refused(Refusal::OtherCreator)]);
    bookie.ask(|request| Event::Create { request, ledger: LEDGER, creator: nonce(1) });
    assert_eq!(bookie.sync(), [Response::Created]);
    assert!(bookie.log.is_empty());
}

#[test]
fn b2_an_append_to_a_ledger_that_was_never_created_is_refused() {
    let mut bookie = Bookie::new();
    bookie.append(ONE, 0, 1, b"a");
    assert_eq!(bookie.told(), ["1 hears refused: NotCreated"]);
    // Nor does a fence create it, nor may recovery write to it.
    bookie.fence(3);
    bookie.durable();
    bookie.told();
    bookie.append(TWO, 0, 3, b"a");
    assert_eq!(bookie.told(), ["2 hears refused: NotCreated"]);
}

#[test]
fn b3_appends_are_acknowledged_once_a_group_commit_and_connection() {
    let mut bookie = Bookie::with_ledger();
    bookie.append(ONE, 0, 1, b"a");
    bookie.append(ONE, 1, 1, b"b");
    bookie.append(TWO, 2, 1, b"c");
    assert_eq!(bookie.told(), [""; 0]);
    bookie.durable();
    assert_eq!(bookie.told(), ["1 hears 7 durable 2", "2 hears 7 durable 3"]);
}

#[test]
fn b3_what_is_not_synced_is_not_acknowledged() {
    let mut bookie = Bookie::with_ledger();
    bookie.append(ONE, 0, 1, b"a");
    let first = bookie.replicas.logged();
    bookie.append(ONE, 1, 1, b"b");
    bookie.step(Event::Durable(first));
    assert_eq!(bookie.told(), ["1 hears 7 durable 1"]);
    assert_eq!(bookie.state(), Response::State(state(0, 1, 1, true)));
}

#[test]
fn b3_a_pending_duplicate_waits_for_the_same_sync() {
    let mut bookie = Bookie::with_ledger();
    bookie.append(ONE, 0, 1, b"a");
    bookie.append(TWO, 0, 1, b"a");
    assert_eq!(bookie.told(), [""; 0]);
    bookie.durable();
    assert_eq!(bookie.told(), ["1 hears 7 durable 1", "2 hears 7 durable 1"]);
    assert_eq!(bookie.log.len(), 2, "the duplicate is not written again");
}

#[test]
fn b3_a_duplicate_with_other_bytes_is_never_hidden() {
    let mut bookie = Bookie::with_ledger();
    bookie.append(ONE, 0, 1, b"a");
    bookie.append(TWO, 0, 1, b"x");
    assert_eq!(bookie.told(), ["2 hears refused: Differs(EntryId(0))"]);
    bookie.durable();
    assert_eq!(bookie.told(), ["1 hears 7 durable 1"]);
    bookie.append(ConnectionId(3), 0, 1, b"x");
    assert_eq!(bookie.told(), ["check 0"]);
    let original = record(0, 1, b"a").header.payload_crc;
    bookie.step(Event::Checked { check: CheckId(0), payload_crc: Some(original) });
    assert_eq!(bookie.told(), ["3 hears refused: Differs(EntryId(0))"]);
}

#[test]
fn b3_a_duplicate_of_a_durable_entry_is_compared_with_the_log() {
    let mut bookie = Bookie::with_ledger();
    bookie.append(ONE, 0, 1, b"a");
    bookie.durable();
    bookie.told();
    for (check, crc, expected) in [
        (0, Some(record(0, 1, b"a").header.payload_crc), vec!["2 hears 7 durable 1"]),
        (1, None, vec!["2 hears refused: Unreadable(EntryId(0))"]),
    ] {
        bookie.append(TWO, 0, 1, b"a");
        assert_eq!(bookie.told(), ["check 0"]);
        bookie.step(Event::Checked { check: CheckId(check), payload_crc: crc });
        assert_eq!(bookie.told(), expected);
    }
}

#[test]
fn b3_one_gap_is_told_and_what_follows_of_the_attempt_is_dropped() {
    let mut bookie = Bookie::with_ledger();
    let send = |bookie: &mut Bookie, attempt, entry| {
        let append = Append { attempt, record: record(entry, 1, b"a") };
        bookie.step(Event::Append { connection: ONE, append });
    };
    send(&mut bookie, 0, 2);
    send(&mut bookie, 0, 3);
    send(&mut bookie, 0, 0);
    assert_eq!(bookie.told(), ["1 hears gap at 0 attempt 0"]);
    send(&mut bookie, 1, 0);
    send(&mut bookie, 0, 1);
    send(&mut bookie, 1, 1);
    bookie.durable();
    assert_eq!(bookie.told(), ["1 hears 7 durable 2"]);
    assert_eq!(bookie.log.len(), 3);
    // A new connection begins anew.
    bookie.step(Event::Disconnected(ONE));
    send(&mut bookie, 0, 2);
    bookie.durable();
    assert_eq!(bookie.told(), ["1 hears 7 durable 3"]);
}

#[test]
fn b3_a_corrupt_append_ends_its_attempt() {
    let mut bookie = Bookie::with_ledger();
    bookie.step(Event::Corrupt { connection: ONE, ledger: LEDGER, epoch: Epoch(1), attempt: 0 });
    bookie.append(ONE, 0, 1, b"a");
    assert_eq!(bookie.told(), ["1 hears refused: Corrupt"]);
}

#[test]
fn b4_a_fence_closes_admission_at_once_and_answers_after_its_sync() {
    let mut bookie = Bookie::with_ledger();
    bookie.append(ONE, 0, 1, b"a");
    bookie.fence(2);
    bookie.append(ONE, 1, 1, b"b");
    assert_eq!(bookie.told(), ["1 hears refused: Fenced(Epoch(2))"]);
    assert_eq!(bookie.sync(), [Response::Fenced(state(2, 1, 0, true))]);
    assert_eq!(bookie.log.last().unwrap().header.kind, Kind::Fence, "behind the accepted append");
    let mut bookie = bookie.restart();
    bookie.append(ONE, 1, 1, b"b");
    assert_eq!(bookie.told(), ["1 hears refused: Fenced(Epoch(2))"]);
    bookie.append(TWO, 1, 2, b"b");
    bookie.durable();
    assert_eq!(bookie.told(), ["2 hears 7 durable 2"]);
}

#[test]
fn b4_a_fence_never_lowers() {
    let mut bookie = Bookie::with_ledger();
    bookie.fence(5);
    bookie.fence(3);
    assert_eq!(
        bookie.sync(),
        [Response::Fenced(state(5, 0, 0, true)), Response::Fenced(state(5, 0, 0, true))]
    );
    bookie.append(ONE, 0, 4, b"a");
    assert_eq!(bookie.told(), ["1 hears refused: Fenced(Epoch(5))"]);
}

#[test]
fn b4_a_ledger_that_is_not_known_is_fenced_durably_and_uncertain_for_good() {
    let mut bookie = Bookie::new();
    bookie.fence(4);
    assert_eq!(bookie.told(), [""; 0]);
    assert_eq!(bookie.sync(), [Response::Fenced(state(4, 0, 0, false))]);
    bookie.ask(|request| Event::Create { request, ledger: LEDGER, creator: nonce(1) });
    assert_eq!(bookie.sync(), [Response::Created]);
    bookie.append(ONE, 0, 1, b"a");
    assert_eq!(bookie.told(), ["1 hears refused: Fenced(Epoch(4))"]);
    let mut bookie = bookie.restart();
    bookie.fence(4);
    assert_eq!(bookie.sync(), [Response::Fenced(state(4, 0, 0, false))]);
}

#[test]
fn b4_the_answer_tells_the_greatest_committed_that_was_heard() {
    let mut bookie = Bookie::with_ledger();
    for entry in 0..3 {
        bookie.append(ONE, entry, 1, b"a");
    }
    bookie.fence(2);
    assert_eq!(bookie.sync(), [Response::Fenced(state(2, 3, 2, true))]);
}

#[test]
fn b6_a_marked_bookie_bars_what_is_below_x() {
    let mut bookie = Bookie::with_ledger().marked(8);
    bookie.append(ONE, 0, 1, b"a");
    bookie.ask(|request| Event::Create { request, ledger: LEDGER, creator: nonce(1) });
    bookie.fence(1);
    assert_eq!(
        bookie.told(),
        ["1 hears refused: Marked(LedgerId(8))", "Respond(RequestId(1), Refused(Marked(LedgerId(8))))",]
    );
    assert_eq!(bookie.sync(), [Response::Fenced(state(1, 0, 0, false))]);
    // At X and above all is as ever.
    bookie.ask(|request| Event::Create { request, ledger: LedgerId(8), creator: nonce(1) });
    assert_eq!(bookie.sync(), [Response::Created]);
}

#[test]
fn b6_recovery_creates_a_ledger_that_was_lost() {
    let mut bookie = Bookie::new().marked(8);
    assert!(matches!(bookie.state(), Response::Unknown(_)), "a lost ledger is not absent");
    bookie.append(ONE, 0, 2, b"a");
    bookie.durable();
    assert_eq!(bookie.told(), ["1 hears 7 durable 1"]);
    assert_eq!(bookie.state(), Response::State(state(0, 1, 0, false)));
}

#[test]
fn b6_a_log_with_a_hole_has_the_length_of_its_first_missing_entry() {
    let mut bookie = Bookie::with_ledger();
    for entry in 0..5 {
        bookie.append(ONE, entry, 1, b"a");
    }
    bookie.log.remove(3);
    let mut bookie = bookie.marked(8);
    assert_eq!(bookie.state(), Response::State(state(0, 2, 4, false)));
}

#[test]
fn b7_an_import_takes_no_appends_and_counts_nowhere() {
    let mut bookie = Bookie::new();
    bookie.ask(|request| Event::Import { request, ledger: LEDGER, end: EntryId(2) });
    assert_eq!(bookie.told(), [""; 0]);
    bookie.durable();
    let (from, end) = (EntryId(0), EntryId(2));
    assert_eq!(bookie.told, [Action::Import { request: RequestId(1), ledger: LEDGER, from, end }]);
    bookie.told();
    bookie.append(ONE, 0, 9, b"a");
    assert_eq!(bookie.told(), ["1 hears refused: Importing"]);
    for entry in [0, 1, 2] {
        bookie.step(Event::Imported(record(entry, 1, b"a")));
    }
    bookie.durable();
    let durable = EntryId(2);
    assert_eq!(bookie.told, [Action::ImportDurable { ledger: LEDGER, durable }], "and nothing past the end");
    bookie.told();
    bookie.fence(3);
    assert_eq!(bookie.sync(), [Response::Fenced(state(3, 2, 1, false))]);
    let mut bookie = bookie.restart();
    bookie.append(ONE, 2, 9, b"a");
    assert_eq!(bookie.told(), ["1 hears refused: Importing"]);
}

#[test]
fn b7_an_import_goes_on_where_it_was_cut_short() {
    let mut bookie = Bookie::new();
    let import = |request| Event::Import { request, ledger: LEDGER, end: EntryId(2) };
    bookie.ask(import);
    bookie.durable();
    bookie.step(Event::Imported(record(0, 1, b"a")));
    let mut bookie = bookie.restart();
    bookie.ask(import);
    let (from, end) = (EntryId(1), EntryId(2));
    assert_eq!(bookie.told, [Action::Import { request: RequestId(1), ledger: LEDGER, from, end }]);
}

#[test]
fn b7_an_import_asked_for_again_waits_for_what_is_not_durable_yet() {
    let mut bookie = Bookie::new();
    let import = |request| Event::Import { request, ledger: LEDGER, end: EntryId(2) };
    bookie.ask(import);
    bookie.durable();
    bookie.told();
    bookie.step(Event::Imported(record(0, 1, b"a")));
    bookie.ask(import);
    bookie.step(Event::Imported(record(1, 1, b"a")));
    // The import's own record, and entry 0.
    bookie.step(Event::Durable(Ticket(2)));
    let (from, end) = (EntryId(1), EntryId(2));
    let again = Action::Import { request: RequestId(2), ledger: LEDGER, from, end };
    assert!(bookie.told.contains(&again), "{:?}", bookie.told);
    bookie.told();
    bookie.durable();
    assert_eq!(bookie.told, [Action::ImportDurable { ledger: LEDGER, durable: end }]);
}

#[test]
fn b8_a_deleted_ledger_answers_deleted_for_good() {
    let mut bookie = Bookie::with_ledger();
    bookie.append(ONE, 0, 1, b"a");
    let delete = |request| Event::Delete { request, first: LedgerId(5), last: LedgerId(7) };
    bookie.ask(delete);
    bookie.append(TWO, 1, 1, b"b");
    assert_eq!(bookie.told(), ["2 hears refused: Deleted"]);
    assert_eq!(bookie.sync(), [Response::Deleted]);
    let mut bookie = bookie.restart();
    bookie.ask(|request| Event::Create { request, ledger: LEDGER, creator: nonce(1) });
    bookie.fence(9);
    bookie.ask(|request| Event::Import { request, ledger: LEDGER, end: EntryId(1) });
    bookie.ask(delete);
    assert_eq!(
        bookie.sync(),
        [Response::Refused(Refusal::Deleted), Response::Deleted, Response::Deleted, Response::Deleted]
    );
    assert_eq!(bookie.state(), Response::Deleted);
    bookie.append(TWO, 0, 9, b"b");
    assert_eq!(bookie.told(), ["2 hears refused: Deleted"]);
}

#[test]
fn l6_a_full_bookie_takes_what_ends_ledgers_first() {
    let mut bookie = Bookie::with_ledger();
    bookie.step(Event::Admission(Admission::Recovery));
    bookie.append(ONE, 0, 1, b"a");
    assert_eq!(bookie.told(), ["1 hears refused: ReadOnly"]);
    bookie.ask(|request| Event::Create { request, ledger: LedgerId(9), creator: nonce(1) });
    assert_eq!(bookie.sync(), [Response::Refused(Refusal::ReadOnly)]);
    bookie.append(TWO, 0, 2, b"a");
    bookie.durable();
    assert_eq!(bookie.told(), ["2 hears 7 durable 1"]);
    bookie.step(Event::Admission(Admission::Fences));
    bookie.append(TWO, 1, 2, b"a");
    assert_eq!(bookie.told(), ["2 hears refused: ReadOnly"]);
    bookie.fence(3);
    bookie.ask(|request| Event::Delete { request, first: LEDGER, last: LEDGER });
    assert_eq!(bookie.sync().len(), 2);
}
