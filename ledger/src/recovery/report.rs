//! Why a recovery waits, in words that a person can act on.

use std::fmt;

use quire_proto::id::{BookieId, EntryId, LedgerId};

/// A replica that does not count, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The replica.
    pub bookie: BookieId,
    /// What it said, or why it said nothing.
    pub why: String,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bookie {}: {}", self.bookie, self.why)
    }
}

/// Why a ledger is not sealed yet. Retryable: recovery goes on by itself
/// when the bookies answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    /// Fewer than n − A + 1 certain answers (T3).
    #[error(
        "ledger {ledger} cannot be recovered: {certain} of {needed} needed bookies answered with certainty, and \
         none that answered has more than {greatest} entries{}",
        list(.silences)
    )]
    Answers {
        /// The ledger.
        ledger: LedgerId,
        /// n − A + 1.
        needed: usize,
        /// So many there are.
        certain: usize,
        /// The greatest length heard, certain or not.
        greatest: EntryId,
        /// The others.
        silences: Vec<Silence>,
    },
    /// Entries were committed that no bookie that answered has (T3).
    #[error(
        "ledger {ledger} is not sealed, for that would lose data: {committed} entries were committed and no \
         bookie that answered has more than {greatest}{}",
        list(.silences)
    )]
    Committed {
        /// The ledger.
        ledger: LedgerId,
        /// What was committed.
        committed: EntryId,
        /// The greatest length heard.
        greatest: EntryId,
        /// Who may have them.
        silences: Vec<Silence>,
    },
    /// Fewer than A bookies can be made to hold everything (T5).
    #[error("ledger {ledger} cannot be sealed: {holders} of {needed} needed bookies hold it{}", list(.silences))]
    Holders {
        /// The ledger.
        ledger: LedgerId,
        /// A.
        needed: usize,
        /// So many there are.
        holders: usize,
        /// Who does not answer.
        silences: Vec<Silence>,
    },
}

impl Blocked {
    /// The ledger.
    #[must_use]
    pub const fn ledger(&self) -> LedgerId {
        match self {
            Self::Answers { ledger, .. } | Self::Committed { ledger, .. } | Self::Holders { ledger, .. } => {
                *ledger
            }
        }
    }

    /// Whether an operator can accept a loss to end it (T3).
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        !matches!(self, Self::Holders { .. })
    }

    /// Whether whoever accepts this has accepted that as well: it is about the
    /// same, and no more may be lost. Words do not matter.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let may_lose_more = match (self, other) {
            (Self::Answers { greatest, .. }, Self::Answers { greatest: other, .. }) => other < greatest,
            (
                Self::Committed { committed, greatest, .. },
                Self::Committed { committed: other, greatest: others_greatest, .. },
            ) => other > committed || others_greatest < greatest,
            (Self::Holders { holders, .. }, Self::Holders { holders: other, .. }) => other < holders,
            _ => return false,
        };
        self.ledger() == other.ledger() && !may_lose_more && are_among(other.silences(), self.silences())
    }

    fn silences(&self) -> &[Silence] {
        match self {
            Self::Answers { silences, .. }
            | Self::Committed { silences, .. }
            | Self::Holders { silences, .. } => silences,
        }
    }
}

/// Whether all these bookies are among those, whatever they said.
#[must_use]
pub fn are_among(these: &[Silence], those: &[Silence]) -> bool {
    these.iter().all(|this| those.iter().any(|that| that.bookie == this.bookie))
}

fn list(silences: &[Silence]) -> String {
    silences.iter().map(|silence| format!("; {silence}")).collect()
}

/// What must not happen. Somebody has to look at it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Alarm {
    /// Bookies lost committed entries, or the wrong ones answered (T3).
    #[error("ledger {ledger}: {committed} entries were committed, and the longest replica has {greatest}")]
    CommittedAboveLength {
        /// The ledger.
        ledger: LedgerId,
        /// What was committed.
        committed: EntryId,
        /// The greatest length heard.
        greatest: EntryId,
    },
    /// Two replicas hold different bytes as the same entry (I3).
    #[error("ledger {ledger}: bookie {bookie} holds other bytes as entry {entry} than another replica")]
    Differs {
        /// The ledger.
        ledger: LedgerId,
        /// The bookie that refused the copy.
        bookie: BookieId,
        /// The entry.
        entry: EntryId,
    },
}
