use bytes::Bytes;
use quire_ledger::message::ReplicaState;
use quire_ledger::record::{Header, Kind, Payload, Record};
use quire_metadata::chain::{ChainSequence, Segment as Place};
use quire_metadata::operation::Operation;
use quire_metadata::partition::Leadership;
use quire_metadata::store::Revision;
use quire_metadata::view::Link;
use quire_proto::id::{EntryId, PartitionId};
use uuid::Uuid;

use super::*;
use crate::bookies::fake::record;
use crate::entry::EntryHeader;
use crate::producer::Snapshot;
use crate::testing::topic;

const MINE: Epoch = Epoch(2);

fn bookie(n: u128) -> BookieId {
    BookieId(Uuid::from_u128(n))
}

fn at(millis: u64) -> Now {
    Now { millis: Millis(millis), wall_ms: 7 }
}

pub fn ledger(id: u64, state: LedgerState) -> Versioned<LedgerMetadata> {
    let value = LedgerMetadata {
        id: LedgerId(id),
        owner: PartitionId::default(),
        epoch: Epoch(1),
        replicas: vec![bookie(1), bookie(2)],
        ack_quorum: 1,
        targets: Vec::new(),
        former: Vec::new(),
        state,
        created_ms: 0,
    };
    Versioned { value, revision: Revision(5) }
}

pub fn sealed(next_offset: u64) -> LedgerState {
    LedgerState::Sealed(Sealed {
        end: EntryId(1),
        next_offset: Offset(next_offset),
        bytes: 1,
        complete: vec![bookie(1), bookie(2)],
        max_timestamp_ms: i64::MIN,
        sealed_ms: 0,
    })
}

/// Entry 0 of a ledger: a whole snapshot of the state below this offset.
pub fn snapshot(ledger: u64, next_offset: u64) -> Record {
    let snapshot = Snapshot {
        next_offset: Offset(next_offset),
        running_max_ms: 3,
        producers: std::collections::HashMap::new(),
    };
    let payload: Payload = snapshot.encode(0).remove(0);
    let len = u32::try_from(payload.len()).unwrap();
    let header = Header {
        kind: Kind::Append,
        ledger: LedgerId(ledger),
        own_epoch: Epoch(1),
        epoch: Epoch(1),
        entry: EntryId(0),
        committed: EntryId(0),
        prefix_len: len,
        payload_len: len,
        payload_crc: payload.crc(),
    };
    Record { header, payload }
}

/// A promotion of a partition whose chain begins at offset 4.
struct Case {
    promotion: Promotion,
    effects: Vec<Effect>,
}

pub fn promotion(last: Option<Versioned<LedgerMetadata>>) -> Promotion {
    let id = PartitionId::default();
    let chain = last.iter().map(|ledger| Link {
        sequence: ChainSequence(0),
        segment: Versioned {
            value: Place { base_offset: Offset(4), ledger: ledger.value.id },
            revision: Revision(5),
        },
        ledger: ledger.clone(),
    });
    let view = PartitionView { id, partition: None, chain: chain.collect(), revision: Revision(5) };
    let leadership = Leadership { partition: id, epoch: MINE, minted: Revision(6) };
    let log = PartitionLog::new(id, topic());
    let taken = TakenOver { leadership, last };
    Promotion::new(log, &view, taken, Options::default())
}

impl Case {
    fn new(last: Option<Versioned<LedgerMetadata>>) -> Self {
        let mut case = Self { promotion: promotion(last), effects: Vec::new() };
        case.promotion.start(at(0), &mut case.effects);
        case
    }

    fn step(&mut self, millis: u64, event: Event) {
        self.promotion.step(at(millis), event, &mut self.effects);
    }

    /// The one request that is to be sent.
    #[track_caller]
    fn call(&mut self) -> (BookieId, Request) {
        let mut effects = std::mem::take(&mut self.effects);
        match (effects.pop(), effects.is_empty()) {
            (Some(Effect::Call { bookie, request }), true) => (bookie, request),
            other => panic!("not one request: {other:?}, {effects:?}"),
        }
    }

    fn answer(&mut self, millis: u64, (bookie, request): (BookieId, Request), response: Response) {
        self.step(millis, Event::Called { bookie, request, result: Ok(response) });
    }

    /// Both replicas answer that they cannot give what is asked for next.
    #[track_caller]
    fn answer_damaged(&mut self, millis: u64) {
        for _replica in 0..2 {
            let call = self.call();
            self.answer(millis, call, Response::Unknown("damaged".to_owned()));
            self.effects.retain(|effect| !matches!(effect, Effect::ReadFailed(_) | Effect::ReadEpoch));
        }
    }

