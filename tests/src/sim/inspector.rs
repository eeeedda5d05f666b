//! What no client sees: what metadata says and which bookie promised what,
//! watched step by step.
//!
//! The inspector is told of each transaction that applied and of each length
//! that a bookie reported durable, at the moment it happened. So it can tell at
//! once that an acknowledgement had nothing to stand on, long before anybody
//! reads.

use std::collections::{BTreeMap, BTreeSet};

use quire_metadata::chain::{ChainSequence, Segment};
use quire_metadata::delete_intent::DeleteIntent;
use quire_metadata::id_block::{IdBlock, IdKind};
use quire_metadata::key::{Key, Keys};
use quire_metadata::ledger::{LedgerMetadata, LedgerState};
use quire_metadata::partition::Partition;
use quire_metadata::store::{Event, KeyValue};
use quire_metadata::typed::Typed;
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, PartitionId};

use super::history::{BatchId, History, PartitionNumber};
use super::violation::{Checked, Invariant, Violation};

/// An entry as a bookie has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub payload_crc: u32,
    /// Of the sender: above the ledger's own when it was copied by a recovery.
    pub epoch: Epoch,
    /// The offset that comes after it.
    pub next_offset: u64,
    /// The batches in it and the offset that each begins with; none in a
    /// snapshot.
    pub batches: Vec<(BatchId, u64)>,
    /// The offset of its first record; of a snapshot, the one that follows.
    pub base_offset: u64,
}

/// One entry of one ledger, and who promised to have it.
#[derive(Debug)]
struct Known {
    entry: Entry,
    /// Bookies that reported it durable.
    holders: BTreeSet<BookieId>,
    /// Those of them that had it from the ledger's own writer.
    from_writer: BTreeSet<BookieId>,
}

impl Known {
    /// Whether the ledger's own writer has it on A replicas.
    fn is_committed(&self, ledger: &LedgerMetadata) -> bool {
        let by_writer = self.from_writer.iter().filter(|holder| ledger.replicas.contains(holder));
        by_writer.count() >= ledger.ack_quorum as usize
    }
}

/// The inspector of a run.
#[derive(Debug)]
pub struct Inspector {
    keys: Keys,
    numbers: BTreeMap<PartitionId, PartitionNumber>,
    leaders: BTreeMap<PartitionId, Partition>,
    chains: BTreeMap<PartitionId, BTreeMap<ChainSequence, Segment>>,
    ledgers: BTreeMap<LedgerId, LedgerMetadata>,
    /// The chain that each ledger was ever in.
    owners: BTreeMap<LedgerId, (PartitionId, ChainSequence)>,
    blocks: BTreeMap<u64, IdBlock>,
    entries: BTreeMap<LedgerId, BTreeMap<EntryId, Known>>,
    /// Bookies whose disk lost something: their promises count for nothing, and
    /// nobody is blamed for what they no longer have.
    damaged: BTreeSet<BookieId>,
    /// Ledgers that another than their writer has sealed.
    recovered: BTreeSet<LedgerId>,
    /// Partitions of topics that were deleted.
    gone: BTreeSet<PartitionId>,
}

