//! What unit tests need again and again.

use std::sync::Arc;

use quire_proto::id::{Offset, TopicId};

use crate::entry::Line;
use crate::service::connection::Peer;
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

/// The line of a batch of one record, of no producer.
pub const fn line(last_offset: u64) -> Line {
    Line {
        position: 0,
        last_offset: Offset(last_offset),
        max_timestamp_ms: 5,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: 1,
        attributes: 0,
        control_type: -1,
    }
}

/// The other side of a connection that there is not.
pub fn peer() -> Peer {
    Peer::new(([127, 0, 0, 1], 1).into())
}
