//! Long polls and subscriptions that wait for a partition to change.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// One long poll or subscription. It may wait on many partitions.
#[derive(Debug, Default)]
pub struct Waiter {
    changed: Notify,
}

impl Waiter {
    /// Waits until one of its partitions has changed since the last time.
    /// Cancel-safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Who waits on one partition.
#[derive(Debug, Default)]
pub struct Waiters {
    count: AtomicUsize,
    list: Mutex<Vec<Arc<Waiter>>>,
}

impl Waiters {
    /// From now on the waiter is woken by changes.
    pub fn add(&self, waiter: &Arc<Waiter>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(Arc::clone(waiter));
        self.count.store(list.len(), Ordering::SeqCst);
    }

    /// The waiter is done.
    pub fn remove(&self, waiter: &Arc<Waiter>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = list.iter().position(|other| Arc::ptr_eq(other, waiter)) {
            list.swap_remove(at);
        }
        self.count.store(list.len(), Ordering::SeqCst);
    }

    /// The partition changed.
    pub fn wake(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().for_each(|waiter| waiter.changed.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_change_between_looking_and_waiting_is_not_missed() {
        let waiters = Waiters::default();
        let waiter = Arc::new(Waiter::default());
        waiters.add(&waiter);
        waiters.wake();
        waiters.wake();
        assert!(waiter.changed().now_or_never().is_some());
        assert!(waiter.changed().now_or_never().is_none());
        waiters.remove(&waiter);
        waiters.wake();
        assert!(waiter.changed().now_or_never().is_none());
    }
}