impl Inspector {
    /// An inspector of these partitions, before anything happened.
    #[must_use]
    pub fn new(keys: Keys, partitions: &[PartitionId]) -> Self {
        Self {
            keys,
            numbers: partitions.iter().enumerate().map(|(number, id)| (*id, number)).collect(),
            leaders: BTreeMap::new(),
            chains: BTreeMap::new(),
            ledgers: BTreeMap::new(),
            owners: BTreeMap::new(),
            blocks: BTreeMap::new(),
            entries: BTreeMap::new(),
            damaged: BTreeSet::new(),
            recovered: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    /// The bookie's disk lost something that it had promised.
    pub fn damaged(&mut self, bookie: BookieId) {
        self.damaged.insert(bookie);
    }

    /// Whether the bookie's disk ever lost something.
    #[must_use]
    pub fn is_damaged(&self, bookie: BookieId) -> bool {
        self.damaged.contains(&bookie)
    }

    /// A partition's chain, in order, with what metadata says of each ledger.
    #[must_use]
    pub fn chain(&self, partition: PartitionId) -> Vec<(Segment, LedgerMetadata)> {
        let segments = self.chains.get(&partition).into_iter().flatten();
        segments
            .filter_map(|(_, segment)| Some((*segment, self.ledgers.get(&segment.ledger)?.clone())))
            .collect()
    }

    /// What metadata says of a ledger.
    #[must_use]
    pub fn ledger(&self, ledger: LedgerId) -> Option<&LedgerMetadata> {
        self.ledgers.get(&ledger)
    }

    /// Whether the partition's topic was deleted.
    #[must_use]
    pub fn is_gone(&self, partition: PartitionId) -> bool {
        self.gone.contains(&partition)
    }

    /// A transaction applied: what it changed.
    ///
    /// # Errors
    /// When no process may do that.
    pub fn transaction(&mut self, changes: &[Event], history: &History) -> Checked {
        // Guards speak of the state before, but a segment and its ledger come
        // in one transaction: first everything is taken in, then judged.
        let before: Vec<_> = changes.iter().map(|change| self.take_in(change)).collect::<Result<_, _>>()?;
        before.into_iter().try_for_each(|change| self.judge(change, history))
    }

    fn take_in(&mut self, change: &Event) -> Result<Change, Violation> {
        let key = match change {
            Event::Put(pair) => &pair.key,
            Event::Delete { key, .. } => key,
        };
        let put = match change {
            Event::Put(pair) => Some(pair),
            Event::Delete { .. } => None,
        };
        Ok(match self.keys.parse(key) {
            Some(Key::Partition(id)) => {
                let before = self.leaders.remove(&id);
                if let Some(pair) = put {
                    self.leaders.insert(id, decoded(pair)?);
                }
                Change::Partition(id, before)
            }
            Some(Key::Segment(id, place)) => {
                let chain = self.chains.entry(id).or_default();
                let before = chain.remove(&place);
                if let Some(pair) = put {
                    chain.insert(place, decoded(pair)?);
                }
                Change::Segment(id, place, before)
            }
            Some(Key::Ledger(id)) => {
                let before = self.ledgers.remove(&id);
                if let Some(pair) = put {
                    self.ledgers.insert(id, decoded(pair)?);
                }
                Change::Ledger(id, before)
            }
            Some(Key::IdBlock(IdKind::Ledgers, first)) => {
                self.blocks.remove(&first);
                if let Some(pair) = put {
                    self.blocks.insert(first, decoded(pair)?);
                }
                Change::Other
            }
            Some(Key::Delete(id)) => match put {
                Some(pair) => {
                    decoded::<DeleteIntent>(pair)?;
                    Change::Delete(id)
                }
                None => Change::Other,
            },
            Some(Key::Deleting(topic)) => {
                self.gone.extend(self.numbers.keys().filter(|id| id.topic == topic));
                Change::Other
            }
            _ => Change::Other,
        })
    }

    fn judge(&mut self, change: Change, history: &History) -> Checked {
        match change {
            Change::Partition(id, before) => self.judge_epoch(id, before.as_ref()),
            Change::Segment(id, place, before) => self.judge_segment(id, place, before),
            Change::Ledger(id, before) => self.judge_ledger(id, before.as_ref(), history),
            Change::Delete(id) => self.judge_delete(id),
            Change::Other => Ok(()),
        }
    }

    /// T1: epochs only rise.
    fn judge_epoch(&self, id: PartitionId, before: Option<&Partition>) -> Checked {
        let before = before.map_or(Epoch(0), |partition| partition.epoch);
        match self.leaders.get(&id) {
            Some(now) if now.epoch <= before => Violation::of(
                Invariant::Guarded,
                format!("the epoch of {id} went from {before} to {}", now.epoch),
            ),
            _ => Ok(()),
        }
    }

    /// W3: a segment comes at the chain's end, and its ledger is in no other.
    fn judge_segment(&mut self, id: PartitionId, place: ChainSequence, before: Option<Segment>) -> Checked {
        let Some(chain) = self.chains.get(&id) else { return Ok(()) };
        let Some(segment) = chain.get(&place).copied() else { return self.judge_removal(id, place, before) };
        let replaces_empty = |before: Segment| {
            before.base_offset == segment.base_offset && !self.ledgers.contains_key(&before.ledger)
        };
        if before.is_some_and(|before| !replaces_empty(before)) {
            return Violation::of(
                Invariant::Guarded,
                format!("place {place} of the chain of {id} was taken"),
            );
        }
        if let Some(other) = self.owners.insert(segment.ledger, (id, place)) {
            return Violation::of(
                Invariant::OneChain,
                format!("ledger {} is in the chains {other:?} and {:?}", segment.ledger, (id, place)),
            );
        }
        if chain.range(place.next()..).next().is_some() {
            return Violation::of(Invariant::ChainIsDense, format!("place {place} of {id} is not the last"));
        }
        if let Some((_, last)) = chain.range(..place).next_back() {
            let sealed = self.ledgers.get(&last.ledger).and_then(LedgerMetadata::sealed);
            if sealed.map(|sealed| sealed.next_offset) != Some(segment.base_offset) {
                return Violation::of(
                    Invariant::ChainIsDense,
                    format!("segment {segment:?} of {id} comes after {last:?}, which ended so: {sealed:?}"),
                );
            }
        }
        Ok(())
    }

    /// Nothing in these runs expires: a segment goes when it is empty, or with
    /// its topic.
    fn judge_removal(&self, id: PartitionId, place: ChainSequence, before: Option<Segment>) -> Checked {
        let (Some(segment), false) = (before, self.is_gone(id)) else { return Ok(()) };
        let next = self.chains.get(&id).and_then(|chain| chain.range(place..).next());
        if next.is_some_and(|(_, next)| next.base_offset == segment.base_offset) {
            return Ok(());
        }
        Violation::of(Invariant::ChainIsDense, format!("{segment:?} of {id} was removed, next is {next:?}"))
    }

    fn judge_ledger(&mut self, id: LedgerId, before: Option<&LedgerMetadata>, history: &History) -> Checked {
        let Some(now) = self.ledgers.get(&id) else { return Ok(()) };
        if self.is_gone(now.owner) {
            return Ok(());
        }
        if let (Some(before), Some(sealed)) = (before, now.sealed())
            && matches!(before.state, LedgerState::Recovering(_))
        {
            self.recovered.insert(id);
            self.judge_end(before, sealed.end)?;
        }
        let leader = self.leaders.get(&now.owner);
        let epoch = leader.map_or(Epoch(0), |leader| leader.epoch);
        match (before.map(|before| &before.state), &now.state) {
            (None, LedgerState::Open) => self.judge_naming(now, leader),
            (None, state) => Violation::of(Invariant::Guarded, format!("ledger {id} came as {state:?}")),
            (Some(LedgerState::Open | LedgerState::Recovering(_)), LedgerState::Recovering(by))
                if *by == epoch && before.is_some_and(|before| before.greatest_epoch() < *by) =>
            {
                Ok(())
            }
            // T5: targets are named.
            (Some(LedgerState::Recovering(was)), LedgerState::Recovering(is))
                if was == is
                    && *is == epoch
                    && before.is_some_and(|before| before.replicas == now.replicas) =>
            {
                Ok(())
            }
            (Some(LedgerState::Open), LedgerState::Sealed(_)) if now.epoch == epoch => {
                self.judge_seal(now, history)
            }
            (Some(LedgerState::Recovering(by)), LedgerState::Sealed(_)) if *by == epoch => {
                self.judge_seal(now, history)
            }
            (Some(LedgerState::Sealed(was)), LedgerState::Sealed(is))
                if (was.end, was.next_offset) == (is.end, is.next_offset) =>
            {
                Ok(())
            }
            (was, is) => Violation::of(
                Invariant::Guarded,
                format!("ledger {id} went from {was:?} to {is:?} while the partition's epoch is {epoch}"),
            ),
        }
    }

    /// W3: only the partition's leader names a ledger, of a block that it holds.
    fn judge_naming(&self, ledger: &LedgerMetadata, leader: Option<&Partition>) -> Checked {
        let id = ledger.id;
        let Some(leader) = leader.filter(|leader| leader.epoch == ledger.epoch) else {
            return Violation::of(
                Invariant::Guarded,
                format!("ledger {id} of epoch {} was named while {leader:?} leads", ledger.epoch),
            );
        };
        let block = self.blocks.range(..=id.0).next_back().map(|(_, block)| block);
        let held = block.filter(|block| block.ids().contains(&id.0)).and_then(|block| block.holder.as_ref());
        if held.is_none() || held != leader.leader.as_ref() {
            return Violation::of(
                Invariant::Guarded,
                format!("ledger {id} was named by {leader:?}, and its block is {block:?}"),
            );
        }
        Ok(())
    }

    /// T3: what the writer of a ledger got on A replicas is below the end that
    /// another finds for it, whoever heard of that.
    fn judge_end(&self, ledger: &LedgerMetadata, end: EntryId) -> Checked {
        let beyond = self.entries.get(&ledger.id).and_then(|entries| entries.range(end..).next());
        match beyond.filter(|(_, known)| known.is_committed(ledger)) {
            Some((entry, _)) => Violation::of(
                Invariant::AcknowledgedIsBelowSeals,
                format!("ledger {} is sealed at {end}, and entry {entry} was committed", ledger.id),
            ),
            None => Ok(()),
        }
    }

    /// I1, I4, and enough copies of everything below the end.
    fn judge_seal(&self, ledger: &LedgerMetadata, history: &History) -> Checked {
        let Some(sealed) = ledger.sealed() else { return Ok(()) };
        let (id, none) = (ledger.id, BTreeMap::new());
        let entries = self.entries.get(&id).unwrap_or(&none);
        let mut next = self.base_of(id);
        for place in 0..sealed.end.0 {
            let Some(known) = entries.get(&EntryId(place)) else {
                return Violation::of(
                    Invariant::AcknowledgedIsReadable,
                    format!("ledger {id} is sealed at {}, and nobody has entry {place}", sealed.end),
                );
            };
            if next.is_some_and(|next| next != known.entry.base_offset) {
                return Violation::of(
                    Invariant::ChainIsDense,
                    format!("entry {place} of ledger {id}: {:?} comes at {next:?}", known.entry),
                );
            }
            next = Some(known.entry.next_offset);
            self.judge_copies(ledger, EntryId(place), known)?;
        }
        if next.is_some_and(|next| next != sealed.next_offset.0) {
            return Violation::of(
                Invariant::ChainIsDense,
                format!("ledger {id} is sealed at offset {} and ends at {next:?}", sealed.next_offset),
            );
        }
        match self.numbers.get(&ledger.owner) {
            Some(number) => history.sealed(*number, sealed.next_offset.0),
            None => Ok(()),
        }
    }

    fn judge_copies(&self, ledger: &LedgerMetadata, entry: EntryId, known: &Known) -> Checked {
        let counted = |bookie: &&BookieId| known.holders.contains(bookie) || self.damaged.contains(bookie);
        let copies = ledger.replicas.iter().filter(counted).count();
        let complete = ledger.sealed().map(|sealed| &sealed.complete[..]).unwrap_or_default();
        let lacking: Vec<_> = complete.iter().filter(|bookie| !counted(bookie)).collect();
        if copies < ledger.ack_quorum as usize || !lacking.is_empty() {
            return Violation::of(
                Invariant::AcknowledgedIsReadable,
                format!(
                    "entry {entry} of ledger {} is sealed with {copies} copies; it is not on {lacking:?}, which \
                     are called complete",
                    ledger.id
                ),
            );
        }
        Ok(())
    }

    fn judge_delete(&self, id: LedgerId) -> Checked {
        let named = self.owners.get(&id).filter(|(partition, place)| {
            let segment = self.chains.get(partition).and_then(|chain| chain.get(place));
            !self.is_gone(*partition) && segment.is_some_and(|segment| segment.ledger == id)
        });
        match named {
            Some(place) => {
                Violation::of(Invariant::Guarded, format!("ledger {id} is to be deleted and is in {place:?}"))
            }
            None => Ok(()),
        }
    }

    /// A bookie promised, for the first time, to have an entry.
    ///
    /// # Errors
    /// When it is another than a replica has, or when a deposed writer got it
    /// committed.
    pub fn durable(&mut self, bookie: BookieId, ledger: LedgerId, id: EntryId, entry: Entry) -> Checked {
        let known = self.entries.entry(ledger).or_default().entry(id).or_insert_with(|| Known {
            entry: entry.clone(),
            holders: BTreeSet::new(),
            from_writer: BTreeSet::new(),
        });
        if known.entry.payload_crc != entry.payload_crc {
            return Violation::of(
                Invariant::ReplicasAgree,
                format!("entry {id} of ledger {ledger}: {entry:?} on {bookie}, {:?} elsewhere", known.entry),
            );
        }
        known.holders.insert(bookie);
        let Some(metadata) = self.ledgers.get(&ledger) else { return Ok(()) };
        if entry.epoch == metadata.epoch {
            known.from_writer.insert(bookie);
        }
        let sealed = metadata.sealed().filter(|_| self.recovered.contains(&ledger));
        if sealed.is_some_and(|sealed| sealed.end <= id) && known.is_committed(metadata) {
            return Violation::of(
                Invariant::OneWriter,
                format!("entry {id} of ledger {ledger} is committed after others sealed that: {metadata:?}"),
            );
        }
        Ok(())
    }

    /// A producer is told that its batch is at `base`, or a reader is shown it:
    /// it must be committed, in a ledger that metadata names.
    ///
    /// # Errors
    /// When it is not.
    pub fn shown(&self, partition: PartitionId, batch: BatchId, base: u64, to: Shown) -> Checked {
        if self.is_gone(partition) {
            return Ok(());
        }
        let (invariant, told) = match to {
            Shown::Producer => (Invariant::AcknowledgedIsReadable, "acknowledged"),
            Shown::Reader => (Invariant::NothingEarly, "served"),
        };
        let fail = |why: String| Violation::of(invariant, format!("{batch:?} is {told} at {base}: {why}"));
        let chain = self.chains.get(&partition);
        let Some((_, segment)) =
            chain.and_then(|chain| chain.iter().rev().find(|(_, segment)| segment.base_offset.0 <= base))
        else {
            return fail(format!("no segment of {partition} begins at or below"));
        };
        let Some(ledger) = self.ledgers.get(&segment.ledger) else {
            return fail(format!("ledger {} is not in metadata", segment.ledger));
        };
        if ledger.sealed().is_some_and(|sealed| sealed.next_offset.0 <= base) {
            return match to {
                Shown::Producer => Violation::of(
                    Invariant::AcknowledgedIsBelowSeals,
                    format!("{batch:?} is acknowledged at {base}, above the end of {ledger:?}"),
                ),
                Shown::Reader => fail(format!("that is above the end of {ledger:?}")),
            };
        }
        let entries = self.entries.get(&segment.ledger).into_iter().flatten();
        let mut holding = entries.filter(|(_, known)| known.entry.batches.contains(&(batch, base)));
        let Some((id, known)) = holding.next() else {
            return fail(format!("no bookie has it durably in ledger {}", ledger.id));
        };
        let counted = |bookie: &&BookieId| known.holders.contains(bookie) || self.damaged.contains(bookie);
        let copies = ledger.replicas.iter().filter(counted).count();
        if copies < ledger.ack_quorum as usize {
            return fail(format!("entry {id} of ledger {} has {copies} copies", ledger.id));
        }
        Ok(())
    }

    /// The offset up to which a partition's chain is committed, whoever knows.
    #[must_use]
    pub fn committed_end(&self, partition: PartitionId) -> u64 {
        let Some((_, last)) = self.chains.get(&partition).and_then(|chain| chain.last_key_value()) else {
            return 0;
        };
        let Some(ledger) = self.ledgers.get(&last.ledger) else { return last.base_offset.0 };
        if let Some(sealed) = ledger.sealed() {
            return sealed.next_offset.0;
        }
        let counted = |known: &Known| {
            let has = |bookie: &&BookieId| known.holders.contains(bookie) || self.damaged.contains(bookie);
            ledger.replicas.iter().filter(has).count() >= ledger.ack_quorum as usize
        };
        let entries = self.entries.get(&last.ledger).into_iter().flatten();
        let committed = entries.map(|(_, known)| known).take_while(|known| counted(known));
        committed.last().map_or(last.base_offset.0, |known| known.entry.next_offset)
    }

    /// Whether an entry below a ledger's end may have no copy left: no replica
    /// that metadata names promised to have it and kept its disk.
    #[must_use]
    pub fn may_be_lost(&self, ledger: &LedgerMetadata, entry: EntryId) -> bool {
        let known = self.entries.get(&ledger.id).and_then(|entries| entries.get(&entry));
        let kept = |bookie: &BookieId| {
            !self.damaged.contains(bookie) && known.is_some_and(|known| known.holders.contains(bookie))
        };
        self.is_beyond_vouching(ledger) && !ledger.replicas.iter().any(kept)
    }

    /// Whether a partition may be without a leader for good: the end of its last
    /// ledger cannot be had (T3), or something that its state is restored from
    /// may be lost: the last ledger and, where that has no batch and thus
    /// perhaps no snapshot, the one before it.
    #[must_use]
    pub fn may_stand_still(&self, partition: PartitionId) -> bool {
        for (_, ledger) in self.chain(partition).iter().rev() {
            if self.may_hold_up(ledger) {
                return true;
            }
            let mut entries = self.entries.get(&ledger.id).into_iter().flatten();
            let end = ledger.sealed().map_or(EntryId(u64::MAX), |sealed| sealed.end);
            if entries.any(|(entry, known)| *entry < end && !known.entry.batches.is_empty()) {
                return false;
            }
        }
        false
    }

    /// Whether a ledger's end cannot be had, or something in it may be lost.
    #[must_use]
    pub fn may_hold_up(&self, ledger: &LedgerMetadata) -> bool {
        match ledger.sealed() {
            Some(sealed) => (0..sealed.end.0).any(|entry| self.may_be_lost(ledger, EntryId(entry))),
            None => self.is_beyond_vouching(ledger),
        }
    }

    /// Whether fewer than n−A+1 of a ledger's replicas have an undamaged disk:
    /// an acknowledged entry may be on damaged ones alone.
    fn is_beyond_vouching(&self, ledger: &LedgerMetadata) -> bool {
        let damaged = ledger.replicas.iter().filter(|bookie| self.damaged.contains(bookie));
        damaged.count() >= ledger.ack_quorum as usize
    }

    /// A stored value in a few words, for the trace.
    #[must_use]
    pub fn describe(&self, pair: &KeyValue) -> String {
        match self.keys.parse(&pair.key) {
            Some(Key::Partition(_)) => match Partition::decode(&pair.value) {
                Ok(value) => format!(
                    "epoch {} of {}",
                    value.epoch,
                    value.leader.map_or_else(String::new, |leader| leader.broker.to_string())
                ),
                Err(error) => error.to_string(),
            },
            Some(Key::Segment(..)) => match Segment::decode(&pair.value) {
                Ok(value) => format!("ledger {} from {}", value.ledger, value.base_offset),
                Err(error) => error.to_string(),
            },
            Some(Key::Ledger(_)) => match LedgerMetadata::decode(&pair.value) {
                Ok(value) => match &value.state {
                    LedgerState::Sealed(sealed) => {
                        format!("sealed at {}, offset {}", sealed.end, sealed.next_offset)
                    }
                    state => format!("{state:?} of epoch {}", value.epoch),
                },
                Err(error) => error.to_string(),
            },
            Some(Key::IdBlock(..)) => match IdBlock::decode(&pair.value) {
                Ok(value) => match &value.holder {
                    Some(holder) => format!("{:?} of {}", value.ids(), holder.broker),
                    None => format!("{:?} released", value.ids()),
                },
                Err(error) => error.to_string(),
            },
            _ => String::new(),
        }
    }

    /// The offset that a ledger begins with, by the chain it is in.
    fn base_of(&self, ledger: LedgerId) -> Option<u64> {
        let (partition, place) = self.owners.get(&ledger)?;
        Some(self.chains.get(partition)?.get(place)?.base_offset.0)
    }
}

/// To whom a batch is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    Producer,
    Reader,
}

/// What a change touched and what was there before.
enum Change {
    Partition(PartitionId, Option<Partition>),
    Segment(PartitionId, ChainSequence, Option<Segment>),
    Ledger(LedgerId, Option<LedgerMetadata>),
    Delete(LedgerId),
    Other,
}

fn decoded<T: Typed>(pair: &KeyValue) -> Result<T, Violation> {
    T::decode(&pair.value).map_err(|why| Violation {
        invariant: Invariant::Guarded,
        detail: format!("{} is no {}: {why}", pair.key, T::NAME),
    })
}

#[cfg(test)]
mod tests {
    use quire_metadata::ledger::Sealed;
    use quire_proto::id::{Offset, PartitionIndex, TopicId};
    use uuid::Uuid;

