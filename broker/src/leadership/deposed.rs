//! Partitions that a shard found itself deposed of.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use quire_proto::id::PartitionId;
use tokio::sync::Notify;

/// Bounded by the number of partitions.
#[derive(Debug, Default)]
pub struct Deposed {
    partitions: Mutex<HashSet<PartitionId>>,
    added: Notify,
}

impl Deposed {
    /// Another leads this partition.
    pub fn add(&self, partition: PartitionId) {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner).insert(partition);
        self.added.notify_one();
    }

    /// Waits for some and takes them. Cancel-safe.
    pub async fn take(&self) -> HashSet<PartitionId> {
        loop {
            let taken = std::mem::take(&mut *self.partitions.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
                return taken;
            }
            self.added.notified().await;
        }
    }
}
