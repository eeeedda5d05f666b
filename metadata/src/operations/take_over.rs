//! Take-over: T1 and T2 in one transaction, for many partitions at once.
//!
//! T1 mints the epoch: the partition's key goes from what was read to epoch + 1
//! with this process's nonce. T2 marks the last ledger as being recovered, if
//! it is not sealed. The transaction also requires that the chain's next place
//! is empty, also when the last ledger is sealed, so that no roll of the
//! deposed leader slips in, and that the topic is as it was read, so that a
//! topic that is deleted gets no leader.

use std::collections::BTreeMap;

use quire_proto::fault::{Fault, planted};
use quire_proto::id::{Epoch, PartitionId};

use crate::chain::ChainSequence;
use crate::key::Keys;
use crate::ledger::{LedgerMetadata, LedgerState};
use crate::operation::{Operation, Verdict, incomplete_evidence};
use crate::partition::{Leadership, Partition};
use crate::process::Process;
use crate::store::{Guard, KeyValue, Revision, StoreError, TXN_OPERATIONS_MAX, Txn};
use crate::topic::Topic;
use crate::typed::{Typed, Versioned, as_read};

/// A partition that is to be taken over, as it was read at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its topic.
    pub topic: Versioned<Topic>,
    /// The partition.
    pub id: PartitionId,
    /// Its key, if it ever had a leader.
    pub partition: Option<Versioned<Partition>>,
    /// The chain's next place.
    pub next: ChainSequence,
    /// The chain's last ledger.
    pub last: Option<Versioned<LedgerMetadata>>,
}

/// What a take-over gives for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// The epoch minted.
    pub leadership: Leadership,
    /// The chain's last ledger, as it is now: sealed, or recovering under the
    /// minted epoch.
    pub last: Option<Versioned<LedgerMetadata>>,
}

/// Some partitions were changed by others since they were read: these. Read all
/// of them anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} of the partitions were changed by others", .0.len())]
pub struct Overtaken(pub Vec<PartitionId>);

/// T1 and T2 for some partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeOver {
    process: Process,
    candidates: Vec<Candidate>,
}

impl Candidate {
    /// The epoch to mint (T1).
    fn epoch(&self, process: &Process) -> Epoch {
        let Some(Versioned { value: Partition { epoch, leader }, .. }) = &self.partition else {
            return Epoch(0).next();
        };
        let same_broker = leader.as_ref().is_some_and(|leader| leader.broker == process.broker);
        if planted(Fault::EpochResumed) && same_broker { *epoch } else { epoch.next() }
    }

    /// The last ledger under T2, if it is not sealed.
    fn recovering(&self, process: &Process) -> Option<LedgerMetadata> {
        let last = &self.last.as_ref()?.value;
        let state = LedgerState::Recovering(self.epoch(process));
        last.sealed().is_none().then(|| LedgerMetadata { state, ..last.clone() })
    }

    fn guards_and_writes(&self, process: &Process, keys: &Keys) -> Txn {
        let partition = keys.partition(self.id);
        let minted = Partition { epoch: self.epoch(process), leader: Some(process.clone()) };
        let mut txn = Txn::default()
            .require(as_read(partition.clone(), self.partition.as_ref()))
            .require(Guard::Absent(keys.segment(self.id, self.next)))
            .put(partition, minted.encode());
        if let Some(last) = &self.last {
            let key = keys.ledger(last.value.id);
            txn = txn.require(last.unchanged(key.clone()));
            if let Some(recovering) = self.recovering(process) {
                txn = txn.put(key, recovering.encode());
            }
        }
        txn
    }

    fn taken_over(&self, process: &Process, at: Revision) -> TakenOver {
        let leadership = Leadership { partition: self.id, epoch: self.epoch(process), minted: at };
        let recovering = self.recovering(process).map(|value| Versioned { value, revision: at });
        TakenOver { leadership, last: recovering.or_else(|| self.last.clone()) }
    }

