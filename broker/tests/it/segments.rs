//! Ledgers come and go under a partition: rolls, idle seals, cold reads.

use std::time::Duration;

use quire_broker::Options;
use quire_proto::v1::LedgerState;

use crate::server::{Server, eventually, options};

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_rolls_by_size_and_the_chain_has_no_hole() {
    let mut server = Server::start().await;
    server.create("t", 1, &[("segment.bytes", "4096")]).await;
    let value = "v".repeat(500);
    for n in 0..60 {
        assert_eq!(server.put("t", 0, &format!("{n} {value}")).await, n);
    }
    let segments = server.segments("t").await;
    assert!(segments.len() > 3, "{} segments", segments.len());
    for pair in segments.windows(2) {
        let ledger = pair[0].ledger.as_ref().unwrap();
        assert_eq!(ledger.state(), LedgerState::Sealed);
        assert_eq!(ledger.next_offset, pair[1].base_offset);
        assert_eq!(ledger.complete, ledger.replicas);
    }
    let expected: Vec<_> = (0..60).map(|n: u64| (n, format!("{n} {value}"))).collect();
    assert_eq!(server.read_from("t", 0, 0).await, expected);
    // Nothing is in memory after a restart: all of it is read back.
    server = Server::on(server.stop().await, options()).await;
    assert_eq!(server.read_from("t", 0, 0).await, expected);
    for from in [1, 7, 30, 59] {
        assert_eq!(server.read_from("t", 0, from).await, expected[from as usize..]);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_partition_holds_no_open_ledger_and_opens_one_again() {
    let idle = Options { idle_seal: Duration::from_millis(100), ..options() };
    let mut server = Server::with(idle).await;
    server.create("t", 1, &[]).await;
    assert_eq!(server.put("t", 0, "a").await, 0);
    eventually("the ledger is sealed", async || {
        let segments = server.segments("t").await;
        let sealed = |segment: &quire_proto::v1::Segment| {
            segment.ledger.as_ref().is_some_and(|ledger| ledger.state() == LedgerState::Sealed)
        };
        (segments.len() == 1 && segments.iter().all(sealed)).then_some(())
    })
    .await;
    assert_eq!(server.put("t", 0, "b").await, 1);
    assert_eq!(server.segments("t").await.len(), 2);
    let read = server.read_from("t", 0, 0).await;
    assert_eq!(read, [(0, "a".to_owned()), (1, "b".to_owned())]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_nobody_writes_to_has_no_ledger() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    assert!(server.segments("t").await.is_empty());
    assert!(server.read_from("t", 0, 0).await.is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_does_not_fit_is_read_back() {
    let small = Options { tail_cache_bytes: 8 << 10, read_cache_bytes: 64 << 10, ..options() };
    let mut server = Server::with(small).await;
    server.create("t", 1, &[]).await;
    let value = "v".repeat(2_000);
    for n in 0..100 {
        assert_eq!(server.put("t", 0, &format!("{n} {value}")).await, n);
    }
    let read = server.read_from("t", 0, 0).await;
    assert_eq!(read, (0..100).map(|n: u64| (n, format!("{n} {value}"))).collect::<Vec<_>>());
    server.stop().await;
}
