//! The last batches of each producer, committed and pending apart.
//!
//! A producer numbers its records of one partition. A batch that continues the
//! numbers is new; one that equals one of the last [`UNRESOLVED_MAX`] is a
//! repeat, answered with its original offset once the original is committed;
//! anything else is out of order. The numbers wrap from `i32::MAX` to 0.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use quire_proto::batch::UNRESOLVED_MAX;
use quire_proto::id::Offset;
use smallvec::SmallVec;

/// Producers that are remembered of one partition. Beyond it those are
/// forgotten that have been silent for [`KEPT_FOR`], and while there are none
/// a producer that is not known is refused.
pub const PRODUCERS_MAX: usize = 65_536;

/// A producer that wrote within this time is not forgotten: it may send again
/// what it has no answer to. Longer than clients try.
pub const KEPT_FOR: Duration = Duration::from_secs(15 * 60);

/// So many of the oldest are looked for at once when the state is rebuilt: the
/// next search comes after as many commits.
const OLDEST: usize = PRODUCERS_MAX / 16;

/// Between two searches for silent producers in a full table, milliseconds.
const SEARCH_EVERY_MS: i64 = 1_000;

/// A batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: u32,
}

impl Append {
    /// The sequence number of the batch's last record.
    #[must_use]
    pub const fn last_sequence(&self) -> i32 {
        wrapping_add(self.base_sequence, self.record_count.saturating_sub(1))
    }
}

/// What a batch is to its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It goes on where the producer was.
    New,
    /// It is there, or on its way, under these offsets.
    Duplicate { base_offset: Offset, last_offset: Offset },
    /// The producer's next sequence number is another.
    OutOfOrder { expected: i32 },
    /// A newer epoch of this producer wrote.
    Fenced { current: i16 },
    /// The producer is not known, and no other can be forgotten for it.
    TooManyProducers,
}

/// One remembered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub base_sequence: i32,
    pub last_sequence: i32,
    pub base_offset: Offset,
    pub last_offset: Offset,
}

/// What is remembered of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    pub epoch: i16,
    /// The partition's clock at the last append.
    pub appended_ms: i64,
    /// Oldest first, at least one, at most [`UNRESOLVED_MAX`].
    pub batches: SmallVec<[Remembered; 1]>,
}

impl Producer {
    fn judge(&self, append: &Append) -> Verdict {
        if append.producer_epoch < self.epoch {
            return Verdict::Fenced { current: self.epoch };
        }
        if append.producer_epoch > self.epoch {
            return expect(0, append);
        }
        let last_sequence = append.last_sequence();
        let repeated = self.batches.iter().find(|batch| {
            batch.base_sequence == append.base_sequence && batch.last_sequence == last_sequence
        });
        match (repeated, self.batches.last()) {
            (Some(batch), _) => {
                Verdict::Duplicate { base_offset: batch.base_offset, last_offset: batch.last_offset }
            }
            (None, Some(batch)) => expect(wrapping_add(batch.last_sequence, 1), append),
            (None, None) => Verdict::New,
        }
    }

    fn record(&mut self, append: &Append, base_offset: Offset, last_offset: Offset, now_ms: i64) {
        if append.producer_epoch != self.epoch {
            self.epoch = append.producer_epoch;
            self.batches.clear();
        }
        if self.batches.len() == UNRESOLVED_MAX {
            self.batches.remove(0);
        }
        self.appended_ms = now_ms;
        self.batches.push(Remembered {
            base_sequence: append.base_sequence,
            last_sequence: append.last_sequence(),
            base_offset,
            last_offset,
        });
    }
}

fn expect(expected: i32, append: &Append) -> Verdict {
    if append.base_sequence == expected { Verdict::New } else { Verdict::OutOfOrder { expected } }
}

const fn wrapping_add(sequence: i32, count: u32) -> i32 {
    let sum = (sequence as i64 + count as i64) % (i32::MAX as i64 + 1);
    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below 2^31")]
    {
        sum as i32
    }
}

