//! What a log's records say, gathered in any order (L4): every fact only ever
//! adds, so that copies may stand anywhere. Lengths come out at the end.

use std::collections::BTreeMap;

use quire_proto::id::{EntryId, Epoch, LedgerId, Nonce};
use uuid::Uuid;

use super::RangeSet;
use crate::record::{Header, Kind, Payload};

/// The facts of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Ledgers that are not deleted.
    pub ledgers: BTreeMap<LedgerId, LedgerFacts>,
    /// Deleted ids (B8).
    pub tombstones: RangeSet,
    /// X (B6): ids below it are uncertain for good. 0: nothing was ever lost.
    pub mark: LedgerId,
}

/// The facts of one ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerFacts {
    /// Who created it.
    pub creator: Option<Nonce>,
    /// The highest fence.
    pub fence: Epoch,
    /// The greatest number of committed entries that a sender told.
    pub committed: EntryId,
    /// It was fenced while it was unknown (B4).
    pub unknown_when_fenced: bool,
    /// The end of its import (B7).
    pub import: Option<EntryId>,
    /// The entries that the log holds.
    pub entries: RangeSet,
    /// Entries that are known to have been durable once.
    pub length_floor: EntryId,
}

impl LedgerFacts {
    /// The number of entries: the first that is missing (B6).
    #[must_use]
    pub fn length(&self) -> EntryId {
        EntryId(self.entries.first_gap())
    }

    /// Whether entries that must be there are not.
    #[must_use]
    pub fn has_hole(&self) -> bool {
        let length = self.length();
        length < self.length_floor || length.0 < self.entries.end()
    }
}

impl Facts {
    /// Adds what a record says. `payload` is looked at for a `Create` only.
    pub fn apply(&mut self, header: &Header, payload: &Payload) {
        match header.kind {
            Kind::Mark => self.mark = self.mark.max(header.ledger),
            Kind::Tombstone => self.delete(header.ledger, LedgerId(header.entry.0)),
            _ => self.apply_to_ledger(header, payload),
        }
    }

    /// Adds that the ids `first` to `last`, both included, are deleted.
    pub fn delete(&mut self, first: LedgerId, last: LedgerId) {
        if first > last {
            return;
        }
        self.tombstones.insert(first.0, last.0);
        let gone: Vec<_> = self.ledgers.range(first..=last).map(|(&ledger, _)| ledger).collect();
        for ledger in gone {
            self.ledgers.remove(&ledger);
        }
    }

    /// The facts of a ledger, if it is not deleted.
    pub fn ledger(&mut self, ledger: LedgerId) -> Option<&mut LedgerFacts> {
        if self.tombstones.contains(ledger.0) {
            return None;
        }
        Some(self.ledgers.entry(ledger).or_default())
    }

    fn apply_to_ledger(&mut self, header: &Header, payload: &Payload) {
        let Some(facts) = self.ledger(header.ledger) else { return };
        match header.kind {
            Kind::Create => {
                let nonce = <[u8; 16]>::try_from(&payload.to_bytes()[..]).ok();
                facts.creator = facts.creator.or(nonce.map(|bytes| Nonce(Uuid::from_bytes(bytes))));
            }
            Kind::Fence => {
                facts.fence = facts.fence.max(header.epoch);
                facts.unknown_when_fenced |= header.entry == UNKNOWN_WHEN_FENCED;
            }
            Kind::Import => facts.import = facts.import.max(Some(header.entry)),
            Kind::Append | Kind::Copied => {
                facts.entries.insert(header.entry.0, header.entry.0);
                facts.committed = facts.committed.max(header.committed);
            }
            Kind::Mark | Kind::Tombstone => {}
        }
    }
}

/// In the `entry` field of a fence's record: the ledger was not known.
pub(super) const UNKNOWN_WHEN_FENCED: EntryId = EntryId(1);
