//! One budget for the tails of all partitions: the oldest entry goes first,
//! whichever partition it is of.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::log::partition::PartitionLog;
use crate::memory::{Memory, capacity_of};

/// The order in which entries came into tails.
#[derive(Debug)]
pub struct TailBudget {
    limit: usize,
    memory: Arc<Memory>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<(Weak<PartitionLog>, usize)>,
    used: usize,
}

impl TailBudget {
    /// A budget of this many bytes, which gives way when `memory` is short.
    #[must_use]
    pub fn new(limit: usize, memory: Arc<Memory>) -> Self {
        Self { limit, memory, queue: Mutex::default() }
    }

    /// Bytes of memory that the tails hold.
    #[must_use]
    pub fn used(&self) -> usize {
        self.lock().used
    }

    /// An entry of this many bytes was added to the partition's tail; older
    /// ones go until the budget holds.
    pub fn added(&self, partition: &Arc<PartitionLog>, bytes: usize) {
        let cost = capacity_of(bytes);
        let over = {
            let mut queue = self.lock();
            queue.order.push_back((Arc::downgrade(partition), cost));
            queue.used += cost;
            queue.used > self.limit
        };
        if over || self.memory.is_pressed() {
            while self.is_over() && self.evict_oldest() {}
        }
    }

    /// Drops the oldest entry of all tails. False when there is none.
    pub fn evict_oldest(&self) -> bool {
        let oldest = {
            let mut queue = self.lock();
            let oldest = queue.order.pop_front();
            if let Some((_, cost)) = &oldest {
                queue.used -= cost;
            }
            oldest
        };
        let Some((partition, _)) = oldest else { return false };
        if let Some(partition) = partition.upgrade() {
            partition.drop_oldest_of_tail();
        }
        true
    }

    fn is_over(&self) -> bool {
        self.lock().used > self.limit || self.memory.is_pressed()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