/// A producer with batches that are appended and not yet committed.
#[derive(Clone, Debug)]
struct Pending {
    producer: Producer,
    batches: usize,
}

/// The producers of one partition.
#[derive(Clone, Debug, Default)]
pub struct Producers {
    committed: HashMap<i64, Producer>,
    /// Only producers that have something pending; what is here hides what is
    /// in `committed`.
    pending: HashMap<i64, Pending>,
    /// There was nobody to forget: not searched again before.
    full_until_ms: i64,
    /// Committed producers and when they wrote, the oldest last: the next to go
    /// when a state that is rebuilt has too many.
    oldest: Vec<(i64, i64)>,
}

impl Producers {
    /// The state that a snapshot or the entries below told, nothing pending.
    #[must_use]
    pub fn of(committed: HashMap<i64, Producer>) -> Self {
        Self { committed, ..Self::default() }
    }

    /// Committed state: what a snapshot holds.
    #[must_use]
    pub const fn committed(&self) -> &HashMap<i64, Producer> {
        &self.committed
    }

    /// The state with everything pending counted in.
    #[must_use]
    pub fn appended(&self) -> HashMap<i64, Producer> {
        let mut state = self.committed.clone();
        state.extend(self.pending.iter().map(|(&id, pending)| (id, pending.producer.clone())));
        state
    }

    /// What this batch is, everything pending counted in. A producer that is
    /// not known, or was not heard of for `expiry`, may begin at any number.
    pub fn judge(&mut self, append: &Append, now_ms: i64, expiry: Duration) -> Verdict {
        if let Some(pending) = self.pending.get(&append.producer_id) {
            return pending.producer.judge(append);
        }
        match self.committed.get(&append.producer_id) {
            Some(producer) if !is_expired(producer, now_ms, expiry) => return producer.judge(append),
            Some(_) => return Verdict::New,
            None => {}
        }
        if self.is_full(now_ms) { Verdict::TooManyProducers } else { Verdict::New }
    }

    /// Whether there is no room for another producer, even after forgetting.
    fn is_full(&mut self, now_ms: i64) -> bool {
        if self.committed.len() + self.pending.len() < PRODUCERS_MAX {
            return false;
        }
        let fresh = self.pending.keys().filter(|id| !self.committed.contains_key(id)).count();
        let full = |committed: usize| committed + fresh >= PRODUCERS_MAX;
        if full(self.committed.len()) && now_ms >= self.full_until_ms {
            self.forget_silent(now_ms);
            self.full_until_ms = now_ms + SEARCH_EVERY_MS;
        }
        full(self.committed.len())
    }

    /// A batch that was judged new goes on its way.
    pub fn append(&mut self, append: &Append, base_offset: Offset, last_offset: Offset, now_ms: i64) {
        let pending = self.pending.entry(append.producer_id).or_insert_with(|| Pending {
            producer: self.committed.get(&append.producer_id).cloned().unwrap_or(Producer {
                epoch: append.producer_epoch,
                appended_ms: now_ms,
                batches: SmallVec::new(),
            }),
            batches: 0,
        });
        pending.producer.record(append, base_offset, last_offset, now_ms);
        pending.batches += 1;
    }

    /// The oldest pending batch of this producer is committed, or, when the
    /// state is being rebuilt, a committed batch is read.
    pub fn commit(&mut self, append: &Append, base_offset: Offset, last_offset: Offset, now_ms: i64) {
        if self.committed.len() >= PRODUCERS_MAX && !self.committed.contains_key(&append.producer_id) {
            self.forget_oldest();
        }
        self.committed
            .entry(append.producer_id)
            .or_insert_with(|| Producer {
                epoch: append.producer_epoch,
                appended_ms: now_ms,
                batches: SmallVec::new(),
            })
            .record(append, base_offset, last_offset, now_ms);
        if let Entry::Occupied(mut pending) = self.pending.entry(append.producer_id) {
            pending.get_mut().batches -= 1;
            if pending.get().batches == 0 {
                pending.remove();
            }
        }
    }

