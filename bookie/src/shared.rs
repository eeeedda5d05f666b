//! What the parts of a running bookie tell one another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_ledger::replica::Admission;
use quire_metadata::bookie::LogPosition;
use tokio::sync::watch;

use crate::error::Error;

/// The state of a bookie as a whole.
#[derive(Debug)]
pub(crate) struct Shared {
    durable: Mutex<LogPosition>,
    admission: Mutex<Admission>,
    damaged: AtomicBool,
    failed: watch::Sender<Option<Arc<Error>>>,
}

impl Shared {
    pub(crate) fn new(durable: LogPosition) -> Self {
        Self {
            durable: Mutex::new(durable),
            admission: Mutex::new(Admission::All),
            damaged: AtomicBool::new(false),
            failed: watch::Sender::new(None),
        }
    }

    /// How far the log is durable.
    pub(crate) fn durable(&self) -> LogPosition {
        *locked(&self.durable)
    }

    pub(crate) fn set_durable(&self, durable: LogPosition) {
        *locked(&self.durable) = durable;
    }

    /// What there is space for.
    pub(crate) fn admission(&self) -> Admission {
        *locked(&self.admission)
    }

    pub(crate) fn set_admission(&self, admission: Admission) {
        *locked(&self.admission) = admission;
    }

    /// The bookie can serve no more. The first reason stays.
    pub(crate) fn fail(&self, error: Error) {
        tracing::error!(%error, "the bookie stops");
        self.failed.send_if_modified(|failed| {
            let first = failed.is_none();
            if first {
                *failed = Some(Arc::new(error));
            }
            first
        });
    }

    /// Why it can serve no more, if so.
    pub(crate) fn failure(&self) -> Option<Arc<Error>> {
        self.failed.borrow().clone()
    }

    /// Waits for that. Cancel-safe.
    pub(crate) async fn failed(&self) -> Arc<Error> {
        let mut failed = self.failed.subscribe();
        // The sender lives as long as `self`: the wait ends with a reason only.
        match failed.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(error)) => Arc::clone(error),
            _ => Arc::new(Error::Stopped),
        }
    }

    /// A scrub or a read found damage.
    pub(crate) fn set_damaged(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }

    /// Whether damage was found since the start.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
