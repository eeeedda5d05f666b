//! The failures that several parts of the broker answer with, each worded once:
//! what failed, on what, what to do.

use quire_metadata::store::StoreError;
use quire_metadata::topic::{InvalidTopicName, TOPIC_NAME_MAX};
use quire_proto::id::Offset;
use quire_proto::v1::ErrorReason;

pub use quire_proto::error::Failure;

/// A name is repeated up to this length: escaped, thousands of them could be much.
const REPEATED: usize = 64;

/// No topic can have it.
pub fn invalid_topic_name(topic: &str) -> Failure {
    let is_readable = topic.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let message = if topic.len() > TOPIC_NAME_MAX {
        format!("a topic's name of {} bytes: it has at most {TOPIC_NAME_MAX}", topic.len())
    } else if topic.len() > REPEATED || !is_readable {
        "a topic's name with characters other than letters, digits, '.', '_' and '-'".to_owned()
    } else {
        InvalidTopicName(topic.to_owned()).to_string()
    };
    Failure::new(ErrorReason::InvalidTopicName, message)
}

pub fn unknown_topic(topic: &str) -> Failure {
    Failure::new(
        ErrorReason::UnknownTopic,
        format!("topic {topic:?} does not exist: create it first (quire topic create)"),
    )
}

/// It is not the one that the request means.
pub fn recreated_topic(topic: &str) -> Failure {
    Failure::new(
        ErrorReason::UnknownTopic,
        format!(
            "topic {topic:?} was deleted and created again under the same name: \
             start again to use the new one"
        ),
    )
}

pub fn unknown_partition(topic: &str, partition: u32, partitions: u32) -> Failure {
    let last = partitions.saturating_sub(1);
    Failure::new(
        ErrorReason::UnknownPartition,
        format!("topic {topic:?} has partitions 0 to {last}, there is no {partition}"),
    )
}

/// `waiting`: what that waits for, if it does.
pub fn not_ready(partition: &str, waiting: Option<&str>) -> Failure {
    let what = match waiting {
        None => "this broker is taking the partition over, try again".to_owned(),
        Some(waiting) => format!("this broker cannot take the partition over yet: {waiting}"),
    };
    Failure::new(ErrorReason::NotReady, format!("{partition}: {what}"))
}

pub fn not_leader(partition: &str) -> Failure {
    Failure::new(
        ErrorReason::NotLeader,
        format!("{partition}: this broker does not lead the partition, ask for metadata and try again"),
    )
}

pub fn offset_out_of_range(partition: &str, offset: Offset, earliest: Offset, latest: Offset) -> Failure {
    Failure::new(
        ErrorReason::OffsetOutOfRange,
        format!("{partition}: offset {offset} is out of range, the log has {earliest} to {latest}"),
    )
}

pub fn unknown_outcome(partition: &str, cause: &str) -> Failure {
    Failure::new(
        ErrorReason::OutcomeUnknown,
        format!("{partition}: {cause}; the records may or may not have been written"),
    )
}

pub fn shutting_down() -> Failure {
    Failure::new(ErrorReason::ShuttingDown, "this broker is shutting down, try another")
}

pub fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(ErrorReason::InvalidRequest, message)
}

pub fn internal(message: impl Into<String>) -> Failure {
    Failure::new(ErrorReason::Internal, message)
}

/// The metadata store failed while something was looked up or changed.
pub fn metadata(doing: &str, error: &StoreError) -> Failure {
    let reason = match error {
        StoreError::Unavailable(_) | StoreError::Compacted(_) | StoreError::LeaseExpired => {
            ErrorReason::MetadataUnavailable
        }
        StoreError::Unknown(_) => ErrorReason::OutcomeUnknown,
        StoreError::Invalid(_) | StoreError::Corrupt(_) => ErrorReason::Internal,
    };
    Failure::new(reason, format!("{doing}: {error}"))
}
