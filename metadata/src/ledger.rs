//! `ledgers/<id>`: a ledger's replica set and state.

use bytes::Bytes;
use prost::Message;
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Offset, PartitionId, PartitionIndex, TopicId};

use crate::typed::{Malformed, Typed, uuid_bytes, uuid_from};
use crate::value;

/// A ledger may have at most this many replicas.
pub const REPLICAS_MAX: usize = 16;

/// A ledger. Its replica set stays as it is while it is written: trouble seals
/// it and the log goes on in the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerMetadata {
    /// Its id.
    pub id: LedgerId,
    /// The only partition whose chain it is in (I6).
    pub owner: PartitionId,
    /// The epoch that it was opened with: its own epoch.
    pub epoch: Epoch,
    /// The bookies that hold it, each a prefix.
    pub replicas: Vec<BookieId>,
    /// How many of them must have an entry durably before it is committed.
    pub ack_quorum: u32,
    /// Bookies that are being filled and count nowhere yet (B7, T5).
    pub targets: Vec<BookieId>,
    /// Bookies that it named and names no longer.
    pub former: Vec<BookieId>,
    /// Where it is in its life.
    pub state: LedgerState,
    /// Milliseconds since 1970 when it was bound to its partition.
    pub created_ms: i64,
}

/// Where a ledger is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerState {
    /// Its writer appends.
    Open,
    /// A leader of this epoch finds out where it ends (T2).
    Recovering(Epoch),
    /// It ended.
    Sealed(Sealed),
}

/// How a ledger ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Number of entries.
    pub end: EntryId,
    /// The offset after its last record.
    pub next_offset: Offset,
    /// Bytes of its entries.
    pub bytes: u64,
    /// The replicas that were verified complete. The others are
    /// under-replicated.
    pub complete: Vec<BookieId>,
    /// The greatest timestamp of its batches, in milliseconds since 1970.
    pub max_timestamp_ms: i64,
    /// Milliseconds since 1970 when it was sealed.
    pub sealed_ms: i64,
}

impl LedgerMetadata {
    /// How it ended, if it did.
    #[must_use]
    pub const fn sealed(&self) -> Option<&Sealed> {
        match &self.state {
            LedgerState::Sealed(sealed) => Some(sealed),
            LedgerState::Open | LedgerState::Recovering(_) => None,
        }
    }

    /// The greatest epoch that has the right to end it.
    #[must_use]
    pub const fn greatest_epoch(&self) -> Epoch {
        match self.state {
            LedgerState::Recovering(epoch) => epoch,
            LedgerState::Open | LedgerState::Sealed(_) => self.epoch,
        }
    }

    /// Every bookie that it ever named.
    #[must_use]
    pub fn ever_named(&self) -> Vec<BookieId> {
        let mut named: Vec<_> =
            self.replicas.iter().chain(&self.targets).chain(&self.former).copied().collect();
        named.sort_unstable();
        named.dedup();
        named
    }
}

impl Typed for LedgerMetadata {
    const NAME: &'static str = "ledger";

    fn encode(&self) -> Bytes {
        use value::ledger::State;
        value::Ledger {
            id: self.id.0,
            topic: uuid_bytes(self.owner.topic.0),
            partition: self.owner.index.0,
            epoch: self.epoch.0,
            replicas: encode_bookies(&self.replicas),
            ack_quorum: self.ack_quorum,
            targets: encode_bookies(&self.targets),
            former: encode_bookies(&self.former),
            state: Some(match &self.state {
                LedgerState::Open => State::Open(value::ledger::Open {}),
                LedgerState::Recovering(epoch) => {
                    State::Recovering(value::ledger::Recovering { epoch: epoch.0 })
                }
                LedgerState::Sealed(sealed) => State::Sealed(value::ledger::Sealed {
                    end: sealed.end.0,
                    next_offset: sealed.next_offset.0,
                    bytes: sealed.bytes,
                    complete: encode_bookies(&sealed.complete),
                    max_timestamp_ms: sealed.max_timestamp_ms,
                    sealed_ms: sealed.sealed_ms,
                }),
            }),
            created_ms: self.created_ms,
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        use value::ledger::State;
        let stored = value::Ledger::decode(bytes.clone())?;
        let state = match stored.state.ok_or_else(|| Malformed("it has no state".to_owned()))? {
            State::Open(value::ledger::Open {}) => LedgerState::Open,
            State::Recovering(value::ledger::Recovering { epoch }) => LedgerState::Recovering(Epoch(epoch)),
            State::Sealed(sealed) => LedgerState::Sealed(Sealed {
                end: EntryId(sealed.end),
                next_offset: Offset(sealed.next_offset),
                bytes: sealed.bytes,
                complete: decode_bookies(&sealed.complete)?,
                max_timestamp_ms: sealed.max_timestamp_ms,
                sealed_ms: sealed.sealed_ms,
            }),
        };
        let topic = TopicId(uuid_from(&stored.topic, "topic id")?);
        let ledger = Self {
            id: LedgerId(stored.id),
            owner: PartitionId { topic, index: PartitionIndex(stored.partition) },
            epoch: Epoch(stored.epoch),
            replicas: decode_bookies(&stored.replicas)?,
            ack_quorum: stored.ack_quorum,
            targets: decode_bookies(&stored.targets)?,
            former: decode_bookies(&stored.former)?,
            state,
            created_ms: stored.created_ms,
        };
        let quorum = ledger.ack_quorum as usize;
        if !(1..=REPLICAS_MAX).contains(&ledger.replicas.len())
            || !(1..=ledger.replicas.len()).contains(&quorum)
        {
            return Err(Malformed(format!("{} replicas, ack quorum {quorum}", ledger.replicas.len())));
        }
        Ok(ledger)
    }
}

pub(crate) fn encode_bookies(bookies: &[BookieId]) -> Vec<Bytes> {
    bookies.iter().map(|bookie| uuid_bytes(bookie.0)).collect()
}

pub(crate) fn decode_bookies(stored: &[Bytes]) -> Result<Vec<BookieId>, Malformed> {
    stored.iter().map(|bytes| uuid_from(bytes, "bookie id").map(BookieId)).collect()
}
