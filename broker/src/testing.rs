//! What unit tests need again and again.

use std::sync::Arc;

use quire_proto::id::TopicId;

use crate::topic::{Topic, TopicConfig};

/// A topic of one partition, with one replica.
pub fn topic() -> Arc<Topic> {
    Arc::new(Topic {
        id: TopicId::default(),
        name: "t".parse().unwrap(),
        partitions: 1,
        replicas: 1,
        ack_quorum: 1,
        config: TopicConfig::default(),
    })
}
