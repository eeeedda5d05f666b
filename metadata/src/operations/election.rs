//! The controller: elected by a leased key. Whatever it does is guarded by its
//! election, so that a paused one that wakes up can do no harm.

use crate::key::Keys;
use crate::operation::{Operation, Outcome, Verdict, incomplete_evidence};
use crate::process::{Controller, Process};
use crate::store::{Guard, KeyValue, LeaseId, Revision, StoreError, Txn};
use crate::typed::{Typed, Versioned};

/// This process is the controller, for as long as its key is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Election {
    /// The revision that elected it.
    pub elected: Revision,
}

impl Election {
    /// Holds while this process is the controller.
    #[must_use]
    pub fn guard(&self, keys: &Keys) -> Guard {
        Guard::Unchanged(keys.controller(), self.elected)
    }
}

/// Makes a process the controller, if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elect {
    /// The process.
    pub process: Process,
    /// Its lease.
    pub lease: LeaseId,
}

/// Another process is the controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is the controller")]
pub struct AnotherController(pub Process);

impl Operation for Elect {
    type Done = Election;
    type Lost = AnotherController;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.controller();
        let controller = Controller { process: self.process.clone() };
        Txn::default().require(Guard::Absent(key.clone())).put_leased(key, controller.encode(), self.lease)
    }

    fn done(&self, at: Revision) -> Election {
        Election { elected: at }
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.controller()]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Election, AnotherController>, StoreError> {
        let [stored] = found else { return Err(incomplete_evidence()) };
        let Some(stored) = stored else { return Ok(Verdict::Pending) };
        let found = Versioned::<Controller>::read(stored)?;
        let own = found.value.process == self.process && stored.lease == Some(self.lease);
        Ok(if own {
            Verdict::done(Election { elected: found.revision })
        } else {
            Verdict::lost(AnotherController(found.value.process))
        })
    }
}

/// An operation that only the elected controller may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elected<O> {
    /// The election that must stand.
    pub election: Election,
    /// What to do.
    pub operation: O,
}

/// Why the controller's operation never happens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElectedLost<L> {
    /// This process is no longer the controller: stop.
    #[error("this process is no longer the controller")]
    NotElected,
    /// The operation's own reason.
    #[error("{0}")]
    Lost(L),
}

impl<O: Operation> Operation for Elected<O> {
    type Done = O::Done;
    type Lost = ElectedLost<O::Lost>;

    fn txn(&self, keys: &Keys) -> Txn {
        Txn::default().require(self.election.guard(keys)).and(self.operation.txn(keys))
    }

    fn done(&self, at: Revision) -> O::Done {
        self.operation.done(at)
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        let mut evidence = vec![keys.controller()];
        evidence.extend(self.operation.evidence(keys));
        evidence
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Self::Done, Self::Lost>, StoreError> {
        let [controller, found @ ..] = found else { return Err(incomplete_evidence()) };
        let elected = controller.as_ref().is_some_and(|found| found.mod_revision == self.election.elected);
        Ok(match self.operation.judge(found)? {
            Verdict::Settled(Outcome::Done(done)) => Verdict::done(done),
            _ if !elected => Verdict::lost(ElectedLost::NotElected),
            Verdict::Settled(Outcome::Lost(lost)) => Verdict::lost(ElectedLost::Lost(lost)),
            Verdict::Pending => Verdict::Pending,
        })
    }
}
