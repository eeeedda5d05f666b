//! What a broker asks of a bookie, and what the bookie answers.
//!
//! Appends are a stream per ledger and have no answer each: the bookie reports
//! how far each ledger is durable, once a group commit (B3). Everything else is
//! a request with one response.

use quire_proto::id::{EntryId, Epoch, LedgerId, Nonce};

use crate::record::{Header, Record};

/// One entry for one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The attempt of the replica stream that this append belongs to, from 0. A
    /// stream is one connection, ledger and sender's epoch. One that is rewound
    /// goes on under the next attempt; older ones are dropped silently by both
    /// sides (B3).
    pub attempt: u32,
    /// The entry, of kind `Append`.
    pub record: Record,
}

/// What a bookie reports about append streams, unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendEvent {
    /// How many entries of each ledger are durable. Cumulative, one for all
    /// ledgers of a group commit and connection.
    Durable(Vec<(LedgerId, EntryId)>),
    /// An append was not the next one: `accepted` is.
    Gap { ledger: LedgerId, attempt: u32, accepted: EntryId },
    /// An append was refused, and all later ones of this attempt are.
    Refused { ledger: LedgerId, attempt: u32, reason: Refusal },
}

/// Why a bookie does not take an append or a creation. All of them are
/// determinate, but `Unreadable`: nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The ledger is fenced at a higher epoch (B3, B4).
    #[error("the ledger is fenced at epoch {0}")]
    Fenced(Epoch),
    /// The ledger was never created here (B2).
    #[error("the ledger was never created on this bookie")]
    NotCreated,
    /// The ledger exists and was created by another (B2).
    #[error("the ledger exists and was created by another process")]
    OtherCreator,
    /// The ledger is deleted (B8).
    #[error("the ledger is deleted")]
    Deleted,
    /// The bookie lost a tail of its log; ids below this one are never created
    /// or written by their writer any more (B6).
    #[error("the bookie lost a tail of its log and takes no ledger below {0}")]
    Marked(LedgerId),
    /// The entry is there with other bytes. Never hidden: a bug or corruption.
    #[error("entry {0} is there with other bytes")]
    Differs(EntryId),
    /// The entry is there, and cannot be read to be compared.
    #[error("entry {0} is there and cannot be read to be compared with this one")]
    Unreadable(EntryId),
    /// The ledger is being imported and takes no writer's append (B7).
    #[error("the ledger is being imported")]
    Importing,
    /// Header or payload fail their checks.
    #[error("the record is malformed or its checksum does not match")]
    Corrupt,
    /// The disk is full: the bookie is read-only until space is freed.
    #[error("the bookie is read-only because its disk is full")]
    ReadOnly,
}

/// A request with one response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// B2. Response: `Created` or `Refused`.
    Create { ledger: LedgerId, creator: Nonce },
    /// B4. Response: `Fenced`, `Deleted` or `Unknown`.
    Fence { ledger: LedgerId, epoch: Epoch },
    /// What the replica holds. Response: `State`, `Absent`, `Deleted` or
    /// `Unknown`.
    State { ledger: LedgerId },
    /// B5. Response: `Entries`, `Absent`, `Deleted` or `Unknown`.
    Read(Read),
    /// B7: copy the sealed ledger `[0, end)` from these peers. Response:
    /// `Imported`, `Refused` or `Unknown`.
    Import { ledger: LedgerId, end: EntryId },
    /// B8: every ledger from `first` to `last`, both included. Response:
    /// `Deleted`.
    Delete { first: LedgerId, last: LedgerId },
}

/// B5: entries of one ledger from `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub ledger: LedgerId,
    pub from: EntryId,
    /// At least 1.
    pub max_entries: u32,
    /// At least one entry is returned even when it is larger.
    pub max_bytes: u32,
    /// Only the prefix of each payload, as its header states.
    pub prefix: bool,
}

/// The answer to a [`Request`]. No error becomes `Absent`: whatever is not
/// known is `Unknown` (B5).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Response {
    Created,
    Refused(Refusal),
    Fenced(ReplicaState),
    State(ReplicaState),
    /// At least one entry, contiguous from the one asked for. Durable entries
    /// only. Of a prefix read the payloads are cut to the prefix; the headers
    /// still speak of the whole payload.
    Entries(Vec<Record>),
    /// The replica certainly does not hold the entry asked for.
    Absent,
    Imported,
    Deleted,
    /// The bookie can't tell, and says why. Never counts as a negative answer.
    Unknown(String),
}

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaState {
    /// Appends below this epoch are refused.
    pub fence: Epoch,
    /// Number of entries that are durable here.
    pub durable: EntryId,
    /// The greatest number of committed entries that a writer told.
    pub committed: EntryId,
    /// False when the bookie may have lost entries or fences of this ledger
    /// that it had answered for (B4, B6).
    pub certain: bool,
}

impl Header {
    /// Whether this append is recovery's: its epoch is above the ledger's own.
    #[must_use]
    pub fn is_recovery(&self) -> bool {
        self.epoch > self.own_epoch
    }
}
