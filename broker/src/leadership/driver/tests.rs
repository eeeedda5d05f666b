use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quire_ledger::message::{Request, Response};
use quire_ledger::recovery::Silence;
use quire_metadata::store::Txn;
use quire_proto::id::{EntryId, Epoch, LedgerId, PartitionId};

use super::*;
use crate::bookies::fake::{self, Appends};
use crate::leadership::promotion::tests::{ledger, promotion, sealed, snapshot};
use crate::leadership::scan::Unreadable;

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

fn driver(appends: &Arc<Appends>) -> Driver {
    let context = fake::context(appends, |bookie, _| async move { Err(fake::away(bookie)) }.boxed());
    Driver::new(context, promotion(None), Arc::default(), Arc::new(Semaphore::new(1)))
}

#[tokio::test]
async fn a_link_that_breaks_at_a_copy_is_not_kept() {
    let appends = Arc::new(Appends { breaks: AtomicBool::new(true), ..Appends::default() });
    let mut driver = driver(&appends);
    let bookie = fake::bookie(1);
    driver.connect(bookie);
    let made = driver.work.next().await.expect("the link is made");
    assert!(matches!(driver.done(made), Event::LinkUp { .. }));
    driver.append(bookie, fake::append(LedgerId(9)));
    let broken = driver.work.next().await.expect("the machine is told");
    assert!(matches!(driver.done(broken), Event::LinkBroken { .. }));
    assert!(!driver.links.contains_key(&bookie), "the next copy makes another");
}

#[tokio::test]
async fn a_link_that_broke_before_it_was_looked_at_is_not_kept() {
    let mut driver = driver(&Arc::default());
    let bookie = fake::bookie(1);
    driver.connect(bookie);
    let made = driver.work.next().await.expect("the link is made");
    Sink { mailbox: Arc::clone(&driver.mailbox), number: 1 }.broken(bookie);
    assert!(matches!(driver.mail()[..], [Event::LinkBroken { .. }]));
    assert!(matches!(driver.done(made), Event::LinkBroken { .. }));
    assert!(!driver.links.contains_key(&bookie), "the next copy makes another");
}

#[tokio::test]
async fn a_late_report_about_a_link_does_not_break_the_next_one() {
    let mut driver = driver(&Arc::default());
    let bookie = fake::bookie(1);
    for number in 1..=2 {
        driver.links.remove(&bookie);
        driver.connect(bookie);
        let made = driver.work.next().await.expect("the link is made");
        assert!(matches!(driver.done(made), Event::LinkUp { .. }), "{number}");
    }
    Sink { mailbox: Arc::clone(&driver.mailbox), number: 1 }.broken(bookie);
    assert!(driver.mail().is_empty());
    assert!(driver.links.contains_key(&bookie));
}

/// No replica gives this entry, and these do not answer.
fn unreadable(entry: u64, silent: &[u128], why: &str) -> Option<Waiting> {
    let silence = |&n: &u128| Silence { bookie: fake::bookie(n), why: why.to_owned() };
    Some(Waiting::Restoring(Unreadable {
        ledger: LedgerId(9),
        entry: EntryId(entry),
        refusals: Vec::new(),
        silences: silent.iter().map(silence).collect(),
    }))
}

#[test]
fn a_wait_that_comes_back_has_the_name_that_it_had() {
    let patience = Patience::default();
    let check = |epoch: u64, waiting: Option<Waiting>, name: Option<&str>| {
        patience.set(Epoch(epoch), waiting.clone());
        let wait = patience.wait();
        assert_eq!(wait.as_ref().map(|wait| wait.name.as_str()), name);
        assert_eq!(wait.map(|wait| wait.waiting), waiting, "it says what it is now");
    };
    check(2, unreadable(1, &[1, 2], "away"), Some("2.1"));
    check(2, unreadable(1, &[1, 2], "no answer in time"), Some("2.1"));
    check(2, None, None);
    check(2, unreadable(1, &[1, 2], "away"), Some("2.1"));
    check(2, unreadable(1, &[1], "away"), Some("2.2"));
    check(2, unreadable(1, &[1, 2], "away"), Some("2.1"));
    check(3, unreadable(2, &[1, 2], "away"), Some("3.3"));
}

#[test]
fn a_loss_that_was_stated_covers_the_wait_that_has_got_better() {
    let patience = Patience::default();
    let set = |silent: &[u128]| patience.set(Epoch(2), unreadable(1, silent, "away"));
    let is_covered = |name: &str| {
        let stated = patience.stated(name).expect("it is remembered");
        stated.waiting.covers(&patience.wait().expect("it waits").waiting)
    };
    // A bookie that answers now and then.
    for _ in 0..3 * WAITS_MAX {
        set(&[1, 2]);
        assert!(is_covered("2.1"));
        set(&[1]);
        assert!(is_covered("2.1"));
    }
    assert!(is_covered("2.2"));
    set(&[1, 2]);
    assert!(!is_covered("2.2"), "who heard of one bookie has not heard of two");
}

#[test]
fn the_last_few_waits_are_remembered() {
    let patience = Patience::default();
    for entry in 1..=WAITS_MAX as u64 + 1 {
        patience.set(Epoch(2), unreadable(entry, &[1], "away"));
    }
    assert_eq!(patience.stated("2.1"), None);
    assert!(patience.stated("2.2").is_some());
}
