//! Idempotent producers: repeats, order, epochs, across restarts.

use quire_proto::batch::{Batch, Producer};
use quire_proto::v1;
use quire_proto::v1::ErrorReason;

use crate::server::{Server, options, reason, request, sealed};

async fn producer_id(server: &mut Server) -> i64 {
    server.log.init_producer(v1::InitProducerRequest {}).await.unwrap().into_inner().producer_id
}

fn numbered(id: i64, epoch: i16, base_sequence: i32, values: &[&str]) -> Batch {
    sealed(values, Producer { id, epoch, base_sequence })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_answered_with_its_first_offset() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let id = producer_id(&mut server).await;
    let (one, two) = (numbered(id, 0, 0, &["a", "b"]), numbered(id, 0, 2, &["c"]));
    let first = server.produce("t", 0, std::slice::from_ref(&one)).await;
    assert_eq!((first.error.clone(), first.base_offset, first.last_offset), (None, 0, 1));
    assert_eq!(server.produce("t", 0, std::slice::from_ref(&one)).await, first);
    let both = server.produce("t", 0, &[one, two]).await;
    assert_eq!((both.error, both.base_offset, both.last_offset), (None, 0, 2));
    assert_eq!(server.read_from("t", 0, 0).await.len(), 3);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_and_old_epochs_are_refused() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let id = producer_id(&mut server).await;
    for (batch, expected) in [
        (numbered(id, 1, 0, &["a"]), None),
        (numbered(id, 1, 2, &["gap"]), Some(ErrorReason::OutOfOrderSequence)),
        (numbered(id, 0, 1, &["old"]), Some(ErrorReason::InvalidProducerEpoch)),
        (numbered(id, 2, 5, &["new epoch"]), Some(ErrorReason::OutOfOrderSequence)),
        (numbered(id, 2, 0, &["b"]), None),
    ] {
        let result = server.produce("t", 0, &[batch]).await;
        assert_eq!(result.error.as_ref().map(v1::Error::reason), expected);
    }
    assert_eq!(server.read_from("t", 0, 0).await, [(0, "a".to_owned()), (1, "b".to_owned())]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_are_known_after_a_crash_and_after_a_restart() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let id = producer_id(&mut server).await;
    let batches: Vec<_> = (0..5).map(|n| numbered(id, 0, n, &["x"])).collect();
    for batch in &batches {
        assert_eq!(server.produce("t", 0, std::slice::from_ref(batch)).await.error, None);
    }
    for crash in [true, false, true] {
        let ground = if crash { server.crash().await } else { server.stop().await };
        server = Server::on(ground, options()).await;
        for (offset, batch) in (0..).zip(&batches) {
            let result = server.produce("t", 0, std::slice::from_ref(batch)).await;
            assert_eq!((result.error, result.base_offset), (None, offset), "crash: {crash}");
        }
        let result = server.produce("t", 0, &[numbered(id, 0, 6, &["gap"])]).await;
        assert_eq!(reason(&result.error), ErrorReason::OutOfOrderSequence);
    }
    assert_eq!(server.read_from("t", 0, 0).await.len(), 5);
    assert_eq!(server.produce("t", 0, &[numbered(id, 0, 5, &["y"])]).await.base_offset, 5);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn producer_ids_are_never_given_out_twice() {
    let mut server = Server::start().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        for _ in 0..10 {
            ids.push(producer_id(&mut server).await);
        }
        server = Server::on(server.crash().await, options()).await;
    }
    let given_out = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), given_out);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotence_needs_acks_all() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let mut produce = request("t", 0, &[numbered(3, 0, 0, &["a"])]);
    produce.acks = v1::Acks::Leader.into();
    let results = server.log.produce(produce).await.unwrap().into_inner().results;
    assert_eq!(reason(&results[0].error), ErrorReason::InvalidRequest);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_batches_as_are_remembered_can_be_sent_at_once() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let batches: Vec<_> = (0..17).map(|n| numbered(3, 0, n, &["a"])).collect();
    let refused = server.produce("t", 0, &batches).await;
    assert_eq!(reason(&refused.error), ErrorReason::InvalidRequest);
    for _ in 0..2 {
        let written = server.produce("t", 0, &batches[..16]).await;
        assert_eq!((written.error, written.base_offset, written.last_offset), (None, 0, 15));
    }
    server.stop().await;
}
