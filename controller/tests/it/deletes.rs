//! Delete intents and topics that are being deleted.

use std::time::Duration;

use quire_metadata::id_block::IdKind;
use quire_proto::id::LedgerId;

use crate::bookies::{FAILURES, Fate};
use crate::world::{World, bookie, eventually, process, stays};

#[tokio::test(start_paused = true)]
async fn every_bookie_that_is_named_deletes_the_ledger() {
    let world = World::new();
    world.intend_delete(7, &[1, 3]);
    let controller = world.controller(1);
    eventually(|| world.intent(7).is_none()).await;
    world.intend_delete(8, &[2]);
    eventually(|| world.intent(8).is_none()).await;
    let deleted: Vec<_> = (1..=3).map(|n| world.bookies.deleted(bookie(n))).collect();
    assert_eq!(deleted, [vec![7], vec![8], vec![7]]);
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_but_the_bookies_word_counts() {
    for fate in FAILURES {
        let world = World::new();
        world.bookies.always(bookie(2), Some(fate));
        world.intend_delete(7, &[1, 2, 3]);
        let controller = world.controller(1);
        eventually(|| world.intent(7).is_some_and(|intent| intent.confirmed.len() == 2)).await;
        stays(|| world.intent(7).unwrap().outstanding() == [bookie(2)]).await;
        world.bookies.always(bookie(2), None);
        eventually(|| world.intent(7).is_none()).await;
        assert_eq!(world.bookies.deleted(bookie(2)), [7], "{fate:?}");
        controller.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_way_to_fail_is_tried_again() {
    let world = World::new();
    for n in 1..=3 {
        world.bookies.next(bookie(n), FAILURES);
    }
    (1..=20).for_each(|ledger| world.intend_delete(ledger, &[1, 2, 3]));
    let controller = world.controller(1);
    eventually(|| (1..=20).all(|ledger| world.intent(ledger).is_none())).await;
    for n in 1..=3 {
        assert_eq!(world.bookies.deleted(bookie(n)), (1..=20).collect::<Vec<_>>());
    }
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_sick_bookie_is_asked_less_and_less() {
    let world = World::new();
    world.bookies.always(bookie(1), Some(Fate::Breaks));
    (1..=200).for_each(|ledger| world.intend_delete(ledger, &[1]));
    let controller = world.controller(1);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let asked = world.bookies.requests(bookie(1));
    // At most all at once for each pause of the longest kind, not each intent.
    assert!(asked < 600, "{asked} requests in ten minutes");
    world.bookies.always(bookie(1), None);
    eventually(|| (1..=200).all(|ledger| world.intent(ledger).is_none())).await;
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_has_left_the_registry_is_not_waited_for() {
    let world = World::new();
    world.bookies.always(bookie(2), Some(Fate::NoConnection));
    world.intend_delete(7, &[1, 2]);
    let controller = world.controller(1);
    stays(|| world.intent(7).is_some()).await;
    world.remove(world.keys.bookie_registration(bookie(2)));
    eventually(|| world.intent(7).is_none()).await;
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_comes_back_is_asked_at_once() {
    let world = World::new();
    world.bookies.always(bookie(2), Some(Fate::NoConnection));
    world.intend_delete(7, &[2]);
    let controller = world.controller(1);
    // Until the pauses are long.
    tokio::time::sleep(Duration::from_secs(300)).await;
    world.bookies.always(bookie(2), None);
    let back = tokio::time::Instant::now();
    world.put(world.keys.bookie(bookie(2)), "alive".into());
    eventually(|| world.intent(7).is_none()).await;
    assert!(back.elapsed() < Duration::from_secs(1), "{:?}", back.elapsed());
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_topic_leaves_nothing() {
    let world = World::new();
    let broker = process("broker", 1);
    let _lease = world.register_broker(&broker);
    let block = world.block(IdKind::Ledgers, &broker, 100);
    let topic = world.topic(60, &broker, &block);
    let before = world.names();
    assert!(before.iter().filter(|name| name.starts_with("segments/")).count() == 60);
    world.delete_topic(topic);
    let controller = world.controller(1);
    let kinds = ["deleting/", "topics/", "partitions/", "segments/", "ledgers/", "deletes/"];
    let left = || world.names().into_iter().filter(|name| kinds.iter().any(|kind| name.starts_with(kind)));
    eventually(|| left().next().is_none()).await;
    for n in 1..=3 {
        assert_eq!(world.bookies.deleted(bookie(n)), (1..=60).collect::<Vec<_>>());
    }
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_segment_whose_ledger_is_gone_does_not_stop_a_topics_deletion() {
    let world = World::new();
    let broker = process("broker", 1);
    let block = world.block(IdKind::Ledgers, &broker, 10);
    let topic = world.topic(2, &broker, &block);
    world.remove(world.keys.ledger(LedgerId(1)));
    world.delete_topic(topic);
    let controller = world.controller(1);
    eventually(|| !world.names().iter().any(|name| name.starts_with("deleting/"))).await;
    assert!(!world.names().iter().any(|name| name.starts_with("segments/")));
    controller.shutdown().await;
}
