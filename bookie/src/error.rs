//! What can go wrong with a bookie as a whole.

use std::io;
use std::path::PathBuf;

use quire_metadata::operations::bookie_start::StartRefused;
use quire_metadata::store::StoreError;
use quire_proto::id::{BookieId, LedgerId};

/// Why a bookie does not start, or stopped. None of them is retryable in the
/// same process but `Store`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option is out of its range.
    #[error("bookie option {0}")]
    Option(String),
    /// Another process holds the data directory.
    #[error("the data directory {} is in use by another process: stop it, or choose another with --data", .0.display())]
    InUse(PathBuf),
    /// The directory belongs to another cluster (B1).
    #[error(
        "the data directory {} belongs to cluster {found}, this is cluster {expected}: point the bookie to its own \
         cluster's metadata, or to an empty directory",
        dir.display()
    )]
    OtherCluster {
        /// The data directory.
        dir: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asks.
        expected: String,
    },
    /// The registry knows better which start is the newest (B1).
    #[error("bookie {bookie} in {} must not serve: {why}", dir.display())]
    Refused {
        /// The identity in the directory.
        bookie: BookieId,
        /// The data directory.
        dir: PathBuf,
        /// Why, and what to do.
        why: StartRefused,
    },
    /// The metadata is older than the bookie (B9).
    #[error(
        "bookie {bookie} in {} holds entries of ledger {ledger}, which the metadata does not know: the metadata is \
         older than the bookie, as after a restore from a backup; bring back its newest copy, and keep the directory",
        dir.display()
    )]
    MetadataBehind {
        /// The identity in the directory.
        bookie: BookieId,
        /// The data directory.
        dir: PathBuf,
        /// The first such ledger.
        ledger: LedgerId,
    },
    /// The cluster was not set up.
    #[error(
        "the metadata has no cluster {0:?}: start it with its first process, or check the cluster's name"
    )]
    NoCluster(String),
    /// Another start of the same bookie was registered while this one served.
    #[error(
        "another start of bookie {0} has been registered, or it was removed from the registry: this one stops"
    )]
    Superseded(BookieId),
    /// A file cannot be understood.
    #[error("{file} in {} cannot be read: {cause}", dir.display())]
    Malformed {
        /// The data directory.
        dir: PathBuf,
        /// The file's name.
        file: String,
        /// Why not.
        cause: String,
    },
    /// A disk operation failed. What was not acknowledged may or may not be
    /// there; the next start finds out.
    #[error("the disk failed: {operation} of {file}: {source}")]
    Disk {
        /// What was tried.
        operation: &'static str,
        /// On what.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// The metadata store failed.
    #[error("the bookie cannot do without the metadata store: {0}")]
    Store(#[from] StoreError),
    /// The bookie was stopped.
    #[error("the bookie is stopped")]
    Stopped,
}

impl Error {
    /// Whether starting again can help with nothing else changed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Whether it is certain that nothing was written.
    #[must_use]
    pub const fn is_determinate(&self) -> bool {
        match self {
            Self::Store(error) => error.is_determinate(),
            Self::Disk { .. } | Self::Stopped => false,
            _ => true,
        }
    }
}
