//! Recovery of one ledger by the partition's leader: T2 where the take-over did
//! not include it, T5's targets, and T6.

use quire_proto::id::{BookieId, Epoch};

use crate::key::Keys;
use crate::ledger::{LedgerMetadata, LedgerState, Sealed};
use crate::operation::{Operation, Verdict, incomplete_evidence};
use crate::partition::Leadership;
use crate::store::{KeyValue, Revision, StoreError, Txn};
use crate::typed::{Typed, Versioned};

/// A step of the recovery of a partition's last ledger: one compare-and-set,
/// which also requires that the leader's epoch stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryStep {
    leadership: Leadership,
    current: Versioned<LedgerMetadata>,
    next: LedgerMetadata,
}

/// A step that contradicts the protocol: a bug of its maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStep {
    /// The ledger is another partition's.
    #[error("the ledger belongs to another partition")]
    Foreign,
    /// T2 needs a ledger that is neither sealed nor recovering under this or a
    /// higher epoch; T5 and T6 need one that recovers under this epoch.
    #[error("the ledger's state does not allow this step under epoch {0}")]
    State(Epoch),
    /// T6 needs at least an ack quorum of complete replicas.
    #[error("fewer than the ack quorum of replicas are complete")]
    Incomplete,
}

/// Why a step never happens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepRefused {
    /// A higher epoch was minted: stop.
    #[error("another leader has taken the partition over")]
    Deposed,
    /// The ledger was sealed by another: adopt it (T6).
    #[error("the ledger is sealed already")]
    Sealed(Versioned<LedgerMetadata>),
    /// The ledger changed otherwise; what there is now. None: it was deleted.
    #[error("the ledger was changed by another")]
    Changed(Option<Versioned<LedgerMetadata>>),
}

impl RecoveryStep {
    /// T2: marks the ledger as recovered under this leader's epoch.
    ///
    /// # Errors
    /// When the ledger is sealed, or its epoch is not below the leader's.
    pub fn start(leadership: Leadership, ledger: Versioned<LedgerMetadata>) -> Result<Self, InvalidStep> {
        if ledger.value.sealed().is_some() || ledger.value.greatest_epoch() >= leadership.epoch {
            return Err(InvalidStep::State(leadership.epoch));
        }
        let state = LedgerState::Recovering(leadership.epoch);
        let next = LedgerMetadata { state, ..ledger.value.clone() };
        Self::new(leadership, ledger, next)
    }

    /// T5: names the bookies that are to be filled. Those named before and no
    /// longer are remembered, so that deleting asks them too.
    ///
    /// # Errors
    /// When the ledger does not recover under this leader's epoch.
    pub fn name_targets(
        leadership: Leadership,
        ledger: Versioned<LedgerMetadata>,
        targets: Vec<BookieId>,
    ) -> Result<Self, InvalidStep> {
        let next = named(&ledger.value, ledger.value.replicas.clone(), targets);
        Self::recovering(leadership, ledger, next)
    }

    /// T6: seals the ledger. `replicas` are those that it has from now on:
    /// targets that were filled take the places of dead replicas.
    ///
    /// # Errors
    /// When the ledger does not recover under this leader's epoch, or fewer
    /// than the ack quorum of `replicas` are complete.
    pub fn seal(
        leadership: Leadership,
        ledger: Versioned<LedgerMetadata>,
        replicas: Vec<BookieId>,
        sealed: Sealed,
    ) -> Result<Self, InvalidStep> {
        let complete = replicas.iter().filter(|replica| sealed.complete.contains(replica)).count();
        if complete < ledger.value.ack_quorum as usize || complete != sealed.complete.len() {
            return Err(InvalidStep::Incomplete);
        }
        let named = named(&ledger.value, replicas, Vec::new());
        let next = LedgerMetadata { state: LedgerState::Sealed(sealed), ..named };
        Self::recovering(leadership, ledger, next)
    }

    fn recovering(
        leadership: Leadership,
        current: Versioned<LedgerMetadata>,
        next: LedgerMetadata,
    ) -> Result<Self, InvalidStep> {
        if current.value.state != LedgerState::Recovering(leadership.epoch) {
            return Err(InvalidStep::State(leadership.epoch));
        }
        Self::new(leadership, current, next)
    }

    fn new(
        leadership: Leadership,
        current: Versioned<LedgerMetadata>,
        next: LedgerMetadata,
    ) -> Result<Self, InvalidStep> {
        if current.value.owner != leadership.partition {
            return Err(InvalidStep::Foreign);
        }
        Ok(Self { leadership, current, next })
    }
}

fn named(ledger: &LedgerMetadata, replicas: Vec<BookieId>, targets: Vec<BookieId>) -> LedgerMetadata {
    let named = |bookie: &BookieId| replicas.contains(bookie) || targets.contains(bookie);
    let former = ledger.ever_named().into_iter().filter(|bookie| !named(bookie)).collect();
    LedgerMetadata { replicas, targets, former, ..ledger.clone() }
}

impl Operation for RecoveryStep {
    type Done = Versioned<LedgerMetadata>;
    type Lost = StepRefused;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.ledger(self.current.value.id);
        Txn::default()
            .require(self.leadership.guard(keys))
            .require(self.current.unchanged(key.clone()))
            .put(key, self.next.encode())
    }

    fn done(&self, at: Revision) -> Self::Done {
        Versioned { value: self.next.clone(), revision: at }
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.partition(self.leadership.partition), keys.ledger(self.current.value.id)]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Self::Done, StepRefused>, StoreError> {
        let [partition, ledger] = found else { return Err(incomplete_evidence()) };
        let led = partition.as_ref().is_some_and(|found| found.mod_revision == self.leadership.minted);
        let Some(ledger) = Versioned::<LedgerMetadata>::read_option(ledger.as_ref())? else {
            return Ok(Verdict::lost(StepRefused::Changed(None)));
        };
        let changed = ledger.revision != self.current.revision;
        Ok(if changed && ledger.value == self.next {
            Verdict::done(ledger)
        } else if changed && ledger.value.sealed().is_some() {
            Verdict::lost(StepRefused::Sealed(ledger))
        } else if !led {
            Verdict::lost(StepRefused::Deposed)
        } else if changed {
            Verdict::lost(StepRefused::Changed(Some(ledger)))
        } else {
            Verdict::Pending
        })
    }
}
