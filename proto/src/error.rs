//! Why a request, or its part for one partition, failed: one table says of each
//! reason which gRPC code it has, whether to try again, and whether the outcome
//! is known. The reason travels as a `google.rpc.ErrorInfo` in a status and as
//! [`v1::Error`] in a partition's result.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::batch::BatchError;
use crate::v1::{self, ErrorReason};

/// The domain of every `google.rpc.ErrorInfo` of quire's.
pub const DOMAIN: &str = "quire";

/// What a reason implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The status code of a whole request that fails so.
    pub code: Code,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Whether it is known that the request had no effect. Where it is not,
    /// trying again is safe only if a repetition is recognised, as an idempotent
    /// producer's is.
    pub determinate: bool,
}

/// What this reason implies: the table.
#[must_use]
pub const fn class(reason: ErrorReason) -> Class {
    use ErrorReason as R;
    const fn wrong(code: Code) -> Class {
        Class { code, retryable: false, determinate: true }
    }
    const fn later(code: Code) -> Class {
        Class { code, retryable: true, determinate: true }
    }
    match reason {
        R::Unspecified => Class { code: Code::Unknown, retryable: false, determinate: false },

        R::InvalidRequest => wrong(Code::InvalidArgument),
        R::InvalidTopicName => wrong(Code::InvalidArgument),
        R::InvalidConfig => wrong(Code::InvalidArgument),
        R::TopicAlreadyExists => wrong(Code::AlreadyExists),
        R::UnknownTopic => wrong(Code::NotFound),
        R::UnknownPartition => wrong(Code::NotFound),
        R::UnknownLedger => wrong(Code::NotFound),
        R::BatchTooLarge => wrong(Code::InvalidArgument),
        R::CorruptBatch => wrong(Code::InvalidArgument),
        R::UnsupportedBatchVersion => wrong(Code::InvalidArgument),
        R::InvalidBatch => wrong(Code::InvalidArgument),
        R::OffsetOutOfRange => wrong(Code::OutOfRange),
        R::TooManyReplicas => wrong(Code::FailedPrecondition),
        R::OutOfOrderSequence => wrong(Code::FailedPrecondition),
        R::InvalidProducerEpoch => wrong(Code::FailedPrecondition),
        R::AcceptLossRequired => wrong(Code::FailedPrecondition),

        R::NotLeader => later(Code::Unavailable),
        R::NotReady => later(Code::Unavailable),
        R::NotEnoughBookies => later(Code::Unavailable),
        R::StorageFull => later(Code::ResourceExhausted),
        R::Overloaded => later(Code::ResourceExhausted),
        R::MetadataUnavailable => later(Code::Unavailable),
        R::ShuttingDown => later(Code::Unavailable),

        R::OutcomeUnknown => Class { code: Code::DeadlineExceeded, retryable: true, determinate: false },
        R::DataUnavailable => wrong(Code::DataLoss),
        R::Internal => Class { code: Code::Internal, retryable: false, determinate: false },
    }
}

/// Bytes of the text of a status.
const STATUS_LEN: usize = 1024;

/// A failure with its reason, as a broker makes it and a client reads it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Why.
    pub reason: ErrorReason,
    /// For people: what failed, on what, what to do.
    pub message: String,
}

impl Failure {
    /// A failure for this reason.
    pub fn new(reason: ErrorReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// What its reason implies.
    #[must_use]
    pub const fn class(&self) -> Class {
        class(self.reason)
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.class().retryable
    }

    /// Whether it is known that the request had no effect.
    #[must_use]
    pub const fn is_determinate(&self) -> bool {
        self.class().determinate
    }

    /// The failure that a status carries; None when it is not one of quire's, as
    /// when a connection breaks or something else answers.
    #[must_use]
    pub fn from_status(status: &Status) -> Option<Self> {
        let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN)?;
        let reason = ErrorReason::from_str_name(&info.reason).unwrap_or(ErrorReason::Unspecified);
        Some(Self::new(reason, status.message()))
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let reason = failure.reason.as_str_name();
        let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
        Self::with_error_details(failure.class().code, shortened(failure.message), details)
    }
}

/// A status travels in headers, of which clients take 16 KiB or less: the middle
/// of a text that quotes what is too long is left out.
fn shortened(text: String) -> String {
    if text.len() <= STATUS_LEN {
        return text;
    }
    let head = text.floor_char_boundary(STATUS_LEN / 2);
    let tail = text.ceil_char_boundary(text.len() - STATUS_LEN / 2);
    format!("{} … {}", &text[..head], &text[tail..])
}

impl From<Failure> for v1::Error {
    fn from(failure: Failure) -> Self {
        let retryable = failure.is_retryable();
        Self { reason: failure.reason.into(), message: failure.message, retryable }
    }
}

impl From<v1::Error> for Failure {
    /// A reason that this build does not know becomes `Unspecified`.
    fn from(error: v1::Error) -> Self {
        Self::new(error.reason(), error.message)
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons() -> impl Iterator<Item = ErrorReason> {
        (0..200).filter_map(|number| ErrorReason::try_from(number).ok())
    }

    #[test]
    fn a_failure_survives_being_a_status_and_a_message() {
        for reason in reasons() {
            let failure = Failure::new(reason, format!("{reason:?} happened"));
            let status = Status::from(failure.clone());
            assert_eq!(status.code(), class(reason).code);
            assert_eq!(Failure::from_status(&status), Some(failure.clone()));
            assert_eq!(Failure::from(v1::Error::from(failure.clone())), failure);
        }
    }

    #[test]
    fn a_status_fits_into_headers() {
        let text = format!("the topic {} does not exist: create it", "ü".repeat(100_000));
        let status = Status::from(Failure::new(ErrorReason::UnknownTopic, text));
        let said = status.message();
        assert!(said.starts_with("the topic ü") && said.ends_with("create it"), "{said}");
        // Percent-encoded, and once more in the details.
        assert!(said.len() * 3 + status.details().len() * 4 / 3 < 8 << 10);
    }

    #[test]
    fn the_numbering_tells_the_class() {
        for reason in reasons() {
            let class = class(reason);
            match reason as i32 {
                1..32 => assert!(!class.retryable && class.determinate, "{reason:?}"),
                32..64 => assert!(class.retryable && class.determinate, "{reason:?}"),
                _ => {}
            }
            assert_ne!(class.code, Code::Ok);
        }
    }

    #[test]
    fn a_status_of_something_else_is_no_failure() {
        assert_eq!(Failure::from_status(&Status::unavailable("connection refused")), None);
        let details = ErrorDetails::with_error_info("QUOTA", "example.com", HashMap::new());
        let foreign = Status::with_error_details(Code::Internal, "no", details);
        assert_eq!(Failure::from_status(&foreign), None);
    }
}
