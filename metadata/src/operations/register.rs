//! Brokers: alive as long as their lease.

use crate::key::Keys;
use crate::operation::{Operation, Verdict, incomplete_evidence};
use crate::process::{Broker, Process};
use crate::store::{Guard, KeyValue, LeaseId, Revision, StoreError, Txn};
use crate::typed::{Typed, Versioned};

/// Makes a broker known for as long as the lease lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterBroker {
    /// The broker.
    pub broker: Broker,
    /// Its lease.
    pub lease: LeaseId,
}

/// Another run holds the broker's name, or this one under an earlier lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "broker id {} is in use by run {}: stop that process or give this one another id; \
     if it has crashed, its lease ends within seconds",
    .0.broker, .0.nonce
)]
pub struct NameInUse(pub Process);

impl Operation for RegisterBroker {
    type Done = Revision;
    type Lost = NameInUse;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.broker(&self.broker.process.broker);
        Txn::default().require(Guard::Absent(key.clone())).put_leased(key, self.broker.encode(), self.lease)
    }

    fn done(&self, at: Revision) -> Revision {
        at
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.broker(&self.broker.process.broker)]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Revision, NameInUse>, StoreError> {
        let [broker] = found else { return Err(incomplete_evidence()) };
        let Some(stored) = broker else { return Ok(Verdict::Pending) };
        let broker = Versioned::<Broker>::read(stored)?;
        let own = broker.value == self.broker && stored.lease == Some(self.lease);
        Ok(if own { Verdict::done(broker.revision) } else { Verdict::lost(NameInUse(broker.value.process)) })
    }
}
