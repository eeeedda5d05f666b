//! A sequencer against a model of a broker that keeps the rules of idempotent
//! producing, over a connection that loses and breaks.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_proto::batch::{Batch, Builder, Header, NO_HEADERS, UNRESOLVED_MAX};
use quire_proto::codec::Compression;
use quire_proto::error::Failure;
use quire_proto::id::Offset;

use super::*;

const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// What a broker remembers of a producer.
#[derive(Debug, Default)]
struct Remembered {
    next: i32,
    recent: VecDeque<(i32, u32, u64)>,
}

/// A partition's log and what its leader knows of producers.
#[derive(Debug, Default)]
struct Broker {
    log: Vec<u64>,
    producers: HashMap<i64, Remembered>,
}

impl Broker {
    /// As brokers have it: the last batches are recognised, a gap
    /// is refused, an unknown producer may begin anywhere.
    fn handle(&mut self, bytes: &Bytes) -> Result<u64, ErrorReason> {
        let batch = Batch::split(bytes.clone()).unwrap().remove(0);
        batch.check(usize::MAX).unwrap();
        let Header { producer_id, base_sequence, record_count, .. } = batch.header;
        if producer_id < 0 {
            return Ok(self.append(&batch));
        }
        let offset = self.log.len() as u64;
        let known = self.producers.entry(producer_id);
        let producer = known.or_insert_with(|| Remembered { next: base_sequence, ..Remembered::default() });
        let mut recent = producer.recent.iter();
        if let Some(&(_, _, offset)) =
            recent.find(|&&(base, count, _)| (base, count) == (base_sequence, record_count))
        {
            return Ok(offset);
        }
        if base_sequence != producer.next {
            return Err(ErrorReason::OutOfOrderSequence);
        }
        producer.next = after(base_sequence, record_count);
        producer.recent.push_back((base_sequence, record_count, offset));
        if producer.recent.len() > UNRESOLVED_MAX {
            producer.recent.pop_front();
        }
        Ok(self.append(&batch))
    }

    fn append(&mut self, batch: &Batch) -> u64 {
        let offset = self.log.len() as u64;
        for record in batch.records(usize::MAX).unwrap() {
            let value = record.unwrap().value.unwrap();
            self.log.push(u64::from_be_bytes(value[..].try_into().unwrap()));
        }
        offset
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// Refused for certain; may succeed later.
    NotReady,
    /// Refused for certain and for good.
    TooLarge,
    /// Appended, but the answer does not say so.
    AppendedUnknown,
    /// Not appended, but the answer does not say so.
    DroppedUnknown,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u32),
    Send,
    Handle(Fault),
    Deliver,
    Break,
    /// The broker cannot be reached, so nothing on the way has got there.
    Refuse,
    Pass(u64),
    Identify,
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![
        12 => Just(Fault::None),
        2 => Just(Fault::NotReady),
        1 => Just(Fault::TooLarge),
        1 => Just(Fault::AppendedUnknown),
        1 => Just(Fault::DroppedUnknown),
    ];
    prop_oneof![
        6 => (1_u32..4).prop_map(Step::Push),
        8 => Just(Step::Send),
        8 => fault.prop_map(Step::Handle),
        8 => Just(Step::Deliver),
        1 => Just(Step::Break),
        1 => Just(Step::Refuse),
        3 => prop_oneof![4 => 0_u64..300, 1 => 0_u64..6000].prop_map(Step::Pass),
        3 => Just(Step::Identify),
    ]
}

/// What was pushed as one batch, and what was said of it.
#[derive(Debug)]
struct Pushed {
    values: Range<u64>,
    outcome: Option<Outcome>,
}

struct World {
    sequencer: Sequencer<usize>,
    idempotent: bool,
    broker: Broker,
    requests: VecDeque<(Token, Bytes)>,
    answers: VecDeque<(Token, Outcome)>,
    /// Whether the broker has handled anything from this connection.
    connected: bool,
    pushed: Vec<Pushed>,
    resolved: usize,
    next_value: u64,
    next_id: i64,
    now: Instant,
}

