//! The snapshot at the start of a log file: the state of all ledgers, so that
//! replay starts there and nothing older need be carried forward (L3). Entries
//! are not in it; their number is, as a floor below which the log has lost
//! something.

use bytes::{Buf, BufMut};
use quire_ledger::replica::{Facts, LedgerFacts, RangeSet, Replicas};
use quire_proto::id::{EntryId, Epoch, LedgerId, Nonce};
use uuid::Uuid;

/// A part has at most about this many bytes.
const PART_BYTES: usize = 1 << 20;

const LEDGER: u8 = 1;
const TOMBSTONE: u8 = 2;
const MARK: u8 = 3;
const STORE_REVISION: u8 = 4;

const HAS_CREATOR: u8 = 1;
const UNKNOWN_WHEN_FENCED: u8 = 2;
const HAS_IMPORT: u8 = 4;

const LEDGER_LEN: usize = 1 + 8 + 1 + 16 + 8 * 4;

/// The snapshot's parts, in order; at least one.
#[must_use]
pub fn encode(replicas: &Replicas, store_revision: u64) -> Vec<Vec<u8>> {
    let mut parts = Parts::default();
    let part = parts.room_for(18);
    part.put_u8(MARK);
    part.put_u64_le(replicas.mark().0);
    part.put_u8(STORE_REVISION);
    part.put_u64_le(store_revision);
    for (first, last) in replicas.tombstones().iter() {
        let part = parts.room_for(17);
        part.put_u8(TOMBSTONE);
        part.put_u64_le(first);
        part.put_u64_le(last);
    }
    for (id, ledger) in replicas.ledgers() {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let part = parts.room_for(LEDGER_LEN);
        part.put_u8(LEDGER);
        part.put_u64_le(id.0);
        part.put_u8(
            flag(ledger.creator.is_some(), HAS_CREATOR)
                | flag(ledger.unknown_when_fenced, UNKNOWN_WHEN_FENCED)
                | flag(ledger.import.is_some(), HAS_IMPORT),
        );
        part.put_slice(ledger.creator.unwrap_or_default().0.as_bytes());
        part.put_u64_le(ledger.fence.0);
        part.put_u64_le(ledger.committed.0);
        part.put_u64_le(ledger.import.unwrap_or_default().0);
        part.put_u64_le(ledger.durable.0);
    }
    parts.parts
}

/// What a snapshot says, part by part.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The ledgers.
    pub facts: Facts,
    /// The highest revision of the metadata store that the bookie had seen.
    pub store_revision: u64,
}

impl Snapshot {
    /// Adds a part; nothing when it is malformed.
    #[must_use]
    pub fn add(&mut self, mut part: &[u8]) -> Option<()> {
        while part.has_remaining() {
            match part.try_get_u8().ok()? {
                MARK => self.facts.mark = LedgerId(part.try_get_u64_le().ok()?),
                STORE_REVISION => self.store_revision = part.try_get_u64_le().ok()?,
                TOMBSTONE => {
                    let first = part.try_get_u64_le().ok()?;
                    self.facts.tombstones.insert(first, part.try_get_u64_le().ok()?);
                }
                LEDGER => self.add_ledger(&mut part)?,
                _ => return None,
            }
        }
        Some(())
    }

    fn add_ledger(&mut self, part: &mut &[u8]) -> Option<()> {
        if part.remaining() < LEDGER_LEN - 1 {
            return None;
        }
        let id = LedgerId(part.get_u64_le());
        let flags = part.get_u8();
        let creator = Nonce(Uuid::from_u128(part.get_u128()));
        let fence = Epoch(part.get_u64_le());
        let committed = EntryId(part.get_u64_le());
        let import = EntryId(part.get_u64_le());
        let ledger = LedgerFacts {
            creator: (flags & HAS_CREATOR != 0).then_some(creator),
            fence,
            committed,
            unknown_when_fenced: flags & UNKNOWN_WHEN_FENCED != 0,
            import: (flags & HAS_IMPORT != 0).then_some(import),
            entries: RangeSet::default(),
            length_floor: EntryId(part.get_u64_le()),
        };
        self.facts.ledgers.insert(id, ledger);
        Some(())
    }
}

#[derive(Default)]
struct Parts {
    parts: Vec<Vec<u8>>,
}

impl Parts {
    fn room_for(&mut self, bytes: usize) -> &mut Vec<u8> {
        let full = self.parts.last().is_none_or(|part| part.len() + bytes > PART_BYTES);
        if full {
            self.parts.push(Vec::with_capacity(bytes));
        }
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_comes_back_as_it_was_written() {
        let mut facts = Facts { mark: LedgerId(5), ..Facts::default() };
        for id in 10..40_000 {
            let ledger = LedgerFacts {
                creator: (id % 3 > 0).then(|| Nonce(Uuid::from_u128(u128::from(id)))),
                fence: Epoch(id / 2),
                committed: EntryId(id + 1),
                unknown_when_fenced: id % 5 == 0,
                import: (id % 7 == 0).then_some(EntryId(id)),
                ..LedgerFacts::default()
            };
            facts.ledgers.insert(LedgerId(id), ledger);
        }
        facts.tombstones.insert(1, 4);
        facts.tombstones.insert(7, 7);
        let parts = encode(&Replicas::restore(facts.clone()), 77);
        assert!(parts.len() > 1, "large enough for several parts");
        let mut snapshot = Snapshot::default();
        for part in &parts {
            snapshot.add(part).unwrap();
        }
        assert_eq!(snapshot.facts, facts);
        assert_eq!(snapshot.store_revision, 77);
    }

    #[test]
    fn what_is_cut_short_is_no_snapshot() {
        let part = &encode(&Replicas::default(), 1)[0];
        for length in 1..part.len() {
            let expected = (length == 9).then_some(());
            assert_eq!(Snapshot::default().add(&part[..length]), expected, "{length}");
        }
    }
}
