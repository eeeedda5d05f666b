use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, join, poll};
use quire_ledger::link::LinkError;
use quire_ledger::record::Payload;
use tokio::sync::Semaphore;

use super::*;
use crate::bookies::fake::{away, bookie, bookies, record, segment};

fn cold(
    answer: impl Fn(BookieId, Request) -> BoxFuture<'static, Result<Response, LinkError>> + Send + Sync + 'static,
) -> Cold {
    Cold::new(bookies(answer), 1 << 20)
}

#[tokio::test]
async fn a_read_that_nobody_waits_for_holds_nothing() {
    let permits = Arc::new(Semaphore::new(0));
    let cold = cold({
        let permits = Arc::clone(&permits);
        move |_, request| {
            let Request::Read(read) = request else { panic!("{request:?} is no read") };
            let permits = Arc::clone(&permits);
            async move {
                let _permit = permits.acquire_owned().await;
                Ok(Response::Entries(vec![record(read.ledger, read.from, 0)]))
            }
            .boxed()
        }
    });
    let segment = segment(1, 0, 1, &[1]);
    let mut given_up = Box::pin(cold.entry(&segment, EntryId(0), 1 << 20));
    let mut waiting = Box::pin(cold.entry(&segment, EntryId(0), 1 << 20));
    assert!(matches!(poll!(&mut given_up), Poll::Pending));
    assert!(matches!(poll!(&mut waiting), Poll::Pending));
    drop(given_up);
    assert_eq!(cold.runs.count(), 1, "one still waits");
    drop(waiting);
    assert_eq!(cold.runs.count(), 0);
    permits.add_permits(1);
    assert_eq!(permits.available_permits(), 1, "it queues no more");
    assert!(cold.entry(&segment, EntryId(0), 1 << 20).await.is_ok());
    assert_eq!(cold.runs.count(), 0);
}

#[tokio::test]
async fn data_is_unavailable_only_when_every_replica_says_so() {
    let no = || Ok(Response::Absent);
    let doubt = || Ok(Response::Unknown("damaged".to_owned()));
    check(no(), no(), ErrorReason::DataUnavailable).await;
    check(no(), doubt(), ErrorReason::DataUnavailable).await;
    check(no(), Err(away(bookie(2))), ErrorReason::NotEnoughBookies).await;
    check(Err(away(bookie(1))), doubt(), ErrorReason::NotEnoughBookies).await;
}

async fn check(first: Result<Response, LinkError>, second: Result<Response, LinkError>, reason: ErrorReason) {
    let cold = cold(move |asked, _| {
        let answer = if asked == bookie(1) { first.clone() } else { second.clone() };
        async move { answer }.boxed()
    });
    let segment = segment(1, 0, 1, &[1, 2]);
    assert_eq!(cold.entry(&segment, EntryId(0), 1 << 20).await.unwrap_err().reason, reason);
    let heads = cold.heads(&segment, 0).await;
    let head = heads.and_then(|heads| heads[0].clone());
    assert_eq!(head.unwrap_err().reason, reason);
}

#[tokio::test]
async fn those_that_want_the_same_headers_share_one_read() {
    let reads = Arc::new(AtomicUsize::new(0));
    let cold = cold({
        let reads = Arc::clone(&reads);
        move |_, request| {
            let Request::Read(read) = request else { panic!("{request:?} is no read") };
            reads.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                Ok(Response::Entries(vec![record(read.ledger, read.from, 0)]))
            }
            .boxed()
        }
    });
    let segment = segment(1, 0, 1, &[1]);
    let (one, other) = join!(cold.heads(&segment, 0), cold.heads(&segment, 0));
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(reads.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_header_that_one_replica_damaged_is_read_from_the_next() {
    let cold = cold(|asked, request| {
        let Request::Read(read) = request else { panic!("{request:?} is no read") };
        let entries = read.from.0..read.from.0 + u64::from(read.max_entries);
        let mut records: Vec<_> = entries.map(|entry| record(read.ledger, EntryId(entry), entry)).collect();
        if asked == bookie(1) {
            for record in records.iter_mut().filter(|record| record.header.entry == EntryId(1)) {
                record.payload = Payload::from(Bytes::from_static(b"damaged"));
            }
        }
        async move { Ok(Response::Entries(records)) }.boxed()
    });
    let heads = cold.heads(&segment(1, 0, 3, &[1, 2]), 0).await.unwrap();
    let offsets: Vec<_> = heads.iter().map(|head| head.as_ref().unwrap().base_offset.0).collect();
    assert_eq!(offsets, [0, 1, 2]);
}
