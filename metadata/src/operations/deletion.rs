//! The steps by which the controller deletes ledgers and topics. Each is one
//! transaction, may be repeated, and leaves behind what the next one needs.
//!
//! A topic in `deleting/`: its leaders are deposed ([`DeposeLeaders`]), then
//! its segments and ledgers go and leave delete intents ([`DropSegments`]),
//! then what is left of it ([`FinishTopic`]). A ledger with a delete intent:
//! bookies confirm one after another ([`AdvanceDelete`]).

use quire_proto::id::{BookieId, LedgerId, PartitionId, TopicId};

use crate::chain::{ChainSequence, Segment};
use crate::delete_intent::DeleteIntent;
use crate::key::Keys;
use crate::ledger::LedgerMetadata;
use crate::operation::{Operation, Verdict, incomplete_evidence};
use crate::partition::Partition;
use crate::store::{Guard, KeyValue, Revision, StoreError, TXN_OPERATIONS_MAX, Txn, Write};
use crate::typed::{Typed, Versioned, as_read};

/// What was read has changed since: read it anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was changed by another")]
pub struct Changed;

/// Raises the epochs of partitions of a topic that is being deleted, so that no
/// transaction of their leaders applies any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeposeLeaders {
    topic: TopicId,
    partitions: Vec<(PartitionId, Versioned<Partition>)>,
}

impl DeposeLeaders {
    /// The steps that depose the leaders of these partitions. Partitions
    /// without one need none: a leader is minted only for a topic that is not
    /// being deleted.
    #[must_use]
    pub fn pack(topic: TopicId, partitions: Vec<(PartitionId, Versioned<Partition>)>) -> Vec<Self> {
        // A guard and a write for each; one guard for the topic, one for the
        // election.
        const AT_ONCE: usize = (TXN_OPERATIONS_MAX - 2) / 2;
        let led: Vec<_> =
            partitions.into_iter().filter(|(_, partition)| partition.value.leader.is_some()).collect();
        led.chunks(AT_ONCE).map(|chunk| Self { topic, partitions: chunk.to_vec() }).collect()
    }
}

impl Operation for DeposeLeaders {
    type Done = ();
    type Lost = Changed;

    fn txn(&self, keys: &Keys) -> Txn {
        let txn = Txn::default().require(Guard::Present(keys.deleting(self.topic)));
        self.partitions.iter().fold(txn, |txn, (id, partition)| {
            let key = keys.partition(*id);
            let deposed = Partition { epoch: partition.value.epoch.next(), leader: None };
            txn.require(partition.unchanged(key.clone())).put(key, deposed.encode())
        })
    }

    fn done(&self, _at: Revision) {}

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        self.partitions.iter().map(|(id, _)| keys.partition(*id)).collect()
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<(), Changed>, StoreError> {
        let mut pending = false;
        for (found, (_, read)) in found.iter().zip(&self.partitions) {
            match Versioned::<Partition>::read_option(found.as_ref())? {
                Some(found) if found.revision == read.revision => pending = true,
                Some(found) if found.value.leader.is_some() => return Ok(Verdict::lost(Changed)),
                Some(_) | None => {}
            }
        }
        Ok(if pending { Verdict::Pending } else { Verdict::done(()) })
    }
}

/// A segment that is to go, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedSegment {
    /// Its partition.
    pub partition: PartitionId,
    /// Its place.
    pub sequence: ChainSequence,
    /// The segment.
    pub segment: Versioned<Segment>,
    /// Its ledger; none when it is gone already.
    pub ledger: Option<Versioned<LedgerMetadata>>,
}

/// Removes segments of a topic whose leaders are deposed, and leaves intents to
/// delete their ledgers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropSegments {
    topic: TopicId,
    segments: Vec<DroppedSegment>,
}

impl DropSegments {
    /// How many segments fit into one transaction: two guards and three writes
    /// for each; one guard for the topic, one for the election.
    pub const AT_ONCE: usize = (TXN_OPERATIONS_MAX - 2) / 5;

    /// The steps that remove these segments.
    #[must_use]
    pub fn pack(topic: TopicId, segments: Vec<DroppedSegment>) -> Vec<Self> {
        segments.chunks(Self::AT_ONCE).map(|chunk| Self { topic, segments: chunk.to_vec() }).collect()
    }
}

impl Operation for DropSegments {
    type Done = ();
    type Lost = Changed;

