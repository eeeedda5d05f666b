//! Starting, serving, stopping and starting again.

use bytes::Bytes;
use quire_bookie::{Error, Health};
use quire_ledger::message::{Read, Refusal, ReplicaState, Request, Response};
use quire_metadata::id_block::{IdAllocator, IdKind};
use quire_metadata::key::Keys;
use quire_metadata::ledger::{LedgerMetadata, LedgerState, Sealed};
use quire_metadata::store::{Txn, Write};
use quire_metadata::typed::Typed;
use quire_proto::id::{EntryId, Epoch, LedgerId};

use crate::support::*;

#[tokio::test]
async fn entries_are_acknowledged_once_durable_and_read_after_a_restart() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start(dir.path(), &store).await.unwrap();
    let id = bookie.id();
    let (link, ear) = connect(&bookie);
    for ledger in 1..=3 {
        assert_eq!(create(&*link, ledger).await, Response::Created);
    }
    // Many files of 1 MiB.
    for at in 0..100 {
        for ledger in 1..=3 {
            link.append(entry(ledger, at, 1, 30_000 + at as usize)).unwrap();
        }
    }
    ear.wait(|heard| (1..=3).all(|ledger| heard.durable.get(&LedgerId(ledger)) == Some(&EntryId(100))));
    let check = async |link: &dyn quire_ledger::link::BookieLink| {
        for ledger in 1..=3 {
            let records = read_all(link, ledger).await;
            assert_eq!(records.len(), 100);
            for (at, record) in records.iter().enumerate() {
                let expected = payload(ledger, at as u64, 30_000 + at);
                assert_eq!(record.payload.to_bytes(), expected.to_bytes());
            }
        }
    };
    check(&*link).await;
    bookie.shutdown().await;
    ear.wait(|heard| heard.broken);
    assert!(link.append(entry(1, 100, 1, 10)).is_err());
    drop((link, bookie));

    let bookie = start(dir.path(), &store).await.unwrap();
    assert_eq!(bookie.id(), id);
    assert_eq!(bookie.health(), Health::Writable);
    let (link, ear) = connect(&bookie);
    check(&*link).await;
    link.append(entry(1, 100, 1, 10)).unwrap();
    link.append(entry(2, 99, 1, 30_099)).unwrap();
    ear.wait(|heard| heard.durable.len() == 2);
    let state = link.call(Request::State { ledger: LedgerId(1) }).await.unwrap();
    let expected =
        ReplicaState { fence: Epoch(0), durable: EntryId(101), committed: EntryId(0), certain: true };
    assert_eq!(state, Response::State(expected));
    bookie.shutdown().await;
}

#[tokio::test]
async fn b5_reads_are_limited_and_a_prefix_read_returns_prefixes() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start(dir.path(), &store).await.unwrap();
    let (link, ear) = connect(&bookie);
    assert_eq!(create(&*link, 1).await, Response::Created);
    for at in 0..10 {
        link.append(entry(1, at, 1, 1000)).unwrap();
    }
    ear.wait(|heard| heard.durable.get(&LedgerId(1)) == Some(&EntryId(10)));
    let read = async |read: Read| match link.call(Request::Read(read)).await.unwrap() {
        Response::Entries(records) => records.iter().map(|record| record.payload.len()).collect(),
        other => panic!("{other:?}"),
    };
    let base = read_request(1, 3);
    let lengths: Vec<usize> = read(Read { max_entries: 2, ..base }).await;
    assert_eq!(lengths, [1000, 1000]);
    let lengths: Vec<usize> = read(Read { max_bytes: 1, ..base }).await;
    assert_eq!(lengths, [1000], "at least one, however large");
    let lengths: Vec<usize> = read(Read { max_bytes: 3300, ..base }).await;
    assert_eq!(lengths, [1000; 3]);
    let lengths: Vec<usize> = read(Read { prefix: true, ..base }).await;
    assert_eq!(lengths, [100; 7]);
    for (ledger, from) in [(1, 10), (2, 0)] {
        let response = link.call(Request::Read(read_request(ledger, from))).await.unwrap();
        assert_eq!(response, Response::Absent, "{ledger} {from}");
    }
    bookie.shutdown().await;
}

#[tokio::test]
async fn a_corrupt_append_is_refused_and_nothing_is_written() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start(dir.path(), &store).await.unwrap();
    let (link, ear) = connect(&bookie);
    assert_eq!(create(&*link, 1).await, Response::Created);
    let mut append = entry(1, 0, 1, 100);
    append.record.header.payload_crc ^= 1;
    link.append(append).unwrap();
    ear.wait(|heard| heard.refused == [Refusal::Corrupt]);
    assert!(read_all(&*link, 1).await.is_empty());
    bookie.shutdown().await;
}

