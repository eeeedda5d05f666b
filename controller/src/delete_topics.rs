//! Finishes topics that are being deleted: first no leader can write any more,
//! then the chains go and leave delete intents, then the topic's own keys.

use std::sync::Arc;

use async_trait::async_trait;
use quire_metadata::chain::Segment;
use quire_metadata::key::Key;
use quire_metadata::operations::deletion::{DeposeLeaders, DropSegments, DroppedSegment, FinishTopic};
use quire_metadata::partition::Partition;
use quire_metadata::store::{KeyValue, StoreError};
use quire_metadata::typed::Versioned;
use quire_metadata::view;
use quire_proto::id::{PartitionId, TopicId};

use crate::queue::Next;
use crate::term::Term;
use crate::work::{Job, Stopped, run_elected};

/// The job of all topics in `deleting/`.
pub(crate) struct DeleteTopics(pub(crate) Arc<Term>);

#[async_trait]
impl Job for DeleteTopics {
    const NAME: &'static str = "delete-topics";

    fn prefix(&self) -> String {
        self.0.options.keys.all_deleting()
    }

    async fn run(&self, key: &Key, _value: &KeyValue) -> Result<Next, Stopped> {
        let Key::Deleting(topic) = *key else { return Ok(Next::Done) };
        if !self.depose(topic).await? || !self.drop_segments(topic).await? {
            return Ok(Next::Failed);
        }
        let finished = run_elected(&self.0, FinishTopic { topic }).await?;
        if finished.is_some() {
            tracing::info!(%topic, "a topic is deleted");
            metrics::counter!("quire_controller_topics_deleted_total").increment(1);
        }
        Ok(if finished.is_some() { Next::Done } else { Next::Failed })
    }
}

impl DeleteTopics {
    /// False when something changed meanwhile.
    async fn depose(&self, topic: TopicId) -> Result<bool, Stopped> {
        let keys = &self.0.options.keys;
        let (found, _) = view::list(&*self.0.store, &keys.partitions(topic)).await?;
        let mut partitions = Vec::with_capacity(found.len());
        for found in &found {
            let Some(Key::Partition(id)) = keys.parse(&found.key) else { return Err(no_key(found)) };
            partitions.push((id, Versioned::<Partition>::read(found)?));
        }
        for step in DeposeLeaders::pack(topic, partitions) {
            if run_elected(&self.0, step).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// False when something changed meanwhile.
    async fn drop_segments(&self, topic: TopicId) -> Result<bool, Stopped> {
        let prefix = self.0.options.keys.topic_segments(topic);
        loop {
            let page = self.0.store.range(&prefix, "", DropSegments::AT_ONCE, None).await?;
            if page.keys.is_empty() {
                return Ok(true);
            }
            let mut segments = Vec::with_capacity(page.keys.len());
            for found in &page.keys {
                segments.push(self.dropped(found).await?);
            }
            for step in DropSegments::pack(topic, segments) {
                if run_elected(&self.0, step).await?.is_none() {
                    return Ok(false);
                }
            }
        }
    }

    async fn dropped(&self, found: &KeyValue) -> Result<DroppedSegment, Stopped> {
        let keys = &self.0.options.keys;
        let Some(Key::Segment(PartitionId { topic, index }, sequence)) = keys.parse(&found.key) else {
            return Err(no_key(found));
        };
        let segment = Versioned::<Segment>::read(found)?;
        let ledger = view::ledger(&*self.0.store, keys, segment.value.ledger).await?;
        Ok(DroppedSegment { partition: PartitionId { topic, index }, sequence, segment, ledger })
    }
}

fn no_key(found: &KeyValue) -> Stopped {
    Stopped::Store(StoreError::Corrupt(format!("{} is of no known form", found.key)))
}