    /// When the epoch was minted as asked: then the ledger is marked too.
    fn minted_at(
        &self,
        process: &Process,
        partition: Option<&KeyValue>,
    ) -> Result<Option<Revision>, StoreError> {
        let Some(partition) = Versioned::<Partition>::read_option(partition)? else { return Ok(None) };
        let Partition { epoch, leader } = &partition.value;
        let own = *epoch == self.epoch(process) && leader.as_ref() == Some(process);
        Ok(own.then_some(partition.revision))
    }

    fn is_as_read(&self, [topic, next, last, partition]: [Option<&KeyValue>; 4]) -> bool {
        fn same<T>(found: Option<&KeyValue>, read: Option<&Versioned<T>>) -> bool {
            found.map(|found| found.mod_revision) == read.map(|read| read.revision)
        }
        same(topic, Some(&self.topic))
            && next.is_none()
            && (self.last.is_none() || same(last, self.last.as_ref()))
            && same(partition, self.partition.as_ref())
    }
}

impl TakeOver {
    /// Puts as many partitions into each transaction as its limit allows.
    #[must_use]
    pub fn pack(process: &Process, candidates: Vec<Candidate>) -> Vec<Self> {
        // At most three guards and two writes for a partition; a topic that is
        // not in the transaction yet is one more guard.
        const PARTITION: usize = 5;
        let mut packed: Vec<Self> = Vec::new();
        let mut operations = usize::MAX;
        for candidate in candidates {
            let same_topic = packed.last().and_then(|last| last.candidates.last()).is_some_and(|previous| {
                previous.topic.value.id == candidate.topic.value.id
                    && previous.topic.revision == candidate.topic.revision
            });
            let needed = PARTITION + usize::from(!same_topic);
            match packed.last_mut() {
                Some(last) if operations + needed <= TXN_OPERATIONS_MAX => {
                    operations += needed;
                    last.candidates.push(candidate);
                }
                _ => {
                    operations = PARTITION + 1;
                    packed.push(Self { process: process.clone(), candidates: vec![candidate] });
                }
            }
        }
        packed
    }

    /// The partitions of this transaction.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }
}

impl Operation for TakeOver {
    type Done = Vec<TakenOver>;
    type Lost = Overtaken;

    fn txn(&self, keys: &Keys) -> Txn {
        let topics: BTreeMap<String, &Versioned<Topic>> = self
            .candidates
            .iter()
            .map(|candidate| (keys.topic(&candidate.topic.value.name), &candidate.topic))
            .collect();
        let topics = topics.into_iter().map(|(key, topic)| topic.unchanged(key));
        let txn = topics.fold(Txn::default(), Txn::require);
        self.candidates
            .iter()
            .map(|candidate| candidate.guards_and_writes(&self.process, keys))
            .fold(txn, Txn::and)
    }

    fn done(&self, at: Revision) -> Vec<TakenOver> {
        self.candidates.iter().map(|candidate| candidate.taken_over(&self.process, at)).collect()
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        let of = |candidate: &Candidate| {
            [
                keys.topic(&candidate.topic.value.name),
                keys.segment(candidate.id, candidate.next),
                keys.ledger(candidate.last.as_ref().map(|last| last.value.id).unwrap_or_default()),
                keys.partition(candidate.id),
            ]
        };
        self.candidates.iter().flat_map(of).collect()
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Vec<TakenOver>, Overtaken>, StoreError> {
        let (evidence, []) = found.as_chunks::<4>() else { return Err(incomplete_evidence()) };
        if evidence.len() != self.candidates.len() {
            return Err(incomplete_evidence());
        }
        let mut done = Vec::new();
        let mut overtaken = Vec::new();
        for (candidate, evidence) in self.candidates.iter().zip(evidence) {
            let evidence @ [.., partition] = evidence.each_ref().map(Option::as_ref);
            match candidate.minted_at(&self.process, partition)? {
                Some(at) => done.push(candidate.taken_over(&self.process, at)),
                None if candidate.is_as_read(evidence) => {}
                None => overtaken.push(candidate.id),
            }
        }
        Ok(if !overtaken.is_empty() {
            Verdict::lost(Overtaken(overtaken))
        } else if done.len() == self.candidates.len() {
            Verdict::done(done)
        } else {
            Verdict::Pending
        })
    }
}