    /// An operator accepts what it waits for.
    #[track_caller]
    fn accept_loss(&mut self, millis: u64) {
        let waiting = self.promotion.waiting().expect("it waits");
        self.step(millis, Event::AcceptLoss(waiting));
    }

    #[track_caller]
    fn promoted(&mut self) -> Box<Promoted> {
        match self.effects.pop() {
            Some(Effect::Promoted(promoted)) => promoted,
            other => panic!("it is not promoted: {other:?}"),
        }
    }
}

#[test]
fn without_a_chain_nothing_is_read() {
    let promoted = Case::new(None).promoted();
    assert_eq!((promoted.restored.next_offset, promoted.restored.running_max_ms), (Offset(0), i64::MIN));
    assert_eq!(promoted.log.standing(), (Standing::Recovering, MINE));
}

#[test]
fn the_state_is_restored_from_any_replica() {
    let mut case = Case::new(Some(ledger(9, sealed(4))));
    let first = case.call();
    case.answer(1, first.clone(), Response::Absent);
    assert!(matches!(case.effects.remove(0), Effect::ReadFailed(failed) if !failed.is_last));
    let second = case.call();
    assert_ne!(second.0, first.0);
    case.answer(2, second, Response::Entries(vec![snapshot(9, 4)]));
    let promoted = case.promoted();
    assert_eq!((promoted.restored.next_offset, promoted.restored.running_max_ms), (Offset(4), 3));
    assert_eq!(promoted.last.map(|last| last.segment.ledger), Some(LedgerId(9)));
}

#[test]
fn another_entry_is_not_taken_for_the_one_asked_for() {
    let mut case = Case::new(Some(ledger(9, sealed(4))));
    let first = case.call();
    case.answer(1, first, Response::Entries(vec![snapshot(8, 4)]));
    assert!(matches!(&case.effects[0], Effect::ReadFailed(failed) if failed.is_wrong));
}

#[test]
fn a_snapshot_that_is_damaged_is_not_restored_from_though_it_can_be_decoded() {
    let mut case = Case::new(Some(ledger(9, sealed(4))));
    let first = case.call();
    let sound = snapshot(9, 4);
    let mut bytes = sound.payload.to_bytes().to_vec();
    // A bit of what follows the version, which says nothing.
    bytes[EntryHeader::FIXED_LEN + 1] ^= 1;
    let damaged = Record { payload: Bytes::from(bytes).into(), ..sound.clone() };
    case.answer(1, first.clone(), Response::Entries(vec![damaged]));
    assert!(matches!(case.effects.remove(0), Effect::ReadFailed(failed) if failed.is_wrong));
    let second = case.call();
    assert_ne!(second.0, first.0);
    case.answer(2, second, Response::Entries(vec![sound]));
    case.promoted();
}

#[test]
fn a_state_that_ends_elsewhere_is_not_led_from() {
    let mut case = Case::new(Some(ledger(9, sealed(6))));
    let call = case.call();
    case.answer(1, call, Response::Entries(vec![snapshot(9, 4)]));
    let end = Alarm::End { ledger: LedgerId(9), found: Offset(4), expected: Offset(6) };
    assert!(matches!(&case.effects[..], [Effect::Alarm(alarm), Effect::ReadEpoch] if *alarm == end));
    assert!(case.promotion.deadline().is_some(), "it is read again");
}

#[test]
fn when_no_replica_can_be_read_the_epoch_is_looked_at() {
    for (epoch, goes_on) in [(Some(MINE), true), (Some(Epoch(3)), false), (None, false)] {
        let mut case = Case::new(Some(ledger(9, sealed(4))));
        let call = case.call();
        case.answer(1, call, Response::Deleted);
        case.effects.remove(0);
        let call = case.call();
        case.answer(1, call, Response::Unknown("no".to_owned()));
        assert!(
            matches!(&case.effects[..], [Effect::ReadFailed(failed), Effect::ReadEpoch] if failed.is_last)
        );
        case.effects.clear();
        case.step(2, Event::Epoch(epoch));
        if goes_on {
            let due = case.promotion.deadline().expect("all are asked again");
            case.step(due.0, Event::Tick);
            case.call();
        } else {
            assert!(matches!(case.effects[..], [Effect::Deposed]), "{epoch:?}");
            assert_eq!(case.promotion.log().standing().0, Standing::Deposed);
        }
    }
}

/// Both replicas have answered that they cannot give the one entry.
fn unreadable() -> Case {
    let mut case = Case::new(Some(ledger(9, sealed(6))));
    case.answer_damaged(1);
    case
}

