use std::task::Poll;

use futures_util::{FutureExt, poll};
use quire_ledger::link::LinkError;
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
    let mut given_up = Box::pin(cold.entry(&segment, EntryId(0)));
    let mut waiting = Box::pin(cold.entry(&segment, EntryId(0)));
    assert!(matches!(poll!(&mut given_up), Poll::Pending));
    assert!(matches!(poll!(&mut waiting), Poll::Pending));
    drop(given_up);
    assert_eq!(lock(&cold.flights).len(), 1, "one still waits");
    drop(waiting);
    assert!(lock(&cold.flights).is_empty());
    permits.add_permits(1);
    assert_eq!(permits.available_permits(), 1, "it queues no more");
    assert!(cold.entry(&segment, EntryId(0)).await.is_ok());
    assert!(lock(&cold.flights).is_empty());
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
    assert_eq!(cold.entry(&segment, EntryId(0)).await.unwrap_err().reason, reason);
    assert_eq!(cold.heads(&segment, 0).await.unwrap_err().reason, reason);
}
