//! Topics, offsets, segments and ledgers.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use quire_proto::error::Failure;
use quire_proto::id::{LedgerId, Offset};
use quire_proto::v1::{self, list_offsets_partition::At};

use crate::client::Shared;
use crate::connections::{Repeat, ledger_client, log_client, topic_client};
use crate::consumer::Start;
use crate::{Client, Error};

/// A topic to create.
#[derive(Clone, Debug, Default)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// Number of partitions, at least 1.
    pub partitions: u32,
    /// Target number of copies of each ledger; 0 takes the cluster's default.
    pub replicas: u32,
    /// Copies that must be durable before an acknowledgement; 0 takes the
    /// majority of `replicas`.
    pub ack_quorum: u32,
    /// Configuration by the field's names, such as `segment.bytes`.
    pub config: HashMap<String, String>,
}

/// What recovering a ledger came to.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The ledger.
    pub ledger: v1::Ledger,
    /// What may be lost, or was accepted as lost, in words.
    pub loss: String,
    /// Nothing was done: what accepts that loss.
    pub accept_loss: Option<String>,
}

/// Administers a cluster through any of its brokers. Errors of all calls:
/// `Connect`, `Foreign`, `Timeout`, `Broker`; calls that change something also
/// `Disconnected`, when it is not known whether they did. All calls are
/// cancel-safe as far as the client goes; a change that a broker has begun goes
/// on.
#[derive(Clone, Debug)]
pub struct Admin {
    shared: Arc<Shared>,
}

impl Admin {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// `Broker` with `TopicAlreadyExists`, `InvalidTopicName`, `InvalidConfig`,
    /// `TooManyReplicas` and others.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<v1::Topic, Error> {
        let what = format!("creating topic {:?}", topic.name);
        let NewTopic { name, partitions, replicas, ack_quorum, config } = topic;
        let request = v1::CreateTopicRequest { name, partitions, replicas, ack_quorum, config };
        let call = |channel, request| async move { topic_client(channel).create_topic(request).await };
        let answer = self.shared.connections.call(&what, Repeat::Unsafe, request, call).await?;
        answer.into_inner().topic.ok_or_else(|| incomplete("CreateTopic"))
    }

    /// All topics, sorted by name.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn list_topics(&self) -> Result<Vec<v1::Topic>, Error> {
        let call = |channel, request| async move { topic_client(channel).list_topics(request).await };
        let answer = self
            .shared
            .connections
            .call("listing topics", Repeat::Safe, v1::ListTopicsRequest {}, call)
            .await?;
        Ok(answer.into_inner().topics)
    }

    /// One topic and its partitions.
    ///
    /// # Errors
    /// `Broker` with `UnknownTopic` when there is none of this name.
    pub async fn describe_topic(
        &self,
        name: &str,
    ) -> Result<(v1::Topic, Vec<v1::PartitionDescription>), Error> {
        let what = format!("describing topic {name:?}");
        let request = v1::DescribeTopicRequest { name: name.to_owned() };
        let call = |channel, request| async move { topic_client(channel).describe_topic(request).await };
        let answer = self.shared.connections.call(&what, Repeat::Safe, request, call).await?.into_inner();
        Ok((answer.topic.ok_or_else(|| incomplete("DescribeTopic"))?, answer.partitions))
    }

    /// Deletes a topic and what is in it. Its name is free at once.
    ///
    /// # Errors
    /// `Broker` with `UnknownTopic` when there is none of this name.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let what = format!("deleting topic {name:?}");
        let request = v1::DeleteTopicRequest { name: name.to_owned() };
        let call = |channel, request| async move { topic_client(channel).delete_topic(request).await };
        self.shared.connections.call(&what, Repeat::Unsafe, request, call).await.map(drop)
    }

    /// The offset at which reading from `at` begins, for each of these
    /// partitions, in their order. None: no record is at or after that time.
    /// `Start::Time` is looked up by batch: the record is in the batch at the
    /// offset or after it.
    ///
    /// # Errors
    /// `Broker` with the first partition's failure, once trying again does not
    /// help.
    pub async fn list_offsets(
        &self,
        topic: &str,
        partitions: &[u32],
        at: Start,
    ) -> Result<Vec<Option<Offset>>, Error> {
        let asked = partitions.iter().map(|&partition| (topic, Bytes::new(), partition, at));
        self.shared.list_offsets(asked).await
    }

    /// Where the byte ranges of a topic's partitions are; of all of them when
    /// `partition` is None.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn list_segments(
        &self,
        topic: &str,
        partition: Option<u32>,
    ) -> Result<Vec<v1::Segment>, Error> {
        let what = format!("listing segments of topic {topic:?}");
        let request = v1::ListSegmentsRequest { topic: topic.to_owned(), partition };
        let call = |channel, request| async move { ledger_client(channel).list_segments(request).await };
        let answer = self.shared.connections.call(&what, Repeat::Safe, request, call).await?;
        Ok(answer.into_inner().segments)
    }

    /// A ledger, and what each of its replicas says of itself.
    ///
    /// # Errors
    /// `Broker` with `UnknownLedger` when there is none.
    pub async fn describe_ledger(
        &self,
        id: LedgerId,
    ) -> Result<(v1::Ledger, Vec<v1::ReplicaDescription>), Error> {
        let what = format!("describing ledger {id}");
        let request = v1::DescribeLedgerRequest { id: id.0 };
        let call = |channel, request| async move { ledger_client(channel).describe_ledger(request).await };
        let answer = self.shared.connections.call(&what, Repeat::Safe, request, call).await?.into_inner();
        Ok((answer.ledger.ok_or_else(|| incomplete("DescribeLedger"))?, answer.replicas))
    }

    /// The way on when a disk lost its tail and no other copy is left. Without
    /// `accept_loss` it asks what may be lost, and does nothing.
    ///
    /// # Errors
    /// `Broker` with `AcceptLossRequired` when more may be lost by now than
    /// `accept_loss` accepts: either nothing was done, or that loss was accepted
    /// and the next one is not yet, as the message says. Ask again what it is.
    pub async fn recover_ledger(&self, id: LedgerId, accept_loss: Option<&str>) -> Result<Recovery, Error> {
        let what = format!("recovering ledger {id}");
        let accept_loss = accept_loss.map(str::to_owned);
        let request = v1::RecoverLedgerRequest { id: id.0, accept_loss };
        let call = |channel, request| async move { ledger_client(channel).recover_ledger(request).await };
        let answer = self.shared.connections.call(&what, Repeat::Unsafe, request, call).await?.into_inner();
        let v1::RecoverLedgerResponse { ledger, loss, accept_loss } = answer;
        Ok(Recovery { ledger: ledger.ok_or_else(|| incomplete("RecoverLedger"))?, loss, accept_loss })
    }
}

