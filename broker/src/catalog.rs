//! The topics and their partitions, as request handlers find them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use quire_metadata::topic as stored;
use quire_metadata::typed::Versioned;
use quire_proto::id::{PartitionId, PartitionIndex, TopicId};
use tokio::sync::watch;

use crate::failure::{self, Failure};
use crate::leadership::driver::Patience;
use crate::log::PartitionLog;
use crate::topic::{Topic, TopicConfig};

/// A topic and its partitions.
#[derive(Debug)]
pub struct TopicEntry {
    pub topic: Arc<Topic>,
    pub stored: Versioned<stored::Topic>,
    /// In order.
    pub partitions: Vec<Arc<PartitionLog>>,
    /// Of each partition: how its recovery stands.
    pub patience: Vec<Arc<Patience>>,
}

impl TopicEntry {
    /// The entry of a topic whose partitions are yet to be taken over.
    #[must_use]
    pub fn new(stored: Versioned<stored::Topic>) -> Self {
        let value = &stored.value;
        let config = TopicConfig::parse(&value.config).unwrap_or_else(|error| {
            // Another version wrote it: what is not understood has no effect.
            tracing::error!(topic = %value.name, %error, "the topic's configuration is not understood");
            TopicConfig::default()
        });
        let topic = Arc::new(Topic {
            id: value.id,
            name: value.name.clone(),
            partitions: value.partitions,
            replicas: value.replicas,
            ack_quorum: value.ack_quorum,
            config,
        });
        let ids = value.partition_ids();
        let partitions: Vec<_> = ids.map(|id| PartitionLog::new(id, Arc::clone(&topic))).collect();
        let patience = partitions.iter().map(|_| Arc::default()).collect();
        Self { topic, stored, partitions, patience }
    }

    /// A partition by its number.
    ///
    /// # Errors
    /// `UNKNOWN_PARTITION`
    pub fn partition(&self, index: u32) -> Result<&Arc<PartitionLog>, Failure> {
        self.partitions
            .get(index as usize)
            .ok_or_else(|| failure::unknown_partition(self.topic.name.as_str(), index, self.topic.partitions))
    }
}

#[derive(Debug, Default)]
struct Topics {
    by_name: BTreeMap<String, Arc<TopicEntry>>,
    names: HashMap<TopicId, String>,
}

/// The topics that there are.
#[derive(Debug, Default)]
pub struct Catalog {
    topics: RwLock<Topics>,
    changed: watch::Sender<u64>,
}

impl Catalog {
    /// The topic of this name.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, `INVALID_TOPIC_NAME`
    pub fn topic(&self, name: &str) -> Result<Arc<TopicEntry>, Failure> {
        let found = self.read(|topics| topics.by_name.get(name).cloned());
        found.ok_or_else(|| match name.parse::<stored::TopicName>() {
            Ok(_) => failure::unknown_topic(name),
            Err(_) => failure::invalid_topic_name(name),
        })
    }

    /// The topic with this identity.
    #[must_use]
    pub fn by_id(&self, id: TopicId) -> Option<Arc<TopicEntry>> {
        self.read(|topics| topics.by_name.get(topics.names.get(&id)?).cloned())
    }

    /// A partition with its topic.
    #[must_use]
    pub fn partition(&self, id: PartitionId) -> Option<(Arc<TopicEntry>, Arc<PartitionLog>)> {
        let entry = self.by_id(id.topic)?;
        let PartitionIndex(index) = id.index;
        let partition = Arc::clone(entry.partitions.get(index as usize)?);
        Some((entry, partition))
    }

    /// All topics, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<TopicEntry>> {
        self.read(|topics| topics.by_name.values().cloned().collect())
    }

    /// A number that changes whenever the catalog does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Adds a topic; another of the same name is replaced.
    pub fn insert(&self, entry: Arc<TopicEntry>) {
        self.write(|topics| {
            let name = entry.topic.name.to_string();
            topics.names.insert(entry.topic.id, name.clone());
            if let Some(old) = topics.by_name.insert(name, entry) {
                topics.names.remove(&old.topic.id);
            }
        });
    }

    /// Forgets a topic.
    pub fn remove(&self, name: &str) -> Option<Arc<TopicEntry>> {
        self.write(|topics| {
            let entry = topics.by_name.remove(name)?;
            topics.names.remove(&entry.topic.id);
            Some(entry)
        })
    }

    fn read<T>(&self, read: impl FnOnce(&Topics) -> T) -> T {
        read(&self.topics.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, write: impl FnOnce(&mut Topics) -> T) -> T {
        let result = write(&mut self.topics.write().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_modify(|change| *change += 1);
        result
    }
}
