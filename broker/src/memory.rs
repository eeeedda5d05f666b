//! The budget for produced batches: charged when a request has been read from
//! its socket, freed when the last piece of it is gone: from the writer's
//! window, from the tail cache, from the answer to the last reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests below this many bytes are copied out of the buffer that they were
/// read into, which may be much larger than they are.
const COPY_BELOW: usize = 16 << 10;

/// Requests and answers below this many bytes take no memory of their budgets: the
/// stream that each is on costs about as much.
pub const SMALL: usize = 4 << 10;

/// What a charge costs beside its bytes: queues, headers, acknowledgements.
const OVERHEAD: usize = 512;

/// What so many bytes of a request really take. A request is read into a buffer
/// that grows by doubling: it may be twice as large.
#[must_use]
pub const fn capacity_of(bytes: usize) -> usize {
    if bytes < COPY_BELOW { bytes + OVERHEAD } else { bytes * 2 }
}

/// The budget, in bytes.
#[derive(Debug)]
pub struct Memory {
    free: Arc<Semaphore>,
    limit: usize,
    waiting: AtomicUsize,
}

/// Memory that is taken until the last clone is gone.
#[derive(Clone, Debug)]
pub struct Charge {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A buffer and what it was charged with.
struct Charged {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Charge {
    /// The bytes, which from now on hold the charge: it is freed with their
    /// last slice.
    #[must_use]
    pub fn hold(&self, bytes: Bytes) -> Bytes {
        let bytes = if bytes.len() < COPY_BELOW { Bytes::copy_from_slice(&bytes) } else { bytes };
        Bytes::from_owner(Charged { bytes, _charge: self.clone() })
    }
}

impl Memory {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        let limit = limit.clamp(1 << 20, u32::MAX as usize);
        Arc::new(Self { free: Arc::new(Semaphore::new(limit)), limit, waiting: AtomicUsize::new(0) })
    }

    /// Bytes that are charged.
    #[must_use]
    pub fn used(&self) -> usize {
        self.limit - self.free.available_permits().min(self.limit)
    }

    /// The budget.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether somebody waits for memory: caches should give theirs.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Charges `bytes`, after asking `relieve` to free some for as long as it
    /// can and that helps; else waits, in order of arrival. Cancel-safe.
    pub async fn charge(&self, bytes: usize, mut relieve: impl FnMut() -> bool) -> Charge {
        let permits = self.permits(bytes);
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_many_owned(permits) {
                return Charge { _permit: Arc::new(permit) };
            }
            if !relieve() {
                break;
            }
        }
        self.wait(permits).await
    }

    async fn wait(&self, permits: u32) -> Charge {
        let _waiting = Waiting::new(&self.waiting);
        match Arc::clone(&self.free).acquire_many_owned(permits).await {
            Ok(permit) => Charge { _permit: Arc::new(permit) },
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    /// A request larger than the budget takes all of it, so that it is served
    /// alone instead of never.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(capacity_of(bytes).min(self.limit)).unwrap_or(u32::MAX)
    }
}

/// One that waits, as long as it does.
#[derive(Debug)]
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LIMIT: usize = 1 << 20;

    #[test]
    fn a_charge_lasts_as_long_as_the_last_slice() {
        let memory = Memory::new(LIMIT);
        let charge = memory.charge(100_000, || false).now_or_never().unwrap();
        let bytes = charge.hold(Bytes::from(vec![1; 100_000]));
        drop(charge);
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(memory.used(), 200_000, "the buffer may be twice as large");
        drop(slice);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_small_request_does_not_pin_its_buffer() {
        let memory = Memory::new(LIMIT);
        let buffer = Bytes::from(vec![1; 100_000]);
        let charge = memory.charge(10, || false).now_or_never().unwrap();
        let held = charge.hold(buffer.slice(..10));
        assert_ne!(held.as_ptr(), buffer.as_ptr());
    }

    #[test]
    fn past_the_budget_it_waits_for_caches_and_then_for_others() {
        let memory = Memory::new(LIMIT);
        let mut held = vec![
            memory.charge(LIMIT / 4, || false).now_or_never().unwrap(),
            memory.charge(LIMIT / 6, || false).now_or_never().unwrap(),
        ];
        let relieved = memory.charge(LIMIT / 4, || held.pop().is_some()).now_or_never();
        assert!(relieved.is_some());
        let mut waiting = Box::pin(memory.charge(LIMIT * 2, || false));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(memory.is_pressed());
        drop((held, relieved));
        assert!(waiting.now_or_never().is_some());
        assert!(!memory.is_pressed());
    }
}
