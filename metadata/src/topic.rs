//! Topics.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use quire_proto::id::{PartitionId, PartitionIndex, TopicId};

use crate::typed::{Malformed, Typed, uuid_bytes, uuid_from};
use crate::value;

/// A topic's name may have at most this many bytes, as in Kafka.
pub const TOPIC_NAME_MAX: usize = 249;

/// A topic may have at most this many partitions.
pub const PARTITIONS_MAX: u32 = 10_000;

/// A topic's name: 1 to [`TOPIC_NAME_MAX`] letters, digits, `.`, `_` and `-`,
/// but not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// The text is not a topic's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "topic name {0:?} is not valid: it must have 1 to {TOPIC_NAME_MAX} letters, digits, '.', '_' or '-', \
     and be neither '.' nor '..'"
)]
pub struct InvalidTopicName(pub String);

impl TopicName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicName {
    type Err = InvalidTopicName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let dots = matches!(text, "." | "..");
        if text.is_empty() || text.len() > TOPIC_NAME_MAX || dots || !text.chars().all(allowed) {
            return Err(InvalidTopicName(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `topics/<name>` and `deleting/<topic uuid>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its identity: another for a topic made anew under the same name.
    pub id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// How many partitions it has, 1 to [`PARTITIONS_MAX`].
    pub partitions: u32,
    /// Replicas that a ledger is to have.
    pub replicas: u32,
    /// Replicas that must have an entry durably before it is committed.
    pub ack_quorum: u32,
    /// What was set; what was not has its default.
    pub config: BTreeMap<String, String>,
    /// Milliseconds since 1970 when it was made.
    pub created_ms: i64,
}

impl Topic {
    /// Its partitions, in order.
    pub fn partition_ids(&self) -> impl Iterator<Item = PartitionId> + use<> {
        let topic = self.id;
        (0..self.partitions).map(move |index| PartitionId { topic, index: PartitionIndex(index) })
    }
}

impl Typed for Topic {
    const NAME: &'static str = "topic";

    fn encode(&self) -> Bytes {
        value::Topic {
            id: uuid_bytes(self.id.0),
            name: self.name.to_string(),
            partitions: self.partitions,
            replicas: self.replicas,
            ack_quorum: self.ack_quorum,
            config: self.config.clone(),
            created_ms: self.created_ms,
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let stored = value::Topic::decode(bytes.clone())?;
        if !(1..=PARTITIONS_MAX).contains(&stored.partitions) {
            return Err(Malformed(format!("{} partitions", stored.partitions)));
        }
        Ok(Self {
            id: TopicId(uuid_from(&stored.id, "topic id")?),
            name: stored.name.parse().map_err(|error: InvalidTopicName| Malformed(error.to_string()))?,
            partitions: stored.partitions,
            replicas: stored.replicas,
            ack_quorum: stored.ack_quorum,
            config: stored.config,
            created_ms: stored.created_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "flights", "A.b_c-9", "...", &"x".repeat(TOPIC_NAME_MAX)] {
            assert_eq!(good.parse::<TopicName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a/b", "a b", "ä", "a\0", &"x".repeat(TOPIC_NAME_MAX + 1)] {
            assert_eq!(bad.parse::<TopicName>(), Err(InvalidTopicName(bad.to_owned())));
        }
    }
}
