//! When which partition of a shard is due. One timer per shard is enough.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use quire_ledger::clock::Millis;

/// Due times. A partition is in it at most once for each time that it became
/// due earlier than before; what is no longer so is found out when it fires.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Millis, usize)>>,
}

impl Timers {
    /// The partition in this slot is due at this time; `armed` is when it was
    /// due according to the last call.
    pub fn arm(&mut self, slot: usize, due: Option<Millis>, armed: &mut Option<Millis>) {
        let Some(due) = due else { return };
        if armed.is_none_or(|armed| due < armed) {
            *armed = Some(due);
            self.heap.push(Reverse((due, slot)));
        }
    }

    /// When the first is due.
    #[must_use]
    pub fn next(&self) -> Option<Millis> {
        self.heap.peek().map(|Reverse((due, _))| *due)
    }

    /// A slot that is due, with the time it was armed for.
    pub fn pop(&mut self, now: Millis) -> Option<(Millis, usize)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(due)| due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_earlier_time_is_armed_anew() {
        let mut timers = Timers::default();
        let mut armed = None;
        timers.arm(3, Some(Millis(50)), &mut armed);
        timers.arm(3, Some(Millis(90)), &mut armed);
        timers.arm(3, Some(Millis(20)), &mut armed);
        timers.arm(4, None, &mut None);
        assert_eq!(timers.next(), Some(Millis(20)));
        assert_eq!(timers.pop(Millis(19)), None);
        assert_eq!(timers.pop(Millis(20)), Some((Millis(20), 3)));
        assert_eq!(timers.pop(Millis(100)), Some((Millis(50), 3)));
        assert_eq!(timers.pop(Millis(100)), None);
    }
}
