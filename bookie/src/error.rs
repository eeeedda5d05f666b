//! What can go wrong with a bookie as a whole.

use std::io;
use std::path::PathBuf;

use quire_metadata::store::StoreError;
use quire_proto::id::BookieId;

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
    /// The registry does not know this bookie (B1).
    #[error(
        "bookie {bookie} is not in the cluster's registry: it was removed, or the metadata was reset. Its data is \
         kept in {}; restore the metadata, or start with an empty directory to join as a new bookie",
        dir.display()
    )]
    Unregistered {
        /// The identity in the directory.
        bookie: BookieId,
        /// The data directory.
        dir: PathBuf,
    },
    /// The registry has seen a later start than the directory has (B1).
    #[error(
        "bookie {bookie} in {} is at start {found}, the registry has seen start {registered}: the disk is an older \
         copy, or another machine runs under this identity. Bring the right disk back, or start with an empty \
         directory to join as a new bookie",
        dir.display()
    )]
    Behind {
        /// The identity in the directory.
        bookie: BookieId,
        /// The data directory.
        dir: PathBuf,
        /// The directory's generation.
        found: u64,
        /// The registry's.
        registered: u64,
    },
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