#[tokio::test]
async fn b1_a_directory_has_one_bookie_and_one_cluster() {
    let (dir, first) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start(dir.path(), &first).await.unwrap();
    assert!(matches!(start(dir.path(), &first).await, Err(Error::InUse(_))));
    bookie.shutdown().await;
    drop(bookie);
    let other = store().await;
    let error = start(dir.path(), &other).await.unwrap_err();
    assert!(matches!(error, Error::OtherCluster { .. }), "{error}");
    start(dir.path(), &first).await.unwrap().shutdown().await;
}

#[tokio::test]
async fn b1_a_bookie_that_the_registry_does_not_know_is_refused() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start(dir.path(), &store).await.unwrap();
    let id = bookie.id();
    bookie.shutdown().await;
    drop(bookie);
    let key = Keys::new(CLUSTER).unwrap().bookie_registration(id);
    let txn = Txn { guards: Vec::new(), writes: vec![Write::Delete { key }] };
    let _ = store.transact(txn).await.unwrap();
    let error = start(dir.path(), &store).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn b1_an_older_copy_of_a_directory_is_refused() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    start(dir.path(), &store).await.unwrap().shutdown().await;
    let identity = dir.path().join("identity");
    let old = std::fs::read(&identity).unwrap();
    start(dir.path(), &store).await.unwrap().shutdown().await;
    start(dir.path(), &store).await.unwrap().shutdown().await;
    std::fs::write(&identity, old).unwrap();
    let error = start(dir.path(), &store).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
}

/// Metadata knows of entries that the bookie had: it lost them, though nothing
/// in its log says so.
#[tokio::test]
async fn l4_a_ledger_that_was_sealed_longer_is_damage() {
    for (end, is_damaged) in [(1, false), (2, true)] {
        let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
        let bookie = start(dir.path(), &store).await.unwrap();
        let id = bookie.id();
        let (link, ear) = connect(&bookie);
        assert_eq!(create(&*link, 1).await, Response::Created);
        link.append(entry(1, 0, 1, 100)).unwrap();
        ear.wait(|heard| heard.durable.get(&LedgerId(1)) == Some(&EntryId(1)));
        bookie.shutdown().await;
        drop((link, bookie));
        let sealed = Sealed { end: EntryId(end), complete: vec![id], ..Sealed::default() };
        let state = LedgerState::Sealed(sealed);
        put_ledger(&*store, &LedgerMetadata { replicas: vec![id], state, ..published(1) }).await;
        let key = Keys::new(CLUSTER).unwrap().id_next(IdKind::Ledgers);
        let _ = store.transact(Txn::default().put(key, IdAllocator { next: 101 }.encode())).await.unwrap();
        let bookie = start(dir.path(), &store).await.unwrap();
        assert_eq!(bookie.is_damaged(), is_damaged, "sealed with {end} entries");
        let (link, _ear) = connect(&bookie);
        let state = link.call(Request::State { ledger: LedgerId(1) }).await.unwrap();
        let Response::State(state) = state else { panic!("{state:?}") };
        assert_eq!(state.certain, !is_damaged);
        bookie.shutdown().await;
    }
}

#[tokio::test]
async fn b9_a_bookie_does_not_start_on_metadata_that_is_older_than_its_ledgers() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start(dir.path(), &store).await.unwrap();
    let (link, ear) = connect(&bookie);
    assert_eq!(create(&*link, 1).await, Response::Created);
    assert_eq!(create(&*link, 2).await, Response::Created);
    link.append(entry(1, 0, 1, 100)).unwrap();
    ear.wait(|heard| heard.durable.get(&LedgerId(1)) == Some(&EntryId(1)));
    bookie.shutdown().await;
    drop((link, bookie));
    let keys = Keys::new(CLUSTER).unwrap();
    let remove = |ledger| Txn::default().delete(keys.ledger(LedgerId(ledger)));

    // A ledger that was never published holds nothing, and is no sign.
    let _ = store.transact(remove(2)).await.unwrap();
    start(dir.path(), &store).await.unwrap().shutdown().await;

    let _ = store.transact(remove(1)).await.unwrap();
    let error = start(dir.path(), &store).await.unwrap_err();
    assert!(matches!(error, Error::MetadataBehind { ledger: LedgerId(1), .. }), "{error}");

    // A deletion that is under way is known by its intent.
    let intent = Txn::default().put(keys.delete(LedgerId(1)), Bytes::from_static(b"intent"));
    let _ = store.transact(intent).await.unwrap();
    start(dir.path(), &store).await.unwrap().shutdown().await;
}
