//! `quire topic`

use std::collections::{BTreeMap, HashMap};

use quire_client::admin::NewTopic;
use quire_proto::v1;
use serde::Serialize;

use super::connect;
use crate::cli::{Common, Topic, TopicCreate, TopicDelete};
use crate::failure::{Exit, Failure};
use crate::output;

/// # Errors
/// What the server or the user refused.
pub(crate) async fn run(command: &Topic, common: &Common) -> Result<(), Failure> {
    match command {
        Topic::Create(arguments) => create(arguments, common).await,
        Topic::List => list(common).await,
        Topic::Describe(arguments) => describe(&arguments.name, common).await,
        Topic::Delete(arguments) => delete(arguments, common).await,
    }
}

async fn create(arguments: &TopicCreate, common: &Common) -> Result<(), Failure> {
    let mut config = HashMap::new();
    for pair in &arguments.settings {
        if config.insert(pair.key.clone(), pair.value.clone()).is_some() {
            return Err(Failure::usage(format!("--config gives {} twice", pair.key)));
        }
    }
    let request = NewTopic {
        name: arguments.name.clone(),
        partitions: arguments.partitions,
        replicas: arguments.replicas.unwrap_or(0),
        ack_quorum: arguments.ack_quorum.unwrap_or(0),
        config,
    };
    let topic = connect::admin(common).await?.create_topic(request).await.map_err(connect::failure)?;
    output::note(format_args!(
        "created topic {} with {} partition(s), {} replica(s), ack quorum {}",
        topic.name, topic.partitions, topic.replicas, topic.ack_quorum
    ));
    emit_topic_if_json(common, topic)
}

/// A creation has no data of its own for people: the note says it.
fn emit_topic_if_json(common: &Common, topic: v1::Topic) -> Result<(), Failure> {
    output::emit(common.output, &TopicView::from(topic), |_| String::new())
}

async fn list(common: &Common) -> Result<(), Failure> {
    let topics = connect::admin(common).await?.list_topics().await.map_err(connect::failure)?;
    let views: Vec<_> = topics.into_iter().map(TopicView::from).collect();
    output::emit(common.output, &views, |views| {
        output::columns(
            ["NAME", "PARTITIONS", "REPLICAS", "ACK-QUORUM"],
            views.iter().map(|topic| {
                [
                    topic.name.clone(),
                    topic.partitions.to_string(),
                    topic.replicas.to_string(),
                    topic.ack_quorum.to_string(),
                ]
            }),
        )
    })
}

async fn describe(name: &str, common: &Common) -> Result<(), Failure> {
    let admin = connect::admin(common).await?;
    let (topic, partitions) = admin.describe_topic(name).await.map_err(connect::failure)?;
    let view = DescriptionView {
        topic: TopicView::from(topic),
        partitions: partitions.into_iter().map(PartitionView::from).collect(),
    };
    output::emit(common.output, &view, DescriptionView::as_table)
}

async fn delete(arguments: &TopicDelete, common: &Common) -> Result<(), Failure> {
    let name = &arguments.name;
    if !arguments.yes {
        match output::confirm(&format!("Delete topic {name} and all its records?")) {
            Some(true) => {}
            Some(false) => {
                return Err(Failure::message(Exit::Usage, format!("topic {name} was not deleted")));
            }
            None => {
                return Err(Failure::usage(format!("deleting topic {name} has to be confirmed"))
                    .remedy("add --yes, for there is no terminal to ask on"));
            }
        }
    }
    connect::admin(common).await?.delete_topic(name).await.map_err(connect::failure)?;
    output::note(format_args!("deleted topic {name}"));
    output::emit(common.output, &Deleted { deleted: name }, |_| String::new())
}

#[derive(Debug, Serialize)]
struct Deleted<'a> {
    deleted: &'a str,
}

#[derive(Debug, Serialize)]
struct TopicView {
    name: String,
    id: String,
    partitions: u32,
    replicas: u32,
    ack_quorum: u32,
    config: BTreeMap<String, String>,
}

impl From<v1::Topic> for TopicView {
    fn from(topic: v1::Topic) -> Self {
        TopicView {
            name: topic.name,
            id: uuid::Uuid::from_slice(&topic.id).map(|id| id.to_string()).unwrap_or_default(),
            partitions: topic.partitions,
            replicas: topic.replicas,
            ack_quorum: topic.ack_quorum,
            config: topic.config.into_iter().collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct PartitionView {
    partition: u32,
    /// Address of the broker that leads; absent when none does.
    leader: Option<String>,
    leader_epoch: u64,
    earliest_offset: Option<u64>,
    latest_offset: Option<u64>,
    open_replicas: u32,
}

impl From<v1::PartitionDescription> for PartitionView {
    fn from(partition: v1::PartitionDescription) -> Self {
        PartitionView {
            partition: partition.partition,
            leader: Some(partition.leader).filter(|leader| !leader.is_empty()),
            leader_epoch: partition.leader_epoch,
            earliest_offset: partition.earliest_offset,
            latest_offset: partition.latest_offset,
            open_replicas: partition.open_replicas,
        }
    }
}

#[derive(Debug, Serialize)]
struct DescriptionView {
    topic: TopicView,
    partitions: Vec<PartitionView>,
}

impl DescriptionView {
    fn as_table(&self) -> String {
        let topic = &self.topic;
        let mut rows = vec![
            ("name", topic.name.clone()),
            ("id", topic.id.clone()),
            ("partitions", topic.partitions.to_string()),
            ("replicas", topic.replicas.to_string()),
            ("ack quorum", topic.ack_quorum.to_string()),
        ];
        rows.extend(topic.config.iter().map(|(key, value)| (key.as_str(), value.clone())));
        let partitions = output::columns(
            ["PARTITION", "LEADER", "EPOCH", "EARLIEST", "LATEST", "OPEN-REPLICAS"],
            self.partitions.iter().map(|partition| {
                let or_dash =
                    |offset: Option<u64>| offset.map_or("-".to_owned(), |offset| offset.to_string());
                [
                    partition.partition.to_string(),
                    partition.leader.clone().unwrap_or_else(|| "-".to_owned()),
                    partition.leader_epoch.to_string(),
                    or_dash(partition.earliest_offset),
                    or_dash(partition.latest_offset),
                    partition.open_replicas.to_string(),
                ]
            }),
        );
        format!("{}\n{partitions}", output::pairs(rows))
    }
}
