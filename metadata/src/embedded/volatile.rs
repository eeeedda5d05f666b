//! A store without a file, for tests and simulation. Its clock is moved by
//! hand, and transactions can be made to fail in all ways that a real store's
//! can. The same calls give the same answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::embedded::shared::Shared;
use crate::embedded::state::{Retention, Stage, State};
use crate::store::{Event, KeyValue, LeaseId, Page, Revision, Store, StoreError, Txn, TxnOutcome};

/// What is to happen to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It goes through.
    None,
    /// It does not happen, and the caller is told so.
    Unavailable,
    /// It does not happen, and the caller is not told.
    UnknownLost,
    /// It happens, and the caller is not told.
    UnknownApplied,
    /// It happens twice, and the caller is told the second outcome.
    Twice,
}

/// The store.
#[derive(Debug)]
pub struct VolatileStore {
    shared: Arc<Shared>,
    control: Mutex<Control>,
}

#[derive(Debug, Default)]
struct Control {
    now: Duration,
    faults: VecDeque<Fault>,
    failing_requests: usize,
}

impl Default for VolatileStore {
    fn default() -> Self {
        Self::new(Retention::default())
    }
}

impl VolatileStore {
    /// An empty store.
    #[must_use]
    pub fn new(retention: Retention) -> Self {
        Self { shared: Shared::new(State::new(retention)), control: Mutex::default() }
    }

    /// Moves the clock; leases whose time runs out end.
    pub fn advance(&self, by: Duration) {
        let now = {
            let mut control = self.control();
            control.now = control.now.saturating_add(by);
            control.now
        };
        let expire =
            |state: &mut State| state.expired(now).into_iter().try_for_each(|lease| end_lease(state, lease));
        // A lease that is listed as expired is there, and a store without a
        // file does not stop.
        let _ = self.shared.write(expire);
    }

    /// What is to happen to the next transactions, after those that were told
    /// before.
    pub fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.control().faults.extend(faults);
    }

    /// This many of the next requests fail, other than transactions.
    pub fn fail_requests(&self, requests: usize) {
        self.control().failing_requests = requests;
    }

    /// Runs a transaction without any fault and without a task to wait in.
    ///
    /// # Errors
    /// `Invalid` or `LeaseExpired`.
    pub fn transact_now(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        self.shared.write(|state| state.transact(txn))
    }

    /// The present revision.
    ///
    /// # Errors
    /// Never: the store has nothing that fails.
    pub fn revision(&self) -> Result<Revision, StoreError> {
        self.shared.read(|state| Ok(state.revision()))
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_request(&self) -> Result<(), StoreError> {
        let mut control = self.control();
        if control.failing_requests == 0 {
            return Ok(());
        }
        control.failing_requests -= 1;
        Err(StoreError::Unavailable("injected".to_owned()))
    }
}

fn end_lease(state: &mut State, lease: LeaseId) -> Result<(), StoreError> {
    let mut stage = Stage::default();
    stage.end_lease(state, lease)?;
    state.apply_all(stage);
    state.forget_lease(lease);
    Ok(())
}

#[async_trait]
impl Store for VolatileStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.check_request()?;
        self.shared.get(key)
    }

    async fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        revision: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.check_request()?;
        self.shared.range(prefix, from, limit, revision)
    }

    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let fault = self.control().faults.pop_front().unwrap_or(Fault::None);
        let unknown = || StoreError::Unknown("injected".to_owned());
        match fault {
            Fault::None => self.transact_now(&txn),
            Fault::Unavailable => Err(StoreError::Unavailable("injected".to_owned())),
            Fault::UnknownLost => Err(unknown()),
            Fault::UnknownApplied => self.transact_now(&txn).and_then(|_| Err(unknown())),
            Fault::Twice => {
                let _first = self.transact_now(&txn)?;
                self.transact_now(&txn)
            }
        }
    }

    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError> {
        self.check_request()?;
        self.shared.watch(prefix, from)
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.check_request()?;
        let now = self.control().now;
        self.shared.touch(|state| Ok(state.grant(ttl, now)))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.check_request()?;
        let now = self.control().now;
        self.shared.touch(|state| state.keep_alive(lease, now))
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.check_request()?;
        self.shared.write(|state| end_lease(state, lease))
    }
}
