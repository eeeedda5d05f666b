//! Blocks of ids of processes that are gone.

use std::time::Duration;

use quire_metadata::id_block::{IdBlock, IdKind};
use quire_metadata::operations::ids::ReleaseBlock;
use quire_metadata::store::Store;
use tokio::time::Instant;

use crate::bookies::{FAILURES, Fate};
use crate::world::{GRACE, World, bookie, eventually, process, stays};

fn block_of(world: &World, kind: IdKind) -> Option<IdBlock> {
    world.read(&world.keys.id_block(kind, 1)).map(|found| found.value)
}

#[tokio::test(start_paused = true)]
async fn a_block_of_a_living_process_is_left_alone() {
    let world = World::new();
    let broker = process("broker", 1);
    let _lease = world.register_broker(&broker);
    let held = world.block(IdKind::Ledgers, &broker, 10);
    let controller = world.controller(1);
    stays(|| block_of(&world, IdKind::Ledgers).as_ref() == Some(&held.block.value)).await;
    assert_eq!(world.bookies.requests(bookie(1)), 0);
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_process_did_not_publish_is_deleted_everywhere() {
    let world = World::new();
    let broker = process("broker", 1);
    let lease = world.register_broker(&broker);
    let held = world.block(IdKind::Ledgers, &broker, 10);
    // Publishes 1 and 2 of 1 to 10.
    world.topic(2, &broker, &held);
    let controller = world.controller(1);
    eventually(|| *controller.elected().borrow()).await;
    tokio::time::sleep(GRACE * 2).await;
    world.store.revoke(lease).await.unwrap();
    let died = Instant::now();
    eventually(|| block_of(&world, IdKind::Ledgers).is_none()).await;
    assert!(died.elapsed() >= GRACE, "released after {:?}", died.elapsed());
    for n in 1..=3 {
        assert_eq!(world.bookies.deleted(bookie(n)), (3..=10).collect::<Vec<_>>());
    }
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_grace_begins_when_the_controller_first_looks() {
    let world = World::new();
    let held = world.block(IdKind::Ledgers, &process("broker", 1), 10);
    tokio::time::sleep(GRACE * 10).await;
    let start = Instant::now();
    let controller = world.controller(1);
    eventually(|| block_of(&world, IdKind::Ledgers).as_ref() != Some(&held.block.value)).await;
    assert!(start.elapsed() >= GRACE, "released after {:?}", start.elapsed());
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn another_run_of_the_same_broker_does_not_keep_the_block() {
    let world = World::new();
    let _lease = world.register_broker(&process("broker", 2));
    world.block(IdKind::Ledgers, &process("broker", 1), 10);
    let controller = world.controller(1);
    eventually(|| block_of(&world, IdKind::Ledgers).is_none()).await;
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_within_the_grace_keeps_its_block() {
    let world = World::new();
    let broker = process("broker", 1);
    let lease = world.register_broker(&broker);
    let held = world.block(IdKind::Ledgers, &broker, 10);
    let controller = world.controller(1);
    eventually(|| *controller.elected().borrow()).await;
    world.store.revoke(lease).await.unwrap();
    tokio::time::sleep(GRACE / 2).await;
    let _lease = world.register_broker(&broker);
    stays(|| block_of(&world, IdKind::Ledgers).as_ref() == Some(&held.block.value)).await;
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_block_that_was_returned_is_reclaimed_at_once() {
    let world = World::new();
    let broker = process("broker", 1);
    let _lease = world.register_broker(&broker);
    let held = world.block(IdKind::Ledgers, &broker, 10);
    let controller = world.controller(1);
    eventually(|| *controller.elected().borrow()).await;
    let returned = Instant::now();
    world.apply(&ReleaseBlock::from(held));
    eventually(|| block_of(&world, IdKind::Ledgers).is_none()).await;
    assert!(returned.elapsed() < Duration::from_secs(1));
    assert_eq!(world.bookies.deleted(bookie(1)), (1..=10).collect::<Vec<_>>());
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_block_stays_until_every_registered_bookie_has_answered() {
    for fate in FAILURES {
        let world = World::new();
        world.bookies.always(bookie(3), Some(fate));
        let held = world.block(IdKind::Ledgers, &process("broker", 1), 10);
        world.apply(&ReleaseBlock::from(held));
        let controller = world.controller(1);
        stays(|| block_of(&world, IdKind::Ledgers).is_some_and(|block| block.holder.is_none())).await;
        assert_eq!(world.bookies.requests(bookie(1)), 1, "who has answered is not asked again");
        world.bookies.always(bookie(3), None);
        eventually(|| block_of(&world, IdKind::Ledgers).is_none()).await;
        assert_eq!(world.bookies.deleted(bookie(3)).len(), 10, "{fate:?}");
        controller.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_leaves_is_not_waited_for() {
    let world = World::new();
    world.bookies.always(bookie(3), Some(Fate::NoConnection));
    let held = world.block(IdKind::Ledgers, &process("broker", 1), 10);
    world.apply(&ReleaseBlock::from(held));
    let controller = world.controller(1);
    stays(|| block_of(&world, IdKind::Ledgers).is_some()).await;
    world.remove(world.keys.bookie_registration(bookie(3)));
    eventually(|| block_of(&world, IdKind::Ledgers).is_none()).await;
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn producer_ids_leave_nothing_behind() {
    let world = World::new();
    world.block(IdKind::Producers, &process("broker", 1), 10);
    let controller = world.controller(1);
    eventually(|| block_of(&world, IdKind::Producers).is_none()).await;
    assert_eq!(world.bookies.requests(bookie(1)), 0);
    controller.shutdown().await;
}
