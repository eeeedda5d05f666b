//! The store trait: a small part of etcd, with etcd's semantics. One suite of
//! tests runs against every backend.

use std::collections::BTreeSet;
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

/// All keys and values of a transaction together may have at most this many
/// bytes: 1.25 MiB, which leaves room for the rest of a request of etcd's.
pub const TXN_BYTES_MAX: usize = 5 << 18;

/// A page has at most this many keys, however many were asked for.
pub const PAGE_KEYS_MAX: usize = 1_000;

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

impl Txn {
    /// Adds a guard.
    #[must_use]
    pub fn require(mut self, guard: Guard) -> Self {
        self.guards.push(guard);
        self
    }

    /// Adds the write of a key that no lease holds.
    #[must_use]
    pub fn put(mut self, key: String, value: Bytes) -> Self {
        self.writes.push(Write::Put { key, value, lease: None });
        self
    }

    /// Adds the write of a key that ends with the lease.
    #[must_use]
    pub fn put_leased(mut self, key: String, value: Bytes, lease: LeaseId) -> Self {
        self.writes.push(Write::Put { key, value, lease: Some(lease) });
        self
    }

    /// Adds the removal of a key.
    #[must_use]
    pub fn delete(mut self, key: String) -> Self {
        self.writes.push(Write::Delete { key });
        self
    }

    /// Adds the guards and writes of another transaction.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.guards.extend(other.guards);
        self.writes.extend(other.writes);
        self
    }

    /// Guards plus writes: at most [`TXN_OPERATIONS_MAX`].
    #[must_use]
    pub const fn operations(&self) -> usize {
        self.guards.len() + self.writes.len()
    }

    /// Checks the limits and that no key is written twice. Every backend asks
    /// this before anything else, so that all of them refuse the same.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    pub fn check(&self) -> Result<(), StoreError> {
        let invalid = |why: String| Err(StoreError::Invalid(why));
        if self.operations() > TXN_OPERATIONS_MAX {
            return invalid(format!("{} operations, at most {TXN_OPERATIONS_MAX}", self.operations()));
        }
        let mut bytes = 0;
        for (key, value_len) in self.sizes() {
            if key.is_empty() {
                return invalid("an empty key".to_owned());
            }
            if key.len().max(value_len) > VALUE_BYTES_MAX {
                return invalid(format!("key or value above {VALUE_BYTES_MAX} bytes: {key:.80}"));
            }
            bytes += key.len() + value_len;
        }
        if bytes > TXN_BYTES_MAX {
            return invalid(format!("{bytes} bytes, at most {TXN_BYTES_MAX}"));
        }
        match self.written_twice() {
            Some(key) => invalid(format!("{key:.80} is written twice")),
            None => Ok(()),
        }
    }

    fn sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        let guards = self.guards.iter().map(|guard| match guard {
            Guard::Equals(key, value) => (&**key, value.len()),
            Guard::Absent(key) | Guard::Present(key) | Guard::Unchanged(key, _) => (&**key, 0),
        });
        let writes = self.writes.iter().map(|write| match write {
            Write::Put { key, value, .. } => (&**key, value.len()),
            Write::Delete { key } => (&**key, 0),
            Write::DeletePrefix { prefix } => (&**prefix, 0),
        });
        guards.chain(writes)
    }

    fn written_twice(&self) -> Option<&str> {
        let mut keys = BTreeSet::new();
        for write in &self.writes {
            if let Write::Put { key, .. } | Write::Delete { key } = write
                && !keys.insert(&**key)
            {
                return Some(key);
            }
        }
        let mut prefixes: Vec<&str> = Vec::new();
        for write in &self.writes {
            if let Write::DeletePrefix { prefix } = write {
                let within = |other: &&str| other.starts_with(&**prefix) || prefix.starts_with(*other);
                if prefixes.iter().any(within) || keys.range(&**prefix..).next().is_some_and(within) {
                    return Some(prefix);
                }
                prefixes.push(prefix);
            }
        }
        None
    }
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
    /// at most `limit` (1 or more) and [`PAGE_KEYS_MAX`]. With a revision
    /// given, as of then: [`StoreError::Compacted`] when that is no longer
    /// kept, [`StoreError::Invalid`] when it has not come yet.
    async fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        revision: Option<Revision>,
    ) -> Result<Page, StoreError>;

    /// Runs a transaction. One that holds and writes nothing, or deletes only
    /// what is not there, is `Applied` at the present revision.
    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError>;

    /// Changes of keys that start with `prefix`, from this revision on,
    /// included (1 or more; it may be yet to come). Each item is all changes of
    /// one revision. The stream ends after an error: list and watch anew. That
    /// the events are no longer kept is told at once or as the first item; a
    /// reader that falls too far behind is told so too.
    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError>;

    /// A lease that lives for `ttl` after each keep-alive. Backends count in
    /// whole seconds, rounded up.
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Starts the lease's time anew.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends the lease and deletes its keys.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
}
