//! TopicService.

use std::sync::Arc;
use std::time::Duration;

use quire_metadata::ledger::REPLICAS_MAX;
use quire_metadata::operation::Outcome;
use quire_metadata::operations::topics::{CreateTopic, DeleteTopic, TopicChanged, TopicExists};
use quire_metadata::topic::{PARTITIONS_MAX, Topic, TopicName};
use quire_metadata::view;
use quire_proto::id::TopicId;
use quire_proto::v1;
use quire_proto::v1::ErrorReason;
use quire_proto::v1::topic_service_server::TopicService;
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use crate::catalog::TopicEntry;
use crate::clock::wall_ms;
use crate::failure::{self, Failure};
use crate::log::PartitionLog;
use crate::log::partition::Standing;
use crate::service::Door;
use crate::topic::TopicConfig;

/// How long a creation or deletion waits to be seen by this broker.
const SETTLE: Duration = Duration::from_secs(5);

/// What a topic and a partition take in an answer.
const TOPIC_BYTES: usize = 512;
const PARTITION_BYTES: usize = 256;

/// How often a deletion starts anew because the topic changed meanwhile.
const ATTEMPTS: usize = 8;

/// TopicService on a broker.
#[derive(Clone, Debug)]
pub struct Topics(pub Arc<Door>);

#[tonic::async_trait]
impl TopicService for Topics {
    async fn create_topic(
        &self,
        request: Request<v1::CreateTopicRequest>,
    ) -> Result<Response<v1::CreateTopicResponse>, Status> {
        self.0.check_open()?;
        let topic = self.0.topic_of(request.into_inner()).await?;
        let created = self.0.create(topic).await?;
        Ok(Response::new(v1::CreateTopicResponse { topic: Some(created) }))
    }

    async fn list_topics(
        &self,
        request: Request<v1::ListTopicsRequest>,
    ) -> Result<Response<v1::ListTopicsResponse>, Status> {
        self.0.check_open()?;
        let all = self.0.catalog.all();
        let room = self.0.replies.room(all.len() * TOPIC_BYTES, request.extensions().get(), None).await?;
        let topics = all.iter().map(|entry| public(entry)).collect();
        Ok(room.response(request.extensions().get(), v1::ListTopicsResponse { topics }))
    }

    async fn describe_topic(
        &self,
        request: Request<v1::DescribeTopicRequest>,
    ) -> Result<Response<v1::DescribeTopicResponse>, Status> {
        self.0.check_open()?;
        let entry = self.0.catalog.topic(&request.get_ref().name)?;
        let room = self
            .0
            .replies
            .room(entry.partitions.len() * PARTITION_BYTES, request.extensions().get(), None)
            .await?;
        let partitions = entry.partitions.iter().map(|log| self.0.describe(log)).collect();
        let described = v1::DescribeTopicResponse { topic: Some(public(&entry)), partitions };
        Ok(room.response(request.extensions().get(), described))
    }

    async fn delete_topic(
        &self,
        request: Request<v1::DeleteTopicRequest>,
    ) -> Result<Response<v1::DeleteTopicResponse>, Status> {
        self.0.check_open()?;
        self.0.delete(&request.into_inner().name).await?;
        Ok(Response::new(v1::DeleteTopicResponse {}))
    }
}

