//! The state of one replica: `(fence epoch, accepted, durable)`.

use std::collections::VecDeque;

use quire_proto::id::{EntryId, Epoch, Nonce};

/// One ledger of a bookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Who created it. Nothing: it is known only by a fence, by recovery or by
    /// an import.
    pub creator: Option<Nonce>,
    /// Appends below it are not admitted.
    pub fence: Epoch,
    /// The highest fence that is durable.
    pub fence_durable: Epoch,
    /// Entries that were admitted.
    pub accepted: EntryId,
    /// Entries that are durable.
    pub durable: EntryId,
    /// The greatest number of committed entries that a sender told.
    pub committed: EntryId,
    /// It was fenced while it was unknown here (B4): its answers are uncertain.
    pub unknown_when_fenced: bool,
    /// The end of its import (B7), when it is one.
    pub import: Option<EntryId>,
    /// Payload CRCs of the entries from `durable` to `accepted`.
    pub(super) pending: VecDeque<u32>,
}

impl Ledger {
    pub(super) fn new(creator: Option<Nonce>) -> Self {
        Self {
            creator,
            fence: Epoch(0),
            fence_durable: Epoch(0),
            accepted: EntryId(0),
            durable: EntryId(0),
            committed: EntryId(0),
            unknown_when_fenced: false,
            import: None,
            pending: VecDeque::new(),
        }
    }

    /// The payload CRC of an entry that is admitted and not yet durable.
    pub(super) fn pending_crc(&self, entry: EntryId) -> Option<u32> {
        let at = usize::try_from(entry.0.checked_sub(self.durable.0)?).ok()?;
        self.pending.get(at).copied()
    }
}