    /// Forgets producers that wrote nothing for this long.
    pub fn expire(&mut self, now_ms: i64, expiry: Duration) {
        self.committed.retain(|_, producer| !is_expired(producer, now_ms, expiry));
    }

    /// The leader that admitted the next one had forgotten the silent ones, which a
    /// state that is rebuilt still has: the oldest goes. Whatever the clocks say,
    /// there is one search in [`OLDEST`] commits: each of those it found has gone
    /// by the next one, or has written since.
    fn forget_oldest(&mut self) {
        loop {
            if self.oldest.is_empty() {
                self.find_oldest();
            }
            let Some((appended_ms, id)) = self.oldest.pop() else { return };
            if self.committed.get(&id).is_some_and(|producer| producer.appended_ms == appended_ms) {
                self.committed.remove(&id);
                return;
            }
        }
    }

    fn find_oldest(&mut self) {
        self.oldest.extend(self.committed.iter().map(|(&id, producer)| (producer.appended_ms, id)));
        if self.oldest.len() > OLDEST {
            self.oldest.select_nth_unstable(OLDEST);
            self.oldest.truncate(OLDEST);
        }
        self.oldest.shrink_to_fit();
        self.oldest.sort_unstable_by_key(|&oldest| Reverse(oldest));
    }

    fn forget_silent(&mut self, now_ms: i64) {
        let pending = &self.pending;
        self.committed
            .retain(|id, producer| pending.contains_key(id) || !is_expired(producer, now_ms, KEPT_FOR));
    }
}