impl World {
    fn new(idempotent: bool) -> Self {
        let rules = Rules {
            window: if idempotent { UNRESOLVED_MAX } else { 1 },
            idempotent,
            backoff: Backoff { first: Duration::from_millis(10), most: Duration::from_millis(100) },
            delivery_timeout: DELIVERY_TIMEOUT,
        };
        Self {
            sequencer: Sequencer::new(rules),
            idempotent,
            broker: Broker::default(),
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            connected: false,
            pushed: Vec::new(),
            resolved: 0,
            next_value: 0,
            next_id: 1,
            now: Instant::now(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Push(records) => self.push(records),
            Step::Send => self.requests.extend(self.sequencer.next(self.now)),
            Step::Handle(fault) => self.handle(fault),
            Step::Deliver => {
                if let Some((token, outcome)) = self.answers.pop_front() {
                    self.sequencer.answered(token, outcome, self.now);
                }
            }
            Step::Break => {
                let (address, cause) = ("broker".to_owned(), "reset".to_owned());
                self.disconnect(&Error::Disconnected { address, cause });
            }
            Step::Refuse if self.connected => {}
            Step::Refuse => {
                let (address, cause) = ("broker".to_owned(), "refused".to_owned());
                self.disconnect(&Error::Connect { address, cause });
            }
            Step::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                self.sequencer.expire(self.now);
            }
            Step::Identify => {
                if self.sequencer.wants_identity() {
                    self.sequencer.identify(Identity { id: self.next_id, epoch: 0 });
                    self.next_id += 1;
                }
            }
        }
        self.settle();
    }

    fn push(&mut self, records: u32) {
        if self.sequencer.room() == 0 {
            return;
        }
        let values = self.next_value..self.next_value + u64::from(records);
        self.next_value = values.end;
        let mut builder = Builder::with_capacity(0);
        for value in values.clone() {
            builder.append(0, None, Some(&value.to_be_bytes()), NO_HEADERS).unwrap();
        }
        let producer = self.sequencer.claim(records);
        let batch = builder.seal(Compression::None, producer).unwrap();
        self.sequencer.push(batch, self.now, self.pushed.len());
        self.pushed.push(Pushed { values, outcome: None });
    }

    fn handle(&mut self, fault: Fault) {
        let Some((token, bytes)) = self.requests.pop_front() else { return };
        self.connected = true;
        let refusal = |reason| Err(Error::from(Failure::new(reason, "planted")));
        let outcome = match fault {
            Fault::NotReady => refusal(ErrorReason::NotReady),
            Fault::TooLarge => refusal(ErrorReason::BatchTooLarge),
            Fault::DroppedUnknown => refusal(ErrorReason::OutcomeUnknown),
            Fault::None | Fault::AppendedUnknown => match (self.broker.handle(&bytes), fault) {
                (Ok(_), Fault::AppendedUnknown) => refusal(ErrorReason::OutcomeUnknown),
                (Ok(offset), _) => Ok(Some(Offset(offset))),
                (Err(reason), _) => refusal(reason),
            },
        };
        self.answers.push_back((token, outcome));
    }

    fn disconnect(&mut self, error: &Error) {
        self.requests.clear();
        self.answers.clear();
        self.connected = false;
        self.sequencer.disconnected(error, self.now);
    }

    /// Each batch is resolved once, in order; what is acknowledged is where it is
    /// said to be.
    fn settle(&mut self) {
        assert!(self.sequencer.batches.len() <= self.sequencer.rules.window);
        while let Some((number, outcome)) = self.sequencer.pop() {
            assert_eq!(number, self.resolved, "resolved out of order");
            self.resolved += 1;
            let pushed = &mut self.pushed[number];
            assert!(pushed.outcome.is_none(), "resolved twice");
            if let Ok(Some(Offset(offset))) = outcome {
                let found = &self.broker.log[usize::try_from(offset).unwrap()..];
                assert!(found.iter().copied().zip(pushed.values.clone()).all(|(a, b)| a == b));
                assert!(found.len() as u64 >= pushed.values.end - pushed.values.start);
            }
            pushed.outcome = Some(outcome);
        }
    }

