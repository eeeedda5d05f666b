use quire_metadata::operation::Operation;
use quire_metadata::store::Revision;
use quire_proto::batch::{Builder, NO_HEADERS, Producer};
use quire_proto::codec::Compression;
use quire_proto::id::{EntryId, Offset, PartitionId};
use tokio::sync::oneshot::Receiver;

use super::*;
use crate::bookies::fake;
use crate::call::{Call, Outcome as Answered};
use crate::pool::tests::{spare, spare_on};
use crate::shard::piece::Acks;
use crate::shard::writer::Restored;
use crate::testing::topic;

const NOW: Now = Now { millis: Millis(5), wall_ms: 5 };
const DEADLINE: Millis = Millis(100);

fn bookie() -> BookieId {
    fake::bookie(1)
}

/// A leader of an empty partition.
#[derive(Debug)]
pub struct Case {
    pub leader: Leader,
    effects: Effects,
}

impl Case {
    fn new() -> Self {
        Self::of(PartitionId::default())
    }

    fn of(id: PartitionId) -> Self {
        let promoted = Promoted {
            log: PartitionLog::new(id, topic()),
            leadership: Leadership { partition: id, epoch: Epoch(1), minted: Revision(1) },
            last: None,
            segments: Vec::new(),
            restored: Restored { running_max_ms: i64::MIN, ..Restored::default() },
        };
        let leader = Leader::new(promoted, chain::Options::default(), Duration::from_secs(3600));
        Self { leader, effects: Effects::default() }
    }

    fn put(&mut self) -> Receiver<Vec<Answered>> {
        let mut builder = Builder::with_capacity(100);
        builder.append(9, None, Some(b"v"), NO_HEADERS).unwrap();
        let batch = builder.seal(Compression::None, Producer::NONE).unwrap();
        let (_call, mut replies, outcomes) = Call::new(1, None);
        let piece = Piece {
            partition: PartitionId::default(),
            batches: [batch].into_iter().collect(),
            acks: Acks::All,
            deadline: DEADLINE,
            reply: replies.remove(0),
        };
        if self.leader.produce(NOW, piece, &mut self.effects) {
            self.leader.flush(NOW, &mut self.effects);
        }
        outcomes
    }

    fn ledger_ready(&mut self, ledger: u64) {
        self.take(spare(ledger));
    }

    fn take(&mut self, spare: Spare) {
        self.leader.ledger_ready(NOW, spare, 1_000_000, &mut self.effects);
    }

    fn effects(&mut self) -> Vec<Effect> {
        self.effects.drain().collect()
    }

    /// The roll that is to be run, and nothing else.
    #[track_caller]
    fn roll(&mut self) -> roll::Roll {
        match &mut self.effects()[..] {
            [Effect::Roll(roll)] => (**roll).clone(),
            other => panic!("not one roll: {other:?}"),
        }
    }

    /// A leader whose first ledger is open and holds its snapshot, and one piece
    /// that is sent.
    fn open() -> (Self, Receiver<Vec<Answered>>) {
        Self::open_of(PartitionId::default(), spare(1))
    }

    /// The same of this partition, with this ledger.
    pub fn open_of(id: PartitionId, ledger: Spare) -> (Self, Receiver<Vec<Answered>>) {
        let mut case = Self::of(id);
        let outcomes = case.put();
        case.take(ledger);
        let rolled = case.effects.drain().find_map(|effect| match effect {
            Effect::Roll(roll) => Some(roll.done(Revision(2))),
            _ => None,
        });
        let rolled = rolled.expect("the ledger is to be published");
        case.leader.rolled(NOW, Ok(Outcome::Done(rolled)), &mut case.effects);
        (case, outcomes)
    }
}

#[track_caller]
fn failed(outcomes: &mut Receiver<Vec<Answered>>) -> ErrorReason {
    outcomes.try_recv().expect("it is answered").remove(0).expect_err("it is not written").reason
}

#[test]
fn a_piece_waits_for_a_ledger_and_is_acknowledged_when_it_is_committed() {
    let mut case = Case::new();
    let mut outcomes = case.put();
    assert!(matches!(case.effects()[..], [Effect::RequestLedger]));
    drop(case.put());
    assert!(case.effects().is_empty(), "the pool is asked once");

    let (mut case, mut of_open) = {
        drop(case);
        Case::open()
    };
    let effects = case.effects();
    let [Effect::Rolled { closed: None, opened: Some(LedgerId(1)) }, sends @ ..] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(sends.len(), 2, "the snapshot and the entry");
    assert!(of_open.try_recv().is_err(), "nothing is durable");
    let durable = EntryId(2);
    let event = chain::Event::Durable { bookie: bookie(), ledger: LedgerId(1), durable };
    case.leader.step(NOW, event, &mut case.effects);
    assert!(matches!(&case.effects()[..], [Effect::Committed(entries)] if entries.len() == 1));
    let placed = of_open.try_recv().unwrap().remove(0).expect("it is written");
    assert_eq!(placed.base_offset, Offset(0));
    assert!(outcomes.try_recv().unwrap()[0].is_err(), "dropped with its leader");
}

