//! Subscriptions push as far as there is credit.

use std::time::Duration;

use quire_proto::v1;
use quire_proto::v1::ErrorReason;
use quire_proto::v1::subscribe_request::Request;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::server::{PATIENCE, Server, fetch, reason, values};

struct Subscription {
    credit: mpsc::Sender<v1::SubscribeRequest>,
    pushed: Streaming<v1::SubscribeResponse>,
}

impl Subscription {
    async fn start(server: &mut Server, start: v1::SubscribeStart) -> Self {
        let (credit, requests) = mpsc::channel(8);
        credit.send(v1::SubscribeRequest { request: Some(Request::Start(start)) }).await.unwrap();
        let pushed = server.log.subscribe(ReceiverStream::new(requests)).await.unwrap().into_inner();
        Self { credit, pushed }
    }

    async fn next(&mut self) -> Vec<v1::FetchResult> {
        let pushed =
            tokio::time::timeout(PATIENCE, self.pushed.message()).await.expect("something is pushed");
        pushed.unwrap().expect("the stream goes on").results
    }

    async fn add(&self, credit_bytes: u64) {
        let request = v1::SubscribeRequest { request: Some(Request::CreditBytes(credit_bytes)) };
        self.credit.send(request).await.unwrap();
    }
}

fn start(offset: u64, credit_bytes: u64) -> v1::SubscribeStart {
    v1::SubscribeStart {
        partitions: fetch("t", 0, offset).partitions,
        credit_bytes,
        direct: false,
        plain: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_pushed_without_credit() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    for n in 0..3 {
        server.put("t", 0, &n.to_string()).await;
    }
    let mut subscription = Subscription::start(&mut server, start(1, 1)).await;
    let first = subscription.next().await;
    assert_eq!(values(&first[0]), [(1, "1".to_owned())]);
    let quiet = tokio::time::timeout(Duration::from_millis(200), subscription.pushed.message()).await;
    assert!(quiet.is_err(), "no credit is left");
    subscription.add(1_000).await;
    assert_eq!(values(&subscription.next().await[0]), [(2, "2".to_owned())]);
    server.put("t", 0, "3").await;
    assert_eq!(values(&subscription.next().await[0]), [(3, "3".to_owned())]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_messages_are_pushed_too() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    server.put("t", 0, "a").await;
    let plain = v1::SubscribeStart { plain: true, ..start(0, 1_000) };
    let mut subscription = Subscription::start(&mut server, plain).await;
    let result = subscription.next().await.remove(0);
    assert_eq!(result.messages[0].value, Some("a".into()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_fails_is_told_of_and_left_out() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    server.put("t", 0, "a").await;
    let mut both = start(0, 1_000);
    both.partitions.extend(fetch("t", 9, 0).partitions);
    let mut subscription = Subscription::start(&mut server, both).await;
    let results = subscription.next().await;
    assert_eq!(values(&results[0]), [(0, "a".to_owned())]);
    assert_eq!(reason(&results[1].error), ErrorReason::UnknownPartition);
    server.put("t", 0, "b").await;
    let results = subscription.next().await;
    assert_eq!(results.len(), 1);
    assert_eq!(values(&results[0]), [(1, "b".to_owned())]);
    server.stop().await;
}
