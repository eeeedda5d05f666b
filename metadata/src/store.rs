//! The store trait: a small part of etcd, with etcd's semantics. One suite of
//! tests runs against every backend.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

/// The store's clock: raised by one with every transaction that writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A lease: keys that are bound to it vanish when it is not kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A transaction may have at most this many guards plus writes.
pub const TXN_OPERATIONS_MAX: usize = 100;

/// A key or value may have at most this many bytes: 1 MiB.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// A key with its value and its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    pub value: Bytes,
    /// When the key came into being, this time.
    pub create_revision: Revision,
    /// When the value was last written.
    pub mod_revision: Revision,
    pub lease: Option<LeaseId>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The key does not exist.
    Absent(String),
    /// The key exists.
    Present(String),
    /// The key exists and was last written at this revision.
    Unchanged(String, Revision),
    /// The key exists with this value.
    Equals(String, Bytes),
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Put {
        key: String,
        value: Bytes,
        lease: Option<LeaseId>,
    },
    Delete {
        key: String,
    },
    /// Every key that starts with this.
    DeletePrefix {
        prefix: String,
    },
}

/// All writes, if all guards hold; else nothing. No key is written twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    pub guards: Vec<Guard>,
    pub writes: Vec<Write>,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TxnOutcome {
    /// The writes happened, at this revision.
    Applied(Revision),
    /// A guard did not hold at this revision; nothing happened.
    Refused(Revision),
}

/// Keys of a range, of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In key order.
    pub keys: Vec<KeyValue>,
    /// The revision that they were read at.
    pub revision: Revision,
    /// Whether the limit cut the range short.
    pub more: bool,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Put(KeyValue),
    Delete { key: String, revision: Revision },
}

/// Why a store operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It did not happen, and may succeed later.
    #[error("the metadata store cannot be reached: {0}")]
    Unavailable(String),
    /// It may or may not have happened: read back before acting.
    #[error("the metadata store did not answer, the outcome is unknown: {0}")]
    Unknown(String),
    /// The events asked for are no longer kept: list, then watch from there.
    #[error("events before revision {} are no longer kept", .0.0)]
    Compacted(Revision),
    /// The lease has ended.
    #[error("the lease has ended")]
    LeaseExpired,
    /// The request is beyond a limit or contradicts itself. Never retry.
    #[error("invalid metadata request: {0}")]
    Invalid(String),
    /// The stored bytes cannot be read. Never retry.
    #[error("the metadata store is corrupt: {0}")]
    Corrupt(String),
}

impl StoreError {
    /// Whether trying again later can help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unknown(_))
    }

    /// Whether it is certain that nothing was written.
    #[must_use]
    pub const fn is_determinate(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

/// The metadata store. All reads are linearizable. Every method is cancel-safe
/// in the sense of [`StoreError::Unknown`]: a dropped write may have happened.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// The key, if it exists.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError>;

    /// Keys that start with `prefix` and are at or after `from` (empty: all),
    /// at most `limit`. With a revision given, as of then.
    async fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        revision: Option<Revision>,
    ) -> Result<Page, StoreError>;

    /// Runs a transaction.
    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError>;

    /// Changes of keys that start with `prefix`, from this revision on,
    /// included. Each item is all changes of one revision. The stream ends
    /// after an error: list and watch anew.
    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError>;

    /// A lease that lives for `ttl` after each keep-alive.
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Starts the lease's time anew.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends the lease and deletes its keys.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
}
