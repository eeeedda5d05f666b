//! Creating, describing and deleting topics.

use std::sync::Arc;

use quire_proto::v1;
use quire_proto::v1::ErrorReason;

use crate::events::Events;
use crate::server::{Server, eventually, options, status_reason};

fn create(name: &str) -> v1::CreateTopicRequest {
    v1::CreateTopicRequest { name: name.to_owned(), partitions: 1, ..v1::CreateTopicRequest::default() }
}

fn config(key: &str, value: &str) -> v1::CreateTopicRequest {
    let config = [(key.to_owned(), value.to_owned())].into();
    v1::CreateTopicRequest { config, ..create("t") }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_created_is_refused_with_the_reason() {
    let mut server = Server::start().await;
    server.create("taken", 1, &[]).await;
    for (request, expected, says) in [
        (create("taken"), ErrorReason::TopicAlreadyExists, "taken"),
        (create(""), ErrorReason::InvalidTopicName, "1 to 249"),
        (create("a/b"), ErrorReason::InvalidTopicName, "a/b"),
        (create(".."), ErrorReason::InvalidTopicName, "neither"),
        (create(&"x".repeat(250)), ErrorReason::InvalidTopicName, "249"),
        (v1::CreateTopicRequest { partitions: 0, ..create("t") }, ErrorReason::InvalidRequest, "partitions"),
        (
            v1::CreateTopicRequest { partitions: u32::MAX, ..create("t") },
            ErrorReason::InvalidRequest,
            "10000",
        ),
        (
            v1::CreateTopicRequest { replicas: 3, ..create("t") },
            ErrorReason::TooManyReplicas,
            "1 are registered",
        ),
        (v1::CreateTopicRequest { replicas: 99, ..create("t") }, ErrorReason::InvalidRequest, "16"),
        (
            v1::CreateTopicRequest { replicas: 3, ack_quorum: 1, ..create("t") },
            ErrorReason::InvalidRequest,
            "single disk",
        ),
        (
            v1::CreateTopicRequest { replicas: 1, ack_quorum: 2, ..create("t") },
            ErrorReason::InvalidRequest,
            "above",
        ),
        (config("retention.ms", "1"), ErrorReason::InvalidConfig, "valid keys: compression.type"),
        (config("compression.type", "zstd"), ErrorReason::InvalidConfig, "producer"),
        (config("max.message.bytes", "x"), ErrorReason::InvalidConfig, "whole number"),
    ] {
        let refused = server.topics.create_topic(request.clone()).await;
        let message = refused.as_ref().unwrap_err().message().to_owned();
        assert_eq!(status_reason(refused), expected, "{request:?}");
        assert!(message.contains(says), "{message}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_described_with_every_key_that_has_an_effect() {
    let mut server = Server::start().await;
    server.create("t", 2, &[("segment.ms", "60000")]).await;
    server.put("t", 1, "a").await;
    let request = v1::DescribeTopicRequest { name: "t".to_owned() };
    let described = server.topics.describe_topic(request).await.unwrap().into_inner();
    let topic = described.topic.unwrap();
    assert_eq!((topic.partitions, topic.replicas, topic.ack_quorum), (2, 1, 1));
    assert_eq!((topic.config.len(), topic.config["segment.ms"].as_str()), (5, "60000"));
    assert_eq!(described.partitions[1].latest_offset, Some(1));
    assert_eq!((described.partitions[0].open_replicas, described.partitions[1].open_replicas), (0, 1));
    assert!(described.partitions.iter().all(|partition| !partition.leader.is_empty()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_outlive_the_broker() {
    let mut server = Server::start().await;
    for name in ["b", "a"] {
        server.create(name, 1, &[]).await;
    }
    server = Server::on(server.stop().await, options()).await;
    let listed = server.topics.list_topics(v1::ListTopicsRequest {}).await.unwrap().into_inner();
    assert_eq!(listed.topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_topic_is_gone_and_its_name_is_free() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    server.put("t", 0, "old").await;
    let delete = v1::DeleteTopicRequest { name: "t".to_owned() };
    server.topics.delete_topic(delete.clone()).await.unwrap();
    assert_eq!(status_reason(server.topics.delete_topic(delete).await), ErrorReason::UnknownTopic);
    let gone = server.produce("t", 0, &[crate::server::batch(&["x"])]).await;
    assert_eq!(crate::server::reason(&gone.error), ErrorReason::UnknownTopic);
    server.create("t", 1, &[]).await;
    assert_eq!(server.put("t", 0, "new").await, 0);
    assert_eq!(server.read_from("t", 0, 0).await, [(0, "new".to_owned())]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_and_ledgers_can_be_looked_at() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    server.put("t", 0, "a").await;
    let id = server.segments("t").await[0].ledger.as_ref().unwrap().id;
    let described =
        server.ledgers.describe_ledger(v1::DescribeLedgerRequest { id }).await.unwrap().into_inner();
    assert_eq!(described.replicas.len(), 1);
    let replica = &described.replicas[0];
    assert_eq!((replica.error.as_str(), replica.entries, replica.certain), ("", 2, true));
    let missing = server.ledgers.describe_ledger(v1::DescribeLedgerRequest { id: 999_999 }).await;
    assert_eq!(status_reason(missing), ErrorReason::UnknownLedger);
    // It is written: there is nothing to recover.
    let recover = v1::RecoverLedgerRequest { id, accept_loss: Some("1.1".to_owned()) };
    let recovered = server.ledgers.recover_ledger(recover).await.unwrap().into_inner();
    assert_eq!((recovered.loss.as_str(), recovered.ledger.unwrap().state()), ("", v1::LedgerState::Open));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_accepted_by_the_name_that_it_was_stated_under() {
    let events = Events::of("quire_broker::service::ledgers");
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    server.put("t", 0, "a").await;
    let id = server.segments("t").await[0].ledger.as_ref().unwrap().id;
    let ground = server.crash().await;
    ground.gate.set_open(false);
    let mut server = Server::on(ground, options()).await;
    let asked = eventually("the ledger cannot be recovered", async || {
        let request = v1::RecoverLedgerRequest { id, accept_loss: None };
        Some(server.ledgers.recover_ledger(request).await.ok()?.into_inner())
    })
    .await;
    assert!(!asked.loss.is_empty());
    let name = asked.accept_loss.unwrap();
    let request = v1::RecoverLedgerRequest { id, accept_loss: Some(format!("{name}0")) };
    let refused = server.ledgers.recover_ledger(request).await;
    assert_eq!(status_reason(refused), ErrorReason::AcceptLossRequired);
    assert!(events.lines().is_empty());
    let request = v1::RecoverLedgerRequest { id, accept_loss: Some(name) };
    let gate = Arc::clone(&server.ground.gate);
    let (recovered, ()) = tokio::join!(server.ledgers.recover_ledger(request), async {
        gate.set_open(true);
    });
    let ledger = recovered.unwrap().into_inner().ledger.unwrap();
    assert_eq!(ledger.state(), v1::LedgerState::Sealed);
    let lines = events.lines();
    let [accepted] = &lines[..] else { panic!("{lines:?}") };
    assert!(accepted.contains("peer=\"127.0.0.1:"), "{accepted}");
    assert_eq!(server.read_from("t", 0, 0).await, [(0, "a".to_owned())], "its bookie has it all");
    server.stop().await;
}
