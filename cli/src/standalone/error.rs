//! Why the process does not start.

use std::io;
use std::path::PathBuf;

use quire_metadata::embedded::OpenError;
use quire_metadata::key::InvalidClusterName;
use quire_metadata::operations::bootstrap::ClusterMismatch;
use quire_metadata::process::InvalidBrokerName;
use quire_metadata::store::StoreError;

/// Why the process does not start. Nothing was acknowledged: all are
/// determinate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster's name is none.
    #[error(transparent)]
    ClusterName(#[from] InvalidClusterName),
    /// The broker's id is none.
    #[error(transparent)]
    BrokerName(#[from] InvalidBrokerName),
    /// The data directory cannot be made.
    #[error("cannot make the data directory {}", .0.display())]
    Directory(PathBuf, #[source] io::Error),
    /// The metadata file cannot be opened.
    #[error(transparent)]
    Metadata(#[from] OpenError),
    /// The metadata is of a cluster that this version cannot serve.
    #[error(transparent)]
    Cluster(#[from] ClusterMismatch),
    /// The metadata store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The metadata knows a bookie, and the data directory has none.
    #[error(
        "the data directory has lost its bookie: the metadata names {}, and {} holds no bookie's data",
        .bookies.join(", "), dir.display()
    )]
    BookieMissing {
        /// As the metadata names them.
        bookies: Vec<String>,
        /// Where it should be.
        dir: PathBuf,
    },
    /// The bookie does not start.
    #[error(transparent)]
    Bookie(#[from] quire_bookie::Error),
    /// The broker does not start.
    #[error(transparent)]
    Broker(#[from] quire_broker::Error),
    /// The controller does not start.
    #[error(transparent)]
    Controller(#[from] quire_controller::InvalidOptions),
    /// The process is about to end.
    #[error("the process is stopping")]
    Stopping,
}

impl Error {
    /// Whether starting again later, unchanged, can help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::Bookie(error) => error.is_retryable(),
            Self::Broker(error) => error.is_retryable(),
            _ => false,
        }
    }
}
