//! Virtual time: what happens next.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Microseconds since the run began.
pub type Micros = u64;

/// Events in the order of their time, and of their scheduling when they fall
/// on the same microsecond.
#[derive(Debug)]
pub struct Scheduler<E> {
    now: Micros,
    scheduled: u64,
    events: BTreeMap<(Micros, u64), E>,
}

impl<E> Default for Scheduler<E> {
    fn default() -> Self {
        Self { now: 0, scheduled: 0, events: BTreeMap::new() }
    }
}

impl<E> Scheduler<E> {
    /// The time of the event that happened last.
    #[must_use]
    pub const fn now(&self) -> Micros {
        self.now
    }

    /// Lets `event` happen after `delay`.
    pub fn after(&mut self, delay: Micros, event: E) {
        self.at(self.now + delay, event);
    }

    /// Lets `event` happen at `time`, or now when that is past.
    pub fn at(&mut self, time: Micros, event: E) {
        self.scheduled += 1;
        self.events.insert((time.max(self.now), self.scheduled), event);
    }

    /// Moves time on to the next event.
    pub fn advance(&mut self) -> Option<E> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = time;
        Some(event)
    }

    /// Events that are still to come, last ones first.
    pub fn pending(&self) -> impl Iterator<Item = (Micros, &E)> {
        let mut events: Vec<_> = self.events.iter().map(|((time, _), event)| (*time, event)).collect();
        events.sort_by_key(|(time, _)| Reverse(*time));
        events.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_order_of_scheduling() {
        let mut scheduler = Scheduler::default();
        scheduler.after(5, "c");
        scheduler.after(3, "a");
        scheduler.after(3, "b");
        assert_eq!([scheduler.advance(), scheduler.advance()], [Some("a"), Some("b")]);
        scheduler.at(1, "the past is now");
        assert_eq!((scheduler.advance(), scheduler.now()), (Some("the past is now"), 3));
        assert_eq!((scheduler.advance(), scheduler.now()), (Some("c"), 5));
        assert_eq!(scheduler.advance(), None);
    }
}
