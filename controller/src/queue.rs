//! Which piece of work is next. Plain: time is passed in.

use std::collections::BTreeMap;
use std::time::Duration;

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing more to do, unless the value changes.
    Done,
    /// To be run again when woken, or after this time.
    Wait(Option<Duration>),
    /// It failed: to be run again after a pause that grows.
    Failed,
}

/// Pieces of work, one a key. No key is run twice at once.
#[derive(Debug)]
pub(crate) struct Queue<K, V> {
    items: BTreeMap<K, Item<V>>,
    retry_min: Duration,
    retry_max: Duration,
    running: usize,
}

#[derive(Debug)]
struct Item<V> {
    value: V,
    /// When it is to be run; `None`: when woken.
    due: Option<Duration>,
    pause: Duration,
    running: bool,
    /// The value changed, went, or a wake-up came while it ran.
    stale: bool,
    gone: bool,
}

impl<K: Ord + Clone, V: Clone> Queue<K, V> {
    pub(crate) const fn new(retry_min: Duration, retry_max: Duration) -> Self {
        Self { items: BTreeMap::new(), retry_min, retry_max, running: 0 }
    }

    /// A key has this value now: run it.
    pub(crate) fn put(&mut self, key: K, value: V, now: Duration) {
        let pause = self.retry_min;
        let item = self.items.entry(key).or_insert_with(|| Item {
            value: value.clone(),
            due: None,
            pause,
            running: false,
            stale: false,
            gone: false,
        });
        item.value = value;
        item.due = Some(now);
        item.stale = item.running;
        item.gone = false;
    }

    /// The key is gone: there is nothing to do any more.
    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(item) = self.items.get_mut(key) {
            item.gone = true;
            if !item.running {
                self.items.remove(key);
            }
        }
    }

    /// These are all keys there are.
    pub(crate) fn reset(&mut self, all: Vec<(K, V)>, now: Duration) {
        let gone: Vec<K> =
            self.items.keys().filter(|key| all.iter().all(|(there, _)| there != *key)).cloned().collect();
        gone.iter().for_each(|key| self.remove(key));
        all.into_iter().for_each(|(key, value)| self.put(key, value, now));
    }

    /// Something changed that any of them may wait for.
    pub(crate) fn wake_all(&mut self, now: Duration) {
        for item in self.items.values_mut() {
            item.due = Some(now);
            item.stale = item.running;
        }
    }

    /// The next piece of work, which runs from now on until [`Self::finished`].
    pub(crate) fn start(&mut self, now: Duration) -> Option<(K, V)> {
        let ready = |item: &Item<V>| !item.running && item.due.is_some_and(|due| due <= now);
        let (key, item) =
            self.items.iter_mut().filter(|(_, item)| ready(item)).min_by_key(|(_, item)| item.due)?;
        item.running = true;
        item.due = None;
        self.running += 1;
        Some((key.clone(), item.value.clone()))
    }

    pub(crate) fn finished(&mut self, key: &K, next: Next, now: Duration) {
        let Some(item) = self.items.get_mut(key) else { return };
        self.running -= 1;
        item.running = false;
        if item.gone {
            self.items.remove(key);
            return;
        }
        let due = match next {
            Next::Done => None,
            Next::Wait(after) => after.map(|after| now.saturating_add(after)),
            Next::Failed => Some(now.saturating_add(item.pause)),
        };
        item.pause = match next {
            Next::Failed => (item.pause * 2).min(self.retry_max),
            Next::Done | Next::Wait(_) => self.retry_min,
        };
        if !std::mem::take(&mut item.stale) {
            item.due = due;
        }
    }

    /// How many run.
    pub(crate) const fn running(&self) -> usize {
        self.running
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// When the next one that does not run is to be run.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.items.values().filter(|item| !item.running).filter_map(|item| item.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_millis(350);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn queue() -> Queue<u32, &'static str> {
        Queue::new(MIN, MAX)
    }

    #[test]
    fn what_came_first_is_run_first_and_only_once_at_a_time() {
        let mut queue = queue();
        queue.put(2, "b", ms(0));
        queue.put(1, "a", ms(1));
        assert_eq!(queue.start(ms(1)), Some((2, "b")));
        assert_eq!(queue.start(ms(1)), Some((1, "a")));
        assert_eq!(queue.start(ms(1)), None);
        assert_eq!(queue.running(), 2);
        queue.finished(&2, Next::Done, ms(2));
        assert_eq!((queue.start(ms(9)), queue.running()), (None, 1));
    }

    #[test]
    fn a_failure_is_tried_again_after_a_pause_that_grows_to_its_limit() {
        let mut queue = queue();
        queue.put(1, "a", ms(0));
        let mut now = ms(0);
        for pause in [100, 200, 350, 350] {
            assert!(queue.start(now).is_some());
            queue.finished(&1, Next::Failed, now);
            assert_eq!(queue.next_due(), Some(now + ms(pause)));
            assert_eq!(queue.start(now + ms(pause - 1)), None);
            now += ms(pause);
        }
        assert!(queue.start(now).is_some());
        queue.finished(&1, Next::Wait(Some(ms(5))), now);
        assert!(queue.start(now + ms(5)).is_some());
        queue.finished(&1, Next::Failed, now);
        assert_eq!(queue.next_due(), Some(now + MIN), "a success makes the pause short again");
    }

    #[test]
    fn a_change_while_it_runs_is_not_missed() {
        let mut queue = queue();
        queue.put(1, "old", ms(0));
        queue.start(ms(0));
        queue.put(1, "new", ms(1));
        assert_eq!(queue.start(ms(1)), None, "it runs already");
        queue.finished(&1, Next::Done, ms(2));
        assert_eq!(queue.start(ms(2)), Some((1, "new")));
    }

    #[test]
    fn a_wake_up_reaches_those_that_wait_and_those_that_run() {
        let mut queue = queue();
        queue.put(1, "waits", ms(0));
        queue.put(2, "runs", ms(0));
        queue.start(ms(0));
        queue.start(ms(0));
        queue.finished(&1, Next::Wait(None), ms(0));
        assert_eq!(queue.next_due(), None);
        queue.wake_all(ms(1));
        queue.finished(&2, Next::Wait(None), ms(1));
        assert_eq!(queue.start(ms(1)), Some((1, "waits")));
        assert_eq!(queue.start(ms(1)), Some((2, "runs")));
    }

    #[test]
    fn what_is_gone_is_forgotten_also_while_it_runs() {
        let mut queue = queue();
        queue.put(1, "waits", ms(0));
        queue.put(2, "runs", ms(0));
        queue.put(3, "stays", ms(0));
        queue.start(ms(0));
        queue.finished(&1, Next::Wait(None), ms(0));
        queue.start(ms(0));
        queue.reset(vec![(3, "stays")], ms(1));
        queue.finished(&2, Next::Failed, ms(1));
        assert_eq!((queue.len(), queue.running()), (1, 0));
        assert_eq!(queue.start(ms(1)), Some((3, "stays")));
    }

    #[test]
    fn a_key_that_comes_back_while_the_old_one_runs_is_run_again() {
        let mut queue = queue();
        queue.put(1, "old", ms(0));
        queue.start(ms(0));
        queue.remove(&1);
        queue.put(1, "new", ms(1));
        queue.finished(&1, Next::Done, ms(2));
        assert_eq!(queue.start(ms(2)), Some((1, "new")));
    }
}
