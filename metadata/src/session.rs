//! A lease that is kept alive.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::store::{LeaseId, Store, StoreError};

/// Keep-alives sent in one lease time.
const BEATS: u32 = 4;

/// A lease that a task keeps alive until the session is closed or dropped. A
/// session that is dropped lets the lease run out.
#[derive(Debug)]
pub struct Session {
    lease: LeaseId,
    valid_until: watch::Receiver<Instant>,
    ended: CancellationToken,
    store: Arc<dyn Store>,
    beats: JoinHandle<()>,
    _stop: DropGuard,
}

impl Session {
    /// Grants a lease and keeps it alive.
    ///
    /// # Errors
    /// The store's. When the outcome is unknown the lease runs out unused.
    pub async fn start(store: Arc<dyn Store>, ttl: Duration) -> Result<Self, StoreError> {
        // Counted from before the request: the store began to count later.
        let asked = Instant::now();
        let lease = store.grant(ttl).await?;
        let (valid_until_tx, valid_until) = watch::channel(asked + ttl);
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let beat = Beat { store: Arc::clone(&store), lease, ttl, valid_until: valid_until_tx };
        let beats = tokio::spawn({
            let (stop, ended) = (stop.clone(), ended.clone());
            async move {
                let _ended = ended.drop_guard();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = beat.run() => {}
                }
            }
        });
        Ok(Self { lease, valid_until, ended, store, beats, _stop: stop.drop_guard() })
    }

    /// The lease.
    #[must_use]
    pub const fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Until when the lease certainly lives, on this process's monotonic clock:
    /// the lease time after the last keep-alive that was answered was sent.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        *self.valid_until.borrow()
    }

    /// Whether the lease certainly lives now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.ended.is_cancelled() && Instant::now() < self.valid_until()
    }

    /// Cancelled when the lease has ended: by the store's word, or because no
    /// keep-alive was answered for its whole time.
    #[must_use]
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Ends the lease and deletes its keys.
    ///
    /// # Errors
    /// The store's: then the lease runs out by itself.
    pub async fn close(self) -> Result<(), StoreError> {
        self.beats.abort();
        match self.store.revoke(self.lease).await {
            Err(StoreError::LeaseExpired) => Ok(()),
            revoked => revoked,
        }
    }
}

struct Beat {
    store: Arc<dyn Store>,
    lease: LeaseId,
    ttl: Duration,
    valid_until: watch::Sender<Instant>,
}

impl Beat {
    /// Returns when the lease has ended.
    async fn run(self) {
        let pause = self.ttl / BEATS;
        loop {
            let valid_until = *self.valid_until.borrow();
            tokio::time::sleep(pause).await;
            let sent = Instant::now();
            match tokio::time::timeout_at(valid_until, self.store.keep_alive(self.lease)).await {
                Ok(Ok(())) => drop(self.valid_until.send(sent + self.ttl)),
                Ok(Err(error)) if error.is_retryable() => {
                    tracing::warn!(%error, "a lease could not be kept alive, trying again");
                }
                Ok(Err(error)) => {
                    tracing::error!(%error, "a lease was lost");
                    return;
                }
                Err(_elapsed) => {
                    tracing::error!("a lease was lost: the metadata store did not answer for its whole time");
                    return;
                }
            }
            if Instant::now() >= *self.valid_until.borrow() {
                tracing::error!("a lease was lost: it was not kept alive in time");
                return;
            }
        }
    }
}
