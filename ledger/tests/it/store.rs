//! The metadata of one partition, with the guards of W3, T1, T2 and T6.

use std::collections::BTreeMap;

use quire_ledger::chain::Roll;
use quire_ledger::ensemble::Ensemble;
use quire_ledger::recovery::{Seal, State, View};
use quire_proto::id::{BookieId, Epoch, LedgerId, Offset};
use smallvec::SmallVec;

/// A ledger's metadata.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub view: View,
    pub complete: Vec<BookieId>,
    pub base_offset: Offset,
    /// Known once it is sealed.
    pub next_offset: Offset,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub epoch: Epoch,
    pub chain: Vec<LedgerId>,
    pub ledgers: BTreeMap<LedgerId, Ledger>,
    /// The last ledger id that was given out.
    pub last_id: u64,
}

/// What a roll's transaction came to, also when it had been applied before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rolled {
    Applied { removed: Vec<LedgerId> },
    Refused,
}

impl Store {
    /// T1 and T2 in one transaction: the new epoch, and the last ledger.
    pub(crate) fn take_over(&mut self) -> (Epoch, Option<View>) {
        self.epoch = self.epoch.next();
        let last = self.chain.last().and_then(|ledger| self.ledgers.get_mut(ledger));
        let view = last.map(|ledger| {
            if !matches!(ledger.view.state, State::Sealed(_)) {
                ledger.view.state = State::Recovering(self.epoch);
            }
            ledger.view.clone()
        });
        (self.epoch, view)
    }

    /// W3. A second run under the same new ledger finds the first one done.
    pub(crate) fn roll(&mut self, epoch: Epoch, roll: &Roll) -> Rolled {
        let opened = roll.open.as_ref().is_some_and(|open| self.chain.contains(&open.ledger));
        let sealed = roll.open.is_none()
            && roll.seal.as_ref().is_some_and(|seal| {
                let state = self.ledgers.get(&seal.ledger).map(|ledger| ledger.view.state);
                state == Some(State::Sealed(seal.end)) && self.epoch == epoch
            });
        if opened || sealed {
            return Rolled::Applied { removed: Vec::new() };
        }
        let last = self.chain.last().and_then(|ledger| self.ledgers.get(ledger));
        let unchanged = match (&roll.seal, last) {
            (Some(seal), Some(last)) => last.view.ledger == seal.ledger && last.view.state == State::Open,
            (None, last) => last.is_none_or(|last| matches!(last.view.state, State::Sealed(_))),
            (Some(_), None) => false,
        };
        if self.epoch != epoch || !unchanged {
            return Rolled::Refused;
        }
        if let Some(seal) = &roll.seal
            && let Some(old) = self.ledgers.get_mut(&seal.ledger)
        {
            old.view.state = State::Sealed(seal.end);
            old.complete.clone_from(&seal.complete);
            old.next_offset = seal.next_offset;
        }
        let mut removed = Vec::new();
        if let Some(open) = &roll.open {
            if let Some(last) = self.chain.last().copied()
                && self.ledgers.get(&last).is_some_and(|last| last.next_offset == last.base_offset)
            {
                self.chain.pop();
                self.ledgers.remove(&last);
                removed.push(last);
            }
            self.publish(open.ledger, epoch, open.ensemble.clone(), roll.base_offset);
        }
        Rolled::Applied { removed }
    }

    fn publish(&mut self, ledger: LedgerId, epoch: Epoch, ensemble: Ensemble, base_offset: Offset) {
        let targets = SmallVec::new();
        let view = View { ledger, own_epoch: epoch, ensemble, targets, state: State::Open };
        self.chain.push(ledger);
        self.ledgers
            .insert(ledger, Ledger { view, complete: Vec::new(), base_offset, next_offset: base_offset });
    }

    /// T6.
    pub(crate) fn seal(&mut self, epoch: Epoch, seal: &Seal, next_offset: Offset) {
        let Some(ledger) = self.ledgers.get_mut(&seal.ledger) else { return };
        if self.epoch != epoch || ledger.view.state != State::Recovering(epoch) {
            return;
        }
        let ack_quorum = ledger.view.ensemble.ack_quorum();
        ledger.view.ensemble = Ensemble::new(&seal.replicas, ack_quorum).unwrap();
        ledger.view.targets.clear();
        ledger.view.state = State::Sealed(seal.end);
        ledger.complete.clone_from(&seal.complete);
        ledger.next_offset = next_offset;
    }

    /// T5: outside bookies that may be filled.
    pub(crate) fn name_targets(&mut self, epoch: Epoch, ledger: LedgerId, targets: &[BookieId]) {
        if let Some(ledger) = self.ledgers.get_mut(&ledger)
            && ledger.view.state == State::Recovering(epoch)
        {
            ledger.view.targets.extend_from_slice(targets);
        }
    }
}