fn is_expired(producer: &Producer, now_ms: i64, expiry: Duration) -> bool {
    let expiry_ms = i64::try_from(expiry.as_millis()).unwrap_or(i64::MAX);
    now_ms.saturating_sub(producer.appended_ms) > expiry_ms
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn batch(epoch: i16, base_sequence: i32, record_count: u32) -> Append {
        Append { producer_id: 7, producer_epoch: epoch, base_sequence, record_count }
    }

    fn write(producers: &mut Producers, append: &Append, base: u64) {
        assert_eq!(producers.judge(append, 0, DAY), Verdict::New);
        let last = Offset(base + u64::from(append.record_count) - 1);
        producers.append(append, Offset(base), last, 0);
        producers.commit(append, Offset(base), last, 0);
    }

    #[test]
    fn a_repeat_is_answered_with_its_offsets_until_as_many_followed() {
        let mut producers = Producers::default();
        let batches = i32::try_from(UNRESOLVED_MAX).unwrap() + 1;
        for n in 0..batches {
            write(&mut producers, &batch(0, n * 10, 10), n as u64 * 10);
        }
        let expected = batches * 10;
        assert_eq!(
            producers.judge(&batch(0, 10, 10), 0, DAY),
            Verdict::Duplicate { base_offset: Offset(10), last_offset: Offset(19) }
        );
        for (sequence, count) in [(0, 10), (10, 9), (expected + 10, 1)] {
            let verdict = producers.judge(&batch(0, sequence, count), 0, DAY);
            assert_eq!(verdict, Verdict::OutOfOrder { expected });
        }
        assert_eq!(producers.judge(&batch(0, expected, 1), 0, DAY), Verdict::New);
    }

    #[test]
    fn a_new_epoch_begins_at_zero_and_shuts_out_the_old() {
        let mut producers = Producers::default();
        write(&mut producers, &batch(1, 0, 3), 0);
        assert_eq!(producers.judge(&batch(2, 3, 1), 0, DAY), Verdict::OutOfOrder { expected: 0 });
        write(&mut producers, &batch(2, 0, 1), 3);
        assert_eq!(producers.judge(&batch(1, 3, 1), 0, DAY), Verdict::Fenced { current: 2 });
    }

    #[test]
    fn an_unknown_or_expired_producer_begins_anywhere() {
        let mut producers = Producers::default();
        write(&mut producers, &batch(0, 500, 1), 0);
        let later = 2 * 24 * 3600 * 1000;
        assert_eq!(producers.judge(&batch(0, 9, 1), later, DAY), Verdict::New);
        producers.expire(later, DAY);
        assert!(producers.committed().is_empty());
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut producers = Producers::default();
        write(&mut producers, &batch(0, i32::MAX - 1, 3), 0);
        assert_eq!(producers.judge(&batch(0, 1, 1), 3, DAY), Verdict::New);
    }

    #[test]
    fn a_crowd_is_refused_until_some_are_silent() {
        let mut producers = Producers::default();
        let first = |id| Append { producer_id: id, ..batch(0, 0, 1) };
        for id in 0..PRODUCERS_MAX as i64 {
            assert_eq!(producers.judge(&first(id), 0, DAY), Verdict::New);
            producers.append(&first(id), Offset(id as u64), Offset(id as u64), id % 2);
            producers.commit(&first(id), Offset(id as u64), Offset(id as u64), id % 2);
        }
        let stranger = first(-1);
        let kept_for = i64::try_from(KEPT_FOR.as_millis()).unwrap();
        for now_ms in [1, 2_000, kept_for] {
            assert_eq!(producers.judge(&stranger, now_ms, DAY), Verdict::TooManyProducers);
            let known = Verdict::Duplicate { base_offset: Offset(0), last_offset: Offset(0) };
            assert_eq!(producers.judge(&first(0), now_ms, DAY), known, "nobody is forgotten");
        }
        assert_eq!(producers.judge(&stranger, kept_for + 1_001, DAY), Verdict::New);
        assert_eq!(producers.committed().len(), 0, "all are silent by now");
    }

    #[test]
    fn a_rebuilt_crowd_forgets_whom_the_leader_had_forgotten() {
        let mut producers = Producers::default();
        let (all, silent) = (PRODUCERS_MAX as i64, PRODUCERS_MAX as i64 / 2);
        let kept_for = i64::try_from(KEPT_FOR.as_millis()).unwrap();
        for id in 0..all + silent {
            let append = Append { producer_id: id, ..batch(0, 0, 1) };
            let at = if id < silent { 0 } else { kept_for + 1 };
            producers.commit(&append, Offset(0), Offset(0), at);
        }
        assert_eq!(producers.committed().len(), PRODUCERS_MAX);
        assert!((silent..all + silent).all(|id| producers.committed().contains_key(&id)));
    }

    #[test]
    fn a_crowd_that_is_never_silent_is_rebuilt_without_a_search_for_each() {
        let mut producers = Producers::default();
        let all = PRODUCERS_MAX as i64;
        let mut searches = 0;
        // Every second one of the first writes again.
        let again = (0..all).filter(|id| id % 2 == 0);
        for (at, id) in (0..all).chain(again).chain(all..3 * all).enumerate() {
            let append = Append { producer_id: id, ..batch(0, 0, 1) };
            let candidates = producers.oldest.len();
            producers.commit(&append, Offset(0), Offset(0), at as i64 / 100);
            searches += usize::from(producers.oldest.len() > candidates);
        }
        assert_eq!(producers.committed().len(), PRODUCERS_MAX);
        assert!((2 * all..3 * all).all(|id| producers.committed().contains_key(&id)), "the oldest go");
        assert_eq!(searches, 2 * PRODUCERS_MAX / OLDEST);
    }

    #[test]
    fn who_writes_while_a_crowd_is_rebuilt_is_not_forgotten() {
        let mut producers = Producers::default();
        let all = PRODUCERS_MAX as i64;
        let mut commit = |id, at| {
            let append = Append { producer_id: id, ..batch(0, 0, 1) };
            producers.commit(&append, Offset(0), Offset(0), at);
            producers.committed().contains_key(&1)
        };
        for id in 0..=all {
            commit(id, id);
        }
        assert!(commit(1, all + 1), "the next to go writes");
        assert!(commit(all + 1, 0), "a clock that is behind");
        assert!(commit(all + 2, all + 2));
        assert!(producers.committed().contains_key(&(all + 1)), "who has just come does not go");
        assert!(!producers.committed().contains_key(&2));
    }

    #[test]
    fn a_crowd_is_bounded() {
        let mut producers = Producers::default();
        for id in 0..=PRODUCERS_MAX as i64 {
            let append = Append { producer_id: id, ..batch(0, 0, 1) };
            producers.commit(&append, Offset(0), Offset(0), id);
        }
        assert_eq!(producers.committed().len(), PRODUCERS_MAX);
        assert!(!producers.committed().contains_key(&0));
        assert!(producers.committed().contains_key(&(PRODUCERS_MAX as i64)));
    }

    /// The whole history of one producer, searched from the front.
    #[derive(Default)]
    struct Naive {
        log: Vec<(Append, u64)>,
        committed: usize,
    }

    impl Naive {
        fn judge(&self, append: &Append) -> Verdict {
            let Some((last, _)) = self.log.last() else { return Verdict::New };
            let epoch = last.producer_epoch;
            if append.producer_epoch < epoch {
                return Verdict::Fenced { current: epoch };
            }
            let current: VecDeque<_> =
                self.log.iter().filter(|(old, _)| old.producer_epoch == append.producer_epoch).collect();
            let Some((last, _)) = current.back() else {
                return if append.base_sequence == 0 {
                    Verdict::New
                } else {
                    Verdict::OutOfOrder { expected: 0 }
                };
            };
            if let Some((_, base)) = current.iter().rev().take(UNRESOLVED_MAX).find(|(old, _)| old == append)
            {
                let last_offset = Offset(base + u64::from(append.record_count) - 1);
                return Verdict::Duplicate { base_offset: Offset(*base), last_offset };
            }
            let expected = last.base_sequence + last.record_count as i32;
            if append.base_sequence == expected { Verdict::New } else { Verdict::OutOfOrder { expected } }
        }
    }

    proptest! {
        #[test]
        fn it_judges_as_the_whole_history_would(
            steps in prop::collection::vec((0i16..3, 0i32..12, 1u32..4, any::<bool>(), 0usize..3), 1..200)
        ) {
            let mut producers = Producers::default();
            let mut naive = Naive::default();
            let mut next = 0;
            for (epoch, sequence, count, follow, commits) in steps {
                let follow_at = naive.log.last().map_or(0, |(last, _)| last.base_sequence + last.record_count as i32);
                let epoch = if follow { naive.log.last().map_or(0, |(last, _)| last.producer_epoch) } else { epoch };
                let append = batch(epoch, if follow { follow_at } else { sequence }, count);
                let verdict = producers.judge(&append, 0, DAY);
                prop_assert_eq!(verdict, naive.judge(&append));
                if verdict == Verdict::New {
                    producers.append(&append, Offset(next), Offset(next + u64::from(count) - 1), 0);
                    naive.log.push((append, next));
                    next += u64::from(count);
                }
                for _ in 0..commits.min(naive.log.len() - naive.committed) {
                    let (append, base) = naive.log[naive.committed];
                    producers.commit(&append, Offset(base), Offset(base + u64::from(append.record_count) - 1), 0);
                    naive.committed += 1;
                }
                let mut rebuilt = Producers::default();
                for (append, base) in &naive.log[..naive.committed] {
                    rebuilt.commit(append, Offset(*base), Offset(base + u64::from(append.record_count) - 1), 0);
                }
                prop_assert_eq!(producers.committed(), rebuilt.committed());
            }
        }
    }
}