#[test]
fn a_piece_that_waited_too_long_fails_and_says_why() {
    for (cause, reason) in [
        (None, ErrorReason::NotEnoughBookies),
        (Some(NoLedger::Full { full: 1, needed: 1 }), ErrorReason::StorageFull),
    ] {
        let mut case = Case::new();
        let mut outcomes = case.put();
        assert_eq!(case.leader.deadline(), Some(DEADLINE));
        if let Some(cause) = cause {
            case.leader.no_ledger(NOW, cause, &mut case.effects);
        }
        case.leader.tick(NOW, &mut case.effects);
        assert!(outcomes.try_recv().is_err(), "there is time left");
        case.leader.tick(Now { millis: DEADLINE, ..NOW }, &mut case.effects);
        assert_eq!(failed(&mut outcomes), reason);
        assert_eq!(case.leader.deadline(), None);
    }
}

#[test]
fn a_released_block_costs_the_ledger_and_nothing_else() {
    let mut case = Case::new();
    let mut outcomes = case.put();
    case.effects();
    case.ledger_ready(1);
    let first = case.roll();
    case.leader.rolled(NOW, Ok(Outcome::Lost(RollRefused::BlockReleased)), &mut case.effects);
    assert!(matches!(case.effects()[..], [Effect::RequestLedger]));
    case.ledger_ready(2);
    let second = case.roll();
    assert_ne!(first, second);
    assert!(outcomes.try_recv().is_err(), "it waits on");
}

#[test]
fn a_roll_of_another_deposes() {
    for refused in [RollRefused::Deposed, RollRefused::ChainChanged] {
        let mut case = Case::new();
        let mut outcomes = case.put();
        case.ledger_ready(1);
        case.effects();
        case.leader.rolled(NOW, Ok(Outcome::Lost(refused)), &mut case.effects);
        assert!(matches!(case.effects()[..], [Effect::Ended]));
        assert_eq!(failed(&mut outcomes), ErrorReason::NotLeader);
        case.ledger_ready(2);
        let log = Arc::clone(case.leader.log());
        let left = case.leader.stop(Standing::Deposed);
        assert_eq!(left.map(|spare| spare.ledger), Some(LedgerId(2)), "for the pool");
        assert_eq!(log.standing().0, Standing::Deposed);
    }
}

#[test]
fn closing_takes_no_more_seals_and_ends() {
    let (mut case, _sent) = Case::open();
    case.effects();
    let durable = EntryId(2);
    let event = chain::Event::Durable { bookie: bookie(), ledger: LedgerId(1), durable };
    case.leader.step(NOW, event, &mut case.effects);
    case.effects();
    case.leader.close(NOW, &mut case.effects);
    let seal = case.roll();
    assert_eq!(failed(&mut case.put()), ErrorReason::ShuttingDown);
    case.leader.rolled(NOW, Ok(Outcome::Done(seal.done(Revision(3)))), &mut case.effects);
    let effects = case.effects();
    let closed = Some(LedgerId(1));
    assert!(
        matches!(&effects[..], [Effect::Rolled { closed: of, opened: None }, Effect::Ended] if *of == closed),
        "{effects:?}"
    );
}

#[test]
fn metadata_is_probed_for_those_that_asked_only() {
    let (mut case, _sent) = Case::open();
    case.effects();
    case.leader.metadata_answered(NOW, NOW.millis, &mut case.effects);
    assert!(case.effects().is_empty());
    let durable = EntryId(2);
    let event = chain::Event::Durable { bookie: bookie(), ledger: LedgerId(1), durable };
    case.leader.step(NOW, event, &mut case.effects);
    case.effects();
    let idle = Now { millis: case.leader.deadline().expect("it is sealed when idle"), ..NOW };
    case.leader.tick(idle, &mut case.effects);
    assert!(matches!(case.effects()[..], [Effect::ProbeMetadata]));
    case.leader.metadata_answered(idle, idle.millis, &mut case.effects);
    case.roll();
}

#[test]
fn a_replica_is_asked_again_when_the_question_fails() {
    let spare = spare_on(1, &[bookie(), fake::bookie(2)]);
    let (mut case, _outcomes) = Case::open_of(PartitionId::default(), spare);
    case.effects();
    case.leader.step(NOW, chain::Event::LinkUp { bookie: bookie() }, &mut case.effects);
    let asked = Effect::AskState { bookie: bookie(), ledger: LedgerId(1) };
    let is_asked =
        |effects: &[Effect]| matches!(effects, [effect] if format!("{effect:?}") == format!("{asked:?}"));
    let effects = case.effects();
    assert!(is_asked(&effects), "{effects:?}");
    let no_answer = Err("away".to_owned());
    case.leader.state_answered(NOW, bookie(), LedgerId(1), no_answer, &mut case.effects);
    assert!(case.effects().is_empty(), "not at once");
    let later = Now { millis: NOW.millis + 1_000, ..NOW };
    case.leader.tick(later, &mut case.effects);
    let effects = case.effects();
    assert!(is_asked(&effects), "{effects:?}");
}
