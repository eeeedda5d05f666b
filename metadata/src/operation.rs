//! Guarded transactions whose outcome is always found out.
//!
//! An [`Operation`] is pure: it builds its transaction, names the keys that
//! tell what became of it, and judges what was found there. [`run`] drives it
//! over a store; a simulator does the same step by step.
//!
//! A transaction that was refused may be one's own that was delivered twice,
//! and one whose outcome is unknown may have happened or may yet happen: both
//! are settled by reading back. The same operation may be run any number of
//! times.

use crate::key::Keys;
use crate::store::{KeyValue, Revision, Store, StoreError, Txn, TxnOutcome};

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome<Done, Lost> {
    /// It happened.
    Done(Done),
    /// It did not happen and never will.
    Lost(Lost),
}

/// What the keys read back tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict<Done, Lost> {
    /// It is settled.
    Settled(Outcome<Done, Lost>),
    /// Nothing speaks against it and it has not happened: send it again. A
    /// copy that is still on its way may happen too; only one of them will.
    Pending,
}

impl<Done, Lost> Verdict<Done, Lost> {
    /// It happened.
    pub const fn done(done: Done) -> Self {
        Self::Settled(Outcome::Done(done))
    }

    /// It never will.
    pub const fn lost(lost: Lost) -> Self {
        Self::Settled(Outcome::Lost(lost))
    }
}

/// A guarded transaction that can be judged by what is found afterwards.
pub trait Operation: Sync {
    /// What is known once it has happened.
    type Done: Send;
    /// Why it never will.
    type Lost: Send;

    /// The transaction. Always the same.
    fn txn(&self, keys: &Keys) -> Txn;

    /// What is known once it has been applied at this revision.
    fn done(&self, at: Revision) -> Self::Done;

    /// The keys that tell what became of it. They are read one after another:
    /// first what the guards need, last what the transaction writes. So a
    /// broken guard that is followed by a missing effect means never.
    fn evidence(&self, keys: &Keys) -> Vec<String>;

    /// Judges what was found under the keys of [`Self::evidence`], in their
    /// order.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when a value can't be read.
    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Self::Done, Self::Lost>, StoreError>;
}

/// How often a transaction is sent that keeps being refused or not answered
/// while nothing speaks against it.
const ATTEMPTS: usize = 3;

/// Runs an operation and finds out what became of it. Dropping the future
/// leaves the outcome open: run it again.
///
/// # Errors
/// [`StoreError::Unknown`] when it may yet happen: run it again, unchanged,
/// later. [`StoreError::Unavailable`] when it did not happen and may be run
/// again. Others: never retry.
pub async fn run<O: Operation>(
    store: &dyn Store,
    keys: &Keys,
    operation: &O,
) -> Result<Outcome<O::Done, O::Lost>, StoreError> {
    let mut in_doubt = None;
    for _ in 0..ATTEMPTS {
        match store.transact(operation.txn(keys)).await {
            Ok(TxnOutcome::Applied(at)) => return Ok(Outcome::Done(operation.done(at))),
            Ok(TxnOutcome::Refused(_)) => {}
            Err(StoreError::Unknown(why)) => in_doubt = Some(why),
            Err(error) => return Err(in_doubt.map_or(error, StoreError::Unknown)),
        }
        let found = read_back(store, &operation.evidence(keys)).await;
        // What was sent may have happened, whatever the reading back says.
        let found = found.map_err(|error| match &in_doubt {
            Some(why) => StoreError::Unknown(why.clone()),
            None => error,
        })?;
        match operation.judge(&found)? {
            Verdict::Settled(outcome) => return Ok(outcome),
            Verdict::Pending => {}
        }
    }
    Err(match in_doubt {
        Some(why) => StoreError::Unknown(why),
        None => StoreError::Unavailable("other transactions on the same keys came first".to_owned()),
    })
}

async fn read_back(store: &dyn Store, keys: &[String]) -> Result<Vec<Option<KeyValue>>, StoreError> {
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        found.push(store.get(key).await?);
    }
    Ok(found)
}

/// What to say of evidence that is not what was asked for.
pub(crate) fn incomplete_evidence() -> StoreError {
    StoreError::Invalid("the keys read back are not those that were asked for".to_owned())
}
