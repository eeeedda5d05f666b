//! Producing: batches, plain messages, streams, acks.

use quire_broker::Options;
use quire_proto::v1;
use quire_proto::v1::ErrorReason;
use tokio_stream::StreamExt;

use crate::server::{Server, batch, eventually, fetch, options, reason, request, values};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_produced_is_fetched_with_dense_offsets() {
    let mut server = Server::start().await;
    server.create("t", 2, &[]).await;
    let first = server.produce("t", 1, &[batch(&["a", "b"]), batch(&["c"])]).await;
    assert_eq!((first.error, first.base_offset, first.last_offset), (None, 0, 2));
    assert_eq!(server.put("t", 1, "d").await, 3);
    let result = server.fetch(fetch("t", 1, 0)).await;
    let expected = ["a", "b", "c", "d"].map(str::to_owned);
    assert_eq!(values(&result), (0..).zip(expected).collect::<Vec<_>>());
    assert_eq!((result.earliest_offset, result.latest_offset, result.next_offset), (0, 4, 4));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_partitions_in_one_request() {
    let mut server = Server::start().await;
    server.create("t", 8, &[]).await;
    let mut wide = request("t", 0, &[batch(&["0"])]);
    for partition in 1..9 {
        wide.partitions.extend(request("t", partition, &[batch(&["x"])]).partitions);
    }
    let results = server.log.produce(wide).await.unwrap().into_inner().results;
    assert_eq!(results.len(), 9);
    for (partition, result) in (0..8).zip(&results) {
        assert_eq!((result.partition, result.base_offset, &result.error), (partition, 0, &None));
    }
    assert_eq!(reason(&results[8].error), ErrorReason::UnknownPartition);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_messages_come_back_as_they_were() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let message = v1::Message {
        key: Some("k".into()),
        value: None,
        headers: vec![v1::Header { key: "h".to_owned(), value: Some("1".into()) }],
        timestamp_ms: Some(77),
    };
    let mut produce = request("t", 0, &[]);
    produce.partitions[0].messages =
        vec![message.clone(), v1::Message { value: Some("v".into()), ..message }];
    let results = server.log.produce(produce).await.unwrap().into_inner().results;
    assert_eq!((&results[0].error, results[0].last_offset), (&None, 1));
    let result = server.fetch(v1::FetchRequest { plain: true, ..fetch("t", 0, 1) }).await;
    assert!(result.batches.is_empty());
    assert_eq!(
        result.messages,
        [v1::FetchedMessage {
            offset: 1,
            timestamp_ms: 77,
            key: Some("k".into()),
            value: Some("v".into()),
            headers: vec![v1::Header { key: "h".to_owned(), value: Some("1".into()) }],
        }]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acks_level_writes() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    for (offset, acks) in [v1::Acks::All, v1::Acks::Leader, v1::Acks::None].into_iter().enumerate() {
        let mut produce = request("t", 0, &[batch(&["x"])]);
        produce.acks = acks.into();
        let results = server.log.produce(produce).await.unwrap().into_inner().results;
        assert_eq!((&results[0].error, results[0].base_offset), (&None, offset as u64), "{acks:?}");
    }
    let result = server.fetch(v1::FetchRequest { max_wait_ms: 10_000, ..fetch("t", 0, 2) }).await;
    assert_eq!(values(&result), [(2, "x".to_owned())]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_written_in_order_and_answers_by_correlation_id() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let requests = (0..200).map(|n: u64| v1::ProduceRequest {
        correlation_id: 1_000 + n,
        ..request("t", 0, &[batch(&[&n.to_string()])])
    });
    let responses = server.log.produce_stream(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let responses: Vec<_> = responses.map(Result::unwrap).collect().await;
    assert_eq!(responses.len(), 200);
    for response in responses {
        let result = &response.results[0];
        assert_eq!(result.error, None);
        assert_eq!(result.base_offset, response.correlation_id - 1_000);
    }
    let read = server.read_from("t", 0, 0).await;
    assert_eq!(read, (0..200).map(|n: u64| (n, n.to_string())).collect::<Vec<_>>());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_append_time_is_the_brokers() {
    let mut server = Server::start().await;
    server.create("t", 1, &[("message.timestamp.type", "LogAppendTime")]).await;
    let produced = server.produce("t", 0, &[batch(&["a"])]).await;
    let at = produced.log_append_time_ms.expect("the broker's time");
    assert!(at > 1_500_000_000_000);
    let result = server.fetch(v1::FetchRequest { plain: true, ..fetch("t", 0, 0) }).await;
    assert_eq!(result.messages[0].timestamp_ms, at);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_bookies_a_produce_waits_and_is_told_why() {
    let mut server = Server::with(options()).await;
    server.ground.gate.set_open(false);
    server.create("t", 1, &[]).await;
    let mut produce = request("t", 0, &[batch(&["a"])]);
    produce.timeout_ms = 300;
    let results = server.log.produce(produce).await.unwrap().into_inner().results;
    assert_eq!(reason(&results[0].error), ErrorReason::NotEnoughBookies);
    assert!(results[0].error.as_ref().unwrap().retryable);
    server.ground.gate.set_open(true);
    assert_eq!(server.put("t", 0, "b").await, 0);
    assert_eq!(server.read_from("t", 0, 0).await, [(0, "b".to_owned())]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_gives_way_when_memory_is_short() {
    let small = Options { memory_bytes: 1 << 20, tail_cache_bytes: 512 << 10, ..options() };
    let mut server = Server::with(small).await;
    server.create("t", 1, &[]).await;
    // Far more than the budget in all.
    for n in 0..10 {
        assert_eq!(server.put("t", 0, &"v".repeat(300_000)).await, n);
    }
    assert_eq!(server.read_from("t", 0, 0).await.len(), 10);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_memory_budget_producers_wait_and_are_told_why() {
    let small = Options { memory_bytes: 1 << 20, tail_cache_bytes: 512 << 10, ..options() };
    let mut server = Server::with(small).await;
    server.ground.gate.set_open(false);
    server.create("t", 1, &[]).await;
    let value = "v".repeat(300_000);
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let produce = v1::ProduceRequest { timeout_ms: 10_000, ..request("t", 0, &[batch(&[&value])]) };
            let mut log = server.log.clone();
            tokio::spawn(async move { log.produce(produce).await.unwrap().into_inner() })
        })
        .collect();
    eventually("the budget is used up", async || {
        let produce = v1::ProduceRequest { timeout_ms: 50, ..request("t", 0, &[batch(&[&value])]) };
        let results = server.log.produce(produce).await.unwrap().into_inner().results;
        let error = results[0].error.as_ref().expect("no bookie can be reached");
        assert!(error.retryable);
        // The first ones may not have come in yet.
        (error.reason() == ErrorReason::Overloaded).then(|| {
            assert!(error.message.contains("1048576 bytes"), "{}", error.message);
        })
    })
    .await;
    server.ground.gate.set_open(true);
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().results[0].error, None);
    }
    assert_eq!(server.put("t", 0, "after").await, 3);
    server.stop().await;
}