    /// No more faults: everything is resolved within the delivery timeout.
    fn heal(&mut self) {
        let deadline = self.now + DELIVERY_TIMEOUT + Duration::from_secs(1);
        while !self.sequencer.is_idle() {
            assert!(self.now < deadline, "stuck: {:?}", self.sequencer);
            for step in [Step::Identify, Step::Send, Step::Handle(Fault::None), Step::Deliver, Step::Pass(5)]
            {
                self.take(step);
            }
        }
        assert_eq!(self.resolved, self.pushed.len());
    }

    fn judge(&self) {
        let occurrences = |value: u64| self.broker.log.iter().filter(|&&found| found == value).count();
        for Pushed { values, outcome } in &self.pushed {
            let outcome = outcome.as_ref().unwrap();
            for value in values.clone() {
                match outcome {
                    Ok(_) => assert!(occurrences(value) >= 1, "{value} acknowledged and lost"),
                    Err(error) if error.is_determinate() => {
                        assert_eq!(occurrences(value), 0, "{value} in the log after {error}");
                    }
                    Err(_) => {}
                }
                assert!(!self.idempotent || occurrences(value) <= 1, "{value} is there twice");
            }
        }
        let mut first = Vec::new();
        for &value in &self.broker.log {
            if !first.contains(&value) {
                first.push(value);
            }
        }
        assert!(first.is_sorted(), "out of order: {:?}", self.broker.log);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn with_idempotence_nothing_is_lost_doubled_or_reordered(steps in vec(step(), 0..150)) {
        let mut world = World::new(true);
        steps.into_iter().for_each(|step| world.take(step));
        world.heal();
        world.judge();
    }

    #[test]
    fn without_idempotence_nothing_is_lost_or_reordered(steps in vec(step(), 0..100)) {
        let mut world = World::new(false);
        steps.into_iter().for_each(|step| world.take(step));
        world.heal();
        world.judge();
    }
}

/// A world whose identity the broker knows, and this many batches of one record,
/// all sent. The first record, 0, is in the log.
fn sent(batches: usize) -> World {
    let mut world = World::new(true);
    world.take(Step::Identify);
    world.take(Step::Push(1));
    world.heal();
    for _ in 0..batches {
        world.take(Step::Push(1));
        world.take(Step::Send);
    }
    assert_eq!(world.requests.len(), batches);
    world
}

#[test]
fn at_most_the_window_is_unresolved() {
    let mut world = sent(UNRESOLVED_MAX);
    world.take(Step::Push(1));
    assert_eq!(world.pushed.len(), 1 + UNRESOLVED_MAX);
    world.take(Step::Handle(Fault::None));
    world.take(Step::Deliver);
    world.take(Step::Push(1));
    assert_eq!(world.pushed.len(), 2 + UNRESOLVED_MAX);
}

#[test]
fn an_identity_that_no_broker_knows_has_one_batch_under_way() {
    let mut world = World::new(true);
    for step in [Step::Identify, Step::Push(1), Step::Push(1), Step::Send, Step::Send] {
        world.take(step);
    }
    assert_eq!(world.requests.len(), 1);
    world.heal();
    world.now += REMEMBERED_FOR;
    for step in [Step::Push(1), Step::Push(1), Step::Send, Step::Send] {
        world.take(step);
    }
    assert_eq!(world.requests.len(), 1, "the broker may have forgotten it");
}

#[test]
fn nothing_is_sealed_without_an_identity() {
    let mut world = World::new(true);
    assert_eq!(world.sequencer.room(), 0);
    assert!(world.sequencer.wants_identity());
    world.take(Step::Identify);
    assert_eq!(world.sequencer.room(), UNRESOLVED_MAX);
    assert!(!world.sequencer.wants_identity());
}

#[test]
fn a_retry_is_the_same_bytes() {
    let mut world = sent(2);
    let first: Vec<_> = world.requests.iter().map(|(_, bytes)| bytes.clone()).collect();
    world.take(Step::Break);
    assert!(world.sequencer.next(world.now).is_none(), "not before the pause is over");
    world.take(Step::Pass(20));
    world.take(Step::Send);
    world.take(Step::Send);
    let again: Vec<_> = world.requests.iter().map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(first, again);
}

#[test]
fn after_a_failure_nothing_is_sent_until_all_is_answered() {
    let mut world = sent(2);
    world.take(Step::Handle(Fault::NotReady));
    world.take(Step::Deliver);
    world.take(Step::Pass(1000));
    assert!(world.sequencer.next(world.now).is_none());
    world.take(Step::Handle(Fault::None));
    assert_eq!(world.broker.log, [0], "the second one leaves a gap and is refused");
    world.take(Step::Deliver);
    world.heal();
    assert_eq!(world.broker.log, [0, 1, 2]);
}

#[test]
fn a_batch_that_fails_for_good_is_followed_under_a_fresh_identity() {
    let mut world = sent(3);
    world.take(Step::Handle(Fault::TooLarge));
    world.take(Step::Deliver);
    assert!(world.pushed[1].outcome.as_ref().unwrap().is_err());
    assert!(!world.sequencer.wants_identity(), "two are under way under the old one");
    assert_eq!(world.sequencer.room(), 0);
    for _ in 0..2 {
        world.take(Step::Handle(Fault::DroppedUnknown));
        world.take(Step::Deliver);
    }
    assert!(!world.sequencer.wants_identity(), "of two it is not known what became of them");
    world.heal();
    assert_eq!(world.broker.log, [0, 2, 3]);
    assert_eq!(world.sequencer.identity(), Some(Identity { id: 2, epoch: 0 }));
}

#[test]
fn a_head_that_is_out_of_order_fails() {
    let mut world = sent(1);
    world.broker.producers.insert(1, Remembered { next: 7, recent: VecDeque::new() });
    world.take(Step::Handle(Fault::None));
    world.take(Step::Deliver);
    let Some(Err(error)) = &world.pushed[1].outcome else { panic!("{:?}", world.pushed) };
    assert_eq!(error.reason(), Some(ErrorReason::OutOfOrderSequence));
}

#[track_caller]
fn expires(sent_before: bool, determinate: bool) {
    let mut world = sent(0);
    world.take(Step::Push(1));
    if sent_before {
        world.take(Step::Send);
        world.take(Step::Break);
    }
    world.take(Step::Pass(DELIVERY_TIMEOUT.as_millis().try_into().unwrap()));
    let Some(Err(error)) = &world.pushed[1].outcome else { panic!("{:?}", world.pushed) };
    assert!(matches!(error, Error::Timeout { .. }));
    assert_eq!(error.is_determinate(), determinate);
}

#[test]
fn an_expired_batch_says_whether_it_may_be_in_the_log() {
    expires(false, true);
    expires(true, false);
}

#[test]
fn sequences_wrap_to_zero() {
    assert_eq!(after(0, 5), 5);
    assert_eq!(after(i32::MAX, 1), 0);
    assert_eq!(after(i32::MAX - 1, 5), 3);
    let mut world = sent(0);
    world.sequencer.next_sequence = i32::MAX;
    world.broker.producers.clear();
    for _ in 0..3 {
        world.take(Step::Push(2));
    }
    world.heal();
    assert_eq!(world.broker.log, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(world.sequencer.next_sequence, 5);
}
