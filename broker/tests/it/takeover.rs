//! What a broker leaves behind is taken over by the next.

use std::sync::Arc;

use quire_proto::v1;
use quire_proto::v1::LedgerState;

use crate::server::{PATIENCE, Server, options};

#[tokio::test(flavor = "multi_thread")]
async fn an_open_ledger_of_a_crashed_broker_is_recovered() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let mut next = 0;
    for round in 1..4 {
        for _ in 0..10 {
            assert_eq!(server.put("t", 0, &next.to_string()).await, next);
            next += 1;
        }
        let open = server.segments("t").await.pop().unwrap().ledger.unwrap();
        assert_eq!((open.state(), open.epoch), (LedgerState::Open, round));
        server = Server::on(server.crash().await, options()).await;
        let sealed = server.segments("t").await.pop().unwrap().ledger.unwrap();
        assert_eq!((sealed.id, sealed.state(), sealed.next_offset), (open.id, LedgerState::Sealed, next));
        assert_eq!(sealed.complete, sealed.replicas);
    }
    assert_eq!(server.read_from("t", 0, 0).await, (0..next).map(|n| (n, n.to_string())).collect::<Vec<_>>());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stops_leaves_nothing_to_recover() {
    let mut server = Server::start().await;
    server.create("t", 3, &[]).await;
    for partition in 0..3 {
        server.put("t", partition, "a").await;
    }
    let ground = server.stop().await;
    let keys = quire_metadata::key::Keys::new("test").unwrap();
    let (ledgers, _) = quire_metadata::view::list(&*ground.store, &keys.ledgers()).await.unwrap();
    assert_eq!(ledgers.len(), 3);
    for ledger in &ledgers {
        let ledger =
            quire_metadata::typed::Versioned::<quire_metadata::ledger::LedgerMetadata>::read(ledger).unwrap();
        assert!(ledger.value.sealed().is_some());
    }
    let (brokers, _) = quire_metadata::view::list(&*ground.store, &keys.brokers()).await.unwrap();
    assert!(brokers.is_empty(), "the lease is given up");
    let mut server = Server::on(ground, options()).await;
    assert_eq!(server.put("t", 1, "b").await, 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_being_written_when_it_stopped_is_answered_once() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    server.put("t", 0, "first").await;
    let mut producing = Vec::new();
    for n in 0..50 {
        let mut log = server.log.clone();
        let request = crate::server::request("t", 0, &[crate::server::batch(&[&n.to_string()])]);
        producing.push(tokio::spawn(async move { log.produce(request).await }));
    }
    let broker = Arc::clone(&server.broker);
    broker.shutdown().await;
    drop(broker);
    let mut acknowledged = Vec::new();
    for produced in producing {
        let answered = tokio::time::timeout(PATIENCE, produced).await.expect("every request ends").unwrap();
        if let Ok(response) = answered
            && let [v1::ProduceResult { error: None, base_offset, .. }] = &response.get_ref().results[..]
        {
            acknowledged.push(*base_offset);
        }
    }
    let mut server = Server::on(server.crash().await, options()).await;
    let read = server.read_from("t", 0, 0).await;
    for offset in acknowledged {
        assert!(read.iter().any(|(at, _)| *at == offset), "{offset} was acknowledged");
    }
    server.stop().await;
}
