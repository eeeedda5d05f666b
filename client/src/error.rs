//! Why a call to the client failed.

use std::time::Duration;

use quire_proto::batch::BatchError;
use quire_proto::error::Failure;
use quire_proto::v1::ErrorReason;
use tonic::{Code, Status};

/// Why a call failed. [`Error::is_retryable`] says whether the same call may
/// succeed later and [`Error::is_determinate`] whether it is known that it had no
/// effect.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option or argument is out of its range.
    #[error("{0}")]
    Invalid(String),
    /// No connection to a broker.
    #[error(
        "cannot connect to a broker at {address}: {cause}; check that one is running there and that the \
         address is the host:port of its gRPC door"
    )]
    Connect {
        /// The address, or several, separated by commas.
        address: String,
        /// What the system or the network said.
        cause: String,
    },
    /// The connection broke while a request was under way.
    #[error("the connection to {address} broke during a request: {cause}")]
    Disconnected {
        /// The broker's address.
        address: String,
        /// What the system or the network said.
        cause: String,
    },
    /// What answered at the address is no quire broker of a version that this
    /// client speaks with, or it does not let this client in.
    #[error("{address} answered {code:?}: {message}; check that it is the gRPC door of a quire broker")]
    Foreign {
        /// The address.
        address: String,
        /// The status code.
        code: Code,
        /// The status message.
        message: String,
    },
    /// A broker refused, and said why.
    #[error("{0}")]
    Broker(#[from] Failure),
    /// The time for the call ran out.
    #[error("{what} took longer than {} ms{}", after.as_millis(), last_text(last.as_deref()))]
    Timeout {
        /// What was tried.
        what: String,
        /// How long.
        after: Duration,
        /// The last failure before the time ran out.
        last: Option<Box<Error>>,
        /// Whether it is known that it had no effect.
        determinate: bool,
    },
    /// The last try failed, and of an earlier one it is not known whether it
    /// succeeded.
    #[error("{0}; an earlier try may have succeeded")]
    Uncertain(Box<Error>),
    /// A record does not fit a batch.
    #[error("a record of {size} bytes does not fit a batch of at most {limit} bytes (max.message.bytes)")]
    RecordTooLarge {
        /// Bytes of the batch that the record alone would make.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A batch from a broker is damaged. The position stays where it was.
    #[error("partition {partition} of {topic} returned a damaged batch at offset {offset}: {error}")]
    Damaged {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// Offset that the partition's reading had reached.
        offset: u64,
        /// The offset after the batch, from where reading may go on without it;
        /// `None` when what was damaged is not known to be the batch itself.
        next: Option<u64>,
        /// What is wrong.
        error: BatchError,
    },
    /// The producer was closed or dropped before the record was sent.
    #[error("the producer is closed")]
    Closed,
}

fn last_text(last: Option<&Error>) -> String {
    last.map_or_else(String::new, |last| format!("; the last failure: {last}"))
}

impl Error {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Disconnected { .. } | Self::Timeout { .. } => true,
            Self::Broker(failure) => failure.is_retryable(),
            Self::Uncertain(last) => last.is_retryable(),
            Self::Invalid(_)
            | Self::Foreign { .. }
            | Self::RecordTooLarge { .. }
            | Self::Damaged { .. }
            | Self::Closed => false,
        }
    }

    /// Whether it is known that the call had no effect. Where it is not, trying
    /// again may do the same a second time.
    #[must_use]
    pub fn is_determinate(&self) -> bool {
        match self {
            Self::Disconnected { .. } | Self::Uncertain(_) => false,
            Self::Timeout { determinate, .. } => *determinate,
            Self::Broker(failure) => failure.is_determinate(),
            Self::Invalid(_)
            | Self::Connect { .. }
            | Self::Foreign { .. }
            | Self::RecordTooLarge { .. }
            | Self::Damaged { .. }
            | Self::Closed => true,
        }
    }

    /// The broker's reason, when a broker refused.
    #[must_use]
    pub fn reason(&self) -> Option<ErrorReason> {
        match self {
            Self::Broker(failure) => Some(failure.reason),
            Self::Timeout { last, .. } => last.as_ref().and_then(|last| last.reason()),
            Self::Uncertain(last) => last.reason(),
            _ => None,
        }
    }

    /// The same failure when it is not known what an earlier try did.
    pub(crate) fn uncertain(self) -> Self {
        if self.is_determinate() { Self::Uncertain(Box::new(self)) } else { self }
    }

    /// What a status from this address means.
    pub(crate) fn from_status(address: &str, status: &Status) -> Self {
        if let Some(failure) = Failure::from_status(status) {
            return Self::Broker(failure);
        }
        let address = address.to_owned();
        let cause = || deepest_cause(status).unwrap_or_else(|| status.message().to_owned());
        if has_source::<tonic::ConnectError>(status) {
            return Self::Connect { address, cause: cause() };
        }
        match status.code() {
            Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Internal | Code::Aborted => {
                Self::Disconnected { address, cause: cause() }
            }
            Code::DeadlineExceeded => Self::Disconnected { address, cause: "no answer in time".to_owned() },
            code => {
                let message = status.message();
                let message = if message.starts_with(NO_GRPC) { "it does not speak gRPC" } else { message };
                Self::Foreign { address, code, message: message.to_owned() }
            }
        }
    }
}

/// What is said of an answer in plain HTTP.
const NO_GRPC: &str = "grpc-status header missing";

fn sources(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(status), |error| error.source())
}

fn has_source<E: std::error::Error + 'static>(status: &Status) -> bool {
    sources(status).any(|source| source.is::<E>())
}

/// What the operating system said, rather than the layers above it.
fn deepest_cause(status: &Status) -> Option<String> {
    sources(status).last().map(ToString::to_string)
}
