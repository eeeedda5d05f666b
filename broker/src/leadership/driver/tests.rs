use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quire_ledger::message::{Request, Response};
use quire_metadata::store::Txn;
use quire_proto::id::{Epoch, PartitionId};

use super::*;
use crate::bookies::fake;
use crate::leadership::promotion::tests::{ledger, promotion, sealed, snapshot};

/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_promotion_that_is_held_up_gives_its_turn_back_until_it_can_go_on() {
    let open = Arc::new(AtomicBool::new(false));
    let context = fake::context(&Arc::default(), {
        let open = Arc::clone(&open);
        move |bookie, request| {
            assert!(matches!(request, Request::Read(_)), "{request:?}");
            let answer = match open.load(Ordering::SeqCst) {
                true => Ok(Response::Entries(vec![snapshot(9, 4)])),
                false => Err(fake::away(bookie)),
            };
            async move { answer }.boxed()
        }
    });
    let led = Partition { epoch: Epoch(2), leader: None };
    let txn = Txn::default().put(context.keys.partition(PartitionId::default()), led.encode());
    _ = context.store.transact(txn).await.unwrap();
    let turns = Arc::new(Semaphore::new(1));
    let promotion = promotion(Some(ledger(9, sealed(4))));
    let promoting = tokio::spawn(promote(context, promotion, Arc::default(), Arc::clone(&turns)));
    tokio::task::yield_now().await;
    let turn = tokio::time::timeout(PATIENCE, turns.acquire()).await.expect("the turn comes back").unwrap();
    open.store(true, Ordering::SeqCst);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), turns.acquire()).await.is_err(),
        "the only turn is ours"
    );
    assert!(!promoting.is_finished(), "it has no turn");
    drop(turn);
    let promoted = tokio::time::timeout(PATIENCE, promoting).await.expect("it goes on").unwrap();
    assert!(promoted.is_some(), "it leads");
    assert_eq!(turns.available_permits(), 1);
}
