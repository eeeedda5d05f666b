//! Faults planted on purpose, for the tests of the tests: each breaks one rule
//! of the protocol, and the simulator must find it.
//!
//! Only with the cargo feature `planted-faults`; without it [`planted`] is a
//! constant `false`, and the compiler removes the broken branch.

/// A rule to break. One at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A duplicate is answered while its original is not committed.
    DuplicateAcknowledgedWhilePending,
    /// A roll seals the old ledger beyond what is committed (W3).
    RollEndBeyondCommitted,
    /// Entries are acknowledged before the roll they wait for has applied (W5).
    AckBeforeRollApplied,
    /// Acks of the old ledger count after a roll was issued (W4).
    AckAfterRollIssued,
    /// A snapshot holds the effect of entries that are not committed.
    SnapshotOfUncommitted,
    /// State is rebuilt from entries beyond the ledger's end.
    StateRebuiltBeyondEnd,
    /// An epoch that was read from the store is resumed (T1).
    EpochResumed,
    /// One certain answer fewer than n − A + 1 is enough (T3).
    FewerFences,
    /// A fence is answered before it is durable (B4).
    FenceNotDurable,
    /// A ledger of a released id block is published (W3).
    PublishFromReleasedBlock,
    /// A boot that lost its tail records no mark (B6).
    NoMark,
    /// A marked bookie takes the appends of writers (B6).
    NoBar,
    /// A marked bookie bars only ledgers of which it holds nothing any more (B6).
    BarByHoldings,
    /// An uncertain answer counts as a certain one (T3).
    UncertainCounted,
    /// `Create` clears the mark (B6).
    CreateClearsMark,
    /// A later boot clears the mark (B6).
    MarkCleared,
    /// Recovery seals below the greatest length it heard (T4).
    SealBelowGreatest,
    /// An import target counts before it is filled and named a replica (B7).
    ImportTargetCounted,
    /// A transaction that names a ledger lacks its guards (W3).
    NamingWithoutGuards,
    /// A boot goes on writing in the file it found (design §5, boot).
    BootContinuesFile,
    /// After a restart, bytes that were never synced count as durable.
    UnsyncedCounted,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::DuplicateAcknowledgedWhilePending,
        Self::RollEndBeyondCommitted,
        Self::AckBeforeRollApplied,
        Self::AckAfterRollIssued,
        Self::SnapshotOfUncommitted,
        Self::StateRebuiltBeyondEnd,
        Self::EpochResumed,
        Self::FewerFences,
        Self::FenceNotDurable,
        Self::PublishFromReleasedBlock,
        Self::NoMark,
        Self::NoBar,
        Self::BarByHoldings,
        Self::UncertainCounted,
        Self::CreateClearsMark,
        Self::MarkCleared,
        Self::SealBelowGreatest,
        Self::ImportTargetCounted,
        Self::NamingWithoutGuards,
        Self::BootContinuesFile,
        Self::UnsyncedCounted,
    ];
}

#[cfg(feature = "planted-faults")]
mod switch {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault in everything that this thread runs from now on, or
    /// takes it out again.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Whether this fault is planted in this thread.
    #[must_use]
    pub fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(feature = "planted-faults")]
pub use switch::{plant, planted};

/// Whether this fault is planted: never, without the feature.
#[cfg(not(feature = "planted-faults"))]
#[inline(always)]
#[must_use]
pub const fn planted(_: Fault) -> bool {
    false
}
