//! What was written last, in memory: readers that keep up never touch the disk.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use bytes::Bytes;

use crate::log::format::Generation;

/// The newest commit batches, at most so many bytes of them.
pub struct Tail {
    bytes_max: u64,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    /// In the order of the log.
    batches: VecDeque<(Generation, u64, Bytes)>,
    bytes: u64,
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl Tail {
    /// An empty tail.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, state: RwLock::default() }
    }

    /// A batch that is durable, at this place.
    pub fn push(&self, generation: Generation, position: u64, batch: Bytes) {
        let mut dropped = Vec::new();
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            state.bytes += batch.len() as u64;
            state.batches.push_back((generation, position, batch));
            while state.bytes > self.bytes_max {
                let Some(oldest) = state.batches.pop_front() else { break };
                state.bytes -= oldest.2.len() as u64;
                dropped.push(oldest);
            }
        }
        // Buffers go back to their pool outside the lock.
        drop(dropped);
    }

    /// These bytes of a file, if they are in one batch of the tail.
    #[must_use]
    pub fn get(&self, generation: Generation, position: u64, length: usize) -> Option<Bytes> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let after =
            state.batches.partition_point(|&(other, start, _)| (other, start) <= (generation, position));
        let (other, start, batch) = state.batches.get(after.checked_sub(1)?)?;
        let from = usize::try_from(position - start).ok().filter(|_| *other == generation)?;
        let to = from.checked_add(length).filter(|&to| to <= batch.len())?;
        Some(batch.slice(from..to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_batches_are_found_and_older_ones_make_room() {
        let tail = Tail::new(20);
        let batch = |byte| Bytes::from(vec![byte; 10]);
        tail.push(Generation(1), 100, batch(1));
        tail.push(Generation(1), 110, batch(2));
        tail.push(Generation(2), 0, batch(3));
        assert_eq!(tail.get(Generation(1), 100, 1), None, "made room");
        assert_eq!(tail.get(Generation(1), 112, 8), Some(Bytes::from(vec![2; 8])));
        assert_eq!(tail.get(Generation(1), 112, 9), None, "beyond its batch");
        assert_eq!(tail.get(Generation(2), 0, 10), Some(batch(3)));
        assert_eq!(tail.get(Generation(1), 200, 1), None);
        assert_eq!(tail.get(Generation(3), 0, 1), None);
    }
}