    fn txn(&self, keys: &Keys) -> Txn {
        let txn = Txn::default().require(Guard::Present(keys.deleting(self.topic)));
        self.segments.iter().fold(txn, |txn, dropped| {
            let segment = keys.segment(dropped.partition, dropped.sequence);
            let ledger = keys.ledger(dropped.segment.value.ledger);
            let txn = txn
                .require(dropped.segment.unchanged(segment.clone()))
                .require(as_read(ledger.clone(), dropped.ledger.as_ref()))
                .delete(segment);
            match &dropped.ledger {
                Some(metadata) => {
                    let intent = DeleteIntent::of(&metadata.value);
                    txn.delete(ledger).put(keys.delete(metadata.value.id), intent.encode())
                }
                None => txn,
            }
        })
    }

    fn done(&self, _at: Revision) {}

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        let of = |dropped: &DroppedSegment| {
            [keys.ledger(dropped.segment.value.ledger), keys.segment(dropped.partition, dropped.sequence)]
        };
        self.segments.iter().flat_map(of).collect()
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<(), Changed>, StoreError> {
        let (evidence, []) = found.as_chunks::<2>() else { return Err(incomplete_evidence()) };
        let revision = |found: &Option<KeyValue>| found.as_ref().map(|found| found.mod_revision);
        let mut pending = false;
        for ([ledger, segment], read) in evidence.iter().zip(&self.segments) {
            let as_read = revision(segment) == Some(read.segment.revision)
                && revision(ledger) == read.ledger.as_ref().map(|ledger| ledger.revision);
            match segment {
                None => {}
                Some(_) if as_read => pending = true,
                Some(_) => return Ok(Verdict::lost(Changed)),
            }
        }
        Ok(if pending { Verdict::Pending } else { Verdict::done(()) })
    }
}

/// Forgets a topic that has no segments any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishTopic {
    /// The topic.
    pub topic: TopicId,
}

impl Operation for FinishTopic {
    type Done = ();
    type Lost = Changed;

    fn txn(&self, keys: &Keys) -> Txn {
        let deleting = keys.deleting(self.topic);
        let mut txn = Txn::default().require(Guard::Present(deleting.clone())).delete(deleting);
        for prefix in [keys.partitions(self.topic), keys.proposals(self.topic)] {
            txn.writes.push(Write::DeletePrefix { prefix });
        }
        txn
    }

    fn done(&self, _at: Revision) {}

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.deleting(self.topic)]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<(), Changed>, StoreError> {
        match found {
            [None] => Ok(Verdict::done(())),
            [Some(_)] => Ok(Verdict::Pending),
            _ => Err(incomplete_evidence()),
        }
    }
}

/// Notes which bookies have deleted a ledger; ends the intent when each has
/// confirmed or has left the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvanceDelete {
    /// The ledger.
    pub ledger: LedgerId,
    /// The intent, as read.
    pub intent: Versioned<DeleteIntent>,
    /// Bookies that have confirmed since.
    pub confirmed: Vec<BookieId>,
    /// Bookies that are not in the registry: the transaction requires it.
    pub departed: Vec<BookieId>,
}

impl AdvanceDelete {
    fn next(&self) -> DeleteIntent {
        let mut next = self.intent.value.clone();
        next.confirmed.extend(&self.confirmed);
        next.confirmed.sort_unstable();
        next.confirmed.dedup();
        next
    }

    /// Whether this is the end of the intent.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.next().outstanding().iter().all(|bookie| self.departed.contains(bookie))
    }
}

impl Operation for AdvanceDelete {
    /// The intent as it is now; none when it has ended.
    type Done = Option<Versioned<DeleteIntent>>;
    type Lost = Changed;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.delete(self.ledger);
        let txn = Txn::default().require(self.intent.unchanged(key.clone()));
        if !self.ends() {
            return txn.put(key, self.next().encode());
        }
        let departed = self.next().outstanding().into_iter();
        departed
            .map(|bookie| Guard::Absent(keys.bookie_registration(bookie)))
            .fold(txn, Txn::require)
            .delete(key)
    }

    fn done(&self, at: Revision) -> Self::Done {
        (!self.ends()).then(|| Versioned { value: self.next(), revision: at })
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.delete(self.ledger)]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Self::Done, Changed>, StoreError> {
        let [intent] = found else { return Err(incomplete_evidence()) };
        Ok(match Versioned::<DeleteIntent>::read_option(intent.as_ref())? {
            None => Verdict::done(None),
            Some(found) if found.revision == self.intent.revision => Verdict::Pending,
            Some(found) if found.value == self.next() => Verdict::done(Some(found)),
            Some(_) => Verdict::lost(Changed),
        })
    }
}