impl Door {
    /// The topic that a request asks for, checked.
    async fn topic_of(&self, request: v1::CreateTopicRequest) -> Result<Topic, Failure> {
        let v1::CreateTopicRequest { name, partitions, replicas, ack_quorum, config } = request;
        let name: TopicName = name.parse().map_err(|_| failure::invalid_topic_name(&name))?;
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(failure::invalid(format!(
                "{partitions} partitions: a topic has 1 to {PARTITIONS_MAX}"
            )));
        }
        let config = config.into_iter().collect();
        TopicConfig::parse(&config)
            .map_err(|error| Failure::new(ErrorReason::InvalidConfig, error.to_string()))?;
        let replicas = if replicas == 0 { self.context.options.default_replicas } else { replicas };
        let ack_quorum = if ack_quorum == 0 { replicas / 2 + 1 } else { ack_quorum };
        check_quorum(replicas, ack_quorum)?;
        self.check_bookies(replicas, ack_quorum).await?;
        let id = TopicId(Uuid::new_v4());
        Ok(Topic { id, name, partitions, replicas, ack_quorum, config, created_ms: wall_ms() })
    }

    /// Refused is only what could not be acknowledged at all: an ack quorum
    /// above the bookies that belong to the cluster.
    async fn check_bookies(&self, replicas: u32, ack_quorum: u32) -> Result<(), Failure> {
        let Self { context, .. } = self;
        let registered = view::list(&*context.store, &context.keys.bookie_registry()).await;
        let (registered, _) =
            registered.map_err(|error| failure::metadata("counting the bookies", &error))?;
        if ack_quorum as usize > registered.len() {
            return Err(Failure::new(
                ErrorReason::TooManyReplicas,
                format!(
                    "{replicas} replicas with an ack quorum of {ack_quorum} need {ack_quorum} bookies and {} \
                     are registered: add bookies or ask for fewer replicas",
                    registered.len()
                ),
            ));
        }
        Ok(())
    }

    async fn create(&self, topic: Topic) -> Result<v1::Topic, Failure> {
        let name = topic.name.clone();
        let operation = CreateTopic { topic };
        let outcome = self.context.settle(&operation).await;
        let created = match outcome.map_err(|error| failure::metadata("creating the topic", &error))? {
            Outcome::Done(created) => created,
            Outcome::Lost(TopicExists(_)) => {
                return Err(Failure::new(ErrorReason::TopicAlreadyExists, format!("topic {name} exists")));
            }
        };
        tracing::info!(topic = %name, "created");
        // It exists, even if its partitions take longer: an error would have it
        // created again, in vain.
        let led = self.wait_for(|door| door.led(name.as_str())).await;
        Ok(public(&led.unwrap_or_else(|| Arc::new(TopicEntry::new(created)))))
    }

    async fn delete(&self, name: &str) -> Result<(), Failure> {
        let entry = self.catalog.topic(name)?;
        let mut topic = entry.stored.clone();
        for _ in 0..ATTEMPTS {
            let outcome = self.context.settle(&DeleteTopic { topic }).await;
            match outcome.map_err(|error| failure::metadata("deleting the topic", &error))? {
                Outcome::Done(()) => {
                    tracing::warn!(topic = name, id = %entry.topic.id, "deleted on request");
                    self.wait_for(|door| door.catalog.by_id(entry.topic.id).is_none().then_some(())).await;
                    return Ok(());
                }
                Outcome::Lost(TopicChanged(Some(now))) if now.value.id == entry.topic.id => topic = now,
                Outcome::Lost(TopicChanged(_)) => return Err(failure::unknown_topic(name)),
            }
        }
        Err(Failure::new(ErrorReason::MetadataUnavailable, format!("topic {name} keeps changing, try again")))
    }

    /// The topic, once this broker leads all of its partitions.
    fn led(&self, name: &str) -> Option<Arc<TopicEntry>> {
        let entry = self.catalog.topic(name).ok()?;
        let led = entry.partitions.iter().all(|log| log.standing().0 == Standing::Leading);
        led.then_some(entry)
    }

    /// Waits until the catalog or the take-overs have come so far, for at most
    /// [`SETTLE`].
    async fn wait_for<T>(&self, reached: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + SETTLE;
        let mut catalog = self.catalog.changes();
        let progress = self.manager.progress();
        let mut progress = progress.changes();
        loop {
            if let Some(reached) = reached(self) {
                return Some(reached);
            }
            tokio::select! {
                _ = catalog.changed() => {}
                _ = progress.changed() => {}
                () = tokio::time::sleep_until(deadline) => return reached(self),
            }
        }
    }

    fn describe(&self, log: &PartitionLog) -> v1::PartitionDescription {
        let (standing, epoch) = log.standing();
        let leads = matches!(standing, Standing::Leading | Standing::Recovering);
        let bounds = log.bounds().ok();
        v1::PartitionDescription {
            partition: log.id.index.0,
            leader: if leads { self.context.options.address.clone() } else { String::new() },
            leader_epoch: epoch.0,
            earliest_offset: bounds.map(|bounds| bounds.earliest.0),
            latest_offset: bounds.map(|bounds| bounds.latest.0),
            open_replicas: log.open_replicas(),
        }
    }
}

fn check_quorum(replicas: u32, ack_quorum: u32) -> Result<(), Failure> {
    if replicas as usize > REPLICAS_MAX {
        return Err(failure::invalid(format!("{replicas} replicas: a ledger has at most {REPLICAS_MAX}")));
    }
    if ack_quorum > replicas {
        return Err(failure::invalid(format!(
            "an ack quorum of {ack_quorum} is above the {replicas} replicas"
        )));
    }
    if ack_quorum == 1 && replicas > 1 {
        return Err(failure::invalid(format!(
            "an ack quorum of 1 with {replicas} replicas acknowledges what a single disk can lose: \
             ask for an ack quorum of at least 2, or for 1 replica"
        )));
    }
    Ok(())
}

/// The topic as clients see it.
fn public(entry: &TopicEntry) -> v1::Topic {
    let topic = &entry.topic;
    v1::Topic {
        name: topic.name.to_string(),
        id: topic.id.0.as_bytes().to_vec().into(),
        partitions: topic.partitions,
        replicas: topic.replicas,
        ack_quorum: topic.ack_quorum,
        config: topic.config.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}