    use super::*;

    const A: BookieId = bookie(1);
    const B: BookieId = bookie(2);
    const C: BookieId = bookie(3);
    const LEDGER: LedgerId = LedgerId(7);

    const fn bookie(number: u128) -> BookieId {
        BookieId(Uuid::from_u128(number))
    }

    fn ledger(replicas: &[BookieId], ack_quorum: u32, state: LedgerState) -> LedgerMetadata {
        LedgerMetadata {
            id: LEDGER,
            owner: PartitionId { topic: TopicId(Uuid::nil()), index: PartitionIndex(0) },
            epoch: Epoch(1),
            replicas: replicas.to_vec(),
            ack_quorum,
            targets: Vec::new(),
            former: Vec::new(),
            state,
            created_ms: 0,
        }
    }

    fn sealed(end: u64) -> LedgerState {
        LedgerState::Sealed(Sealed { end: EntryId(end), next_offset: Offset(end), ..Sealed::default() })
    }

    /// After these bookies promised to have the ledger's entries so far, and
    /// those lost something.
    fn inspector(lengths: &[(BookieId, u64)], damaged: &[BookieId]) -> Inspector {
        let mut inspector = Inspector::new(Keys::new("sim").unwrap(), &[]);
        for &(bookie, length) in lengths {
            for place in 0..length {
                let entry = Entry {
                    payload_crc: 0,
                    epoch: Epoch(1),
                    next_offset: place + 1,
                    batches: Vec::new(),
                    base_offset: place,
                };
                inspector.durable(bookie, LEDGER, EntryId(place), entry).unwrap();
            }
        }
        damaged.iter().for_each(|bookie| inspector.damaged(*bookie));
        inspector
    }

