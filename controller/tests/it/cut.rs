//! A store that stops answering at one transaction, as when its caller dies
//! there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use quire_metadata::embedded::VolatileStore;
use quire_metadata::store::{Event, KeyValue, LeaseId, Page, Revision, Store, StoreError, Txn, TxnOutcome};

/// When the caller dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    BeforeItIsApplied,
    AfterItIsApplied,
}

#[derive(Debug)]
pub(crate) struct CutStore {
    inner: Arc<VolatileStore>,
    /// Transactions that go through before.
    left: AtomicUsize,
    death: Death,
    dead: AtomicBool,
    late: Mutex<Option<Txn>>,
}

impl CutStore {
    pub(crate) fn new(inner: Arc<VolatileStore>, left: usize, death: Death) -> Arc<Self> {
        let (left, dead, late) = (AtomicUsize::new(left), AtomicBool::new(false), Mutex::default());
        Arc::new(Self { inner, left, death, dead, late })
    }

    /// The transaction that was not applied.
    pub(crate) fn late(&self) -> Option<Txn> {
        self.late.lock().unwrap().take()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

impl CutStore {
    /// The dead see nothing any more.
    async fn alive(&self) {
        if self.is_dead() {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl Store for CutStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.alive().await;
        self.inner.get(key).await
    }

    async fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        revision: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.alive().await;
        self.inner.range(prefix, from, limit, revision).await
    }

    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.alive().await;
        let one_less = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            return self.inner.transact(txn).await;
        }
        self.dead.store(true, Ordering::SeqCst);
        match self.death {
            Death::BeforeItIsApplied => *self.late.lock().unwrap() = Some(txn),
            Death::AfterItIsApplied => drop(self.inner.transact_now(&txn)),
        }
        std::future::pending().await
    }

    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError> {
        self.alive().await;
        self.inner.watch(prefix, from).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.alive().await;
        self.inner.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.alive().await;
        self.inner.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.alive().await;
        self.inner.revoke(lease).await
    }
}
