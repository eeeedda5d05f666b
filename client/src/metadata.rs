use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use quire_proto::error::Failure;
use quire_proto::v1::{ErrorReason, MetadataRequest, MetadataResponse, TopicMetadata};
use tokio::time::Instant;

use crate::Error;
use crate::client::Shared;
use crate::connections::{Repeat, log_client};

/// What is known of a topic.
#[derive(Clone, Debug)]
pub(crate) struct TopicView {
    /// Another one when the topic was created again under the same name.
    pub(crate) id: Bytes,
    /// Address of the broker that leads each partition, None where none does.
    pub(crate) leaders: Vec<Option<Arc<str>>>,
    /// A batch may have at most this many bytes.
    pub(crate) max_message_bytes: usize,
    asked_at: Instant,
}

/// What a broker says of one topic that it was asked for.
pub(crate) type TopicAnswer = (String, Result<Arc<TopicView>, Error>);

impl TopicView {
    /// Number of partitions.
    pub(crate) fn partitions(&self) -> u32 {
        u32::try_from(self.leaders.len()).unwrap_or(u32::MAX)
    }

    /// The leader of a partition, if there is one.
    pub(crate) fn leader(&self, partition: u32) -> Option<&Arc<str>> {
        self.leaders.get(partition as usize)?.as_ref()
    }
}

/// What is known of topics. It may be old: a broker that is asked for what it
/// does not lead says so.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    topics: Mutex<HashMap<String, Arc<TopicView>>>,
}

impl Metadata {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<TopicView>>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// What is known of a topic, however old.
    pub(crate) fn known_topic(&self, name: &str) -> Option<Arc<TopicView>> {
        self.metadata.lock().get(name).cloned()
    }

    /// What is known of a topic, asked for when that is nothing or old.
    pub(crate) async fn topic(&self, name: &str) -> Result<Arc<TopicView>, Error> {
        let known = self.metadata.lock().get(name).cloned();
        match known {
            Some(view) if view.asked_at.elapsed() < self.options.metadata_age => Ok(view),
            _ => self.refresh_topic(name).await,
        }
    }

    /// Asks anew.
    pub(crate) async fn refresh_topic(&self, name: &str) -> Result<Arc<TopicView>, Error> {
        let mut answers = self.refresh(vec![name.to_owned()]).await?;
        answers.pop().map(|(_, view)| view).unwrap_or_else(|| {
            let missing = format!("a broker that was asked for topic {name:?} did not answer for it");
            Err(Failure::new(ErrorReason::Internal, missing).into())
        })
    }

    /// Asks anew for several topics at once; each has its own outcome.
    pub(crate) async fn refresh(&self, topics: Vec<String>) -> Result<Vec<TopicAnswer>, Error> {
        let what = "asking for metadata";
        let request = MetadataRequest { topics };
        let ask = |channel, request| async move { log_client(channel).metadata(request).await };
        let answer = self.connections.call(what, Repeat::Safe, request, ask).await?.into_inner();
        let MetadataResponse { brokers, topics } = answer;
        let addresses: Vec<Arc<str>> = brokers.into_iter().map(|broker| broker.address.into()).collect();
        self.connections.directory.learn(&addresses);
        let outcomes = topics.into_iter().map(|topic| self.learn(topic, &addresses));
        Ok(outcomes.collect())
    }

    fn learn(&self, topic: TopicMetadata, addresses: &[Arc<str>]) -> (String, Result<Arc<TopicView>, Error>) {
        let TopicMetadata { name, error, id, leaders, max_message_bytes } = topic;
        if let Some(error) = error {
            self.metadata.lock().remove(&name);
            return (name, Err(Failure::from(error).into()));
        }
        let leader = |index: i32| usize::try_from(index).ok().and_then(|at| addresses.get(at)).cloned();
        let view = Arc::new(TopicView {
            // A copy, or it would hold all of the answer.
            id: Bytes::copy_from_slice(&id),
            leaders: leaders.into_iter().map(leader).collect(),
            max_message_bytes: max_message_bytes as usize,
            asked_at: Instant::now(),
        });
        self.metadata.lock().insert(name.clone(), Arc::clone(&view));
        (name, Ok(view))
    }
}

/// The topic of this name is not the one that was learnt.
pub(crate) fn recreated(topic: &str) -> Error {
    let message = format!(
        "topic {topic:?} was deleted and created again under the same name: start again to use the new one"
    );
    Failure::new(ErrorReason::UnknownTopic, message).into()
}