impl Shared {
    /// See [`Admin::list_offsets`]. With the id of the topic, or an empty one.
    pub(crate) async fn list_offsets(
        &self,
        asked: impl IntoIterator<Item = (&str, Bytes, u32, Start)>,
    ) -> Result<Vec<Option<Offset>>, Error> {
        let partitions: Vec<_> =
            asked.into_iter().map(|(topic, id, partition, at)| ask(topic, id, partition, at)).collect();
        let expected = partitions.len();
        let request = v1::ListOffsetsRequest { partitions };
        // A partition's failure is raised inside the call, so that one that
        // passes is tried again.
        let call = |channel, request| async move {
            let answer = log_client(channel).list_offsets(request).await?.into_inner();
            let offset = |result: v1::ListOffsetsResult| match result.error {
                None => Ok(result.offset.map(Offset)),
                Some(error) => Err(tonic::Status::from(Failure::from(error))),
            };
            answer.results.into_iter().map(offset).collect::<Result<Vec<_>, _>>()
        };
        let offsets = self.connections.call("asking for offsets", Repeat::Safe, request, call).await?;
        if offsets.len() == expected { Ok(offsets) } else { Err(incomplete("ListOffsets")) }
    }
}

fn ask(topic: &str, topic_id: Bytes, partition: u32, at: Start) -> v1::ListOffsetsPartition {
    let at = match at {
        Start::Earliest | Start::Offset(_) => At::Earliest(v1::Earliest {}),
        Start::Latest => At::Latest(v1::Latest {}),
        Start::Time(timestamp_ms) => At::TimestampMs(timestamp_ms),
    };
    v1::ListOffsetsPartition { topic: topic.to_owned(), topic_id, partition, at: Some(at) }
}

fn incomplete(call: &str) -> Error {
    let message = format!("a broker's answer to {call} is incomplete");
    Failure::new(v1::ErrorReason::Internal, message).into()
}

impl From<&Client> for Admin {
    fn from(client: &Client) -> Self {
        client.admin()
    }
}
