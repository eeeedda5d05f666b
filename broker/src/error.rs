//! Why a broker does not start or stops serving.

use quire_metadata::operations::bootstrap::ClusterMismatch;
use quire_metadata::store::StoreError;

/// Why a broker does not start or stops serving.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option contradicts another or the reference.
    #[error("broker option {option}: {problem}")]
    Option { option: &'static str, problem: String },
    /// The metadata store failed while the broker started.
    #[error("starting the broker: {0}")]
    Store(#[from] StoreError),
    /// Another process is registered under this broker's id.
    #[error(
        "broker id {id} is in use by run {run}: stop that process or give this one another id; \
         if it has crashed, its lease ends within seconds"
    )]
    IdTaken { id: String, run: String },
    /// The store holds another cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterMismatch),
    /// The gRPC server failed.
    #[error("serving gRPC: {0}")]
    Serve(String),
}

impl Error {
    /// Whether starting again later, unchanged, can help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::IdTaken { .. } => true,
            Self::Option { .. } | Self::Cluster(_) | Self::Serve(_) => false,
        }
    }
}
