//! Why a broker does not start or stops serving.

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
        "a broker with id {id} is registered at {address}: give each broker an id of its own, or wait until its lease ends"
    )]
    IdTaken { id: String, address: String },
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
            Self::Option { .. } | Self::Serve(_) => false,
        }
    }
}
