//! Topics as the broker knows them.
//!
//! - [`config`]: the configuration keys that have an effect.

pub mod config;

use quire_metadata::topic::TopicName;
use quire_proto::id::TopicId;

pub use config::TopicConfig;

/// A topic, with what its partitions need to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub id: TopicId,
    pub name: TopicName,
    pub partitions: u32,
    /// R: how many replicas a ledger should have.
    pub replicas: u32,
    /// A: how many of them must be durable before an acknowledgement.
    pub ack_quorum: u32,
    pub config: TopicConfig,
}