    #[test]
    fn damage_to_others_excuses_nothing() {
        let inspector = inspector(&[(A, 2)], &[B, C]);
        let ledger = ledger(&[A], 1, sealed(2));
        assert!(!inspector.may_be_lost(&ledger, EntryId(0)));
        assert!(!inspector.may_hold_up(&ledger));
    }

    #[test]
    fn an_undamaged_copy_is_no_loss() {
        let inspector = inspector(&[(A, 2), (B, 2), (C, 1)], &[A, B]);
        let ledger = |state| ledger(&[A, B, C], 2, state);
        assert!(!inspector.may_be_lost(&ledger(sealed(2)), EntryId(0)));
        assert!(inspector.may_be_lost(&ledger(sealed(2)), EntryId(1)));
        assert!(!inspector.may_hold_up(&ledger(sealed(1))));
        assert!(inspector.may_hold_up(&ledger(sealed(2))));
        assert!(inspector.may_hold_up(&ledger(LedgerState::Open)), "C alone is no n - A + 1");
    }

    #[test]
    fn what_enough_undamaged_replicas_vouch_for_must_be_there() {
        let inspector = inspector(&[(A, 2)], &[A]);
        let ledger = |state| ledger(&[A, B, C], 2, state);
        assert!(!inspector.may_be_lost(&ledger(sealed(2)), EntryId(0)), "two copies were promised");
        assert!(!inspector.may_hold_up(&ledger(LedgerState::Recovering(Epoch(2)))));
    }
}
