//! Reads what is there, as it is told over the wire.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use quire_proto::batch::Batch;
use quire_proto::v1::log_service_client::LogServiceClient;
use quire_proto::v1::topic_service_client::TopicServiceClient;
use quire_proto::v1::{self, ErrorReason};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::book::Place;
use crate::node::PATIENCE;

const DECOMPRESSED_MAX: usize = 1 << 20;

/// What one fetch says.
#[derive(Debug)]
pub(crate) enum Found {
    /// Records from the offset on, if any yet, and where to go on.
    Records(Vec<(u64, String)>, u64),
    /// There is nothing from the offset on: the partition ends here.
    End(u64),
    Error(ErrorReason, String),
}

pub(crate) fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().timeout(Duration::from_secs(5)).connect_lazy()
}

pub(crate) struct Reader {
    log: LogServiceClient<Channel>,
    topics: TopicServiceClient<Channel>,
}

impl Reader {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let channel = channel(address);
        let log = LogServiceClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
        Self { log, topics: TopicServiceClient::new(channel) }
    }

    /// Partitions by topic.
    pub(crate) async fn topics(&mut self) -> BTreeMap<String, u32> {
        let listed = self.topics.list_topics(v1::ListTopicsRequest::default()).await.unwrap().into_inner();
        listed.topics.into_iter().map(|topic| (topic.name, topic.partitions)).collect()
    }

    pub(crate) async fn fetch(&mut self, place: &Place, offset: u64) -> Found {
        let (topic, partition) = place.clone();
        let partition = v1::FetchPartition { topic, partition, offset, ..v1::FetchPartition::default() };
        let request = v1::FetchRequest { partitions: vec![partition], ..v1::FetchRequest::default() };
        let result = self.log.fetch(request).await.unwrap().into_inner().results.remove(0);
        if let Some(error) = result.error {
            return Found::Error(error.reason(), error.message);
        }
        let records: Vec<_> = records(&result).into_iter().filter(|(at, _)| *at >= offset).collect();
        if records.is_empty() && result.next_offset == result.latest_offset {
            return Found::End(result.latest_offset);
        }
        // It may have ended here when it was read, and grown since.
        assert!(result.next_offset > offset || result.next_offset < result.latest_offset, "{place:?}");
        Found::Records(records, result.next_offset)
    }

    /// A whole partition; waits for what is not there yet.
    pub(crate) async fn read_all(&mut self, place: &Place) -> Vec<(u64, String)> {
        let (mut read, mut offset) = (Vec::new(), 0);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.fetch(place, offset).await {
                Found::Records(records, next) => {
                    assert!(next > offset || Instant::now() < deadline, "{place:?}: no progress at {offset}");
                    read.extend(records);
                    offset = next;
                }
                Found::End(end) => {
                    assert_eq!(end, offset, "{place:?}");
                    return read;
                }
                Found::Error(reason, message) => {
                    assert!(Instant::now() < deadline, "{place:?} at {offset}: {reason:?} {message}");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }
}

fn records(result: &v1::FetchResult) -> Vec<(u64, String)> {
    let mut read = Vec::new();
    for batch in Batch::split(result.batches.clone()).unwrap() {
        batch.verify_crc().unwrap();
        for record in batch.records(DECOMPRESSED_MAX).unwrap() {
            let record = record.unwrap();
            read.push((record.offset.0, String::from_utf8(record.value.unwrap().to_vec()).unwrap()));
        }
    }
    read
}