#[test]
fn a_state_whose_entry_is_lost_is_restored_without_it_once_that_is_accepted() {
    let mut case = unreadable();
    let waiting = case.promotion.waiting().expect("it says so");
    assert_eq!(waiting.ledger(), LedgerId(9));
    assert!(waiting.to_string().contains("entry 0 of ledger 9"), "{waiting}");
    case.accept_loss(2);
    case.answer_damaged(3);
    let promoted = case.promoted();
    assert_eq!(promoted.restored.next_offset, Offset(6), "offsets go on where metadata says");
    assert_eq!(case.promotion.waiting(), None);
}

#[test]
fn an_entry_of_which_a_replica_does_not_answer_is_waited_for_though_loss_is_accepted() {
    let mut case = unreadable();
    case.accept_loss(2);
    let call = case.call();
    case.answer(3, call, Response::Unknown("damaged".to_owned()));
    case.effects.retain(|effect| matches!(effect, Effect::Call { .. }));
    let (bookie, request) = case.call();
    case.step(4, Event::Called { bookie, request, result: Err("away".to_owned()) });
    assert_eq!(case.promotion.waiting(), None, "it may come back");
    let due = case.promotion.deadline().expect("all are asked again");
    case.effects.clear();
    case.step(due.0, Event::Tick);
    let call = case.call();
    case.answer(due.0, call, Response::Entries(vec![snapshot(9, 6)]));
    assert_eq!(case.promoted().restored.running_max_ms, 3);
}

/// Fences the replicas of a ledger with so many entries, up to the read for its
/// seal.
fn recovering(entries: u64) -> (Case, (BookieId, Request)) {
    let mut case = Case::new(Some(ledger(9, LedgerState::Recovering(MINE))));
    assert_eq!(case.promotion.unsealed(), Some(LedgerId(9)));
    let end = EntryId(entries);
    let state = ReplicaState { fence: MINE, durable: end, committed: end, certain: true };
    for effect in std::mem::take(&mut case.effects) {
        let Effect::Call { bookie, request: request @ Request::Fence { .. } } = effect else {
            panic!("{effect:?} is no fence")
        };
        case.answer(1, (bookie, request), Response::Fenced(state));
    }
    let call = case.call();
    assert!(matches!(call.1, Request::Read(read) if read.prefix), "{call:?}");
    (case, call)
}

#[test]
fn a_ledger_is_fenced_read_sealed_and_restored() {
    let (mut case, call) = recovering(1);
    case.answer(2, call, Response::Entries(vec![snapshot(9, 4)]));
    assert!(matches!(&case.effects[..], [Effect::Step(_)]), "{:?}", case.effects);
    case.effects.clear();
    case.step(3, Event::Stepped(Outcome::Done(ledger(9, sealed(4)))));
    assert!(matches!(case.effects.remove(0), Effect::Recovered(LedgerId(9))));
    let call = case.call();
    case.answer(4, call, Response::Entries(vec![snapshot(9, 4)]));
    let promoted = case.promoted();
    assert_eq!((promoted.segments.len(), promoted.segments[0].end), (1, EntryId(1)));
}

#[test]
fn a_recovery_ends_when_another_leads() {
    for event in [
        Event::Stepped(Outcome::Lost(StepRefused::Deposed)),
        Event::Failed,
        Event::Ledger(None),
        Event::Ledger(Some(ledger(9, LedgerState::Recovering(Epoch(3))))),
    ] {
        let (mut case, call) = recovering(1);
        case.step(2, event);
        assert!(matches!(case.effects[..], [Effect::Deposed]), "{:?}", case.effects);
        case.effects.clear();
        case.answer(3, call, Response::Entries(vec![snapshot(9, 4)]));
        assert!(case.effects.is_empty(), "nothing follows");
    }
}

#[test]
fn a_ledger_whose_last_entry_is_lost_is_sealed_before_it_once_that_is_accepted() {
    let (mut case, call) = recovering(1);
    case.effects.push(Effect::Call { bookie: call.0, request: call.1 });
    case.answer_damaged(2);
    let waiting = case.promotion.waiting().expect("it says so");
    assert_eq!(waiting.ledger(), LedgerId(9));
    case.accept_loss(3);
    case.answer_damaged(3);
    let step = case.effects.iter().find_map(|effect| match effect {
        Effect::Step(step) => Some(format!("{step:?}")),
        _ => None,
    });
    let step = step.expect("it is sealed");
    assert!(step.contains("end: EntryId(0)") && step.contains("next_offset: Offset(4)"), "{step}");
}

