//! The controller dies, or is not answered, at each of its transactions: what
//! comes of its work is always the same.

use std::sync::Arc;

use quire_metadata::embedded::Fault;
use quire_metadata::id_block::IdKind;
use quire_metadata::operations::ids::ReleaseBlock;
use quire_metadata::store::Store;

use crate::cut::{CutStore, Death};
use crate::world::{World, bookie, eventually, process};

/// A deleted topic, a delete intent, a released block and one of a dead process.
fn world() -> World {
    let world = World::new();
    let broker = process("broker", 1);
    let block = world.block(IdKind::Ledgers, &broker, 10);
    let topic = world.topic(3, &broker, &block);
    world.delete_topic(topic);
    world.intend_delete(77, &[1, 2]);
    let returned = world.block(IdKind::Ledgers, &broker, 5);
    world.apply(&ReleaseBlock::from(returned));
    world.block(IdKind::Producers, &broker, 5);
    world
}

/// What is left when all is done.
fn is_done(world: &World) -> bool {
    let left: Vec<_> = world
        .names()
        .into_iter()
        .filter(|name| !name.starts_with("bookie-registry/") && name != "controller")
        .collect();
    left == ["ids/ledgers/next", "ids/producers/next"]
}

fn check_bookies(world: &World, context: &str) {
    let ledgers = || 1..=15;
    let with_intent: Vec<u64> = ledgers().chain([77]).collect();
    assert_eq!(world.bookies.deleted(bookie(1)), with_intent, "{context}");
    assert_eq!(world.bookies.deleted(bookie(2)), with_intent, "{context}");
    assert_eq!(world.bookies.deleted(bookie(3)), ledgers().collect::<Vec<_>>(), "{context}");
}

#[tokio::test(start_paused = true)]
async fn the_next_controller_finishes_what_a_dead_one_began() {
    for death in [Death::BeforeItIsApplied, Death::AfterItIsApplied] {
        let mut died = 0;
        for transactions in 0.. {
            let world = world();
            let store = CutStore::new(Arc::clone(&world.store), transactions, death);
            let first = world.controller_on(1, Arc::clone(&store) as Arc<dyn Store>);
            eventually(|| store.is_dead() || is_done(&world)).await;
            if !store.is_dead() {
                first.shutdown().await;
                break;
            }
            died += 1;
            // Dead without a word: only its lease ends.
            drop(first);
            let second = world.controller(2);
            if let Some(lease) = world.get(&world.keys.controller()).and_then(|found| found.lease) {
                world.store.revoke(lease).await.unwrap();
            }
            eventually(|| is_done(&world)).await;
            check_bookies(&world, &format!("{death:?} at {transactions}"));
            second.shutdown().await;
        }
        assert!(died > 10, "it died at {died} transactions only");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_found_out_at_each_transaction() {
    for fault in [Fault::Unavailable, Fault::UnknownLost, Fault::UnknownApplied, Fault::Twice] {
        for position in 0..20 {
            let world = world();
            world.store.inject(std::iter::repeat_n(Fault::None, position).chain([fault]));
            let controller = world.controller(1);
            eventually(|| is_done(&world)).await;
            check_bookies(&world, &format!("{fault:?} at {position}"));
            controller.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deposed_controller_that_wakes_up_changes_nothing() {
    let world = world();
    let store = CutStore::new(Arc::clone(&world.store), 3, Death::BeforeItIsApplied);
    let paused = world.controller_on(1, Arc::clone(&store) as Arc<dyn Store>);
    eventually(|| store.is_dead()).await;
    let lease = world.get(&world.keys.controller()).and_then(|found| found.lease).unwrap();
    world.store.revoke(lease).await.unwrap();
    let second = world.controller(2);
    eventually(|| is_done(&world)).await;
    let before = world.store.revision().unwrap();
    // What it had on its way arrives now.
    let late = store.late().unwrap();
    let outcome = world.store.transact_now(&late).unwrap();
    assert!(matches!(outcome, quire_metadata::store::TxnOutcome::Refused(_)), "{late:?}");
    assert_eq!(world.store.revision().unwrap(), before);
    drop(paused);
    second.shutdown().await;
}
