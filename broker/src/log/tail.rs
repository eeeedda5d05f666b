//! One budget for the tails of all partitions: the oldest entry goes first,
//! whichever partition it is of.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::log::partition::PartitionLog;
use crate::log::stored::StoredEntry;
use crate::memory::{Memory, capacity_of};

/// Records of entries that are gone from their tails are put up with up to this
/// many, and as many as there are entries.
const GONE_MAX: usize = 1024;

/// The order in which entries came into tails.
#[derive(Debug)]
pub struct TailBudget {
    limit: usize,
    memory: Arc<Memory>,
    held: Arc<Held>,
    order: Mutex<VecDeque<Place>>,
}

/// An entry and whose tail it came into. A partition that is led no longer drops
/// its tail itself.
#[derive(Debug)]
struct Place {
    partition: Weak<PartitionLog>,
    entry: Weak<StoredEntry>,
}

/// What the tails hold.
#[derive(Debug, Default)]
struct Held {
    bytes: AtomicUsize,
    entries: AtomicUsize,
}

/// One entry's part of it, until the entry is gone.
#[derive(Debug)]
pub struct Share {
    held: Arc<Held>,
    bytes: usize,
}

impl Share {
    fn new(held: &Arc<Held>, bytes: usize) -> Self {
        held.bytes.fetch_add(bytes, Ordering::Relaxed);
        held.entries.fetch_add(1, Ordering::Relaxed);
        Self { held: Arc::clone(held), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.held.entries.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TailBudget {
    /// A budget of this many bytes, which gives way when `memory` is short.
    #[must_use]
    pub fn new(limit: usize, memory: Arc<Memory>) -> Self {
        Self { limit, memory, held: Arc::default(), order: Mutex::default() }
    }

    /// Bytes of memory that the tails hold.
    #[must_use]
    pub fn used(&self) -> usize {
        self.held.bytes.load(Ordering::Relaxed)
    }

    /// This entry was added to the partition's tail; older ones go until the
    /// budget holds.
    pub fn added(&self, partition: &Arc<PartitionLog>, entry: &Arc<StoredEntry>) {
        entry.count(Share::new(&self.held, capacity_of(entry.size())));
        {
            let mut order = self.lock();
            order.push_back(Place { partition: Arc::downgrade(partition), entry: Arc::downgrade(entry) });
            if order.len() > GONE_MAX + 2 * self.held.entries.load(Ordering::Relaxed) {
                order.retain(|place| place.entry.strong_count() > 0);
            }
        }
        while self.is_over() && self.evict_oldest() {}
    }

    /// Drops the oldest entry of all tails. False when there is none.
    pub fn evict_oldest(&self) -> bool {
        // Held until the entry is gone: another thread that came in between would
        // find its own not to be the oldest, and forget it.
        let mut order = self.lock();
        while let Some(Place { partition, entry }) = order.pop_front() {
            let (Some(partition), Some(entry)) = (partition.upgrade(), entry.upgrade()) else { continue };
            if partition.drop_from_tail(&entry) {
                drop(order);
                // Freed here, outside the locks.
                drop(entry);
                return true;
            }
        }
        false
    }

    fn is_over(&self) -> bool {
        self.used() > self.limit || self.memory.is_pressed()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Place>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use quire_proto::id::{EntryId, Epoch, LedgerId, Offset, PartitionId};

    use super::*;
    use crate::bookies::fake::{record, segment};
    use crate::log::partition::{Found, Standing};
    use crate::log::stored::Batches;
    use crate::testing::topic;

    fn log() -> Arc<PartitionLog> {
        let log = PartitionLog::new(PartitionId::default(), topic());
        lead(&log, 1, 0);
        log
    }

    fn lead(log: &PartitionLog, epoch: u64, latest: u64) {
        log.leading(Epoch(epoch), vec![segment(1, 0, latest, &[1])], Offset(latest));
    }

    /// An entry with this offset is committed.
    fn commit(budget: &TailBudget, log: &Arc<PartitionLog>, offset: u64) {
        let record = record(LedgerId(1), EntryId(offset), offset);
        let entry = Arc::new(StoredEntry::decode(record.payload.to_bytes()).unwrap());
        log.committed(EntryId(offset + 1), [Arc::clone(&entry)]);
        budget.added(log, &entry);
    }

    fn is_in_memory(log: &PartitionLog, offset: u64) -> bool {
        matches!(log.find(Offset(offset), 1, &mut Batches::default()), Ok(Found::Tail(_)))
    }

    #[test]
    fn the_oldest_goes_first_whichever_partition_it_is_of() {
        let one = capacity_of(record(LedgerId(1), EntryId(0), 0).payload.len());
        let budget = TailBudget::new(3 * one, Memory::new(1 << 20));
        let logs = [log(), log()];
        for offset in 0..2 {
            logs.iter().for_each(|log| commit(&budget, log, offset));
        }
        assert_eq!(budget.used(), 3 * one);
        assert_eq!(logs.each_ref().map(|log| is_in_memory(log, 0)), [false, true]);
    }

    #[test]
    fn threads_that_evict_at_once_forget_nothing() {
        let (budget, log) = (TailBudget::new(usize::MAX, Memory::new(1 << 20)), log());
        for round in 0..50 {
            (round * 100..(round + 1) * 100).for_each(|offset| commit(&budget, &log, offset));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| while budget.evict_oldest() {});
                }
            });
            assert_eq!(budget.used(), 0, "round {round}");
        }
    }

    #[test]
    fn what_a_partition_dropped_itself_does_not_cost_the_others_theirs() {
        let one = capacity_of(record(LedgerId(1), EntryId(0), 0).payload.len());
        let budget = TailBudget::new(3 * one, Memory::new(1 << 20));
        let (stays, goes) = (log(), log());
        commit(&budget, &stays, 0);
        (0..2).for_each(|offset| commit(&budget, &goes, offset));
        goes.stopped(Standing::Deposed);
        assert_eq!(budget.used(), one);
        // Led again, it fills its tail anew.
        lead(&goes, 2, 2);
        (2..4).for_each(|offset| commit(&budget, &goes, offset));
        assert!(is_in_memory(&stays, 0));
        assert!(is_in_memory(&goes, 2));
        assert!(budget.evict_oldest());
        assert!(!is_in_memory(&stays, 0));
        assert!(is_in_memory(&goes, 2), "one entry is dropped, the oldest");
        (0..2).for_each(|_| assert!(budget.evict_oldest()));
        assert!(!budget.evict_oldest());
        assert_eq!(budget.used(), 0);
    }
}
