//! All ledgers of one bookie, as a state machine without I/O: rules B2 to B8.
//!
//! Whoever drives it feeds [`Event`]s and carries out the [`Action`]s in order.
//! Each [`Action::Log`] hands out one record for the log; the n-th of them has
//! [`Ticket`] n. When the log has synced, the driver says up to which ticket
//! everything is durable, and the machine then answers. Nothing is answered
//! that is not durable.
//!
//! - [`ledger`]: the state of one replica.
//! - [`facts`]: what a log's records say, gathered in any order (L4).
//! - [`ranges`]: sets of numbers as ranges.
//! - `stream`: attempts of the append streams (B3).

pub mod facts;
pub mod ledger;
mod machine;
pub mod ranges;
mod stream;
#[cfg(test)]
mod tests;

pub use facts::{Facts, LedgerFacts};
pub use ledger::Ledger;
pub use machine::Replicas;
pub use ranges::RangeSet;

use quire_proto::id::{EntryId, Epoch, LedgerId, Nonce};

use crate::message::{Append, AppendEvent, Response};
use crate::record::Record;

/// A connection to the bookie. Never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request that waits for its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// How many records were handed to the log, this one included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A durable entry whose payload is to be compared with a duplicate's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId(pub u64);

/// What a bookie that is short of space still takes (L6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Admission {
    /// Only what frees space or ends a ledger: fences and deletions.
    Fences,
    /// Fences, deletions, imports' end and the appends of recovery.
    Recovery,
    /// Everything.
    #[default]
    All,
}

/// What happens to the ledgers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An append came in. Its record is of kind `Append` and verified.
    Append {
        /// Where acks go.
        connection: ConnectionId,
        /// The entry.
        append: Append,
    },
    /// An append came in that fails its checks.
    Corrupt {
        /// Where the refusal goes.
        connection: ConnectionId,
        /// The ledger that its header names.
        ledger: LedgerId,
        /// The sender's epoch.
        epoch: Epoch,
        /// The stream's attempt.
        attempt: u32,
    },
    /// B2.
    Create {
        /// Gets the response.
        request: RequestId,
        /// The new ledger.
        ledger: LedgerId,
        /// Who creates it.
        creator: Nonce,
    },
    /// B4.
    Fence {
        /// Gets the response.
        request: RequestId,
        /// The ledger to fence.
        ledger: LedgerId,
        /// Appends below it are refused from here on.
        epoch: Epoch,
    },
    /// What the replica holds.
    State {
        /// Gets the response.
        request: RequestId,
        /// The ledger asked for.
        ledger: LedgerId,
    },
    /// B7: the metadata names this bookie as a target of the ledger. Leads to
    /// [`Action::Import`] or a response.
    Import {
        /// Gets the response.
        request: RequestId,
        /// The ledger to copy.
        ledger: LedgerId,
        /// Its number of entries.
        end: EntryId,
    },
    /// B7: the next entry, from a peer, verified.
    Imported(Record),
    /// B8: the ledgers `first` to `last`, both included.
    Delete {
        /// Gets the response.
        request: RequestId,
        /// The first ledger.
        first: LedgerId,
        /// The last ledger.
        last: LedgerId,
    },
    /// Answers [`Action::Check`].
    Checked {
        /// The check that was asked for.
        check: CheckId,
        /// The payload CRC of the entry in the log; nothing when it can't be
        /// read.
        payload_crc: Option<u32>,
    },
    /// Every record up to this one is durable.
    Durable(Ticket),
    /// What there is space for changed.
    Admission(Admission),
    /// The connection is gone, and its streams with it.
    Disconnected(ConnectionId),
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Append the record to the log.
    Log(Record),
    /// Tell the connection.
    Deliver(ConnectionId, AppendEvent),
    /// Answer the request.
    Respond(RequestId, Response),
    /// Read the payload CRC of this durable entry, then [`Event::Checked`].
    Check {
        /// To be returned.
        check: CheckId,
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
    },
    /// Copy the entries `from` to `end` from peers and feed each as
    /// [`Event::Imported`], then wait for [`Action::ImportDurable`]. The ledger
    /// is closed for writers, durably.
    Import {
        /// The request that the driver answers in the end.
        request: RequestId,
        /// The ledger.
        ledger: LedgerId,
        /// The first entry that is not durable. One that is fed again is passed
        /// over.
        from: EntryId,
        /// One past the last.
        end: EntryId,
    },
    /// So many entries of an import are durable.
    ImportDurable {
        /// The ledger.
        ledger: LedgerId,
        /// Its length.
        durable: EntryId,
    },
}
