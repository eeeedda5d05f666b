//! One partition's part of a produce request.

use quire_ledger::clock::Millis;
use quire_proto::batch::Batch;
use quire_proto::id::PartitionId;
use smallvec::SmallVec;

use crate::call::Reply;

/// When the producer wants to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Once committed.
    All,
    /// Once durable on one bookie; may be lost.
    Leader,
    /// Once accepted; may be lost.
    None,
}

/// Checked batches for one partition, in order. Those of an idempotent producer
/// are all of the same producer and continue one another.
#[derive(Debug)]
pub struct Piece {
    pub partition: PartitionId,
    pub batches: SmallVec<[Batch; 1]>,
    pub acks: Acks,
    /// After this a piece that was not appended yet fails.
    pub deadline: Millis,
    pub reply: Reply,
}

impl Piece {
    /// Bytes of all batches.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.batches.iter().map(|batch| batch.bytes.len()).sum()
    }
}