#[test]
fn an_entry_in_the_middle_whose_loss_is_accepted_is_asked_about_once() {
    let (mut case, call) = recovering(3);
    case.answer(2, call, Response::Entries(vec![snapshot(9, 4)]));
    case.answer_damaged(2);
    assert!(case.promotion.waiting().is_some(), "it says so");
    case.accept_loss(3);
    case.answer_damaged(3);
    let call = case.call();
    case.answer(3, call, Response::Entries(vec![record(LedgerId(9), EntryId(2), 8)]));
    let Some(Effect::Step(step)) = case.effects.pop() else { panic!("it is not sealed") };
    let sealed = step.done(Revision(7));
    assert_eq!(sealed.value.sealed().map(|sealed| sealed.end), Some(EntryId(3)));
    case.step(4, Event::Stepped(Outcome::Done(sealed)));
    let promoted = case.promoted();
    assert_eq!((promoted.segments[0].end, promoted.restored.next_offset), (EntryId(3), Offset(9)));
    assert_eq!(promoted.restored.running_max_ms, 5);
}

#[test]
fn an_acceptance_does_not_hold_for_what_is_waited_for_by_the_time_it_comes() {
    let (mut case, call) = recovering(3);
    case.answer(2, call, Response::Entries(vec![snapshot(9, 4)]));
    case.answer_damaged(2);
    let shown = case.promotion.waiting().expect("it says so");
    let due = case.promotion.deadline().expect("all are asked again");
    case.step(due.0, Event::Tick);
    let call = case.call();
    case.answer(due.0, call, Response::Entries(vec![record(LedgerId(9), EntryId(1), 4)]));
    case.answer_damaged(due.0);
    let other = case.promotion.waiting().expect("it says so");
    assert!(!shown.covers(&other), "{other}");
    case.step(due.0, Event::AcceptLoss(shown));
    assert!(case.effects.is_empty(), "{:?}", case.effects);
    assert_eq!(case.promotion.waiting(), Some(other));
    // What it waits for now can be accepted.
    case.accept_loss(due.0);
    case.answer_damaged(due.0);
    assert!(matches!(case.effects[..], [Effect::Step(_)]), "{:?}", case.effects);
}

#[test]
fn a_seal_that_is_read_for_again_leaves_out_what_was_accepted_and_nothing_else() {
    let (mut case, call) = recovering(3);
    case.answer(2, call, Response::Entries(vec![snapshot(9, 4)]));
    case.answer_damaged(2);
    case.accept_loss(3);
    case.answer_damaged(3);
    let call = case.call();
    case.answer(3, call, Response::Entries(vec![record(LedgerId(9), EntryId(2), 8)]));
    assert!(matches!(case.effects[..], [Effect::Step(_)]), "{:?}", case.effects);
    case.effects.clear();
    let changed = ledger(9, LedgerState::Recovering(MINE));
    case.step(4, Event::Stepped(Outcome::Lost(StepRefused::Changed(Some(changed)))));
    let call = case.call();
    case.answer(4, call, Response::Entries(vec![snapshot(9, 4)]));
    case.answer_damaged(4);
    assert_eq!(case.promotion.waiting(), None, "its loss was accepted");
    case.answer_damaged(4);
    let waiting = case.promotion.waiting().expect("that of another was not");
    assert!(waiting.to_string().contains("entry 2 of ledger 9"), "{waiting}");
}

#[test]
fn a_replica_that_is_not_complete_is_asked_for_what_the_others_cannot_give() {
    let mut found = ledger(9, LedgerState::Recovering(MINE));
    found.value.replicas = vec![bookie(1), bookie(2), bookie(3)];
    let mut case = Case::new(Some(found));
    for effect in std::mem::take(&mut case.effects) {
        let Effect::Call { bookie: asked, request } = effect else { panic!("{effect:?} is no fence") };
        let durable = EntryId(if asked == bookie(3) { 2 } else { 3 });
        let state = ReplicaState { fence: MINE, durable, committed: EntryId(0), certain: true };
        case.answer(1, (asked, request), Response::Fenced(state));
    }
    let copying = case.call();
    assert!(matches!(copying.1, Request::Read(read) if !read.prefix), "{copying:?}");
    // The copy takes too long: the third replica is not complete.
    let late = 2 * recovery::Options::default().grace_ms;
    case.step(late, Event::Tick);
    let call = case.call();
    case.answer(late, call, Response::Entries(vec![snapshot(9, 4)]));
    case.answer_damaged(late);
    assert_eq!(case.promotion.waiting(), None, "one was not asked");
    let (last, request) = case.call();
    assert_eq!(last, bookie(3));
    let entry = record(LedgerId(9), EntryId(1), 4);
    case.answer(late, (last, request), Response::Entries(vec![entry]));
    let (_, request) = case.call();
    assert!(matches!(request, Request::Read(read) if read.from == EntryId(2)), "{request:?}");
}
