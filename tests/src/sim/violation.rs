//! What must be true at all times, and the report of it not being so.

use std::fmt;

/// A promise that is checked in every run. I1 to I7 are those of
/// `docs/protocol.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// I1: an acknowledged entry is below every later seal of its ledger.
    AcknowledgedIsBelowSeals,
    /// I2: every acknowledged entry can be read from a replica that metadata
    /// names.
    AcknowledgedIsReadable,
    /// I3: replicas agree on every entry below the end.
    ReplicasAgree,
    /// I4: a chain has no hole and no overlap, and offsets are dense.
    ChainIsDense,
    /// I5: nothing past committed, or past the end, is ever served.
    NothingEarly,
    /// I6: a ledger is in exactly one chain.
    OneChain,
    /// I7: only one epoch's writer can get acknowledgements at a time.
    OneWriter,
    /// A producer's sequence is in the log once, and each answer names that
    /// place.
    Idempotence,
    /// What was refused for good never appears, and what was never sent
    /// neither.
    NothingRefused,
    /// What a reader is told never goes back.
    OffsetsForward,
    /// Damage to a disk at or below its durable mark is noticed.
    DamageNoticed,
    /// A deposed, paused or restarted process harms nothing that is guarded by
    /// a transaction.
    Guarded,
    /// With all faults healed, everything moves again in bounded time.
    Liveness,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AcknowledgedIsBelowSeals => "I1 (an acknowledged entry is below every later seal)",
            Self::AcknowledgedIsReadable => "I2 (every acknowledged entry can be read)",
            Self::ReplicasAgree => "I3 (replicas agree below the end)",
            Self::ChainIsDense => "I4 (a chain has no hole and no overlap)",
            Self::NothingEarly => "I5 (nothing past committed is served)",
            Self::OneChain => "I6 (a ledger is in exactly one chain)",
            Self::OneWriter => "I7 (one epoch's writer gets acknowledgements)",
            Self::Idempotence => "idempotence (a sequence is in the log once)",
            Self::NothingRefused => "nothing refused or never sent appears",
            Self::OffsetsForward => "offsets never go back for a reader",
            Self::DamageNoticed => "damage is noticed",
            Self::Guarded => "every write of metadata is guarded",
            Self::Liveness => "liveness after healing",
        })
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {detail}")]
pub struct Violation {
    pub invariant: Invariant,
    pub detail: String,
}

/// Shorthand for the check functions.
pub type Checked = Result<(), Violation>;

impl Violation {
    /// The violation as an error, for the end of a check.
    ///
    /// # Errors
    /// Always.
    pub fn of(invariant: Invariant, detail: impl Into<String>) -> Checked {
        Err(Self { invariant, detail: detail.into() })
    }
}
