//! What every part of a broker shares.

use std::sync::Arc;
use std::time::Duration;

use quire_metadata::key::Keys;
use quire_metadata::operation::{self, Operation, Outcome};
use quire_metadata::process::Process;
use quire_metadata::store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bookies::Bookies;
use crate::clock::Clock;
use crate::log::tail::TailBudget;
use crate::memory::Memory;
use crate::options::Options;

/// Pauses between attempts while the metadata store is away.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What every part of a broker shares.
#[derive(Debug)]
pub struct Context {
    pub options: Options,
    pub store: Arc<dyn Store>,
    pub keys: Keys,
    /// This run of the broker.
    pub process: Process,
    pub bookies: Arc<Bookies>,
    pub memory: Arc<Memory>,
    pub tails: TailBudget,
    pub clock: Clock,
    /// Everything that was spawned.
    pub tasks: TaskTracker,
    /// Cancelled when the broker is to take no more requests.
    pub stop: CancellationToken,
    /// Cancelled when everything that still runs is to end.
    pub abort: CancellationToken,
}

impl Context {
    /// Runs an operation until its outcome is known, however long the store is
    /// away. Dropping the future leaves the outcome open.
    ///
    /// # Errors
    /// Those that no retry helps against.
    pub async fn settle<O: Operation>(&self, operation: &O) -> Result<Outcome<O::Done, O::Lost>, StoreError> {
        let mut pause = PAUSE_MIN;
        loop {
            match operation::run(&*self.store, &self.keys, operation).await {
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "a metadata transaction is tried again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                settled => return settled,
            }
        }
    }

    /// Spawns a task that ends at the latest when the broker does.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = abort.cancelled() => {}
                () = task => {}
            }
        });
    }
}

/// Pauses that grow from attempt to attempt.
#[derive(Debug)]
pub struct Backoff {
    pause: Duration,
    max: Duration,
}

impl Backoff {
    /// Pauses of `least`, twice that, and so on, up to `most`.
    #[must_use]
    pub const fn new(least: Duration, most: Duration) -> Self {
        Self { pause: least, max: most }
    }

    /// Waits before the next attempt. Cancel-safe.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.max);
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(PAUSE_MIN, PAUSE_MAX)
    }
}
