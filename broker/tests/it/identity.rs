//! A request may say by its id which topic of a name it means.

use bytes::Bytes;
use quire_proto::v1;
use quire_proto::v1::ErrorReason;
use quire_proto::v1::list_offsets_partition::At;
use quire_proto::v1::subscribe_request::Request;

use crate::server::{Server, batch, fetch, reason, request};

async fn id_of(server: &mut Server, topic: &str) -> Bytes {
    let request = v1::MetadataRequest { topics: vec![topic.to_owned()] };
    server.log.metadata(request).await.unwrap().into_inner().topics.remove(0).id
}

/// The errors of each call that names a partition, with this id.
async fn ask(server: &mut Server, topic_id: &Bytes) -> [(&'static str, Option<v1::Error>); 4] {
    let mut produce = request("t", 0, &[batch(&["x"])]);
    produce.partitions[0].topic_id = topic_id.clone();
    let produced = server.log.produce(produce).await.unwrap().into_inner().results.remove(0);

    let mut from_start = fetch("t", 0, 0);
    from_start.partitions[0].topic_id = topic_id.clone();
    let partitions = from_start.partitions.clone();
    let fetched = server.fetch(from_start).await;

    let start = v1::SubscribeStart { partitions, credit_bytes: 1, ..v1::SubscribeStart::default() };
    let subscribe = v1::SubscribeRequest { request: Some(Request::Start(start)) };
    let mut pushed = server.log.subscribe(tokio_stream::iter([subscribe])).await.unwrap().into_inner();
    let pushed = pushed.message().await.unwrap().expect("something is pushed").results.remove(0);

    let asked = v1::ListOffsetsPartition {
        topic: "t".to_owned(),
        topic_id: topic_id.clone(),
        partition: 0,
        at: Some(At::Latest(v1::Latest {})),
    };
    let listed = v1::ListOffsetsRequest { partitions: vec![asked] };
    let listed = server.log.list_offsets(listed).await.unwrap().into_inner().results.remove(0);
    [
        ("produce", produced.error),
        ("fetch", fetched.error),
        ("subscribe", pushed.error),
        ("list offsets", listed.error),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_created_again_is_another() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let old = id_of(&mut server, "t").await;
    server.topics.delete_topic(v1::DeleteTopicRequest { name: "t".to_owned() }).await.unwrap();
    server.create("t", 1, &[]).await;
    let new = id_of(&mut server, "t").await;
    server.put("t", 0, "new").await;
    for (topic_id, expected, says) in [
        (&old, ErrorReason::UnknownTopic, "created again"),
        (&Bytes::from_static(b"t"), ErrorReason::InvalidRequest, "16 bytes"),
    ] {
        for (call, error) in ask(&mut server, topic_id).await {
            assert!(error.is_some(), "{call} is served");
            assert_eq!(reason(&error), expected, "{call}");
            let error = error.unwrap();
            assert!(error.message.contains(says) && !error.retryable, "{call}: {error:?}");
        }
    }
    assert_eq!(server.read_from("t", 0, 0).await, [(0, "new".to_owned())]);
    for topic_id in [&new, &Bytes::new()] {
        for (call, error) in ask(&mut server, topic_id).await {
            assert_eq!(error, None, "{call}");
        }
    }
    server.stop().await;
}
