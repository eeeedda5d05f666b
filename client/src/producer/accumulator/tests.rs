use proptest::collection::vec;
use proptest::prelude::*;
use quire_proto::batch::Producer;
use quire_proto::codec::Compression;
use quire_proto::id::Offset;

use super::*;

const LIMITS: Limits =
    Limits { batch_bytes: 2 << 10, memory_bytes: 32 << 10, linger: Duration::from_millis(5) };

const ID: Bytes = Bytes::from_static(b"one");

fn learnt(partitions: u32) -> Accumulator {
    let mut accumulator = Accumulator::new(LIMITS);
    accumulator.learn("topic", &ID, partitions, 8 << 10).unwrap();
    accumulator
}

#[track_caller]
fn append(accumulator: &mut Accumulator, now: Instant, record: Record<'_>) -> Taken {
    accumulator.append(now, 0, &record, None).unwrap()
}

fn values(pending: &mut Pending) -> Vec<Vec<u8>> {
    let batch = pending.builder.seal(Compression::None, Producer::NONE).unwrap();
    batch.records(usize::MAX).unwrap().map(|record| record.unwrap().value.unwrap().to_vec()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Append { partition: u32, size: usize, tagged: bool },
    Take(usize),
    Resolve,
    TakeCompletion,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![10 => 0_usize..300, 1 => 0_usize..9000];
    prop_oneof![
        8 => (0_u32..3, size, any::<bool>())
            .prop_map(|(partition, size, tagged)| Step::Append { partition, size, tagged }),
        3 => (0_usize..3).prop_map(Step::Take),
        3 => Just(Step::Resolve),
        2 => Just(Step::TakeCompletion),
        1 => (0_u64..10).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Memory is bounded and all of it comes back; records stay in order; batches
    /// keep their limit; every record is taken, refused or told, once.
    #[test]
    fn memory_and_order_are_kept(steps in vec(step(), 0..300)) {
        let mut accumulator = learnt(3);
        let mut now = Instant::now();
        let mut number = 0_u64;
        let mut expected = vec![VecDeque::new(); 3];
        let mut under_way = VecDeque::new();
        let mut tags = (0, 0);
        for step in steps {
            match step {
                Step::Append { partition, size, tagged } => {
                    let value = [&number.to_be_bytes()[..], &vec![0; size]].concat();
                    let record = Record::new("topic").partition(partition).value(&value);
                    match accumulator.append(now, 0, &record, tagged.then_some(number)) {
                        Ok(_) => {
                            expected[partition as usize].push_back(value);
                            tags.0 += usize::from(tagged);
                        }
                        Err(Refused::NoMemory) => {
                            prop_assert!(accumulator.used() + size + 4096 > LIMITS.memory_bytes / 2);
                        }
                        Err(Refused::For(Error::RecordTooLarge { .. })) => prop_assert!(size > 8000),
                        Err(other) => panic!("{other:?}"),
                    }
                    number += 1;
                }
                Step::Take(slot) => {
                    if let Some(mut pending) = accumulator.take_ready(slot, now) {
                        let size = pending.builder.size();
                        prop_assert!(size <= LIMITS.batch_bytes || pending.builder.count() == 1);
                        for value in values(&mut pending) {
                            prop_assert_eq!(Some(value), expected[slot].pop_front());
                        }
                        under_way.push_back(pending.ticket);
                    }
                }
                Step::Resolve => {
                    if let Some(ticket) = under_way.pop_front() {
                        accumulator.resolve(ticket, Ok(Some(Offset(0))));
                    }
                }
                Step::TakeCompletion => {
                    tags.1 += accumulator.take_completion().map_or(0, |one| one.records().len());
                }
                Step::Pass(ms) => now += Duration::from_millis(ms),
            }
            // A single record may be larger than what was foreseen for it.
            prop_assert!(accumulator.used() <= LIMITS.memory_bytes + LIMITS.batch_bytes);
        }
        accumulator.close();
        for (slot, expected) in expected.iter_mut().enumerate() {
            while let Some(mut pending) = accumulator.take_ready(slot, now) {
                for value in values(&mut pending) {
                    prop_assert_eq!(Some(value), expected.pop_front());
                }
                accumulator.resolve(pending.ticket, Err(Error::Closed));
            }
            prop_assert!(expected.is_empty());
        }
        under_way.into_iter().for_each(|ticket| accumulator.resolve(ticket, Ok(None)));
        while let Some(completion) = accumulator.take_completion() {
            tags.1 += completion.records().len();
        }
        prop_assert!(accumulator.is_idle());
        prop_assert_eq!(accumulator.used(), 0);
        prop_assert_eq!(tags.0, tags.1);
    }
}

#[test]
fn a_batch_waits_for_linger_or_until_it_is_full() {
    let (mut accumulator, now) = (learnt(1), Instant::now());
    let record = Record::new("topic").value(&[0; 100]);
    assert!(append(&mut accumulator, now, record).wake, "the driver is to look when the batch is due");
    accumulator.driver_wakes_at = Some(now + LIMITS.linger);
    assert!(!append(&mut accumulator, now, record).wake);
    assert_eq!(accumulator.ready_at(0, now), Some(now + LIMITS.linger));
    assert!(accumulator.take_ready(0, now).is_none());
    assert_eq!(accumulator.take_ready(0, now + LIMITS.linger).unwrap().builder.count(), 2);

    let wakes = (0..40).filter(|_| append(&mut accumulator, now, record).wake).count();
    assert_eq!(wakes, 2, "once for each batch that is full");
    let full = accumulator.take_ready(0, now).unwrap();
    assert!(full.builder.size() > LIMITS.batch_bytes - 200);
}

#[test]
fn a_flush_and_a_starving_call_end_lingering() {
    let (mut accumulator, now) = (learnt(1), Instant::now());
    let record = Record::new("topic").value(b"x");
    append(&mut accumulator, now, record);
    let through = accumulator.flush();
    let pending = accumulator.take_ready(0, now).unwrap();
    append(&mut accumulator, now, record);
    assert!(accumulator.take_ready(0, now).is_none(), "what comes after a flush lingers");
    assert!(!accumulator.is_flushed(through));
    accumulator.resolve(pending.ticket, Ok(None));
    assert!(accumulator.is_flushed(through));
    accumulator.starve();
    assert!(accumulator.ready_at(0, now) == Some(now));
    accumulator.fed();
    assert!(accumulator.take_ready(0, now).is_none());
}

#[test]
fn keys_choose_the_partition_and_no_key_sticks_to_one() {
    let (mut accumulator, now) = (learnt(50), Instant::now());
    for key in 0_u32..100 {
        let key = key.to_be_bytes();
        append(&mut accumulator, now, Record::new("topic").key(&key).value(b"x"));
        let slot = murmur2::partition_for_key(&key, 50) as usize;
        let mut pending = accumulator.take_oldest(slot).unwrap();
        assert_eq!(values(&mut pending).len(), 1);
        accumulator.resolve(pending.ticket, Ok(None));
    }
    let mut used = BTreeSet::new();
    for _ in 0..40 {
        for _ in 0..10 {
            append(&mut accumulator, now, Record::new("topic").value(b"x"));
        }
        let slots: Vec<_> = (0..50).filter(|&slot| accumulator.oldest(slot).is_some()).collect();
        let [slot] = slots[..] else { panic!("one batch is filled at a time: {slots:?}") };
        let pending = accumulator.take_oldest(slot).unwrap();
        assert_eq!(pending.builder.count(), 10);
        accumulator.resolve(pending.ticket, Ok(None));
        used.insert(slot);
    }
    assert!(used.len() > 5, "the next batch goes to another partition: {used:?}");
}

/// However fast they come: none is the one that a burst goes to.
#[test]
fn records_without_a_key_go_to_another_partition_when_a_batch_is_full() {
    let (mut accumulator, now) = (learnt(4), Instant::now());
    let batches = 8;
    for _ in 0..batches * 10 {
        append(&mut accumulator, now, Record::new("topic").value(&[0; 200]));
    }
    let most = accumulator.slots.iter().map(|slot| slot.full.len()).max();
    assert!(most < Some(batches), "{most:?} of about {batches} are in one partition");
}

/// A partition whose batches are not taken gets few more, and not all memory.
#[test]
fn records_without_a_key_avoid_a_partition_that_is_behind() {
    let mut accumulator = Accumulator::new(Limits { memory_bytes: 1 << 20, batch_bytes: 1 << 10, ..LIMITS });
    accumulator.learn("topic", &ID, 4, 0).unwrap();
    let now = Instant::now();
    let mut taken = 0;
    for _ in 0..4_000 {
        append(&mut accumulator, now, Record::new("topic").value(&[0; 500]));
        for slot in 1..4 {
            while let Some(pending) = accumulator.take_ready(slot, now) {
                taken += 1;
                accumulator.resolve(pending.ticket, Ok(None));
            }
        }
    }
    let behind = accumulator.slots[0].full.len();
    assert!(behind < taken / 10, "{behind} batches wait, {taken} were taken");
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let (mut accumulator, now) = (learnt(2), Instant::now());
    let mut refusal = |record: Record<'_>| accumulator.append(now, 0, &record, None).unwrap_err();
    assert!(matches!(refusal(Record::new("other")), Refused::UnknownTopic));
    let Refused::For(error) = refusal(Record::new("topic").partition(2)) else { panic!() };
    assert_eq!(error.reason(), Some(ErrorReason::UnknownPartition));
    let large = refusal(Record::new("topic").value(&[0; 8 << 10]));
    assert!(matches!(large, Refused::For(Error::RecordTooLarge { limit: 8192, .. })));
    accumulator.close();
    let closed = accumulator.append(now, 0, &Record::new("topic"), None).unwrap_err();
    assert!(matches!(closed, Refused::For(Error::Closed)));
}

#[test]
fn a_topic_may_grow() {
    let mut accumulator = learnt(1);
    accumulator.learn("topic", &ID, 3, 0).unwrap();
    accumulator.learn("topic", &ID, 2, 0).unwrap();
    accumulator.learn("other", &ID, 1, 0).unwrap();
    let places: Vec<_> = (0..accumulator.slots()).map(|at| accumulator.place(at)).collect();
    let names: Vec<_> = places.iter().map(|(topic, _, partition)| (&**topic, *partition)).collect();
    assert_eq!(names, [("topic", 0), ("topic", 1), ("topic", 2), ("other", 0)]);
}

#[test]
fn a_name_is_held_to_its_first_topic() {
    let (mut accumulator, now) = (learnt(1), Instant::now());
    let learn = |accumulator: &mut Accumulator, id| accumulator.learn("topic", id, 3, 0);
    let other = Bytes::from_static(b"two");
    assert!(learn(&mut accumulator, &other).is_err());
    assert_eq!(accumulator.slots(), 1);
    accumulator.forget("topic");
    let gone = accumulator.append(now, 0, &Record::new("topic"), None).unwrap_err();
    assert!(matches!(gone, Refused::UnknownTopic));
    assert!(learn(&mut accumulator, &other).is_err());
    learn(&mut accumulator, &ID).unwrap();
    append(&mut accumulator, now, Record::new("topic"));
}
